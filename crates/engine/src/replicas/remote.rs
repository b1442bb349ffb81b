//! Presents the files of the job's other nodes as readable directories.
//!
//! How: [`Others`] knows which node holds which files, because the nodes told each other. It
//! fetches a file piece by piece from the keeper of a node that holds it (`keeper.rs`). It requests
//! the next pieces while the last one is being used, so that a long read keeps the link busy.
//! Received bytes are not trusted: the reader verifies them by checksums, as from any directory,
//! and turns to the next copy. The first directory of [`Others::dirs`] has one copy of each file,
//! the second another one.
//!
//! Invariants:
//! 1. Nothing is ever written or removed.
//! 2. Every wait has a deadline; after an error on the connection, everything on it fails.
//!
//! Survives: a node that vanishes, stalls or sends wrong bytes (an error names it). Not here: which
//! node is asked for what (`restart`).

use crate::directory::OTHER_NODES;
use orcheck_format::disk::FileName;
use orcheck_format::wire::Message;
use orcheck_format::{Error, NodeId, Rank, Result};
use orcheck_io::disk::{Dir, Entry, File, ReadDir, ReadFile, ReadOnly};
use orcheck_io::failpoints::Failpoints;
use orcheck_net::{Address, Conn, Key};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Number of bytes requested at once.
const PIECE_BYTES: u64 = 4 << 20;
/// Number of pieces in flight.
const AHEAD: usize = 3;
/// Longest wait for a connection to one address.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of copies of a file that are considered.
const COPIES_MAX: usize = 256;

/// Names of files with their lengths.
pub type Files = Vec<(String, u64)>;
/// What each node holds.
pub type Holdings = Vec<Files>;

/// The address of a node's keeper.
#[derive(Debug, Clone)]
pub struct NodeAt {
    /// The node's name.
    pub name: String,
    /// Its addresses, best first.
    pub addresses: Vec<Address>,
    /// The key of the run that it belongs to.
    pub key: Key,
}

/// What is needed to reach the other nodes.
pub struct OthersContext {
    /// This rank, and its node.
    pub own: (Rank, NodeId),
    /// Number of nodes in this run; later entries of `nodes` belong to earlier runs.
    pub members: u32,
    /// Whether the node's own agent has files in memory; it is then asked first.
    pub asks_own: bool,
    /// All nodes that may be asked.
    pub nodes: Vec<NodeAt>,
    /// Longest wait for an answer.
    pub timeout: Duration,
    /// Failpoints, for tests.
    pub failpoints: Failpoints,
}

/// The files of all other nodes; see the module.
pub struct Others {
    context: OthersContext,
    /// Nodes that hold each file and its length there, the nearest first.
    files: BTreeMap<String, Vec<(NodeId, u64)>>,
    links: Mutex<BTreeMap<NodeId, Arc<Link>>>,
}

impl Others {
    /// The other nodes, all of which have reported their holdings.
    #[must_use]
    pub fn new(context: OthersContext, holdings: &Holdings) -> Arc<Self> {
        let mut files: BTreeMap<String, Vec<(NodeId, u64)>> = BTreeMap::new();
        let (own, members) = (context.own.1, context.members.max(1));
        // Every node begins with the next one, so that they do not all ask the same one.
        let ring = (1..members).map(|distance| NodeId((own.0 + distance) % members));
        let own_first = context.asks_own.then_some(own).into_iter();
        for node in own_first
            .chain(ring)
            .chain((members..holdings.len() as u32).map(NodeId))
        {
            for (file, len_bytes) in &holdings[node.index()] {
                let holders = files.entry(file.clone()).or_default();
                holders.push((node, *len_bytes));
            }
        }
        Arc::new(Self {
            context,
            files,
            links: Mutex::default(),
        })
    }

    /// The files that one node has listed, as a directory. Each answer may take `timeout`.
    fn alone(at: NodeAt, files: Files, timeout: Duration, failpoints: &Failpoints) -> Arc<Self> {
        let context = OthersContext {
            own: (Rank(0), NodeId(0)),
            members: 1,
            asks_own: true,
            nodes: vec![at],
            timeout,
            failpoints: failpoints.clone(),
        };
        Self::new(context, &vec![files])
    }

    /// Their files: the first directory holds one copy of each, the next another one, and so on.
    #[must_use]
    pub fn dirs(self: &Arc<Self>) -> Vec<Arc<dyn Dir>> {
        let most = self.files.values().map(Vec::len).max().unwrap_or(0);
        let dir = |nth| -> Arc<dyn Dir> {
            Arc::new(ReadOnly(OtherDir {
                path: Path::new(OTHER_NODES).join(format!("copy {}", nth + 1)),
                others: Arc::clone(self),
                nth,
            }))
        };
        (0..most.min(COPIES_MAX)).map(dir).collect()
    }

