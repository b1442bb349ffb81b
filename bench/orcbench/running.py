"""Running programs: options, environment, compiling, mpirun, servers, directories.

Not here: what was measured (stats.py), where it was measured (facts.py), what is told of it
(reporting.py).
"""

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from testbed.cluster.held import pipe

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MIB = 1 << 20
READY_S = 60
NO_FIO = "fio is missing. Next: tools/install-deps.sh bench"


def arguments(
    name: str, doc: str | None, more: Callable[[argparse.ArgumentParser], object]
) -> argparse.Namespace:
    """Parses the options that all benchmarks have, and those that more(parser) adds."""
    parser = argparse.ArgumentParser(
        prog=f"orcbench {name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dir",
        default=os.path.join(ROOT, "build", "bench"),
        help="where checkpoints are written: a directory of a real disk (default build/bench)",
    )
    parser.add_argument(
        "--prefix",
        default=os.environ.get("PREFIX", os.path.join(ROOT, "build", "prefix")),
        help="the installed library (default build/prefix, made by `make build`)",
    )
    parser.add_argument("--results", default=os.path.join(ROOT, "bench", "results"))
    parser.add_argument(
        "--full", action="store_true", help="the whole grid, more rounds: much longer"
    )
    more(parser)
    parsed = parser.parse_args()
    os.makedirs(parsed.dir, exist_ok=True)
    parsed.dir, parsed.prefix = os.path.abspath(parsed.dir), os.path.abspath(parsed.prefix)
    if not os.path.exists(os.path.join(parsed.prefix, "include", "orcheck_mpi.h")):
        sys.exit(f"{parsed.prefix} holds no library. Next: make build, or --prefix DIR")
    return parsed


def environment() -> dict[str, str]:
    """This environment with the settings of tools/mpi-env.sh; threads that wait give their core
    away.
    """
    text = subprocess.run(
        ["bash", "-c", ". tools/mpi-env.sh && env -0"], cwd=ROOT, check=True, capture_output=True
    ).stdout.decode()
    found = dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
    found.setdefault("OMP_WAIT_POLICY", "passive")
    return found


# What a program is made of, apart from its own source.
MORE_SOURCES = {"solver": ["examples/lbm/figures.c"], "waste": ["examples/lbm/figures.c"]}


def build(
    prefix: str,
    name: str,
    variant: str | None = None,
    flags: Sequence[str] = (),
    compiler: str | None = None,
) -> str:
    """Compiles bench/src/NAME.c against the library under prefix; returns the program's path.

    variant: a second program of the same source, with more flags or another compiler.
    """
    out = os.path.join(ROOT, "build", "bench-bin", name + (f"-{variant}" if variant else ""))
    os.makedirs(os.path.dirname(out), exist_ok=True)
    sources = [
        os.path.join(ROOT, file) for file in (f"bench/src/{name}.c", *MORE_SOURCES.get(name, ()))
    ]
    lib = os.path.join(prefix, "lib")
    subprocess.run(
        [
            compiler or os.environ.get("MPICC", "mpicc"),
            "-std=c11",
            "-O3",
            "-march=native",
            "-ffp-contract=off",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-function",
            "-fopenmp",
            "-I" + os.path.join(prefix, "include"),
            *sources,
            "-o",
            out,
            "-L" + lib,
            "-lorcheck",
            "-Wl,-rpath," + lib,
            "-lm",
            *flags,
        ],
        check=True,
    )
    return out


def run(
    program: str,
    ranks: int,
    argv: Sequence[object],
    threads: int = 1,
    launcher: str | None = None,
    within: Sequence[str] = (),
    each: Sequence[str] = (),
) -> Any:
    """Runs program under mpirun with --report FILE appended; returns what it wrote there. within:
    the words before that command; each: those before the program of every rank.
    """
    env = dict(environment(), OMP_NUM_THREADS=str(threads))
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [
            *within,
            launcher or os.environ.get("MPIRUN", "mpirun"),
            "-n",
            str(ranks),
            *each,
            program,
            *map(str, argv),
            "--report",
            report.name,
        ]
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said = process.communicate()[0]
        except BaseException:
            process.terminate()  # mpirun ends its ranks
            process.wait()
            raise
        if process.returncode != 0:
            raise RuntimeError(
                f"{' '.join(command)}\nended with {process.returncode}:\n{said[-4000:]}"
            )
        return json.load(report)


def key_file(path: str) -> str:
    """A new key in a file that nobody else can read; its path."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(os.urandom(32))
    return path


def ready(process: subprocess.Popen[Any], what: str) -> str:
    """Waits until a process that was just started (stdout=PIPE) says that it is ready; the line."""
    there = select.select([pipe(process.stdout)], [], [], READY_S)[0]
    said = pipe(process.stdout).readline() if there else ""
    said = said.decode(errors="replace") if isinstance(said, bytes) else said
    if not said.endswith("ready\n"):
        process.kill()
        raise RuntimeError(f"{what}: not ready within {READY_S} s: said {said!r}")
    return said


def serve(
    prefix: str,
    where: str,
    listen: str,
    key: str,
    *more: str,
    start: Callable[..., subprocess.Popen[str]] = subprocess.Popen,
) -> tuple[subprocess.Popen[str], str]:
    """orcheck server before a directory: its process, and its place as the library has it.

    start: as Popen, on another node.
    """
    command = [
        os.path.join(prefix, "bin", "orcheck"),
        "server",
        "--dir",
        where,
        "--listen",
        listen,
        "--key",
        f"file:{key}",
        "--scrub-mib-s",
        "0",
        *more,
    ]
    process = start(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    place = ready(process, " ".join(command)).rsplit(" ", 2)[1].rstrip(":")
    return process, f"{place}?key=file:{key}"


def toml(text: str) -> str:
    """A TOML string."""
    return json.dumps(text)


@contextlib.contextmanager
def scratch(parent: str) -> Iterator[str]:
    """A directory of its own under parent, gone afterwards."""
    where = tempfile.mkdtemp(prefix="orcheck-", dir=parent)
    try:
        yield where
    finally:
        shutil.rmtree(where, ignore_errors=True)


def end_on_signals() -> None:
    """Signals that end the program end it as exceptions do: what was set is set back."""

    def end(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
