"""A cluster on one machine: nodes that are namespaces, on a switch with shaped links.

    with Cluster(parent, nodes=4, servers=1, rate="200mbit") as cluster:
        cluster.run(["mpirun", "--host", ",".join(cluster.nodes), "-n", "4", "./solver"])
        kill(cluster.work, "n2")

How: a node is a process that does nothing but hold namespaces (and, as the first process of its own
process namespace, everything that runs on the node: when it is killed, the kernel kills the rest
before it is gone). All nodes wait for the end of one pipe, whose other end only this process has.
So however this process ends, the nodes end, and with them the links, the mounts and all processes;
nothing has a name outside that could be left. The head is where the job is started from, as on a
login node: it has a network address and a host name, but no processes of its own, so that it can
enter the nodes; its holder kills what runs there, and removes the work directory at last.

    WORK/nodes/NAME   the disk of a node; the node sees it as WORK/local, and no other's
    WORK/pids/NAME    the process that holds a node; removed before the node is killed
    WORK/on           `on NAME COMMAND`: what ssh is elsewhere; Open MPI's launch agent
    anything else     seen by all nodes

A node has /dev/shm and TMPDIR of its own. Links are 198.18.0.0/16 and reach nothing else; `rate` is
for each direction of each link, the head's excepted.

Survives: any signal to this process.

Not here: what runs on the nodes.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from testbed.cluster.held import (
    DEADLINE_S,
    Held,
    HeldError,
    checked,
    left_behind,
    locked_directory,
    pipe,
)

NET = "198.18.0.0/16"
HEAD, SWITCH = "head", "switch"
# The kernel has one table of neighbours for all namespaces, and too small a one by default for the
# pairs of 32 nodes and more: their connections would fail.
NEIGHBOURS = "/proc/sys/net/ipv4/neigh/default/gc_thresh3"
PREFIX = "orcheck-cluster-"

# Where a node's processes find memory-backed files of their own: no mount of the machine shows
# them.
NODE_SETUP = """set -e
mount --bind "$1/nodes/$2" "$1/local"
mount -t tmpfs none "$1/nodes"
mount -t tmpfs -o mode=1777 none /dev/shm
hostname "$2"
ip link set lo up
echo ready
read -r _ || :
"""
SWITCH_SETUP = """set -e
ip link add br0 type bridge
ip link set br0 up
echo ready
read -r _ || :
"""
# Ends what runs on the head (no process namespace does it here), then the files, once the nodes
# have let go of them.
HEAD_SETUP = """hostname "$2"
ip link set lo up
echo ready
read -r _
here=$(readlink /proc/self/ns/net)
for round in {1..100}; do
    found=
    for one in /proc/[0-9]*; do
        [[ ${one#/proc/} != $$ && $(readlink "$one/ns/net") == "$here" ]] 2>/dev/null || continue
        [[ $(<"$one/stat") != *') Z '* ]] 2>/dev/null || continue
        kill -9 "${one#/proc/}" 2>/dev/null
        [[ $(readlink "$one/exe") == */readlink ]] 2>/dev/null || found=1
    done
    [[ $found ]] || { rm -rf "$1" 2>/dev/null && exit; }
    sleep 0.05
done
"""
# Like ssh: the words are joined and a shell takes them. Runs on the head.
ON = """#!/usr/bin/env bash
work=%s
node=$1
shift
{ read -r pid <"$work/pids/$node"; } 2>/dev/null ||
    { echo "node $node is not there" >&2; exit 255; }
exec nsenter --target "$pid" --net --uts --mount --pid --wdns="$work" \\
    env TMPDIR=/dev/shm bash -c "$*"
"""


def missing() -> str | None:
    """Why there can be no cluster on this machine; None if there can."""
    if os.geteuid() != 0:
        return "a cluster of namespaces needs root"
    for program in ("ip", "tc", "unshare", "nsenter"):
        if not shutil.which(program):
            return f"{program} is missing (packages iproute2 and util-linux)"
    if subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "true"], capture_output=True
    ).returncode:
        return "this machine does not let root make namespaces (a container without CAP_SYS_ADMIN?)"
    return None


def sweep(parent: str) -> None:
    """Removes what a cluster left under parent whose processes have all been killed at once."""
    for work in left_behind(parent, PREFIX):
        shutil.rmtree(work, ignore_errors=True)


def pid_of(work: str, name: str) -> int:
    try:
        with open(os.path.join(work, "pids", name)) as file:
            return int(file.read())
    except OSError:
        raise HeldError(
            f"node {name} is not there: lost before, or never of this cluster ({work})"
        ) from None


def kill(work: str, name: str) -> int:
    """A node is lost: all its processes, its memory and what was on its disk.

    Returns the bytes that were there.
    """
    pid = pid_of(work, name)
    os.remove(os.path.join(work, "pids", name))
    end(pid)
    disk, had = os.path.join(work, "nodes", name), 0
    for where, _, files in os.walk(disk):
        had += sum(os.lstat(os.path.join(where, file)).st_size for file in files)
    for entry in os.scandir(disk):
        shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.remove(entry.path)
    return had


def end(pid: int) -> None:
    """Kills a holder of namespaces; all processes within have ended when this returns."""
    handle = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        if not select.select([handle], [], [], DEADLINE_S)[0]:
            raise HeldError(f"process {pid} was killed and did not end within {DEADLINE_S} s")
    finally:
        os.close(handle)


def link(work: str, name: str, up: bool) -> None:
    """Sets the port of a node at the switch: down, nothing reaches the node, and it is told
    nothing.
    """
    pid_of(work, name)
    command = ["nsenter", "--target", str(pid_of(work, SWITCH)), "--net"]
    checked([*command, "ip", "link", "set", f"p-{name}", "up" if up else "down"])


class Cluster(Held):
    """See the module. `rate` as tc has it, such as 200mbit; None: links as fast as the machine.
    `rates`: those of links with another one, by name. queue_ms: the longest
    time that a packet may wait for a link.
    """

    def __init__(
        self,
        parent: str,
        nodes: int,
        servers: int = 0,
        rate: str | None = None,
        rates: Mapping[str, str] | None = None,
        queue_ms: int = 50,
    ) -> None:
        why = missing()
        if why:
            raise HeldError(why)
        self.nodes = [f"n{i + 1}" for i in range(nodes)]
        self.servers = [f"s{i + 1}" for i in range(servers)]
        self.rate, self.rates, self.queue_ms = rate, rates or {}, queue_ms
        self.holders: dict[str, subprocess.Popen[bytes]] = {}
        self.alive: int | None = None
        self.neighbours: str | None = None
        sweep(parent)
        self.work, self.lock = locked_directory(parent, PREFIX)
        self.local = os.path.join(self.work, "local")

    # ---- up and down ----
    def bring_up(self) -> None:
        names = self.nodes + self.servers
        os.makedirs(self.local)
        os.makedirs(os.path.join(self.work, "pids"))
        for name in names:
            os.makedirs(os.path.join(self.work, "nodes", name))
        on = os.path.join(self.work, "on")
        with open(on, "w") as file:
            file.write(ON % shell_word(self.work))
        os.chmod(on, 0o755)
        waits, self.alive = os.pipe()
        try:
            self.hold(HEAD, HEAD_SETUP, waits, ["--net", "--uts"])
            self.hold(SWITCH, SWITCH_SETUP, waits, ["--net", "--pid", "--fork", "--kill-child"])
            for name in names:
                self.hold(
                    name,
                    NODE_SETUP,
                    waits,
                    # slave: what is unmounted on the machine (disks.py) goes here too, and nothing
                    # the other way.
                    [
                        "--net",
                        "--uts",
                        "--mount",
                        "--propagation",
                        "slave",
                        "--pid",
                        "--fork",
                        "--kill-child",
                        "--mount-proc",
                    ],
                )
        finally:
            os.close(waits)
        until = time.monotonic() + DEADLINE_S
        for name, holder in self.holders.items():
            if not select.select([pipe(holder.stdout)], [], [], max(0, until - time.monotonic()))[
                0
            ]:
                raise HeldError(f"{name} did not come up within {DEADLINE_S} s")
            if pipe(holder.stdout).readline() != b"ready\n":
                raise HeldError(
                    f"{name} did not come up: {pipe(holder.stderr).read().decode().strip()}"
                )
            pid = holder.pid if name == HEAD else child_of(holder.pid)
            with open(os.path.join(self.work, "pids", name), "w") as file:
                file.write(f"{pid}\n")
        self.connect([HEAD, *names])

    def hold(self, name: str, script: str, waits: int, namespaces: Sequence[str]) -> None:
        # In a session of its own: Ctrl-C is for this process, whose end the holder notices.
        self.holders[name] = subprocess.Popen(
            ["unshare", *namespaces, "bash", "-c", script, f"{PREFIX}{name}", self.work, name],
            stdin=waits,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
            pass_fds=[self.lock.fileno()] if name == HEAD else [],
        )

    def make_room(self, count: int) -> None:
        """In the table of neighbours, for all pairs of nodes; close() takes it back. If this
        process is killed, the table stays larger.
        """
        try:
            with open(NEIGHBOURS) as file:
                before = file.read()
            if int(before) < count * count:
                with open(NEIGHBOURS, "w") as file:
                    file.write(f"{count * count}\n")
                self.neighbours = before
        except OSError as error:
            if count >= 32:
                raise HeldError(
                    f"{NEIGHBOURS}: {error.strerror}; {count} nodes need room for their pairs"
                ) from error

    def connect(self, names: Sequence[str]) -> None:
        """One link for each: v in the node, p-NAME in the switch."""
        self.make_room(len(names))
        switch = pid_of(self.work, SWITCH)
        lines = [
            f"link add v netns {pid_of(self.work, name)} type veth peer name p-{name} netns "
            f"{switch}"
            for name in names
        ]
        checked(["ip", "-batch", "-"], input="\n".join(lines))
        inside = ["nsenter", "--target", str(switch), "--net"]
        checked(
            [*inside, "ip", "-batch", "-"],
            input="\n".join(f"link set p-{name} master br0 up" for name in names),
        )
        shaped = [name for name in names if self.rate and name != HEAD]
        checked(
            [*inside, "tc", "-batch", "-"],
            input="\n".join(self.shape(f"p-{name}", name) for name in shaped),
        )
        begun = []
        for name in names:
            text = f"ip addr add {self.address(name)}/16 dev v && ip link set v up"
            text += f" && tc {self.shape('v', name)}" if name in shaped else ""
            begun.append(
                (
                    text,
                    subprocess.Popen(
                        [
                            "nsenter",
                            "--target",
                            str(pid_of(self.work, name)),
                            "--net",
                            "sh",
                            "-c",
                            text,
                        ],
                        stderr=subprocess.PIPE,
                        text=True,
                    ),
                )
            )
        for text, process in begun:
            said = process.communicate()[1]
            if process.returncode != 0:
                raise HeldError(f"{text}: {said.strip()}")

    def shape(self, device: str, name: str) -> str:
        rate = self.rates.get(name, self.rate)
        wait = f"latency {self.queue_ms}ms"
        return f"qdisc add dev {device} root tbf rate {rate} burst 256kb {wait}"

    def close(self) -> None:
        if self.alive is not None:
            os.close(self.alive)
            self.alive = None
        for holder in self.holders.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                holder.wait(DEADLINE_S)
            pipe(holder.stdout).close()
            pipe(holder.stderr).close()
        self.holders = {}
        if self.neighbours:
            with open(NEIGHBOURS, "w") as file:
                file.write(self.neighbours)
            self.neighbours = None
        self.lock.close()
        shutil.rmtree(self.work, ignore_errors=True)  # there only if it never came up

    # ---- what is there ----
    def address(self, name: str) -> str:
        if name == HEAD:
            return "198.18.0.1"
        net, place = divmod(int(name[1:]) - 1, 250)
        return f"198.18.{2 * net + (1 if name[0] == 'n' else 2)}.{place + 1}"

    def environment(self) -> dict[str, str]:
        """For what runs on the head: mpirun finds the nodes by their names."""
        settings = {
            "plm_rsh_agent": os.path.join(self.work, "on"),
            "plm_rsh_no_tree_spawn": "1",
            "pml": "ob1",
            "btl": "tcp,self",
            "btl_tcp_if_include": NET,
            "oob_tcp_if_include": NET,
            "hwloc_base_binding_policy": "none",
            "rmaps_base_oversubscribe": "1",
            "mpi_yield_when_idle": "1",
        }
        return {
            **os.environ,
            **{f"OMPI_MCA_{key}": value for key, value in settings.items()},
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "CLUSTER": self.work,
            "CLUSTER_NODES": ",".join(self.nodes),
            "CLUSTER_SERVERS": ",".join(self.servers),
        }

    def enter(self, name: str, command: Sequence[str]) -> list[str]:
        """The command as it is started on a node, or on the head, from anywhere on the machine."""
        if name == HEAD:
            return ["nsenter", "--target", str(pid_of(self.work, HEAD)), "--net", "--uts", *command]
        return [os.path.join(self.work, "on"), name, "exec " + " ".join(map(shell_word, command))]

    def start(
        self,
        command: Sequence[str],
        on: str = HEAD,
        env: Mapping[str, str] | None = None,
        **more: Any,
    ) -> subprocess.Popen[Any]:
        return subprocess.Popen(
            self.enter(on, command), env={**self.environment(), **(env or {})}, **more
        )

    def run(
        self,
        command: Sequence[str],
        on: str = HEAD,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 600,
    ) -> str:
        """Runs to the end; what it said. An error or a run beyond the deadline raises with that."""
        process = self.start(
            command,
            on,
            env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said: str = process.communicate(timeout=timeout_s)[0]
        except BaseException:
            process.terminate()
            process.wait()
            raise
        if process.returncode != 0:
            raise RuntimeError(
                f"{' '.join(command)}\nended with {process.returncode}:\n{said[-4000:]}"
            )
        return said


def child_of(pid: int) -> int:
    """The one child of a process."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return int(file.read())


def shell_word(text: object) -> str:
    return "'" + str(text).replace("'", "'\\''") + "'"