    fn link(&self, node: NodeId) -> Result<Arc<Link>> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = links.get(&node) {
            return Ok(Arc::clone(link));
        }
        let context = &self.context;
        let at = &context.nodes[node.index()];
        let conn = at.reach(context.own, &context.failpoints, CONNECT_TIMEOUT)?;
        let asked = Asked {
            conn,
            next_slot: 0,
            pieces: VecDeque::new(),
            ended: Default::default(),
        };
        let link = Arc::new(Link {
            conn: Mutex::new(asked),
            node: at.name.clone(),
            timeout: context.timeout,
        });
        links.insert(node, Arc::clone(&link));
        Ok(link)
    }
}

impl NodeAt {
    /// A connection to the keeper, after the introduction; waits at most `within` for each address.
    ///
    /// # Errors
    /// Unavailable, with the error of each address.
    pub fn reach(
        &self,
        own: (Rank, NodeId),
        failpoints: &Failpoints,
        within: Duration,
    ) -> Result<Conn> {
        let (rank, node) = own;
        let mut errors = Vec::new();
        for address in &self.addresses {
            match Conn::connect(address, &self.key, failpoints, within) {
                Ok(mut conn) => {
                    conn.send(&Message::Hello { rank, node }, within)?;
                    return Ok(conn);
                }
                Err(error) => errors.push(error.what()),
            }
        }
        Err(Error::unavailable(format!(
            "node '{}' cannot be reached: {}",
            self.name,
            errors.join("; ")
        ))
        .next("check whether the process there has ended or is stopped, and whether nodes reach each other"))
    }

    /// The job's files that the node holds.
    ///
    /// # Errors
    /// Unavailable if it cannot be reached or does not answer within `within`; Corrupt for an
    /// unexpected answer.
    pub fn list(
        &self,
        own: (Rank, NodeId),
        failpoints: &Failpoints,
        within: Duration,
    ) -> Result<Files> {
        // A node that is gone for good does not take longer because it has many addresses.
        let each = within / self.addresses.len().clamp(1, 8) as u32;
        let mut conn = self.reach(own, failpoints, each)?;
        conn.send(&Message::List, within)?;
        match conn.receive(within)? {
            Message::Listing { files } => Ok(files),
            Message::Lost { kind, text, .. } => Err(Error::new(kind, text)),
            other => Err(strange(&self.name, &other)),
        }
    }
}

/// The directory of one node, which has listed these files; each further answer may take
/// `timeout`.
#[must_use]
pub fn node_dir(
    at: NodeAt,
    files: Files,
    timeout: Duration,
    failpoints: &Failpoints,
) -> Arc<dyn Dir> {
    let path = Path::new(OTHER_NODES).join(&at.name);
    Arc::new(ReadOnly(OtherDir {
        path,
        others: Others::alone(at, files, timeout, failpoints),
        nth: 0,
    }))
}

/// Names and lengths of the job's files in a directory, without those of no use to others.
///
/// # Errors
/// The error of the directory.
pub fn files_of(dir: &dyn Dir) -> Result<Files> {
    let wanted = |entry: &Entry| {
        let name = FileName::parse(&entry.name);
        // A list of members is of use only where it is, and contains keys.
        let left = matches!(
            name,
            None | Some(FileName::Temporary(_) | FileName::Members { .. })
        );
        !entry.is_dir && !left
    };
    let entries = dir.list()?.into_iter().filter(wanted);
    Ok(entries.map(|entry| (entry.name, entry.len_bytes)).collect())
}

struct OtherDir {
    path: PathBuf,
    others: Arc<Others>,
    nth: usize,
}

struct Link {
    conn: Mutex<Asked>,
    node: String,
    timeout: Duration,
}

/// A connection, and the pieces in flight on it, in order.
struct Asked {
    conn: Conn,
    next_slot: u32,
    pieces: VecDeque<Piece>,
    /// Where the last read ended.
    ended: (String, u64),
}

struct Piece {
    slot: u32,
    file: String,
    at_bytes: u64,
    len_bytes: u64,
}

impl ReadDir for OtherDir {
    fn path(&self) -> &Path {
        &self.path
    }

    fn open(&self, name: &str) -> Result<Box<dyn File>> {
        let holders = self.others.files.get(name);
        let Some(&(node, len_bytes)) = holders.and_then(|nodes| nodes.get(self.nth)) else {
            let path = self.path.display();
            return Err(Error::not_found(format!("{path}: no node has {name}")));
        };
        Ok(Box::new(ReadOnly(RemoteFile {
            link: self.others.link(node)?,
            name: name.to_owned(),
            len_bytes,
        })))
    }

