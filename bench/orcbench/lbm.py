"""What checkpoints cost a solver: synchronous, asynchronous by copy, by lending, and incremental.

The solver is examples/lbm, one rank with two threads, which keep both cores busy. It computes short
windows of equally many steps, in turn without and with a checkpoint at the beginning; overhead is
what a window takes longer than its two neighbours without one (src/solver.c). In addition, whole
runs with 1 to 4 checkpoints. Once on the device as it is, once limited to 500 MB/s (takes root and
the blkio controller of cgroup v1; without them the key that needs it is null). Then the schemes of
CP-threads (one a node, a socket, a core), weak scaling over ranks, and the bandwidth of the solver
over time, from the time of every step and, where the machine has counters of its memory
controllers, from them.

Beside it the model of F. Shahzad et al., "An Evaluation of Different I/O Techniques for
Checkpoint/Restart": eq. (1) n S / B_IO for synchronous, eq. (2) m n S / B_M for asynchronous
checkpoints, with B_IO, B_M and m from another program (src/traffic.c), never from the runs that
they are to explain.
"""

import argparse
import bisect
import glob
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from orcbench import facts, reporting, running, stats, svg, throttling
from orcbench.stats import Figure, Sample

T = TypeVar("T")
# Head and rows.
Table = tuple[list[str], list[list[str]]]

GOALS = {"async_over_bound": ("<=", 1.5), "async_over_sync_500": ("<=", 0.1)}
LIMIT_BYTES_PER_S = 500_000_000
MOST = 4
MODES = ("sync", "async", "lent")
NAMES = {
    "none": "no checkpoint",
    "sync": "synchronous",
    "async": "asynchronous, copied",
    "lent": "asynchronous, lent",
}
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


