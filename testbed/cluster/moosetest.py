"""`orcheck place` and jobs on a real MooseFS, on a cluster of namespaces.

Four nodes have two ranks each; there are four chunkservers.

What it shows: every directory that `orcheck place` made has all its files on one chunkserver, as
MooseFS's own tool says; a rank is killed, and the job resumes exactly; a chunkserver is killed
(SIGKILL) in the middle of a checkpoint: the job says which directory failed, nothing hangs, and
with the chunkserver back the newest step from before is what a restart gets, bit for bit; while it
is away `orcheck place` leaves it out.

Needs root, MooseFS and Open MPI; without them the test says so and counts nothing.
usage: PREFIX=build/prefix LBM=build/examples/lbm python3 -m testbed.cluster.moosetest
"""

import contextlib
import filecmp
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from testbed.cluster import cluster as cl
from testbed.cluster import moosefs as mo
from testbed.cluster import selftest
from testbed.cluster.selftest import LBM, ORCHECK, check, until

STEPS, EVERY, EDGE = 60, 15, "48"


def place(cluster: cl.Cluster, directory: str, *more: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        cluster.run([ORCHECK, "--json", "place", directory, *more], on="n1", timeout_s=60)
    )
    return found


def solver(cluster: cl.Cluster, final: str, *more: str, steps: int = STEPS) -> list[str]:
    size = [word for axis in "xyz" for word in (f"--n{axis}", EDGE)]
    return [
        "mpirun.openmpi",
        "--host",
        ",".join(f"{node}:2" for node in cluster.nodes),
        "-n",
        "8",
        LBM,
        *size,
        "--steps",
        str(steps),
        "--final",
        final,
        *more,
    ]


def checkpoints(job: str, options: str, how: str = "async") -> list[str]:
    return [
        "--job",
        job,
        "--checkpoint",
        how,
        "--every",
        str(EVERY),
        "--level",
        "global",
        "--options",
        options,
    ]


def files_of(cluster: cl.Cluster, directory: str) -> list[str]:
    return cluster.run(["find", directory, "-type", "f"], on="n1", timeout_s=60).split()


def committed(cluster: cl.Cluster, dirs: Sequence[str], job: str) -> list[int]:
    """Steps with a commit record in any directory."""
    found = {
        int(match[1])
        for path in dirs
        for name in files_of(cluster, path)
        for match in [re.search(rf"/{job}/.*s(\d+).*\.commit$", name)]
        if match
    }
    return sorted(found)


def chunks(cluster: cl.Cluster, node: str) -> dict[str, int]:
    """The chunks on the disk of a chunkserver -> their sizes."""
    found = {}
    for where, _, names in os.walk(os.path.join(cluster.work, "nodes", node)):
        for name in names:
            with contextlib.suppress(OSError):  # just removed
                found[name] = os.path.getsize(os.path.join(where, name))
    return found


def placed(cluster: cl.Cluster, moosefs: mo.MooseFS) -> tuple[str, dict[str, str]]:
    base = os.path.join(moosefs.mount, "ck")
    cluster.run(["mkdir", base], on="n1")
    found = place(cluster, base)
    dirs = found["global"]
    check(
        "a directory for each chunkserver", found["driver"] == "moosefs" and len(dirs) == 4, found
    )
    check("all were seen on their server", all(one["verified"] for one in found["servers"]), found)
    check("the same again", place(cluster, base)["global"] == dirs)
    check("two of them", len(place(cluster, base, "--servers", "2")["global"]) == 2)
    names = {f"{cluster.address(node)}:9422": node for node in moosefs.chunkservers}
    return base, {one["directory"]: names[one["name"]] for one in found["servers"]}


