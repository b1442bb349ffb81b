"""What does a checkpoint of little state, or of many regions, cost beyond its copy?

The time of orc_checkpoint of 64 KiB a rank against what it cannot do without (memcpy of the same
bytes, two reductions, 50 microseconds), and of 8 MiB a rank in 128 regions against one region, and
against memcpy and one reduction. Everything in one run, in turn, in the same state: after the same
pause in which all ranks sleep. So memcpy and the reduction begin with caches as cold as the call's.
In addition whole runs of the larger state in 128 arrays with ten checkpoints a second, beside the
same without any, and with fwrite and fsync.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

from orcbench import facts, reporting, running, stats, svg
from orcbench.stats import Figure, Sample

KIB = 1 << 10
LITTLE, LARGER = 64 * KIB, 8 << 20
REGIONS = 128
# Ranks of the goals, and those that are reported.
RANKS, MORE_RANKS = (1, 2, 4), (8, 16)
ALLOWED_S = 50e-6
GOALS = {
    "fixed_over_bound": ("<=", 1.0),
    "regions_over_one": ("<=", 1.1),
    "little_regions_over_one": ("<=", 1.1),
    "many_arrays_over_bound": ("<=", 1.5),
    # Nearer to no checkpoints than to these.
    "often_over_fwrite": ("<=", 0.5),
}
# One round: what each task took.
Round = dict[str, Sample]


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=None, help="rounds (default 31, --full 101)")
    parser.add_argument(
        "--runs", type=int, default=9, help="whole runs of each way (default %(default)s)"
    )
    parser.add_argument(
        "--pause-ms", type=int, default=30, help="ms before each measurement (default %(default)s)"
    )
    parser.add_argument(
        "--ranks", type=int, action="append", metavar="N", help="measure with N ranks only"
    )
    parser.add_argument(
        "--options", default="", metavar="TOML", help="more options of the library, for comparisons"
    )


def measure(
    args: argparse.Namespace, program: str, ranks: int, size: int
) -> tuple[list[Round], list[Round], float]:
    """The rounds, the whole runs, and how many bytes of memory the pools of both jobs take."""
    argv = ["--size", size, "--regions", REGIONS, "--pause-ms", args.pause_ms]
    argv += ["--rounds", args.rounds or (101 if args.full else 31), "--options", args.options]
    argv += ["--runs", args.runs if size == LARGER else 0]
    with running.scratch(args.dir) as where:
        found = running.run(program, ranks, [*argv, "--dir", where])
    rounds: dict[int, Round] = {}
    runs: dict[int, Round] = {}
    pools = 0.0
    for one in found:
        if one["task"] == "pools":
            pools = one["bytes"]
        else:
            of = runs if one["task"].startswith("run_") else rounds
            of.setdefault(one["round"], {})[one["task"]] = one
    return list(rounds.values()), list(runs.values()), pools


def memcpy_s(one: Round) -> float:
    return float((one["memcpy"]["s"] + one["memcpy_again"]["s"]) / 2)


def agree_s(one: Round) -> float:
    return float((one["agree"]["s"] + one["agree_again"]["s"]) / 2)


def fixed(one: Round) -> float:
    """A checkpoint of one region over what it cannot do without."""
    return float(one["one"]["s"] / (memcpy_s(one) + 2 * agree_s(one) + ALLOWED_S))


def regions(one: Round) -> float:
    return float(one["many"]["s"] / one["one"]["s"])


def arrays(one: Round) -> float:
    return float(one["many"]["s"] / (memcpy_s(one) + agree_s(one)))


def run_cost(one: Round) -> tuple[float, float]:
    """Seconds that ten checkpoints a second cost a run, by Orcheck and by fwrite."""
    none = one["run_none"]["s"]
    return one["run_many"]["s"] - none, one["run_fwrite"]["s"] - none


def again(one: Round) -> float:
    return float(one["memcpy_again"]["s"] / one["memcpy"]["s"])


def figures_of(
    little: dict[int, list[Round]], larger: dict[int, list[Round]], runs: dict[int, list[Round]]
) -> dict[str, Figure]:
    """Each with every number of ranks, and the worst of those that have a goal."""
    figures: dict[str, Figure] = {}

    def enter(
        key: str,
        of: Callable[[Round], Any],
        found: dict[int, list[Round]],
        statistic: Callable[[Sequence[Any]], float] = statistics.median,
    ) -> None:
        each = {
            ranks: stats.figure([of(one) for one in ones], statistic)
            for ranks, ones in found.items()
        }
        known = [each[ranks] for ranks in RANKS if ranks in each]
        whole = len(known) == len(RANKS)
        figures[key] = max(known, key=lambda one: one["value"]) if whole else stats.figure([])
        figures.update({f"{key}_{ranks}_ranks": one for ranks, one in each.items()})

    enter("fixed_over_bound", fixed, little)
    enter("regions_over_one", regions, larger)
    enter("little_regions_over_one", regions, little)
    enter("many_arrays_over_bound", arrays, larger)
    enter("memcpy_over_memcpy", again, little)
    enter("often_over_fwrite", run_cost, runs, stats.ratio_of_medians)
    return figures


def show_runs(runs: dict[int, list[Round]]) -> None:
    ways = ("run_none", "run_many", "run_fwrite")
    rows = [
        [str(ranks), *(f"{statistics.median(one[way]['s'] for one in ones):.2f}" for way in ways)]
        for ranks, ones in runs.items()
        if ones
    ]
    if rows:
        print(
            f"\nSeconds of a run, {LARGER // KIB} KiB a rank in {REGIONS} arrays, "
            "ten checkpoints a second"
        )
        reporting.table(["ranks", "no checkpoint", "Orcheck", "fwrite + fsync"], rows)


def us(ones: list[Round], of: Callable[[Round], float]) -> str:
    return f"{1e6 * statistics.median(of(one) for one in ones):.0f}"


def row(name: str, ones: list[Round], pools: float) -> list[str]:
    def told(task: str, key: str) -> str:
        return us(ones, lambda one: float(one[task][key]))

    return [
        name,
        us(ones, memcpy_s),
        us(ones, agree_s),
        told("one", "s"),
        told("one", "agree_s"),
        told("one", "stage_s"),
        told("one", "wait_s"),
        told("many", "s"),
        told("many", "stage_s"),
        f"{pools / running.MIB:.0f}",
    ]


def main() -> None:
    args = running.arguments("small", __doc__, more)
    running.end_on_signals()
    program, machine = running.build(args.prefix, "small"), facts.Machine(args.dir)
    found: dict[int, dict[int, list[Round]]] = {LITTLE: {}, LARGER: {}}
    runs: dict[int, list[Round]] = {}
    rows = []
    for size, of_size in found.items():
        for ranks in args.ranks or [*RANKS, *MORE_RANKS]:
            if size == LARGER and ranks in MORE_RANKS:
                continue
            name = f"{ranks} x {size // KIB} KiB"
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            of_size[ranks], ran, pools = measure(args, program, ranks, size)
            if ran:
                runs[ranks] = ran
            rows.append(row(name, of_size[ranks], pools))
    print("microseconds (median); one: one region, many: as many bytes in 128; pools: both jobs")
    reporting.table(
        [
            "ranks x state",
            "memcpy",
            "reduction",
            "one",
            "agreeing",
            "staging",
            "waiting",
            "many",
            "staging",
            "pools MiB",
        ],
        rows,
    )
    show_runs(runs)
    figures = figures_of(found[LITTLE], found[LARGER], runs)
    raw: dict[str, dict[int, list[Round]]] = {
        "runs": runs,
        **{f"{size // KIB} KiB": of_size for size, of_size in found.items()},
    }
    footnote = reporting.finish(args, "small", machine, figures, GOALS, {"raw": raw})
    panel = svg.Panel("64 KiB a rank", "ranks", "microseconds")
    for task, name in (("one", "Orcheck, one region"), ("many", f"Orcheck, {REGIONS} regions")):
        points = [
            (ranks, 1e6 * statistics.median(one[task]["s"] for one in ones))
            for ranks, ones in found[LITTLE].items()
        ]
        panel.line(name, points)
    bound = [
        (ranks, 1e6 * statistics.median(memcpy_s(o) + 2 * agree_s(o) + ALLOWED_S for o in ones))
        for ranks, ones in found[LITTLE].items()
    ]
    panel.line("memcpy + 2 reductions + 50 µs", bound)
    svg.save(reporting.result_path(args, "small", ".svg"), footnote, [panel])


if __name__ == "__main__":
    main()
