//! Remembers the nodes of earlier runs that have no rank in this one, and asks them what they hold.
//!
//! How: every node of a run at level `peers` keeps the list of its members. The next run takes the
//! newest list that any of its nodes has. Each node on it that is not in this run is asked by one
//! node of this run what it holds; an agent that outlives its ranks answers. What such nodes hold
//! counts like what members hold, but is copied to members as soon as the run continues from it.
//!
//! Invariants:
//! 1. All ranks end with the same list of absent nodes, and with the same knowledge of what those
//!    hold.
//! 2. A node that does not answer costs a few seconds, once for all such nodes, and is reported.
//! 3. Keys travel only through the program's collective, and are kept in files that only their
//!    owner can read.
//!
//! Not here: what is read from which node (`engine::replicas`), what stays behind on a node
//! (`engine::host`).

use crate::collective::{Collective, agree, agree_min, bcast_bytes};
use crate::open::holdings::exchange_holdings;
use orcheck_engine::encoding::Trust;
use orcheck_engine::node::Layout;
use orcheck_engine::replicas::{Files, Holdings, NodeAt, keeper_of, list_all};
use orcheck_format::disk::{FileName, Member, Members};
use orcheck_format::{Epoch, Error, JobName, NodeId, Rank, Result, count};
use orcheck_io::disk::{Dir, write_private};
use orcheck_io::failpoints::Failpoints;
use std::time::Duration;

/// Longest wait for the answer of an absent node.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Separates the number of an absent node from the name of a file in the nodes' reports.
const MARK: char = '/';

/// Writes down the members of this run, and the nodes of earlier ones.
pub(crate) fn remember(
    dir: &dyn Dir,
    (job, epoch): (&JobName, Epoch),
    (nodes, absent): (&[NodeAt], &[Member]),
    trust: &Trust,
) -> Result<()> {
    let member = |node: &NodeAt| Member {
        name: node.name.clone(),
        addresses: node.addresses.iter().map(ToString::to_string).collect(),
        key: node.key.bytes,
        encrypt: node.key.encrypt,
        epoch: epoch.counter,
    };
    let present = nodes.iter().map(member);
    let members = Members {
        job: job.clone(),
        epoch,
        nodes: present.chain(absent.iter().cloned()).collect(),
    };
    let name = FileName::Members {
        epoch: epoch.counter,
    };
    // Its keys give access to what nodes hold in memory. They are private, even if a group shares
    // the rest.
    write_private(dir, &name.to_string(), &trust.seal(members.encode())?)
}

/// Removes what [`remember`] wrote, as far as possible; older lists stay.
pub(crate) fn forget(dir: &dyn Dir, epoch: Epoch) {
    let name = FileName::Members {
        epoch: epoch.counter,
    };
    // A list that stays names existing nodes, and does no harm.
    let _ = dir.remove(&name.to_string());
}

/// The nodes that are not in this run, from the newest list that any of its nodes has. Collective.
fn absent(
    collective: &mut dyn Collective,
    layout: &Layout,
    (job, epoch): (&JobName, Epoch),
    own: &[Member],
) -> Result<Vec<(NodeAt, u64)>> {
    let rank = collective.rank();
    let newest = own.iter().map(|member| member.epoch).max().unwrap_or(0);
    let mut lowest = [-(newest as i64)];
    agree_min(collective, Ok(()), &mut lowest)?;
    if lowest[0] == 0 {
        return Ok(Vec::new());
    }
    let mut who = [if lowest[0] == -(newest as i64) {
        i64::from(rank)
    } else {
        i64::MAX
    }];
    agree_min(collective, Ok(()), &mut who)?;
    let root = who[0] as u32;
    let list = Members {
        job: job.clone(),
        epoch,
        nodes: if rank == Rank(root) {
            own.to_vec()
        } else {
            Vec::new()
        },
    };
    let bytes = if rank == Rank(root) {
        list.encode()
    } else {
        Vec::new()
    };
    let list = Members::decode(&bcast_bytes(collective, bytes, root)?);
    let list = agree(collective, list)?;
    let there = layout.node_names();
    let nodes = list.nodes.into_iter();
    let gone = nodes.filter(|member| !there.contains(&member.name));
    let known = gone.map(|member| Ok((keeper_of(&member)?, member.epoch)));
    let known = known.collect::<Result<_>>();
    agree(collective, known)
}

