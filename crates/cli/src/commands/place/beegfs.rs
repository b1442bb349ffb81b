//! Places files on BeeGFS with storage pools of one target. Tested only against recorded command
//! lines.
//!
//! How: BeeGFS binds a directory to a storage pool, not to a target, so every target needs a pool
//! of its own, which an administrator creates once:
//! `beegfs-ctl --addstoragepool --desc=NAME --targets=ID`. `beegfs-ctl --liststoragepools` lists
//! the pools, and `--listtargets --state --spaceinfo` the targets' states and free space.
//! `--setpattern --numtargets=1 --storagepoolid=POOL` pins a directory, and `--getentryinfo` says
//! on which targets a file is. Users other than root may set patterns if sysAllowUserSetPattern is
//! on.
//!
//! Not here: buddy mirrors (a pool of mirror groups is left out), the tool `beegfs` of version 8.

use std::collections::BTreeMap;
use std::path::Path;

use orcheck_format::{Error, Result};

use super::driver::{Driver, Server, strange, text};
use super::tools::Tools;

const CHUNK: &str = "--chunksize=1m";

/// See the module.
pub struct BeeGfs;

impl Driver for BeeGfs {
    fn name(&self) -> &str {
        "beegfs"
    }

    fn servers(&self, tools: &dyn Tools, dir: &Path) -> Result<Vec<Server>> {
        let mount = format!("--mount={}", text(dir)?);
        let listed = tools.good(&[
            "beegfs-ctl",
            "--listtargets",
            "--nodetype=storage",
            "--state",
            "--spaceinfo",
            &mount,
        ])?;
        let pools = tools.good(&["beegfs-ctl", "--liststoragepools", &mount])?;
        let pools = pools_of_one(&pools);
        let mut servers = Vec::new();
        for line in listed.lines() {
            let Some(mut server) = target(line)? else {
                continue;
            };
            match pools.get(&server.name) {
                Some(pool) => server.handle.clone_from(pool),
                None => {
                    server.down.get_or_insert(format!(
                        "no storage pool has it alone: beegfs-ctl --addstoragepool --desc=orcheck-{0} --targets={0}",
                        server.name
                    ));
                }
            }
            servers.push(server);
        }
        if servers.is_empty() {
            return Err(strange(
                "beegfs-ctl --listtargets",
                "lines with targets",
                &listed,
            ));
        }
        Ok(servers)
    }

    fn pin(&self, tools: &dyn Tools, dir: &Path, server: &Server) -> Result<()> {
        let (dir, pool) = (text(dir)?, format!("--storagepoolid={}", server.handle));
        let set = tools.good(&[
            "beegfs-ctl",
            "--setpattern",
            "--numtargets=1",
            CHUNK,
            &pool,
            dir,
        ]);
        set.map(drop).map_err(|error| {
            Error::next(error, "setting patterns takes root, or sysAllowUserSetPattern in beegfs-meta.conf: let an administrator run this once")
        })
    }

    fn lies_on(&self, tools: &dyn Tools, file: &Path) -> Result<Option<Vec<String>>> {
        let out = tools.good(&["beegfs-ctl", "--getentryinfo", text(file)?])?;
        let list = out
            .lines()
            .skip_while(|line| !line.starts_with("+ Storage targets:"))
            .skip(1);
        // "  + 1201 @ node2 [ID: 3]"
        let id = |line: &str| {
            line.strip_prefix("  + ")?
                .split_whitespace()
                .next()
                .map(str::to_owned)
        };
        let found: Vec<String> = list.map_while(id).collect();
        if found.is_empty() {
            return Err(strange(
                "beegfs-ctl --getentryinfo",
                "'+ Storage targets:' and a list",
                &out,
            ));
        }
        Ok(Some(found))
    }
}

/// " 101 Online Good 1787.6GiB 1700.0GiB 95% 178.8M 178.8M 100% 1"; none for heads and rules.
fn target(line: &str) -> Result<Option<Server>> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let Some(id) = fields.first().filter(|id| id.parse::<u32>().is_ok()) else {
        return Ok(None);
    };
    // States are one word, or two joined by a dash.
    let (Some(reachable), Some(consistent)) = (fields.get(1), fields.get(2)) else {
        return Err(strange(
            "beegfs-ctl --listtargets",
            "a target's states",
            line,
        ));
    };
    let mut server = Server::named(*id);
    if *reachable != "Online" || *consistent != "Good" {
        server.down = Some(format!("{reachable}, {consistent}"));
    }
    (server.total_bytes, server.free_bytes) =
        (fields.get(3).and_then(bytes), fields.get(4).and_then(bytes));
    if server.down.is_none() && server.free_bytes.is_none() {
        return Err(strange(
            "beegfs-ctl --listtargets --spaceinfo",
            "room in GiB",
            line,
        ));
    }
    Ok(Some(server))
}

/// "1787.6GiB"
fn bytes(text: &&str) -> Option<u64> {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let factor = match &text[at..] {
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        "PiB" => 50,
        _ => return None,
    };
    let number: f64 = text[..at].parse().ok()?;
    Some((number * (1u64 << factor) as f64) as u64)
}

