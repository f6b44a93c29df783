//! [`Cart`]: Cartesian topologies (MPI 5.0, 8.5), and [`dims_create`], which chooses balanced dimensions.

use crate::{Result, bail};

/// A grid of processes; ranks run through it with the last coordinate fastest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cart {
    dims: Box<[i32]>,
    periods: Box<[bool]>,
    size: u32,
}

impl Cart {
    /// A grid of these dimensions for a communicator of `processes`; without dimensions it has one process.
    ///
    /// # Errors
    /// ERR_DIMS if a dimension is not positive or the grid needs more processes; ERR_ARG if `periods` is not
    /// as long as `dims`.
    pub fn new(dims: &[i32], periods: &[bool], processes: u32) -> Result<Cart> {
        if dims.len() != periods.len() {
            bail!(ERR_ARG, "{} dimensions but {} periods", dims.len(), periods.len());
        }
        if let Some((i, dim)) = dims.iter().enumerate().find(|&(_, &dim)| dim <= 0) {
            bail!(ERR_DIMS, "dims[{i}] is {dim}: every dimension of a grid is at least 1");
        }
        let size = dims.iter().try_fold(1u32, |size, &dim| size.checked_mul(dim as u32));
        match size.filter(|&size| size <= processes) {
            Some(size) => Ok(Cart { dims: dims.into(), periods: periods.into(), size }),
            None => {
                bail!(ERR_DIMS, "a grid of {dims:?} needs more than the {processes} processes there are")
            }
        }
    }

    /// Number of dimensions.
    pub fn ndims(&self) -> usize {
        self.dims.len()
    }

    /// Extent of each dimension.
    pub fn dims(&self) -> &[i32] {
        &self.dims
    }

    /// Whether each dimension wraps around.
    pub fn periods(&self) -> &[bool] {
        &self.periods
    }

    /// Processes in the grid; ranks of the old communicator from here on are left out.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The coordinates of a rank.
    ///
    /// # Errors
    /// ERR_RANK if the grid has no such rank.
    pub fn coords(&self, rank: i32) -> Result<Vec<i32>> {
        let mut rest = self.checked(rank)?;
        let mut coords = vec![0; self.dims.len()];
        for (coord, &dim) in coords.iter_mut().zip(&self.dims).rev() {
            *coord = rest % dim;
            rest /= dim;
        }
        Ok(coords)
    }

    /// The rank at these coordinates; those of periodic dimensions may lie outside the grid.
    ///
    /// # Errors
    /// ERR_ARG if there are too few of them, or one lies outside a dimension that does not wrap around.
    pub fn rank(&self, coords: &[i32]) -> Result<i32> {
        let Some(coords) = coords.get(..self.dims.len()) else {
            bail!(ERR_ARG, "{} coordinates for a grid of {} dimensions", coords.len(), self.dims.len());
        };
        let mut rank = 0;
        for (i, (&coord, &dim)) in coords.iter().zip(&self.dims).enumerate() {
            if !self.periods[i] && !(0..dim).contains(&coord) {
                bail!(
                    ERR_ARG,
                    "coords[{i}] is {coord}, outside 0..{dim}, and that dimension does not wrap around"
                );
            }
            rank = rank * dim + coord.rem_euclid(dim);
        }
        Ok(rank)
    }

    /// The ranks to receive from and to send to when everyone shifts by `displacement` along `direction`, as
    /// MPI_Sendrecv wants them: (source, destination); `None` beyond an edge.
    ///
    /// # Errors
    /// ERR_DIMS if there is no such direction, ERR_RANK if the grid has no such rank.
    pub fn shift(&self, rank: i32, direction: i32, displacement: i32) -> Result<(Option<i32>, Option<i32>)> {
        let axis = usize::try_from(direction).unwrap_or(usize::MAX);
        let Some(&dim) = self.dims.get(axis) else {
            bail!(ERR_DIMS, "direction {direction} of a grid of {} dimensions", self.dims.len());
        };
        let here = self.coords(rank)?[axis];
        let stride: i32 = self.dims[axis + 1..].iter().product();
        let at = |distance: i64| {
            let to = i64::from(here) + distance;
            let wrapped = if self.periods[axis] { to.rem_euclid(i64::from(dim)) } else { to };
            (0..i64::from(dim)).contains(&wrapped).then(|| rank + (wrapped as i32 - here) * stride)
        };
        Ok((at(-i64::from(displacement)), at(i64::from(displacement))))
    }

