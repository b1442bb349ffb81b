"""How long until a job is back from each level?

One rank, from each level: `node` and `global` from this machine's disk, beside the best of fio's
sequential direct reads of the same file; `peers` from another node over a link of a cluster of
namespaces (needs root), the own disk empty, beside plain TCP over that link; `process` after all
ranks were killed when their checkpoint was staged and not yet on a disk, with the node's agent
alive: there the time holds the rest of the agent's flush. Nothing is in the page cache before.

Then what a restart takes when the bytes are in memory, beside memcpy of the same bytes in the same
process: from the memory that the agent kept when all ranks were killed (`pool`), and from files in
the page cache (`warm`). One rank with 256 MiB, and four with 64 MiB each.

What should come out: the bytes are read in order, in pieces of 4 MiB, and each is checked once it
is there. Over a link of 1 Gbit/s checking is hidden behind the pieces on their way, and the ratio
is near 1. From a disk as fast as a memory copy reading and checking add up unless somebody reads
ahead.
"""

import argparse
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable

from orcbench import facts, reporting, running, stats, svg
from orcbench.stats import Figure, Sample, Samples
from testbed.cluster import cluster as cl

GIB = 1 << 30
LEVELS = ("process", "node", "peers", "global")
GOALS = {
    "read_over_raw": (">=", 0.9),
    **{f"read_over_raw_{level}": (">=", 0.9) for level in LEVELS[1:]},
    "pool_over_memcpy": ("<=", 1.2),
    "warm_over_memcpy": ("<=", 1.3),
    "open_ms": ("<=", 10),
}
# Restarts of what lies in memory: ranks, and MiB of each.
IN_MEMORY = ((1, 256), (4, 64))
COPIES = 5
# Sequential, direct: engine, jobs, requests in flight, MiB a request.
FIO = {
    "psync": ("psync", 1, 4),
    "psync 16 MiB": ("psync", 1, 16),
    "io_uring qd 8": ("io_uring", 8, 4),
}


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mib", type=int, default=1024, help="MiB of the rank's state (default 1024)"
    )
    parser.add_argument(
        "--rate", default="1gbit", help="of the link to the other node (default 1gbit)"
    )
    parser.add_argument(
        "--link-mib", type=int, default=128, help="MiB that come over the link (default 128)"
    )
    parser.add_argument(
        "--rounds", type=int, default=None, help="restarts from each level (default 12, --full 32)"
    )
    parser.add_argument(
        "--only-memory", action="store_true", help="measure only what lies in memory"
    )


