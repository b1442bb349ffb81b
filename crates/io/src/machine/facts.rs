//! Reads facts about the machine: memory and its limits, processors, file systems, the kernel.
//!
//! How: from /proc, /sys and the system calls behind them, at the time of the query.
//!
//! Invariants
//! 1. Memory limits are those of every ancestor control group, of both versions: the tightest one
//!    counts, which is not always the nearest.
//! 2. A fact that the machine does not report is left out or has a stated default, and is never an
//!    error that stops work. Only [`memory`] fails, because budgets depend on it.
//!
//! Faults survived: containers that hide parts of /proc and /sys, groups that vanish meanwhile.
//! Not here: how the facts are used (budgets, pinning: the engine).

use crate::errno::{last_errno, os_error, retry, rustix_error};
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Error, Result};
use rustix::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Facts about memory, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryFacts {
    /// All memory of the machine.
    pub total_bytes: u64,
    /// What the kernel considers available without swapping.
    pub available_bytes: u64,
    /// Every ancestor control group with a limit: (its directory, limit, used). `used` excludes
    /// file pages that the kernel can drop at once.
    pub cgroup_limits: Vec<(String, u64, u64)>,
    /// Free space of /dev/shm; `u64::MAX` if it does not exist. Informative: the pool is a memfd,
    /// which lives in the kernel's own mount and does not count against /dev/shm, however small a
    /// container makes that.
    pub shm_free_bytes: u64,
}

impl MemoryFacts {
    /// What this process can still use: the minimum of the available memory and of what every
    /// control group leaves.
    #[must_use]
    pub fn usable_bytes(&self) -> u64 {
        if off(Switch::GroupLimits) {
            return self.available_bytes;
        }
        self.cgroup_limits
            .iter()
            .map(|(_, limit, used)| limit.saturating_sub(*used))
            .fold(self.available_bytes, u64::min)
    }
}

/// Reads the memory facts.
pub fn memory() -> Result<MemoryFacts> {
    let path = "/proc/meminfo";
    let text = std::fs::read_to_string(path).map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(0);
        os_error(errno, format_args!("read {path}")).next("mount /proc")
    })?;
    let field = |name: &str| -> Result<u64> {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.map(|kib| kib.saturating_mul(1024)).ok_or_else(|| {
            Error::internal(format!("/proc/meminfo: expected a line {name}, found none"))
        })
    };
    let groups = read_proc(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let mounts = read_proc(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    Ok(MemoryFacts {
        total_bytes: field("MemTotal")?,
        available_bytes: field("MemAvailable")?,
        cgroup_limits: cgroup_limits(&groups, &mounts),
        shm_free_bytes: fs::statvfs("/dev/shm")
            .map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize)),
    })
}

/// Small files of the kernel; `None` if unreadable.
fn read_proc(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// A limit above this is no limit (version 1 writes the largest multiple of a page for "none").
const NO_LIMIT_BYTES: u64 = 1 << 60;

/// All limits from the process's own group up to the mount, from the texts of /proc/self/cgroup and
/// mountinfo.
fn cgroup_limits(groups: &str, mounts: &str) -> Vec<(String, u64, u64)> {
    let mut found = Vec::new();
    for line in groups.lines() {
        // hierarchy-ID:controllers:path
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let second = id == "0" && controllers.is_empty();
        if !second && !controllers.split(',').any(|one| one == "memory") {
            continue;
        }
        for (root, mount) in mounts.lines().filter_map(|line| memory_mount(line, second)) {
            // In a container, the mount shows only what is beneath its root.
            let beneath = if root == "/" {
                path
            } else {
                path.strip_prefix(root)
                    .filter(|rest| rest.is_empty() || rest.starts_with('/'))
                    .unwrap_or("")
            };
            let mut group = PathBuf::from(mount);
            let parts = Path::new(beneath)
                .components()
                .filter_map(|part| match part {
                    std::path::Component::Normal(name) => Some(name),
                    _ => None,
                });
            let mut chain = vec![group.clone()];
            for part in parts {
                group.push(part);
                chain.push(group.clone());
            }
            found.extend(
                chain
                    .iter()
                    .rev()
                    .filter_map(|group| group_limit(group, second)),
            );
        }
    }
    found.sort();
    found.dedup();
    found
}

/// (root, mount point) if this line of mountinfo mounts the memory controller of that version.
fn memory_mount(line: &str, second: bool) -> Option<(&str, String)> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (root, mount) = (before.next()?, before.next()?);
    let mut after = after.split(' ');
    let (kind, _, options) = (after.next()?, after.next()?, after.next()?);
    let right = if second {
        kind == "cgroup2"
    } else {
        kind == "cgroup" && options.split(',').any(|one| one == "memory")
    };
    // Mount points are written with spaces and backslashes in octal.
    right.then(|| (root, mount.replace("\\040", " ").replace("\\134", "\\")))
}

