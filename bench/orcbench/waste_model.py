"""What `orcheck plan` says of a job, and the measurements that it is told; see waste.py."""

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from orcbench import reporting, stats
from orcbench.waste_jobs import Job, Never, Placed, Stand

# Suffix of the keys -> times the recommended interval, and its name.
INTERVALS = {
    "_third": (1 / 3, "a third"),
    "": (1, "recommended"),
    "_three_times": (3, "three times"),
}
FEW = 10  # below this many runs it is a look, and all parts are shorter


class Model:
    """orcheck plan, of a job whose checkpoint, restart and failures are known."""

    def __init__(self, args: argparse.Namespace, checkpoint_s: float, restart_s: float) -> None:
        self.args, self.checkpoint_s, self.restart_s = args, checkpoint_s, restart_s

    def plan(self, what: str, *more_options: str) -> dict[str, Any]:
        command = [
            os.path.join(self.args.prefix, "bin", "orcheck"),
            "plan",
            what,
            "--json",
            "--checkpoint",
            f"{self.checkpoint_s:.9f}s",
            "--restart",
            f"{self.restart_s:.9f}s",
            "--mtbf",
            f"{self.args.mtbf:.9f}s",
            *more_options,
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def recommended_s(self) -> float:
        return float(self.plan("interval")["interval_s"])

    def expected(self, work_s: float, intervals_s: Sequence[float]) -> list[dict[str, Any]]:
        """What the job takes with each interval, and what is computing of that: rules of the
        program, in order.
        """
        every = ",".join(f"{interval_s:.9f}s" for interval_s in intervals_s)
        rules = self.plan("interval", "--work", f"{work_s:.9f}s", "--every", every)["rules"]
        found = [rule for rule in rules if rule["rule"] == "--every"]
        if len(found) != len(intervals_s) or any(
            abs(rule["interval_s"] - asked) > 1e-8 for rule, asked in zip(found, intervals_s)
        ):
            raise RuntimeError(
                f"orcheck plan interval --every {every}: answered for "
                f"{[rule['interval_s'] for rule in found]}"
            )
        return found

    def parts(self, work_s: float, interval_s: float) -> dict[str, Any]:
        """The same from runs that are followed failure by failure, which says what the time goes
        into.
        """
        return self.plan(
            "simulate",
            "--work",
            f"{work_s:.9f}s",
            "--interval",
            f"{interval_s:.9f}s",
            "--runs",
            "20000",
        )

    def replay(self, failures: Never, interval_s: float, segments: int) -> float:
        """Seconds that the job takes by the model when failures come at these times: Daly's
        arithmetic, no mean.
        """
        now, done, restarting = 0.0, 0, False
        while done < segments:
            need = self.restart_s if restarting else interval_s + self.checkpoint_s
            at = failures.due(0.0, None)
            if at is None:
                at = math.inf
            if now + need <= at:
                now, done, restarting = now + need, done + (not restarting), False
            else:
                now, restarting = at, True
                failures.struck(0.0, now)
        return now


class Calibration:
    """What a step, a checkpoint and a restart take, of jobs of its own; and which interval follows
    from that.
    """

    def __init__(self, args: argparse.Namespace, stand: Stand) -> None:
        few = args.runs < FEW
        self.segments = args.segments or (6 if few else 12)
        first = stand.everywhere(lambda place: stand.job(place, 300, 100, Never()))
        self.take(args, first, 100)
        for _ in range(3):
            every = 3 * max(1, round(self.recommended_s / self.step_s / 3))
            jobs = stand.everywhere(functools.partial(self.undisturbed, stand, every))
            self.take(args, jobs, every)
            if 0.95 < every * self.step_s / self.recommended_s < 1.05:
                break
        self.states = {job.state for job in jobs}
        if len(self.states) != 1:
            raise RuntimeError(
                f"the same steps, without failures, end in different states: {self.states}"
            )
        # Kills are spread evenly over a segment, checkpoint included, as failures are; each time
        # after a whole one, so that steps and checkpoints are those of programs that were just
        # started, too.
        kills, cycle_s, n = (
            4 if few else 12,
            every * self.step_s + self.checkpoint_s,
            len(stand.places),
        )
        killed = stand.everywhere(
            lambda place: stand.job(
                place,
                every * 3 * kills,
                every,
                Placed(cycle_s * (1 + (i * n + place + 0.5) / (kills * n)) for i in range(kills)),
            )
        )
        self.restarts = [one for job in killed for one in job.restarts()]
        self.restart_s = statistics.mean(s for s, _ in self.restarts)
        self.take(args, jobs + killed, every)
        self.every, self.steps, self.interval_s = every, every * self.segments, every * self.step_s
        self.model = Model(args, self.checkpoint_s, self.restart_s)

    def undisturbed(self, stand: Stand, every: int, place: int) -> Job:
        return stand.job(place, every * self.segments, every, Never())

    def take(self, args: argparse.Namespace, jobs: Sequence[Job], every: int) -> None:
        self.on_core = [(job.core, *segment) for job in jobs for segment in job.segments()]
        segments = [segment for job in jobs for segment in job.segments()]
        self.steps_s = [compute / every for compute, _ in segments]
        self.checkpoints_s = [checkpoint for _, checkpoint in segments]
        self.step_s, self.checkpoint_s = (
            statistics.median(self.steps_s),
            statistics.median(self.checkpoints_s),
        )
        if self.checkpoint_s >= args.mtbf:
            sys.exit(
                f"a checkpoint takes {self.checkpoint_s:.2f} s. Next: --mtbf above that, or a "
                "higher --rate"
            )
        self.recommended_s = Model(args, self.checkpoint_s, 0).recommended_s()

    def every_of(self, suffix: str) -> int:
        """Steps between two checkpoints."""
        return round(self.every * INTERVALS[suffix][0])

    def facts(self) -> dict[str, Any]:
        by = {
            doing: [s for s, what in self.restarts if what == doing]
            for doing in ("computing", "checkpoint")
        }
        return {
            "step_s": stats.spread(self.steps_s),
            "checkpoint_s": stats.spread(self.checkpoints_s),
            "restart_s": {"mean": self.restart_s, **stats.spread([s for s, _ in self.restarts])},
            "restart_after_s": {doing: stats.spread_if_any(values) for doing, values in by.items()},
            "by_core": {
                core: {
                    "step_s": statistics.median(c for at, c, _ in self.on_core if at == core)
                    / self.every,
                    "checkpoint_s": statistics.median(c for at, _, c in self.on_core if at == core),
                }
                for core in sorted({at for at, _, _ in self.on_core})
            },
            "core_computing_checkpoint_s": self.on_core,
            "restarts": self.restarts,
        }

    def show(self) -> None:
        rows = []
        for name, values, used in (
            ("a step", self.steps_s, "median"),
            ("a checkpoint", self.checkpoints_s, "median"),
            ("a restart", [s for s, _ in self.restarts], "mean"),
        ):
            found, value = stats.spread(values), getattr(statistics, used)(values)
            rows.append(
                [
                    name,
                    f"{1e3 * value:.3f}" if value < 0.1 else f"{1e3 * value:.0f}",
                    used,
                    *(f"{found[key] / value:.3f}" for key in ("min", "q1", "q3", "max")),
                    found["n"],
                ]
            )
        print("\nMeasured before the runs")
        reporting.table(["", "ms", "part", "least ÷ it", "q1", "q3", "most", "n"], rows)