def forget(paths: Iterable[str]) -> None:
    """Takes files out of the page cache."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fio(path: str, way: str) -> float:
    engine, depth, mib = FIO[way]
    size = os.path.getsize(path) // (mib * running.MIB) * mib * running.MIB
    command = [
        "fio",
        "--name=r",
        f"--filename={path}",
        "--readonly",
        "--rw=read",
        f"--bs={mib}M",
        f"--size={size}",
        "--direct=1",
        f"--ioengine={engine}",
        f"--iodepth={depth}",
        "--output-format=json",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    read = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]
    return float(read["io_bytes"] / (read["runtime"] / 1e3))


class Job:
    """A job in a directory of its own."""

    def __init__(
        self,
        args: argparse.Namespace,
        program: str,
        where: str,
        options: str,
        level: str,
        size: int,
        ranks: int = 1,
    ) -> None:
        self.program, self.where, self.size, self.ranks = program, where, size, ranks
        self.argv = [
            "--job",
            "job",
            "--size",
            size,
            "--level",
            level,
            "--options",
            f"pool = {ranks * size + 16 * running.MIB}\n{options}",
        ]

    def write(self, leave: int = 0) -> None:
        """One checkpoint, or two; all ranks are killed when the last is staged (1) or safe (2)."""
        try:
            running.run(
                self.program,
                self.ranks,
                [*self.argv, "--do", "write", "--rounds", 1 if leave else 0, "--leave", leave],
            )
        except RuntimeError as error:
            if not leave or "signal 9" not in str(error):
                raise

    def containers(self) -> list[str]:
        return glob.glob(f"{self.where}/**/*.orc", recursive=True)

    def restart(self, cold: bool = True, copies: int = 0) -> Sample:
        if cold:
            forget(self.containers())
        argv = [*self.argv, "--do", "restart", "--copies", copies]
        found: Sample = running.run(self.program, self.ranks, argv)
        found["rate"] = found["bytes"] / found["read_s"]
        return found


def from_disk(args: argparse.Namespace, program: str, rounds: int) -> Samples:
    """level -> rounds of a restart, and of fio in rotating order on the same file."""
    size = args.mib * running.MIB
    found: Samples = {"node": [], "global": []}
    with running.scratch(args.dir) as where:
        jobs = {}
        for level in found:
            root = os.path.join(where, level)
            os.makedirs(root)
            jobs[level] = Job(
                args,
                program,
                root,
                f"node_dir = '{root}'" if level == "node" else f"global = ['{root}']",
                level,
                size,
            )
            jobs[level].write()
        for number in range(rounds):
            for level, job in jobs.items():
                path = max(job.containers(), key=os.path.getsize)
                # Each takes each place in turn: a disk that lends rate in bursts gives the first
                # one more.
                ways = [None, *FIO]
                ways = ways[number % len(ways) :] + ways[: number % len(ways)]
                one: Sample = {}
                raw: dict[str, float] = {}
                for way in ways:
                    forget([path])
                    if way is None:
                        one = job.restart()
                    else:
                        raw[way] = fio(path, way)
                found[level].append({**one, "raw": raw})
                print(
                    f"{level}, round {number + 1} of {rounds}: {one['rate'] / 1e6:.0f} MB/s, fio "
                    + "  ".join(f"{way} {rate / 1e6:.0f}" for way, rate in raw.items()),
                    file=sys.stderr,
                    flush=True,
                )
    return found


def from_process(args: argparse.Namespace, program: str, rounds: int) -> list[Sample]:
    """All ranks are killed with their newest checkpoint staged; the agent has it."""
    agent = os.path.join(args.prefix, "bin", "orcheck")
    found = []
    for number in range(rounds):
        with running.scratch(args.dir) as where:
            options = (
                f"node_dir = '{where}'\nagent = 'start'\n"
                f"agent_program = '{agent}'\nagent_linger_s = 30"
            )
            job = Job(args, program, where, options, "node", args.mib * running.MIB)
            job.write(leave=1)
            one = running.run(program, 1, [*job.argv, "--do", "restart"])
            one["rate"] = one["bytes"] / one["s"]
            found.append(one)
            print(
                f"process, round {number + 1} of {rounds}: step {one['step']} after {one['s']:.2f} "
                "s",
                file=sys.stderr,
                flush=True,
            )
    return found


def in_memory(args: argparse.Namespace, program: str, rounds: int) -> Samples:
    """ranks x MiB -> rounds of a restart from an agent's memory, and one from the page cache."""
    agent = os.path.join(args.prefix, "bin", "orcheck")
    found: Samples = {}
    for ranks, mib in IN_MEMORY:
        ones = found[f"{ranks} x {mib} MiB"] = []
        size = mib * running.MIB
        with running.scratch(args.dir) as where:
            warm_dir = os.path.join(where, "warm")
            os.makedirs(warm_dir)
            warm = Job(args, program, warm_dir, f"node_dir = '{warm_dir}'", "node", size, ranks)
            warm.write()
            for number in range(rounds):
                pool_dir = os.path.join(where, f"pool{number}")
                os.makedirs(pool_dir)
                options = (
                    f"node_dir = '{pool_dir}'\nagent = 'start'\n"
                    f"agent_program = '{agent}'\nagent_linger_s = 30"
                )
                pool = Job(args, program, pool_dir, options, "node", size, ranks)
                pool.write(leave=2)
                one = {"pool": pool.restart(copies=COPIES)}
                if one["pool"]["memory_bytes"] != one["pool"]["bytes"]:
                    raise RuntimeError(f"not all came from memory: {one['pool']}")
                warm.restart(cold=False)  # once more into the page cache
                one["warm"] = warm.restart(cold=False, copies=COPIES)
                shutil.rmtree(pool_dir)
                ones.append(one)
                print(
                    f"{ranks} x {mib} MiB, round {number + 1} of {rounds}: "
                    + ", ".join(
                        f"{way} {over_copy(one[way]):.2f} memcpys, open "
                        f"{one[way]['open_s'] * 1e3:.1f} ms"
                        for way in ("pool", "warm")
                    ),
                    file=sys.stderr,
                    flush=True,
                )
    return found


