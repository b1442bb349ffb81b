//! Implements `orcheck place`, which turns a directory of a parallel file system into one directory
//! for each of its servers.
//!
//! How: a driver lists the servers of the file system that holds DIR. Servers that are down or full
//! are left out and named. For each of the others, DIR/SERVER is created if it is missing and bound
//! ("pinned") to that server by the file system's own public commands. Then a file of one byte is
//! written there, the file system is asked where it is, and it is removed. The result is the list
//! for the option `global`: for the engine, each of these directories is a target.
//!
//! A person or a batch script runs it before a job: programs under MPI never start a process.
//!
//! Invariants:
//! 1. A directory is printed only if a file in it was seen on its server, or with a note that this
//!    cannot be determined.
//! 2. A second run does the same: nothing is removed or moved, and the servers are in the order of
//!    their names.
//! 3. No server is left out without a printed reason.
//!
//! Faults survived: tools that are missing, fail, hang, or print something unexpected: an error
//! names the command.
//!
//! Not here: the requirements of each file system (`place/`), which node uses which directory
//! (`orcheck_placement`).

mod beegfs;
mod choice;
mod driver;
mod lustre;
mod moosefs;
mod orangefs;
#[cfg(test)]
mod replay;
mod site;
mod tools;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orcheck_format::{Error, ErrorKind, Result};
use orcheck_io::disk::{Dir, write_small};
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::{file_system_kind, mount_of};
use orcheck_io::user::read_text;
use orcheck_staging::open_shared;
use serde_json::json;

use self::choice::{Choice, choose};
use self::driver::Driver;
use self::tools::{Children, Tools};
use crate::args::PlaceArgs;
use crate::exit;
use crate::job::{group, parent_and_name};
use crate::output::{Failure, Outcome, Tone, cell, count, plain, right, size, table, table_text};

/// The file that is written to find where it is, and the directory that is made for it.
const PROBE: &str = "probe";
const PROBE_DIR: &str = "orcheck-place-probe";
/// Beginning of a file that `--write` may replace.
const MARK: &str = "# Written by `orcheck place`";
/// Size of the longest file that is checked for that mark, in bytes.
const WRITTEN_BYTES: u64 = 1 << 20;

