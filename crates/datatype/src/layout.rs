//! Where a datatype's bytes lie: runs of memory under loops and lists, in packed order.
//!
//! The tree is normalised when it is built: neighbours merge, small subtrees flatten into lists, so
//! that walking it spends its time in loops over runs and not in recursion.

use std::sync::Arc;

/// The most runs of a subtree that becomes a flat list.
const FLAT_RUNS: u64 = 16;
/// A list flattens its members if it has at most `FLAT_LIST` runs in all, or `FLAT_SHARE` for each member.
const FLAT_LIST: u64 = 1 << 12;
const FLAT_SHARE: u64 = 8;

/// Lists inside lists dissolve beyond so many levels. Loops need no such limit, because each at least
/// doubles the size; so walking a layout needs a bounded stack, however a user nests types.
const DEPTH: u32 = 64;

/// A node and where it begins, in bytes from the address that the user passes.
#[derive(Debug, Clone)]
pub(crate) struct Placed {
    pub(crate) disp: i64,
    pub(crate) node: Arc<Node>,
}

/// Bytes in packed order. Nodes are never empty.
#[derive(Debug)]
pub(crate) struct Node {
    /// Packed bytes.
    pub(crate) size: u64,
    /// Separate runs, saturating.
    pub(crate) runs: u64,
    /// Levels of nodes below this one.
    depth: u32,
    pub(crate) kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// `size` bytes in one piece.
    Run,
    /// `count` times the body, `stride` bytes apart.
    Loop { count: u64, stride: i64, body: Arc<Node> },
    /// Runs of `len` bytes each.
    Blocks { len: u64, disps: Box<[i64]> },
    /// Runs of different lengths.
    Pieces(Box<[Piece]>),
    /// Nodes one after the other.
    Parts(Box<[Part]>),
}

/// A run: where it starts in the packed bytes, where in memory, and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) at: u64,
    pub(crate) disp: i64,
    pub(crate) len: u64,
}

#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) at: u64,
    pub(crate) disp: i64,
    pub(crate) node: Arc<Node>,
}

impl Placed {
    pub(crate) fn run(disp: i64, len: u64) -> Self {
        Self { disp, node: Node::new(len, 1, Kind::Run) }
    }

    pub(crate) fn shift(&self, by: i64) -> Self {
        Self { disp: self.disp + by, node: self.node.clone() }
    }

    /// `count` (at least 1) copies, `stride` bytes apart.
    pub(crate) fn repeat(&self, count: u64, stride: i64) -> Self {
        let (disp, node) = (self.disp, &self.node);
        if count == 1 {
            return self.clone();
        }
        let size = node.size * count;
        match &node.kind {
            Kind::Run if i64::try_from(node.size) == Ok(stride) => return Self::run(disp, size),
            Kind::Loop { count: inner, stride: step, body } if continues(*inner, *step, stride) => {
                let kind = Kind::Loop { count: inner * count, stride: *step, body: body.clone() };
                return Self { disp, node: Node::new(size, body.runs.saturating_mul(inner * count), kind) };
            }
            _ => {}
        }
        let body = node.flattened();
        let kind = Kind::Loop { count, stride, body: body.clone() };
        Self { disp, node: Node::new(size, body.runs.saturating_mul(count), kind) }
    }

    /// Nodes one after the other; `None` if there are none.
    pub(crate) fn sequence(parts: &[Placed]) -> Option<Self> {
        if parts.len() < 2 {
            return parts.first().cloned();
        }
        let runs = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.node.runs));
        if runs <= FLAT_LIST.max(FLAT_SHARE * parts.len() as u64) {
            let mut list = RunList::default();
            parts.iter().for_each(|part| part.node.visit(part.disp, &mut |disp, len| list.push(disp, len)));
            return Some(list.finish());
        }
        let mut list = PartList::default();
        let too_deep = parts.iter().any(|part| part.node.depth >= DEPTH);
        parts.iter().for_each(|part| list.push(part.disp, &part.node, too_deep));
        Some(Self { disp: 0, node: Node::new(list.size, runs, Kind::Parts(list.parts.into())) })
    }
}

/// True if copies of a loop of `count` times `step` bytes, `stride` apart, just lengthen the loop.
fn continues(count: u64, step: i64, stride: i64) -> bool {
    i128::from(count) * i128::from(step) == i128::from(stride)
}

