#!/usr/bin/env python3
"""Continues each example on other numbers of ranks, and compares the states at the end.

    elastic.py [--mpirun mpirun] ../build/examples

Each program first runs without checkpoints. Then a run with the first number of ranks is killed
while it writes a checkpoint; each following one continues for some steps with the next number, and
the last one to the end. It must have the same bits: the arithmetic of the examples does not depend
on the cut.

Needs nothing but the standard library. Exit code 0: all right; 1: not.
"""

import argparse
import math
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence

STEPS, EVERY, DIE = 60, 4, 16
LBM = ["--nx", "20", "--ny", "24", "--nz", "16", "--re", "100", "--closed"]

# Directory (None: without checkpoints), cut, steps.
Arguments = Callable[[str | None, str, int], list[str]]


def lbm(directory: str | None, cut: str, steps: int) -> list[str]:
    options = [*LBM, "--cut", cut, "--steps", str(steps)]
    if directory:
        options += ["--elastic", "--checkpoint", "async", "--every", str(EVERY)]
        options += ["--die", str(DIE), "--options", f"global = ['{directory}']"]
    return options


def heat(directory: str | None, _cut: str, steps: int) -> list[str]:
    options = ["n=90", f"steps={steps}", f"every={EVERY}"]
    if directory:
        options += [f"die={DIE}", f"options=global = ['{directory}']"]
    return options


def particles(directory: str | None, _cut: str, steps: int) -> list[str]:
    return [str(steps), "20000", *([str(DIE)] if directory else [])]


# Program, its arguments, and the numbers of ranks (for lbm, ranks in x, y and z) in turn.
CASES: Sequence[tuple[str, Arguments, Sequence[str]]] = (
    ("lbm", lbm, ("2x2x1", "1x3x1", "1x1x1")),
    ("lbm", lbm, ("1x2x2", "2x2x2", "2x1x1")),
    ("lbm", lbm, ("2x2x2", "1x1x2", "2x2x1")),
    ("heat", heat, ("3x1x1", "5x1x1", "2x1x1")),
    ("particles", particles, ("3x1x1", "7x1x1", "1x1x1", "8x1x1")),
)


def run(
    mpirun: str, program: pathlib.Path, ranks: int, arguments: Sequence[str], directory: str | None
) -> str:
    environment = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMP_NUM_THREADS": "1",
        **{name: value for name, value in os.environ.items() if not name.startswith("ORCHECK_")},
        "ORCHECK_POOL": "64 MiB",
    }
    if directory and program.name == "particles":
        environment.update(ORCHECK_GLOBAL=directory, ORCHECK_EVERY_STEPS=str(EVERY))
    done = subprocess.run(
        [*shlex.split(mpirun), "-n", str(ranks), str(program), *arguments],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.stdout


def state(said: str) -> str | None:
    found = re.search(r"state +(\w+)", said)
    return found and found[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("examples", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--mpirun", default="mpirun")
    options = parser.parse_args()
    for name, arguments, cuts in CASES:
        program = options.examples / name
        said = run(options.mpirun, program, 1, arguments(None, "1x1x1", STEPS), None)
        expected = state(said)
        if not expected:
            sys.exit(f"elastic: {name} without checkpoints says no state\n{said}")
        resumed = []
        with tempfile.TemporaryDirectory() as directory:
            for turn, cut in enumerate(cuts):
                ranks = math.prod(map(int, cut.split("x")))
                steps = STEPS if turn + 1 == len(cuts) else DIE + 12 * (turn + 1)
                said = run(
                    options.mpirun, program, ranks, arguments(directory, cut, steps), directory
                )
                step = re.search(r"^resumed from step (\d+)$", said, re.M)
                if bool(step) != (turn > 0) or bool(state(said)) != (turn > 0):
                    wanted = "resume" if turn else "be killed"
                    sys.exit(f"elastic: {name} on {cut}: expected to {wanted}\n{said}")
                resumed.append(f"{ranks} from step {step[1]}" if step else str(ranks))
        if state(said) != expected:
            sys.exit(f"elastic: {name} on {cuts}: expected state {expected} at the end\n{said}")
        print(f"{name}: on {', then '.join(resumed)} ranks: the same bits at the end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
