"""What does parity cost, beside replicas: time, bytes sent, bytes stored, processor, rebuild?

On a cluster of namespaces (testbed/cluster) whose links have a rate. All nodes of one group take a
checkpoint: 8 nodes with xor=8, 10 nodes with rs=8+2, and the same with replicas.

1. How fast do the bytes leave a node, beside plain TCP on the same link, and beside an exchange of
   as many bytes between all nodes at once, by MPI? From the call of orc_checkpoint until the step
   is committed, durable on all nodes.
2. How many bytes does a node send and store beyond its own?
3. How fast is a lost node's part rebuilt, on an empty disk in its place?
4. How much processor time does the arithmetic take, beside a copy of the same bytes?

What should come out. With m parities every node sends its bytes S m times, and receives as many: it
should take m S over the link's rate, as m replicas would if every node held as many as it sends;
replicas are drawn for each node, and the busiest holder receives 2.6 parts (n = 8). What is stored
is m/k of S, beside m S. A rebuild receives k S for the container and S for the parity file.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

from orcbench import facts, reporting, running, stats
from orcbench.replication import Bed, link_rate
from orcbench.stats import Sample
from testbed.cluster import cluster as cl
from testbed.cluster import shared

GOALS = {
    "encode_over_link": (">=", 0.9),
    "encode_over_link_rs": (">=", 0.9),
    "sent_xor": ("<=", 1.05),
    "sent_rs": ("<=", 2.1),
    "stored_xor_over_ideal": ("<=", 1.05),
    "stored_rs_over_ideal": ("<=", 1.05),
}
# name -> (nodes, options, parities or replicas, bytes stored beyond the data if nothing is wasted)
WAYS = {
    "xor=8": (8, "protect = 'xor=8'", 1, 1 / 7),
    "1 replica, 8 nodes": (8, "peers = 1", 1, 1.0),
    "rs=8+2": (10, "protect = 'rs=8+2'", 2, 2 / 8),
    "2 replicas, 10 nodes": (10, "peers = 2", 2, 2.0),
}


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rate", default="200mbit", help="of each link (default 200mbit: it is the limit then)"
    )
    parser.add_argument("--mib", type=int, default=64, help="MiB a node (default 64)")
    parser.add_argument(
        "--rounds", type=int, default=None, help="checkpoints of each way (default 5, --full 15)"
    )


class ParityBed(Bed):
    """A cluster on which a job's files stay until they are asked for."""

    def launch(
        self, nodes: int, program: str, options: str, argv: list[object], job: str
    ) -> list[Sample]:
        """One run of the program; its report."""
        report = os.path.join(self.cluster.work, "report")
        hosts = self.cluster.nodes[:nodes]
        command = ["mpirun.openmpi", "--host", ",".join(hosts), "-n", str(nodes), program]
        command += ["--job", job, "--level", "peers", "--report", report]
        command += ["--options", f"keep = 1\nnode_dir = '{self.cluster.local}'\n{options}"]
        self.cluster.run([*command, *map(str, argv)], timeout_s=1800)
        with open(report) as file:
            found: Any = json.load(file)
        return found if isinstance(found, list) else [found]

    def sent_bytes(self, nodes: int) -> int:
        """What all nodes have sent through their links so far."""
        total = 0
        for node in self.cluster.nodes[:nodes]:
            links = json.loads(self.cluster.run(["ip", "-j", "-s", "link"], on=node))
            outside = [link for link in links if link["ifname"] != "lo"]
            total += sum(link["stats64"]["tx"]["bytes"] for link in outside)
        return total

    def stored_bytes(self, nodes: int) -> tuple[int, int]:
        """Bytes of containers where they were written, and beyond these, of one step."""
        own, beyond = 0, 0
        for number, node in enumerate(self.cluster.nodes[:nodes]):
            said = self.cluster.run(
                ["find", self.cluster.local, "-type", "f", "-printf", "%s %f\n"], on=node
            )
            for line in said.splitlines():
                size, name = line.split(" ", 1)
                if name.endswith(".orc") and f"-n{number:04d}-" in name:
                    own += int(size)
                elif name.endswith((".orc", ".parity")):
                    beyond += int(size)
        return own, beyond

    def clear(self, nodes: list[str]) -> None:
        for node in nodes:
            self.cluster.run(["sh", "-c", f"rm -rf {self.cluster.local}/*"], on=node)


