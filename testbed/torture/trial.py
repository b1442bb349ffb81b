"""One adapter's reference run, its trials and their verdicts."""

import dataclasses
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from testbed.torture import disk as model
from testbed.torture import faults, states
from testbed.torture.adapter import Adapter
from testbed.torture.disk import Image
from testbed.torture.trace import Ended, run

VERDICTS = (
    "PASS",
    "CLEAR_FAIL",
    "FELL_BACK",
    "LOST_WORK",
    "HARD_FAIL",
    "SILENT_WRONG",
    "HANG",
    "LEAK",
)
STEPS = 4  # saves of a run that is to suffer
AGAIN = 2  # saves of the run after it
DAMAGES = ("flip", "block", "cut", "stale")


@dataclasses.dataclass
class Outcome:
    kind: str
    index: int
    verdict: str
    fault: str
    text: str = ""
    struck: bool = True


class Failed(Exception):
    """A trial's verdict when it is not PASS."""

    def __init__(self, verdict: str, text: str) -> None:
        super().__init__(text)
        self.verdict = verdict


class Place:
    """A directory of a trial: the checkpoints, and beside them what the harness needs."""

    def __init__(self, parent: str, image: Image | None = None, dirs: Iterable[str] = ()) -> None:
        self.path = tempfile.mkdtemp(prefix="trial-", dir=parent)
        self.dir, self.tmp = os.path.join(self.path, "dir"), os.path.join(self.path, "tmp")
        self.ack, self.into = os.path.join(self.path, "ack"), os.path.join(self.path, "into")
        for made in (self.dir, self.tmp):
            os.mkdir(made)
        with open(self.ack, "wb"):
            pass
        if image is not None:
            model.write_image(image, dirs, self.dir)

    def acked(self) -> int:
        with open(self.ack) as file:
            return max((int(line) for line in file.read().splitlines() if line.strip()), default=0)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class Subject:
    """An adapter with everything that its trials share. Trials may run on several threads."""

    def __init__(
        self,
        adapter: Adapter,
        meddle: str,
        scratch: str,
        seed: int,
        state_bytes: int,
        trials: int,
        timeout_s: float,
    ) -> None:
        self.adapter, self.meddle, self.scratch, self.seed = adapter, meddle, scratch, seed
        self.trials, self.timeout_s = trials, timeout_s
        self.states = os.path.join(scratch, "states")
        self.series = states.write_series(self.states, 1 + seed % 1000, STEPS + AGAIN, state_bytes)

    # ---- running ----
    def save(
        self, place: Place, first: int, last: int, fault: str | None = None, data: str | None = None
    ) -> Ended:
        command = self.adapter.command(
            "save", dir=place.dir, states=self.states, first=first, last=last, ack=place.ack
        )
        return self._run(command, place, fault, ack=place.ack, data=data)

    def restore(self, place: Place, fault: str | None = None) -> Ended:
        if os.path.exists(place.into):
            os.unlink(place.into)
        return self._run(
            self.adapter.command("restore", dir=place.dir, into=place.into), place, fault
        )

    def _run(self, command: Sequence[str], place: Place, fault: str | None, **more: Any) -> Ended:
        return run(
            self.meddle,
            command,
            place.path,
            place.dir,
            fault=fault,
            timeout_s=self.timeout_s,
            env=self.adapter.environment(place.tmp),
            **more,
        )

    # ---- the run without a fault ----
    def reference(self) -> None:
        """Records a run without a fault; raises RuntimeError when the program does not even do
        that.
        """
        place = Place(self.scratch)
        data = os.path.join(place.path, "data")
        try:
            ended = self.save(place, 1, STEPS, data=data)
            if ended.status != 0 or place.acked() != STEPS:
                raise RuntimeError(
                    f"save without a fault: status {ended.status}, acknowledged {place.acked()}: "
                    f"{ended.said}"
                )
            with open(data, "rb") as file:
                self.data = file.read()
            self.root, self.trace = place.dir, ended.trace
            self.image, self.dirs = model.read_image(place.dir)
            self.acks = [call.number for call in self.trace.calls if call.kind == "ack"]
            self.unseen = ended.trace.unseen
            ended = self.restore(place)
            self.restore_trace = ended.trace
            try:
                self.judge_restore(ended, place, STEPS, STEPS, damaged=False)
                self.go_on(place, STEPS, limits=None)
            except Failed as failed:
                raise RuntimeError(f"without a fault: {failed.verdict}: {failed}") from failed
            self.limits = self.used(place)
        finally:
            place.remove()
        # What may lie there is not the same after every save: where only what changed is stored, it
        # differs.
        for attempted in range(STEPS):
            self.limits["bytes"] = max(self.limits["bytes"], self.bytes_after(attempted))
        self.check_model()
        older = self.replayed(self.acks[-2]).cut(keep=True)[0]
        newest = {
            path
            for path, inode in self.replayed(None).names.items()
            if inode.last > self.acks[-2] and path in self.image
        }
        self.damage = faults.Damage(self.image, newest, older)
        self.call_faults = faults.call_faults(
            self.trace, ("open", "write", "size", "sync", "close", "name")
        )
        self.read_faults = faults.call_faults(self.restore_trace, ("open", "read"))
        written = {call.inode for call in self.trace.calls if call.kind == "write"}
        self.sync_faults = [
            (f"sync:{n}:{faults.answer('EIO')}", f"{call.name} {n} ({call.path}): EIO")
            for _, n, call in self.trace.wanted(("sync",))
            if call.inode in written
        ]
        self.calls = max(call.number for call in self.trace.calls)

    def check_model(self) -> None:
        """The recorded calls must explain every byte that is there, or power cuts are guesses."""
        replayed = self.replayed(None).cut(keep=True)[0]
        self.explained = not self.unseen and replayed == self.image
        if not self.explained and not self.unseen:
            wrong = sorted(set(replayed) ^ set(self.image)) or [
                n for n in replayed if replayed[n] != self.image[n]
            ]
            self.unseen = {f"unexplained: {wrong[0]}"}

    def replayed(self, until: int | None) -> model.Disk:
        """The disk as of a call's number; None: at the end."""
        disk = model.Disk(self.root, self.data)
        for call in self.trace.calls:
            if until is None or call.number <= until:
                disk.apply(call)
        return disk

    def bytes_after(self, attempted: int) -> int:
        """What lies there after this many saves and the next run, without a fault."""
        place = Place(self.scratch)
        try:
            if attempted:
                self.save(place, 1, attempted)
            self.go_on(place, attempted, limits=None)
            left: int = self.used(place)["bytes"]
            return left
        except Failed as failed:
            raise RuntimeError(f"without a fault: {failed.verdict}: {failed}") from failed
        finally:
            place.remove()

    def used(self, place: Place) -> dict[str, Any]:
        files, _ = model.read_image(place.dir)
        return {"files": sorted(files), "bytes": sum(map(len, files.values()))}

    # ---- verdicts ----
    def judge_restore(
        self, ended: Ended, place: Place, acked: int, attempted: int, damaged: bool
    ) -> tuple[str, str]:
        """PASS, CLEAR_FAIL or FELL_BACK; raises Failed otherwise."""
        if ended.status is None:
            raise Failed("HANG", f"restore took longer than {self.timeout_s} s")
        if ended.status >= 128:
            raise Failed("HARD_FAIL", f"restore was ended by signal {ended.status - 128}")
        if ended.trace.left:
            raise Failed("LEAK", f"restore left {ended.trace.left} process(es) behind")
        if ended.status:
            if not ended.words:
                raise Failed("HARD_FAIL", f"restore failed with {ended.status} and without a word")
            if damaged or acked == 0:
                return "CLEAR_FAIL", ended.words
            raise Failed("LOST_WORK", f"step {acked} was acknowledged; restore: {ended.words}")
        last = (ended.out.strip().splitlines() or [""])[-1]
        if last == "nothing":
            if acked == 0:
                return "PASS", ""
            raise Failed(
                "LOST_WORK", f"step {acked} was acknowledged; restore found nothing: {ended.words}"
            )
        word, _, number = last.partition(" ")
        if word != "restored" or not number.isdigit() or not os.path.exists(place.into):
            raise Failed(
                "HARD_FAIL",
                f"restore ended with 0, and said neither what it restored nor why not: {last!r}",
            )
        with open(place.into, "rb") as file:
            found = file.read()
        step, claimed = states.step_of(found, self.series), int(number)
        if step != claimed or step > attempted:
            expected = self.series.get(claimed, self.series[STEPS])
            raise Failed(
                "SILENT_WRONG", f"restored as step {claimed}: {states.explain(found, expected)}"
            )
        if step >= acked:
            return "PASS", ""
        if damaged and ended.words:
            return "FELL_BACK", ended.words
        raise Failed(
            "LOST_WORK",
            f"step {acked} was acknowledged; step {step} came back "
            f"{'with' if ended.words else 'without'} a word {ended.words}",
        )

    def judge_save(self, ended: Ended) -> None:
        if ended.status is None:
            raise Failed("HANG", f"save took longer than {self.timeout_s} s")
        if ended.status >= 128:
            raise Failed(
                "HARD_FAIL", f"save was ended by signal {ended.status - 128}: {ended.words}"
            )
        if ended.trace.left:
            raise Failed("LEAK", f"save left {ended.trace.left} process(es) behind")
        if ended.status and not ended.words:
            raise Failed("HARD_FAIL", f"save failed with {ended.status} and without a word")

    def go_on(self, place: Place, attempted: int, limits: dict[str, Any] | None) -> None:
        """After the fault: the next run must be able to save and restore, with nothing left lying
        about.
        """
        last = attempted + AGAIN
        ended = self.save(place, attempted + 1, last)
        if ended.status is None:
            raise Failed("HANG", "the next save does not end")
        if ended.status or place.acked() != last:
            raise Failed("HARD_FAIL", f"the next save fails with {ended.status}: {ended.words}")
        after = self.restore(place)
        verdict, words = self.judge_restore(after, place, last, last, damaged=False)
        if verdict != "PASS":
            raise Failed("HARD_FAIL", f"the next restore: {words}")
        left = os.listdir(place.tmp) + [
            path
            for trace in (ended.trace, after.trace)
            for path in trace.outside
            if os.path.exists(path) and not path.startswith(place.path + "/")
        ]
        if left:
            raise Failed("LEAK", f"left behind: {left[:5]}")
        used = self.used(place)
        if limits and (
            len(used["files"]) > len(limits["files"])
            or used["bytes"] > limits["bytes"] * 1.1 + 65536
        ):
            raise Failed(
                "LEAK",
                f"{len(used['files'])} files, {used['bytes']} bytes instead of "
                f"{len(limits['files'])}, "
                f"{limits['bytes']}: {used['files'][:12]}",
            )

    # ---- trials ----
    def applies(self, kind: str) -> str:
        """Why this kind of fault cannot be tried on this format; "" if it can."""
        if kind in self.adapter.skip:
            return "skipped by the adapter"
        if kind in ("power", "fsync") and not self.explained:
            return "writes in ways that are not followed: " + ", ".join(sorted(self.unseen))
        return ""

    def trial(self, kind: str, index: int, keep: bool = False) -> Outcome | None:
        """One trial; None when there is no such fault."""
        rng = faults.rng_of(self.seed, kind, index)
        if kind in DAMAGES:
            made = self.damage.make(kind, rng)
            if made is None or (kind == "stale" and index >= 4 * len(self.damage.newest)):
                return None
            image, words = made
            return self._finish(kind, index, words, keep, self._damaged, image)
        if kind == "read":
            fault = faults.drawn(self.read_faults, index, self.trials, self.seed, kind)
            if fault is None:
                return None
            spoilt, words = fault
            return self._finish(
                kind, index, words, keep, lambda place: self._damaged(place, spoilt), self.image
            )
        if kind == "power":
            until, image, dirs, words = self._power(index, rng)
            acked = sum(1 for number in self.acks if number <= until)
            return self._finish(
                kind, index, words, keep, lambda place: self._crashed(place, acked), image, dirs
            )
        if kind == "kill":
            calls = [
                (f"any:{n}:kill", f"before call {n} of {self.calls}")
                for n in range(1, self.calls + 1)
            ]
        else:
            calls = self.call_faults if kind == "error" else self.sync_faults
        fault = faults.drawn(calls, index, self.trials, self.seed, kind)
        if fault is None:
            return None
        struck, words = fault
        return self._finish(
            kind, index, words, keep, lambda place: self._suffer(place, kind, struck)
        )

    def _finish(
        self,
        kind: str,
        index: int,
        words: str,
        keep: bool,
        what: Callable[[Place], tuple[str, str, bool]],
        image: Image | None = None,
        dirs: Iterable[str] = (),
    ) -> Outcome:
        place = Place(self.scratch, image, dirs or self.dirs)
        struck, verdict, text = True, "PASS", ""
        try:
            verdict, text, struck = what(place)
        except Failed as failed:
            verdict, text = failed.verdict, str(failed)
        finally:
            if keep:
                print(f"kept: {place.path}")
            else:
                place.remove()
        return Outcome(kind, index, verdict, words, text.replace(place.path, "."), struck)

    def _damaged(self, place: Place, fault: str | None = None) -> tuple[str, str, bool]:
        ended = self.restore(place, fault)
        return (
            *self.judge_restore(ended, place, STEPS, STEPS, damaged=True),
            ended.trace.struck or fault is None,
        )

    def _crashed(self, place: Place, acked: int) -> tuple[str, str, bool]:
        """What lies there after a crash is restored, and the job continues.

        acked: the newest acknowledged step.
        """
        attempted = min(acked + 1, STEPS)
        verdict, text = self.judge_restore(
            self.restore(place), place, acked, attempted, damaged=False
        )
        self.go_on(place, attempted, self.limits)
        return verdict, text, True

    def _suffer(self, place: Place, kind: str, fault: str | None) -> tuple[str, str, bool]:
        data = os.path.join(place.path, "data") if kind == "fsync" else None
        ended = self.save(place, 1, STEPS, fault, data)
        if kind != "kill":
            self.judge_save(ended)
        elif ended.status is None:
            raise Failed("HANG", "the killed run did not end")
        acked = place.acked()
        if kind == "fsync":
            assert data
            with open(data, "rb") as file:
                disk = model.Disk(place.dir, file.read())
            for call in ended.trace.calls:
                disk.apply(call)
            image, dirs = disk.cut(keep=True)
            shutil.rmtree(place.dir)
            model.write_image(image, dirs, place.dir)
        verdict, text, _ = self._crashed(place, acked)
        return verdict, text, ended.trace.struck or ended.status == 137

    def _power(self, index: int, rng: random.Random) -> tuple[int, Image, set[str], str]:
        """Cuts right after an acknowledgement with everything dropped come first: nothing tells
        more.
        """
        if index < len(self.acks):
            until = self.acks[index]
            image, dirs = self.replayed(until).cut(keep=False)
            return until, image, dirs, f"after call {until} (an acknowledgement), all dropped"
        until = 1 + int(rng.random() * self.calls)
        image, dirs = self.replayed(until).cut(rng)
        return until, image, dirs, f"after call {until} of {self.calls}"
