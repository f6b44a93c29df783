//! What grows with a job, and what must not.

use super::*;

fn job(ranks: u32, per_host: u32) -> Figures {
    simulate(Shape { ranks, per_host, in_turn: false, radix: 32 }, Costs::default())
}

#[test]
fn chains_of_messages_grow_with_the_depth_of_the_tree() {
    for radix in [2, 8, 32] {
        let simulated =
            |ranks| simulate(Shape { ranks, per_host: 1, in_turn: false, radix }, Costs::default());
        for hosts in [1, 2, 33, 300] {
            let figures = simulated(hosts);
            let (mut room, mut levels, mut level) = (1, 0, 1);
            while room < hosts {
                level *= radix;
                room += level;
                levels += 1;
            }
            // Down to each agent: that it is there, and the job; then as many messages up.
            assert!(figures.agents.depth <= 3 * levels, "{hosts} hosts, radix {radix}: {figures:?}");
            assert!(figures.init.depth <= 4 * levels, "{hosts} hosts, radix {radix}: {figures:?}");
        }
    }
}

#[test]
fn a_rank_and_its_agent_keep_little_of_a_large_job() {
    let (small, large) = (job(640, 64), job(12_800, 64));
    assert!(large.rank_bytes < 2 * small.rank_bytes + 100, "{small:?}, {large:?}");
    // Leaders talk by doubling: to the first of as many as there are doublings, and to one more.
    assert!(large.connections[1] <= 1 + 8, "{large:?}");
    // Of other ranks an agent keeps what was looked up through it.
    assert!(large.tables[1] < 2 * small.tables[1] + 20_000, "{small:?}, {large:?}");
    // mpirun's own agent hears of each rank a few times, and of each lookup at most.
    let frames = |figures: &Figures, ranks: u64| figures.first[0].frames / ranks;
    assert!(frames(&small, 640) <= 8 && frames(&large, 12_800) <= 8, "{small:?}, {large:?}");
}

#[test]
fn ranks_that_are_dealt_out_in_turn_cost_as_little() {
    let [row, turn] = [false, true]
        .map(|in_turn| simulate(Shape { ranks: 10_000, per_host: 10, in_turn, radix: 32 }, Costs::default()));
    assert_eq!((row.hosts, turn.hosts), (1_000, 1_000));
    assert!(turn.rank_bytes <= row.rank_bytes + 10, "{row:?}, {turn:?}");
    assert!(turn.busiest[0].bytes < 2 * row.busiest[0].bytes, "{row:?}, {turn:?}");
}
