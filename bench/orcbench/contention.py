"""How long does a burst of 256 ranks on four servers take, on disks that seek?

32 nodes with 8 ranks each, and 4 targets, on one machine (testbed/cluster): each server has a model
disk of its own (testbed/cluster/disks.py: one head, command queueing) with ext4, links have 1
Gbit/s. Images have the sizes of the documents' Table I, scaled down. The clock runs from the first
rank's call until all know that the checkpoint is committed, which is after the fsync of every file.
The modes take turns, each on fresh files; between two, all caches are empty.

    traditional   every rank striped over all servers, 64 KiB at a time; servers write what comes as
                  it comes
    vertical      every rank whole on its node's server; servers write what comes as it comes
    marshaled     the same, one rank of a node after the other: the documents' orchestration, with
                  servers that know nothing of it
    orchestrated  the same, and servers pull (orcheck server as it is)

Servers that write what comes as it comes do so past the page cache ("write-through"), or through it
("cached"), with no more dirty memory than 1/16 of the burst, as on machines whose memory is far
smaller than a burst.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from orcbench import bursts, facts, reporting, running, stats, svg
from orcbench.stats import Figure, Sample, Samples
from testbed.cluster import cluster as cl
from testbed.cluster import disks as model

# Name, mode, nodes, ranks of a node, bytes of a rank.
Case = tuple[str, str, int, int, int]

GOALS = {
    "orchestrated_over_traditional_time": ("<=", 0.5),
    "orchestrated_over_cached_traditional_time": ("<=", 0.9),
    "plain_orchestrated_over_traditional_time": ("<=", 1.05),
    "rate_256_over_16": (">=", 0.95),
}
NODES, PER_NODE, SERVERS = 32, 8, 4
ORDERS = {order: ["--order", order] for order in ("arrival", "arrival-cached", "pull")}
# Mode of this benchmark -> mode of the library, order of the servers.
MODES = {
    "traditional": ("traditional", "arrival"),
    "traditional, cached": ("traditional", "arrival-cached"),
    "vertical": ("vertical", "arrival"),
    "vertical, cached": ("vertical", "arrival-cached"),
    "marshaled": ("orchestrated", "arrival"),
    "orchestrated": ("orchestrated", "pull"),
}
RANKS = (16, 32, 64, 128, 256)
# Numbers of ranks of Table I: those of BT and SP are squares, on as many nodes as the document has.
TASKS, SQUARES = (32, 64, 128, 256), (36, 64, 196, 256)
UNEVEN = {36: (12, 3), 196: (28, 7)}
# The documents' Table I, in GB: class C at 256 ranks; class D at each number of ranks.
TABLE = {
    "LU": (2.5, (12, 12, 14, 16)),
    "CG": (2.1, (20, 20, 21, 22)),
    "BT": (4.2, (26, 28, 31, 32)),
    "SP": (3.7, (22, 24, 27, 28)),
    "FT": (9.3, (None, 81, 81, 82)),
}
# What the documents' text says of class D at 256 ranks, seconds: traditional, orchestrated.
REPORTED = (
    "Jin et al.: LU.D.256 157.41 s traditional, 105.99 s orchestrated; class C halved for 4 of 5; "
    "class D about 30 % less"
)
SMALL = 65536  # bytes of a rank's image, in bursts of next to no bytes
PARTS = ("headline", "tasks", "ranks", "images", "plain")


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gib",
        type=float,
        default=1.5,
        help="GiB of a burst in parts headline, ranks and plain (default 1.5)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=None,
        help="rounds of the headline and of plain (default 5, --full 15)",
    )
    parser.add_argument(
        "--other-rounds",
        type=int,
        default=None,
        help="rounds of the other parts (default 2, --full 5)",
    )
    parser.add_argument(
        "--scale",
        type=int,
        default=None,
        help="images of Table I are divided by this (default 48, --full 16)",
    )
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="one of the parts; repeatable"
    )
    parser.add_argument("--way", action="append", choices=MODES, help="one of the ways; repeatable")
    parser.add_argument("--rate", default="1gbit", help="of each link (default 1gbit)")
    parser.add_argument(
        "--disk-mb-per-s",
        type=float,
        default=55,
        help="model disks: MB/s in sequence (default 55, the documents' disk)",
    )


def turns(
    bed: bursts.Bed, cases: Sequence[Case], rounds: int, disks: model.Disks | None, title: str
) -> Samples:
    """case name -> bursts; cases: (name, mode, nodes, ranks of a node, bytes of a rank), in
    rotating order.
    """
    cases = [
        case
        for case in cases
        if case[1] in (bed.args.way or MODES)
        and (bed.limits or not disks or "cached" not in case[1])
    ]
    if not cases:
        return {}
    for _, mode, nodes, per_node, size in {case[1]: case for case in reversed(cases)}.values():
        # The first use of anything is not what is measured.
        bed.burst(*MODES[mode], nodes, per_node, size, disks)
    samples: Samples = {case[0]: [] for case in cases}
    small: dict[str, dict[str, Any]] = {}
    if disks:
        # What a burst takes apart from its bytes: one of next to none.
        for name, mode, nodes, per_node, size in cases:
            key = (mode, nodes, per_node, bursts.chunk_of(size))
            if key not in bed.small:
                bed.small[key] = [
                    bed.burst(*MODES[mode], nodes, per_node, SMALL, disks, like=size)
                    for _ in range(2)
                ]
            small[name] = {
                "bytes_per_rank": SMALL,
                "measured_s": median(bed.small[key], "s"),
                "begin_s": median(bed.small[key], "blocked_s"),
            }
    for number in range(rounds):
        first = number % len(cases)
        for name, mode, nodes, per_node, size in cases[first:] + cases[:first]:
            one = dict(
                bed.burst(*MODES[mode], nodes, per_node, size, disks),
                mode=mode,
                small=small.get(name),
            )
            samples[name].append(one)
            print(
                f"{title}, round {number + 1} of {rounds}, {name}: {one['s']:.2f} s, "
                f"{one['rate'] / 1e6:.0f} MB/s, "
                f"{one['streams_per_server'] or '-'} streams a server, processors "
                f"{100 * one['busy']:.0f} % busy",
                file=sys.stderr,
                flush=True,
            )
    return samples


def better(samples: Samples, *names: str) -> str:
    """The one of these that took less, by median."""
    return min(
        (name for name in names if name in samples),
        key=lambda name: median(samples[name], "s"),
        default=names[0],
    )


def over(samples: Samples, one: str, other: str, key: str = "s") -> Figure:
    return stats.figure(
        [a[key] / b[key] for a, b in zip(samples.get(one, []), samples.get(other, []))]
    )


def show(title: str, samples: Samples) -> None:
    print(f"\n{title}")
    rows = []
    for name, ones in samples.items():
        s, busy = stats.spread([one["s"] for one in ones]), max(one["busy"] for one in ones)
        rows.append(
            [
                name,
                f"{s['median']:.2f}",
                f"{s['q1']:.2f}-{s['q3']:.2f}",
                f"{stats.spread([one['rate'] for one in ones])['median'] / 1e6:.0f}",
                max(one["streams_per_server"] or 0 for one in ones) or "-",
                facts.percent(busy),
            ]
        )
    reporting.table(["", "s", "quartiles", "MB/s", "streams a server", "processors busy"], rows)


def tasks_of(name: str) -> tuple[int, ...]:
    """Numbers of ranks of a program in Table I."""
    return SQUARES if name in ("BT", "SP") else TASKS


def spread_of(ranks: int) -> tuple[int, int]:
    """Nodes and ranks a node: first all nodes get one."""
    if ranks in UNEVEN:
        return UNEVEN[ranks]
    nodes = min(NODES, ranks)
    return nodes, ranks // nodes


def page(size: float) -> int:
    return max(int(size) // 65536 * 65536, 65536)


def on_model_disks(
    args: argparse.Namespace, program: str, parts: Sequence[str], found: dict[str, Samples]
) -> Sample:
    rounds, others = (
        args.rounds or (15 if args.full else 5),
        args.other_rounds or (5 if args.full else 2),
    )
    scale, size = (
        args.scale or (16 if args.full else 48),
        page(args.gib * (1 << 30) / (NODES * PER_NODE)),
    )
    names = [f"s{number + 1}" for number in range(SERVERS)]
    # Room for the largest burst twice. All of it is touched: memory that a host has to give is no
    # part of a disk's time.
    largest = max(args.gib * (1 << 30), max(sizes[-1] for _, sizes in TABLE.values()) * 1e9 / scale)
    room = max(2 << 30, page(2 * largest / SERVERS))
    with (
        model.Disks(
            args.dir,
            names,
            size_bytes=room,
            touch=True,
            rate_bytes_per_s=int(args.disk_mb_per_s * 1e6),
        ) as disks,
        bursts.Bed(
            args, program, [disks.path(name) for name in names], NODES, PER_NODE, ORDERS, args.rate
        ) as bed,
    ):
        if "headline" in parts:
            cases = [(mode, mode, NODES, PER_NODE, size) for mode in MODES]
            found["headline"] = turns(bed, cases, rounds, disks, "256 ranks")
            show(f"256 ranks, {args.gib:g} GiB, model disks", found["headline"])
        if "ranks" in parts:
            cases = []
            for ranks in RANKS:
                nodes, per_node = spread_of(ranks)
                each = page(args.gib * (1 << 30) / ranks)
                cases += [
                    (f"{mode}, {ranks} ranks", mode, nodes, per_node, each)
                    for mode in ("traditional", "traditional, cached", "vertical", "orchestrated")
                ]
            found["ranks"] = turns(bed, cases, others, disks, "fixed total")
            show(f"{args.gib:g} GiB by 16 to 256 ranks, model disks", found["ranks"])
        modes = ("traditional", "traditional, cached", "vertical", "orchestrated")
        if "images" in parts:
            cases = [
                (f"{name}.{letter}, {mode}", mode, NODES, PER_NODE, page(total * 1e9 / scale / 256))
                for name, (small, large) in TABLE.items()
                for letter, total in (("C", small), ("D", large[-1]))
                for mode in modes
            ]
            found["images"] = turns(bed, cases, others, disks, "images")
            show(f"images of Table I / {scale}, 256 ranks, model disks", found["images"])
        if "tasks" in parts:
            cases = [
                (
                    f"{name}.D.{ranks}, {mode}",
                    mode,
                    *spread_of(ranks),
                    page(total * 1e9 / scale / ranks),
                )
                for name, (_, large) in TABLE.items()
                for ranks, total in zip(tasks_of(name), large)
                if total
                for mode in modes
            ]
            found["tasks"] = turns(bed, cases, others, disks, "tasks")
            show(f"images of Table I / {scale}, 32 to 256 ranks, model disks", found["tasks"])
        return {"disk": disks.stats("s1"), "link_bytes_per_s": link_rate(bed.cluster)}


def on_plain_disk(args: argparse.Namespace, program: str, found: dict[str, Samples]) -> None:
    """Four directories of the machine's own disk."""
    rounds, size = (
        args.rounds or (15 if args.full else 5),
        page(args.gib * (1 << 30) / (NODES * PER_NODE)),
    )
    with running.scratch(args.dir) as where:
        places = [os.path.join(where, f"s{number + 1}") for number in range(SERVERS)]
        for place in places:
            os.mkdir(place)
        with bursts.Bed(args, program, places, NODES, PER_NODE, ORDERS, args.rate) as bed:
            cases = [(mode, mode, NODES, PER_NODE, size) for mode in MODES]
            found["plain"] = turns(bed, cases, rounds, None, "plain device")
            show(f"256 ranks, {args.gib:g} GiB, this machine's own disk", found["plain"])


