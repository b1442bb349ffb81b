"""Runs programs that are not ours with checkpoints, kills them, and lets them end.

Not here: how they are built, and how they say that their result is right (npb.py, hpl.py).
"""

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

from orcbench import facts, running
from orcbench.stats import Sample

RUN_S = 1800


def more(parser: argparse.ArgumentParser) -> None:
    """Options of such benchmarks."""
    parser.add_argument("--ranks", type=int, default=4, help="default 4")
    parser.add_argument("--kills", type=int, default=10, help="of each program (default 10)")
    parser.add_argument(
        "--every-s", type=float, default=1.0, help="between checkpoints (default 1)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the moments of kills (default 1)")


def checked(command: list[str], where: str, environment: Mapping[str, str]) -> None:
    """Runs a compiler; raises what it says if it fails."""
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)[:400]}\n{(done.stdout + done.stderr)[-4000:]}")


def start(
    args: argparse.Namespace, program: str, options: Mapping[str, str], log: str
) -> subprocess.Popen[bytes]:
    """The program in a session of its own, working where the log is; what it says goes there."""
    names = {f"ORCHECK_{name.upper()}": value for name, value in options.items()}
    command = [os.environ.get("MPIRUN", "mpirun"), "-n", str(args.ranks), program]
    with open(log, "wb") as file:
        return subprocess.Popen(
            command,
            env={**running.environment(), **names, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=os.path.dirname(log),
        )


def ranks_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The processes that mpirun started."""
    path = f"/proc/{process.pid}/task/{process.pid}/children"
    return [int(pid) for pid in facts.read(path).split()]


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends it and its ranks, if it has not ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def finished(process: subprocess.Popen[bytes]) -> int:
    """Waits for its end; its status."""
    try:
        return process.wait(RUN_S)
    finally:
        end(process)


def said(log: str) -> str:
    with open(log, errors="replace") as file:
        return file.read()


def newest(args: argparse.Namespace, job: str, where: str) -> int:
    """The newest committed step, 0 if there is none."""
    command = [os.path.join(args.prefix, "bin", "orcheck"), "ls", "--dir", where, "--job", job]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    steps = re.findall(r'"step": *(\d+)', done.stdout)
    return max(map(int, steps), default=0)


def kill_and_finish(
    args: argparse.Namespace,
    name: str,
    program: str,
    where: str,
    verified: re.Pattern[str],
    result: str = "log",
) -> Sample:
    """Kills a program again and again at random moments, and lets it end. It works in `where`, and
    is right if what it writes to this file there says so."""
    source = random.Random(f"{args.seed}-{name}")
    place, log = os.path.join(where, "checkpoints"), os.path.join(where, "log")
    os.makedirs(place)
    options = {"global": place, "every_s": str(args.every_s), "keep": "2"}
    steps: list[int] = []
    begin = time.monotonic()
    while len(steps) < args.kills:
        before = steps[-1] if steps else 0
        process = start(args, program, options, log)
        # Breaks if: it is killed before it got further; it would never end.
        end_s = time.monotonic() + RUN_S
        while process.poll() is None and newest(args, name, place) <= before:
            if time.monotonic() > end_s:
                end(process)
                raise RuntimeError(f"{name}: no new checkpoint within {RUN_S} s")
            time.sleep(0.2)
        if process.poll() is not None:
            raise RuntimeError(
                f"{name} ended before it was killed (is its problem too small?):\n"
                f"{said(log)[-4000:]}"
            )
        time.sleep(source.uniform(0, args.every_s))
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended before it was killed; choose a larger problem")
        for pid in ranks_of(process):
            os.kill(pid, signal.SIGKILL)
        process.wait(60)
        steps.append(newest(args, name, place))
        print(f"{name}: kill {len(steps)}, newest step {steps[-1]}", file=sys.stderr, flush=True)
    process = start(args, program, options, log)
    status = finished(process)
    text = said(os.path.join(where, result))
    shutil.rmtree(place)
    return {
        "program": name,
        "steps": steps,
        "s": time.monotonic() - begin,
        "verified": status == 0 and verified.search(text) is not None,
        "said": text[-2000:],
    }
