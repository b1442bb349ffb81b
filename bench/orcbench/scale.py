"""What do replicas on 8 to 256 nodes take, beside a central server, a SAN and a file system?

The experiment of Walters and Chaudhary (*A Scalable Asynchronous Replication-Based Strategy*,
Figure 4): files of 1 GB a node, on 64 to 256 nodes with Gigabit Ethernet and disks of their own,
beside a SAN and a parallel file system of 21 servers. Here the nodes are namespaces
(testbed/cluster) whose ranks sleep, bytes are divided by `--bytes-by` (512) and rates by
`--rates-by` (64), so everything takes an eighth of the time there, and the processors of one
machine can do it.

    local     on the node's own disk
    k1 to k4  and on as many other nodes
    central   one server, its link the only limit
    san       one array behind two paths, each a server
    pfs       striped over 21 servers with a link each, one array behind them

A node's disk is a limit on what its processes write (throttling.Groups), an array one on what all
of its servers write. What is assumed of the hardware, before it is divided:

    links     117 MB/s. Gigabit Ethernet, without the frames' overhead
    disks     70 MB/s. "10,000 RPM Ultra SCSI" (section 4); assumed
    SAN       two paths of 200 MB/s: Fibre Channel of that time; assumed
    pfs       465 MB/s, what the document's own file system reached: 256 GB in 55 % of 1,000 s

The time of a checkpoint is from the first rank's call until all know that it is committed, safe at
its level. The document's overhead is that of a run of about 1,000 s with one checkpoint, whose
program also computed less meanwhile; ours sleeps. So the seconds are comparable only as ratios.

`--only intervals`: 8 nodes sleep between checkpoints 0.5 to 32 times as long as the central
server's link takes for one. How much longer does the run take, and below which interval can
replicas not keep up?
"""

import argparse
import contextlib
import os
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from orcbench import bursts, facts, reporting, running, stats, svg
from orcbench.stats import Figure, Sample, Samples
from orcbench.throttling import Groups
from testbed.cluster import cluster as cl

