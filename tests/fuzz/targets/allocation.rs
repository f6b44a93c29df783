//! Variables and files of resource managers: any text is an allocation of bounded size, none, or an error.
//!
//! Parser: launcher/src/allocation.rs
#![no_main]

use banyan_launcher::allocation::{counts, find, nodelist};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(names) = nodelist(text) {
        assert!(!names.is_empty() && names.len() <= 100_000);
    }
    assert!(counts(text, 7).is_none_or(|counts| counts.len() <= 8));
    let names = [
        "SLURM_JOB_NODELIST",
        "PBS_NODEFILE",
        "LSB_MCPU_HOSTS",
        "LSB_DJOB_HOSTFILE",
        "PE_HOSTFILE",
        "HYDRA_HOST_FILE",
    ];
    for name in names {
        let variable = |asked: &str| match asked {
            "K_MPI_JOB_ROLE" => Some("launcher".to_owned()),
            asked => (asked == name).then(|| text.to_owned()),
        };
        if let Ok(Some(allocation)) = find(&variable, &|_| Ok(text.to_owned())) {
            assert!(!allocation.hosts.is_empty());
            assert!(allocation.hosts.iter().all(|(name, _)| !name.is_empty() && !name.starts_with('-')));
        }
    }
});
