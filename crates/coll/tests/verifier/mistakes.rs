//! Right algorithms with one change, and what the verifier says of each.

use banyan_coll::verify::{Trial, check};
use banyan_coll::{Algorithm, Buf, Merge, Products, Round, Shape, Side, Span, Step, SubBuffer, all};

use crate::cell_bytes;

/// The algorithm of that name (`collective=algorithm`).
fn row(name: &str) -> &'static Algorithm {
    all().find(|row| format!("{row:?}") == name).expect("a row of the list")
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
        longest_copied: u64::MAX,
        products: Products::UNCUT,
        crowded: false,
        single_copy: true,
        ring: false,
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
            // No block fits into a cell: it would be published alone.
            let shape = Shape { cell_bytes: SubBuffer::HEAD, ..shape.clone() };
            changed("gatherv=cico", (&shape, index, round), |step| {
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
        longest_copied: u64::MAX,
        products: Products::UNCUT,
        crowded: true,
        single_copy: true,
        ring: false,
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

/// The verifier's error about an algorithm for blocks that go between two ranks' memory, where each of its steps is changed.
fn error_of_direct(name: &'static str, round: fn(&Shape, u32, &mut Round)) -> String {
    let trial = Trial {
        ranks: 4,
        root: 1,
        len: 200,
        unit: 1,
        in_place: false,
        even: true,
        commutative: true,
        seed: 5,
        scratch: 0,
        cells: 2,
        cell_bytes: 3 * (SubBuffer::HEAD + SubBuffer::OFFER),
        longest_copied: 1,
        products: Products::UNCUT,
        crowded: true,
        single_copy: true,
        ring: false,
        nodes: 0,
    };
    check(row(name), &trial).unwrap();
    check(Box::leak(Box::new(Algorithm { round, ..*row(name) })), &trial).unwrap_err()
}

#[test]
fn a_range_that_goes_back_while_it_is_offered_is_found() {
    for (name, round) in [
        ("gather=single_copy", without_awaiting_puts as fn(&Shape, u32, &mut Round)),
        ("scatterv=cico", without_awaiting_acknowledgements),
    ] {
        let what = error_of_direct(name, round);
        assert!(what.contains("may still use what it has offered"), "{name}: {what}");
    }
}

fn without_awaiting_puts(shape: &Shape, index: u32, round: &mut Round) {
    changed("gather=single_copy", (shape, index, round), |step| {
        (!matches!(step, Step::AwaitPut { .. })).then_some(step)
    });
}

fn without_awaiting_acknowledgements(shape: &Shape, index: u32, round: &mut Round) {
    changed("scatterv=cico", (shape, index, round), |step| {
        (!matches!(step, Step::WaitAck { .. })).then_some(step)
    });
}

#[test]
fn a_block_that_is_put_into_what_another_rank_gives_is_found() {
    let what = error_of_direct("gather=single_copy", |shape, index, round| {
        changed("gather=single_copy", (shape, index, round), |mut step| {
            if let Step::Offer { gives, .. } = &mut step {
                *gives = true;
            }
            Some(step)
        });
    });
    assert!(what.contains("does not offer"), "{what}");
}

#[test]
fn an_offered_range_that_its_owner_touches_is_found() {
    let what = error_of_direct("gather=single_copy", |shape, index, round| {
        (row("gather=single_copy").round)(shape, index, round);
        if index == 2 && shape.rank == shape.root {
            let other = Span::new(Buf::Recv, shape.recvs.block(shape.after(shape.root, 1)));
            round.copy(shape.whole(Buf::Send), other);
        }
    });
    assert!(what.contains("is offered to another rank"), "{what}");
}
