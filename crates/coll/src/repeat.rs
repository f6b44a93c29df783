//! Calls that a program repeats: what was worked out for the arguments of one serves the next with the same arguments.
//!
//! To check arguments, to make a [`Call`] of them and to find its line takes longer than to walk along the line. All of it
//! depends only on what is compared here, or is looked at again: where buffers are.

use banyan_datatype::TypeArc;
use banyan_datatype::op::is_settled;
use banyan_memory::{Address, Bounds, Buffer};

use crate::execute::flat::{Flat, With};
use crate::execute::line::Line;
use crate::{Call, Kind, Memory};

/// The arguments of a collective, as the user gave them, but for lists. It goes from hand to hand as a value: numbers that were
/// just written to memory, and are compared several at a time, would be waited for.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Which one.
    pub kind: Kind,
    /// Its counts, handles and root, in their order.
    pub numbers: [u64; Asked::NUMBERS],
    /// The buffer of what is given, and that of what is got (the same, if there is only one).
    pub buffers: [(Address, Given); 2],
}

/// What an address stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Given {
    /// There may be data.
    Data,
    /// MPI_IN_PLACE.
    InPlace,
    /// NULL, or another constant.
    Other,
}

/// Lists of counts and displacements, a number for each rank, by their order among the arguments.
pub trait Lists {
    /// Whether a list is there, and has these values.
    fn is(&self, index: usize, values: &[i64]) -> bool;
}

impl Asked {
    /// The most numbers that a collective takes.
    pub const NUMBERS: usize = 5;

    /// Where what is known of it is kept, unless something else has taken the place.
    #[inline(always)]
    fn place(&self) -> usize {
        let [a, b, c, d, e] = self.numbers;
        let sum = a.wrapping_add(b).wrapping_add(c).wrapping_add(d).wrapping_add(e);
        (sum as usize).wrapping_add(self.kind as usize * 7) % Repeated::PLACES
    }
}

/// What is known of calls that may come again; nothing until there is one.
#[derive(Debug, Default)]
pub(crate) struct Repeated(Vec<Option<Known>>);

/// What was worked out for some arguments.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) kind: Kind,
    numbers: [u64; Asked::NUMBERS],
    sides: [Side; 2],
    /// Both are bytes.
    apart: bool,
    /// Which lists matter, and what was in them.
    lists: Vec<(usize, Box<[i64]>)>,
    /// The buffer with what is published, and where that starts.
    send: Option<(usize, u32)>,
    with: Option<With<TypeArc>>,
    /// The place of the line, and its number.
    pub(crate) line: (usize, u64),
}

/// What a buffer must be.
#[derive(Clone, Copy, Debug)]
enum Side {
    /// It does not matter.
    Any,
    InPlace,
    /// Bytes within these bounds are used.
    Bytes(Bounds),
}

impl Repeated {
    /// Programs go around some roots and sizes.
    const PLACES: usize = 32;

    /// What is known of a call with these arguments, and its place.
    #[inline(always)]
    pub(crate) fn find(&self, asked: Asked, lists: &impl Lists) -> Option<(usize, &Known)> {
        let place = asked.place();
        match self.0.get(place) {
            Some(Some(known)) if known.is_for(asked, lists) => Some((place, known)),
            _ => None,
        }
    }

    /// What was found at a place.
    #[inline(always)]
    pub(crate) fn at(&self, place: usize) -> Option<&Known> {
        self.0.get(place)?.as_ref()
    }

    /// Keeps what was worked out for some arguments, if that follows from them alone.
    #[inline(never)]
    pub(crate) fn keep(
        &mut self,
        (asked, lists): (Asked, &dyn Lists),
        call: &Call,
        flat: &Flat<'_>,
        line: (usize, u64),
    ) {
        if let Some(known) = Known::new(asked, call, flat, line).filter(|known| known.is_for(asked, lists)) {
            self.0.resize_with(Self::PLACES, || None);
            self.0[asked.place()] = Some(known);
        }
    }
}

