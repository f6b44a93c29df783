//! The verifier proves every algorithm right for every rank count up to 64, and finds the mistakes in wrong ones.

use banyan_coll::verify::{Trial, check, check_between};
use banyan_coll::{ALL, Algorithm, BETWEEN, Buf, Kind, Merge, Round, Shape, Side, Step, SubBuffer};

fn odd_sizes(algorithm: &Algorithm, ranks: u32) -> Vec<u64> {
    use Kind::*;
    let p = u64::from(ranks);
    match algorithm.kind {
        Barrier => vec![0],
        Bcast | Reduce | Allreduce | Scan | Exscan if ranks > 20 => vec![0, 1, p - 1, p, 67],
        Bcast | Reduce | Allreduce | Scan | Exscan => vec![0, 1, p - 1, p, p + 1, 2 * p + 3, 7, 67],
        _ if ranks > 40 => vec![1, 2],
        _ => vec![0, 1, 3],
    }
}

fn some_roots(algorithm: &Algorithm, ranks: u32) -> Vec<u32> {
    match algorithm.kind.rooted() {
        false => vec![0],
        true if ranks <= 9 => (0..ranks).collect(),
        true if ranks <= 20 => vec![0, 1, ranks / 2, ranks - 1],
        true => vec![0, (ranks * 7 / 11) ^ 1],
    }
}

/// Units of a shared scratch: its halves have `room` units for each pair of ranks that may use them, or few for each rank, and
/// sometimes so many that a chunk takes only some of the sections.
fn scratch(algorithm: &Algorithm, (ranks, len): (u32, u64), room: u64) -> u64 {
    let p = u64::from(ranks);
    let few = match algorithm.kind {
        Kind::Gatherv | Kind::Scatterv => 2 * (p - 1) * room,
        Kind::Alltoallv | Kind::Alltoallw => 2 * p * (p - 1) * room,
        // More for many ranks, so that there are not too many chunks.
        _ => 2 * p * u64::from(1 + ranks / 16),
    };
    few + len / 3 + if room == 1 && ranks <= 16 { 4096 * p } else { 0 }
}

/// Bytes of a CICO buffer whose sub-buffers hold `room` bytes each: what is longer goes over the shared scratch or by message.
fn cell_bytes(algorithm: &Algorithm, ranks: u32, room: u64) -> u64 {
    let sub_buffers = if algorithm.kind == Kind::Gatherv { 1 } else { u64::from(ranks.max(2) - 1) };
    sub_buffers * (SubBuffer::HEAD + room)
}

fn check_all(algorithms: impl Iterator<Item = &'static Algorithm>) {
    let (mut trials, mut wrong) = (0, vec![]);
    for algorithm in algorithms {
        for ranks in 1..=64 {
            for (i, len) in odd_sizes(algorithm, ranks).into_iter().enumerate() {
                for (j, root) in some_roots(algorithm, ranks).into_iter().enumerate() {
                    // The two values of each choice alternate, so that each meets every kind of size and root.
                    let (bits, odd) = (i + j, ranks as usize);
                    let trial = Trial {
                        ranks,
                        root,
                        len,
                        // Large units make short vectors long enough to be cut into segments.
                        unit: [1, 20_000][(i + odd) % 2],
                        in_place: bits % 2 == 1,
                        even: (bits + odd) % 5 == 4,
                        commutative: algorithm.reorders || (bits / 2 + odd) % 2 == 1,
                        seed: bits as u64,
                        scratch: scratch(algorithm, (ranks, len), (i + j + odd) as u64 % 4),
                        cells: [2, 16][(i / 2 + j) % 2],
                        cell_bytes: cell_bytes(algorithm, ranks, (i + 2 * j) as u64 % 4),
                        crowded: (i + j / 2 + odd) % 3 == 0,
                        nodes: 0,
                    };
                    trials += 1;
                    if let Err(what) = check(algorithm, &trial) {
                        wrong.push(format!("{algorithm:?}, {trial:?}: {what}"));
                    }
                }
            }
        }
    }
    println!("{trials} trials");
    let shown: Vec<_> = wrong.iter().take(20).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), shown.join("\n"));
}

