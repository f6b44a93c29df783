//! Hosts with NICs and GPUs, read from files such as their kernels have and from topology files: where devices are, how far apart, and
//! which NIC each rank and each GPU has.

use std::path::Path;

use crate::hosts::{DUAL, FAT_TREE, HGX, HGX_FILE, Host, MESH_FILE};
use banyan_topo::{
    CpuSet, Distance, GPU_ROW, GpuFigures, GpuGroup, GpuLink, GpuLocation, GpuPath, GpuRow, GpuWay,
    HardwareMap, Holder, HostMap, Machine, Nic, NvLink, NvLinks, RdmaPort, Switch, Turn, Unit, bound,
    rdma_ports, share,
};
use proptest::prelude::*;

/// Which RDMA port each of so many ranks has that share the cores of a host, as the runtime counts turns: among ranks of one socket.
fn ports_of_ranks(root: &Path, ranks: u32) -> Vec<String> {
    let host = HostMap::read(root);
    let all: CpuSet = host.numa.iter().flat_map(|numa| numa.cpus.iter()).collect();
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let machine = Machine::read_from(read, &root.join("sys/devices/system"), &all);
    let cpus = share(&machine, ranks, Unit::Core);
    let sockets: Vec<u32> = bound(&machine, &cpus).iter().map(|bound| bound.socket).collect();
    let ports = RdmaPort::read(root);
    let port = |rank: usize| {
        let before = sockets[..rank].iter().filter(|socket| **socket == sockets[rank]).count();
        let turn = Turn { before, of: cpus.len(), wanted: Some(1), most: 1 };
        let taken = rdma_ports(&ports, &[], (&host, Holder::Process(&cpus[rank])), turn);
        taken.unwrap()[0].device.clone()
    };
    (0..cpus.len()).map(port).collect()
}

/// For each GPU its NIC, how far that is, and the path.
fn nics_of_gpus(host: &HostMap) -> Vec<(String, Distance, GpuPath)> {
    let nic = |gpu| {
        let nic = host.nic_of(gpu).unwrap();
        (nic.name.clone(), host.distance(Holder::Device(&gpu.at), &nic.at), host.gpu_path(gpu, nic))
    };
    host.gpus.iter().map(nic).collect()
}

/// Each GPU has the NIC on its own switch, which reads and writes its memory; the ranks of a socket take turns in its four.
#[test]
fn eight_gpus_have_eight_nics() {
    let files = Host::new(HGX);
    let host = HostMap::read(files.root());
    let own = |number: usize| (format!("mlx5_{number}:1"), Distance::Pix, GpuPath::DmaBuf);
    assert_eq!(nics_of_gpus(&host), (0..8).map(own).collect::<Vec<_>>());
    let port = |number: usize| format!("mlx5_{number}");
    assert_eq!(ports_of_ranks(files.root(), 8), (0..8).map(port).collect::<Vec<_>>());
    let sixteen = ports_of_ranks(files.root(), 16);
    assert_eq!(sixteen, (0..16).map(|rank| port(rank / 8 * 4 + rank % 4)).collect::<Vec<_>>());
    let gpu = |number: usize| Holder::Device(&host.gpus[number].at);
    assert_eq!(host.distance(gpu(0), &host.nics[1].at), Distance::Node, "another host bridge of the node");
    assert_eq!(host.distance(gpu(0), &host.nics[4].at), Distance::Sys);
    let eth0 = host.nics.iter().find(|nic| nic.name == "eth0").unwrap();
    assert_eq!((eth0.rdma, eth0.speed, host.gpu_path(&host.gpus[0], eth0)), (None, 25000, GpuPath::Staged));
    assert_eq!((host.gpus.len(), host.nics.len()), (8, 9), "no console, no loopback, no bridge");
    for (number, gpu) in host.gpus.iter().enumerate() {
        let at = gpu.at.address().unwrap();
        let path = |nic: &Nic| GpuPath::of(host.gpu_distance(at, &nic.at).unwrap());
        let direct = |nic: &&Nic| nic.rdma.is_some() && path(nic) == GpuPath::DmaBuf;
        let direct: Vec<&str> = host.nics.iter().filter(direct).map(|nic| &*nic.name).collect();
        assert_eq!(direct, [format!("mlx5_{number}:1")], "its own port alone");
    }
    assert_eq!(host.gpu_distance("0000:ff:00.0", &host.nics[0].at), None, "no GPU is there");
}

