"""How much of its disk's rate does a staging server reach, for writes and restarts?

A server on this machine serves a directory. One rank and eight ranks checkpoint the same number of
bytes through it (TCP on the loopback, every frame authenticated); one rank does so without it;
between two checkpoints the disk belongs to fio, as in flush.py. The clock runs from the call until
the checkpoint is committed. Then a job of half the size restarts (orc_restart: every byte read and
checked), through the server and without it, beside raw reads of the same files; the page cache is
dropped before each. All on the device as it is, and limited to 500 MB/s, where the ratio is sharp.
Server, ranks and fio share the processors of this machine: what they took stands beside every rate.

The second part (staging_profiles.py) replays the write profiles of two checkpoints, 64 ranks on 8
nodes of a cluster, on model disks: on the nodes' own, striped over those of four servers, and
through a staging server before each of these.

The third part writes through a server to devices of 55, 179 and 600 MB/s, which are those of the
document (Ouyang et al.: a disk and two SSDs), beside fio.

--only disk|profiles|devices takes one of the parts.
"""

import argparse
import functools
import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from orcbench import disk, facts, floor, reporting, running, stats, svg, throttling
from orcbench import staging_profiles as profiles
from orcbench.stats import Figure, Sample, Samples
from testbed.cluster import disks

LIMIT_BYTES_PER_S = 500_000_000
# The document's devices: MB/s, and the MiB that are written to each.
DEVICES = {55: 256, 179: 768, 600: 2048}
DEVICE_ROUNDS = 5
# How wire_floor is told of it, and its name in the tables.
FLOORS = {"mac": "floor: TCP + MAC + writes", "plain": "floor: TCP + writes"}
GOALS = {
    "server_over_fio": (">=", 0.97),
    "server_over_floor": (">=", 0.9),
    "read_over_raw": (">=", 0.9),
    "read_over_raw_limited": (">=", 0.9),
    "server_over_raw_179": (">=", 0.97),
    "server_over_raw_600": (">=", 0.97),
    **profiles.GOALS,
}


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gib", type=float, default=2, help="GiB a checkpoint and a file of fio (default 2)"
    )
    parser.add_argument(
        "--rounds", type=int, default=None, help="rounds as the device is (default 9, --full 31)"
    )
    parser.add_argument(
        "--limited-rounds",
        type=int,
        default=None,
        help="rounds on the limited device, restarts too (default 9, --full 15)",
    )
    parser.add_argument(
        "--at-once",
        type=int,
        default=4,
        help="files that the server takes in at the same time (default 4)",
    )
    profiles.more(parser)
    parser.add_argument(
        "--only", choices=["disk", "profiles", "devices"], help="one of the three parts"
    )
    parser.add_argument("--options", default="", metavar="TOML", help="more options of the library")


class Server:
    """orcheck server before a directory of its own."""

    def __init__(self, args: argparse.Namespace, *words: str) -> None:
        self.scratch = running.scratch(args.dir)
        self.where = self.scratch.__enter__()
        key, self.dir = (
            running.key_file(os.path.join(self.where, "key")),
            os.path.join(self.where, "disk"),
        )
        os.mkdir(self.dir)
        self.process, self.place = running.serve(
            args.prefix, self.dir, "127.0.0.1:0", key, "--at-once", str(args.at_once), *words
        )

    def cpu_s(self) -> float:
        """Processor time that it has taken."""
        return facts.processor_s(self.process.pid)

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.scratch.__exit__(None, None, None)


def through(server: Server, writer: disk.Writer) -> Sample:
    """One checkpoint through the server, with the server's processor time."""
    before = server.cpu_s()
    found = writer.go()
    found["server_cpu_s_per_gib"] = (server.cpu_s() - before) / (found["bytes"] / disk.GIB)
    found["cpu_s_per_gib"] += found["server_cpu_s_per_gib"]
    return found


def floored(args: argparse.Namespace, path: str, how: str, size: int) -> Sample:
    """The same bytes through one connection to a file, and nothing else."""
    with running.scratch(args.dir) as where:
        start, dirs = (floor.here, floor.here), (None, where)
        return floor.rounds(how, path, size, 1, "127.0.0.1", dirs, start)[0]


