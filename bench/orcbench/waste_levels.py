"""Does each level at its own pace save as much as `orcheck plan interval --level` predicted?

The solver of `waste` (src/waste.c) takes checkpoints to a directory of its node, which is quick,
and to one of level `global` on a slow device, and waits until each is safe where it goes. Failures
of two kinds are drawn. Of processes (SIGKILL to its process group): everything on the disk of the
node survives. Of nodes: that disk is emptied too, and only level `global` helps.

First it is measured what a step, checkpoints and restarts take. From these and the mean times
between failures the library's own program recommends a pattern, and the options for it, which are
used as they are printed; an interval for checkpoints that all go to both levels; and one for level
`global` alone, where there is no other. It predicts how long the job takes in each way. Then the
job runs in each of them, with the same failures for all three, others for each run.

Two jobs run at a time, in the calibration as in the runs: each on a core and devices of its own.
"""

import argparse
import contextlib
import itertools
import os
import statistics
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from orcbench import facts, reporting, running, stats, svg
from orcbench.stats import Figure
from orcbench.waste_jobs import Job, SlowDisks
from orcbench.waste_levels_model import (
    FEW,
    WAYS,
    Calibration,
    DrawnLevels,
    LevelsStand,
    replay,
    restarts,
    segments,
)
from testbed.cluster.held import HeldError

# The last two: one-sided, how likely chance alone makes the pattern look as much better.
GOALS = {
    "predicted_gain": (">=", 0.1),
    "off_predicted": ("<=", 0.15),
    "pattern_over_all_levels": ("<=", 1.0),
    "pattern_over_one_level": ("<=", 1.0),
    "p_all_levels": ("<=", 0.05),
    "p_one_level": ("<=", 0.05),
}
# Other failures than those of the runs, from which the mean of the replays is taken.
OTHERS = 20000
PARTS = ("work_s", "checkpoints_s", "lost_s", "restarts_s")
PART_NAMES = ("computing", "checkpoints", "done again", "restarts")


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs", type=int, default=None, help="jobs in each way (default 30, --full 90)"
    )
    parser.add_argument(
        "--mtbf",
        type=float,
        default=2.5,
        help="mean time between failures of processes, seconds (default %(default)s)",
    )
    parser.add_argument(
        "--node-mtbf",
        type=float,
        default=40.0,
        help="mean time between failures of nodes, seconds (default %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help="what the failures are drawn from (default %(default)s)",
    )
    parser.add_argument(
        "--cells",
        type=int,
        default=40,
        help="edge of the box (default %(default)s: 12 MB a checkpoint)",
    )
    parser.add_argument(
        "--rate", type=float, default=18, help="MB/s of level global (default %(default)s)"
    )
    parser.add_argument(
        "--node-rate",
        type=float,
        default=120,
        help="MB/s of the disk of the node (default %(default)s)",
    )


# ---- the runs ------------------------------------------------------------------------------------
def parts(job: Job) -> dict[str, float]:
    """What the time from the first step to the last checkpoint went into."""
    ready, done = job.first("ready"), job.first("done")
    assert ready is not None and done is not None, "the job was not run to its end"
    # (step at the end, computing, checkpoint): it counts unless a later start is behind it.
    counts: list[tuple[int, float, float]] = []
    for number, said in enumerate(job.starts):
        if not said:
            continue
        counts = [one for one in counts if one[0] <= said[0].step]
        ends = job.kills[number] if number < len(job.kills) else done
        for before, computed in itertools.pairwise(said):
            if computed.word == "computed":
                after = next((s.at for s in said if s.word == "safe" and s.at >= computed.at), ends)
                counts.append((computed.step, computed.at - before.at, after - computed.at))
    work_s, checkpoints_s = (sum(one[part] for one in counts) for part in (1, 2))
    restarts_s = sum(s for s, _ in restarts(job))
    return {
        "total_s": done - ready,
        "work_s": work_s,
        "checkpoints_s": checkpoints_s,
        "restarts_s": restarts_s,
        "lost_s": done - ready - work_s - checkpoints_s - restarts_s,
        "kills": len(job.kills),
        "nodes_lost": len(job.wiped),
    }


