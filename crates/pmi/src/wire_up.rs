//! Wiring up: how ranks that a foreign launcher started work out their [`Job`], which our own agent would have told them.
//!
//! Everything goes through the launcher's key-value store, and a fence of a launcher may take long, so there are few. Rank 0 says what
//! all share (the job's number, its secret, the settings), and the first rank of each would-be node offers its memory; fence.
//! The others take it; fence, unless there are no others. Now each rank knows its own node, and its fabrics can start. The first ranks
//! say who shares memory, and how many cores they have between them, and all put their business cards; fence, unless all is
//! on one node and there are no cards. A rank gets a record of each node, not of each rank.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::client::Error;
use crate::frame::{Job, VERSION, cut};
use crate::kvs::{Kvs, Place, get_record, put_record};
use crate::node_board::{self, Board, Entry, NodeOffer};
use crate::places::{NodeKind, Places};
use crate::settings;

/// What this process brings to a job of a foreign launcher.
#[derive(Clone, Debug)]
pub struct Here {
    /// Makes the memory for so many ranks of a node.
    pub memory: fn(u32) -> io::Result<OwnedFd>,
    /// The CPUs that this process may use.
    pub cpus: Vec<u32>,
    /// How many of them at once (a CPU quota may allow less than all).
    pub cores: u32,
    /// The settings of [`COMMON`](crate::settings::COMMON) for all ranks of the job.
    pub settings: fn() -> settings::Settings,
    /// Whether ranks of a node can read each other's memory.
    pub single_copy: fn() -> bool,
}

/// What rank 0 tells all.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Shared {
    /// [`VERSION`] of its library.
    version: u32,
    job_id: u64,
    secret: [u8; 32],
    settings: Vec<(String, String)>,
}

/// What a rank tells about the node whose first rank it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Node {
    cores: u32,
    /// Those that the launcher takes for ranks of this node, but which do not share its memory, by their place among these. Each is a
    /// node of its own.
    apart: Vec<u32>,
}

/// A job as its ranks know it before they hear of other nodes.
#[derive(Debug)]
pub(crate) struct Begun {
    /// All other nodes are in it as one.
    pub(crate) job: Job,
    /// The memory of this process's node if it shares that with another rank.
    pub(crate) memory: Option<OwnedFd>,
    /// What is to be heard, if there are other nodes.
    pub(crate) unheard: Option<Unheard>,
}

/// The ranks of each would-be node, which have put what there is to say of it.
#[derive(Debug)]
pub(crate) struct Unheard(Vec<Vec<u32>>);

/// Joins the job, up to what the fabrics of this process need.
///
/// # Errors
/// If the launcher is gone, or ranks do not fit together.
pub(crate) fn begin(kvs: &mut dyn Kvs, here: &Here) -> Result<Begun, Error> {
    let Place { rank, size, appnum, universe_size } = kvs.place();
    let groups = groups(&would_be_nodes(kvs)?);
    let (ours, index) = place_in(&groups, rank);
    if rank == 0 {
        let shared = shared(kvs, here)?;
        put_record(kvs, "job", &shared)?;
    }
    let entry = Entry { cpus: here.cpus.clone(), quota: here.cores };
    let mut board = None;
    if index == 0 && ours.len() > 1 {
        let made = (here.memory)(ours.len() as u32).and_then(|memory| Board::make(memory, ours.len() as u32));
        // What the system refuses is not offered: then each rank is a node of its own.
        let made = made.ok().filter(|(board, _)| board.write(0, &entry));
        put_record(kvs, "offer", &made.as_ref().map(|(_, offer)| offer))?;
        board = made.map(|(board, _)| board);
    }
    kvs.fence()?;
    let Shared { version, job_id, secret, settings } = get_record(kvs, 0, "job")?;
    if version != VERSION {
        return Err(Error::RankVersion { rank: 0, version });
    }
    if index > 0 {
        let offer: Option<NodeOffer> = get_record(kvs, ours[0], "offer")?;
        board = offer.as_ref().and_then(Board::open).filter(|board| board.write(index as u32, &entry));
    }
    if groups.iter().any(|group| group.len() > 1) {
        kvs.fence()?;
    }
    let node = outcome(board.as_ref().map(|board| board.read(ours.len() as u32)), &entry, ours.len());
    let one_node = groups.len() == 1 && node.apart.is_empty();
    if !one_node && (index == 0 || board.is_none()) {
        put_record(kvs, "node", &node)?;
    }
    let shares = |at: u32| at as usize == index || board.is_some() && !node.apart.contains(&at);
    let local: Vec<u32> = (0..).zip(ours).filter(|&(at, _)| shares(at)).map(|(_, &other)| other).collect();
    // All that is elsewhere counts as one node until it is heard of.
    let home = |other: u32| if local.binary_search(&other).is_ok() { (rank, node.cores) } else { (size, 1) };
    let job = Job {
        rank,
        size,
        local_rank: local.iter().position(|&other| other == rank).unwrap_or(0) as u32,
        local_size: local.len() as u32,
        places: places(&(0..size).map(home).collect::<Vec<_>>()),
        appnum,
        apps: 1,
        app_size: size,
        command: command(),
        universe_size,
        job_id,
        secret,
        settings,
        single_copy: (here.single_copy)(),
        ..Job::singleton(node.cores)
    };
    let memory = board.filter(|_| local.len() > 1).map(|board| board.memory);
    Ok(Begun { job, memory, unheard: (!one_node).then_some(Unheard(groups)) })
}

/// The nodes of the job, after a fence.
///
/// # Errors
/// If the launcher is gone, or a rank has put something else.
pub(crate) fn hear(kvs: &mut dyn Kvs, Unheard(groups): Unheard) -> Result<Places, Error> {
    Ok(places(&homes(kvs, &groups)?))
}

