//! Layouts as tables of numbers, which kernels walk (`pack.cuh` says what a node is).

use std::collections::HashMap;
use std::sync::Arc;

use crate::layout::{Kind, Node};

/// A layout, and what all its numbers are multiples of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) numbers: Vec<i64>,
    /// The greatest power of two, of at most 16 bytes, of which all lengths and displacements are multiples.
    pub(crate) grain: u64,
}

const RUN: i64 = 0;
const LOOP: i64 = 1;
const BLOCKS: i64 = 2;
const PIECES: i64 = 3;
const PARTS: i64 = 4;

impl Table {
    /// Any number of copies of a node, `extent` bytes apart, the first one at `disp`.
    pub(crate) fn of(node: &Arc<Node>, disp: i64, extent: i64) -> Table {
        let mut writer = Writer::default();
        // What is before the node is a list of one part, if it is anything.
        if disp != 0 {
            let body = 5;
            writer.put(&[PARTS, 1, 0, disp, body]);
        }
        writer.elements(node, extent);
        writer.both(disp, extent);
        Table { grain: 1 << writer.bits.trailing_zeros().min(4), numbers: writer.numbers }
    }
}

/// Writes nodes behind one another; what several nodes share is there once.
#[derive(Default)]
struct Writer {
    numbers: Vec<i64>,
    written: HashMap<*const Node, i64>,
    /// All lengths and displacements, one over the other.
    bits: u64,
}

impl Writer {
    fn put(&mut self, numbers: &[i64]) -> usize {
        let at = self.numbers.len();
        self.numbers.extend_from_slice(numbers);
        at
    }

    fn both(&mut self, one: i64, other: i64) {
        self.bits |= (one | other) as u64;
    }

    fn elements(&mut self, node: &Arc<Node>, extent: i64) {
        let at = self.put(&[LOOP, node.size as i64, extent, 0]);
        self.numbers[at + 3] = self.node(node);
    }

    /// Writes a node, and says where it is.
    fn node(&mut self, node: &Arc<Node>) -> i64 {
        if let Some(&at) = self.written.get(&Arc::as_ptr(node)) {
            return at;
        }
        let at = match &node.kind {
            Kind::Run => {
                self.both(node.size as i64, 0);
                self.put(&[RUN])
            }
            Kind::Loop { stride, body, .. } => {
                self.both(*stride, 0);
                let at = self.put(&[LOOP, body.size as i64, *stride, 0]);
                self.numbers[at + 3] = self.node(body);
                at
            }
            Kind::Blocks { len, disps } => {
                let at = self.put(&[BLOCKS, *len as i64]);
                disps.iter().for_each(|&disp| self.both(disp, *len as i64));
                self.put(disps);
                at
            }
            Kind::Pieces(pieces) => {
                let at = self.put(&[PIECES, pieces.len() as i64]);
                for piece in pieces {
                    self.both(piece.disp, piece.len as i64);
                    self.put(&[piece.at as i64, piece.disp]);
                }
                at
            }
            Kind::Parts(parts) => {
                let at = self.put(&[PARTS, parts.len() as i64]);
                self.numbers.extend(parts.iter().flat_map(|part| [part.at as i64, part.disp, 0]));
                for (index, part) in parts.iter().enumerate() {
                    self.both(part.disp, 0);
                    self.numbers[at + 4 + 3 * index] = self.node(&part.node);
                }
                at
            }
        };
        self.written.insert(Arc::as_ptr(node), at as i64);
        at as i64
    }
}