def measure(
    args: argparse.Namespace, stand: LevelsStand, calibration: Calibration
) -> list[dict[str, Any]]:
    """One entry a run: suffix of the way -> what the job took; all ways of a run at the same
    place.
    """

    def take(run: int, place: int) -> dict[str, Any]:
        order = list(WAYS)
        found: dict[str, Any] = {"place": place}
        for suffix in order[run % 3 :] + order[: run % 3]:
            job = stand.job_of(place, calibration.ways[suffix], DrawnLevels(args, run))
            if job.state != calibration.states[suffix]:
                raise RuntimeError(
                    f"run {run}, {WAYS[suffix]}: the final state is {job.state}, without failures "
                    f"it was {calibration.states[suffix]}"
                )
            ready = job.first("ready")
            assert ready is not None
            found[suffix] = {
                **parts(job),
                "killed_at_s": [at - ready for at in job.kills],
                "nodes_lost_at_s": [at - ready for at in job.wiped],
                "segments": segments(job),
                "restarts": restarts(job),
                "state": job.state,
            }
        return found

    def neighbour(run: int, place: int, stop: threading.Event) -> None:
        stand.job_of(place, calibration.ways[""], DrawnLevels(args, run), stop)

    def told(run: dict[str, Any]) -> str:
        return "  ".join(
            f"{name} {run[suffix]['total_s']:.1f} s, {run[suffix]['kills']} kills"
            for suffix, name in WAYS.items()
        )

    return stand.take_turns(args.runs, take, neighbour, told)