fn group_limit(group: &Path, second: bool) -> Option<(String, u64, u64)> {
    let number = |name: &str| read_proc(&group.join(name))?.trim().parse::<u64>().ok();
    let (limit, used, droppable) = if second {
        (
            number("memory.max")?,
            number("memory.current")?,
            "inactive_file",
        )
    } else {
        (
            number("memory.limit_in_bytes")?,
            number("memory.usage_in_bytes")?,
            "total_inactive_file",
        )
    };
    if limit >= NO_LIMIT_BYTES {
        return None;
    }
    let stat = read_proc(&group.join("memory.stat")).unwrap_or_default();
    let droppable = stat
        .lines()
        .find_map(|line| {
            line.strip_prefix(droppable)?
                .strip_prefix(' ')?
                .trim()
                .parse::<u64>()
                .ok()
        })
        .unwrap_or(0);
    Some((
        group.display().to_string(),
        limit,
        used.saturating_sub(droppable),
    ))
}

/// Length of the requested processor mask, in words: 65,536 processors.
const MASK_WORDS: usize = 1024;

/// How many processors the machine has, at least as many as this thread may run on.
#[must_use]
pub fn online_processors() -> usize {
    let online = read_proc(Path::new("/sys/devices/system/cpu/online"));
    online
        .map_or(0, |text| parse_list(text.trim()).len())
        .max(cpuset().len())
}

/// The processors that this thread may run on, ascending; processor 0 alone if the kernel does not
/// report them.
#[must_use]
#[allow(unsafe_code)]
pub fn cpuset() -> Vec<u32> {
    let mut mask = [0u64; MASK_WORDS];
    // SAFETY: the kernel fills at most the size given of a live array. The raw call, because the C
    // library's fixed set ends at 1024 processors.
    let filled = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            0,
            size_of_val(&mask),
            mask.as_mut_ptr(),
        )
    };
    if filled <= 0 {
        return vec![0];
    }
    // The kernel reports how much of the mask it filled; the rest stays zero.
    let filled_bits = 8 * size_of_val(&mask).min(filled as usize) as u32;
    let bits = (0..filled_bits).filter(|cpu| mask[(cpu / 64) as usize] & (1 << (cpu % 64)) != 0);
    bits.collect()
}

fn topology(cpu: u32, name: &str) -> Option<String> {
    read_proc(Path::new(&format!(
        "/sys/devices/system/cpu/cpu{cpu}/topology/{name}"
    )))
}

/// The socket of a processor; 0 if the kernel does not report it.
#[must_use]
pub fn cpu_socket(cpu: u32) -> u32 {
    topology(cpu, "physical_package_id")
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Another hardware thread of the same core that this thread may run on, if there is one.
#[must_use]
pub fn sibling_of(cpu: u32) -> Option<u32> {
    let siblings = parse_list(&topology(cpu, "thread_siblings_list")?);
    let ours = cpuset();
    siblings
        .into_iter()
        .find(|one| *one != cpu && ours.contains(one))
}

/// "0-3,8" as numbers; what is not a number is skipped.
pub fn parse_list(text: &str) -> Vec<u32> {
    let mut list = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            list.extend(first..=last.min(first.saturating_add(65_535)));
        }
    }
    list
}

/// Restricts the calling thread to these processors.
#[allow(unsafe_code)]
pub fn pin_current_thread(cpus: &[u32]) -> Result<()> {
    let mut mask = [0u64; MASK_WORDS];
    for cpu in cpus {
        let word = mask
            .get_mut((cpu / 64) as usize)
            .ok_or_else(|| Error::invalid(format!("pin to processor {cpu}: there is none")))?;
        *word |= 1 << (cpu % 64);
    }
    // SAFETY: the kernel reads at most the size given of a live array.
    let done = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            0,
            size_of_val(&mask),
            mask.as_ptr(),
        )
    };
    if done != 0 {
        return Err(os_error(
            last_errno(),
            format_args!("pin a thread to processors {cpus:?}"),
        )
        .next("choose processors from the set that the job was given"));
    }
    Ok(())
}

