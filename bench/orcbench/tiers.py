"""What does a fast tier on the node gain before a slow global one: until safe, and in a restart?

One node whose disk does 600 MB/s, as an SSD of the documents (Ouyang et al.), and a staging server
whose device does 55 MB/s, as their disk. Both are this machine's disk, limited for the processes of
the node and of the server (throttling.Groups). A checkpoint goes to both levels: the program
continues after its copy, the state survives the program once it is safe on the node, and the loss
of the node once it is safe at the server. A restart takes the node's disk, or the server where that
is lost; nothing is in the page cache.
"""

import argparse
import functools
import os
import shutil
import subprocess
import sys

from orcbench import facts, reporting, running, stats, svg
from orcbench.stats import Sample, Samples
from orcbench.throttling import Groups
from testbed.cluster import disks

NODE_MB_PER_S, GLOBAL_MB_PER_S = 600, 55
GOALS = {
    "node_safe_over_global_safe": ("<=", 0.2),
    "node_restart_over_global_restart": ("<=", 0.2),
}
WAYS = {
    "blocked": "until the program continues",
    "node": "until safe on the node",
    "global": "until safe at the server",
    "restart_node": "restart from the node",
    "restart_global": "restart from the server",
}


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="of each size (default 5)")
    parser.add_argument(
        "--mib", type=int, action="append", help="of the state; repeatable (default 64, 128, 256)"
    )


def measure(args: argparse.Namespace, program: str, mib: int) -> Samples:
    """way -> seconds of each round."""
    found: Samples = {way: [] for way in WAYS}
    rates = {"node": NODE_MB_PER_S * 1_000_000, "server": GLOBAL_MB_PER_S * 1_000_000}
    with running.scratch(args.dir) as where, Groups(where, rates) as groups:
        node, far = (os.path.join(where, name) for name in ("node", "far"))
        for place in (node, far):
            os.mkdir(place)
        key = running.key_file(os.path.join(where, "key"))

        def start(command: list[str], **more: object) -> "subprocess.Popen[str]":
            words = [*groups.within("server"), *command]
            return subprocess.Popen(words, **more)  # type: ignore[call-overload, no-any-return]

        server, address = running.serve(args.prefix, far, "127.0.0.1:0", key, start=start)
        run = functools.partial(running.run, program, 1, within=groups.within("node"))
        try:
            for number in range(args.rounds):
                job = f"tiers-{mib}-{number}"
                pool = f"pool = {(mib + 16) * running.MIB}"
                options = f"node_dir = '{node}'\nglobal = ['{address}']\n{pool}"
                argv = ["--job", job, "--size", mib * running.MIB, "--level", "global"]
                argv += ["--options", options]
                # The first checkpoint is not counted.
                taken = run([*argv, "--do", "write", "--rounds", 1, "--first", "node"])[0]
                found["blocked"].append({"s": taken["blocked_s"]})
                found["node"].append({"s": taken["first_s"]})
                found["global"].append({"s": taken["s"]})
                for way in ("node", "global"):
                    if way == "global":
                        empty(node)
                    disks.drop_caches()
                    again: Sample = run([*argv, "--do", "restart"])
                    found[f"restart_{way}"].append({"s": again["read_s"]})
                empty(node)
                said = "  ".join(f"{way} {ones[-1]['s']:.2f}" for way, ones in found.items())
                print(f"{mib} MiB, round {number + 1}, s: {said}", file=sys.stderr, flush=True)
        finally:
            server.terminate()
            server.wait(60)
    return found


def empty(where: str) -> None:
    """The disk is another one."""
    for entry in os.scandir(where):
        shutil.rmtree(entry.path)


def main() -> None:
    args = running.arguments("tiers", __doc__, more)
    running.end_on_signals()
    why = Groups.missing(args.dir)
    if why:
        reporting.not_measured(args, "tiers", why, GOALS)
        return
    program, machine = running.build(args.prefix, "spread"), facts.Machine(args.dir)
    sizes = args.mib or [64, 128, 256]
    found = {mib: measure(args, program, mib) for mib in sizes}
    print()
    reporting.table(
        ["s", *(f"{mib} MiB" for mib in found)],
        [
            [title, *(f"{median_s(samples[way]):.3f}" for samples in found.values())]
            for way, title in WAYS.items()
        ],
    )
    largest = found[max(found)]
    figures = {
        f"{one}_over_{other}": stats.figure(
            [a["s"] / b["s"] for a, b in zip(largest[first], largest[second])]
        )
        for one, other, first, second in (
            ("node_safe", "global_safe", "node", "global"),
            ("node_restart", "global_restart", "restart_node", "restart_global"),
        )
    }
    footnote = reporting.finish(args, "tiers", machine, figures, GOALS, {"raw": found})
    panel = svg.Panel(
        f"{NODE_MB_PER_S} MB/s on the node before {GLOBAL_MB_PER_S} MB/s", "MiB", "s", True, True
    )
    for way, title in WAYS.items():
        panel.line(title, [(mib, median_s(samples[way])) for mib, samples in found.items()])
    svg.save(reporting.result_path(args, "tiers", ".svg"), footnote, [panel])


def median_s(ones: list[Sample]) -> float:
    return stats.spread([one["s"] for one in ones])["median"]


if __name__ == "__main__":
    main()
