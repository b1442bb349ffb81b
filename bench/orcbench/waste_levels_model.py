"""What `orcheck plan` says of a job of two levels, and the measurements that it is told; see
waste_levels.py.
"""

import argparse
import functools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from orcbench import reporting, running, stats
from orcbench.waste_jobs import Job, Never, Placed, SlowDisks, Stand

# Suffix of the keys -> the name of a way.
WAYS = {
    "": "each level at its own pace",
    "_all_levels": "all levels every time",
    "_one_level": "level global alone",
}
FEW = 10  # below this many runs it is a look, and less is measured before
ROUGHLY = 240  # steps between two checkpoints when nothing is known yet
PERIODS_S = 10.0  # the job is as many whole patterns as come nearest to this much computing, or one
FAR = 0.05  # an interval that is further off than this is calibrated once more


class Costs(NamedTuple):
    """Seconds: of a step, and of checkpoints and restarts."""

    step: float
    # A checkpoint that goes to the node alone, to both levels, and to `global` where there is no
    # level below.
    node: float
    both: float
    alone: float
    # A restart from the node, from `global`, and from `global` where there is no level below.
    from_node: float
    from_global: float
    from_alone: float


class Way(NamedTuple):
    """How a job takes checkpoints, and what the program predicts for it."""

    options: str
    # Steps between two checkpoints, how many of them until one is of the strongest level, and steps
    # of the job.
    every: int
    ratio: int
    steps: int
    has_node: bool
    efficiency: float

    def work_s(self, costs: Costs) -> float:
        return self.steps * costs.step

    def expected_s(self, costs: Costs) -> float:
        return self.work_s(costs) / self.efficiency


