"""A slow disk: the writes or the reads of a device, limited by cgroup v1's blkio controller."""

import os
import subprocess
import time

from orcbench.facts import read
from orcbench.running import MIB, scratch
from testbed.cluster.held import pipe


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