/// Each composition on every number of ranks, dealt out over nodes at random, in up to four chunks. Each group takes any of the
/// algorithms for its stages, those over the shared buffers of its node among them.
#[test]
fn compositions_are_right_on_uneven_nodes() {
    let mut wrong = vec![];
    for algorithm in ALL.iter().filter(|row| !row.stages.is_empty()) {
        for ranks in 1..=64 {
            for nodes in [2, 3, 16] {
                for (i, len) in odd_sizes(algorithm, ranks).into_iter().enumerate() {
                    for root in some_roots(algorithm, ranks) {
                        let trial = Trial {
                            ranks,
                            root,
                            len,
                            unit: [1, 20_000][i % 2],
                            in_place: (i + nodes as usize) % 2 == 1,
                            even: true,
                            commutative: true,
                            seed: u64::from(root + ranks) + i as u64,
                            scratch: 4 * u64::from(ranks) + len / 3,
                            cells: [2, 16][(ranks as usize + i) % 2],
                            cell_bytes: 8 * len,
                            crowded: (i + ranks as usize).is_multiple_of(3),
                            nodes,
                        };
                        if trial.nodes().is_none() {
                            continue;
                        }
                        wrong.extend(
                            check(algorithm, &trial)
                                .err()
                                .map(|why| format!("{algorithm:?}, {trial:?}: {why}")),
                        );
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong, first {}", wrong.len(), wrong[0]);
}

#[test]
fn algorithms_that_move_data_are_right() {
    check_all(ALL.iter().copied().filter(|row| row.stages.is_empty()).filter(|row| !row.kind.reduces()));
}

#[test]
fn algorithms_that_reduce_are_right() {
    check_all(ALL.iter().copied().filter(|row| row.stages.is_empty()).filter(|row| row.kind.reduces()));
}

#[test]
fn larger_rank_counts_are_no_different() {
    for &algorithm in ALL {
        for ranks in [127, 128, 129, 200] {
            let commutative = algorithm.reorders || ranks % 2 == 1;
            let len = if algorithm.kind.reduces() && ranks != 200 { 3 } else { 1 };
            let trial = Trial {
                ranks,
                root: 77,
                len,
                unit: 1,
                in_place: ranks == 129,
                even: true,
                commutative,
                seed: u64::from(ranks),
                scratch: 2 * u64::from(ranks) * 25 + 1,
                cells: 16,
                cell_bytes: cell_bytes(algorithm, ranks, u64::from(ranks) % 2),
                crowded: ranks == 200,
                nodes: if algorithm.stages.is_empty() { 0 } else { 9 },
            };
            assert_eq!(check(algorithm, &trial), Ok(()), "{algorithm:?}, {trial:?}");
        }
    }
}

/// Between groups of all sizes up to 8, and some larger ones, with every root.
#[test]
fn algorithms_between_groups_are_right() {
    let (mut trials, mut wrong) = (0, vec![]);
    let small = (1..=8).flat_map(|one| (1..=8).map(move |other| (one, other)));
    for (split, other) in small.chain([(1, 40), (33, 2), (40, 70)]) {
        let ranks = split + other;
        for &algorithm in BETWEEN {
            let roots = if algorithm.kind.rooted() { ranks.min(16) } else { 1 };
            for (i, root) in (0..roots).map(|i| i * ranks / roots).enumerate() {
                for len in if ranks > 16 { vec![1] } else { vec![0, 1, 5] } {
                    let trial = Trial {
                        ranks,
                        root,
                        len,
                        unit: 1,
                        in_place: false,
                        even: i % 3 == 2,
                        commutative: (root + split) % 2 == 1,
                        seed: u64::from(root) + len,
                        scratch: 0,
                        cells: 2,
                        cell_bytes: 0,
                        crowded: false,
                        nodes: 0,
                    };
                    trials += 1;
                    if let Err(what) = check_between(algorithm, &trial, split) {
                        wrong.push(format!("{algorithm:?}, {split} and {other}, {trial:?}: {what}"));
                    }
                }
            }
        }
    }
    println!("{trials} trials");
    let shown: Vec<_> = wrong.iter().take(20).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), shown.join("\n"));
}

/// The algorithm of that name (`collective=algorithm`).
fn row(name: &str) -> &'static Algorithm {
    ALL.iter().find(|row| format!("{row:?}") == name).expect("a row of the list")
}

/// The verifier's error about an algorithm with a mistake, in a trial that the right one passes.
fn error_of(right: &str, in_place: bool, change: impl FnOnce(&mut Algorithm)) -> String {
    let trial = Trial {
        ranks: 5,
        root: 1,
        len: 7,
        unit: 8,
        in_place,
        even: true,
        commutative: false,
        seed: 3,
        scratch: 64,
        cells: 2,
        cell_bytes: 8 * 6,
        crowded: false,
        nodes: 0,
    };
    let right = row(right);
    check(right, &trial).unwrap();
    let mut wrong = Algorithm { ..*right };
    change(&mut wrong);
    check(Box::leak(Box::new(wrong)), &trial).unwrap_err()
}

/// The steps of a round of a right algorithm, changed one by one; `None` drops a step.
fn changed(
    name: &str,
    (shape, index, round): (&Shape, u32, &mut Round),
    change: impl Fn(Step) -> Option<Step>,
) {
    (row(name).round)(shape, index, round);
    round.steps = round.steps.drain(..).filter_map(change).collect();
}

#[test]
fn a_missing_round_is_found() {
    let what = error_of("bcast=binomial", false, |wrong| wrong.rounds = |_| 2);
    assert!(what.contains("belongs"), "{what}");
}

#[test]
fn rounds_must_be_counted_alike() {
    let what = error_of("bcast=binomial", false, |wrong| wrong.rounds = |shape| 3 + shape.rank / 4);
    assert!(what.contains("count different rounds"), "{what}");
}

#[test]
fn an_operand_on_the_wrong_side_is_found() {
    let what = error_of("reduce=binomial", false, |wrong| {
        wrong.round = |shape, index, round| {
            changed("reduce=binomial", (shape, index, round), |step| {
                Some(match step {
                    Step::RecvReduce { from, merge, key } => {
                        Step::RecvReduce { from, merge: Merge { side: Side::Left, ..merge }, key }
                    }
                    other => other,
                })
            });
        }
    });
    assert!(what.contains("belongs"), "{what}");
}

#[test]
fn an_operand_taken_twice_is_found() {
    let what = error_of("allreduce=doubling", false, |wrong| {
        wrong.rounds = |shape| (row("allreduce=doubling").rounds)(shape) + 1;
        wrong.round = |shape, index, round| {
            // The reduction of the first exchange happens again.
            let index = if index > 4 { index - 1 } else { index };
            (row("allreduce=doubling").round)(shape, index, round);
        }
    });
    assert!(what.contains("belongs"), "{what}");
}

#[test]
fn other_bits_at_other_ranks_are_found() {
    let what = error_of("allreduce=cico", false, |wrong| {
        wrong.reorders = true;
        wrong.round = |shape, index, round| {
            // Rank 3 begins with another rank's vector.
            let turn = |rank: u32| if shape.rank == 3 { shape.after(rank, 1) } else { rank };
            (row("allreduce=cico").round)(shape, index, round);
            for step in &mut round.steps {
                match step {
                    Step::Get { rank, .. } | Step::GetReduce { rank, .. } => *rank = turn(*rank),
                    _ => {}
                }
            }
        }
    });
    assert!(what.contains("brackets"), "{what}");
}

#[test]
fn a_wait_for_what_nobody_sends_is_found() {
    let what = error_of("bcast=binomial", false, |wrong| {
        wrong.round = |shape, index, round| {
            let mute = shape.rank == shape.root && index == 1;
            changed("bcast=binomial", (shape, index, round), |step| (!mute).then_some(step));
        }
    });
    assert!(what.contains("deadlock"), "{what}");
}

#[test]
fn sends_that_need_buffers_are_found() {
    // Everybody sends in one round and receives in the next.
    let what = error_of("barrier=dissemination", false, |wrong| {
        wrong.rounds = |shape| 2 * (row("barrier=dissemination").rounds)(shape);
        wrong.round = |shape, index, round| {
            round.begin(index / 2);
            let sends = index % 2 == 0;
            changed("barrier=dissemination", (shape, index / 2, round), |step| {
                (matches!(step, Step::Send { .. }) == sends).then_some(step)
            });
        }
    });
    assert!(what.contains("deadlock"), "{what}");
}

#[test]
fn messages_of_different_lengths_are_found() {
    let what = error_of("bcast=binomial", false, |wrong| {
        wrong.round = |shape, index, round| {
            changed("bcast=binomial", (shape, index, round), |mut step| {
                if let Step::Send { from, .. } = &mut step {
                    from.len -= 1;
                }
                Some(step)
            });
        }
    });
    assert!(what.contains("sends 6 units"), "{what}");
}

#[test]
fn accesses_without_order_and_outside_are_found() {
    let overlapping = error_of("allreduce=ring", false, |wrong| {
        wrong.round = |shape, index, round| {
            (row("allreduce=ring").round)(shape, index, round);
            let whole = shape.whole(Buf::Recv);
            if index == 1 {
                round.copy(shape.whole(Buf::Send), whole);
            }
        }
    });
    assert!(overlapping.contains("two steps of one round"), "{overlapping}");
    let outside = error_of("allreduce=doubling", false, |wrong| wrong.temp = |shape| shape.len - 1);
    assert!(outside.contains("outside the buffer of 6 units"), "{outside}");
    let users = error_of("allreduce=ring", false, |wrong| {
        wrong.round = |shape, _, round| round.copy(shape.whole(Buf::Recv), shape.whole(Buf::Send));
    });
    assert!(users.contains("is the user's, and written to"), "{users}");
}

#[test]
fn reading_the_users_data_after_overwriting_them_in_place_is_found() {
    let what = error_of("reduce_scatter=pairwise", true, |wrong| {
        wrong.round = |shape, index, round| {
            // The partial result is kept in Recv, over the blocks that are still to be sent.
            (row("reduce_scatter=pairwise").round)(shape, index, round);
            for step in &mut round.steps {
                if let Step::RecvReduce { merge, .. } = step {
                    for span in [&mut merge.with, &mut merge.into] {
                        if (span.buf, span.at) == (Buf::Temp, 0) {
                            span.buf = Buf::Recv;
                        }
                    }
                }
            }
        }
    });
    assert!(what.contains("belongs") || what.contains("two steps"), "{what}");
}

#[test]
fn a_cell_that_is_not_acknowledged_is_found() {
    let what = error_of("bcast=cico", false, |wrong| {
        wrong.round = |shape, index, round| {
            changed("bcast=cico", (shape, index, round), |step| {
                (!matches!(step, Step::Ack { .. })).then_some(step)
            });
        }
    });
    assert!(what.contains("without acknowledging"), "{what}");
}

#[test]
fn memory_given_back_while_others_may_get_it_is_found() {
    let what = error_of("bcast=single_copy", false, |wrong| {
        wrong.round = |shape, index, round| {
            changed("bcast=single_copy", (shape, index, round), |step| {
                (!matches!(step, Step::WaitAck { .. })).then_some(step)
            });
        }
    });
    assert!(what.contains("may still get"), "{what}");
}

#[test]
fn an_exposed_range_that_changes_is_found() {
    let what = error_of("bcast=single_copy", false, |wrong| {
        wrong.temp = |shape| shape.len;
        wrong.round = |shape, index, round| {
            (row("bcast=single_copy").round)(shape, index, round);
            if index == 1 && shape.rank == shape.root {
                round.copy(shape.whole(Buf::Temp), shape.whole(Buf::Recv));
            }
        }
    });
    assert!(what.contains("changed what rank"), "{what}");
}

#[test]
fn reading_a_cell_after_acknowledging_it_is_found() {
    let what = error_of("bcast=cico", false, |wrong| {
        wrong.round = |shape, index, round| {
            (row("bcast=cico").round)(shape, 1 - index, round);
        }
    });
    assert!(what.contains("which it has acknowledged"), "{what}");
}

#[test]
fn sub_buffers_that_overlap_are_found() {
    let what = error_of("alltoallv=cico", false, |wrong| {
        wrong.round = |shape, index, round| {
            changed("alltoallv=cico", (shape, index, round), |mut step| {
                if let Step::Pack { sub_buffer, .. } = &mut step {
                    sub_buffer.at /= 2;
                }
                Some(step)
            });
        }
    });
    assert!(what.contains("has no room for"), "{what}");
}

#[test]
fn a_pair_of_ranks_that_decides_by_different_sizes_is_found() {
    let what = error_of("scatterv=cico", false, |wrong| {
        wrong.round = |shape, index, round| {
            // Rank 3 believes that all blocks go by message.
            let cell_bytes = if shape.rank == 3 { 32 } else { shape.cell_bytes };
            (row("scatterv=cico").round)(&Shape { cell_bytes, ..shape.clone() }, index, round);
        }
    });
    assert!(what.contains("does not find"), "{what}");
}

#[test]
fn what_is_packed_and_never_published_is_found() {
    let what = error_of("gatherv=cico", false, |wrong| {
        wrong.round = |shape, index, round| {
            changed("gatherv=cico", (shape, index, round), |step| {
                (!matches!(step, Step::Publish { .. })).then_some(step)
            });
        }
    });
    assert!(what.contains("never published"), "{what}");
}

#[test]
fn a_half_of_the_scratch_overwritten_while_it_is_read_is_found() {
    let what = error_of("bcast=scratch_pipeline", false, |wrong| {
        wrong.round = |shape, index, round| {
            changed("bcast=scratch_pipeline", (shape, index, round), |step| {
                (!matches!(step, Step::WaitReuse { .. })).then_some(step)
            });
        }
    });
    assert!(what.contains("nothing orders"), "{what}");
}

#[test]
fn reading_blocks_on_the_scratch_without_awaiting_them_is_found() {
    const NAME: &str = "alltoallv=cico";
    let trial = Trial {
        ranks: 3,
        root: 0,
        len: 7,
        unit: 1,
        in_place: false,
        even: true,
        commutative: true,
        seed: 3,
        scratch: 2 * 6 * 7,
        cells: 16,
        cell_bytes: cell_bytes(row(NAME), 3, 1),
        crowded: true,
        nodes: 0,
    };
    check(row(NAME), &trial).unwrap();
    let round = |shape: &Shape, index, round: &mut Round| {
        changed(NAME, (shape, index, round), |step| (!matches!(step, Step::Unpack { .. })).then_some(step));
    };
    let wrong = Algorithm { round, ..*row(NAME) };
    let what = check(Box::leak(Box::new(wrong)), &trial).unwrap_err();
    assert!(what.contains("before anything was written") || what.contains("nothing orders"), "{what}");
}
