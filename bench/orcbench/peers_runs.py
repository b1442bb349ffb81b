"""What do checkpoints cost a program's whole run, with Orcheck and with SCR?

The experiment of Shahzad et al. (Figures 9 and 12): a run with one to four checkpoints, by SCR
(single, partner, partner and flush), by files in memory that are copied in the background (what
Open MPI's `stage` did, which is gone), and by the program's own dedicated threads; here Orcheck.

The program (src/peers.c, --do run) computes on all of its state, a fixed number of times, and takes
its checkpoints evenly spread. A run counts until the library is closed, so what is written in the
background is in it. Each round runs without checkpoints too, and every way's loss is what its run
took longer than that one. SCR is looked for below the prefix that SCR_DIR names.
"""

import argparse
import contextlib
import os
import statistics
import sys

from orcbench import facts, peers, peers_setups, reporting, running, stats, svg
from orcbench.peers import Failure
from orcbench.peers_setups import NAMES, WAYS
from orcbench.stats import Figure, Sample, Samples
from orcbench.throttling import Limit

# Each of Orcheck's, and what holds as much in the same place.
RIVALS = {
    "node": ("orcheck-node", "scr-single"),
    "memory": ("orcheck-agent", "scr-single-memory"),
    "peers": ("orcheck-peers", "scr-partner"),
    "peers_memory": ("orcheck-peers-memory", "scr-partner-memory"),
    "global": ("orcheck-global", "scr-partner-flush"),
    "global_stage": ("orcheck-global", "stage"),
}
GOALS = {f"{name}_over_rival": ("<=", 1.0) for name in RIVALS}
OTHERS = ("scr-flush", "posix")
NONE = "orcheck-node"
REPORTED = (
    "Shahzad et al.: until a program continues, SCR single + flush takes 25 to 35 times as long as "
    "single"
)


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=256, help="MiB of each rank (default 256)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--rounds", type=int, default=None, help="default 5, --full 15")
    parser.add_argument("--seconds", type=float, default=10, help="of a run (default 10)")
    parser.add_argument(
        "--checkpoints", type=int, nargs="+", default=[1, 2, 3, 4], help="default 1 2 3 4"
    )
    parser.add_argument(
        "--memory-dir", default="/dev/shm", help="a tmpfs (default /dev/shm): the tier in memory"
    )
    parser.add_argument(
        "--disk-mb-per-s", type=int, default=0, help="limits what is written to the disk"
    )


def one_run(
    args: argparse.Namespace, programs: dict[str, str], name: str, sweeps: int, checkpoints: int
) -> Sample:
    """A run of its own."""
    way = WAYS[name]
    with peers.directories(args) as (disk, memory):
        where, conf, more_env = peers_setups.settings(
            way, disk, memory, args.ranks, args.mib, args.prefix
        )
        mark = os.path.basename(disk)
        env = {**running.environment(), **more_env, "ORCBENCH_MARK": mark}
        argv: list[object] = ["--do", "run", "--with", way.adapter, "--dir", where, "--conf", conf]
        argv += ["--size", args.mib * running.MIB, "--level", way.level, "--nodes", int(way.nodes)]
        argv += ["--sweeps", sweeps, "--rounds", checkpoints]
        try:
            return peers.run(programs[way.library], args.ranks, argv, env, False)
        finally:
            peers.end(mark)


def sweeps_of(args: argparse.Namespace, programs: dict[str, str]) -> int:
    """How often a run computes on its state, to take as long as it shall."""
    tried = 20
    each_s: float = one_run(args, programs, NONE, tried, 0)["s"] / tried
    return max(int(args.seconds / each_s), 4 * int(max(args.checkpoints)))


def lost(ones: list[Sample], none: list[Sample]) -> list[float]:
    """Seconds by which runs took longer than the one without of their round."""
    return [one["s"] - other["s"] for one, other in zip(ones, none)]


def over(ours: list[float], theirs: list[float]) -> Figure:
    """What ours lost over what theirs lost; nothing where theirs did not lose enough to tell."""
    if not ours or not theirs or min(theirs) <= 0:
        return stats.figure([])
    return stats.figure([one / other for one, other in zip(ours, theirs)])


