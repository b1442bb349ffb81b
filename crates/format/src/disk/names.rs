//! Prints and parses every file name that may exist in a job's directory.
//!
//! How: [`FileName::parse`] accepts exactly the texts that `Display` prints, so a foreign file is
//! never mistaken for one of ours. Numbers are zero-padded so that a plain listing is in order.
//!
//! | name | meaning |
//! | --- | --- |
//! | `s000000000042-e000007-1a2b3c4d-n0003-w00.orc` | container of step 42, node 3, writer 0 |
//! | `s000000000042-e000007-1a2b3c4d-n0003-w00.stripe01` | stripe 1 of that container |
//! | `s000000000042-e000007-1a2b3c4d-n0003-w00.parity` | parity on node 3 of other containers of writer 0 |
//! | `s000000000042-e000007-1a2b3c4d-global.commit` | commit record (`node`, `peers2` … likewise) |
//! | `epoch-000007.claim`, `epoch-000007.resumed` | who runs epoch 7, and from which step |
//! | `epoch-000007.members` | where later runs reach its nodes |
//! | `epoch-000007.halt` | a request that the run of epoch 7 take a checkpoint and end |
//! | `epoch-000007.halt-at` | the same request for a later time, or after a number of checkpoints |
//! | `s000000000042-e000007-1a2b3c4d.rejected`, `….kept` | step 42 is rejected; is kept |
//! | `<anything>.tmp` | a file that was incomplete when its writer died |
//!
//! Invariants:
//! 1. `parse(name.to_string()) == Some(name)` for every name, and nothing else parses.
//! 2. No name holds a `/` or a NUL byte.
//!
//! Not here: which of these files are needed, and when they are removed.

use crate::ids::{Decision, Epoch, Level, hex, parse_hex};
use crate::numbers::{NodeId, Step, WriterId};
use crate::sabotage::{Switch, off};
use std::fmt;

/// Longest file name, in bytes: what ext4, XFS, tmpfs and NFS accept.
pub const MAX_FILE_NAME_BYTES: usize = 255;

/// The name of one file in a job's directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileName {
    /// Snapshots of one writer of one node, with their manifest.
    Container {
        /// The checkpoint's step.
        step: Step,
        /// Counter of the epoch that wrote it.
        epoch: u64,
        /// First four bytes of the run id that wrote it.
        run: [u8; 4],
        /// Index of the node.
        node: NodeId,
        /// Index of the writer within the node.
        writer: WriterId,
    },
    /// Data of a striped container, in another store than the container itself.
    Stripe {
        /// The checkpoint's step.
        step: Step,
        /// Counter of the epoch that wrote it.
        epoch: u64,
        /// First four bytes of the run id that wrote it.
        run: [u8; 4],
        /// Index of the node.
        node: NodeId,
        /// Index of the writer within the node.
        writer: WriterId,
        /// Store number of this stripe within the container, from 1.
        stripe: u32,
    },
    /// Parity, on one node, of the containers of one writer of other nodes.
    Parity {
        /// The checkpoint's step.
        step: Step,
        /// Counter of the epoch that wrote it.
        epoch: u64,
        /// First four bytes of the run id that wrote it.
        run: [u8; 4],
        /// Index of the node that holds it.
        node: NodeId,
        /// Index of the writer within each node.
        writer: WriterId,
    },
    /// The record whose appearance makes a checkpoint restartable at one level.
    Commit {
        /// The checkpoint's step.
        step: Step,
        /// Counter of the epoch that wrote it.
        epoch: u64,
        /// First four bytes of the run id that wrote it.
        run: [u8; 4],
        /// What the commit survives.
        level: Level,
    },
    /// Who runs an epoch.
    Claim {
        /// The epoch's counter.
        epoch: u64,
    },
    /// The step from which an epoch resumed.
    Resumed {
        /// The epoch's counter.
        epoch: u64,
    },
    /// Where the nodes of an epoch are reachable.
    Members {
        /// The epoch's counter.
        epoch: u64,
    },
    /// A request that the run of an epoch take a checkpoint and end.
    Halt {
        /// The epoch's counter.
        epoch: u64,
    },
    /// A request that the run of an epoch take a checkpoint and end later.
    HaltAt {
        /// The epoch's counter.
        epoch: u64,
    },
    /// A decision about a checkpoint.
    Choice {
        /// The checkpoint's step.
        step: Step,
        /// Counter of the epoch that wrote it.
        epoch: u64,
        /// First four bytes of the run id that wrote it.
        run: [u8; 4],
        /// The decision.
        decision: Decision,
    },
    /// A file under construction; holds the final name.
    Temporary(
        /// The name without `.tmp`.
        String,
    ),
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stem = |f: &mut fmt::Formatter<'_>, step: &Step, epoch: &u64, run: &[u8; 4]| {
            write!(f, "s{step:012}-e{epoch:06}-{}", hex(run))
        };
        match self {
            FileName::Container {
                step,
                epoch,
                run,
                node,
                writer,
            } => {
                stem(f, step, epoch, run)?;
                write!(f, "-n{node:04}-w{writer:02}.orc")
            }
            FileName::Stripe {
                step,
                epoch,
                run,
                node,
                writer,
                stripe,
            } => {
                stem(f, step, epoch, run)?;
                write!(f, "-n{node:04}-w{writer:02}.stripe{stripe:02}")
            }
            FileName::Parity {
                step,
                epoch,
                run,
                node,
                writer,
            } => {
                stem(f, step, epoch, run)?;
                write!(f, "-n{node:04}-w{writer:02}.parity")
            }
            FileName::Commit {
                step,
                epoch,
                run,
                level,
            } => {
                stem(f, step, epoch, run)?;
                match level {
                    Level::Peers(losses) => write!(f, "-peers{losses}.commit"),
                    level => write!(f, "-{level}.commit"),
                }
            }
            FileName::Claim { epoch } => write!(f, "epoch-{epoch:06}.claim"),
            FileName::Resumed { epoch } => write!(f, "epoch-{epoch:06}.resumed"),
            FileName::Members { epoch } => write!(f, "epoch-{epoch:06}.members"),
            FileName::Halt { epoch } => write!(f, "epoch-{epoch:06}.halt"),
            FileName::HaltAt { epoch } => write!(f, "epoch-{epoch:06}.halt-at"),
            FileName::Choice {
                step,
                epoch,
                run,
                decision,
            } => {
                stem(f, step, epoch, run)?;
                write!(f, ".{decision}")
            }
            FileName::Temporary(name) => write!(f, "{name}.tmp"),
        }
    }
}

