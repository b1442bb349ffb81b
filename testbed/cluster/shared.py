"""Directories of servers that all nodes of a cluster see over the links.

This is what a central server, or several, are to a job.

How: sshfs without ssh (-o directport): the FUSE client of each node speaks SFTP over a plain TCP
connection with an sftp-server of its own on the server, where the file lies on the server's own
disk. Nothing is encrypted, writes are sent ahead of their answers, and fsync reaches the server's
disk. Linux's own NFS client would be more usual, but many kernels (those of containers) lack it.

Not here: which node uses which directory; that is Orcheck's placement.
"""

import os
import shutil
import subprocess
import sys

from testbed.cluster.cluster import Cluster
from testbed.cluster.held import DEADLINE_S, HeldError, pipe

SFTP_SERVER = "/usr/lib/openssh/sftp-server"
PORT = 9001
OPTIONS = ["cache=no", "max_conns=1", f"directport={PORT}"]
SERVE = f"""
import socket, subprocess, sys, threading
door = socket.create_server((sys.argv[1], {PORT}), backlog=128)
print("ready", flush=True)
while True:
    conn, _ = door.accept()
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    subprocess.Popen(["{SFTP_SERVER}"], stdin=conn, stdout=conn)
    conn.close()
"""


def missing() -> str | None:
    """Why servers cannot be had here; None if they can."""
    if not shutil.which("sshfs") or not os.path.exists(SFTP_SERVER):
        return "sshfs or sftp-server is missing. Next: tools/install-deps.sh bench"
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse"
    return None


def what() -> str:
    """What was used, for the results."""
    said = subprocess.run(
        ["sshfs", "--version"], capture_output=True, text=True
    ).stdout.splitlines()
    version = next((line for line in said if line.startswith("SSHFS")), "sshfs")
    return f"{version}, -o {','.join(OPTIONS)}, plain TCP to OpenSSH's sftp-server"


def serve(cluster: Cluster) -> list[str]:
    """Mounts the disk of each server on each node; the directories, the same on all nodes.

    They end with the cluster.
    """
    dirs = []
    for server in cluster.servers:
        at = os.path.join(cluster.work, "global", server)
        os.makedirs(at)
        process = cluster.start(
            [sys.executable, "-c", SERVE, cluster.address(server)],
            on=server,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        if pipe(process.stdout).readline() != b"ready\n":
            raise HeldError(f"the server on {server} does not listen")
        dirs.append(at)
        begun = [
            (
                node,
                cluster.start(
                    [
                        "sshfs",
                        f"{cluster.address(server)}:{cluster.local}",
                        at,
                        "-o",
                        ",".join(OPTIONS),
                    ],
                    on=node,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                ),
            )
            for node in cluster.nodes
        ]
        for node, mount in begun:
            if mount.wait(DEADLINE_S) != 0:
                raise HeldError(f"sshfs on {node}: {pipe(mount.stderr).read().strip()}")
    return dirs