/// Target -> pool, for pools that have one target and no mirror groups. The line of `=` marks the
/// columns; a list that is too long continues in the next line, and a pool whose description
/// reaches into the next column is left out.
fn pools_of_one(listed: &str) -> BTreeMap<String, String> {
    let Some(rule) = listed.lines().find(|line| line.starts_with("===")) else {
        return BTreeMap::new();
    };
    let mut at = rule.match_indices(" =").map(|(at, _)| at + 1).skip(1);
    let (Some(targets_at), Some(groups_at)) = (at.next(), at.next()) else {
        return BTreeMap::new();
    };
    let mut pools: Vec<(String, Vec<String>)> = Vec::new();
    for line in listed
        .lines()
        .skip_while(|line| !line.starts_with("==="))
        .skip(1)
    {
        let numbers = |text: Option<&str>| -> Vec<String> {
            let parts = text.unwrap_or_default().split([',', ' ']);
            parts
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect()
        };
        let (Some(head), targets) = (
            line.get(..targets_at),
            numbers(line.get(targets_at..groups_at.min(line.len()))),
        ) else {
            continue;
        };
        let groups = numbers(line.get(groups_at..));
        let Some(id) = head.split_whitespace().next() else {
            if let Some((_, list)) = pools.last_mut() {
                list.extend(targets.into_iter().chain(groups));
            }
            continue;
        };
        if head.ends_with(' ') && groups.is_empty() {
            pools.push((id.to_owned(), targets));
        }
    }
    let alone = pools
        .into_iter()
        .filter_map(|(pool, targets)| match &targets[..] {
            [one] => Some((one.clone(), pool)),
            _ => None,
        });
    alone.collect()
}

#[cfg(test)]
mod tests {
    use super::super::replay::Replay;
    use super::*;

    const TARGETS: &str = "\
TargetID     Reachability  Consistency        Total         Free    %      ITotal       IFree    %   NodeID
========     ============  ===========        =====         ====    =      ======       =====    =   ======
     101           Online         Good    1787.6GiB    1700.0GiB  95%      178.8M      178.8M 100%        1
     102           Online         Good    1787.6GiB    1700.0GiB  95%      178.8M      178.8M 100%        1
     201          Offline         Good    1787.6GiB    1700.0GiB  95%      178.8M      178.8M 100%        2
     202           Online Needs-resync    1787.6GiB       8.0GiB   0%      178.8M      178.8M 100%        2
";
    const POOLS: &str = "\
Pool ID   Pool Description                      Targets                 Buddy Groups
======= ================== ============================ ============================
      1            Default 102,301
      2        orcheck 101 101
      3         first pool 201
      4                 x4 202                          301
      5               long 5,6,7,8,9,10,11,12,13,14,15,
                           16
";

    #[test]
    fn a_target_needs_a_pool_of_its_own() {
        let tools = Replay::new(&[
            (
                "beegfs-ctl --listtargets --nodetype=storage --state --spaceinfo --mount=/bee/ck",
                0,
                TARGETS,
            ),
            ("beegfs-ctl --liststoragepools --mount=/bee/ck", 0, POOLS),
        ]);
        let servers = BeeGfs.servers(&tools, Path::new("/bee/ck")).unwrap();
        let shown: Vec<(&str, &str, Option<&str>)> = servers
            .iter()
            .map(|one| (one.name.as_str(), one.handle.as_str(), one.down.as_deref()))
            .collect();
        assert_eq!(shown[0].0, "101");
        assert_eq!(
            shown[0].2, None,
            "the pool's description ends with a number"
        );
        assert!(
            shown[1].2.unwrap().contains("--addstoragepool"),
            "{shown:?}"
        );
        assert_eq!(shown[2].2, Some("Offline, Good"));
        assert_eq!(shown[3].2, Some("Online, Needs-resync"));
        assert_eq!(servers[0].free_bytes, Some(1700 << 30));
    }

    #[test]
    fn a_directory_is_pinned_to_a_pool_and_a_file_is_looked_at() {
        let info = "Entry type: file\nEntryID: 1-63DB17BC-1\nMetadata node: m [ID: 1]\nStripe pattern details:\n+ Type: RAID0\n\
                    + Chunksize: 1M\n+ Number of storage targets: desired: 1; actual: 1\n+ Storage targets:\n  + 101 @ node2 [ID: 3]\n";
        let server = Server {
            handle: "2".into(),
            ..Server::named("101")
        };
        let tools = Replay::new(&[
            (
                "beegfs-ctl --setpattern --numtargets=1 --chunksize=1m --storagepoolid=2 /bee/a",
                0,
                "",
            ),
            ("beegfs-ctl --getentryinfo /bee/a/f", 0, info),
            (
                "beegfs-ctl --setpattern --numtargets=1 --chunksize=1m --storagepoolid=2 /bee/a",
                1,
                "Error: Operation not permitted",
            ),
        ]);
        BeeGfs.pin(&tools, Path::new("/bee/a"), &server).unwrap();
        assert_eq!(
            BeeGfs.lies_on(&tools, Path::new("/bee/a/f")).unwrap(),
            Some(vec!["101".to_owned()])
        );
        let error = BeeGfs
            .pin(&tools, Path::new("/bee/a"), &server)
            .unwrap_err();
        assert!(
            error.message().contains("sysAllowUserSetPattern"),
            "{error}"
        );
    }
}
