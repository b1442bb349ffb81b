//! Tells where and who this process is: the machine's name and addresses, its user, its process id;
//! and how another process was started.
//!
//! Not here: who is at the other end (`handshake.rs`).

use orcheck_format::Result;
use std::net::IpAddr;

/// The addresses of this machine's active interfaces, without loopback ones unless there are no
/// others.
#[allow(unsafe_code)]
pub fn local_addresses() -> Result<Vec<IpAddr>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs fills `first` with a list that we free below, exactly once.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(crate::errno::os_error(
            crate::errno::last_errno(),
            "list network interfaces",
        ));
    }
    let mut found = Vec::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: a node of the live list.
        let one = unsafe { &*next };
        if one.ifa_flags & libc::IFF_UP as u32 != 0 && !one.ifa_addr.is_null() {
            // SAFETY: `ifa_addr` points to an address whose family says which structure it is.
            let ip = unsafe {
                match i32::from((*one.ifa_addr).sa_family) {
                    libc::AF_INET => {
                        let v4 = &*one.ifa_addr.cast::<libc::sockaddr_in>();
                        Some(IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes()))
                    }
                    libc::AF_INET6 => {
                        let v6 = &*one.ifa_addr.cast::<libc::sockaddr_in6>();
                        Some(IpAddr::from(v6.sin6_addr.s6_addr))
                    }
                    _ => None,
                }
            };
            found.extend(
                ip.filter(|ip| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())),
            );
        }
        next = one.ifa_next;
    }
    // SAFETY: the list that getifaddrs made; no reference into it is left.
    unsafe { libc::freeifaddrs(first) };
    if found.iter().any(|ip| !ip.is_loopback()) {
        found.retain(|ip| !ip.is_loopback());
    }
    Ok(found)
}

/// The machine's own name.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// The effective user of this process.
#[must_use]
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The process id of this process.
#[must_use]
pub fn process_id() -> u32 {
    std::process::id()
}

/// The arguments of a process of this machine; none if it is gone, or hidden from this user.
#[must_use]
pub fn arguments_of(pid: i32) -> Vec<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|&byte| byte == 0);
    words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

/// Whether a process of this machine is stopped (SIGSTOP, or by a debugger).
#[must_use]
pub fn is_stopped(pid: i32) -> bool {
    matches!(status_of(pid).split(' ').next(), Some("T" | "t"))
}

/// Whether a process or thread of this machine is just ending (it has no memory any more), by a
/// signal or with an exit code that is not 0: what it had open is closed by the kernel. So is one
/// that cannot be seen from here.
#[must_use]
pub fn is_failing(pid: i32) -> bool {
    /// PF_EXITING of the kernel.
    const EXITING: u64 = 0x4;
    // Breaks if: this is not asked first; what is below waits for a process that is becoming
    // another program, which waits for the answer to the closing of its files.
    let memory = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    if memory.is_empty() {
        return true;
    }
    if memory.lines().any(|line| line.starts_with("VmSize:")) {
        return false;
    }
    let status = status_of(pid);
    // Fields 9 and 52 of proc(5), which counts from 1 and begins before the state, field 3.
    let field = |number: usize| status.split(' ').nth(number - 3)?.parse::<u64>().ok();
    let (flags, code) = (field(9).unwrap_or(0), field(52).unwrap_or(0));
    // Threads of a process that ends well have a signal, but its exit code.
    flags & EXITING != 0 && code != 0
}

/// What `/proc/PID/stat` says from the state on; empty if the process is gone.
fn status_of(pid: i32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program, in parentheses, may contain any byte.
    let name_ends = line.iter().rposition(|&byte| byte == b')');
    let status = name_ends.and_then(|at| line.get(at + 2..));
    String::from_utf8_lossy(status.unwrap_or_default().trim_ascii_end()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_name_and_addresses() {
        assert!(!host_name().is_empty());
        assert!(!local_addresses().unwrap().is_empty());
        assert_eq!(process_id(), std::process::id());
    }
}
