"""Slow disks: the writes or the reads of a device, limited by cgroup v1's blkio controller, of the
whole machine (Limit) or of groups of processes (Groups).
"""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence

from orcbench.facts import read
from orcbench.running import MIB, scratch
from testbed.cluster.held import Held, HeldError, pipe


class Limit:
    """Limits the writes (or the reads) of the device that holds a directory, by the blkio
    controller of cgroup v1.

    The limit is set in the root group (writes of the page cache are nobody's in a child group), so
    it holds for the whole machine, and is taken back at the end, however that comes: a process of
    its own, in its own session, waits for the end of this one and takes the limit back.
    """

    CONTROL = "/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device"
    READ_CONTROL = "/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device"

    def __init__(
        self, path: str, bytes_per_s: int, reads: bool = False, check_mib: int = 256
    ) -> None:
        """check_mib: how much is written (and read) to see that the limit is there."""
        self.path, self.bytes_per_s, self.reads = path, bytes_per_s, reads
        self.guard: subprocess.Popen[bytes] | None = None
        self.blocks = check_mib // 4
        self.CONTROL = self.READ_CONTROL if reads else self.CONTROL

    def __enter__(self) -> float:
        device = whole_disk(os.stat(self.path).st_dev)
        if os.geteuid() != 0:
            raise OSError("limiting a device needs root")
        if device is None or not os.path.exists(self.CONTROL):
            raise OSError(f"{self.path} is not on a disk of its own that {self.CONTROL} can limit")
        if any(line.split()[:1] == [device] for line in read(self.CONTROL).splitlines()):
            raise OSError(f"device {device} already has a limit in {self.CONTROL}")
        undo = f"trap '' INT TERM HUP; read -r _; echo '{device} 0' > {self.CONTROL}"
        self.guard = subprocess.Popen(
            ["sh", "-c", undo], stdin=subprocess.PIPE, start_new_session=True
        )
        try:
            with open(self.CONTROL, "w") as control:
                control.write(f"{device} {self.bytes_per_s}\n")
            rate = self.measure()
            if not 0.5 * self.bytes_per_s < rate < 1.25 * self.bytes_per_s:
                raise OSError(
                    f"limited to {self.bytes_per_s / 1e6:.0f} MB/s, {rate / 1e6:.0f} MB/s were "
                    "measured"
                )
            return rate
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        assert self.guard is not None
        pipe(self.guard.stdin).close()
        self.guard.wait()

    def measure(self) -> float:
        """Bytes/s of direct writes, or reads, as a check that the limit is there."""
        with scratch(self.path) as where:
            file = os.path.join(where, "x")
            dd = [
                "dd",
                "if=/dev/zero",
                "of=" + file,
                "bs=4M",
                f"count={self.blocks}",
                "oflag=direct",
            ]
            if self.reads:
                subprocess.run(dd, check=True, capture_output=True)
                dd = ["dd", "if=" + file, "of=/dev/null", "bs=4M", "iflag=direct"]
                # What a limit that was idle lets through at once.
                subprocess.run(dd, check=True, capture_output=True)
            begin = time.monotonic()
            subprocess.run(dd, check=True, capture_output=True)
            return self.blocks * 4 * MIB / (time.monotonic() - begin)


class Groups(Held):
    """Groups of processes, each of which writes and reads the device of a directory at a rate of
    its own, as if it had a disk of its own. Only direct writes count: what the page cache writes
    back is nobody's.

    They are removed at the end, however that comes, once their processes have ended.
    """

    ROOT = "/sys/fs/cgroup/blkio"

    def __init__(self, path: str, rates: Mapping[str, int]) -> None:
        """rates: bytes/s of each group."""
        self.path, self.rates, self.device = path, rates, whole_disk(os.stat(path).st_dev)
        self.top = os.path.join(self.ROOT, f"orcbench-{os.getpid()}")
        self.guard: subprocess.Popen[bytes] | None = None

    @classmethod
    def missing(cls, path: str) -> str | None:
        """Why there can be none for a directory; None if there can."""
        if os.geteuid() != 0:
            return "limiting the disk of each node needs root"
        if whole_disk(os.stat(path).st_dev) is None or not os.path.exists(Limit.CONTROL):
            return f"{path} is not on a disk of its own that {Limit.CONTROL} can limit"
        return None

    def bring_up(self) -> None:
        remove = (
            f"trap '' INT TERM HUP; read -r _; cd {self.ROOT}; "
            f"while [ -d {self.top} ]; do rmdir {self.top}/* {self.top} 2>/dev/null; "
            "sleep 0.1; done"
        )
        self.guard = subprocess.Popen(
            ["sh", "-c", remove], stdin=subprocess.PIPE, start_new_session=True
        )
        os.mkdir(self.top)
        for name, bytes_per_s in self.rates.items():
            os.mkdir(os.path.join(self.top, name))
            for way in ("write", "read"):
                control = os.path.join(self.top, name, f"blkio.throttle.{way}_bps_device")
                try:
                    with open(control, "w") as file:
                        file.write(f"{self.device} {bytes_per_s}\n")
                except OSError as error:
                    raise HeldError(f"{control}: {error.strerror}") from error
        for bytes_per_s, name in {rate: name for name, rate in self.rates.items()}.items():
            self.check(name, bytes_per_s)

    def check(self, name: str, bytes_per_s: int) -> None:
        """Sees that a group's direct writes are limited. What one that was idle lets through at
        once makes them faster at first."""
        block = max(min(4 * MIB, bytes_per_s // 8) // 4096 * 4096, 4096)
        count = max(2 * bytes_per_s // block, 1)
        with scratch(self.path) as where:
            dd = ["dd", "if=/dev/zero", f"of={os.path.join(where, 'x')}", f"bs={block}"]
            command = [*self.within(name), *dd, f"count={count}", "oflag=direct"]
            begin = time.monotonic()
            subprocess.run(command, check=True, capture_output=True)
            rate = block * count / (time.monotonic() - begin)
        if not 0.5 * bytes_per_s < rate < 1.6 * bytes_per_s:
            raise HeldError(
                f"group {name} is limited to {bytes_per_s / 1e6:.1f} MB/s, and "
                f"{rate / 1e6:.1f} MB/s were measured"
            )

    def close(self) -> None:
        if self.guard is not None:
            pipe(self.guard.stdin).close()
            self.guard.wait()
            self.guard = None

    def within(self, name: str) -> Sequence[str]:
        """The words before a command whose processes are to be in a group."""
        # 0: the process itself, also in a process namespace of its own.
        move = f'echo 0 > {os.path.join(self.top, name)}/cgroup.procs && exec "$@"'
        return ("sh", "-c", move, "sh")


def whole_disk(device: int) -> str | None:
    """ "major:minor" of the disk behind a file system's device number; None if there is none."""
    name = f"{os.major(device)}:{os.minor(device)}"
    path = os.path.realpath(f"/sys/dev/block/{name}")
    if not os.path.exists(path) or os.major(device) == 0:
        return None
    if os.path.exists(os.path.join(path, "partition")):
        with open(os.path.join(os.path.dirname(path), "dev")) as file:
            return file.read().strip()
    return name