def written(
    args: argparse.Namespace,
    program: str,
    rounds: int,
    size: int,
    where: str,
    beside: Sequence[str] = tuple(disk.FIO),
) -> Samples:
    """Samples of writing, beside ways of fio and, where those are all, the floors."""
    writers: list[disk.Writer] = []
    servers: list[Server] = []
    try:
        tasks: dict[str, Callable[[], Sample]] = {}
        for ranks in (1, 8):
            server = Server(args)
            servers.append(server)
            writer = disk.Writer(args, program, ranks, size, place=server.place)
            writers.append(writer)
            name = "through a server, 1 rank" if ranks == 1 else f"through a server, {ranks} ranks"
            tasks[name] = functools.partial(through, server, writer)
        writers.append(disk.Writer(args, program, 1, size))
        tasks["without, 1 rank"] = writers[-1].go
        for task in tasks.values():
            task()  # the first use of anything is not what is measured
        if len(beside) == len(disk.FIO):
            path = floor.program()
            tasks.update(
                {
                    name: functools.partial(floored, args, path, how, size)
                    for how, name in FLOORS.items()
                }
            )
        tasks.update(disk.ways_of_fio(args, size, beside))
        samples = disk.turns(tasks, rounds, where)
        return samples
    finally:
        for writer in writers:
            writer.close()
        for server in servers:
            server.close()


WAYS_OF_READING = ("raw, one after the other", "raw, 8 at once", "raw, two jobs", "raw, page cache")


def read(
    args: argparse.Namespace, program: str, server: Server, rounds: int, size: int, where: str
) -> Samples:
    """Samples of restarting what the server's disk holds, through it and without it, and of reading
    the same files raw.
    """
    local = os.path.join(server.dir, "default")
    jobs = {"through the server": server.place, "without": local}
    job = f"read-{'limited' if 'limited' in where else 'plain'}"
    argv = ["--job", job, "--size", size, "--level", "global"]
    options = {
        name: f"global = ['{place}']\npool = {size + 16 * running.MIB}\n{args.options}"
        for name, place in jobs.items()
    }
    running.run(
        program, 1, [*argv, "--options", options["without"], "--do", "write", "--rounds", 0]
    )
    files = [
        os.path.join(top, name)
        for top, _, names in os.walk(os.path.join(local, job))
        for name in names
        if name.endswith(".orc")
    ]

    def restart(name: str) -> Sample:
        disks.drop_caches()
        before = server.cpu_s()
        found = running.run(program, 1, [*argv, "--options", options[name], "--do", "restart"])
        return {
            "rate": found["bytes"] / found["read_s"],
            "s": found["read_s"],
            "bytes": found["bytes"],
            "open_s": found["open_s"],
            "server_cpu_s_per_gib": (server.cpu_s() - before) / (found["bytes"] / disk.GIB),
        }

    def raw(engine: str, depth: int, direct: int = 1, jobs: int = 1) -> Sample:
        disks.drop_caches()
        each = sum(map(os.path.getsize, files)) // jobs // (4 * running.MIB) * 4 * running.MIB
        command = [
            "fio",
            "--name=r",
            "--filename=" + ":".join(files),
            "--rw=read",
            "--bs=4M",
            f"--direct={direct}",
            "--readonly",
            f"--ioengine={engine}",
            f"--iodepth={depth}",
            f"--size={each}",
            f"--numjobs={jobs}",
            f"--offset_increment={each}",
            "--group_reporting",
            "--output-format=json",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-2000:]}")
        job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]
        return {
            "rate": job["io_bytes"] / (job["runtime"] / 1e3),
            "s": job["runtime"] / 1e3,
            "bytes": job["io_bytes"],
        }

    tasks: dict[str, Callable[[], Sample]] = {
        **{name: functools.partial(restart, name) for name in jobs},
        WAYS_OF_READING[0]: lambda: raw("psync", 1),
        WAYS_OF_READING[1]: lambda: raw("io_uring", 8),
        WAYS_OF_READING[2]: lambda: raw("io_uring", 8, jobs=2),
        WAYS_OF_READING[3]: lambda: raw("psync", 1, direct=0),
    }
    restart("through the server")  # the first use of anything is not what is measured
    return disk.turns(tasks, rounds, where)