def figures_of(args: argparse.Namespace, samples: Samples) -> dict[str, Figure]:
    most, none = max(args.checkpoints), samples["none"]
    losses = {name: lost(samples.get(f"{name} {most}", []), none) for name in (*ways_of(), *OTHERS)}
    figures = {
        f"{name}_over_rival": over(*(losses[way] for way in RIVALS[name])) for name in RIVALS
    }
    flushed, single = (
        samples.get(f"{name} {most}", []) for name in ("scr-flush", "scr-single-memory")
    )
    figures["scr_flush_over_single"] = stats.figure(
        [one["blocked_s"] / other["blocked_s"] for one, other in zip(flushed, single)]
    )
    for name, found in losses.items():
        if found:
            share = [one / run["s"] for one, run in zip(found, none)]
            figures[f"{name}_share_{most}".replace("-", "_")] = stats.figure(share)
    return figures


def ways_of() -> list[str]:
    return list(dict.fromkeys(way for pair in RIVALS.values() for way in pair))


def table(args: argparse.Namespace, samples: Samples, missing: dict[str, str]) -> None:
    print(
        f"\n{args.ranks} ranks of {args.mib} MiB, "
        f"{statistics.median(one['s'] for one in samples['none']):.1f} s without checkpoints; a "
        "run is longer by % (beside: the calls alone)"
    )
    rows = []
    for name in (*ways_of(), *OTHERS):
        cells = []
        for count in args.checkpoints:
            ones = samples.get(f"{name} {count}", [])
            if not ones:
                cells.append("missing")
                continue
            pairs = list(zip(lost(ones, samples["none"]), ones, samples["none"]))
            share = statistics.median(s / none["s"] for s, _, none in pairs)
            calls = statistics.median(one["blocked_s"] / none["s"] for _, one, none in pairs)
            cells.append(f"{100 * share:.1f} ({100 * calls:.1f})")
        way = WAYS[name]
        rows.append([way.title, way.tier, way.survives, *cells])
    reporting.table(["", "tier", "survives", *(f"{n}" for n in args.checkpoints)], rows)
    for name, why in missing.items():
        print(f"{WAYS[name].title if name in WAYS else NAMES[name]} is missing: {why}")


def measured(
    args: argparse.Namespace, programs: dict[str, str], missing: dict[str, str]
) -> Samples:
    """ "WAY COUNT" -> runs; "none" -> runs without checkpoints."""
    names = [name for name in (*ways_of(), *OTHERS) if WAYS[name].library in programs]
    tasks = [("none", NONE, 0)]
    tasks += [(f"{name} {n}", name, n) for n in args.checkpoints for name in names]
    samples: Samples = {task: [] for task, _, _ in tasks}
    sweeps, rounds = sweeps_of(args, programs), args.rounds or (15 if args.full else 5)
    for number in range(rounds):
        first = number * len(tasks) // rounds
        for task, name, count in tasks[first:] + tasks[:first]:
            if name in missing:
                continue
            try:
                one = one_run(args, programs, name, sweeps, count)
            except Failure as failure:
                if WAYS[name].library in ("orcheck", "posix"):
                    raise RuntimeError(f"{name}: {failure.said}") from failure
                missing[name] = peers.failed(args, name, failure)
                for other in args.checkpoints:
                    samples.pop(f"{name} {other}", None)
                continue
            samples[task].append(one)
            print(
                f"round {number + 1} of {rounds}, {task}: {one['s']:.2f} s, calls "
                f"{1e3 * one['blocked_s']:.0f} ms",
                file=sys.stderr,
                flush=True,
            )
    return samples


def main() -> None:
    args = running.arguments("peers-runs", __doc__, more)
    running.end_on_signals()
    programs, missing = peers.programs_of(args)
    os.makedirs(args.results, exist_ok=True)
    machine = facts.Machine(args.dir)
    limit = Limit(args.dir, args.disk_mb_per_s * 1_000_000) if args.disk_mb_per_s else None
    with limit or contextlib.nullcontext():
        samples = measured(args, programs, missing)
    table(args, samples, missing)
    print(REPORTED)
    figures = figures_of(args, samples)
    stored = {"missing": missing, "reported": REPORTED, "raw": samples}
    footnote = reporting.finish(args, "peers-runs", machine, figures, GOALS, stored)
    panel = svg.Panel("a run is longer by", "checkpoints", "%")
    for name in (*ways_of(), *OTHERS):
        points = []
        for count in args.checkpoints:
            if ones := samples.get(f"{name} {count}", []):
                pairs = zip(lost(ones, samples["none"]), samples["none"])
                points.append((count, 100 * statistics.median(s / one["s"] for s, one in pairs)))
        if points:
            panel.line(WAYS[name].title, points)
    svg.save(os.path.join(args.results, "peers-runs.svg"), footnote, [panel])


if __name__ == "__main__":
    main()
