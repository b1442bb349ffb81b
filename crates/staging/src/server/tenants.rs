//! Manages the tenants of a server: what each proves, what belongs to it, and how that changes at
//! run time.
//!
//! Invariants:
//! 1. Any two tenants differ in name, in key and in user.
//! 2. Each has one number as long as the server runs: a tenant that is no longer served keeps it,
//!    with a key that nobody has.
//! 3. Changes apply to new connections; existing ones continue.
//! 4. A configuration that cannot be served as a whole changes nothing.
//!
//! Not here: how much of the disk they have taken (`quota.rs`), where the configuration comes
//! from (the command).

use crate::server::locked::guard;
use crate::server::quota::Account;
use crate::server::{LOCK_FILE, identity};
use orcheck_format::disk::MAX_FILE_NAME_BYTES;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::wire::Disk;
use orcheck_format::{Error, Result};
use orcheck_io::disk::Dir;
use orcheck_io::rng::random_bytes;
use orcheck_net::{Key, Users};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A tenant of a server.
#[derive(Debug, Clone)]
pub struct Tenant {
    /// The name of its directory.
    pub name: String,
    /// What it proves.
    pub key: Key,
    /// Maximum number of bytes in its directory.
    pub quota_bytes: Option<u64>,
}

/// A tenant of a server that is known by MUNGE: no key is handed out.
#[derive(Debug, Clone)]
pub struct User {
    /// The name of the user's directory.
    pub name: String,
    /// The user's number, as in the site's realm.
    pub uid: u32,
    /// Maximum number of bytes in the directory.
    pub quota_bytes: Option<u64>,
}

/// What a tenant proves.
#[derive(Clone, PartialEq, Eq)]
enum Proof {
    Key(Key),
    User(u32),
}

/// What belongs to a tenant.
#[derive(Clone)]
pub(crate) struct Owned {
    pub(crate) name: String,
    pub(crate) root: Arc<dyn Dir>,
    pub(crate) account: Arc<Account>,
    /// The disk that it lies on, and since when.
    pub(crate) disk: Disk,
    /// `None` for a tenant that is no longer served.
    proof: Option<Proof>,
}

/// How callers are identified; the number of each is that of the tenant.
pub(crate) struct Admitted {
    pub(crate) keys: Vec<Key>,
    pub(crate) users: Option<Users>,
}

/// What a new configuration of tenants changed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reread {
    /// Tenants that are served from now on.
    pub new: Vec<String>,
    /// Tenants that are no longer served.
    pub gone: Vec<String>,
    /// Tenants that prove something else than before.
    pub other_keys: Vec<String>,
    /// Tenants whose quota changed.
    pub quotas: Vec<(String, Option<u64>)>,
}

/// See the module.
pub(crate) struct Served {
    dir: Arc<dyn Dir>,
    encrypt: bool,
    state: Mutex<(Vec<Owned>, Arc<Admitted>)>,
    /// Held while that changes: the disk, which may hang, is accessed before the state is locked.
    changing: Mutex<()>,
    /// Number of changes, and up to which change the listener knows of them.
    said: AtomicU64,
    known: AtomicU64,
}

/// A tenant that the server is to serve.
struct Wanted<'a> {
    name: &'a str,
    proof: Proof,
    quota_bytes: Option<u64>,
}

fn wanted<'a>(tenants: &'a [Tenant], users: &'a [User]) -> Vec<Wanted<'a>> {
    let tenants = tenants.iter().map(|one| Wanted {
        name: &one.name,
        proof: Proof::Key(one.key.clone()),
        quota_bytes: one.quota_bytes,
    });
    let users = users.iter().map(|one| Wanted {
        name: &one.name,
        proof: Proof::User(one.uid),
        quota_bytes: one.quota_bytes,
    });
    tenants.chain(users).collect()
}

impl Served {
    /// Opens what belongs to each, below `dir`; traffic between users and the server is encrypted
    /// if `encrypt` is set.
    pub(crate) fn new(
        dir: Arc<dyn Dir>,
        (tenants, users, encrypt): (&[Tenant], &[User], bool),
        now_unix_s: u64,
    ) -> Result<Self> {
        let served = Self {
            dir,
            encrypt,
            state: Mutex::new((
                Vec::new(),
                Arc::new(Admitted {
                    keys: Vec::new(),
                    users: None,
                }),
            )),
            changing: Mutex::default(),
            said: AtomicU64::new(0),
            known: AtomicU64::new(0),
        };
        served.serve(tenants, users, now_unix_s)?;
        for one in served.owned() {
            if one.account.most().is_some() {
                one.account.count(&one.root, &mut || true)?;
            }
        }
        Ok(served)
    }

    pub(crate) fn owned(&self) -> Vec<Owned> {
        guard(&self.state).0.clone()
    }

    /// What belongs to the tenant with this number.
    pub(crate) fn own(&self, which: usize) -> Result<Owned> {
        let own = guard(&self.state).0.get(which).cloned();
        own.ok_or_else(|| Error::internal(format!("no tenant has the number {which}")))
    }

    pub(crate) fn count(&self) -> usize {
        guard(&self.state).0.len()
    }

