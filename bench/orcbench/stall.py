"""How long does a checkpoint block the program, and does that grow with their number?

Blocked time of orc_checkpoint (copied with checksums, and lent), previous flush drained and still
running, against a warm memcpy of the same bytes by the same ranks, interleaved in one run; and
against what programs do without Orcheck: write + fsync, MPI_File_write_at_all + MPI_File_sync,
and MPI_File_iwrite_at, which may or may not overlap with computing.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from orcbench import facts, reporting, running, stats, svg
from orcbench.stats import Figure, Sample

# Ranks, MiB a rank, threads a rank.
Point = tuple[int, int, int]
# Task -> number of the round -> what it took.
Rounds = dict[str, dict[int, Sample]]

MAIN = (1, 1024, 1)  # ranks, MiB a rank, threads a rank: the point of the keys without a suffix
# The same 1 GiB on more ranks: suffix of the key -> point.
SPREAD = {"_2_ranks": (2, 512, 1), "_16_ranks": (16, 64, 1)}
SERIES = (1, 1024, 1)  # the point of the series
SERIES_LEN = 50
QUICK = [
    (1, 64, 1),
    (1, 256, 1),
    MAIN,
    (1, 2048, 1),
    (2, 64, 1),
    (2, 512, 1),
    (4, 64, 1),
    (4, 256, 1),
    (16, 64, 1),
    (1, 1024, 2),
]
FULL = [(ranks, mib, 1) for ranks in (1, 2, 4, 16) for mib in (64, 128, 256, 512, 1024, 2048)] + [
    (1, 256, 2),
    (1, 1024, 2),
    (1, 2048, 2),
]
GOALS = {
    key + suffix: goal
    for suffix in ("", *SPREAD)
    for key, goal in {
        "blocked_over_memcpy": ("<=", 1.15),
        "running_over_memcpy": ("<=", 1.0),
        "lent_ms": ("<=", 1.0),
    }.items()
}
# The last checkpoints of the series against the first ones, each beside its own memcpy. There is
# always noise.
GOALS["series_last_over_first"] = ("<=", 1.1)
GOALS["series_faults_per_gib"] = ("<=", 64)
GOALS["incremental_10pct_over_memcpy"] = ("<=", 0.2)
GOALS["incremental_10pct_faults_over_memcpy"] = ("<=", 0.1)
GOALS["incremental_same_10pct_faults_over_memcpy"] = ("<=", 0.1)
# With parity beside level global: four nodes on this machine, one rank each.
PARITY: Point = (4, 256, 1)
GOALS["parity_blocked_over_memcpy"] = ("<=", 1.15)
# The same with the engine in an agent.
GOALS |= {
    key + suffix: goal
    for suffix in ("", "_16_ranks")
    for key, goal in {
        "agent_blocked_over_memcpy": ("<=", 1.15),
        "agent_lent_ms": ("<=", 1.0),
    }.items()
}


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rounds", type=int, default=None, help="rounds of the 1 GiB x 1 rank point (default 15)"
    )
    parser.add_argument(
        "--series",
        type=int,
        default=SERIES_LEN,
        metavar="N",
        help="checkpoints of the series (default %(default)s; 0: none)",
    )
    parser.add_argument(
        "--options", default="", metavar="TOML", help="more options of the library, for comparisons"
    )
    parser.add_argument(
        "--point", action="append", metavar="RANKSxMIB[xTHREADS]", help="measure this point only"
    )


def measure(
    args: argparse.Namespace, program: str, point: Point, options: str | None = None
) -> tuple[dict[str, Any] | None, str | None]:
    """All samples of one point, or why it was left out."""
    ranks, mib, threads = point
    total = ranks * mib * running.MIB
    limit = (4096 if args.full else 2048) * running.MIB
    if total > limit:
        return None, f"more than {limit // running.MIB} MiB in all"
    # Source, memcpy's target, one pool a snapshot held; and room for the page cache.
    held = next((n for n in (2, 1) if total * (2 + n) < 0.6 * facts.available_bytes()), 0)
    if not held:
        return None, f"needs {3 * total // running.MIB} MiB of memory"
    if point == MAIN:
        rounds, slow = args.rounds or (31 if args.full else 15), 15 if args.full else 5
    elif options or point in SPREAD.values():
        rounds, slow = args.rounds or 15, 5 if args.full else 1
    else:
        rounds, slow = (15, 5) if args.full else (5, 1 if total > 512 * running.MIB else 2)
    with running.scratch(args.dir) as where:
        found = running.run(
            program,
            ranks,
            [
                "--size",
                mib * running.MIB,
                "--dir",
                where,
                "--threads",
                threads,
                "--rounds",
                rounds,
                "--slow",
                min(slow, rounds),
                "--held",
                held,
                "--options",
                options or args.options,
            ],
            threads,
        )
    samples: Rounds = {}
    for one in found:
        samples.setdefault(one["task"], {})[one["round"]] = one
    return {"held": held, "samples": samples}, None


def measure_agent(args: argparse.Namespace, program: str) -> dict[str, Figure]:
    """The main point and 16 ranks with the node's engine in an agent, each beside memcpys of its
    own.
    """
    orcheck = os.path.join(args.prefix, "bin", "orcheck")
    options = f"{args.options}\nagent = 'start'\nagent_program = '{orcheck}'\nagent_linger_s = 1\n"
    figures = {}
    for suffix, point in (("", MAIN), ("_16_ranks", SPREAD["_16_ranks"])):
        found, _ = measure(args, program, point, options)
        figures_here = evaluate(point, found)[1] if found else {}
        for key in ("blocked_over_memcpy", "memcpy_over_memcpy", "lent_ms"):
            figures[f"agent_{key}{suffix}"] = figures_here.get(key, stats.figure([]))
    return figures


def measure_parity(args: argparse.Namespace, program: str) -> dict[str, Figure]:
    """Four nodes of one rank each, whose containers are also protected by parity."""
    figures: dict[str, Figure] = {}
    with running.scratch(args.dir) as where:
        options = f"{args.options}\nnode_dir = '{where}'\nnode_name = 'n0,n1,n2,n3'\n"
        found, _ = measure(args, program, PARITY, options + "protect = 'xor=4'\n")
    figures_here = evaluate(PARITY, found)[1] if found else {}
    for key in ("blocked_over_memcpy", "memcpy_over_memcpy"):
        figures[f"parity_{key}"] = figures_here.get(key, stats.figure([]))
    return figures


def measure_series(args: argparse.Namespace, program: str) -> list[Sample]:
    """The first checkpoints of a session, in order; what grows with their number shows here."""
    ranks, mib, threads = SERIES
    if ranks * mib * running.MIB * 3 > 0.6 * facts.available_bytes():
        return []
    with running.scratch(args.dir) as where:
        found = running.run(
            program,
            ranks,
            [
                "--size",
                mib * running.MIB,
                "--dir",
                where,
                "--threads",
                threads,
                "--rounds",
                0,
                "--slow",
                0,
                "--held",
                1,
                "--warm",
                0,
                "--series",
                args.series,
                "--options",
                args.options,
            ],
            threads,
        )
    memcpy = {one["round"]: one["s"] for one in found if one["task"] == "series_memcpy"}
    return [
        {
            "checkpoint": one["round"] + 1,
            "blocked_s": one["s"],
            "memcpy_s": memcpy[one["round"]],
            "faults": one["faults"],
        }
        for one in found
        if one["task"] == "series"
    ]


def series_figures(series: list[Sample]) -> dict[str, Figure]:
    """Growth over the series, and how many pages were touched for the first time after its first
    checkpoint.
    """
    if len(series) < 3:
        return {
            "series_last_over_first": stats.figure([]),
            "series_faults_per_gib": stats.figure([]),
        }
    rest = series[1:]  # the first one maps the pool
    part = max(1, len(rest) // 4)
    ratios = [one["blocked_s"] / one["memcpy_s"] for one in rest]

    def growth(rows: Sequence[tuple[float, float]]) -> float:
        return statistics.median(last for _, last in rows) / statistics.median(
            first for first, _ in rows
        )

    gib = SERIES[0] * SERIES[1] / 1024
    return {
        "series_last_over_first": stats.figure(list(zip(ratios[:part], ratios[-part:])), growth),
        "series_faults_per_gib": stats.figure([one["faults"] / gib for one in rest]),
    }


def times(samples: Rounds, task: str, key: str = "s") -> dict[int, float]:
    return {number: one[key] for number, one in samples.get(task, {}).items()}


def paired(over: dict[int, float], under: dict[int, float]) -> list[float]:
    return [over[number] / under[number] for number in sorted(over) if number in under]


def evaluate(point: Point, found: dict[str, Any]) -> tuple[Sample, dict[str, Figure]]:
    """Medians, spread, and paired ratios of one point."""
    samples = found["samples"]
    base = min(
        ("memcpy_whole", "memcpy_calls"),
        key=lambda task: statistics.median(
            [*times(samples, task).values(), *times(samples, task + "_again").values()]
        ),
    )
    first, again = times(samples, base), times(samples, base + "_again")
    memcpy = {number: (first[number] + again[number]) / 2 for number in first}
    orcheck, posix = times(samples, "orcheck"), times(samples, "posix")
    result = {
        "ranks": point[0],
        "mib_per_rank": point[1],
        "threads": point[2],
        "memcpy": base,
        "held": found["held"],
        "seconds": {
            task: stats.spread([one["s"] for one in rounds.values()])
            for task, rounds in samples.items()
        },
        "stage_s": stats.spread_if_any(list(times(samples, "orcheck", "stage_s").values())),
        "safe_s": stats.spread_if_any(list(times(samples, "orcheck", "safe_s").values())),
        "raw": [one for rounds in samples.values() for one in rounds.values()],
    }
    result["seconds"]["memcpy"] = stats.spread(list(memcpy.values()))
    figures = {
        "blocked_over_memcpy": stats.figure(paired(orcheck, memcpy)),
        "blocked_over_stream": stats.figure(paired(orcheck, times(samples, "stream"))),
        "memcpy_over_memcpy": stats.figure(paired(again, first)),
        "running_over_memcpy": stats.figure(paired(times(samples, "orcheck_running"), memcpy)),
        "lent_ms": stats.figure([1e3 * s for s in times(samples, "lent").values()]),
        "lent_over_blocked": stats.figure(paired(times(samples, "lent"), orcheck)),
        "fsync_over_blocked": stats.figure(paired(posix, orcheck)),
        "fsync_over_memcpy": stats.figure(paired(posix, memcpy)),
        "mpiio_over_blocked": stats.figure(paired(times(samples, "mpiio"), orcheck)),
        "iwrite_overlap": stats.figure(overlap(samples, "iwrite")),
        "orcheck_overlap": stats.figure(overlap(samples, "orcheck_overlap")),
    }
    return result, figures


def measure_incremental(args: argparse.Namespace, program: str) -> Rounds:
    """Checkpoints of a region with a tenth of its pages written, in one piece and scattered."""
    ranks, mib, threads = MAIN
    if ranks * mib * running.MIB * 3 > 0.6 * facts.available_bytes():
        return {}
    with running.scratch(args.dir) as where:
        found = running.run(
            program,
            ranks,
            ["--size", mib * running.MIB, "--dir", where, "--rounds", args.rounds or 15],
            threads,
        )
    samples: Rounds = {}
    for one in found:
        samples.setdefault(one["task"], {})[one["round"]] = one
    return samples


def incremental_figures(samples: Rounds) -> dict[str, Figure]:
    """Ratios to a memcpy of all of the state.

    What was tracked but had to be stored whole counts; full ones do not.
    """
    figures = {}
    for task, key in (
        ("contiguous", "incremental_10pct"),
        ("same", "incremental_same_10pct"),
        ("random", "incremental_random"),
    ):
        taken = {
            number: one
            for number, one in samples.get(task, {}).items()
            if one["full_because"] == 0 and one["tracked_bytes"] > 0
        }
        first, again = times(samples, task + "_memcpy"), times(samples, task + "_memcpy_again")
        base = {number: (first[number] + again[number]) / 2 for number in first}
        figures[key + "_over_memcpy"] = stats.figure(
            paired({n: one["s"] for n, one in taken.items()}, base)
        )
        # The solver pays later: its first write to each page that is protected.
        later = {number: one["dirty_s"] - one["again_s"] for number, one in taken.items()}
        figures[key + "_faults_over_memcpy"] = stats.figure(paired(later, base))
        figures[key + "_stored_share"] = stats.figure(
            [
                one["stored_bytes"] / (one["stored_bytes"] + one["referred_bytes"])
                for one in taken.values()
            ]
        )
    return figures


def overlap(samples: Rounds, task: str) -> list[float]:
    """Share of the shorter of I/O and computation that the other one hid: 0 none, 1 all."""
    return [
        (one["io_s"] + one["compute_s"] - one["s"]) / min(one["io_s"], one["compute_s"])
        for one in samples.get(task, {}).values()
    ]


def ms(found: stats.Spread | None) -> str:
    return "-" if found is None else f"{1e3 * found['median']:.3g}"


def row(result: Sample, figures: dict[str, Figure]) -> list[str]:
    seconds = result["seconds"]
    ratio = figures["blocked_over_memcpy"]
    between = ratio["interval"]
    return [
        f"{result['ranks']} x {result['mib_per_rank']} MiB"
        + (f", {result['threads']} threads" if result["threads"] > 1 else ""),
        ms(seconds["memcpy"]),
        ms(seconds["orcheck"]),
        f"{ratio['value']:.2f}",
        f"{between[0]:.2f}-{between[1]:.2f}" if between else "",
        f"{figures['memcpy_over_memcpy']['value']:.2f}",
        ms(seconds.get("orcheck_running")),
        ms(seconds["lent"]),
        ms(result["safe_s"]),
        ms(seconds.get("posix")),
        ms(seconds.get("mpiio")),
    ]


def ratios_panel(results: list[Sample]) -> svg.Panel:
    names = [
        (i, f"{r['ranks']}x{r['mib_per_rank']}" + ("t" if r["threads"] > 1 else ""))
        for i, r in enumerate(results)
    ]
    ratios = svg.Panel(
        "Copied checkpoint against memcpy (95 % interval)",
        "ranks x MiB (t: two threads)",
        "blocked / memcpy",
        x_names=names,
    )
    ratios.line(
        "Orcheck, nothing else flushed",
        [
            (
                i,
                r["figures"]["blocked_over_memcpy"]["value"],
                *(r["figures"]["blocked_over_memcpy"]["interval"] or ()),
            )
            for i, r in enumerate(results)
        ],
        joined=False,
    )
    ratios.line(
        "memcpy against itself",
        [
            (
                i + 0.15,
                r["figures"]["memcpy_over_memcpy"]["value"],
                *(r["figures"]["memcpy_over_memcpy"]["interval"] or ()),
            )
            for i, r in enumerate(results)
        ],
        joined=False,
    )
    ratios.limit(GOALS["blocked_over_memcpy"][1], "goal")
    return ratios


def plot(
    args: argparse.Namespace, results: list[Sample], series: list[Sample], footnote: str
) -> None:
    one = sorted(
        (r for r in results if r["ranks"] == 1 and r["threads"] == 1),
        key=lambda r: r["mib_per_rank"],
    )
    panel = svg.Panel(
        "One rank: how long the program is kept", "MiB", "seconds", log_x=True, log_y=True
    )
    for task, name in (
        ("memcpy", "memcpy"),
        ("orcheck", "Orcheck, copied"),
        ("orcheck_running", "Orcheck, copied during a flush"),
        ("lent", "Orcheck, lent"),
        ("posix", "POSIX write + fsync"),
        ("mpiio", "MPI_File_write_at_all + sync"),
    ):
        panel.line(
            name,
            [
                (
                    r["mib_per_rank"],
                    r["seconds"][task]["median"],
                    r["seconds"][task]["q1"],
                    r["seconds"][task]["q3"],
                )
                for r in one
                if r["seconds"].get(task)
            ],
        )
    panels = [panel, ratios_panel(results)]
    if series:
        order = svg.Panel(
            f"The first {len(series)} checkpoints of a session, 1 GiB", "checkpoint", "seconds"
        )
        order.line("Orcheck, copied", [(one["checkpoint"], one["blocked_s"]) for one in series])
        order.line("memcpy beside it", [(one["checkpoint"], one["memcpy_s"]) for one in series])
        panels.append(order)
    svg.save(os.path.join(args.results, "stall.svg"), footnote, panels)


def point_in(result: Sample) -> Point:
    return result["ranks"], result["mib_per_rank"], result["threads"]


def show(results: list[Sample], left_out: list[dict[str, Any]]) -> None:
    print("milliseconds a checkpoint; r = copied / memcpy, A/A = memcpy / memcpy")
    reporting.table(
        [
            "ranks x state",
            "memcpy",
            "copied",
            "r",
            "95 %",
            "A/A",
            "running",
            "lent",
            "safe",
            "fsync",
            "MPI-IO",
        ],
        [row(r, r["figures"]) for r in results],
    )
    for one in left_out:
        print(f"left out: {one['ranks']} x {one['mib_per_rank']} MiB: {one['why']}")


def point_of(text: str) -> Point:
    """RANKSxMIB or RANKSxMIBxTHREADS."""
    ranks, mib, threads = (*map(int, text.split("x")), 1)[:3]
    return ranks, mib, threads


def main() -> None:
    args = running.arguments("stall", __doc__, more)
    running.end_on_signals()
    program = running.build(args.prefix, "stall")
    machine = facts.Machine(args.dir)
    points = FULL if args.full else QUICK
    if args.point:
        points = [point_of(text) for text in args.point]
    results: list[Sample] = []
    left_out: list[dict[str, Any]] = []
    for point in points:
        print(f"measuring {point[0]} x {point[1]} MiB ...", file=sys.stderr, flush=True)
        found, why = measure(args, program, point)
        if found is None:
            left_out.append({"ranks": point[0], "mib_per_rank": point[1], "why": why})
            continue
        result, figures = evaluate(point, found)
        result["figures"] = figures
        results.append(result)
    print("measuring with an agent ...", file=sys.stderr, flush=True)
    with_agent = measure_agent(args, program)
    print("measuring with parity ...", file=sys.stderr, flush=True)
    with_parity = measure_parity(args, program)
    print("measuring incremental checkpoints ...", file=sys.stderr, flush=True)
    changes = measure_incremental(args, running.build(args.prefix, "incremental"))
    print(f"measuring a series of {args.series} checkpoints ...", file=sys.stderr, flush=True)
    series = measure_series(args, program) if args.series else []
    show(results, left_out)
    chosen = next(
        (r for r in results if point_in(r) == MAIN),
        results[-1] if args.point and results else None,
    )
    if chosen is None:
        sys.exit(
            "the point of 1 x 1024 MiB could not be measured: "
            + "; ".join(o["why"] for o in left_out)
        )
    print(f"\nratios below: {chosen['ranks']} x {chosen['mib_per_rank']} MiB")
    main_figures: dict[str, Figure] = dict(chosen["figures"])
    for suffix, point in SPREAD.items():
        of_point = (r["figures"] for r in results if point_in(r) == point)
        there: dict[str, Figure] = next(of_point, {})
        for key in ("blocked_over_memcpy", "memcpy_over_memcpy", "lent_ms"):
            main_figures[key + suffix] = there.get(key, stats.figure([]))
    main_figures.update(with_agent)
    main_figures.update(with_parity)
    main_figures.update(series_figures(series))
    main_figures.update(incremental_figures(changes))
    goals = dict(GOALS)
    if main_figures["fsync_over_memcpy"]["value"] is not None:
        goals["fsync_over_blocked"] = (">=", 0.8 * main_figures["fsync_over_memcpy"]["value"])
    footnote = reporting.finish(
        args,
        "stall",
        machine,
        main_figures,
        goals,
        {"points": results, "left_out": left_out, "series": series, "incremental": changes},
    )
    plot(args, results, series, footnote)


if __name__ == "__main__":
    main()
