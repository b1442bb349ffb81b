"""Does a job that fails take as long as `orcheck plan interval` predicted?

The solver of examples/lbm (src/waste.c) takes checkpoints and waits for each, on a device whose
rate is limited. First, without failures or with a few that are placed, it is measured what a step,
a checkpoint and a restart take. From these and a mean time between failures that is chosen, the
library's own program recommends an interval and says how long the job will take with it, with a
third, and with three times of it. Then the job runs, and is killed (SIGKILL to its process group)
at times that are drawn from an exponential distribution, whatever it is doing, and started again at
once: the same times for all three intervals, others for each run.

Two jobs run at a time, in the calibration as in the runs: each on a core and a device of its own.
"""

import argparse
import contextlib
import os
import statistics
import sys
import threading
from collections.abc import Iterator
from typing import Any

from orcbench import facts, reporting, running, stats, svg
from orcbench.stats import Figure
from orcbench.waste_jobs import Drawn, SlowDisks, Stand
from orcbench.waste_model import INTERVALS, Calibration
from testbed.cluster.held import HeldError

# The last two: one-sided, how likely chance alone makes the recommended interval look as much
# better.
GOALS = {
    "predicted_waste": (">=", 0.25),
    "off_predicted": ("<=", 0.15),
    "recommended_over_third": ("<=", 1.0),
    "recommended_over_three_times": ("<=", 1.0),
    "p_third": ("<=", 0.05),
    "p_three_times": ("<=", 0.05),
}
PARTS = ("work_s", "checkpoints_s", "lost_s", "restarts_s")
PART_NAMES = ("computing", "checkpoints", "done again", "restarts")


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs", type=int, default=None, help="jobs with each interval (default 30, --full 90)"
    )
    parser.add_argument(
        "--mtbf",
        type=float,
        default=6.0,
        help="mean time between failures, seconds (default %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help="what the times of failures are drawn from (default %(default)s)",
    )
    parser.add_argument(
        "--cells",
        type=int,
        default=48,
        help="edge of the box (default %(default)s: 21 MB a checkpoint)",
    )
    parser.add_argument(
        "--rate", type=float, default=50, help="MB/s of the limited devices (default %(default)s)"
    )
    parser.add_argument(
        "--segments",
        type=int,
        default=None,
        help="recommended intervals in a job, a multiple of 3 "
        "(default 12; 6 with fewer than 10 runs)",
    )


# ---- the runs ------------------------------------------------------------------------------------
def measure(
    args: argparse.Namespace, stand: Stand, calibration: Calibration
) -> list[dict[str, Any]]:
    """One entry a run: suffix of the interval -> what the job took; all intervals of a run at the
    same place.
    """

    def take(run: int, place: int) -> dict[str, Any]:
        order = list(INTERVALS)
        found: dict[str, Any] = {"place": place}
        for suffix in order[run % 3 :] + order[: run % 3]:
            job = stand.job(
                place, calibration.steps, calibration.every_of(suffix), Drawn(args, run)
            )
            if job.state not in calibration.states:
                raise RuntimeError(
                    f"run {run}, interval {INTERVALS[suffix][1]}: the final state is {job.state}, "
                    f"without failures it was {calibration.states}"
                )
            ready = job.first("ready")
            assert ready is not None
            found[suffix] = {
                **job.parts(),
                "killed_at_s": [at - ready for at in job.kills],
                "segments": job.segments(),
                "restarts": job.restarts(),
                "state": job.state,
            }
        return found

    def neighbour(run: int, place: int, stop: threading.Event) -> None:
        stand.job(place, calibration.steps, calibration.every, Drawn(args, run), stop)

    def told(run: dict[str, Any]) -> str:
        return "  ".join(
            f"{name} {run[suffix]['total_s']:.1f} s, {run[suffix]['kills']} kills"
            for suffix, (_, name) in INTERVALS.items()
        )

    return stand.take_turns(args.runs, take, neighbour, told)


# ---- results -------------------------------------------------------------------------------------
class Prediction:
    """What the model says of each interval; asked before the job runs."""

    def __init__(self, calibration: Calibration) -> None:
        model = calibration.model
        self.work_s = calibration.steps * calibration.step_s
        self.intervals_s = {
            suffix: calibration.every_of(suffix) * calibration.step_s for suffix in INTERVALS
        }
        self.rules = dict(
            zip(INTERVALS, model.expected(self.work_s, list(self.intervals_s.values())))
        )
        self.parts = {suffix: model.parts(self.work_s, s) for suffix, s in self.intervals_s.items()}
        spread = [self.intervals_s[""] * 4 ** (i / 20) for i in range(-20, 21)]
        self.curve = [
            (rule["interval_s"], rule["expected_s"]) for rule in model.expected(self.work_s, spread)
        ]

    def longer_s(self, suffix: str) -> float:
        """How much longer the job takes than with the recommended interval."""
        return float(self.rules[suffix]["expected_s"] - self.rules[""]["expected_s"])


