//! [`ring`]: the order in which a ring goes over GPUs, so that the narrowest link between two that follow each other is as wide as it can be, and of
//! such orders one with the widest links in all. The same order comes out wherever it is asked for.

/// The most GPUs of which all orders are looked at, but for those that cannot be the best.
const MOST_EXACT: usize = 8;

/// How wide the narrowest link of an order is, and how wide all are together: the larger, the better.
type Width = (u64, u64);

/// The order of a ring over as many GPUs as the table has rows, by their numbers, from the lowest on where it is `closed`. An open one ends where it does, as
/// it goes on elsewhere. `widths` says how wide the link between two is; it is the same both ways. Of orders that are as good the first one is taken.
pub(crate) fn ring(widths: &[Vec<u64>], closed: bool) -> Vec<usize> {
    let number = widths.len();
    if number <= 2 {
        return (0..number).collect();
    }
    let search = Search { widths, closed, widest: widths.iter().flatten().copied().max().unwrap_or(0) };
    let mut best: Best = ((0, 0), vec![]);
    let first = if closed { 1 } else { number };
    match number {
        ..=MOST_EXACT => (0..first).for_each(|first| search.all(&mut vec![first], (u64::MAX, 0), &mut best)),
        _ => {
            let begins = (0..number).map(|first| search.greedy(first));
            for order in std::iter::once((0..number).collect()).chain(begins) {
                let order = search.improved(order);
                take(&mut best, search.width(&order), &order);
            }
        }
    }
    let mut order = best.1;
    // As it is closed it may begin anywhere, and go either way around.
    if let Some(lowest) = order.iter().position(|gpu| *gpu == 0).filter(|_| closed) {
        order.rotate_left(lowest);
        if order[1] > order[number - 1] {
            order[1..].reverse();
        }
    }
    order
}

/// An order, and how wide its links are; none yet.
type Best = (Width, Vec<usize>);

fn take(best: &mut Best, width: Width, order: &[usize]) {
    if best.1.is_empty() || width > best.0 {
        *best = (width, order.to_vec());
    }
}

struct Search<'a> {
    widths: &'a [Vec<u64>],
    closed: bool,
    widest: u64,
}

