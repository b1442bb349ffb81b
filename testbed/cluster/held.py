"""What a program holds as long as it runs, and lets go however it ends: what clusters, disks and file systems share.

Work directories are below a parent that several programs may use. Each has a file `lock`, which is held as long as
anybody lives who uses the directory; one that nobody holds was left by programs that were killed all at once.

Not here: how a thing is brought up and taken down.
"""

import contextlib
import fcntl
import os
import subprocess
import tempfile
import time

DEADLINE_S = 30


class HeldError(Exception):
    """It cannot be had here; the text says what to do."""


class Held:
    """With bring_up() and close(), which also takes down what came up in part."""

    def __enter__(self):
        try:
            self.bring_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()


def locked_directory(parent, prefix):
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


def left_behind(parent, prefix):
    """Directories below parent that nobody holds any more; each is locked while the caller has it."""
    for name in os.listdir(parent) if os.path.isdir(parent) else []:
        work = os.path.join(os.path.realpath(parent), name)
        if name.startswith(prefix):
            with contextlib.suppress(OSError), open(os.path.join(work, "lock")) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield work


def checked(command, **more):
    """What a command says; an error is a HeldError."""
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise HeldError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def until(found, within_s=DEADLINE_S, every_s=0.02):
    """Whether it came to be."""
    end = time.monotonic() + within_s
    while not found():
        if time.monotonic() > end:
            return False
        time.sleep(every_s)
    return True
