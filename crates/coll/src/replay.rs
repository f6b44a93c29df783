//! Calls that a program repeats: what was worked out for the arguments of one call serves the next call with equal arguments.
//!
//! To check arguments, to make a [`Call`] of them and to find its compiled plan takes longer than to run along the plan. All of
//! that depends only on what is compared here; only where the buffers are is looked at each time.

use banyan_datatype::TypeArc;
use banyan_datatype::op::is_settled;
use banyan_memory::{Address, Bounds, Buffer};

use crate::execute::compiled::CompiledPlan;
use crate::execute::contiguous::{ContiguousCall, Reduction};
use crate::{Call, Kind, Operand};

/// The arguments of a collective as the user passed them, without lists. It is passed on by value: numbers that were just written
/// to memory would be waited for where several of them are loaded at a time to be compared.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    /// The collective.
    pub kind: Kind,
    /// Its counts, handles and root, in the order of the arguments; then zeros.
    pub numbers: [u64; Signature::NUMBERS],
    /// The send and the receive buffer; twice the one buffer, if there is only one.
    pub buffers: [(Address, ArgKind); 2],
}

/// What an address stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArgKind {
    /// There may be data.
    Data,
    /// MPI_IN_PLACE.
    InPlace,
    /// NULL, or another constant.
    Other,
}

/// The lists of counts and displacements of a call, a number for each rank, in the order of the arguments.
pub trait Lists {
    /// True if there is a list of this index, with these values.
    fn is(&self, index: usize, values: &[i64]) -> bool;
}

impl Signature {
    /// The most numbers that a collective takes.
    pub const NUMBERS: usize = 5;

    /// The cache entry for these arguments, in which there may be others.
    #[inline(always)]
    fn cache_index(&self) -> usize {
        let [a, b, c, d, e] = self.numbers;
        let sum = a.wrapping_add(b).wrapping_add(c).wrapping_add(d).wrapping_add(e);
        (sum as usize).wrapping_add(self.kind as usize * 7) % ReplayCache::ENTRIES
    }
}

/// What was worked out for calls that may come again, by [`Signature::cache_index`]; empty until there is one.
#[derive(Debug, Default)]
pub(crate) struct ReplayCache(Vec<Option<Replay>>);

/// What was worked out for some arguments.
#[derive(Debug)]
pub(crate) struct Replay {
    pub(crate) kind: Kind,
    numbers: [u64; Signature::NUMBERS],
    sides: [Side; 2],
    /// Both sides are bytes, which must not be in one buffer.
    two_buffers: bool,
    /// The index of each list that matters, and what was in it.
    lists: Vec<(usize, Box<[i64]>)>,
    /// Which buffer holds what this rank publishes, and where that starts in it.
    send: Option<(usize, u32)>,
    reduction: Option<Reduction<TypeArc>>,
    /// The cache entry of the compiled plan, and the plan's generation.
    pub(crate) plan: (usize, u64),
}

/// What a buffer must be.
#[derive(Clone, Copy, Debug)]
enum Side {
    /// It is not significant.
    Any,
    /// MPI_IN_PLACE.
    InPlace,
    /// Data, of which the bytes within these bounds are used.
    Bytes(Bounds),
}

impl ReplayCache {
    /// How many calls are kept: programs alternate between some roots and sizes.
    const ENTRIES: usize = 32;

    /// The entry for a call with these arguments, and its index.
    #[inline(always)]
    pub(crate) fn find(&self, signature: Signature, lists: &impl Lists) -> Option<(usize, &Replay)> {
        let index = signature.cache_index();
        match self.0.get(index) {
            Some(Some(replay)) if replay.is_for(signature, lists) => Some((index, replay)),
            _ => None,
        }
    }

    /// The entry of an index that was found.
    #[inline(always)]
    pub(crate) fn at(&self, index: usize) -> Option<&Replay> {
        self.0.get(index)?.as_ref()
    }

    /// Keeps what was worked out for a call, if it follows from the call's arguments alone.
    #[inline(never)]
    pub(crate) fn keep(
        &mut self,
        (signature, lists): (Signature, &dyn Lists),
        call: &Call,
        contiguous_call: &ContiguousCall<'_>,
        plan: (usize, u64),
    ) {
        if let Some(replay) = Replay::new(signature, call, contiguous_call, plan)
            .filter(|replay| replay.is_for(signature, lists))
        {
            self.0.resize_with(Self::ENTRIES, || None);
            self.0[signature.cache_index()] = Some(replay);
        }
    }
}