/// What places files on a file system.
enum Who {
    Driver(Box<dyn Driver>),
    /// The file system places every file itself; the text says why nothing can be done about it.
    Nobody(&'static str),
}

/// A server, and the result for it.
struct Placed {
    choice: Choice,
    /// Its directory; `None` if it was left out.
    directory: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &PlaceArgs) -> std::result::Result<Outcome, Failure> {
    let dir = canonical(args)?;
    // First of all: problems that cannot be reported afterwards.
    check_path(dir.path())?;
    if let Some(path) = &args.write {
        check_path(path)?;
        replaceable(path)?;
    }
    let kind = file_system_kind(dir.path())?;
    match who(&args.driver, &kind, dir.path())? {
        Who::Nobody(why) => Ok(nobody(args, why, dir.path())?),
        Who::Driver(driver) => {
            let placed = place(args, driver.as_ref(), &Children::new(), dir.as_ref())?;
            Ok(outcome(args, driver.name(), &placed, dir.path())?)
        }
    }
}

/// The directory under its full path: the tools and the option get the same path.
fn canonical(args: &PlaceArgs) -> Result<Arc<dyn Dir>> {
    let path = &args.dir;
    let full = std::path::absolute(path)
        .map_err(|error| Error::invalid(format!("{}: {error}", path.display())))?;
    open_shared(&full, group(args.group.as_deref())?, Failpoints::none())
        .map_err(|error| error.next("make the directory on the parallel file system first"))
}

fn who(wanted: &str, kind: &str, dir: &Path) -> Result<Who> {
    let found = match wanted {
        "auto" => kind,
        path if path.contains('/') => {
            return Ok(Who::Driver(Box::new(site::Site::new(path))));
        }
        name => name,
    };
    let mount = mount_of(dir);
    let moosefs = mount
        .as_ref()
        .and_then(|(source, kind)| moosefs::master_of(source, kind));
    Ok(match (found, moosefs) {
        ("lustre", _) => Who::Driver(Box::new(lustre::Lustre)),
        ("beegfs", _) => Who::Driver(Box::new(beegfs::BeeGfs)),
        ("orangefs", _) => Who::Driver(Box::new(orangefs::OrangeFs)),
        ("gpfs", _) => Who::Nobody(
            "GPFS spreads every file over all disks of its pool and cannot bind a directory to a \
             server",
        ),
        ("moosefs" | "fuse", Some(master)) => Who::Driver(Box::new(moosefs::MooseFs { master })),
        ("moosefs", None) => {
            let source = mount.map_or_else(|| "an unknown mount".to_owned(), |(source, _)| source);
            return Err(Error::invalid(format!(
                "{} is on {source}, expected a mount of MooseFS (mfs#HOST:PORT)",
                dir.display()
            ))
            .next("give a directory of MooseFS, mounted without -n (--nostdopts)"));
        }
        _ if wanted == "auto" => {
            return Err(Error::unsupported(format!(
                "{} is on {kind}, which is not a parallel file system that Orcheck knows",
                dir.display()
            ))
            .next("name one with --driver, or give your own: docs/placement.md; directories of several servers can also be named in `global` by hand"));
        }
        _ => {
            return Err(Error::invalid(format!(
                "--driver {wanted}: expected auto, moosefs, lustre, beegfs, orangefs, gpfs, or the path of a program"
            )));
        }
    })
}

/// Chooses the servers, and makes and pins a directory for each.
fn place(
    args: &PlaceArgs,
    driver: &dyn Driver,
    tools: &dyn Tools,
    dir: &dyn Dir,
) -> Result<Vec<Placed>> {
    let servers = driver.servers(tools, dir.path())?;
    let choices = choose(servers, args.servers.as_deref(), args.min_free_percent)?;
    let mut placed = Vec::new();
    for mut choice in choices {
        if choice.left_out.is_some() {
            placed.push(Placed {
                choice,
                directory: None,
            });
            continue;
        }
        let sub = dir.child(&choice.directory, true)?;
        driver
            .pin(tools, sub.path(), &choice.server)
            .map_err(|error| {
                error.at(format!(
                    "pin {} to {}",
                    sub.path().display(),
                    choice.server.name
                ))
            })?;
        match lies_on(driver, tools, sub.as_ref())? {
            None => choice.unverified = true,
            Some(on) if on == [choice.server.name.clone()] => {}
            Some(on) => {
                return Err(Error::unavailable(format!(
                    "{} was pinned to {}, but a new file in it lies on {}",
                    sub.path().display(),
                    choice.server.name,
                    if on.is_empty() {
                        "no server".to_owned()
                    } else {
                        on.join(", ")
                    }
                ))
                .next(
                    "check the servers' states and the permission to place files; nothing was \
                     written to use these directories",
                ));
            }
        }
        placed.push(Placed {
            directory: Some(sub.path().to_path_buf()),
            choice,
        });
    }
    Ok(placed)
}

/// Where a new file in a new subdirectory is: jobs make directories of their own there.
fn lies_on(driver: &dyn Driver, tools: &dyn Tools, dir: &dyn Dir) -> Result<Option<Vec<String>>> {
    let below = dir.child(PROBE_DIR, true)?;
    write_small(below.as_ref(), PROBE, b"?")?;
    let found = driver.lies_on(tools, &below.path().join(PROBE));
    below.remove(PROBE)?;
    dir.remove_child(PROBE_DIR)?;
    found
}

fn nobody(args: &PlaceArgs, why: &str, dir: &Path) -> Result<Outcome> {
    let global = option_line(&[dir]);
    let mut warnings = vec![format!(
        "{why}. No placement; Orcheck still marshals: each node writes one stream at a time"
    )];
    let written = write_option(args, &global, &mut warnings)?;
    Ok(Outcome {
        code: exit::PARTIAL,
        text: format!("{global}\n"),
        document: json!({ "driver": "gpfs", "directory": dir, "servers": [], "global": [dir], "written": written, "notes": warnings }),
        warnings,
    })
}

fn outcome(args: &PlaceArgs, driver: &str, placed: &[Placed], dir: &Path) -> Result<Outcome> {
    let mut warnings = Vec::new();
    let mut heads = table(&["SERVER", "FREE", "OF", "DIRECTORY"]);
    let shown = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), size);
    for Placed { choice, directory } in placed {
        let server = &choice.server;
        let (text, tone) = match (&choice.left_out, directory) {
            (Some(why), _) => {
                warnings.push(format!("{} is left out: {why}", server.name));
                ("left out".to_owned(), Tone::Note)
            }
            (None, directory) => {
                if choice.unverified {
                    warnings.push(format!(
                        "{}: the driver cannot tell where files lie; not verified",
                        server.name
                    ));
                }
                (
                    directory
                        .iter()
                        .map(|path| path.display().to_string())
                        .collect(),
                    Tone::Good,
                )
            }
        };
        heads.add_row([
            plain(&server.name),
            right(shown(server.free_bytes)),
            right(shown(server.total_bytes)),
            cell(text, tone),
        ]);
    }
    let used: Vec<&Path> = placed
        .iter()
        .filter_map(|one| one.directory.as_deref())
        .collect();
    let global = option_line(&used);
    let written = write_option(args, &global, &mut warnings)?;
    let text = format!(
        "{}{driver}: {} of {}\n\n{global}\n",
        table_text(&heads),
        used.len(),
        count(placed.len() as u64, "server")
    );
    let servers: Vec<_> = placed
        .iter()
        .map(|Placed { choice, directory }| {
            json!({ "name": choice.server.name, "free_bytes": choice.server.free_bytes, "total_bytes": choice.server.total_bytes,
                    "directory": directory, "left_out": choice.left_out, "verified": directory.is_some() && !choice.unverified })
        })
        .collect();
    Ok(Outcome {
        code: exit::OK,
        text,
        document: json!({ "driver": driver, "directory": dir, "servers": servers, "global": used, "written": written, "notes": warnings }),
        warnings,
    })
}

