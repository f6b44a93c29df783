//! The external32 representation: big-endian, with sizes that do not depend on the machine
//! (MPI 5.0, 5.3 and 14.5.2).

use rustc_apfloat::ieee::{Quad, X87DoubleExtended};
use rustc_apfloat::{Float, FloatConvert};

use crate::basic::{Basic, Class};
use crate::{Cursor, Data, Datatype, Error};

/// Bytes that `count` elements take (MPI_Pack_external_size).
///
/// # Errors
/// The size does not fit into 64 bits.
pub fn size(count: u64, ty: &Datatype) -> Result<u64, Error> {
    let one = ty.sequence().map_or(0, |sequence| sequence.external32);
    let all = one.checked_mul(count).filter(|&bytes| bytes <= i64::MAX as u64);
    all.ok_or(Error::Overflow("the size in external32"))
}

/// Writes `data`, which holds elements of `ty`, to `out`; returns the bytes written
/// (MPI_Pack_external).
///
/// # Errors
/// `out` is too small; a `long` or wide character has no form in 4 or 2 bytes.
pub fn pack(data: &Data, ty: &Datatype, out: &mut [u8]) -> Result<usize, Error> {
    let need = need(data, ty, out.len())?;
    let mut job = Packer { cursor: data.cursor(), at: 0, out };
    each_stretch(data, ty, &mut |basic, count| job.stretch(data, basic, count))?;
    Ok(need)
}

/// Reads elements of `ty` from `bytes` into `data`; returns the bytes read (MPI_Unpack_external).
///
/// # Errors
/// `bytes` are too few.
pub fn unpack(data: &Data, ty: &Datatype, bytes: &[u8]) -> Result<usize, Error> {
    let need = need(data, ty, bytes.len())?;
    let mut job = Unpacker { cursor: data.cursor(), at: 0, bytes };
    each_stretch(data, ty, &mut |basic, count| {
        job.stretch(data, basic, count);
        Ok(())
    })?;
    Ok(need)
}

fn need(data: &Data, ty: &Datatype, have: usize) -> Result<usize, Error> {
    let need = packed_len(data, ty)?;
    let have = have as u64;
    if need > have { Err(Error::Space { need, have }) } else { Ok(need as usize) }
}

/// Bytes that all of `data`, elements of `ty`, takes.
///
/// # Errors
/// As for [`size`].
pub fn packed_len(data: &Data, ty: &Datatype) -> Result<u64, Error> {
    size(elements(data, ty), ty)
}

fn elements(data: &Data, ty: &Datatype) -> u64 {
    data.len().checked_div(ty.size()).unwrap_or(0)
}

/// Calls `f` for each stretch of equal basic types in all of `data`.
fn each_stretch(
    data: &Data,
    ty: &Datatype,
    f: &mut impl FnMut(&'static Basic, u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let count = elements(data, ty);
    match ty.uniform() {
        Some(basic) => f(basic, count * ty.element_count()),
        None => (0..count).try_for_each(|_| ty.visit_basics(&mut *f)),
    }
}

/// Bytes converted at a time.
const STAGE: usize = 4096;

struct Packer<'a> {
    cursor: Cursor,
    at: usize,
    out: &'a mut [u8],
}

impl Packer<'_> {
    fn stretch(&mut self, data: &Data, basic: &Basic, count: u64) -> Result<(), Error> {
        let rule = Rule::of(basic);
        let mut left = count as usize * basic.size as usize;
        let mut stage = [0; STAGE];
        while left > 0 {
            let part = &mut stage[..left.min(STAGE)];
            self.cursor.pack(data, part);
            left -= part.len();
            for unit in part.chunks_exact(rule.native) {
                rule.write(unit, &mut self.out[self.at..self.at + rule.external])?;
                self.at += rule.external;
            }
        }
        Ok(())
    }
}

struct Unpacker<'a> {
    cursor: Cursor,
    at: usize,
    bytes: &'a [u8],
}

