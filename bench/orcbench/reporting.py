"""What a benchmark tells: tables, figures beside their goals, the JSON of its results.

A benchmark prints a table, writes bench/results/NAME.json and draws bench/results/NAME.svg. The
JSON has `ratios`, a flat object of the figures that have a goal (null: could not be measured here),
and with them the machine, the commit, the date, medians and spread.
"""

import argparse
import datetime
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from orcbench.facts import Machine, is_still
from orcbench.stats import Figure, Goals, figure


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
    """Prints rows under a head; numbers right, text left."""
    cells = [[str(c) for c in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    for number, row in enumerate(cells):
        print(
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(row, widths))
            )
        )
        if number == 0:
            print("  ".join("-" * w for w in widths))
    sys.stdout.flush()


def meets(value: float, sign: str, goal: float) -> bool:
    return value <= goal if sign == "<=" else value >= goal


def result_path(args: argparse.Namespace, name: str, ending: str) -> str:
    """Where results go; those of some parts only (--only, --way) to a file of their own:
    NAME-PARTS.
    """
    parts: list[str] = []
    for chosen in (vars(args).get("only"), vars(args).get("way")):
        parts += [chosen] if isinstance(chosen, str) else chosen or []
    words = ["".join(c if c.isalnum() else "-" for c in part.replace(", ", "-")) for part in parts]
    return os.path.join(args.results, "-".join([name, *words]) + ending)


def not_measured(args: argparse.Namespace, name: str, why: str, goals: Goals) -> None:
    """Says that nothing of a benchmark can be measured here; its keys are null."""
    print(f"NOT MEASURED: {why}", flush=True)
    finish(args, name, Machine(args.dir), {}, goals, {"not_measured": why})


def finish(
    args: argparse.Namespace,
    name: str,
    machine: Machine,
    figures: dict[str, Figure],
    goals: Goals,
    more: dict[str, Any],
) -> str:
    """Prints the figures beside their goals, writes the JSON, returns a footnote for the plot.

    figures: name -> figure(); goals: name -> ("<=" or ">=", number), each without a figure was not
    measured; more: what else to store.
    """
    figures = {**{key: figure([]) for key in goals}, **figures}
    facts, when, what = (
        machine.facts(),
        datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        # Of a run during which somebody committed, nobody knows what was measured.
        machine.commit if is_still(machine.commit) else machine.commit.rstrip("+") + "+",
    )
    rows = []
    for key, found in figures.items():
        value, between = found["value"], found["interval"]
        word = ""
        if key in goals:
            sign, goal = goals[key]
            word = f"{sign} {goal:.3g}"
            if value is None:
                word += ", not measured"
            else:
                word += ", met" if meets(value, sign, goal) else ", MISSED"
                if between and len({meets(x, sign, goal) for x in (value, *between)}) > 1:
                    word += " (not certain)"
        rows.append(
            [
                key,
                "-" if value is None else f"{value:.4g}",
                "" if between is None else f"{between[0]:.4g} to {between[1]:.4g}",
                found["n"],
                word,
            ]
        )
    print()
    table(["ratio", "median", "95 % interval", "n", "goal"], rows)
    # `more` must not replace name, commit or machine.
    result = {
        **more,
        "name": name,
        "commit": what,
        "date": when,
        "machine": facts,
        "arguments": {k: v for k, v in vars(args).items()},
        "ratios": {key: found["value"] for key, found in figures.items()},
        "intervals": {key: found["interval"] for key, found in figures.items()},
        "samples": {key: found["n"] for key, found in figures.items()},
        "goals": {key: list(goal) for key, goal in goals.items()},
    }
    os.makedirs(args.results, exist_ok=True)
    path = result_path(args, name, ".json")
    with open(path + ".new", "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    os.replace(path + ".new", path)
    print(f"\n{path}  (commit {what})")
    return (
        f"{facts['processor']}, {facts['cores']} cores, Linux {facts['kernel']}; "
        f"commit {what}; {when[:10]}"
    )
