"""What does a program wait for that writes its whole state as a file?

Every rank writes the same bytes with fwrite, in pieces of 4 KiB to 1 MiB: into a memory file
(orc_fopen) and a checkpoint of it, into a routed file and a checkpoint of it, and into a file that
is synced, as programs do without Orcheck. Beside a memcpy of the bytes by the same ranks.
"""

import argparse

from orcbench import facts, reporting, running, stats
from orcbench.stats import Figure, Samples

GOALS = {"memory_file_over_memcpy": ("<=", 1.5)}
WAYS = {
    "memcpy": "memcpy",
    "memory": "memory file",
    "running": "memory file, the last one being flushed",
    "routed": "routed file",
    "fsync": "file, fsync",
}


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=None, help="rounds (default 15, --full 41)")
    parser.add_argument("--mib", type=int, default=256, help="MiB in all (default %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks (default %(default)s)")
    parser.add_argument(
        "--options", default="", metavar="TOML", help="more options of the library, for comparisons"
    )


def measure(args: argparse.Namespace) -> Samples:
    """piece in bytes -> rounds: way -> seconds."""
    program = running.build(args.prefix, "files")
    size = args.mib * running.MIB // args.ranks // 4096 * 4096
    argv = ["--size", size, "--rounds", args.rounds or (41 if args.full else 15)]
    argv += ["--options", args.options]
    with running.scratch(args.dir) as where:
        found = running.run(program, args.ranks, [*argv, "--dir", where])
    rounds: dict[str, dict[int, dict[str, float]]] = {}
    for one in found:
        of = rounds.setdefault(str(one["piece"]), {}).setdefault(one["round"], {})
        of[one["way"]] = one["s"]
    return {piece: list(of.values()) for piece, of in rounds.items()}


def figures_of(found: Samples) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for piece, ones in found.items():
        for way in WAYS:
            if way != "memcpy":
                ratios = [one[way] / one["memcpy"] for one in ones]
                figures[f"{way}_over_memcpy_{piece}"] = stats.figure(ratios)
        ratios = [one["memory"] / one["fsync"] for one in ones]
        figures[f"memory_over_fsync_{piece}"] = stats.figure(ratios)
    each = [figures[f"memory_over_memcpy_{piece}"] for piece in found]
    figures["memory_file_over_memcpy"] = max(each, key=lambda one: one["value"])
    return figures


def show(found: Samples) -> None:
    rows = []
    for piece, ones in found.items():
        for way, title in WAYS.items():
            median = stats.spread([one[way] for one in ones])["median"]
            copy = stats.spread([one[way] / one["memcpy"] for one in ones])["median"]
            rows.append([f"{int(piece) // 1024} KiB", title, f"{1e3 * median:.1f}", f"{copy:.2f}"])
    print("milliseconds until the program continues (median), and that ÷ memcpy")
    reporting.table(["fwrite of", "way", "ms", "÷ memcpy"], rows)


def main() -> None:
    args = running.arguments("files", __doc__, more)
    running.end_on_signals()
    machine = facts.Machine(args.dir)
    found = measure(args)
    show(found)
    reporting.finish(args, "files", machine, figures_of(found), GOALS, {"raw": found})


if __name__ == "__main__":
    main()