/// Processor time that the calling thread has used.
#[must_use]
pub fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// The kind of the file system of a path: "ext4", "xfs", "tmpfs", "lustre", "nfs" …; "unknown
/// (0x…)" for one that is not in the list.
pub fn file_system_kind(path: &Path) -> Result<String> {
    let stat = retry(|| fs::statfs(path)).map_err(|errno| {
        rustix_error(
            errno,
            format_args!("look at the file system of {}", path.display()),
        )
    })?;
    let magic = stat.f_type as u64 & 0xffff_ffff;
    let name = match magic {
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x0102_1994 => "tmpfs",
        0x8584_58f6 => "ramfs",
        0x0bd0_0bd0 => "lustre",
        0x6969 => "nfs",
        0x4750_4653 => "gpfs",
        0x1983_0326 => "beegfs",
        0x00c3_6400 => "ceph",
        0x6573_5546 => "fuse",
        0x794c_7630 => "overlay",
        0x2fc1_2fc1 => "zfs",
        0xf2f5_2010 => "f2fs",
        0xff53_4d42 | 0xfe53_4d42 => "smb",
        0x0102_1997 => "9p",
        0xaad7_aaea => "panfs",
        0x2003_0528 => "orangefs",
        0x5346_414f => "afs",
        0x2011_bab0 => "exfat",
        0x4d44 => "vfat",
        0x9fa0 => "proc",
        0x6265_6572 => "sysfs",
        0x2468_ace0 => "daos",
        _ => return Ok(format!("unknown (0x{magic:x})")),
    };
    Ok(name.to_owned())
}

/// The mount that holds a path: its source ("/dev/vda1", "10.0.0.1@tcp:/scratch") and its type as
/// the kernel knows it ("ext4", "fuse.sshfs"). `None` if /proc does not report it.
#[must_use]
pub fn mount_of(path: &Path) -> Option<(String, String)> {
    let stat = retry(|| fs::stat(path)).ok()?;
    let device = format!("{}:{}", fs::major(stat.st_dev), fs::minor(stat.st_dev));
    let text = read_proc(Path::new("/proc/self/mountinfo"))?;
    mount_in(&text, &device)
}

/// (source, type) of the last mount of this device in the text of mountinfo.
fn mount_in(text: &str, device: &str) -> Option<(String, String)> {
    let mut mounts = text.lines().filter_map(|line| {
        let (place, what) = line.split_once(" - ")?;
        let mut what = what.split(' ');
        let (kind, source) = (what.next()?, what.next()?);
        (place.split(' ').nth(2)? == device).then(|| (unescaped(source), unescaped(kind)))
    });
    mounts.next_back()
}

