//! Compositions for ranks on several nodes, some of them with several ranks: what goes between nodes goes once for each of
//! them, by its leader.

use crate::stages::{Stage, StageBuf, StageGroup};
use crate::{Algorithm, Buf, Cost, Kind, Span};

/// What all compositions have in common; the tuner adds up what their stages cost.
const NODES: Algorithm = Algorithm {
    name: "nodes",
    about: "within nodes, among their leaders, within nodes",
    reorders: true,
    ..Algorithm::MESSAGES
};

const fn stage(kind: Kind, group: StageGroup, send: StageBuf, recv: StageBuf) -> Stage {
    Stage { kind, group, bind: [send, recv] }
}

/// Nobody leaves before all ranks of its node know that the leaders, and so all nodes, have met.
pub(crate) const BARRIER: Algorithm = Algorithm {
    stages: &[
        stage(Kind::Barrier, StageGroup::Node, StageBuf::Send, StageBuf::Recv),
        stage(Kind::Barrier, StageGroup::Leaders, StageBuf::Send, StageBuf::Recv),
        stage(Kind::Barrier, StageGroup::Node, StageBuf::Send, StageBuf::Recv),
    ],
    ..NODES
};

pub(crate) const BCAST: Algorithm = Algorithm {
    kind: Kind::Bcast,
    about: "from the root to the leaders of nodes, then within nodes",
    reorders: false,
    stages: &[
        stage(Kind::Bcast, StageGroup::Leaders, StageBuf::Send, StageBuf::Recv),
        stage(Kind::Bcast, StageGroup::Node, StageBuf::Send, StageBuf::Recv),
    ],
    ..NODES
};

pub(crate) const REDUCE: Algorithm = Algorithm {
    kind: Kind::Reduce,
    about: "within nodes, then from their leaders to the root",
    stages: &[
        stage(Kind::Reduce, StageGroup::Node, StageBuf::Send, StageBuf::Held),
        stage(Kind::Reduce, StageGroup::Leaders, StageBuf::Held, StageBuf::Recv),
    ],
    ..NODES
};

pub(crate) const ALLREDUCE: Algorithm = Algorithm {
    kind: Kind::Allreduce,
    stages: &[
        stage(Kind::Reduce, StageGroup::Node, StageBuf::Send, StageBuf::Recv),
        stage(Kind::Allreduce, StageGroup::Leaders, StageBuf::Recv, StageBuf::Recv),
        stage(Kind::Bcast, StageGroup::Node, StageBuf::Send, StageBuf::Recv),
    ],
    ..NODES
};

/// Blocks are in the order of nodes until each rank puts them in the order of ranks.
pub(crate) const ALLGATHER: Algorithm = Algorithm {
    kind: Kind::Allgather,
    reorders: false,
    stages: &[
        stage(Kind::Gather, StageGroup::Node, StageBuf::Send, StageBuf::HeldHere),
        stage(Kind::Allgatherv, StageGroup::Leaders, StageBuf::HeldHere, StageBuf::Held),
        stage(Kind::Bcast, StageGroup::Node, StageBuf::Send, StageBuf::Held),
        stage(Kind::Allgather, StageGroup::Alone, StageBuf::Held, StageBuf::Recv),
    ],
    ..NODES
};

/// What a rank does alone in an allgather: no row of the list.
pub(crate) const SPREAD: Algorithm = Algorithm {
    kind: Kind::Allgather,
    rounds: |_| 1,
    round: |shape, _, round| {
        for rank in 0..shape.ranks {
            let into = Span::new(Buf::Recv, shape.recvs.block(rank));
            round.copy(Span::new(Buf::Send, (shape.sends.start(rank), into.len)), into);
        }
    },
    cost: |case| Cost { copied: case.bytes, ..Cost::ZERO },
    ..Algorithm::MESSAGES
};
