"""How long does a checkpoint take on a real parallel file system, in three ways?

MooseFS on a cluster of namespaces (testbed/cluster): a master, four chunkservers, links with a
rate, a mount on each node. Program, engine and bytes are the same; what differs is where files are
put and who writes when:

    traditional    MooseFS's own spread: every rank writes a file of its own into one directory, all
                   at once, and the master chooses a chunkserver for each chunk of 64 MiB. One
                   copy (class 1; its default is two)
    vertical       the same files, but each node's on a chunkserver of its own (`orcheck place`)
    orchestrated   as vertical, but a node writes one container for all its ranks, one stream at a
                   time

MooseFS does not stripe within 64 MiB, so its own spread is kinder to its disks than stripes of 64
KiB would be. The three take turns within a round, in rotating order, each a job of its own. The
clock is that of src/spread.c: from the first rank that enters orc_checkpoint until the last knows
that the step is committed. Chunkservers sync a chunk before they close it (HDD_FSYNC_BEFORE_CLOSE).
Their disks are model disks with one head (cluster/disks.py), and directories of this machine's disk
("plain").
"""

import argparse
import itertools
import json
import os
import statistics
import sys
from collections.abc import Sequence

from orcbench import facts, reporting, running, stats, svg
from orcbench.stats import Figure, Sample, Samples
from testbed.cluster import cluster as cl
from testbed.cluster import disks as md
from testbed.cluster import moosefs as mo

NODES, SERVERS = 8, 4
KINDS = ("traditional", "vertical", "orchestrated")
GOALS = {"orchestrated_over_traditional_time": ("<=", 0.9)}
# The master reserves 64 MiB for each chunk that is being written.
DISK_BYTES = 40 << 30


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", default="1gbit", help="of each link (default 1gbit)")
    parser.add_argument("--mib", type=int, default=24, help="MiB a node (default 24)")
    parser.add_argument("--ranks", default="8,32,64", help="ranks on 8 nodes (default 8,32,64)")
    parser.add_argument(
        "--rounds",
        type=int,
        default=None,
        help="rounds: a checkpoint in each of the three ways (default 3, --full 15)",
    )
    parser.add_argument("--only", choices=["model", "plain"], help="one kind of disks")


def place(cluster: cl.Cluster, moosefs: mo.MooseFS, orcheck: str) -> dict[str, list[str]]:
    """kind -> directories, the same on all nodes."""
    base, spread = os.path.join(moosefs.mount, "pinned"), os.path.join(moosefs.mount, "spread")
    cluster.run(["mkdir", base, spread], on="n1")
    # What gives the baseline its fair chance: one copy as the others, and no trash.
    cluster.run(["mfssetsclass", "1", spread], on="n1")
    cluster.run(["mfssettrashtime", "0", spread], on="n1")
    pinned = json.loads(cluster.run([orcheck, "--json", "place", base], on="n1"))["global"]
    if len(pinned) != SERVERS:
        raise RuntimeError(f"orcheck place found {len(pinned)} servers, expected {SERVERS}")
    return {"traditional": [spread], "vertical": pinned, "orchestrated": pinned}


def one(
    args: argparse.Namespace,
    cluster: cl.Cluster,
    program: str,
    kind: str,
    dirs: Sequence[str],
    ranks: int,
    number: int,
) -> Sample:
    """A checkpoint of a job of its own, after one that is not counted; its files are gone
    afterwards.
    """
    job, report = f"{kind}{number}", os.path.join(cluster.work, "report")
    each = args.mib * running.MIB * NODES // ranks
    mode = "orchestrated" if kind == "orchestrated" else "vertical"
    options = f"keep = 1\nglobal = {dirs}\nmode = '{mode}'"
    hosts = ",".join(f"{node}:{ranks // NODES}" for node in cluster.nodes)
    cluster.run(
        [
            "mpirun.openmpi",
            "--host",
            hosts,
            "-n",
            str(ranks),
            program,
            "--do",
            "write",
            "--job",
            job,
            "--level",
            "global",
            "--size",
            str(each),
            "--rounds",
            "1",
            "--options",
            options,
            "--report",
            report,
        ],
        timeout_s=300,
    )
    cluster.run(["rm", "-rf", *(os.path.join(path, job) for path in dirs)], on="n1")
    with open(report) as file:
        found: Sample = json.load(file)[0]
    return found


