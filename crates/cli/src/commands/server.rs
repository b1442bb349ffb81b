//! `orcheck server`: a staging I/O server in the foreground, until a signal ends it.
//!
//! Beside it a thread reads again and again what lies in the server's directory, and tells of damage on standard error.
//!
//! Not here: what a server does (`orcheck_server`), what is read and when it is damaged (`orcheck_engine::scrub`).

mod scrub;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orcheck_format::{Error, ErrorKind, Result};
use orcheck_io::net::Address;
use orcheck_io::process::raise_open_files;
use orcheck_io::secret::SecretSource;
use orcheck_io::{Clock, Key, Steps, SystemClock, open_dir, read_text, write_small};
use orcheck_server::{Config, Order, Server, Tenant, User, expect_identity};
use serde_json::json;

use crate::args::{ServerArgs, ServerOrder};
use crate::exit;
use crate::output::{Failure, Outcome};
use crate::stop;

/// Memory of one piece, in MiB.
const PIECE_MIB: u32 = 4;
/// The directory of a key without a name.
const DEFAULT_NAME: &str = "default";

/// Runs the server.
pub fn run(args: &ServerArgs) -> std::result::Result<Outcome, Failure> {
    raise_open_files();
    let tenants = args.keys.iter().map(|text| tenant(text, args.encrypt));
    let mut tenants = tenants.collect::<Result<Vec<_>>>()?;
    let users = args.munge.iter().map(|text| user(text));
    let mut users = users.collect::<Result<Vec<_>>>()?;
    for text in &args.quota_gib {
        set_quota(&mut tenants, &mut users, text)?;
    }
    let limit = time("--stop-limit", args.stop_limit)?;
    let every = time("--scrub-every", args.scrub_every)?;
    let names = tenants.iter().map(|tenant| tenant.name.clone());
    let names = names
        .chain(users.iter().map(|user| user.name.clone()))
        .collect();
    let config = Config {
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
    };
    let remembered = args.identity.as_deref().map(remembered).transpose()?;
    if let Some(Some(expected)) = remembered {
        expect_identity(&args.dir, expected)
            .map_err(|error| error.at(identity_file(args).display()))?;
    }
    stop::install()?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let users = (&*users, args.encrypt);
    let server = Server::bind_with_users(&config, users, Arc::clone(&clock), Steps::none())?;
    server.tell_to(say);
    let identity = server.identity();
    if remembered == Some(None) {
        remember(identity_file(args), identity)?;
    }
    let stopper = server.stopper();
    let at = server.address().to_string().replace("tcp:", "orcheck://");
    let scrubbed = match args.scrub_mib_s {
        0 => None,
        rate => Some(scrub::start(
            &args.dir, names, rate, every, &stopper, &clock,
        )?),
    };
    let thread = orcheck_io::thread::spawn("orcheck-server", move || server.run())?;
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
    // What was acknowledged is on the disk: nothing of it depends on how this ends.
    stop::wait_for(thread, &*clock, limit, stop_all, &late).map_err(|error| {
        error.next("nothing that was acknowledged is lost; look at the disk and the kernel's log")
    })?;
    let ended = stopper.counts();
    let counts = scrubbed.map(|scrubbed| scrubbed.counts());
    Ok(Outcome {
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
            "scrub": counts.map(|counts| json!({
                "passes": counts.passes,
                "containers": counts.containers,
                "read_bytes": counts.read_bytes,
                "damaged_files": counts.damaged,
                "not_authenticated": counts.unproven,
            })),
        }),
        warnings: Vec::new(),
    })
}

fn say(line: &str) {
    // Nobody may be reading it any more.
    let _ = writeln!(std::io::stderr(), "orcheck: server: {line}");
}

fn identity_file(args: &ServerArgs) -> &Path {
    args.identity.as_deref().unwrap_or(Path::new(""))
}

/// The identity in a file; `None` where there is no such file yet.
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
        .next("remove the file if the server is to begin with the disk that is there")
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
    let dir = open_dir(parent.unwrap_or(Path::new(".")), Steps::none())?;
    write_small(&*dir, name, format!("{identity:016x}\n").as_bytes())
}

fn time(option: &str, seconds: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| Error::invalid(format!("{option} {seconds}s: expected a time from 0")))
}

/// `NAME=SOURCE` or `SOURCE`; a source has a colon before any '='.
fn tenant(text: &str, encrypt: bool) -> Result<Tenant> {
    let (name, source) = match text.split_once('=') {
        Some((name, source)) if !name.contains(':') => (name, source),
        _ => (DEFAULT_NAME, text),
    };
    let secret = SecretSource::parse(source)?.read()?;
    Ok(Tenant {
        name: name.to_owned(),
        key: Key {
            bytes: *secret.bytes(),
            encrypt,
        },
        quota_bytes: None,
    })
}

/// `NAME=GIB` or `GIB`.
fn set_quota(tenants: &mut [Tenant], users: &mut [User], text: &str) -> Result<()> {
    let (name, gib) = text.split_once('=').unwrap_or((DEFAULT_NAME, text));
    let refused = |why: &str| Error::invalid(format!("--quota-gib {text}: {why}"));
    let gib: f64 = gib
        .parse()
        .ok()
        .filter(|gib| (0.0..1e9).contains(gib))
        .ok_or_else(|| refused("expected GiB from 0"))?;
    let tenants = tenants.iter_mut();
    let tenants = tenants.map(|one| (&one.name, &mut one.quota_bytes));
    let users = users.iter_mut();
    let users = users.map(|one| (&one.name, &mut one.quota_bytes));
    let mut all = tenants.chain(users);
    let (_, quota_bytes) = all
        .find(|(known, _)| *known == name)
        .ok_or_else(|| refused("there is no key or user of that name"))?;
    *quota_bytes = Some((gib * (1u64 << 30) as f64) as u64);
    Ok(())
}

/// `NAME=UID` or `UID`.
fn user(text: &str) -> Result<User> {
    let (name, number) = match text.split_once('=') {
        Some((name, number)) => (name.to_owned(), number),
        None => (format!("uid-{text}"), text),
    };
    let uid = number.parse().map_err(|_| {
        Error::invalid(format!(
            "--munge {text}: expected [NAME=]UID, a user's number"
        ))
    })?;
    Ok(User {
        name,
        uid,
        quota_bytes: None,
    })
}
