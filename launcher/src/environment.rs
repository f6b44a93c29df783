//! The environment of the ranks: mpirun's own and what the options add. The settings in it are checked here, so that an
//! error is reported once and before any rank starts.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use banyan_coll::Overrides;
use banyan_pmi::settings::{
    self, COLL, EAGER_BUDGET, ENCRYPT, FABRICS, GPU_GDRCOPY, GPU_IPC, MEMORY_ALLOC_KINDS, NIC, P2P, PATIENCE,
    PORTS, RDMA, SINGLETON, TCP_STREAMS,
};

use crate::Trouble;
use crate::options::{Global, nearest};

/// Variables that mean something on one host only, or in one login: other hosts keep their own. A name that ends in `*` stands
/// for all that begin so.
const HOST_BOUND: [&str; 13] = [
    "HOSTNAME",
    "HOST",
    "SSH_*",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_*",
    "DBUS_SESSION_BUS_ADDRESS",
    "TMPDIR",
    "TMUX*",
    "STY",
    "WINDOWID",
    "SHLVL",
];

/// True if other hosts keep their own value of this variable, unless the user passes it on by name.
pub(crate) fn is_host_bound(name: &[u8]) -> bool {
    HOST_BOUND.iter().any(|bound| match bound.strip_suffix('*') {
        Some(start) => name.starts_with(start.as_bytes()),
        None => name == bound.as_bytes(),
    })
}

/// Names and values, in order.
#[derive(Clone, Default, Debug)]
pub(crate) struct Environment(pub(crate) Vec<(OsString, OsString)>);

impl Environment {
    /// This process's environment, less the variables that would tell ranks that they belong to another job, with the
    /// variables of -x and --genvlist.
    ///
    /// # Errors
    /// If a variable of these options has no name.
    pub(crate) fn new(global: &Global) -> Result<Environment, Trouble> {
        let removed = |name: &OsStr| {
            let mut all = banyan_pmi::JOB_VARIABLES.iter().chain(banyan_pmi::FOREIGN_VARIABLES);
            all.any(|variable| *variable == name)
        };
        let mut environment = Environment(std::env::vars_os().filter(|(name, _)| !removed(name)).collect());
        for given in global.genv.iter().chain(&global.genvlist) {
            environment.set(given)?;
        }
        if Ok(global.patience) != settings::duration(settings::default_of(PATIENCE)) {
            environment.set(OsStr::new(&format!("{PATIENCE}={}", global.patience.as_secs_f64())))?;
        }
        if global.encrypt {
            environment.set(OsStr::new(&format!("{ENCRYPT}=1")))?;
        }
        Ok(environment)
    }

    /// `NAME=VALUE` sets a variable. `NAME` alone passes it on, which changes nothing, as all variables are passed on.
    ///
    /// # Errors
    /// If there is no name.
    pub(crate) fn set(&mut self, given: &OsStr) -> Result<(), Trouble> {
        let bytes = given.as_bytes();
        let Some(at) = bytes.iter().position(|&byte| byte == b'=') else {
            if given.is_empty() {
                return Err(Trouble::usage("a variable without a name is to be passed on"));
            }
            return Ok(());
        };
        if at == 0 {
            return Err(Trouble::usage(format!("'{}' names no variable", given.to_string_lossy())));
        }
        let (name, value) = (OsStr::from_bytes(&bytes[..at]), OsStr::from_bytes(&bytes[at + 1..]));
        match self.0.iter_mut().find(|(key, _)| key == name) {
            Some((_, old)) => *old = value.to_owned(),
            None => self.0.push((name.to_owned(), value.to_owned())),
        }
        Ok(())
    }

    /// The value of a variable.
    pub(crate) fn get(&self, name: &str) -> Option<OsString> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
    }

    /// The variables with our prefix that are no settings, each with the setting that may have been meant.
    pub(crate) fn unknown_settings(&self) -> Vec<String> {
        let names = self.0.iter().filter_map(|(name, _)| name.to_str());
        let unknown = names.filter(|name| settings::is_unknown(name));
        let bare = |name: &'static str| name.trim_start_matches(settings::PREFIX);
        let known: Vec<&str> = settings::ALL.iter().map(|setting| bare(setting.name)).collect();
        let described = unknown.map(|name| match nearest(&name[settings::PREFIX.len()..], &known) {
            Some(near) => format!("{name} (did you mean {}{near}?)", settings::PREFIX),
            None => name.to_owned(),
        });
        described.collect()
    }
}

/// Checks the settings in an environment.
///
/// # Errors
/// The first setting that is wrong.
pub(crate) fn check(variable: impl Fn(&str) -> Option<OsString>) -> Result<(), Trouble> {
    let wrong = |name: &str, why: String| match why.starts_with(name) {
        true => Trouble::usage(why),
        false => Trouble::usage(format!("{name}: {why}")),
    };
    let is = |name: &str, valid: &dyn Fn(&str) -> Result<(), String>| {
        let Some(value) = variable(name).filter(|value| value != OsStr::new("")) else { return Ok(()) };
        let text = value.to_str().ok_or_else(|| wrong(name, "is not text".to_owned()))?;
        valid(text).map_err(|why| wrong(name, why))
    };
    is(FABRICS, &|text| settings::fabrics(text).map(drop))?;
    is(P2P, &|text| settings::way(text).map(drop))?;
    is(GPU_IPC, &|text| settings::ipc_from(text).map(drop))?;
    is(GPU_GDRCOPY, &|text| settings::gdrcopy(text).map(drop))?;
    is(EAGER_BUDGET, &|text| settings::bytes(text).map(drop))?;
    is(TCP_STREAMS, &|text| settings::streams(text).map(drop))?;
    is(NIC, &|text| banyan_topo::nic_filters(text).map(drop))?;
    is(RDMA, &|text| banyan_rdma::settings::Settings::read(text).map(drop))?;
    is(PORTS, &|text| settings::ports(text).map(drop))?;
    is(PATIENCE, &|text| settings::duration(text).map(drop))?;
    is(ENCRYPT, &|text| settings::flag(text).map(drop))?;
    is(MEMORY_ALLOC_KINDS, &|text| settings::memory_alloc_kinds(text).map(drop))?;
    is(SINGLETON, &|text| settings::flag(text).map(drop))?;
    is(COLL, &|text| Overrides::parse(text).map(drop))
}

/// Checks that `size` ranks can reach each other over the fabrics that the setting allows.
///
/// # Errors
/// If no fabric between ranks is allowed.
pub(crate) fn check_reach(fabrics: Option<&str>, size: u32) -> Result<(), Trouble> {
    let Some(text) = fabrics.filter(|text| size > 1 && !text.is_empty()) else { return Ok(()) };
    if settings::fabrics(text).is_ok_and(|list| list.is_empty()) {
        let known = settings::FABRIC_NAMES.join(", ");
        return Err(Trouble::usage(format!(
            "{FABRICS}={text} lets no message pass between the {size} ranks: allow one of {known} too, as in {FABRICS}={}, or unset it",
            settings::default_of(FABRICS)
        )));
    }
    Ok(())
}
