//! The slots of Open MPI's rankfiles: cores by their number in this machine, or in one of its sockets.

use crate::binding::Unit;
use crate::cpus::CpuSet;
use crate::machine::{Cpu, Machine};

/// The CPUs of the slots in `text`: `*` (all), cores of the machine as in `0-3,8`, or cores of one socket as in `1:0-2`
/// or `1:*`; several parts of these kinds are joined by `;`. Cores and sockets are numbered from 0 in the order of
/// [`Machine::cpus`].
///
/// # Errors
/// A sentence on what is wrong, with what the machine has.
pub fn slots(machine: &Machine, text: &str) -> Result<CpuSet, String> {
    let parts = text.split(';').map(|part| part_of(machine, part.trim())).collect::<Result<Vec<_>, _>>()?;
    Ok(parts.concat().iter().map(|cpu| cpu.id).collect())
}

fn part_of(machine: &Machine, part: &str) -> Result<Vec<Cpu>, String> {
    let Some((socket, cores)) = part.split_once(':') else {
        return cores_of(machine.cpus(), part, "this machine");
    };
    let sockets = Unit::Socket.split(machine.cpus());
    let number = socket.parse::<usize>().map_err(|_| format!("'{socket}' is not the number of a socket"))?;
    let within = sockets.get(number).ok_or_else(|| {
        let have = sockets.len();
        format!("there is no socket {number}: this machine has {have}, counted from 0")
    })?;
    cores_of(within, cores, &format!("socket {number}"))
}

/// The CPUs of the cores in `list`, numbered among the cores of `cpus`; errors call these cores `whole`.
fn cores_of(cpus: &[Cpu], list: &str, whole: &str) -> Result<Vec<Cpu>, String> {
    if list == "*" {
        return Ok(cpus.to_vec());
    }
    let cores = Unit::Core.split(cpus);
    let numbers: CpuSet =
        list.parse().map_err(|_| format!("'{list}' is not a list of cores such as 0-3,8"))?;
    if numbers.is_empty() {
        return Err("no core is named".to_owned());
    }
    let core = |number: u32| {
        let have = cores.len();
        let error =
            || format!("there is no core {number}: {whole} has {have} that this job may use, counted from 0");
        cores.get(number as usize).cloned().ok_or_else(error)
    };
    Ok(numbers.iter().map(core).collect::<Result<Vec<_>, _>>()?.concat())
}
