"""What does the planner's model give for figures of the documents that no machine here can measure?

Nothing is measured: `orcheck plan` computes.

1. Table 1 of Walters and Chaudhary: how many entries the formula gives (`plan survival --table1`).
2. Figures 5 and 8 of Jin et al. (docs/contention.md): bursts of 256 ranks, five programs, classes C
   and D, servers with a page cache. Once as the model is; once with a cost for each of a rank's
   writes, which only servers that take what comes as it comes pay. How many those are, and what one
   costs, is from another document (Ouyang et al.): LU.C.64 is 975 writes a rank, and took 20.1 s on
   PVFS2, whose four disks of 55 MB/s need 6.7 s for its bytes. The same number is taken for all
   programs and classes.
"""

import argparse
import json
import os
import subprocess
from typing import Any

from orcbench import facts, reporting, running, stats
from orcbench.contention import TABLE
from orcbench.stats import Figure

GOALS = {"table1_alike": (">=", 100)}
RANKS, SERVERS = 256, 4
WRITES = 975
# Seconds of a server for one write: LU.C.64 on PVFS2 (slide "Checkpoint Time"), less its bytes.
WRITE_S = (20.1 - 64 * 23.0e6 / (SERVERS * 55e6)) * SERVERS / (64 * WRITES)
# What one number was chosen for: LU.D, 33 % saved (docs/contention.md).
FITTED = ("server.cache_bytes=128000000", "server.cache_background_bytes=64000000")


def plan(args: argparse.Namespace, *words: str) -> dict[str, Any]:
    """What `orcheck plan` computes."""
    command = [os.path.join(args.prefix, "bin", "orcheck"), "plan", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def times(args: argparse.Namespace, gb: float, *settings: str) -> dict[str, float]:
    """Seconds of a burst on servers with a page cache, by mode."""
    more = [word for setting in settings for word in ("--set", setting)]
    bursts = plan(args, "burst", "--total-gb", f"{gb:g}", *more)["bursts"]
    return {one["mode"]: one["time_s"] for one in bursts if one["cached"]}


def shares(args: argparse.Namespace, writes: bool) -> dict[str, dict[str, float]]:
    """class -> program -> time of orchestrated ÷ traditional."""
    each_s = RANKS * WRITES * WRITE_S / SERVERS if writes else 0.0
    found: dict[str, dict[str, float]] = {"c": {}, "d": {}}
    for name, (small, large) in TABLE.items():
        for letter, gb in (("c", small), ("d", large[-1])):
            taken = times(args, gb, f"fixed.traditional_s={each_s}")
            found[letter][name] = taken["orchestrated"] / taken["traditional"]
    return found


def main() -> None:
    args = running.arguments("model", __doc__, lambda parser: None)
    machine = facts.Machine(args.dir)
    entries = plan(args, "survival", "--table1")["entries"]
    alike = sum(one["allowed"] == one["reported"] for one in entries)
    fitted = times(args, TABLE["LU"][1][-1], *FITTED)
    figures: dict[str, Figure] = {
        "table1_alike": stats.figure([alike]),
        "table1_off_most": stats.figure(
            [max(abs(one["allowed"] - one["reported"]) for one in entries)]
        ),
        "lu_d_fitted": stats.figure([fitted["orchestrated"] / fitted["traditional"]]),
    }
    found = {"": shares(args, writes=False), "_writes": shares(args, writes=True)}
    for word, classes in found.items():
        for letter, each in classes.items():
            figures[f"class_{letter}{word}"] = stats.figure(list(each.values()))
            reporting.table(
                [f"class {letter.upper()}, orchestrated ÷ traditional", *each],
                [["with a cost per write" if word else "", *(f"{v:.3f}" for v in each.values())]],
            )
    stored = {"write_s": WRITE_S, "writes_per_rank": WRITES, "entries": len(entries), "raw": found}
    reporting.finish(args, "model", machine, figures, GOALS, stored)


if __name__ == "__main__":
    main()