/// The line of TOML.
fn option_line(dirs: &[&Path]) -> String {
    let quoted: Vec<String> = dirs
        .iter()
        .map(|dir| quoted(&dir.display().to_string()))
        .collect();
    format!("global = [{}]", quoted.join(", "))
}

/// Refuses a path that options and documents cannot contain.
fn check_path(path: &Path) -> Result<()> {
    if driver::text(path)?.chars().any(char::is_control) {
        return Err(Error::invalid(format!(
            "{path:?}: expected a path without control characters"
        )));
    }
    Ok(())
}

/// A TOML string: literal if possible.
fn quoted(text: &str) -> String {
    if text.contains('\'') {
        format!("{text:?}")
    } else {
        format!("'{text}'")
    }
}

/// Refuses to replace a file that `--write` has not written.
fn replaceable(path: &Path) -> Result<()> {
    match read_text(path, WRITTEN_BYTES) {
        Ok(text) if text.starts_with(MARK) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Ok(_) => Err(Error::invalid(format!(
            "{} exists and was not written by `orcheck place`",
            path.display()
        ))
        .next("name another file with --write, or remove it")),
        Err(error) => Err(error),
    }
}

/// Writes the options to a file if requested; returns its path.
fn write_option(
    args: &PlaceArgs,
    global: &str,
    warnings: &mut Vec<String>,
) -> Result<Option<PathBuf>> {
    let Some(path) = &args.write else {
        return Ok(None);
    };
    replaceable(path)?;
    let (parent, name) = parent_and_name(path)?;
    let text = format!(
        "{MARK} {}; it may replace this file.\n{global}\n",
        args.dir.display()
    );
    write_small(parent.as_ref(), &name, text.as_bytes())?;
    warnings.push(format!(
        "options written: ORCHECK_CONFIG={}",
        path.display()
    ));
    Ok(Some(path.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use orcheck_staging::open_dir;
    use orcheck_testing::Scratch;

    fn args(dir: &Path) -> PlaceArgs {
        PlaceArgs {
            dir: dir.to_path_buf(),
            driver: "auto".to_owned(),
            servers: None,
            min_free_percent: 2.0,
            group: None,
            write: None,
        }
    }

    /// Claims to pin, but puts files where it likes.
    struct Liar(&'static str);
    impl Driver for Liar {
        fn name(&self) -> &str {
            "liar"
        }
        fn servers(&self, _: &dyn Tools, _: &Path) -> Result<Vec<driver::Server>> {
            Ok(vec![
                driver::Server::named("a"),
                driver::Server {
                    down: Some("off".into()),
                    ..driver::Server::named("b")
                },
            ])
        }
        fn pin(&self, _: &dyn Tools, _: &Path, _: &driver::Server) -> Result<()> {
            Ok(())
        }
        fn lies_on(&self, _: &dyn Tools, _: &Path) -> Result<Option<Vec<String>>> {
            Ok(Some(vec![self.0.to_owned()]))
        }
    }

    #[test]
    fn a_directory_counts_only_when_a_file_was_seen_on_its_server() {
        let scratch = Scratch::new("place-liar");
        let dir = open_dir(scratch.path(), Failpoints::none()).unwrap();
        let tools = Children::new();
        let refused = place(&args(scratch.path()), &Liar("b"), &tools, dir.as_ref());
        // Breaks if: the location of the probe is not compared.
        let Err(error) = refused else {
            panic!("it believed the liar")
        };
        assert!(error.message().contains("lies on b"), "{error}");
        let placed = place(&args(scratch.path()), &Liar("a"), &tools, dir.as_ref()).unwrap();
        assert_eq!(placed.len(), 2);
        assert_eq!(
            placed[0].directory.as_deref(),
            Some(scratch.path().join("a").as_path())
        );
        let told = outcome(&args(scratch.path()), "liar", &placed, scratch.path()).unwrap();
        assert!(
            told.warnings
                .iter()
                .any(|line| line == "b is left out: off"),
            "{:?}",
            told.warnings
        );
        assert!(
            told.text
                .ends_with(&format!("global = ['{}/a']\n", scratch.path().display())),
            "{}",
            told.text
        );
        // No probe is left.
        assert!(dir.child("a", false).unwrap().list().unwrap().is_empty());
    }

    #[test]
    fn gpfs_is_marshaled_only_and_others_are_refused_with_advice() {
        let scratch = Scratch::new("place-gpfs");
        let Ok(Who::Nobody(why)) = who("auto", "gpfs", scratch.path()) else {
            panic!("GPFS cannot be placed")
        };
        let told = nobody(&args(scratch.path()), why, scratch.path()).unwrap();
        assert_eq!(told.code, exit::PARTIAL);
        assert!(
            told.warnings[0].contains("No placement"),
            "{:?}",
            told.warnings
        );
        let Err(error) = who("auto", "ext4", scratch.path()) else {
            panic!("ext4 has no servers")
        };
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(who("zfs", "ext4", scratch.path()).is_err());
    }

    #[test]
    fn a_file_of_others_is_not_replaced() {
        let scratch = Scratch::new("place-write");
        let path = scratch.path().join("options.toml");
        let asked = PlaceArgs {
            write: Some(path.clone()),
            ..args(scratch.path())
        };
        let mut notes = Vec::new();
        write_option(&asked, "global = ['/a']", &mut notes).unwrap();
        write_option(&asked, "global = ['/b']", &mut notes).unwrap();
        assert!(
            read_text(&path, 1 << 10)
                .unwrap()
                .ends_with("global = ['/b']\n")
        );
        let dir = open_dir(scratch.path(), Failpoints::none()).unwrap();
        write_small(dir.as_ref(), "options.toml", b"keep = 3\n").unwrap();
        assert!(write_option(&asked, "global = ['/c']", &mut notes).is_err());
        // Reported before anything is placed.
        assert!(replaceable(&path).is_err() && check_path(Path::new("/a\nb")).is_err());
    }

    #[test]
    fn paths_are_strings_of_toml() {
        assert_eq!(
            option_line(&[Path::new("/a"), Path::new("/b c")]),
            "global = ['/a', '/b c']"
        );
        assert_eq!(quoted("/it's"), "\"/it's\"");
    }
}
