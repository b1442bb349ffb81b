"""Which figures of the five documents does Orcheck reproduce? Writes docs/reproduction.md.

    python3 -m orcbench.reproduction take bench/results/scale.json ...   # publish results
    python3 -m orcbench.reproduction write                               # the page from them
    python3 -m orcbench.reproduction check                               # is it what they say?

How: reproduction_rows.py has the rows, each with its claims; a claim names a figure of the document
and a key of a result file. `take` copies what a benchmark wrote, without its raw samples, to
docs/reproduction/, which is committed.

Invariants:
1. Each number of Orcheck's on the page is that of a published result, with machine and commit.
2. A result of a tree with changes is not published.
3. A verdict follows from the numbers by one rule (`graded`); what is not reproduced has a reason.
4. What was not measured, or is too small to tell from noise, is called that.

Not here: measuring.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orcbench.running import ROOT

PUBLISHED = os.path.join(ROOT, "docs", "reproduction")
PAGE = os.path.join(ROOT, "docs", "reproduction.md")
# What a published result keeps, and what it does not of the arguments: paths.
KEPT = ("name", "commit", "date", "arguments", "ratios", "intervals", "samples", "goals")
PATHS = ("dir", "prefix", "results", "npb", "hpl")
MACHINE = ("processor", "cores", "memory_bytes", "kernel", "busy_before")
# The least ratio of ratios: how many times as large the effect is here as in the document.
BETTER, REPRODUCED = 1.25, 0.8


@dataclass(frozen=True)
class Claim:
    """A figure of a document, and the same figure here. Ratios only: seconds do not carry over."""

    what: str
    # The document's words for it.
    said: str
    # Command that a reader can run.
    command: str
    # Result file and key; None: the command is a test, which shows it.
    key: tuple[str, str] | None = None
    # The document's figure; None: it has none.
    document: float | None = None
    # Whether a smaller figure is the better one.
    less: bool = True
    # Whether the document's figure is a bound, which ours has to keep.
    bound: bool = False
    # Whether it is computed, or follows from what was assumed of the hardware.
    model: bool = False
    # What else a reader must know; if it is not reproduced, why.
    note: str = ""


@dataclass(frozen=True)
class Row:
    """A row of the list of what the documents ask for."""

    name: str
    title: str
    claims: Sequence[Claim]


@dataclass(frozen=True)
class Document:
    title: str
    rows: Sequence[Row]


Results = dict[str, dict[str, Any]]


def effect(claim: Claim, ours: float) -> float | None:
    """How many times as large the effect is here as in the document; None if there is no ratio."""
    if claim.document is None or claim.bound or ours <= 0 or claim.document <= 0:
        return None
    return claim.document / ours if claim.less else ours / claim.document


def graded(claim: Claim, ours: float, between: Sequence[float] | None) -> str:
    """One word for a figure."""
    if claim.document is None:
        return "no figure"
    if claim.bound:
        keeps = ours <= claim.document if claim.less else ours >= claim.document
        return "reproduced" if keeps else "not reproduced"
    if ours <= 0 or (between and between[0] <= 0):
        return "too small to tell"
    found = effect(claim, ours) or 0
    return (
        "better" if found >= BETTER else "reproduced" if found >= REPRODUCED else "not reproduced"
    )


def verdict(claim: Claim, results: Results) -> str:
    """That word, and how it came to be."""
    if claim.key is None:
        return "reproduced"
    ours = value_of(claim, results)
    if ours is None:
        return "not measured"
    name, key = claim.key
    word = graded(claim, ours, results[name].get("intervals", {}).get(key))
    return f"model: {word}" if claim.model else word


def value_of(claim: Claim, results: Results) -> float | None:
    if claim.key is None:
        return None
    name, key = claim.key
    found = results.get(name, {}).get("ratios", {}).get(key)
    return None if found is None else float(found)


def results_of(where: str = PUBLISHED) -> Results:
    """The published results, by name."""
    found: Results = {}
    for file in sorted(os.listdir(where)) if os.path.isdir(where) else []:
        if file.endswith(".json"):
            with open(os.path.join(where, file)) as text:
                found[file.removesuffix(".json")] = json.load(text)
    return found


# ---- the page ------------------------------------------------------------------------------------
def number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def cells(claim: Claim, results: Results) -> list[str]:
    """The row of a table."""
    ours, beside, ratio = "", "", ""
    value = value_of(claim, results)
    if claim.key is not None and value is not None:
        name, key = claim.key
        ours = number(value)
        between = results[name].get("intervals", {}).get(key)
        # An interval of what is computed would be one of its programs.
        if between and not claim.model:
            ours += f" ({number(between[0])} to {number(between[1])})"
        found = effect(claim, value)
        ratio = "" if found is None else number(found)
    if claim.document is not None and number(claim.document) not in claim.said:
        beside = f" ({number(claim.document)})"
    command = f"`{claim.command}`"
    word = f"**{verdict(claim, results)}**" + (f". {claim.note}" if claim.note else "")
    return [claim.what, claim.said + beside, ours, ratio, word, command]


def page(documents: Sequence[Document], results: Results) -> str:
    """docs/reproduction.md."""
    lines = [
        "# The documents' experiments",
        "",
        "Orcheck was built from four papers and talks ([sources](sources.md)). This page has their",
        "main figures beside ours, and the command that measures each again (after `make build`).",
        "Their hardware is old: what carries over are ratios between ways measured side by side.",
        "",
        "*Ratio of ratios* says how many times as large an effect is here. The verdict follows:",
        f"**better** ({BETTER:g} or more), **reproduced** ({REPRODUCED:g} or more, a bound that is",
        "kept, or a test that shows it), or **not reproduced**. **Model** precedes the verdict on",
        "what was computed, or follows from assumed hardware. **No figure**: the document has",
        "none. **Too small to tell**: the interval reaches 0.",
        "",
        "`PYTHONPATH=bench:. python3 -m orcbench.reproduction write` computes this page from the",
        "[published results](reproduction/); `make check` compares both.",
    ]
    for document in documents:
        lines += ["", f"## {document.title}", ""]
        head = ["row", "what", "document", "here (95 %)", "ratio of ratios", "verdict", "command"]
        lines += [line(head), line(["---"] * len(head))]
        for row in document.rows:
            for place, claim in enumerate(row.claims):
                name = f"{row.name} {row.title}" if place == 0 else ""
                lines.append(line([name, *cells(claim, results)]))
    lines += ["", "## Machines", ""]
    head = ["result", "machine", "commit", "date"]
    lines += [line(head), line(["---"] * len(head))]
    for name, found in results.items():
        facts = found["machine"]
        machine = f"{facts['processor']}, {facts['cores']} cores, Linux {facts['kernel']}"
        link = f"[{name}](reproduction/{name}.json)"
        lines.append(line([link, machine, found["commit"], found["date"][:10]]))
    return "\n".join(lines) + "\n"


def line(row: Sequence[str]) -> str:
    return "| " + " | ".join(row) + " |"


# ---- mistakes ------------------------------------------------------------------------------------
def mistakes(documents: Sequence[Document], results: Results) -> list[str]:
    """What is wrong with rows and results, apart from the page."""
    found = []
    for row in (row for document in documents for row in document.rows):
        if not row.claims:
            found.append(f"{row.name} has no claim")
        for claim in row.claims:
            if verdict(claim, results).endswith("not reproduced") and not claim.note:
                found.append(f"{row.name}, {claim.what}: not reproduced, and no reason is given")
            if claim.key and results.get(claim.key[0]) and value_of(claim, results) is None:
                known = "/".join(claim.key)
                if claim.key[1] not in results[claim.key[0]]["ratios"]:
                    found.append(f"{row.name}, {claim.what}: no such key: {known}")
    for name, result in results.items():
        if result["commit"].endswith("+"):
            found.append(f"{name} is of a tree with changes")
    return found


def take(path: str) -> str:
    """Publishes a result; where."""
    with open(path) as file:
        result = json.load(file)
    if result["commit"].endswith("+"):
        sys.exit(f"{path} is of a tree with changes ({result['commit']}). Next: commit, repeat it")
    kept = {key: result[key] for key in KEPT}
    kept["arguments"] = {k: v for k, v in kept["arguments"].items() if k not in PATHS}
    kept["machine"] = {key: result["machine"][key] for key in MACHINE if key in result["machine"]}
    os.makedirs(PUBLISHED, exist_ok=True)
    out = os.path.join(PUBLISHED, os.path.basename(path))
    with open(out, "w") as file:
        json.dump(kept, file, indent=1)
        file.write("\n")
    return out


def main() -> int:
    from orcbench.reproduction_rows import DOCUMENTS

    parser = argparse.ArgumentParser(prog="orcbench.reproduction", description=__doc__)
    parser.add_argument("do", choices=("take", "write", "check"))
    parser.add_argument("results", nargs="*", help="result files to publish")
    args = parser.parse_args()
    for path in args.results if args.do == "take" else ():
        print(take(path))
    results = results_of()
    wrong = mistakes(DOCUMENTS, results)
    text = page(DOCUMENTS, results)
    if args.do == "write":
        with open(PAGE, "w") as file:
            file.write(text)
    elif args.do == "check":
        with open(PAGE) as file:
            if file.read() != text:
                wrong.append(f"{PAGE} is not what the results say. Next: write")
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
