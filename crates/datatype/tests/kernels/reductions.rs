//! Reductions on random and on special values, odd counts, and memory at all alignments.

use std::process::Command;

use banyan_datatype::basic::{self, Basic, Class};
use banyan_datatype::device::Reduction;
use banyan_datatype::op::{self, Builtin};
use banyan_datatype::{Datatype, fortran};
use banyan_memory::{Buffer, HeapBuffer};

use crate::compiled::Compiled;
use crate::random::Random;

/// Bytes around each operand, which nobody may write.
const AROUND: usize = 32;
/// In a process of its own: the sizes of Fortran's INTEGER, REAL and DOUBLE PRECISION.
const SIZES: &str = "BANYAN_TEST_SIZES";

#[test]
fn kernels_reduce_as_the_processor_does() {
    let Some(compiled) = Compiled::new() else { return };
    let random = Random::new("reductions");
    let sizes = std::env::var(SIZES).ok();
    if let Some(sizes) = &sizes {
        let [integer, real, double_precision] =
            [0, 1, 2].map(|at| sizes.split(',').nth(at).unwrap().parse().unwrap());
        fortran::set_sizes(fortran::Sizes { logical: integer, integer, real, double_precision }).unwrap();
    }
    let kinds = |all: &dyn Fn(&Basic) -> bool, random: &Random| {
        let mut compared = 0;
        for basic in basic::ALL.iter().filter(|basic| all(basic)) {
            let ty = Datatype::builtin(basic.code).unwrap();
            for &(op, _) in op::ALL.iter().filter(|row| op::defined_on(row.0, ty)) {
                compared += usize::from(compare(&compiled, op, ty.basic().unwrap(), random));
            }
        }
        compared
    };
    let logical = |basic: &Basic| basic.class == Class::Logical;
    // Of the types whose sizes a program may set, in such a process; else of all.
    let compared =
        kinds(&|basic| sizes.is_none() || matches!(basic.code, 0x218..=0x21d | 0x230..=0x232), &random);
    eprintln!("{compared} operations on types were compared");
    assert!(compared >= if sizes.is_some() { 20 } else { 340 }, "{compared} kernels");
    fortran::set_booleans(4, u128::MAX, 2).unwrap();
    assert_eq!(kinds(&logical, &random), 24, "LOGICAL of six kinds, and C's");
    if sizes.is_none() {
        for sizes in ["1,16,16", "2,8,16", "8,8,8"] {
            let mut again = Command::new(std::env::current_exe().unwrap());
            let again =
                again.args(["--exact", "reductions::kernels_reduce_as_the_processor_does"]).env(SIZES, sizes);
            let done = again.output().unwrap();
            let said = String::from_utf8_lossy(&done.stderr) + String::from_utf8_lossy(&done.stdout);
            assert!(done.status.success() && said.contains("1 passed"), "sizes {sizes}: {said}");
        }
    }
}

/// Where operands begin, from an address that is a multiple of 16 on: `a`, `b`, and the result.
const STARTS: [[usize; 3]; 8] =
    [[0, 0, 0], [8, 8, 8], [4, 4, 4], [12, 12, 12], [2, 2, 2], [0, 8, 4], [1, 1, 1], [3, 14, 9]];
const COUNTS: [u64; 9] = [0, 1, 2, 3, 7, 15, 17, 67, 400];

/// Compares a kernel with the processor's on operands everywhere. False: there is none, as nothing is computed.
fn compare(compiled: &Compiled, op: Builtin, basic: &Basic, random: &Random) -> bool {
    let ty = Datatype::builtin(basic.code).unwrap();
    let Some(reduction) = Reduction::find(op, ty) else {
        assert!(op.is_accumulate_only());
        return false;
    };
    for start in STARTS {
        let count = random.pick(&COUNTS);
        let elements = |random: &Random| (0..count).flat_map(|_| element(basic, random)).collect::<Vec<u8>>();
        let (a, b, noise) =
            (elements(random), elements(random), random.bytes(count as usize * usize::from(basic.extent)));
        // The result is apart, or one of the operands.
        for place in 0..3 {
            let memory =
                [Operand::new(&a, start[0]), Operand::new(&b, start[1]), Operand::new(&noise, start[2])];
            let out = &memory[place];
            let expected = HeapBuffer::copy_of(&[&noise, &b, &a][[2, 1, 0][place]].clone());
            op::reduce(Builtin::Replace, ty, &HeapBuffer::copy_of(&b), &expected, count).unwrap();
            op::reduce(op, ty, &HeapBuffer::copy_of(&a), &expected, count).unwrap();
            let run = reduction.run(count);
            // SAFETY: so many elements are there.
            unsafe { compiled.run(&run, [memory[0].address(), memory[1].address(), out.address()]) };
            let (got, expected) = (out.inside(), bytes(&expected));
            let what =
                format!("{:?} on {}, {count} elements at {start:?}, result {place}", run.kernel, basic.name);
            for i in 0..count as usize {
                let at = i * usize::from(basic.extent)..(i + 1) * usize::from(basic.extent);
                let (got, expected, a, b) = (&got[at.clone()], &expected[at.clone()], &a[at.clone()], &b[at]);
                assert!(
                    is_same(op, basic, got, expected),
                    "{what}: element {i} of {a:x?} and {b:x?} is {got:x?} and not {expected:x?}"
                );
            }
            for (index, (operand, before)) in memory.iter().zip([&a, &b, &noise]).enumerate() {
                assert!(operand.is_alone(), "{what}: beside operand {index}");
                assert!(index == place || operand.inside() == *before, "{what}: operand {index} was changed");
            }
        }
    }
    true
}

