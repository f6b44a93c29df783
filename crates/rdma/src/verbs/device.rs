//! Devices and their ports.

use std::ffi::CStr;
use std::fs;
use std::mem::zeroed;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use rdma_sys::{
    _compat_ibv_port_attr, ibv_alloc_pd, ibv_atomic_cap, ibv_close_device, ibv_context, ibv_dealloc_pd,
    ibv_device, ibv_device_attr, ibv_fork_init, ibv_free_device_list, ibv_get_device_list,
    ibv_get_device_name, ibv_open_device, ibv_pd, ibv_port_attr, ibv_port_state, ibv_query_device,
    ibv_query_port,
};

use super::{Object, Pair, checked, cm};
use crate::gid::{self, Address, Entry, FOLDER, Kind};
use crate::greeting::Wire;
use crate::locked;
use crate::settings::Settings;

/// The link layer of a port that is Ethernet's.
const ETHERNET: u8 = 2;
/// The kind of device whose connections rdma_cm has to make.
const IWARP: i32 = 1;
/// The maker of the device, as it says, that is iWARP in software: what root locks counts there, too.
const SIW: u32 = 0x62_6d74;

/// An open device, and what one of its ports is.
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) port: u8,
    /// The addresses at which peers may reach it.
    addresses: Vec<Address>,
    /// Where those stand in the port's table now, unless they are gone.
    gids: Mutex<Vec<Option<u8>>>,
    /// Its address within an InfiniBand subnet, whose manager may change it.
    lid: AtomicU16,
    pub(crate) mtu: u8,
    /// Where the partition key stands in the port's table.
    pub(crate) pkey_index: u16,
    pub(crate) sl: u8,
    pub(crate) traffic_class: u8,
    pub(crate) wire: Wire,
    /// The kernel plays the device.
    pub(crate) in_software: bool,
    /// Bytes that this process may lock in memory for it; `None`: as many as there are.
    pub(crate) most_locked: Option<usize>,
    /// Most buffers of a shared receive queue, and most completions of a queue.
    pub(crate) most_receives: u32,
    pub(crate) most_completions: u32,
    /// Reads and atomics at a time, of one connection.
    pub(crate) reads: u8,
    pub(crate) atomics: bool,
    /// Largest transfer, bytes.
    pub(crate) most_bytes: u32,
    pd: Object<ibv_pd>,
    context: Object<ibv_context>,
}

/// A process that forks keeps its registered memory: kernels copy such pages for the child. Older ones are told to leave them out of it; the
/// library would tell newer ones so, too. If that fails, only children that go on with this process's memory are concerned.
fn prepare_forks() {
    if !copies_for_children(&rustix::system::uname().release().to_string_lossy()) {
        // SAFETY: nothing of a device has been made so far by this library.
        let _ = unsafe { ibv_fork_init() };
    }
}

/// Whether the kernel of this version copies registered pages for a child: from 5.13 on.
fn copies_for_children(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    let version: [u32; 2] = std::array::from_fn(|_| numbers.next().unwrap_or(0));
    version >= [5, 13]
}

/// The names of the devices here. Without the kernel's part there are none.
pub fn devices() -> Vec<String> {
    List::get().all().iter().map(|&device| name(device)).collect()
}

