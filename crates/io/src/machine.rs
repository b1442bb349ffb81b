//! Describes the machine and this process on it, and starts other processes.
//!
//! | file | what |
//! | --- | --- |
//! | `facts.rs` | memory and its limits, processors, file systems, the kernel |
//! | `probe.rs` | tries what the kernel can do |
//! | `here.rs` | the machine's name and addresses, this process's user and number |
//! | `mounts.rs` | unmounts file systems |
//! | `accounts.rs` | names of users and groups |
//! | `process.rs` | starts programs that stay |
//! | `trace.rs` | watches how a command writes files |
//! | `thread.rs` | threads of our own inside the program's process |
//! | `fork.rs` | detects a forked child |
//! | `signal.rs` | notices a signal without taking it away from the program |

mod accounts;
mod facts;
pub mod fork;
mod here;
mod mounts;
mod probe;
mod process;
mod signal;
pub mod thread;
mod trace;

pub(crate) use accounts::shown_group;
pub use accounts::{group_id, shown_user};
pub use facts::{
    MemoryFacts, cpu_socket, cpuset, file_system_kind, kernel_at_least, kernel_version, memory,
    mount_of, online_processors, parse_list, pin_current_thread, sibling_of, thread_cpu_time,
};
pub use here::{
    arguments_of, effective_uid, host_name, is_failing, is_stopped, local_addresses, process_id,
};
pub use mounts::{is_dead_mount, unmount};
pub use probe::kernel_features;
pub use process::{
    AGENT_NAME, close_inherited, leave_starter, lower_limit, most_descriptors, raise_limits,
    silence, start_detached, start_self,
};
pub use signal::install_signal;
pub use trace::{Effect, Watched, WatchedEnd, rank_of, watch_writes};
