//! Compositions for ranks on several nodes, some of them with several ranks: what goes between nodes goes once for each of
//! them, by its leader.

use crate::stages::{Stage, StageBuf, StageGroup};
use crate::{Algorithm, Buf, Cost, Kind, Order, Span};

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

/// What a rank does by itself: it has a block for each place in the new order.
const fn reorder(group: StageGroup, send: StageBuf, recv: StageBuf) -> Stage {
    stage(Kind::Alltoall, group, send, recv)
}

pub(crate) const ROWS: &[&Algorithm] = &[
    // Nobody leaves before all ranks of its node know that the leaders, and so all nodes, have met.
    &Algorithm {
        stages: &[
            stage(Kind::Barrier, StageGroup::Node, StageBuf::Send, StageBuf::Recv),
            stage(Kind::Barrier, StageGroup::Leaders, StageBuf::Send, StageBuf::Recv),
            stage(Kind::Barrier, StageGroup::Node, StageBuf::Send, StageBuf::Recv),
        ],
        ..NODES
    },
    &Algorithm {
        kind: Kind::Bcast,
        about: "from the root to the leaders of nodes, then within nodes",
        reorders: false,
        stages: &[
            stage(Kind::Bcast, StageGroup::Leaders, StageBuf::Send, StageBuf::Recv),
            stage(Kind::Bcast, StageGroup::Node, StageBuf::Send, StageBuf::Recv),
        ],
        ..NODES
    },
    &Algorithm {
        kind: Kind::Reduce,
        about: "within nodes, then from their leaders to the root",
        stages: &[
            stage(Kind::Reduce, StageGroup::Node, StageBuf::Send, StageBuf::Held),
            stage(Kind::Reduce, StageGroup::Leaders, StageBuf::Held, StageBuf::Recv),
        ],
        ..NODES
    },
    &Algorithm {
        kind: Kind::Allreduce,
        stages: &[
            stage(Kind::Reduce, StageGroup::Node, StageBuf::Send, StageBuf::Recv),
            stage(Kind::Allreduce, StageGroup::Leaders, StageBuf::Recv, StageBuf::Recv),
            stage(Kind::Bcast, StageGroup::Node, StageBuf::Send, StageBuf::Recv),
        ],
        ..NODES
    },
    // Blocks are in the order of nodes until each rank puts them in the order of ranks.
    &Algorithm {
        kind: Kind::Allgather,
        reorders: false,
        stages: &[
            stage(Kind::Gather, StageGroup::Node, StageBuf::Send, StageBuf::HeldHere),
            stage(Kind::Allgatherv, StageGroup::Leaders, StageBuf::HeldHere, StageBuf::Held),
            stage(Kind::Bcast, StageGroup::Node, StageBuf::Send, StageBuf::Held),
            reorder(StageGroup::Alone(Order::Ranks), StageBuf::Held, StageBuf::Recv),
        ],
        ..NODES
    },
    &Algorithm {
        kind: Kind::Gather,
        about: "within nodes, then from their leaders to the root",
        reorders: false,
        stages: &[
            stage(Kind::Gather, StageGroup::Node, StageBuf::Send, StageBuf::HeldHere),
            stage(Kind::Gatherv, StageGroup::Leaders, StageBuf::HeldHere, StageBuf::Held),
            reorder(StageGroup::Alone(Order::Ranks), StageBuf::Held, StageBuf::Recv),
        ],
        ..NODES
    },
    &Algorithm {
        kind: Kind::Scatter,
        about: "from the root to the leaders of nodes, then within nodes",
        reorders: false,
        stages: &[
            reorder(StageGroup::Alone(Order::Nodes), StageBuf::Send, StageBuf::Held),
            stage(Kind::Scatterv, StageGroup::Leaders, StageBuf::Held, StageBuf::HeldHere),
            stage(Kind::Scatter, StageGroup::Node, StageBuf::HeldHere, StageBuf::Recv),
        ],
        ..NODES
    },
    // The leaders put the sums of their nodes in the order of nodes, and get the blocks of their nodes where those were.
    &Algorithm {
        kind: Kind::ReduceScatterBlock,
        stages: &[
            stage(Kind::Reduce, StageGroup::Node, StageBuf::Send, StageBuf::Aside),
            reorder(StageGroup::Leader(Order::Nodes), StageBuf::Aside, StageBuf::Held),
            stage(Kind::ReduceScatter, StageGroup::Leaders, StageBuf::Held, StageBuf::Held),
            stage(Kind::Scatter, StageGroup::Node, StageBuf::Held, StageBuf::Recv),
        ],
        ..NODES
    },
    // What the ranks of a node have for those of another one goes between nodes as one message.
    &Algorithm {
        kind: Kind::Alltoall,
        reorders: false,
        stages: &[
            stage(Kind::Gather, StageGroup::Node, StageBuf::Send, StageBuf::Held),
            reorder(StageGroup::Leader(Order::Outgoing), StageBuf::Held, StageBuf::Aside),
            stage(Kind::Alltoallv, StageGroup::Leaders, StageBuf::Aside, StageBuf::Held),
            reorder(StageGroup::Leader(Order::Incoming), StageBuf::Held, StageBuf::Aside),
            stage(Kind::Scatter, StageGroup::Node, StageBuf::Aside, StageBuf::Recv),
        ],
        ..NODES
    },
];

/// What a rank does by itself: no row of the list. Blocks that stay beside each other are one copy.
pub(crate) const SPREAD: Algorithm = Algorithm {
    kind: Kind::Alltoall,
    rounds: |_| 1,
    round: |shape, _, round| {
        let mut rank = 0;
        while rank < shape.ranks {
            let follows = |next: &u32| shape.sends.start(*next) == shape.sends.start(next - 1) + shape.len;
            let end = (rank + 1..shape.ranks).take_while(follows).last().map_or(rank + 1, |last| last + 1);
            let into = Span::new(Buf::Recv, shape.recvs.run(rank, end));
            round.copy(Span::new(Buf::Send, (shape.sends.start(rank), into.len)), into);
            rank = end;
        }
    },
    cost: |case| Cost { copied: case.bytes * case.p(), ..Cost::ZERO },
    ..Algorithm::MESSAGES
};
