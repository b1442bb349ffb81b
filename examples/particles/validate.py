#!/usr/bin/env python3
"""Checks the particles: their diffusion, and that nothing changes a bit of how a run ends.

    validate.py [--mpirun 'mpirun'] ../build/examples/particles

One rank without any directory, and so without checkpoints, gives the state to compare with, and the
rate at which p * p grows: K * K / 2 a step, within 5 % (100,000 particles have a statistical error
of 0.4 %, the formula one of 2 %; with K larger by 0.6, no longer a zero of J2, the rate is 25 %
smaller). Then three ranks run with checkpoints and are killed while one is being written, its
newest checkpoint is damaged, and they are started again: they resume from an older step of other
sizes, and end with the same bits.

Needs nothing but the standard library. Exit code 0: all right; 1: not.
"""

import argparse
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

STEPS, PARTICLES, EVERY, DIE = 120, 100_000, 10, 70
BOUND = 0.05


def run(
    options: argparse.Namespace, ranks: int, directory: str | None, *more: object
) -> tuple[int, str]:
    environment = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        **{name: value for name, value in os.environ.items() if not name.startswith("ORCHECK_")},
    }
    if directory:
        environment.update(
            ORCHECK_GLOBAL=directory, ORCHECK_EVERY_STEPS=str(EVERY), ORCHECK_POOL="64 MiB"
        )
    command = [
        *shlex.split(options.mpirun),
        "-n",
        str(ranks),
        options.particles,
        str(STEPS),
        str(PARTICLES),
        *map(str, more),
    ]
    done = subprocess.run(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return done.returncode, done.stdout


def must(holds: object, text: str, said: str) -> None:
    if not holds:
        sys.exit(f"validate: expected {text}\n{said}")


def damage(directory: str) -> int:
    """Changes a byte in the newest checkpoint that is committed; the step it is of."""
    job = pathlib.Path(directory) / "particles"
    prefix = max(path.name for path in job.glob("*-global.commit")).removesuffix("-global.commit")
    step = int(prefix[1:].partition("-")[0])
    newest = next(job.glob(f"{prefix}-n*.orc"))
    with open(newest, "r+b") as file:
        middle = newest.stat().st_size // 2
        file.seek(middle)
        byte = file.read(1)[0]
        file.seek(middle)
        file.write(bytes([byte ^ 0x40]))
    return step


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("particles", type=os.path.abspath)
    parser.add_argument("--mpirun", default="mpirun")
    options = parser.parse_args()
    code, said = run(options, 1, None)
    last = re.search(
        r"^step (\d+)  particles (\d+)  p\*p / \(t K\*K/2\) ([\d.]+)  state (\w+)$", said, re.M
    )
    must(code == 0 and last, "a run without checkpoints to end well", said)
    assert last
    print(last[0])
    must(int(last[1]) == STEPS and int(last[2]) == PARTICLES, "every particle to be there", said)
    must(abs(float(last[3]) - 1) < BOUND, f"p * p to grow as K * K / 2, within {BOUND}", said)
    with tempfile.TemporaryDirectory() as directory:
        code, said = run(options, 3, directory, DIE)
        must(code != 0 and "state" not in said, f"the run to be killed at step {DIE}", said)
        step = damage(directory)
        code, said = run(options, 3, directory, DIE)
        print(said.strip())
        resumed = re.search(r"^resumed from step (\d+)$", said, re.M)
        must(code == 0 and resumed, "the job to resume", said)
        assert resumed
        must(0 < int(resumed[1]) < step <= DIE, f"a step older than {step}, which is damaged", said)
        must(last[0] in said, "the same bits at the end", said)
    print(
        "the particles diffuse as they should, and killed, damaged and resumed they end with the "
        "same bits"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
