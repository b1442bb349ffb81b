#!/usr/bin/env python3
"""Takes every protection away, one at a time, and requires that a test notices.

The switches and the tests that are expected to notice each are in crates/format/src/sabotage.rs;
what they protect is in docs/protections.md. For each switch those tests run first, then, if all of
them pass, everything else that is quick. A test that hangs has not noticed anything: its own
deadline must.

    tools/sabotage.py [SWITCH...]     all of them without arguments
    ORCHECK_SABOTAGE_JOBS             switches at once (default: processors)
"""

import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from typing import Any, TextIO

# (package, target) -> the program, its directory, its environment.
Programs = dict[tuple[str, str], Any]
# Name, what is gone, tests that must notice.
Switch = tuple[str, str, list[list[str]]]

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "sabotage"
# Longest run of one test program; the quick ones take seconds.
LIMIT_S = 240
# What the whole suite leaves out: it tests other things than protections, or takes long by itself.
LEFT_OUT = {("orcheck-tidy", "tidy"), ("orcheck-capi", "header")}
# Programs that are their own test harness and know no options.
OWN_HARNESS = {"faults", "power", "blocks", "callers"}


def switches() -> list[Switch]:
    text = (ROOT / "crates/format/src/sabotage.rs").read_text()
    found = re.findall(r'^    (\w+) = "([a-z0-9-]+)", "([^"]+)", "([^"]+)";', text, re.M)
    if len(found) < 30:
        sys.exit(
            "sabotage: the list of switches in crates/format/src/sabotage.rs was not understood"
        )
    return [
        (name, gone, [part.split() for part in tests.split(";")]) for _, name, gone, tests in found
    ]


def build() -> Programs:
    """Every test program of the workspace, by (package, target)."""
    # For the crates of the workspace alone: what they depend on is built once, with or without
    # sabotage.
    environment = dict(os.environ, RUSTC_WORKSPACE_WRAPPER=str(ROOT / "tools/sabotage-rustc.sh"))
    command = [os.environ.get("CARGO", "cargo"), "test", "--workspace", "--locked", "--no-run"]
    command += ["--message-format=json-render-diagnostics"]
    built = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if built.returncode != 0:
        sys.exit("sabotage: the build with --cfg orcheck_sabotage failed")
    programs = {}
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if (
            message.get("reason") == "compiler-artifact"
            and message["profile"]["test"]
            and message["executable"]
        ):
            package = pathlib.Path(message["manifest_path"]).parent
            name = tomllib.loads((package / "Cargo.toml").read_text())["package"]["name"]
            target = message["target"]
            key = "lib" if "lib" in target["kind"] or "cdylib" in target["kind"] else target["name"]
            programs[name, key] = (message["executable"], package)
    return programs


