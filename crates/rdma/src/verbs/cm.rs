//! Connections by rdma_cm, which makes those of iWARP, between queue pairs that were made without it.

use std::ffi::{CStr, c_void};
use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

use rdma_sys::{
    ibv_get_device_name, rdma_accept, rdma_ack_cm_event, rdma_bind_addr, rdma_cm_event, rdma_cm_event_type,
    rdma_cm_id, rdma_conn_param, rdma_connect, rdma_create_event_channel, rdma_create_id,
    rdma_destroy_event_channel, rdma_destroy_id, rdma_event_channel, rdma_event_str, rdma_get_cm_event,
    rdma_get_src_port, rdma_listen, rdma_port_space, rdma_resolve_addr, rdma_resolve_route,
};

use super::Object;

/// Requests that wait to be answered, at most.
const BACKLOG: i32 = 128;
/// The time that the system has to find the way to a peer.
const RESOLVING_MS: i32 = 2000;

/// What tells of connections.
struct Channel(Object<rdma_event_channel>);

/// One end of a connection, or what listens for some. It ends with this.
pub(crate) struct End {
    id: Object<rdma_cm_id>,
    channel: Arc<Channel>,
}

/// What rdma_cm tells of a queue pair, by its number.
pub(crate) enum Event {
    /// The way to its peer is known: it can ask for the connection.
    Reached(u32),
    /// A peer asks for a connection, and says this.
    Asked(End, Vec<u8>),
    /// Its connection stands.
    Stands(u32),
    /// It has no connection, or none any more, and why.
    Over(u32, String),
}

/// The error of a call that sets `errno`.
fn done(what: &str, result: i32) -> Result<(), String> {
    if result == 0 { Ok(()) } else { Err(format!("{what}: {}", io::Error::last_os_error())) }
}

impl Channel {
    fn new() -> Result<Arc<Channel>, String> {
        unsafe extern "C" fn end(channel: *mut rdma_event_channel) -> i32 {
            // SAFETY: as `Object` promises.
            unsafe { rdma_destroy_event_channel(channel) };
            0
        }
        // SAFETY: takes nothing.
        let channel = unsafe { rdma_create_event_channel() };
        // SAFETY: it was just made here.
        let channel = Channel(unsafe { Object::new("channel of rdma_cm", channel, end)? });
        let flags = rustix::fs::fcntl_getfl(channel.descriptor()).and_then(|flags| {
            rustix::fs::fcntl_setfl(channel.descriptor(), flags | rustix::fs::OFlags::NONBLOCK)
        });
        flags.map_err(|error| format!("the channel of rdma_cm: {error}"))?;
        Ok(Arc::new(channel))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open while this is there.
        unsafe { BorrowedFd::borrow_raw((*self.0.get()).fd) }
    }
}

/// An address in the system's form.
fn raw(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: the struct holds numbers alone.
    let mut out: libc::sockaddr_storage = unsafe { zeroed() };
    match address {
        SocketAddr::V4(v4) => {
            let raw = (&raw mut out).cast::<libc::sockaddr_in>();
            // SAFETY: the storage has room for an address of any family, and fits it.
            let raw = unsafe { &mut *raw };
            raw.sin_family = libc::AF_INET as u16;
            raw.sin_port = v4.port().to_be();
            raw.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
        }
        SocketAddr::V6(v6) => {
            let raw = (&raw mut out).cast::<libc::sockaddr_in6>();
            // SAFETY: as above.
            let raw = unsafe { &mut *raw };
            raw.sin6_family = libc::AF_INET6 as u16;
            raw.sin6_port = v6.port().to_be();
            raw.sin6_addr.s6_addr = v6.ip().octets();
        }
    }
    out
}

