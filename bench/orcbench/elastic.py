"""What does a restart on another number of ranks, or in another cut, cost?

A global array of doubles is written by four ranks that cut it by rows, and read back by four, two,
eight and three ranks, by rows, in blocks and by columns. Beside each restart, in turn and in
rotating order, as many ranks read the same array from a checkpoint that they wrote themselves in
that cut. All files are in the page cache: what reading costs beyond the disk is seen best there.

What should come out: by rows, parts and extents are contiguous, so every extent but those at the
borders goes straight to where it belongs, and the ratio is near 1. By blocks and by columns an
extent holds elements of several ranks: the first one that wants it reads it and verifies it whole,
the others copy it from there, and each picks its runs out of its copy. `bytes_read_over_needed`
says how much is read twice: nothing, as all ranks are on one node.
"""

import argparse
import itertools
import os
import shutil
import statistics
import sys

from orcbench import facts, reporting, running, stats, svg
from orcbench.stats import Sample

WRITERS, READERS, CUTS = 4, (4, 2, 8, 3), ("rows", "blocks", "columns")
GOALS = {"elastic_over_same": ("<=", 1.2), "bytes_read_over_needed": ("<=", 1.15)}


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=1024, help="MiB of the array (default 1024)")
    parser.add_argument("--rounds", type=int, default=None, help="default 7, --full 15")


class Array:
    """The array, and jobs that hold it."""

    def __init__(self, program: str, where: str, mib: int) -> None:
        self.program, self.where = program, where
        self.columns = 8192
        self.rows = mib * running.MIB // (8 * self.columns)
        self.size = mib * running.MIB

    def run(self, ranks: int, cut: str, job: str, what: str) -> Sample:
        pool = self.size // ranks + 64 * running.MIB
        options = f"global = ['{self.where}']\npool = {pool * ranks}"
        found: Sample = running.run(
            self.program,
            ranks,
            [
                *("--job", job, "--do", what, "--rows", self.rows, "--columns", self.columns),
                *("--cut", cut, "--options", options),
            ],
        )
        return found


def measure(args: argparse.Namespace, rounds: int) -> dict[tuple[str, int], list[Sample]]:
    """(cut, readers) -> rounds, each with `elastic` and `same`."""
    program = running.build(args.prefix, "elastic")
    found: dict[tuple[str, int], list[Sample]] = {}
    with running.scratch(args.dir) as where:
        array = Array(program, where, args.mib)
        array.run(WRITERS, "rows", "written", "write")
        for cut, ranks in itertools.product(CUTS, READERS):
            array.run(ranks, cut, "same", "write")
            # What was written past the page cache is in it afterwards.
            for job in ("written", "same"):
                array.run(ranks, cut, job, "restart")
            ones: list[Sample] = []
            for number in range(rounds):
                both: dict[str, Sample] = {}
                jobs = [("elastic", "written"), ("same", "same")]
                for way, job in jobs if number % 2 else reversed(jobs):
                    both[way] = array.run(ranks, cut, job, "restart")
                ones.append(both)
            found[cut, ranks] = ones
            print(
                f"{cut}, {ranks} ranks: {statistics.median(ratios(ones)):.3f} of the same ranks, "
                f"{over_needed(ones):.3f} of the bytes",
                file=sys.stderr,
                flush=True,
            )
            shutil.rmtree(os.path.join(where, "same"))
    return found


def ratios(ones: list[Sample]) -> list[float]:
    return [one["elastic"]["s"] / one["same"]["s"] for one in ones]


def over_needed(ones: list[Sample]) -> float:
    return float(ones[0]["elastic"]["read"] / ones[0]["elastic"]["needed"])


def main() -> None:
    args = running.arguments("elastic", __doc__, more)
    running.end_on_signals()
    machine = facts.Machine(args.dir)
    if 4 * args.mib * running.MIB > 0.7 * facts.available_bytes():
        args.mib = int(0.7 * facts.available_bytes() / 4 / running.MIB)
        print(f"WARNING: memory is short; {args.mib} MiB are measured", flush=True)
    found = measure(args, args.rounds or (15 if args.full else 7))
    print()
    reporting.table(
        ["cut", "ranks", "same s", "elastic s", "ratio", "read / needed"],
        [
            [
                cut,
                ranks,
                f"{statistics.median(one['same']['s'] for one in ones):.3f}",
                f"{statistics.median(one['elastic']['s'] for one in ones):.3f}",
                f"{statistics.median(ratios(ones)):.3f}",
                f"{over_needed(ones):.3f}",
            ]
            for (cut, ranks), ones in found.items()
        ],
    )
    figures = {
        f"elastic_over_same_{cut}_{ranks}_ranks": stats.figure(ratios(ones))
        for (cut, ranks), ones in found.items()
    }
    # The goals are for contiguous boxes; the worst number of ranks counts.
    rows = {key: figure for key, figure in figures.items() if "_rows_" in key}
    worst = max(rows, key=lambda key: rows[key]["value"])
    figures["elastic_over_same"] = rows[worst]
    contiguous = max(over_needed(found["rows", ranks]) for ranks in READERS)
    figures["bytes_read_over_needed"] = stats.figure([contiguous])
    for cut in CUTS[1:]:
        most = max(over_needed(found[cut, ranks]) for ranks in READERS)
        figures[f"bytes_read_over_needed_{cut}"] = stats.figure([most])
    footnote = reporting.finish(
        args,
        "elastic",
        machine,
        figures,
        GOALS,
        {"rounds": {f"{cut}, {ranks}": ones for (cut, ranks), ones in found.items()}},
    )
    panel = svg.Panel("restart in another cut, of the same ranks' time", "readers", "ratio")
    for cut in CUTS:
        panel.line(
            cut,
            [(ranks, statistics.median(ratios(found[cut, ranks]))) for ranks in sorted(READERS)],
        )
    svg.save(os.path.join(args.results, "elastic.svg"), footnote, [panel])


if __name__ == "__main__":
    main()