impl Search<'_> {
    fn with(width: Width, link: u64) -> Width {
        (width.0.min(link), width.1 + link)
    }

    /// The neighbours in an order.
    fn width(&self, order: &[usize]) -> Width {
        let back = self.closed.then(|| (order[order.len() - 1], order[0]));
        let pairs = order.windows(2).map(|pair| (pair[0], pair[1])).chain(back);
        pairs.fold((u64::MAX, 0), |width, (one, other)| Self::with(width, self.widths[one][other]))
    }

    /// Looks at all orders that begin so.
    fn all(&self, begun: &mut Vec<usize>, width: Width, best: &mut Best) {
        let (number, last) = (self.widths.len(), begun[begun.len() - 1]);
        if begun.len() == number {
            let back = self.widths[last][begun[0]];
            return take(best, if self.closed { Self::with(width, back) } else { width }, begun);
        }
        let left = (number - begun.len() + usize::from(self.closed)) as u64;
        if !best.1.is_empty() && (width.0, width.1 + left * self.widest) <= best.0 {
            return;
        }
        for next in (0..number).filter(|next| !begun.contains(next)).collect::<Vec<_>>() {
            begun.push(next);
            self.all(begun, Self::with(width, self.widths[last][next]), best);
            begun.pop();
        }
    }

    /// From this one on always to the one by the widest link.
    fn greedy(&self, first: usize) -> Vec<usize> {
        let (number, mut order) = (self.widths.len(), vec![first]);
        while order.len() < number {
            let from = &self.widths[order[order.len() - 1]];
            let left = (0..number).filter(|next| !order.contains(next));
            let next = left.reduce(|best, next| if from[next] > from[best] { next } else { best });
            order.extend(next);
        }
        order
    }

    /// Turns parts of the order around while it becomes better, at most once for each GPU.
    fn improved(&self, mut order: Vec<usize>) -> Vec<usize> {
        let (number, mut width) = (order.len(), self.width(&order));
        for _ in 0..number {
            let before = width;
            for (from, to) in (0..number).flat_map(|from| (from + 2..=number).map(move |to| (from, to))) {
                order[from..to].reverse();
                let turned = self.width(&order);
                if turned > width {
                    width = turned;
                } else {
                    order[from..to].reverse();
                }
            }
            if width == before {
                break;
            }
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Links of so many widths between GPUs, the same both ways.
    fn table(number: usize, width: impl Fn(usize, usize) -> u64) -> Vec<Vec<u64>> {
        let of = |one: usize| (0..number).map(|other| width(one.min(other), one.max(other))).collect();
        (0..number).map(of).collect()
    }

    fn width(widths: &[Vec<u64>], order: &[usize], closed: bool) -> Width {
        Search { widths, closed, widest: 0 }.width(order)
    }

    /// Whether an order has each GPU once.
    fn is_whole(order: &[usize], number: usize) -> bool {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        sorted.into_iter().eq(0..number)
    }

    /// All orders.
    fn orders(number: usize) -> Vec<Vec<usize>> {
        match number {
            0 => vec![vec![]],
            _ => {
                let put = |order: Vec<usize>| {
                    (0..number).map(move |at| {
                        let mut longer = order.clone();
                        longer.insert(at, number - 1);
                        longer
                    })
                };
                orders(number - 1).into_iter().flat_map(put).collect()
            }
        }
    }

    #[test]
    fn links_that_are_alike_leave_the_order_as_it_is() {
        for (number, closed) in (0..20).flat_map(|number| [(number, true), (number, false)]) {
            let alike = ring(&table(number, |_, _| 7), closed);
            assert_eq!(alike, (0..number).collect::<Vec<_>>(), "{number}");
        }
    }

    /// Sixteen GPUs of four groups, which are dealt out, with a wide link between two of each: groups stay together.
    #[test]
    fn many_go_group_by_group() {
        let group = |gpu: usize| gpu % 4;
        let widths = table(16, |one, other| if group(one) == group(other) { 10 } else { 1 });
        for closed in [true, false] {
            let order = ring(&widths, closed);
            let changes = order.windows(2).filter(|pair| group(pair[0]) != group(pair[1])).count();
            let back = closed && group(order[0]) != group(order[15]);
            let expected = 3 + usize::from(closed);
            assert!(is_whole(&order, 16) && changes + usize::from(back) == expected, "{order:?}");
        }
        // One ring of wide links among narrow ones.
        let hidden = |at: usize| at * 5 % 12;
        let next = |one: usize, other: usize| {
            (0..12).any(|at| {
                [hidden(at), hidden(at + 1)] == [one, other] || [hidden(at + 1), hidden(at)] == [one, other]
            })
        };
        let widths = table(12, |one, other| if next(one, other) { 4 } else { 1 });
        assert_eq!(width(&widths, &ring(&widths, true), true), (4, 48));
    }

    proptest! {
        /// The best of all, found otherwise; and of many GPUs at least as good as the order that they have.
        #[test]
        fn no_order_is_better(seeds in prop::collection::vec(0..4u64, 64), number in 3..7usize, closed: bool) {
            let widths = table(number, |one, other| seeds[one * 8 + other]);
            let found = ring(&widths, closed);
            let all = orders(number).into_iter().map(|order| width(&widths, &order, closed)).max().unwrap();
            prop_assert!(is_whole(&found, number));
            prop_assert_eq!(width(&widths, &found, closed), all);
        }

        #[test]
        fn of_many_it_is_no_worse_than_the_order_that_they_have(seeds in prop::collection::vec(0..9u64, 400), number in 9..20usize, closed: bool) {
            let widths = table(number, |one, other| seeds[one * 20 + other]);
            let found = ring(&widths, closed);
            prop_assert!(is_whole(&found, number));
            prop_assert!(width(&widths, &found, closed) >= width(&widths, &(0..number).collect::<Vec<_>>(), closed));
            prop_assert_eq!(&ring(&widths, closed), &found);
        }
    }
}
