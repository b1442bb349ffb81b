"""Jobs that are killed and started again, on slow disks of their own: what waste.py and
waste_levels.py run.

Not here: what the model says of them (waste_model.py, waste_levels_model.py), which of them are
compared (waste.py, waste_levels.py).
"""

import argparse
import concurrent.futures
import contextlib
import glob
import itertools
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self, TypeVar

from orcbench import running, throttling
from testbed.cluster import disks
from testbed.cluster.held import Held, checked, locked_directory, pipe

T = TypeVar("T")
DISK_BYTES = 512 * running.MIB


class Said(NamedTuple):
    """What a program says; see src/waste.c."""

    word: str
    at: float
    step: int
    note: str


# ---- slow disks ----------------------------------------------------------------------------------
class SlowDisks(Held):
    """Loop devices on files of a real disk, each with an ext4 and limits of its own for writes and
    for reads.

    Taking down is the work of the guard of cluster/disks.py, which waits for the end of this
    process.
    """

    def __init__(self, parent: str, bytes_per_s: Mapping[str, int]) -> None:
        """bytes_per_s: by the names of the disks."""
        disks.sweep(parent)
        self.names, self.bytes_per_s = list(bytes_per_s), bytes_per_s
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
                        self.path(name),
                        self.bytes_per_s[name],
                        reads=way == "reads",
                        # Two seconds of it.
                        check_mib=min(64, self.bytes_per_s[name] // 500_000),
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

    def takes_disk(self) -> bool:
        """Whether the next failure takes away what is on the disk of the node, too."""
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
    """A job that takes checkpoints, started again whenever it was killed."""

    def __init__(
        self,
        where: str,
        core: int,
        argv: Sequence[object],
        failures: Never,
        stop: threading.Event,
        disk: str | None = None,
    ) -> None:
        """where: its directory of level global; disk: that of its node, if it has one."""
        self.where, self.core, self.failures, self.stop = where, core, failures, stop
        self.disk = disk
        self.argv = ["taskset", "-c", str(core), *map(str, argv), "--dir", where]
        if disk is not None:
            self.argv += ["--node-dir", disk]
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
        # Those of them that took the disk of the node along.
        self.wiped: list[float] = []
        self.state: str | None = None

    def start(self) -> None:
        # Nothing of a checkpoint is in the page cache: so a job finds it that is started on another
        # node.
        for path in itertools.chain(
            *(
                glob.glob(f"{root}/**/*.orc", recursive=True)
                for root in (self.where, self.disk)
                if root is not None
            )
        ):
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
            word, at, step, note = line.decode().split()
            self.starts[-1].append(Said(word, float(at), int(step), note))
            if word == "end":
                self.state = note
        return bool(said)

    def first(self, word: str, starts: list[list[Said]] | None = None) -> float | None:
        """When it first said so; None if it did not."""
        return next(
            (one.at for said in starts or self.starts for one in said if one.word == word), None
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
                if self.disk is not None and self.failures.takes_disk():
                    shutil.rmtree(self.disk)
                    os.mkdir(self.disk)
                    self.wiped.append(now)
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
        """(computing, checkpoint) in seconds, of every segment whose checkpoint became safe."""
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

    def argv(self, steps: int, every: int) -> list[object]:
        """The program, for a job of this many steps."""
        cells = self.args.cells
        return [self.program, "--cells", cells, "--steps", steps, "--every", every]

    def job(
        self,
        place: int,
        steps: int,
        every: int,
        failures: Never,
        stop: threading.Event | None = None,
    ) -> Job:
        """A job with a checkpoint after every `every` steps."""
        core, disk = self.places[place]
        with running.scratch(disk) as where:
            return Job(where, core, self.argv(steps, every), failures, stop or self.stop).run()

    def take_turns(
        self,
        runs: int,
        take: Callable[[int, int], T],
        neighbour: Callable[[int, int, threading.Event], object],
        told: Callable[[T], str],
    ) -> list[T]:
        """take(run, place) for all runs, each at the place that is free; neighbour(run, place,
        stop): a job beside the last one.
        """
        todo, lock, all_done = iter(range(runs)), threading.Lock(), threading.Event()
        found: dict[int, T] = {}
        at_work = len(self.places)

        def work(place: int) -> None:
            nonlocal at_work
            try:
                while True:
                    with lock:
                        run = next(todo, None)
                    if run is None:
                        break
                    found[run] = take(run, place)
                    print(
                        f"run {run + 1} of {runs}: {told(found[run])}", file=sys.stderr, flush=True
                    )
                with lock:
                    at_work -= 1
                if at_work == 0:
                    all_done.set()
                # Until the last one is done it should have the neighbour that it had before.
                for more_runs in itertools.count(runs):
                    neighbour(more_runs, place, all_done)
            except Stopped:
                if self.stop.is_set():
                    raise
            finally:
                all_done.set()

        self.everywhere(work)
        return [found[run] for run in range(runs)]

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