    /// The grid that keeps only the dimensions marked, and where `rank` goes: (grid, colour, rank in it).
    /// Ranks of one colour form one grid.
    ///
    /// # Errors
    /// ERR_RANK if the grid has no such rank, ERR_ARG if there are too few marks.
    pub fn sub(&self, rank: i32, remain: &[bool]) -> Result<(Cart, i32, i32)> {
        let Some(remain) = remain.get(..self.dims.len()) else {
            bail!(ERR_ARG, "{} marks for a grid of {} dimensions", remain.len(), self.dims.len());
        };
        let (mut dims, mut periods, mut colour, mut key) = (vec![], vec![], 0, 0);
        for (i, coord) in self.coords(rank)?.into_iter().enumerate() {
            if remain[i] {
                dims.push(self.dims[i]);
                periods.push(self.periods[i]);
                key = key * self.dims[i] + coord;
            } else {
                colour = colour * self.dims[i] + coord;
            }
        }
        Ok((Cart::new(&dims, &periods, self.size)?, colour, key))
    }

    /// The rank in the grid that suits the process with this rank in the old communicator: for now the same;
    /// `None` if it is left out.
    pub fn map(&self, rank: u32) -> Option<u32> {
        (rank < self.size).then_some(rank)
    }

    fn checked(&self, rank: i32) -> Result<i32> {
        match u32::try_from(rank) {
            Ok(number) if number < self.size => Ok(rank),
            _ => bail!(ERR_RANK, "rank {rank} is not in the grid: it has {} processes", self.size),
        }
    }
}

/// Fills the zeros of `dims` so that the product of all is `nodes` (MPI 5.0, 8.5.2): as close to each other
/// as can be (least difference of largest and smallest, then least largest, second largest...), not
/// increasing.
///
/// # Errors
/// ERR_ARG if `nodes` is not positive; ERR_DIMS if a dimension is negative, or `nodes` is not a multiple of
/// the dimensions given (not their product, if all are given).
pub fn dims_create(nodes: i32, dims: &mut [i32]) -> Result<()> {
    if nodes <= 0 {
        bail!(ERR_ARG, "{nodes} nodes: at least 1 is needed");
    }
    if let Some((i, dim)) = dims.iter().enumerate().find(|&(_, &dim)| dim < 0) {
        bail!(ERR_DIMS, "dims[{i}] is {dim}: it must be 0 (free) or positive");
    }
    let given = dims.iter().filter(|&&dim| dim > 0).try_fold(1i32, |all, &dim| all.checked_mul(dim));
    let free = dims.iter().filter(|&&dim| dim == 0).count();
    let rest = match given {
        Some(given) if nodes % given == 0 && (free > 0 || nodes == given) => nodes / given,
        _ => bail!(ERR_DIMS, "{nodes} nodes cannot be divided into dimensions {dims:?}"),
    };
    let mut chosen = balanced(rest, free).into_iter();
    for dim in dims.iter_mut().filter(|dim| **dim == 0) {
        *dim = chosen.next().expect("one factor for each free dimension");
    }
    Ok(())
}

/// The best `count` factors of `n`, not increasing.
fn balanced(n: i32, count: usize) -> Vec<i32> {
    if count == 0 {
        return Vec::new();
    }
    let mut search = Search { divisors: divisors(n), chosen: Vec::new(), best: None };
    search.extend(n, count, n);
    search.best.expect("n, 1, 1... is always possible")
}

/// Depth-first over factors in ascending order, so that the first of several equally good ones is the one to
/// take.
struct Search {
    divisors: Vec<i32>,
    chosen: Vec<i32>,
    best: Option<Vec<i32>>,
}

impl Search {
    /// Splits `rest` into `count` more factors of at most `limit`.
    fn extend(&mut self, rest: i32, count: usize, limit: i32) {
        if count == 1 {
            if rest <= limit && self.could_win(rest, rest) {
                self.chosen.push(rest);
                self.best = Some(self.chosen.clone());
                self.chosen.pop();
            }
            return;
        }
        // The largest factor left is at least the root, and at least every prime that is left.
        let (root, prime) = (root_below(rest, count), largest_prime(rest));
        for i in 0..self.divisors.len() {
            let factor = self.divisors[i];
            if factor > limit || !self.could_win(factor, root) {
                break;
            }
            let enough = factor >= prime && power(factor, count) >= i64::from(rest);
            if enough && rest % factor == 0 {
                self.chosen.push(factor);
                self.extend(rest / factor, count - 1, factor);
                self.chosen.pop();
            }
        }
    }

