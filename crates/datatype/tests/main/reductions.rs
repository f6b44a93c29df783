//! Every predefined operation on every predefined type, against scalar code that computes integers
//! in 128 bits and reals in software.

use std::cmp::Ordering;

use banyan_datatype::basic::{self, Basic, Class};
use banyan_datatype::op::{self, Builtin};
use banyan_datatype::{Data, Datatype, Error};
use banyan_memory::{Buffer, HeapBuffer};
use rustc_apfloat::ieee::{Double, Half, Quad, Single, X87DoubleExtended};
use rustc_apfloat::{Float, FloatConvert};

/// Elements per run, enough for vector loops and their tails.
const COUNT: usize = 67;

#[test]
fn operations_take_the_classes_of_the_standard_s_table() {
    for basic in basic::ALL {
        let ty = Datatype::builtin(basic.code).unwrap();
        for &(op, name) in op::ALL {
            assert_eq!(op::defined_on(op, ty), expected(op, basic.class), "{name} on {}", basic.name);
        }
    }
}

fn expected(op: Builtin, class: Class) -> bool {
    use Builtin::*;
    use Class::*;
    let ops: &[Builtin] = match class {
        Signed | Unsigned | Multi | Char => {
            &[Sum, Min, Max, Prod, Band, Bor, Bxor, Land, Lor, Lxor, Replace, NoOp]
        }
        FortranInteger => &[Sum, Min, Max, Prod, Band, Bor, Bxor, Replace, NoOp],
        Float => &[Sum, Min, Max, Prod, Replace, NoOp],
        Complex => &[Sum, Prod, Replace, NoOp],
        Logical => &[Land, Lor, Lxor, Replace, NoOp],
        Byte => &[Band, Bor, Bxor, Replace, NoOp],
        Pair => &[Minloc, Maxloc, Replace, NoOp],
        Opaque => &[Replace, NoOp],
    };
    ops.contains(&op)
}

#[test]
fn every_operation_agrees_with_scalar_code() {
    let mut random = Random(1);
    for basic in basic::ALL {
        let ty = Datatype::builtin(basic.code).unwrap();
        for &(op, name) in op::ALL.iter().filter(|row| op::defined_on(row.0, ty)) {
            let extent = usize::from(basic.extent);
            let element = |random: &mut Random| element(basic, random);
            let a: Vec<u8> = (0..COUNT).flat_map(|_| element(&mut random)).collect();
            let b: Vec<u8> = (0..COUNT).flat_map(|_| element(&mut random)).collect();
            // One byte off, so that nothing is aligned.
            let shifted = |bytes: &[u8]| HeapBuffer::copy_of(&[&[0], bytes].concat()).slice(1, bytes.len());
            let (input, inout) = (shifted(&a), shifted(&b));
            op::reduce(op, ty, &input, &inout, COUNT as u64).unwrap();
            let result = bytes(&inout);
            for i in 0..COUNT {
                let at = i * extent..(i + 1) * extent;
                let expected = scalar(op, basic, &a[at.clone()], &b[at.clone()]);
                let (got, (a, b)) = (&result[at.clone()], (&a[at.clone()], &b[at]));
                assert_eq!(got, expected, "{name} on {}: element {i}, {a:x?} and {b:x?}", basic.name);
            }
            assert_eq!(bytes(&input), a, "the input of {name} was changed");
        }
    }
}

#[test]
fn nan_is_kept_and_ties_take_the_lower_index() {
    let float = Datatype::builtin(0x214).unwrap();
    for op in [Builtin::Min, Builtin::Max] {
        for (a, b) in
            [(f64::NAN, 1.0), (1.0, f64::NAN), (f64::NAN, f64::INFINITY), (f64::NEG_INFINITY, f64::NAN)]
        {
            let inout = HeapBuffer::copy_of(&b.to_ne_bytes());
            op::reduce(op, float, &HeapBuffer::copy_of(&a.to_ne_bytes()), &inout, 1).unwrap();
            assert!(f64::from_ne_bytes(bytes(&inout).try_into().unwrap()).is_nan(), "{a} {b}");
        }
    }
    let pair = |value: f32, index: i32| [value.to_ne_bytes(), index.to_ne_bytes()].concat();
    let float_int = Datatype::builtin(0x228).unwrap();
    let combine = |op, a: &[u8], b: &[u8]| {
        let inout = HeapBuffer::copy_of(b);
        op::reduce(op, float_int, &HeapBuffer::copy_of(a), &inout, 1).unwrap();
        bytes(&inout)
    };
    for op in [Builtin::Minloc, Builtin::Maxloc] {
        assert_eq!(combine(op, &pair(1.0, 7), &pair(1.0, 3)), pair(1.0, 3));
        assert_eq!(combine(op, &pair(1.0, 3), &pair(1.0, 7)), pair(1.0, 3));
        assert_eq!(combine(op, &pair(0.0, 9), &pair(-0.0, 3)), pair(-0.0, 3));
        assert_eq!(combine(op, &pair(f32::NAN, 9), &pair(1.0, 3)), pair(f32::NAN, 9));
        assert_eq!(combine(op, &pair(f32::NAN, 9), &pair(f32::NAN, 3)), pair(f32::NAN, 3));
    }
}

