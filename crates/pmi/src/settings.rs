//! Settings that users give in environment variables: one table, read by launcher, runtime and docs.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::foreign;

/// A setting: the variable, its default, and what it means.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The environment variable.
    pub name: &'static str,
    /// The value that holds if it is not set.
    pub default: &'static str,
    /// Values and meaning, for users.
    pub about: &'static str,
}

/// Which fabrics may be used, as in `shm,tcp`.
pub const FABRICS: &str = "BANYAN_FABRICS";
/// Overrides of the choice of collective algorithms.
pub const COLL: &str = "BANYAN_COLL";
/// Which way long messages between ranks of one host take.
pub const P2P: &str = "BANYAN_P2P";
/// Bytes lent for unexpected messages.
pub const EAGER_BUDGET: &str = "BANYAN_EAGER_BUDGET";
/// Number of TCP connections of a pair of ranks.
pub const TCP_STREAMS: &str = "BANYAN_TCP_STREAMS";
/// The network interfaces that ranks listen at.
pub const NIC: &str = "BANYAN_NIC";
/// How connections by RDMA devices are to be.
pub const RDMA: &str = "BANYAN_RDMA";
/// The ports that ranks listen at.
pub const PORTS: &str = "BANYAN_PORTS";
/// How long a peer may be out of reach.
pub const PATIENCE: &str = "BANYAN_PATIENCE";
/// Whether what goes over TCP is encrypted.
pub const ENCRYPT: &str = "BANYAN_ENCRYPT";
/// What things take on the machines that the job runs on.
pub const MACHINE: &str = "BANYAN_MACHINE";
/// Where the NICs and GPUs of the job's hosts are.
pub const TOPOLOGY: &str = "BANYAN_TOPOLOGY";
/// On which GPUs users' buffers may be.
pub const GPU: &str = "BANYAN_GPU";
/// The shortest message that goes by IPC of a device's driver.
pub const GPU_IPC: &str = "BANYAN_GPU_IPC";
/// The longest copies from and to GPUs that the processor makes by itself.
pub const GPU_GDRCOPY: &str = "BANYAN_GPU_GDRCOPY";
/// The kinds of memory that the program asks the library to take. Each process has its own.
pub const MEMORY_ALLOC_KINDS: &str = "BANYAN_MEMORY_ALLOC_KINDS";
/// Which of other launchers' protocols is spoken.
pub const PMI: &str = "BANYAN_PMI";
/// Start as rank 0 of 1 whatever the environment says.
pub const SINGLETON: &str = "BANYAN_SINGLETON";

/// The closed list of fabrics between processes. Each line: the name, as in `BANYAN_FABRICS`; the route and the type that the
/// runtime knows it by; and which ranks it is between, for users. The macro `$then` gets the lines. Their order is that of the
/// default.
#[macro_export]
macro_rules! fabrics {
    ($then:ident) => {
        $then! {
            shm Shm banyan_shm::Shm, "ranks of one host";
            rdma Rdma banyan_rdma::Loaded, "ranks whose hosts have RDMA devices";
            tcp Tcp banyan_tcp::Tcp, "any ranks";
        }
    };
}

macro_rules! describe {
    ($($name:ident $route:ident $fabric:ty, $between:literal;)+) => {
        /// The names of all fabrics between processes, as in [`FABRICS`].
        pub const FABRIC_NAMES: &[&str] = &[$(stringify!($name)),+];
        /// All of them, each with a comma behind it.
        const LISTED_FABRICS: &str = concat!($(stringify!($name), ","),+);
        const ABOUT_FABRICS: &str = concat!(
            "Fabrics that may carry messages between ranks: ", $("`", stringify!($name), "` (", $between, "), ",)+
            "of which the first one named that reaches a rank carries its messages. Collectives on one host share memory \
             wherever `shm` is named. `self` (a rank to itself) is always there. `BANYAN_FABRICS=tcp` forces TCP. See [RDMA](rdma.md)."
        );
    };
}
fabrics!(describe);