impl FileName {
    /// The name of a commit record.
    #[must_use]
    pub fn commit(step: Step, epoch: Epoch, level: Level) -> FileName {
        FileName::Commit {
            step,
            epoch: epoch.counter,
            run: epoch.run.short_bytes(),
            level,
        }
    }

    /// Recognises one of our names; `None` for a foreign file.
    pub fn parse(text: &str) -> Option<FileName> {
        if text.len() > MAX_FILE_NAME_BYTES || text.contains(['/', '\0']) {
            return None;
        }
        if let Some(name) = text.strip_suffix(".tmp") {
            return (!name.is_empty()).then(|| FileName::Temporary(name.to_owned()));
        }
        // Numbers are read leniently; printing the result and comparing makes it exact.
        parse_loosely(text).filter(|name| off(Switch::NameExact) || name.to_string() == text)
    }

    /// The checkpoint that the file belongs to: step, epoch counter and the beginning of the run
    /// id; `None` for files of a whole run.
    #[must_use]
    pub fn checkpoint(&self) -> Option<(Step, u64, [u8; 4])> {
        match *self {
            FileName::Container {
                step, epoch, run, ..
            }
            | FileName::Stripe {
                step, epoch, run, ..
            }
            | FileName::Parity {
                step, epoch, run, ..
            }
            | FileName::Commit {
                step, epoch, run, ..
            }
            | FileName::Choice {
                step, epoch, run, ..
            } => Some((step, epoch, run)),
            _ => None,
        }
    }

    /// The step of the container called `text` if that name differs from this one only by an older
    /// step.
    pub fn of_older_step(&self, text: &str) -> Option<Step> {
        let older = FileName::parse(text)?;
        let (FileName::Container { step: own, .. }, FileName::Container { step, .. }) =
            (self, &older)
        else {
            return None;
        };
        (step < own && self.at_step(*step) == older).then_some(*step)
    }

    /// The name of the parity file of this container's writer on `node`; `None` for another name.
    #[must_use]
    pub fn parity_on(&self, node: NodeId) -> Option<FileName> {
        match *self {
            FileName::Container {
                step,
                epoch,
                run,
                writer,
                ..
            }
            | FileName::Parity {
                step,
                epoch,
                run,
                writer,
                ..
            } => Some(FileName::Parity {
                step,
                epoch,
                run,
                node,
                writer,
            }),
            _ => None,
        }
    }

