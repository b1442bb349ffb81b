"""Tests the benchmarks without measuring: statistics, modules, and every C program they use.

    PYTHONPATH=bench python3 -m orcbench.selftest     ends with 'N passed, 0 failed'

Compiles every program of bench/src/, and the model disk of the testbed where libfuse3 is there.
"""

import os
import statistics
import subprocess

from orcbench.__main__ import BENCHMARKS, module_of
from orcbench.running import ROOT, build
from orcbench.stats import figure, interval, spread
from testbed.cluster import disks


def statistics_hold() -> None:
    """What a table or a goal would show wrongly without anybody noticing."""
    found = spread([4.0, 1.0, 2.0, 3.0])
    assert found == {"median": 2.5, "q1": 1.75, "q3": 3.25, "min": 1.0, "max": 4.0, "n": 4}, found
    assert interval([1.0]) is None
    assert interval([2.0] * 9) == [2.0, 2.0]
    assert figure([]) == {"value": None, "interval": None, "n": 0}
    mean = figure([(1.0, 2.0), (3.0, 4.0)], lambda rows: statistics.mean(a for a, _ in rows))
    assert mean["value"] == 2.0 and mean["n"] == 2, mean


def main() -> None:
    statistics_hold()
    passed = ["statistics"]
    for name in BENCHMARKS:
        module_of(name)
        passed.append(name)
    prefix = os.path.abspath(os.environ.get("PREFIX", os.path.join(ROOT, "build", "prefix")))
    for file in sorted(os.listdir(os.path.join(ROOT, "bench", "src"))):
        if file.endswith(".c"):
            build(prefix, file[:-2])
            passed.append(file)
    if subprocess.run(["pkg-config", "--exists", "fuse3"]).returncode:
        print("SKIPPED: testbed/cluster/disk.c: libfuse3-dev is missing")
    else:
        disks.build()
        passed.append("disk.c")
    print(f"{len(passed)} passed, 0 failed")


if __name__ == "__main__":
    main()