# ---- results -------------------------------------------------------------------------------------
class Result:
    """Prediction and measurement side by side."""

    def __init__(
        self, args: argparse.Namespace, calibration: Calibration, runs: list[dict[str, Any]]
    ) -> None:
        self.calibration, self.runs = calibration, runs
        costs, self.ways = calibration.costs, calibration.ways
        self.work_s = self.ways[""].work_s(costs)
        # Jobs differ by a few steps, so that all segments are whole; times are of the same work.
        self.per = {suffix: self.work_s / way.work_s(costs) for suffix, way in self.ways.items()}
        self.predicted = {suffix: self.work_s / way.efficiency for suffix, way in self.ways.items()}
        self.totals = {
            suffix: [run[suffix]["total_s"] * self.per[suffix] for run in runs] for suffix in WAYS
        }
        self.replayed = {
            suffix: [self.replay(args, suffix, run) for run in range(len(runs))] for suffix in WAYS
        }
        self.of_others = {
            suffix: statistics.mean(
                self.replay(args, suffix, f"other {number}") for number in range(OTHERS)
            )
            for suffix in WAYS
        }

    def replay(self, args: argparse.Namespace, suffix: str, run: object) -> float:
        way, costs = self.ways[suffix], self.calibration.costs
        return replay(DrawnLevels(args, run), way, costs) * self.per[suffix]

    def saved(self, suffix: str) -> list[float]:
        """How much longer the job took than with the pattern, run by run."""
        return [other - best for other, best in zip(self.totals[suffix], self.totals[""])]

    def saved_without_luck(self, suffix: str) -> list[float]:
        """The same, less what the failures of the run alone make of it: by how much the model with
        these failures differs from its mean over others, as far as runs follow that (a control
        variate).
        """
        saved_s, mean_s = self.saved(suffix), self.of_others[suffix] - self.of_others[""]
        luck = [
            other - best - mean_s for other, best in zip(self.replayed[suffix], self.replayed[""])
        ]
        follows = 1.0
        if len(luck) >= FEW and statistics.variance(luck) > 0:
            follows = statistics.covariance(saved_s, luck) / statistics.variance(luck)
        follows = min(1.0, max(0.0, follows))
        return [saved - follows * by_luck for saved, by_luck in zip(saved_s, luck)]

    def predicted_saved(self, suffix: str) -> float:
        return self.predicted[suffix] - self.predicted[""]

    def figures(self) -> dict[str, Figure]:
        saved_s = self.predicted_saved("_all_levels")

        def off(values: Sequence[float]) -> float:
            return abs(statistics.mean(values) / saved_s - 1)

        def gain(values: Sequence[float]) -> float:
            return statistics.mean(values) / saved_s

        found: dict[str, Figure] = {
            "predicted_gain": {
                "value": saved_s / self.predicted["_all_levels"],
                "interval": None,
                "n": 1,
            },
            "off_predicted": stats.figure(self.saved_without_luck("_all_levels"), off),
            "gain_over_predicted": stats.figure(self.saved_without_luck("_all_levels"), gain),
            "gain_over_predicted_with_luck": stats.figure(self.saved("_all_levels"), gain),
        }
        for suffix in WAYS:
            if suffix:
                found["pattern_over" + suffix] = stats.figure(
                    list(zip(self.totals[""], self.totals[suffix])), stats.ratio_of_means
                )
                found["p" + suffix] = {
                    "value": stats.chance(self.saved(suffix)),
                    "interval": None,
                    "n": len(self.runs),
                }
        for suffix in WAYS:
            found["measured_over_predicted" + suffix] = stats.figure(
                [total / self.predicted[suffix] for total in self.totals[suffix]], statistics.mean
            )
            found["measured_over_replayed" + suffix] = stats.figure(
                list(zip(self.totals[suffix], self.replayed[suffix])), stats.ratio_of_means
            )
            found["replayed_over_predicted" + suffix] = {
                "value": self.of_others[suffix] / self.predicted[suffix],
                "interval": None,
                "n": OTHERS,
            }
        return found

    def rows(self) -> Iterator[dict[str, Any]]:
        """What the tables show, by way."""
        for suffix, name in WAYS.items():
            mine, way = [run[suffix] for run in self.runs], self.ways[suffix]
            yield {
                "way": name,
                "every": way.every,
                "ratio": way.ratio,
                "predicted_s": self.predicted[suffix],
                "total_s": stats.figure(self.totals[suffix], statistics.mean),
                "replayed_s": statistics.mean(self.replayed[suffix]),
                "kills": statistics.mean(one["kills"] for one in mine),
                "nodes_lost": statistics.mean(one["nodes_lost"] for one in mine),
                "parts": {part: statistics.mean(one[part] for one in mine) for part in PARTS},
            }

    def show(self) -> None:
        rows = list(self.rows())
        print(
            f"\nSeconds of a job of {self.ways[''].steps} steps, {self.work_s:.1f} s of computing; "
            f"means of {len(self.runs)} runs. Replayed: the model with the failures of the runs"
        )
        reporting.table(
            [
                "way",
                "steps",
                "global every",
                "predicted",
                "measured",
                "95 %",
                "replayed",
                "kills",
                "of them nodes",
                *PART_NAMES,
            ],
            [
                [
                    r["way"],
                    r["every"],
                    r["ratio"],
                    f"{r['predicted_s']:.1f}",
                    f"{r['total_s']['value']:.1f}",
                    between(r["total_s"]),
                    f"{r['replayed_s']:.1f}",
                    f"{r['kills']:.2f}",
                    f"{r['nodes_lost']:.2f}",
                    *(f"{r['parts'][part]:.2f}" for part in PARTS),
                ]
                for r in rows
            ],
        )
        print(
            "\nHow much longer a run takes than with the pattern and the same failures, seconds. "
            "Without luck: less by what the model makes of these failures beside the mean of others"
        )
        reporting.table(
            [
                "way",
                "predicted",
                "measured",
                "95 %",
                "without luck",
                "95 %",
                "runs in which it does",
                "p, one-sided",
            ],
            [
                [
                    WAYS[suffix],
                    f"{self.predicted_saved(suffix):.2f}",
                    f"{found['value']:.2f}",
                    between(found),
                    f"{without['value']:.2f}",
                    between(without),
                    f"{sum(d > 0 for d in self.saved(suffix))} of {found['n']}",
                    f"{stats.chance(self.saved(suffix)):.5f}",
                ]
                for suffix, (found, without) in self.saved_figures().items()
            ],
        )

    def saved_figures(self) -> dict[str, tuple[Figure, Figure]]:
        return {
            suffix: (
                stats.figure(self.saved(suffix), statistics.mean),
                stats.figure(self.saved_without_luck(suffix), statistics.mean),
            )
            for suffix in WAYS
            if suffix
        }

    def panels(self) -> list[svg.Panel]:
        rows = list(enumerate(self.rows()))
        time_panel = svg.Panel(
            "Time of a job that fails",
            "checkpoints",
            "seconds",
            x_names=[(number, row["way"]) for number, row in rows],
        )
        time_panel.line(
            "predicted", [(number, row["predicted_s"]) for number, row in rows], joined=False
        )
        time_panel.line(
            "measured, mean of runs and 95 %",
            [
                (number, row["total_s"]["value"], *(row["total_s"]["interval"] or ()))
                for number, row in rows
            ],
            joined=False,
        )
        time_panel.limit(self.work_s, "computing alone")
        runs_panel = svg.Panel(
            "Each run", "the model with the same failures, s", "measured, s", x_even=True
        )
        both = [value for suffix in WAYS for value in self.replayed[suffix]]
        runs_panel.line(
            "as the model", [(min(both), min(both)), (max(both), max(both))], dashed=True
        )
        for suffix, name in WAYS.items():
            points = list(zip(self.replayed[suffix], self.totals[suffix]))
            runs_panel.line(name, points, joined=False)
        return [time_panel, runs_panel]


