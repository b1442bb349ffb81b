"""What a disk may hold after a power cut, from the recorded calls of a run.

The model is that of a journalling file system (ext4, xfs), and kinder than POSIX:
- Creating, renaming, linking, removing and setting the size of files happen in order. After a cut
  some prefix of them is there; every successful fsync, of whatever file or directory, makes all
  before it durable.
- Bytes of a file are durable after an fsync of that file (or a write with O_SYNC or O_DSYNC). Any
  of its other 4 KiB blocks may or may not have reached the disk, in any order, the last one torn at
  512 bytes.
- A file grows on disk with the blocks that reach it; one whose size was set (ftruncate, fallocate)
  reads as zeros where none did.
- After an fsync that failed, the blocks it should have written are lost: the kernel has marked them
  clean, and no later fsync writes them, unless they are written again.
What this shows is legal, not what one file system does on most days: some flush a file early that
is renamed over another.
"""

import os
import random
from collections.abc import Callable, Iterable
from typing import Any

from testbed.torture.trace import O_CREAT, O_DSYNC, O_TRUNC, Call

# Path -> bytes.
Image = dict[str, bytes]

BLOCK = 4096
SECTOR = 512


class File:
    """One inode: what the program sees (now), what a disk is sure to hold, and what it may hold."""

    def __init__(self) -> None:
        self.now = bytearray()
        self.disk = bytearray()
        self.dirty: set[int] = set()  # numbers of blocks that no fsync has covered
        self.lost: set[int] = set()  # those of a failed fsync
        self.last = 0  # number of the call that changed it last

    def write(self, at: int, data: bytes) -> None:
        if at > len(self.now):
            self.now.extend(bytes(at - len(self.now)))
        self.now[at : at + len(data)] = data
        blocks = range(at // BLOCK, (at + len(data) + BLOCK - 1) // BLOCK)
        self.dirty.update(blocks)
        self.lost.difference_update(blocks)

    def resize(self, size: int) -> None:
        """A change of metadata: the disk's copy follows as soon as the journal does (Disk.cut)."""
        _resize(self.now, size)
        self.dirty = {block for block in self.dirty if block * BLOCK < size}

    def settle(self, blocks: Iterable[int]) -> None:
        """These blocks are on disk."""
        for block in sorted(blocks):
            part = self.now[block * BLOCK : (block + 1) * BLOCK]
            if block * BLOCK > len(self.disk):
                self.disk.extend(bytes(block * BLOCK - len(self.disk)))
            self.disk[block * BLOCK : block * BLOCK + len(part)] = part

    def sync(self) -> None:
        self.settle(self.dirty - self.lost)
        self.dirty = set(self.lost)

    def sync_failed(self) -> None:
        self.lost |= self.dirty


def _resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


Change = Callable[[dict[str, File], set[str]], object]


class Disk:
    """Replays the calls of a trace one by one; cut() is what a disk may hold at that point."""

    def __init__(self, root: str, data: bytes) -> None:
        self.root, self.data = root, data
        self.names: dict[str, File] = {}  # path below root -> File
        self.inodes: dict[int, File] = {}
        self.dirs: set[str] = set()
        # Names and directories, as of the last fsync.
        self.durable: tuple[dict[str, File], set[str]] = ({}, set())
        # Changes since then, in order: ("names", function) or ("grow"/"shrink", file, size).
        self.journal: list[tuple[str, Any, int]] = []

    def inside(self, path: str) -> str | None:
        """The path below the root; None if it is elsewhere."""
        return (
            os.path.relpath(path, self.root)
            if path == self.root or path.startswith(self.root + "/")
            else None
        )

    def apply(self, call: Call) -> None:
        """Takes a call of the trace that came back."""
        kind, file = call.kind, self.inodes.get(call.inode)
        if call.result < 0:
            if kind == "sync" and file:
                file.sync_failed()
            return
        if file and kind in ("write", "size"):
            file.last = call.number
        path, path2 = self.inside(call.path), self.inside(call.path2) if call.path2 else None
        if kind == "open":
            self._open(call, path)
        elif kind == "write" and file and call.result:
            file.write(call.offset, self.data[call.data_at : call.data_at + call.result])
            if call.flags & O_DSYNC:
                self._journal_out()
                file.sync()
        elif kind == "size" and file:
            self._size(call, file)
        elif kind == "sync":
            self._journal_out()  # sizes first: the bytes lie within them
            if call.name in ("sync", "syncfs"):
                for other in self.inodes.values():
                    other.sync()
            elif file:
                file.sync()
        elif kind == "name":
            self._name(call, path, path2)

    def _open(self, call: Call, path: str | None) -> None:
        if path is None:
            return  # elsewhere
        file = self.names.get(path)
        if file is None:
            if not call.flags & O_CREAT or (
                call.name == "openat" and call.flags & 0o20200000 == 0o20200000
            ):
                return  # a directory, or a file without a name
            new = file = File()
            file.last = call.number
            self._change(lambda names, dirs: names.__setitem__(path, new))
        self.inodes[call.inode] = file
        if call.flags & O_TRUNC:
            self._set_size(file, 0)

    def _size(self, call: Call, file: File) -> None:
        if call.name != "fallocate":
            self._set_size(file, call.len)
        elif call.flags == 0 and call.offset + call.len > len(file.now):
            self._set_size(file, call.offset + call.len)
        elif call.flags & ~1:  # holes and zeros
            file.write(call.offset, bytes(call.len))

    def _set_size(self, file: File, size: int) -> None:
        self.journal.append(("shrink" if size < len(file.now) else "grow", file, size))
        file.resize(size)

    def _change(self, change: Change) -> None:
        change(self.names, self.dirs)
        self.journal.append(("names", change, 0))

    def _name(self, call: Call, path: str | None, path2: str | None) -> None:
        if call.name.startswith("link"):
            file = (path and self.names.get(path)) or self.inodes.get(call.inode)
            if file and path2:
                self._change(lambda names, dirs: names.__setitem__(path2, file))
        elif path is None:
            pass  # elsewhere
        elif call.name.startswith("mkdir"):
            self._change(lambda names, dirs: dirs.add(path))
        elif call.name.startswith("rename"):
            self._change(lambda names, dirs: _rename(names, dirs, path, path2))
        else:  # unlink, rmdir
            self._change(lambda names, dirs: _remove(names, dirs, path))

    def _journal_out(self) -> None:
        for kind, what, size in self.journal:
            if kind != "names":
                _resize(what.disk, size)
        self.journal = []
        self.durable = (dict(self.names), set(self.dirs))

    def cut(self, rng: random.Random | None = None, keep: bool = False) -> tuple[Image, set[str]]:
        """One legal image: ({path: bytes}, directories).

        rng draws how much of the journal and which blocks have arrived. Without it, keep says
        whether all has arrived but what is lost for ever (True) or only what an fsync covered
        (False).
        """
        length = len(self.journal)
        arrived = rng.randint(0, length) if rng else length if keep else 0
        names, dirs = dict(self.durable[0]), set(self.durable[1])
        sizes: dict[File, bytearray] = {}
        for kind, what, size in self.journal[:arrived]:
            if kind == "names":
                what(names, dirs)
            else:
                sizes.setdefault(what, bytearray(what.disk))
                _resize(sizes[what], size)
        # Blocks written after a file was emptied lie elsewhere on the disk, and appear with the
        # emptying.
        whole = {what for kind, what, _ in self.journal[arrived:] if kind == "shrink"}
        share = rng.choice((0.0, 0.5, 0.9, 1.0)) if rng else float(bool(keep))
        image = {}
        for path, file in names.items():
            disk = sizes.get(file, file.disk)
            image[path] = bytes(disk) if file in whole else self._content(file, disk, share, rng)
        return image, dirs

    def _content(
        self, file: File, disk: bytearray, share: float, rng: random.Random | None
    ) -> bytes:
        content = bytearray(disk)
        for block in sorted(file.dirty - file.lost):
            if not (rng.random() < share if rng else share):
                continue
            part = file.now[block * BLOCK : (block + 1) * BLOCK]
            if rng and rng.random() < 0.1:
                part = part[: rng.randrange(0, len(part) + 1, SECTOR)]  # torn
            if block * BLOCK > len(content):
                content.extend(bytes(block * BLOCK - len(content)))
            content[block * BLOCK : block * BLOCK + len(part)] = part
        return bytes(content)


def _remove(names: dict[str, File], dirs: set[str], path: str) -> None:
    names.pop(path, None)
    dirs.discard(path)


def _rename(names: dict[str, File], dirs: set[str], path: str, path2: str | None) -> None:
    if path in names:
        file = names.pop(path)
        if path2 is not None:
            names[path2] = file
        return
    below = path + "/"
    for old in [name for name in names if name.startswith(below)]:
        file = names.pop(old)
        if path2 is not None:
            names[path2 + "/" + old[len(below) :]] = file
    for old in [name for name in dirs if name == path or name.startswith(below)]:
        dirs.discard(old)
        if path2 is not None:
            dirs.add(path2 + old[len(path) :])


def write_image(image: Image, dirs: Iterable[str], to: str) -> None:
    """Makes an image a directory."""
    os.makedirs(to, exist_ok=True)
    for name in sorted(dirs):
        os.makedirs(os.path.join(to, name), exist_ok=True)
    for path, content in image.items():
        full = os.path.join(to, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "wb") as file:
            file.write(content)


def read_image(directory: str) -> tuple[Image, set[str]]:
    """{path: bytes} of all files below a directory, and its directories."""
    image: Image = {}
    dirs: set[str] = set()
    for where, below, files in os.walk(directory):
        dirs.update(os.path.relpath(os.path.join(where, name), directory) for name in below)
        for name in files:
            full = os.path.join(where, name)
            with open(full, "rb") as file:
                image[os.path.relpath(full, directory)] = file.read()
    return image, dirs
