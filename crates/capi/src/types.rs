//! Defines the C types: statuses, levels, element types and the structures that a program fills in.
//!
//! What it does: it fixes names, values and layout of the ABI. Everything here appears in
//! `orcheck.h`.
//!
//! Invariants:
//! 1. Values of enumerators never change; new ones are added at the end.
//! 2. A structure grows only at its end, and starts with `struct_size`; see `convert::covers`.
//! 3. Enumerations are only returned, never passed in: functions take a C `int` and check it,
//!    because a value outside an enumeration would be undefined behaviour before it could be
//!    checked.
//!
//! Not here: what the functions do with them.

use std::ffi::{c_char, c_int, c_void};

/// The version of this interface, which the macro orc_open() passes to orc_open_v(). If a program
/// was built for an interface that the library does not have, orc_open() refuses it.
pub const ORC_API: c_int = 1;

/// The result of a call. Every status except ::ORC_OK leaves a text for orc_message(). All except
/// ::ORC_OK and ::ORC_AGAIN are errors.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum orc_status {
    /// Success. orc_message() is "" or a warning.
    ORC_OK = 0,
    /// The call itself is wrong: an argument, a closed session, the order of calls.
    ORC_INVALID = 1,
    /// There is no such step, region or file. From orc_find(): a fresh start.
    ORC_NOT_FOUND = 2,
    /// A deadline has passed, or a directory, node or network cannot be reached now.
    ORC_UNAVAILABLE = 3,
    /// A disk, quota or memory budget is exhausted.
    ORC_NO_SPACE = 4,
    /// Stored bytes are not what was written.
    ORC_CORRUPT = 5,
    /// A newer run of this job has taken over; this one can no longer commit.
    ORC_FENCED = 6,
    /// Not supported by this version of the library, this kernel or this file system.
    ORC_UNSUPPORTED = 7,
    /// A defect in Orcheck. Please report it with the text of orc_message().
    ORC_INTERNAL = 8,
    /// Not an error: a newer step is damaged, and the older one that is now used has other regions
    /// or sizes. Ask orc_stored() again, protect regions of these sizes, and repeat the call. Only
    /// from orc_restart() and orc_restart_region().
    ORC_AGAIN = 9,
}

/// Which checkpoint orc_find_step() looks for.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum orc_which {
    /// The checkpoint of exactly this step.
    ORC_EXACTLY = 1,
    /// The newest checkpoint older than this step.
    ORC_OLDER_THAN = 2,
}

/// What a committed checkpoint survives. The options node_dir, peers, global and agent determine
/// which levels exist; orc_wait() also accepts a configured level that survives more than the
/// requested one.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum orc_level {
    /// The crash of a rank.
    ORC_PROCESS = 1,
    /// The loss of all processes of a node, or its reboot.
    ORC_NODE = 2,
    /// The loss of nodes, thanks to copies on other nodes.
    ORC_PEERS = 3,
    /// The loss of the whole allocation.
    ORC_GLOBAL = 4,
}

/// The type of a region's elements. It is stored, and checked at restart.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum orc_dtype {
    /// Bytes without a type.
    ORC_BYTES = 0,
    /// Signed, 1 byte.
    ORC_I8 = 1,
    /// Signed, 2 bytes.
    ORC_I16 = 2,
    /// Signed, 4 bytes.
    ORC_I32 = 3,
    /// Signed, 8 bytes.
    ORC_I64 = 4,
    /// Unsigned, 1 byte.
    ORC_U8 = 5,
    /// Unsigned, 2 bytes.
    ORC_U16 = 6,
    /// Unsigned, 4 bytes.
    ORC_U32 = 7,
    /// Unsigned, 8 bytes.
    ORC_U64 = 8,
    /// IEEE 754 half precision, 2 bytes.
    ORC_F16 = 9,
    /// IEEE 754 single precision, 4 bytes.
    ORC_F32 = 10,
    /// IEEE 754 double precision, 8 bytes.
    ORC_F64 = 11,
    /// bfloat16, 2 bytes.
    ORC_BF16 = 12,
    /// Two ORC_F32, real part first, 8 bytes.
    ORC_C64 = 13,
    /// Two ORC_F64, real part first, 16 bytes.
    ORC_C128 = 14,
}

/// Flags of a region, to be or-ed together.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum orc_flag {
    /// The region may be absent from the checkpoint at a restart (because the program has changed
    /// since); its memory is then left unchanged. For files, see orc_route_file().
    ORC_OPTIONAL = 1,
    /// Holds the same bytes on all ranks, and may be stored once. Any number of ranks can restart
    /// from it.
    ORC_SAME = 2,
    /// A promise of the program: only processors of this process write the region. No RDMA, no GPU,
    /// no fixed buffers of io_uring, no other process. With incremental = "auto" the kernel is then
    /// asked which pages were written, and the others are not read; writes by other means go
    /// unnoticed.
    ORC_CPU_WRITES_ONLY = 4,
    /// Parts of a global array may have elements in common, such as ghost layers. Matters only when
    /// a restart uses another decomposition: it then takes the lowest rank's copy of an element,
    /// and is refused without the flag. Set it only if all copies are equal at a checkpoint: a
    /// ghost layer that is not up to date would be taken for the value of an inner element.
    ORC_OVERLAP = 16,
}

