//! What a call of a collective is told by, so that the plan of an earlier call with the same arguments is found.

use std::sync::Arc;

use banyan_memory::{Bounds, Buffer as RawBuffer};
use banyan_runtime::{Call, Comm, Kind, Lists, Op, Operation, Signature};

use crate::datatype::Memory;
use crate::error::Result;

/// The signature of a call whose arguments are so many elements of predefined datatypes, and where these lie. Other calls have none.
pub(super) struct Signed(Option<(Signature, [*mut u8; 2])>);

/// The lists of such a call.
struct NoLists;

impl Lists for NoLists {
    fn is(&self, _: usize, _: &[i64]) -> bool {
        false
    }
}

impl Signed {
    /// That of a call with these arguments: what is given, what is got, or the only one.
    #[inline]
    pub(super) fn new<const N: usize>(
        kind: Kind,
        memory: [&Memory; N],
        root: i64,
        op: Option<&Op>,
    ) -> Signed {
        let [first, last] = [memory[0], memory[N - 1]];
        let numbers = |memory: &Memory| memory.predefined();
        let op = match op {
            None => Some(0),
            Some(Op::Builtin(builtin)) => Some(builtin.code().into()),
            Some(Op::User { .. }) => None,
        };
        let of = |((sends, send), (gets, got), op): ((u64, u16), (u64, u16), u64)| {
            // There is no second argument if the first one is the last.
            let (gets, got) = if N > 1 { (gets, got) } else { (0, 0) };
            let numbers = [sends, u64::from(send) | u64::from(got) << 16, gets, op, root as u64];
            let signature = Signature { kind, numbers, buffers: [first.argument(), last.argument()] };
            (signature, [first.start(), last.start()])
        };
        Signed(numbers(first).zip(numbers(last)).zip(op).map(|((first, last), op)| of((first, last, op))))
    }

    /// Runs the collective to its end.
    #[inline]
    pub(super) fn run(self, comm: &Comm, call: impl FnOnce() -> Result<Call>) -> Result<()> {
        match self.0 {
            Some((signature, at)) => comm.run_signed(signature, &NoLists, within(at), call),
            None => comm.run(call()?),
        }
    }

    /// Starts the collective.
    pub(super) fn start(self, comm: &Arc<Comm>, call: impl FnOnce() -> Result<Call>) -> Result<Operation> {
        match self.0 {
            Some((signature, at)) => comm.start_signed(signature, &NoLists, within(at), call),
            None => comm.start(call()?),
        }
    }
}

/// The memory of a call, for the runtime, which asks for it with the bounds of the kept plan that has the call's signature.
#[inline(always)]
fn within([first, last]: [*mut u8; 2]) -> impl FnOnce([Bounds; 2]) -> [RawBuffer; 2] {
    move |[one, other]| {
        // SAFETY: the bounds are those of as many elements of the same datatypes.
        unsafe { [RawBuffer::within(first, one), RawBuffer::within(last, other)] }
    }
}
