"""What do replicas on other nodes cost, beside a central server or shared ones?

On a cluster of namespaces (testbed/cluster) whose links have a rate. Three questions:

1. How fast does one node's part travel to its holders, beside plain TCP on the same link? From the
   call of orc_checkpoint until it is committed, durable on all holders; plain TCP before and after
   each.
2. How long does a checkpoint of all nodes take until it is committed: on their own disks, with k
   replicas, with one central server, with four shared servers? Engine and program are the same:
   k = 0 and `global` directories.
3. What does a solver (examples/lbm, whose own messages share the links) lose to each of them, by
   interval?

What should come out. A replica needs a node's bytes S once over its link, k replicas k times, and
each node receives as many parts as it sends. A central server needs n S over its one link. So one
replica should take 1/8 and 1/16 of the central server's time at 8 and 16 nodes. The server's time
is taken as the smaller of what is measured and what plain TCP over its link would take for the
bytes (`ideal`), so that no slow file system makes the ratio look better.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, Self

from orcbench import facts, floor, reporting, running, stats, svg
from orcbench.stats import Figure, Sample, Samples
from testbed.cluster import cluster as cl
from testbed.cluster import shared

# (rate of the links, holders) -> rounds.
Streams = dict[tuple[str, int], list[Sample]]
# (nodes, interval ÷ the central server's ideal time) -> what was run.
Runs = dict[tuple[int, float], dict[str, Any]]

GOALS = {
    "stream_over_tcp": (">=", 0.9),
    "stream_over_floor": (">=", 0.9),
    "encrypted_over_plain": (">=", 0.6),
    "replica_cpu_s_per_gib": ("<=", 1.2),
    "one_replica_over_central": ("<=", 0.5),
    "one_replica_over_central_8": ("<=", 0.5),
    "one_replica_over_central_16": ("<=", 0.5),
    "one_replica_slowdown_over_central": ("<=", 0.5),
    "one_replica_slowdown_over_central_waited": ("<=", 0.5),
}
SERVERS = 4
# Turns in which a stream and the floor beside it take their rounds.
FLOOR_TURNS = 3
NAMES = {
    "local": "own disk only",
    "k1": "1 replica",
    "k2": "2 replicas",
    "k3": "3 replicas",
    "k4": "4 replicas",
    "central": "central server",
    "shared": f"{SERVERS} shared servers",
    "waited": "central, waiting until safe",
}
# What the paper reports for processes on as many nodes (BT, checkpoints every 4 and 8 minutes), %.
REPORTED = (
    "Walters and Chaudhary: 38 % with a central server, 9 % with one replica (every 4 minutes); "
    "16 % and 5.5 % (every 8)"
)


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rate",
        default="200mbit",
        help="of each link, where many nodes are measured (default 200mbit)",
    )
    parser.add_argument(
        "--mib", type=int, default=16, help="MiB a node, where many are measured (default 16)"
    )
    parser.add_argument(
        "--stream-rounds",
        type=int,
        default=None,
        help="rounds of the stream (default 9, --full 31)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=None,
        help="checkpoints of each kind in each turn (default 3, --full 8)",
    )
    parser.add_argument(
        "--turns", type=int, default=None, help="turns through all kinds (default 2, --full 4)"
    )
    parser.add_argument(
        "--solver-rounds",
        type=int,
        default=7,
        help="runs of the solver of each kind at each interval (default 7)",
    )
    parser.add_argument(
        "--factors",
        type=factors,
        default=(0.5, 1, 2, 4, 8),
        metavar="FACTOR,...",
        help="intervals of the solver ÷ the ideal time of the central server (default 0.5,1,2,4,8)",
    )
    parser.add_argument(
        "--only", choices=["stream", "commit", "solver"], help="one of the three questions"
    )


def factors(text: str) -> tuple[float, ...]:
    """Intervals, ascending."""
    found = tuple(sorted({float(one) for one in text.split(",")}))
    if not all(0 < one < float("inf") for one in found):
        raise argparse.ArgumentTypeError(f"{text}: expected numbers above 0, with commas")
    return found


class Bed:
    """A cluster with its servers, and programs run on it."""

    def __init__(
        self, args: argparse.Namespace, nodes: int, servers: int = 0, rate: str | None = None
    ) -> None:
        self.args, self.cluster, self.number = args, cl.Cluster(args.dir, nodes, servers, rate), 0

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        try:
            self.shared = shared.serve(self.cluster)
        except BaseException:
            self.cluster.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.close()

    def options(self, kind: str, job: str) -> str:
        """Options for a way of keeping checkpoints. The directories are of this job alone."""
        if kind in ("central", "shared", "waited"):
            places = self.shared if kind == "shared" else self.shared[:1]
            dirs = [os.path.join(place, job) for place in places]
            self.cluster.run(["mkdir", *dirs], on=self.cluster.nodes[0])
            return f"keep = 1\nglobal = {dirs}"
        lines = ["keep = 1", f"node_dir = '{self.cluster.local}'"]
        if kind[0] in "ke":
            lines += ["peers = 1", f"replicas = {kind[1:]}"]
        if kind[0] == "e":
            lines += ["net_encrypt = 'aes-256-gcm'"]
        return "\n".join(lines)

    def level(self, kind: str) -> str:
        return "peers" if kind[0] in "ke" else "node" if kind == "local" else "global"

    def run(
        self, kind: str, nodes: int, program: str, argv: Sequence[object], name: str = "job"
    ) -> Any:
        """One run of a program that writes a report; what is in it.

        The checkpoints are gone afterwards.
        """
        self.number += 1
        job, hosts = f"{name}{self.number}", self.cluster.nodes[:nodes]
        report = os.path.join(self.cluster.work, "report")
        options = self.options(kind, job) if kind != "none" else ""
        self.cluster.run(
            [
                "mpirun.openmpi",
                "--host",
                ",".join(hosts),
                "-n",
                str(nodes),
                program,
                "--job",
                job,
                "--level",
                self.level(kind),
                "--options",
                options,
                "--report",
                report,
                *map(str, argv),
            ],
            timeout_s=1800,
        )
        for node in [*hosts, *self.cluster.servers]:
            self.cluster.run(["sh", "-c", f"rm -rf {self.cluster.local}/*"], on=node)
        with open(report) as file:
            return json.load(file)


# ---- 1: one stream -------------------------------------------------------------------------------
def stream(args: argparse.Namespace, program: str) -> Streams:
    """(rate, holders) -> rounds. Rank 0 alone has something to keep."""
    rounds = args.stream_rounds or (31 if args.full else 9)
    found = {}
    for rate, mib, count in (
        ("1gbit", 128, rounds),
        (args.rate, 32, max(3, rounds // 2)),
        (None, 256, rounds),
    ):
        with Bed(args, 5 if args.full else 3, rate=rate) as bed:
            for holders in (1, 2, 4) if args.full else (1, 2):
                if rate or holders > 1:
                    ones = stream_once(bed, program, f"k{holders}", mib, count)
                else:
                    ones = beside_floor(bed, program, mib, max(1, count // FLOOR_TURNS))
                found[rate or "unlimited", holders] = ones
                print(
                    f"stream, link {rate or 'unlimited'}, {holders} holders: "
                    f"{statistics.median(over_tcp(ones)):.3f} of plain TCP",
                    file=sys.stderr,
                    flush=True,
                )
    return found


def stream_once(bed: Bed, program: str, kind: str, mib: int, count: int) -> list[Sample]:
    """`count` rounds of one node's part to its holders, with plain TCP beside each."""
    holders = int(kind[1:])
    nodes = bed.cluster.nodes[1 : holders + 1]
    size = ["--size", mib * running.MIB, "--only", 0]
    beside = ",".join(bed.cluster.address(node) for node in nodes)
    argv = ["--do", "write", *size, "--rounds", count, "--beside", beside]
    ones: list[Sample] = bed.run(kind, holders + 1, program, argv)
    return ones