#[test]
fn other_names_of_predefined_types_reduce_and_derived_types_do_not() {
    let int = Datatype::builtin(0x209).unwrap();
    assert!(op::defined_on(Builtin::Sum, &int.dup()));
    assert!(op::defined_on(Builtin::Prod, &Datatype::f90_real(6, 30).unwrap()));
    let two = Datatype::contiguous(2, int).unwrap();
    let buffer = HeapBuffer::zeroed(8);
    let refused = op::reduce(Builtin::Sum, &two, &buffer, &buffer, 1);
    assert_eq!(refused, Err(Error::Op { op: "MPI_SUM", ty: "a derived datatype".into() }));
    assert_eq!(refused.unwrap_err().to_string(), "MPI_SUM is not defined for a derived datatype");
}

#[test]
fn replace_takes_any_type_and_leaves_holes_alone() {
    let column = Datatype::vector(3, 1, 2, Datatype::builtin(0x247).unwrap()).unwrap();
    let (input, inout) = (HeapBuffer::copy_of(b"abcde"), HeapBuffer::copy_of(b"vwxyz"));
    op::reduce(Builtin::NoOp, &column, &input, &inout, 1).unwrap();
    assert_eq!(bytes(&inout), b"vwxyz");
    op::reduce(Builtin::Replace, &column, &input, &inout, 1).unwrap();
    assert_eq!(bytes(&inout), b"awcye");
    let data = Data::bytes(inout);
    assert_eq!(data.len(), 5);
}

#[test]
fn no_elements_are_no_work() {
    let empty = Buffer::empty();
    op::reduce(Builtin::Sum, Datatype::builtin(0x209).unwrap(), &empty, &empty, 0).unwrap();
}

fn bytes(buffer: &Buffer) -> Vec<u8> {
    let mut out = vec![0; buffer.len()];
    buffer.read(0, &mut out);
    out
}

/// A small multiplicative generator; good enough to mix bits.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 ^ self.0 >> 29
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| (self.next() >> 32) as u8).collect()
    }

    /// A real of the given format's bits, from a short list and at random; never NaN.
    fn real(&mut self, size: u8, x87: bool) -> Vec<u8> {
        let small = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, -7.25, 1e4, 6e-5];
        let value = match self.next() % 3 {
            0 => small[self.next() as usize % small.len()],
            _ => (self.next() as i64 >> 40) as f64 * 2f64.powi(self.next() as i32 % 24 - 12) / 8192.0,
        };
        // Products of 16-bit reals stay finite: the sign of the NaN of inf - inf is anyone's.
        convert(if size == 2 { value % 100.0 } else { value }, size, x87)
    }
}

fn convert(value: f64, size: u8, x87: bool) -> Vec<u8> {
    let value = Double::from_bits(value.to_bits().into());
    let mut bits = match (size, x87) {
        (2, _) => <Double as FloatConvert<Half>>::convert(value, &mut false).value.to_bits(),
        (4, _) => <Double as FloatConvert<Single>>::convert(value, &mut false).value.to_bits(),
        (8, _) => value.to_bits(),
        (_, true) => <Double as FloatConvert<X87DoubleExtended>>::convert(value, &mut false).value.to_bits(),
        _ => {
            // Fill the low bits too, so that rounding to 113 bits shows.
            let wide = <Double as FloatConvert<Quad>>::convert(value, &mut false).value.to_bits();
            if wide << 1 == 0 { wide } else { wide | 0x1234_5678_9abc }
        }
    };
    if x87 && bits << 1 != 0 && bits & 0x7fff_ffff_ffff_ffff != 0 {
        bits |= 0x155;
    }
    bits.to_le_bytes()[..usize::from(size)].to_vec()
}

