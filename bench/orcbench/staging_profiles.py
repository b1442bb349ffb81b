"""The write profiles of two checkpoints, replayed by 64 ranks on 8 nodes: a part of staging.py.

What X. Ouyang et al. measured with BLCR (slides "Profiling", "Checkpoint Time"), as shares, so that
it can be done smaller: writes a rank, bytes a rank, and the sizes' classes (src/replay.c). Of the
classes only those of LU.C.64 are given; BT.C.64's are taken to be the same. Bytes are divided by
--scale, the number of writes is not.

The bed: a cluster of 8 nodes and 4 servers, links of 1 Gbit/s, a model disk (cluster/disks.py) for
each of the twelve. Four ways in turn: each node's own disk, with the page cache and past it; a
directory striped over the servers' disks as PVFS stripes (1 MiB), each write sent as it comes
(src/striped.c); and Orcheck with an `orcheck server` before each of those same disks. Two clocks:
until the application continues, and until the bytes are safe.

Not here: how it is started, and the other parts (staging.py).
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
from typing import Any

from orcbench import facts, reporting, running, stats, svg
from orcbench.stats import Figure, Sample, Samples
from testbed.cluster import cluster as cl
from testbed.cluster import disks as md
from testbed.cluster.held import Held

NODES, RANKS, SERVERS, RATE = 8, 64, 4, "1gbit"
PROFILES: dict[str, dict[str, Any]] = {
    "lu": {"title": "LU.C.64", "writes": 975, "bytes": 23_000_000},
    "bt": {"title": "BT.C.64", "writes": 1057, "bytes": 40_000_000},
}
GOALS = {
    "speedup_over_local": (">=", 2),
    "speedup_over_shared": (">=", 5),
    "safe_over_shared_time": ("<=", 1),
}
WAYS = {
    "local": "own disk, page cache",
    "direct": "own disk, O_DIRECT",
    "shared": "striped directory",
    "orcheck": "staging servers",
}
# Seconds, of what the clocks of BLCR and MVAPICH2 saw: two figures where there were two kinds of
# SSD.
REPORTED = {
    "lu": "20.1 s on PVFS2, 4.68 s on ext3, 1.25 and 1.07 s with staging",
    "bt": "34.1 s on PVFS2, 8.67 s on ext3, 2.01 and 1.43 s with staging",
}


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile-rounds",
        type=int,
        default=None,
        help="rounds of each profile (default 7, --full 15)",
    )
    parser.add_argument(
        "--scale", type=int, default=4, help="bytes of the profiles are divided by this (default 4)"
    )


def missing() -> str | None:
    """Why the profiles cannot be replayed here; None if they can."""
    return cl.missing() or md.missing()


class Bed(Held):
    """Disks, a cluster on them, the striped directory and the servers."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        nodes, servers = [f"n{i + 1}" for i in range(NODES)], [f"s{i + 1}" for i in range(SERVERS)]
        self.disks = md.Disks(args.dir, nodes + servers)
        self.cluster = cl.Cluster(args.dir, NODES, SERVERS, RATE)
        self.serving: list[subprocess.Popen[Any]] = []

    def bring_up(self) -> None:
        self.disks.__enter__()
        self.cluster.__enter__()
        self.key = running.key_file(os.path.join(self.cluster.work, "key"))
        self.places = [self.serve(name) for name in self.cluster.servers]
        striped = running.build(self.args.prefix, "striped")
        for name in self.cluster.servers:
            self.stripes(name, striped)

    def close(self) -> None:
        self.cluster.close()  # its servers end with it, and let go of the disks
        self.disks.close()

    def serve(self, name: str) -> str:
        """orcheck server before the disk of a server; its address."""
        at = os.path.join(self.disks.path(name), "orcheck")
        os.mkdir(at)
        process, place = running.serve(
            self.args.prefix,
            at,
            f"{self.cluster.address(name)}:0",
            self.key,
            start=functools.partial(self.cluster.start, on=name),
        )
        self.serving.append(process)
        return place

    def stripes(self, name: str, program: str) -> None:
        """A target of the striped directory on the same disk."""
        at = os.path.join(self.disks.path(name), "striped")
        os.mkdir(at)
        process = self.cluster.start(
            [program, self.cluster.address(name), at],
            on=name,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        self.serving.append(process)
        running.ready(process, f"striped on {name}")

    def replay(self, program: str, profile: dict[str, Any], rounds: int) -> list[Sample]:
        """Samples of all ways, all rounds."""
        size = profile["bytes"] // self.args.scale
        report = os.path.join(self.cluster.work, "report")
        hosts = ",".join(f"{node}:{RANKS // NODES}" for node in self.cluster.nodes)
        words = {
            "job": profile["title"],
            "writes": profile["writes"],
            "size": size,
            "rounds": rounds,
            "local": self.disks.path("%h"),
            "shared": ",".join(map(self.cluster.address, self.cluster.servers)),
            "disks": os.path.join(self.disks.work, "raw"),
            "report": report,
            "options": f"keep = 1\nglobal = {self.places}\n{self.args.options}",
        }
        self.cluster.run(
            [
                "mpirun.openmpi",
                "--host",
                hosts,
                "-n",
                str(RANKS),
                program,
                *(word for key, value in words.items() for word in (f"--{key}", str(value))),
            ],
            timeout_s=1800,
        )
        with open(report) as file:
            samples: list[Sample] = json.load(file)
        for one in samples:
            used = [disk for disk in one["disks"].values() if disk["writes"]]
            one["disk_share"] = (
                statistics.mean(disk["busy_s"] for disk in used) / one["safe_s"] if used else 0
            )
            for key in ("writes", "repositionings", "write_bytes", "late_s"):
                one[key] = sum(disk[key] for disk in used)
            one["disks_used"] = len(used)
            one["cpu_limit"] = one["busy"] > facts.BUSY
        return samples


def measure(args: argparse.Namespace) -> Samples:
    """profile -> samples."""
    program, found = running.build(args.prefix, "replay"), {}
    rounds = args.profile_rounds or (15 if args.full else 7)
    for name, profile in PROFILES.items():
        with Bed(args) as bed:  # a new one each: empty disks
            found[name] = bed.replay(program, profile, rounds)
        medians = "  ".join(
            f"{way} "
            f"{median(found[name], way, 'continue_s'):.2f}/{median(found[name], way, 'safe_s'):.2f}"
            for way in WAYS
        )
        print(
            f"{profile['title']}, {rounds} rounds, s until continue/safe: {medians}",
            file=sys.stderr,
            flush=True,
        )
    return found


def values(samples: list[Sample], way: str, key: str) -> list[float]:
    return [one[key] for one in samples if one["way"] == way]


def median(samples: list[Sample], way: str, key: str) -> float:
    return statistics.median(values(samples, way, key))


def ratios(samples: list[Sample], over: tuple[str, str], under: tuple[str, str]) -> list[float]:
    """Of one round each: (way, key) over (way, key)."""
    return [a / b for a, b in zip(values(samples, *over), values(samples, *under))]


def best_local(samples: list[Sample]) -> str:
    """The better of two ways to have a checkpoint safe on one's own disk."""
    return min(("local", "direct"), key=lambda way: median(samples, way, "safe_s"))


def of_raw(one: Sample) -> float:
    """The share of the disks' sequential rate that was reached until all was safe."""
    rate: float = one["write_bytes"] / one["safe_s"] / one["disks_used"]
    return rate / md.MODEL["rate_bytes_per_s"]


def figures_of(found: Samples) -> dict[str, Figure]:
    """Each figure for each profile, and the worse of both under the plain key."""
    figures = {}
    mine = ("orcheck", "continue_s")
    for name, samples in found.items():
        for key, over, under in (
            ("speedup_over_local", (best_local(samples), "safe_s"), mine),
            ("speedup_over_local_buffered", ("local", "continue_s"), mine),
            ("speedup_over_shared", ("shared", "continue_s"), mine),
            ("speedup_over_shared_fsync", ("shared", "safe_s"), mine),
            ("safe_over_shared_time", ("orcheck", "safe_s"), ("shared", "safe_s")),
        ):
            figures[f"{key}_{name}"] = stats.figure(ratios(samples, over, under))
        for way in WAYS:
            ones = [one for one in samples if one["way"] == way and one["disks_used"]]
            figures[f"{way}_over_raw_{name}"] = stats.figure([of_raw(one) for one in ones])
            figures[f"{way}_seeks_per_s_{name}"] = stats.figure(
                [one["repositionings"] / one["safe_s"] / one["disks_used"] for one in ones]
            )
    for key, (sign, _) in GOALS.items():
        both = [figures[f"{key}_{name}"] for name in found]
        figures[key] = (
            (max if sign == "<=" else min)(both, key=lambda one: one["value"])
            if both
            else stats.figure([])
        )
    return figures


def show(found: Samples, scale: int) -> None:
    for name, samples in found.items():
        mib = values(samples, "orcheck", "bytes")[0] / running.MIB
        print(
            f"\n{PROFILES[name]['title']}, {RANKS} ranks on {NODES} nodes, {mib:.0f} MiB in all, "
            f"1/{scale} of the "
            f"document's, where it took {REPORTED[name]}"
        )
        rows = []
        for way, title in WAYS.items():
            safe, limited = (
                stats.spread(values(samples, way, "safe_s")),
                sum(values(samples, way, "cpu_limit")),
            )
            each = {
                key: median(samples, way, key)
                for key in (
                    "continue_s",
                    "disk_share",
                    "writes",
                    "repositionings",
                    "write_bytes",
                    "busy",
                )
            }
            rows.append(
                [
                    title,
                    f"{each['continue_s']:.3f}",
                    f"{safe['median']:.3f}",
                    f"{safe['q1']:.3f}-{safe['q3']:.3f}",
                    f"{100 * each['disk_share']:.0f}",
                    f"{each['writes']:.0f}",
                    f"{each['repositionings']:.0f}",
                    f"{each['write_bytes'] / max(1, each['writes']) / 1024:.0f}",
                    f"{100 * each['busy']:.0f}"
                    + (f" LIMIT in {limited} of {safe['n']}" if limited else ""),
                ]
            )
        reporting.table(
            [
                "",
                "continues s",
                "safe s",
                "quartiles",
                "disks busy %",
                "requests",
                "repositionings",
                "KiB each",
                "CPU %",
            ],
            rows,
        )


def panels(found: Samples) -> list[svg.Panel]:
    drawn = []
    for name, samples in found.items():
        panel = svg.Panel(PROFILES[name]["title"], "round", "s", log_y=True)
        for way, title in WAYS.items():
            for key, what in (("continue_s", "continues"), ("safe_s", "safe")):
                panel.line(f"{title}: {what}", list(enumerate(values(samples, way, key), 1)))
        drawn.append(panel)
    return drawn
