//! Finds memory nodes (which processors and which memory belong together), and places the pool's
//! pages on them.
//!
//! How: /sys/devices/system/node says which nodes have memory, and which processors they have. A
//! rank's part of the pool is requested on the node of the processors that the rank may run on
//! (MPOL_PREFERRED), or spread over its nodes if there are several (MPOL_INTERLEAVE). The policy
//! belongs to the shared memory itself, so that it applies whoever touches a page first. Threads
//! that help a rank to copy are spread over the same nodes.
//!
//! Invariants
//! 1. On a machine with one memory node, nothing is requested and nothing is pinned.
//! 2. A policy is only a hint: a full node, an old kernel or a container that hides /sys costs
//!    speed, never memory.
//! 3. No thread is pinned to a processor outside its given set.
//!
//! Faults survived: files that are missing, empty or invalid; nodes without memory or without
//! processors.
//! Not here: which rank uses which chunks (the engine), sockets for CP-threads (see
//! [`orcheck_io::machine`]).
#![allow(unsafe_code)]

use orcheck_format::Result;
use orcheck_io::errno::{last_errno, os_error};
use orcheck_io::machine::{cpuset, parse_list, pin_current_thread};
use orcheck_io::memory::Span;
use std::path::Path;

/// Where the kernel describes memory nodes.
const NODES: &str = "/sys/devices/system/node";
/// Maximum number of nodes considered; the kernel's own limit is 1024.
const MAX_NODES: usize = 1024;

/// A memory node that has both memory and processors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryNode {
    /// Its number.
    pub id: u32,
    /// Its processors, ascending.
    pub cpus: Vec<u32>,
}

/// The memory nodes of this machine, as far as it reports them; may be empty.
#[must_use]
pub fn memory_nodes() -> Vec<MemoryNode> {
    memory_nodes_in(Path::new(NODES))
}

fn memory_nodes_in(root: &Path) -> Vec<MemoryNode> {
    let read = |name: String| std::fs::read_to_string(root.join(name)).unwrap_or_default();
    let with_memory = read("has_memory".into());
    // If the kernel does not report which nodes have memory, all online nodes count.
    let ids = if with_memory.is_empty() {
        parse_list(&read("online".into()))
    } else {
        parse_list(&with_memory)
    };
    ids.into_iter()
        .filter(|id| (*id as usize) < MAX_NODES)
        .map(|id| MemoryNode {
            id,
            cpus: parse_list(&read(format!("node{id}/cpulist"))),
        })
        .filter(|node| !node.cpus.is_empty())
        .collect()
}

/// The part of the machine that this thread may run on, by memory node; empty on a machine with one
/// node, or if the kernel does not report it.
#[must_use]
pub fn own_nodes() -> Vec<MemoryNode> {
    share_of(memory_nodes(), &cpuset())
}

fn share_of(nodes: Vec<MemoryNode>, allowed: &[u32]) -> Vec<MemoryNode> {
    if nodes.len() < 2 {
        return Vec::new();
    }
    nodes
        .into_iter()
        .map(|mut node| {
            node.cpus.retain(|cpu| allowed.contains(cpu));
            node
        })
        .filter(|node| !node.cpus.is_empty())
        .collect()
}

/// Restricts the calling thread, helper number `which` of a rank, to the processors of one of
/// `nodes`, so that helpers are spread over them. With fewer than two nodes, nothing changes.
pub fn spread_helper(nodes: &[MemoryNode], which: usize) {
    if nodes.len() < 2 {
        return;
    }
    // If this is refused, the scheduler decides, as it would without us.
    let _ = pin_current_thread(&nodes[which % nodes.len()].cpus);
}

const MPOL_PREFERRED: libc::c_long = 1;
const MPOL_INTERLEAVE: libc::c_long = 3;