/// What `/sys` shows is what the topology file says, but for the NVLinks, and for the name.
#[test]
fn a_dump_is_injected_as_it_was() {
    let files = Host::new(HGX);
    let mut read = HostMap::read(files.root());
    let told = HardwareMap::parse(HGX_FILE).unwrap();
    let given = told.host("hgx1").unwrap();
    assert_eq!(given.nvlinks(&given.gpus[0], &given.gpus[7]), 18);
    assert_eq!(read.nvlinks(&read.gpus[0], &read.gpus[7]), 0);
    read.names = vec!["hgx1".to_owned()];
    read.gpus.iter_mut().for_each(|gpu| (gpu.nvswitch_links, gpu.nvlink_generation) = (18, 4));
    let map = HardwareMap { hosts: vec![read], switches: vec![] };
    assert_eq!(map, told, "the file should be\n{}", map.text());
    assert_eq!(HardwareMap::parse(&map.text()).unwrap(), map);
}

/// There is nothing to choose: the far socket's ranks use it as well. No switch joins it with a GPU, so that all is staged.
#[test]
fn two_sockets_share_one_nic() {
    let files = Host::new(DUAL);
    let host = HostMap::read(files.root());
    assert_eq!(ports_of_ranks(files.root(), 4), ["mlx5_0"; 4]);
    let apart = |numa: usize| host.distance(Holder::Process(&host.numa[numa].cpus), &host.nics[0].at);
    assert_eq!([0, 1].map(apart), [Distance::Sys, Distance::Phb]);
    let nic = |distance| ("mlx5_0:1".to_owned(), distance, GpuPath::Staged);
    assert_eq!(nics_of_gpus(&host), [nic(Distance::Sys), nic(Distance::Phb)]);
    assert_eq!(host.nics.len(), 1, "the interface is that of the port");
    assert_eq!(host.nics[0].interface.as_deref(), Some("ens3"));
}

/// Two GPUs and two NICs below one switch: one each, though all are as near.
#[test]
fn gpus_take_turns_in_equals() {
    let text = r#"
        [[host]]
        nic = [
            { name = "a:1", rdma = "RoCE", speed = 100000, at = "node0/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0" },
            { name = "b:1", rdma = "RoCE", speed = 100000, at = "node0/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0" },
            { name = "slow:1", rdma = "RoCE", speed = 25000, at = "node0/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:02.0/0000:15:00.0" },
        ]
        gpu = [
            { name = "GPU0", model = "NVIDIA", at = "node0/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:03.0/0000:16:00.0" },
            { name = "GPU1", model = "NVIDIA", at = "node0/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:04.0/0000:17:00.0" },
            { name = "GPU2", model = "NVIDIA", at = "node1/pci0000:80/0000:80:01.0/0000:81:00.0" },
        ]"#;
    let map = HardwareMap::parse(text).unwrap();
    let host = map.host("whoever").unwrap();
    let names: Vec<&str> = host.gpus.iter().map(|gpu| &*host.nic_of(gpu).unwrap().name).collect();
    assert_eq!(names, ["a:1", "b:1", "a:1"], "the third is far from both");
}

#[test]
fn a_fat_tree_has_levels() {
    let map = HardwareMap::parse(FAT_TREE).unwrap();
    let levels: Vec<usize> = map.levels().iter().map(Vec::len).collect();
    assert_eq!(levels, [4, 2]);
    let between = |one, other| map.switches_between(one, other);
    assert_eq!([between("n1", "n4"), between("n1", "n5"), between("n1", "n17")], [Some(1), Some(3), None]);
    assert_eq!(map.host("n7").unwrap(), map.host("n16").unwrap(), "they are alike");
    assert_eq!(HardwareMap::parse(&map.text()).unwrap(), map);
}