def rounds_of(args: argparse.Namespace) -> tuple[int, int]:
    """As the device is, and limited."""
    return args.rounds or (31 if args.full else 9), args.limited_rounds or (15 if args.full else 9)


def restarts(args: argparse.Namespace) -> tuple[dict[str, Samples], str | None]:
    """Samples of reading, on the device as it is and limited, and why the latter is not there."""
    program, (rounds, limited_rounds), size = (
        running.build(args.prefix, "spread"),
        rounds_of(args),
        int(args.gib * disk.GIB / 2),
    )
    server, why, found = Server(args), None, {}
    try:
        found["restart, the device as it is"] = read(args, program, server, rounds, size, "restart")
        try:
            with throttling.Limit(args.dir, LIMIT_BYTES_PER_S, reads=True):
                found["restart, limited to 500 MB/s"] = read(
                    args, program, server, limited_rounds, size, "restart, limited"
                )
        except OSError as error:
            why = str(error)
            print(f"\nNOT MEASURED: restarts from the device limited to 500 MB/s: {why}")
    finally:
        server.close()
    for title, samples in found.items():
        print(f"\n{title}")
        reporting.table(
            ["", "MB/s", "quartiles", "of raw"],
            [
                [
                    name,
                    f"{rate['median']:.0f}",
                    f"{rate['q1']:.0f}-{rate['q3']:.0f}",
                    f"{over_raw(samples, name)['value']:.3f}",
                ]
                for name, ones in samples.items()
                for rate in [stats.spread([one["rate"] / 1e6 for one in ones])]
            ],
        )
    return found, why


def over_raw(samples: Samples, name: str) -> Figure:
    """Rate of a restart over that of the better way of reading raw."""
    best = max(
        WAYS_OF_READING,
        key=lambda way: stats.spread([one["rate"] for one in samples[way]])["median"],
    )
    return stats.figure(
        [mine["rate"] / its["rate"] for mine, its in zip(samples[name], samples[best])]
    )


def beside_fio(
    args: argparse.Namespace,
) -> tuple[dict[str, Figure], dict[str, Any], list[svg.Panel]]:
    """The first part: figures, what else to store, panels."""
    program, (rounds, limited_rounds) = running.build(args.prefix, "flush"), rounds_of(args)
    size = int(args.gib * disk.GIB) // (32 * running.MIB) * 32 * running.MIB
    samples = written(args, program, rounds, size, "as it is")
    disk.show("the device as it is", samples)
    reads, reads_why = restarts(args)
    one_rank, floors = samples["through a server, 1 rank"], samples[FLOORS["mac"]]
    figures = {
        "server_over_fio_as_is": disk.over(samples, "through a server, 1 rank"),
        "server_over_floor": floor.over(one_rank, floors),
        "server_cpu_s_per_gib": floor.cpu(one_rank),
        "floor_cpu_s_per_gib": floor.cpu(floors),
        "plain_floor_cpu_s_per_gib": floor.cpu(samples[FLOORS["plain"]]),
        "fio_cpu_s_per_gib": floor.cpu(samples[disk.best_of_fio(samples)]),
    }
    for suffix, samples_of in zip(("", "_limited"), reads.values()):
        figures["read_over_raw" + suffix] = over_raw(samples_of, "through the server")
        figures["read_without_over_raw" + suffix] = over_raw(samples_of, "without")
    conditions, limit, why = [("the device as it is", samples), *reads.items()], None, None
    try:
        with throttling.Limit(args.dir, LIMIT_BYTES_PER_S) as rate:
            print(
                f"\nlimited by {throttling.Limit.CONTROL} to 500 MB/s (dd: {rate / 1e6:.0f} MB/s)",
                flush=True,
            )
            slow = written(args, program, limited_rounds, size, "limited")
        disk.show("limited to 500 MB/s", slow)
        conditions.append(("limited to 500 MB/s", slow))
        figures["server_over_fio"] = disk.over(slow, "through a server, 1 rank")
        figures["server_over_fio_8_ranks"] = disk.over(slow, "through a server, 8 ranks")
        limit = {
            "bytes_per_s": LIMIT_BYTES_PER_S,
            "measured_bytes_per_s": rate,
            "by": throttling.Limit.CONTROL,
        }
    except OSError as error:
        why = str(error)
        print(
            f"\nNOT MEASURED: the device limited to 500 MB/s: {why}.\nserver_over_fio is null. "
            "Next: run this where cgroup "
            "v1's blkio controller is mounted, with --dir on a disk of its own"
        )
    panels = []
    for title, found in conditions:
        panel = svg.Panel(title, "round", "MB/s")
        for name, ones in found.items():
            panel.line(name, [(number + 1, one["rate"] / 1e6) for number, one in enumerate(ones)])
        panels.append(panel)
    return (
        figures,
        {
            "bytes": size,
            "limit": limit,
            "limit_not_measured": why,
            "read_limit_not_measured": reads_why,
            "raw": {title: found for title, found in conditions},
        },
        panels,
    )


