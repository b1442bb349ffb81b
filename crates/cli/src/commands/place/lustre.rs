//! Places files on Lustre with one stripe on one OST. Tested only against recorded command lines.
//!
//! How: `lfs df` lists the OSTs with their free space. An inactive OST has no figures, and flags
//! after its index (`[OST:3] DRS`) say more. `lfs setstripe -c 1 -i INDEX` on a directory applies
//! to new files in it; `lfs getstripe` reports how many stripes a file has and on which OST the
//! first one is.
//!
//! Not here: pools, and layouts of existing files.

use std::path::Path;

use orcheck_format::Result;

use super::driver::{Driver, Server, strange, text};
use super::tools::Tools;

/// See the module.
pub struct Lustre;

impl Driver for Lustre {
    fn name(&self) -> &str {
        "lustre"
    }

    fn servers(&self, tools: &dyn Tools, dir: &Path) -> Result<Vec<Server>> {
        let line = ["lfs", "df", text(dir)?];
        // It fails if a single OST is inactive, although everything is printed.
        let said = tools.run(&line)?;
        let servers: Vec<Server> = said
            .out
            .lines()
            .chain(said.err.lines())
            .filter_map(ost)
            .collect();
        if servers.is_empty() && said.code != 0 {
            return Err(super::tools::failed(&line, &said));
        }
        if servers.is_empty() {
            return Err(strange("lfs df", "lines with [OST:n]", &said.out));
        }
        Ok(servers)
    }

    fn pin(&self, tools: &dyn Tools, dir: &Path, server: &Server) -> Result<()> {
        let dir = text(dir)?;
        tools.good(&["lfs", "setstripe", "-c", "1", "-i", &server.handle, dir])?;
        Ok(())
    }

    fn lies_on(&self, tools: &dyn Tools, file: &Path) -> Result<Option<Vec<String>>> {
        let file = text(file)?;
        let number = |flag: &str| -> Result<u32> {
            let out = tools.good(&["lfs", "getstripe", flag, file])?;
            let found = out.trim().parse();
            found.map_err(|_| strange(&format!("lfs getstripe {flag} {file}"), "a number", &out))
        };
        let (stripes, first) = (number("-c")?, number("-i")?);
        let more = (stripes != 1).then(|| format!("{stripes} stripes"));
        Ok(Some(std::iter::once(name_of(first)).chain(more).collect()))
    }
}

fn name_of(index: u32) -> String {
    format!("OST{index:04x}")
}

/// "scr-OST0003_UUID  7864320  1048576  6815744  14% /scr[OST:3]", or "OST0003  : inactive device".
fn ost(line: &str) -> Option<Server> {
    if let Some((head, flags)) = line.split_once("[OST:") {
        let (index, flags) = flags.split_once(']')?;
        let index: u32 = index.parse().ok()?;
        let fields: Vec<&str> = head.split_whitespace().collect();
        let kib = |at: usize| fields.get(at)?.parse::<u64>().ok()?.checked_mul(1024);
        let mut server = Server {
            handle: index.to_string(),
            ..Server::named(name_of(index))
        };
        (server.total_bytes, server.free_bytes) = (kib(1), kib(3));
        let flags = flags.trim();
        server.down = match flags {
            _ if server.total_bytes.is_none() => Some(format!("no figures: {}", head.trim())),
            _ if flags.contains('R') => Some("read-only".to_owned()),
            _ if flags.contains('S') => Some("out of space".to_owned()),
            _ if flags.contains('I') => Some("out of inodes".to_owned()),
            _ => None,
        };
        return Some(server);
    }
    let (name, why) = line.split_once(':')?;
    let at = name.find("OST")?;
    let digits: String = name[at + 3..]
        .chars()
        .take_while(char::is_ascii_hexdigit)
        .collect();
    let index = u32::from_str_radix(&digits, 16).ok()?;
    Some(Server {
        handle: index.to_string(),
        down: Some(why.trim().to_owned()),
        ..Server::named(name_of(index))
    })
}

#[cfg(test)]
mod tests {
    use super::super::choice::choose;
    use super::super::replay::Replay;
    use super::*;

    const DF: &str = "\
UUID                   1K-blocks        Used   Available Use% Mounted on
scr-MDT0000_UUID         1048576      204800      843776  20% /scr[MDT:0]
scr-OST0000_UUID        10485760     2097152     8388608  20% /scr[OST:0]
scr-OST0001_UUID        10485760    10380902      104858  99% /scr[OST:1] S
OST0002             : inactive device
scr-OST0003_UUID        10485760    10480000        5760 100% /scr[OST:3]
scr-OST000a_UUID        10485760     1048576     9437184  10% /scr[OST:10] D

filesystem_summary:     31457280    23958054    18000000  76% /scr
";

    #[test]
    fn inactive_and_full_osts_are_left_out() {
        // Breaks if: OSTs are numbered by line instead of index.
        let tools = Replay::new(&[("lfs df /scr/ck", 0, DF)]);
        let servers = Lustre.servers(&tools, Path::new("/scr/ck")).unwrap();
        let choices = choose(servers, None, 2.0).unwrap();
        let shown: Vec<(&str, &str, Option<&str>)> = choices
            .iter()
            .map(|one| {
                (
                    one.server.name.as_str(),
                    one.server.handle.as_str(),
                    one.left_out.as_deref(),
                )
            })
            .collect();
        assert_eq!(shown[0], ("OST0000", "0", None));
        assert_eq!(shown[1], ("OST0001", "1", Some("out of space")));
        assert_eq!(shown[2], ("OST0002", "2", Some("inactive device")));
        assert!(shown[3].2.unwrap().starts_with("full: 0.1 % free"));
        assert_eq!(shown[4], ("OST000a", "10", None));
        assert_eq!(choices[0].server.free_bytes, Some(8_388_608 << 10));
        let tools = Replay::new(&[(
            "lfs df /x",
            1,
            "error: df: '/x' is not a Lustre file system",
        )]);
        assert!(Lustre.servers(&tools, Path::new("/x")).is_err());
    }

    #[test]
    fn a_directory_is_pinned_to_one_ost_and_read_back() {
        let server = Server {
            handle: "10".into(),
            ..Server::named("OST000a")
        };
        let tools = Replay::new(&[
            ("lfs setstripe -c 1 -i 10 /scr/a", 0, ""),
            ("lfs getstripe -c /scr/a/f", 0, "1\n"),
            ("lfs getstripe -i /scr/a/f", 0, "10\n"),
            ("lfs getstripe -c /scr/a/f", 0, "4\n"),
            ("lfs getstripe -i /scr/a/f", 0, "0\n"),
        ]);
        Lustre.pin(&tools, Path::new("/scr/a"), &server).unwrap();
        let file = Path::new("/scr/a/f");
        assert_eq!(
            Lustre.lies_on(&tools, file).unwrap(),
            Some(vec!["OST000a".to_owned()])
        );
        let spread = Lustre.lies_on(&tools, file).unwrap().unwrap();
        assert_eq!(spread, ["OST0000", "4 stripes"]);
    }
}