class Counters:
    """The bytes that pass the memory controllers, by perf, from now until stop()."""

    EVENTS = "/sys/bus/event_source/devices/uncore_imc*/events/"
    INTERVAL_MS = 100

    def __init__(self) -> None:
        found = sorted(
            path
            for name in ("cas_count_read", "cas_count_write", "data_reads", "data_writes")
            for path in glob.glob(self.EVENTS + name)
        )
        self.events = ["/".join((path.split("/")[-3], path.split("/")[-1])) + "/" for path in found]
        self.process = None
        if not self.events:
            return
        self.file = tempfile.NamedTemporaryFile("r", suffix=".csv")
        self.began_s = time.monotonic()
        try:
            self.process = subprocess.Popen(
                [
                    "perf",
                    "stat",
                    "-a",
                    "-x,",
                    "-I",
                    str(self.INTERVAL_MS),
                    "-o",
                    self.file.name,
                    "-e",
                    ",".join(self.events),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            self.events = []

    def stop(self) -> tuple[list[tuple[float, float]], str]:
        """[(monotonic time, bytes/s)], and why there are none."""
        if not self.process:
            return [], "no counters of memory controllers, or no perf"
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        found = self.parse(self.file)
        return found, "" if found else "perf may not read the counters of the memory controllers"

    def parse(self, lines: Iterable[str]) -> list[tuple[float, float]]:
        sums: dict[float, float] = {}
        for line in lines:
            fields = line.strip().split(",")
            if len(fields) > 3 and fields[2] == "MiB" and not fields[1].startswith("<"):
                at = float(fields[0])
                sums[at] = sums.get(at, 0.0) + float(fields[1]) * running.MIB
        return [
            (self.began_s + at, moved / (self.INTERVAL_MS / 1e3))
            for at, moved in sorted(sums.items())
        ]


def rates(
    ends_s: Sequence[float], step_bytes: float, points: int = 120
) -> list[tuple[float, float]]:
    """(time, GB/s) at both ends of slices of time, at most this many: the bytes of the steps in it
    by its length.
    """
    width = ends_s[-1] / points
    found, before = [], 0
    for i in range(1, points + 1):
        upto = bisect.bisect_right(ends_s, i * width)
        if upto > before:
            begin = ends_s[before - 1] if before else 0.0
            rate = (upto - before) * step_bytes / (ends_s[upto - 1] - begin) / 1e9
            found += [(begin, rate), (ends_s[upto - 1], rate)]
            before = upto
    return found


# ---- one condition of the device -----------------------------------------------------------------
def beside_neighbours(
    samples: list[Sample], mode: str, value: Callable[[Sample, float], T]
) -> list[T]:
    """value(window, the mean time of the windows before and after it) of all windows of a mode."""
    windows = [
        s for s in samples if s["kind"] == "window" and s["mode"] in ("none", "copied", *MODES)
    ]
    return [
        value(s, (windows[i - 1]["s"] + windows[i + 1]["s"]) / 2)
        for i, s in enumerate(windows)
        if s["mode"] == mode
    ]


def none_beside_none(samples: list[Sample]) -> list[float]:
    """The same comparison where nothing differs: a window without a checkpoint and its neighbours."""
    none = [s["s"] for s in samples if s["kind"] == "window" and s["mode"] == "none"]
    return [none[i] / ((none[i - 1] + none[i + 1]) / 2) for i in range(1, len(none) - 1)]


class Condition:
    """Everything measured on the device in one condition."""

    def __init__(
        self,
        args: argparse.Namespace,
        programs: Mapping[str, str],
        name: str,
        rounds: int,
        runs: int,
        counts: Sequence[int],
        timelines: int = 0,
        calibrated: bool = True,
        modes: Sequence[str] = MODES,
        ranks: int | None = None,
        threads: int | None = None,
        cells: int | None = None,
        depth: int = 0,
        options: str = "",
    ) -> None:
        """calibrated: with the separate program.

        options: of the session, added to those for --copy-threads.
        """
        ranks, threads = ranks or args.ranks, threads or args.threads
        copy_threads = min(threads, args.copy_threads or threads)
        self.name, self.cores, self.ranks, self.modes = name, ranks * threads, ranks, modes
        counters = Counters() if timelines else None
        with running.scratch(args.dir) as where:
            found = running.run(
                programs["solver"],
                ranks,
                [
                    "--cells",
                    cells or args.cells,
                    "--depth",
                    depth,
                    "--dir",
                    where,
                    "--rounds",
                    rounds,
                    "--runs",
                    runs,
                    "--counts",
                    ",".join(map(str, counts)),
                    "--modes",
                    ",".join(modes),
                    "--timelines",
                    timelines,
                    "--threads",
                    copy_threads,
                    *(["--options", options] if options else []),
                ],
                threads,
            )
        self.counted, self.not_counted = counters.stop() if counters else ([], "")
        self.samples, self.bytes = found["samples"], found["checkpoint_bytes"]
        self.steps, self.run_steps, self.step_bytes = (
            found["window_steps"],
            found["run_steps"],
            found["step_bytes"],
        )
        if not calibrated:
            return
        print(f"  calibrating ({name})", file=sys.stderr, flush=True)
        with running.scratch(args.dir) as where:
            size = int(self.bytes / ranks) // 4096 * 4096
            calibration = running.run(
                programs["traffic"],
                ranks,
                [
                    "--size",
                    size,
                    "--dir",
                    where,
                    "--threads",
                    threads,
                    "--rounds",
                    max(5, rounds * 3 // 4),
                    *(["--options", f"copy_threads = {copy_threads}"] if args.copy_threads else []),
                ],
                threads,
            )
        self.calibrate(calibration)

    def calibrate(self, found: Sample) -> None:
        """B_M, B_IO, m, memcpy, from the separate program."""
        samples, moved = found["samples"], found["window_bytes"]
        times = {
            kind: [s["s"] for s in samples if s["mode"] == kind]
            for kind in ("none", "flush", "memcpy")
        }
        self.memory = stats.spread([moved / s for s in times["none"]])
        self.io = stats.spread([self.bytes / s for s in times["flush"]])
        self.memcpy = stats.spread(times["memcpy"])
        # What it takes longer, in bytes at the bandwidth of the same moment, by the checkpoint's
        # size.
        self.m = {
            mode: stats.figure(
                beside_neighbours(
                    samples, word, lambda s, near: (s["s"] / near - 1) * moved / self.bytes
                )
            )
            for mode, word in (("async", "copied"), ("lent", "lent"))
        }

    def model_s(self, mode: str, n: int) -> float:
        """Eq. (1) and (2): seconds lost by n checkpoints."""
        if mode == "sync":
            return float(n * self.bytes / self.io["median"])
        return float(n * self.m[mode]["value"] * self.bytes / self.memory["median"])

    def lost(self, mode: str) -> list[tuple[float, Sample]]:
        """Of each window: (seconds lost, the window)."""
        return beside_neighbours(self.samples, mode, lambda s, near: (s["s"] - near, s))

    def bound_s(self, window: Sample, copy_s: float | None = None) -> float:
        """Copy time + processor time of Orcheck's threads / cores."""
        copied_s: float = window["stage_s"] if copy_s is None else copy_s
        return copied_s + float(window["cpu_s"]) / self.cores

    def windows(self) -> list[Sample]:
        """One entry for each mode: a single checkpoint."""
        none = statistics.median(
            s["s"] for s in self.samples if s["kind"] == "window" and s["mode"] == "none"
        )
        rows = []
        for mode in self.modes:
            lost = self.lost(mode)
            seconds, windows = [s for s, _ in lost], [w for _, w in lost]
            rows.append(
                {
                    "device": self.name,
                    "mode": mode,
                    "window_s": none,
                    "lost_s": stats.spread(seconds),
                    "interval_s": stats.interval(seconds),
                    "model_s": self.model_s(mode, 1) if hasattr(self, "m") else None,
                    "bound_s": statistics.median(self.bound_s(w) for w in windows),
                    **{
                        key: statistics.median(w[key] for w in windows)
                        for key in ("call_s", "stage_s", "cpu_s")
                    },
                    "late_s": max(w["late_s"] for w in windows),
                }
            )
        return rows

    def runs(self) -> list[Sample]:
        """One entry for each mode and number of checkpoints: the slowdown of whole runs."""
        found: dict[int, dict[str, Sample]] = {}
        for s in self.samples:
            if s["kind"] == "run":
                found.setdefault(s["round"], {})[s["mode"]] = s
        rows = []
        none = statistics.median(one["none"]["s"] for one in found.values()) if found else math.nan
        for mode in self.modes:
            for n in range(1, MOST + 1):
                # What was not safe at the end is waited for: the run is over when it is.
                slowdown = [
                    100 * ((one[mode]["s"] + one[mode]["late_s"]) / one["none"]["s"] - 1)
                    for one in found.values()
                    if one[mode]["checkpoints"] == n
                ]
                if slowdown:
                    rows.append(
                        {
                            "device": self.name,
                            "mode": mode,
                            "checkpoints": n,
                            "run_s": none,
                            "slowdown_percent": stats.spread(slowdown),
                            "model_percent": 100 * self.model_s(mode, n) / none
                            if hasattr(self, "m")
                            else None,
                        }
                    )
        return rows

    def slowdown(self, mode: str, n: int) -> float | None:
        """Slowdown of whole runs by n checkpoints, %; None when that was not run."""
        return next(
            (
                r["slowdown_percent"]["median"]
                for r in self.runs()
                if r["mode"] == mode and r["checkpoints"] == n
            ),
            None,
        )

    def timeline(self) -> svg.Panel:
        """Panel: the solver's memory traffic over time, by mode, from how long each step took."""
        panel = svg.Panel(
            f"Device {self.name}, two checkpoints", "seconds", "GB/s of the solver", x_even=True
        )
        for colour, mode in enumerate(("none", *self.modes)):
            one = next(
                (s for s in self.samples if s["kind"] == "timeline" and s["mode"] == mode), None
            )
            if not one:
                continue
            ends = one["steps_s"]
            panel.line(NAMES[mode], rates(ends, self.step_bytes), colour=colour, dots=False)
            panel.line(
                None, [(at, 0.0) for at in one["marks_s"]], joined=False, colour=colour, hollow=True
            )
            near = [
                (at - one["begin_s"], rate / 1e9)
                for at, rate in self.counted
                if 0 <= at - one["begin_s"] <= ends[-1]
            ]
            panel.line(
                None if mode == "none" else f"memory controllers, {NAMES[mode]}",
                near,
                dashed=True,
                colour=colour,
            )
        return panel

    def facts(self) -> dict[str, Any]:
        return {
            "device": self.name,
            "window_steps": self.steps,
            "run_steps": self.run_steps,
            "memory_bytes_per_s": self.memory,
            "io_bytes_per_s": self.io,
            "memcpy_s": self.memcpy,
            "m_copied": self.m["async"],
            "m_lent": self.m["lent"],
            "none_over_none": stats.spread(none_beside_none(self.samples)),
        }

    def show(self) -> None:
        m = {mode: self.m[mode]["value"] for mode in self.m}
        noise = stats.spread(none_beside_none(self.samples))
        print(
            f"\nDevice {self.name}. Calibration by the separate program: B_M "
            f"{self.memory['median'] / 1e9:.1f} GB/s, "
            f"B_IO {self.io['median'] / 1e9:.2f} GB/s, m {m['async']:.1f} copied, {m['lent']:.1f} "
            "lent; memcpy "
            f"{self.memcpy['median'] * 1e3:.0f} ms.\nWindows of {self.steps} steps; one without a "
            "checkpoint against "
            f"its neighbours: median {noise['median']:.3f}, quartiles {noise['q1']:.3f} to "
            f"{noise['q3']:.3f}."
        )
        reporting.table(
            [
                "one checkpoint",
                "lost ms",
                "95 %",
                "model ms",
                "bound ms",
                "in calls",
                "copy",
                "CP cpu",
                "late",
            ],
            [
                [
                    NAMES[r["mode"]],
                    f"{1e3 * r['lost_s']['median']:.1f}",
                    f"{1e3 * r['interval_s'][0]:.1f} to {1e3 * r['interval_s'][1]:.1f}"
                    if r["interval_s"]
                    else "",
                    *(
                        f"{1e3 * r[key]:.1f}"
                        for key in ("model_s", "bound_s", "call_s", "stage_s", "cpu_s", "late_s")
                    ),
                ]
                for r in self.windows()
            ],
        )
        runs = self.runs()
        if not runs:
            return
        print(
            f"\nSlowdown of runs of {runs[0]['run_s']:.2f} s ({self.run_steps} steps), %; in "
            "brackets eq. (1) or (2)"
        )
        counts = sorted({r["checkpoints"] for r in runs})
        reporting.table(
            ["checkpoints", *map(str, counts)],
            [
                [
                    NAMES[mode],
                    *(
                        f"{r['slowdown_percent']['median']:.1f} ({r['model_percent']:.1f})"
                        for r in runs
                        if r["mode"] == mode
                    ),
                ]
                for mode in MODES
            ],
        )

    def panel(self) -> svg.Panel:
        runs, windows = self.runs(), {r["mode"]: r for r in self.windows()}
        panel = svg.Panel(
            f"Device {self.name}", f"checkpoints in {self.run_steps} steps", "slowdown, %"
        )
        if not runs:
            return panel
        percent = 100 / runs[0]["run_s"]
        counts = range(MOST + 1)
        for colour, mode in enumerate(MODES):
            one = windows[mode]
            low, high = one["interval_s"] or (None, None)
            panel.line(
                NAMES[mode] + " (n times one)",
                [
                    (
                        n,
                        n * percent * one["lost_s"]["median"],
                        *(n * percent * x for x in (low, high) if x is not None),
                    )
                    for n in counts
                ],
                colour=colour,
            )
            panel.line(
                f"eq. ({'1' if mode == 'sync' else '2'})",
                [(n, n * percent * one["model_s"]) for n in counts],
                dashed=True,
                colour=colour,
            )
        for colour, mode in enumerate(MODES):
            mine = [r for r in runs if r["mode"] == mode]
            panel.line(
                "whole runs" if colour == 0 else None,
                [
                    (
                        r["checkpoints"] + 0.06 * (1 + colour),
                        *(r["slowdown_percent"][k] for k in ("median", "q1", "q3")),
                    )
                    for r in mine
                ],
                joined=False,
                colour=colour,
                hollow=True,
            )
        return panel


# ---- ratios --------------------------------------------------------------------------------------
def median_ratio(rows: Sequence[tuple[float, float]]) -> float:
    """Ratio of two medians: what is lost may be near zero, and a median of ratios would be wild."""
    below = statistics.median(row[1] for row in rows)
    return statistics.median(row[0] for row in rows) / below if below > 0 else float("inf")


def over(condition: Condition, top: str, bottom: str) -> Figure:
    pairs = zip(condition.lost(top), condition.lost(bottom))
    return stats.figure([(a, b) for (a, _), (b, _) in pairs], median_ratio)


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
"""
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
        return Condition(
            args, programs, name, some, more.pop("runs", 0), (MOST,), calibrated=False, **more
        )

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
        one(scheme, options=f"scheme = '{scheme}'\n", depth=args.small_cells * two["ranks"], **two)
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


def main() -> None:
    args = running.arguments("lbm", __doc__, more)
    running.end_on_signals()
    programs = {name: running.build(args.prefix, name) for name in ("solver", "traffic")}
    machine = facts.Machine(args.dir)
    rounds = args.rounds or (121 if args.full else 41)
    print("measuring on the device as it is ...", file=sys.stderr, flush=True)
    free = Condition(
        args, programs, "as it is", rounds, 9 if args.full else 3, range(1, MOST + 1), timelines=1
    )
    print(
        f"{args.ranks} rank(s) x {args.threads} threads, {args.cells}^3 cells, checkpoints of "
        f"{free.bytes / running.MIB:.0f} MiB"
    )
    free.show()

    costs = free.lost("async")
    memcpy_s = free.memcpy["median"]
    figures = {
        "async_over_bound": stats.figure([(s, free.bound_s(w)) for s, w in costs], median_ratio),
        "async_over_memcpy_bound": stats.figure(
            [(s, free.bound_s(w, memcpy_s)) for s, w in costs], median_ratio
        ),
        "async_over_sync": over(free, "async", "sync"),
        "lent_over_sync": over(free, "lent", "sync"),
        "none_over_none": stats.figure(none_beside_none(free.samples)),
        "async_over_sync_500": stats.figure([]),
        "lent_over_sync_500": stats.figure([]),
    }
    conditions, limit, why = [free], None, None
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
                3 if args.full else 1,
                range(1, MOST + 1) if args.full else (1, MOST),
                timelines=1,
            )
        slow.show()
        figures["async_over_sync_500"] = over(slow, "async", "sync")
        figures["lent_over_sync_500"] = over(slow, "lent", "sync")
        conditions.append(slow)
        limit = {"bytes_per_s": LIMIT_BYTES_PER_S, "measured_bytes_per_s": rate}
    except OSError as error:
        why = str(error)
        print(
            f"\nNOT MEASURED: the device limited to 500 MB/s: {why}.\nasync_over_sync_500 is null. "
            "Next: run this "
            "as root where cgroup v1's blkio controller is mounted, with --dir on a disk of its own"
        )

    print(
        "measuring incremental capture, schemes and weak scaling ...", file=sys.stderr, flush=True
    )
    incremental, schemes, scaling = series(args, programs, rounds)
    tables = {
        "reported": reported_table(conditions),
        "incremental": loss_table("one checkpoint", incremental),
        "schemes": loss_table(f"scheme ({schemes[0].ranks} ranks)", schemes),
        "scaling": loss_table("weak scaling", scaling),
    }
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
