"""Tests jobs on several hosts, and the cluster itself.

The hosts are namespaces with names of their own on a switch, so that votes, addresses, the job key
and replicas really travel between machines.

A rank is killed with SIGKILL in the middle of a flush; a node is killed and its disk wiped, with no
shared directory and one replica. Both jobs resume and must end bit for bit like an undisturbed one.
At the end, and after a SIGKILL of the program that holds a cluster, nothing of it may be left.

Needs root (namespaces); without it the test says so and counts nothing.
usage: PREFIX=build/prefix LBM=build/examples/lbm python3 -m testbed.cluster.selftest
"""

import filecmp
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable

from testbed.cluster import cluster as cl
from testbed.cluster import held

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

PREFIX = os.environ.get("PREFIX", os.path.join(ROOT, "build", "prefix"))
LBM = os.path.abspath(os.environ.get("LBM", os.path.join(ROOT, "build", "examples", "lbm")))
ORCHECK = os.path.join(os.path.abspath(PREFIX), "bin", "orcheck")
DEADLINE_S = 120
passed = 0


def check(what: str, good: bool, said: object = "") -> None:
    global passed
    if not good:
        print(
            f"FAILED: {what}\n" + "".join(f"   | {line}\n" for line in str(said).splitlines()[-40:])
        )
        print(f"{passed} passed, 1 failed")
        sys.exit(1)
    print(f"ok: {what}", flush=True)
    passed += 1