    fn list(&self) -> Result<Vec<Entry>> {
        let held = |(name, nodes): (&String, &Vec<(NodeId, u64)>)| {
            let &(_, len_bytes) = nodes.get(self.nth)?;
            let name = name.clone();
            Some(Entry {
                name,
                len_bytes,
                is_dir: false,
            })
        };
        Ok(self.others.files.iter().filter_map(held).collect())
    }
}

struct RemoteFile {
    link: Arc<Link>,
    name: String,
    len_bytes: u64,
}

impl Link {
    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.conn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Asked {
    fn ask(&mut self, link: &Link, file: &str, at_bytes: u64, len_bytes: u64) -> Result<()> {
        let slot = self.next_slot;
        self.next_slot = slot.wrapping_add(1);
        let fetch = Message::Fetch {
            slot,
            file: file.to_owned(),
            at_bytes,
            len_bytes,
        };
        self.conn.send(&fetch, link.timeout)?;
        self.pieces.push_back(Piece {
            slot,
            file: file.to_owned(),
            at_bytes,
            len_bytes,
        });
        Ok(())
    }

    /// The oldest piece in flight.
    fn take(&mut self, link: &Link) -> Result<(Piece, Result<Vec<u8>>)> {
        let Some(piece) = self.pieces.pop_front() else {
            return Err(Error::internal("nothing is on its way"));
        };
        match self.conn.receive(link.timeout)? {
            Message::Data {
                slot,
                at_bytes,
                bytes,
            } if (slot, at_bytes) == (piece.slot, piece.at_bytes)
                && bytes.len() as u64 == piece.len_bytes =>
            {
                Ok((piece, Ok(bytes)))
            }
            Message::Lost { slot, kind, text } if slot == piece.slot => {
                Ok((piece, Err(Error::new(kind, text))))
            }
            other => Err(strange(&link.node, &other)),
        }
    }
}

/// The error for an answer that no keeper of this version gives here.
fn strange(node: &str, message: &Message) -> Error {
    Error::corrupt(format!(
        "node '{node}' answered with an unexpected message of kind {}",
        message.kind()
    ))
}

impl RemoteFile {
    fn piece_at(&self, at: u64) -> u64 {
        PIECE_BYTES.min(self.len_bytes - at)
    }

    /// Reads up to the end of one piece, which is in flight or requested now; returns how much.
    fn read_some(&self, buf: &mut [u8], at: u64) -> Result<usize> {
        let link = &self.link;
        let mut asked = link.asked();
        let begins = |piece: &Piece| piece.file == self.name && piece.at_bytes == at;
        // Pieces that were requested ahead and are not wanted now are taken off the line.
        while asked.pieces.front().is_some_and(|piece| !begins(piece)) {
            drop(asked.take(link)?);
        }
        let in_order = buf.len() as u64 >= self.piece_at(at);
        let first = if in_order {
            self.piece_at(at)
        } else {
            buf.len() as u64
        };
        if asked.pieces.is_empty() {
            asked.ask(link, &self.name, at, first)?;
        }
        // Long reads that follow each other continue; small reads are of metadata. If several ranks
        // share the work, each of them jumps: what was requested ahead would come for nothing.
        let follows = in_order && asked.ended.1 == at && asked.ended.0 == self.name;
        while follows && asked.pieces.len() < AHEAD {
            let Some(last) = asked.pieces.back() else {
                break;
            };
            let next = last.at_bytes + last.len_bytes;
            if next >= self.len_bytes || last.len_bytes < PIECE_BYTES {
                break;
            }
            let len = self.piece_at(next);
            asked.ask(link, &self.name, next, len)?;
        }
        let (_, bytes) = asked.take(link)?;
        let bytes = bytes?;
        let count = bytes.len().min(buf.len());
        buf[..count].copy_from_slice(&bytes[..count]);
        if !follows {
            asked.ended.0.clone_from(&self.name);
        }
        asked.ended.1 = at + count as u64;
        Ok(count)
    }
}

impl ReadFile for RemoteFile {
    fn read_at(&self, mut buf: &mut [u8], mut at: u64) -> Result<()> {
        while !buf.is_empty() {
            let count = self
                .read_some(buf, at)
                .map_err(|error| error.at(self.name()))?;
            if count == 0 {
                return Err(Error::corrupt(format!("{}: no bytes came", self.name())));
            }
            buf = &mut buf[count..];
            at += count as u64;
        }
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn name(&self) -> String {
        format!("node {}/{}", self.link.node, self.name)
    }

    fn other_node(&self) -> Option<&str> {
        Some(&self.link.node)
    }
}
