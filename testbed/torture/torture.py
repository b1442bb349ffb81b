"""Tortures checkpoints from outside: kills, failing calls, power cuts, damage; any format.

An adapter (adapters/NAME.toml, see README.md) says how a program saves and restores. The harness
records a run at the level of system calls, repeats it under faults, and judges what is restored by
what was acknowledged:

  PASS         the newest that was acknowledged (or the one in flight), bit for bit
  CLEAR_FAIL   refused, with a reason, where nothing else was promised
               (damage; nothing acknowledged yet)
  FELL_BACK    damage: an older step, bit for bit, with a warning
  LOST_WORK    what was acknowledged is gone, or an older step came back without a word
  HARD_FAIL    ended by a signal, failed without a word, or the next run cannot continue
  SILENT_WRONG restored, and not the bytes of one step
  HANG         no end within the deadline
  LEAK         files or processes left behind
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from orcbench import facts, reporting, running
from testbed.torture.adapter import Missing, adapters
from testbed.torture.faults import KINDS
from testbed.torture.trial import DAMAGES, VERDICTS, Outcome, Subject

HERE = os.path.dirname(os.path.abspath(__file__))

WORST = VERDICTS[4:]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="testbed.torture",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("formats", nargs="*", help="adapters to run (default: all)")
    parser.add_argument(
        "--kinds",
        default=",".join(KINDS),
        help="kinds of faults: " + "; ".join(f"{name}: {what}" for name, what in KINDS.items()),
    )
    parser.add_argument(
        "--trials",
        type=int,
        default=int(os.environ.get("ORCHECK_TRIALS", 120)),
        help="at most this many trials of each kind and format (default $ORCHECK_TRIALS or 120)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=8,
        help="time for everything, shared out evenly (default 8)",
    )
    parser.add_argument("--seed", type=int, default=int(os.environ.get("ORCHECK_SEED", 1)))
    parser.add_argument(
        "--trial", type=int, help="only this trial of each kind, and say what it came to"
    )
    parser.add_argument(
        "--keep", action="store_true", help="with --trial: keep the trial's directory"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="trials at once (default: cores)",
    )
    parser.add_argument("--state-kib", type=int, default=320, help="size of a state (default 320)")
    parser.add_argument(
        "--timeout-s", type=float, default=60, help="longest life of a program (default 60)"
    )
    parser.add_argument("--adapters", default=os.path.join(HERE, "adapters"))
    parser.add_argument(
        "--must-hold",
        action="append",
        default=[],
        metavar="FORMAT",
        help="exit with 1 when this format has a verdict of " + ", ".join(WORST),
    )
    parser.add_argument(
        "--dir", default=os.path.join(running.ROOT, "build", "torture"), help="for the trials"
    )
    parser.add_argument(
        "--prefix", default=os.environ.get("PREFIX", os.path.join(running.ROOT, "build", "prefix"))
    )
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter that has the formats' modules"
    )
    parser.add_argument(
        "--json", default=os.path.join(running.ROOT, "bench", "results", "torture.json")
    )
    args = parser.parse_args(argv)
    args.kinds = [kind for kind in args.kinds.split(",") if kind]
    if set(args.kinds) - set(KINDS):
        parser.error(f"--kinds: choose of {', '.join(KINDS)}")
    if args.trial is not None:
        args.jobs = 1
    args.dir, args.prefix = os.path.realpath(args.dir), os.path.abspath(args.prefix)
    if os.sep in args.python:
        args.python = os.path.abspath(args.python)  # not resolved: a virtual environment is a link
    os.makedirs(args.dir, exist_ok=True)
    return args


def build_meddle(out: str) -> str:
    os.makedirs(out, exist_ok=True)
    program = os.path.join(out, "meddle")
    subprocess.run(
        [
            os.environ.get("CC", "cc"),
            "-std=gnu11",
            "-O2",
            "-Wall",
            "-Wextra",
            os.path.join(HERE, "src", "meddle.c"),
            "-o",
            program,
        ],
        check=True,
    )
    return program


class Cell:
    """All trials of one format and one kind of fault."""

    def __init__(self, subject: Subject, kind: str) -> None:
        self.subject, self.kind, self.why = subject, kind, subject.applies(kind)
        self.outcomes: list[Outcome] = []

    def run(self, args: argparse.Namespace, share_s: float) -> None:
        if self.why:
            return
        end = time.monotonic() + share_s
        indices = iter([args.trial] if args.trial is not None else range(args.trials))

        def work() -> list[Outcome]:
            done = []
            for index in indices:  # next() of a list's iterator is one step of the interpreter
                if time.monotonic() > end and args.trial is None:
                    break
                outcome = self.subject.trial(self.kind, index, args.keep)
                if outcome is None:
                    break
                done.append(outcome)
            return done

        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            found = [pool.submit(work) for _ in range(args.jobs)]
            self.outcomes = sorted(
                itertools.chain(*(one.result() for one in found)), key=lambda o: o.index
            )

    def counts(self) -> dict[str, int]:
        struck = [outcome for outcome in self.outcomes if outcome.struck]
        return {
            verdict: sum(1 for outcome in struck if outcome.verdict == verdict)
            for verdict in VERDICTS
        }

    def again(self, args: argparse.Namespace, outcome: Outcome) -> str:
        """The command that repeats a trial."""
        more = (
            [f"--adapters {args.adapters}"]
            if args.adapters != os.path.join(HERE, "adapters")
            else []
        )
        more += [f"--state-kib {args.state_kib}"] if args.state_kib != 320 else []
        more += [f"--python {args.python}"] if args.python != sys.executable else []
        return " ".join(
            [
                f"PYTHONPATH=bench python3 -m testbed.torture {self.subject.adapter.name} --kinds "
                f"{self.kind} --seed {args.seed} "
                f"--trials {args.trials} --trial {outcome.index} --keep",
                *more,
            ]
        )


def torture(
    args: argparse.Namespace, say: Callable[..., object] = print
) -> tuple[list[Cell], dict[str, str], dict[str, Any]]:
    """Runs everything; returns (cells, formats that are missing: name -> why, versions)."""
    out = os.path.join(args.dir, "bin")
    meddle = build_meddle(out)
    words = {"out": out, "prefix": args.prefix, "python": args.python}
    cells, missing, versions, ready = [], {}, {}, []
    for adapter in adapters(args.adapters, words, args.formats):
        try:
            adapter.prepare()
            ready.append(adapter)
        except Missing as why:
            missing[adapter.name] = str(why)
    end = time.monotonic() + 60 * args.minutes
    # What takes least goes first, and leaves its time to the others.
    order = sorted(args.kinds, key=lambda kind: kind not in (*DAMAGES, "read"))
    for left, adapter in zip(range(len(ready), 0, -1), ready):
        with running.scratch(args.dir) as scratch:
            subject = Subject(
                adapter,
                meddle,
                scratch,
                args.seed,
                args.state_kib * 1024,
                args.trials,
                args.timeout_s,
            )
            try:
                subject.reference()
            except (
                RuntimeError
            ) as error:  # it cannot even do it without a fault: the others continue
                missing[adapter.name] = str(error).strip()
                continue
            versions[adapter.name] = {
                "about": adapter.about,
                **adapter.versions,
                "calls": subject.calls,
            }
            finish = time.monotonic() + max(1.0, end - time.monotonic()) / left
            for kinds_left, kind in zip(range(len(order), 0, -1), order):
                begun = time.monotonic()
                cell = Cell(subject, kind)
                cell.run(args, max(0.5, finish - begun) / kinds_left)
                cells.append(cell)
                say(
                    f"  {adapter.name} {kind}: {len(cell.outcomes)} trials, "
                    f"{time.monotonic() - begun:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    cells.sort(key=lambda cell: (ready.index(cell.subject.adapter), args.kinds.index(cell.kind)))
    return cells, missing, versions


def show(args: argparse.Namespace, cells: Sequence[Cell], missing: dict[str, str]) -> None:
    rows: list[list[object]] = []
    for cell in cells:
        counts = cell.counts()
        head: list[object] = [cell.subject.adapter.name, cell.kind]
        if cell.why:
            rows.append([*head, "-", *("-" for _ in VERDICTS)])
        else:
            rows.append(
                [*head, sum(counts.values()), *(counts[verdict] or "." for verdict in VERDICTS)]
            )
    reporting.table(["format", "fault", "trials", *VERDICTS], rows)
    print("\nall kinds of faults together")
    names = list(dict.fromkeys(cell.subject.adapter.name for cell in cells))
    summary: list[list[object]] = []
    for name in names:
        mine = [cell.counts() for cell in cells if cell.subject.adapter.name == name]
        total = {verdict: sum(one[verdict] for one in mine) for verdict in VERDICTS}
        summary.append(
            [name, sum(total.values()), *(total[verdict] or "." for verdict in VERDICTS)]
        )
    reporting.table(["format", "trials", *VERDICTS], summary)
    for cell in cells:
        if cell.why:
            print(f"not tried: {cell.subject.adapter.name} {cell.kind}: {cell.why}")
    for name, why in missing.items():
        print(f"left out: {name}: {why}")
    print("\nthe first of each verdict that loses something")
    for cell in cells:
        for verdict in VERDICTS[3:]:
            first = next((o for o in cell.outcomes if o.verdict == verdict and o.struck), None)
            if first:
                print(
                    f"{verdict} {cell.subject.adapter.name} {cell.kind} {first.index}: "
                    f"{first.fault}\n    {first.text}\n"
                    f"    again: {cell.again(args, first)}"
                )


def write_json(
    args: argparse.Namespace,
    cells: Sequence[Cell],
    missing: dict[str, str],
    versions: dict[str, Any],
    seconds: float,
    machine: dict[str, Any],
) -> None:
    result = {
        "name": "torture",
        "commit": facts.commit(),
        "seed": args.seed,
        "trials": args.trials,
        "seconds": round(seconds, 1),
        "state_kib": args.state_kib,
        "machine": machine,
        "formats": versions,
        "left_out": missing,
        "verdicts": list(VERDICTS),
        "kinds": KINDS,
        "cells": [
            {
                "format": cell.subject.adapter.name,
                "kind": cell.kind,
                "not_tried": cell.why or None,
                "trials": sum(cell.counts().values()),
                "counts": cell.counts(),
                "idle": sum(1 for o in cell.outcomes if not o.struck),
                "bad": [
                    {
                        "trial": o.index,
                        "verdict": o.verdict,
                        "fault": o.fault,
                        "text": o.text,
                        "again": cell.again(args, o),
                    }
                    for o in cell.outcomes
                    if o.verdict in VERDICTS[3:]
                ],
            }
            for cell in cells
        ],
    }
    os.makedirs(os.path.dirname(os.path.abspath(args.json)), exist_ok=True)
    with open(args.json + ".new", "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    os.replace(args.json + ".new", args.json)
    print(f"\n{args.json}  (commit {result['commit']}, seed {args.seed}, {seconds:.0f} s)")


def main() -> None:
    args = arguments()
    running.end_on_signals()
    begun = time.monotonic()
    cells, missing, versions = torture(args)
    if args.trial is not None:
        for cell in cells:
            head = f"{cell.subject.adapter.name} {cell.kind} {args.trial}"
            if not cell.outcomes:
                print(f"{head}: no such trial")
            for outcome in cell.outcomes:
                happened = "" if outcome.struck else " (the fault did not happen)"
                print(f"{head}: {outcome.verdict}{happened}\n  {outcome.fault}\n  {outcome.text}")
        return
    show(args, cells, missing)
    machine = {
        "kernel": os.uname().release,
        "file_system": facts.output("findmnt", "-n", "-o", "FSTYPE", "-T", args.dir),
        "cores": len(os.sched_getaffinity(0)),
    }
    write_json(args, cells, missing, versions, time.monotonic() - begun, machine)
    held = [cell for cell in cells if cell.subject.adapter.name in args.must_hold]
    if set(args.must_hold) - {cell.subject.adapter.name for cell in held}:
        sys.exit(f"--must-hold: {args.must_hold}: not all of them could be tested")
    bad = sum(cell.counts()[verdict] for cell in held for verdict in WORST)
    if bad:
        sys.exit(f"{bad} verdict(s) of {', '.join(WORST)} where none may be")