/// How the ranks of a session communicate while a [collective] function runs. orcheck_mpi.h fills
/// it from an MPI communicator; a program without MPI may supply its own.
///
/// The functions return 0, or anything else on failure. They are called on the calling thread only.
#[repr(C)]
pub struct orc_collective {
    /// sizeof(orc_collective)
    pub struct_size: usize,
    /// Passed to every function below.
    pub ctx: *mut c_void,
    /// This rank, from 0.
    pub rank: c_int,
    /// Number of ranks, at least 1. With 1, none of bcast, gather, allreduce_min is called.
    pub size: c_int,
    /// Copies len_bytes bytes at buf from rank root to all.
    pub bcast: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            buf: *mut c_void,
            len_bytes: usize,
            root: c_int,
        ) -> c_int,
    >,
    /// Collects len_bytes bytes from each rank, the same number everywhere, at rank root in out
    /// (size * len_bytes bytes, in rank order). out is NULL on the other ranks.
    pub gather: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            mine: *const c_void,
            len_bytes: usize,
            out: *mut c_void,
            root: c_int,
        ) -> c_int,
    >,
    /// Replaces each of the n numbers at v by its minimum over all ranks.
    pub allreduce_min:
        Option<unsafe extern "C" fn(ctx: *mut c_void, v: *mut i64, n: usize) -> c_int>,
    /// NULL, or called once when the session no longer needs ctx: at the end of orc_close()
    /// (orderly = 1: all ranks are here, communication is allowed) or of orc_abandon() (orderly =
    /// 0: free memory only). Not called if the open fails: ctx then still belongs to the caller.
    pub release: Option<unsafe extern "C" fn(ctx: *mut c_void, orderly: c_int)>,
}

/// This rank's part of a global array, or an array of its own. Shapes are in elements, in C order:
/// the last index varies fastest.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct orc_array {
    /// sizeof(orc_array)
    pub struct_size: usize,
    /// An ::orc_dtype.
    pub dtype: c_int,
    /// Number of dimensions, 1 to 8.
    pub ndim: c_int,
    /// Shape of the global array; all zero, with offset: the array belongs to this rank alone.
    pub global: [i64; 8],
    /// Where this rank's part begins in the global array.
    pub offset: [i64; 8],
    /// Shape of this rank's part.
    pub local: [i64; 8],
    /// Distance in memory between neighbours along each dimension, in elements. All zero: the part
    /// is contiguous. To leave out ghost cells, for example, use the strides of the larger array
    /// and the address of the first inner element.
    pub stride: [i64; 8],
}

/// One box of orc_protect_boxes(); its fields are the arguments of orc_protect_array().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct orc_box {
    /// The address of its first element; NULL if it has none.
    pub address: *mut c_void,
    /// Which elements of the global array they are, and how they lie in memory.
    pub array: orc_array,
}

/// A region that is not flat memory: C++ containers, memory of a device, compressed state. The
/// functions return 0, or anything else on failure, and must see the same state from size() to the
/// last pack() of one checkpoint.
#[repr(C)]
pub struct orc_codec {
    /// sizeof(orc_codec)
    pub struct_size: usize,
    /// Passed to every function below.
    pub ctx: *mut c_void,
    /// Tells how many bytes pack() will deliver now.
    pub size: Option<unsafe extern "C" fn(ctx: *mut c_void, len_bytes: *mut usize) -> c_int>,
    /// Writes len_bytes bytes of the stream, from position at on, to dst. at grows from call to
    /// call.
    pub pack: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            at: usize,
            dst: *mut c_void,
            len_bytes: usize,
        ) -> c_int,
    >,
    /// Takes len_bytes bytes of the stream, from position at on, from src. at grows from call to
    /// call; at = 0 starts over.
    pub unpack: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            at: usize,
            src: *const c_void,
            len_bytes: usize,
        ) -> c_int,
    >,
}

/// What an ::orc_event reports about a checkpoint.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum orc_event_kind {
    /// It is committed at this level.
    ORC_EVENT_SAFE = 1,
    /// It will never be committed at this level; older steps that are safe stay safe.
    ORC_EVENT_LOST = 2,
}