def on_devices(
    args: argparse.Namespace,
) -> tuple[dict[str, Figure], dict[str, Any], list[svg.Panel]]:
    """The third part: figures, what else to store, panels."""
    program, beside = running.build(args.prefix, "flush"), ("fio psync x 1", "fio io_uring qd 8")
    figures: dict[str, Figure] = {}
    stored: dict[str, Any] = {}
    panels = []
    for mb_per_s, mib in DEVICES.items():
        title = f"a device of {mb_per_s} MB/s"
        try:
            # Of a slow one, less: what it lets through at once would otherwise take long to check.
            with throttling.Limit(args.dir, mb_per_s * 1_000_000, check_mib=min(256, 2 * mb_per_s)):
                rounds, size = args.limited_rounds or DEVICE_ROUNDS, mib * running.MIB
                samples = written(args, program, rounds, size, title, beside)
        except OSError as error:
            print(f"\nNOT MEASURED: {title}: {error}")
            stored[f"{mb_per_s}_not_measured"] = str(error)
            continue
        disk.show(title, samples)
        one = samples["through a server, 1 rank"]
        figures[f"server_over_raw_{mb_per_s}"] = disk.over(samples, "through a server, 1 rank")
        figures[f"server_over_raw_{mb_per_s}_8_ranks"] = disk.over(
            samples, "through a server, 8 ranks"
        )
        figures[f"server_cpu_s_per_gib_{mb_per_s}"] = floor.cpu(one)
        stored[title] = samples
        panel = svg.Panel(title, "round", "MB/s")
        for name, ones in samples.items():
            panel.line(name, [(n + 1, one["rate"] / 1e6) for n, one in enumerate(ones)])
        panels.append(panel)
    return figures, {"devices": stored}, panels


def main() -> None:
    args = running.arguments("staging", __doc__, more)
    running.end_on_signals()
    version = facts.output("fio", "--version")
    why = "dropping the page cache, and a cluster, take root" if os.geteuid() != 0 else None
    if not version and args.only != "profiles":
        why = why or running.NO_FIO
    if why:
        reporting.not_measured(args, "staging", why, GOALS)
        return
    machine = facts.Machine(args.dir)
    figures: dict[str, Figure] = {}
    stored: dict[str, Any] = {}
    panels: list[svg.Panel] = []
    why = None
    if args.only in (None, "disk"):
        figures, stored, panels = beside_fio(args)
    if args.only in (None, "devices"):
        more_figures, more_stored, more_panels = on_devices(args)
        figures.update(more_figures)
        stored.update(more_stored)
        panels += more_panels
    if args.only in (None, "profiles"):
        why = profiles.missing()
        if why:
            print(f"\nNOT MEASURED: the write profiles: {why}")
        else:
            found = profiles.measure(args)
            profiles.show(found, args.scale)
            figures.update(profiles.figures_of(found))
            stored.update(profiles=found, model=disks.MODEL)
            panels += profiles.panels(found)
    footnote = reporting.finish(
        args,
        "staging",
        machine,
        figures,
        GOALS,
        {**stored, "fio": version, "profiles_not_measured": why},
    )
    svg.save(reporting.result_path(args, "staging", ".svg"), footnote, panels)


if __name__ == "__main__":
    main()
