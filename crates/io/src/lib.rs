//! The only door of Orcheck to disks, sockets, memory that is shared between processes, the clock and randomness.
//!
//! Everything above this crate computes; everything that reaches the outside world is here, behind small
//! traits ([`Dir`], [`File`], [`Clock`]) or plain functions, and announces itself to [`Steps`] first, so that a
//! test can stop, fail, cut short or kill at each single effect.
//!
//! Invariants
//! 1. No other crate of the project opens a file or a socket, reads the clock, the environment or randomness.
//! 2. Every effect on a disk or a socket asks [`Steps`] before it happens.
//! 3. Every wait has a deadline given by the caller.
//! 4. A path is opened beneath a directory handle by one component, and no symbolic link is followed there.
//! 5. `unsafe` stays in the modules that say so in their first lines, each block with its reason.
//!
//! Faults survived: short and interrupted reads and writes, full and failing disks, a failed sync (the file is
//! poisoned), dead holders of locks, strangers and liars on a socket, neighbours that write nonsense into
//! shared memory.
//!
//! Not here: what the bytes mean (orcheck-format), and when to read or write which of them (the engine).

// This crate is the one place where the calls banned in the rest of the project are allowed.
#![allow(clippy::disallowed_methods)]

#[cfg(not(all(
    target_os = "linux",
    target_pointer_width = "64",
    target_endian = "little"
)))]
compile_error!("Orcheck runs on 64-bit little-endian Linux (x86-64 and Arm)");

mod accounts;
mod bitmap;
pub mod clock;
pub mod conn;
pub mod copy;
mod descriptor;
pub mod device;
pub mod dir;
pub mod environment;
pub mod error;
pub mod file;
mod fold;
pub mod fork;
#[cfg(not(orcheck_shuttle))]
mod futex;
pub mod gate;
mod guard;
mod head;
pub mod machine;
pub mod mailbox;
pub mod memory;
pub mod net;
pub mod numa;
pub mod paced;
mod pages;
pub mod poll;
pub mod pool;
pub mod probe;
pub mod process;
pub mod ram;
pub mod ring;
pub mod rng;
pub mod secret;
pub mod served;
pub mod signal;
pub mod steps;
pub mod sync;
pub mod testing;
pub mod thread;
pub mod track;
mod uring;

pub use clock::{Clock, SystemClock};
pub use conn::Conn;
pub use device::Device;
pub use dir::{Create, Dir, Entry, Taken, open_dir};
pub use environment::{env_var, read_text, write_file};
pub use error::os_error;
pub use file::{File, read_small, write_small};
pub use gate::{Gate, Gates};
pub use machine::{
    MemoryFacts, cpu_socket, cpuset, file_system_kind, kernel_at_least, kernel_version, memory,
    mount_of, pin_current_thread, sibling_of, thread_cpu_time,
};
pub use mailbox::{Mailbox, drop_note};
pub use memory::{Span, copy_out, crc_span, fill_span, read_span};
pub use net::{Address, Key, Listener, effective_uid, host_name, local_addresses, process_id};
pub use paced::{Pace, paced};
pub use poll::{Poller, Waker};
pub use pool::{Chunk, Pool, PoolShape};
pub use ring::Ring;
pub use rng::random_bytes;
pub use secret::{Secret, SecretSource};
pub use signal::install_signal;
pub use steps::{StepHook, StepInfo, Steps, Verdict};
pub use track::{Tracker, page_bytes};
#[doc(hidden)]
pub use uring::Uring;