/// Every setting.
pub const ALL: &[Setting] = &[
    Setting {
        name: FABRICS,
        default: LISTED_FABRICS.split_at(LISTED_FABRICS.len() - 1).0,
        about: ABOUT_FABRICS,
    },
    Setting {
        name: COLL,
        default: "(chosen by cost)",
        about: "Algorithms to use for collectives, as in `allreduce=ring,bcast=binomial`. \
                `mpirun --explain allreduce:64K -n 8` lists the names. By default the cost model chooses, and on one host [longer calls](performance.md#collectives-measure-themselves) that all ranks wait for \
                measure by which algorithm they go best. The word `model` among the names turns that off, and with `show` the first rank of each communicator says in MPI_Finalize what was measured.",
    },
    Setting {
        name: P2P,
        default: "auto",
        about: "Which way messages of 16 KiB and more take between ranks of one host: `ring` (both sides copy, through shared memory), `nontemporal` (the same, and the receiver copies past its caches), \
                `read` (the receiver reads the sender's memory), `write` (the sender writes the receiver's), `both` (each of them moves one \
                half), `auto` (begins as the machine's profile says, and the receiver measures all of them on the messages themselves and takes the best; with more ranks than \
                cores as `read`), or `show` (the same, and each rank says in MPI_Finalize what it has measured, and how many bytes went by RDMA devices). Where the system refuses a rank the memory of others, messages go through shared memory. \
                The same for all ranks of a job. `mpirun --explain p2p:256K` says more.",
    },
    Setting {
        name: EAGER_BUDGET,
        default: "64M",
        about: "Memory of a rank for messages that arrive before their receive, in bytes (K, M, G). \
                What does not fit waits at the sender. An eighth more may be taken by announcements of messages that wait \
                (16 of each sender at least). The same for all ranks of a job.",
    },
    Setting {
        name: TCP_STREAMS,
        default: "(one for each pair of network interfaces)",
        about: "Number of TCP connections (1 to 16) that a pair of ranks makes if it exchanges messages of more than 256 KiB, which \
                then use all of them: quicker where packets are lost on a long way. The same for all ranks of a job. \
                By default one, or where two hosts share several subnets by interfaces of like speed, one through each (at most 4).",
    },
    Setting {
        name: NIC,
        default: "(all that are up)",
        about: "Network interfaces that ranks on several hosts reach each other at, best first: names as in `ib0,eth0`, or the \
                subnets of their addresses as in `10.0.0.0/8`; also RDMA devices or their ports, as in `mlx5_0` or `mlx5_0:1`. The same \
                for all ranks of a job. See [Networks](networks.md) and [RDMA](rdma.md).",
    },
    Setting {
        name: RDMA,
        default: "(as the device has it)",
        about: "How connections by RDMA devices are to be, as in `pkey=0x8001,sl=3`: `pkey` (partition key), `sl` (service level, 0 to 15), `traffic_class` \
                (0 to 255), `gid_index` (which address of the port, in the place of the one that reaches the peer), `mtu` (largest packet: 256, 512, 1024, 2048 or 4096 bytes, if port and \
                peer can), `connections` (most that stand at a time, else 256), `rails` (1 or 2 ports for a rank, else 2 where no \
                other rank takes the second), `gpudirect` (0: devices do not go to memory of GPUs by themselves); \
                `mlx5_0:sl=3` is for ports of that device alone. The same for all ranks of a job. See [RDMA](rdma.md).",
    },
    Setting {
        name: PORTS,
        default: "(chosen by the system)",
        about: "Ports that ranks on several hosts may listen at, as in `5000-5063`: one for each rank of a host. The same for all \
                ranks of a job.",
    },
    Setting {
        name: PATIENCE,
        default: "30",
        about: "How long a rank on another host may be out of reach before it counts as gone, in seconds (or as in `90s`, `5m`): at first \
                contact, and after its connection broke or fell silent. The same for all ranks of a job. See [The wire](wire.md).",
    },
    Setting {
        name: ENCRYPT,
        default: "0",
        about: "`1`: encrypt all that ranks say to each other over TCP. The same for all ranks of a job. See [The wire](wire.md).",
    },
    Setting {
        name: MACHINE,
        default: "(the one that is kept, else by the family of processors)",
        about: "What things take on the machines that the job runs on, by which algorithms are chosen: the name of a built-in profile \
                (`epyc`, `skylake`, `xeon`, `zen`, `zen3`), or the path of a profile's file, with a `/` in it. The same for all ranks of a job. See \
                [The profile of a machine](performance.md#the-profile-of-a-machine).",
    },
    Setting {
        name: TOPOLOGY,
        default: "(what the system tells)",
        about: "The path of a topology file: where NUMA nodes, NICs and GPUs of the job's hosts are, and what is between them, in the place \
                of what their systems tell, as in containers and virtual machines that hide it. Ranks choose RDMA ports by it. \
                `mpirun --topology=FILE.toml` writes one, `mpirun --topology` shows it. The same for all ranks of a job. See \
                [NICs and GPUs](launching.md#nics-and-gpus).",
    },
    Setting {
        name: GPU,
        default: "auto",
        about: "On which GPUs buffers may be: `auto` (those of CUDA and of HIP, in a program that has loaded their driver, or does so later on a \
                machine with such a device), `cuda`, `hip` (those alone: each rank loads the driver in MPI_Init, which fails where there is none), \
                `off` (none: all memory counts as the host's). The same for all ranks of a job. See [GPUs](gpu.md).",
    },
    Setting {
        name: GPU_IPC,
        default: "64K",
        about: "The shortest message from a GPU to a process of the same host that goes by IPC of CUDA or HIP, in bytes (K, M, G), or `off`: none does, and below 16 KiB none in any case. Shorter ones are copied \
                into a frame and out of it. The same for all ranks of a job. See [GPUs](gpu.md#by-which-way).",
    },
    Setting {
        name: GPU_GDRCOPY,
        default: "2K,32K",
        about: "The longest copies out of memory of CUDA devices, and into it, that the processor makes by itself where NVIDIA's GDRCopy is there, as in `2K,32K`: two lengths in bytes (K, M, G), of which \
                0 is none; or `off`. The same for all ranks of a job. See [GPUs](gpu.md#short-messages).",
    },
    Setting {
        name: MEMORY_ALLOC_KINDS,
        default: "(none is asked for)",
        about: "Kinds of memory that the program is to be able to pass to MPI, as in `system,cuda:device`: what `mpirun --memory-alloc-kinds` sets. Programs \
                find it in `MPI_INFO_ENV`, and those kinds that are taken in the info of their communicators. Other kinds are no error. See \
                [Kinds of memory by name](gpu.md#kinds-of-memory-by-name).",
    },
    Setting {
        name: PMI,
        default: "(by the launcher's variables)",
        about: "How a program that another launcher started joins its job: `pmi1` (Hydra, Intel MPI, Slurm's `pmi2`), `pmix` (PRRTE, \
                Open MPI, Slurm's `pmix`), `none` (it takes no notice of other launchers, and is rank 0 of 1).",
    },
    Setting {
        name: SINGLETON,
        default: "0",
        about: "`1`: start as rank 0 of 1, even inside the environment of another launcher.",
    },
];