    /// The name of the container of this parity file's writer on `node`; `None` for another name.
    #[must_use]
    pub fn container_on(&self, node: NodeId) -> Option<FileName> {
        match *self {
            FileName::Container {
                step,
                epoch,
                run,
                writer,
                ..
            }
            | FileName::Parity {
                step,
                epoch,
                run,
                writer,
                ..
            } => Some(FileName::Container {
                step,
                epoch,
                run,
                node,
                writer,
            }),
            _ => None,
        }
    }

    /// This container's name at another step; any other name unchanged.
    pub fn at_step(&self, step: Step) -> FileName {
        let mut name = self.clone();
        if let FileName::Container { step: own, .. } = &mut name {
            *own = step;
        }
        name
    }
}

fn parse_loosely(text: &str) -> Option<FileName> {
    if let Some(rest) = text.strip_prefix("epoch-") {
        return parse_of_epoch(rest);
    }
    let (stem, suffix) = text.split_once('.')?;
    let mut parts = stem.split('-');
    let step = parts.next()?.strip_prefix('s')?.parse().ok()?;
    let epoch = parts.next()?.strip_prefix('e')?.parse().ok()?;
    let run = parse_hex::<4>(parts.next()?)?;
    let Some(fourth) = parts.next() else {
        let decision = Decision::ALL
            .into_iter()
            .find(|decision| decision.name() == suffix)?;
        return Some(FileName::Choice {
            step,
            epoch,
            run,
            decision,
        });
    };
    let fifth = parts.next();
    if parts.next().is_some() {
        return None;
    }
    match (suffix, fifth) {
        ("commit", None) => {
            let level = match fourth.strip_prefix("peers") {
                Some(losses) => {
                    Level::Peers(losses.parse().ok().filter(|losses: &u8| *losses > 0)?)
                }
                None => fourth.parse().ok()?,
            };
            Some(FileName::Commit {
                step,
                epoch,
                run,
                level,
            })
        }
        (suffix, Some(writer)) => {
            let node = fourth.strip_prefix('n')?.parse().ok()?;
            let writer = writer.strip_prefix('w')?.parse().ok()?;
            let container = FileName::Container {
                step,
                epoch,
                run,
                node,
                writer,
            };
            match suffix {
                "orc" => Some(container),
                "parity" => container.parity_on(node),
                _ => Some(FileName::Stripe {
                    step,
                    epoch,
                    run,
                    node,
                    writer,
                    stripe: suffix.strip_prefix("stripe")?.parse().ok()?,
                }),
            }
        }
        _ => None,
    }
}