impl Unpacker<'_> {
    fn stretch(&mut self, data: &Data, basic: &Basic, count: u64) {
        let rule = Rule::of(basic);
        let mut left = count as usize * basic.size as usize;
        let mut stage = [0; STAGE];
        while left > 0 {
            let part = &mut stage[..left.min(STAGE)];
            left -= part.len();
            for unit in part.chunks_exact_mut(rule.native) {
                rule.read(&self.bytes[self.at..self.at + rule.external], unit);
                self.at += rule.external;
            }
            self.cursor.unpack(data, part);
        }
    }
}

/// How numbers of a basic type change; a complex number is two of them.
struct Rule {
    /// Bytes in memory; all are powers of two, so that stages end between numbers.
    native: usize,
    /// Bytes in external32.
    external: usize,
    change: Change,
}

enum Change {
    /// Byte order only.
    Order,
    /// Fewer bytes, with or without a sign.
    Narrow { signed: bool },
    /// The x87's 80 bits become IEEE binary128.
    Extended,
}

impl Rule {
    fn of(basic: &Basic) -> Self {
        let parts = if basic.class == Class::Complex { 2 } else { 1 };
        let (native, external) = (basic.size / parts, basic.external32 / parts);
        let change = match basic.code {
            0x220 | 0x224 | 0x225 if cfg!(target_arch = "x86_64") => Change::Extended,
            _ if native != external => Change::Narrow { signed: basic.class == Class::Signed },
            _ => Change::Order,
        };
        Self { native: native.into(), external: external.into(), change }
    }

    fn write(&self, unit: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let value = u128_of(unit.iter().copied(), cfg!(target_endian = "little"));
        let value = match self.change {
            Change::Order => value,
            Change::Narrow { signed } => narrowed(value, self.native, self.external, signed)?,
            Change::Extended => to_quad(value),
        };
        out.copy_from_slice(&value.to_be_bytes()[16 - self.external..]);
        Ok(())
    }

    fn read(&self, bytes: &[u8], unit: &mut [u8]) {
        let value = u128_of(bytes.iter().copied(), false);
        let value = match self.change {
            Change::Order => value,
            Change::Narrow { signed: true } => {
                let unused = 128 - 8 * self.external as u32;
                ((value << unused) as i128 >> unused) as u128
            }
            Change::Narrow { signed: false } => value,
            Change::Extended => from_quad(value),
        };
        if cfg!(target_endian = "little") {
            unit.copy_from_slice(&value.to_le_bytes()[..self.native]);
        } else {
            unit.copy_from_slice(&value.to_be_bytes()[16 - self.native..]);
        }
    }
}

fn u128_of(bytes: impl DoubleEndedIterator<Item = u8>, little_endian: bool) -> u128 {
    let join = |value: u128, byte: u8| value << 8 | u128::from(byte);
    if little_endian { bytes.rev().fold(0, join) } else { bytes.fold(0, join) }
}

/// The low `to` bytes of a number, if they hold its whole value.
fn narrowed(value: u128, from: usize, to: usize, signed: bool) -> Result<u128, Error> {
    let (unused_from, unused_to) = (128 - 8 * from as u32, 128 - 8 * to as u32);
    let fits = if signed {
        let extend = |unused: u32| (value << unused) as i128 >> unused;
        extend(unused_from) == extend(unused_to)
    } else {
        value << unused_to >> unused_to == value
    };
    if fits {
        return Ok(value);
    }
    Err(Error::Conversion(format!("a value of {from} bytes does not fit into the {to} of external32")))
}

fn to_quad(value: u128) -> u128 {
    let wide: Quad = X87DoubleExtended::from_bits(value & ((1 << 80) - 1)).convert(&mut false).value;
    wide.to_bits()
}

