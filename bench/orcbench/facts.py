"""What ran where: the machine, how busy it is, and the commit that was measured."""

import os
import subprocess
import time
from typing import Any

from orcbench.running import ROOT

# Above this share of all cores the processors were the limit, whatever disks and links could have
# done.
BUSY = 0.9


def read(path: str, otherwise: str = "") -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return otherwise


# What measures and is measured, for git.
MEASURED = (".", ":!docs")


def output(*command: str, cwd: str | None = None) -> str:
    """What a command says; nothing if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def available_bytes() -> int:
    for line in read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def processor_times() -> dict[str, int]:
    fields = [int(x) for x in read("/proc/stat").splitlines()[0].split()[1:9]]
    return {"all": sum(fields), "idle": fields[3] + fields[4], "steal": fields[7]}


def processor_s(pid: int) -> float:
    """Processor time that a process has taken."""
    fields = read(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def busy(before: dict[str, int], after: dict[str, int] | None = None) -> float:
    """The share of all processors that somebody had since processor_times() was before."""
    after = after or processor_times()
    return 1 - (after["idle"] - before["idle"]) / max(1, after["all"] - before["all"])


def percent(share: float) -> str:
    """A share of the processors for a table: LIMIT where they were it."""
    return f"{100 * share:.0f} %" + (" LIMIT" if share > BUSY else "")


class Machine:
    """What ran where, and how busy the machine was with other things."""

    def __init__(self, path: str) -> None:
        before = processor_times()
        time.sleep(1)
        self.begin, self.path, self.commit = processor_times(), path, commit()
        self.busy = busy(before, self.begin)
        self.load = os.getloadavg()[0]
        if self.busy > 0.1:
            print(
                f"WARNING: other programs take {100 * self.busy:.0f} % of this machine (load "
                f"{self.load:.1f}): "
                "the figures below are doubtful",
                flush=True,
            )
        kind = output("findmnt", "-n", "-o", "FSTYPE", "-T", path)
        if kind in ("tmpfs", "ramfs", "overlay"):
            print(f"WARNING: {path} is on {kind}, not on a disk. Next: --dir DIRECTORY", flush=True)

    def facts(self) -> dict[str, Any]:
        info = read("/proc/cpuinfo")
        model = next(
            (
                line.split(":", 1)[1].strip()
                for line in info.splitlines()
                if line.startswith("model name")
            ),
            "",
        )
        memory = next(
            (
                int(line.split()[1]) * 1024
                for line in read("/proc/meminfo").splitlines()
                if line.startswith("MemTotal:")
            ),
            0,
        )
        end = processor_times()
        return {
            "processor": model,
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": memory,
            "kernel": os.uname().release,
            "system": next(
                (
                    line.split("=", 1)[1].strip('"')
                    for line in read("/etc/os-release").splitlines()
                    if line.startswith("PRETTY_NAME=")
                ),
                "",
            ),
            "transparent_huge_pages": read("/sys/kernel/mm/transparent_hugepage/enabled"),
            "file_system": output("findmnt", "-n", "-o", "FSTYPE,OPTIONS", "-T", self.path),
            "mpi": (output(os.environ.get("MPIRUN", "mpirun"), "--version").splitlines() or [""])[
                0
            ],
            "compiler": (output("cc", "--version").splitlines() or [""])[0],
            "busy_before": round(self.busy, 3),
            "load_before": self.load,
            "steal_during": round(
                (end["steal"] - self.begin["steal"]) / max(1, end["all"] - self.begin["all"]), 4
            ),
        }


def commit() -> str:
    """The commit that was measured; "+" when files differ from it, other than documents."""
    found = output("git", "rev-parse", "--short=12", "HEAD", cwd=ROOT)
    status = ("status", "--porcelain", "--untracked-files=no", "--", *MEASURED)
    changed = output("git", *status, cwd=ROOT)
    return (found or "unknown") + ("+" if changed else "")


def is_still(measured: str) -> bool:
    """Whether the tree is what was measured: nobody has changed or committed anything since."""
    if commit() == measured:
        return True
    same = ("git", "-C", ROOT, "diff", "--quiet", measured, "--", *MEASURED)
    return subprocess.run(same, capture_output=True).returncode == 0
