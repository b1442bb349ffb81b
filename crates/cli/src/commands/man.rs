//! Implements `orcheck man`, which writes the manual pages: one for the program, each command and
//! each subcommand.
//!
//! Invariants: an existing page is replaced only with `--force`.

use clap::CommandFactory;
use clap_mangen::roff::{Roff, roman};
use orcheck_format::{Error, ErrorKind};
use orcheck_io::disk::write_small;
use serde_json::json;

use crate::args::{Cli, ManArgs};
use crate::exit;
use crate::job::parent_and_name;
use crate::output::{Failure, Outcome};

/// Writes the pages.
pub fn run(args: &ManArgs) -> Result<Outcome, Failure> {
    let dir = match orcheck_staging::open_dir(&args.dir, orcheck_io::failpoints::Failpoints::none())
    {
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
            pages.push((format!("{path}.1"), page(sub.clone())?));
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
    write_page(command)
        .map_err(|error| Error::internal(format!("the manual page cannot be made: {error}")))
}

fn write_page(command: clap::Command) -> std::io::Result<Vec<u8>> {
    let trailing = command.get_arguments().any(clap::Arg::is_last_set);
    let more = command.get_after_help().map(ToString::to_string);
    let has_commands = command.has_subcommands();
    let man = clap_mangen::Man::new(command);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    let mut synopsis = Vec::new();
    man.render_synopsis_section(&mut synopsis)?;
    let synopsis = String::from_utf8_lossy(&synopsis);
    text.extend(match trailing {
        // The generator leaves out what separates the command from our own options.
        true => synopsis
            .replace(" <\\fICOMMAND", " \\-\\- <\\fICOMMAND")
            .into_bytes(),
        false => synopsis.into_owned().into_bytes(),
    });
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if has_commands {
        man.render_subcommands_section(&mut text)?;
    }
    let mut rest = Roff::new();
    if let Some(more) = more.filter(|more| more != exit::TABLE) {
        rest.control("SH", ["NOTES"]).text([roman(more)]);
    }
    rest.control("SH", ["EXIT STATUS"]);
    let (codes, about_run) = exit::TABLE.split_once("\n\n").unwrap_or((exit::TABLE, ""));
    for line in codes.lines().skip(1) {
        match line.trim_start().split_once("  ") {
            Some((code, meaning)) => {
                rest.control("TP", ["5"])
                    .text([roman(code)])
                    .text([roman(meaning)]);
            }
            None => {
                rest.text([roman(line.trim_start())]);
            }
        }
    }
    rest.control("PP", []).text([roman(about_run)]);
    rest.to_writer(&mut text)?;
    Ok(text)
}
