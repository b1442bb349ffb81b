"""Everything that lbm.py measures on the device in one condition, and the model beside it."""

import argparse
import bisect
import glob
import math
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from orcbench import reporting, running, stats, svg
from orcbench.stats import Sample

T = TypeVar("T")
MOST = 4
MODES = ("sync", "async", "lent")
# What the machine takes for the writes alone, where windows are compared.
DEVICE = "device"
NAMES = {
    "none": "no checkpoint",
    "sync": "synchronous",
    "async": "asynchronous, copied",
    "lent": "asynchronous, lent",
    DEVICE: "the writes alone",
}


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
        s
        for s in samples
        if s["kind"] == "window" and s["mode"] in ("none", "copied", *MODES, DEVICE)
    ]
    return [
        value(s, (windows[i - 1]["s"] + windows[i + 1]["s"]) / 2)
        for i, s in enumerate(windows)
        if s["mode"] == mode
    ]


def none_beside_none(samples: list[Sample]) -> list[float]:
    """The same where nothing differs: a window without a checkpoint and its neighbours."""
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
        modes: Sequence[str] = (*MODES, DEVICE),
        ranks: int | None = None,
        threads: int | None = None,
        cells: int | None = None,
        depth: int = 0,
        options: str = "",
        each: Sequence[str] = (),
    ) -> None:
        """calibrated: with the separate program.

        options: of the session, added to those for --copy-threads. each: the words before the
        program of every rank.
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
                each=each,
            )
        self.counted, self.not_counted = counters.stop() if counters else ([], "")
        self.samples, self.bytes = found["samples"], found["checkpoint_bytes"]
        self.steps, self.run_steps, self.step_bytes, self.io_s = (
            found["window_steps"],
            found["run_steps"],
            found["step_bytes"],
            found["io_s"],
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
                    # The model does not speak of writes alone.
                    "model_s": self.model_s(mode, 1)
                    if hasattr(self, "m") and mode != DEVICE
                    else None,
                    "bound_s": statistics.median(self.bound_s(w) for w in windows),
                    **{
                        key: statistics.median(w[key] for w in windows)
                        for key in ("call_s", "stage_s", "cpu_s")
                    },
                    "late_s": max(w["late_s"] for w in windows),
                }
            )
        return rows

    def whole_runs(self) -> dict[int, dict[str, Sample]]:
        """The whole runs of each round, by mode."""
        found: dict[int, dict[str, Sample]] = {}
        for s in self.samples:
            if s["kind"] == "run":
                found.setdefault(s["round"], {})[s["mode"]] = s
        return found

    @staticmethod
    def longer_s(one: Mapping[str, Sample], mode: str) -> float:
        """What a run takes longer than the one without checkpoints. What was not safe at the end
        is waited for: the run is over when it is.
        """
        return float(one[mode]["s"] + one[mode]["late_s"] - one["none"]["s"])

    def run_costs(self, mode: str, n: int) -> list[tuple[float, float]]:
        """Of each round: seconds that n checkpoints of this mode cost a whole run, and n
        synchronous ones.
        """
        return [
            (self.longer_s(one, mode), self.longer_s(one, "sync"))
            for one in self.whole_runs().values()
            if one[mode]["checkpoints"] == n
        ]

    def runs(self) -> list[Sample]:
        """One entry for each mode and number of checkpoints: the slowdown of whole runs."""
        found = self.whole_runs()
        rows = []
        none = statistics.median(one["none"]["s"] for one in found.values()) if found else math.nan
        for mode in (mode for mode in self.modes if mode != DEVICE):
            for n in range(1, MOST + 1):
                slowdown = [
                    100 * self.longer_s(one, mode) / one["none"]["s"]
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

    def lowest(self, mode: str) -> list[float]:
        """Of each timeline of a mode: the lowest bandwidth of the solver ÷ its median one."""
        found = []
        for one in self.samples:
            if one["kind"] == "timeline" and one["mode"] == mode:
                values = [rate for _, rate in rates(one["steps_s"], self.step_bytes)]
                found.append(min(values) / statistics.median(values))
        return found

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
            "io_s": self.io_s,
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
                        "" if r[key] is None else f"{1e3 * r[key]:.1f}"
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
            f"\nSlowdown of runs of {runs[0]['run_s']:.2f} s ({self.run_steps} steps; T_run / t_IO "
            f"{runs[0]['run_s'] / self.io_s:.1f}), %; in brackets eq. (1) or (2)"
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
