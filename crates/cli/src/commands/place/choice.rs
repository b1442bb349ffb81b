//! Chooses the servers to use: all that work and have free space, or those that the user names.
//!
//! Invariants: every server appears once, in the order of their names (shorter ones first), used or
//! left out with a reason; the directories of any two servers differ; a server that the user names
//! is used, or that is an error.
//!
//! Pure. Not here: where the servers come from.

use std::collections::{BTreeMap, BTreeSet};

use orcheck_format::{Error, Result};

use super::driver::Server;

/// A server, and whether to use it.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    pub server: Server,
    /// Name of its directory.
    pub directory: String,
    /// Why it is not used; `None` if it is.
    pub left_out: Option<String>,
    /// It is used, but nobody can tell where a file in its directory is.
    pub unverified: bool,
}

/// Chooses. `wanted`: a number, or names, comma separated. A server with less than
/// `min_free_percent` of its space free counts as full.
///
/// # Errors
/// NotFound: no server, or none of that name; Unavailable: a named server cannot be used; NoSpace:
/// all are full; Invalid: the directories of two servers would have the same name.
pub fn choose(
    mut servers: Vec<Server>,
    wanted: Option<&str>,
    min_free_percent: f64,
) -> Result<Vec<Choice>> {
    if !(0.0..=100.0).contains(&min_free_percent) {
        return Err(Error::invalid(format!(
            "--min-free-percent {min_free_percent}: expected 0 to 100"
        )));
    }
    // target9 before target10.
    servers.sort_by(|a, b| (a.name.len(), &a.name).cmp(&(b.name.len(), &b.name)));
    if servers.is_empty() {
        return Err(Error::not_found("the file system names no server")
            .next("check that its servers run and that its tools work for this user"));
    }
    let mut choices: Vec<Choice> = servers
        .into_iter()
        .map(|server| Choice {
            left_out: server
                .down
                .clone()
                .or_else(|| full(&server, min_free_percent)),
            directory: directory_of(&server.name),
            server,
            unverified: false,
        })
        .collect();
    if let Some(text) = wanted {
        let is_name = choices.iter().any(|one| one.server.name == text.trim());
        match text.parse::<usize>() {
            Ok(number) if is_name && number <= choices.len() => {
                return Err(Error::invalid(format!(
                    "--servers {text}: a number of servers, and the name of one"
                ))
                .next(format!("write '{text},' for the server of that name")));
            }
            Ok(number) if !is_name => keep(&mut choices, number)?,
            _ => only(&mut choices, text)?,
        }
    }
    let mut taken: BTreeMap<&str, &str> = BTreeMap::new();
    for choice in choices.iter().filter(|one| one.left_out.is_none()) {
        if let Some(other) = taken.insert(&choice.directory, &choice.server.name) {
            return Err(Error::invalid(format!(
                "servers '{other}' and '{}' would share the directory {}",
                choice.server.name, choice.directory
            ))
            .next("name one of them with --servers, or give a driver of your own other names"));
        }
    }
    if choices.iter().all(|choice| choice.left_out.is_some()) {
        return Err(none_usable(&choices));
    }
    Ok(choices)
}

fn none_usable(choices: &[Choice]) -> Error {
    let list: Vec<String> = choices
        .iter()
        .map(|choice| {
            format!(
                "{}: {}",
                choice.server.name,
                choice.left_out.as_deref().unwrap_or_default()
            )
        })
        .collect();
    let all_full = choices.iter().all(|choice| choice.server.down.is_none());
    let what = format!("no server can be used ({})", list.join("; "));
    match all_full {
        true => Error::no_space(what).next("prune older checkpoints, or lower --min-free-percent"),
        false => Error::unavailable(what).next("see whether the servers run"),
    }
}

fn full(server: &Server, min_free_percent: f64) -> Option<String> {
    let (free, total) = (server.free_bytes?, server.total_bytes?);
    let percent = 100.0 * free as f64 / total.max(1) as f64;
    (percent < min_free_percent).then(|| {
        format!("full: {percent:.1} % free, less than {min_free_percent} % (--min-free-percent)")
    })
}

/// The `number` emptiest usable servers.
fn keep(choices: &mut [Choice], number: usize) -> Result<()> {
    let mut able: Vec<usize> = (0..choices.len())
        .filter(|&at| choices[at].left_out.is_none())
        .collect();
    if number == 0 || number > able.len() {
        return Err(Error::invalid(format!(
            "--servers {number}: expected 1 to {}, as many as can be used",
            able.len()
        )));
    }
    able.sort_by_key(|&at| std::cmp::Reverse(choices[at].server.free_bytes));
    for &at in &able[number..] {
        choices[at].left_out = Some(format!("only {number} are wanted (--servers)"));
    }
    Ok(())
}