impl Device {
    /// Opens a device by name, to use one of its ports, if it can be by addresses in these subnets.
    ///
    /// # Errors
    /// If there is none of that name, or the port cannot be used: a sentence that says why.
    pub(crate) fn open(
        (wanted, number): (&str, u8),
        subnets: &[(IpAddr, u8)],
        settings: &Settings,
    ) -> Result<Device, String> {
        static FORKS: Once = Once::new();
        FORKS.call_once(prepare_forks);
        let list = List::get();
        let device = list.all().iter().copied().find(|&device| name(device) == wanted);
        let device = device.ok_or_else(|| format!("there is no RDMA device {wanted}"))?;
        // SAFETY: a device of the list, which lives until the end of this function.
        let (opened, kind) = unsafe { (ibv_open_device(device), (*device).transport_type) };
        // SAFETY: it was just opened here.
        let context = unsafe { Object::new("context of the device", opened, ibv_close_device)? };
        // SAFETY: the struct holds numbers alone, and the call fills it.
        let mut limits: ibv_device_attr = unsafe { zeroed() };
        // SAFETY: an open device, and memory of the right type.
        checked("its limits", unsafe { ibv_query_device(context.get(), &mut limits) })?;
        let port = port(&context, (wanted, number))?;
        let wire = match (kind, port.link_layer) {
            (IWARP, _) => Wire::Iwarp,
            (_, ETHERNET) => Wire::Ethernet,
            _ => Wire::InfiniBand,
        };
        let (gids, pkey_index) = if wire == Wire::Iwarp {
            settings.fit_iwarp()?;
            let address = Address::of_ip(cm::address(wanted, number)?, 0, Kind::Native);
            (vec![Entry { index: 0, address }], 0)
        } else {
            let table = gid::table((wanted, number));
            let pkeys = pkeys((wanted, number), port.pkey_tbl_len);
            let offered = gid::offered(&table, wire == Wire::Ethernet, subnets);
            (settings.gids(&table, offered)?, settings.pkey_index(&pkeys)?)
        };
        if gids.is_empty() {
            return Err(format!("port {number} of {wanted} has no address"));
        }
        // SAFETY: an open device.
        let pd = unsafe { ibv_alloc_pd(context.get()) };
        let device = Device {
            name: wanted.to_owned(),
            port: number,
            addresses: gids.iter().map(|entry| entry.address).collect(),
            gids: Mutex::new(gids.iter().map(|entry| Some(entry.index)).collect()),
            lid: port.lid.into(),
            mtu: settings.mtu.unwrap_or(u8::MAX).min(port.active_mtu as u8),
            pkey_index,
            sl: settings.sl,
            traffic_class: settings.traffic_class,
            wire,
            // A device of hardware hangs on a bus.
            in_software: !Path::new(FOLDER).join(wanted).join("device").exists(),
            most_locked: locked::limit_on(limits.vendor_id == SIW),
            most_receives: limits.max_srq_wr as u32,
            most_completions: limits.max_cqe as u32,
            // On iWARP a read stands behind all work: siw stops for good where both sides have more under way than are answered.
            reads: (limits.max_qp_rd_atom.min(limits.max_qp_init_rd_atom))
                .clamp(1, if wire == Wire::Iwarp { Pair::DEPTH as i32 } else { 16 }) as u8,
            atomics: limits.atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE,
            most_bytes: port.max_msg_sz,
            // SAFETY: it was just made here.
            pd: unsafe { Object::new("protection domain", pd, ibv_dealloc_pd)? },
            context,
        };
        device.do_not_wait_for_events().map_err(|error| format!("events of {wanted}: {error}"))?;
        Ok(device)
    }

    /// Sees that connections can be made now.
    ///
    /// # Errors
    /// If the port is down, or all of its addresses are gone.
    pub(crate) fn ready(&self) -> Result<(), String> {
        let port = (&*self.name, self.port);
        if !Path::new(FOLDER).join(&self.name).exists() {
            return Err(format!("device {} was removed", self.name));
        }
        let now = self::port(&self.context, port)?;
        self.lid.store(now.lid, Ordering::Relaxed);
        if self.wire == Wire::Iwarp {
            return Ok(());
        }
        let table = gid::table(port);
        let stands = |address: &Address| {
            let same =
                |entry: &&Entry| (entry.address.gid, entry.address.kind) == (address.gid, address.kind);
            table.iter().find(same).map(|entry| entry.index)
        };
        let gids: Vec<Option<u8>> = self.addresses.iter().map(stands).collect();
        if gids.iter().all(Option::is_none) {
            return Err(format!("port {} of {} has lost its addresses", self.port, self.name));
        }
        *self.gids.lock().unwrap_or_else(PoisonError::into_inner) = gids;
        Ok(())
    }

    /// The addresses at which peers may reach it now.
    pub(crate) fn offers(&self) -> Vec<Address> {
        self.addresses().into_iter().map(|(_, address)| address).collect()
    }

    /// The same, each with its place among all that it had at first.
    pub(crate) fn addresses(&self) -> Vec<(u8, Address)> {
        let gids = self.gids.lock().unwrap_or_else(PoisonError::into_inner);
        let all = (0..).zip(&self.addresses).zip(gids.iter());
        all.filter(|(_, gid)| gid.is_some()).map(|((place, address), _)| (place, *address)).collect()
    }

