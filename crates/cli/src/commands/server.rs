//! Implements `orcheck server`, which runs a staging server in the foreground until a signal ends
//! it.
//!
//! At SIGHUP, it reads its tenants again. Another thread keeps rereading the server's directory,
//! and reports damage on standard error.
//!
//! Not here: the server itself (`orcheck_staging`), what is reread and when it is damaged
//! (`orcheck_engine::upkeep::scrub`).

mod scrub;
mod tenants;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orcheck_format::{Error, ErrorKind, Result};
use orcheck_io::clock::{Clock, SystemClock};
use orcheck_io::disk::write_small;
use orcheck_io::failpoints::Failpoints;
use orcheck_io::machine::raise_limits;
use orcheck_io::user::read_text;
use orcheck_net::Address;
use orcheck_staging::open_dir;
use orcheck_staging::server::{Config, Counts, Order, Server, Tenant, expect_identity};
use serde_json::json;

use crate::args::{ServerArgs, ServerOrder};
use crate::output::{Failure, Outcome};
use crate::{exit, stop};

/// Memory of one piece, in MiB.
const PIECE_MIB: u32 = 4;

/// Runs the server.
pub fn run(args: &ServerArgs) -> std::result::Result<Outcome, Failure> {
    raise_limits();
    let wanted = tenants::wanted(args)?;
    let limit = time("--stop-limit", args.stop_limit)?;
    let every = time("--scrub-every", args.scrub_every)?;
    let config = config(args, wanted.tenants);
    let remembered = args.identity.as_deref().map(remembered).transpose()?;
    if let Some(Some(expected)) = remembered {
        expect_identity(&args.dir, expected)
            .map_err(|error| error.at(identity_file(args).display()))?;
    }
    stop::install()?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let users = (wanted.users.as_slice(), args.encrypt);
    let server = Server::bind_with_users(&config, users, Arc::clone(&clock), Failpoints::none())?;
    server.report_to(say);
    let identity = server.identity();
    if remembered == Some(None) {
        remember(identity_file(args), identity)?;
    }
    let stopper = server.stopper();
    let at = server.address().to_string().replace("tcp:", "orcheck://");
    let scrubbed = match args.scrub_mib_s {
        0 => None,
        rate => Some(scrub::start(&args.dir, rate, every, &stopper, &clock)?),
    };
    let (again, served) = (args.clone(), stopper.clone());
    let hangup = stop::OnHangup::install(move || say(&tenants::reread(&again, &served)))?;
    let thread = orcheck_io::machine::thread::spawn("orcheck-server", move || server.run())?;
    println!("server of {} at {at}: ready", args.dir.display());
    println!("identity of its disk: {identity:016x}");
    let late = format!(
        "server of {}: its disk did not take what callers sent",
        args.dir.display()
    );
    let stop_all = || {
        stopper.stop();
        if let Some(scrubbed) = &scrubbed {
            scrubbed.stop();
        }
    };
    // Acknowledged data is on the disk: nothing of it depends on how this ends.
    let meanwhile = || {
        if let Err(error) = hangup.look() {
            say(&format!("SIGHUP: {error}; it is tried again"));
        }
    };
    stop::wait_for(thread, &*clock, limit, meanwhile, stop_all, &late).map_err(|error| {
        error.next("nothing that was acknowledged is lost; check the disk and the kernel's log")
    })?;
    let counts = scrubbed.map(|scrubbed| scrubbed.counts());
    Ok(outcome(&at, &stopper.counts(), counts))
}

fn outcome(at: &str, ended: &Counts, scrubbed: Option<scrub::Counts>) -> Outcome {
    Outcome {
        code: stop::requested().unwrap_or(exit::OK),
        text: String::new(),
        document: json!({
            "address": at,
            "refused_callers": ended.refused_callers,
            "quotas": ended.quotas.iter().map(|one| json!({
                "name": one.name,
                "quota_bytes": one.quota_bytes,
                "used_bytes": one.used_bytes,
            })).collect::<Vec<_>>(),
            "scrub": scrubbed.map(|counts| json!({
                "passes": counts.passes,
                "containers": counts.containers,
                "read_bytes": counts.read_bytes,
                "damaged_files": counts.damaged,
                "not_authenticated": counts.unproven,
            })),
        }),
        warnings: Vec::new(),
    }
}

fn config(args: &ServerArgs, tenants: Vec<Tenant>) -> Config {
    Config {
        address: Address::Tcp(args.listen),
        dir: args.dir.clone(),
        tenants,
        pieces: args.memory_mib / PIECE_MIB,
        at_once: args.at_once as usize,
        order: match args.order {
            ServerOrder::Pull => Order::Pulled,
            ServerOrder::Arrival => Order::Arrival { cached: false },
            ServerOrder::ArrivalCached => Order::Arrival { cached: true },
        },
        ordinary_share: args.ordinary_share,
    }
}

fn say(line: &str) {
    // Nobody may be reading it any more.
    let _ = writeln!(std::io::stderr(), "orcheck: server: {line}");
}

fn identity_file(args: &ServerArgs) -> &Path {
    args.identity.as_deref().unwrap_or(Path::new(""))
}

/// The identity in a file; `None` if there is no such file yet.
fn remembered(path: &Path) -> Result<Option<u64>> {
    let text = match read_text(path, 64) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let number = u64::from_str_radix(text.trim(), 16).map_err(|_| {
        Error::corrupt(format!(
            "{}: expected the 16 digits of an identity, found {:?}",
            path.display(),
            text.trim()
        ))
        .next("remove the file if the server is to start with the current disk")
    })?;
    Ok(Some(number))
}

fn remember(path: &Path, identity: u64) -> Result<()> {
    let invalid = || {
        Error::invalid(format!("--identity {}: expected a file", path.display()))
            .next("name a file outside the server's directory")
    };
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(invalid)?;
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let dir = open_dir(parent.unwrap_or(Path::new(".")), Failpoints::none())?;
    write_small(&*dir, name, format!("{identity:016x}\n").as_bytes())
}

fn time(option: &str, seconds: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| Error::invalid(format!("{option} {seconds}s: expected a time from 0")))
}