def measure(
    args: argparse.Namespace, program: str, orcheck: str, disks: md.Disks | None
) -> dict[int, Samples]:
    """ranks -> kind -> checkpoints, one each in a round, kinds in rotating order."""
    rounds = args.rounds or (15 if args.full else 3)
    counts = [int(text) for text in args.ranks.split(",")]
    found: dict[int, Samples] = {ranks: {kind: [] for kind in KINDS} for ranks in counts}
    names = [f"s{i + 2}" for i in range(SERVERS)]
    with cl.Cluster(args.dir, NODES, SERVERS + 1, args.rate) as cluster:
        places = [os.path.join(disks.path(name), "chunks") for name in names] if disks else None
        for path in places or ():
            os.makedirs(path, exist_ok=True)
        with mo.MooseFS(cluster, places) as moosefs:
            dirs = place(cluster, moosefs, orcheck)
            number = 0
            for turn in range(rounds):
                for ranks in counts:
                    for kind in KINDS[turn % 3 :] + KINDS[: turn % 3]:
                        number += 1
                        found[ranks][kind].append(
                            one(args, cluster, program, kind, dirs[kind], ranks, number)
                        )
                    print(
                        f"round {turn + 1} of {rounds}, {'model' if disks else 'plain'} disks, "
                        f"{ranks} ranks: "
                        + "  ".join(
                            f"{kind} {found[ranks][kind][-1]['s']:.2f} s" for kind in KINDS
                        ),
                        file=sys.stderr,
                        flush=True,
                    )
    return found


def ratios(kinds: Samples, kind: str) -> list[float]:
    return [mine["s"] / its["s"] for mine, its in zip(kinds[kind], kinds["traditional"])]


def show(name: str, found: dict[int, Samples]) -> None:
    rows = []
    for ranks, kinds in found.items():
        for kind in KINDS:
            times, busy = (
                stats.spread([one["s"] for one in kinds[kind]]),
                statistics.median(one["busy"] for one in kinds[kind]),
            )
            size = kinds[kind][0]["bytes"]
            rows.append(
                [
                    f"{ranks} ranks, {kind}",
                    f"{times['median']:.2f}",
                    f"{times['q1']:.2f}-{times['q3']:.2f}",
                    f"{size / times['median'] / 1e6:.0f}",
                    f"{statistics.median(ratios(kinds, kind)):.3f}",
                    facts.percent(busy),
                ]
            )
    print(f"\n{name} disks")
    reporting.table(["", "s", "quartiles", "MB/s", "of traditional", "processors busy"], rows)


def panels_of(at: dict[str, dict[int, Samples]]) -> list[svg.Panel]:
    panels = []
    for name, found in at.items():
        panel = svg.Panel(
            f"MooseFS, {SERVERS} servers, {name} disks",
            "ranks on 8 nodes",
            "s until committed",
            log_x=True,
        )
        for kind in KINDS:
            points = []
            for ranks, kinds in found.items():
                times = stats.spread([one["s"] for one in kinds[kind]])
                points.append((ranks, times["median"], times["q1"], times["q3"]))
            panel.line(kind, points)
        panels.append(panel)
    return panels


def main() -> None:
    args = running.arguments("pfs", __doc__, more)
    running.end_on_signals()
    why = cl.missing() or mo.missing()
    if why:
        reporting.not_measured(args, "pfs", why, GOALS)
        return
    program, orcheck = (
        running.build(args.prefix, "spread"),
        os.path.join(args.prefix, "bin", "orcheck"),
    )
    machine = facts.Machine(args.dir)
    at: dict[str, dict[int, Samples]] = {}
    why_no_model = None
    if args.only != "plain":
        why_no_model = md.missing()
        if why_no_model:
            print(f"NOT MEASURED: model disks: {why_no_model}", flush=True)
        else:
            with md.Disks(
                args.dir, [f"s{i + 2}" for i in range(SERVERS)], size_bytes=DISK_BYTES
            ) as disks:
                at["model"] = measure(args, program, orcheck, disks)
    if args.only != "model":
        at["plain"] = measure(args, program, orcheck, None)
    figures: dict[str, Figure] = {}
    for name, found in at.items():
        show(name, found)
        prefix = "" if name == "model" else "plain_"
        for ranks, kinds in found.items():
            for kind in KINDS[1:]:
                figures[f"{prefix}{kind}_over_traditional_time_{ranks}"] = stats.figure(
                    ratios(kinds, kind)
                )
        most = found[max(found)]
        figures[f"{prefix}orchestrated_over_traditional_time"] = stats.figure(
            ratios(most, "orchestrated")
        )
        half = [one["s"] for one in most["traditional"]]
        figures[f"{prefix}traditional_over_traditional"] = stats.figure(
            [b / a for a, b in itertools.pairwise(half)]
        )
    limited = sorted(
        f"{name} disks, {ranks} ranks, {kind}"
        for name, found in at.items()
        for ranks, kinds in found.items()
        for kind in KINDS
        if statistics.median(one["busy"] for one in kinds[kind]) > facts.BUSY
    )
    if limited:
        print("\nthe processors were the limit in: " + "; ".join(limited))
    print(f"\n{mo.what()}")
    footnote = reporting.finish(
        args,
        "pfs",
        machine,
        figures,
        GOALS,
        {
            "moosefs": mo.what(),
            "disk_model": md.MODEL,
            "model_not_measured": why_no_model,
            "processors_were_the_limit": limited,
            "raw": {
                name: {str(ranks): kinds for ranks, kinds in found.items()}
                for name, found in at.items()
            },
        },
    )
    panels = panels_of(at)
    svg.save(reporting.result_path(args, "pfs", ".svg"), footnote, panels)


if __name__ == "__main__":
    main()
