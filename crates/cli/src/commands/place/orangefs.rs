//! Places files on OrangeFS with directory hints. Tested only against recorded command lines.
//!
//! How: `pvfs2-statfs -m` lists the I/O servers with their room, in the order of the file system's
//! configuration, by which the layout "list" counts them. `ofs_setdirhint` sets the extended
//! attributes user.pvfs2.layout, server_list and num_dfiles of a directory, which new files follow;
//! `pvfs2-viewdist` says on which servers a file is. Should the order be another one, the file that
//! is looked at lies elsewhere, and that is an error.
//!
//! Not here: hints of directories below. Where a version does not hand them on, the probe, which
//! lies in such a directory, is on other servers, and that is an error.

use std::path::Path;

use orcheck_format::Result;

use super::driver::{Driver, Server, strange, text};
use super::tools::Tools;

/// See the module.
pub struct OrangeFs;

impl Driver for OrangeFs {
    fn name(&self) -> &str {
        "orangefs"
    }

    fn servers(&self, tools: &dyn Tools, dir: &Path) -> Result<Vec<Server>> {
        let out = tools.good(&["pvfs2-statfs", "-m", text(dir)?])?;
        let mut servers: Vec<Server> = Vec::new();
        for line in out
            .lines()
            .skip_while(|line| !line.starts_with("I/O server statistics:"))
        {
            let Some((field, value)) = line.trim().split_once(':') else {
                continue;
            };
            let (field, value) = (field.trim(), value.trim());
            if field == "server" {
                let index = servers.len();
                servers.push(Server {
                    handle: index.to_string(),
                    ..Server::named(value)
                });
            } else if let Some(server) = servers.last_mut() {
                match field {
                    "bytes available" => server.free_bytes = value.parse().ok(),
                    "bytes total" => server.total_bytes = value.parse().ok(),
                    _ => {}
                }
            }
        }
        if servers.is_empty() {
            return Err(strange(
                "pvfs2-statfs",
                "'I/O server statistics:' and servers",
                &out,
            ));
        }
        for server in &mut servers {
            if server.total_bytes.unwrap_or(0) == 0 {
                server.down = Some("it tells no room: not running?".to_owned());
            }
        }
        Ok(servers)
    }

    fn pin(&self, tools: &dyn Tools, dir: &Path, server: &Server) -> Result<()> {
        let list = format!("1:{}", server.handle);
        tools.good(&[
            "ofs_setdirhint",
            "-n",
            "1",
            "-l",
            "list",
            "-L",
            &list,
            text(dir)?,
        ])?;
        Ok(())
    }

    fn lies_on(&self, tools: &dyn Tools, file: &Path) -> Result<Option<Vec<String>>> {
        let out = tools.good(&["pvfs2-viewdist", "-f", text(file)?])?;
        // "Server 0 - tcp://localhost:3334, handle: 5223372036854744173 (487d2531626f846d.bstream)"
        let found: Vec<String> = out
            .lines()
            .filter_map(|line| {
                line.strip_prefix("Server ")?
                    .split_once(" - ")?
                    .1
                    .split(", handle")
                    .next()
            })
            .map(str::to_owned)
            .collect();
        if found.is_empty() {
            return Err(strange(
                "pvfs2-viewdist",
                "lines 'Server n - ADDRESS'",
                &out,
            ));
        }
        Ok(Some(found))
    }
}

#[cfg(test)]
mod tests {
    use super::super::replay::Replay;
    use super::*;

    const STATFS: &str = "\
meta server statistics:
---------------------------------------

server: tcp://m1:3334
\tbytes available    : 31000000000
\tbytes total        : 40000000000
\tmode: serving only metadata

I/O server statistics:
---------------------------------------

server: tcp://d1:3334
\tRAM bytes total  : 2097152
\tuptime (seconds) : 100
\tbytes available    : 21000000000
\tbytes total        : 40000000000
\tmode: serving only I/O data

server: tcp://d2:3334
\tbytes available    : 0
\tbytes total        : 0
";

    #[test]
    fn data_servers_are_pinned_by_their_number_and_read_back() {
        let dist = "dist_name = simple_stripe\ndist_params:\nstrip_size:65536\n\nNumber of datafiles/servers = 1\n\
                    Server 0 - tcp://d1:3334, handle: 5223372036854744173 (487d2531626f846d.bstream)\n";
        let tools = Replay::new(&[
            ("pvfs2-statfs -m /ofs/ck", 0, STATFS),
            ("ofs_setdirhint -n 1 -l list -L 1:0 /ofs/ck/a", 0, ""),
            ("pvfs2-viewdist -f /ofs/ck/a/f", 0, dist),
        ]);
        let servers = OrangeFs.servers(&tools, Path::new("/ofs/ck")).unwrap();
        assert_eq!(servers.len(), 2, "the metadata server is none");
        assert_eq!(
            (servers[0].name.as_str(), servers[0].free_bytes),
            ("tcp://d1:3334", Some(21_000_000_000))
        );
        assert!(servers[1].down.is_some());
        OrangeFs
            .pin(&tools, Path::new("/ofs/ck/a"), &servers[0])
            .unwrap();
        let found = OrangeFs.lies_on(&tools, Path::new("/ofs/ck/a/f")).unwrap();
        assert_eq!(found, Some(vec!["tcp://d1:3334".to_owned()]));
        assert!(tools.all_run());
    }
}