fn only(choices: &mut [Choice], names: &str) -> Result<()> {
    let names: BTreeSet<&str> = names
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    if names.is_empty() {
        return Err(Error::invalid("--servers: expected a number, or names"));
    }
    for name in &names {
        match choices.iter().find(|choice| choice.server.name == *name) {
            None => {
                let known: Vec<&str> = choices
                    .iter()
                    .map(|choice| choice.server.name.as_str())
                    .collect();
                return Err(Error::not_found(format!(
                    "--servers: there is no server '{name}'; found {}",
                    known.join(", ")
                )));
            }
            Some(Choice {
                left_out: Some(why),
                ..
            }) => {
                return Err(Error::unavailable(format!(
                    "server '{name}' cannot be used: {why}"
                )));
            }
            Some(_) => {}
        }
    }
    for choice in choices {
        if choice.left_out.is_none() && !names.contains(choice.server.name.as_str()) {
            choice.left_out = Some("not named in --servers".to_owned());
        }
    }
    Ok(())
}

/// The name of a directory: other characters of a server's name become a dash.
fn directory_of(name: &str) -> String {
    let safe = |c: char| {
        if c.is_ascii_alphanumeric() || "._-".contains(c) {
            c
        } else {
            '-'
        }
    };
    let text: String = name.chars().map(safe).collect();
    match text.trim_start_matches('.') {
        "" => "server".to_owned(),
        trimmed => trimmed.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_format::ErrorKind;

    fn servers(free: &[u64]) -> Vec<Server> {
        let one = |(at, &free): (usize, &u64)| Server {
            free_bytes: Some(free),
            total_bytes: Some(100),
            ..Server::named(format!("t{}", at + 8))
        };
        free.iter().enumerate().map(one).collect()
    }

    fn used(choices: &[Choice]) -> Vec<&str> {
        choices
            .iter()
            .filter(|one| one.left_out.is_none())
            .map(|one| one.server.name.as_str())
            .collect()
    }

    #[test]
    fn full_and_lost_servers_are_left_out_with_a_reason() {
        let mut all = servers(&[50, 1, 70]);
        all.push(Server {
            down: Some("offline".into()),
            ..Server::named("t11")
        });
        let choices = choose(all, None, 2.0).unwrap();
        // Breaks if: free space is not compared, or names are sorted as plain text.
        assert_eq!(used(&choices), ["t8", "t10"]);
        assert!(
            choices[1]
                .left_out
                .as_deref()
                .unwrap()
                .starts_with("full: 1.0 % free")
        );
        assert_eq!(choices[3].left_out.as_deref(), Some("offline"));
        let error = choose(servers(&[1, 0]), None, 2.0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
    }

    #[test]
    fn the_user_chooses_by_number_or_by_name() {
        assert_eq!(
            used(&choose(servers(&[50, 90, 70]), Some("2"), 2.0).unwrap()),
            ["t9", "t10"]
        );
        assert_eq!(
            used(&choose(servers(&[50, 90, 70]), Some("t10, t8"), 2.0).unwrap()),
            ["t8", "t10"]
        );
        let kind = |wanted| {
            choose(servers(&[50, 0]), Some(wanted), 2.0)
                .unwrap_err()
                .kind()
        };
        assert_eq!(kind("2"), ErrorKind::Invalid);
        assert_eq!(kind("0"), ErrorKind::Invalid);
        assert_eq!(kind("t9"), ErrorKind::Unavailable);
        assert_eq!(kind("t7"), ErrorKind::NotFound);
    }

    #[test]
    fn directories_have_safe_names_that_differ() {
        assert_eq!(directory_of("198.18.2.3:9422"), "198.18.2.3-9422");
        assert_eq!(directory_of("../x"), "-x");
        assert_eq!(directory_of("..."), "server");
        let alike = || vec![Server::named("a:1"), Server::named("a/1")];
        let error = choose(alike(), None, 2.0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        // As the error advises.
        assert_eq!(used(&choose(alike(), Some("a/1"), 2.0).unwrap()), ["a/1"]);
    }

    #[test]
    fn a_number_may_be_a_name() {
        let numbers = |names: &[&str]| names.iter().copied().map(Server::named).collect();
        let targets = || numbers(&["101", "102", "103"]);
        let named = choose(targets(), Some("102"), 2.0).unwrap();
        assert_eq!(used(&named), ["102"]);
        assert_eq!(used(&choose(targets(), Some("2"), 2.0).unwrap()).len(), 2);
        let either = || numbers(&["1", "2", "3"]);
        let error = choose(either(), Some("2"), 2.0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(used(&choose(either(), Some("2,"), 2.0).unwrap()), ["2"]);
        for wrong in [",", "0", "4"] {
            let error = choose(targets(), Some(wrong), 2.0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{wrong}: {error}");
        }
        for percent in [f64::NAN, -1.0, 101.0] {
            assert!(choose(targets(), None, percent).is_err(), "{percent}");
        }
    }
}
