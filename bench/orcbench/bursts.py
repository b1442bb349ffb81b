"""Bursts of checkpoints on a cluster of one machine.

Its nodes have ranks that sleep; its staging servers serve directories.

    with Bed(args, program, [dir, ...], nodes=32, per_node=8, orders={"pull": []}) as bed:
        bed.burst("orchestrated", "pull", 32, 8, 4 << 20)["s"]

The ranks (src/burst.c) are there all the time; each burst is a job of its own, on fresh files,
which are removed afterwards.

Not here: which bursts are compared (contention, mixed), the disks (cluster/disks.py).
"""

import argparse
import contextlib
import functools
import json
import os
import select
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orcbench import facts, running
from orcbench.stats import Sample
from testbed.cluster import cluster as cl
from testbed.cluster import disks as model
from testbed.cluster.held import Held, pipe

PORT = 7421
BURST_S = 1200  # a rank gives up waiting for its checkpoint before
# As orcheck.h has the levels.
LEVELS = {"node": 2, "peers": 3, "global": 4}


class Bed(Held):
    """The cluster, servers before directories of its own, and the program waiting for bursts."""

    def __init__(
        self,
        args: argparse.Namespace,
        program: str,
        where: Sequence[str],
        nodes: int,
        per_node: int,
        orders: Mapping[str, Sequence[str]],
        rate: str = "1gbit",
        rates: Mapping[str, str] | None = None,
        queue_ms: int = 50,
        within: Callable[[str], Sequence[str]] = lambda name: (),
    ) -> None:
        """where: a directory for each server; orders: a name and more arguments of `orcheck server`
        for each kind of server; rates: links with another rate; queue_ms: of a link; within: the
        words before a command of a node or server.
        """
        self.args, self.program, self.where = args, program, where
        self.per_node, self.orders = per_node, orders
        self.ports = {order: PORT + number for number, order in enumerate(orders)}
        self.cluster = cl.Cluster(args.dir, nodes, len(where), rate, rates, queue_ms)
        self.within = within
        self.nodes: list[subprocess.Popen[str]] = []
        # By name of the node and order of the server.
        self.servers: dict[tuple[str, str], subprocess.Popen[str]] = {}
        self.pids: dict[tuple[str, str], int] = {}
        self.errors = tempfile.TemporaryFile()
        # What bursts of next to no bytes took, by whoever measures them.
        self.small: dict[object, list[Sample]] = {}
        self.limits = model.cannot_limit() is None

    def bring_up(self) -> None:
        self.cluster.__enter__()
        self.key = running.key_file(os.path.join(self.cluster.work, "key"))
        for name, where in zip(self.cluster.servers, self.where):
            for order, port in self.ports.items():
                at = os.path.join(where, order)
                os.makedirs(at, exist_ok=True)
                server, _ = running.serve(
                    self.args.prefix,
                    at,
                    f"{self.cluster.address(name)}:{port}",
                    self.key,
                    *self.orders[order],
                    start=functools.partial(self.start, on=name),
                )
                self.servers[name, order] = server
                self.pids[name, order] = cl.child_of(server.pid)  # below what has entered the node
        board = os.path.join(self.cluster.work, "board")
        with open(board, "wb"):
            pass
        for number, node in enumerate(self.cluster.nodes):
            self.nodes.append(
                self.start(
                    [
                        self.program,
                        board,
                        str(number),
                        str(len(self.cluster.nodes)),
                        str(self.per_node),
                    ],
                    on=node,
                    bufsize=1,
                    text=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self.errors,
                )
            )
        self.said()

    def start(self, command: Sequence[str], on: str, **more: Any) -> subprocess.Popen[str]:
        return self.cluster.start([*self.within(on), *command], on=on, **more)

    def close(self) -> None:
        for node in self.nodes:
            with contextlib.suppress(OSError):  # gone already
                pipe(node.stdin).close()
        self.cluster.close()  # kills what has not ended
        self.errors.close()

    def said(self) -> str:
        """The next line of the first node."""
        end = time.monotonic() + BURST_S
        while not select.select([pipe(self.nodes[0].stdout)], [], [], 1)[0]:
            if any(node.poll() is not None for node in self.nodes):
                break
            if time.monotonic() > end:
                raise RuntimeError(f"the ranks said nothing within {BURST_S} s")
        line = pipe(self.nodes[0].stdout).readline()
        if any(node.poll() is not None for node in self.nodes) or not line:
            self.errors.seek(0)
            raise RuntimeError(
                "the ranks ended: " + self.errors.read()[-4000:].decode(errors="replace")
            )
        return line

    def burst(
        self,
        mode: str,
        order: str,
        nodes: int,
        per_node: int,
        size: int,
        disks: model.Disks | None = None,
        count: int = 1,
        like: int | None = None,
    ) -> Sample:
        """One burst of this many bytes a rank in a mode of the library to servers of an order, and
        what the disks and the processors did meanwhile: with empty caches, and of ranks that have
        computed for a while. count: this many checkpoints instead, one after the other, on a
        machine that is as it is. like: chunks and dirty memory are those of a burst of this many
        bytes a rank."""
        like = like or size
        chunk = chunk_of(like)
        pool = max((-(-size // chunk) + 2) * per_node, 4) * chunk  # the library takes no less
        places = self.places(self.cluster.servers, order)
        options = f"global = {places}\nmode = '{mode}'\npool = {pool}\nchunk = {chunk}\nkeep = 1\n"
        if count == 1:
            model.drop_caches()
        dirty = max(like * nodes * per_node // 16 // len(self.where), 1 << 20)
        kept = disks.limit_dirty(dirty) if disks and self.limits else {}
        if disks:
            disks.reset()
        counted, begin = Streams(self.pids_of(order)), time.monotonic()
        found = self.ask(nodes, per_node, size, options, count=count)
        found["streams_per_server"] = counted.most()
        found["whole_s"] = time.monotonic() - begin
        found["rate"] = found["bytes"] / found["s"]
        found.update(nodes=nodes, ranks_per_node=per_node, bytes_per_rank=size)
        if disks:
            found["disks"] = disks.all_stats()
        if kept:  # as it was asked for, and what the kernel made of it
            found.update(dirty_limit_bytes=dirty, dirty_bytes=max(kept.values()))
        self.empty(order)
        return found

    def empty(self, order: str) -> None:
        """Removes the files of the last job from the servers of an order."""
        for where in self.where:
            left = os.path.join(where, order, "default", "burst")
            shutil.rmtree(left, ignore_errors=True)  # a server may remove at the same time
            if os.path.exists(left):
                raise RuntimeError(f"{left} could not be removed")

    def places(self, servers: Sequence[str], order: str) -> list[str]:
        """Servers of an order, as the option `global` has them."""
        return [
            f"orcheck://{self.cluster.address(name)}:{self.ports[order]}?key=file:{self.key}"
            for name in servers
        ]

    def ask(
        self,
        nodes: int,
        per_node: int,
        size: int,
        options: str,
        count: int = 1,
        level: str = "global",
        every_s: float = 0,
    ) -> Sample:
        """Has the first ranks take checkpoints (see burst.c); what they measured."""
        path = os.path.join(self.cluster.work, "options")
        with open(path, "w") as file:
            file.write(options)
        words = (nodes, per_node, size, count, LEVELS[level], every_s, path)
        pipe(self.nodes[0].stdin).write(" ".join(map(str, words)) + "\n")
        pipe(self.nodes[0].stdin).flush()
        found: Sample = json.loads(self.said())
        return found

    def pids_of(self, order: str) -> list[int]:
        """The processes of `orcheck server` of an order."""
        return [pid for (_, of), pid in self.pids.items() if of == order]

    def written_bytes(self, order: str) -> int:
        """What the servers of an order have written to their disks, so far."""
        lines = [
            line
            for pid in self.pids_of(order)
            for line in facts.read(f"/proc/{pid}/io").splitlines()
        ]
        return sum(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))


class Streams:
    """How many files a server has open for writing at the same time, at most, looked at once a
    second.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self.pids, self.found, self.over = pids, 0, threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self) -> None:
        every_s = 0.5  # short bursts are looked at once
        while not self.over.wait(every_s):
            every_s = 1
            for pid in self.pids:
                self.found = max(
                    self.found, sum(".orc" in path or ".stripe" in path for path in open_files(pid))
                )

    def most(self) -> int | None:
        self.over.set()
        self.thread.join()
        return self.found or None  # nothing was seen of a burst that short


def open_files(pid: int) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # just closed
                found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return found


def chunk_of(size: int) -> int:
    """A chunk of staging memory for images of this many bytes: 4 MiB at most."""
    return next(1 << shift for shift in range(22, 15, -1) if 1 << shift <= max(size, 1 << 16))
