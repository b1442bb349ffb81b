"""What do unmodified programs gain by writing into a mount, and what does the mount cost?

Calls of programs (published checkpoints, and patterns of real ones) are replayed in a directory and
in mounts of it, in turn; two clocks: until the program continues, and until every file is synced.
Beside a file system in user space that keeps nothing. --only disk: the same on a model disk with
one head, whose seeks are counted.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import time
from collections.abc import Iterator, Sequence

from orcbench import facts, reporting, running, stats
from orcbench.stats import Figure, Samples
from testbed.cluster import block
from testbed.cluster import disks as model
from testbed.cluster.held import checked

GOALS = {
    "lu_continue_speedup": (">=", 2.0),
    "bt_continue_speedup": (">=", 2.0),
    "safe_over_direct": ("<=", 1.1),
    "sink_fraction_1": (">=", 0.9),
    "sink_fraction_8": (">=", 0.9),
}
DISK_GOALS = {
    "disk_lu_continue_speedup": (">=", 2.0),
    "disk_lu_safe_speedup": (">=", 2.0),
    "disk_image_bandwidth": (">=", 0.9),
    "disk_hdf5_bandwidth": (">=", 0.9),
}
# Title -> options of the mount.
WAYS = {
    "mount": [],
    "mount, stage on a disk": ["--stage", "STAGE"],
    "mount, stage in memory": ["--stage", "/dev/shm"],
    "mount, requests": ["--no-passthrough"],
    "mount, write-back": ["--no-passthrough", "--write-back"],
}
READY_S = 30


def writes(sizes: Sequence[int], processes: int = 1, seed: int | None = None) -> str:
    """A profile in which each process writes a file: in order, or at places drawn at random."""
    lines = ["orcheck profile 1"]
    lines += [f"file {one} file{one}" for one in range(processes)]
    lines += [f"process {one} -" for one in range(processes)]
    for one in range(processes):
        offsets, at = [], 0
        for size in sizes:
            offsets.append(at)
            at += size
        order = list(range(len(sizes)))
        if seed is not None:
            random.Random(seed + one).shuffle(order)
        lines += [f"write 0 0 {one} {one} {offsets[index]} {sizes[index]}" for index in order]
    return "\n".join(lines) + "\n"


def patterns(full: bool) -> dict[str, str]:
    """Name -> text of a profile. What each is taken from is in bench/README.md."""
    small = 131_072 if full else 32_768
    draw = random.Random(1)
    image = [draw.choice((256, 1024, 4096)) for _ in range(3_146)] + [16_384] * 47 + [24_000_000]
    return {
        "LAMMPS, restart": writes([1_000] + [2_400_000] * 8),
        "LAMMPS, data": writes([4_096] * 3_543),
        "HDF5, chunks": writes([256] * small, seed=1),
        "HDF5, collective": writes([4_096] + [2_396_745] * 14),
        "process image": writes(image),
    }


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=None, help="rounds (default 7, --full 21)")
    parser.add_argument("--only", choices=["disk"], help="on a model disk")


@contextlib.contextmanager
def mounted(command: Sequence[str], point: str) -> Iterator[subprocess.Popen[bytes]]:
    """A file system at a mount point, gone afterwards."""
    os.makedirs(point, exist_ok=True)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        deadline = time.monotonic() + READY_S
        while not os.path.ismount(point):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{' '.join(command)}: nothing is mounted at {point}")
            time.sleep(0.01)
        yield process
    finally:
        subprocess.run(["umount", point], capture_output=True)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()


def replay(orcheck: str, profile: str, ranks: int | None, where: str) -> dict[str, float]:
    """Seconds until the program continues, and until all is synced."""
    command = [orcheck, "--json", "profile", "--replay", profile, "--rounds", "1"]
    command += ["-n", str(ranks)] if ranks else []
    said = json.loads(checked([*command, where]))
    one = said["replayed"][0]
    return {
        "continue": one["continue_us"][0] / 1e6,
        "safe": one["safe_us"][0] / 1e6,
        "bytes": said["bytes"],
    }


def places(stack: contextlib.ExitStack, args: argparse.Namespace, where: str) -> dict[str, str]:
    """Title -> directory; mounts of the first, each by a process of its own."""
    orcheck = os.path.join(args.prefix, "bin", "orcheck")
    backing, stage = os.path.join(where, "backing"), os.path.join(where, "stage")
    for path in (backing, stage):
        os.makedirs(path, exist_ok=True)
    found = {"directly": backing}
    for number, (title, options) in enumerate(WAYS.items()):
        own = os.path.join(backing, str(number))
        os.makedirs(own, exist_ok=True)
        point = os.path.join(where, f"point{number}")
        words = [stage if word == "STAGE" else word for word in options]
        stack.enter_context(mounted([orcheck, "mount", *words, own, point], point))
        found[title] = point
    return found


def sink() -> str:
    """Compiles the file system that keeps nothing; the program's path."""
    out = os.path.join(running.ROOT, "build", "bench-bin", "sink")
    os.makedirs(os.path.dirname(out), exist_ok=True)
    flags = checked(["pkg-config", "--cflags", "--libs", "fuse3"]).split()
    source = os.path.join(running.ROOT, "testbed", "cluster", "sink.c")
    checked(["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", source, "-o", out, *flags, "-lpthread"])
    return out


