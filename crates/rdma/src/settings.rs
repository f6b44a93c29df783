//! The setting `BANYAN_RDMA`: what users may say of connections. Pure: text in, values out; and against what a port has, whether it can be.

use std::fmt;

use crate::gid::Entry;

/// What a user says of connections. What is not said is as the device has it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Settings {
    /// Partition key: the fabric's subnet manager lets those ports talk that have it in common.
    pub pkey: Option<u16>,
    /// Service level, by which switches of InfiniBand and Ethernet (as priority) choose queues.
    pub sl: u8,
    /// Traffic class (TOS), by which routers and switches of RoCE choose queues.
    pub traffic_class: u8,
    /// Which of the port's addresses is used, by its index.
    pub gid_index: Option<u8>,
    /// The largest packet, as verbs number it (3: 1024 bytes).
    pub mtu: Option<u8>,
    /// Connections that stand at a time, at most.
    pub connections: Option<u32>,
}

/// What users may name.
const NAMES: &str = "pkey, sl, traffic_class, gid_index, mtu, connections";
/// The bit of a partition key that says how its port is a member: not a part of the partition's name.
const MEMBERSHIP: u16 = 0x8000;

impl Settings {
    /// Reads a list as in `pkey=0x8001,sl=3`. Empty: nothing is said.
    ///
    /// # Errors
    /// A sentence that names what is wrong, and what may stand there.
    pub fn read(text: &str) -> Result<Settings, String> {
        let mut settings = Settings::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, value) =
                item.split_once('=').ok_or_else(|| format!("\"{item}\" is not NAME=VALUE"))?;
            settings.set(name.trim(), value.trim()).map_err(|why| format!("{item}: {why}"))?;
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "pkey" => self.pkey = Some(number(value, 1, 0xffff)? as u16),
            "sl" => self.sl = number(value, 0, 15)? as u8,
            "traffic_class" => self.traffic_class = number(value, 0, 255)? as u8,
            "gid_index" => self.gid_index = Some(number(value, 0, 255)? as u8),
            "mtu" => self.mtu = Some(mtu(number(value, 256, 4096)?)?),
            "connections" => self.connections = Some(number(value, 1, 1 << 20)?),
            _ => return Err(format!("there are {NAMES}")),
        }
        Ok(())
    }

    /// Sees that nothing is said that iWARP does not have, which is all but the number of connections.
    ///
    /// # Errors
    /// A sentence that says so.
    pub fn fit_iwarp(&self) -> Result<(), String> {
        let fits = Settings { connections: None, ..*self } == Settings::default();
        fits.then_some(()).ok_or_else(|| {
            format!("{self}: the device is one of iWARP, which has nothing of that; only connections can be said there")
        })
    }

    /// The index of the partition key in a port's table of them.
    ///
    /// # Errors
    /// If the port is not of that partition: a sentence that says of which it is.
    pub fn pkey_index(&self, table: &[u16]) -> Result<u16, String> {
        let Some(wanted) = self.pkey else { return Ok(0) };
        let same = |key: &u16| (key ^ wanted) & !MEMBERSHIP == 0 && *key != 0;
        let at = table.iter().position(same);
        at.map(|at| at as u16).ok_or_else(|| {
            let keys = table.iter().filter(|&&key| key != 0).map(|key| format!("{key:#06x}"));
            format!("pkey={wanted:#06x}: the port is not in this partition; its keys are {}", list(keys))
        })
    }

    /// The address that is to be used, of a port's table of them: `best`, if the user names none.
    ///
    /// # Errors
    /// If there is none with this index: a sentence that says which ones there are.
    pub fn gid(&self, table: &[Entry], best: Option<Entry>) -> Result<Option<Entry>, String> {
        let Some(wanted) = self.gid_index else { return Ok(best) };
        let found = table.iter().find(|entry| entry.index == wanted);
        found.copied().map(Some).ok_or_else(|| {
            let all = table.iter().map(|entry| format!("{} ({})", entry.index, entry.gid));
            format!("gid_index={wanted}: the port has no such address; it has {}", list(all))
        })
    }
}