impl End {
    /// One that has an address of this host, and the device that this belongs to.
    fn bound(channel: &Arc<Channel>, pair: u32, ip: IpAddr) -> Result<End, String> {
        let mut id = null_mut();
        // What comes back with its events.
        let context = without_provenance_mut::<c_void>(pair as usize);
        // SAFETY: a channel, which lives on with this, and a place for the object.
        let made = unsafe { rdma_create_id(channel.0.get(), &mut id, context, rdma_port_space::RDMA_PS_TCP) };
        done("rdma_cm", made)?;
        let end = End::new(id, channel)?;
        let mut address = raw(SocketAddr::new(ip, 0));
        // SAFETY: an object that is new, and an address.
        let bound = unsafe { rdma_bind_addr(end.id.get(), (&raw mut address).cast()) };
        done("the host's address for rdma_cm", bound)?;
        Ok(end)
    }

    fn new(id: *mut rdma_cm_id, channel: &Arc<Channel>) -> Result<End, String> {
        // SAFETY: rdma_cm has just made it for this process.
        let id = unsafe { Object::new("object of rdma_cm", id, rdma_destroy_id)? };
        Ok(End { id, channel: channel.clone() })
    }

    /// The name and the port of the device that its address belongs to.
    fn device(&self) -> Option<(String, u8)> {
        // SAFETY: the object is there while this is.
        let (verbs, port) = unsafe { ((*self.id.get()).verbs, (*self.id.get()).port_num) };
        // SAFETY: an open device, if there is one, with a name.
        let name =
            (!verbs.is_null()).then(|| unsafe { CStr::from_ptr(ibv_get_device_name((*verbs).device)) });
        name.map(|name| (name.to_string_lossy().into_owned(), port))
    }

    /// Asks the peer for the connection by a queue pair of this side, and says something. Both sides answer so many reads at a time.
    pub(super) fn ask(&self, pair: u32, reads: u8, say: &[u8]) -> Result<(), String> {
        // SAFETY: an object that has found its peer, and what the connection is to be like, which is read before this returns.
        done("a request for a connection", unsafe {
            rdma_connect(self.id.get(), &mut param(pair, reads, say))
        })
    }

    /// Accepts the connection that was asked for, by a queue pair of this side.
    pub(super) fn accept(&self, pair: u32, reads: u8) -> Result<(), String> {
        // SAFETY: the object is there while this is; its context is ours.
        unsafe { (*self.id.get()).context = without_provenance_mut(pair as usize) };
        // SAFETY: as above.
        done("the answer to a request", unsafe { rdma_accept(self.id.get(), &mut param(pair, reads, &[])) })
    }
}

/// What a connection is to be like.
fn param(pair: u32, reads: u8, say: &[u8]) -> rdma_conn_param {
    // SAFETY: the struct holds numbers, and a pointer that may be null.
    let mut param: rdma_conn_param = unsafe { zeroed() };
    (param.private_data, param.private_data_len) = (say.as_ptr().cast(), say.len() as u8);
    (param.responder_resources, param.initiator_depth) = (reads, reads);
    (param.qp_num, param.srq) = (pair, 1);
    param
}

/// The address of this host that belongs to a device's port: one that others reach best comes first.
pub(super) fn address(device: &str, port: u8) -> Result<IpAddr, String> {
    let channel = Channel::new()?;
    let mut all: Vec<IpAddr> = banyan_topo::all_addresses()?.iter().map(|of| of.ip).collect();
    all.retain(|ip| !ip.is_loopback() && !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()));
    all.sort_by_key(IpAddr::is_ipv6);
    let of_device = |ip: &IpAddr| {
        End::bound(&channel, 0, *ip).ok().and_then(|end| end.device()) == Some((device.to_owned(), port))
    };
    all.into_iter().find(of_device).ok_or_else(|| {
        format!(
            "rdma_cm knows no address of this host for port {port} of {device}: its network interface takes one of IPv4, or of IPv6 that \
             is not link-local"
        )
    })
}

/// Makes connections, and listens for those that peers ask for.
pub(crate) struct Manager {
    listener: End,
    address: IpAddr,
}

impl Manager {
    /// Listens at an address of this host.
    pub(crate) fn new(address: IpAddr) -> Result<Manager, String> {
        let listener = End::bound(&Channel::new()?, 0, address)?;
        // SAFETY: an object that has an address.
        done("listening by rdma_cm", unsafe { rdma_listen(listener.id.get(), BACKLOG) })?;
        Ok(Manager { listener, address })
    }

