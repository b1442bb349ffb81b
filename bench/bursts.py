"""Bursts of checkpoints on a cluster of one machine: nodes with ranks that sleep, staging servers before directories.

    with Bed(args, program, [dir, ...], nodes=32, per_node=8, orders={"pull": []}) as bed:
        bed.burst("orchestrated", "pull", 32, 8, 4 << 20)["s"]

The ranks (src/burst.c) are there all the time; each burst is a job of its own, on fresh files, which are removed afterwards.
Not here: which bursts are compared (contention, mixed), the disks (cluster/disks.py).
"""
import json
import os
import select
import subprocess
import tempfile
import threading
import time

import cluster as cl
import disks as model
import orcbench as ob

PORT = 7421


class Bed:
    """The cluster, servers before directories of its own, and the program waiting for bursts."""

    def __init__(self, args, program, where, nodes, per_node, orders, rate="1gbit"):
        """where: a directory for each server; orders: a name and more arguments of `orcheck server` for each kind of server."""
        self.args, self.program, self.where, self.per_node, self.orders = args, program, where, per_node, orders
        self.ports = {order: PORT + number for number, order in enumerate(orders)}
        self.cluster = cl.Cluster(args.dir, nodes, len(where), rate)
        self.nodes, self.servers, self.errors = [], {}, tempfile.TemporaryFile()

    def __enter__(self):
        self.cluster.__enter__()
        try:
            self.key = os.path.join(self.cluster.work, "key")
            with open(self.key, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(os.urandom(32))
            orcheck = os.path.join(self.args.prefix, "bin", "orcheck")
            for name, where in zip(self.cluster.servers, self.where):
                for order, port in self.ports.items():
                    at = os.path.join(where, order)
                    os.makedirs(at, exist_ok=True)
                    command = [orcheck, "server", "--dir", at, "--listen", f"{self.cluster.address(name)}:{port}", "--key",
                               f"file:{self.key}", *self.orders[order]]
                    server = self.cluster.start(command, on=name, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
                    if not server.stdout.readline().endswith(": ready\n"):
                        raise RuntimeError(f"{' '.join(command)}: did not come up")
                    self.servers[name, order] = server
            board = os.path.join(self.cluster.work, "board")
            with open(board, "wb"):
                pass
            for number, node in enumerate(self.cluster.nodes):
                self.nodes.append(self.cluster.start(
                    [self.program, board, str(number), str(len(self.cluster.nodes)), str(self.per_node)], on=node, bufsize=1, text=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors))
            self.said()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for node in self.nodes:
            node.stdin.close()
        self.cluster.close()  # kills what has not ended
        self.errors.close()

    def said(self):
        """The next line of the first node."""
        while not select.select([self.nodes[0].stdout], [], [], 1)[0]:
            if any(node.poll() is not None for node in self.nodes):
                break
        line = self.nodes[0].stdout.readline()
        if any(node.poll() is not None for node in self.nodes) or not line:
            self.errors.seek(0)
            raise RuntimeError("the ranks ended: " + self.errors.read()[-4000:].decode(errors="replace"))
        return line

    def burst(self, mode, order, nodes, per_node, size, disks=None, fresh=True):
        """One burst of so many bytes a rank in a mode of the library to servers of an order, and what the disks and the processors
        did meanwhile. fresh: with empty caches."""
        chunk = chunk_of(size)
        pool = (-(-size // chunk) + 2) * chunk * per_node
        places = [f"orcheck://{self.cluster.address(name)}:{self.ports[order]}?key=file:{self.key}" for name in self.cluster.servers]
        options = os.path.join(self.cluster.work, "options")
        with open(options, "w") as file:
            file.write(f"global = {places}\nmode = '{mode}'\npool = {pool}\nchunk = {chunk}\nkeep = 1\n")
        if fresh:
            model.drop_caches()
        if disks:
            disks.limit_dirty(max(size * nodes * per_node // 16 // len(self.where), 1 << 20))
            disks.reset()
        counted = Streams([at for (_, of), at in self.pids().items() if of == order])
        before, begin = ob.processor_times(), time.monotonic()
        self.nodes[0].stdin.write(f"{nodes} {per_node} {size} {options}\n")
        self.nodes[0].stdin.flush()
        found = json.loads(self.said())
        after = ob.processor_times()
        found["streams_per_server"] = counted.most()
        # Of all the time, opening and closing the job too: of the burst alone it was more.
        found["busy"] = 1 - (after["idle"] - before["idle"]) / max(1, after["all"] - before["all"])
        found["whole_s"] = time.monotonic() - begin
        found["rate"] = found["bytes"] / found["s"]
        found.update(nodes=nodes, ranks_per_node=per_node, bytes_per_rank=size)
        if disks:
            found["disks"] = disks.all_stats()
        for where in self.where:
            subprocess.run(["sh", "-c", f"rm -rf {where}/{order}/default/burst"], check=True)
        return found

    def pids(self):
        """(server, order) -> the process of `orcheck server` there."""
        if not hasattr(self, "found_pids"):
            self.found_pids = {}
            for name in self.cluster.servers:
                for pid in filter(str.isdigit, os.listdir("/proc")):
                    words = ob.read(f"/proc/{pid}/cmdline").split("\0")
                    if len(words) > 2 and os.path.basename(words[0]) == "orcheck" and words[1] == "server":
                        for order, port in self.ports.items():
                            if f"{self.cluster.address(name)}:{port}" in words:
                                self.found_pids[name, order] = int(pid)
        return self.found_pids


class Streams:
    """How many files servers have open for writing at the same time, at most, looked at ten times a second."""

    def __init__(self, pids):
        self.pids, self.found, self.over = pids, 0, threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        while not self.over.wait(0.1):
            for pid in self.pids:
                count = 0
                try:
                    for number in os.listdir(f"/proc/{pid}/fd"):
                        try:
                            count += ".orc" in (path := os.readlink(f"/proc/{pid}/fd/{number}")) or ".stripe" in path
                        except OSError:
                            continue
                except OSError:
                    continue
                self.found = max(self.found, count)

    def most(self):
        self.over.set()
        self.thread.join()
        return self.found


def chunk_of(size):
    """A chunk of staging memory for images of so many bytes: 4 MiB at most."""
    return next(1 << shift for shift in range(22, 15, -1) if 1 << shift <= max(size, 1 << 16))