def plan(args: argparse.Namespace, *options: str) -> dict[str, Any]:
    command = [os.path.join(args.prefix, "bin", "orcheck"), "plan", "interval", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def seconds(value: float) -> str:
    return f"{value:.9f}s"


def ways(args: argparse.Namespace, costs: Costs) -> dict[str, Way]:
    """What the program recommends for these costs, for each way, in whole steps."""
    both = plan(
        args,
        "--level",
        f"node:cost={seconds(costs.node)},mtbf={seconds(args.mtbf)},"
        f"restart={seconds(costs.from_node)}",
        "--level",
        f"global:cost={seconds(costs.both)},mtbf={seconds(args.node_mtbf)},"
        f"restart={seconds(costs.from_global)}",
        "--step",
        seconds(costs.step),
    )
    # All failures need the only level.
    one = plan(
        args,
        "--checkpoint",
        seconds(costs.alone),
        "--restart",
        seconds(costs.from_alone),
        "--mtbf",
        seconds(1 / (1 / args.mtbf + 1 / args.node_mtbf)),
    )
    together = next(o for o in both["others"] if o["way"] == "every checkpoint to all levels")
    paces = tomllib.loads(both["options"])["level"]
    every, apart = paces["node"]["every_steps"], paces["global"]["every_steps"]
    steps = apart * max(1, round(PERIODS_S / (apart * costs.step)))

    def alike(interval_s: float, has_node: bool, efficiency: float) -> Way:
        """All checkpoints alike, and as many as fit best into the same job."""
        count = max(1, round(steps * costs.step / interval_s))
        every = round(steps / count)
        return Way(f"every_steps = {every}\n", every, 1, every * count, has_node, efficiency)

    return {
        "": Way(both["options"], every, apart // every, steps, True, both["efficiency"]),
        "_all_levels": alike(together["interval_s"], True, together["efficiency"]),
        "_one_level": alike(one["interval_s"], False, one["efficiency"]),
    }


class DrawnLevels(Never):
    """Failures of processes and of nodes, each by an exponential distribution: of one run, the same
    whenever they are asked for.
    """

    def __init__(self, args: argparse.Namespace, run: object) -> None:
        def times() -> Iterator[tuple[float, bool]]:
            source, at = random.Random(f"{args.seed} {run}"), 0.0
            rate = 1 / args.mtbf + 1 / args.node_mtbf
            while True:
                at += source.expovariate(rate)
                yield at, source.random() < 1 / args.node_mtbf / rate

        self.times = times()
        self.at, self.of_node = next(self.times)

    def due(self, begun: float | None, ready: float | None) -> float | None:
        return None if begun is None else begun + self.at

    def struck(self, begun: float | None, now: float) -> None:
        assert begun is not None
        while begun + self.at <= now:  # what came while it was being taken away struck nothing more
            self.at, self.of_node = next(self.times)

    def takes_disk(self) -> bool:
        return self.of_node


class PlacedLevels(Placed):
    """The same as Placed, of processes or of nodes."""

    def __init__(self, delays: Sequence[float], of_node: bool) -> None:
        super().__init__(delays)
        self.of_node = of_node

    def takes_disk(self) -> bool:
        return self.of_node


class LevelsStand(Stand):
    """Places with a core, a disk of the node, and one of the file system."""

    def __init__(self, args: argparse.Namespace, program: str, slow: SlowDisks) -> None:
        super().__init__(args, program, slow)
        disks = list(map(slow.path, slow.names))
        cores = sorted(os.sched_getaffinity(0))
        self.places = list(zip(cores, disks[1::2]))
        self.nodes = disks[::2]

    def job_of(
        self,
        place: int,
        way: Way,
        failures: Never,
        stop: threading.Event | None = None,
        steps: int | None = None,
    ) -> Job:
        core, disk = self.places[place]
        with running.scratch(disk) as where, running.scratch(self.nodes[place]) as node:
            own = os.path.join(node, "local")
            os.mkdir(own)
            argv = [
                *self.argv(steps or way.steps, 0),
                "--first",
                way.every * way.ratio,
                "--options",
                way.options,
            ]
            return Job(
                where, core, argv, failures, stop or self.stop, own if way.has_node else None
            ).run()


def replay(failures: Never, way: Way, costs: Costs) -> float:
    """Seconds that a job takes by the model when failures come at these times: no mean."""
    now, goal = 0.0, way.steps // way.every
    # Checkpoints at the node, and at `global`.
    near = far = 0
    # Nothing newer is at the node: it was emptied.
    emptied = False
    compute_s = way.every * costs.step

    def strike() -> tuple[float, bool]:
        at = failures.due(0.0, None)
        return (math.inf, False) if at is None else (at, failures.takes_disk())

    while far < goal:
        # What is struck on its way to `global` goes there with the next one, at the end at once.
        deep = (near + 1) % way.ratio == 0 or far < near - near % way.ratio
        cost_s = (costs.both if deep else costs.node) if way.has_node else costs.alone
        begins, reaches = now + (compute_s if near < goal else 0.0), min(near + 1, goal)
        at, of_node = strike()
        if at >= begins + cost_s:
            now, near, emptied = begins + cost_s, reaches, False
            far = near if deep else far
            continue
        if way.has_node and deep and at >= begins + costs.node:
            near, emptied = reaches, False
        from_global = of_node or emptied
        while True:
            now = at
            failures.struck(0.0, now)
            from_global |= of_node
            if not way.has_node:
                restart_s = costs.from_alone
            else:
                restart_s = costs.from_global if from_global else costs.from_node
            at, of_node = strike()
            if at >= now + restart_s:
                now += restart_s
                break
        near, emptied = (far, True) if from_global or not way.has_node else (near, False)
    return now


# ---- what is measured ----------------------------------------------------------------------------
class Segment(NamedTuple):
    """Computing and the checkpoint after it."""

    steps: int
    computing_s: float
    checkpoint_s: float
    depth: int


def segments(job: Job) -> list[Segment]:
    """All whose checkpoint became safe where it went."""
    return [
        Segment(
            computed.step - before.step,
            computed.at - before.at,
            safe.at - computed.at,
            int(safe.note, 16),
        )
        for said in job.starts
        for before, computed, safe in zip(said, said[1:], said[2:])
        if safe.word == "safe"
    ]


def restarts(job: Job) -> list[tuple[float, str]]:
    """(seconds, what was lost) from each kill until it computed again; kills on the way are part of
    that.
    """
    found: list[tuple[float, str]] = []
    since, lost = None, "process"
    for killed, said in zip(job.kills, job.starts[1:]):
        since = killed if since is None else since
        lost = "node" if killed in job.wiped else lost
        if said:
            found.append((said[0].at - since, lost))
            since, lost = None, "process"
    return found


class Calibration:
    """What steps, checkpoints and restarts take, of jobs of its own; and the ways that follow."""

    def __init__(self, args: argparse.Namespace, stand: LevelsStand) -> None:
        self.args, self.stand = args, stand
        few = args.runs < FEW
        self.kills = 3 if few else 8
        self.segments: dict[str, list[Segment]] = {}
        self.restarts: dict[str, list[tuple[float, str]]] = {}
        paces = (
            f"[level.node]\nevery_steps = {ROUGHLY}\n[level.global]\nevery_steps = {2 * ROUGHLY}\n"
        )
        alike = f"every_steps = {ROUGHLY}\n"
        known = {
            "": Way(paces, ROUGHLY, 2, 4 * ROUGHLY, True, 1.0),
            "_all_levels": Way(alike, ROUGHLY, 1, 2 * ROUGHLY, True, 1.0),
            "_one_level": Way(alike, ROUGHLY, 1, 2 * ROUGHLY, False, 1.0),
        }
        self.take(known)
        for _ in range(1 if few else 3):
            before, known = known, ways(args, self.costs)
            if all(abs(known[s].every / before[s].every - 1) < FAR for s in WAYS):
                break
            self.take(known)
        self.strike(known)
        self.ways = ways(args, self.costs)
        self.states = self.reference()

    def jobs(self, known: dict[str, Way], suffix: str) -> list[Job]:
        """Without failures, at all places at the same time."""
        return self.stand.everywhere(lambda place: self.stand.job_of(place, known[suffix], Never()))

    def take(self, known: dict[str, Way]) -> None:
        """Measures steps and checkpoints of jobs without failures."""
        self.segments = {
            suffix: [one for job in self.jobs(known, suffix) for one in segments(job)]
            for suffix in WAYS
        }
        self.work_out()

    def strike(self, known: dict[str, Way]) -> None:
        """Measures restarts, with kills spread evenly over a pattern, as failures are; steps and
        checkpoints of programs that were just started count, too.
        """
        places = len(self.stand.places)
        for suffix, of_node in (("", False), ("", True), ("_one_level", False)):
            way = known[suffix]
            length_s = way.every * way.ratio * self.costs.step + (
                (way.ratio - 1) * self.costs.node + self.costs.both
                if way.has_node
                else self.costs.alone
            )

            def one(place: int, way: Way, length_s: float, of_node: bool) -> Job:
                delays = [
                    length_s * (i * places + place + 0.5) / (self.kills * places)
                    for i in range(self.kills)
                ]
                # It is over when the last of them has struck.
                steps = way.every * way.ratio * (self.kills + 1)
                failures = PlacedLevels(delays, of_node)
                return self.stand.job_of(place, way, failures, steps=steps)

            told = functools.partial(one, way=way, length_s=length_s, of_node=of_node)
            jobs = self.stand.everywhere(told)
            found = [restart for job in jobs for restart in restarts(job)]
            self.restarts["_node" if of_node else suffix] = found
            self.segments[suffix] += [one for job in jobs for one in segments(job)]
        self.work_out()

    def checkpoints_s(self, depth: int, *suffixes: str) -> list[float]:
        return [
            one.checkpoint_s
            for suffix in suffixes
            for one in self.segments[suffix]
            if one.depth == depth
        ]

    def work_out(self) -> None:
        """Means, because the expected time is one, too."""
        found = [one for ones in self.segments.values() for one in ones]

        def restart_s(suffix: str) -> float:
            found = self.restarts.get(suffix)
            return statistics.mean(s for s, _ in found) if found else 0.0

        self.costs = Costs(
            step=sum(one.computing_s for one in found) / sum(one.steps for one in found),
            node=statistics.mean(self.checkpoints_s(1, "")),
            both=statistics.mean(self.checkpoints_s(2, "", "_all_levels")),
            alone=statistics.mean(self.checkpoints_s(2, "_one_level")),
            from_node=restart_s(""),
            from_global=restart_s("_node"),
            from_alone=restart_s("_one_level"),
        )
        if self.costs.both >= self.args.mtbf:
            sys.exit(
                f"a checkpoint takes {self.costs.both:.2f} s. Next: --mtbf above that, or a higher "
                "--rate"
            )

    def reference(self) -> dict[str, str | None]:
        """The state that a job ends in without failures, for each way."""
        suffixes = list(WAYS)

        def some(place: int) -> dict[str, str | None]:
            mine = suffixes[place :: len(self.stand.places)]
            return {
                suffix: self.stand.job_of(place, self.ways[suffix], Never()).state
                for suffix in mine
            }

        return {
            suffix: state for part in self.stand.everywhere(some) for suffix, state in part.items()
        }

    # ---- what is told of it ----
    def samples(self) -> Iterator[tuple[str, list[float], float]]:
        """(name, values, their mean)."""
        costs = self.costs
        steps = [one.computing_s / one.steps for found in self.segments.values() for one in found]
        yield "a step", steps, costs.step
        yield "a checkpoint to the node", self.checkpoints_s(1, ""), costs.node
        both = self.checkpoints_s(2, "", "_all_levels")
        yield "a checkpoint to both levels", both, costs.both
        yield "a checkpoint to global alone", self.checkpoints_s(2, "_one_level"), costs.alone
        for name, suffix, value in (
            ("a restart from the node", "", costs.from_node),
            ("a restart from global", "_node", costs.from_global),
            ("a restart from global alone", "_one_level", costs.from_alone),
        ):
            yield name, [s for s, _ in self.restarts[suffix]], value

    def facts(self) -> dict[str, Any]:
        return {
            "costs_s": self.costs._asdict(),
            "ways": {suffix: way._asdict() for suffix, way in self.ways.items()},
            "spread_s": {name: stats.spread(values) for name, values, _ in self.samples()},
            "segments": self.segments,
            "restarts": self.restarts,
        }

    def show(self) -> None:
        rows = []
        for name, values, value in self.samples():
            found = stats.spread(values)
            rows.append(
                [
                    name,
                    f"{1e3 * value:.3f}" if value < 0.02 else f"{1e3 * value:.0f}",
                    *(f"{found[key] / value:.3f}" for key in ("min", "q1", "q3", "max")),
                    found["n"],
                ]
            )
        print("\nMeasured before the runs")
        reporting.table(["", "mean, ms", "least ÷ it", "q1", "q3", "most", "n"], rows)
        print("\nOptions that follow")
        for suffix, way in self.ways.items():
            text = "  ".join(line.strip() for line in way.options.splitlines())
            print(f"  {WAYS[suffix]}: {text}")
