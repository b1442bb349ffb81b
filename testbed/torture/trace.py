"""Runs programs under src/meddle.c and reads what it noted."""

import dataclasses
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

O_CREAT, O_TRUNC, O_DSYNC = os.O_CREAT, os.O_TRUNC, os.O_DSYNC


@dataclasses.dataclass
class Call:
    number: int
    kind: str  # open write size sync close name read ack
    name: str
    result: int  # below zero: -errno
    inode: int
    offset: int
    len: int
    flags: int
    data_at: int
    path: str
    path2: str


@dataclasses.dataclass
class Trace:
    calls: list[Call]
    unseen: set[str]  # ways to write that were not followed
    outside: list[str]  # files created elsewhere
    left: int  # processes that outlived the program
    struck: bool  # whether the fault happened

    def wanted(self, kinds: Sequence[str]) -> list[tuple[str, int, Call]]:
        """Numbers, within its kind, of the calls of these kinds: (kind, n, call), in order."""
        counts: dict[str, int] = {}
        found = []
        for call in sorted(self.calls, key=lambda call: call.number):
            counts[call.kind] = counts.get(call.kind, 0) + 1
            if call.kind in kinds:
                found.append((call.kind, counts[call.kind], call))
        return found


@dataclasses.dataclass
class Ended:
    status: int | None  # 128 + signal when one ended it; None: longer than the deadline
    out: str
    said: str
    trace: Trace

    @property
    def words(self) -> str:
        """The last line of what it said, for reports."""
        lines = [line for line in self.said.strip().splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""


def read_trace(path: str) -> Trace:
    calls: list[Call] = []
    unseen: set[str] = set()
    outside: list[str] = []
    left, struck = 0, False
    with open(path, errors="surrogateescape") as file:
        for line in file:
            fields = line.rstrip("\n").split("\t")
            if fields[0] == "unseen":
                unseen.add(fields[1])
            elif fields[0] == "outside":
                outside.append(fields[1])
            elif fields[0] == "left":
                left += 1
            elif fields[0] == "end":
                struck = fields[2] == "1"
            else:
                result, inode, offset, length, flags, data_at = map(int, fields[3:9])
                kind, name, path, path2 = *fields[1:3], *fields[9:11]
                calls.append(
                    Call(
                        number=int(fields[0]),
                        kind=kind,
                        name=name,
                        result=result,
                        inode=inode,
                        offset=offset,
                        len=length,
                        flags=flags,
                        data_at=data_at,
                        path=path,
                        path2=path2,
                    )
                )
    return Trace(calls, unseen, outside, left, struck)


def run(
    meddle: str,
    command: Sequence[str],
    where: str,
    directory: str,
    ack: str | None = None,
    data: str | None = None,
    fault: str | None = None,
    timeout_s: float = 30,
    env: Mapping[str, str] | None = None,
) -> Ended:
    """Runs a command under meddle; where: a directory for its files.

    Everything it started is gone afterwards.
    """
    log = os.path.join(where, "log")
    argv = [meddle, "--watch", directory, "--log", log]
    for option, value in (("--ack", ack), ("--data", data), ("--fault", fault)):
        argv += [option, value] if value else []
    with (
        open(os.path.join(where, "out"), "w+b") as out,
        open(os.path.join(where, "said"), "w+b") as said,
    ):
        process = subprocess.Popen(
            [*argv, "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=said,
            env=env,
            cwd=where,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                # Meddle's end is the end of all that it traces.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        texts = []
        for file in (out, said):
            file.seek(0)
            texts.append(file.read(1 << 20).decode(errors="replace"))
    trace = read_trace(log) if status is not None else Trace([], set(), [], 0, True)
    if status == 125:
        raise RuntimeError(f"{' '.join(argv)}: {texts[1].strip()}")
    return Ended(status, texts[0], texts[1], trace)