def profiles_in(where: str, full: bool) -> dict[str, tuple[str, int | None]]:
    """Title -> the profile as the program takes it, and its ranks."""
    found: dict[str, tuple[str, int | None]] = {
        "LU.C.64": ("lu.c.64", 8),
        "BT.C.64": ("bt.c.64", 8),
    }
    made = patterns(full)
    made |= {"1 MiB, 1 writer": writes([running.MIB] * 256)}
    made |= {"1 MiB, 8 writers": writes([running.MIB] * 64, processes=8)}
    for number, (title, text) in enumerate(made.items()):
        path = os.path.join(where, f"profile{number}")
        with open(path, "w") as file:
            file.write(text)
        found[title] = (path, None)
    return found


def measure(args: argparse.Namespace, where: str) -> Samples:
    """profile -> rounds: "PLACE, CLOCK" -> seconds."""
    orcheck = os.path.join(args.prefix, "bin", "orcheck")
    rounds = args.rounds or (21 if args.full else 7)
    found: Samples = {}
    with contextlib.ExitStack() as stack:
        at = places(stack, args, where)
        point = os.path.join(where, "sink")
        stack.enter_context(mounted([sink(), point], point))
        at["sink"] = point
        for title, (profile, ranks) in profiles_in(where, args.full).items():
            for number in range(rounds):
                one: dict[str, float] = {}
                names = list(at)
                for name in names[number % len(names) :] + names[: number % len(names)]:
                    for clock, took in replay(orcheck, profile, ranks, at[name]).items():
                        one[f"{name}, {clock}"] = took
                found.setdefault(title, []).append(one)
    return found


def figures_of(found: Samples) -> dict[str, Figure]:
    def ratios(title: str, above: str, below: str) -> Figure:
        return stats.figure([one[above] / one[below] for one in found[title]])

    figures: dict[str, Figure] = {}
    for title in found:
        for way in WAYS:
            figures[f"{title}: continue, directly synced ÷ {way}"] = ratios(
                title, "directly, safe", f"{way}, continue"
            )
            figures[f"{title}: continue, {way} ÷ directly unsynced"] = ratios(
                title, f"{way}, continue", "directly, continue"
            )
            figures[f"{title}: safe, {way} ÷ directly"] = ratios(
                title, f"{way}, safe", "directly, safe"
            )
            figures[f"{title}: sink ÷ {way}"] = ratios(title, "sink, continue", f"{way}, continue")
    figures["lu_continue_speedup"] = ratios("LU.C.64", "directly, safe", "mount, continue")
    figures["bt_continue_speedup"] = ratios("BT.C.64", "directly, safe", "mount, continue")
    both = [ratios(title, "mount, safe", "directly, safe") for title in ("LU.C.64", "BT.C.64")]
    figures["safe_over_direct"] = max(both, key=lambda one: one["value"])
    for writers, title in (("1", "1 MiB, 1 writer"), ("8", "1 MiB, 8 writers")):
        figures[f"sink_fraction_{writers}"] = ratios(title, "sink, continue", "mount, continue")
    return figures


def show(found: Samples) -> None:
    rows = []
    for title, ones in found.items():
        for name in ("directly", *WAYS, "sink"):
            clocks = ("continue", "safe") if name != "sink" else ("continue",)
            medians = [
                stats.spread([one[f"{name}, {c}"] for one in ones])["median"] for c in clocks
            ]
            cells = [f"{1e3 * median:.1f}" for median in medians]
            rows.append([title, name, *cells, *[""] * (2 - len(cells))])
    print("milliseconds until the program continues, and until all files are synced (medians)")
    reporting.table(["calls of", "where", "continue", "safe"], rows)


