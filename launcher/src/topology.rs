//! `--topology`: shows the hardware of this host, or of the hosts and switches of a topology file, as text or as a drawing; or writes
//! such a file.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::str::FromStr;

use banyan_memory::nvlinks;
use banyan_plot::{Block, RGBColor, Row, boxes};
use banyan_pmi::settings::TOPOLOGY;
use banyan_topo::{Branch, Device, HardwareMap, Holder, HostMap, Nic, Switch};

use crate::Trouble;

/// What is to become of the map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Show {
    /// It is shown as text.
    Text,
    /// It is drawn in this file.
    Drawing(PathBuf),
    /// It is written to this file, as a topology file.
    File(PathBuf),
}

impl FromStr for Show {
    type Err = String;

    fn from_str(text: &str) -> Result<Show, String> {
        match text {
            "show" => Ok(Show::Text),
            file if file.ends_with(".svg") => Ok(Show::Drawing(file.into())),
            file if file.ends_with(".toml") => Ok(Show::File(file.into())),
            _ => {
                Err("known are the names of files that end with .svg (a drawing) or .toml (a topology file)"
                    .to_owned())
            }
        }
    }
}

/// The answer to `--topology`.
///
/// # Errors
/// If the setting is wrong, or a file cannot be written.
pub(crate) fn topology(show: &Show) -> Result<String, Trouble> {
    let asked = std::env::var(TOPOLOGY).ok();
    let told = HardwareMap::setting(asked.as_deref()).and_then(|text| match &*text {
        "" => Ok(HardwareMap { hosts: vec![HostMap::told_with_links(None, nvlinks)?], switches: vec![] }),
        text => HardwareMap::parse(text),
    });
    let map = told.map_err(|why| Trouble::usage(format!("{TOPOLOGY}: {why}")))?;
    let write = |file: &PathBuf, text: String| {
        std::fs::write(file, text).map_err(|why| Trouble::new(format!("{}: {why}", file.display())))
    };
    match show {
        Show::Text => Ok(shown(&map)),
        Show::Drawing(file) => {
            write(file, drawn(&map))?;
            Ok(format!("The map of {} is drawn in {}\n", named(&map), file.display()))
        }
        Show::File(file) => {
            write(file, map.text())?;
            Ok(format!("The map of {} is in {}; {TOPOLOGY} takes it\n", named(&map), file.display()))
        }
    }
}

fn named(map: &HardwareMap) -> String {
    map.hosts.iter().map(title).collect::<Vec<_>>().join(", ")
}

/// The hosts that a description is of.
fn title(host: &HostMap) -> String {
    match &host.names[..] {
        [] => "any host".to_owned(),
        [one] => one.clone(),
        [first, .., last] => format!("{} hosts alike, {first} to {last}", host.names.len()),
    }
}

/// Mbit/s for people; nothing for 0.
fn speed(mbits: u32) -> Option<String> {
    (mbits > 0).then(|| format!("{} Gbit/s", f64::from(mbits) / 1e3))
}