/// Requests pages of shared memory that do not exist yet from `nodes`: one is preferred, several
/// are interleaved.
pub(crate) fn ask_for(span: Span, nodes: &[u32]) -> Result<()> {
    let mut mask = [0u64; MAX_NODES / 64];
    for node in nodes {
        if let Some(word) = mask.get_mut((node / 64) as usize) {
            *word |= 1 << (node % 64);
        }
    }
    let policy = if nodes.len() == 1 {
        MPOL_PREFERRED
    } else {
        MPOL_INTERLEAVE
    };
    // SAFETY: the kernel reads the mask, a live array of that many bits (it counts one more than
    // there are), and changes no contents of the span, which is mapped memory of ours.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            span.pointer(),
            span.len_bytes(),
            policy,
            mask.as_ptr(),
            MAX_NODES + 1,
            0,
        )
    };
    if done != 0 {
        return Err(os_error(
            last_errno(),
            format_args!("ask for pool memory on the memory nodes {nodes:?}"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_testing::Scratch;

    fn tree(files: &[(&str, &str)]) -> Scratch {
        let scratch = Scratch::new("nodes");
        for (name, text) in files {
            let path = scratch.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        scratch
    }

    fn node(id: u32, cpus: &[u32]) -> MemoryNode {
        MemoryNode {
            id,
            cpus: cpus.to_vec(),
        }
    }

    #[test]
    fn nodes_with_memory_and_processors_count() {
        let scratch = tree(&[
            ("has_memory", "0-2,8\n"),
            ("online", "0-3,8\n"),
            ("node0/cpulist", "0-3,16-19\n"),
            ("node1/cpulist", "4-7\n"),
            ("node2/cpulist", "\n"), // memory alone, like that of an accelerator
            ("node3/cpulist", "8-11\n"), // processors alone
            ("node8/cpulist", "nonsense,12\n"),
        ]);
        let found = memory_nodes_in(scratch.path());
        // Breaks if: memory is placed on a node without memory or without processors.
        assert_eq!(
            found,
            [
                node(0, &[0, 1, 2, 3, 16, 17, 18, 19]),
                node(1, &[4, 5, 6, 7]),
                node(8, &[12])
            ]
        );
        assert_eq!(share_of(found.clone(), &[5, 6]), [node(1, &[5, 6])]);
        assert_eq!(
            share_of(found.clone(), &[3, 4, 99]),
            [node(0, &[3]), node(1, &[4])]
        );
        assert_eq!(share_of(found, &[99]), []);
    }

    #[test]
    fn an_older_kernel_or_none_of_it() {
        let scratch = tree(&[
            ("online", "0-1\n"),
            ("node0/cpulist", "0\n"),
            ("node1/cpulist", "1\n"),
        ]);
        assert_eq!(
            memory_nodes_in(scratch.path()),
            [node(0, &[0]), node(1, &[1])]
        );
        let scratch = tree(&[("has_memory", "nonsense\n")]);
        assert_eq!(memory_nodes_in(scratch.path()), []);
        assert_eq!(memory_nodes_in(Path::new("/nowhere")), []);
    }

    // Breaks if: memory or threads are placed on a single node.
    #[test]
    fn one_node_changes_nothing() {
        assert_eq!(share_of(vec![node(0, &[0, 1])], &[0, 1]), []);
        let before = cpuset();
        std::thread::spawn(move || {
            spread_helper(&[node(0, &before[..1])], 0);
            assert_eq!(cpuset(), before);
        })
        .join()
        .unwrap();
        if memory_nodes().len() < 2 {
            assert_eq!(own_nodes(), []);
        }
    }

    #[test]
    fn helpers_are_spread_over_the_nodes() {
        let all = cpuset();
        let (first, last) = (all[0], all[all.len() - 1]);
        let nodes = [node(0, &[first]), node(1, &[last])];
        for which in 0..4 {
            let nodes = nodes.clone();
            std::thread::spawn(move || {
                spread_helper(&nodes, which);
                assert_eq!(cpuset(), nodes[which % 2].cpus);
            })
            .join()
            .unwrap();
        }
    }
}
