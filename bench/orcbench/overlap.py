"""Do writes and reads continue while a program computes, with MPI's calls and with Orcheck's?

Each way does its I/O alone, then beside computations that take 0 to 3 times as long, which touch no
memory and call nothing. Without overlap, both together take their sum; with all of it, as long as
the longer one (Shahzad et al., Figures 1 and 2). `iwrite` is until the file is synced, as a
checkpoint has to be, and Orcheck's until it is safe; `iread` reads a file that is not in the page
cache.
"""

import argparse
import shutil
import sys
from typing import Any

from orcbench import facts, reporting, running, stats, svg
from orcbench.stats import Figure, Sample

GOALS = {"orcheck_overlap": (">=", 0.7)}
# Compiler and launcher of each library of MPI.
MPIS = {"Open MPI": ("mpicc", "mpirun"), "MPICH": ("mpicc.mpich", "mpirun.mpich")}
WAYS = {
    "iwrite": "MPI_File_iwrite, sync",
    "iread": "MPI_File_iread",
    "orcheck": "orc_checkpoint until safe",
}
# One round of a way: factor -> times.
Round = dict[float, Sample]


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=None, help="rounds (default 7, --full 15)")
    parser.add_argument("--mib", type=int, default=512, help="MiB in all (default %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks (default %(default)s)")
    parser.add_argument(
        "--options", default="", metavar="TOML", help="more options of the library, for comparisons"
    )


def measure(args: argparse.Namespace, mpi: str) -> dict[str, list[Round]]:
    """Way -> its rounds."""
    compiler, launcher = MPIS[mpi]
    # MPICH's headers make GCC take MPI_STATUSES_IGNORE for an array without elements.
    flags = ["-Wno-stringop-overflow"]
    program = running.build(args.prefix, "overlap", launcher, flags, compiler)
    size = args.mib * running.MIB // args.ranks // 4096 * 4096
    argv = ["--size", size, "--rounds", args.rounds or (15 if args.full else 7)]
    argv += ["--options", args.options]
    with running.scratch(args.dir) as where:
        found = running.run(program, args.ranks, [*argv, "--dir", where], launcher=launcher)
    rounds: dict[str, dict[int, Round]] = {}
    for one in found:
        rounds.setdefault(one["way"], {}).setdefault(one["round"], {})[one["factor"]] = one
    return {way: list(of.values()) for way, of in rounds.items()}


def overlap(one: Round, factor: float) -> float:
    """The share of the shorter of I/O and computation that was hidden; below 0: slower than one
    after the other.
    """
    io_s = float(one[factor]["io_s"])
    compute_s = factor * io_s
    return (io_s + compute_s - float(one[factor]["total_s"])) / min(io_s, compute_s)


def figures_of(found: dict[str, dict[str, list[Round]]]) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for mpi, ways in found.items():
        for way, rounds in ways.items():
            for factor in sorted(rounds[0]) if rounds else ():
                if factor > 0:
                    key = f"{way}_overlap_{factor:g}_{mpi.replace(' ', '').lower()}"
                    figures[key] = stats.figure([overlap(one, factor) for one in rounds])
    if "orcheck_overlap_1_openmpi" in figures:
        figures["orcheck_overlap"] = figures["orcheck_overlap_1_openmpi"]
    return figures


def show(found: dict[str, dict[str, list[Round]]]) -> None:
    def median(rounds: list[Round], factor: float, key: str) -> float:
        return stats.spread([float(one[factor][key]) for one in rounds])["median"]

    rows = []
    for mpi, ways in found.items():
        for way, rounds in ways.items():
            for factor in sorted(rounds[0]):
                parts = [median(rounds, factor, key) for key in ("call_s", "wait_s", "sync_s")]
                hidden = [overlap(one, factor) for one in rounds] if factor else []
                rows.append(
                    [
                        f"{mpi}, {WAYS[way]}",
                        f"{factor:g}",
                        *(f"{1e3 * part:.0f}" for part in parts),
                        f"{1e3 * median(rounds, factor, 'total_s'):.0f}",
                        f"{100 * stats.spread(hidden)['median']:.0f} %" if hidden else "",
                    ]
                )
    print("milliseconds (median); computation: times the I/O alone; hidden: of the shorter of both")
    reporting.table(["way", "computation", "call", "wait", "sync", "total", "hidden"], rows)


def draw(args: argparse.Namespace, found: dict[str, dict[str, list[Round]]], note: str) -> None:
    panels = []
    for way, title in WAYS.items():
        panel = svg.Panel(title, "computation, in times of the I/O", "total, in times of the I/O")
        factors: list[float] = []
        for mpi, ways in found.items():
            rounds = ways.get(way, [])
            factors = sorted(rounds[0]) if rounds else factors
            points = [
                (
                    factor,
                    stats.spread([one[factor]["total_s"] / one[factor]["io_s"] for one in rounds])[
                        "median"
                    ],
                )
                for factor in factors
            ]
            panel.line(mpi, points)
        panel.line("one after the other", [(factor, 1 + factor) for factor in factors])
        panel.line("all hidden", [(factor, max(1.0, factor)) for factor in factors])
        panels.append(panel)
    svg.save(reporting.result_path(args, "overlap", ".svg"), note, panels)


def main() -> None:
    args = running.arguments("overlap", __doc__, more)
    running.end_on_signals()
    machine = facts.Machine(args.dir)
    found: dict[str, dict[str, list[Round]]] = {}
    missing: dict[str, str] = {}
    for mpi, programs in MPIS.items():
        absent = [program for program in programs if not shutil.which(program)]
        if absent:
            missing[mpi] = f"{absent[0]} is missing. Next: tools/install-deps.sh bench"
            print(f"NOT MEASURED: {mpi}: {missing[mpi]}", flush=True)
            continue
        print(f"measuring with {mpi} ...", file=sys.stderr, flush=True)
        found[mpi] = measure(args, mpi)
    show(found)
    raw: dict[str, Any] = {
        mpi: {way: [list(one.values()) for one in rounds] for way, rounds in ways.items()}
        for mpi, ways in found.items()
    }
    more_facts = {"raw": raw, "not_measured": missing}
    note = reporting.finish(args, "overlap", machine, figures_of(found), GOALS, more_facts)
    draw(args, found, note)


if __name__ == "__main__":
    main()