    /// Whether taking `factor` now can lead to less difference than the best has, if the smallest will be at
    /// most `smallest`.
    fn could_win(&self, factor: i32, smallest: i32) -> bool {
        let largest = self.chosen.first().copied().unwrap_or(factor);
        self.best.as_ref().is_none_or(|best| largest - smallest < best[0] - best[best.len() - 1])
    }
}

/// `base` to the power of `count`, or more than any number of processes.
fn power(base: i32, count: usize) -> i64 {
    i64::from(base).saturating_pow(count.min(31) as u32)
}

/// The largest integer whose power of `count` is at most `n`.
fn root_below(n: i32, count: usize) -> i32 {
    let fits = |root: i32| power(root, count) <= i64::from(n);
    (0..31).rev().map(|bit| 1 << bit).fold(0, |root, bit| if fits(root | bit) { root | bit } else { root })
}

fn divisors(n: i32) -> Vec<i32> {
    let small = (1..).take_while(|&d| i64::from(d) * i64::from(d) <= i64::from(n));
    let mut all: Vec<i32> = small.filter(|d| n % d == 0).flat_map(|d| [d, n / d]).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn largest_prime(mut n: i32) -> i32 {
    let (mut largest, mut p) = (1, 2);
    while i64::from(p) * i64::from(p) <= i64::from(n) {
        while n % p == 0 {
            (largest, n) = (p, n / p);
        }
        p += 1;
    }
    largest.max(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Class;

    fn grid(dims: &[i32], periods: &[bool]) -> Cart {
        Cart::new(dims, periods, u32::MAX).unwrap()
    }

    fn filled(nodes: i32, dims: &[i32]) -> Result<Vec<i32>> {
        let mut dims = dims.to_vec();
        dims_create(nodes, &mut dims).map(|()| dims)
    }

    #[test]
    fn coordinates_and_ranks_are_inverse() {
        let cart = grid(&[3, 1, 4, 2], &[true, false, false, true]);
        for rank in 0..24 {
            assert_eq!(cart.rank(&cart.coords(rank).unwrap()).unwrap(), rank);
        }
        assert_eq!(cart.coords(23).unwrap(), [2, 0, 3, 1]);
        assert_eq!(cart.rank(&[-1, 0, 3, 5]).unwrap(), 23);
        assert_eq!(cart.rank(&[0, 1, 0, 0]).unwrap_err().class, Class::ERR_ARG);
        assert_eq!(cart.rank(&[0, 0]).unwrap_err().class, Class::ERR_ARG);
        assert_eq!(cart.coords(24).unwrap_err().class, Class::ERR_RANK);
        assert_eq!(cart.coords(-1).unwrap_err().class, Class::ERR_RANK);
    }

    #[test]
    fn creation_checks_the_grid() {
        let class = |dims: &[i32], n| Cart::new(dims, &vec![false; dims.len()], n).unwrap_err().class;
        assert_eq!(class(&[2, 0], 4), Class::ERR_DIMS);
        assert_eq!(class(&[-2, 2], 4), Class::ERR_DIMS);
        assert_eq!(class(&[3, 2], 5), Class::ERR_DIMS);
        assert_eq!(class(&[i32::MAX, i32::MAX, 4], u32::MAX), Class::ERR_DIMS);
        let point = Cart::new(&[], &[], 4).unwrap();
        assert_eq!((point.size(), point.rank(&[]).unwrap()), (1, 0));
        assert_eq!((point.map(0), point.map(1)), (Some(0), None));
        assert_eq!(point.shift(0, 0, 1).unwrap_err().class, Class::ERR_DIMS);
    }

    #[test]
    fn shifts_follow_coordinates() {
        for periods in [[true, false, true], [false, true, false]] {
            let cart = grid(&[3, 2, 4], &periods);
            for (rank, axis, by) in itertools(24, 3, -9..10) {
                let to = |by: i32| {
                    let mut coords = cart.coords(rank).unwrap();
                    coords[axis as usize] += by;
                    cart.rank(&coords).ok()
                };
                assert_eq!(cart.shift(rank, axis, by).unwrap(), (to(-by), to(by)));
            }
        }
        assert_eq!(grid(&[4], &[true]).shift(1, 0, i32::MIN).unwrap(), (Some(1), Some(1)));
        assert_eq!(grid(&[4], &[false]).shift(1, 0, i32::MIN).unwrap(), (None, None));
        assert_eq!(grid(&[4], &[true]).shift(1, 1, 1).unwrap_err().class, Class::ERR_DIMS);
        assert_eq!(grid(&[4], &[true]).shift(1, -1, 1).unwrap_err().class, Class::ERR_DIMS);
    }

    fn itertools(ranks: i32, axes: i32, by: std::ops::Range<i32>) -> impl Iterator<Item = (i32, i32, i32)> {
        (0..ranks).flat_map(move |r| {
            let by = by.clone();
            (0..axes).flat_map(move |a| by.clone().map(move |d| (r, a, d)))
        })
    }

    #[test]
    fn sub_grids_partition_the_grid() {
        let cart = grid(&[2, 3, 4], &[true, false, true]);
        for marks in 0..8 {
            let remain: Vec<bool> = (0..3).map(|i| marks >> i & 1 == 1).collect();
            let mut seen = std::collections::HashSet::new();
            for rank in 0..24 {
                let (sub, colour, key) = cart.sub(rank, &remain).unwrap();
                assert!(key < sub.size() as i32 && seen.insert((colour, key)));
                let kept = |all: Vec<i32>| -> Vec<i32> {
                    all.into_iter().zip(&remain).filter(|(_, keep)| **keep).map(|(c, _)| c).collect()
                };
                assert_eq!(sub.coords(key).unwrap(), kept(cart.coords(rank).unwrap()));
                assert_eq!(sub.dims(), kept(cart.dims().to_vec()));
            }
        }
    }

    #[test]
    fn dimensions_are_balanced() {
        for (nodes, dims, expected) in [
            (6, &[0, 0][..], &[3, 2][..]),
            (7, &[0, 0], &[7, 1]),
            (6, &[0, 3, 0], &[2, 3, 1]),
            (16, &[0; 4], &[2; 4]),
            (360, &[0; 3], &[9, 8, 5]),
            (24, &[0, 0], &[6, 4]),
            (1, &[0; 3], &[1; 3]),
            (12, &[3, 4], &[3, 4]),
            (1, &[], &[]),
            (i32::MAX, &[0, 0], &[i32::MAX, 1]),
            (46340 * 46340, &[0, 0], &[46340, 46340]),
        ] {
            assert_eq!(filled(nodes, dims).unwrap(), expected, "{nodes} {dims:?}");
        }
    }

    #[test]
    fn impossible_dimensions_are_refused() {
        for (nodes, dims, class) in [
            (7, &[0, 3, 0][..], Class::ERR_DIMS),
            (12, &[3, 3], Class::ERR_DIMS),
            (12, &[3, 2], Class::ERR_DIMS),
            (2, &[], Class::ERR_DIMS),
            (4, &[-1, 0], Class::ERR_DIMS),
            (4, &[i32::MAX, i32::MAX, 0], Class::ERR_DIMS),
            (0, &[0], Class::ERR_ARG),
            (-3, &[0], Class::ERR_ARG),
        ] {
            assert_eq!(filled(nodes, dims).unwrap_err().class, class, "{nodes} {dims:?}");
        }
    }

    /// All ways to write n as `count` factors that do not increase.
    fn all_ways(n: i32, count: usize, limit: i32) -> Vec<Vec<i32>> {
        if count == 0 {
            return if n == 1 { vec![vec![]] } else { vec![] };
        }
        let first = (1..=n.min(limit)).filter(|d| n % d == 0);
        let ways = first.flat_map(|d| {
            all_ways(n / d, count - 1, d).into_iter().map(move |rest| [vec![d], rest].concat())
        });
        ways.collect()
    }

    #[test]
    fn the_choice_is_the_best_of_all() {
        for count in 1..=5 {
            for n in 1..=200 {
                let best = all_ways(n, count, n)
                    .into_iter()
                    .min_by_key(|way| (way[0] - way[count - 1], way.clone()));
                assert_eq!(filled(n, &vec![0; count]).unwrap(), best.unwrap(), "{n} {count}");
            }
        }
    }

    #[test]
    fn numbers_with_many_divisors_are_quick() {
        for n in [1 << 30, 735_134_400, 1_102_701_600, 2_095_133_040, 1_396_755_360, 3i32.pow(19)] {
            for count in (1..=12).chain([31, 40, 200]) {
                let dims = filled(n, &vec![0; count]).unwrap();
                assert!(dims.is_sorted_by(|a, b| a >= b));
                assert_eq!(dims.iter().map(|&d| i64::from(d)).product::<i64>(), i64::from(n));
            }
        }
    }
}