/// Settings that must be equal at all ranks of a job: the launcher reads them once and tells the ranks.
pub const COMMON: &[&str] = &[
    FABRICS,
    COLL,
    P2P,
    EAGER_BUDGET,
    TCP_STREAMS,
    NIC,
    RDMA,
    PORTS,
    PATIENCE,
    ENCRYPT,
    MACHINE,
    TOPOLOGY,
    GPU,
    GPU_IPC,
    GPU_GDRCOPY,
];

/// Settings as name and value, or a sentence that says what is wrong with one.
pub type Settings = Result<Vec<(String, String)>, String>;

/// The settings of [`COMMON`] in this process's environment, for ranks whose launcher is not ours.
///
/// # Errors
/// A sentence that names what is not text.
pub fn of_environment() -> Settings {
    let mut settings = Vec::new();
    for &name in COMMON {
        match std::env::var(name) {
            Ok(text) if text.is_empty() => {}
            Ok(text) => settings.push((name.to_owned(), text)),
            Err(std::env::VarError::NotPresent) => {}
            Err(std::env::VarError::NotUnicode(_)) => return Err(format!("{name} is not text")),
        }
    }
    Ok(settings)
}

/// What this process's environment says of [`MEMORY_ALLOC_KINDS`], under that name or under the one by which Open MPI's launcher passes it on.
pub fn memory_alloc_kinds_of_environment() -> Option<String> {
    let said = [MEMORY_ALLOC_KINDS, foreign::MEMORY_ALLOC_KINDS].into_iter().find_map(std::env::var_os);
    said.and_then(|kinds| kinds.into_string().ok()).filter(|kinds| !kinds.is_empty())
}