#[test]
fn files_that_are_wrong_are_named() {
    let error = |text: &str| HardwareMap::parse(text).unwrap_err();
    for (text, words) in [
        ("[[host]]\nname = 1", "line 2: unknown field `name`"),
        ("[[host]]\nnic = [{ name = \"a\", at = \"pci\" }]", "line 2: \"pci\" is no place of a device"),
        ("[[host]]\nnuma = [{ node = 0, socket = 0, cpus = \"3-1\" }]", "line 2: not a list of CPUs"),
        ("[[host]]\nnuma = [{ node = 0, socket = 0, cpus = \"\" }]", "NUMA node 0 has no CPU"),
        ("[[host]]\nnic = [{ name = \"a\" }, { name = \"a\" }]", "there are two devices a"),
        ("[[host]]\nnic = [{ name = \"\" }]", "\"\" is no name of a device"),
        ("[[host]]\nnvlink = [{ gpus = [\"GPU0\", \"GPU1\"], links = 4 }]", "GPU0, which is no GPU"),
        ("[[switch]]\nname = \"a\"\nup = [\"b\"]", "switch a leads up to b, which is no switch"),
        ("[[switch]]\nname = \"a\"\nup = [\"a\"]", "in a circle"),
        ("[[host]", "line 1: "),
    ] {
        assert!(error(text).contains(words) && !error(text).contains('\n'), "{text}: {}", error(text));
    }
    assert!(error(&" ".repeat(1 << 20)).contains("bytes"));
    let map = HardwareMap::parse(FAT_TREE).unwrap();
    assert_eq!(map.host("n1").unwrap().names.len(), 16);
    let two = HardwareMap::parse("[[host]]\nnames = [\"a\"]\n[[host]]\nnames = [\"b\"]").unwrap();
    assert_eq!(two.host("c").unwrap_err(), "it describes a, b, and not c");
    assert!(
        HardwareMap::setting(Some("/nowhere/at.all")).unwrap_err().starts_with("/nowhere/at.all: No such")
    );
}

/// A host as files may describe one: devices by the numbers of their bridges.
fn any_host() -> impl Strategy<Value = HostMap> {
    let device = (proptest::option::of(0..4u32), proptest::collection::vec(0..3u32, 0..6), 0..400_000u32);
    proptest::collection::vec((device, any::<bool>()), 0..12).prop_map(|devices| {
        let mut text = "[[host]]\n".to_owned();
        for (number, ((numa, path, speed), gpu)) in devices.into_iter().enumerate() {
            let numa = numa.map_or_else(Vec::new, |numa| vec![format!("node{numa}")]);
            let part = |(depth, at): (usize, &u32)| match depth {
                0 => format!("pci0000:{at}0"),
                _ => format!("0000:{at}{depth}:00.{at}"),
            };
            let at = numa.into_iter().chain(path.iter().enumerate().map(part)).collect::<Vec<_>>().join("/");
            text += &match gpu {
                true => format!("[[host.gpu]]\nname = \"GPU{number}\"\nmodel = \"x\"\nat = \"{at}\"\n"),
                false => format!("[[host.nic]]\nname = \"nic{number}\"\nspeed = {speed}\nat = \"{at}\"\n"),
            };
        }
        HardwareMap::parse(&text).unwrap().hosts.remove(0)
    })
}

/// How many devices are in a tree.
fn devices_in(branches: &[banyan_topo::Branch<'_>]) -> usize {
    use banyan_topo::Branch;
    let inside = |branch: &Branch<'_>| match branch {
        Branch::Numa(_, below) | Branch::Bridge(_, below) | Branch::Switch(_, below) => devices_in(below),
        Branch::Device(_) => 1,
    };
    branches.iter().map(inside).sum()
}