    pub(crate) fn lid(&self) -> u16 {
        self.lid.load(Ordering::Relaxed)
    }

    /// True if it tells which work a peer has refused. On iWARP the connection ends, and that is all.
    pub(crate) fn tells_refusals(&self) -> bool {
        self.wire != Wire::Iwarp
    }

    /// Whether a read may be told to be well over that was not carried out.
    pub(crate) fn misreports_reads(&self) -> bool {
        self.in_software && self.wire == Wire::Ethernet
    }

    /// Number of works that the device gets for each that is posted, at most: with one behind it that confirms it.
    pub(crate) fn works_each(&self) -> u32 {
        if self.misreports_reads() || self.wire == Wire::Iwarp { 2 } else { 1 }
    }

    /// The index in the port's table of the address at this place.
    pub(super) fn gid_index(&self, place: u8) -> Result<u8, String> {
        let gids = self.gids.lock().unwrap_or_else(PoisonError::into_inner);
        let index = gids.get(usize::from(place)).copied().flatten();
        index.ok_or_else(|| format!("port {} of {} has lost an address", self.port, self.name))
    }

    pub(super) fn context(&self) -> *mut ibv_context {
        self.context.get()
    }

    pub(super) fn domain(&self) -> *mut ibv_pd {
        self.pd.get()
    }
}

/// The port that is used, if it is active.
fn port(context: &Object<ibv_context>, (device, number): (&str, u8)) -> Result<ibv_port_attr, String> {
    // SAFETY: the struct holds numbers alone, and the call fills it.
    let mut port: ibv_port_attr = unsafe { zeroed() };
    let filled = (&raw mut port).cast::<_compat_ibv_port_attr>();
    // SAFETY: an open device; the call fills the first part of the struct, which both types begin with.
    checked("its port", unsafe { ibv_query_port(context.get(), number, filled) })?;
    let state = match port.state {
        ibv_port_state::IBV_PORT_ACTIVE => return Ok(port),
        ibv_port_state::IBV_PORT_DOWN => "it is down",
        ibv_port_state::IBV_PORT_INIT | ibv_port_state::IBV_PORT_ARMED => "it waits for the subnet manager",
        _ => "its state is not known",
    };
    Err(format!(
        "port {number} of {device} is not active: {state} (`rdma link` shows ports; is the cable in, and the interface up?)"
    ))
}

/// A port's table of partition keys, as the kernel shows it.
fn pkeys((device, number): (&str, u8), length: u16) -> Vec<u16> {
    let folder = Path::new(FOLDER).join(device).join(format!("ports/{number}/pkeys"));
    let key = |index| {
        let text = fs::read_to_string(folder.join(format!("{index}"))).ok()?;
        u16::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
    };
    (0..length).map(|index| key(index).unwrap_or(0)).collect()
}

/// All devices here, until this ends.
struct List {
    first: *mut *mut ibv_device,
    length: usize,
}

impl List {
    fn get() -> List {
        let mut length = 0;
        // SAFETY: a number to fill.
        let first = unsafe { ibv_get_device_list(&mut length) };
        List { first, length: if first.is_null() { 0 } else { length.max(0) as usize } }
    }

    fn all(&self) -> &[*mut ibv_device] {
        match self.length {
            0 => &[],
            // SAFETY: the library gave so many, which live until `drop`.
            length => unsafe { std::slice::from_raw_parts(self.first, length) },
        }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if !self.first.is_null() {
            // SAFETY: a list of the library, which nobody uses any more; opened devices live on.
            unsafe { ibv_free_device_list(self.first) };
        }
    }
}

fn name(device: *mut ibv_device) -> String {
    // SAFETY: a device of a list that lives, whose name is a C string.
    unsafe { CStr::from_ptr(ibv_get_device_name(device)) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::copies_for_children;

    #[test]
    fn kernels_that_copy_registered_pages_are_known_by_their_version() {
        let copies = ["5.13.0", "5.13-rc1", "5.15.0-91-generic", "6.1.0-56-amd64", "6.12", "10.0"];
        let leaves = ["5.12.19", "5.4.0", "4.18.0-553.el8_10.x86_64", "3.10.0-1160.el7", "", "nonsense"];
        assert!(copies.into_iter().all(copies_for_children));
        assert!(!leaves.into_iter().any(copies_for_children));
    }
}
