"""How fast do checkpoints reach the disk, and what do compression and encryption cost?

One rank and eight ranks checkpoint the same number of bytes to one directory; the clock runs from
the call until the checkpoint is committed. Between two checkpoints the disk belongs to fio: psync
with one job, psync with eight, io_uring with eight requests in flight (4 MiB each), the same with
pinned memory, and io_uring with pinned memory and 16 MiB a request; direct, fallocate, fsync at the
end, fresh files. The best is what the device can do. Then the same on the device limited to 500
MB/s, where the ratio is sharp.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from typing import Any

from orcbench import disk, facts, reporting, running, stats, svg, throttling
from orcbench.stats import Samples

LIMIT_BYTES_PER_S = 500_000_000
GOALS = {
    "one_stream_over_fio": (">=", 0.97),
    "eight_ranks_over_fio": (">=", 0.97),
    "limited_over_fio": (">=", 0.97),
}
ENCODINGS = {
    "as it is": "",
    "as it is, check_pool": "check_pool = true",
    "zstd": "compress = 'zstd'",
    "lz4": "compress = 'lz4'",
    "aes-256-gcm": "encrypt = 'aes-256-gcm'",
    "zstd + aes-256-gcm": "compress = 'zstd'\nencrypt = 'aes-256-gcm'",
}


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gib", type=float, default=4, help="GiB a checkpoint and a file of fio (default 4)"
    )
    parser.add_argument(
        "--rounds", type=int, default=None, help="rounds as the device is (default 15, --full 31)"
    )
    parser.add_argument(
        "--limited-rounds", type=int, default=None, help="rounds on the limited device (default 15)"
    )
    parser.add_argument(
        "--encoding-rounds", type=int, default=3, help="rounds of the encodings, 1 GiB (default 3)"
    )
    parser.add_argument("--unlimited-only", action="store_true", help="do not limit the device")
    parser.add_argument("--options", default="", metavar="TOML", help="more options of the library")


def rounds_of(
    args: argparse.Namespace, program: str, rounds: int, size: int, where: str
) -> Samples:
    """Samples: task -> one for each round."""
    writers = {}
    try:
        for ranks in (1, 8):
            name = "Orcheck, 1 rank" if ranks == 1 else f"Orcheck, {ranks} ranks"
            # State and pool: twice the size, once for each number of ranks.
            writers[name] = disk.Writer(args, program, ranks, size)
        for writer in writers.values():
            writer.go()  # the first use of anything is not what is measured
        tasks = {
            **{name: writer.go for name, writer in writers.items()},
            **disk.ways_of_fio(args, size),
        }
        return disk.turns(tasks, rounds, where)
    finally:
        for writer in writers.values():
            writer.close()


def encodings(args: argparse.Namespace, program: str) -> list[dict[str, Any]]:
    """Rate, processor time and size of every encoding, on a smooth field."""
    found = []
    with tempfile.NamedTemporaryFile() as key:
        key.write(os.urandom(32))
        key.flush()
        for name, lines in ENCODINGS.items():
            options = lines + (f"\nencrypt_key = 'file:{key.name}'" if "encrypt" in lines else "")
            writer = disk.Writer(args, program, 1, disk.GIB, "field", options)
            try:
                writer.go()
                ones = [writer.go() for _ in range(args.encoding_rounds)]
            finally:
                writer.close()
            found.append(
                {
                    "encoding": name,
                    "rate": stats.spread([one["rate"] for one in ones]),
                    "cpu_s_per_gib": stats.spread([one["cpu_s_per_gib"] for one in ones]),
                    "stored": ones[-1]["stored_bytes"] / ones[-1]["flushed_bytes"],
                    "raw": ones,
                }
            )
    print("\nencodings, 1 rank, 1 GiB of smooth f64 whose last digits are noise")
    reporting.table(
        ["encoding", "MB/s", "CPU s/GiB", "stored / plain"],
        [
            [
                one["encoding"],
                f"{one['rate']['median'] / 1e6:.0f}",
                f"{one['cpu_s_per_gib']['median']:.3f}",
                f"{one['stored']:.3f}",
            ]
            for one in found
        ],
    )
    return found


def plot(
    args: argparse.Namespace, conditions: Sequence[tuple[str, Samples]], footnote: str
) -> None:
    panels = []
    for title, samples in conditions:
        panel = svg.Panel(title, "round", "MB/s")
        for name, ones in samples.items():
            panel.line(name, [(number + 1, one["rate"] / 1e6) for number, one in enumerate(ones)])
        panels.append(panel)
    svg.save(os.path.join(args.results, "flush.svg"), footnote, panels)


def limited(
    args: argparse.Namespace, program: str, size: int
) -> tuple[Samples | None, dict[str, Any] | None, str | None]:
    """Samples of the device limited to 500 MB/s, how it was limited, or why it was not."""
    try:
        if args.unlimited_only:
            raise OSError("--unlimited-only was given")
        with throttling.Limit(args.dir, LIMIT_BYTES_PER_S) as rate:
            print(
                f"\nlimited by {throttling.Limit.CONTROL} to 500 MB/s (dd: {rate / 1e6:.0f} MB/s)",
                flush=True,
            )
            slow = rounds_of(args, program, args.limited_rounds or 15, size, "limited")
        disk.show("limited to 500 MB/s", slow)
        limit = {
            "bytes_per_s": LIMIT_BYTES_PER_S,
            "measured_bytes_per_s": rate,
            "by": throttling.Limit.CONTROL,
        }
        return slow, limit, None
    except OSError as error:
        why = str(error)
        print(
            f"\nNOT MEASURED: the device limited to 500 MB/s: {why}.\nlimited_over_fio is null. "
            "Next: run this as "
            "root where cgroup v1's blkio controller is mounted, with --dir on a disk of its own"
        )
        return None, None, why


def main() -> None:
    args = running.arguments("flush", __doc__, more)
    running.end_on_signals()
    version = facts.output("fio", "--version")
    if not version:
        reporting.not_measured(args, "flush", running.NO_FIO, GOALS)
        return
    program = running.build(args.prefix, "flush")
    machine = facts.Machine(args.dir)
    size = int(args.gib * disk.GIB) // (32 * running.MIB) * 32 * running.MIB
    need = 4 * size  # state and pool, for one rank and for eight
    if need > 0.7 * facts.available_bytes():
        print(
            f"WARNING: {need / disk.GIB:.0f} GiB of memory are needed for {size / disk.GIB:.1f} "
            "GiB a checkpoint, "
            f"{facts.available_bytes() / disk.GIB:.0f} are there: smaller checkpoints are measured",
            flush=True,
        )
        size = int(0.7 * facts.available_bytes() / 4) // (32 * running.MIB) * 32 * running.MIB
    samples = rounds_of(args, program, args.rounds or (31 if args.full else 15), size, "as it is")
    disk.show("the device as it is", samples)
    conditions = [("the device as it is", samples)]
    figures = {
        "one_stream_over_fio": disk.over(samples, "Orcheck, 1 rank"),
        "eight_ranks_over_fio": disk.over(samples, "Orcheck, 8 ranks"),
        "fio_over_fio": stats.figure(
            [
                a["rate"] / b["rate"]
                for a, b in zip(
                    samples[disk.best_of_fio(samples)][1:], samples[disk.best_of_fio(samples)]
                )
            ]
        ),
        "limited_over_fio": stats.figure([]),
        "limited_eight_ranks_over_fio": stats.figure([]),
    }
    slow, limit, why = limited(args, program, size)
    if slow:
        conditions.append(("limited to 500 MB/s", slow))
        figures["limited_over_fio"] = disk.over(slow, "Orcheck, 1 rank")
        figures["limited_eight_ranks_over_fio"] = disk.over(slow, "Orcheck, 8 ranks")
    encoded = encodings(args, program) if args.encoding_rounds > 0 else []
    cpu_s = {one["encoding"]: [raw["cpu_s_per_gib"] for raw in one["raw"]] for one in encoded}
    figures["check_pool_cpu_s_per_gib"] = stats.figure(
        [
            checked - plain
            for checked, plain in zip(
                cpu_s.get("as it is, check_pool", []), cpu_s.get("as it is", [])
            )
        ]
    )
    for key in ("one_stream", "eight_ranks"):
        name = "Orcheck, 1 rank" if key == "one_stream" else "Orcheck, 8 ranks"
        figures[f"{key}_cpu_s_per_gib"] = stats.figure(
            [one["cpu_s_per_gib"] for one in samples[name]]
        )
    footnote = reporting.finish(
        args,
        "flush",
        machine,
        figures,
        GOALS,
        {
            "fio": version,
            "bytes": size,
            "limit": limit,
            "limit_not_measured": why,
            "encodings": encoded,
            "best_fio": {title: disk.best_of_fio(found) for title, found in conditions},
            "raw": {title: found for title, found in conditions},
        },
    )
    print(version)
    plot(args, conditions, footnote)


if __name__ == "__main__":
    main()
