//! Places files on MooseFS with storage classes. Tested against a real MooseFS
//! (testbed/cluster/moosetest.py).
//!
//! How: `mfscli -SCS` lists the chunkservers with their labels (LABELS in mfschunkserver.cfg,
//! letters from A to Z). A server is identified by labels that no other server has in full: one
//! letter, or several joined. A storage class `orcheck-LABELS` keeps one copy on such a server;
//! `mfssetsclass` assigns it to the directory, from which files and directories inherit it.
//! `mfsfileinfo` says where the chunks of a file are.
//!
//! A pinned file has one copy, which is lost with its chunkserver. Replicas are left to Orcheck
//! (`peers`). While the chunkserver is away or full, MooseFS puts new files on other servers: the
//! strict mode of a class, which would refuse, makes writers wait until the server is back,
//! whatever the mount's time limits are (3.0.117). Deleted files usually stay in MooseFS's trash
//! for a day and would keep occupying the space of every old checkpoint, so trash is switched off
//! in pinned directories.
//!
//! Not here: labels, which an administrator assigns.

use std::collections::BTreeSet;
use std::path::Path;

use orcheck_format::Result;

use super::driver::{Driver, Server, strange, text};
use super::tools::Tools;

/// A master's port for clients, if the mount gives none.
const MASTER_PORT: &str = "9421";
/// Minimum number of fields in a line about a connected chunkserver: ip, port, id, labels, version,
/// load, maintenance, chunks, used, total.
const SERVER_FIELDS: usize = 10;

/// A mounted MooseFS.
pub struct MooseFs {
    /// Host and client port of its master.
    pub master: (String, String),
}

/// The master of a mount, if it is a MooseFS mount.
pub fn master_of(source: &str, kind: &str) -> Option<(String, String)> {
    let known = ["fuse.mfs", "fuse.moosefs", "moosefs"].contains(&kind);
    let address = match source.strip_prefix("mfs#") {
        Some(address) => address,
        None if known => source,
        None => return None,
    };
    let address = address.split('/').next()?;
    let (host, port) = match address.split_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => (host, port),
        Some((host, _)) => (host, MASTER_PORT),
        None => (address, MASTER_PORT),
    };
    Some((host.to_owned(), port.to_owned()))
}

impl Driver for MooseFs {
    fn name(&self) -> &str {
        "moosefs"
    }

    fn servers(&self, tools: &dyn Tools, _dir: &Path) -> Result<Vec<Server>> {
        let (host, port) = &self.master;
        let line = [
            "mfscli", "-H", host, "-P", port, "-SCS", "-p", "-n", "-s", "|",
        ];
        let out = tools.good(&line)?;
        let servers = chunkservers(&out)?;
        if servers.is_empty() {
            return Err(strange(&line.join(" "), "lines 'chunk servers:|...'", &out));
        }
        Ok(servers)
    }

    fn pin(&self, tools: &dyn Tools, dir: &Path, server: &Server) -> Result<()> {
        let dir = text(dir)?;
        let labels = server.handle.as_str();
        let class = format!("orcheck-{labels}");
        let listed = tools.good(&["mfsscadmin", dir, "list", "-l"])?;
        let made = match definition(&listed, &class) {
            None => tools.good(&[
                "mfsscadmin",
                dir,
                "create",
                "-m",
                "d",
                "-C",
                labels,
                "-K",
                labels,
                &class,
            ]),
            Some(found) if is_pinned(found, labels) => Ok(String::new()),
            Some(_) => tools.good(&[
                "mfsscadmin",
                dir,
                "modify",
                "-m",
                "d",
                "-C",
                labels,
                "-K",
                labels,
                &class,
            ]),
        };
        made.map_err(|error| {
            error.next("making storage classes takes the flag 'admin' in mfsexports.cfg: let an administrator run this once")
        })?;
        // -r: also existing directories of jobs.
        tools.good(&["mfssetsclass", "-r", &class, dir])?;
        tools.good(&["mfssettrashtime", "-r", "0", dir])?;
        // The tools exit with 0 even after some failures, so the present state is what counts.
        let given = tools.good(&["mfsgetsclass", dir])?;
        if !given
            .lines()
            .any(|line| line.trim_end().ends_with(&format!(": '{class}'")))
        {
            return Err(strange(
                &format!("mfsgetsclass {dir}"),
                &format!("class {class}"),
                &given,
            ));
        }
        let listed = tools.good(&["mfsscadmin", dir, "list", "-l"])?;
        match definition(&listed, &class) {
            Some(found) if is_pinned(found, labels) => Ok(()),
            found => Err(strange(
                "mfsscadmin list -l",
                &format!("class {class} with the labels [{labels}] alone"),
                found.unwrap_or("no such class"),
            )),
        }
    }

