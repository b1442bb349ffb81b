"""How much of its rate does ordinary traffic keep during bursts?

Four servers, each before a model disk of its own (testbed/cluster/disks.py), 8 nodes with 4 ranks
each. On each server fio reads and writes files of its own on the same ext4 (past the page cache, or
else the disk would not be asked), all the time: large sequential requests, and small random ones.
Its rate is that of all servers together, without a burst, and during one that never ends, as one
checkpoint follows the other: with `orcheck server --ordinary-share` (the hint), and without; and
with servers that write as it comes, striped over all, as ordinary parallel file systems do.
Checkpoints are counted too, by what the servers' processes have written: a server that never wrote
would keep everybody happy.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from orcbench import bursts, facts, reporting, running, stats, svg
from orcbench.stats import Figure, Sample, Samples
from testbed.cluster import cluster as cl
from testbed.cluster import disks as model
from testbed.cluster.held import until

GOALS = {"ordinary_kept": (">=", 0.9)}
# What no one has written is read without asking the disk.
LAY_OUT = ["--rw=write", "--bs=1M", "--iodepth=4", "--fallocate=none", "--end_fsync=1"]
RAMP_S = 2  # of fio, before it counts
DEADLINE_S = 120
NODES, PER_NODE, SERVERS = 8, 4, 4
# Kind of ordinary traffic -> how fio makes it.
KINDS = {
    "sequential writes": ["--rw=write", "--bs=1M", "--iodepth=2"],
    "sequential reads": ["--rw=read", "--bs=1M", "--iodepth=2"],
    "random reads and writes": ["--rw=randrw", "--bs=16k", "--iodepth=4"],
}
# Way -> mode of the library, order of the servers.
WAYS = {
    "orchestrated, hint on": ("orchestrated", "shared"),
    "orchestrated, hint off": ("orchestrated", "pull"),
    "traditional": ("traditional", "arrival"),
}
# Checkpoints of a job: together they take longer than fio is looked at.
COUNTS = {"pull": 16, "shared": 16, "arrival": 4}


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=8, help="MiB a rank and checkpoint (default 8)")
    parser.add_argument(
        "--seconds", type=float, default=12, help="how long each is looked at (default 12)"
    )
    parser.add_argument("--rounds", type=int, default=None, help="rounds (default 3, --full 9)")
    parser.add_argument(
        "--share", type=float, default=0.95, help="--ordinary-share of the servers (default 0.95)"
    )


def fio(
    disks: model.Disks,
    names: Sequence[str],
    words: Sequence[str],
    within_s: float,
    ordinary: Callable[[], object] = lambda: None,
) -> float:
    """Bytes/s of all servers together. ordinary is called when fio begins to count."""
    processes = []
    try:
        for name in names:
            command = [
                "fio",
                "--name=ordinary",
                f"--filename={os.path.join(disks.path(name), 'ordinary')}",
                "--size=512M",
                "--direct=1",
                "--ioengine=libaio",
                "--output-format=json",
                *words,
            ]
            processes.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
        time.sleep(RAMP_S)
        ordinary()
        total = 0
        for process in processes:
            said, errors = process.communicate(timeout=within_s)
            if process.returncode != 0:
                raise RuntimeError(f"fio: {errors[-2000:]}")
            job = json.loads(said[said.index("{") :])["jobs"][0]
            total += sum(
                job[way]["io_bytes"] / (job[way]["runtime"] / 1e3)
                for way in ("read", "write")
                if job[way]["runtime"]
            )
        return total
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


class Checkpoints:
    """One after the other, until it is over."""

    def __init__(self, bed: bursts.Bed, way: str, size: int) -> None:
        self.bed, self.way, self.size, self.over = bed, way, size, threading.Event()
        self.error: Exception | None = None
        self.order, self.thread = WAYS[way][1], threading.Thread(target=self.go, daemon=True)
        # Opening a job is not what ordinary traffic is looked at beside.
        enough = bed.written_bytes(self.order) + size * NODES * PER_NODE // 4
        self.thread.start()
        there = until(lambda: self.error or bed.written_bytes(self.order) > enough, DEADLINE_S)
        if self.error or not there:
            self.end()
            raise RuntimeError(
                f"{way}: no quarter of a checkpoint was written within {DEADLINE_S} s"
            )

    def go(self) -> None:
        try:
            while not self.over.is_set():
                self.bed.burst(
                    *WAYS[self.way], NODES, PER_NODE, self.size, count=COUNTS[self.order]
                )
        except Exception as error:  # told to who waits for it
            self.error = error

    def end(self) -> None:
        self.over.set()
        self.thread.join()
        if self.error:
            raise self.error


def look(
    bed: bursts.Bed, disks: model.Disks, kind: str, way: str, args: argparse.Namespace
) -> Sample:
    """Rates of ordinary traffic and of checkpoints, in bytes/s, and the processors' use, all while
    fio counted.
    """
    model.drop_caches()
    beside = None if way == "alone" else Checkpoints(bed, way, args.mib << 20)
    at: list[tuple[float, dict[str, int], int]] = []

    def note() -> None:
        at.append(
            (
                time.monotonic(),
                facts.processor_times(),
                bed.written_bytes(beside.order) if beside else 0,
            )
        )

    try:
        rate = fio(
            disks,
            bed.cluster.servers,
            [*KINDS[kind], "--time_based", f"--runtime={args.seconds}", f"--ramp_time={RAMP_S}"],
            args.seconds + DEADLINE_S,
            note,
        )
        note()
    finally:
        if beside:
            beside.end()
    (begin, before, had), (end, after, have) = at
    return {
        "rate": rate,
        "checkpoints": (have - had) / (end - begin),
        "busy": facts.busy(before, after),
    }


def show(found: dict[str, Samples]) -> dict[str, Figure]:
    """Prints the table; what each way leaves of the rate of each kind."""
    figures, rows = {}, []
    for kind, ones in found.items():
        alone = stats.spread([one["rate"] for one in ones["alone"]])["median"]
        for way, samples in ones.items():
            kept = stats.figure(
                [mine["rate"] / its["rate"] for mine, its in zip(samples, ones["alone"])]
            )
            if way != "alone":
                figures[f"{kind}: {way}"] = kept
            rows.append(
                [
                    f"{kind}, {way}",
                    f"{alone / 1e6:.1f}",
                    f"{stats.spread([one['rate'] for one in samples])['median'] / 1e6:.1f}",
                    f"{kept['value']:.3f}",
                    f"{stats.spread([one['checkpoints'] for one in samples])['median'] / 1e6:.1f}",
                    facts.percent(max(one["busy"] for one in samples)),
                ]
            )
    reporting.table(
        ["", "alone MB/s", "rate MB/s", "kept", "checkpoints MB/s", "processors busy"], rows
    )
    return figures


def panels_of(found: dict[str, Samples]) -> list[svg.Panel]:
    panels = []
    for kind, ones in found.items():
        panel = svg.Panel(kind, "round", "MB/s")
        for way, samples in ones.items():
            panel.line(way, [(number + 1, one["rate"] / 1e6) for number, one in enumerate(samples)])
        panels.append(panel)
    return panels


def main() -> None:
    args = running.arguments("mixed", __doc__, more)
    running.end_on_signals()
    version = facts.output("fio", "--version")
    why = cl.missing() or model.missing() or (None if version else running.NO_FIO)
    if why:
        reporting.not_measured(args, "mixed", why, GOALS)
        return
    program = running.build(args.prefix, "burst")
    machine, rounds = facts.Machine(args.dir), args.rounds or (9 if args.full else 3)
    names = [f"s{number + 1}" for number in range(SERVERS)]
    found: dict[str, Samples] = {}
    orders = {
        "pull": [],
        "arrival": ["--order", "arrival"],
        "shared": ["--ordinary-share", str(args.share)],
    }
    with (
        model.Disks(args.dir, names, size_bytes=4 << 30) as disks,
        bursts.Bed(
            args, program, [disks.path(name) for name in names], NODES, PER_NODE, orders
        ) as bed,
    ):
        for way in WAYS:
            # The first use of anything is not what is measured.
            bed.burst(*WAYS[way], NODES, PER_NODE, args.mib << 20)
        fio(disks, names, LAY_OUT, DEADLINE_S)
        for kind in KINDS:
            ways = ["alone", *WAYS]
            found[kind] = {way: [] for way in ways}
            for number in range(rounds):
                for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                    one = look(bed, disks, kind, way, args)
                    found[kind][way].append(one)
                    print(
                        f"{kind}, round {number + 1} of {rounds}, {way}: ordinary "
                        f"{one['rate'] / 1e6:.1f} MB/s, "
                        f"checkpoints {one['checkpoints'] / 1e6:.1f} MB/s, processors "
                        f"{100 * one['busy']:.0f} % busy",
                        file=sys.stderr,
                        flush=True,
                    )
    figures = show(found)
    worst = min(
        (figures[f"{kind}: orchestrated, hint on"] for kind in KINDS), key=lambda one: one["value"]
    )
    footnote = reporting.finish(
        args,
        "mixed",
        machine,
        {"ordinary_kept": worst, **figures},
        GOALS,
        {"fio": version, "raw": found},
    )
    panels = panels_of(found)
    svg.save(reporting.result_path(args, "mixed", ".svg"), footnote, panels)


if __name__ == "__main__":
    main()
