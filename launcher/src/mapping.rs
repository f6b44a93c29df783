//! Which host each rank lives on. Pure.

/// A host, as far as the places of ranks depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Ranks that it takes before the next host is filled.
    pub slots: u32,
    /// Ranks that it takes at most.
    pub most: Option<u32>,
}

/// The hosts of `size` ranks, as indices into `hosts`. By slot, the slots of a host are filled before those of the next one;
/// by node, each host gets one rank in turn while it has slots. When all slots are taken, they are taken once more.
///
/// # Errors
/// If the hosts may not take so many ranks.
pub fn places(hosts: &[Room], size: u32, by_node: bool) -> Result<Vec<u32>, String> {
    let most: u64 = hosts.iter().map(|host| host.most.map_or(u64::MAX >> 32, u64::from)).sum();
    if u64::from(size) > most {
        return Err(format!("{size} ranks do not fit: max_slots of the hosts allows {most}"));
    }
    let mut places = Vec::with_capacity(size as usize);
    let mut used = vec![0u32; hosts.len()];
    let mut limits: Vec<u32> = hosts.iter().map(|host| host.slots.max(1)).collect();
    while places.len() < size as usize {
        let before = places.len();
        for (at, host) in hosts.iter().enumerate() {
            let limit = limits[at].min(host.most.unwrap_or(u32::MAX));
            let free = limit.saturating_sub(used[at]).min(if by_node { 1 } else { u32::MAX });
            let take = free.min(size - places.len() as u32);
            places.extend(std::iter::repeat_n(at as u32, take as usize));
            used[at] += take;
        }
        if places.len() == before || !by_node {
            limits
                .iter_mut()
                .zip(hosts)
                .for_each(|(limit, host)| *limit = limit.saturating_add(host.slots.max(1)));
        }
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rooms(slots: &[u32]) -> Vec<Room> {
        slots.iter().map(|&slots| Room { slots, most: None }).collect()
    }

    #[test]
    fn ranks_fill_slots_or_go_around() {
        let hosts = rooms(&[2, 1, 3]);
        assert_eq!(places(&hosts, 6, false).unwrap(), [0, 0, 1, 2, 2, 2]);
        assert_eq!(places(&hosts, 6, true).unwrap(), [0, 1, 2, 0, 2, 2]);
        assert_eq!(places(&hosts, 9, false).unwrap(), [0, 0, 1, 2, 2, 2, 0, 0, 1]);
        assert_eq!(places(&hosts, 8, true).unwrap(), [0, 1, 2, 0, 2, 2, 0, 1]);
    }

    #[test]
    fn no_host_takes_more_than_its_most() {
        let hosts = [Room { slots: 1, most: Some(2) }, Room { slots: 2, most: Some(2) }];
        assert_eq!(places(&hosts, 4, false).unwrap(), [0, 1, 1, 0]);
        assert!(places(&hosts, 5, true).unwrap_err().contains("allows 4"));
    }

    proptest! {
        #[test]
        fn all_ranks_have_a_place(
            hosts in prop::collection::vec((0u32..5, prop::option::of(0u32..9)), 1..9), size in 1u32..60, by_node: bool,
        ) {
            let hosts: Vec<Room> = hosts.into_iter().map(|(slots, most)| Room { slots, most }).collect();
            let Ok(places) = places(&hosts, size, by_node) else {
                prop_assert!(hosts.iter().all(|host| host.most.is_some()));
                return Ok(());
            };
            prop_assert_eq!(places.len(), size as usize);
            for (at, host) in (0..).zip(&hosts) {
                let count = places.iter().filter(|&&place| place == at).count();
                prop_assert!(host.most.is_none_or(|most| count <= most as usize));
            }
        }
    }
}