proptest! {
    #[test]
    fn every_map_is_written_and_read_again(host in any_host(), links in 0..9u8) {
        let gpus: Vec<String> = host.gpus.iter().map(|gpu| gpu.name.clone()).collect();
        let pairs = gpus.chunks_exact(2).map(|pair| NvLink { gpus: [pair[0].clone(), pair[1].clone()], links });
        let host = HostMap { nvlinks: pairs.collect(), names: vec!["a b \"c\"".to_owned()], ..host };
        let switch = Switch { name: "s".into(), up: vec![], speed: 1, hosts: host.names.clone() };
        let map = HardwareMap { hosts: vec![host], switches: vec![switch] };
        prop_assert_eq!(HardwareMap::parse(&map.text()).unwrap(), map);
    }

    /// No device is lost in the tree; distances are the same both ways; each GPU's NIC is one of the nearest of the quickest.
    #[test]
    fn trees_and_choices_hold_together(host in any_host()) {
        let devices = host.devices();
        prop_assert_eq!(devices_in(&host.tree()), devices.len());
        for (one, other) in devices.iter().flat_map(|one| devices.iter().map(move |other| (one, other))) {
            let [there, back] = [(one, other), (other, one)].map(|(a, b)| host.distance(Holder::Device(a.at()), b.at()));
            prop_assert_eq!(there, back);
        }
        let quickest = host.nics.iter().map(|nic| nic.speed).max();
        for gpu in &host.gpus {
            let apart = |nic: &banyan_topo::Nic| host.distance(Holder::Device(&gpu.at), &nic.at);
            let Some(nic) = host.nic_of(gpu) else { prop_assert!(host.nics.is_empty()); continue };
            prop_assert_eq!(Some(nic.speed), quickest);
            prop_assert!(host.nics.iter().all(|of| Some(of.speed) != quickest || apart(of) >= apart(nic)));
        }
    }

    #[test]
    fn any_text_is_a_map_or_refused(text: String) {
        if let Ok(map) = HardwareMap::parse(&text) {
            prop_assert_eq!(HardwareMap::parse(&map.text()).unwrap(), map);
        }
    }
}

/// Where each GPU of a host is among the others.
fn locations(host: &HostMap) -> Vec<GpuLocation> {
    let address = |gpu: &banyan_topo::Gpu| gpu.at.pci.last().cloned().unwrap();
    host.gpus.iter().map(|gpu| host.gpu_location(&address(gpu)).unwrap()).collect()
}

/// What a driver says of the NVLinks of GPUs that are as on this host.
fn links_of(host: &HostMap) -> Vec<NvLinks> {
    let address = |gpu: &banyan_topo::Gpu| gpu.at.address().map(str::to_owned);
    let of = |gpu: &banyan_topo::Gpu| {
        let to = |other: &banyan_topo::Gpu| {
            let links = host.nvlinks(gpu, other) as u8 - gpu.nvswitch_links.min(other.nvswitch_links);
            vec![address(other); if other == gpu { 0 } else { links.into() }]
        };
        let switches = vec![None; gpu.nvswitch_links.into()];
        (gpu.nvlink_generation, switches.into_iter().chain(host.gpus.iter().flat_map(to)).collect())
    };
    host.gpus.iter().map(of).collect()
}

/// A driver's word on a host of which `/sys` shows no NVLinks makes the map that a topology file describes.
#[test]
fn the_driver_tells_of_nvlinks() {
    for file in [HGX_FILE, MESH_FILE] {
        let told = HardwareMap::parse(file).unwrap().hosts[0].clone();
        let mut found = told.clone();
        found.nvlinks.clear();
        found.gpus.iter_mut().for_each(|gpu| (gpu.nvswitch_links, gpu.nvlink_generation) = (0, 0));
        let by_pcie = found.clone();
        found.add_nvlinks(|addresses| {
            let all: Vec<_> = told.gpus.iter().map(|gpu| gpu.at.address().unwrap()).collect();
            assert_eq!(addresses, all);
            links_of(&told)
        });
        assert_eq!(found, told);
        // A driver that says nothing, and one of which one GPU is not asked: both must say that they have a link.
        let mut silent = by_pcie.clone();
        silent.add_nvlinks(|_| vec![]);
        assert_eq!(silent, by_pcie);
        let mut found = by_pcie.clone();
        found.add_nvlinks(|_| {
            let mut links = links_of(&told);
            links[3] = (0, vec![]);
            links
        });
        let to_it = |gpu| found.nvlinks(&found.gpus[3], gpu);
        assert!(found.gpus.iter().all(|gpu| to_it(gpu) == 0));
        let others = |map: &HostMap| map.nvlinks(&map.gpus[1], &map.gpus[5]);
        assert_eq!(others(&found), others(&told));
    }
    // Where a file says what there is, nobody is asked.
    let host = HostMap::told_with_links(Some(MESH_FILE), |_| unreachable!("there is a file")).unwrap();
    assert_eq!(host.nvlinks(&host.gpus[0], &host.gpus[3]), 2);
}