/// Puts what a setting stands for into its place: `what` gets what the user has asked for, if anything, and gives nothing for what is
/// as good as not set.
///
/// # Errors
/// The setting's name, and what is wrong with it.
pub fn resolve(
    settings: &mut Vec<(String, String)>,
    name: &str,
    what: impl FnOnce(Option<&str>) -> Result<String, String>,
) -> Result<(), String> {
    let asked = settings.iter().position(|(key, _)| key == name).map(|at| settings.remove(at).1);
    let value = what(asked.as_deref()).map_err(|why| format!("{name}: {why}"))?;
    if !value.is_empty() {
        settings.push((name.to_owned(), value));
    }
    Ok(())
}

/// The default of a setting; empty if there is no such setting.
pub fn default_of(name: &str) -> &'static str {
    ALL.iter().find(|setting| setting.name == name).map_or("", |setting| setting.default)
}

/// Reads a list of fabrics. `self` may be named, and changes nothing.
///
/// # Errors
/// A sentence that names the unknown fabric and the known ones.
pub fn fabrics(text: &str) -> Result<Vec<&'static str>, String> {
    let mut list = Vec::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty() && *word != "self") {
        let Some(name) = FABRIC_NAMES.iter().find(|name| **name == word) else {
            return Err(format!(
                "{FABRICS}: there is no fabric \"{word}\"; known are self, {}",
                FABRIC_NAMES.join(", ")
            ));
        };
        if !list.contains(name) {
            list.push(*name);
        }
    }
    Ok(list)
}

/// Prefix of the names of all our variables.
pub const PREFIX: &str = "BANYAN_";

/// Prefix of the variables of the project's own tests.
const TESTS: &str = "BANYAN_TEST_";

/// True if a variable has our prefix but is none of ours: probably a misspelt setting.
pub fn is_unknown(name: &str) -> bool {
    let mut known = ALL.iter().map(|setting| setting.name).chain(crate::JOB_VARIABLES.iter().copied());
    name.starts_with(PREFIX) && !name.starts_with(TESTS) && !known.any(|known| known == name)
}

/// Reads [`SINGLETON`] and [`ENCRYPT`].
///
/// # Errors
/// If it is neither 0 nor 1.
pub fn flag(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        other => Err(format!("\"{other}\" is neither 0 nor 1")),
    }
}

/// The values of [`P2P`], and what each means.
pub const WAYS: [(&str, &str); 7] = [
    ("ring", "both sides copy, through shared memory"),
    ("nontemporal", "the same, and the receiver copies past its caches"),
    ("read", "the receiver reads the sender's memory (process_vm_readv)"),
    ("write", "the sender writes the receiver's memory (process_vm_writev)"),
    ("both", "the receiver reads one half while the sender writes the other one"),
    (MEASURED, "the receiver measures all of them on the messages themselves, and takes the best"),
    (SHOW, "the same, and each rank says in MPI_Finalize what it has measured"),
];

/// The value of [`P2P`] by which the way is chosen by what is measured.
pub const MEASURED: &str = "auto";

/// The value of [`P2P`] that is as [`MEASURED`], and shows what was measured.
pub const SHOW: &str = "show";

/// The way that [`P2P`] stands for on a node, which is `crowded` if it has more ranks than cores: [`MEASURED`], or the name of the one
/// that all messages take. Where ranks take turns on cores a time is that of a turn, so that nothing is measured.
///
/// # Errors
/// A sentence that names the known ways.
pub fn way_of(setting: Option<&str>, crowded: bool) -> Result<&'static str, String> {
    Ok(match setting.map(way).transpose()? {
        None | Some(MEASURED | SHOW) if crowded => "read",
        None | Some(SHOW) => MEASURED,
        Some(name) => name,
    })
}

