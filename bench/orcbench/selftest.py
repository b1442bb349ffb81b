"""Tests the benchmarks without measuring: statistics, modules, and every C program they use.

    PYTHONPATH=bench python3 -m orcbench.selftest     ends with 'N passed, 0 failed'

Compiles every program of bench/src/, and the model disk of the testbed where libfuse3 is there.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import tempfile

from orcbench import facts, peers, peers_setups, reproduction, running
from orcbench.__main__ import BENCHMARKS, module_of
from orcbench.documents import DOCUMENTS
from orcbench.running import ROOT, build
from orcbench.stats import Samples, figure, interval, spread
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


def peers_hold() -> None:
    """A goal with something missing is not met, and mpirun's last line is not the reason."""
    samples: Samples = {"orcheck-peers": [{"safe_s": 1.0}], "scr-partner": [{"safe_s": 2.0}]}
    found = peers.ratio(samples, ["orcheck-peers"], ["scr-partner"], "safe_s")
    assert found["value"] == 0.5, found
    absent = peers.ratio(samples, ["orcheck-peers"], ["scr-partner-memory"], "safe_s")
    assert absent["value"] is None and peers.worst([found, absent])["value"] is None
    said = "starting\nrank 2: cannot open x: no such file\n-----\nmpirun noticed that all failed\n"
    assert str(peers.Failure(["mpirun"], 1, said)) == "rank 2: cannot open x: no such file"
    with running.scratch(running.ROOT + "/build") as at:
        for way in peers_setups.WAYS.values():
            disk, memory = (tempfile.mkdtemp(dir=at) for _ in range(2))
            where, conf, _ = peers_setups.settings(way, disk, memory, 4, 1, "/prefix")
            assert os.path.isdir(where) and os.path.isfile(conf), way


def reproduction_holds() -> None:
    """The page is what the published results say, and a verdict is what the numbers say."""
    results = reproduction.results_of()
    wrong = reproduction.mistakes(DOCUMENTS, results)
    assert not wrong, wrong
    with open(reproduction.PAGE) as file:
        assert file.read() == reproduction.page(DOCUMENTS, results), "docs/reproduction.md is old"
    ratio = reproduction.Claim("", "", "", ("x", "key"), 0.5)
    bound = dataclasses.replace(ratio, bound=True)
    more = dataclasses.replace(ratio, less=False)
    none = dataclasses.replace(ratio, document=None)
    for claim, ours, word in (
        (ratio, 0.3, "better"),
        (ratio, 0.5, "reproduced"),
        (ratio, 0.9, "not reproduced"),
        (ratio, -0.1, "too small to tell"),
        (ratio, None, "not measured"),
        (bound, 0.5, "reproduced"),
        (bound, 0.51, "not reproduced"),
        (more, 0.9, "better"),
        (more, 0.0, "too small to tell"),
        (none, 0.9, "no figure"),
        (dataclasses.replace(ratio, model=True), 0.3, "model: better"),
        (dataclasses.replace(ratio, model=True, fitted=True), 0.3, "model: fitted"),
        (dataclasses.replace(ratio, built=False), None, "not built"),
        (dataclasses.replace(ratio, key=None), None, "tested"),
    ):
        said = reproduction.verdict(claim, {"x": {"ratios": {"key": ours}}})
        assert said == word, (claim, ours, said)
    for between, word in (
        ([-0.1, 0.6], "too small to tell"),
        ([0.2, 0.7], "better, not certain"),
        ([0.2, 0.4], "better"),
    ):
        found = {"x": {"ratios": {"key": 0.3}, "intervals": {"key": between}}}
        assert reproduction.verdict(ratio, found) == word, (between, word)
    few = {"x": {"ratios": {"key": 0.3}, "samples": {"key": 2}}}
    assert reproduction.verdict(ratio, few) == "better, few rounds"
    # A key that does not exist; a tree with changes, another library, a busy machine, another
    # benchmark, a figure that is not in its interval.
    missing = {
        "x": {
            "name": "y",
            "ratios": {},
            "intervals": {"z": [1, 2]},
            "commit": "abc+",
            "machine": {"busy_before": 0.4},
            "arguments": {"prefix": "/usr"},
            "date": "",
        }
    }
    row = reproduction.Row("A1", "", (ratio,))
    told = reproduction.mistakes([reproduction.Document("", [row])], missing)
    assert len(told) == 6, told
    options = {"x": {**missing["x"], "ratios": {"key": 1}, "arguments": {"rounds": 3}}}
    for command, right in (("bench x --rounds 3", True), ("bench x --rounds 5", False)):
        row = reproduction.Row("A1", "", (dataclasses.replace(ratio, command=command, note="n"),))
        told = reproduction.mistakes([reproduction.Document("", [row])], options)
        assert any("in the command only" in one for one in told) != right, told
    publishing_holds()
    assert facts.is_still(facts.commit()) and not facts.is_still("0" * 12)


def publishing_holds() -> None:
    """A result is published under its own name only, and as it is."""
    with running.scratch(running.ROOT + "/build") as at:
        part = "staging-profiles"
        with open(os.path.join(reproduction.PUBLISHED, f"{part}.json")) as file:
            published = json.load(file)
        for name, may in ((part, True), ("staging-disk", False), ("staging", False)):
            path = os.path.join(at, f"{name}.json")
            with open(path, "w") as file:
                json.dump({**published, "more": "raw samples"}, file)
            try:
                with open(reproduction.take(path, os.path.join(at, "to"))) as file:
                    assert may and json.load(file) == published, name
            except SystemExit as refused:
                assert not may and "it is a result of" in str(refused), (name, refused)


def main() -> None:
    statistics_hold()
    peers_hold()
    reproduction_holds()
    passed = ["statistics", "settings of peers", "docs/reproduction.md"]
    for name in BENCHMARKS:
        module_of(name)
        passed.append(name)
    prefix = os.path.abspath(os.environ.get("PREFIX", os.path.join(ROOT, "build", "prefix")))
    for file in sorted(os.listdir(os.path.join(ROOT, "bench", "src"))):
        # Of HPL there are no headers here.
        if file.endswith(".c") and file != "hpl.c":
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
