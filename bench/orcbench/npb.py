"""Do the NAS Parallel Benchmarks end verified after ten kills, and what do checkpoints cost them?

These are not ours: you have their sources (NPB 3.4, MPI), and `--npb DIR` or NPB_DIR names the
directory NPB3.4-MPI. Nothing is fetched. A copy of them gets a few lines (PROGRAMS) that call
`bench/src/npb.f90`: the state is protected once it is initialised, and a checkpoint is taken where
a time step begins.

1. Kills. Each program takes a checkpoint every `--every-s` seconds and is killed (SIGKILL, all
   ranks at once) at a random moment after the first new one, again and again. Then it runs to its
   end, whose own verification counts.
2. Overhead. The same program, never killed, without checkpoints and with one every `--cost-every-s`
   seconds, in rotating order: on its own disk (level node), through a staging server, and striped
   over four servers that write what comes as it comes (all of them on one disk).
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from orcbench import facts, killing, reporting, running, stats
from orcbench.staging import Server
from orcbench.stats import Figure, Sample

GOALS = {"npb_verified": (">=", 2)}
# Program -> where lines go: (file, the line before or after which they stand, the lines). The first
# line that matches counts; "+" after it, "-" before it, "=" instead of it.
Insertion = tuple[str, str, str, tuple[str, ...]]
USE = "use npb_checkpoints"


def loop(name: str, comm: str, variable: str, arrays: tuple[str, ...], when: str = "") -> list[str]:
    """The lines that replace the beginning of a loop over time steps."""
    calls = [f"call npb_open('{name}', {comm})"]
    calls += [f"call npb_protect('{array}', {array})" for array in arrays]
    calls += ["call npb_resume()"]
    if when:
        calls = [f"if ({when}) then", *calls, "endif"]
    return [*calls, f"do {variable} = npb_first, niter", f"call npb_step({variable} - 1)"]


PROGRAMS: Mapping[str, tuple[Insertion, ...]] = {
    "bt": (
        ("BT/bt.f90", "+", r"use mpinpb", (USE,)),
        (
            "BT/bt.f90",
            "=",
            r"do +step = 1, niter",
            tuple(loop("bt", "comm_setup", "step", ("u",))),
        ),
        ("BT/bt.f90", "-", r"call mpi_finalize", ("call npb_close()",)),
        ("BT/bt_data.f90", "=", r"double precision, allocatable ::  &", ("TARGET",)),
    ),
    "sp": (
        ("SP/sp.f90", "+", r"use mpinpb", (USE,)),
        (
            "SP/sp.f90",
            "=",
            r"do +step = 1, niter",
            tuple(loop("sp", "comm_setup", "step", ("u",))),
        ),
        ("SP/sp.f90", "-", r"call mpi_finalize", ("call npb_close()",)),
        ("SP/sp_data.f90", "=", r"double precision, allocatable ::  &", ("TARGET",)),
    ),
    "lu": (
        ("LU/ssor.f90", "+", r"use mpinpb", (USE,)),
        (
            "LU/ssor.f90",
            "=",
            r"do istep = 1, niter",
            # Before the run there is one step whose result is thrown away.
            tuple(loop("lu", "comm_solve", "istep", ("u", "rsd", "rsdnm"), "niter > 1")),
        ),
        ("LU/lu.f90", "+", r"use mpinpb", (USE,)),
        ("LU/lu.f90", "-", r"call mpi_finalize", ("call npb_close()",)),
        ("LU/lu_data.f90", "=", r"double precision, allocatable ::  &", ("TARGET",)),
    ),
    "cg": (
        ("CG/cg.f90", "+", r"use mpinpb", (USE,)),
        (
            "CG/cg.f90",
            "=",
            r"do it = 1, niter",
            tuple(loop("cg", "comm_solve", "it", ("x", "zeta"))),
        ),
        ("CG/cg.f90", "-", r"call mpi_finalize", ("call npb_close()",)),
        ("CG/cg_data.f90", "=", r"double precision, allocatable ::  &", ("TARGET",)),
    ),
    "ft": (
        ("FT/ft.f90", "+", r"use mpinpb", (USE,)),
        (
            "FT/ft.f90",
            "=",
            r"do iter = 1, niter",
            tuple(loop("ft", "comm_solve", "iter", ("u0", "sums"))),
        ),
        ("FT/ft.f90", "-", r"call mpi_finalize", ("call npb_close()",)),
        ("FT/ft_data.f90", "=", r"double complex, allocatable ::  &", ("TARGET",)),
    ),
}
VERIFIED = re.compile(r"verification +(= +)?successful", re.IGNORECASE)
# Ways of keeping checkpoints whose cost is measured.
WAYS = {
    "none": "no checkpoints",
    "node": "own disk",
    "server": "staging server",
    "striped": "striped servers",
}
STRIPES = 4


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--npb", default=os.environ.get("NPB_DIR"), help="the directory NPB3.4-MPI of its sources"
    )
    parser.add_argument(
        "--program",
        action="append",
        choices=PROGRAMS,
        help="one of them; repeatable (default lu, bt, sp)",
    )
    parser.add_argument("--npb-class", default="A", help="size of the problem (default A)")
    killing.more(parser)
    parser.add_argument(
        "--cost-every-s", type=float, default=5.0, help="between checkpoints, part 2 (default 5)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of part 2 (default 3)")
    parser.add_argument("--only", choices=["kills", "cost"], help="one of the two parts")


# ---- building ------------------------------------------------------------------------------------
MAKE_DEF = """MPIFC = mpifort
FLINK = $(MPIFC)
FMPI_INC = -I{modules}
FMPI_LIB = {objects} -L{prefix}/lib -lorcheck -Wl,-rpath,{prefix}/lib
FFLAGS = -O3 -fallow-argument-mismatch
FLINKFLAGS = $(FFLAGS)
MPICC = mpicc
CLINK = $(MPICC)
CFLAGS = -O3
CLINKFLAGS = $(CFLAGS)
CC = cc -g
BINDIR = ../bin
RAND = randi8
"""


def patched(text: str, where: str, pattern: str, lines: tuple[str, ...]) -> str:
    """The source with lines at the first line that matches."""
    found = re.search(rf"^ *{pattern}.*$", text, re.MULTILINE | re.IGNORECASE)
    if found is None:
        raise RuntimeError(f"no line '{pattern}'; these are not the sources of NPB 3.4")
    line = found.group()
    if lines == ("TARGET",):
        # Every such declaration: what is protected may be in any of them.
        return text.replace("allocatable ::", "allocatable, target ::")
    block = "\n".join(f"      {one}" for one in lines)
    kept = {"+": f"{line}\n{block}", "-": f"{block}\n{line}", "=": block}[where]
    return text[: found.start()] + kept + text[found.end() :]


def build(args: argparse.Namespace, name: str, where: str) -> str:
    """A copy of the sources with our lines, compiled; the program's path."""
    copy = os.path.join(where, name)
    shutil.copytree(args.npb, copy)
    modules = os.path.join(copy, "orcheck")
    os.mkdir(modules)
    environment = dict(running.environment(), PKG_CONFIG_PATH=f"{args.prefix}/lib/pkgconfig")
    sources = subprocess.run(
        ["pkg-config", "--variable=fortran", "orcheck"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    own = os.path.join(running.ROOT, "bench", "src", "npb.f90")
    include = f"-I{args.prefix}/include"
    killing.checked(["mpifort", "-O2", "-cpp", include, "-c", *sources, own], modules, environment)
    objects = [os.path.join(modules, file) for file in os.listdir(modules) if file.endswith(".o")]
    text = MAKE_DEF.format(modules=modules, objects=" ".join(objects), prefix=args.prefix)
    with open(os.path.join(copy, "config", "make.def"), "w") as file:
        file.write(text)
    for path, at, pattern, lines in PROGRAMS[name]:
        full = os.path.join(copy, path)
        with open(full) as file:
            source = file.read()
        with open(full, "w") as file:
            file.write(patched(source, at, pattern, lines))
    os.makedirs(os.path.join(copy, "bin"), exist_ok=True)
    killing.checked(["make", name, f"CLASS={args.npb_class}"], copy, environment)
    return os.path.join(copy, "bin", f"{name}.{args.npb_class}.x")


# ---- running -------------------------------------------------------------------------------------
def whole_run(args: argparse.Namespace, name: str, program: str, way: str, where: str) -> Sample:
    """One run that is not killed: from its start until all is safe and it has ended (s), and as it
    times itself (loop_s).
    """
    log, place = os.path.join(where, "log"), os.path.join(where, "checkpoints")
    options = {"enabled": "false"}
    servers: list[Server] = []
    if way == "node":
        os.makedirs(place)
        options = {"node_dir": place, "every_s": str(args.cost_every_s)}
    elif way == "server":
        servers = [Server(args)]
    elif way == "striped":
        servers = [Server(args, "--order", "arrival") for _ in range(STRIPES)]
    if servers:
        places = ",".join(server.place for server in servers)
        options = {"global": places, "every_s": str(args.cost_every_s)}
        options["mode"] = "traditional" if way == "striped" else "orchestrated"
    try:
        begin = time.monotonic()
        process = killing.start(args, program, options, log)
        status = killing.finished(process)
        whole_s = time.monotonic() - begin
    finally:
        for server in servers:
            server.close()
        shutil.rmtree(place, ignore_errors=True)
    text = killing.said(log)
    seconds = re.search(r"time in seconds = +([\d.]+)", text, re.IGNORECASE)
    if status != 0 or not VERIFIED.search(text) or not seconds:
        raise RuntimeError(f"{name} with {WAYS[way]}:\n{text[-4000:]}")
    return {"program": name, "way": way, "loop_s": float(seconds.group(1)), "s": whole_s}


def cost(args: argparse.Namespace, name: str, program: str, where: str) -> list[dict[str, Sample]]:
    """A run of each way in each round."""
    rounds, ways = [], list(WAYS)
    for number in range(args.rounds):
        order = ways[number % len(ways) :] + ways[: number % len(ways)]
        rounds.append({way: whole_run(args, name, program, way, where) for way in order})
        taken = "  ".join(f"{WAYS[way]} {rounds[-1][way]['s']:.1f}" for way in ways)
        print(f"{name}, round {number + 1}, s: {taken}", file=sys.stderr, flush=True)
    return rounds


def main() -> None:
    args = running.arguments("npb", __doc__, more)
    args.at_once = 4  # of the server
    running.end_on_signals()
    if not args.npb or not os.path.isdir(os.path.join(args.npb, "LU")):
        why = "the sources of NPB are not here. Next: --npb DIR, its directory NPB3.4-MPI"
        reporting.not_measured(args, "npb", why, GOALS)
        return
    args.npb = os.path.abspath(args.npb)
    machine = facts.Machine(args.dir)
    figures: dict[str, Figure] = {}
    killed: list[Sample] = []
    costs: dict[str, Any] = {}
    with running.scratch(args.dir) as where:
        for name in args.program or ["lu", "bt", "sp"]:
            program = build(args, name, where)
            if args.only != "cost":
                killed.append(killing.kill_and_finish(args, name, program, where, VERIFIED))
            if args.only != "kills":
                costs[name] = cost(args, name, program, where)
                for way in ("node", "server", "striped"):
                    figures[f"{name}_{way}_over_none"] = stats.figure(
                        [one[way]["s"] / one["none"]["s"] for one in costs[name]]
                    )
    if killed:
        enough = [one for one in killed if one["verified"] and len(one["steps"]) >= 10]
        figures["npb_verified"] = stats.figure([len(enough)])
        print()
        reporting.table(
            ["", "kills", "newest step at each", "verified"],
            [
                [
                    one["program"],
                    len(one["steps"]),
                    " ".join(map(str, one["steps"])),
                    "yes" if one["verified"] else "NO",
                ]
                for one in killed
            ],
        )
    for name, rounds in costs.items():
        medians = {way: statistics.median(one[way]["s"] for one in rounds) for way in WAYS}
        print(f"\n{name}: " + ", ".join(f"{WAYS[way]} {s:.2f} s" for way, s in medians.items()))
    reporting.finish(args, "npb", machine, figures, GOALS, {"kills": killed, "costs": costs})


if __name__ == "__main__":
    main()
