"""What a program holds as long as it runs, and lets go however it ends.

Clusters, disks and file systems share this.

Work directories are below a parent that several programs may use. Each has a file `lock`, which is
held as long as anybody lives who uses the directory; one that nobody holds was left by programs
that were killed all at once.

Not here: how a thing is brought up and taken down.
"""

import abc
import contextlib
import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Self, TypeVar

T = TypeVar("T", str, bytes)
DEADLINE_S = 30


class HeldError(Exception):
    """It cannot be had here; the text says what to do."""


class Held(abc.ABC):
    """With bring_up() and close(), which also takes down what came up in part."""

    @abc.abstractmethod
    def bring_up(self) -> None:
        """Makes it be there; may leave it half done with an exception."""

    @abc.abstractmethod
    def close(self) -> None:
        """Takes down what is there, all of it or a part."""

    def __enter__(self) -> Self:
        try:
            self.bring_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def locked_directory(parent: str, prefix: str) -> tuple[str, IO[str]]:
    """A new directory below parent, and its lock, which is held."""
    os.makedirs(parent, exist_ok=True)
    # Under another name until the lock is held: left_behind() must not take it for an old one.
    hidden = tempfile.mkdtemp(prefix=".", dir=parent)
    os.chmod(hidden, 0o755)
    lock = open(os.path.join(hidden, "lock"), "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    work = os.path.join(os.path.realpath(parent), prefix + os.path.basename(hidden)[1:])
    os.rename(hidden, work)
    return work, lock


def left_behind(parent: str, prefix: str) -> Iterator[str]:
    """Directories below parent that nobody holds any more; the caller holds each while it looks."""
    for name in os.listdir(parent) if os.path.isdir(parent) else []:
        work = os.path.join(os.path.realpath(parent), name)
        if name.startswith(prefix):
            with contextlib.suppress(OSError), open(os.path.join(work, "lock")) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield work


def checked(command: Sequence[str], input: str | None = None) -> str:
    """What a command says; an error is a HeldError."""
    done = subprocess.run(command, capture_output=True, text=True, input=input)
    if done.returncode != 0:
        raise HeldError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def pipe(end: IO[T] | None) -> IO[T]:
    """The pipe that a process was started with."""
    assert end is not None, "this process was started without this pipe"
    return end


def until(found: Callable[[], object], within_s: float = DEADLINE_S, every_s: float = 0.02) -> bool:
    """Whether it came to be."""
    end = time.monotonic() + within_s
    while not found():
        if time.monotonic() > end:
            return False
        time.sleep(every_s)
    return True
