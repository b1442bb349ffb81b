//! Those whom a server serves: what each proves, and what belongs to it.
//!
//! Invariants:
//! 1. Two of them are told apart by name, by key and by user.
//!
//! Not here: what they have taken of the disk (`account.rs`).

use crate::LOCK_FILE;
use crate::account::Account;
use orcheck_format::names::MAX_FILE_NAME_BYTES;
use orcheck_format::store::Disk;
use orcheck_format::{Error, Result};
use orcheck_io::{Dir, Key};
use std::sync::Arc;

/// One of those whom a server serves.
#[derive(Debug, Clone)]
pub struct Tenant {
    /// The name of its directory.
    pub name: String,
    /// What it proves.
    pub key: Key,
    /// Most bytes that its directory may hold.
    pub quota_bytes: Option<u64>,
}

/// One of those whom a server serves, known by MUNGE: no key is handed out.
#[derive(Debug, Clone)]
pub struct User {
    /// The name of the user's directory.
    pub name: String,
    /// The user's number, as in the site's realm.
    pub uid: u32,
    /// Most bytes that the directory may hold.
    pub quota_bytes: Option<u64>,
}

/// What belongs to one of them.
#[derive(Clone)]
pub(crate) struct Owned {
    pub(crate) name: String,
    pub(crate) root: Arc<dyn Dir>,
    pub(crate) account: Arc<Account>,
    /// Which disk it lies on, and since when.
    pub(crate) disk: Disk,
}

pub(crate) fn check_tenants(tenants: &[Tenant], users: &[User]) -> Result<()> {
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
            return Err(Error::invalid(format!("'{name}' is no name of a tenant"))
                .next("use letters, digits, '-', '_' and '.'"));
        }
    }
    let key = |at: usize| tenants.get(at).map(|tenant| &tenant.key.bytes);
    let uid = |at: usize| {
        users
            .get(at.wrapping_sub(tenants.len()))
            .map(|user| user.uid)
    };
    for (at, name) in names.iter().enumerate() {
        for (before, other) in names[..at].iter().enumerate() {
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