class Result:
    """Prediction and measurement side by side."""

    def __init__(
        self,
        args: argparse.Namespace,
        calibration: Calibration,
        predicted: Prediction,
        runs: list[dict[str, Any]],
    ) -> None:
        self.calibration, self.predicted, self.runs = calibration, predicted, runs
        self.totals = {suffix: [run[suffix]["total_s"] for run in runs] for suffix in INTERVALS}
        self.replayed = {
            suffix: [
                calibration.model.replay(
                    Drawn(args, run), s, calibration.steps // calibration.every_of(suffix)
                )
                for run in range(len(runs))
            ]
            for suffix, s in predicted.intervals_s.items()
        }

    def saved(self, suffix: str) -> list[float]:
        """How much longer the job took than with the recommended interval, run by run."""
        return [other - best for other, best in zip(self.totals[suffix], self.totals[""])]

    def figures(self) -> dict[str, Figure]:
        found: dict[str, Figure] = {
            "predicted_waste": {
                "value": 1 - self.predicted.rules[""]["efficiency"],
                "interval": None,
                "n": 1,
            }
        }
        for suffix in INTERVALS:
            ratios = [
                total / self.predicted.rules[suffix]["expected_s"] for total in self.totals[suffix]
            ]
            if not suffix:
                found["off_predicted"] = stats.figure(
                    ratios, lambda values: abs(statistics.mean(values) - 1)
                )
            found["measured_over_predicted" + suffix] = stats.figure(ratios, statistics.mean)
            found["measured_over_replayed" + suffix] = stats.figure(
                list(zip(self.totals[suffix], self.replayed[suffix])), stats.ratio_of_means
            )
        for suffix in INTERVALS:
            if suffix:
                found["recommended_over" + suffix] = stats.figure(
                    list(zip(self.totals[""], self.totals[suffix])), stats.ratio_of_means
                )
                found["p" + suffix] = {
                    "value": stats.chance(self.saved(suffix)),
                    "interval": None,
                    "n": len(self.runs),
                }
        return found

    def rows(self) -> Iterator[dict[str, Any]]:
        """What the tables show, by interval."""
        for suffix, (_, name) in INTERVALS.items():
            mine, rule = [run[suffix] for run in self.runs], self.predicted.rules[suffix]
            segments = [segment for one in mine for segment in one["segments"]]
            yield {
                "interval": name,
                "interval_s": self.predicted.intervals_s[suffix],
                "every": self.calibration.every_of(suffix),
                "predicted_s": rule["expected_s"],
                "predicted_waste": 1 - rule["efficiency"],
                "total_s": stats.figure(self.totals[suffix], statistics.mean),
                "replayed_s": statistics.mean(self.replayed[suffix]),
                "waste": 1 - self.predicted.work_s / statistics.mean(self.totals[suffix]),
                "kills": statistics.mean(one["kills"] for one in mine),
                "predicted_kills": rule["failures"],
                "parts": {part: statistics.mean(one[part] for one in mine) for part in PARTS},
                "model_parts": {part: self.predicted.parts[suffix][part] for part in PARTS},
                "step_s": statistics.median(c for c, _ in segments)
                / self.calibration.every_of(suffix),
                "checkpoint_s": statistics.median(c for _, c in segments),
            }

    def show(self) -> None:
        rows = list(self.rows())
        print(
            f"\nSeconds of a job of {self.calibration.steps} steps, {self.predicted.work_s:.1f} s "
            "of computing; means of "
            f"{len(self.runs)} runs. Replayed: the model with the very failures of the runs"
        )
        reporting.table(
            [
                "every",
                "s",
                "steps",
                "predicted",
                "measured",
                "95 %",
                "replayed",
                "waste predicted",
                "measured",
                "failures predicted",
                "kills",
            ],
            [
                [
                    r["interval"],
                    f"{r['interval_s']:.2f}",
                    r["every"],
                    f"{r['predicted_s']:.1f}",
                    f"{r['total_s']['value']:.1f}",
                    "{:.1f} to {:.1f}".format(*r["total_s"]["interval"])
                    if r["total_s"]["interval"]
                    else "",
                    f"{r['replayed_s']:.1f}",
                    f"{100 * r['predicted_waste']:.1f} %",
                    f"{100 * r['waste']:.1f} %",
                    f"{r['predicted_kills']:.2f}",
                    f"{r['kills']:.2f}",
                ]
                for r in rows
            ],
        )
        print("\nWhat the time went into, seconds: measured (predicted)")
        reporting.table(
            ["every", *PART_NAMES, "step ms", "checkpoint ms"],
            [
                [
                    r["interval"],
                    *(f"{r['parts'][part]:.2f} ({r['model_parts'][part]:.2f})" for part in PARTS),
                    f"{1e3 * r['step_s']:.3f} ({1e3 * self.calibration.step_s:.3f})",
                    f"{1e3 * r['checkpoint_s']:.0f} ({1e3 * self.calibration.checkpoint_s:.0f})",
                ]
                for r in rows
            ],
        )
        print(
            "\nHow much longer a run takes than with the recommended interval and the same failures"
        )
        reporting.table(
            ["every", "predicted s", "measured s", "95 %", "runs in which it does", "p, one-sided"],
            [
                [
                    INTERVALS[suffix][1],
                    f"{self.predicted.longer_s(suffix):.2f}",
                    f"{found['value']:.2f}",
                    "{:.2f} to {:.2f}".format(*found["interval"]) if found["interval"] else "",
                    f"{sum(d > 0 for d in self.saved(suffix))} of {found['n']}",
                    f"{stats.chance(self.saved(suffix)):.5f}",
                ]
                for suffix, found in self.saved_figures().items()
            ],
        )

    def saved_figures(self) -> dict[str, Figure]:
        return {
            suffix: stats.figure(self.saved(suffix), statistics.mean)
            for suffix in INTERVALS
            if suffix
        }

    def panels(self) -> list[svg.Panel]:
        rows = list(self.rows())
        time_panel = svg.Panel(
            "Time of a job that fails",
            "computing between checkpoints, s",
            "seconds",
            log_x=True,
            x_names=[(r["interval_s"], f"{r['interval']} ({r['interval_s']:.2f})") for r in rows],
        )
        time_panel.line("predicted", self.predicted.curve, dots=False)
        time_panel.line(
            "measured, mean of runs and 95 %",
            [
                (r["interval_s"], r["total_s"]["value"], *(r["total_s"]["interval"] or ()))
                for r in rows
            ],
            joined=False,
        )
        time_panel.limit(self.predicted.work_s, "computing alone")
        runs_panel = svg.Panel(
            "Each run", "the model with the same failures, s", "measured, s", x_even=True
        )
        both = [value for suffix in INTERVALS for value in self.replayed[suffix]]
        runs_panel.line(
            "as the model", [(min(both), min(both)), (max(both), max(both))], dashed=True
        )
        for suffix, (_, name) in INTERVALS.items():
            runs_panel.line(
                name, list(zip(self.replayed[suffix], self.totals[suffix])), joined=False
            )
        return [time_panel, runs_panel]