    fn lies_on(&self, tools: &dyn Tools, file: &Path) -> Result<Option<Vec<String>>> {
        let out = tools.good(&["mfsfileinfo", text(file)?])?;
        let copies = out
            .lines()
            .filter_map(|line| line.trim().strip_prefix("copy "));
        // "copy 1: 10.0.0.7:9422 (status:VALID)"
        let servers: BTreeSet<String> = copies
            .filter_map(|copy| {
                copy.split_once(": ")?
                    .1
                    .split_whitespace()
                    .next()
                    .map(str::to_owned)
            })
            .collect();
        Ok(Some(servers.into_iter().collect()))
    }
}

/// The chunkservers in the output of `mfscli -SCS`. A disconnected one has a short line.
fn chunkservers(out: &str) -> Result<Vec<Server>> {
    let mut found: Vec<(Server, BTreeSet<char>)> = Vec::new();
    for line in out.lines() {
        let Some(rest) = line
            .strip_prefix("chunk servers:|")
            .or_else(|| line.strip_prefix("Disconnected chunk servers:|"))
        else {
            continue;
        };
        let fields: Vec<&str> = rest.split('|').map(str::trim).collect();
        let (Some(ip), Some(port)) = (fields.first(), fields.get(1)) else {
            return Err(strange("mfscli -SCS", "an address and a port", line));
        };
        let mut server = Server::named(format!("{ip}:{port}"));
        if fields.len() < SERVER_FIELDS {
            server.down = Some("disconnected from the master".to_owned());
            found.push((server, BTreeSet::new()));
            continue;
        }
        let number = |at: usize| {
            fields[at]
                .parse::<u64>()
                .map_err(|_| strange("mfscli -SCS", "bytes", line))
        };
        let (used, total) = (number(8)?, number(9)?);
        server.total_bytes = Some(total);
        server.free_bytes = Some(total.saturating_sub(used));
        if fields[6].starts_with("maintenance") && fields[6] != "maintenance_off" {
            server.down = Some(format!("in maintenance ({})", fields[6]));
        } else if total == 0 {
            server.down = Some("it has no disk".to_owned());
        }
        found.push((
            server,
            fields[3].chars().filter(char::is_ascii_uppercase).collect(),
        ));
    }
    let sets: Vec<BTreeSet<char>> = found.iter().map(|(_, labels)| labels.clone()).collect();
    let name = |(at, (mut server, labels)): (usize, (Server, BTreeSet<char>))| {
        let alone = |wanted: &BTreeSet<char>| {
            let others = sets.iter().enumerate().filter(|(other, _)| *other != at);
            others.into_iter().all(|(_, set)| !wanted.is_subset(set))
        };
        let letter = labels
            .iter()
            .map(|&letter| BTreeSet::from([letter]))
            .find(alone);
        match letter.or_else(|| Some(labels.clone()).filter(|all| !all.is_empty() && alone(all))) {
            Some(wanted) => server.handle = wanted.into_iter().collect(),
            None => {
                let shown: String = labels.iter().collect();
                server.down.get_or_insert(format!(
                    "its labels ({}) do not distinguish it from the others: give it a letter of \
                     its own, LABELS in mfschunkserver.cfg",
                    if shown.is_empty() { "none" } else { &shown }
                ));
            }
        }
        server
    };
    Ok(found.into_iter().enumerate().map(name).collect())
}