fn from_quad(value: u128) -> u128 {
    let narrow: X87DoubleExtended = Quad::from_bits(value).convert(&mut false).value;
    narrow.to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;
    use banyan_memory::HeapBuffer;

    fn packed(code: u16, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let ty = Datatype::builtin(code).unwrap();
        let data = Data::bytes(HeapBuffer::copy_of(bytes));
        let mut out = vec![0; size(elements(&data, ty), ty)? as usize];
        pack(&data, ty, &mut out)?;
        Ok(out)
    }

    #[test]
    fn known_values() {
        assert_eq!(packed(0x209, &1i32.to_ne_bytes()).unwrap(), [0, 0, 0, 1]);
        assert_eq!(packed(0x208, &(-2i16).to_ne_bytes()).unwrap(), [0xff, 0xfe]);
        assert_eq!(packed(0x20a, &(-3i64).to_ne_bytes()).unwrap(), [0xff, 0xff, 0xff, 0xfd]);
        assert_eq!(packed(0x20e, &0xffff_fff0u64.to_ne_bytes()).unwrap(), [0xff, 0xff, 0xff, 0xf0]);
        assert_eq!(packed(0x214, &1.0f64.to_ne_bytes()).unwrap(), [0x3f, 0xf0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(packed(0x23c, &0x20acu32.to_ne_bytes()).unwrap(), [0x20, 0xac]);
        assert_eq!(packed(0x247, b"abc").unwrap(), b"abc");
        let complex: Vec<u8> = [1.0f32, -2.0].iter().flat_map(|part| part.to_ne_bytes()).collect();
        assert_eq!(packed(0x212, &complex).unwrap(), [0x3f, 0x80, 0, 0, 0xc0, 0, 0, 0]);
        assert_eq!(packed(0x2e1, &2i128.to_ne_bytes()).unwrap(), 2i128.to_be_bytes());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(matches!(packed(0x20a, &(1i64 << 31).to_ne_bytes()), Err(Error::Conversion(_))));
        assert!(packed(0x20a, &(-1i64 << 31).to_ne_bytes()).is_ok());
        assert!(matches!(packed(0x20e, &(1u64 << 32).to_ne_bytes()), Err(Error::Conversion(_))));
        assert!(matches!(packed(0x23c, &0x1_f600u32.to_ne_bytes()), Err(Error::Conversion(_))));
        let (ty, data) = (Datatype::builtin(0x209).unwrap(), Data::bytes(HeapBuffer::zeroed(8)));
        assert_eq!(pack(&data, ty, &mut [0; 7]), Err(Error::Space { need: 8, have: 7 }));
        assert_eq!(unpack(&data, ty, &[0; 7]), Err(Error::Space { need: 8, have: 7 }));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn long_double_becomes_binary128() {
        // 1.5 and the smallest denormal of the x87, by hand.
        let mut value = [0u8; 16];
        value[..8].copy_from_slice(&0xc000_0000_0000_0000u64.to_le_bytes());
        value[8..10].copy_from_slice(&0x3fffu16.to_le_bytes());
        let mut expected = [0u8; 16];
        expected[..3].copy_from_slice(&[0x3f, 0xff, 0x80]);
        assert_eq!(packed(0x220, &value).unwrap(), expected);
        let mut tiny = [0u8; 16];
        tiny[0] = 1;
        assert_eq!(packed(0x220, &tiny).unwrap(), (1u128 << 49).to_be_bytes());

        let (ty, data) = (Datatype::builtin(0x220).unwrap(), Data::bytes(HeapBuffer::zeroed(16)));
        assert_eq!(unpack(&data, ty, &expected), Ok(16));
        let mut back = [0; 16];
        data.cursor().pack(&data, &mut back);
        assert_eq!(back, value);
    }

    #[test]
    fn mixed_types_come_back() {
        let [long, double, pair] = [0x20a, 0x214, 0x22c].map(|code| Datatype::builtin(code).unwrap().clone());
        let ty = Datatype::create_struct(&[3, 1, 2], &[0, 32, 48], &[long, double, pair]).unwrap();
        let bytes: Vec<u8> =
            (0..640u32).map(|i| if i % 64 < 24 && i % 8 > 1 { 0 } else { i as u8 }).collect();
        let data = Data::typed(HeapBuffer::copy_of(&bytes), 10, &ty);
        assert_eq!(size(10, &ty), Ok(10 * (12 + 8 + 12)));
        let mut out = vec![0; 320];
        assert_eq!(pack(&data, &ty, &mut out), Ok(320));
        let copy = Data::typed(HeapBuffer::zeroed(640), 10, &ty);
        assert_eq!(unpack(&copy, &ty, &out), Ok(320));
        let stream = |data: &Data| {
            let mut out = vec![0; data.len() as usize];
            data.cursor().pack(data, &mut out);
            out
        };
        assert_eq!(stream(&data), stream(&copy));
    }
}
