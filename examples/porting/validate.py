#!/usr/bin/env python3
"""Runs the programs that came from other libraries: killed and resumed, they end as undisturbed.

usage: validate.py DIRECTORY NAME...     (the built programs; MPIRUN: the command that starts them)
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile

STEPS, DIE = 60, 37


def run(program: str, directory: str | None, *words: object) -> tuple[int, str]:
    environment = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        **{name: value for name, value in os.environ.items() if not name.startswith("ORCHECK_")},
    }
    if directory:
        environment.update(ORCHECK_GLOBAL=directory, ORCHECK_POOL="64 MiB")
    command = [*shlex.split(os.environ.get("MPIRUN", "mpirun")), "-n", "2", program]
    done = subprocess.run(
        [*command, *map(str, words)],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
    )
    return done.returncode, done.stdout


def validate(program: str) -> None:
    name = os.path.basename(program)
    code, said = run(program, None, STEPS)
    last = re.search(rf"^step {STEPS}  sum \S+$", said, re.M)
    if code or not last:
        sys.exit(f"{name}: expected a run without checkpoints to end well\n{said}")
    with tempfile.TemporaryDirectory() as directory:
        code, said = run(program, directory, STEPS, DIE)
        if not code or "sum" in said:
            sys.exit(f"{name}: expected a rank to be killed after step {DIE}\n{said}")
        code, said = run(program, directory, STEPS, DIE)
        resumed = re.search(r"^resumed from step (\d+)$", said, re.M)
        if code or not resumed or int(resumed[1]) not in range(10, DIE, 10):
            sys.exit(f"{name}: expected it to resume\n{said}")
        if last[0] not in said:
            sys.exit(f"{name}: expected the same end, {last[0]!r}\n{said}")


def main() -> None:
    directory, *names = sys.argv[1:]
    for name in names:
        validate(os.path.join(directory, name))
    print(f"{len(names)} passed, 0 failed")


if __name__ == "__main__":
    main()
