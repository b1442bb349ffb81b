"""What a job loses to failures and checkpoints, beside what `orcheck plan interval` said before it
began.

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
import concurrent.futures
import contextlib
import functools
import glob
import itertools
import json
import math
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar

from orcbench import facts, reporting, running, stats, svg, throttling
from orcbench.stats import Figure
from testbed.cluster import disks
from testbed.cluster.held import Held, HeldError, checked, locked_directory, pipe

T = TypeVar("T")
# What a program says: a word, when, and the step.
Said = tuple[str, float, int]

# Suffix of the keys -> times the recommended interval, and its name.
INTERVALS = {
    "_third": (1 / 3, "a third"),
    "": (1, "recommended"),
    "_three_times": (3, "three times"),
}
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
DISK_BYTES = 512 * running.MIB
FEW = 10  # below this many runs it is a look, and all parts are shorter
FLIPS = 20000
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
        help="recommended intervals in a job, a multiple of 3 (default 12; 6 with fewer than 10 runs)",
    )


# ---- slow disks ----------------------------------------------------------------------------------
class SlowDisks(Held):
    """Loop devices on files of a real disk, each with an ext4 and limits of its own for writes and
    for reads.

    Taking down is the work of the guard of cluster/disks.py, which waits for the end of this
    process.
    """

    def __init__(self, parent: str, names: Sequence[str], bytes_per_s: int) -> None:
        disks.sweep(parent)
        self.names, self.bytes_per_s = names, bytes_per_s
        self.rates: dict[str, dict[str, float]] = {}
        self.guard: subprocess.Popen[bytes] | None = None
        self.limits = contextlib.ExitStack()
        self.work, self.lock = locked_directory(parent, disks.PREFIX)

    def bring_up(self) -> None:
        self.guard = disks.guard(self.work, self.lock)
        for name in self.names:
            # Every block is written before: a block of a reserved one costs the disk's own journal
            # something the first time.
            file, at = os.path.join(self.work, "raw", name), self.path(name)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            os.makedirs(at)
            checked(
                [
                    "dd",
                    "if=/dev/zero",
                    f"of={file}",
                    "bs=4M",
                    f"count={DISK_BYTES // (4 * running.MIB)}",
                    "conv=fsync",
                ]
            )
            loop = checked(["losetup", "--direct-io=on", "--find", "--show", file]).strip()
            checked(
                [
                    "mkfs.ext4",
                    "-q",
                    "-F",
                    "-m",
                    "0",
                    "-E",
                    "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
                    loop,
                ]
            )
            checked(["mount", "-t", "ext4", "-o", "nodiscard", loop, at])
            os.rmdir(os.path.join(at, "lost+found"))
            checked(["sync", "-f", at])
        for name in self.names:
            self.rates[name] = {
                way: self.limits.enter_context(
                    throttling.Limit(
                        self.path(name), self.bytes_per_s, reads=way == "reads", check_mib=64
                    )
                )
                for way in ("writes", "reads")
            }

    def path(self, name: str) -> str:
        return os.path.join(self.work, "fs", name)

    def close(self) -> None:
        self.limits.close()
        if self.guard is not None:
            pipe(self.guard.stdin).close()
            self.guard.wait()
            self.guard = None
        self.lock.close()


# ---- failures ------------------------------------------------------------------------------------
class Never:
    """When a job is killed: never. All times are of CLOCK_MONOTONIC, in seconds."""

    def due(self, begun: float | None, ready: float | None) -> float | None:
        """When next; None: not now. begun: when the job began to compute, the first time; ready:
        when it began to compute since it was started last. Either is None before."""

    def struck(self, begun: float | None, now: float) -> None:
        """It was killed, and what was killed is gone now."""

    def over(self, ready: float | None) -> bool:
        """Whether no more is wanted of the job."""
        return False


class Drawn(Never):
    """Times that follow each other by an exponential distribution: of one run, the same whenever
    they are asked for.
    """

    def __init__(self, args: argparse.Namespace, run: int) -> None:
        def times() -> Iterator[float]:
            source, at = random.Random(f"{args.seed} {run}"), 0.0
            while True:
                at += source.expovariate(1 / args.mtbf)
                yield at

        self.times = times()
        self.at = next(self.times)

    def due(self, begun: float | None, ready: float | None) -> float | None:
        return None if begun is None else begun + self.at

    def struck(self, begun: float | None, now: float) -> None:
        assert begun is not None
        while begun + self.at <= now:  # what came while it was being taken away struck nothing more
            self.at = next(self.times)


class Placed(Never):
    """This many seconds after it began to compute, each time."""

    def __init__(self, delays: Iterable[float]) -> None:
        self.delays = list(delays)

    def due(self, begun: float | None, ready: float | None) -> float | None:
        return ready + self.delays[0] if ready is not None and self.delays else None

    def struck(self, begun: float | None, now: float) -> None:
        self.delays.pop(0)

    def over(self, ready: float | None) -> bool:
        return not self.delays and ready is not None


# ---- one job, until it is done -------------------------------------------------------------------
class Stopped(Exception):
    """The job was not needed any more."""


class Job:
    """A job of `steps` steps with a checkpoint after every `every`, started again whenever it was
    killed.
    """

    def __init__(
        self,
        where: str,
        core: int,
        program: str,
        args: argparse.Namespace,
        steps: int,
        every: int,
        failures: Never,
        stop: threading.Event,
    ) -> None:
        self.where, self.core, self.failures, self.stop = where, core, failures, stop
        self.argv = [
            "taskset",
            "-c",
            str(core),
            program,
            "--cells",
            str(args.cells),
            "--steps",
            str(steps),
            "--every",
            str(every),
            "--dir",
            where,
        ]
        # Alone: no daemon beside it, and no files in /dev/shm that a killed process would leave
        # there.
        self.env = dict(
            running.environment(),
            OMP_NUM_THREADS="1",
            OMPI_MCA_btl="self",
            OMPI_MCA_ess_singleton_isolated="1",
            TMPDIR=where,
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.pipe, self.unread = -1, b""
        # A start: what it said.
        self.starts: list[list[Said]] = []
        self.kills: list[float] = []
        self.state: str | None = None

    def start(self) -> None:
        # Nothing of a checkpoint is in the page cache: so a job finds it that is started on another
        # node.
        for path in glob.glob(f"{self.where}/**/*.orc", recursive=True):
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.pipe, other = os.pipe()
        try:
            self.process = subprocess.Popen(
                [*self.argv, "--report", f"/dev/fd/{other}"],
                env=self.env,
                pass_fds=[other],
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                start_new_session=True,
            )
        finally:
            os.close(other)
        self.starts.append([])
        self.unread = b""

    def end(self) -> None:
        """Kills what runs, and returns when it is gone; what it had said counts."""
        if self.process is not None:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            while self.hear():
                pass
            os.close(self.pipe)
            self.process = None

    def hear(self) -> bool:
        """Takes what the program says; False at the end of it."""
        said = os.read(self.pipe, 65536)
        *lines, self.unread = (self.unread + said).split(b"\n")
        for line in lines:
            word, at, step, state = line.decode().split()
            self.starts[-1].append((word, float(at), int(step)))
            if word == "end":
                self.state = state
        return bool(said)

    def first(self, word: str, starts: list[list[Said]] | None = None) -> float | None:
        """When it first said so; None if it did not."""
        return next(
            (at for said in starts or self.starts for what, at, _ in said if what == word), None
        )

    def run(self) -> Self:
        with tempfile.TemporaryFile() as self.log:
            try:
                self.start()
                while self.follow():
                    pass
            finally:
                self.end()
        return self

    def follow(self) -> bool:
        """Waits for what comes next; False when the job is over."""
        if self.stop.is_set():
            raise Stopped
        begun, ready, done = (
            self.first("ready"),
            self.first("ready", self.starts[-1:]),
            self.first("done"),
        )
        if self.failures.over(ready):
            return False
        at, now = None if done else self.failures.due(begun, ready), time.monotonic()
        if at is not None and at <= now:
            self.end()
            # Otherwise it was just in time, and is started for what it says after that.
            if not self.first("done"):
                self.kills.append(now)
                self.failures.struck(begun, time.monotonic())
            self.start()
            return True
        wait = 0.5 if at is None else min(0.5, at - now)
        if not select.select([self.pipe], [], [], wait)[0] or self.hear():
            return True
        assert self.process is not None
        if self.process.wait() != 0 or not done or self.state is None:
            self.log.seek(0)
            raise RuntimeError(
                f"{' '.join(self.argv)}\nended with {self.process.returncode}:\n"
                f"{self.log.read()[-4000:].decode(errors='replace')}"
            )
        return False

    # ---- what it took ----
    def segments(self) -> list[tuple[float, float]]:
        """(computing, checkpoint) in seconds, of every segment whose checkpoint it saw to be safe."""
        return [
            (computed[1] - before[1], safe[1] - computed[1])
            for said in self.starts
            for before, computed, safe in zip(said, said[1:], said[2:])
            if safe[0] == "safe"
        ]

    def restarts(self) -> list[tuple[float, str]]:
        """(seconds, what it was killed in) from each kill until it computed again; kills on the way
        are part of that.
        """
        found, since = [], None
        for killed, before, said in zip(self.kills, self.starts, self.starts[1:]):
            if since is None:
                since, doing = killed, "checkpoint" if before[-1][0] == "computed" else "computing"
            if said:
                found.append((said[0][1] - since, doing))
                since = None
        return found

    def parts(self) -> dict[str, float]:
        """What the time from the first step to the last checkpoint went into."""
        ready, done = self.first("ready"), self.first("done")
        assert ready is not None and done is not None, "the job was not run to its end"
        total_s = done - ready
        work_s, checkpoints_s = (sum(column) for column in zip(*self.segments()))
        restarts_s = sum(s for s, _ in self.restarts())
        return {
            "total_s": total_s,
            "work_s": work_s,
            "checkpoints_s": checkpoints_s,
            "restarts_s": restarts_s,
            "lost_s": total_s - work_s - checkpoints_s - restarts_s,
            "kills": len(self.kills),
        }


class Stand:
    """Where jobs run: places with a core and a slow disk each, all in use at the same time."""

    def __init__(self, args: argparse.Namespace, program: str, slow: SlowDisks) -> None:
        self.args, self.program, self.stop = args, program, threading.Event()
        self.places = list(zip(sorted(os.sched_getaffinity(0)), map(slow.path, slow.names)))

    def job(
        self,
        place: int,
        steps: int,
        every: int,
        failures: Never,
        stop: threading.Event | None = None,
    ) -> Job:
        core, disk = self.places[place]
        with running.scratch(disk) as where:
            return Job(
                where, core, self.program, self.args, steps, every, failures, stop or self.stop
            ).run()

    def everywhere(self, task: Callable[[int], T]) -> list[T]:
        """task(place) at all places at the same time."""
        with concurrent.futures.ThreadPoolExecutor(len(self.places)) as pool:
            waiting = [pool.submit(task, place) for place in range(len(self.places))]
            try:
                for one in concurrent.futures.as_completed(waiting):
                    one.result()
            except BaseException:
                self.stop.set()
                raise
        return [one.result() for one in waiting]


# ---- what the model says -------------------------------------------------------------------------
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
            "restart_after_s": {doing: stats.spread(values) for doing, values in by.items()},
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


# ---- the runs ------------------------------------------------------------------------------------
def measure(
    args: argparse.Namespace, stand: Stand, calibration: Calibration
) -> list[dict[str, Any]]:
    """One entry a run: suffix of the interval -> what the job took; all intervals of a run at the
    same place.
    """
    todo, lock, all_done = iter(range(args.runs)), threading.Lock(), threading.Event()
    runs: list[dict[str, Any]] = [{}] * args.runs
    at_work = len(stand.places)

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

    def work(place: int) -> None:
        nonlocal at_work
        try:
            while True:
                with lock:
                    run = next(todo, None)
                if run is None:
                    break
                runs[run] = take(run, place)
                told = "  ".join(
                    f"{name} {runs[run][suffix]['total_s']:.1f} s, {runs[run][suffix]['kills']} "
                    "kills"
                    for suffix, (_, name) in INTERVALS.items()
                )
                print(f"run {run + 1} of {args.runs}: {told}", file=sys.stderr, flush=True)
            with lock:
                at_work -= 1
            if at_work == 0:
                all_done.set()
            # Until the last one is done it should have the neighbour that it had before.
            for more_runs in itertools.count(args.runs):
                stand.job(
                    place, calibration.steps, calibration.every, Drawn(args, more_runs), all_done
                )
        except Stopped:
            if stand.stop.is_set():
                raise
        finally:
            all_done.set()

    stand.everywhere(work)
    return runs


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


def ratio_of_means(rows: Sequence[tuple[float, float]]) -> float:
    return statistics.mean(row[0] for row in rows) / statistics.mean(row[1] for row in rows)


def chance(differences: Sequence[float]) -> float:
    """One-sided p-value of paired differences: how often their sum is as large when each has its
    sign by chance.
    """
    source, total = random.Random(1), sum(differences)
    as_large = sum(
        sum(d if source.getrandbits(1) else -d for d in differences) >= total - 1e-12
        for _ in range(FLIPS)
    )
    return (1 + as_large) / (1 + FLIPS)


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
                list(zip(self.totals[suffix], self.replayed[suffix])), ratio_of_means
            )
        for suffix in INTERVALS:
            if suffix:
                found["recommended_over" + suffix] = stats.figure(
                    list(zip(self.totals[""], self.totals[suffix])), ratio_of_means
                )
                found["p" + suffix] = {
                    "value": chance(self.saved(suffix)),
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
                    f"{self.predicted.rules[suffix]['expected_s'] - self.predicted.rules['']['expected_s']:.2f}",
                    f"{found['value']:.2f}",
                    "{:.2f} to {:.2f}".format(*found["interval"]) if found["interval"] else "",
                    f"{sum(d > 0 for d in self.saved(suffix))} of {found['n']}",
                    f"{chance(self.saved(suffix)):.5f}",
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
            slow = held.enter_context(SlowDisks(args.dir, names, round(args.rate * 1e6)))
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