def over_copy(one: Sample) -> float:
    """Restart over memcpy of the same bytes in the same process."""
    return float(one["read_s"] / statistics.median(one["copy_s"]))


def show_in_memory(found: Samples) -> None:
    rows = []
    for name, ones in found.items():
        for way in ("pool", "warm"):
            each = [one[way] for one in ones]
            copies = [statistics.median(one["copy_s"]) for one in each]
            rows.append(
                [
                    name,
                    way,
                    f"{statistics.median(one['open_s'] for one in each) * 1e3:.1f}",
                    f"{statistics.median(one['read_s'] for one in each) * 1e3:.1f}",
                    f"{statistics.median(copies) * 1e3:.1f}",
                    f"{statistics.median(over_copy(one) for one in each):.2f}",
                ]
            )
    reporting.table(["in memory", "from", "open ms", "read ms", "memcpy ms", "ratio"], rows)


def memory_figures(found: Samples) -> dict[str, Figure]:
    """The worst case of each."""
    figures: dict[str, Figure] = {}
    for way in ("pool", "warm"):
        each = [stats.figure([over_copy(one[way]) for one in ones]) for ones in found.values()]
        figures[f"{way}_over_memcpy"] = max(each, key=lambda figure: figure["value"])
    opened = [
        stats.figure([one[way]["open_s"] * 1e3 for one in ones])
        for ones in found.values()
        for way in ("pool", "warm")
    ]
    figures["open_ms"] = max(opened, key=lambda figure: figure["value"])
    return figures


def from_peers(args: argparse.Namespace, program: str, rounds: int) -> list[Sample]:
    """The node's disk is empty; its part comes from the other node.

    Plain TCP the same way before.
    """
    size, found = args.link_mib * running.MIB, []
    with cl.Cluster(args.dir, 2, rate=args.rate) as cluster:
        report = os.path.join(cluster.work, "report")

        def run(*argv: str) -> None:
            cluster.run(
                [
                    "mpirun.openmpi",
                    "--host",
                    "n1,n2",
                    "-n",
                    "2",
                    program,
                    "--job",
                    "job",
                    "--size",
                    str(size),
                    "--only",
                    "0",
                    "--level",
                    "peers",
                    "--options",
                    f"node_dir = '{cluster.local}'\npeers = 1",
                    "--report",
                    report,
                    *argv,
                ]
            )

        run("--do", "write", "--rounds", "0")
        for number in range(rounds):
            shutil.rmtree(os.path.join(cluster.work, "nodes", "n1", "job"))
            forget(glob.glob(f"{cluster.work}/nodes/n2/**/*.orc", recursive=True))
            run("--do", "restart", "--beside", cluster.address("n2"))
            with open(report) as file:
                one = json.load(file)
            one["rate"], one["raw"] = (
                size / one["read_s"],
                {"plain TCP": size / statistics.mean(one["raw_s"])},
            )
            found.append(one)
            print(
                f"peers, round {number + 1} of {rounds}: {one['rate'] / 1e6:.1f} MB/s, plain TCP "
                f"{one['raw']['plain TCP'] / 1e6:.1f}",
                file=sys.stderr,
                flush=True,
            )
    return found


def best(ones: list[Sample]) -> str:
    ways: dict[str, float] = ones[0]["raw"]
    return max(ways, key=lambda way: statistics.median(one["raw"][way] for one in ones))


def over_raw(ones: list[Sample]) -> list[float]:
    way = best(ones)
    return [one["rate"] / one["raw"][way] for one in ones]