def beside_floor(bed: Bed, program: str, mib: int, count: int) -> list[Sample]:
    """Rounds of a stream in turns with encrypted ones and the floor, whose times are beside."""
    path, cluster, found = floor.program(), bed.cluster, []
    n1, n2 = cluster.nodes[:2]
    start = (functools.partial(cluster.start, on=n1), functools.partial(cluster.start, on=n2))
    for _ in range(FLOOR_TURNS):
        ones = stream_once(bed, program, "k1", mib, count)
        for one, hidden in zip(ones, stream_once(bed, program, "e1", mib, count)):
            one["encrypted_s"] = hidden["s"]
        for how in ("mac", "plain"):
            floors = floor.rounds(
                how,
                path,
                mib * running.MIB,
                count,
                cluster.address(n2),
                (cluster.local, cluster.local),
                start,
            )
            for one, its in zip(ones, floors):
                one[f"floor_{how}_s"], one[f"floor_{how}_cpu_s"] = its["s"], its["cpu_s"]
        found += ones
    return found


def cpu_s(one: Sample) -> float:
    """Processor time of the whole machine within a stream's clock."""
    taken: float = one["busy"] * (os.cpu_count() or 1) * one["s"]
    return taken


def floor_figures(ones: list[Sample]) -> dict[str, Figure]:
    """The stream on a link without limit, beside a minimal program and beside TCP alone."""

    def per_gib(seconds: Callable[[Sample], float]) -> Figure:
        return stats.figure([seconds(one) / (one["bytes"] / floor.GIB) for one in ones])

    return {
        "stream_over_floor": stats.figure([one["floor_mac_s"] / one["s"] for one in ones]),
        "stream_over_plain_floor": stats.figure([one["floor_plain_s"] / one["s"] for one in ones]),
        "stream_over_plain_tcp": stats.figure(over_tcp(ones)),
        "encrypted_over_plain": stats.figure([one["s"] / one["encrypted_s"] for one in ones]),
        "replica_cpu_s_per_gib": per_gib(cpu_s),
        "floor_cpu_s_per_gib": per_gib(lambda one: float(one["floor_mac_cpu_s"])),
        "plain_floor_cpu_s_per_gib": per_gib(lambda one: float(one["floor_plain_cpu_s"])),
    }