/// Reads [`P2P`].
///
/// # Errors
/// A sentence that names the known ways.
pub fn way(text: &str) -> Result<&'static str, String> {
    let names = WAYS.map(|(name, _)| name);
    let known = names.into_iter().find(|name| *name == text.trim());
    known.ok_or_else(|| format!("{P2P}: \"{text}\" is no way of messages; known are {}", names.join(", ")))
}

/// Most bytes of [`MEMORY_ALLOC_KINDS`]: those of an info value (MPI_MAX_INFO_VAL of the ABI, less the terminating zero).
const LONGEST_KINDS: usize = 1023;

/// Reads [`MEMORY_ALLOC_KINDS`]: the kinds, each with its restrictors, as in `cuda:device` (MPI 5.0, 11.4.3). They need not be known. An empty text
/// has none.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn memory_alloc_kinds(text: &str) -> Result<Vec<&str>, String> {
    if text.len() > LONGEST_KINDS {
        return Err(format!(
            "the list of kinds of memory has {} bytes, {LONGEST_KINDS} are allowed",
            text.len()
        ));
    }
    let is_word =
        |word: &str| !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c.is_control());
    let kinds = text.split(',').map(str::trim).filter(|_| !text.is_empty());
    kinds
        .map(|kind| match kind.split(':').all(is_word) {
            true => Ok(kind),
            false => Err(format!(
                "\"{kind}\" is no kind of memory; write names, their restrictors behind colons, and a comma between kinds, as in mpi,cuda:device"
            )),
        })
        .collect()
}

/// Reads [`TCP_STREAMS`].
///
/// # Errors
/// A sentence that says what is wrong.
pub fn streams(text: &str) -> Result<u8, String> {
    let number = text.trim().parse().ok().filter(|number| (1..=16).contains(number));
    number.ok_or_else(|| format!("{TCP_STREAMS}: \"{text}\" is no number from 1 to 16"))
}

/// Reads [`PORTS`].
///
/// # Errors
/// A sentence that says what is wrong.
pub fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let text = text.trim();
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| text.trim().parse().ok().filter(|&port: &u16| port > 0);
    let ports = port(first).zip(port(last)).filter(|(first, last)| first <= last);
    ports.map(|(first, last)| first..=last).ok_or_else(|| {
        format!("{PORTS}: \"{text}\" names no ports; write the first and the last, as in 5000-5063")
    })
}

/// Reads a time: `10`, `0.5`, `90s`, `5m`, `2h`.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b's') => (&text[..text.len() - 1], 1.0),
        Some(b'm') => (&text[..text.len() - 1], 60.0),
        Some(b'h') => (&text[..text.len() - 1], 3600.0),
        _ => (text, 1.0),
    };
    // Most times are whole numbers, and a rank that starts reads some: the code that reads others would be in its memory.
    let whole = digits.parse::<u32>().map(f64::from);
    let seconds = whole.ok().or_else(|| digits.parse().ok()).map(|number| number * unit);
    let seconds = seconds.filter(|seconds| (0.0..=1e9).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "not a time such as 10, 0.5, 90s or 5m".to_owned())
}

/// Reads a number of bytes such as `64K`, `1M`, `2G` or `1000`.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|n| n.checked_mul(1 << shift))
        .ok_or_else(|| format!("\"{text}\" is not a number of bytes; write it as in 1000, 64K, 1M or 2G"))
}

/// Reads [`GPU_IPC`]; `u64::MAX`: no message.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn ipc_from(text: &str) -> Result<u64, String> {
    match text.trim() {
        "off" => Ok(u64::MAX),
        text => bytes(text).map_err(|why| format!("{GPU_IPC}: {why}, or off")),
    }
}

