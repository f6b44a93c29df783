//! The setting `BANYAN_RDMA`: what users may say of connections. Pure: text in, values out; and against what a port has, whether it can be.

use std::fmt;

use crate::gid::Entry;

/// A process uses so many ports at most: the keys of memory on all of them are one number.
pub const RAILS: usize = 2;

/// What a user says of connections. What is not said is as the device has it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Settings {
    /// Partition key: the fabric's subnet manager lets those ports talk that have it in common.
    pub pkey: Option<u16>,
    /// Service level, by which switches of InfiniBand and Ethernet (as priority) choose queues.
    pub sl: u8,
    /// Traffic class (TOS), by which routers and switches of RoCE choose queues.
    pub traffic_class: u8,
    /// Which of the port's addresses peers use, by its index.
    pub gid_index: Option<u8>,
    /// The largest packet, as verbs number it (3: 1024 bytes).
    pub mtu: Option<u8>,
    /// Connections that stand at a time, at most.
    pub connections: Option<u32>,
    /// Ports that one process uses.
    pub rails: Option<u8>,
    /// Whether devices go to memory of GPUs by themselves, where they can.
    pub gpudirect: Option<bool>,
}

/// What users may name.
const NAMES: &str = "pkey, sl, traffic_class, gid_index, mtu, connections, rails, gpudirect";
/// The bit of a partition key that says how its port is a member: not a part of the partition's name.
const MEMBERSHIP: u16 = 0x8000;

impl Settings {
    /// Reads a list as in `pkey=0x8001,mlx5_1:sl=3`, in which items may be of one device alone, or of one of its ports (`mlx5_1:1:sl=3`).
    /// Gives what it says of all devices. Empty: nothing is said.
    ///
    /// # Errors
    /// A sentence that names what is wrong, and what may stand there. All items are read, whichever devices there are.
    pub fn read(text: &str) -> Result<Settings, String> {
        Settings::of(text, "")
    }

    /// What such a list says of the port of this name, such as `mlx5_1:1`: what is said of the port comes before what is said of its device,
    /// and that before what is said of all.
    ///
    /// # Errors
    /// As those of [`Settings::read`].
    pub fn of(text: &str, port: &str) -> Result<Settings, String> {
        let device = port.rsplit_once(':').map_or(port, |(device, _)| device);
        let (mut items, mut read) = (Vec::new(), Settings::default());
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, value) =
                item.split_once('=').ok_or_else(|| format!("\"{item}\" is not NAME=VALUE"))?;
            let of = name.rsplit_once(':').filter(|(of, _)| !of.trim().is_empty());
            let (of, name) = of.map_or((None, name), |(of, name)| (Some(of.trim()), name));
            let (name, value) = (name.trim(), value.trim());
            read.set(name, value).map_err(|why| format!("{item}: {why}"))?;
            match of {
                None => items.push((0, name, value)),
                Some(of) if of == device => items.push((1, name, value)),
                Some(of) if of == port => items.push((2, name, value)),
                Some(_) => {}
            }
        }
        items.sort_by_key(|(weight, ..)| *weight);
        let mut settings = Settings::default();
        items.into_iter().try_for_each(|(_, name, value)| settings.set(name, value))?;
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
            "rails" => self.rails = Some(number(value, 1, RAILS as u32)? as u8),
            "gpudirect" => self.gpudirect = Some(number(value, 0, 1)? == 1),
            _ => return Err(format!("there are {NAMES}")),
        }
        Ok(())
    }

    /// Sees that nothing is said that iWARP does not have, which is all but the number of connections.
    ///
    /// # Errors
    /// A sentence that says so.
    pub fn fit_iwarp(&self) -> Result<(), String> {
        let fits =
            Settings { connections: None, rails: None, gpudirect: None, ..*self } == Settings::default();
        fits.then_some(()).ok_or_else(|| {
            format!("{self}: the device is one of iWARP, which has nothing of that; only connections and gpudirect can be said there")
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

    /// The addresses that peers may use, of a port's table of them: all that are `offered`, or the one that the user names.
    ///
    /// # Errors
    /// If there is none with this index: a sentence that says which ones there are.
    pub fn gids(&self, table: &[Entry], offered: Vec<Entry>) -> Result<Vec<Entry>, String> {
        let Some(wanted) = self.gid_index else { return Ok(offered) };
        let found = table.iter().find(|entry| entry.index == wanted);
        found.map(|found| vec![*found]).ok_or_else(|| {
            let all = table.iter().map(|entry| format!("{} ({})", entry.index, entry.address));
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
        said.extend(self.rails.map(|rails| format!("rails={rails}")));
        said.extend(self.gpudirect.map(|yes| format!("gpudirect={}", u8::from(yes))));
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

    #[test]
    fn iwarp_has_nothing_but_connections() {
        let fits = |text: &str| Settings::read(text).expect("right").fit_iwarp();
        assert_eq!((fits("gpudirect=1"), fits("connections=3,sl=0")), (Ok(()), Ok(())));
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
        let all =
            "pkey=0x8001, sl=3,traffic_class=106,gid_index=2,mtu=4096,connections=32,rails=2,gpudirect=0,";
        let settings = Settings {
            pkey: Some(0x8001),
            sl: 3,
            traffic_class: 106,
            gid_index: Some(2),
            mtu: Some(5),
            connections: Some(32),
            rails: Some(2),
            gpudirect: Some(false),
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
            ("rails=3", "rails=3: a number from 1 to 2"),
            ("gpudirect=on", "gpudirect=on: a number from 0 to 1"),
            ("connections=0", "connections=0: a number from 1"),
            (":sl=1", ":sl=1: there are pkey, sl,"),
            ("mlx5_0:speed=9", "mlx5_0:speed=9: there are pkey, sl,"),
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
    fn items_may_be_of_one_device_or_port() {
        let text = "sl=1,mlx5_0:1:sl=3, mlx5_0:sl=2,mlx5_0:gid_index=5,other:pkey=7";
        let of = |port: &str| Settings::of(text, port).map(|of| (of.sl, of.gid_index, of.pkey));
        assert_eq!(
            of("mlx5_0:1"),
            Ok((3, Some(5), None)),
            "the port's before the device's, wherever it stands"
        );
        assert_eq!(of("mlx5_0:2"), Ok((2, Some(5), None)));
        assert_eq!(of("other:1"), Ok((1, None, Some(7))));
        assert_eq!(Settings::read(text).map(|of| of.sl), Ok(1));
        let wrong = Settings::of("other:sl=16", "mlx5_0:1").expect_err("wrong for any device");
        assert!(wrong.starts_with("other:sl=16: a number from 0 to 15"), "{wrong}");
    }

    #[test]
    fn addresses_are_all_or_the_one_that_is_named() {
        let entry = |index, gid| Entry::read(index, gid, "RoCE v2").expect("a line");
        let table = [entry(0, "fe80::1"), entry(3, "::ffff:10.1.0.1")];
        assert_eq!(Settings::default().gids(&table, table.to_vec()), Ok(table.to_vec()));
        let of = |index| Settings { gid_index: Some(index), ..Settings::default() };
        assert_eq!(of(3).gids(&table, table.to_vec()), Ok(vec![table[1]]));
        let why = of(1).gids(&table, table.to_vec()).expect_err("there is none");
        assert_eq!(why, "gid_index=1: the port has no such address; it has 0 (fe80::1/64), 3 (10.1.0.1/32)");
    }
}
