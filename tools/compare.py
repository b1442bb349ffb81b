#!/usr/bin/env python3
"""Compares two revisions: the size of the code base, and what users rely on and must not change.

usage: tools/compare.py OLD [NEW]

Prints a table (files, lines, long functions, flat folders, tests) and then what differs in the
declarations of the C header, the names of options, the exit codes of `orcheck`, the golden files,
the names of tests and the uses of sabotage switches. Exits with 1 if anything that users rely on
differs. Nothing is built: names of tests are read from the sources, so a renamed test shows as
one that is gone.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from collections import Counter

Files = dict[str, str]
FUNCTION = re.compile(r'((pub(\([^)]*\))?|const|async|unsafe|extern "C") )*fn ')
LINES_MAX = 70


def load(revision: str) -> Files:
    """The text of every file of a revision."""
    archive = subprocess.run(["git", "archive", revision], check=True, capture_output=True)
    files: Files = {}
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is not None:
                files[member.name] = content.read().decode("utf-8", "replace")
    return files


def rust(files: Files, below: str = "") -> Files:
    """The Rust sources whose paths match a pattern."""
    return {
        path: text for path, text in files.items() if path.endswith(".rs") and re.match(below, path)
    }


def length(lines: list[str], at: int) -> int:
    """Lines of the function that begins in line `at`, as rustfmt lays it out."""
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    for end in range(at, len(lines)):
        rest = lines[end].removeprefix(indent)
        if rest and not rest.startswith(" ") and rest.endswith((";", "}")):
            return end - at + 1
    return 1


def long_functions(files: Files) -> int:
    """Functions of crates, tests apart, that have more than `LINES_MAX` lines."""
    count = 0
    for text in rust(files, r"crates/[^/]+/src/").values():
        lines = text.split("\n")
        for at, line in enumerate(lines):
            if FUNCTION.match(line.lstrip()) and length(lines, at) > LINES_MAX:
                above = next((one for one in reversed(lines[:at]) if "///" not in one), "")
                count += "#[test]" not in above
    return count


def measure(files: Files) -> dict[str, int]:
    """The figures of the table."""
    source = rust(files, r"crates/[^/]+/src/")
    others = {path: text for path, text in rust(files).items() if path not in source}
    flat = {
        f"flat files in {name}": len(rust(files, rf"crates/{name}/src/[^/]+$"))
        for name in ("engine", "io", "client")
    }
    return {
        "files": len(files),
        "source files": len(source),
        "source lines": sum(text.count("\n") for text in source.values()),
        "test files": len(others),
        "test lines": sum(text.count("\n") for text in others.values()),
        f"functions over {LINES_MAX} lines": long_functions(files),
        **flat,
    }


def find(files: Files, ending: str) -> str:
    """The text of the one file whose path ends like this."""
    return next((text for path, text in sorted(files.items()) if path.endswith(ending)), "")


def promises(files: Files) -> dict[str, Counter[str]]:
    """What users rely on, each as a bag of words that two revisions must share."""
    header = re.sub(r"/\*.*?\*/|//[^\n]*", "", find(files, "include/orcheck.h"), flags=re.S)
    declarations = (re.sub(r"\s+", " ", part).strip() for part in header.split(";"))
    raw = find(files, "options/fields.rs") or find(files, "options/raw.rs")
    names = re.search(r"NAMES[^=]*= *&?\[(.*?)\];", raw, flags=re.S)
    exits = find(files, "crates/cli/src/exit.rs")
    golden = {path: text for path, text in files.items() if "/golden/" in path}
    return {
        "C declarations": Counter(declarations),
        "options": Counter(re.findall(r'"(\w+)"', names[1] if names else "")),
        "exit codes": Counter(re.findall(r"const \w+: \w+ = \d+", exits)),
        "golden files": Counter(
            f"{path.rsplit('/', 1)[-1]} {text}" for path, text in golden.items()
        ),
    }


def protections(files: Files) -> dict[str, Counter[str]]:
    """Names of test functions, and uses of switches in sources."""
    everything = "\n".join(rust(files).values())
    source = "\n".join(rust(files, r"crates/[^/]+/src/").values())
    return {
        "functions named like tests": Counter(set(re.findall(r"fn (\w{20,})", everything))),
        "uses of switches": Counter(re.findall(r"off\((?:\w+::)*Switch::(\w+)\)", source)),
    }


def show(title: str, old: Counter[str], new: Counter[str]) -> bool:
    """Says whether two bags are the same, and what differs."""
    gone, more = old - new, new - old
    if not gone and not more:
        print(f"{title}: the same ({sum(old.values())})")
        return True
    print(f"{title}: {sum(old.values())} before, {sum(new.values())} now")
    for sign, bag in (("-", gone), ("+", more)):
        for text in sorted(bag)[:40]:
            print(f"  {sign} {text[:100]}")
    return False


def main() -> int:
    """Prints the comparison."""
    if len(sys.argv) not in (2, 3):
        print(__doc__)
        return 2
    old, new = load(sys.argv[1]), load(sys.argv[2] if len(sys.argv) == 3 else "HEAD")
    before, after = measure(old), measure(new)
    for name, figure in before.items():
        print(f"{name:<28} {figure:>8} {after[name]:>8}")
    kept = [show(name, bag, promises(new)[name]) for name, bag in promises(old).items()]
    for name, bag in protections(old).items():
        show(name, bag, protections(new)[name])
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