/// Reads [`GPU_GDRCOPY`]: the longest copies out of memory of devices and into it; 0: none.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn gdrcopy(text: &str) -> Result<(u64, u64), String> {
    let wrong = |why: String| {
        format!("{GPU_GDRCOPY}: {why}; write the longest reads and writes as in 2K,32K, or off")
    };
    match text.trim() {
        "off" => Ok((0, 0)),
        text => {
            let (read, write) =
                text.split_once(',').ok_or_else(|| wrong(format!("\"{text}\" is not two lengths")))?;
            let bytes = |text: &str| bytes(text.trim()).map_err(wrong);
            Ok((bytes(read)?, bytes(write)?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fabrics_are_named_or_refused() {
        assert_eq!(fabrics("tcp").unwrap(), ["tcp"]);
        assert_eq!(fabrics("self, shm,tcp,tcp").unwrap(), ["shm", "tcp"]);
        assert_eq!(fabrics("").unwrap(), [] as [&str; 0]);
        assert!(fabrics("ib").unwrap_err().contains("\"ib\""));
    }

    #[test]
    fn unknown_variables_are_told_from_settings() {
        assert!(is_unknown("BANYAN_FABRIC") && is_unknown("BANYAN_"));
        for known in ["BANYAN_FABRICS", "BANYAN_RANK", "BANYAN_TEST_PREFIX", "FABRICS", "MPICH_X"] {
            assert!(!is_unknown(known), "{known}");
        }
        assert_eq!((flag("1"), flag("0"), flag("yes").is_err()), (Ok(true), Ok(false), true));
    }

    #[test]
    fn ways_are_named_or_refused() {
        assert!(WAYS.iter().all(|(name, _)| way(name) == Ok(name)));
        assert!(way("rings").unwrap_err().contains("ring, nontemporal, read, write, both, auto"));
    }

    #[test]
    fn copies_by_mapping_have_two_lengths() {
        assert_eq!(gdrcopy(default_of(GPU_GDRCOPY)), Ok((2 << 10, 32 << 10)));
        assert_eq!((gdrcopy("off"), gdrcopy(" 0, 1M ")), (Ok((0, 0)), Ok((0, 1 << 20))));
        for wrong in ["", "2K", "2K,", "2K,x", "on", "1,2,3"] {
            assert!(gdrcopy(wrong).is_err_and(|why| why.starts_with(GPU_GDRCOPY)), "{wrong}");
        }
    }

    #[test]
    fn kinds_of_memory_are_words_with_restrictors() {
        let read = memory_alloc_kinds;
        assert_eq!(
            read("mpi, system,cuda:device:x,no_such-kind").unwrap(),
            ["mpi", "system", "cuda:device:x", "no_such-kind"]
        );
        assert_eq!(read("").unwrap(), [] as [&str; 0]);
        for wrong in [",", "mpi,", "mpi,,system", ":device", "cuda:", "cuda::x", "cu da", "cuda: device", " "]
        {
            assert!(read(wrong).unwrap_err().contains("as in mpi,cuda:device"), "{wrong}");
        }
        assert!(read(&"k".repeat(1023)).is_ok());
        assert!(read(&"k".repeat(1024)).unwrap_err().contains("1024 bytes"));
    }

    #[test]
    fn streams_have_bounds() {
        assert_eq!((streams("1"), streams(" 16")), (Ok(1), Ok(16)));
        for wrong in ["", "0", "17", "-1", "256", "many"] {
            assert!(streams(wrong).unwrap_err().contains(TCP_STREAMS), "{wrong}");
        }
    }

    #[test]
    fn ports_are_a_range() {
        assert_eq!((ports("5000-5063"), ports(" 7 - 7")), (Ok(5000..=5063), Ok(7..=7)));
        assert_eq!(ports("65535"), Ok(65535..=65535));
        for wrong in ["", "-", "0-5", "5-4", "1-65536", "a-b", "1-2-3", "-5"] {
            assert!(ports(wrong).unwrap_err().contains(PORTS), "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_ports_are_read_or_refused(first: u16, last: u16, text: String) {
            let range = ports(&format!("{first}-{last}"));
            proptest::prop_assert_eq!(range.is_ok(), (1..=last).contains(&first));
            if let Ok(range) = ports(&text) { proptest::prop_assert!(*range.start() > 0 && !range.is_empty()); }
        }
    }

    #[test]
    fn bytes_take_units() {
        assert_eq!(bytes("64K"), Ok(65536));
        assert_eq!(bytes("3"), Ok(3));
        assert_eq!(bytes("2g"), Ok(2 << 30));
        for wrong in ["", "K", "-1", "1.5M", "99999999999999999999", "18446744073709551615K", "1é"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