/// The outcome of a checkpoint at one level; see orc_watch(). Kinds may be added: ignore unknown
/// ones.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct orc_event {
    /// sizeof(orc_event) of the library
    pub struct_size: usize,
    /// An ::orc_event_kind.
    pub kind: c_int,
    /// The step.
    pub step: u64,
    /// An ::orc_level.
    pub level: c_int,
    /// An ::orc_status: the cause of a loss, otherwise ::ORC_OK.
    pub status: c_int,
    /// For a loss: step, level, cause and next step, as in orc_message(); otherwise "".
    pub text: *const c_char,
}

/// A function of the program for orc_watch().
pub type orc_on_event = Option<unsafe extern "C" fn(ctx: *mut c_void, event: *const orc_event)>;

/// Figures of the last checkpoint on this rank; see orc_stats_read().
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct orc_stats {
    /// sizeof(orc_stats)
    pub struct_size: usize,
    /// Step of the last orc_checkpoint(), 0 if there was none.
    pub step: u64,
    /// How long that call blocked the program, in total.
    pub blocked_s: f64,
    /// Of that time: copying, and handing the copy over.
    pub stage_s: f64,
    /// Of that time: waiting for room in the pool or for the previous checkpoint.
    pub wait_s: f64,
    /// Bytes of this rank's snapshot.
    pub staged_bytes: u64,
    /// Size of the node's staging pool, in addresses; for its memory see pool_memory_bytes.
    pub pool_bytes: u64,
    /// Of these: in use now.
    pub pool_used_bytes: u64,
    /// Newest step committed at ::ORC_NODE, or with the option `peers` at ::ORC_PEERS; 0 if none.
    pub committed_node_step: u64,
    /// Newest step committed at ::ORC_GLOBAL, 0 if none.
    pub committed_global_step: u64,
    /// Processor time spent on flushing so far in this process, seconds, without kernel threads.
    pub flush_cpu_s: f64,
    /// Checkpoints skipped because an earlier one was not yet flushed or safe (overrun = "skip").
    pub skipped: u64,
    /// With incremental = "auto": step of the last snapshot of this rank that is completely staged;
    /// the following fields describe it. 0 if there is none.
    pub captured_step: u64,
    /// Bytes of regions that it stored.
    pub stored_bytes: u64,
    /// Bytes of regions that did not change and are stored with older checkpoints.
    pub referred_bytes: u64,
    /// Bytes of regions whose written pages were the only ones read.
    pub tracked_bytes: u64,
    /// Why it refers to no older checkpoint: 1 no older one was known, 2 the chain of references
    /// has reached incremental_chain, 3 most of the last one had changed, 4 a checkpoint was lost
    /// or the directories changed. 0: it may refer to older ones. Where most of the state changes
    /// every time, 3 and 0 alternate: after each that stores everything, the next one compares.
    pub full_because: u64,
    /// Bytes of snapshots that the flushing thread of this rank has written so far; every level
    /// counts.
    pub flushed_bytes: u64,
    /// The bytes that they take in files: with headers, manifests and blocks of 4 KiB, which shows
    /// where the state is small; fewer with compression.
    pub file_bytes: u64,
    /// Computing time between two checkpoints with interval = "auto", seconds; 0: off, or not known
    /// yet.
    pub interval_s: f64,
    /// Steps of this session that are lost, by ::orc_level, then by ::orc_status; [level][0] counts
    /// all causes. Those of level process are 0: see orc_watch().
    pub lost_steps: [[u64; 9]; 5],
    /// 1: this session has no checkpoints (option `enabled`), and the other figures are 0.
    pub disabled: u64,
    /// Memory that files of orc_route() took on this host at the last orc_checkpoint(), over all
    /// ranks and programs of the job. 0 if they are in node_dir, or in route_dir without
    /// route_budget.
    pub routed_bytes: u64,
    /// Bytes that the restart of this session took from memory which the agent of this node kept of
    /// an earlier run. Everything else that it read came from files.
    pub memory_bytes: u64,
    /// Of blocked_s: the agreement of the ranks, which is mostly waiting until all of them call.
    /// What blocked_s has beside agree_s, stage_s and wait_s is preparing, before the agreement;
    /// it is longest in the first checkpoint of a session.
    pub agree_s: f64,
    /// Number of checkpoints of this session so far, and what they took together. A double holds
    /// nanoseconds exactly for weeks.
    pub checkpoints: u64,
    /// Sum of blocked_s.
    pub blocked_sum_s: f64,
    /// Sum of agree_s.
    pub agree_sum_s: f64,
    /// Sum of stage_s.
    pub stage_sum_s: f64,
    /// Sum of wait_s.
    pub wait_sum_s: f64,
    /// Bytes of the node's staging pool that have memory: about what its ranks protect, in
    /// whole chunks, and one chunk a rank more, times held_steps.
    pub pool_memory_bytes: u64,
}