def run(
    program: tuple[str, str], arguments: Sequence[str], switch: str | None, log: TextIO
) -> tuple[bool, str, int]:
    """(whether a test failed, who noticed, tests run)"""
    executable, folder = program
    environment = dict(
        os.environ, PROPTEST_DISABLE_FAILURE_PERSISTENCE="1", PROPTEST_MAX_SHRINK_ITERS="0"
    )
    environment.pop("ORCHECK_SABOTAGE", None)
    if switch:
        environment["ORCHECK_SABOTAGE"] = switch
    log.write(f"$ ORCHECK_SABOTAGE={switch or ''} {executable} {' '.join(arguments)}\n")
    log.flush()
    child = subprocess.Popen(
        [executable, *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output = child.communicate(timeout=LIMIT_S)[0]
    except subprocess.TimeoutExpired:
        # Its own process group, so its ranks go with it.
        os.killpg(child.pid, signal.SIGKILL)
        output = child.communicate()[0]
        log.write(output.decode(errors="replace"))
        return False, f"hangs for {LIMIT_S} s", 0
    text = output.decode(errors="replace")
    log.write(text)
    count = sum(int(found) for found in re.findall(r"^running (\d+) tests?", text, re.M))
    if child.returncode == 0:
        return False, "", count
    failed = re.findall(r"^test (\S+)(?: - should panic)? \.\.\. FAILED", text, re.M)
    if failed:
        return True, failed[0], count
    if child.returncode < 0:
        return True, f"killed by signal {-child.returncode}", count
    return True, "the whole program", count


def suite(programs: Programs, expected: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    """The rest, quick ones first; the faults and block tests are the slow ones."""
    slow = ("faults", "power", "blocks", "session")
    tried = {(package, target) for package, target, *rest in expected if not rest}
    keys = [key for key in programs if key not in LEFT_OUT and key not in tried]
    return sorted(keys, key=lambda key: (key[1] in slow, key))


def caught(programs: Programs, switch: Switch) -> tuple[str, str | None, float]:
    name, _, expected = switch
    begun = time.monotonic()
    with open(LOGS / f"{name}.log", "w") as log:
        for package, target, *rest in expected:
            failed, who, _ = run(programs[package, target], rest, name, log)
            if failed:
                return name, f"{package} {target}: {who}", time.monotonic() - begun
        for key in suite(programs, expected):
            failed, who, _ = run(programs[key], [], name, log)
            if failed:
                return (
                    name,
                    f"{' '.join(key)}: {who} (not the expected one)",
                    time.monotonic() - begun,
                )
    return name, None, time.monotonic() - begun


def main() -> int:
    LOGS.mkdir(parents=True, exist_ok=True)
    known = switches()
    chosen = [switch for switch in known if not sys.argv[1:] or switch[0] in sys.argv[1:]]
    unknown = set(sys.argv[1:]) - {name for name, *_ in known}
    if unknown:
        sys.exit(f"sabotage: there is no switch {', '.join(sorted(unknown))}")
    programs = build()
    failed = 0

    wanted = sorted({tuple(test) for _, _, expected in chosen for test in expected})
    jobs = int(os.environ.get("ORCHECK_SABOTAGE_JOBS", os.cpu_count() or 1))
    begun = time.monotonic()
    # Tests that this machine cannot run, and why.
    beyond = {}

    def sound(test: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
        package, target, *rest = test
        if (package, target) not in programs:
            return test, f"there is no test program {package} {target}"
        path = LOGS / ("none-" + "-".join(test).replace("/", "-") + ".log")
        shown = [] if target in OWN_HARNESS else ["--show-output"]
        with open(path, "w") as log:
            bad, who, count = run(programs[package, target], [*rest, *shown], None, log)
        skipped = re.search(r"^SKIPPED:? (.*)", path.read_text(), re.M)
        if skipped:
            beyond[test] = skipped[1]
        if bad or who:
            return test, f"fails without any sabotage: {who}"
        return (
            test,
            None if count else "runs no test: correct its filter in crates/format/src/sabotage.rs",
        )

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for test, wrong in pool.map(sound, wanted):
            if wrong:
                print(f"  {' '.join(test)}: {wrong}")
                failed += 1
        print(
            f"  without any sabotage: {len(wanted) - failed} of {len(wanted)} chosen tests pass",
            flush=True,
        )
        if failed:
            print(f"0 passed, {failed} failed")
            return 1
        print(f"  {'switch':<26} {'s':>5}  caught by")
        untried = [switch for switch in chosen if all(tuple(test) in beyond for test in switch[2])]
        chosen = [switch for switch in chosen if switch not in untried]
        for name, _, tests in untried:
            print(f"  {name:<26} {'-':>5}  SKIPPED: {beyond[tuple(tests[0])]}")
        for name, who, took_s in pool.map(lambda switch: caught(programs, switch), chosen):
            failed += who is None
            print(
                f"  {name:<26} {took_s:5.1f}  {who or 'NOTHING: write the test that is missing'}",
                flush=True,
            )
    print(f"  {time.monotonic() - begun:.0f} s; logs in {LOGS.relative_to(ROOT)}/")
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