    /// The number (of a TCP port) at which it listens.
    pub(crate) fn listens(&self) -> u16 {
        // SAFETY: an object that has an address.
        u16::from_be(unsafe { rdma_get_src_port(self.listener.id.get()) })
    }

    /// Looks for the way from a queue pair to a peer; [`Event::Reached`] tells that it is known.
    pub(super) fn reach(&self, pair: u32, peer: SocketAddr) -> Result<End, String> {
        let end = End::bound(&self.listener.channel, pair, self.address)?;
        let mut address = raw(peer);
        // SAFETY: an object that has an address, and the peer's.
        let begun =
            unsafe { rdma_resolve_addr(end.id.get(), null_mut(), (&raw mut address).cast(), RESOLVING_MS) };
        done("the way to the peer", begun)?;
        Ok(end)
    }

    /// What has happened next, if something has.
    pub(crate) fn next(&self) -> Option<Event> {
        loop {
            let mut event = null_mut();
            // SAFETY: a channel, which does not block, and a place for what it tells.
            if unsafe { rdma_get_cm_event(self.listener.channel.0.get(), &mut event) } != 0 {
                return None;
            }
            // SAFETY: an event that was just given, until it is given back.
            let happened = self.read(unsafe { &*event });
            // SAFETY: as above; nobody uses it any more.
            unsafe { rdma_ack_cm_event(event) };
            if happened.is_some() {
                return happened;
            }
        }
    }

    fn read(&self, event: &rdma_cm_event) -> Option<Event> {
        use rdma_cm_event_type as type_is;
        // SAFETY: an object of ours, or one that the event brings.
        let pair = unsafe { (*event.id).context }.addr() as u32;
        match event.event {
            type_is::RDMA_CM_EVENT_ADDR_RESOLVED => {
                // SAFETY: the object that has just found its peer's address.
                let begun =
                    done("the way to the peer", unsafe { rdma_resolve_route(event.id, RESOLVING_MS) });
                begun.err().map(|why| Event::Over(pair, why))
            }
            type_is::RDMA_CM_EVENT_ROUTE_RESOLVED => Some(Event::Reached(pair)),
            type_is::RDMA_CM_EVENT_CONNECT_REQUEST => {
                // SAFETY: such an event says what the peer has said.
                let said = unsafe { event.param.conn };
                let bytes = match (said.private_data.is_null(), said.private_data_len) {
                    (false, length @ 1..) => {
                        // SAFETY: so many bytes are there until the event is given back.
                        unsafe { std::slice::from_raw_parts(said.private_data.cast(), length.into()) }
                    }
                    _ => &[][..],
                };
                Some(Event::Asked(End::new(event.id, &self.listener.channel).ok()?, bytes.to_vec()))
            }
            type_is::RDMA_CM_EVENT_ESTABLISHED => Some(Event::Stands(pair)),
            type_is::RDMA_CM_EVENT_ADDR_ERROR
            | type_is::RDMA_CM_EVENT_ROUTE_ERROR
            | type_is::RDMA_CM_EVENT_CONNECT_ERROR
            | type_is::RDMA_CM_EVENT_UNREACHABLE
            | type_is::RDMA_CM_EVENT_REJECTED
            | type_is::RDMA_CM_EVENT_DISCONNECTED
            | type_is::RDMA_CM_EVENT_DEVICE_REMOVAL => {
                // SAFETY: the library has a text for each number.
                let what = unsafe { CStr::from_ptr(rdma_event_str(event.event)) }.to_string_lossy();
                let status = match event.status {
                    0 => String::new(),
                    status => format!(" ({})", io::Error::from_raw_os_error(status.abs())),
                };
                Some(Event::Over(pair, format!("rdma_cm says {what}{status}")))
            }
            _ => None,
        }
    }

    /// The descriptor that is readable when something has happened.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.channel.descriptor()
    }
}
