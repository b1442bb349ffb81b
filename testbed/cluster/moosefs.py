"""A real parallel file system on the nodes of a cluster: MooseFS.

A master and labelled chunkservers run on the servers of the cluster; each node has a mount.

    with Cluster(parent, nodes=4, servers=5, rate="1gbit") as cluster:
        with MooseFS(cluster, disks=[...]) as moosefs:  # master on s1, chunkservers on s2...
            cluster.run(["ls", moosefs.mount], on="n1")

How: the daemons are started in the foreground on the nodes of the cluster, so that they end with
them; each has a configuration of its own below WORK/moosefs and listens at the address of its node
(MooseFS refuses 127.x). The client is one mount on each node, in the node's own mount namespace:
what a node reads and writes travels over that node's link. A chunkserver has a letter as its label,
A for the first one, and keeps its chunks in a directory or on a file system that the caller gives.

Invariants:
1. Nothing is left: daemons and mounts end with their node, all files are below WORK or emptied at
   the end.
2. No wait without a deadline.
3. The settings that decide about honesty are in CHUNKSERVER and MOUNT below; `what()` says them.

Not here: which file goes to which server (`orcheck place`), the disks.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from testbed.cluster.cluster import Cluster, child_of
from testbed.cluster.held import DEADLINE_S, Held, HeldError, pipe, until

PROGRAMS = ("mfsmaster", "mfschunkserver", "mfsmount", "mfscli", "mfsscadmin", "mfsfileinfo")
EMPTY = "/var/lib/mfs/metadata.mfs.empty"
MASTER = {
    "NICE_LEVEL": 0,
    "DISABLE_OOM_KILLER": 0,
    "CHUNKS_LOOP_MIN_TIME": 60,
    "REPLICATIONS_DELAY_INIT": 3600,
}
# A file is on the disk when its chunk is closed; nothing else reads or moves chunks.
CHUNKSERVER = {
    "NICE_LEVEL": 0,
    "DISABLE_OOM_KILLER": 0,
    "HDD_FSYNC_BEFORE_CLOSE": 1,
    "HDD_TEST_SPEED": 0,
    "HDD_LEAVE_SPACE_DEFAULT": "16MiB",
    "HDD_REBALANCE_UTILIZATION": 0,
    "MASTER_RECONNECTION_DELAY": 1,
}
# A lost server is an error after about mfstimeout seconds; by default that takes minutes. Without
# mfserroronnospace: it makes an error of a server that is busy for a moment.
MOUNT = ["mfsioretries=8", "mfstimeout=10", "mfserroronlostchunk", "mfsnice=0", "mfsallowoomkiller"]


def missing() -> str | None:
    """Why there can be no MooseFS here; None if there can."""
    for program in PROGRAMS:
        if not shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
            return f"{program} of MooseFS is missing. Next: tools/install-deps.sh bench"
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse"
    return None


def what() -> str:
    """What was used, for the results."""
    said = subprocess.run(["mfsmaster", "-v"], capture_output=True, text=True)
    version = (said.stdout + said.stderr).strip().splitlines()
    settings = ", ".join(
        f"{key} = {value}" for key, value in CHUNKSERVER.items() if key.startswith("HDD")
    )
    return (
        f"MooseFS {version[0] if version else '?'}; chunkservers with {settings}; "
        f"mounts with -o {','.join(MOUNT)}"
    )


class MooseFS(Held):
    """See the module.

    `mount` is the same path on all nodes; `letters` has a label for each chunkserver's node.
    """

    def __init__(
        self, cluster: Cluster, disks: Sequence[str] | None = None, options: Sequence[str] = ()
    ) -> None:
        """disks: a directory for each chunkserver, empty and seen by all (default: the node's own
        disk).
        """
        if len(cluster.servers) < 2:
            raise HeldError("MooseFS takes a server for the master and at least one for chunks")
        self.cluster, self.options = cluster, [*MOUNT, *options]
        self.master, self.chunkservers = cluster.servers[0], cluster.servers[1:]
        self.disks = disks or [cluster.local] * len(self.chunkservers)
        self.letters = {
            node: chr(ord("A") + number) for number, node in enumerate(self.chunkservers)
        }
        self.home, self.mount = (os.path.join(cluster.work, name) for name in ("moosefs", "mfs"))
        self.processes: dict[str, subprocess.Popen[Any]] = {}

    def bring_up(self) -> None:
        os.makedirs(self.mount)
        self.start_master()
        for node, disk in zip(self.chunkservers, self.disks):
            self.start_chunkserver(node, disk)
        self.until("all chunkservers", lambda: len(self.servers()) == len(self.chunkservers))
        begun = [
            (
                node,
                self.cluster.start(
                    [
                        "mfsmount",
                        self.mount,
                        "-H",
                        self.cluster.address(self.master),
                        "-o",
                        ",".join(self.options),
                    ],
                    on=node,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                ),
            )
            for node in self.cluster.nodes
        ]
        for node, mount in begun:
            if mount.wait(DEADLINE_S) != 0:
                raise HeldError(f"mfsmount on {node}: {pipe(mount.stderr).read().strip()}")
        self.cluster.run(
            ["chmod", "1777", self.mount], on=self.cluster.nodes[0], timeout_s=DEADLINE_S
        )

    def start_master(self) -> None:
        data = self.directory("master")
        shutil.copyfile(EMPTY, os.path.join(data, "metadata.mfs"))
        exports = self.written("exports", "* / rw,alldirs,admin,maproot=0:0\n")
        host = self.cluster.address(self.master)
        self.start(
            self.master,
            "mfsmaster",
            {
                **MASTER,
                "WORKING_USER": "root",
                "WORKING_GROUP": "root",
                "DATA_PATH": data,
                "EXPORTS_FILENAME": exports,
                "MATOML_LISTEN_HOST": host,
                "MATOCS_LISTEN_HOST": host,
                "MATOCL_LISTEN_HOST": host,
            },
        )

    def start_chunkserver(self, node: str, disk: str) -> None:
        """Also after `kill`: it has its chunks again."""
        # Resolved on the node: its own disk has the same path on all.
        text = self.written(f"{node}.hdd", disk + "\n")
        self.start(
            node,
            "mfschunkserver",
            {
                **CHUNKSERVER,
                "WORKING_USER": "root",
                "WORKING_GROUP": "root",
                "DATA_PATH": self.directory(node),
                "HDD_CONF_FILENAME": text,
                "LABELS": self.letters[node],
                "BIND_HOST": self.cluster.address(node),
                "MASTER_HOST": self.cluster.address(self.master),
                "CSSERV_LISTEN_HOST": self.cluster.address(node),
            },
        )

    def start(self, node: str, program: str, settings: Mapping[str, object]) -> None:
        text = "".join(f"{key} = {value}\n" for key, value in settings.items())
        path = self.written(f"{node}.cfg", text)
        with open(os.path.join(self.home, f"{node}.log"), "ab") as log:
            self.processes[node] = self.cluster.start(
                [program, "-f", "-c", path, "start"],
                on=node,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def directory(self, name: str) -> str:
        path = os.path.join(self.home, name)
        os.makedirs(path, exist_ok=True)
        return path

    def written(self, name: str, text: str) -> str:
        path = os.path.join(self.directory("."), name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def kill(self, node: str) -> None:
        """SIGKILL of a chunkserver or of the master; its disk stays.

        `start_chunkserver` has it back.
        """
        process = self.processes.pop(node)
        os.kill(child_of(process.pid), signal.SIGKILL)
        process.wait(DEADLINE_S)

    def close(self) -> None:
        """Mounts go first, so that nobody waits for a server; daemons leave disks in order."""
        for node in self.cluster.nodes:
            subprocess.run(
                self.cluster.enter(node, ["umount", "-l", self.mount]), capture_output=True
            )
        for process in self.processes.values():
            with contextlib.suppress(OSError, ValueError):
                os.kill(child_of(process.pid), signal.SIGKILL)
        for process in self.processes.values():
            process.wait(DEADLINE_S)
        self.processes = {}
        shutil.rmtree(self.home, ignore_errors=True)

    # ---- what is there ----
    def servers(self) -> dict[str, str]:
        """Address:port -> label of the chunkservers that the master knows with their room."""
        found = {}
        for line in self.ask("-SCS").splitlines():
            # ip, port, id, labels, version, load, maintenance, chunks, used, total, ...: fewer when
            # it is disconnected
            name, *fields = line.split("|")
            if name == "chunk servers:" and len(fields) >= 10 and int(fields[9]) > 0:
                found[f"{fields[0]}:{fields[1]}"] = fields[3]
        return found

    def lies_on(self, path: str) -> list[str]:
        """The nodes of the chunkservers that have chunks of a file, as MooseFS's own tool says."""
        said = self.cluster.run(
            ["mfsfileinfo", path], on=self.cluster.nodes[0], timeout_s=DEADLINE_S
        )
        copies = [
            line.split()[2].split(":")[0]
            for line in said.splitlines()
            if line.strip().startswith("copy ")
        ]
        names = {self.cluster.address(node): node for node in self.chunkservers}
        return sorted({names[address] for address in copies})

    def ask(self, what: str) -> str:
        try:
            return self.cluster.run(
                ["mfscli", "-H", self.cluster.address(self.master), what, "-p", "-n", "-s", "|"],
                timeout_s=DEADLINE_S,
            )
        except RuntimeError:  # nobody listens yet
            return ""

    def until(self, what: str, found: Callable[[], bool]) -> None:
        def there() -> bool:
            for node, process in self.processes.items():
                if process.poll() is not None:
                    raise HeldError(
                        f"MooseFS on {node} ended with {process.returncode}: {self.said(node)}"
                    )
            return found()

        if not until(there):
            raise HeldError(f"MooseFS: waited {DEADLINE_S} s for {what}")

    def said(self, node: str) -> str:
        with open(os.path.join(self.home, f"{node}.log"), errors="replace") as log:
            return log.read().strip()[-2000:]
