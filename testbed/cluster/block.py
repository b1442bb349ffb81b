"""What block devices were asked for, as the kernel's tracepoints tell it.

    with BlockTrace(["loop0"]) as trace:
        ...
        trace.seeks("loop0")

How: a trace instance of its own below tracefs, with block:block_rq_complete of these devices. Each
line is a request in the order in which the device was done with it, so a device that reorders its
queue is followed.

A *seek* is a request that does not begin where the one before ended. Flushes have no place and do
not count.

Survives: other users of tracefs (an instance is this program's alone).

Not here: kernels without tracefs or machines without root (missing() says why).
"""

import contextlib
import glob
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence

from testbed.cluster.held import Held, HeldError, checked

EVENT = "events/block/block_rq_complete"
LINE = re.compile(r"block_rq_complete: (\d+),(\d+) (\S+) \(.*?\) (\d+) \+ (\d+)")
BUFFER_KIB = 16384


def missing() -> str | None:
    """Why nothing can be traced on this machine; None if it can."""
    if os.geteuid() != 0:
        return "tracepoints take root"
    with open("/proc/filesystems") as file:
        if "tracefs" not in file.read().split():
            return f"Linux {os.uname().release} has no tracefs"
    with tempfile.TemporaryDirectory(prefix="orcheck-trace-") as at:
        command = ["mount", "-t", "tracefs", "tracefs", at]
        if subprocess.run(command, capture_output=True).returncode:
            return "tracefs cannot be mounted"
        has = os.path.isdir(os.path.join(at, EVENT))
        subprocess.run(["umount", at], capture_output=True)
    return None if has else f"Linux {os.uname().release} has no tracepoints of block devices"


class BlockTrace(Held):
    """See the module. names: of devices, as in /sys/block."""

    def __init__(self, names: Sequence[str]) -> None:
        why = missing()
        if why:
            raise HeldError(why)
        self.numbers = {name: number_of(name) for name in names}
        self.at = tempfile.mkdtemp(prefix="orcheck-trace-")
        self.instance = os.path.join(self.at, "instances", f"orcheck-{os.getpid()}")

    def bring_up(self) -> None:
        checked(["mount", "-t", "tracefs", "tracefs", self.at])
        os.mkdir(self.instance)
        self.set_to("buffer_size_kb", BUFFER_KIB)
        each = (f"dev == {major << 20 | minor}" for major, minor in self.numbers.values())
        self.set_to(f"{EVENT}/filter", " || ".join(each))
        self.set_to(f"{EVENT}/enable", 1)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.set_to(f"{EVENT}/enable", 0)
        with contextlib.suppress(OSError):
            os.rmdir(self.instance)
        subprocess.run(["umount", self.at], capture_output=True)
        with contextlib.suppress(OSError):
            os.rmdir(self.at)

    def set_to(self, path: str, value: object) -> None:
        with open(os.path.join(self.instance, path), "w") as file:
            file.write(f"{value}\n")

    def reset(self) -> None:
        """Forgets all requests so far."""
        with open(os.path.join(self.instance, "trace"), "w"):
            pass

    def requests(self, name: str) -> list[tuple[int, int]]:
        """First byte and length of each request of a device since reset()."""
        lost = 0
        for path in glob.glob(os.path.join(self.instance, "per_cpu", "*", "stats")):
            with open(path) as file:
                lost += sum(int(line.split()[1]) for line in file if line.startswith("overrun:"))
        if lost:
            raise HeldError(f"{lost} requests were not traced: BUFFER_KIB is too small")
        with open(os.path.join(self.instance, "trace")) as file:
            found = [match.groups() for match in map(LINE.search, file) if match]
        wanted = self.numbers[name]
        return [
            (int(sector) * 512, int(count) * 512)
            for major, minor, _, sector, count in found
            if (int(major), int(minor)) == wanted and int(count) > 0
        ]

    def seeks(self, name: str, passed_bytes: int = 0) -> int:
        """How many requests did not begin where the one before ended, or so few bytes behind it
        that a disk lets them pass.
        """
        end, count = 0, 0
        for at, length in self.requests(name):
            count += not 0 <= at - end <= passed_bytes
            end = at + length
        return count


def number_of(name: str) -> tuple[int, int]:
    with open(f"/sys/block/{name}/dev") as file:
        major, minor = file.read().split(":")
    return int(major), int(minor)