#[test]
fn gpus_are_grouped_by_nvlinks_or_else_by_sockets_and_switches() {
    let file = HardwareMap::parse(HGX_FILE).unwrap().hosts[0].clone();
    assert_eq!(locations(&file), [GpuLocation { group: 0, switch: 0 }; 8]);
    // Without NVLinks: four below each socket, each at a switch of its own.
    let mut plain = file.clone();
    plain.gpus.iter_mut().for_each(|gpu| gpu.nvswitch_links = 0);
    let places: Vec<_> = locations(&plain).iter().map(|of| (of.group, of.switch)).collect();
    assert_eq!(places, (0..8).map(|at| (at / 4 * 4, at)).collect::<Vec<_>>());
    // A chain of NVLinks through three of them.
    let link = |one: &str, other: &str| NvLink { gpus: [one.to_owned(), other.to_owned()], links: 4 };
    plain.nvlinks = vec![link("GPU1", "GPU5"), link("GPU5", "GPU6")];
    let chain = locations(&plain);
    assert!([1, 5, 6].iter().all(|at| chain[*at] == GpuLocation { group: 1, switch: 0 }));
    assert_eq!((chain[4].group, chain[7].group, chain[0].group), (4, 4, 0));
    assert_eq!(plain.gpu_location("0000:ff:00.0"), None);
}

/// What is known of the GPUs of these numbers.
fn group(host: &HostMap, gpus: &[usize], hosts: u32) -> GpuGroup {
    let addresses: Vec<&str> = gpus.iter().map(|gpu| host.gpus[*gpu].at.address().unwrap()).collect();
    host.gpu_group(&addresses, (hosts, true), &GpuFigures::ASSUMED).unwrap()
}

/// Seconds per byte at so many GB/s.
fn at(rate: f64) -> f64 {
    1e-9 / rate
}

fn near(a: f64, b: f64) {
    assert!((a / b - 1.0).abs() < 1e-9, "{a} is not {b}");
}

/// The ring over the cube mesh takes pairs of links alone, and is that of NCCL; the mean has those without a link, too.
#[test]
fn a_ring_takes_the_widest_links_and_its_narrowest_counts() {
    let mesh = HardwareMap::parse(MESH_FILE).unwrap().hosts[0].clone();
    let all: Vec<usize> = (0..8).collect();
    let whole = group(&mesh, &all, 1);
    assert_eq!(whole.ring, [0, 3, 2, 1, 5, 6, 7, 4]);
    assert_eq!(whole.narrowest, Some(GpuWay { link: GpuLink::NvLink, width: 50 }));
    assert_eq!(whole.narrowest.unwrap().to_string(), "NVLink of 50 GB/s");
    near(whole.links.ring.byte, at(40.0));
    near(whole.links.levels[3].byte, (8.0 * at(40.0) + 8.0 * at(20.0) + 12.0 * at(10.0)) / 28.0);
    // Of ranks in another order, the same GPUs follow each other; ranks with one GPU stay together.
    let mixed = [5, 0, 7, 3, 1, 6, 4, 2, 0];
    let over: Vec<usize> = group(&mesh, &mixed, 1).ring.into_iter().map(|rank| mixed[rank]).collect();
    let start = over.iter().position(|gpu| *gpu == 5).unwrap();
    let around: Vec<usize> = over[start..].iter().chain(&over[..start]).copied().collect();
    assert!(
        [[5, 6, 7, 4, 0, 0, 3, 2, 1], [5, 1, 2, 3, 0, 0, 4, 7, 6]].contains(&around[..].try_into().unwrap()),
        "{around:?}"
    );
    // Where it goes on to another host it need not close.
    let four = group(&mesh, &[0, 1, 2, 7], 2);
    assert_eq!(
        (four.ring, four.narrowest),
        (vec![0, 1, 2, 3], Some(GpuWay { link: GpuLink::Staged, width: 0 }))
    );
    let open = group(&mesh, &[0, 4, 2, 1], 2);
    assert_eq!((open.ring.len(), open.narrowest.map(|way| way.width)), (4, Some(25)));

    let switched = HardwareMap::parse(HGX_FILE).unwrap().hosts[0].clone();
    let whole = group(&switched, &all, 1);
    assert_eq!((&whole.ring, whole.narrowest), (&all, Some(GpuWay { link: GpuLink::NvSwitch, width: 450 })));
    near(whole.links.ring.byte, at(360.0));
    near(whole.links.levels[3].byte, at(360.0));
    // By PCIe alone sockets are left once and come back to once, and pairs below a switch stay together.
    let mut plain = mesh.clone();
    plain.nvlinks.clear();
    let dealt = [0, 4, 2, 6, 1, 5, 3, 7];
    let by_pcie = group(&plain, &dealt, 1);
    let over: Vec<usize> = by_pcie.ring.iter().map(|rank| dealt[*rank]).collect();
    let changes = |of: usize| (0..8).filter(|at| over[*at] / of != over[(at + 1) % 8] / of).count();
    assert_eq!((changes(4), changes(2), by_pcie.links.span), (2, 4, 1), "{over:?}");
    assert_eq!(by_pcie.narrowest.map(|way| way.link), Some(GpuLink::Staged));
    near(by_pcie.links.levels[1].byte, at(10.0));
    near(by_pcie.links.levels[2].byte, at(20.0));
    // One GPU, and one that is not there.
    let alone = group(&mesh, &[3, 3], 1);
    assert_eq!((alone.ring, alone.narrowest, alone.links.span), (vec![0, 1], None, 3));
    assert_eq!(mesh.gpu_group(&["0000:ff:00.0"], (1, true), &GpuFigures::ASSUMED), None);
    assert_eq!(mesh.gpu_group(&[], (1, true), &GpuFigures::ASSUMED), None);
}

