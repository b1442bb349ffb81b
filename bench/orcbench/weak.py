"""Does a checkpoint cost a solver more on more nodes, if each has a disk of its own?

Weak scaling (Shahzad et al., Figures 10 and 11): examples/lbm on 1 to 16 virtual nodes of one rank
and one thread each. The box grows with them, and each node's processes may write to the disk at the
same limited rate (throttling.Groups), as if it were their own. The ranks share the cores of this
machine, so a time step takes longer with more of them; what a checkpoint costs is therefore told as
a share: a window with one at its beginning ÷ its neighbours without (src/solver.c). Synchronous and
asynchronous in turn.
"""

import argparse
import os
import statistics

from orcbench import facts, reporting, running, stats, svg
from orcbench.lbm_condition import Condition
from orcbench.stats import Figure
from orcbench.throttling import Groups

GOALS = {"async_16_over_1": ("<=", 1.2)}
NODES = (1, 2, 4, 8, 16)
MODES = {"sync": "synchronous", "async": "asynchronous"}


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cells", type=int, default=48, help="edge of a node's box (default 48: 18 MiB)"
    )
    parser.add_argument("--rounds", type=int, default=9, help="windows of each kind (default 9)")
    parser.add_argument(
        "--disk-mb-per-s", type=int, default=20, help="of each node's disk (default 20)"
    )


def condition(args: argparse.Namespace, solver: str, nodes: int) -> Condition:
    """Windows of one number of nodes."""
    rates = {f"n{number}": args.disk_mb_per_s * 1_000_000 for number in range(nodes)}
    with Groups(args.dir, rates) as groups:
        names = ",".join(rates)
        move = f'echo 0 > {groups.top}/n$OMPI_COMM_WORLD_RANK/cgroup.procs && exec "$@"'
        return Condition(
            args,
            {"solver": solver},
            f"{nodes} nodes",
            args.rounds,
            0,
            (1,),
            calibrated=False,
            modes=tuple(MODES),
            ranks=nodes,
            threads=1,
            depth=args.cells * nodes,
            options=f"node_name = '{names}'\n",
            each=("sh", "-c", move, "sh"),
        )


def shares(found: Condition, mode: str) -> list[float]:
    """Windows of a mode ÷ their neighbours."""
    return [window["s"] / (window["s"] - lost) for lost, window in found.lost(mode)]


def main() -> None:
    args = running.arguments("weak", __doc__, more)
    running.end_on_signals()
    why = Groups.missing(args.dir)
    if why:
        reporting.not_measured(args, "weak", why, GOALS)
        return
    args.ranks, args.threads, args.copy_threads = 1, 1, None
    solver, machine = running.build(args.prefix, "solver"), facts.Machine(args.dir)
    found: dict[int, Condition] = {}
    figures: dict[str, Figure] = {}
    rows = []
    for nodes in NODES:
        found[nodes] = condition(args, solver, nodes)
        for mode in MODES:
            each = shares(found[nodes], mode)
            figures[f"{mode}_{nodes}_nodes"] = stats.figure(each)
            below = figures[f"{mode}_{NODES[0]}_nodes"]["value"]
            figures[f"{mode}_{nodes}_over_1"] = stats.figure([one / below for one in each])
        rows.append(
            [nodes, *(f"{figures[f'{mode}_{nodes}_nodes']['value']:.3f}" for mode in MODES)]
        )
    print(f"\na window with a checkpoint ÷ without, {args.disk_mb_per_s} MB/s a node")
    reporting.table(["nodes", *MODES.values()], rows)
    raw = {nodes: one.samples for nodes, one in found.items()}
    footnote = reporting.finish(args, "weak", machine, figures, GOALS, {"raw": raw})
    panel = svg.Panel("a window with a checkpoint ÷ without", "nodes", "", log_x=True)
    for mode, title in MODES.items():
        panel.line(title, [(n, statistics.median(shares(one, mode))) for n, one in found.items()])
    svg.save(os.path.join(args.results, "weak.svg"), footnote, [panel])


if __name__ == "__main__":
    main()
