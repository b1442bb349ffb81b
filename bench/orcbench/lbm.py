"""What does a solver lose to synchronous, asynchronous and incremental checkpoints?

The solver is examples/lbm, one rank with two threads, which keep both cores busy. It computes short
windows of equally many steps, in turn without and with a checkpoint at the beginning; overhead is
what a window takes longer than its two neighbours without one (src/solver.c). Beside it what the
writes alone take, without a checkpoint. In addition, whole runs with 1 and 4 checkpoints (--full: 1
to 4). Once on the device as it is, once limited to 500 MB/s (needs root and the blkio controller of
cgroup v1; without them the key that needs it is null). Then the schemes of CP-threads (one a node,
a socket, a core), weak scaling over ranks, and the bandwidth of the solver over time, from the time
of every step and, where the machine has counters of its memory controllers, from them.

Beside it the model of F. Shahzad et al., "An Evaluation of Different I/O Techniques for
Checkpoint/Restart": eq. (1) n S / B_IO for synchronous, eq. (2) m n S / B_M for asynchronous
checkpoints, with B_IO, B_M and m from another program (src/traffic.c), never from the runs that
they are to explain.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from orcbench import facts, reporting, running, stats, svg, throttling
from orcbench.lbm_condition import DEVICE, MOST, NAMES, Condition, none_beside_none
from orcbench.stats import Figure

# Head and rows.
Table = tuple[list[str], list[list[str]]]

GOALS = {
    "async_over_bound": ("<=", 1.3),
    "async_over_floor": ("<=", 1.3),
    "four_async_over_sync": ("<=", 0.2),
    "four_async_over_sync_500": ("<=", 0.1),
}
LIMIT_BYTES_PER_S = 500_000_000
# Of each way; the first one is shown.
TIMELINES = 7
# Stands for any larger one.
MOST_RATIO = 100
SCHEMES = ("node", "socket", "core")
# Slowdown by four checkpoints, %, that the paper reports for its two machines: synchronous,
# asynchronous.
REPORTED = {"LiMa": (51, 2.5), "HERMIT": (23, 0.85)}


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cells", type=int, default=128, help="edge of the box (default 128: 333 MiB a checkpoint)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=None,
        help="windows of each kind (default 41, a quarter of it on the limited device; --full 121)",
    )
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="threads a rank (default 2)")
    parser.add_argument(
        "--copy-threads", type=int, default=None, help="threads that copy (default: all)"
    )
    parser.add_argument(
        "--unlimited-only", action="store_true", help="leave the limited device out"
    )
    parser.add_argument(
        "--small-cells",
        type=int,
        default=96,
        help="edge of a rank's box where ranks are compared (default 96: 141 MiB a rank)",
    )
    parser.add_argument(
        "--publish",
        action="store_true",
        help="write docs/lbm.md and its pictures from what was measured",
    )


# ---- ratios --------------------------------------------------------------------------------------
def over(condition: Condition, top: str, bottom: str) -> Figure:
    pairs = zip(condition.lost(top), condition.lost(bottom))
    return stats.figure([(a, b) for (a, _), (b, _) in pairs], stats.ratio_of_medians)


def lowest_over_none(condition: Condition, mode: str) -> Figure:
    """The lowest bandwidth of runs with checkpoints over that of runs without."""
    pairs = zip(condition.lowest(mode), condition.lowest("none"))
    return stats.figure(list(pairs), stats.ratio_of_medians)


def worst_over_best(schemes: Sequence[Condition]) -> Figure:
    """The most that an asynchronous checkpoint costs by any scheme over the least."""

    def ratio(rows: Sequence[Sequence[float]]) -> float:
        medians: list[float] = [statistics.median(column) for column in zip(*rows)]
        # Of one that costs nothing, there is no ratio.
        return max(medians) / max(min(medians), max(medians) / MOST_RATIO)

    each = [[lost for lost, _ in scheme.lost("async")] for scheme in schemes]
    return stats.figure(list(zip(*each)), ratio)


def loss_table(first: str, conditions: Sequence[Condition]) -> Table:
    rows = []
    for condition in conditions:
        for r in condition.windows():
            between = r["interval_s"]
            rows.append(
                [
                    f"{condition.name}, {NAMES[r['mode']]}",
                    f"{condition.bytes / running.MIB:.0f}",
                    f"{1e3 * r['lost_s']['median']:.1f}",
                    f"{1e3 * between[0]:.1f} to {1e3 * between[1]:.1f}" if between else "",
                    f"{r['lost_s']['median'] * condition.steps / r['window_s']:.2f}",
                    f"{1e3 * r['stage_s']:.1f}",
                    f"{1e3 * r['cpu_s']:.1f}",
                ]
            )
    return [first, "MiB", "lost ms", "95 %", "in steps", "copy ms", "CP cpu ms"], rows


def reported_table(conditions: Sequence[Condition]) -> Table:
    """Four checkpoints here beside the paper's figures; what carries over is the ratio."""
    rows = [
        [f"{name} (reported)", f"{sync:g}", f"{asynchronous:g}", f"{asynchronous / sync:.3f}"]
        for name, (sync, asynchronous) in REPORTED.items()
    ]
    for condition in conditions:
        sync, asynchronous = condition.slowdown("sync", MOST), condition.slowdown("async", MOST)
        if sync is not None and asynchronous is not None:
            rows.append(
                [
                    f"device {condition.name}",
                    f"{sync:.1f}",
                    f"{asynchronous:.1f}",
                    f"{asynchronous / sync:.3f}" if sync > 0 else "-",
                ]
            )
    return ["four checkpoints", "synchronous %", "asynchronous %", "ratio"], rows


