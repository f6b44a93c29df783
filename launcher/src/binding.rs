//! `--map-by`, `--bind-to` and `--rankfile`: their values, and which CPUs each rank gets. Agents of other hosts are told of the first
//! two as the user would write them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use banyan_topo::{Bound, CpuSet, Machine, Mapping, Unit, bound, place, share};
use serde::{Deserialize, Serialize};

use crate::Trouble;
use crate::options::Global;
use crate::rankfile::Rankfile;

/// The parts of a machine that `--map-by` and `--bind-to` know; of several names of a part the first is the one to show.
const PARTS: &[(&str, Option<Unit>)] = &[
    ("core", Some(Unit::Core)),
    ("hwthread", Some(Unit::Core)),
    ("numa", Some(Unit::Node)),
    ("socket", Some(Unit::Socket)),
    ("package", Some(Unit::Socket)),
    ("node", Some(Unit::Machine)),
    ("machine", Some(Unit::Machine)),
    ("board", Some(Unit::Machine)),
    ("slot", Some(Unit::Machine)),
    ("none", None),
];

/// The parts that the error message for an unknown one lists.
const KNOWN: &str = "core, numa, socket, node (the machine) and none";

/// `--bind-to`: a part of the machine; `None`: ranks stay unbound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct BindTo(pub Option<Unit>);

impl FromStr for BindTo {
    type Err = String;

    fn from_str(text: &str) -> Result<BindTo, String> {
        let mut words = text.split(':');
        let unit = unit(words.next().unwrap_or(""))?;
        match words.find(|word| !matches!(*word, "overload-allowed" | "if-supported" | "no-overload")) {
            Some(other) => Err(format!("'{other}' is not a modifier: overload-allowed is")),
            None => Ok(BindTo(unit)),
        }
    }
}

impl fmt::Display for BindTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name(self.0))
    }
}

/// The name of a part of the machine.
fn name(unit: Option<Unit>) -> &'static str {
    PARTS.iter().find(|part| part.1 == unit).map_or("none", |part| part.0)
}

/// `--map-by`: how ranks are distributed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct MapBy {
    /// Ranks are distributed over these parts; `None`: ranks stay unbound.
    pub unit: Option<Unit>,
    /// Number of ranks on each part (`ppr:N:PART`).
    pub each: Option<u32>,
    /// Cores for each rank (`pe=N`).
    pub cores: Option<u32>,
    /// The user wants more ranks than cores.
    pub oversubscribe: bool,
    /// This file says which CPUs each rank gets (`rankfile:file=FILE`).
    pub rankfile: Option<PathBuf>,
    /// Each host gets one rank in turn (`node`).
    pub by_node: bool,
}

impl fmt::Display for MapBy {
    /// What hosts need of it, in the form that is read: a file is read once.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.each.map_or(Ok(()), |each| write!(f, "ppr:{each}:"))?;
        f.write_str(name(self.unit))?;
        self.cores.map_or(Ok(()), |cores| write!(f, ":pe={cores}"))
    }
}

impl From<MapBy> for String {
    fn from(map: MapBy) -> String {
        map.to_string()
    }
}

impl From<BindTo> for String {
    fn from(bind: BindTo) -> String {
        bind.to_string()
    }
}

impl TryFrom<String> for MapBy {
    type Error = String;

    fn try_from(text: String) -> Result<MapBy, String> {
        text.parse()
    }
}

impl TryFrom<String> for BindTo {
    type Error = String;

    fn try_from(text: String) -> Result<BindTo, String> {
        text.parse()
    }
}

impl FromStr for MapBy {
    type Err = String;

    fn from_str(text: &str) -> Result<MapBy, String> {
        let mut words = text.split(':');
        let mut map = MapBy {
            unit: Some(Unit::Machine),
            each: None,
            cores: None,
            oversubscribe: false,
            rankfile: None,
            by_node: false,
        };
        match words.next().unwrap_or("") {
            // Modifiers only.
            "" if text.starts_with(':') => {}
            "rankfile" => map.rankfile = Some(rankfile_in(words.next())?),
            "ppr" => {
                let form = || "ppr has the form ppr:2:socket, so many ranks to each part".to_owned();
                let each = words.next().and_then(|number| number.parse().ok()).filter(|&each| each > 0);
                map.each = Some(each.ok_or_else(form)?);
                map.unit = unit(words.next().ok_or_else(form)?)?;
                if map.unit.is_none() {
                    return Err(form());
                }
            }
            part => {
                map.unit = unit(part)?;
                map.by_node = part.eq_ignore_ascii_case("node");
            }
        }
        for word in words {
            map.modify(word)?;
        }
        Ok(map)
    }
}