def between(figure: Figure) -> str:
    return "{:.1f} to {:.1f}".format(*figure["interval"]) if figure["interval"] else ""


def main() -> None:
    args = running.arguments("waste-levels", __doc__, more)
    running.end_on_signals()
    args.runs = args.runs or (90 if args.full else 30)
    program = running.build(args.prefix, "waste")
    machine = facts.Machine(args.dir)
    rates = {}
    for place in range(min(2, len(os.sched_getaffinity(0)))):
        rates[f"node{place}"] = round(args.node_rate * 1e6)
        rates[f"global{place}"] = round(args.rate * 1e6)
    with contextlib.ExitStack() as held:
        try:
            if os.geteuid() != 0:
                raise HeldError("devices with a limit take root")
            slow = held.enter_context(SlowDisks(args.dir, rates))
        except (HeldError, OSError) as error:
            held.close()
            reporting.not_measured(args, "waste-levels", str(error), GOALS)
            return
        print("calibrating ...", file=sys.stderr, flush=True)
        stand = LevelsStand(args, program, slow)
        calibration = Calibration(args, stand)
        calibration.show()
        runs = measure(args, stand, calibration)
    result = Result(args, calibration, runs)
    result.show()
    footnote = reporting.finish(
        args,
        "waste-levels",
        machine,
        result.figures(),
        GOALS,
        {
            "store_bytes_per_s": slow.rates,
            "work_s": result.work_s,
            "calibration": calibration.facts(),
            "ways_measured": list(result.rows()),
            "longer_than_pattern_s": result.saved_figures(),
            "replayed_s": result.replayed,
            "replayed_others_s": result.of_others,
            "runs": runs,
        },
    )
    svg.save(os.path.join(args.results, "waste-levels.svg"), footnote, result.panels())


if __name__ == "__main__":
    main()