/// What `mfsscadmin list -l` reports about a class: "orcheck-B : 1 ; admin_only: NO ; mode: STD ;
/// ...".
fn definition<'a>(listed: &'a str, class: &str) -> Option<&'a str> {
    let mut lines = listed.lines();
    lines.find(|line| {
        line.split(" : ")
            .next()
            .is_some_and(|name| name.trim() == class)
    })
}

fn is_pinned(definition: &str, labels: &str) -> bool {
    let field = |name: &str| {
        let part = definition
            .split(';')
            .map(str::trim)
            .find_map(|part| part.strip_prefix(name));
        part.map(str::trim)
    };
    let only = format!("[{labels}]");
    field("mode:") == Some("STD")
        && field("create_labels:") == Some(&only)
        && field("keep_labels:") == Some(&only)
}

#[cfg(test)]
mod tests {
    use super::super::replay::Replay;
    use super::*;

    // As MooseFS 3.0.117 prints them.
    const SERVERS: &str = "\
chunk servers:|198.18.2.2|9422|4|A|3.0.117|0|maintenance_off|2|26694455296|97793294336|-|0|0|0
chunk servers:|198.18.2.3|9422|2|B,D|3.0.117|0|maintenance_off|1|26694455296|97793294336|-|0|0|0
chunk servers:|198.18.2.4|9422|3|C,D|3.0.117|0|maintenance_on|1|26694393856|97793294336|-|0|0|0
chunk servers:|198.18.2.5|9422|1|-|3.0.117|0|maintenance_off|2|26694471680|97793294336|-|0|0|0


Disconnected chunk servers:|198.18.2.6|9422|5|maintenance_off
";
    const CLASSES: &str = "\
9 : 9 ; admin_only: NO ; mode: STD ; create_labels: [*] , [*] ; keep_labels: [*] , [*]
orcheck-B : 1 ; admin_only: NO ; mode: STD ; create_labels: [B] ; keep_labels: [B]
";

    fn moosefs() -> MooseFs {
        MooseFs {
            master: ("198.18.2.1".into(), "9421".into()),
        }
    }

    #[test]
    fn servers_are_told_apart_by_their_labels() {
        let tools = Replay::new(&[("mfscli -H 198.18.2.1 -P 9421 -SCS -p -n -s |", 0, SERVERS)]);
        let servers = moosefs().servers(&tools, Path::new("/mfs")).unwrap();
        let shown: Vec<(&str, &str, bool)> = servers
            .iter()
            .map(|one| (one.name.as_str(), one.handle.as_str(), one.down.is_some()))
            .collect();
        // Breaks if: a letter that two servers have counts as a name.
        assert_eq!(
            shown,
            [
                ("198.18.2.2:9422", "A", false),
                ("198.18.2.3:9422", "B", false),
                ("198.18.2.4:9422", "C", true),
                ("198.18.2.5:9422", "198.18.2.5:9422", true),
                ("198.18.2.6:9422", "198.18.2.6:9422", true),
            ]
        );
        assert_eq!(servers[0].free_bytes, Some(97_793_294_336 - 26_694_455_296));
        assert!(servers[3].down.as_deref().unwrap().contains("LABELS"));
        // Two labels together; neither is unique alone.
        let joined = SERVERS.replace("|A|", "|B,C|").replace("|-|3", "|B|3");
        let servers = chunkservers(&joined.replace("|B,D|", "|C|")).unwrap();
        assert_eq!(
            (servers[0].handle.as_str(), &servers[0].down),
            ("BC", &None)
        );
        let tools = Replay::new(&[(
            "mfscli -H 198.18.2.1 -P 9421 -SCS -p -n -s |",
            0,
            "Working master servers not found !!!",
        )]);
        assert!(moosefs().servers(&tools, Path::new("/mfs")).is_err());
    }

