"""Tests the harness: it must find each mistake of selftest/bad.c, and nothing where there is none.

    PYTHONPATH=bench python3 -m testbed.torture.selftest [--prefix DIR]

ends with 'N passed, M failed'.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from orcbench import running
from testbed.torture import torture
from testbed.torture.trial import VERDICTS

HERE = os.path.dirname(os.path.abspath(__file__))

OF_NO_HARM = set(VERDICTS[:3])
# Way, kinds of faults, trials of each, what must be among the verdicts, what else may be there.
MISTAKES = [
    # Breaks if: disk.Disk.cut keeps blocks that no fsync has covered.
    ("lazy", "power", 12, {"LOST_WORK"}, {"SILENT_WRONG"}),
    # Breaks if: disk.File.sync also settles the blocks of an fsync that failed.
    ("retry", "fsync", 4, {"LOST_WORK"}, {"SILENT_WRONG"}),
    # Breaks if: trial.judge_restore does not compare every byte.
    ("trusting", "flip,cut", 4, {"SILENT_WRONG"}, {"LOST_WORK"}),
    # Breaks if: trace.run waits without a deadline (then this test ends with the harness).
    ("endless", "cut", 3, {"HANG"}, set()),
    # Breaks if: trial.go_on does not look at the status of the next save; or meddle does not kill.
    ("stuck", "kill", 6, {"HARD_FAIL"}, set()),
    # Breaks if: trial.go_on does not count the files that are there.
    ("untidy", "kill", 12, {"LEAK"}, set()),
]
# The twins: no mistake, and no verdict that says so. Breaks if: meddle makes the call all the same
# whose failure it reports (a rename that failed and happened).
RIGHT = [("fwrite-rename", "kill,error,fsync,power,read", 6, OF_NO_HARM)]
ORCHECK = [("orcheck", "kill,error,fsync,power,flip,block,cut,stale,read", 5, OF_NO_HARM)]


def ran(
    scratch: str, prefix: str, name: str, kinds: str, trials: int, **more: Any
) -> dict[str, list[str]]:
    """{verdict: outcomes} of an adapter, and how many trials struck."""
    directory = os.path.join(
        HERE, "adapters" if name in ("orcheck", "fwrite-rename") else "selftest"
    )
    argv = [
        name,
        "--adapters",
        directory,
        "--kinds",
        kinds,
        "--trials",
        str(trials),
        "--dir",
        scratch,
        "--prefix",
        prefix,
        "--state-kib",
        "32",
        "--timeout-s",
        str(more.get("timeout_s", 20)),
        "--minutes",
        "2",
        "--seed",
        "1",
    ]
    args = torture.arguments(argv)
    cells, missing, _ = torture.torture(args, say=lambda *_, **__: None)
    found: dict[str, list[str]] = {}
    for cell in cells:
        if cell.why:
            found.setdefault("NOT TRIED", []).append(f"{cell.kind}: {cell.why}")
        for outcome in cell.outcomes:
            if outcome.struck:
                found.setdefault(outcome.verdict, []).append(
                    f"{cell.kind} {outcome.index}: {outcome.fault}: {outcome.text}\n"
                    f"      {cell.again(args, outcome)}"
                )
    for why in missing.values():
        found.setdefault("NOT TRIED", []).append(why)
    return found


def main() -> None:
    prefix = os.environ.get("PREFIX", os.path.join(running.ROOT, "build", "prefix"))
    if sys.argv[1:2] == ["--prefix"]:
        prefix = sys.argv[2]
    passed = failed = 0

    def check(name: str, holds: bool, found: Mapping[str, Sequence[str]]) -> None:
        nonlocal passed, failed
        passed, failed = passed + holds, failed + (not holds)
        print(
            f"{'ok   ' if holds else 'FAIL '} {name}: "
            + ", ".join(f"{len(v)} {k}" for k, v in found.items()),
            flush=True,
        )
        if not holds:
            for verdict, lines in found.items():
                print(f"   {verdict}: {lines[0]}")

    # Trials write little and often; what is tested is the order of calls, not the disk.
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    scratch = tempfile.mkdtemp(prefix="orcheck-torture-", dir=parent)
    try:
        for name, kinds, trials, must, may in MISTAKES:
            found = ran(
                scratch, prefix, name, kinds, trials, timeout_s=2 if name == "endless" else 20
            )
            check(
                f"{name} is found out by {kinds}",
                must <= set(found) <= must | may | OF_NO_HARM,
                found,
            )
        for name, kinds, trials, may in RIGHT + ORCHECK:
            found = ran(scratch, prefix, name, kinds, trials)
            check(f"{name} holds under {kinds}", bool(found) and set(found) <= may, found)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