def tcp_rates(ones: list[Sample]) -> list[float]:
    """Bytes/s of plain TCP beside a stream."""
    return [one["bytes"] / statistics.mean(one["raw_s"]) for one in ones]


def over_tcp(ones: list[Sample]) -> list[float]:
    """Rates of a stream over those of plain TCP beside it."""
    return [statistics.mean(one["raw_s"]) / one["s"] for one in ones]


# ---- 2: from the call to the commit --------------------------------------------------------------
def kinds_at(nodes: int, full: bool) -> list[str]:
    replicas = [k for k in ((1, 2, 3, 4) if full else (1, 2)) if k < nodes]
    return ["local", *(f"k{k}" for k in replicas), "central", "shared"]


def commits(args: argparse.Namespace, program: str) -> dict[int, Samples]:
    """nodes -> kind -> checkpoints, kinds in rotating order."""
    rounds, turns = args.rounds or (8 if args.full else 3), args.turns or (4 if args.full else 2)
    found: dict[int, Samples] = {}
    for nodes in (4, 8, 16, 32) if args.full else (8, 16):
        kinds = kinds_at(nodes, args.full)
        found[nodes] = {kind: [] for kind in kinds}
        with Bed(args, nodes, SERVERS, args.rate) as bed:
            for turn in range(turns):
                for kind in kinds[turn % len(kinds) :] + kinds[: turn % len(kinds)]:
                    ones = bed.run(
                        kind,
                        nodes,
                        program,
                        ["--do", "write", "--size", args.mib * running.MIB, "--rounds", rounds],
                    )
                    found[nodes][kind] += ones
                    print(
                        f"commit, {nodes} nodes, turn {turn + 1} of {turns}, {NAMES[kind]}: "
                        f"{statistics.median(one['s'] for one in ones):.2f} s",
                        file=sys.stderr,
                        flush=True,
                    )
    return found


