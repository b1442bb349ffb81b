"""How do SCR, VELOC and FTI do with the same program, where they are installed?

A library is looked for below the prefix that SCR_DIR, VELOC_DIR or FTI_DIR names. One that is not
there, does not compile, or fails is a row marked missing, with the reason and a log. A round takes
each way once, in rotating order: a job that takes checkpoints until all its ranks are killed, and
a run that restarts from what the job left in memory or in the page cache.

blocked: how long the call keeps the program, beside memcpy of the same bytes in the same process;
safe: from the call until the library says so, with nothing beside it; left: what a sync of the disk
takes after that, which is what the library reported as safe and left in the page cache; processor
time: of all processes of the job, with daemons and agents, and of the whole machine, until nothing
runs any more; memory: what is in use beyond the program's own; warm restart: until the bytes are
back in a new run, its opening (init, search, repair) apart.
"""

import argparse
import contextlib
import json
import mmap
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

from orcbench import facts, peers_setups, reporting, running, stats, svg
from orcbench.peers_setups import LIBRARIES, NAMES, WAYS, Way
from orcbench.stats import Figure, Sample, Samples

# A job that takes longer has failed. A way that has failed this often is reported; after one more
# it is missing.
JOB_S = 60
FAILURES = 1
WARM = 2
# From the end of the killed job until the next one is started.
PAUSE_S = 0.5
# Memory touched before each job, as a multiple of the state: more than any way takes.
TOUCHED = 10
GOALS = {
    "warm_restart_over_best_peer": ("<=", 1.0),
    "peers_safe_over_scr_partner": ("<=", 1.0),
    "blocked_over_best_peer": ("<=", 1.0),
}
# What is compared: ways of Orcheck, and those of others that hold as much in the same place.
COMPARABLE = {
    "memory": (
        ("orcheck-node-memory", "orcheck-agent"),
        ("scr-single-memory", "veloc-async-memory", "fti-l1-memory"),
    ),
    "disk": (
        ("orcheck-node", "orcheck-node-cached", "orcheck-agent"),
        ("scr-single", "veloc-async", "fti-l1"),
    ),
    "peers": (
        ("orcheck-peers-memory", "orcheck-xor-memory", "orcheck-peers-agent"),
        ("scr-partner-memory", "scr-xor-memory", "fti-l2-memory", "fti-l3-memory"),
    ),
    "peers_disk": (("orcheck-peers", "orcheck-peers-agent"), ("scr-partner",)),
}
PARTNERS = {"memory": ("orcheck-peers-memory", "scr-partner-memory")}
PARTNERS |= {"disk": ("orcheck-peers", "scr-partner")}


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=64, help="MiB of each rank (default 64)")
    parser.add_argument("--ranks", type=int, default=4, help="ranks (default 4)")
    parser.add_argument(
        "--rounds", type=int, default=None, help="rounds of all ways (default 7, --full 21)"
    )
    parser.add_argument(
        "--takes", type=int, default=2, help="checkpoints measured in each job (default 2)"
    )
    parser.add_argument(
        "--memory-dir", default="/dev/shm", help="a tmpfs (default /dev/shm): the tier in memory"
    )
    parser.add_argument(
        "--only", action="append", metavar="WAY", help=f"one of {', '.join(WAYS)} (repeat it)"
    )


# ---- processes ----------------------------------------------------------------------------------


def marked(mark: str) -> list[int]:
    """The processes that have the mark in their environment: whatever a job started."""
    wanted, found = f"ORCBENCH_MARK={mark}".encode(), []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(int(entry))
    return found