impl Known {
    fn new(asked: Asked, call: &Call, flat: &Flat<'_>, line: (usize, u64)) -> Option<Known> {
        let memories = [&call.send, &call.recv];
        let (mut sides, mut lists) = ([Side::Any; 2], vec![]);
        for (side, memory) in memories.into_iter().enumerate() {
            sides[side] = match memory {
                Memory::Nothing => Side::Any,
                Memory::InPlace => Side::InPlace,
                Memory::Uniform { base, ty, .. } | Memory::Vector { base, ty, .. } if lasts(ty) => {
                    Side::Bytes(base.bounds())
                }
                _ => return None,
            };
            if let Memory::Vector { counts, displs, .. } = memory {
                let first = if call.kind == Kind::Alltoallv { 2 * side } else { 0 };
                lists.push((first, counts.iter().map(|&count| count as i64).collect()));
                if !displs.is_empty() {
                    lists.push((first + 1, displs.as_slice().into()));
                }
            }
        }
        let of = |base: &Buffer| {
            memories.into_iter().position(|memory| {
                matches!(memory, Memory::Uniform { base: own, .. } | Memory::Vector { base: own, .. }
                    if std::ptr::eq(own, base))
            })
        };
        let send = match flat.send {
            Some((base, start)) => Some((of(base)?, start)),
            None => None,
        };
        let with = flat.with.map(|With { op, reducer, ty }| With { op, reducer, ty: ty.clone() });
        let apart = sides.iter().all(|side| matches!(side, Side::Bytes(..)));
        Some(Known { kind: asked.kind, numbers: asked.numbers, sides, apart, lists, send, with, line })
    }

    /// True if it is for calls with these arguments, and nothing is wrong with their buffers.
    #[inline(always)]
    fn is_for(&self, asked: Asked, lists: &(impl Lists + ?Sized)) -> bool {
        let [(send, sends), (recv, gets)] = asked.buffers;
        let ([a, b, c, d, e], numbers) = (asked.numbers, &self.numbers);
        // One by one, in registers.
        let alike =
            a == numbers[0] && b == numbers[1] && c == numbers[2] && d == numbers[3] && e == numbers[4];
        self.kind == asked.kind
            && alike
            && self.sides[0].takes(sends)
            && self.sides[1].takes(gets)
            // Whether both may be the same depends on the collective.
            && !(self.apart && send.is(recv))
            && self.lists_are(lists)
    }

    #[inline(always)]
    fn lists_are(&self, lists: &(impl Lists + ?Sized)) -> bool {
        for (index, values) in &self.lists {
            if !lists.is(*index, values) {
                return false;
            }
        }
        true
    }

    /// The bytes of a side of a call that it [is for](Known::is_for).
    #[inline(always)]
    pub(crate) fn buffer(&self, side: usize, address: Address) -> Buffer {
        match self.sides[side] {
            Side::Bytes(bounds) => address.within(bounds),
            _ => Buffer::empty(),
        }
    }

    /// The call on these buffers.
    #[inline(always)]
    pub(crate) fn flat<'a>(&'a self, line: &Line, [send, recv]: [&'a Buffer; 2]) -> Flat<'a> {
        Flat {
            outline: line.outline,
            send: self.send.map(|(side, start)| (if side == 0 { send } else { recv }, start)),
            recv: matches!(self.sides[1], Side::Bytes(..)).then_some(recv),
            sides: None,
            exchanges: false,
            with: self.with.as_ref().map(|With { op, reducer, ty }| With { op: *op, reducer: *reducer, ty }),
        }
    }
}

impl Side {
    #[inline(always)]
    fn takes(self, given: Given) -> bool {
        match self {
            Side::Any => true,
            Side::InPlace => given == Given::InPlace,
            Side::Bytes(..) => given == Given::Data,
        }
    }
}

/// True if a handle means this type for good.
fn lasts(ty: &TypeArc) -> bool {
    matches!(ty, TypeArc::Predefined(ty) if is_settled(ty))
}
