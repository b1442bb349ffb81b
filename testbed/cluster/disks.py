"""Model disks: block devices with one head, each with an ext4 of its own (the model: disk.c).

    with Disks(parent, ["s1", "s2"], size_bytes=4 << 30) as disks, Cluster(...) as cluster:
        write below disks.path("s1"); disks.stats("s1")["repositionings"]

How: a FUSE file that takes as long as a disk would, a loop device in direct mode before it (so the
page cache holds everything once, above), mq-deadline, ext4 with its journal. Nothing writes in the
background but what the program and the journal have to write: no lazy tables, no discard; and
tables are written while the model is off.

    WORK/raw/NAME/disk, stats   the FUSE file system; WORK/raw/NAME.log: what its process said
    WORK/fs/NAME                the ext4

Mounts are the machine's, so a Cluster that is made after them has them on all its nodes, at the
same path; which node uses which is the program's affair. Close the cluster first: what its
processes have open cannot be unmounted. Unmounting goes through to the namespaces that cluster.py
makes; a program that makes others the usual way (private) keeps a copy of the mounts, and the loop
device with it, until it ends: after OTHERS_S the disk is ended all the same.

Taking down is the work of a process of its own that waits for the end of this one, however it ends.
If that one is killed too, the next Disks on the same parent removes what was left. Only what lies
below WORK is looked for: mounts, loop devices and processes.

Survives: any signal to this process;
SIGKILL of a disk (its file system then has I/O errors).

Not here: machines without root, /dev/fuse or loop devices (missing() says why), or whose kernel
limits no dirty memory (cannot_limit()); the comparison with the model's arithmetic (disktest.py).
"""

import contextlib
import functools
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, Any

from testbed.cluster.held import (
    Held,
    HeldError,
    checked,
    left_behind,
    locked_directory,
    pipe,
    until,
)

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PREFIX = "orcheck-disks-"
OTHERS_S = 5  # for namespaces that have a copy of a mount to end, before its disk is ended
# A SATA disk of 7,200 turns a minute: to go elsewhere takes 12.65 ms in the mean, as long as 1.14
# MB of stream.
MODEL = {"rate_bytes_per_s": 90_000_000, "seek_ms": 8.5, "revolution_ms": 8.3, "depth": 32}
REQUEST_KIB = 1024


def missing() -> str | None:
    """Why there can be no model disks on this machine; None if there can."""
    if os.geteuid() != 0:
        return "model disks take root (loop devices, mounts)"
    for path in ("/dev/fuse", "/dev/loop-control"):
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:  # a container may show devices that it does not give
            return f"model disks take {path}: {error.strerror}"
    for program in ("losetup", "mkfs.ext4", "cc", "pkg-config"):
        if not shutil.which(program):
            return f"{program} is missing. Next: tools/install-deps.sh bench"
    if subprocess.run(["pkg-config", "--exists", "fuse3"]).returncode:
        return "libfuse3-dev is missing. Next: tools/install-deps.sh bench"
    if subprocess.run(["losetup", "--find"], capture_output=True).returncode:
        return "model disks take a free loop device: losetup --find has none"
    return None


def cannot_limit() -> str | None:
    """Why limit_dirty() cannot be had on this machine; None if it can."""
    if os.geteuid() != 0:
        return "limiting dirty memory needs root"
    if not all(glob.glob(f"/sys/class/bdi/*/{name}") for name in ("max_bytes", "strict_limit")):
        return (
            f"Linux {os.uname().release} cannot limit one device's dirty memory "
            "(/sys/class/bdi/*/max_bytes), 6.2 can"
        )
    return None


def build() -> str:
    """Compiles the disk; the program's path."""
    out = os.path.join(ROOT, "build", "bench-bin", "disk")
    os.makedirs(os.path.dirname(out), exist_ok=True)
    flags = checked(["pkg-config", "--cflags", "--libs", "fuse3"]).split()
    new = f"{out}.{os.getpid()}"  # renamed: another benchmark may be running the old one
    source = os.path.join(HERE, "disk.c")
    checked(
        [
            "cc",
            "-std=c11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            source,
            "-o",
            new,
            *flags,
            "-lm",
            "-lpthread",
        ]
    )
    os.replace(new, out)
    return out


def set_to(path: str, value: object) -> None:
    try:
        with open(path, "w") as file:
            file.write(f"{value}\n")
    except OSError as error:
        raise HeldError(f"{path} could not be set to {value}: {error.strerror}") from error