def central_s(ones: list[Sample], rate: float) -> list[float]:
    """The central server's times, each at most what plain TCP at `rate` bytes/s would take."""
    return [min(one["s"], one["bytes"] / rate) for one in ones]


# ---- 3: a solver ---------------------------------------------------------------------------------
def solver(args: argparse.Namespace, rate: float) -> Runs:
    """(nodes, interval ÷ the central server's ideal time) -> rounds of kind -> run."""
    rounds = args.solver_rounds
    lbm = build_lbm(args)
    found: Runs = {}
    for nodes in (8, 16) if args.full else (8,):
        kinds = ["none", "local", "k1", "central", "waited"] + (
            ["k2", "k4", "shared"] if args.full else []
        )
        with Bed(args, nodes, SERVERS, args.rate) as bed:
            one = functools.partial(run_solver, bed, lbm, nodes)
            probe = one("local", 40, 20)
            ideal_s = probe["staged_bytes"] / rate
            step_s = one("none", 40, 0)["loop_s"] / 40
            for factor in args.factors:
                every = max(1, round(factor * ideal_s / step_s))
                # The last checkpoint is half an interval before the end. Where intervals are long,
                # few of them: all would take hours.
                taken = 6 if factor <= 1 else max(1, round(6 / factor))
                steps = every * taken + every // 2
                samples = []
                for number in range(rounds):
                    order = kinds[number % len(kinds) :] + kinds[: number % len(kinds)]
                    samples.append({kind: one(kind, steps, every) for kind in order})
                    print(
                        f"solver, {nodes} nodes, every {factor} of {ideal_s:.2f} s, round "
                        f"{number + 1} of {rounds}: "
                        + "  ".join(
                            f"{NAMES.get(kind, kind)} {samples[-1][kind]['loop_s']:.1f}"
                            for kind in kinds
                        ),
                        file=sys.stderr,
                        flush=True,
                    )
                found[nodes, factor] = {
                    "every": every,
                    "steps": steps,
                    "ideal_central_s": ideal_s,
                    "rounds": samples,
                }
    return found


def run_solver(bed: Bed, lbm: str, nodes: int, kind: str, steps: int, every: int) -> Sample:
    """One run of examples/lbm with a checkpoint after this many steps (0: none)."""
    how = "none" if kind == "none" else "sync" if kind == "waited" else "async"
    edge = str(64 if nodes == 8 else 80)
    box = [word for axis in "xyz" for word in (f"--n{axis}", edge)]
    argv = [*box, "--steps", steps, "--checkpoint", how, *(["--every", every] if every else [])]
    found: Sample = bed.run(kind, nodes, lbm, argv, "lbm")
    return found