/// What is said, in the form in which it is read.
impl fmt::Display for Settings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = vec![format!("sl={}", self.sl), format!("traffic_class={}", self.traffic_class)];
        said.extend(self.pkey.map(|key| format!("pkey={key:#06x}")));
        said.extend(self.gid_index.map(|index| format!("gid_index={index}")));
        said.extend(self.mtu.map(|mtu| format!("mtu={}", 128 << mtu)));
        said.extend(self.connections.map(|connections| format!("connections={connections}")));
        out.write_str(&said.join(","))
    }
}

/// A number in a range, decimal or with `0x` before it.
fn number(text: &str, least: u32, most: u32) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let number = parsed.ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("a number from {least} to {most} stands there"))
}

/// A packet's length as verbs number it.
fn mtu(bytes: u32) -> Result<u8, String> {
    let known = bytes.is_power_of_two().then(|| bytes.ilog2() as u8 - 7);
    known.ok_or_else(|| "packets have 256, 512, 1024, 2048 or 4096 bytes".to_owned())
}

fn list(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gid::Kind;

    #[test]
    fn iwarp_has_nothing_but_connections() {
        let fits = |text: &str| Settings::read(text).expect("right").fit_iwarp();
        assert_eq!((fits(""), fits("connections=3,sl=0")), (Ok(()), Ok(())));
        for text in ["pkey=0x1234", "sl=3", "traffic_class=8", "gid_index=0", "mtu=1024,connections=3"] {
            assert!(
                fits(text).is_err_and(|why| why.contains(text.split(',').next().expect("one"))),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_said_is_read() {
        assert_eq!(Settings::read(""), Ok(Settings::default()));
        let all = "pkey=0x8001, sl=3,traffic_class=106,gid_index=2,mtu=4096,connections=32,";
        let settings = Settings {
            pkey: Some(0x8001),
            sl: 3,
            traffic_class: 106,
            gid_index: Some(2),
            mtu: Some(5),
            connections: Some(32),
        };
        assert_eq!(Settings::read(all), Ok(settings));
        assert_eq!(Settings::read(&settings.to_string()), Ok(settings), "{settings}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, why) in [
            ("pkey", "\"pkey\" is not NAME=VALUE"),
            ("speed=9", "speed=9: there are pkey, sl,"),
            ("sl=16", "sl=16: a number from 0 to 15"),
            ("sl=x", "sl=x: a number from 0 to 15"),
            ("mtu=1500", "mtu=1500: packets have 256,"),
            ("mtu=9000", "mtu=9000: a number from 256 to 4096"),
            ("connections=0", "connections=0: a number from 1"),
            ("pkey=0x10000", "pkey=0x10000: a number from 1 to 65535"),
        ] {
            let said = Settings::read(text).expect_err(text);
            assert!(said.starts_with(why), "{said}");
        }
    }

    #[test]
    fn a_partition_is_found_whatever_the_membership() {
        let of = |pkey| Settings { pkey, ..Settings::default() };
        let table = [0xffff, 0, 0x0001, 0x8002];
        assert_eq!(of(None).pkey_index(&table), Ok(0));
        assert_eq!(of(Some(0x8001)).pkey_index(&table), Ok(2), "a limited member");
        assert_eq!(of(Some(2)).pkey_index(&table), Ok(3));
        let why = of(Some(0x8000)).pkey_index(&table).expect_err("an empty place is no key");
        assert_eq!(
            why,
            "pkey=0x8000: the port is not in this partition; its keys are 0xffff, 0x0001, 0x8002"
        );
    }

    #[test]
    fn an_address_is_the_best_or_the_one_that_is_named() {
        let entry = |index| Entry { index, gid: "fe80::1".parse().expect("an address"), kind: Kind::RoceV2 };
        let table = [entry(0), entry(3)];
        assert_eq!(Settings::default().gid(&table, Some(table[0])), Ok(Some(table[0])));
        let of = |index| Settings { gid_index: Some(index), ..Settings::default() };
        assert_eq!(of(3).gid(&table, Some(table[0])), Ok(Some(table[1])));
        let why = of(1).gid(&table, Some(table[0])).expect_err("there is none");
        assert_eq!(why, "gid_index=1: the port has no such address; it has 0 (fe80::1), 3 (fe80::1)");
    }
}
