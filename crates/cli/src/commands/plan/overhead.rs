//! Implements `orcheck plan overhead`: what checkpoints cost a run without failures.
//!
//! Not here: the model (`orcheck_interval::overhead`).

use orcheck_interval::Overhead;
use serde_json::json;

use crate::args::OverheadArgs;
use crate::exit;
use crate::output::{Failure, Outcome, percent, plain, right, span, table, table_text};

/// Computes both equations.
pub fn run(args: &OverheadArgs) -> Result<Outcome, Failure> {
    let overhead = Overhead {
        checkpoints: args.checkpoints,
        bytes: args.node_gb * 1e9 * f64::from(args.nodes),
        node_bytes: args.node_gb * 1e9,
        io_bytes_per_s: args.io_gb_s * 1e9,
        memory_bytes_per_s: args.memory_gb_s * 1e9,
        memory_passes: args.memory_passes,
    };
    overhead.check()?;
    let (synchronous_s, asynchronous_s) = (overhead.synchronous_s(), overhead.asynchronous_s());
    let mut heads = vec!["checkpoints", "written by", "cost"];
    heads.extend(args.run.map(|_| "of the run"));
    let mut shown = table(&heads);
    for (who, cost_s) in [
        ("the program (1)", synchronous_s),
        ("threads (2)", asynchronous_s),
    ] {
        let mut cells = vec![right(args.checkpoints), plain(who), right(span(cost_s))];
        cells.extend(args.run.map(|run_s| right(percent(cost_s / run_s))));
        shown.add_row(cells);
    }
    let mut text = format!(
        "{}\nOne checkpoint takes {} to write.",
        table_text(&shown),
        span(overhead.write_s())
    );
    let checkpoints_max = args.run.map(|run_s| overhead.checkpoints_max(run_s));
    if let Some(most) = checkpoints_max {
        text += &format!(" At most {most} fit into the run without one waiting for the other");
        text += if args.checkpoints > most {
            ": that many are too many for threads.\n"
        } else {
            ".\n"
        };
    } else {
        text += "\n";
    }
    let document = json!({
        "checkpoints": args.checkpoints, "bytes": overhead.bytes, "node_bytes": overhead.node_bytes, "io_bytes_per_s": overhead.io_bytes_per_s,
        "memory_bytes_per_s": overhead.memory_bytes_per_s, "memory_passes": overhead.memory_passes, "write_s": overhead.write_s(),
        "synchronous_s": synchronous_s, "asynchronous_s": asynchronous_s, "run_s": args.run, "checkpoints_max": checkpoints_max,
    });
    Ok(Outcome {
        code: exit::OK,
        text,
        document,
        warnings: Vec::new(),
    })
}
