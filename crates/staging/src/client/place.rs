//! Parses the address of a staging server and the source of its key, as users write them:
//! `orcheck://HOST:PORT?key=SOURCE`.
//!
//! Invariants
//! 1. No text contains the key itself, only its source.
//! 2. What messages show names the server and nothing else.
//!
//! Not here: requests to a server (`client.rs`).

use orcheck_format::{Error, Result};
use orcheck_io::descriptor::away_from_streams;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::effective_uid;
use orcheck_io::user::{SecretSource, env_var};
use orcheck_net::{Address, AsUser, Conn, Key};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

const SCHEME: &str = "orcheck://";
/// Where the key comes from if the text does not say.
pub(crate) const KEY_VARIABLE: &str = "ORCHECK_SERVER_KEY";

/// Whether a path names a directory on a server.
#[must_use]
pub fn is_served(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.starts_with(SCHEME))
}

/// The name of a root in messages and records; for a server, without the source of its key.
#[must_use]
pub fn shown(root: &str) -> &str {
    match root.split_once('?') {
        Some((shown, _)) if root.starts_with(SCHEME) => shown,
        _ => root,
    }
}

/// The same text with the source of the key added, so that another process understands it in the
/// same way.
#[must_use]
pub fn with_key(path: &Path) -> PathBuf {
    let text = path.to_string_lossy();
    let says_key = ["?key=", "&key=", "?munge", "&munge"];
    let says_key = says_key.iter().any(|word| text.contains(word));
    match env_var(KEY_VARIABLE).filter(|source| !source.is_empty()) {
        Some(source) if is_served(path) && !says_key => {
            let joint = if text.contains('?') { '&' } else { '?' };
            PathBuf::from(format!("{text}{joint}key={source}"))
        }
        _ => path.to_path_buf(),
    }
}

/// A server and the key that opens it.
pub(super) struct ServedPlace {
    /// `orcheck://host:port`.
    pub shown: String,
    /// Where it listens, best first.
    pub addresses: Vec<SocketAddr>,
    pub proof: Proof,
    /// The expected disk, if the user gives one.
    pub identity: Option<u64>,
}

/// What a caller proves.
pub(super) enum Proof {
    Key(Key),
    User(AsUser),
}

impl ServedPlace {
    pub fn connect(
        &self,
        at: &Address,
        failpoints: &Failpoints,
        timeout: Duration,
    ) -> Result<Conn> {
        match &self.proof {
            Proof::Key(key) => Conn::connect_to_server(at, key, failpoints, timeout),
            Proof::User(user) => Conn::connect_as_user(at, user, failpoints, timeout),
        }
    }

    pub fn parse(path: &Path) -> Result<ServedPlace> {
        let path = with_key(path);
        let text = path.to_str().unwrap_or_default();
        let refused = |why: &str| {
            Error::invalid(format!(
                "the address {:?} names no server: {why}",
                path.display()
            ))
            .next("write orcheck://HOST:PORT?key=file:PATH")
        };
        let rest = text
            .strip_prefix(SCHEME)
            .ok_or_else(|| refused("it does not begin with orcheck://"))?;
        let (at, how) = rest.split_once('?').unwrap_or((rest, ""));
        if at.contains('/') {
            return Err(refused(
                "it names a directory; a key opens all that belongs to it",
            ));
        }
        let (mut source, mut user, mut encrypt, mut identity) = (None, None, false, None);
        said_twice(how).map_or(Ok(()), |name| {
            Err(refused(&format!("it says {name} twice")))
        })?;
        for word in how.split('&').filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                Some(("key", text)) => source = Some(SecretSource::parse(text)?),
                None if word == "encrypt" => encrypt = true,
                None if word == "munge" => user = Some(effective_uid()),
                Some(("id", digits)) => {
                    identity = Some(identity_of(digits).ok_or_else(|| {
                        refused("behind id= come the 16 digits that the server says when it begins")
                    })?);
                }
                Some(("munge", uid)) => {
                    user = Some(uid_of(uid).ok_or_else(|| {
                        refused("behind munge= comes the number of the user who runs the server")
                    })?);
                }
                _ => {
                    return Err(refused(
                        "after '?' come key=SOURCE or munge[=UID], encrypt and id=NUMBER, joined by '&'",
                    ));
                }
            }
        }
        let proof = match (source, user) {
            (None, Some(server_uid)) => Proof::User(AsUser::new(server_uid, encrypt)),
            (Some(source), None) => {
                let secret = source.read();
                let bytes = *secret
                    .map_err(|error| error.at(format!("{SCHEME}{at}")))?
                    .bytes();
                Proof::Key(Key { bytes, encrypt })
            }
            (Some(_), Some(_)) => return Err(refused("it says both a key and munge")),
            (None, None) => {
                return Err(refused("it does not say where the key comes from")
                    .next(format!("add ?key=file:PATH, or set {KEY_VARIABLE}")));
            }
        };
        let addresses = addresses_of(at, &refused)?;
        Ok(ServedPlace {
            shown: format!("{SCHEME}{at}"),
            addresses,
            proof,
            identity,
        })
    }
}