/// Decodes the kernel's escapes: a backslash and three octal digits stand for a byte.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part
            .get(..3)
            .and_then(|code| u8::from_str_radix(code, 8).ok());
        match code {
            Some(code) if code.is_ascii() => {
                plain.push(char::from(code));
                plain.push_str(&part[3..]);
            }
            _ => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

/// The kernel's release, such as "4.18.0-553.el8".
#[must_use]
pub fn kernel_version() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

/// Whether the kernel reports at least this version; features are probed where they are used, this
/// is for reports.
#[must_use]
pub fn kernel_at_least(major: u32, minor: u32) -> bool {
    let release = kernel_version();
    let mut parts = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (major, minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_by_its_device_and_its_name_is_plain() {
        let text = "36 1 254:1 / / rw - ext4 /dev/vda1 rw\n\
                    217 43 0:60 / /mfs rw,nosuid - fuse mfs\\043198.18.2.1:9421 rw\n\
                    218 43 0:61 / /a\\040b rw shared:1 - lustre 10.0.0.1@tcp:/scr\\x rw\n";
        let found = |device| mount_in(text, device);
        let some = |source: &str, kind: &str| Some((source.to_owned(), kind.to_owned()));
        assert_eq!(found("0:60"), some("mfs#198.18.2.1:9421", "fuse"));
        assert_eq!(found("0:61"), some("10.0.0.1@tcp:/scr\\x", "lustre"));
        assert_eq!(found("0:6"), None);
        assert!(mount_of(Path::new("/")).is_some());
    }
    use orcheck_testing::Scratch;

    #[test]
    fn this_machine_tells_its_facts() {
        let facts = memory().unwrap();
        assert!(facts.total_bytes >= facts.available_bytes && facts.available_bytes > 0);
        assert!(facts.usable_bytes() <= facts.available_bytes);
        let cpus = cpuset();
        assert!(!cpus.is_empty());
        assert!(cpu_socket(cpus[0]) < 1024);
        assert!(sibling_of(cpus[0]).is_none_or(|one| one != cpus[0] && cpus.contains(&one)));
        assert!(kernel_at_least(4, 18), "{}", kernel_version());
        assert!(!kernel_at_least(1000, 0));
        assert_eq!(file_system_kind(Path::new("/proc")).unwrap(), "proc");
    }

    #[test]
    fn pinning_changes_the_set_of_this_thread_only() {
        let all = cpuset();
        let last = all[all.len() - 1];
        std::thread::spawn(move || {
            pin_current_thread(&[last]).unwrap();
            assert_eq!(cpuset(), vec![last]);
            assert!(pin_current_thread(&[]).is_err());
            assert!(pin_current_thread(&[u32::MAX]).is_err());
        })
        .join()
        .unwrap();
        assert_eq!(cpuset(), all);
    }

    #[test]
    fn lists_of_processors() {
        assert_eq!(parse_list("0-2,8\n"), vec![0, 1, 2, 8]);
        assert_eq!(parse_list("nonsense,4"), vec![4]);
        assert_eq!(parse_list(""), Vec::<u32>::new());
    }

    #[test]
    fn thread_time_counts_work() {
        let before = thread_cpu_time();
        let mut sum = 0u64;
        while thread_cpu_time() == before {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(1));
        }
        assert!(thread_cpu_time() > before);
    }

    /// Writes `text` to files beneath the scratch directory, making parents.
    fn lay_out(scratch: &Scratch, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = scratch.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn every_ancestor_group_counts_in_both_versions() {
        let scratch = Scratch::new("cgroup");
        lay_out(
            &scratch,
            &[
                ("v2/job/memory.max", "1000000\n"),
                ("v2/job/memory.current", "600000\n"),
                ("v2/job/memory.stat", "anon 1\ninactive_file 100000\n"),
                ("v2/job/step/memory.max", "max\n"),
                ("v2/job/step/memory.current", "5\n"),
                ("v1/a/memory.limit_in_bytes", "900000\n"),
                ("v1/a/memory.usage_in_bytes", "890000\n"),
                ("v1/a/b/memory.limit_in_bytes", "9223372036854771712\n"),
                ("v1/a/b/memory.usage_in_bytes", "3\n"),
            ],
        );
        let base = scratch.path().display();
        let mounts = format!(
            "30 1 0:1 / {base}/v2 rw shared:1 - cgroup2 cgroup2 rw\n\
             31 1 0:2 / {base}/v1 rw - cgroup cgroup rw,memory\n\
             32 1 0:3 / {base}/other rw - cgroup cgroup rw,cpu\n"
        );
        let limits = cgroup_limits("4:memory:/a/b\n2:cpu:/x\n0::/job/step\n", &mounts);
        assert_eq!(
            limits,
            vec![
                (format!("{base}/v1/a"), 900_000, 890_000),
                (format!("{base}/v2/job"), 1_000_000, 500_000),
            ]
        );
        let facts = MemoryFacts {
            total_bytes: 1 << 40,
            available_bytes: 1 << 39,
            cgroup_limits: limits,
            shm_free_bytes: 0,
        };
        // Breaks if: only the nearest group, or only one version, is considered.
        assert_eq!(facts.usable_bytes(), 10_000);
        // In a container, the mount's root is the group itself.
        let mounts = format!("30 1 0:1 /job {base}/v2/job rw - cgroup2 cgroup2 rw\n");
        assert_eq!(cgroup_limits("0::/job/step\n", &mounts).len(), 1);
        assert_eq!(cgroup_limits("nonsense\n::\n0::/../..\n", &mounts).len(), 1);
        assert_eq!(cgroup_limits("0::/job\n", "nonsense\n - \n"), vec![]);
    }
}