def end(mark: str) -> None:
    """Ends what a job left: a daemon outlives it, and would serve the next one."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 5
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while marked(mark):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        else:
            return
    raise RuntimeError(f"processes {marked(mark)} do not end")


def foreign_daemon() -> str | None:
    """Why VELOC cannot run: all jobs of a user share the daemon that is there."""
    path = f"/dev/shm/veloc-backend-ready-{os.getuid()}"
    try:
        with open(path, "rb") as file:
            pid = int.from_bytes(file.read(4), sys.byteorder)
    except OSError:
        return None
    if pid and os.path.exists(f"/proc/{pid}"):
        return f"another job's veloc-backend runs (process {pid}). Next: end it"
    with contextlib.suppress(OSError):
        os.remove(path)  # of one that is gone
    return None


class Failure(RuntimeError):
    """A job that failed; all it said is in said, what is wrong is the message."""

    def __init__(self, command: Sequence[str], code: int, said: str) -> None:
        self.said = f"{' '.join(command)}\nended with {code}\n{said}"
        lines = [line.strip() for line in said.splitlines() if line.strip("- \t")]
        # mpirun's own account comes last and says nothing of the cause.
        telling = [
            line
            for line in lines
            if any(word in line.lower() for word in ("rank ", "error", "fail", "cannot", "abort"))
            and "mpirun" not in line
        ]
        super().__init__((telling or lines or [f"ended with {code}"])[0])


def run(
    program: str, ranks: int, argv: Sequence[object], env: dict[str, str], killed: bool
) -> Sample:
    """Runs a job; what it reported. killed: its ranks kill themselves once they have."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report, tempfile.TemporaryFile() as log:
        launcher = [os.environ.get("MPIRUN", "mpirun"), "-n", str(ranks)]
        command = [*launcher, program, *map(str, argv), "--report", report.name]
        # To a file, because a daemon keeps what it inherited open.
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            code = process.wait(JOB_S)
        except BaseException as error:
            process.terminate()  # mpirun ends its ranks
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            code = -1
        log.seek(0)
        said = log.read().decode(errors="replace")
        if code == -1:
            raise Failure(command, code, f"error: not finished after {JOB_S} s\n{said}")
        whole = report.read().decode()
        if not whole.endswith("}\n") or (code != 0 and not killed):
            raise Failure(command, code, said)
        found: Sample = json.loads(whole)
        return found