def measure(args: argparse.Namespace, program: str) -> dict[str, dict[str, Any]]:
    """way -> checkpoints, bytes sent and stored for each byte of data, and a rebuild."""
    rounds = args.rounds or (15 if args.full else 5)
    size = args.mib * running.MIB
    found: dict[str, dict[str, Any]] = {}
    for nodes in (8, 10):
        with ParityBed(args, nodes, 0, args.rate) as bed:
            for way, (wanted, options, count, _) in WAYS.items():
                if wanted != nodes:
                    continue
                write: list[object] = ["--do", "write", "--size", size, "--rounds", rounds]
                before = bed.sent_bytes(nodes)
                ones = bed.launch(nodes, program, options, write, "job")
                # The first round is not reported, and sends too.
                sent = (bed.sent_bytes(nodes) - before) / ((rounds + 1) * nodes * size)
                own, beyond = bed.stored_bytes(nodes)
                exchanges: list[Sample] = []
                if "=" in way:
                    plain: list[object] = ["--do", "exchange", "--size", count * size]
                    plain += ["--rounds", rounds]
                    exchanges = bed.launch(nodes, program, options, plain, "job")
                rebuilds = []
                lost = bed.cluster.nodes[2]
                for _ in range(3 if "=" in way else 0):
                    bed.clear([lost])
                    again: list[object] = ["--do", "restart", "--size", size]
                    rebuilds += bed.launch(
                        nodes, program, f"{options}\nclose = 'copies'", again, "job"
                    )
                bed.clear(bed.cluster.nodes[:nodes])
                found[way] = {
                    "checkpoints": ones,
                    "exchanges": exchanges,
                    "sent": sent,
                    "stored": beyond / own,
                    "rebuilds": rebuilds,
                }
                print(
                    f"{way}: {statistics.median(one['s'] for one in ones):.2f} s, sent {sent:.3f}, "
                    f"stored {beyond / own:.4f} of the data, times {count}",
                    file=sys.stderr,
                    flush=True,
                )
    return found


def arithmetic() -> dict[str, Any]:
    """Processor time of the codes beside a copy."""
    command = ["cargo", "run", "-q", "--release", "--locked", "-p", "orcheck-placement"]
    said = subprocess.run(
        [*command, "--example", "parity_speed", "256", "15"],
        cwd=running.ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def figures_of(
    found: dict[str, dict[str, Any]], codes: dict[str, Any], rate: float, size: int
) -> dict[str, stats.Figure]:
    figures = {"encode_over_memcpy": stats.figure(codes["xor=8"]["pairs"])}
    for name in ("rs=4+2", "rs=8+2", "rs=8+4"):
        figures[f"encode_over_memcpy_{name}"] = stats.figure(codes[name]["pairs"])
    for way, short in (("xor=8", "xor"), ("rs=8+2", "rs")):
        _, _, count, ideal = WAYS[way]
        one = found[way]
        key = "encode_over_link" + ("" if short == "xor" else "_rs")
        figures[key] = stats.figure([count * size / rate / r["s"] for r in one["checkpoints"]])
        exchange_s = statistics.median(r["s"] for r in one["exchanges"])
        figures[key.replace("link", "exchange")] = stats.figure(
            [exchange_s / r["s"] for r in one["checkpoints"]]
        )
        figures[f"sent_{short}"] = stats.figure([one["sent"]])
        figures[f"stored_{short}_over_ideal"] = stats.figure([one["stored"] / ideal])
    data = 7
    figures["rebuild_over_link"] = stats.figure(
        [(data + 1) * size / rate / r["close_s"] for r in found["xor=8"]["rebuilds"]]
    )
    figures["degraded_read_over_link"] = stats.figure(
        [data * size / rate / r["read_s"] for r in found["xor=8"]["rebuilds"]]
    )
    for parity, copies in (("xor=8", "1 replica, 8 nodes"), ("rs=8+2", "2 replicas, 10 nodes")):
        copied_s = statistics.median(r["s"] for r in found[copies]["checkpoints"])
        figures[f"safe_over_replicas_{parity}"] = stats.figure(
            [r["s"] / copied_s for r in found[parity]["checkpoints"]]
        )
    return figures


def show(found: dict[str, dict[str, Any]], rate: float, size: int) -> None:
    print(f"\n{size / running.MIB:.0f} MiB a node; one over its link: {size / rate:.2f} s")
    rows = []
    for way, one in found.items():
        times = stats.spread([r["s"] for r in one["checkpoints"]])
        rebuilt = [r["close_s"] for r in one["rebuilds"]]
        plain = one["exchanges"]
        rows.append(
            [
                way,
                f"{times['median']:.2f}",
                f"{times['q1']:.2f}-{times['q3']:.2f}",
                f"{1e3 * statistics.median(r['blocked_s'] for r in one['checkpoints']):.0f}",
                f"{statistics.median(r['s'] for r in plain):.2f}" if plain else "",
                f"{one['sent']:.3f}",
                f"{one['stored']:.4f}",
                f"{statistics.median(rebuilt):.2f}" if rebuilt else "",
            ]
        )
    reporting.table(
        [
            "",
            "safe after s",
            "quartiles",
            "blocked ms",
            "exchange s",
            "sent",
            "stored",
            "rebuilt s",
        ],
        rows,
    )


def main() -> None:
    args = running.arguments("parity", __doc__, more)
    running.end_on_signals()
    why = cl.missing() or shared.missing()
    if why:
        reporting.not_measured(args, "parity", why, GOALS)
        return
    program = running.build(args.prefix, "spread")
    machine = facts.Machine(args.dir)
    codes = arithmetic()
    rate = link_rate(args, program)
    print(f"links of {args.rate}: {rate / 1e6:.1f} MB/s of plain TCP", flush=True)
    found = measure(args, program)
    size = args.mib * running.MIB
    show(found, rate, size)
    reporting.finish(
        args,
        "parity",
        machine,
        figures_of(found, codes, rate, size),
        GOALS,
        {"link_bytes_per_s": rate, "codes": codes, "ways": found},
    )


if __name__ == "__main__":
    main()