def scaling_panel(scaling: Sequence[Condition]) -> svg.Panel:
    panel = svg.Panel(
        "Weak scaling: one checkpoint",
        "ranks (the box and its state grow with them)",
        "lost, in time steps",
        x_names=[(i, c.ranks) for i, c in enumerate(scaling)],
    )
    for colour, mode in enumerate(("sync", "async")):
        points = []
        for i, condition in enumerate(scaling):
            row = next(r for r in condition.windows() if r["mode"] == mode)
            steps = condition.steps / row["window_s"]
            points.append(
                (i, steps * row["lost_s"]["median"], *(steps * x for x in row["interval_s"] or ()))
            )
        panel.line(NAMES[mode], points, colour=colour)
    return panel


def schemes_panel(schemes: Sequence[Condition]) -> svg.Panel:
    panel = svg.Panel(
        "CP-threads: one a node, a socket, a core",
        "scheme",
        "lost by a checkpoint, ms",
        x_names=[(i, c.name) for i, c in enumerate(schemes)],
    )
    for colour, mode in enumerate(("sync", "async")):
        points = []
        for i, condition in enumerate(schemes):
            row = next(r for r in condition.windows() if r["mode"] == mode)
            points.append(
                (
                    i + 0.05 * colour,
                    1e3 * row["lost_s"]["median"],
                    *(1e3 * x for x in row["interval_s"] or ()),
                )
            )
        panel.line(NAMES[mode], points, joined=False, colour=colour)
    return panel


def markdown(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines)


def publish(
    args: argparse.Namespace,
    footnote: str,
    figures: dict[str, Figure],
    tables: Mapping[str, Table],
    pictures: Mapping[str, Sequence[svg.Panel]],
) -> None:
    """docs/lbm.md and its pictures: everything in it was measured by this run."""
    images = os.path.join(running.ROOT, "docs", "img")
    for name, panels in pictures.items():
        svg.save(os.path.join(images, name + ".svg"), footnote, panels)
    goals = [
        [
            f"`{key}`",
            f"{found['value']:.3g}" if found["value"] is not None else "not measured",
            "" if found["interval"] is None else "{:.3g} to {:.3g}".format(*found["interval"]),
            "{} {:g}".format(*GOALS[key]) if key in GOALS else "",
        ]
        for key, found in figures.items()
    ]
    text = f"""# What checkpoints cost a solver

Written by `tools/bench.sh lbm --publish`; [bench/README](../bench/README.md) says how it is measured. {footnote}.

{markdown(["ratio", "median", "95 %", "goal"], goals)}

## One to four checkpoints
![Slowdown of the solver by one to four checkpoints, synchronous, asynchronous and lent](img/lbm.svg)

{markdown(*tables["reported"])}

The reported figures are those of F. Shahzad et al., *An Evaluation of Different I/O Techniques for
Checkpoint/Restart*; how many percent a checkpoint costs depends on how long a run is, so what carries over is the ratio.
A negative figure is noise: a cost too small for these runs.

## Bandwidth over time
![Memory bandwidth that the solver reaches over time without, with synchronous, and with asynchronous checkpoints](img/lbm-timeline.svg)

Circles mark where a checkpoint begins.

## Schemes, scaling, incremental
![Loss by a checkpoint for each scheme of CP-threads, and weak scaling over ranks](img/lbm-scaling.svg)

{chr(10).join(chr(10) + markdown(*tables[name]) for name in ("incremental", "schemes", "scaling") if name in tables)}
"""  # noqa: E501
    with open(os.path.join(running.ROOT, "docs", "lbm.md"), "w") as file:
        file.write(text)