@contextlib.contextmanager
def directories(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """One of a job's own on the disk, one in memory."""
    with running.scratch(args.dir) as disk, running.scratch(args.memory_dir) as memory:
        yield disk, memory


def touch(len_bytes: int) -> None:
    """Takes memory and gives it back: memory that a hypervisor has never backed costs more, and the
    way that takes the most would meet it first."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    with mmap.mmap(-1, min(len_bytes, facts.available_bytes() // 2), flags):
        pass


def measure(args: argparse.Namespace, base: dict[str, str], program: str, way: Way) -> Sample:
    """One job, and the run that restarts after it."""
    if way.library == "veloc" and (why := foreign_daemon()):
        raise Failure([program], 0, why)
    with directories(args) as (disk, memory):
        where, conf, env = peers_setups.settings(
            way, disk, memory, args.ranks, args.mib, args.prefix
        )
        mark = os.path.basename(disk)
        env = {**base, **env, "ORCBENCH_MARK": mark}
        argv: list[object] = ["--with", way.adapter, "--size", args.mib * running.MIB]
        argv += ["--dir", where, "--conf", conf, "--level", way.level, "--nodes", int(way.nodes)]
        argv += ["--warm", WARM, "--rounds", args.takes]
        touch(TOUCHED * args.ranks * args.mib * running.MIB)
        try:
            wrote = run(program, args.ranks, ["--do", "write", *argv], env, True)
            time.sleep(PAUSE_S)
            back = run(program, args.ranks, ["--do", "restart", *argv], env, False)
        except Failure as failure:
            for name in sorted(os.listdir(disk)):
                if name.endswith(".log"):
                    failure.said += f"\n{name}:\n{facts.read(os.path.join(disk, name))[-4000:]}"
            raise
        finally:
            end(mark)
    one = {key: statistics.median(taken[key] for taken in wrote["rounds"]) for key in TAKEN}
    one["memory_bytes"] = max(taken["memory_bytes"] for taken in wrote["rounds"])
    one["memcpy_s"] = statistics.median(wrote["memcpy_s"])
    one["memcpy_again_s"] = statistics.median(back["memcpy_s"])
    one["kept_bytes"] = back["kept_bytes"]
    one |= {"open_s": back["open_s"], "read_s": back["read_s"], "restart_s": back["s"]}
    return {**one, "takes": wrote["rounds"]}


TAKEN = ("blocked_s", "safe_s", "sync_s", "cpu_s", "machine_s")


# ---- what is told -------------------------------------------------------------------------------


def median(ones: list[Sample], key: str) -> float:
    return float(statistics.median(one[key] for one in ones))


def table(args: argparse.Namespace, samples: Samples, missing: dict[str, str]) -> None:
    gib = args.ranks * args.mib / 1024
    head = "tier survives blocked memcpys safe left cpu_s/GiB all_s/GiB memory restart open read"
    rows: list[list[object]] = []
    for name, way in WAYS.items():
        ones = samples.get(name, [])
        if not ones:
            if name in missing or way.library in missing:
                rows.append([way.title, way.tier, way.survives, "missing", *[""] * 9])
            continue
        blocked = statistics.median(one["blocked_s"] / one["memcpy_s"] for one in ones)
        rows.append(
            [
                way.title,
                way.tier,
                way.survives,
                f"{1e3 * median(ones, 'blocked_s'):.1f}",
                f"{blocked:.2f}",
                f"{1e3 * median(ones, 'safe_s'):.0f}" if way.tells else "-",
                f"{1e3 * median(ones, 'sync_s'):.0f}",
                f"{median(ones, 'cpu_s') / gib:.2f}",
                f"{median(ones, 'machine_s') / gib:.2f}",
                f"{median(ones, 'memory_bytes') / running.MIB:.0f}",
                f"{1e3 * median(ones, 'restart_s'):.0f}",
                f"{1e3 * median(ones, 'open_s'):.0f}",
                f"{1e3 * median(ones, 'read_s'):.0f}",
            ]
        )
    print(f"\n{args.ranks} ranks of {args.mib} MiB; ms, MiB, s of processors for each GiB")
    reporting.table(["", *head.split()], rows)
    for name, ones in samples.items():
        kept, whole = (median(ones, "kept_bytes") if ones else 0), args.ranks * args.mib
        if kept:
            print(f"{WAYS[name].title}: {kept / running.MIB:.0f} of {whole} MiB came from memory")
    for name, why in missing.items():
        title = WAYS[name].title if name in WAYS else NAMES[name]
        print(f"{title} is missing: {why}")


def ratio(samples: Samples, ours: Sequence[str], theirs: Sequence[str], key: str) -> Figure:
    """The best of ours over the best of theirs, by median; null where one of them is missing."""
    if any(name not in samples for name in (*ours, *theirs)):
        return stats.figure([])
    a, b = (min(ways, key=lambda name: median(samples[name], key)) for ways in (ours, theirs))
    return stats.figure([x[key] / y[key] for x, y in zip(samples[a], samples[b])])


def worst(figures: Sequence[Figure]) -> Figure:
    """Of some of them it says nothing."""
    if any(one["value"] is None for one in figures):
        return stats.figure([])
    return max(figures, key=lambda one: float(one["value"]))


def figures_of(samples: Samples) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for tier, (ours, theirs) in COMPARABLE.items():
        for what, key in (("warm_restart", "restart_s"), ("blocked", "blocked_s")):
            figures[f"{what}_over_best_peer_{tier}"] = ratio(samples, ours, theirs, key)
            for library in LIBRARIES:
                some = [name for name in theirs if WAYS[name].library == library]
                if some:
                    figures[f"{what}_over_{library}_{tier}"] = ratio(samples, ours, some, key)
    for what in ("warm_restart", "blocked"):
        figures[f"{what}_over_best_peer"] = worst(
            [figures[f"{what}_over_best_peer_{tier}"] for tier in COMPARABLE]
        )
    for tier, (one, other) in PARTNERS.items():
        for what in ("safe", "cpu"):
            figures[f"peers_{what}_over_scr_partner_{tier}"] = ratio(
                samples, [one], [other], f"{what}_s"
            )
    figures["peers_safe_over_scr_partner"] = worst(
        [figures[f"peers_safe_over_scr_partner_{tier}"] for tier in PARTNERS]
    )
    figures["memcpy_over_memcpy"] = stats.figure(
        [one["memcpy_again_s"] / one["memcpy_s"] for ones in samples.values() for one in ones]
    )
    return {**{key: figures[key] for key in GOALS}, **figures}


def panels_of(samples: Samples) -> list[svg.Panel]:
    there = [name for name in WAYS if samples.get(name)]
    panels = []
    for title, key in (("blocked", "blocked_s"), ("safe", "safe_s"), ("restart", "restart_s")):
        names = [(i, name) for i, name in enumerate(there)]
        panel = svg.Panel(title, "", "ms", x_names=names)
        for library, called in NAMES.items():
            points = []
            for i, name in enumerate(there):
                told = key != "safe_s" or WAYS[name].tells
                if WAYS[name].library == library and told:
                    found = stats.spread([1e3 * one[key] for one in samples[name]])
                    points.append((i, found["median"], found["q1"], found["q3"]))
            if points:
                panel.line(called, points, joined=False)
        panels.append(panel)
    return panels


# ---- the benchmark ------------------------------------------------------------------------------


def programs_of(args: argparse.Namespace) -> tuple[dict[str, str], dict[str, str]]:
    """Library -> program; library -> why there is none."""
    programs = dict.fromkeys(("orcheck", "posix"), running.build(args.prefix, "peers"))
    missing = {}
    for name, (header, _) in LIBRARIES.items():
        flags = peers_setups.flags_of(name)
        if flags is None:
            missing[name] = f"{name.upper()}_DIR names no prefix with include/{header}"
            continue
        try:
            programs[name] = running.build(args.prefix, "peers", name, flags)
        except subprocess.CalledProcessError:
            missing[name] = "the adapter does not compile with it (above)"
    return programs, missing


def log_of(args: argparse.Namespace, name: str) -> str:
    return os.path.join(args.results, f"peers-{name}.log")


def failed(args: argparse.Namespace, name: str, failure: Failure) -> str:
    path = log_of(args, name)
    with open(path, "w") as file:
        file.write(failure.said)
    return f"{failure} (all of it: {path})"


def main() -> None:
    args = running.arguments("peers", __doc__, more)
    running.end_on_signals()
    if unknown := set(args.only or ()) - set(WAYS):
        sys.exit(f"--only {', '.join(sorted(unknown))}: no such way. Next: --help lists them")
    programs, missing = programs_of(args)
    base, machine = running.environment(), facts.Machine(args.dir)
    names = [name for name in args.only or WAYS if WAYS[name].library in programs]
    rounds = args.rounds or (21 if args.full else 7)
    os.makedirs(args.results, exist_ok=True)
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.remove(log_of(args, name))  # of an earlier run
    samples: Samples = {name: [] for name in names}
    failures: dict[str, list[str]] = {}
    for number in range(rounds):
        # Each way takes each place in turn.
        first = number * len(names) // rounds
        for name in names[first:] + names[:first]:
            way = WAYS[name]
            if name in missing:
                continue
            try:
                one = measure(args, base, programs[way.library], way)
            except Failure as failure:
                if way.library in ("orcheck", "posix"):
                    raise RuntimeError(f"{name}: {failure.said}") from failure
                why = failed(args, name, failure)
                print(f"{name}, round {number + 1} of {rounds}: {why}", file=sys.stderr, flush=True)
                failures[name] = [*failures.get(name, []), why]
                if len(failures[name]) > FAILURES or not samples[name]:
                    missing[name] = why
                    del samples[name]
                continue
            samples[name].append(one)
            print(
                f"{name}, round {number + 1} of {rounds}: blocked {1e3 * one['blocked_s']:.0f} ms, "
                f"safe {1e3 * one['safe_s']:.0f} ms, restart {1e3 * one['restart_s']:.0f} ms",
                file=sys.stderr,
                flush=True,
            )
    table(args, samples, missing)
    versions = {name: peers_setups.version_of(name) for name in LIBRARIES if name in programs}
    print(", ".join(f"{NAMES[name]} {version}" for name, version in versions.items()))
    more_facts = {"versions": versions, "missing": missing, "failures": failures, "raw": samples}
    figures = figures_of(samples)
    footnote = reporting.finish(args, "peers", machine, figures, GOALS, more_facts)
    for key in GOALS:
        if figures[key]["value"] is None:
            print(f"{key} is missing: not all that it compares were measured")
    svg.save(os.path.join(args.results, "peers.svg"), footnote, panels_of(samples))


if __name__ == "__main__":
    main()
