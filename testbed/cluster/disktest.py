"""The model disk against its own arithmetic: streams, random requests, dirty limit, bytes.

What a request takes is in disk.c. One that is drawn at random takes, with nothing else waiting, the
mean seek, half a revolution and its bytes; streams in places that are equally far apart, and the
nearest of 32, are worked out where they are checked. Most is measured by the disk's own clock
(busy_s), in which nothing of the host is; the wall's clock is beside it.

Needs root; without it, or without FUSE, the test says so and counts nothing. Takes about 25 s.
usage: python3 -m testbed.cluster.disktest
"""

import hashlib
import json
import math
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from testbed.cluster import block, held, selftest
from testbed.cluster import disks as md

MIB = 1 << 20
SIZE = 4 << 30
SETTLE_S = 1e-3


def check(what: str, good: bool, said: object = "") -> None:
    """Says what was found also where it is good."""
    selftest.check(f"{what}: {said}" if said and good else what, good, said)


def processors() -> tuple[int, int]:
    """Ticks of all processors so far, and how many of them nobody wanted."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]


def near(
    what: str, measure: Callable[[], float], expected: float, low: float, high: float
) -> float:
    """Whether a measurement lies within [low, high] times what the model says.

    Twice more if it does not: other programs make this machine late, never the model's disk quicker
    than it is, and checks run beside others. Where they left it hardly any time in all three, that
    is reported and nothing is counted.
    """
    for _ in range(3):
        before = processors()
        value = measure()
        all_s, idle_s = (after - earlier for after, earlier in zip(processors(), before))
        if low * expected <= value <= high * expected:
            break
    said = (
        f"{value:.4g}, by the model {expected:.4g} "
        f"(allowed {low:.3g} to {high:.3g} times that: found {value / expected:.3f})"
    )
    if not low * expected <= value <= high * expected and idle_s < 0.25 * all_s:
        print(f"SKIPPED: {what}: other programs took this machine's processors: {said}", flush=True)
    else:
        check(what, low * expected <= value <= high * expected, said)
    return value


def fio(**words: object) -> dict[str, Any]:
    command = [
        "fio",
        "--name=j",
        "--direct=1",
        "--group_reporting",
        "--output-format=json",
        *(f"--{key}={value}" for key, value in words.items()),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    job: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    return job


def seek_s(distance_bytes: float, model: Mapping[str, float]) -> float:
    """To a place at that distance, and half a revolution."""
    b = (model["seek_ms"] / 1e3 - SETTLE_S) * 15 / 8
    return SETTLE_S + b * math.sqrt(distance_bytes / SIZE) + model["revolution_ms"] / 2e3


def sequential(disks: md.Disks, name: str) -> None:
    clocks: dict[str, float] = {}

    def measure() -> float:
        disks.reset()
        job = fio(filename=disks.device(name), rw="write", bs="1M", size="180M", ioengine="psync")
        clocks["wall"] = job["write"]["bw_bytes"]
        found = disks.stats(name)
        clocks["disk"] = found["write_bytes"] / found["busy_s"]
        return clocks["wall"]

    near(
        "one stream, 1 MiB after 1 MiB, bytes/s",
        measure,
        disks.model["rate_bytes_per_s"],
        0.9,
        1.01,
    )
    near(
        "one stream by the disk's own clock",
        lambda: clocks["disk"],
        disks.model["rate_bytes_per_s"],
        0.99,
        1.001,
    )


def streams(disks: md.Disks, name: str, count: int, request_bytes: int, requests: int) -> float:
    """Each stream has one request in flight, in its own part of the disk. Bytes/s by the disk's
    clock.

    The nearest that waits is next to the head, so a request takes its bytes and the way over one
    part, and now and then, when others were passed over too often, a longer way. What the host cuts
    in pieces of 1 MiB or 512 KiB fills the window with few streams' pieces, and those of one stream
    may be served in as many turns as there are pieces of 1 MiB.
    """
    apart = SIZE // count // (4 * MIB) * 4 * MIB
    turns = max(1, request_bytes // (md.REQUEST_KIB * 1024))
    transfer_s, way_s = request_bytes / disks.model["rate_bytes_per_s"], seek_s(apart, disks.model)
    title = f"{count} streams of {request_bytes // 1024} KiB"
    last: dict[str, Any] = {}

    def measure() -> float:
        disks.reset()
        job = fio(
            filename=disks.device(name),
            rw="write",
            bs=request_bytes,
            ioengine="psync",
            numjobs=count,
            thread=1,
            offset_increment=apart,
            size=request_bytes * max(1, requests // count),
        )
        last.update(disks.stats(name), wall_s=job["write"]["runtime"] / 1e3)
        return float(last["busy_s"] / (last["write_bytes"] / request_bytes))

    least_s, most_s = transfer_s + way_s, transfer_s + turns * way_s
    near(f"{title}, s each", measure, least_s, 0.95, 1.15 * most_s / least_s)

    def wall() -> float:
        if last.pop("judged", None):
            measure()
        last["judged"] = True
        return float(last["wall_s"] / last["busy_s"])

    near(f"{title}, wall over disk", wall, 1, 0.9, 1.2)
    return float(last["write_bytes"] / last["busy_s"])


def random_requests(disks: md.Disks, name: str) -> None:
    most: dict[int, int] = {}

    def measure(depth: int, count: int) -> float:
        disks.reset()
        fio(
            filename=disks.device(name),
            rw="randwrite",
            bs=4096,
            size=SIZE,
            number_ios=count,
            ioengine="io_uring",
            iodepth=depth,
            randrepeat=1,
        )
        found = disks.stats(name)
        most[depth] = found["waiting_most"]
        return float(found["busy_s"] / found["writes"])

    transfer_s = 4096 / disks.model["rate_bytes_per_s"]
    expected_s = (disks.model["seek_ms"] + disks.model["revolution_ms"] / 2) / 1e3 + transfer_s
    one = near(
        "random 4 KiB, one in flight, s each", lambda: measure(1, 200), expected_s, 0.93, 1.07
    )
    # Of 31 others drawn at random the nearest is 1/62 of the disk away; of those that are left
    # after a while, more.
    expected_s = transfer_s + seek_s(SIZE / 62, disks.model)
    many = near(
        "random 4 KiB, 32 in flight, s each", lambda: measure(32, 300), expected_s, 0.9, 1.3
    )
    check(
        "32 really are in flight",
        most == {1: 1, 32: 32},
        f"{most}; {one / many:.2f} times as many a second",
    )


def seeks_at_the_block_layer(disks: md.Disks, name: str) -> None:
    """The disk's own count of seeks beside that of the kernel's tracepoints."""
    # To let this much pass takes a head as long as to go there.
    passed = int(disks.model["rate_bytes_per_s"] * seek_s(0, disks.model))
    device = disks.device(name)
    loads: dict[str, dict[str, object]] = {
        "one stream": {"rw": "write", "bs": "1M", "size": "64M", "ioengine": "psync"},
        "8 streams": {
            "rw": "write",
            "bs": "64k",
            "size": "1M",
            "ioengine": "psync",
            "numjobs": 8,
            "thread": 1,
            "offset_increment": SIZE // 8,
        },
        "random requests, 32 in flight": {
            "rw": "randwrite",
            "bs": 4096,
            "size": SIZE,
            "number_ios": 300,
            "ioengine": "io_uring",
            "iodepth": 32,
        },
    }
    with block.BlockTrace([disks.loops[name]]) as trace:
        for title, words in loads.items():
            disks.reset()
            trace.reset()
            fio(filename=device, **words)
            seen, own = trace.seeks(disks.loops[name], passed), disks.stats(name)["repositionings"]
            # The first request may or may not begin where the head is.
            good = abs(seen - own) <= max(2, 0.05 * own)
            check(f"seeks of {title}, by the disk and at the block layer", good, f"{own}, {seen}")


def no_starving(disks: md.Disks, name: str) -> None:
    """One far request beside a stream that always has another near: it is passed over 2 * depth
    times at most.
    """
    block, page = 65536, mmap.mmap(-1, 4096)
    bound_s = (2 * disks.model["depth"] + 2) * block / disks.model["rate_bytes_per_s"] + 2 * seek_s(
        SIZE, disks.model
    )

    def measure() -> float:
        disks.reset()
        stream = subprocess.Popen(
            [
                "fio",
                "--name=n",
                "--direct=1",
                f"--filename={disks.device(name)}",
                "--rw=write",
                f"--bs={block}",
                "--size=256M",
                "--ioengine=io_uring",
                "--iodepth=16",
                "--time_based=1",
                "--runtime=1",
            ],
            stdout=subprocess.DEVNULL,
        )
        far = os.open(disks.device(name), os.O_RDONLY | os.O_DIRECT)
        try:
            if not held.until(lambda: disks.stats(name)["writes"] > 20):
                raise RuntimeError("fio does not write")
            begin = time.monotonic()
            os.preadv(far, [page], SIZE - 4096)
            return time.monotonic() - begin
        finally:
            os.close(far)
            stream.wait(30)

    # Breaks if: passed requests are not counted; then it waits for fio's end.
    near("a far request beside a stream, s, at most", measure, bound_s, 0, 1.3)


def bytes_come_back(disks: md.Disks, name: str) -> None:
    """Through the file system, the page cache dropped between: pieces of many sizes."""
    digest, path, size = hashlib.sha256(), os.path.join(disks.path(name), "bytes"), 0
    with open(path, "wb", buffering=0) as file:
        for number in range(200):
            piece = hashlib.sha256(str(number).encode()).digest() * (1 + number * 37 % 4000)
            digest.update(piece)
            size += len(piece)
            file.write(piece)
        os.fsync(file.fileno())
    md.drop_caches()
    disks.reset()
    with open(path, "rb") as file:
        found = hashlib.sha256(file.read())
    read = disks.stats(name)["read_bytes"]
    check(
        "the bytes come back",
        found.digest() == digest.digest() and read >= size,
        f"{size}, {read} read from the disk",
    )
    os.remove(path)


def dirty_limit_holds(disks: md.Disks, name: str) -> None:
    limit, total, unwritten = 16 * MIB, 96 * MIB, 0
    set_to = disks.limit_dirty(limit)[name]
    check("the kernel takes the dirty limit", 0.9 * limit <= set_to <= 1.1 * limit, set_to)
    path, piece = os.path.join(disks.path(name), "dirty"), bytes(MIB)
    disks.reset()
    with open(path, "wb", buffering=0) as file:
        for number in range(total // MIB):
            file.write(piece)
            unwritten = max(unwritten, (number + 1) * MIB - disks.stats(name)["write_bytes"])
        # What is at the disk is no longer dirty but not yet written either: 32 MiB at most with
        # requests of 1 MiB.
        check(
            "the dirty limit holds",
            limit / 4 < unwritten <= limit + disks.model["depth"] * MIB,
            f"{unwritten / MIB:.0f} MiB not on the disk",
        )
        disks.limit_dirty(None)
        disks.reset()
        file.write(bytes(total))
        free = total - disks.stats(name)["write_bytes"]
        check(
            "and is taken back",
            free > limit + disks.model["depth"] * MIB,
            f"{free / MIB:.0f} MiB not on the disk",
        )
    os.remove(path)


def left(parent: str) -> tuple[list[str], list[str], list[str], list[int]]:
    names = os.listdir(parent)
    loops = [name for name in md.loops_below(os.path.realpath(parent))]
    return (
        names,
        loops,
        md.mounts_below(os.path.realpath(parent)),
        md.processes_below(os.path.realpath(parent)),
    )


def a_killed_holder(parent: str) -> None:
    """SIGKILL of the program that holds disks, while a file of theirs is dirty and open."""
    text = (
        f"from testbed.cluster import disks; import os, time\nwith disks.Disks({parent!r}, ['a']) "
        "as d:\n"
        " f = open(d.path('a') + '/f', 'wb'); f.write(bytes(8 << 20)); f.flush()\n"
        " print('up', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, cwd=md.ROOT)
    said = held.pipe(holder.stdout).readline()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    # Breaks if: the guard waits for anything but the end of its pipe, or the disk keeps that pipe
    # open.
    gone = held.until(lambda: not any(left(parent)))
    check("nothing left after SIGKILL of the holder", said == b"up\n" and gone, left(parent))


def main() -> None:
    why = md.missing() or (None if shutil.which("fio") else "fio is missing")
    parent = selftest.begin("model disks", why, "orcheck-disktest-")
    try:
        with md.Disks(parent, ["raw"], SIZE, file_system=False) as disks:
            sequential(disks, "raw")
            small = streams(disks, "raw", 8, 65536, 80)
            streams(disks, "raw", 64, 65536, 128)
            large = streams(disks, "raw", 8, 4 * MIB, 24)
            streams(disks, "raw", 64, 4 * MIB, 64)
            check(
                "large requests cost less than small ones",
                large > 4 * small,
                f"{large / 1e6:.1f} and {small / 1e6:.1f} MB/s",
            )
            random_requests(disks, "raw")
            if block.missing():
                print(f"SKIPPED: seeks at the block layer: {block.missing()}", flush=True)
            else:
                seeks_at_the_block_layer(disks, "raw")
            no_starving(disks, "raw")
        with md.Disks(parent, ["a"], 1 << 30) as disks:
            bytes_come_back(disks, "a")
            if md.cannot_limit():
                print(f"SKIPPED: the dirty limit: {md.cannot_limit()}", flush=True)
            else:
                dirty_limit_holds(disks, "a")
        check("nothing left of the disks", not any(left(parent)), left(parent))
        a_killed_holder(parent)
    finally:
        md.sweep(parent)
        os.rmdir(parent)
    print(f"{selftest.passed} passed, 0 failed")


if __name__ == "__main__":
    main()