impl Node {
    fn new(size: u64, runs: u64, kind: Kind) -> Arc<Self> {
        let depth = match &kind {
            Kind::Run | Kind::Blocks { .. } | Kind::Pieces(_) => 0,
            Kind::Loop { body, .. } => body.depth + 1,
            Kind::Parts(parts) => 1 + parts.iter().map(|part| part.node.depth).max().unwrap_or(0),
        };
        Arc::new(Self { size, runs, depth, kind })
    }

    /// This node as a flat list, if that is small; the first run need not be at 0.
    fn flattened(self: &Arc<Self>) -> Arc<Self> {
        let nested = match &self.kind {
            Kind::Loop { .. } | Kind::Parts(_) => self.runs <= FLAT_RUNS,
            _ => false,
        };
        if !nested {
            return self.clone();
        }
        let mut list = RunList::default();
        self.visit(0, &mut |disp, len| list.push(disp, len));
        list.flat()
    }

    /// Calls `f(displacement, length)` for each run.
    pub(crate) fn visit(&self, base: i64, f: &mut impl FnMut(i64, u64)) {
        match &self.kind {
            Kind::Run => f(base, self.size),
            Kind::Loop { count, stride, body } => {
                (0..*count as i64).for_each(|i| body.visit(base + i * stride, f));
            }
            Kind::Blocks { len, disps } => disps.iter().for_each(|disp| f(base + disp, *len)),
            Kind::Pieces(pieces) => pieces.iter().for_each(|piece| f(base + piece.disp, piece.len)),
            Kind::Parts(parts) => parts.iter().for_each(|part| part.node.visit(base + part.disp, f)),
        }
    }
}

/// Nodes in packed order.
#[derive(Default)]
struct PartList {
    parts: Vec<Part>,
    size: u64,
    /// The last node added, before and after flattening: often all members are one node.
    last: Option<(Arc<Node>, Arc<Node>)>,
}

impl PartList {
    /// Adds a node, or with `dissolve` the members of what is a list itself.
    fn push(&mut self, disp: i64, node: &Arc<Node>, dissolve: bool) {
        if let (Kind::Parts(parts), true) = (&node.kind, dissolve) {
            return parts.iter().for_each(|part| self.push(disp + part.disp, &part.node, true));
        }
        let last = self.last.take().filter(|last| Arc::ptr_eq(&last.0, node));
        let (_, flat) = self.last.insert(last.unwrap_or_else(|| (node.clone(), node.flattened())));
        self.parts.push(Part { at: self.size, disp, node: flat.clone() });
        self.size += node.size;
    }
}

/// Runs in packed order; neighbours in memory merge.
#[derive(Default)]
pub(crate) struct RunList {
    pieces: Vec<Piece>,
}

impl RunList {
    /// The node for runs of `(displacement, length)`, none of them empty.
    pub(crate) fn of(runs: impl IntoIterator<Item = (i64, u64)>) -> Option<Placed> {
        let mut list = Self::default();
        runs.into_iter().for_each(|(disp, len)| list.push(disp, len));
        (!list.pieces.is_empty()).then(|| list.finish())
    }

    fn push(&mut self, disp: i64, len: u64) {
        let at = match self.pieces.last_mut() {
            Some(last) if i128::from(last.disp) + i128::from(last.len) == i128::from(disp) => {
                last.len += len;
                return;
            }
            Some(last) => last.at + last.len,
            None => 0,
        };
        self.pieces.push(Piece { at, disp, len });
    }

    /// The simplest node for the runs: one run, an even loop, blocks, or a list.
    fn finish(self) -> Placed {
        let first = self.pieces[0];
        if self.pieces.len() == 1 {
            return Placed::run(first.disp, first.len);
        }
        let Some(len) = self.even_length() else { return Placed { disp: 0, node: self.flat() } };
        let stride = self.pieces[1].disp - first.disp;
        if !self.pieces.windows(2).all(|pair| pair[1].disp - pair[0].disp == stride) {
            return Placed { disp: 0, node: self.flat() };
        }
        Placed::run(first.disp, len).repeat(self.pieces.len() as u64, stride)
    }

    fn flat(self) -> Arc<Node> {
        let size = self.pieces.last().map_or(0, |last| last.at + last.len);
        let runs = self.pieces.len() as u64;
        match self.even_length() {
            Some(len) => {
                let disps = self.pieces.iter().map(|piece| piece.disp).collect();
                Node::new(size, runs, Kind::Blocks { len, disps })
            }
            None => Node::new(size, runs, Kind::Pieces(self.pieces.into())),
        }
    }

    fn even_length(&self) -> Option<u64> {
        let len = self.pieces[0].len;
        self.pieces.iter().all(|piece| piece.len == len).then_some(len)
    }
}
