//! Type signatures: the sequence of basic types of a datatype, as a compact tree (MPI 5.0, 5.1).

use std::sync::Arc;

use crate::basic::Basic;

/// A sequence of basic types, never empty.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// Packed bytes.
    pub(crate) size: u64,
    /// Basic elements.
    pub(crate) count: u64,
    /// Bytes in external32.
    pub(crate) external32: u64,
    hash: Hash,
    /// Levels below this one.
    depth: u32,
    kind: Kind,
}

/// Lists inside lists dissolve beyond so many levels, as in the layout.
const DEPTH: u32 = 64;

#[derive(Debug)]
enum Kind {
    Basic(&'static Basic),
    Repeat(u64, Arc<Sequence>),
    List(Box<[Arc<Sequence>]>),
}

impl Sequence {
    pub(crate) fn basic(basic: &'static Basic) -> Arc<Self> {
        if let Some((value, index, _)) = basic.pair() {
            return Self::list(vec![Self::basic(value), Self::basic(index)]);
        }
        Arc::new(Self {
            size: basic.size.into(),
            count: 1,
            external32: basic.external32.into(),
            hash: Hash::of(basic.code),
            depth: 0,
            kind: Kind::Basic(basic),
        })
    }

    /// `count` (at least 1) times `of`, whose total size is known to fit.
    pub(crate) fn repeat(count: u64, of: &Arc<Self>) -> Arc<Self> {
        if count == 1 {
            return of.clone();
        }
        let (hash, size) = (of.hash.repeat(count), of.size * count);
        let (elements, external32) = (of.count * count, of.external32.saturating_mul(count));
        let kind = match &of.kind {
            Kind::Repeat(times, inner) => Kind::Repeat(times * count, inner.clone()),
            _ => Kind::Repeat(count, of.clone()),
        };
        Arc::new(Self { size, count: elements, external32, hash, depth: of.depth + 1, kind })
    }

    /// One after the other, at least one.
    pub(crate) fn list(list: Vec<Arc<Self>>) -> Arc<Self> {
        let mut merged: Vec<Arc<Self>> = Vec::with_capacity(list.len());
        let too_deep = list.iter().any(|part| part.depth >= DEPTH);
        let list = if too_deep { list.iter().flat_map(Self::dissolved).collect() } else { list };
        for next in list {
            match merged.last_mut() {
                Some(last) if last.uniform().is_some() && same(last.uniform(), next.uniform()) => {
                    let (basic, total) =
                        (Self::basic(last.uniform().expect("just seen")), last.count + next.count);
                    *last = Self::repeat(total, &basic);
                }
                _ => merged.push(next),
            }
        }
        if merged.len() == 1 {
            return merged.remove(0);
        }
        let sum = |f: fn(&Self) -> u64| merged.iter().fold(0u64, |sum, part| sum.saturating_add(f(part)));
        Arc::new(Self {
            size: sum(|part| part.size),
            count: sum(|part| part.count),
            external32: sum(|part| part.external32),
            hash: merged.iter().fold(Hash::EMPTY, |hash, part| hash.then(part.hash)),
            depth: 1 + merged.iter().map(|part| part.depth).max().unwrap_or(0),
            kind: Kind::List(merged.into()),
        })
    }

    /// The members of lists within lists.
    fn dissolved(self: &Arc<Self>) -> Vec<Arc<Self>> {
        match &self.kind {
            Kind::List(list) => list.iter().flat_map(Self::dissolved).collect(),
            _ => vec![self.clone()],
        }
    }

    /// The one basic type that all elements have.
    pub(crate) fn uniform(&self) -> Option<&'static Basic> {
        match &self.kind {
            Kind::Basic(basic) => Some(basic),
            Kind::Repeat(_, of) => of.uniform(),
            Kind::List(_) => None,
        }
    }

    /// A hash of `count` times this sequence: equal for equal sequences, however they were built.
    pub(crate) fn hash(&self, count: u64) -> u64 {
        self.hash.repeat(count).value
    }

    /// Basic elements in the first `bytes` bytes of endless repetition; `None` if they end inside one.
    pub(crate) fn elements(&self, bytes: u64) -> Option<u64> {
        let (whole, rest) = (bytes / self.size, bytes % self.size);
        let inside = if rest == 0 { 0 } else { self.elements_within(rest)? };
        whole.checked_mul(self.count)?.checked_add(inside)
    }

    fn elements_within(&self, mut bytes: u64) -> Option<u64> {
        match &self.kind {
            Kind::Basic(_) => None,
            Kind::Repeat(_, of) => of.elements(bytes),
            Kind::List(list) => {
                let mut count = 0;
                for part in list {
                    if bytes < part.size {
                        return Some(count + part.elements(bytes)?);
                    }
                    (bytes, count) = (bytes - part.size, count + part.count);
                }
                Some(count)
            }
        }
    }

    /// Bytes of the first `elements` basic elements of endless repetition.
    pub(crate) fn bytes_of(&self, elements: u64) -> Option<u64> {
        let (whole, mut rest) = (elements / self.count, elements % self.count);
        let mut bytes = whole.checked_mul(self.size)?;
        match &self.kind {
            Kind::Basic(_) => {}
            Kind::Repeat(_, of) => bytes = bytes.checked_add(of.bytes_of(rest)?)?,
            Kind::List(list) => {
                for part in list.iter() {
                    let here = rest.min(part.count);
                    (bytes, rest) = (bytes.checked_add(part.bytes_of(here)?)?, rest - here);
                }
            }
        }
        Some(bytes)
    }

    /// Calls `f(basic, count)` for stretches of equal basic types, in order, until it says no.
    pub(crate) fn try_visit<E>(
        &self,
        f: &mut impl FnMut(&'static Basic, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        match &self.kind {
            Kind::Basic(basic) => f(basic, 1),
            Kind::Repeat(count, of) => match &of.kind {
                Kind::Basic(basic) => f(basic, *count),
                _ => (0..*count).try_for_each(|_| of.try_visit(f)),
            },
            Kind::List(list) => list.iter().try_for_each(|part| part.try_visit(f)),
        }
    }
}

fn same(a: Option<&Basic>, b: Option<&Basic>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a.code == b.code)
}

/// A polynomial hash of a sequence: joining two needs only their hashes, so grouping leaves no trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hash {
    value: u64,
    /// The base to the power of the length.
    power: u64,
}

impl Hash {
    const EMPTY: Hash = Hash { value: 0, power: 1 };
    /// The largest prime below 2^61, a Mersenne prime.
    const PRIME: u128 = (1 << 61) - 1;
    const BASE: u64 = 0x1234_5678_9abc_def1;

    fn of(code: u16) -> Self {
        // Codes are small; spread them first.
        let value = (u128::from(code) * 0x9e37_79b9_7f4a_7c15 % Self::PRIME) as u64;
        Self { value, power: Self::BASE }
    }

    fn then(self, next: Self) -> Self {
        let times = |a: u64, b: u64| (u128::from(a) * u128::from(b) % Self::PRIME) as u64;
        let value = (u128::from(times(self.value, next.power)) + u128::from(next.value)) % Self::PRIME;
        Self { value: value as u64, power: times(self.power, next.power) }
    }

    fn repeat(self, mut count: u64) -> Self {
        let (mut result, mut square) = (Self::EMPTY, self);
        while count > 0 {
            if count & 1 == 1 {
                result = result.then(square);
            }
            square = square.then(square);
            count >>= 1;
        }
        result
    }
}