/// One element, its padding set to something.
fn element(basic: &'static Basic, random: &mut Random) -> Vec<u8> {
    let x87 = matches!(basic.code, 0x220 | 0x224 | 0x225);
    let mut bytes = match basic.class {
        Class::Float => random.real(basic.size, x87),
        Class::Complex => [random.real(basic.size / 2, x87), random.real(basic.size / 2, x87)].concat(),
        Class::Logical => {
            let value = [0, 0, 1, random.next() as u8][random.next() as usize % 4];
            let mut bytes = vec![0; basic.size.into()];
            bytes[random.next() as usize % usize::from(basic.size)] = value;
            bytes
        }
        Class::Pair => {
            let (value, index, at) = basic.pair().unwrap();
            let mut bytes = element(value, random);
            // Few different values, so that there are ties.
            if value.class == Class::Float {
                bytes = convert((random.next() % 3) as f64, value.size, value.code == 0x220);
            } else {
                bytes[1..].fill(0);
                bytes[0] %= 3;
            }
            bytes.resize(at.into(), 0xee);
            bytes.extend(element(index, random));
            bytes
        }
        _ => random.bytes(basic.size.into()),
    };
    bytes.resize(basic.extent.into(), 0xdd);
    bytes
}

/// `a op b`, as the elements' bytes; padding as in `b`.
fn scalar(op: Builtin, basic: &'static Basic, a: &[u8], b: &[u8]) -> Vec<u8> {
    match op {
        // A copy moves the data; what lies between value and index stays.
        Builtin::Replace => {
            let mut result = b.to_vec();
            match basic.pair() {
                Some((value, index, at)) => {
                    let (value, at, index) = (value.size.into(), usize::from(at), usize::from(index.size));
                    result[..value].copy_from_slice(&a[..value]);
                    result[at..at + index].copy_from_slice(&a[at..at + index]);
                }
                None => result.copy_from_slice(a),
            }
            return result;
        }
        Builtin::NoOp => return b.to_vec(),
        _ => {}
    }
    match basic.class {
        Class::Float => real(op, basic.code, a, b),
        Class::Complex => complex(op, basic.code, a, b),
        Class::Logical => truth(op, a, b),
        Class::Pair => pair(op, basic, a, b),
        _ => integer(op, is_signed(basic), a, b),
    }
}

fn is_signed(basic: &Basic) -> bool {
    !matches!(basic.class, Class::Unsigned | Class::Byte)
}