def a_killed_rank(
    cluster: cl.Cluster, moosefs: mo.MooseFS, whole: str, servers: Mapping[str, str]
) -> None:
    options = f"global = {list(servers)}\nmode = 'orchestrated'"
    final = os.path.join(cluster.work, "killed-rank")
    said = cluster.run(
        [
            ORCHECK,
            "run",
            "--restarts",
            "2",
            "--",
            *solver(cluster, final, "--die", "45", *checkpoints("rank", options)),
        ],
        timeout_s=90,
    )
    check("resumed after SIGKILL of a rank", "resumed from step" in said, said)
    check("same final state", filecmp.cmp(whole, final, shallow=False))
    seen: dict[str, set[str]] = {}
    for directory, server in servers.items():
        for path in files_of(cluster, directory):
            node = re.search(r"-n(\d{4})-w\d+\.orc$", path)
            if node:
                seen.setdefault(node[1], set()).update(moosefs.lies_on(path))
                # Breaks if: the directory of the job does not inherit the storage class, or a node
                # has two servers.
                if seen[node[1]] != {server}:
                    check(f"{path} is on {server}", False, seen)
    check(
        "each node has a chunkserver of its own",
        len(seen) == 4
        and sorted(server for one in seen.values() for server in one) == sorted(servers.values()),
        seen,
    )


def a_killed_chunkserver(
    cluster: cl.Cluster, moosefs: mo.MooseFS, base: str, servers: Mapping[str, str]
) -> None:
    dirs, lost = list(servers), moosefs.chunkservers[1]
    options = f"global = {dirs}\nmode = 'orchestrated'"
    final = os.path.join(cluster.work, "killed-chunkserver")
    # More steps than it ever comes to: however late the chunkserver is killed, checkpoints follow.
    endless = solver(cluster, final, *checkpoints("lost", options, "sync"), steps=1000 * STEPS)
    job = cluster.start(
        endless,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until("a checkpoint", lambda: job.poll() is not None or committed(cluster, dirs, "lost"))
        before = chunks(cluster, lost)
        # A container is longer than a claim or a record; its chunk grows while it is written.
        until(
            "the next one",
            lambda: (
                job.poll() is not None
                or any(
                    size > 1 << 20
                    for name, size in chunks(cluster, lost).items()
                    if name not in before
                )
            ),
        )
        check("a chunkserver killed while its job runs", job.poll() is None)
        moosefs.kill(lost)
        said = job.communicate(timeout=60)[0]
    finally:
        if job.poll() is None:
            job.kill()
    directory = next(path for path, server in servers.items() if server == lost)
    # Breaks if: an error of a lost server is not passed on, or waits longer than the mount does.
    check(
        "a clear error",
        job.returncode != 0 and "is not safe at level global" in said and directory in said,
        said,
    )
    found = place(cluster, base)
    check("it is left out", directory not in found["global"] and len(found["global"]) == 3, found)
    moosefs.start_chunkserver(lost, moosefs.disks[1])
    moosefs.until("the chunkserver", lambda: len(moosefs.servers()) == 4)
    newest = committed(cluster, dirs, "lost")[-1]
    check("the lost step is not there", f"checkpoint {newest + EVERY} is not safe" in said, said)
    whole, steps = os.path.join(cluster.work, "whole-later"), newest + 2 * EVERY
    cluster.run(solver(cluster, whole, "--checkpoint", "none", steps=steps), timeout_s=90)
    said = cluster.run(
        solver(cluster, final, *checkpoints("lost", options), steps=steps), timeout_s=90
    )
    check("resumed from the newest step before", f"resumed from step {newest}" in said, said)
    check("same final state without the lost checkpoint", filecmp.cmp(whole, final, shallow=False))


def main() -> None:
    why = (
        cl.missing() or mo.missing() or (None if shutil.which("mpirun.openmpi") else "no Open MPI")
    )
    parent = selftest.begin("MooseFS", why, "orcheck-moosetest-")
    try:
        with (
            cl.Cluster(parent, nodes=4, servers=5, rate="1gbit") as cluster,
            mo.MooseFS(cluster) as moosefs,
        ):
            whole = os.path.join(cluster.work, "whole")
            cluster.run(solver(cluster, whole, "--checkpoint", "none"), timeout_s=90)
            base, servers = placed(cluster, moosefs)
            a_killed_rank(cluster, moosefs, whole, servers)
            a_killed_chunkserver(cluster, moosefs, base, servers)
            left = cluster.work
        check("nothing left", not os.listdir(parent) and not selftest.processes(left))
    finally:
        shutil.rmtree(parent, ignore_errors=True)
    print(f"{selftest.passed} passed, 0 failed")


if __name__ == "__main__":
    main()