def series(
    args: argparse.Namespace, programs: Mapping[str, str], rounds: int
) -> tuple[list[Condition], list[Condition], list[Condition]]:
    """Incremental, schemes, weak scaling: on the device as it is, by windows (and runs with four
    checkpoints).
    """
    some, cores = max(3, rounds // 4), len(os.sched_getaffinity(0))

    def one(name: str, **more: Any) -> Condition:
        print(f"  {name}", file=sys.stderr, flush=True)
        windows, runs = more.pop("windows", some), more.pop("runs", 0)
        return Condition(args, programs, name, windows, runs, (MOST,), calibrated=False, **more)

    try:
        incremental = [
            one("incremental = auto", modes=("sync", "async"), options="incremental = 'auto'\n")
        ]
    except RuntimeError as error:  # a library from before there was such an option, by --prefix
        if "unknown option 'incremental'" not in str(error):
            raise
        print("\nNOT MEASURED: incremental capture: this library does not have it")
        incremental = []
    two = {
        "ranks": max(2, cores),
        "threads": 1,
        "cells": args.small_cells,
        "modes": ("sync", "async"),
    }
    schemes = [
        one(
            scheme,
            windows=rounds,
            options=f"scheme = '{scheme}'\n",
            depth=args.small_cells * two["ranks"],
            **two,
        )
        for scheme in SCHEMES
    ]
    ranks, scaling = 1, []
    while ranks <= (2 * cores if args.full else cores):
        scaling.append(
            one(
                f"{ranks} rank(s)",
                runs=2 if args.full else 1,
                **{**two, "ranks": ranks, "depth": args.small_cells * ranks},
            )
        )
        ranks *= 2
    return incremental, schemes, scaling


def figures_of(free: Condition) -> dict[str, Figure]:
    costs, writes = free.lost("async"), free.lost(DEVICE)
    memcpy_s = free.memcpy["median"]
    return {
        "async_over_floor": stats.figure(
            [(s, w["stage_s"] + alone) for (s, w), (alone, _) in zip(costs, writes)],
            stats.ratio_of_medians,
        ),
        "four_async_over_sync": stats.figure(free.run_costs("async", MOST), stats.ratio_of_medians),
        "four_async_over_sync_500": stats.figure([]),
        "async_over_bound": stats.figure(
            [(s, free.bound_s(w)) for s, w in costs], stats.ratio_of_medians
        ),
        "async_over_memcpy_bound": stats.figure(
            [(s, free.bound_s(w, memcpy_s)) for s, w in costs], stats.ratio_of_medians
        ),
        "async_over_eq2": stats.figure([s / free.model_s("async", 1) for s, _ in costs]),
        "async_over_sync": over(free, "async", "sync"),
        "lent_over_sync": over(free, "lent", "sync"),
        "none_over_none": stats.figure(none_beside_none(free.samples)),
        **{f"lowest_{mode}": stats.figure(free.lowest(mode)) for mode in ("none", "sync", "async")},
        **{f"lowest_{mode}_over_none": lowest_over_none(free, mode) for mode in ("sync", "async")},
        "async_over_sync_500": stats.figure([]),
        "lent_over_sync_500": stats.figure([]),
    }


def limited(
    args: argparse.Namespace, programs: Mapping[str, str], rounds: int
) -> tuple[Condition | None, dict[str, Any] | None, str | None]:
    """Measurements on the device limited to 500 MB/s, how it was limited, or why it was not."""
    try:
        if args.unlimited_only:
            raise OSError("--unlimited-only was given")
        with throttling.Limit(args.dir, LIMIT_BYTES_PER_S) as rate:
            print(
                f"measuring on the device limited to 500 MB/s (dd: {rate / 1e6:.0f} MB/s) ...",
                file=sys.stderr,
                flush=True,
            )
            slow = Condition(
                args,
                programs,
                "limited to 500 MB/s",
                max(9, rounds // 4),
                9,
                range(1, MOST + 1) if args.full else (MOST,),
                timelines=1,
            )
        slow.show()
        limit = {"bytes_per_s": LIMIT_BYTES_PER_S, "measured_bytes_per_s": rate}
        return slow, limit, None
    except OSError as error:
        why = str(error)
        print(
            f"\nNOT MEASURED: the device limited to 500 MB/s: {why}.\nasync_over_sync_500 is null. "
            "Next: run this "
            "as root where cgroup v1's blkio controller is mounted, with --dir on a disk of its own"
        )
        return None, None, why


def show(tables: Mapping[str, Table]) -> None:
    print("\nFour checkpoints in whole runs, beside the paper's figures")
    reporting.table(*tables["reported"])
    for title, name in (
        (
            "Incremental capture: this solver changes every page in every step, so nothing can be "
            "saved",
            "incremental",
        ),
        ("Schemes of CP-threads", "schemes"),
        ("Weak scaling", "scaling"),
    ):
        print(f"\n{title}")
        reporting.table(*tables[name])


def main() -> None:
    args = running.arguments("lbm", __doc__, more)
    running.end_on_signals()
    programs = {name: running.build(args.prefix, name) for name in ("solver", "traffic")}
    machine = facts.Machine(args.dir)
    rounds = args.rounds or (121 if args.full else 41)
    print("measuring on the device as it is ...", file=sys.stderr, flush=True)
    free = Condition(
        args,
        programs,
        "as it is",
        rounds,
        21 if args.full else 9,
        range(1, MOST + 1) if args.full else (1, MOST),
        timelines=TIMELINES,
    )
    print(
        f"{args.ranks} rank(s) x {args.threads} threads, {args.cells}^3 cells, checkpoints of "
        f"{free.bytes / running.MIB:.0f} MiB"
    )
    free.show()

    figures = figures_of(free)
    conditions = [free]
    slow, limit, why = limited(args, programs, rounds)
    if slow:
        figures["async_over_sync_500"] = over(slow, "async", "sync")
        figures["lent_over_sync_500"] = over(slow, "lent", "sync")
        figures["four_async_over_sync_500"] = stats.figure(
            slow.run_costs("async", MOST), stats.ratio_of_medians
        )
        conditions.append(slow)

    print(
        "measuring incremental capture, schemes and weak scaling ...", file=sys.stderr, flush=True
    )
    incremental, schemes, scaling = series(args, programs, rounds)
    figures["schemes_worst_over_best"] = worst_over_best(schemes)
    tables = {
        "reported": reported_table(conditions),
        "incremental": loss_table("one checkpoint", incremental),
        "schemes": loss_table(f"scheme ({schemes[0].ranks} ranks)", schemes),
        "scaling": loss_table("weak scaling", scaling),
    }
    show(tables)
    if free.not_counted:
        print(
            f"\nNOT MEASURED: bandwidth by the memory controllers: {free.not_counted}. The "
            "timeline is from the "
            "time of every step"
        )

    extra = [*incremental, *schemes, *scaling]
    footnote = reporting.finish(
        args,
        "lbm",
        machine,
        figures,
        GOALS,
        {
            "ranks": args.ranks,
            "threads": args.threads,
            "checkpoint_bytes": free.bytes,
            "limit": limit,
            "limit_not_measured": why,
            "conditions": [c.facts() for c in conditions],
            "windows": [row for c in [*conditions, *extra] for row in c.windows()],
            "runs": [row for c in [*conditions, *extra] for row in c.runs()],
            "reported_percent": REPORTED,
            "counters_not_measured": free.not_counted,
            "raw": {c.name: c.samples for c in [*conditions, *extra]},
        },
    )
    pictures = {
        "lbm": [c.panel() for c in conditions],
        "lbm-timeline": [c.timeline() for c in conditions],
        "lbm-scaling": [schemes_panel(schemes), scaling_panel(scaling)],
    }
    for name, panels in pictures.items():
        svg.save(os.path.join(args.results, name + ".svg"), footnote, panels)
    if args.publish:
        publish(args, footnote, figures, tables, pictures)


if __name__ == "__main__":
    main()
