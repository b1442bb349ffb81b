//! Implements `liborcheck`, the C boundary of Orcheck.
//!
//! What it does: every `orc_` function checks what the program passes (pointers, lengths, handles,
//! order of calls), turns it into Rust values, calls `orcheck-client`, and turns the answer into a
//! status and a text. `include/orcheck.h` is generated from these modules and committed. The user's
//! own compilers compile `include/orcheck_mpi.h`, `include/orcheck.hpp` and `fortran/` on top of
//! it, so that this library contains no MPI, C++ or Fortran symbol.
//!
//! How: `fault::boundary` runs each call inside `catch_unwind` and keeps the text per thread;
//! `registry` turns handles into sessions without ever dereferencing them.
//!
//! Invariants:
//! 1. No panic leaves an `extern "C"` function: it becomes `ORC_INTERNAL`.
//! 2. A handle is looked up, never dereferenced: stale, forged and NULL handles are `ORC_INVALID`.
//! 3. `orc_request` only loads and stores atomics: it may run in a signal handler.
//! 4. The program's callbacks run on the thread that called (collectives) or that serves the
//!    session (codecs). An `orc_` call from inside one is refused instead of deadlocking.
//! 5. Only `orc_*` is exported.
//!
//! Faults survived: every kind of misuse that is visible through a C interface, failing callbacks,
//! the library's own panics. A wild but non-NULL data pointer is not visible, and faults where it
//! is read.
//!
//! Not here: any decision about checkpoints, which `orcheck-client` and the crates below make.

// These texts appear in a header and in help texts, where brackets are brackets.
#![allow(rustdoc::broken_intra_doc_links)]
#![allow(unsafe_code)]
#![allow(non_camel_case_types, reason = "these are the C names")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the doc comments become orcheck.h, whose opening states the rules for pointers"
)]

const _: () = assert!(
    size_of::<usize>() == 8,
    "handles carry 64 bits; 32-bit machines are not supported"
);

mod codec;
mod collective;
mod convert;
mod cookie;
mod fault;
mod registry;

pub mod checkpoint;
pub mod choose;
pub mod list;
pub mod memory_files;
pub mod regions;
pub mod restart;
pub mod session;
pub mod stats;
pub mod types;
pub mod watch;
