"""How fast a disk takes what fio and what programs with checkpoints write to it.

What benchmarks that look at one disk share: the ways of fio, a program that takes one checkpoint
when told to (src/flush.c), rounds in which all take turns, and the table of them.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from orcbench import reporting, running, stats
from orcbench.stats import Figure, Sample, Samples
from testbed.cluster.held import pipe

GIB = 1 << 30
# What fio does: engine, jobs, requests in flight, MiB a request, more options. The last two pin
# their memory once and write as long requests as the library does.
FIO = {
    "fio psync x 1": ("psync", 1, 1, 4, []),
    "fio psync x 8": ("psync", 8, 1, 4, []),
    "fio io_uring qd 8": ("io_uring", 1, 8, 4, []),
    "fio io_uring qd 8, pinned": ("io_uring", 1, 8, 4, ["--fixedbufs=1"]),
    "fio io_uring 16 MiB, pinned": ("io_uring", 1, 1, 16, ["--fixedbufs=1"]),
}


class Writer:
    """The program, waiting between checkpoints; its directory is its own, or another place."""

    def __init__(
        self,
        args: argparse.Namespace,
        program: str,
        ranks: int,
        size: int,
        fill: str = "noise",
        options: str = "",
        place: str | None = None,
    ) -> None:
        self.scratch = running.scratch(args.dir)
        where = self.scratch.__enter__()
        self.fifo = os.path.join(where, "report")
        os.mkfifo(self.fifo)
        argv = [
            "--size",
            size,
            "--dir",
            place or where,
            "--fill",
            fill,
            "--options",
            f"{args.options}\n{options}",
            "--report",
            self.fifo,
        ]
        command = [os.environ.get("MPIRUN", "mpirun"), "-n", str(ranks), program, *map(str, argv)]
        self.said = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command,
            env=dict(running.environment(), OMP_NUM_THREADS="1"),
            text=True,
            stdin=subprocess.PIPE,
            stdout=self.said,
            stderr=subprocess.STDOUT,
        )
        # Both ways at once: opening blocks until the program opens its end, which a program that
        # failed never does.
        self.report = os.fdopen(os.open(self.fifo, os.O_RDWR), "r")

    def ended(self) -> RuntimeError:
        self.said.seek(0)
        return RuntimeError(
            "the program ended: " + self.said.read()[-4000:].decode(errors="replace")
        )

    def go(self) -> Sample:
        try:
            pipe(self.process.stdin).write("go\n")
            pipe(self.process.stdin).flush()
        except BrokenPipeError:
            raise self.ended() from None
        line = b""
        while not line.endswith(b"\n"):
            if self.process.poll() is not None:
                raise self.ended()
            ready = select_readable(self.report, 1.0)
            line += os.read(self.report.fileno(), 65536) if ready else b""
        found: Sample = json.loads(line)
        found["rate"] = found["bytes"] / found["s"]
        found["cpu_s_per_gib"] = found["cpu_s"] / (found["bytes"] / GIB)
        return found

    def close(self) -> None:
        if self.process.poll() is None:
            try:
                pipe(self.process.stdin).close()
                self.process.wait(120)
            except (subprocess.TimeoutExpired, OSError):
                self.process.terminate()  # mpirun ends its ranks
                self.process.wait()
        self.report.close()
        self.scratch.__exit__(None, None, None)


def select_readable(file: IO[str], seconds: float) -> bool:
    import select

    return bool(select.select([file], [], [], seconds)[0])


def fio(args: argparse.Namespace, way: str, size: int) -> Sample:
    engine, jobs, depth, mib, more_options = FIO[way]
    each = size // jobs // (mib * running.MIB) * mib * running.MIB
    with running.scratch(args.dir) as where:
        command = [
            "fio",
            "--name=w",
            f"--directory={where}",
            "--rw=write",
            f"--bs={mib}M",
            f"--size={each}",
            "--direct=1",
            "--fallocate=native",
            "--end_fsync=1",
            f"--ioengine={engine}",
            f"--numjobs={jobs}",
            f"--iodepth={depth}",
            "--group_reporting",
            "--output-format=json",
            *more_options,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-2000:]}")
        job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
        write, seconds = job["write"], job["write"]["runtime"] / 1e3
        busy = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3
        return {
            "rate": write["io_bytes"] / seconds,
            "s": seconds,
            "bytes": write["io_bytes"],
            "cpu_s_per_gib": busy / (write["io_bytes"] / GIB),
        }


def turns(tasks: Mapping[str, Callable[[], Sample]], rounds: int, where: str) -> Samples:
    """Samples: task -> one for each round, tasks in rotating order."""
    samples: Samples = {name: [] for name in tasks}
    names = list(tasks)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            samples[name].append(tasks[name]())
        rates = "  ".join(f"{name} {samples[name][-1]['rate'] / 1e6:.0f}" for name in names)
        print(
            f"{where}, round {number + 1} of {rounds}, MB/s: {rates}", file=sys.stderr, flush=True
        )
    return samples


def ways_of_fio(
    args: argparse.Namespace, size: int, ways: Sequence[str] = tuple(FIO)
) -> dict[str, Callable[[], Sample]]:
    """A task for each of these ways of fio that works here."""
    tasks: dict[str, Callable[[], Sample]] = {}
    for way in ways:
        try:
            fio(args, way, 256 * running.MIB)
        except RuntimeError as error:
            if "pinned" not in way:
                raise
            print(
                f"\nNOT MEASURED: {way}: {str(error).strip().splitlines()[-1]}. Next: run this as "
                "root, or with "
                "ulimit -l unlimited",
                flush=True,
            )
            continue
        tasks[way] = functools.partial(fio, args, way, size)
    return tasks


def best_of_fio(samples: Samples) -> str:
    return max(
        (way for way in FIO if way in samples),
        key=lambda way: stats.spread([one["rate"] for one in samples[way]])["median"],
    )


def over(samples: Samples, name: str) -> Figure:
    best = best_of_fio(samples)
    return stats.figure(
        [mine["rate"] / its["rate"] for mine, its in zip(samples[name], samples[best])]
    )


def show(title: str, samples: Samples) -> None:
    print(f"\n{title}: best is {best_of_fio(samples)}")
    rows = []
    for name, ones in samples.items():
        rate = stats.spread([one["rate"] / 1e6 for one in ones])
        cpu = stats.spread([one["cpu_s_per_gib"] for one in ones])
        rows.append(
            [
                name,
                f"{rate['median']:.0f}",
                f"{rate['q1']:.0f}-{rate['q3']:.0f}",
                f"{cpu['median']:.3f}",
                f"{over(samples, name)['value']:.3f}",
            ]
        )
    reporting.table(["", "MB/s", "quartiles", "CPU s/GiB", "of best fio"], rows)