/// What rank 0 draws, reads and asks for all.
fn shared(kvs: &mut dyn Kvs, here: &Here) -> Result<Shared, Error> {
    let refused = |error: io::Error| Error::Setting(format!("no random numbers: {error}"));
    let job_id = u64::from_le_bytes(crate::random().map_err(refused)?);
    let secret = crate::random().map_err(refused)?;
    let mut settings = (here.settings)().map_err(Error::Setting)?;
    settings.extend(kvs.memory_alloc_kinds()?.map(|kinds| (settings::MEMORY_ALLOC_KINDS.to_owned(), kinds)));
    Ok(Shared { version: VERSION, job_id, secret, settings })
}

/// The ranks that may share a node, by a number: from the launcher, else each rank says where it is.
fn would_be_nodes(kvs: &mut dyn Kvs) -> Result<Vec<u32>, Error> {
    let size = kvs.place().size;
    if let Some(nodes) = kvs.nodes()?.filter(|nodes| nodes.len() == size as usize) {
        return Ok(nodes);
    }
    put_record(kvs, "host", &crate::whereabouts())?;
    kvs.fence()?;
    let mut numbers = HashMap::new();
    (0..size)
        .map(|rank| {
            let host: String = get_record(kvs, rank, "host")?;
            let next = numbers.len() as u32;
            Ok(*numbers.entry(host).or_insert(next))
        })
        .collect()
}

/// The ranks of each node, nodes in the order of their first ranks.
fn groups(nodes: &[u32]) -> Vec<Vec<u32>> {
    let mut groups: Vec<Vec<u32>> = Vec::new();
    let mut number_of = HashMap::new();
    for (rank, node) in (0..).zip(nodes) {
        let number = *number_of.entry(node).or_insert(groups.len());
        if number == groups.len() {
            groups.push(Vec::new());
        }
        groups[number].push(rank);
    }
    groups
}

/// The group of a rank, and its place in it.
fn place_in(groups: &[Vec<u32>], rank: u32) -> (&[u32], usize) {
    let place = |group: &Vec<u32>| group.binary_search(&rank).ok();
    let found = groups.iter().find_map(|group| Some((group.as_slice(), place(group)?)));
    found.expect("each rank is in a group")
}

/// What the first rank of a would-be node, or one that does not share its memory, tells. `own` is its own entry.
fn outcome(entries: Option<Vec<Option<Entry>>>, own: &Entry, ranks: usize) -> Node {
    match entries {
        Some(entries) => Node {
            cores: node_board::cores(entries.iter().flatten()),
            apart: (0..).zip(&entries).filter(|(_, entry)| entry.is_none()).map(|(index, _)| index).collect(),
        },
        None => Node { cores: node_board::cores([own].into_iter()), apart: (1..ranks as u32).collect() },
    }
}

/// The first rank of each rank's node, and the cores of that node.
fn homes(kvs: &mut dyn Kvs, groups: &[Vec<u32>]) -> Result<Vec<(u32, u32)>, Error> {
    let mut homes = vec![(0, 1); kvs.place().size as usize];
    for group in groups {
        let node: Node = get_record(kvs, group[0], "node")?;
        for (index, &rank) in (0..).zip(group) {
            homes[rank as usize] = if index > 0 && node.apart.contains(&index) {
                let own: Node = get_record(kvs, rank, "node")?;
                (rank, own.cores.max(1))
            } else {
                (group[0], node.cores.max(1))
            };
        }
    }
    Ok(homes)
}

/// The job's nodes, numbered in the order of their first ranks, from each rank's first rank of its node and that node's cores.
fn places(homes: &[(u32, u32)]) -> Places {
    let mut cores = Vec::new();
    let mut numbers = HashMap::new();
    let nodes = homes.iter().map(|&(home, of_node)| {
        *numbers.entry(home).or_insert_with(|| {
            cores.push(of_node);
            cores.len() as u32 - 1
        })
    });
    let nodes: Vec<u32> = nodes.collect();
    Places::new(nodes, |node| NodeKind::new(cores[node as usize], []))
}

/// This program, as it was started.
fn command() -> String {
    let name = std::env::args_os().next().unwrap_or_default();
    cut(&name.to_string_lossy()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_numbered_by_their_first_ranks() {
        assert_eq!(groups(&[7, 3, 7, 3, 9]), [vec![0, 2], vec![1, 3], vec![4]]);
        let row = |homes: &[(u32, u32)]| -> Vec<(u32, u32, u32)> {
            let places = places(homes);
            let home = |rank| places.home(rank);
            (0..homes.len() as u32).map(|rank| (rank, home(rank).node, home(rank).cores)).collect()
        };
        assert_eq!(row(&[(0, 2), (0, 2), (2, 4), (0, 2)]), [(0, 0, 2), (1, 0, 2), (2, 1, 4), (3, 0, 2)]);
        assert_eq!(row(&[(0, 1)]), [(0, 0, 1)]);
    }

    #[test]
    fn who_is_not_on_the_board_is_apart() {
        let entry = |cpus: &[u32]| Entry { cpus: cpus.to_vec(), quota: cpus.len() as u32 };
        let own = entry(&[0]);
        let there = outcome(Some(vec![Some(own.clone()), None, Some(entry(&[1]))]), &own, 3);
        assert_eq!(there, Node { cores: 2, apart: vec![1] });
        assert_eq!(outcome(None, &own, 3), Node { cores: 1, apart: vec![1, 2] });
        assert_eq!(outcome(None, &own, 1), Node { cores: 1, apart: vec![] });
    }
}