/// What a rank tells of its GPU is all that others need, and of no GPU it tells zeros.
#[test]
fn rows_of_the_table_of_links_are_told_in_bytes() {
    for file in [MESH_FILE, HGX_FILE] {
        let host = HardwareMap::parse(file).unwrap().hosts[0].clone();
        for gpu in &host.gpus {
            let row = host.gpu_row(gpu.at.address().unwrap()).unwrap();
            let told = row.encode().unwrap();
            assert_eq!(GpuRow::decode(&told), Some(row));
            // A link, and a distance, that are none.
            for at in [12, 13] {
                let mut wrong = told;
                wrong[at] = 7;
                assert_eq!(GpuRow::decode(&wrong), None);
            }
        }
    }
    assert_eq!(GpuRow::decode(&[0; GPU_ROW]), None);
    assert_eq!(GpuRow::decode(&[255; GPU_ROW]), None);
    let mesh = HardwareMap::parse(MESH_FILE).unwrap().hosts[0].clone();
    assert_eq!(mesh.gpu_row("0000:ff:00.0"), None);
    let mut many = mesh.gpu_row(mesh.gpus[0].at.address().unwrap()).unwrap();
    many.to.resize(17, many.to[0]);
    assert_eq!(many.encode(), None);
    // Rows of two hosts are no group.
    let [mut one, other] = [0, 7].map(|at| mesh.gpu_row(mesh.gpus[at].at.address().unwrap()).unwrap());
    one.to.truncate(1);
    assert_eq!(GpuGroup::of(&[&one, &other], (1, true), &GpuFigures::ASSUMED), None);
}

/// Between hosts memory of GPUs goes by an RDMA device that is near, where all have one, and else by the host's memory.
#[test]
fn between_hosts_it_counts_whether_rdma_devices_are_near() {
    let figures = GpuFigures::ASSUMED;
    let staged = figures.links[GpuLink::Staged as usize];
    let first = |host: &HostMap, direct: bool| {
        let addresses: Vec<&str> = host.gpus.iter().map(|gpu| gpu.at.address().unwrap()).collect();
        host.gpu_group(&addresses, (2, direct), &figures).unwrap().links.levels[0]
    };
    let near = HardwareMap::parse(HGX_FILE).unwrap().hosts[0].clone();
    assert_eq!((first(&near, true), first(&near, false)), (figures.direct, staged));
    let files = Host::new(DUAL);
    assert_eq!(first(&HostMap::read(files.root()), true), staged);
    let mut mixed = near.clone();
    mixed.nics.retain(|nic| nic.name != "mlx5_3:1");
    assert_eq!(first(&mixed, true), staged, "one GPU has none");
}