TRANSFER = """import socket, sys, time
if sys.argv[1] == "take":
    with socket.create_server((sys.argv[2], 9000)) as door:
        print("ready", flush=True)
        conn = door.accept()[0]
        into, count, begin = bytearray(1 << 20), 0, 0
        while got := conn.recv_into(into):
            begin, count = begin or time.monotonic(), count + got
        print(count / (time.monotonic() - begin))
else:
    conn = socket.create_connection((sys.argv[2], 9000))
    for _ in range(128):
        conn.sendall(bytes(1 << 20))
"""


def link_rate(cluster: cl.Cluster) -> float:
    """Bytes/s of one plain TCP connection from a node to a server."""
    node, server = cluster.nodes[0], cluster.servers[0]
    command = [sys.executable, "-c", TRANSFER]
    taker = cluster.start(
        [*command, "take", cluster.address(server)],
        on=server,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    running.ready(taker, "a plain TCP connection")
    cluster.run([*command, "send", cluster.address(server)], on=node)
    return float(taker.communicate(timeout=60)[0])


def calibration(found: dict[str, Samples], setting: Sample) -> list[dict[str, Any]]:
    """Parameters of the contention model, measured or set apart from the bursts, and the bursts
    (docs/contention.md): a model for each size of a chunk and limit of dirty memory."""
    kinds = {
        "traditional": ("traditional", False),
        "traditional, cached": ("traditional", True),
        "vertical": ("vertical", False),
        "vertical, cached": ("vertical", True),
        "orchestrated": ("orchestrated", False),
    }
    # (size of a chunk, limit of dirty memory) -> cases, and how much was dirty.
    groups: dict[tuple[int, int], tuple[list[dict[str, Any]], list[int]]] = {}
    for part in (name for name in PARTS if name in found and name != "plain"):
        for ones in found[part].values():
            one = ones[0]
            if one["mode"] in kinds:
                mode, cached = kinds[one["mode"]]
                group = groups.setdefault(
                    (bursts.chunk_of(one["bytes_per_rank"]), one.get("dirty_limit_bytes", 0)),
                    ([], []),
                )
                group[0].append(
                    {
                        "mode": mode,
                        "nodes": one["nodes"],
                        "ranks_per_node": one["ranks_per_node"],
                        "servers": SERVERS,
                        "bytes_per_rank": one["bytes_per_rank"],
                        "cached": cached,
                        "part": part,
                        "measured_s": median(ones, "s"),
                        "begin_s": median(ones, "blocked_s"),
                        "small": one["small"],
                    }
                )
                group[1].extend(one.get("dirty_bytes", 0) for one in ones)
    return [
        model_of(setting, chunk, int(stats.spread(dirty)["median"]), cases)
        for (chunk, _), (cases, dirty) in groups.items()
    ]


def model_of(
    setting: Sample, chunk: int, dirty: int, cases: list[dict[str, Any]]
) -> dict[str, Any]:
    disk, rate = setting["disk"], int(setting["link_bytes_per_s"])
    slope_s = (disk["seek_s"] - disk["settle_s"]) * 15 / 8  # testbed/cluster/disk.c
    return {
        "name": f"model disks, chunks of {chunk >> 10} KiB, {dirty / 1e6:.1f} MB dirty a disk",
        "cases": cases,
        "network": {
            "node_rate_bytes_per_s": rate,
            "server_rate_bytes_per_s": rate,
            "latency_s": 50e-6,
        },
        # A server of this library takes the next request of a file when it has written the one
        # before.
        "client": {
            "request_bytes": 65536,
            "vertical_request_bytes": chunk,
            "in_flight": 1,
            "copy_rate_bytes_per_s": 0,
            "stage_slots": 2,
            "begin_s": 0,
        },
        "server": {
            "request_bytes": chunk,
            "at_once": 4,
            "window": 2,
            "cache_bytes": dirty,
            "cache_background_bytes": dirty // 2,
            "write_back_bytes": 4 << 20,
        },
        "disk": {
            "rate_bytes_per_s": disk["rate_bytes_per_s"],
            "request_s": 0,
            "seek_min_s": disk["settle_s"],
            "seek_max_s": disk["settle_s"] + slope_s,
            "span_bytes": disk["size_bytes"],
            "rotation_s": disk["revolution_s"],
            "queue_depth": disk["depth"],
            "command_bytes": model.REQUEST_KIB << 10,
        },
    }


def main() -> None:
    args = running.arguments("contention", __doc__, more)
    running.end_on_signals()
    missing = cl.missing()
    if missing:
        reporting.not_measured(args, "contention", missing, GOALS)
        return
    program = running.build(args.prefix, "burst")
    machine = facts.Machine(args.dir)
    parts, setting = args.only or list(PARTS), None
    found: dict[str, Samples] = {}
    why: dict[str, str] = {}
    if set(parts) - {"plain"}:
        reasons = {
            "model disks": model.missing(),
            "cached servers before model disks": model.missing() or model.cannot_limit(),
        }
        why = {what: text for what, text in reasons.items() if text}
        for what, text in why.items():
            print(f"NOT MEASURED: {what}: {text}", flush=True)
        if "model disks" not in why:
            setting = on_model_disks(args, program, parts, found)
    if "plain" in parts:
        on_plain_disk(args, program, found)
    headline, plain, ranks = (found.get(part, {}) for part in ("headline", "plain", "ranks"))
    best = better(plain, "traditional", "traditional, cached")
    figures = {
        "orchestrated_over_traditional_time": over(headline, "orchestrated", "traditional"),
        "orchestrated_over_cached_traditional_time": over(
            headline, "orchestrated", "traditional, cached"
        ),
        "vertical_over_traditional_time": over(headline, "vertical", "traditional"),
        "marshaled_over_traditional_time": over(headline, "marshaled", "traditional"),
        # The better of both.
        "plain_orchestrated_over_traditional_time": over(plain, "orchestrated", best),
        "plain_orchestrated_over_direct_traditional_time": over(
            plain, "orchestrated", "traditional"
        ),
        "plain_orchestrated_over_cached_traditional_time": over(
            plain, "orchestrated", "traditional, cached"
        ),
        "rate_256_over_16": over(
            ranks, "orchestrated, 256 ranks", "orchestrated, 16 ranks", "rate"
        ),
        "traditional_rate_256_over_16": over(
            ranks, "traditional, 256 ranks", "traditional, 16 ranks", "rate"
        ),
        "cached_rate_256_over_16": over(
            ranks, "traditional, cached, 256 ranks", "traditional, cached, 16 ranks", "rate"
        ),
        **streams(headline),
        **by_images(found.get("images", {})),
        **by_tasks(found.get("tasks", {})),
    }
    footnote = reporting.finish(
        args,
        "contention",
        machine,
        figures,
        GOALS,
        {
            "setting": setting,
            "raw": found,
            "reported": REPORTED,
            "plain_baseline": best,
            "not_measured": why,
            **({"model": calibration(found, setting)} if setting else {}),
        },
    )
    print(REPORTED)
    draw(args, found, footnote)


def streams(headline: Samples) -> dict[str, Figure]:
    """Files that a server has open for writing at the same time, at most."""
    return {
        f"streams_{mode}": stats.figure(
            [max(found)]
            if (found := [one["streams_per_server"] or 0 for one in headline.get(mode, [])])
            else []
        )
        for mode in ("traditional", "vertical", "orchestrated")
    }


def by_images(images: Samples) -> dict[str, Figure]:
    """Times of orchestrated over those of others, one for each program of Table I."""
    figures = {}
    for baseline, word in (("traditional", "traditional"), ("traditional, cached", "cached")):
        for letter in "CD":
            each = [
                median(ones, "s") / median(others, "s")
                for name in TABLE
                for ones in [images.get(f"{name}.{letter}, orchestrated")]
                for others in [images.get(f"{name}.{letter}, {baseline}")]
                if ones and others
            ]
            figures[f"class_{letter.lower()}_over_{word}"] = stats.figure(each)
        figures[f"lu_d_over_{word}"] = over(images, "LU.D, orchestrated", f"LU.D, {baseline}")
    return figures


def by_tasks(tasks: Samples) -> dict[str, Figure]:
    """What is kept of the rate from the fewest to 256 ranks, one for each program; and how much
    longer orchestrated takes when ranks double.
    """
    figures = {}
    modes = {"traditional": "traditional", "traditional, cached": "cached"}
    for mode, word in {**modes, "vertical": "vertical", "orchestrated": "orchestrated"}.items():
        kept = []
        for name, (_, large) in TABLE.items():
            least = next(ranks for ranks, total in zip(tasks_of(name), large) if total)
            few, many = (tasks.get(f"{name}.D.{ranks}, {mode}") for ranks in (least, TASKS[-1]))
            if few and many:
                kept.append(median(many, "rate") / median(few, "rate"))
        figures[f"tasks_{word}_kept"] = stats.figure(kept)
    for name in ("LU", "CG"):
        figures[f"tasks_{name.lower()}_doubled"] = over(
            tasks, f"{name}.D.256, orchestrated", f"{name}.D.128, orchestrated"
        )
    return figures


def median(ones: list[Sample], key: str) -> float:
    return stats.spread([one[key] for one in ones])["median"]


def draw(args: argparse.Namespace, found: dict[str, Samples], footnote: str) -> None:
    """As the documents' figures 1 and 5 to 8."""
    modes, panels = ("traditional", "traditional, cached", "vertical", "orchestrated"), []
    if "ranks" in found:
        panel = svg.Panel(
            f"fixed total of {args.gib:g} GiB (figure 1)", "ranks", "MB/s", log_x=True
        )
        for mode in modes:
            points = [(ranks, found["ranks"].get(f"{mode}, {ranks} ranks")) for ranks in RANKS]
            panel.line(
                mode, [(ranks, median(ones, "rate") / 1e6) for ranks, ones in points if ones]
            )
        panels.append(panel)
    if "images" in found:
        names = list(TABLE)
        for letter, figure in (("D", "5"), ("C", "8")):
            panel = svg.Panel(
                f"class {letter}, 256 ranks (figure {figure})",
                "",
                "s",
                x_names=list(enumerate(names)),
            )
            for mode in modes:
                points = [
                    (number, found["images"].get(f"{name}.{letter}, {mode}"))
                    for number, name in enumerate(names)
                ]
                panel.line(
                    mode,
                    [(number, median(ones, "s")) for number, ones in points if ones],
                    joined=False,
                )
            panels.append(panel)
    for name in TABLE if "tasks" in found else ():
        panel = svg.Panel(f"{name}.D (figures 6, 7)", "ranks", "MB/s", log_x=True)
        for mode in modes:
            points = [
                (ranks, found["tasks"].get(f"{name}.D.{ranks}, {mode}")) for ranks in tasks_of(name)
            ]
            panel.line(
                mode, [(ranks, median(ones, "rate") / 1e6) for ranks, ones in points if ones]
            )
        panels.append(panel)
    for part, title in (
        ("headline", "256 ranks, model disks"),
        ("plain", "256 ranks, plain device"),
    ):
        if part in found:
            panel = svg.Panel(title, "round", "s")
            for name, samples in found[part].items():
                panel.line(name, [(number + 1, one["s"]) for number, one in enumerate(samples)])
            panels.append(panel)
    svg.save(reporting.result_path(args, "contention", ".svg"), footnote, panels)


if __name__ == "__main__":
    main()