def build_lbm(args: argparse.Namespace) -> str:
    # make sees only that the source did not change, not that the library is another one.
    out = os.path.join(running.ROOT, "build", "examples")
    subprocess.run(
        [
            "make",
            "--always-make",
            "-C",
            os.path.join(running.ROOT, "examples"),
            "lbm",
            f"ORCHECK_PREFIX={args.prefix}",
            f"OUT={out}",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return os.path.join(out, "lbm")


def slowdown(samples: Sequence[dict[str, Sample]], kind: str) -> list[float]:
    return [one[kind]["loop_s"] / one["none"]["loop_s"] - 1 for one in samples]


# ---- all -----------------------------------------------------------------------------------------
def show(streams: Streams, at: dict[int, Samples], runs: Runs, rate: float) -> None:
    if streams:
        print(
            "\nOne node's part to its holders, from the call to the commit, and plain TCP through "
            "the same links"
        )
        reporting.table(
            ["link, holders", "MB/s a holder", "plain TCP", "ratio"],
            [
                [
                    f"{link}, {holders}",
                    f"{statistics.median(one['bytes'] / one['s'] for one in ones) / 1e6:.1f}",
                    f"{statistics.median(tcp_rates(ones)) / 1e6:.1f}",
                    f"{statistics.median(over_tcp(ones)):.3f}",
                ]
                for (link, holders), ones in streams.items()
            ],
        )
    for nodes, kinds in at.items():
        all_bytes = next(iter(kinds.values()))[0]["bytes"]
        print(
            f"\n{nodes} nodes, {all_bytes / running.MIB:.0f} MiB in all, a checkpoint until it is "
            "committed. "
            f"Plain TCP over a server's link: {all_bytes / rate:.2f} s"
        )
        rows = []
        for kind, ones in kinds.items():
            times = stats.spread([one["s"] for one in ones])
            rows.append(
                [
                    NAMES[kind],
                    f"{times['median']:.2f}",
                    f"{times['q1']:.2f}-{times['q3']:.2f}",
                    f"{1e3 * statistics.median(one['blocked_s'] for one in ones):.0f}",
                    f"{times['median'] / statistics.median(central_s(kinds['central'], rate)):.3f}",
                ]
            )
        reporting.table(["", "s", "quartiles", "blocked ms", "of central"], rows)
    for (nodes, _), run in runs.items():
        rounds = run["rounds"]
        none_s = statistics.median(one["none"]["loop_s"] for one in rounds)
        print(
            f"\nsolver on {nodes} nodes, {none_s:.1f} s without, a checkpoint every "
            f"{none_s * run['every'] / run['steps']:.2f} s; plain TCP to a central server takes "
            f"{run['ideal_central_s']:.2f} s for one"
        )
        reporting.table(
            ["", "slower by %", "quartiles", "checkpoints"],
            [
                [
                    NAMES[kind],
                    f"{100 * found['median']:.1f}",
                    f"{100 * found['q1']:.1f} to {100 * found['q3']:.1f}",
                    len(rounds[0][kind]["checkpoints"]),
                ]
                for kind in rounds[0]
                if kind != "none"
                for found in [stats.spread(slowdown(rounds, kind))]
            ],
        )


def ratio_of_medians(column: int, rows: Sequence[tuple[float, ...]]) -> float:
    """The first column over another one."""
    below = statistics.median(row[column] for row in rows)
    return statistics.median(row[0] for row in rows) / (below or float("nan"))


def figures_of(
    streams: Streams, at: dict[int, Samples], runs: Runs, rate: float
) -> dict[str, Figure]:
    figures = {}
    for (link, holders), ones in streams.items():
        key = (
            "stream_over_tcp"
            + ("" if link == "1gbit" else f"_{link}")
            + ("" if holders == 1 else f"_{holders}_holders")
        )
        if (link, holders) == ("unlimited", 1):
            figures.update(floor_figures(ones))
            continue
        figures[key] = stats.figure(over_tcp(ones))
        if key == "stream_over_tcp":
            figures["tcp_over_tcp"] = stats.figure(
                [one["raw_s"][0] / one["raw_s"][1] for one in ones]
            )
    both = []
    for nodes, kinds in at.items():
        # Unpaired: the holders differ from step to step, the server's time hardly does.
        central = statistics.median(central_s(kinds["central"], rate))
        figures[f"one_replica_over_central_{nodes}"] = stats.figure(
            [one["s"] / central for one in kinds["k1"]]
        )
        figures[f"central_over_ideal_{nodes}"] = stats.figure(
            [one["s"] / (one["bytes"] / rate) for one in kinds["central"]]
        )
        both += [(nodes, one["s"] / central) for one in kinds["k1"] if nodes in (8, 16)]
    if both:  # the worse of both sizes
        worse = max(
            (8, 16), key=lambda n: statistics.median([r for nodes, r in both if nodes == n] or [0])
        )
        figures["one_replica_over_central"] = stats.figure(
            [r for nodes, r in both if nodes == worse]
        )
    for (nodes, factor), run in runs.items():
        pairs = [
            (
                one["k1"]["loop_s"] - one["none"]["loop_s"],
                one["central"]["loop_s"] - one["none"]["loop_s"],
                one["waited"]["loop_s"] - one["none"]["loop_s"],
            )
            for one in run["rounds"]
        ]
        name = f"_{nodes}_every_{factor:g}"
        for at_least, which in ((1, ""), (2, "_waited")):
            figures[f"one_replica_slowdown_over_central{which}{name}"] = stats.figure(
                pairs, functools.partial(ratio_of_medians, at_least)
            )
        figures[f"one_replica_slowdown{name}"] = stats.figure(slowdown(run["rounds"], "k1"))
        figures[f"central_slowdown{name}"] = stats.figure(slowdown(run["rounds"], "central"))
        if (nodes, factor) == (8, 0.5):
            for which in ("", "_waited"):
                over = f"one_replica_slowdown_over_central{which}"
                figures[over] = figures[f"{over}{name}"]
    return figures


def plot(args: argparse.Namespace, at: dict[int, Samples], runs: Runs, footnote: str) -> None:
    commit = svg.Panel("a checkpoint until it is committed", "nodes", "s", log_x=True, log_y=True)
    for kind in NAMES:
        points = []
        for nodes, kinds in at.items():
            if kind in kinds:
                found = stats.spread([one["s"] for one in kinds[kind]])
                points.append((nodes, found["median"], found["q1"], found["q3"]))
        if points:
            commit.line(NAMES[kind], points)
    slower = svg.Panel(
        "what a solver on 8 nodes loses", "s between two checkpoints", "%", log_x=True
    )
    for kind in NAMES:
        points = []
        for (nodes, _), run in runs.items():
            if nodes == 8 and kind in run["rounds"][0]:
                every_s = (
                    statistics.median(one["none"]["loop_s"] for one in run["rounds"])
                    * run["every"]
                    / run["steps"]
                )
                found = stats.spread(slowdown(run["rounds"], kind))
                points.append(
                    (every_s, 100 * found["median"], 100 * found["q1"], 100 * found["q3"])
                )
        if points:
            slower.line(NAMES[kind], points)
    panels = [panel for panel, there in ((commit, at), (slower, runs)) if there]
    if panels:
        svg.save(reporting.result_path(args, "replication", ".svg"), footnote, panels)


def link_rate(args: argparse.Namespace, program: str) -> float:
    """Bytes/s of plain TCP over one link at --rate."""
    with Bed(args, 2, rate=args.rate) as bed:
        ones = bed.run(
            "k1",
            2,
            program,
            [
                "--do",
                "write",
                "--size",
                32 * running.MIB,
                "--only",
                0,
                "--rounds",
                2,
                "--beside",
                bed.cluster.address("n2"),
            ],
        )
        rates: list[float] = [32 * running.MIB / raw for one in ones for raw in one["raw_s"]]
        return statistics.median(rates)


def main() -> None:
    args = running.arguments("replication", __doc__, more)
    running.end_on_signals()
    why = cl.missing() or shared.missing()
    if why:
        reporting.not_measured(args, "replication", why, GOALS)
        return
    program = running.build(args.prefix, "spread")
    machine = facts.Machine(args.dir)
    rate = link_rate(args, program)
    print(
        f"links of {args.rate}: {rate / 1e6:.1f} MB/s of plain TCP; servers: {shared.what()}",
        flush=True,
    )
    wanted = (args.only,) if args.only else ("stream", "commit", "solver")
    streams = stream(args, program) if "stream" in wanted else {}
    at = commits(args, program) if "commit" in wanted else {}
    runs = solver(args, rate) if "solver" in wanted else {}
    show(streams, at, runs, rate)
    print(f"\n{REPORTED}")
    footnote = reporting.finish(
        args,
        "replication",
        machine,
        figures_of(streams, at, runs, rate),
        GOALS,
        {
            "servers": shared.what(),
            "link_bytes_per_s": rate,
            "reported": REPORTED,
            "stream": [
                {"link": link, "holders": holders, "rounds": ones}
                for (link, holders), ones in streams.items()
            ],
            "commits": [
                {"nodes": nodes, "kind": kind, "checkpoints": ones}
                for nodes, kinds in at.items()
                for kind, ones in kinds.items()
            ],
            "solver": [
                {"nodes": nodes, "interval_of_ideal": factor, **run}
                for (nodes, factor), run in runs.items()
            ],
        },
    )
    plot(args, at, runs, footnote)


if __name__ == "__main__":
    main()
