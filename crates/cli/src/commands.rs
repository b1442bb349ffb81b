//! Runs the commands, one file each.

mod agent;
mod completions;
mod copy;
mod doctor;
mod drain;
mod halt;
mod keep;
mod ls;
mod man;
mod mount;
mod place;
mod plan;
mod profile;
mod prove;
mod prune;
mod restore;
mod rm;
mod run;
mod scavenge;
mod server;
mod show;
mod status;
mod verify;

use crate::args::{Cli, Command};
use crate::output::{Failure, Outcome};

/// Runs the given command.
pub fn dispatch(cli: Cli) -> Result<Outcome, Failure> {
    match cli.command {
        Command::Ls(args) => ls::run(&args),
        Command::Show(args) => show::run(&args, cli.json),
        Command::Verify(args) => verify::run(&args, !cli.json),
        Command::Restore(args) => restore::run(&args, cli.json),
        Command::Copy(args) => copy::run(&args, !cli.json),
        Command::Scavenge(args) => scavenge::run(&args, !cli.json),
        Command::Rm(args) => rm::run(&args),
        Command::Keep(args) => keep::run(&args),
        Command::Prune(args) => prune::run(&args),
        Command::Agent(args) => agent::run(&args),
        Command::Server(args) => server::run(&args),
        Command::Profile(args) => profile::run(&args, cli.json),
        Command::Mount(args) => mount::run(&args, cli.json),
        Command::Prove(args) => prove::run(&args),
        Command::Run(args) => run::run(&args, cli.json),
        Command::Place(args) => place::run(&args),
        Command::Halt(args) => halt::run(&args, !cli.json),
        Command::Drain(args) => drain::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}