def read(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


def drop_caches() -> None:
    """All that can be written is written, and nothing is in the page cache."""
    os.sync()
    set_to("/proc/sys/vm/drop_caches", 3)


class Disks(Held):
    """See the module. names: one disk each. file_system=False: the devices alone. touch=True:
    memory of its whole size is taken at once. model: what differs from MODEL."""

    def __init__(
        self,
        parent: str,
        names: Sequence[str],
        size_bytes: int = 4 << 30,
        file_system: bool = True,
        backing: str | None = None,
        touch: bool = False,
        **model: float,
    ) -> None:
        why = missing()
        if why:
            raise HeldError(why)
        self.names, self.size_bytes, self.file_system, self.backing, self.touch = (
            list(names),
            size_bytes,
            file_system,
            backing,
            touch,
        )
        self.model: dict[str, float] = {**MODEL, **model}
        self.loops: dict[str, str] = {}
        self.guard: subprocess.Popen[bytes] | None = None
        sweep(parent)
        self.work, self.lock = locked_directory(parent, PREFIX)

    def bring_up(self) -> None:
        self.guard = guard(self.work, self.lock)
        # What is mounted and unmounted below is so in the namespaces of clusters too, which would
        # keep it otherwise.
        checked(["mount", "--bind", self.work, self.work])
        checked(["mount", "--make-shared", self.work])
        program = build()
        for name in self.names:
            self.make(program, name)

    def make(self, program: str, name: str) -> None:
        raw = os.path.join(self.work, "raw", name)
        os.makedirs(raw)
        words: dict[str, object] = {
            "size": self.size_bytes,
            "rate": self.model["rate_bytes_per_s"],
            "seek-ms": self.model["seek_ms"],
            "revolution-ms": self.model["revolution_ms"],
            "depth": self.model["depth"],
        }
        if self.touch:
            words["touch"] = 1
        if self.backing:
            words["backing"] = os.path.join(self.backing, name)
        with open(raw + ".log", "wb") as log:
            process = subprocess.Popen(
                [
                    program,
                    raw,
                    *(word for key, value in words.items() for word in (f"--{key}", str(value))),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        with pipe(process.stdout) as said:
            if said.readline() != b"ready\n":
                process.wait()
                raise HeldError(f"disk {name} did not come up: {read(raw + '.log')}")
        loop = checked(
            ["losetup", "--direct-io=on", "--find", "--show", os.path.join(raw, "disk")]
        ).strip()
        self.loops[name] = os.path.basename(loop)
        queue = f"/sys/block/{self.loops[name]}/queue/"
        if read(f"/sys/block/{self.loops[name]}/loop/dio") != "1":
            raise HeldError(
                f"{loop} cannot use direct I/O on a FUSE file (kernel {os.uname().release})"
            )
        for key, value in (
            ("scheduler", "mq-deadline"),
            ("max_sectors_kb", REQUEST_KIB),
            ("rotational", 1),
        ):
            set_to(queue + key, value)
        if self.file_system:
            at = self.path(name)
            os.makedirs(at)
            self.say("model off", name)
            checked(
                [
                    "mkfs.ext4",
                    "-q",
                    "-F",
                    "-m",
                    "0",
                    "-N",
                    "16384",
                    "-E",
                    "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
                    loop,
                ]
            )
            checked(["mount", "-t", "ext4", "-o", "nodiscard", loop, at])
            os.rmdir(os.path.join(at, "lost+found"))
            checked(["sync", "-f", at])
            self.say("model on", name)
        self.reset()

    def close(self) -> None:
        if self.guard is not None:
            pipe(self.guard.stdin).close()
            self.guard.wait()
            self.guard = None
        self.lock.close()

    # ---- what is there ----
    def path(self, name: str) -> str:
        return os.path.join(self.work, "fs", name)

    def device(self, name: str) -> str:
        return f"/dev/{self.loops[name]}"

    def stats(self, name: str) -> dict[str, Any]:
        """Counters since reset(), and the parameters of the model: see disk.c."""
        found: dict[str, Any] = json.loads(read(os.path.join(self.work, "raw", name, "stats")))
        return found

    def all_stats(self) -> dict[str, dict[str, Any]]:
        return {name: self.stats(name) for name in self.loops}

    def reset(self) -> None:
        for name in self.loops:
            self.say("reset", name)

    def say(self, command: Sequence[str], name: str) -> None:
        set_to(os.path.join(self.work, "raw", name, "stats"), command)

    def limit_dirty(self, bytes_each: int | None) -> dict[str, int]:
        """At most this many dirty bytes in the page cache for each disk; None: as the machine has
        it. Returns what the kernel made of it, by name.

        Per device (/sys/class/bdi/*/max_bytes with strict_limit; Linux 6.2): other disks keep what
        they have. The kernel keeps it as a share of what all devices may have dirty, so it moves
        with the machine's free memory. It is a goal for those who write: they are slowed from half
        of it on, and may pass it by a few MB.
        """
        found, why = {}, cannot_limit()
        if why:
            raise HeldError(why)
        for name, loop in self.loops.items():
            bdi = bdi_of(loop)
            set_to(bdi + "strict_limit", 0 if bytes_each is None else 1)
            if bytes_each is None:
                set_to(bdi + "max_ratio", 100)
            else:
                set_to(bdi + "max_bytes", bytes_each)
            found[name] = int(read(bdi + "max_bytes"))
        return found


def bdi_of(loop: str) -> str:
    return f"/sys/class/bdi/{read(f'/sys/block/{loop}/dev')}/"


# ---- taking down ---------------------------------------------------------------------------------
def mounts_below(work: str) -> list[str]:
    """Mount points, the latest first; the directory's own is the last."""
    with open("/proc/self/mounts") as file:
        points = [line.split()[1].encode().decode("unicode_escape") for line in file]
    return [point for point in reversed(points) if (point + "/").startswith(work + "/")]


def loops_below(work: str) -> list[str]:
    found = []
    for name in os.listdir("/sys/block"):
        with contextlib.suppress(OSError):
            if name.startswith("loop") and read(f"/sys/block/{name}/loop/backing_file").startswith(
                work + "/"
            ):
                found.append(name)
    return found


def processes_below(work: str) -> list[int]:
    """The disks: their mount point is their first argument."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
            if (
                os.path.basename(words[0]) == b"disk"
                and words[1:]
                and words[1].startswith(work.encode() + b"/raw/")
            ):
                found.append(int(pid))
    return found


def unmounted(at: str) -> bool:
    """Unmounts; whether that could be done."""
    return subprocess.run(["umount", at], capture_output=True).returncode == 0


def take_down(work: str) -> None:
    """Unmounts, detaches and ends all that lies below WORK, then removes it."""
    raw = os.path.join(work, "raw")
    for name in os.listdir(raw) if os.path.isdir(raw) else []:
        with contextlib.suppress(OSError, HeldError):
            # What is still dirty takes no time now.
            set_to(os.path.join(raw, name, "stats"), "model off")
    for at in mounts_below(os.path.join(work, "fs")):
        # In use: by processes that are ending, or else lazily.
        if not until(functools.partial(unmounted, at), 10):
            subprocess.run(["umount", "-l", at], capture_output=True)
    for loop in loops_below(work):
        with contextlib.suppress(OSError, HeldError):
            set_to(bdi_of(loop) + "strict_limit", 0)
            set_to(bdi_of(loop) + "max_ratio", 100)
        subprocess.run(["losetup", "-d", f"/dev/{loop}"], capture_output=True)
    until(lambda: not loops_below(work), OTHERS_S)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in processes_below(work):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if until(lambda: not processes_below(work), 10):
            break
    for at in mounts_below(work):
        subprocess.run(["umount", "-l", at], capture_output=True)
    if not mounts_below(work):
        shutil.rmtree(work, ignore_errors=True)


def guard(work: str, lock: IO[str]) -> subprocess.Popen[bytes]:
    """Starts the process that takes down what lies below WORK once the pipe to it is closed,
    however that comes.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "testbed.cluster.disks", work],
        stdin=subprocess.PIPE,
        start_new_session=True,
        pass_fds=[lock.fileno()],
        cwd=ROOT,
    )


def sweep(parent: str) -> None:
    """Removes what Disks under parent left whose processes were all killed at once."""
    for work in left_behind(parent, PREFIX):
        take_down(work)


def main() -> None:
    """The guard: waits for the end of the program that holds the disks, then takes them down."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    take_down(sys.argv[1])


if __name__ == "__main__":
    main()