    #[test]
    fn a_class_is_made_once_and_read_back() {
        let server = Server {
            handle: "B".into(),
            ..Server::named("198.18.2.3:9422")
        };
        let rest: [(&str, i32, &str); 4] = [
            ("mfssetsclass -r orcheck-B /mfs/b", 0, ""),
            ("mfssettrashtime -r 0 /mfs/b", 0, ""),
            ("mfsgetsclass /mfs/b", 0, "/mfs/b: 'orcheck-B'\n"),
            ("mfsscadmin /mfs/b list -l", 0, CLASSES),
        ];
        let listed = ("mfsscadmin /mfs/b list -l", 0, CLASSES);
        let dir = Path::new("/mfs/b");
        let there = Replay::new(&[&[listed][..], &rest].concat());
        moosefs().pin(&there, dir, &server).unwrap();
        assert!(there.all_run());
        let none = ("mfsscadmin /mfs/b list -l", 0, "9 : 9 ; mode: STD\n");
        let made = (
            "mfsscadmin /mfs/b create -m d -C B -K B orcheck-B",
            0,
            "storage class make orcheck-B: ok",
        );
        moosefs()
            .pin(
                &Replay::new(&[&[none, made][..], &rest].concat()),
                dir,
                &server,
            )
            .unwrap();
        let loose = CLASSES.replace(
            "; mode: STD ; create_labels: [B]",
            "; mode: LOOSE ; create_labels: [B]",
        );
        let other = ("mfsscadmin /mfs/b list -l", 0, loose.as_str());
        let changed = ("mfsscadmin /mfs/b modify -m d -C B -K B orcheck-B", 0, "");
        moosefs()
            .pin(
                &Replay::new(&[&[other, changed][..], &rest].concat()),
                dir,
                &server,
            )
            .unwrap();
        // Breaks if: the effect of the tools is not read back.
        let mut unchanged = rest;
        unchanged[3].2 = &loose;
        assert!(
            moosefs()
                .pin(
                    &Replay::new(&[&[other, changed][..], &unchanged].concat()),
                    dir,
                    &server
                )
                .is_err()
        );
        unchanged = rest;
        unchanged[2].2 = "/mfs/b: '2'\n";
        assert!(
            moosefs()
                .pin(
                    &Replay::new(&[&[listed][..], &unchanged].concat()),
                    dir,
                    &server
                )
                .is_err()
        );
        let refused = (
            "mfsscadmin /mfs/b create -m d -C B -K B orcheck-B",
            1,
            "storage class make orcheck-B: error: Permission denied",
        );
        let error = moosefs()
            .pin(&Replay::new(&[none, refused]), dir, &server)
            .unwrap_err();
        assert!(error.message().contains("mfsexports.cfg"), "{error}");
    }

    #[test]
    fn a_file_lies_where_its_chunks_are() {
        let out = "/mfs/b/x:\n\tchunk 0: 0000000000000001_00000001 / (id:1 ver:1)\n\t\tcopy 1: 198.18.2.3:9422 (status:VALID)\n\
                   \tchunk 1: 0000000000000002_00000001 / (id:2 ver:1)\n\t\tcopy 1: 198.18.2.5:9422 (status:VALID)\n";
        let tools = Replay::new(&[("mfsfileinfo /mfs/b/x", 0, out)]);
        let found = moosefs().lies_on(&tools, Path::new("/mfs/b/x")).unwrap();
        assert_eq!(
            found,
            Some(vec![
                "198.18.2.3:9422".to_owned(),
                "198.18.2.5:9422".to_owned()
            ])
        );
    }

    #[test]
    fn a_mount_tells_its_master() {
        let some = |host: &str, port: &str| Some((host.to_owned(), port.to_owned()));
        assert_eq!(
            master_of("mfs#198.18.2.1:9421", "fuse"),
            some("198.18.2.1", "9421")
        );
        assert_eq!(
            master_of("mfsmaster:9500/sub", "fuse.mfs"),
            some("mfsmaster", "9500")
        );
        assert_eq!(
            master_of("mfs#mfsmaster", "fuse"),
            some("mfsmaster", "9421")
        );
        // Breaks if: a mounted subfolder is mistaken for a part of the name.
        assert_eq!(
            master_of("mfs#mfsmaster/sub", "fuse"),
            some("mfsmaster", "9421")
        );
        assert_eq!(master_of("alice@host:/home", "fuse.sshfs"), None);
    }
}