/// Parses the part after `epoch-`.
fn parse_of_epoch(rest: &str) -> Option<FileName> {
    let (number, kind) = rest.split_once('.')?;
    let epoch = number.parse().ok()?;
    match kind {
        "claim" => Some(FileName::Claim { epoch }),
        "resumed" => Some(FileName::Resumed { epoch }),
        "members" => Some(FileName::Members { epoch }),
        "halt" => Some(FileName::Halt { epoch }),
        "halt-at" => Some(FileName::HaltAt { epoch }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn level() -> impl Strategy<Value = Level> {
        prop_oneof![
            Just(Level::Process),
            Just(Level::Node),
            (1u8..).prop_map(Level::Peers),
            Just(Level::Global)
        ]
    }

    fn any_name() -> impl Strategy<Value = FileName> {
        let run = any::<[u8; 4]>();
        prop_oneof![
            (any::<u64>(), any::<u64>(), run, any::<u32>(), any::<u32>()).prop_map(
                |(step, epoch, run, node, writer)| FileName::Container {
                    step: Step(step),
                    epoch,
                    run,
                    node: NodeId(node),
                    writer: WriterId(writer)
                }
            ),
            (0..99u64, 0..9u64, run, 0..9u32, 0..9u32, any::<u32>()).prop_map(
                |(step, epoch, run, node, writer, stripe)| FileName::Stripe {
                    step: Step(step),
                    epoch,
                    run,
                    node: NodeId(node),
                    writer: WriterId(writer),
                    stripe
                }
            ),
            (any::<u64>(), any::<u64>(), run, any::<u32>(), any::<u32>()).prop_map(
                |(step, epoch, run, node, writer)| FileName::Parity {
                    step: Step(step),
                    epoch,
                    run,
                    node: NodeId(node),
                    writer: WriterId(writer)
                }
            ),
            (any::<u64>(), any::<u64>(), run, level()).prop_map(|(step, epoch, run, level)| {
                FileName::Commit {
                    step: Step(step),
                    epoch,
                    run,
                    level,
                }
            }),
            any::<u64>().prop_map(|epoch| FileName::Claim { epoch }),
            any::<u64>().prop_map(|epoch| FileName::Resumed { epoch }),
            any::<u64>().prop_map(|epoch| FileName::Members { epoch }),
            any::<u64>().prop_map(|epoch| FileName::Halt { epoch }),
            any::<u64>().prop_map(|epoch| FileName::HaltAt { epoch }),
            (any::<u64>(), any::<u64>(), run, any::<bool>()).prop_map(
                |(step, epoch, run, kept)| FileName::Choice {
                    step: Step(step),
                    epoch,
                    run,
                    decision: Decision::ALL[usize::from(kept)],
                }
            ),
            "[a-z.-]{1,40}".prop_map(FileName::Temporary),
        ]
    }

    proptest! {
        // Breaks if: the comparison with the printed form in `parse` is dropped.
        #[test]
        fn printing_and_parsing_are_inverse(name in any_name(), noise in "[0-9a-z+. -]{0,3}", at in 0usize..60) {
            let text = name.to_string();
            prop_assert_eq!(FileName::parse(&text), Some(name.clone()));
            let mut changed = text.clone();
            changed.insert_str(at.min(text.len()), &noise);
            if let Some(other) = FileName::parse(&changed) {
                prop_assert_eq!(other.to_string(), changed);
            }
        }

        #[test]
        fn any_text_is_survived(text in "\\PC{0,80}") {
            if let Some(name) = FileName::parse(&text) {
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }

    #[test]
    fn the_documented_names() {
        let run = [0x1a, 0x2b, 0x3c, 0x4d];
        let cases = [
            (
                "s000000000042-e000007-1a2b3c4d-n0003-w00.orc",
                FileName::Container {
                    step: Step(42),
                    epoch: 7,
                    run,
                    node: NodeId(3),
                    writer: WriterId(0),
                },
            ),
            (
                "s000000000042-e000007-1a2b3c4d-n0003-w00.stripe01",
                FileName::Stripe {
                    step: Step(42),
                    epoch: 7,
                    run,
                    node: NodeId(3),
                    writer: WriterId(0),
                    stripe: 1,
                },
            ),
            (
                "s000000000042-e000007-1a2b3c4d-n0003-w00.parity",
                FileName::Parity {
                    step: Step(42),
                    epoch: 7,
                    run,
                    node: NodeId(3),
                    writer: WriterId(0),
                },
            ),
            (
                "s000000000042-e000007-1a2b3c4d-global.commit",
                FileName::Commit {
                    step: Step(42),
                    epoch: 7,
                    run,
                    level: Level::Global,
                },
            ),
            (
                "s000000000042-e000007-1a2b3c4d-peers2.commit",
                FileName::Commit {
                    step: Step(42),
                    epoch: 7,
                    run,
                    level: Level::Peers(2),
                },
            ),
            ("epoch-000007.claim", FileName::Claim { epoch: 7 }),
            ("epoch-000007.resumed", FileName::Resumed { epoch: 7 }),
            ("epoch-000007.members", FileName::Members { epoch: 7 }),
            ("epoch-000007.halt", FileName::Halt { epoch: 7 }),
            ("epoch-000007.halt-at", FileName::HaltAt { epoch: 7 }),
            (
                "s000000000042-e000007-1a2b3c4d.rejected",
                FileName::Choice {
                    step: Step(42),
                    epoch: 7,
                    run,
                    decision: Decision::Rejected,
                },
            ),
            (
                "s000000000042-e000007-1a2b3c4d.kept",
                FileName::Choice {
                    step: Step(42),
                    epoch: 7,
                    run,
                    decision: Decision::Kept,
                },
            ),
            ("x.orc.tmp", FileName::Temporary("x.orc".into())),
        ];
        for (text, name) in cases {
            assert_eq!(name.to_string(), text);
            assert_eq!(FileName::parse(text), Some(name));
        }
        for foreign in [
            "",
            ".tmp",
            "notes.txt",
            "s42-e000007-1a2b3c4d-n0003-w00.orc",
            "s+00000000042-e000007-1a2b3c4d-n0003-w00.orc",
            "s000000000042-e000007-1A2B3C4D-n0003-w00.orc",
            "s000000000042-e000007-1a2b3c4d.commit",
            "s000000000042-e000007-1a2b3c4d-global.kept",
            "s000000000042-e000007-1a2b3c4d-peers(2).commit",
            "s000000000042-e000007-1a2b3c4d-peers0.commit",
            "a/b.tmp",
        ] {
            assert_eq!(FileName::parse(foreign), None, "{foreign}");
        }
    }
}
