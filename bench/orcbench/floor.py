"""The minimum cost of bytes that travel and are written: wire_floor, for replicas and servers.

The program (crates/staging/examples/wire_floor.rs) sends bytes through one connection and writes
them past the page cache, here and there at the same time; the clock runs until both files are
durable. `mac`: frames are authenticated as those of replicas and servers are. `plain`: TCP alone.
"""

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from orcbench import running, stats
from orcbench.stats import Figure, Sample
from testbed.cluster.held import pipe

PORT = 9100
GIB = 1 << 30
# (command, more of Popen) -> the process.
Start = Callable[..., "subprocess.Popen[Any]"]


def program() -> str:
    """Builds it; returns its path."""
    command = ["cargo", "build", "-q", "--release", "--locked", "-p", "orcheck-staging"]
    subprocess.run([*command, "--example", "wire_floor"], cwd=running.ROOT, check=True)
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(running.ROOT, "target"))
    return os.path.join(target, "release", "examples", "wire_floor")


def rounds(
    how: str,
    path: str,
    size: int,
    count: int,
    at: str,
    dirs: tuple[str | None, str],
    start: tuple[Start, Start],
) -> list[Sample]:
    """`count` rounds of `size` bytes (whole MiB) through `how`, to address `at`.

    dirs: where the sender (None: not at all) and the taker write. start: how each is started.
    """
    mib, address = str(size // running.MIB), f"{at}:{PORT}"
    more = {"stdout": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}
    taker = start[1]([path, "take", how, address, dirs[1], mib], **more)
    try:
        if pipe(taker.stdout).readline() != "ready\n":
            raise RuntimeError("wire_floor did not begin to listen")
        command = [path, "send", how, address, dirs[0] or "-", mib, str(count)]
        sender = start[0](command, **more)
        said = sender.communicate(timeout=600)[0]
        if sender.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {sender.returncode}")
        found: list[Sample] = json.loads(said)
    finally:
        try:
            taker.wait(60)
        except subprocess.TimeoutExpired:
            taker.kill()
            taker.wait()
        pipe(taker.stdout).close()
    for one in found:
        one["rate"] = one["bytes"] / one["s"]
        one["cpu_s_per_gib"] = one["cpu_s"] / (one["bytes"] / GIB)
    return found


def here(command: Sequence[str], **more: Any) -> "subprocess.Popen[Any]":
    """Starts a process on this machine."""
    return subprocess.Popen(command, **more)


def over(mine: Sequence[Sample], its: Sequence[Sample]) -> Figure:
    """Rates over those of the same rounds of the floor."""
    return stats.figure([one["rate"] / floor["rate"] for one, floor in zip(mine, its)])


def cpu(ones: Sequence[Sample]) -> Figure:
    return stats.figure([one["cpu_s_per_gib"] for one in ones])
