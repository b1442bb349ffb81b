//! `orcheck man`: the manual pages, one for the program and one for each command and each command below it.
//!
//! Invariants: a page that is there is replaced only with `--force`.

use clap::CommandFactory;
use orcheck_format::{Error, ErrorKind};
use orcheck_io::write_small;
use serde_json::json;

use crate::args::{Cli, ManArgs};
use crate::exit;
use crate::job::parent_and_name;
use crate::output::{Failure, Outcome};

/// Writes the pages.
pub fn run(args: &ManArgs) -> Result<Outcome, Failure> {
    let dir = match orcheck_io::open_dir(&args.dir, orcheck_io::Steps::none()) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let (parent, name) = parent_and_name(&args.dir)?;
            parent.child(&name, true)?
        }
        opened => opened?,
    };
    let mut command = Cli::command();
    command.build();
    let mut pages = vec![("orcheck.1".to_string(), page(command.clone())?)];
    let mut level = vec![("orcheck".to_string(), command)];
    while let Some((path, of)) = level.pop() {
        for sub in of
            .get_subcommands()
            .filter(|sub| sub.get_name() != "help" && !sub.is_hide_set())
        {
            let path = format!("{path}-{}", sub.get_name());
            let more = sub
                .get_after_help()
                .map(|text| format!("{text}\n\n"))
                .unwrap_or_default();
            pages.push((
                format!("{path}.1"),
                page(sub.clone().after_help(format!("{more}{}", exit::TABLE)))?,
            ));
            level.push((path, sub.clone()));
        }
    }
    if !args.force {
        let taken = dir
            .list()?
            .into_iter()
            .find(|entry| pages.iter().any(|(name, _)| *name == entry.name));
        if let Some(entry) = taken {
            return Err(Error::invalid(format!(
                "{} exists",
                dir.path().join(&entry.name).display()
            ))
            .next("give --force to replace it")
            .into());
        }
    }
    for (name, text) in &pages {
        write_small(dir.as_ref(), name, text)?;
    }
    let files: Vec<String> = pages
        .iter()
        .map(|(name, _)| dir.path().join(name).display().to_string())
        .collect();
    Ok(Outcome {
        code: exit::OK,
        text: files.iter().map(|file| format!("{file}\n")).collect(),
        document: json!({ "files": files }),
        warnings: Vec::new(),
    })
}

fn page(command: clap::Command) -> Result<Vec<u8>, Error> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut text)
        .map_err(|error| Error::internal(format!("the manual page cannot be made: {error}")))?;
    Ok(text)
}
