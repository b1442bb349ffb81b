"""The faults: what is done to a run, or to what it left.

Each kind has a list of faults made from the record of a run without one, and draws from it by the
seed, the kind and the number of the trial alone: the same number is the same place, in proportion,
for every format. A list no longer than the number of trials is gone through from end to end.
"""

import difflib
import errno
import random
from collections.abc import Iterable, Sequence
from typing import TypeVar

from testbed.torture import disk as model
from testbed.torture.disk import Image
from testbed.torture.trace import Trace

T = TypeVar("T")
# A file as it is now (None: gone) and what was done to it; None: it cannot be done.
Done = tuple[bytes | None, str] | None

KINDS = {
    "kill": "SIGKILL before the n-th call of a save",
    "error": "one call of a save fails, or is short",
    "fsync": "one fsync fails; the run continues as it likes; then a power cut",
    "power": "power cut: what no fsync covers is dropped, in part or all",
    "flip": "bits, bytes or bursts of up to 64 bytes of the newest save changed",
    "block": "a 4 KiB block of it zeroed, swapped, misplaced or from the save before",
    "cut": "one of its files cut short, or gone",
    "stale": "one of its files is that of the save before",
    "read": "one call of a restart fails, or is short",
}
ANSWERS = {
    "open": ("ENOSPC", "EROFS", "EMFILE", "EIO"),
    "write": ("ENOSPC", "EIO", "EDQUOT", "short", "zero"),
    "size": ("ENOSPC", "EIO"),
    "sync": ("EIO", "ENOSPC"),
    "close": ("EIO",),
    "name": ("EIO", "ENOSPC", "EROFS"),
    "read": ("EIO", "ESTALE", "short", "zero"),
}
BLOCK = model.BLOCK


def answer(word: str) -> str:
    return word if word in ("short", "zero", "kill") else str(getattr(errno, word))


def call_faults(trace: Trace, kinds: Sequence[str]) -> list[tuple[str, str]]:
    """All faults of single calls: (the words for meddle, what it is in words)."""
    found = []
    for kind, n, call in trace.wanted(kinds):
        words = ANSWERS[kind] if kind != "open" or "write" in kinds else ("EIO", "ESTALE", "EMFILE")
        for word in words:
            if not (word == "short" and "v" in call.name) and not (
                word in ("short", "zero") and call.len < 2
            ):
                found.append(
                    (
                        f"{kind}:{n}:{answer(word)}",
                        f"{call.name} {n} of its kind ({call.path}): {word}",
                    )
                )
    return found


def drawn(faults: Sequence[T], index: int, trials: int, seed: int, kind: str) -> T | None:
    """The fault of a trial, or None when the list is shorter than that."""
    if len(faults) <= trials:
        return faults[index] if index < len(faults) else None
    return faults[int(rng_of(seed, kind, index).random() * len(faults))]


def rng_of(seed: int, kind: str, index: int) -> random.Random:
    return random.Random(f"{seed}/{kind}/{index}")


class Damage:
    """Damage to the files of the newest save.

    image: all files; newest: names; older: the save before, all files.
    """

    def __init__(self, image: Image, newest: Iterable[str], older: Image) -> None:
        self.image, self.newest, self.older = image, sorted(newest), older

    def previous(self, name: str) -> bytes | None:
        """What this file was in the save before; None if there was nothing like it."""
        if name in self.older and self.older[name] != self.image[name]:
            return self.older[name]
        close = difflib.get_close_matches(
            name, [old for old in self.older if self.older[old] != self.image[name]], 1, 0.5
        )
        return self.older[close[0]] if close else None

    def choose(self, rng: random.Random) -> str:
        """A file: half of the time by bytes, half of the time any."""
        sizes = [len(self.image[name]) for name in self.newest]
        if rng.random() < 0.5 and any(sizes):
            return rng.choices(self.newest, sizes)[0]
        return self.newest[int(rng.random() * len(self.newest))]

    def make(self, kind: str, rng: random.Random) -> tuple[Image, str] | None:
        """(damaged image, what was done), or None where this kind of damage cannot be done."""
        for _ in range(30):
            name = self.choose(rng)
            done: Done = getattr(self, kind)(name, rng)
            if done is None:
                continue
            content, words = done
            if content == self.image[name]:
                continue
            image = dict(self.image)
            if content is None:
                del image[name]
            else:
                image[name] = content
            return image, f"{name}: {words}"
        return None

    def flip(self, name: str, rng: random.Random) -> Done:
        content = bytearray(self.image[name])
        if not content:
            return None
        at, way = int(rng.random() * len(content)), rng.random()
        if way < 0.5:
            content[at] ^= 1 << rng.randrange(8)
            return bytes(content), f"one bit of byte {at} flipped"
        if way < 0.7:
            bits = rng.choice((2, 3))
            for _ in range(bits):
                content[int(rng.random() * len(content))] ^= 1 << rng.randrange(8)
            return bytes(content), f"{bits} bits flipped"
        length = 1 if way < 0.85 else rng.randint(8, 64)
        length = min(length, len(content) - at)
        content[at : at + length] = rng.randbytes(length)
        return bytes(content), f"bytes {at} to {at + length} replaced"

    def block(self, name: str, rng: random.Random) -> Done:
        content = bytearray(self.image[name])
        blocks = (len(content) + BLOCK - 1) // BLOCK
        if not blocks:
            return None
        one, other, way = int(rng.random() * blocks), int(rng.random() * blocks), rng.randrange(4)
        here = slice(one * BLOCK, (one + 1) * BLOCK)
        there = slice(other * BLOCK, (other + 1) * BLOCK)
        if way == 0:
            content[here] = bytes(len(content[here]))
            return bytes(content), f"block {one} zeroed"
        if way == 1:
            if len(content[here]) != len(content[there]):
                return None
            content[here], content[there] = content[there], content[here]
            return bytes(content), f"blocks {one} and {other} swapped"
        if way == 2:
            if len(content[here]) != len(content[there]):
                return None
            content[there] = content[here]
            return bytes(content), f"block {one} written over block {other}"
        old = self.previous(name)
        if old is None or len(old[here]) != len(content[here]):
            return None
        content[here] = old[here]
        return bytes(content), f"block {one} of the save before"

    def cut(self, name: str, rng: random.Random) -> Done:
        content, way = self.image[name], rng.random()
        if way < 0.15:
            return None if len(self.newest) == 1 and len(self.image) == 1 else (None, "gone")
        if not content:
            return None
        length = (
            len(content) - 1 if way < 0.3 else 0 if way < 0.4 else int(rng.random() * len(content))
        )
        return content[:length], f"cut from {len(content)} to {length} bytes"

    def stale(self, name: str, _rng: random.Random) -> Done:
        old = self.previous(name)
        return None if old is None else (old, "that of the save before")