impl MapBy {
    /// Applies one of Open MPI's modifiers.
    fn modify(&mut self, word: &str) -> Result<(), String> {
        let lower = word.to_ascii_lowercase();
        match lower.split_once('=') {
            Some(("pe", number)) => {
                let cores = number.parse().ok().filter(|&cores| cores > 0);
                self.cores = Some(cores.ok_or_else(|| format!("'{number}' is not a number of cores"))?);
            }
            None if lower == "oversubscribe" => self.oversubscribe = true,
            None if matches!(&*lower, "span" | "nooversubscribe" | "nolocal") => {}
            _ => {
                return Err(format!(
                    "'{word}' is not a modifier: pe=N (cores for each rank) and oversubscribe are"
                ));
            }
        }
        Ok(())
    }
}

fn rankfile_in(word: Option<&str>) -> Result<PathBuf, String> {
    let file = word.and_then(|word| word.strip_prefix("file=").or_else(|| word.strip_prefix("FILE=")));
    file.map(PathBuf::from).ok_or_else(|| "a rankfile has the form rankfile:file=FILE".to_owned())
}

fn unit(text: &str) -> Result<Option<Unit>, String> {
    let lower = text.to_ascii_lowercase();
    let found = PARTS.iter().find(|(name, _)| *name == lower).map(|&(_, unit)| unit);
    found.ok_or_else(|| format!("no part of a machine is called '{text}': known are {KNOWN}"))
}

/// Ranks that share the cores evenly are bound to the parts of this kind in which their cores are. On several hosts that is more
/// than the cores themselves: one of them does the network's work, and the rank that is there must be able to go elsewhere.
pub(crate) fn default_parts(several_hosts: bool) -> Unit {
    if several_hosts { Unit::Node } else { Unit::Core }
}

/// The binding of a job's ranks, as far as it is known before their number is.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Binding {
    map_by: Option<MapBy>,
    bind_to: Option<BindTo>,
    pub(crate) rankfile: Option<Rankfile>,
}

impl Binding {
    /// The binding that the options ask for.
    ///
    /// # Errors
    /// If a rankfile cannot be read.
    pub(crate) fn new(global: &Global) -> Result<Binding, Trouble> {
        let path = global.rankfile.as_ref().or_else(|| global.map_by.as_ref()?.rankfile.as_ref());
        let rankfile = path.map(|path| Rankfile::read(path)).transpose()?;
        Ok(Binding { map_by: global.map_by.clone(), bind_to: global.bind_to, rankfile })
    }

    /// The hosts that a rankfile names, each as often as it names it.
    pub(crate) fn hosts(&self) -> Vec<String> {
        self.rankfile.as_ref().map(Rankfile::hosts).unwrap_or_default()
    }

    /// How many ranks `ppr` puts on each of how many parts of this host.
    pub(crate) fn ppr(&self) -> Option<(u32, u32)> {
        let (each, unit) = self.map_by.as_ref().and_then(|map| map.each.zip(map.unit))?;
        let parts = u32::try_from(unit.count(&Machine::read())).ok()?;
        each.checked_mul(parts).map(|_| (each, parts))
    }

    /// True if ranks are counted by parts that are smaller than a host.
    pub(crate) fn counts_parts(&self) -> bool {
        let unit = self.map_by.as_ref().filter(|map| map.each.is_some()).and_then(|map| map.unit);
        self.rankfile.is_none() && unit.is_some_and(|unit| unit != Unit::Machine)
    }