impl Replay {
    fn new(
        signature: Signature,
        call: &Call,
        contiguous_call: &ContiguousCall<'_>,
        plan: (usize, u64),
    ) -> Option<Replay> {
        let operands = [&call.send, &call.recv];
        let (mut sides, mut lists) = ([Side::Any; 2], vec![]);
        for (side, operand) in operands.into_iter().enumerate() {
            sides[side] = match operand {
                Operand::Nothing => Side::Any,
                Operand::InPlace => Side::InPlace,
                Operand::Uniform { base, ty, .. } | Operand::Vector { base, ty, .. } if is_permanent(ty) => {
                    Side::Bytes(base.bounds())
                }
                _ => return None,
            };
            if let Operand::Vector { counts, displs, .. } = operand {
                let first = if call.kind == Kind::Alltoallv { 2 * side } else { 0 };
                lists.push((first, counts.iter().map(|&count| count as i64).collect()));
                if !displs.is_empty() {
                    lists.push((first + 1, displs.as_slice().into()));
                }
            }
        }
        let side_of = |base: &Buffer| {
            operands.into_iter().position(|operand| {
                matches!(operand, Operand::Uniform { base: own, .. } | Operand::Vector { base: own, .. }
                    if std::ptr::eq(own, base))
            })
        };
        let send = match contiguous_call.send {
            Some((base, start)) => Some((side_of(base)?, start)),
            None => None,
        };
        let reduction = contiguous_call.reduction.map(|Reduction { op, reducer, ty }| Reduction {
            op,
            reducer,
            ty: ty.clone(),
        });
        let two_buffers = sides.iter().all(|side| matches!(side, Side::Bytes(..)));
        Some(Replay {
            kind: signature.kind,
            numbers: signature.numbers,
            sides,
            two_buffers,
            lists,
            send,
            reduction,
            plan,
        })
    }

    /// True if the entry is for calls with these arguments, and nothing is wrong with their buffers.
    #[inline(always)]
    fn is_for(&self, signature: Signature, lists: &(impl Lists + ?Sized)) -> bool {
        let [(send, send_kind), (recv, recv_kind)] = signature.buffers;
        let ([a, b, c, d, e], numbers) = (signature.numbers, &self.numbers);
        // Compared one by one, in registers.
        let numbers_equal =
            a == numbers[0] && b == numbers[1] && c == numbers[2] && d == numbers[3] && e == numbers[4];
        self.kind == signature.kind
            && numbers_equal
            && self.sides[0].accepts(send_kind)
            && self.sides[1].accepts(recv_kind)
            // Whether both buffers may be one depends on the collective: such a call is checked anew.
            && !(self.two_buffers && send.is(recv))
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

    /// The bytes of a side of a call that this entry [is for](Replay::is_for), at this address.
    #[inline(always)]
    pub(crate) fn buffer(&self, side: usize, address: Address) -> Buffer {
        match self.sides[side] {
            Side::Bytes(bounds) => address.within(bounds),
            _ => Buffer::empty(),
        }
    }

    /// The contiguous call on these buffers.
    #[inline(always)]
    pub(crate) fn contiguous<'a>(
        &'a self,
        plan: &CompiledPlan,
        [send, recv]: [&'a Buffer; 2],
    ) -> ContiguousCall<'a> {
        ContiguousCall {
            plan_key: plan.plan_key,
            send: self.send.map(|(side, start)| (if side == 0 { send } else { recv }, start)),
            recv: matches!(self.sides[1], Side::Bytes(..)).then_some(recv),
            sides: None,
            in_place_exchange: false,
            reduction: self.reduction.as_ref().map(|Reduction { op, reducer, ty }| Reduction {
                op: *op,
                reducer: *reducer,
                ty,
            }),
        }
    }
}

impl Side {
    #[inline(always)]
    fn accepts(self, kind: ArgKind) -> bool {
        match self {
            Side::Any => true,
            Side::InPlace => kind == ArgKind::InPlace,
            Side::Bytes(..) => kind == ArgKind::Data,
        }
    }
}

/// True if the type's handle can never stand for another type, or another size.
fn is_permanent(ty: &TypeArc) -> bool {
    matches!(ty, TypeArc::Predefined(ty) if is_settled(ty))
}
