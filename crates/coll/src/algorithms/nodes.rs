//! Compositions for ranks on several nodes, some of them with several ranks: what goes between nodes goes once for each of
//! them, by its leader.

use super::{allreduce, barrier, bcast, reduce};
use crate::stages::{Stage, StageBuf, StageGroup};
use crate::{Algorithm, Kind};

/// What compositions have in common; the tuner adds up what their stages cost.
const IN_NODE: Algorithm = Algorithm {
    name: "nodes",
    about: "within nodes, among their leaders, within nodes",
    reorders: true,
    ..Algorithm::MESSAGES
};

const fn stage(row: &'static Algorithm, group: StageGroup, send: StageBuf, recv: StageBuf) -> Stage {
    Stage { row, group, bind: [send, recv] }
}

/// Nobody leaves before all ranks of its node know that the leaders, and so all nodes, have met.
pub(crate) const BARRIER: Algorithm = Algorithm {
    stages: &[
        stage(&barrier::DISSEMINATION, StageGroup::Node, StageBuf::Send, StageBuf::Recv),
        stage(&barrier::DISSEMINATION, StageGroup::Leaders, StageBuf::Send, StageBuf::Recv),
        stage(&barrier::DISSEMINATION, StageGroup::Node, StageBuf::Send, StageBuf::Recv),
    ],
    ..IN_NODE
};

pub(crate) const BCAST: Algorithm = Algorithm {
    kind: Kind::Bcast,
    about: "from the root to the leaders of nodes, then within nodes",
    reorders: false,
    stages: &[
        stage(&bcast::BINOMIAL, StageGroup::Leaders, StageBuf::Send, StageBuf::Recv),
        stage(&bcast::BINOMIAL, StageGroup::Node, StageBuf::Send, StageBuf::Recv),
    ],
    ..IN_NODE
};

pub(crate) const REDUCE: Algorithm = Algorithm {
    kind: Kind::Reduce,
    about: "within nodes, then from their leaders to the root",
    stages: &[
        stage(&reduce::BINOMIAL, StageGroup::Node, StageBuf::Send, StageBuf::Held),
        stage(&reduce::BINOMIAL, StageGroup::Leaders, StageBuf::Held, StageBuf::Recv),
    ],
    ..IN_NODE
};

/// To the leader, doubling among leaders, and back: small and middle-sized vectors.
pub(crate) const ALLREDUCE: Algorithm = Algorithm {
    kind: Kind::Allreduce,
    stages: &[
        stage(&reduce::BINOMIAL, StageGroup::Node, StageBuf::Send, StageBuf::Recv),
        stage(&allreduce::DOUBLING, StageGroup::Leaders, StageBuf::Recv, StageBuf::Recv),
        stage(&bcast::BINOMIAL, StageGroup::Node, StageBuf::Send, StageBuf::Recv),
    ],
    ..IN_NODE
};

pub(crate) const ALLREDUCE_RING: Algorithm = Algorithm {
    name: "nodes_ring",
    about: "within nodes, a ring among their leaders, within nodes: large vectors",
    stages: &[
        stage(&reduce::BINOMIAL, StageGroup::Node, StageBuf::Send, StageBuf::Recv),
        stage(&allreduce::RING, StageGroup::Leaders, StageBuf::Recv, StageBuf::Recv),
        stage(&bcast::BINOMIAL, StageGroup::Node, StageBuf::Send, StageBuf::Recv),
    ],
    ..ALLREDUCE
};