    /// The CPUs of each of these ranks, which are those of this host, and where the CPUs are; empty if ranks are not bound.
    /// `has_others`: the job has ranks on other hosts.
    ///
    /// `--map-by` alone also binds, `--bind-to` alone also maps; `none` for either leaves ranks unbound. With neither option
    /// each rank gets its share of the cores, if there are enough: on a busy machine the kernel would move ranks that wake
    /// each other to one core, where one that polls keeps the other from running.
    ///
    /// # Errors
    /// If the ranks cannot be bound as the options ask.
    pub(crate) fn cpus(
        &self,
        ranks: &[u32],
        cores: u32,
        has_others: bool,
    ) -> Result<(Vec<CpuSet>, Vec<Bound>), Trouble> {
        let size = ranks.len() as u32;
        let located = |machine: &Machine, cpus: Vec<CpuSet>| {
            let bound = bound(machine, &cpus);
            Ok((cpus, bound))
        };
        if let Some(rankfile) = &self.rankfile {
            let machine = Machine::read();
            return located(&machine, rankfile.cpus(&machine, ranks)?);
        }
        let map_by = self.map_by.as_ref().map(|map| map.unit);
        let width = self.map_by.as_ref().and_then(|map| map.cores);
        let (map_by, bind_to) = match (map_by, self.bind_to) {
            (_, Some(BindTo(None))) | (Some(None), None) => return Ok(Default::default()),
            (None | Some(None), Some(BindTo(Some(bind)))) => (bind, bind),
            (Some(Some(map)), Some(BindTo(Some(bind)))) => (map, bind),
            (Some(Some(map)), None) if width.is_some() => (map, Unit::Core),
            // The topology is read only if there are several ranks, each with at least a core.
            (None | Some(Some(Unit::Machine)), None) if size > 1 && size <= cores => {
                let machine = Machine::read();
                return located(&machine, share(&machine, size, default_parts(has_others)));
            }
            (None | Some(Some(Unit::Machine)), None) => return Ok(Default::default()),
            (Some(Some(map)), None) => (map, map),
        };
        let each = self.map_by.as_ref().and_then(|map| map.each);
        let mapping = Mapping { map_by, bind_to, each, cores: width.unwrap_or(1) };
        let machine = Machine::read();
        let cpus = place(&machine, &mapping, size);
        if cpus.is_empty() {
            return Err(Trouble::new("ranks cannot be bound: no CPU of this machine is known"));
        }
        located(&machine, cpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(text: &str) -> Result<MapBy, String> {
        text.parse()
    }

    #[test]
    fn parts_are_known_by_the_names_of_others() {
        let unit = |text: &str| map(text).unwrap().unit;
        assert_eq!((unit("core"), unit("package")), (Some(Unit::Core), Some(Unit::Socket)));
        assert_eq!((unit("NUMA"), unit("node")), (Some(Unit::Node), Some(Unit::Machine)));
        assert_eq!((unit("slot"), unit("none")), (Some(Unit::Machine), None));
        assert_eq!("core:overload-allowed".parse(), Ok(BindTo(Some(Unit::Core))));
        let said = "moon".parse::<BindTo>().unwrap_err();
        assert_eq!(
            said,
            "no part of a machine is called 'moon': known are core, numa, socket, node (the machine) and none"
        );
    }

    #[test]
    fn modifiers_and_ppr_are_read() {
        let ppr = map("ppr:2:socket:pe=4:OVERSUBSCRIBE").unwrap();
        assert_eq!(
            (ppr.unit, ppr.each, ppr.cores, ppr.oversubscribe),
            (Some(Unit::Socket), Some(2), Some(4), true)
        );
        for text in ["ppr:2:socket:pe=4", "node:pe=2", "none"] {
            assert_eq!(map(text).unwrap().to_string(), text);
        }
        assert!(map(":oversubscribe").unwrap().oversubscribe);
        assert_eq!(map("slot:PE=2").unwrap().cores, Some(2));
        assert_eq!(map("rankfile:file=a/b").unwrap().rankfile, Some("a/b".into()));
        for bad in [
            "",
            "ppr",
            "ppr:0:node",
            "ppr:x:node",
            "ppr:2",
            "ppr:2:none",
            "ppr:2:moon",
            "core:pe=0",
            "core:fast",
        ] {
            assert!(map(bad).is_err(), "{bad}");
        }
    }
}