def begin(what: str, why: str | None, prefix: str) -> str:
    """A directory for a test; where it cannot be done, that is reported, and the test has ended."""
    if why:
        print(f"SKIPPED: {what}: {why}\n{passed} passed, 0 failed")
        sys.exit(0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return tempfile.mkdtemp(prefix=prefix)


def until(what: str, found: Callable[[], object]) -> None:
    if not held.until(found, DEADLINE_S, 0.005):
        raise RuntimeError(f"waited {DEADLINE_S} s: {what}")


def processes(work: str) -> list[int]:
    """Those that hold a cluster or run on it: the work directory is in their arguments or in their
    environment.
    """
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with (
                open(f"/proc/{pid}/cmdline", "rb") as words,
                open(f"/proc/{pid}/environ", "rb") as environment,
            ):
                if int(pid) != os.getpid() and work.encode() in words.read() + environment.read():
                    found.append(int(pid))
        except OSError:
            pass
    return found


def solve(final: str, *more: str, hosts: str = "{nodes}") -> list[str]:
    mpirun = ["mpirun.openmpi", "--host", hosts, "-n", "4"]
    size = [word for axis in "xyz" for word in (f"--n{axis}", "48")]
    return [*mpirun, LBM, *size, "--steps", "240", "--final", final, *more]


def a_killed_rank(cluster: cl.Cluster, whole: str) -> None:
    work = cluster.work
    servers = [os.path.join(work, f"ost{i}") for i in range(2)]
    for path in servers:
        os.mkdir(path)
    options = f"global = {servers}\nnode_dir = '{cluster.local}'"
    final = os.path.join(work, "killed-rank")
    said = cluster.run(
        [
            ORCHECK,
            "run",
            "--restarts",
            "2",
            "--",
            *solve(
                final,
                "--job",
                "hosts",
                "--checkpoint",
                "async",
                "--every",
                "15",
                "--die",
                "45",
                "--options",
                options,
                hosts="n1:2,n2,n3",
            ),
        ]
    )
    check("resumed after SIGKILL of a rank", "resumed from step" in said, said)
    check("same final state", filecmp.cmp(whole, final, shallow=False))
    names = [
        sorted(os.listdir(os.path.join(work, "nodes", node, "hosts")))
        for node in ("n1", "n2", "n3")
    ]
    check("every host has its own level node", names == [["n1"], ["n2"], ["n3"]], names)
    files = [
        name
        for path in servers
        for name in os.listdir(os.path.join(path, "hosts"))
        if name.endswith("-w00.orc")
    ]
    nodes = {name.split("-n")[1][:4] for name in files}
    check("every host wrote containers", nodes == {"0000", "0001", "0002"}, files)
    dirs = [word for path in servers for word in ("--dir", path)]
    done = subprocess.run(
        [ORCHECK, "verify", "--all", *dirs, "--job", "hosts"], capture_output=True, text=True
    )
    check("the checkpoints verify", done.returncode == 0, done.stdout + done.stderr)


def a_killed_node(cluster: cl.Cluster, whole: str) -> None:
    """Four nodes, one replica, no shared directory: n2 goes with its disk once two checkpoints are
    safe.
    """
    work = cluster.work
    final = os.path.join(work, "killed-node")
    options = f"node_dir = '{cluster.local}'\npeers = 1"
    command = [
        ORCHECK,
        "run",
        "--restarts",
        "2",
        "--nodes",
        ",".join(cluster.nodes),
        "--look",
        "1",
        "--alive",
        os.path.join(work, "on") + " {node} true",
        "--",
        *solve(
            final,
            "--job",
            "nodes",
            "--checkpoint",
            "async",
            "--every",
            "10",
            "--level",
            "peers",
            "--options",
            options,
        ),
    ]
    job = cluster.start(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    disk = os.path.join(work, "nodes", "n2", "nodes", "n2")
    try:
        # Any from step 20 on: the one before may be removed before this has looked.
        until(
            "a second checkpoint",
            lambda: (
                job.poll() is not None
                or (
                    os.path.isdir(disk)
                    and any(
                        name.endswith(".commit") and "s000000000010" not in name
                        for name in os.listdir(disk)
                    )
                )
            ),
        )
        check("a node killed while its job runs", job.poll() is None and cl.kill(work, "n2") > 0)
        said = job.communicate(timeout=DEADLINE_S)[0]
    finally:
        if job.poll() is None:
            job.kill()
    check("resumed on the other three", job.returncode == 0 and "resumed from step" in said, said)
    check("same final state without the node", filecmp.cmp(whole, final, shallow=False))
    # Breaks if: the disk is not wiped, or a node sees the disks of others.
    check("the lost node's disk is empty", not os.listdir(os.path.join(work, "nodes", "n2")))
    others = [os.listdir(os.path.join(work, "nodes", node)) for node in ("n1", "n3", "n4")]
    check("the others have what they had", all("nodes" in names for names in others), others)


def answers(cluster: cl.Cluster, node: str) -> bool:
    """Whether a closed port of the node refuses: what is cut off says nothing."""
    knock = f"exec 3<>/dev/tcp/{cluster.address(node)}/9"
    done = subprocess.run(
        cluster.enter("n1", ["timeout", "1", "bash", "-c", knock]), capture_output=True, text=True
    )
    return "refused" in done.stderr


def a_killed_holder(parent: str) -> None:
    """SIGKILL of the command that holds a cluster, while node and head have processes."""
    command = [
        os.path.join(HERE, "cluster"),
        "run",
        "--nodes",
        "2",
        "--dir",
        parent,
        "--",
        "bash",
        "-c",
        "echo $CLUSTER; sleep 600 & exec $CLUSTER/on n1 'echo up; exec sleep 600'",
    ]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    work = held.pipe(holder.stdout).readline().strip()
    check(
        "a cluster by the command",
        held.pipe(holder.stdout).readline() == "up\n" and len(processes(work)) >= 6,
    )
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    # Breaks if: somebody else holds the other end of the pipe, or the head's holder does not look
    # for what runs there.
    until(
        "nothing of the killed holder's cluster is left",
        lambda: not os.path.exists(work) and not processes(work),
    )
    check("nothing left after SIGKILL of the holder", True)


def main() -> None:
    why = cl.missing() or (None if shutil.which("mpirun.openmpi") else "no Open MPI")
    parent = begin("several hosts", why, "orcheck-selftest-")
    try:
        with cl.Cluster(parent, nodes=4, rate="1gbit") as cluster:
            whole = os.path.join(cluster.work, "whole")
            cluster.run(solve(whole, "--checkpoint", "none", hosts=",".join(cluster.nodes)))
            check("undisturbed on four hosts", os.path.getsize(whole) > 0)
            a_killed_rank(cluster, whole)
            cl.link(cluster.work, "n4", False)
            cut_off = answers(cluster, "n4")
            cl.link(cluster.work, "n4", True)
            check("a link goes down and up", not cut_off and answers(cluster, "n4"))
            a_killed_node(cluster, whole)
            left = cluster.work
        check("nothing left of the cluster", not os.listdir(parent) and not processes(left))
        a_killed_holder(parent)
        # Files alone may be left, when all processes were killed at once; the next cluster removes
        # them.
        old = os.path.join(parent, cl.PREFIX + "old")
        os.makedirs(os.path.join(old, "local"))
        open(os.path.join(old, "lock"), "w").close()
        with cl.Cluster(parent, nodes=1):
            check("what an earlier cluster left is removed", not os.path.exists(old))
    finally:
        shutil.rmtree(parent, ignore_errors=True)
    print(f"{passed} passed, 0 failed")


if __name__ == "__main__":
    main()
