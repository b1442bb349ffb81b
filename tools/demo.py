#!/usr/bin/env python3
"""The main job, on one screen.

A real solver, killed in the middle of a flush, resumes and ends bit for bit like the run that
nobody disturbed; a flipped bit is named and survived; one of four nodes without shared storage is
lost with all it had; and what all of that costs. Needs the programs that `make build` stages under
PREFIX. Leaves only build/demo/.
"""

import ctypes
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, NoReturn

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PREFIX = os.environ.get("PREFIX", os.path.join(ROOT, "build", "prefix"))
ORCHECK = os.path.join(PREFIX, "bin", "orcheck")
LBM = os.path.join(ROOT, "build", "examples", "lbm")
WORK = os.path.join(ROOT, "build", "demo")
RANKS = 2
EDGE = int(os.environ.get("DEMO_EDGE", "88"))
RUN_S = float(os.environ.get("DEMO_RUN_S", "2.5"))
MIB = 1 << 20


def fail(text: str) -> NoReturn:
    print(f"demo: {text}")
    sys.exit(1)


def options(node_level: bool = True) -> str:
    dirs = ", ".join(f"'{WORK}/ost{i}'" for i in range(2))
    text = f"global = [{dirs}]\n"
    return text + (f"node_dir = '{WORK}/local'\n" if node_level else "")


def fresh_dirs() -> None:
    for name in ("ost0", "ost1", "local"):
        shutil.rmtree(f"{WORK}/{name}", ignore_errors=True)
        os.makedirs(f"{WORK}/{name}")


def solver(
    steps: int, checkpoint: str, *more: str, every: int | None = None, node_level: bool = True
) -> list[str]:
    command = [
        "mpirun",
        "-n",
        str(RANKS),
        LBM,
        "--nx",
        str(EDGE),
        "--ny",
        str(EDGE),
        "--nz",
        str(EDGE),
    ]
    command += ["--steps", str(steps), "--checkpoint", checkpoint, "--job", "demo"]
    if checkpoint != "none":
        command += ["--every", str(every), "--options", options(node_level)]
    return command + list(more)