    /// Who is admitted now; for a caller that began with all who were admitted before.
    pub(crate) fn admitted(&self) -> Arc<Admitted> {
        let state = guard(&self.state);
        let said = self.said.load(Ordering::Acquire);
        self.known.store(said, Ordering::Release);
        Arc::clone(&state.1)
    }

    /// Whether nobody is admitted any more who is no longer served.
    pub(crate) fn is_known(&self) -> bool {
        self.known.load(Ordering::Acquire) == self.said.load(Ordering::Acquire)
    }

    /// From now on, serves these and nobody else.
    pub(crate) fn serve(
        &self,
        tenants: &[Tenant],
        users: &[User],
        now_unix_s: u64,
    ) -> Result<Reread> {
        check_tenants(tenants, users)?;
        let wanted = wanted(tenants, users);
        let _alone = guard(&self.changing);
        let mut owned = self.owned();
        let mut reread = Reread::default();
        for one in &wanted {
            if !owned.iter().any(|own| own.name == one.name) {
                let first = wanted.first().map_or(one.name, |first| first.name);
                owned.push(self.open(one.name, first)?);
            }
        }
        let roots: Vec<Arc<dyn Dir>> = owned.iter().map(|own| Arc::clone(&own.root)).collect();
        let disks = identity::settle(&*self.dir, &roots, now_unix_s)?;
        let mut quotas = Vec::new();
        for (own, disk) in owned.iter_mut().zip(disks) {
            own.disk = disk;
            let one = wanted.iter().find(|one| one.name == own.name);
            let mut proof = one.map(|one| one.proof.clone());
            // Breaks if: a tenant that was removed, or has another key, is admitted with the old
            // one.
            if off(Switch::Revoked) && own.proof.is_some() {
                proof.clone_from(&own.proof);
            }
            let name = || own.name.clone();
            match (&own.proof, &proof) {
                (None, Some(_)) => reread.new.push(name()),
                (Some(_), None) => reread.gone.push(name()),
                (before, now) if before != now => reread.other_keys.push(name()),
                _ => {}
            }
            own.proof = proof;
            // Breaks if: a tenant that was removed has no quota any more; its open connections
            // still write.
            let quota_bytes = one.map_or_else(|| own.account.most(), |one| one.quota_bytes);
            if quota_bytes != own.account.most() {
                reread.quotas.push((own.name.clone(), quota_bytes));
                quotas.push((Arc::clone(&own.account), quota_bytes));
            }
        }
        let admitted = self.admit(&owned)?;
        for (account, quota_bytes) in quotas {
            account.limit(quota_bytes);
        }
        let mut state = guard(&self.state);
        *state = (owned, Arc::new(admitted));
        self.said.fetch_add(1, Ordering::AcqRel);
        Ok(reread)
    }

    fn open(&self, name: &str, first: &str) -> Result<Owned> {
        let of = if off(Switch::StoreTenant) {
            first
        } else {
            name
        };
        Ok(Owned {
            name: name.to_owned(),
            root: self.dir.child(of, true)?,
            account: Account::unlimited(),
            disk: Disk::default(),
            proof: None,
        })
    }

    fn admit(&self, owned: &[Owned]) -> Result<Admitted> {
        let nobodys = || Key::new(random_bytes());
        let keys = owned.iter().map(|own| match &own.proof {
            Some(Proof::Key(key)) => key.clone(),
            _ => nobodys(),
        });
        let users = owned
            .iter()
            .enumerate()
            .filter_map(|(at, own)| match own.proof {
                Some(Proof::User(uid)) => Some((uid, at)),
                _ => None,
            });
        let users: Vec<(u32, usize)> = users.collect();
        Ok(Admitted {
            keys: keys.collect(),
            users: match users.is_empty() {
                true => None,
                false => Some(Users::new(users, self.encrypt)?),
            },
        })
    }
}

fn check_tenants(tenants: &[Tenant], users: &[User]) -> Result<()> {
    let names = tenants.iter().map(|tenant| tenant.name.as_str());
    let names: Vec<&str> = names
        .chain(users.iter().map(|user| user.name.as_str()))
        .collect();
    if names.is_empty() {
        return Err(
            Error::invalid("a server without a key serves nobody").next("give --key SOURCE")
        );
    }
    for name in &names {
        let plain = name
            .chars()
            .all(|one| one.is_ascii_alphanumeric() || "-_.".contains(one));
        let usable = plain
            && (1..=MAX_FILE_NAME_BYTES).contains(&name.len())
            && !name.starts_with('.')
            && *name != LOCK_FILE;
        if !usable {
            return Err(
                Error::invalid(format!("'{name}' is not a valid tenant name"))
                    .next("use letters, digits, '-', '_' and '.'"),
            );
        }
    }
    let key = |at: usize| tenants.get(at).map(|tenant| &tenant.key.bytes);
    let uid = |at: usize| {
        users
            .get(at.wrapping_sub(tenants.len()))
            .map(|user| user.uid)
    };
    for (at, name) in names.iter().enumerate() {
        for (before, other) in names.iter().take(at).enumerate() {
            let one_key = key(at).is_some() && key(at) == key(before);
            let one_user = uid(at).is_some() && uid(at) == uid(before);
            if name == other || one_key || one_user {
                return Err(Error::invalid(format!(
                    "tenants '{other}' and '{name}' have one name, one key or one user: they could not be told apart"
                )));
            }
        }
    }
    Ok(())
}
