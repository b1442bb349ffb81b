//! Hooks for the numbered steps that name a step by what it does and not by its number alone.
//!
//! Threads make the numbers of a run vary; "the second write of node 1's container of step 3" is
//! the same step in every run. A [`Key`] is such a name: site, target without what is random in it,
//! and the how-manieth of these.

use orcheck_io::failpoints::{Failpoint, FailpointHook, Failpoints, Verdict};
use orcheck_jobs::ledger::Ledger;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The name of one step.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub site: String,
    pub target: String,
    /// From 1.
    pub nth: u64,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\t{}\t{}", self.site, self.target, self.nth)
    }
}

impl Key {
    /// The inverse of `Display`.
    pub fn parse(line: &str) -> Self {
        let mut words = line.split('\t');
        let mut word = || words.next().unwrap().to_owned();
        Self {
            site: word(),
            target: word(),
            nth: word().parse().unwrap(),
        }
    }
}

/// A target without the trial's directory, run ids, process numbers and ports.
fn plain(root: &str, target: &str) -> String {
    if let Some((_, peer)) = target
        .strip_prefix("process ")
        .and_then(|rest| rest.split_once(' '))
    {
        return format!("process {}", plain(root, peer));
    }
    // The kernel chooses another port for every connection.
    if let Some((_, message)) = target
        .strip_prefix("tcp:127.0.0.1:")
        .and_then(|rest| rest.split_once(' '))
    {
        return format!("tcp {message}");
    }
    let mut text = String::new();
    for part in target
        .strip_prefix(root)
        .unwrap_or(target)
        .split_inclusive(|c: char| !c.is_ascii_alphanumeric())
    {
        let word = part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let hex = word.chars().all(|c| c.is_ascii_hexdigit());
        if hex && [8, 16, 32].contains(&word.len()) {
            text.push('R');
            text.push_str(&part[word.len()..]);
        } else {
            text.push_str(part);
        }
    }
    text
}

/// What to do at a step.
pub type Decide = Box<dyn Fn(&Key, &Failpoint) -> Verdict + Send + Sync>;

/// Counts steps by name and asks `decide` about each, from [`Named::arm`] on.
pub struct Named {
    root: String,
    seen: Mutex<(BTreeMap<(String, String), u64>, Vec<Key>)>,
    armed: AtomicBool,
    decide: Decide,
}

impl Named {
    /// A hook that is not armed yet.
    pub fn new(root: &Path, decide: Decide) -> Arc<Self> {
        Arc::new(Self {
            root: root.display().to_string(),
            seen: Mutex::default(),
            armed: AtomicBool::new(false),
            decide,
        })
    }

    /// A hook that lets everything go and remembers it.
    pub fn recorder(root: &Path) -> Arc<Self> {
        Self::new(root, Box::new(|_, _| Verdict::Go))
    }

    /// A hook that gives `verdict` at the step `key`, once.
    pub fn at(root: &Path, key: Key, verdict: Verdict) -> Arc<Self> {
        Self::new(
            root,
            Box::new(move |found, _| if *found == key { verdict } else { Verdict::Go }),
        )
    }

    /// Steps are counted and decided from now on.
    pub fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// The steps that follow this hook.
    pub fn failpoints(self: &Arc<Self>) -> Failpoints {
        Failpoints::with(Arc::clone(self) as Arc<dyn FailpointHook>)
    }

    /// Writes the names of all steps since it was armed, a line each.
    pub fn write(&self, path: &Path) {
        let lines: Vec<String> = self.seen().iter().map(ToString::to_string).collect();
        std::fs::write(path, lines.join("\n")).unwrap();
    }

    /// All steps since it was armed, in order.
    pub fn seen(&self) -> Vec<Key> {
        self.seen.lock().unwrap().1.clone()
    }
}

impl FailpointHook for Named {
    fn at(&self, step: &Failpoint) -> Verdict {
        Ledger::look(Path::new(&self.root), step);
        if !self.armed.load(Ordering::SeqCst) {
            return Verdict::Go;
        }
        let target = plain(&self.root, step.target);
        let key = {
            let mut seen = self.seen.lock().unwrap();
            let count = seen
                .0
                .entry((step.site.to_owned(), target.clone()))
                .or_default();
            *count += 1;
            let key = Key {
                site: step.site.to_owned(),
                target,
                nth: *count,
            };
            seen.1.push(key.clone());
            key
        };
        (self.decide)(&key, step)
    }
}