def on_disk(args: argparse.Namespace) -> tuple[Samples, dict[str, Figure]]:
    """The same on a disk with one head: each way on an empty cache, and its seeks."""
    orcheck = os.path.join(args.prefix, "bin", "orcheck")
    rounds = args.rounds or (7 if args.full else 3)
    found: Samples = {}
    with (
        model.Disks(args.dir, ["d"], size_bytes=4 << 30) as disks,
        contextlib.ExitStack() as stack,
        running.scratch(args.dir) as where,
        block.BlockTrace([os.path.basename(disks.device("d"))]) as requests,
    ):
        base = disks.path("d")
        stage = os.path.join(where, "stage")
        os.makedirs(stage)
        point, staged = os.path.join(where, "point"), os.path.join(where, "staged")
        for name in ("plain", "kept"):
            os.makedirs(os.path.join(base, name))
        stack.enter_context(mounted([orcheck, "mount", os.path.join(base, "plain"), point], point))
        command = [orcheck, "mount", "--stage", stage, os.path.join(base, "kept"), staged]
        stack.enter_context(mounted(command, staged))
        at = {"directly": base, "mount": point, "mount, stage on a disk": staged}
        profiles = profiles_in(where, args.full)
        wanted = {"LU.C.64", "process image", "HDF5, chunks", "1 MiB, 1 writer"}
        for title in sorted(wanted):
            profile, ranks = profiles[title]
            for number in range(rounds):
                one: dict[str, float] = {}
                names = list(at)
                for name in names[number % len(names) :] + names[: number % len(names)]:
                    subprocess.run(["sync"], check=True)
                    model.drop_caches()
                    requests.reset()
                    for clock, took in replay(orcheck, profile, ranks, at[name]).items():
                        one[f"{name}, {clock}"] = took
                    one[f"{name}, seeks"] = requests.seeks(os.path.basename(disks.device("d")))
                found.setdefault(title, []).append(one)
    figures: dict[str, Figure] = {}
    way = "mount, stage on a disk"

    def ratios(title: str, above: str, below: str) -> Figure:
        return stats.figure([one[above] / max(one[below], 1e-9) for one in found[title]])

    for title in found:
        for name in ("mount", way):
            figures[f"{title}: seeks, directly ÷ {name}"] = ratios(
                title, "directly, seeks", f"{name}, seeks"
            )
            figures[f"{title}: safe, directly ÷ {name}"] = ratios(
                title, "directly, safe", f"{name}, safe"
            )
    raw = [one["directly, bytes"] / one["directly, safe"] for one in found["1 MiB, 1 writer"]]
    raw_bytes_per_s = stats.spread(raw)["median"]
    for key, title in (("image", "process image"), ("hdf5", "HDF5, chunks")):
        rates = [one[f"{way}, bytes"] / one[f"{way}, safe"] for one in found[title]]
        figures[f"disk_{key}_bandwidth"] = stats.figure([one / raw_bytes_per_s for one in rates])
    figures["disk_lu_continue_speedup"] = ratios("LU.C.64", "directly, safe", f"{way}, continue")
    figures["disk_lu_safe_speedup"] = ratios("LU.C.64", "directly, safe", f"{way}, safe")
    return found, figures


def main() -> None:
    args = running.arguments("mount", __doc__, more)
    running.end_on_signals()
    machine = facts.Machine(args.dir)
    goals = GOALS if args.only is None else DISK_GOALS
    if why := model.missing():
        reporting.not_measured(args, "mount", why, goals)
        return
    if args.only == "disk":
        found, figures = on_disk(args)
        rows = [
            [title, key, *(f"{stats.spread([one[key] for one in ones])['median']:.3f}",)]
            for title, ones in found.items()
            for key in ones[0]
        ]
        print("seconds, and seeks (medians)")
        reporting.table(["calls of", "what", "median"], rows)
    else:
        with running.scratch(args.dir) as where:
            found = measure(args, where)
        show(found)
        figures = figures_of(found)
    reporting.finish(args, "mount", machine, figures, goals, {"raw": found})


if __name__ == "__main__":
    main()