/// The addresses of HOST:PORT; `refused` begins the error.
fn addresses_of(at: &str, refused: &dyn Fn(&str) -> Error) -> Result<Vec<SocketAddr>> {
    let host = at
        .rsplit_once(':')
        .filter(|(_, port)| port.parse::<u16>().is_ok());
    let Some((host, _)) = host else {
        return Err(refused(&format!("{at} is not HOST:PORT")));
    };
    let found = away_from_streams(|| at.to_socket_addrs()).map_err(|error| {
        refused(&format!("its host '{host}' cannot be found ({error})"))
            .next("correct the name of the host, or see that this machine can resolve it")
    })?;
    let addresses: Vec<SocketAddr> = found.collect();
    match addresses.is_empty() {
        true => Err(refused("its host has no address")),
        false => Ok(addresses),
    }
}

/// The word behind '?' that an address says more than once.
// Breaks if: the last one counts; whoever completes an address could name another user or key than
// the one that its reader sees first.
fn said_twice(how: &str) -> Option<&'static str> {
    let said = |name: &str| {
        how.split('&')
            .filter(|word| word.split('=').next() == Some(name))
            .count()
    };
    ["key", "munge", "id"]
        .into_iter()
        .find(|name| said(name) > 1)
}

/// The identity of a server.
fn identity_of(digits: &str) -> Option<u64> {
    let number = u64::from_str_radix(digits, 16).ok();
    number.filter(|_| digits.len() == 16)
}

/// The number of a user.
// Breaks if: the highest number is accepted; for MUNGE it is any user, so any user could pass for
// the server.
fn uid_of(text: &str) -> Option<u32> {
    text.parse().ok().filter(|&uid| uid != u32::MAX)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // the key of a test
mod tests {
    use super::*;
    use orcheck_testing::Scratch;

    #[test]
    fn servers_are_named_and_mistakes_are_told() {
        let scratch = Scratch::new("place");
        let key = scratch.path().join("key");
        std::fs::write(&key, [7; 32]).unwrap();
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        let key = format!("key=file:{}", key.display());
        let parse = |text: String| ServedPlace::parse(Path::new(&text));
        let place = parse(format!("orcheck://127.0.0.1:7420?{key}&encrypt")).unwrap();
        assert_eq!(place.shown, "orcheck://127.0.0.1:7420");
        assert_eq!(place.addresses, ["127.0.0.1:7420".parse().unwrap()]);
        assert!(matches!(place.proof, Proof::Key(ref key) if key.encrypt && key.bytes == [7; 32]));
        let user = parse("orcheck://127.0.0.1:7420?munge=990&encrypt".to_owned()).unwrap();
        assert!(
            matches!(user.proof, Proof::User(ref user) if user.encrypt && user.server_uid == 990)
        );
        let own = parse("orcheck://127.0.0.1:7420?munge".to_owned()).unwrap();
        assert!(matches!(own.proof, Proof::User(ref user) if user.server_uid == effective_uid()));
        for (text, says) in [
            (format!("orcheck://127.0.0.1?{key}"), "not HOST:PORT"),
            (
                format!("orcheck://127.0.0.1:1/job?{key}"),
                "names a directory",
            ),
            (
                "orcheck://127.0.0.1:1".to_owned(),
                "where the key comes from",
            ),
            (format!("orcheck://127.0.0.1:1?{key}&loud"), "joined by '&'"),
            ("orcheck://127.0.0.1:1?key=file:/none".to_owned(), "/none"),
            (
                format!("orcheck://127.0.0.1:1?munge&{key}"),
                "both a key and munge",
            ),
            (format!("orcheck://127.0.0.1:1?{key}&id=12"), "16 digits"),
            (
                "orcheck://127.0.0.1:1?munge=me".to_owned(),
                "number of the user",
            ),
            (
                "orcheck://127.0.0.1:1?munge=4294967295".to_owned(),
                "number of the user",
            ),
            (
                "orcheck://127.0.0.1:1?munge=1&munge=0".to_owned(),
                "munge twice",
            ),
            (
                "orcheck://127.0.0.1:1?munge&munge=0".to_owned(),
                "munge twice",
            ),
            (format!("orcheck://127.0.0.1:1?{key}&{key}"), "key twice"),
        ] {
            let error = parse(text.clone()).err().unwrap();
            assert!(error.to_string().contains(says), "{text}: {error}");
        }
        assert!(is_served(Path::new("orcheck://a:1")) && !is_served(Path::new("/orcheck://a")));
    }
}
