//! Where a staging I/O server is, and with which key it is asked, as users write it: `orcheck://HOST:PORT?key=SOURCE`.
//!
//! Invariants
//! 1. The key itself is in no text: the text says where it comes from.
//! 2. What is shown in messages names the server and nothing else.
//!
//! Not here: what a server is asked (`served.rs`).

use crate::environment::env_var;
use crate::net::Key;
use crate::secret::SecretSource;
use orcheck_format::{Error, Result};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

const SCHEME: &str = "orcheck://";
/// Where the key comes from when the text does not say.
pub const KEY_VARIABLE: &str = "ORCHECK_SERVER_KEY";

/// Whether a path names a directory on a server.
#[must_use]
pub fn is_served(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.starts_with(SCHEME))
}

/// What messages and records call a root: that of a server without where its key comes from.
#[must_use]
pub fn shown(root: &str) -> &str {
    match root.split_once('?') {
        Some((shown, _)) if root.starts_with(SCHEME) => shown,
        _ => root,
    }
}

/// The same text with the source of the key in it, so that another process understands it as this one does.
#[must_use]
pub fn with_key(path: &Path) -> PathBuf {
    let text = path.to_string_lossy();
    let says_key = text.contains("?key=") || text.contains("&key=");
    match env_var(KEY_VARIABLE).filter(|source| !source.is_empty()) {
        Some(source) if is_served(path) && !says_key => {
            let joint = if text.contains('?') { '&' } else { '?' };
            PathBuf::from(format!("{text}{joint}key={source}"))
        }
        _ => path.to_path_buf(),
    }
}

/// A server and the key that opens it.
pub(super) struct Place {
    /// `orcheck://host:port`.
    pub shown: String,
    /// Where it listens, best first.
    pub addresses: Vec<SocketAddr>,
    pub key: Key,
}

impl Place {
    pub fn parse(path: &Path) -> Result<Place> {
        let path = with_key(path);
        let text = path.to_str().unwrap_or_default();
        let refused = |why: &str| {
            Error::invalid(format!("server {:?} refused: {why}", path.display()))
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
        let (mut source, mut encrypt) = (None, false);
        for word in how.split('&').filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                Some(("key", text)) => source = Some(SecretSource::parse(text)?),
                None if word == "encrypt" => encrypt = true,
                _ => {
                    return Err(refused(
                        "after '?' come key=SOURCE and encrypt, joined by '&'",
                    ));
                }
            }
        }
        let source = source.ok_or_else(|| {
            refused("it does not say where the key comes from")
                .next(format!("add ?key=file:PATH, or set {KEY_VARIABLE}"))
        })?;
        let secret = source
            .read()
            .map_err(|error| error.at(format!("{SCHEME}{at}")))?;
        let addresses: Vec<SocketAddr> = at
            .to_socket_addrs()
            .map_err(|error| refused(&format!("{at} is no host and port ({error})")))?
            .collect();
        if addresses.is_empty() {
            return Err(refused("its host has no address"));
        }
        Ok(Place {
            shown: format!("{SCHEME}{at}"),
            addresses,
            key: Key {
                bytes: *secret.bytes(),
                encrypt,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn servers_are_named_and_mistakes_are_told() {
        let scratch = Scratch::new("place");
        let key = scratch.path().join("key");
        std::fs::write(&key, [7; 32]).unwrap();
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        let key = format!("key=file:{}", key.display());
        let parse = |text: String| Place::parse(Path::new(&text));
        let place = parse(format!("orcheck://127.0.0.1:7420?{key}&encrypt")).unwrap();
        assert_eq!(place.shown, "orcheck://127.0.0.1:7420");
        assert_eq!(place.addresses, ["127.0.0.1:7420".parse().unwrap()]);
        assert!(place.key.encrypt && place.key.bytes == [7; 32]);
        for (text, says) in [
            (format!("orcheck://127.0.0.1?{key}"), "no host and port"),
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
        ] {
            let error = parse(text.clone()).err().unwrap();
            assert!(error.to_string().contains(says), "{text}: {error}");
        }
        assert!(is_served(Path::new("orcheck://a:1")) && !is_served(Path::new("/orcheck://a")));
    }
}
