"""How do many writers load a mount, and what do sets cost?

256 MiB by 1, 8 and 64 writers, in writes of 4 KiB to 4 MiB, are replayed in a directory, in mounts
of it, and in a file system in user space that keeps nothing: how fast does the program continue,
and how much processor time do the program and the mount take?

Then a program saves eight files of 8 MiB for each step, in a mount without and one with sets, whose
checkpoints lie on the same disk: until the program continues, and until the step is safe.
"""

import argparse
import contextlib
import os
import resource
import time

from orcbench import facts, mount, reporting, running, stats
from orcbench.floor import GIB
from orcbench.stats import Figure, Sample, Samples
from testbed.cluster import disks as model

GOALS = {
    "writers_64_over_sink": (">=", 0.9),
    "sets_continue_over_without": ("<=", 1.1),
}
WAYS = ("mount", "mount, requests")
SIZES = {"4 KiB": 4 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20, "4 MiB": 4 << 20}
WRITERS = (1, 8, 64)
TOTAL_BYTES = 256 << 20
FILES, FILE_BYTES = 8, 8 << 20
SAFE_S = 60


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=None, help="rounds (default 5, --full 15)")


def children_s() -> float:
    """Processor time of the programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def writers(args: argparse.Namespace, where: str, rounds: int) -> Samples:
    """Size and writers -> rounds: "PLACE, continue" and "PLACE, processors" -> seconds."""
    orcheck = os.path.join(args.prefix, "bin", "orcheck")
    found: Samples = {}
    with contextlib.ExitStack() as stack:
        point = os.path.join(where, "sink")
        process = stack.enter_context(mount.mounted([mount.sink(), point], point))
        at: dict[str, tuple[str, int | None]] = {"sink": (point, process.pid)}
        for number, title in enumerate(WAYS):
            own, point = (os.path.join(where, f"{name}{number}") for name in ("own", "at"))
            os.makedirs(own)
            command = [orcheck, "mount", *mount.WAYS[title], own, point]
            at[title] = point, stack.enter_context(mount.mounted(command, point)).pid
        own = os.path.join(where, "directly")
        os.makedirs(own)
        at["directly"] = own, None
        for title, size in SIZES.items():
            for count in WRITERS:
                profile = os.path.join(where, "profile")
                with open(profile, "w") as file:
                    file.write(mount.writes([size] * (TOTAL_BYTES // size // count), count))
                for number in range(rounds):
                    one: Sample = {}
                    names = list(at)
                    for name in names[number % len(names) :] + names[: number % len(names)]:
                        place, pid = at[name]
                        before = children_s() + (facts.processor_s(pid) if pid else 0)
                        took = mount.replay(orcheck, profile, None, place)
                        after = children_s() + (facts.processor_s(pid) if pid else 0)
                        one[f"{name}, continue"] = took["continue"]
                        one[f"{name}, processors"] = after - before
                    found.setdefault(f"{title}, {count}", []).append(one)
    return found


def save(point: str, step: int, data: bytes) -> float:
    """Saves a step as a program does; seconds until it continues."""
    begun = time.monotonic()
    for number in range(FILES):
        with open(os.path.join(point, f"r.{step}.{number}"), "wb", buffering=0) as file:
            file.write(data)
    return time.monotonic() - begun


def until_committed(store: str, step: int) -> None:
    prefix = f"s{step:012}-"
    deadline = time.monotonic() + SAFE_S
    while not any(
        name.startswith(prefix) and name.endswith(".commit") for name in os.listdir(store)
    ):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the set of step {step} is not safe after {SAFE_S} s")
        time.sleep(0.002)


def sync(point: str) -> None:
    """Until everything that was written is durable."""
    fd = os.open(point, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sets(args: argparse.Namespace, where: str, rounds: int) -> list[Sample]:
    """Rounds: "WAY, continue", "WAY, safe" and "WAY, processors" -> seconds of one step."""
    orcheck = os.path.join(args.prefix, "bin", "orcheck")
    store, data = os.path.join(where, "store"), os.urandom(FILE_BYTES)
    os.makedirs(store)
    words = ["--job", "bench", "--set", "r.{step}.*", "--set-count", str(FILES)]
    words += ["--options", f"global = '{store}'\nkeep = 2"]
    found = []
    with contextlib.ExitStack() as stack:
        at = {}
        for name, options in (("without", []), ("sets", words)):
            own, point = os.path.join(where, f"own-{name}"), os.path.join(where, name)
            os.makedirs(own)
            command = [orcheck, "mount", *options, own, point]
            at[name] = point, stack.enter_context(mount.mounted(command, point)).pid
        # The first step creates the pool.
        for step in range(1, rounds + 2):
            one: Sample = {}
            for name in sorted(at, reverse=bool(step % 2)):
                point, pid = at[name]
                os.sync()
                before, begun = facts.processor_s(pid), time.monotonic()
                one[f"{name}, continue"] = save(point, step, data)
                if name == "sets":
                    until_committed(os.path.join(store, "bench"), step)
                sync(point)
                one[f"{name}, safe"] = time.monotonic() - begun
                one[f"{name}, processors"] = facts.processor_s(pid) - before
            if step > 1:
                found.append(one)
    return found


def figures_of(found: Samples, steps: list[Sample]) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}

    def ratio(ones: list[Sample], above: str, below: str) -> Figure:
        return stats.figure([one[above] / one[below] for one in ones])

    for title, ones in found.items():
        for way in WAYS:
            key = f"{title} writers: sink ÷ {way}"
            figures[key] = ratio(ones, "sink, continue", f"{way}, continue")
        for way in ("directly", *WAYS, "sink"):
            seconds = [one[f"{way}, processors"] * GIB / TOTAL_BYTES for one in ones]
            figures[f"{title} writers: processor s/GiB, {way}"] = stats.figure(seconds)
    figures["writers_64_over_sink"] = ratio(found["1 MiB, 64"], "sink, continue", "mount, continue")
    step_bytes = FILES * FILE_BYTES
    figures["sets_continue_over_without"] = ratio(steps, "sets, continue", "without, continue")
    figures["sets_safe_over_without"] = ratio(steps, "sets, safe", "without, safe")
    # The clock of one step has few ticks.
    for name in ("sets", "without"):
        seconds = sum(one[f"{name}, processors"] for one in steps)
        per_gib = seconds * GIB / (step_bytes * len(steps))
        figures[f"mount_cpu_s_per_gib_{name}"] = stats.figure([per_gib])
    return figures


def show(found: Samples, steps: list[Sample]) -> None:
    def median(ones: list[Sample], key: str) -> float:
        return stats.spread([one[key] for one in ones])["median"]

    rows = []
    for title, ones in found.items():
        for name in ("directly", *WAYS, "sink"):
            rate = TOTAL_BYTES / median(ones, f"{name}, continue") / 1e9
            per_gib = median(ones, f"{name}, processors") * GIB / TOTAL_BYTES
            rows.append([title, name, f"{rate:.2f}", f"{per_gib:.2f}"])
    print("GB/s until the program continues, and processor seconds a GiB (medians)")
    reporting.table(["writes, writers", "where", "GB/s", "s/GiB"], rows)
    rows = []
    for name in ("without", "sets"):
        clocks = ("continue", "safe")
        milliseconds = [1e3 * median(steps, f"{name}, {clock}") for clock in clocks]
        rows.append([name, *(f"{one:.0f}" for one in milliseconds)])
    print("\nmilliseconds for a step of 64 MiB (medians)")
    reporting.table(["mount", "continue", "safe"], rows)


def main() -> None:
    args = running.arguments("mount-load", __doc__, more)
    running.end_on_signals()
    machine = facts.Machine(args.dir)
    if why := model.missing():
        reporting.not_measured(args, "mount-load", why, GOALS)
        return
    rounds = args.rounds or (15 if args.full else 5)
    with running.scratch(args.dir) as where:
        found = writers(args, where, rounds)
    with running.scratch(args.dir) as where:
        steps = sets(args, where, 3 * rounds)
    show(found, steps)
    figures = figures_of(found, steps)
    raw = {"writers": found, "steps": steps}
    reporting.finish(args, "mount-load", machine, figures, GOALS, {"raw": raw})


if __name__ == "__main__":
    main()
