//! Reads the tenants of a server from the command line and a file, at the start and again at
//! SIGHUP.
//!
//! Invariants:
//! 1. A new configuration takes effect as a whole, or changes nothing.
//! 2. No text contains a key itself, only its source.
//!
//! Not here: the effect on the server (`orcheck_staging`).

use std::collections::BTreeMap;

use orcheck_format::{Error, Result};
use orcheck_io::user::{SecretSource, read_text};
use orcheck_net::Key;
use orcheck_staging::server::{Reread, Stopper, Tenant, User};
use serde::Deserialize;

use crate::args::ServerArgs;

/// The directory of a key without a name.
const DEFAULT_NAME: &str = "default";
/// Longest file.
const MAX_BYTES: u64 = 4 << 20;
const GIB: f64 = (1u64 << 30) as f64;

/// The tenants that a server is to serve.
pub struct Wanted {
    pub tenants: Vec<Tenant>,
    pub users: Vec<User>,
    /// Tenants whose keys cannot be read again: a process keeps its environment.
    fixed: Vec<String>,
}

/// A table of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    key: Option<String>,
    munge: Option<u32>,
    quota_gib: Option<f64>,
}

/// The present contents of the command line and its file.
pub fn wanted(args: &ServerArgs) -> Result<Wanted> {
    let mut wanted = Wanted {
        tenants: Vec::new(),
        users: Vec::new(),
        fixed: Vec::new(),
    };
    for text in &args.keys {
        let (name, source) = match text.split_once('=') {
            // A source has a colon before any '='.
            Some((name, source)) if !name.contains(':') => (name, source),
            _ => (DEFAULT_NAME, text.as_str()),
        };
        wanted.add_key(name, source, args.encrypt)?;
    }
    for text in &args.munge {
        let (name, number) = match text.split_once('=') {
            Some((name, number)) => (name.to_owned(), number),
            None => (format!("uid-{text}"), text.as_str()),
        };
        let uid = number.parse().map_err(|_| {
            Error::invalid(format!(
                "--munge {text}: expected [NAME=]UID, a user's number"
            ))
        })?;
        wanted.add_user(name, uid);
    }
    if let Some(path) = &args.tenants {
        let at = |error: Error| error.at(path.display());
        let text = read_text(path, MAX_BYTES)?;
        wanted.add_file(&text, args.encrypt).map_err(at)?;
    }
    for text in &args.quota_gib {
        let (name, gib) = text.split_once('=').unwrap_or((DEFAULT_NAME, text));
        let gib = gib.parse().unwrap_or(f64::NAN);
        wanted
            .set_quota(name, gib)
            .map_err(|error| error.at(format!("--quota-gib {text}")))?;
    }
    Ok(wanted)
}

impl Wanted {
    fn add_key(&mut self, name: &str, source: &str, encrypt: bool) -> Result<()> {
        let source = SecretSource::parse(source)?;
        let secret = source.read()?;
        if matches!(source, SecretSource::Environment(_)) {
            self.fixed.push(name.to_owned());
        }
        self.tenants.push(Tenant {
            name: name.to_owned(),
            key: Key {
                bytes: *secret.bytes(),
                encrypt,
            },
            quota_bytes: None,
        });
        Ok(())
    }

    fn add_user(&mut self, name: String, uid: u32) {
        self.users.push(User {
            name,
            uid,
            quota_bytes: None,
        });
    }

    fn add_file(&mut self, text: &str, encrypt: bool) -> Result<()> {
        let next = "write a table for each directory, such as [physics] with key = 'file:PATH' or munge = UID, and quota_gib = N";
        let entries: BTreeMap<String, Entry> = toml::from_str(text).map_err(|error| {
            // In one line, because it may go to a log.
            let begin = error.span().map_or(0, |span| span.start);
            let before = text.as_bytes().iter().take(begin);
            let line = 1 + before.filter(|&&byte| byte == b'\n').count();
            Error::invalid(format!("line {line}: {}", error.message())).next(next)
        })?;
        for (name, entry) in entries {
            match (&entry.key, entry.munge) {
                (Some(source), None) => self.add_key(&name, source, encrypt)?,
                (None, Some(uid)) => self.add_user(name.clone(), uid),
                _ => {
                    let what = format!("[{name}]: expected either key or munge");
                    return Err(Error::invalid(what).next(next));
                }
            }
            if let Some(gib) = entry.quota_gib {
                let at = |error: Error| error.at(format!("[{name}] quota_gib"));
                self.set_quota(&name, gib).map_err(at)?;
            }
        }
        Ok(())
    }

    fn set_quota(&mut self, name: &str, gib: f64) -> Result<()> {
        if !(0.0..1e9).contains(&gib) {
            return Err(Error::invalid("expected GiB from 0"));
        }
        let tenants = self.tenants.iter_mut();
        let tenants = tenants.map(|one| (&one.name, &mut one.quota_bytes));
        let users = self.users.iter_mut();
        let users = users.map(|one| (&one.name, &mut one.quota_bytes));
        let mut all = tenants.chain(users);
        let one = all.find(|(known, _)| *known == name);
        match one {
            None => Err(Error::invalid("there is no key or user of that name")),
            Some((_, Some(_))) => Err(Error::invalid("there is a quota of that name already")),
            Some((_, quota_bytes)) => {
                *quota_bytes = Some((gib * GIB) as u64);
                Ok(())
            }
        }
    }
}

/// Reads the tenants again and has the server serve them; returns a line for the operator.
pub fn reread(args: &ServerArgs, server: &Stopper) -> String {
    let read = wanted(args).and_then(|wanted| {
        let reread = server.serve(&wanted.tenants, &wanted.users)?;
        Ok((reread, wanted.fixed))
    });
    match read {
        Ok((reread, fixed)) => said(&reread, &fixed),
        Err(error) => format!("SIGHUP: nothing was changed: {error}"),
    }
}

fn said(reread: &Reread, fixed: &[String]) -> String {
    let quota = |(name, bytes): &(String, Option<u64>)| match bytes {
        None => format!("{name} none"),
        Some(bytes) => {
            let gib = format!("{:.3}", *bytes as f64 / GIB);
            format!(
                "{name} {} GiB",
                gib.trim_end_matches('0').trim_end_matches('.')
            )
        }
    };
    let quotas: Vec<String> = reread.quotas.iter().map(quota).collect();
    let parts = [
        ("new", &reread.new),
        ("gone", &reread.gone),
        ("other keys", &reread.other_keys),
        ("quotas", &quotas),
    ];
    let parts = parts.iter().filter(|(_, names)| !names.is_empty());
    let parts: Vec<String> = parts
        .map(|(what, names)| format!("{what}: {}", names.join(", ")))
        .collect();
    let changed = match parts.is_empty() {
        true => "nothing has changed".to_owned(),
        false => parts.join("; "),
    };
    let environment = match fixed {
        [] => String::new(),
        [one] => format!("the key of {one}, which comes from the environment, and "),
        more => format!(
            "the keys of {}, which come from the environment, and ",
            more.join(", ")
        ),
    };
    format!("keys and quotas were reread: {changed}; not reread: {environment}all other options")
}
