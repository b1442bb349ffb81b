//! Runs a site's own driver, a program with the subcommands `servers`, `pin` and `where`;
//! docs/placement.md describes the interface.
//!
//! Not here: anything about a file system.

use std::path::Path;

use orcheck_format::Result;

use super::driver::{Driver, Server, strange, text};
use super::tools::{Tools, failed};

/// The state of a server that can be used.
const UP: &str = "up";
/// Exit status of `where` in a driver that cannot tell.
const CANNOT_TELL: i32 = 3;

/// A program.
pub struct Site {
    program: String,
}

impl Site {
    /// The program at this path.
    pub fn new(program: &str) -> Site {
        Site {
            program: program.to_owned(),
        }
    }
}

impl Driver for Site {
    fn name(&self) -> &str {
        &self.program
    }

    fn servers(&self, tools: &dyn Tools, dir: &Path) -> Result<Vec<Server>> {
        let out = tools.good(&[&self.program, "servers", text(dir)?])?;
        let lines = out.lines().filter(|line| !line.trim().is_empty());
        lines
            .map(|line| {
                server(line).ok_or_else(|| {
                    strange(
                        &format!("{} servers", self.program),
                        "NAME STATE [FREE_BYTES [TOTAL_BYTES]]",
                        line,
                    )
                })
            })
            .collect()
    }

    fn pin(&self, tools: &dyn Tools, dir: &Path, server: &Server) -> Result<()> {
        tools.good(&[&self.program, "pin", text(dir)?, &server.name])?;
        Ok(())
    }

    fn lies_on(&self, tools: &dyn Tools, file: &Path) -> Result<Option<Vec<String>>> {
        let line = [&self.program, "where", text(file)?];
        let said = tools.run(&line)?;
        match said.code {
            0 => Ok(Some(
                said.out.split_whitespace().map(str::to_owned).collect(),
            )),
            CANNOT_TELL => Ok(None),
            _ => Err(failed(&line, &said)),
        }
    }
}

fn server(line: &str) -> Option<Server> {
    let mut fields = line.split_whitespace();
    let mut server = Server::named(fields.next()?);
    let state = fields.next()?;
    server.down = (state != UP).then(|| state.to_owned());
    for room in [&mut server.free_bytes, &mut server.total_bytes] {
        if let Some(text) = fields.next() {
            *room = Some(text.parse().ok()?);
        }
    }
    fields.next().is_none().then_some(server)
}

#[cfg(test)]
mod tests {
    use super::super::replay::Replay;
    use super::*;

    #[test]
    fn lines_are_servers_and_anything_else_is_an_error() {
        let site = Site::new("/site/driver");
        let calls = |out: &str| Replay::new(&[("/site/driver servers /d", 0, out)]);
        let dir = Path::new("/d");
        let servers = site
            .servers(&calls("a up 10 20\n\nb drained\n"), dir)
            .unwrap();
        assert_eq!(
            (
                servers[0].free_bytes,
                servers[0].total_bytes,
                &servers[0].down
            ),
            (Some(10), Some(20), &None)
        );
        assert_eq!(servers[1].down.as_deref(), Some("drained"));
        for wrong in ["a\n", "a up x\n", "a up 1 2 3\n"] {
            assert!(site.servers(&calls(wrong), dir).is_err(), "{wrong}");
        }
        let tools = Replay::new(&[
            ("/site/driver where /d/f", 3, ""),
            ("/site/driver where /d/f", 1, "what?"),
        ]);
        assert_eq!(site.lies_on(&tools, Path::new("/d/f")).unwrap(), None);
        assert!(site.lies_on(&tools, Path::new("/d/f")).is_err());
    }
}