/// An operand with bytes around it that nobody may write.
struct Operand {
    memory: Buffer,
    at: isize,
    len: usize,
}

impl Operand {
    fn new(elements: &[u8], start: usize) -> Operand {
        let memory = HeapBuffer::zeroed(AROUND * 2 + 16 + elements.len());
        let aligned = memory.address(0).next_multiple_of(16) - memory.address(0);
        let at = (AROUND + aligned + start % 16) as isize;
        let mut around = vec![0xa5; memory.len()];
        around[at as usize..][..elements.len()].copy_from_slice(elements);
        memory.write(0, &around);
        Operand { memory, at, len: elements.len() }
    }

    fn address(&self) -> usize {
        self.memory.address(self.at)
    }

    fn inside(&self) -> Vec<u8> {
        bytes(&self.memory.slice(self.at, self.len))
    }

    fn is_alone(&self) -> bool {
        let (all, at) = (bytes(&self.memory), self.at as usize);
        all[..at].iter().chain(&all[at + self.len..]).all(|&byte| byte == 0xa5)
    }
}

fn bytes(buffer: &Buffer) -> Vec<u8> {
    let mut out = vec![0; buffer.len()];
    buffer.read(0, &mut out);
    out
}

fn is_x87(basic: &Basic) -> bool {
    matches!(basic.code, 0x220 | 0x224 | 0x225)
}

/// True if the bits are the same, or the results of arithmetic are no numbers on both sides.
fn is_same(op: Builtin, basic: &Basic, got: &[u8], expected: &[u8]) -> bool {
    let parts = match basic.class {
        Class::Complex => 2,
        Class::Float => 1,
        _ => return got == expected,
    };
    if !matches!(op, Builtin::Sum | Builtin::Prod) {
        return got == expected;
    }
    let size = usize::from(basic.size) / parts;
    got.chunks(size).zip(expected.chunks(size)).all(|(got, expected)| {
        let filler = if is_x87(basic) { 10 } else { size };
        let none = is_nan(&got[..filler]) && is_nan(&expected[..filler]);
        (none || got[..filler] == expected[..filler]) && got[filler..] == expected[filler..]
    })
}

/// Bits of a real's exponent, and of its significand below them.
fn format(size: usize) -> (u32, u32) {
    match size {
        2 => (5, 10),
        4 => (8, 23),
        8 => (11, 52),
        10 => (15, 64),
        _ => (15, 112),
    }
}

fn is_nan(real: &[u8]) -> bool {
    let (exponent, significand) = format(real.len());
    let mut wide = [0; 16];
    wide[..real.len()].copy_from_slice(real);
    let bits = u128::from_le_bytes(wide);
    let explicit = u32::from(real.len() == 10);
    let (all, fraction) = ((1 << exponent) - 1, bits & ((1 << (significand - explicit)) - 1));
    bits >> significand & all == all && fraction != 0
}

/// A real of any bits, or one that is likely to meet another one: infinite, no number, zero, subnormal, or of a like exponent.
fn real(size: usize, random: &Random) -> Vec<u8> {
    let (exponent, significand) = format(size);
    let any = u128::from(random.next()) << 64 | u128::from(random.next());
    let most = (1u128 << exponent) - 1;
    let near = most / 2 + u128::from(random.below(4) * random.below(10)) - 5u128.min(most / 2);
    let power = match random.below(9) {
        0 => 0,
        // One that is half of the other's last bit, or beside it.
        5 => (most / 2 + u128::from(significand) + u128::from(random.below(4))).min(most),
        1 => most,
        2 => any >> 100 & most,
        3 => u128::from(random.below(3)),
        4 => most - 1 - u128::from(random.below(2)),
        _ => near.min(most),
    };
    let mut fraction = any & ((1 << significand) - 1);
    match random.below(6) {
        0 => fraction = 0,
        1 => fraction = 1 << random.below(significand.into()),
        2 => fraction |= (1 << (significand / 2)) - 1,
        _ => {}
    }
    // The x87's significands begin with a one that is there, but for small numbers; others it does not take.
    if size == 10 && power > 0 && random.below(16) > 0 {
        fraction |= 1 << 63;
    } else if size == 10 && power == 0 && random.below(4) > 0 {
        fraction &= !(1 << 63);
    }
    let bits = fraction | power << significand | u128::from(random.below(2)) << (exponent + significand);
    bits.to_le_bytes()[..size].to_vec()
}

fn element(basic: &Basic, random: &Random) -> Vec<u8> {
    let size = usize::from(basic.size);
    let part = |size: usize, random: &Random| match is_x87(basic) {
        true => [real(10, random), random.bytes(6)].concat(),
        false => real(size, random),
    };
    let mut bytes = match basic.class {
        Class::Float => part(size, random),
        Class::Complex => [part(size / 2, random), part(size / 2, random)].concat(),
        Class::Pair => {
            let (value, index, at) = basic.pair().unwrap();
            let mut bytes = number(value, random);
            bytes.resize(at.into(), random.next() as u8);
            bytes.extend(number(index, random));
            bytes
        }
        _ => number(basic, random),
    };
    bytes.resize(basic.extent.into(), random.next() as u8);
    bytes
}

/// A part of a pair, or an integer: any, or one of few, so that there are ties.
fn number(basic: &Basic, random: &Random) -> Vec<u8> {
    if basic.class == Class::Float && random.below(3) > 0 {
        return element(basic, random);
    }
    let size = usize::from(basic.size);
    match random.below(4) {
        0 => random.bytes(size),
        1 => [vec![0; size - 1], vec![0x80]].concat(),
        2 => vec![0xff; size],
        _ => [vec![random.below(3) as u8], vec![0; size - 1]].concat(),
    }
}