fn nic_kind(nic: &Nic) -> String {
    let kind = nic.rdma.map_or_else(|| "Ethernet".to_owned(), |link| link.to_string());
    let parts = [Some(kind), speed(nic.speed), nic.interface.clone()];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Name, kind, and place of a device.
fn lines_of(device: Device<'_>) -> Vec<String> {
    let (kind, pcie) = match device {
        Device::Gpu(gpu) => (gpu.model.clone(), gpu.pcie),
        Device::Nic(nic) => (nic_kind(nic), nic.pcie),
    };
    let pcie = pcie.map(|link| format!("PCIe {link}"));
    let address = device.at().address().map(str::to_owned);
    let place: Vec<String> = address.into_iter().chain(pcie).collect();
    let lines = [device.name().to_owned(), kind, place.join(", ")];
    lines.into_iter().filter(|line| !line.is_empty()).collect()
}

/// Title of a part that is no device, and what is in it.
fn part<'a>(host: &HostMap, branch: &'a Branch<'_>) -> Option<(String, &'a [Branch<'a>])> {
    match branch {
        Branch::Numa(node, below) => {
            let known = host.numa.iter().find(|numa| numa.node == *node);
            let more = known.map(|numa| format!(", socket {}, CPUs {}", numa.socket, numa.cpus));
            Some((format!("NUMA node {node}{}", more.unwrap_or_default()), below))
        }
        Branch::Bridge(name, below) => Some((format!("host bridge {name}"), below)),
        Branch::Switch(address, below) => Some((format!("PCIe switch {address}"), below)),
        Branch::Device(_) => None,
    }
}

/// What GPUs have between them, a line for each kind.
fn nvlink_lines(host: &HostMap) -> Vec<String> {
    let by_switch = host.gpus.iter().filter(|gpu| gpu.nvswitch_links > 0);
    let mut switch: BTreeMap<u8, Vec<&str>> = BTreeMap::new();
    by_switch.for_each(|gpu| switch.entry(gpu.nvswitch_links).or_default().push(&gpu.name));
    let switch =
        switch.iter().map(|(links, gpus)| format!("NVSwitch: {} by {links} links each", gpus.join(", ")));
    let pairs = host.nvlinks.iter();
    let pairs = pairs.map(|of| format!("NVLink: {} to {} by {} links", of.gpus[0], of.gpus[1], of.links));
    switch.chain(pairs).collect()
}

/// What leads up from a switch.
fn up(switch: &Switch) -> Option<String> {
    let by = speed(switch.speed).map_or_else(String::new, |speed| format!(" by {speed} each"));
    (!switch.up.is_empty()).then(|| format!("up to {}{by}", switch.up.join(", ")))
}

/// The map as text.
fn shown(map: &HardwareMap) -> String {
    let mut text = String::new();
    for switch in map.levels().into_iter().rev().flatten() {
        let parts = [up(switch), (!switch.hosts.is_empty()).then(|| switch.hosts.join(", "))];
        let about = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
        let _ = writeln!(text, "switch {}: {about}", switch.name);
    }
    for host in &map.hosts {
        let _ = writeln!(text, "{}{}", if text.is_empty() { "" } else { "\n" }, title(host));
        branches(&mut text, host, &host.tree(), "");
        nvlink_lines(host).iter().for_each(|line| text += &format!("{line}\n"));
        text += &matrix(host);
        text += &choices(host);
    }
    text
}

/// Branches of a tree, each line behind `indent`.
fn branches(text: &mut String, host: &HostMap, all: &[Branch<'_>], indent: &str) {
    for (at, branch) in all.iter().enumerate() {
        let (corner, next) = if at + 1 == all.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        match (part(host, branch), branch) {
            (Some((title, below)), _) => {
                let _ = writeln!(text, "{indent}{corner}{title}");
                branches(text, host, below, &format!("{indent}{next}"));
            }
            (None, Branch::Device(device)) => {
                let _ = writeln!(text, "{indent}{corner}{}", lines_of(*device).join("  "));
            }
            (None, _) => {}
        }
    }
}

/// How far devices are apart, each from each.
fn matrix(host: &HostMap) -> String {
    let devices = host.devices();
    if devices.len() < 2 {
        return String::new();
    }
    let apart = |one: Device<'_>, other: Device<'_>| match (one, other) {
        _ if one == other => "X".to_owned(),
        (Device::Gpu(a), Device::Gpu(b)) if host.nvlinks(a, b) > 0 => format!("NV{}", host.nvlinks(a, b)),
        _ => host.distance(Holder::Device(one.at()), other.at()).to_string(),
    };
    let widths: Vec<usize> = devices.iter().map(|device| device.name().len().max(4) + 2).collect();
    let first = widths.iter().max().copied().unwrap_or(0);
    let row = |title: &str, cells: Vec<String>| {
        let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("{title:first$}{}", cells.collect::<String>()).trim_end().to_owned() + "\n"
    };
    let mut text =
        "\n".to_owned() + &row("", devices.iter().map(|device| device.name().to_owned()).collect());
    for one in &devices {
        text += &row(one.name(), devices.iter().map(|other| apart(*one, *other)).collect());
    }
    text + "PIX: by one PCIe switch; PXB: by several; PHB: by the host bridge; NODE: by two of one NUMA node; SYS: from node to node; \
            NVn: by n NVLinks\n"
}

/// Which NIC is the best by distance, for each GPU and for ranks.
fn choices(host: &HostMap) -> String {
    let mut text = String::new();
    for gpu in &host.gpus {
        let Some(nic) = host.nic_of(gpu) else { continue };
        let distance = host.distance(Holder::Device(&gpu.at), &nic.at);
        let _ = writeln!(text, "{}: {} ({distance}), {}", gpu.name, nic.name, host.gpu_path(gpu, nic));
    }
    for numa in &host.numa {
        let nics = host.nics_for(Holder::Process(&numa.cpus));
        let Some(first) = nics.first() else { continue };
        let distance = host.distance(Holder::Process(&numa.cpus), &first.at);
        let names = nics.iter().map(|nic| &*nic.name).collect::<Vec<_>>().join(", ");
        let turns = if nics.len() > 1 { ", in turn" } else { "" };
        let _ = writeln!(text, "ranks on NUMA node {}: {names} ({distance}){turns}", numa.node);
    }
    match text.is_empty() {
        true => text,
        false => format!("\nThe quickest NIC that is nearest\n{text}"),
    }
}

const HOST: RGBColor = RGBColor(130, 130, 130);
const NUMA: RGBColor = RGBColor(80, 130, 220);
const PCIE: RGBColor = RGBColor(140, 110, 200);
const GPU: RGBColor = RGBColor(22, 150, 80);
const NIC: RGBColor = RGBColor(230, 130, 20);
const SWITCH: RGBColor = RGBColor(200, 70, 160);

/// The map as a drawing in SVG.
fn drawn(map: &HardwareMap) -> String {
    let levels: Vec<Vec<&Switch>> = map.levels().into_iter().rev().collect();
    let mut rows = vec![];
    for (at, level) in levels.iter().enumerate() {
        let below = levels.get(at + 1).map_or(&[][..], |below| below);
        let down = |(from, above): (usize, &&Switch)| -> Vec<(usize, usize)> {
            let led = below.iter().enumerate().filter(|(_, below)| below.up.contains(&above.name));
            led.map(|(to, _)| (from, to)).collect()
        };
        let lines_down = level.iter().enumerate().flat_map(down).collect();
        rows.push(Row { blocks: level.iter().map(|switch| switch_block(switch)).collect(), lines_down });
    }
    rows.extend(map.hosts.iter().map(|host| Row { blocks: vec![host_block(host)], lines_down: vec![] }));
    boxes(&rows)
}

fn switch_block(switch: &Switch) -> Block {
    let mut lines = vec![switch.name.clone()];
    lines.extend(speed(switch.speed).map(|speed| format!("{speed} up")));
    lines.extend(switch.hosts.chunks(4).map(|hosts| hosts.join(" ")));
    Block { lines, colour: SWITCH, inside: vec![], stacked: false }
}

fn host_block(host: &HostMap) -> Block {
    let mut inside: Vec<Block> = host.tree().iter().map(|branch| block(host, branch)).collect();
    let nvlink = |line: String| Block { lines: vec![line], colour: GPU, inside: vec![], stacked: false };
    inside.extend(nvlink_lines(host).into_iter().map(nvlink));
    Block { lines: vec![title(host)], colour: HOST, inside, stacked: true }
}

fn block(host: &HostMap, branch: &Branch<'_>) -> Block {
    let (lines, below) = match (part(host, branch), branch) {
        (Some((title, below)), _) => (vec![title], below),
        (None, Branch::Device(device)) => (lines_of(*device), &[][..]),
        (None, _) => (vec![], &[][..]),
    };
    let (colour, stacked) = match branch {
        Branch::Numa(..) => (NUMA, false),
        Branch::Bridge(..) => (PCIE, false),
        Branch::Switch(..) => (PCIE, true),
        Branch::Device(Device::Gpu(_)) => (GPU, false),
        Branch::Device(Device::Nic(_)) => (NIC, false),
    };
    Block { lines, colour, inside: below.iter().map(|branch| block(host, branch)).collect(), stacked }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HGX: &str = include_str!("../../crates/topo/tests/hosts/hgx.toml");
    const FAT_TREE: &str = include_str!("../../crates/topo/tests/hosts/fat-tree.toml");

    #[test]
    fn the_text_says_where_all_is_and_who_has_what() {
        let text = shown(&HardwareMap::parse(HGX).unwrap());
        for part in [
            "hgx1\n├─ NUMA node 0, socket 0, CPUs 0-55,112-167\n│  ├─ host bridge pci0000:10\n│  │  └─ PCIe switch 0000:11:00.0\n",
            "│  │     ├─ GPU0  NVIDIA H100 80GB HBM3  0000:13:00.0, PCIe 5 x16\n",
            "│  │     └─ mlx5_0:1  InfiniBand, 400 Gbit/s  0000:14:00.0, PCIe 5 x16\n",
            "eth0  Ethernet, 25 Gbit/s  0000:91:00.0, PCIe 4 x8\n",
            "\nGPU1      NV18  X ",
            "\nNVSwitch: GPU0, GPU1, GPU2, GPU3, GPU4, GPU5, GPU6, GPU7 by 18 links each\n",
            "\nGPU7: mlx5_7:1 (PIX), GPUDirect RDMA (dma-buf)\n",
            "\nranks on NUMA node 1: mlx5_4:1, mlx5_5:1, mlx5_6:1, mlx5_7:1 (PHB), in turn\n",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let text = shown(&HardwareMap::parse(FAT_TREE).unwrap());
        assert!(
            text.contains("switch leaf2: up to spine1, spine2 by 400 Gbit/s each; n5, n6, n7, n8\n"),
            "{text}"
        );
        assert!(text.contains("\n16 hosts alike, n1 to n16\n"), "{text}");
    }

    #[test]
    fn the_drawing_has_each_device_once_and_each_link() {
        let svg = drawn(&HardwareMap::parse(HGX).unwrap());
        for name in ["GPU0", "GPU7", "mlx5_0:1", "mlx5_7:1", "eth0"] {
            assert_eq!(svg.matches(&format!(">{name}<")).count(), 1, "{name}");
        }
        let svg = drawn(&HardwareMap::parse(FAT_TREE).unwrap());
        assert_eq!(svg.matches("<path").count(), 8, "four leaves to two spines");
    }

    #[test]
    fn this_host_can_be_shown() {
        assert!(!topology(&Show::Text).unwrap().is_empty());
        assert!("nowhere".parse::<Show>().is_err());
        assert!(topology(&Show::Drawing("/nonexistent/at.svg".into())).is_err());
    }
}
