//! The attributes of functions that run as a rank: `main` and `test`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::meta::ParseNestedMeta;
use syn::parse::Parser;
use syn::{Error, Expr, FnArg, Ident, ItemFn, Lit, LitFloat, LitStr, Path, parse_quote};

/// What stands in the brackets of an attribute.
struct Arguments {
    mpi: Path,
    threading: Ident,
    /// Each a whole number.
    ranks: Vec<Expr>,
    seconds: LitFloat,
}

impl Arguments {
    fn read(tokens: TokenStream, of_test: bool) -> Result<Arguments, Error> {
        let mut read = Arguments {
            mpi: parse_quote!(::mpi),
            threading: parse_quote!(Single),
            ranks: Vec::new(),
            seconds: parse_quote!(60.0),
        };
        let known = if of_test { "ranks, timeout, threading and crate" } else { "threading and crate" };
        let one = |meta: ParseNestedMeta<'_>| {
            let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
            match name.as_str() {
                "crate" => read.mpi = meta.value()?.parse::<LitStr>()?.parse()?,
                "threading" => read.threading = meta.value()?.parse()?,
                "ranks" if of_test => {
                    read.ranks = match meta.value()?.parse()? {
                        Expr::Array(list) => list.elems.into_iter().collect(),
                        one => vec![one],
                    };
                }
                "timeout" if of_test => {
                    read.seconds = match meta.value()?.parse()? {
                        Lit::Int(whole) => LitFloat::new(&format!("{whole}.0"), whole.span()),
                        Lit::Float(seconds) => seconds,
                        other => return Err(Error::new(other.span(), "a number of seconds")),
                    };
                }
                _ => return Err(meta.error(format!("known here are {known}"))),
            }
            Ok(())
        };
        syn::meta::parser(one).parse2(tokens)?;
        Ok(read)
    }
}

/// The user's function, to be put into the one that takes its place, and what calls it with the universe.
fn inner(function: &ItemFn, mpi: &Path) -> Result<(TokenStream, TokenStream), Error> {
    let signature = &function.sig;
    if let Some(word) = &signature.asyncness {
        return Err(Error::new(word.span, "a rank begins with a function that is not async"));
    }
    if !signature.generics.params.is_empty() || signature.inputs.len() > 1 {
        let most = "a rank begins with a function of one argument at most: &mut Universe, &Universe or SimpleCommunicator";
        return Err(Error::new_spanned(signature, most));
    }
    let name = &signature.ident;
    let call = match signature.inputs.first() {
        None => quote!(|_| #name()),
        Some(FnArg::Typed(argument)) => {
            let ty = &argument.ty;
            quote!(|universe| #name(<#ty as #mpi::entry::Argument<'_>>::of(universe)))
        }
        Some(FnArg::Receiver(own)) => return Err(Error::new(own.self_token.span, "a rank is no method")),
    };
    let block = &function.block;
    Ok((quote!(#signature #block), call))
}

pub(crate) fn main(arguments: TokenStream, function: TokenStream) -> Result<TokenStream, Error> {
    let Arguments { mpi, threading, .. } = Arguments::read(arguments, false)?;
    let function: ItemFn = syn::parse2(function)?;
    let (inner, call) = inner(&function, &mpi)?;
    let ItemFn { attrs, vis, sig, .. } = function;
    let name = sig.ident;
    Ok(quote! {
        #(#attrs)*
        #vis fn #name() -> ::std::process::ExitCode {
            #inner
            #mpi::entry::main(#mpi::Threading::#threading, #call)
        }
    })
}

pub(crate) fn test(arguments: TokenStream, function: TokenStream) -> Result<TokenStream, Error> {
    let Arguments { mpi, threading, ranks, seconds } = Arguments::read(arguments, true)?;
    let function: ItemFn = syn::parse2(function)?;
    if ranks.is_empty() {
        return Err(Error::new_spanned(&function.sig.ident, "on how many ranks? #[mpi::test(ranks = 4)]"));
    }
    let (inner, call) = inner(&function, &mpi)?;
    let ItemFn { attrs, vis, sig, .. } = function;
    let name = sig.ident;
    Ok(quote! {
        #[::core::prelude::v1::test]
        #(#attrs)*
        #vis fn #name() {
            #inner
            let test = #mpi::entry::Test {
                name: ::core::concat!(::core::module_path!(), "::", ::core::stringify!(#name)),
                ranks: &[#(#ranks),*],
                limit: ::core::time::Duration::from_secs_f64(#seconds),
            };
            test.run(#mpi::Threading::#threading, #call)
        }
    })
}