/// Nodes of earlier runs that are not in this one.
#[derive(Default)]
pub(crate) struct Absent {
    /// Those that answer.
    pub(crate) there: Vec<NodeAt>,
    /// What they hold.
    pub(crate) holdings: Holdings,
    /// Those that do not: their names, and the counters of their latest epochs.
    pub(crate) silent: Vec<(String, u64)>,
}

/// Asks the absent nodes what they hold. Collective.
pub(crate) fn find_absent(
    collective: &mut dyn Collective,
    layout: &Layout,
    run: (&JobName, Epoch),
    own: &[Member],
    failpoints: &Failpoints,
) -> Result<Absent> {
    let absent = absent(collective, layout, run, own)?;
    if absent.is_empty() {
        return Ok(Absent::default());
    }
    let rank = collective.rank();
    let (node, nodes) = (layout.node_of(rank).index(), layout.nodes.len());
    let mut mine = Ok(Files::new());
    if layout.leads_node(rank) {
        let asked = absent.iter().enumerate();
        let asked: Vec<_> = asked.filter(|(at, _)| at % nodes == node).collect();
        mine = ask(&asked, (rank, NodeId(node as u32)), failpoints);
    }
    let told = exchange_holdings(collective, layout, mine)?;
    let mut held: Vec<Option<Files>> = vec![None; absent.len()];
    for (text, len_bytes) in told.into_iter().flatten() {
        let (at, file) = text.split_once(MARK).unwrap_or_default();
        let files = at.parse().ok().and_then(|at: usize| held.get_mut(at));
        let files = files.ok_or_else(|| Error::internal("a file of a node that was not asked"))?;
        let files = files.get_or_insert_default();
        if !file.is_empty() {
            files.push((file.to_owned(), len_bytes));
        }
    }
    let (mut there, mut holdings, mut silent) = (Vec::new(), Holdings::new(), Vec::new());
    for ((at, epoch), files) in absent.into_iter().zip(held) {
        match files {
            Some(files) => {
                there.push(at);
                holdings.push(files);
            }
            None => silent.push((at.name, epoch)),
        }
    }
    Ok(Absent {
        there,
        holdings,
        silent,
    })
}

/// The note for the case that the newest checkpoint found is of this epoch: whatever was committed
/// since then, this many losses leave a record of it on some node that was asked.
pub(crate) fn may_know_more(silent: &[(String, u64)], found: u64, losses: u8) -> Option<String> {
    let silent = silent.iter().filter(|(_, epoch)| *epoch >= found);
    let silent: Vec<&str> = silent.map(|(name, _)| name.as_str()).collect();
    (silent.len() > usize::from(losses)).then(|| {
        format!(
            "{} of earlier runs, not in this one, {} not answer ({}): newer checkpoints may exist \
             only there",
            count(silent.len() as u64, "node"),
            if silent.len() == 1 { "does" } else { "do" },
            silent.join(", ")
        )
    })
}

/// What the answering nodes hold, each file after the node's number; a node that answers has an
/// entry without a file.
fn ask(
    asked: &[(usize, &(NodeAt, u64))],
    own: (Rank, NodeId),
    failpoints: &Failpoints,
) -> Result<Files> {
    let mut told = Files::new();
    let nodes: Vec<&NodeAt> = asked.iter().map(|(_, (node, _))| node).collect();
    let answers = list_all(&nodes, own, failpoints, ANSWER_TIMEOUT)?;
    for (&(at, _), answer) in asked.iter().zip(answers) {
        let Ok(files) = answer else { continue };
        told.push((format!("{at}{MARK}"), 0));
        let named = files
            .into_iter()
            .map(|(file, len)| (format!("{at}{MARK}{file}"), len));
        told.extend(named);
    }
    Ok(told)
}
