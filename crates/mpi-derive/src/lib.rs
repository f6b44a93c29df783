//! The macros of MPI for Rust: the derived datatype of a struct from its fields, and the attributes of functions that are run as ranks.

mod entry;

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Error, Index, Path, parse_quote};

/// Derives `mpi::traits::Equivalence` for a struct whose fields have datatypes, or are arrays and tuples of such. Padding is not sent.
///
/// `#[mpi(crate = "path::to::mpi")]` says where the crate `mpi` is, if not at `::mpi`.
#[proc_macro_derive(Equivalence, attributes(mpi))]
pub fn derive_equivalence(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    equivalence(input).unwrap_or_else(Error::into_compile_error).into()
}

/// Makes the function `main` a rank's: MPI begins before it and ends after it.
///
/// It may have one argument, `&mut Universe`, `&Universe` or `SimpleCommunicator` (the world), and gives what a `main` may give. If that is
/// an error, the job ends. `#[mpi::main(threading = Multiple)]` asks for a thread level.
#[proc_macro_attribute]
pub fn main(
    arguments: proc_macro::TokenStream,
    function: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    entry::main(arguments.into(), function.into()).unwrap_or_else(Error::into_compile_error).into()
}

/// Makes a function a test that runs on several ranks, each a process: `#[mpi::test(ranks = 4)]`; on one number of them after the other:
/// `#[mpi::test(ranks = [1, 2, 5])]`.
///
/// `cargo test` is enough: the test starts itself again, as mpirun and as its ranks. The function has an argument as that of [`macro@main`]
/// has, and gives what a test may give. A rank that panics or gives an error ends the others, and fails the test; so does a job that takes more
/// seconds than `timeout = 60` says, which is the default.
#[proc_macro_attribute]
pub fn test(
    arguments: proc_macro::TokenStream,
    function: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    entry::test(arguments.into(), function.into()).unwrap_or_else(Error::into_compile_error).into()
}

fn equivalence(mut input: DeriveInput) -> Result<TokenStream, Error> {
    let mpi = crate_path(&input.attrs)?;
    let fields = match &input.data {
        Data::Struct(data) => &data.fields,
        Data::Enum(data) => return Err(Error::new(data.enum_token.span, NO_ENUM)),
        Data::Union(data) => return Err(Error::new(data.union_token.span, NO_UNION)),
    };
    let parts = fields.iter().enumerate().map(|(at, field)| {
        let (ty, index) = (&field.ty, Index::from(at));
        let name = field.ident.as_ref().map_or_else(|| quote!(#index), |name| quote!(#name));
        quote_spanned! { ty.span() =>
            (::core::mem::offset_of!(Self, #name), <#ty as #mpi::datatype::internal::Part>::part())
        }
    });
    let parts: Vec<TokenStream> = parts.collect();
    let is_generic = !input.generics.params.is_empty();
    for parameter in input.generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(#mpi::datatype::Equivalence));
        parameter.bounds.push(parse_quote!('static));
    }
    let name = &input.ident;
    let (for_all, arguments, bounds) = input.generics.split_for_impl();
    let make = quote!(|| #mpi::datatype::internal::structure::<Self>(&[#(#parts),*]));
    // A static of a generic function is one for all types: those are kept by type.
    let datatype = match is_generic {
        true => quote!(#mpi::datatype::internal::kept_by_type::<Self>(#make)),
        false => quote! {
            static DATATYPE: #mpi::datatype::internal::Kept = #mpi::datatype::internal::Kept::new();
            DATATYPE.get(#make)
        },
    };
    Ok(quote! {
        // SAFETY: the datatype has the fields at their places, and each field's type is such that any message of its datatype
        // brings a value of it.
        #[automatically_derived]
        unsafe impl #for_all #mpi::datatype::Equivalence for #name #arguments #bounds {
            type Out = #mpi::datatype::DatatypeRef<'static>;

            fn equivalent_datatype() -> Self::Out {
                #datatype
            }
        }
    })
}

const NO_ENUM: &str = "an enum has no datatype: not all bytes that a message may bring are a value of it";
const NO_UNION: &str = "a union has no datatype: nobody knows which of its fields is there";

/// Where the crate `mpi` is.
fn crate_path(attributes: &[Attribute]) -> Result<Path, Error> {
    let mut path = None;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("mpi")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("crate") {
                return Err(meta.error("only `crate` is known here"));
            }
            let text: syn::LitStr = meta.value()?.parse()?;
            match path.replace(text.parse()?) {
                None => Ok(()),
                Some(_) => Err(meta.error("the path of the crate is given twice")),
            }
        })?;
    }
    Ok(path.unwrap_or_else(|| parse_quote!(::mpi)))
}