fn number(bytes: &[u8], signed: bool) -> i128 {
    let fill = if signed && bytes[bytes.len() - 1] >= 0x80 { 0xff } else { 0 };
    let mut wide = [fill; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    i128::from_le_bytes(wide)
}

fn integer(op: Builtin, signed: bool, a: &[u8], b: &[u8]) -> Vec<u8> {
    let (x, y) = (number(a, signed), number(b, signed));
    let result = match op {
        Builtin::Sum => x.wrapping_add(y),
        Builtin::Prod => x.wrapping_mul(y),
        Builtin::Min => x.min(y),
        Builtin::Max => x.max(y),
        Builtin::Band => x & y,
        Builtin::Bor => x | y,
        Builtin::Bxor => x ^ y,
        _ => return truth(op, a, b),
    };
    result.to_le_bytes()[..a.len()].to_vec()
}

fn truth(op: Builtin, a: &[u8], b: &[u8]) -> Vec<u8> {
    let (x, y) = (a.iter().any(|&byte| byte != 0), b.iter().any(|&byte| byte != 0));
    let result = match op {
        Builtin::Land => x && y,
        Builtin::Lor => x || y,
        Builtin::Lxor => x != y,
        other => panic!("{other:?}"),
    };
    let mut bytes = vec![0; a.len()];
    bytes[0] = result.into();
    bytes
}

fn real(op: Builtin, code: u16, a: &[u8], b: &[u8]) -> Vec<u8> {
    let bits = |bytes: &[u8]| number(bytes, false) as u128;
    match (code, a.len()) {
        (0x220, _) => {
            let result = soft::<X87DoubleExtended>(op, bits(&a[..10]), bits(&b[..10]));
            [&result.to_le_bytes()[..10], &b[10..]].concat()
        }
        (_, 2) => soft::<Half>(op, bits(a), bits(b)).to_le_bytes()[..2].to_vec(),
        (_, 4) => soft::<Single>(op, bits(a), bits(b)).to_le_bytes()[..4].to_vec(),
        (_, 8) => soft::<Double>(op, bits(a), bits(b)).to_le_bytes()[..8].to_vec(),
        _ => soft::<Quad>(op, bits(a), bits(b)).to_le_bytes().to_vec(),
    }
}

fn soft<F: Float>(op: Builtin, a: u128, b: u128) -> u128 {
    let (x, y) = (F::from_bits(a), F::from_bits(b));
    let result = match op {
        Builtin::Sum => (x + y).value,
        Builtin::Prod => (x * y).value,
        // Equal values (zeros of both signs) take the second.
        Builtin::Min => {
            if x < y {
                x
            } else {
                y
            }
        }
        Builtin::Max => {
            if x > y {
                x
            } else {
                y
            }
        }
        other => panic!("{other:?}"),
    };
    result.to_bits()
}

fn complex(op: Builtin, code: u16, a: &[u8], b: &[u8]) -> Vec<u8> {
    let half = a.len() / 2;
    let part = match (code, half) {
        (0x224 | 0x225, _) => 0x220,
        _ => 0,
    };
    if op == Builtin::Sum {
        return [real(op, part, &a[..half], &b[..half]), real(op, part, &a[half..], &b[half..])].concat();
    }
    if half == 2 {
        return half_product(a, b);
    }
    let times = |x: &[u8], y: &[u8]| real(Builtin::Prod, part, x, y);
    let (ac, bd) = (times(&a[..half], &b[..half]), times(&a[half..], &b[half..]));
    let (ad, bc) = (times(&a[..half], &b[half..]), times(&a[half..], &b[..half]));
    let mut minus_bd = bd;
    minus_bd[if part == 0x220 { 9 } else { half - 1 }] ^= 0x80;
    let mut result = [real(Builtin::Sum, part, &ac, &minus_bd), real(Builtin::Sum, part, &ad, &bc)].concat();
    if part == 0x220 {
        result[10..16].copy_from_slice(&b[10..16]);
        result[26..32].copy_from_slice(&b[26..32]);
    }
    result
}

/// Products of 16-bit complex numbers are computed in 32 bits and rounded once.
fn half_product(a: &[u8], b: &[u8]) -> Vec<u8> {
    let wide = |bytes: &[u8]| -> Single {
        let narrow = Half::from_bits(number(bytes, false) as u128);
        narrow.convert(&mut false).value
    };
    let (re, im) = ((wide(&a[..2]), wide(&b[..2])), (wide(&a[2..]), wide(&b[2..])));
    let real = ((re.0 * re.1).value - (im.0 * im.1).value).value;
    let imaginary = ((re.0 * im.1).value + (im.0 * re.1).value).value;
    let narrow = |value: Single| -> Vec<u8> {
        let half: Half = value.convert(&mut false).value;
        half.to_bits().to_le_bytes()[..2].to_vec()
    };
    [narrow(real), narrow(imaginary)].concat()
}

fn pair(op: Builtin, basic: &'static Basic, a: &[u8], b: &[u8]) -> Vec<u8> {
    let (value, index, at) = basic.pair().unwrap();
    let (size, at, index_size) = (usize::from(value.size), usize::from(at), usize::from(index.size));
    let first = order(value, &a[..size], &b[..size]);
    let second = order(index, &a[at..at + index_size], &b[at..at + index_size]);
    let better = if op == Builtin::Minloc { Ordering::Less } else { Ordering::Greater };
    let takes_a = first == better || first == Ordering::Equal && second == Ordering::Less;
    let mut result = b.to_vec();
    if takes_a {
        let size = if value.code == 0x220 { 10 } else { size };
        result[..size].copy_from_slice(&a[..size]);
        result[at..at + index_size].copy_from_slice(&a[at..at + index_size]);
    }
    result
}

fn order(basic: &Basic, a: &[u8], b: &[u8]) -> Ordering {
    let bits = |bytes: &[u8]| number(bytes, false) as u128;
    match (basic.class, basic.code, a.len()) {
        (Class::Float, 0x220, _) => compare::<X87DoubleExtended>(bits(&a[..10]), bits(&b[..10])),
        (Class::Float, _, 4) => compare::<Single>(bits(a), bits(b)),
        (Class::Float, _, _) => compare::<Double>(bits(a), bits(b)),
        _ => number(a, true).cmp(&number(b, true)),
    }
}

fn compare<F: Float>(a: u128, b: u128) -> Ordering {
    F::from_bits(a).partial_cmp(&F::from_bits(b)).unwrap()
}