def main() -> None:
    args = running.arguments("waste", __doc__, more)
    running.end_on_signals()
    args.runs = args.runs or (90 if args.full else 30)
    if args.segments is not None and (args.segments < 3 or args.segments % 3):
        sys.exit(f"--segments {args.segments}: expected a multiple of 3")
    program = running.build(args.prefix, "waste")
    machine = facts.Machine(args.dir)
    names = [f"store{i}" for i in range(min(2, len(os.sched_getaffinity(0))))]
    with contextlib.ExitStack() as held:
        try:
            if os.geteuid() != 0:
                raise HeldError("devices with a limit take root")
            slow = held.enter_context(
                SlowDisks(args.dir, dict.fromkeys(names, round(args.rate * 1e6)))
            )
        except (HeldError, OSError) as error:
            held.close()
            reporting.not_measured(args, "waste", str(error), GOALS)
            return
        print("calibrating ...", file=sys.stderr, flush=True)
        stand = Stand(args, program, slow)
        calibration = Calibration(args, stand)
        calibration.show()
        predicted = Prediction(calibration)
        runs = measure(args, stand, calibration)
    result = Result(args, calibration, predicted, runs)
    result.show()
    footnote = reporting.finish(
        args,
        "waste",
        machine,
        result.figures(),
        GOALS,
        {
            "store_bytes_per_s": slow.rates,
            "work_s": predicted.work_s,
            "steps": calibration.steps,
            "state": min(map(str, calibration.states)),
            "recommended_s": calibration.recommended_s,
            "calibration": calibration.facts(),
            "intervals_measured": list(result.rows()),
            "longer_than_recommended_s": result.saved_figures(),
            "curve": predicted.curve,
            "replayed_s": result.replayed,
            "runs": runs,
        },
    )
    svg.save(os.path.join(args.results, "waste.svg"), footnote, result.panels())


if __name__ == "__main__":
    main()