def show(found: Samples) -> None:
    rows = []
    for level in LEVELS:
        if level not in found:
            continue
        ones = found[level]
        median = {
            key: statistics.median(one[key] for one in ones)
            for key in ("open_s", "read_s", "s", "rate")
        }
        raw = (
            [
                f"{statistics.median(one['raw'][best(ones)] for one in ones) / 1e6:.0f}",
                best(ones),
                f"{statistics.median(over_raw(ones)):.3f}",
            ]
            if "raw" in ones[0]
            else ["", "", ""]
        )
        rows.append(
            [
                level,
                f"{ones[0]['bytes'] / running.MIB:.0f}",
                f"{median['open_s']:.3f}",
                f"{median['read_s']:.3f}",
                f"{median['s']:.3f}",
                f"{median['rate'] / 1e6:.0f}",
                *raw,
            ]
        )
    reporting.table(
        ["from level", "MiB", "found s", "read s", "all s", "MB/s", "raw MB/s", "raw by", "ratio"],
        rows,
    )


def figures_of(found: Samples) -> dict[str, Figure]:
    figures = {
        f"read_over_raw_{level}": stats.figure(over_raw(found[level]) if level in found else [])
        for level in LEVELS[1:]
    }
    there = [key for key in figures if figures[key]["value"] is not None]
    # The worst of the levels; without one of them it says nothing.
    worst = min(there, key=lambda key: figures[key]["value"])
    figures["read_over_raw"] = figures[worst] if len(there) == len(figures) else stats.figure([])
    for level in ("node", "global"):
        way = best(found[level])
        figures[f"fio_over_fio_{level}"] = stats.figure(
            [b["raw"][way] / a["raw"][way] for a, b in zip(found[level], found[level][1:])]
        )
    if "peers" in found:
        figures["tcp_over_tcp"] = stats.figure(
            [one["raw_s"][0] / one["raw_s"][1] for one in found["peers"]]
        )
    return figures


def panels_of(found: Samples) -> list[svg.Panel]:
    panels = []
    for level in ("node", "global", "peers"):
        if level in found:
            panel = svg.Panel(f"restart from level {level}", "round", "MB/s")
            panel.line(
                "Orcheck", [(i + 1, one["rate"] / 1e6) for i, one in enumerate(found[level])]
            )
            panel.line(
                best(found[level]),
                [
                    (i + 1, one["raw"][best(found[level])] / 1e6)
                    for i, one in enumerate(found[level])
                ],
            )
            panels.append(panel)
    return panels


def main() -> None:
    args = running.arguments("restart", __doc__, more)
    running.end_on_signals()
    if args.only_memory:
        program, machine = running.build(args.prefix, "spread"), facts.Machine(args.dir)
        memory = in_memory(args, program, args.rounds or 7)
        show_in_memory(memory)
        goals = {key: GOALS[key] for key in ("pool_over_memcpy", "warm_over_memcpy", "open_ms")}
        figures = memory_figures(memory)
        reporting.finish(args, "restart-memory", machine, figures, goals, {"raw": memory})
        return
    if not facts.output("fio", "--version"):
        reporting.not_measured(args, "restart", running.NO_FIO, GOALS)
        return
    program, machine = running.build(args.prefix, "spread"), facts.Machine(args.dir)
    if 4 * args.mib * running.MIB > 0.7 * facts.available_bytes():
        args.mib = int(0.7 * facts.available_bytes() / 4 / running.MIB)
        print(f"WARNING: memory is short; {args.mib} MiB are measured", flush=True)
    rounds = args.rounds or (32 if args.full else 12)
    found, why = from_disk(args, program, rounds), cl.missing()
    found["process"] = from_process(args, program, max(3, rounds // 3))
    memory = in_memory(args, program, max(7, rounds // 2))
    if why:
        print(f"\nNOT MEASURED: level peers: {why}. read_over_raw_peers is null")
    else:
        found["peers"] = from_peers(args, program, rounds)
    print()
    show(found)
    show_in_memory(memory)
    print(
        "process: the rate is of all, from the start of the new run; what the ranks left staged is "
        "flushed by the agent first"
    )
    figures = {**figures_of(found), **memory_figures(memory)}
    footnote = reporting.finish(
        args,
        "restart",
        machine,
        figures,
        GOALS,
        {
            "best_raw": {level: best(ones) for level, ones in found.items() if "raw" in ones[0]},
            "raw": found,
            "in_memory": memory,
            "peers_not_measured": why,
        },
    )
    panels = panels_of(found)
    svg.save(os.path.join(args.results, "restart.svg"), footnote, panels)


if __name__ == "__main__":
    main()