def run(command: Sequence[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        fail(f"{' '.join(command[:4])} … ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def listing() -> list[dict[str, Any]]:
    command = [
        ORCHECK,
        "ls",
        "--json",
        "--job",
        "demo",
        "--dir",
        f"{WORK}/ost0",
        "--dir",
        f"{WORK}/ost1",
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout).get("checkpoints", []) if done.stdout else []


def supervised(command: Sequence[str]) -> tuple[list[str], list[dict[str, Any]]]:
    """Runs under `orcheck run`; returns all output and what lay there when the first run died."""
    process = subprocess.Popen(
        [ORCHECK, "run", "--restarts", "2", "--", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    seen: list[dict[str, Any]] = []
    assert process.stdout
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith("orcheck run:") and not seen:
            seen = listing()
    if process.wait() != 0:
        fail("the job did not end well under `orcheck run`:\n" + "\n".join(lines))
    return lines, seen


def on_nodes(nodes: Sequence[str], steps: int, every: int, final: str) -> subprocess.Popen[str]:
    """The solver on virtual nodes under `orcheck run`, an agent on each, one replica, no shared
    directory.
    """
    text = (
        f"node_dir = '{WORK}/local'\npeers = 1\nagent = 'start'\n"
        f"agent_program = '{ORCHECK}'\nagent_linger_s = 30\n"
    )
    edge = str(max(32, EDGE // 2))
    for node in nodes:
        open(f"{WORK}/up-{node}", "w").close()
    command = [
        ORCHECK,
        "run",
        "--virtual",
        "--nodes",
        ",".join(nodes),
        "--alive",
        f"test -e {WORK}/up-{{node}}",
        "--",
    ]
    command += ["mpirun", "-n", str(len(nodes)), LBM, "--nx", edge, "--ny", edge, "--nz", edge]
    command += [
        "--steps",
        str(steps),
        "--checkpoint",
        "async",
        "--every",
        str(every),
        "--level",
        "peers",
    ]
    command += ["--job", "nodes", "--final", final, "--options", text]
    return subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes(nodes: Sequence[str], lost: str) -> dict[str, int]:
    """The rank and the agent of a node, by number, of this demo alone.

    Ranks are dealt over the nodes in order.
    """
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read().decode(errors="replace").split("\0")
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        rank = str(nodes.index(lost))
        if command[0] == LBM and f"'{WORK}/local'" in "".join(command):
            ours = {f"OMPI_COMM_WORLD_RANK={rank}", f"PMI_RANK={rank}"}
            if ours & set(environment):
                found["rank"] = int(pid)
        is_agent = command[0] == ORCHECK and command[1:2] == ["agent"]
        if is_agent and f"{WORK}/local" in command and command[command.index("--node") + 1] == lost:
            found["agent"] = int(pid)
    return found


def lose_a_node() -> bool:
    """One of four nodes loses its rank, its agent and its disk; the other three continue with four
    ranks.
    """
    nodes, every = ["n0", "n1", "n2", "n3"], 100
    steps, lost = 10 * every, "n2"
    whole = on_nodes(nodes, steps, every, f"{WORK}/whole")
    out, _ = whole.communicate()
    if whole.returncode != 0:
        fail("the job on four nodes did not end well:\n" + out)
    shutil.rmtree(f"{WORK}/local")
    os.makedirs(f"{WORK}/local")

    job = on_nodes(nodes, steps, every, f"{WORK}/moved")
    # In the middle: two checkpoints are safe, the third is on its way.
    mine = f"{WORK}/local/nodes/{lost}"
    until = time.monotonic() + 120
    while not any(
        f"s{2 * every:012}" in name and name.endswith(".commit")
        for name in (os.listdir(mine) if os.path.isdir(mine) else [])
    ):
        if job.poll() is not None or time.monotonic() > until:
            fail(
                "the job on four nodes did not come to its second checkpoint:\n"
                + job.communicate()[0]
            )
        time.sleep(0.005)
    victims = processes(nodes, lost)
    if set(victims) != {"rank", "agent"}:
        fail(f"node {lost} should have a rank and an agent, found {victims}")
    begun = time.monotonic()
    os.remove(f"{WORK}/up-{lost}")
    for pid in victims.values():
        os.kill(pid, signal.SIGKILL)
    had = sum(os.path.getsize(f"{mine}/{name}") for name in os.listdir(mine))
    shutil.rmtree(mine)
    print(
        f"4  four nodes, no shared storage, one replica: node {lost} loses its rank, its agent and "
        "its disk "
        f"({had / MIB:.0f} MiB)"
    )
    resumed_s, lines = None, []
    assert job.stdout
    for line in job.stdout:
        lines.append(line)
        if line.startswith("resumed from step"):
            resumed_s = time.monotonic() - begun
        if re.match("orcheck run:|read from|resumed", line):
            print(f"     {line.rstrip()}")
    if job.wait() != 0 or resumed_s is None:
        fail("the job did not resume on three nodes:\n" + "".join(lines))
    print(
        f"     recovery: {resumed_s:.1f} s from the loss until the solver continued, {len(nodes)} "
        "ranks on three nodes"
    )
    good = same(f"{WORK}/whole", f"{WORK}/moved")
    print(f"   final state                         {'identical' if good else 'DIFFERENT'}")
    return good


def memcpy_s(bytes_per_rank: int) -> float:
    """The limit: every rank's bytes copied once by a warm memcpy, all ranks at the same time."""
    buffers = [
        (ctypes.create_string_buffer(bytes_per_rank), ctypes.create_string_buffer(bytes_per_rank))
        for _ in range(RANKS)
    ]
    times = []
    for _ in range(7):
        threads = [
            threading.Thread(target=ctypes.memmove, args=(a, b, bytes_per_rank)) for a, b in buffers
        ]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[2:])


def same(a: str, b: str) -> bool:
    with open(a, "rb") as x, open(b, "rb") as y:
        while True:
            p, q = x.read(MIB), y.read(MIB)
            if p != q:
                return False
            if not p:
                return True


def flip_newest() -> tuple[str, int]:
    """Flips one bit in the middle of the newest container of level global."""
    names = [
        (name, d)
        for d in ("ost0", "ost1")
        for name in os.listdir(f"{WORK}/{d}/demo")
        if name.endswith(".orc")
    ]
    name, directory = max(names)
    path = f"{WORK}/{directory}/demo/{name}"
    at = os.path.getsize(path) // 2
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))
    return f"{directory}/demo/{name}", at


def median_of(reports: Sequence[dict[str, Any]], key: str) -> float | None:
    # The first checkpoint of a run also touches the pool's memory for the first time.
    values = [c[key] for r in reports for c in r["checkpoints"][1:] if c[key] >= 0]
    return statistics.median(values) if values else None


def ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f} ms"


def short(line: str) -> str:
    return line.replace(WORK + "/", "")


def table(steps: int, every: int) -> None:
    modes = ("none", "sync", "async", "lent")
    reports: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    for turn in range(3):
        for mode in modes:
            fresh_dirs()
            path = f"{WORK}/{mode}{turn}.json"
            run(solver(steps, mode, "--report", path, every=every))
            with open(path) as file:
                reports[mode].append(json.load(file))
    base = statistics.median(r["loop_s"] for r in reports["none"])
    staged = max(r["staged_bytes"] for r in reports["async"])
    taken = len(reports["async"][0]["checkpoints"])
    limit = memcpy_s(staged // RANKS)
    print(
        f"\nWhat it costs: {RANKS} ranks, {staged / MIB:.0f} MiB of state, {taken} checkpoints in "
        f"{base:.1f} s of solving"
    )
    print(
        f"  {'':<18}{'blocked':>10}{'safe at node':>14}{'safe at global':>16}{'slowdown':>10}   "
        "memory beside the solver's"
    )
    rows = (
        ("sync", "synchronous", 1),
        ("async", "asynchronous copy", 1),
        ("lent", "asynchronous lent", 2),
    )
    for mode, title, copies in rows:
        slower = statistics.median(r["loop_s"] for r in reports[mode]) / base - 1
        memory = f"{staged / MIB:.0f} MiB pool" + (
            f" + {staged / MIB:.0f} MiB third grid" if copies == 2 else ""
        )
        blocked = median_of(reports[mode], "call_s")
        print(
            f"  {title:<18}{ms(blocked):>10}{ms(median_of(reports[mode], 'safe_node_s')):>14}"
            f"{ms(median_of(reports[mode], 'safe_global_s')):>16}{slower:>9.1%}   {memory}"
        )
    print(
        f"  {'limit: one memcpy':<18}{ms(limit):>10}{'-':>14}{'-':>16}{'':>10}   the same bytes, "
        f"warm, {RANKS} threads"
    )


def main() -> None:
    shutil.rmtree(WORK, ignore_errors=True)
    os.makedirs(WORK)
    run(["make", "-C", f"{ROOT}/examples", "lbm", f"ORCHECK_PREFIX={PREFIX}"])
    # How many steps make a run of a few seconds on this machine, after a first run that warms it.
    probe = f"{WORK}/probe.json"
    for steps in (10, 40):
        run(solver(steps, "none", "--report", probe))
    with open(probe) as file:
        per_step_s = json.load(file)["loop_s"] / 40
    every = max(5, int(RUN_S / per_step_s / 5))
    steps = 5 * every + every // 2

    print(
        f"Lid-driven cavity, {EDGE}^3 cells, {RANKS} ranks, {steps} steps, a checkpoint every "
        f"{every}"
    )
    fresh_dirs()
    run(solver(steps, "none", "--final", f"{WORK}/undisturbed", "--picture", f"{WORK}/cavity.ppm"))
    print("1  undisturbed run                     done")

    lines, seen = supervised(
        solver(steps, "async", "--die", str(3 * every), "--final", f"{WORK}/resumed", every=every)
    )
    states = ", ".join(f"step {c['step']} {c['state']}" for c in seen)
    print(f"2  SIGKILL of one rank at step {3 * every}, flush running: {states or 'nothing there'}")
    for line in lines:
        if re.match("orcheck run:|resumed", line):
            print(f"     {short(line)}")
    first = same(f"{WORK}/undisturbed", f"{WORK}/resumed")
    print(f"   final state                         {'identical' if first else 'DIFFERENT'}")
    if not any(line.startswith("resumed from step") for line in lines):
        fail("the second run did not resume")

    flipped, at = flip_newest()
    print(f"3  one bit flipped in {flipped}, byte {at}")
    out = run(
        solver(steps, "async", "--final", f"{WORK}/fallen-back", every=every, node_level=False)
    )
    for line in out.splitlines():
        if re.search("skipped|resumed", line):
            print(f"     {short(line)}")
    second = same(f"{WORK}/undisturbed", f"{WORK}/fallen-back")
    print(f"   final state                         {'identical' if second else 'DIFFERENT'}")
    if "skipped" not in out:
        fail("the flipped bit was not noticed:\n" + out)

    third = lose_a_node()
    table(steps, every)
    for name in ("ost0", "ost1", "local"):
        shutil.rmtree(f"{WORK}/{name}")
    print(f"\npicture of the flow: {os.path.relpath(WORK, os.getcwd())}/cavity.ppm")
    if not (first and second and third):
        print("NOT IDENTICAL: a resumed run ended differently from the undisturbed one")
        sys.exit(1)
    print("identical: all resumed runs ended bit for bit like the undisturbed ones")


if __name__ == "__main__":
    main()