GOALS = {
    "k4_over_pfs_128": ("<=", 0.5),
    "k4_over_pfs_256": ("<=", 0.5),
    "k1_256_over_64": ("<=", 2),
    "one_replica_over_central_overhead": ("<=", 0.5),
}
# Before they are divided: bytes, bytes/s.
FILE_BYTES = 1 << 30
LINK, DISK, PATH, ARRAY = 117_000_000, 70_000_000, 200_000_000, 465_000_000
PFS_SERVERS = 21
KINDS = {
    "local": "own disk only",
    "k1": "1 replica",
    "k2": "2 replicas",
    "k3": "3 replicas",
    "k4": "4 replicas",
    "central": "central server",
    "san": "SAN",
    "pfs": "parallel file system",
}
REPORTED = (
    "Walters and Chaudhary, one checkpoint in 1,000 s: 4 replicas 15.4 % (128 nodes), 18.7 % "
    "(256); parallel file system 37.5 %, 55 %; 1 replica 3 % (64), 6 % (256)"
)
FACTORS = (0.5, 1, 2, 4, 8, 16, 32)
SWEPT_NODES = 8
# Nodes that one central server is measured with.
CENTRAL_MOST = 64


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nodes",
        type=numbers,
        default=(8, 64, 128, 256),
        metavar="N,...",
        help="numbers of nodes (default 8,64,128,256)",
    )
    parser.add_argument(
        "--bytes-by", type=int, default=512, help="1 GiB a node is divided by this (default 512)"
    )
    parser.add_argument(
        "--rates-by", type=int, default=64, help="all rates are divided by this (default 64)"
    )
    parser.add_argument("--rounds", type=int, default=None, help="default 2, --full 5")
    parser.add_argument("--kind", action="append", choices=KINDS, help="one of them; repeatable")
    parser.add_argument("--only", choices=["nodes", "intervals"], help="one of the two parts")


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers, ascending."""
    found = tuple(sorted({int(one) for one in text.split(",")}))
    if not all(5 <= one <= 1000 for one in found):
        raise argparse.ArgumentTypeError(f"{text}: expected numbers from 5 to 1000, with commas")
    return found


class Bed(bursts.Bed):
    """The nodes, and the servers of the central server (s1), the SAN and the file system."""

    def __init__(
        self,
        args: argparse.Namespace,
        program: str,
        where: str,
        groups: Groups,
        nodes: int,
        by: int,
    ) -> None:
        super().__init__(
            args,
            program,
            [os.path.join(where, f"s{number + 1}") for number in range(3 + PFS_SERVERS)],
            nodes,
            1,
            {"pull": ["--order", "pull"], "arrival": ["--order", "arrival"]},
            f"{8 * LINK // by}bit",
            {name: f"{8 * PATH // by}bit" for name in ("s2", "s3")},
            # Packets are as long as ever: as many wait for a link as for a fast one.
            50 * by,
            lambda name: groups.within(group) if (group := group_of(name)) else (),
        )

    def options(self, kind: str, size: int) -> str:
        """Options of a way of keeping checkpoints."""
        chunk = bursts.chunk_of(size)
        lines = [f"pool = {max(-(-size // chunk) + 2, 4) * chunk}", f"chunk = {chunk}", "keep = 1"]
        names = self.cluster.servers
        if kind == "central":
            lines += [f"global = {self.places(names[:1], 'pull')}"]
        elif kind == "san":
            lines += [f"global = {self.places(names[1:3], 'pull')}", "mode = 'vertical'"]
        elif kind == "pfs":
            lines += [f"global = {self.places(names[3:], 'arrival')}", "mode = 'traditional'"]
        else:
            lines += [f"node_dir = '{self.cluster.local}'"]
        if kind[0] == "k":
            lines += ["peers = 1", f"replicas = {kind[1:]}"]
        return "\n".join(lines)

    def one(self, kind: str, nodes: int, size: int, count: int = 1, every_s: float = 0) -> Sample:
        """A job of its own; its files are gone afterwards."""
        level = {"l": "node", "k": "peers"}.get(kind[0], "global")
        found = self.ask(nodes, 1, size, self.options(kind, size), count, level, every_s)
        for order in self.orders:
            self.empty(order)
        for name in self.cluster.nodes:
            for entry in os.scandir(os.path.join(self.cluster.work, "nodes", name)):
                shutil.rmtree(entry.path)
        return dict(found, kind=kind, nodes=nodes, bytes_per_node=size)


def group_of(name: str) -> str | None:
    """The group of processes that share a disk with those of a node or server."""
    if name == "s1":
        return None
    return "san" if name in ("s2", "s3") else "pfs" if name[0] == "s" else name


@contextlib.contextmanager
def bed_of(args: argparse.Namespace, program: str, nodes: int, by: int) -> Iterator[Bed]:
    """Nodes and servers, whose rates are divided by a number."""
    rates = {f"n{number + 1}": DISK // by for number in range(nodes)}
    rates.update(san=2 * PATH // by, pfs=ARRAY // by)
    with (
        running.scratch(args.dir) as where,
        Groups(where, rates) as groups,
        Bed(args, program, where, groups, nodes, by) as bed,
    ):
        yield bed


def kinds_of(args: argparse.Namespace) -> list[str]:
    return [kind for kind in KINDS if kind in (args.kind or KINDS)]


# ---- until committed, by the number of nodes -----------------------------------------------------
def by_nodes(args: argparse.Namespace, program: str) -> dict[int, Samples]:
    """nodes -> kind -> checkpoints, kinds in rotating order."""
    rounds, size = args.rounds or (5 if args.full else 2), FILE_BYTES // args.bytes_by
    found: dict[int, Samples] = {}
    with bed_of(args, program, max(args.nodes), args.rates_by) as bed:
        bed.one("local", min(args.nodes), size)  # the first use of anything is not measured
        for count in args.nodes:
            kinds = kinds_of(args)
            found[count] = {kind: [] for kind in kinds}
            for number in range(rounds):
                for kind in kinds[number % len(kinds) :] + kinds[: number % len(kinds)]:
                    # Its link decides alone, and it takes longer than all others.
                    if kind == "central" and (count > CENTRAL_MOST or (number and count > 8)):
                        continue
                    one = bed.one(kind, count, size)
                    found[count][kind].append(one)
                    print(
                        f"{count} nodes, round {number + 1} of {rounds}, {KINDS[kind]}: "
                        f"{one['s']:.2f} s, blocked {one['blocked_s']:.2f} s, processors "
                        f"{100 * one['busy']:.0f} % busy",
                        file=sys.stderr,
                        flush=True,
                    )
    return found


def least_s(kind: str, nodes: int, size: int, by: int) -> float:
    """What links, disks and arrays need for one checkpoint."""
    copies = int(kind[1:]) if kind[0] == "k" else 0
    rates = {
        "central": (nodes, LINK),
        "san": (nodes, 2 * PATH),
        "pfs": (nodes, min(ARRAY, PFS_SERVERS * LINK)),
    }
    # The node's link takes in as many as it sends; its disk takes those and its own.
    parts, rate = rates.get(kind, (1 + copies, DISK))
    return max(parts * size / (rate / by), size / (LINK / by) if kind != "local" else 0)


# ---- the interval --------------------------------------------------------------------------------
def by_interval(args: argparse.Namespace, program: str) -> dict[str, list[Sample]]:
    """kind -> a run at each interval."""
    # Faster than elsewhere: at few nodes the processors can do it, and intervals are long.
    by, size = max(args.rates_by // 8, 1), FILE_BYTES // args.bytes_by
    central_s = SWEPT_NODES * size / (LINK / by)
    kinds = [kind for kind in kinds_of(args) if kind not in ("k2", "k3")]
    found: dict[str, list[Sample]] = {kind: [] for kind in kinds}
    with bed_of(args, program, SWEPT_NODES, by) as bed:
        for factor in FACTORS:
            every_s, count = factor * central_s, max(2, round(6 / factor))
            for kind in kinds:
                one = bed.one(kind, SWEPT_NODES, size, count, every_s)
                alone_s = every_s * (count + 1)
                one.update(factor=factor, every_s=every_s, slower=one["s"] / alone_s - 1)
                found[kind].append(one)
                print(
                    f"every {every_s:.2f} s, {KINDS[kind]}: slower by {100 * one['slower']:.1f} %",
                    file=sys.stderr,
                    flush=True,
                )
    return found


# ---- what is told --------------------------------------------------------------------------------
def median_s(ones: Sequence[Sample]) -> float:
    return float(statistics.median(one["s"] for one in ones))


def show(args: argparse.Namespace, at: dict[int, Samples], swept: dict[str, list[Sample]]) -> None:
    if at:
        print("\nseconds until committed (beside: what links, disks and arrays need)")
        rows = []
        for kind in kinds_of(args):
            cells = []
            for nodes, kinds in at.items():
                ones = kinds[kind]
                if not ones:
                    cells.append("-")
                    continue
                least = least_s(kind, nodes, ones[0]["bytes_per_node"], args.rates_by)
                busy = facts.percent(max(one["busy"] for one in ones))
                cells.append(f"{median_s(ones):.1f} ({least:.1f}; {busy} busy)")
            rows.append([KINDS[kind], *cells])
        reporting.table(["", *(f"{nodes} nodes" for nodes in at)], rows)
    if swept:
        print("\nslower by %, by the interval ÷ the time of the central server's link")
        reporting.table(
            ["", *(f"{factor:g}" for factor in FACTORS)],
            [
                [KINDS[kind], *(f"{100 * one['slower']:.1f}" for one in ones)]
                for kind, ones in swept.items()
            ],
        )


def over(one: Sequence[Sample], other: Sequence[Sample]) -> Figure:
    """Times of one over the median of another, which may have been taken less often."""
    if not one or not other:
        return stats.figure([])
    below = median_s(other)
    return stats.figure([sample["s"] / below for sample in one])


def figures_of(at: dict[int, Samples], swept: dict[str, list[Sample]]) -> dict[str, Figure]:
    figures = {}
    for nodes, kinds in at.items():
        for kind in ("k1", "k4"):
            for beside in ("pfs", "san", "central"):
                key = f"{kind}_over_{beside}_{nodes}"
                figures[key] = over(kinds.get(kind, []), kinds.get(beside, []))
    for kind in ("k1", "k4"):
        figures[f"{kind}_256_over_64"] = over(
            at.get(256, {}).get(kind, []), at.get(64, {}).get(kind, [])
        )
    few = at.get(SWEPT_NODES, {})
    figures["one_replica_over_central_overhead"] = over(few.get("k1", []), few.get("central", []))
    for kind, ones in swept.items():
        for one in ones:
            figures[f"{kind}_slower_every_{one['factor']:g}"] = stats.figure([one["slower"]])
    return {key: found for key, found in figures.items() if found["n"] or key in GOALS}


def plot(
    args: argparse.Namespace,
    at: dict[int, Samples],
    swept: dict[str, list[Sample]],
    footnote: str,
) -> None:
    panels = []
    if at:
        panel = svg.Panel("until a checkpoint is committed", "nodes", "s", log_x=True, log_y=True)
        for kind in kinds_of(args):
            points = [(nodes, median_s(kinds[kind])) for nodes, kinds in at.items() if kinds[kind]]
            panel.line(KINDS[kind], points)
        panels.append(panel)
    if swept:
        panel = svg.Panel(
            f"how much longer {SWEPT_NODES} nodes run",
            "interval ÷ time of the central server's link",
            "%",
            log_x=True,
        )
        for kind, ones in swept.items():
            panel.line(KINDS[kind], [(one["factor"], 100 * one["slower"]) for one in ones])
        panels.append(panel)
    svg.save(reporting.result_path(args, "scale", ".svg"), footnote, panels)


def main() -> None:
    args = running.arguments("scale", __doc__, more)
    running.end_on_signals()
    why = cl.missing() or Groups.missing(args.dir)
    if why:
        reporting.not_measured(args, "scale", why, GOALS)
        return
    program = running.build(args.prefix, "burst")
    machine = facts.Machine(args.dir)
    at = by_nodes(args, program) if args.only != "intervals" else {}
    swept = by_interval(args, program) if args.only != "nodes" else {}
    show(args, at, swept)
    print(f"\n{REPORTED}")
    more_found: dict[str, Any] = {
        "reported": REPORTED,
        "nodes": [
            {"nodes": nodes, "kind": kind, "checkpoints": ones}
            for nodes, kinds in at.items()
            for kind, ones in kinds.items()
        ],
        "intervals_swept": swept,
    }
    figures = figures_of(at, swept)
    plot(args, at, swept, reporting.finish(args, "scale", machine, figures, GOALS, more_found))


if __name__ == "__main__":
    main()
