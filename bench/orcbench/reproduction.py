"""Which figures of the documents does Orcheck reproduce? Writes docs/reproduction.md.

    python3 -m orcbench.reproduction take bench/results/scale.json ...   # publish results
    python3 -m orcbench.reproduction write                               # the page from them
    python3 -m orcbench.reproduction check                               # is it what they say?

How: documents/ has the rows, each with its claims; a claim names a figure of the document
and a key of a result file. `take` copies what a benchmark wrote, without its raw samples, to
docs/reproduction/, which is committed.

Invariants:
1. Each number of Orcheck's on the page is that of a published result, with machine and commit.
2. A result is published only if it is of a commit of this history, of a machine that had nothing
   else to do, and under the name of what was measured.
3. A verdict follows from the numbers by one rule (`graded`); what is not reproduced has a reason.
   Where the ends of the interval have another verdict, it is not certain.
4. What was not measured, or is too small to tell from noise, is called that; so is what a number
   was fitted to.

Not here: measuring.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orcbench.running import ROOT

PUBLISHED = os.path.join(ROOT, "docs", "reproduction")
PAGE = os.path.join(ROOT, "docs", "reproduction.md")
# What a published result keeps, and what it does not of the arguments: paths, and what concerns
# other pages.
KEPT = ("name", "commit", "date", "arguments", "ratios", "intervals", "samples", "goals")
PATHS = ("dir", "prefix", "results", "npb", "hpl", "publish")
MACHINE = ("processor", "cores", "memory_bytes", "kernel", "busy_before")
# The least ratio of ratios: how many times as large the effect is here as in the document.
BETTER, REPRODUCED = 1.25, 0.8
# The largest share of the processors that something else may have taken.
QUIET = 0.1
# With fewer rounds, the range stands for the interval.
FEW = 5
# Where the library of this tree is installed.
OWN = os.path.join("build", "prefix")
# The benchmark that computes, and measures nothing.
COMPUTED = "model"


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
    # Whether a number of the model was fitted to this very figure.
    fitted: bool = False
    # Whether there is something to measure or test.
    built: bool = True
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


def graded(claim: Claim, ours: float) -> str:
    """One word for a figure."""
    if claim.document is None:
        return "no figure"
    if claim.bound:
        keeps = ours <= claim.document if claim.less else ours >= claim.document
        return "reproduced" if keeps else "not reproduced"
    found = effect(claim, ours)
    if found is None:
        return "too small to tell"
    return (
        "better" if found >= BETTER else "reproduced" if found >= REPRODUCED else "not reproduced"
    )


def verdict(claim: Claim, results: Results) -> str:
    """That word, and how it came to be."""
    if not claim.built:
        return "not built"
    if claim.key is None:
        return "tested"
    ours = value_of(claim, results)
    if ours is None:
        return "not measured"
    if claim.fitted:
        return "model: fitted"
    between = interval_of(claim, results)
    word = graded(claim, ours)
    ends = {graded(claim, end) for end in between or ()}
    if "too small to tell" in ends:
        word = "too small to tell"
    elif ends - {word}:
        word += ", not certain"
    if claim.document is not None and has_few_rounds(claim, results):
        word += ", few rounds"
    return f"model: {word}" if claim.model else word


def has_few_rounds(claim: Claim, results: Results) -> bool:
    """Whether the range of the rounds says little about what others would be."""
    if claim.key is None or claim.key[0] == COMPUTED:
        return False
    name, key = claim.key
    rounds: int = results.get(name, {}).get("samples", {}).get(key, FEW)
    return rounds < FEW


def interval_of(claim: Claim, results: Results) -> Sequence[float] | None:
    """The interval of a measured figure. Of what is computed, it would be one of its programs."""
    if claim.key is None or claim.key[0] == COMPUTED:
        return None
    name, key = claim.key
    between: Sequence[float] | None = results.get(name, {}).get("intervals", {}).get(key)
    return between


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
    ours, figure, ratio = "", "", ""
    value = value_of(claim, results)
    if claim.key is not None and value is not None:
        name, key = claim.key
        ours = number(value)
        between = interval_of(claim, results)
        beside = [f"{number(between[0])} to {number(between[1])}"] if between else []
        if has_few_rounds(claim, results):
            beside.append(f"n = {results[name]['samples'][key]}")
        ours += f" ({', '.join(beside)})" if beside else ""
        found = effect(claim, value)
        ratio = "" if found is None else number(found)
    if claim.document is not None:
        sign = ("≤ " if claim.less else "≥ ") if claim.bound else ""
        arrow = "" if claim.bound or claim.fitted else " ↓" if claim.less else " ↑"
        known = not sign and number(claim.document) in claim.said.replace(",", "").split()
        figure = arrow if known else f" ({sign}{number(claim.document)}{arrow})"
    command = f"`{claim.command}`" if claim.built else ""
    word = f"**{verdict(claim, results)}**" + (f". {claim.note}" if claim.note else "")
    return [claim.what, claim.said + figure, ours, ratio, word, command]


def page(documents: Sequence[Document], results: Results) -> str:
    """docs/reproduction.md."""
    lines = [
        "# The documents' experiments",
        "",
        "Orcheck was built from three papers and a talk ([sources](sources.md)). This page has",
        "their main figures beside ours, and the command that measures each again; build first",
        "(`make build`), and look up in [bench/README](../bench/README.md) what else a command",
        "needs. Their hardware is old: what carries over are ratios between ways measured side",
        "by side.",
        "",
        "*Ratio of ratios* says how many times as large the effect is here as in the document:",
        "the document's figure ÷ ours where a smaller one is better (↓), and ours ÷ the document's",
        f"otherwise (↑). The verdict follows: **better** ({BETTER:g} or more), **reproduced**",
        f"({REPRODUCED:g} or more), or **not reproduced**. A limit (≤, ≥) of the document",
        "is met or not, and there is no ratio. Verdicts are not the goals that a benchmark",
        "prints.",
        "",
        "* **not certain**: an end of the 95 % interval has another verdict. **too small to",
        "  tell**: the interval of a ratio reaches 0.",
        f"* **few rounds**: fewer than {FEW} rounds (n); the brackets have the smallest and the",
        "  largest value instead of an interval.",
        "* **tested**: the command runs a test, which measures nothing. **not built**: Orcheck",
        "  does not have it yet.",
        "* **model**: the figure was computed, or its time follows from assumed rates of hardware.",
        "  **fitted**: the model was adjusted to this very figure, so agreement proves nothing.",
        "  Programs on links and disks whose rate is limited count as measured.",
        "* **no figure**: the document has none, or none that can be compared.",
        "",
        "`PYTHONPATH=bench:. python3 -m orcbench.reproduction write` computes this page from",
        "the [published results](reproduction/); `make check` checks that it matches them.",
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
    head = ["result", "machine", "commit", "date", "options"]
    lines += [line(head), line(["---"] * len(head))]
    for name, found in results.items():
        facts = found["machine"]
        machine = f"{facts['processor']}, {facts['cores']} cores, Linux {facts['kernel']}"
        link = f"[{name}](reproduction/{name}.json)"
        lines.append(line([link, machine, found["commit"], found["date"][:10], options(found)]))
    return "\n".join(lines) + "\n"


def options(result: dict[str, Any]) -> str:
    """What the benchmark was told, and its defaults."""

    pairs = result["arguments"].items()
    return ", ".join(f"{k} {shown(v)}" for k, v in pairs if v not in (None, False, "", "only"))


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
            if "not reproduced" in verdict(claim, results) and not claim.note:
                found.append(f"{row.name}, {claim.what}: not reproduced, and no reason is given")
            if claim.key and value_of(claim, results) is None:
                known = "/".join(claim.key)
                found.append(f"{row.name}, {claim.what}: nothing published has {known}")
            elif claim.key:
                arguments = results[claim.key[0]]["arguments"]
                found += [
                    f"{row.name}, {claim.what}: {option} is {value} in the command only"
                    for option, value in options_of(claim.command)
                    if option != "only" and shown(arguments.get(option)) != value
                ]
    for name, result in results.items():
        found += [f"{name}: {why}" for why in unfit(name, result)]
    return found


def options_of(command: str) -> list[tuple[str, str]]:
    """The options in a command, apart from paths, each with its values."""
    found: dict[str, list[str]] = {}
    for part in command.split(" --")[1:]:
        option, *values = part.replace(",", " ").split()
        found.setdefault(option.replace("-", "_"), []).extend(values)
    return [(option, " ".join(values)) for option, values in found.items() if option not in PATHS]


def shown(value: Any) -> str:
    """As a command has it."""
    if isinstance(value, list):
        return " ".join(map(shown, value))
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def unfit(name: str, result: dict[str, Any]) -> list[str]:
    """Why a result cannot be published under a name."""
    found = []
    if result["commit"].endswith("+"):
        found.append(f"it is of a tree with changes ({result['commit']}). Next: commit, repeat it")
    elif not is_ancestor(result["commit"]):
        found.append(f"{result['commit']} is no commit of this history")
    prefix = result["arguments"].get("prefix", OWN)
    if not prefix.endswith(OWN):
        found.append(f"it is of another library ({prefix}). Next: repeat it with {OWN}")
    busy = result["machine"]["busy_before"]
    if busy > QUIET:
        found.append(f"the machine was {100 * busy:.0f} % busy before. Next: repeat it")
    if name not in names_of(result):
        found.append(f"it is a result of {', '.join(names_of(result))}")
    for key, between in result["intervals"].items():
        value = result["ratios"].get(key)
        if between and not between[0] <= (value or 0) <= between[1]:
            found.append(f"{key}: {value} is not in its interval")
    return found


def names_of(result: dict[str, Any]) -> list[str]:
    """The names that a result may be published under."""
    only = result.get("arguments", {}).get("only")
    parts = only if isinstance(only, list) else [only]
    return [f"{result['name']}-{part}" for part in parts if part] or [result["name"]]


def is_ancestor(commit: str) -> bool:
    """Whether the tree was made from it; `True` where nobody knows the history."""

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)

    # A tree without it may lie within a repository of something else.
    if not os.path.exists(os.path.join(ROOT, ".git")):
        return True
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        return True
    return git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0


def take(path: str, to: str = PUBLISHED) -> str:
    """Publishes a result; where."""
    with open(path) as file:
        result = json.load(file)
    if wrong := unfit(os.path.basename(path).removesuffix(".json"), result):
        sys.exit("\n".join(f"{path}: {why}" for why in wrong))
    kept = {key: result[key] for key in KEPT}
    kept["arguments"] = {k: v for k, v in kept["arguments"].items() if k not in PATHS}
    kept["machine"] = {key: result["machine"][key] for key in MACHINE if key in result["machine"]}
    os.makedirs(to, exist_ok=True)
    out = os.path.join(to, os.path.basename(path))
    with open(out, "w") as file:
        json.dump(kept, file, indent=1)
        file.write("\n")
    return out


def main() -> int:
    from orcbench.documents import DOCUMENTS

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
