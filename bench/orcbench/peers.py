"""How do SCR, VELOC and FTI do with the same program, where they are installed?

A library is found by pkg-config (scr, veloc, fti), or under the prefix that SCR_DIR, VELOC_DIR or
FTI_DIR names. One that is not found is a row marked missing. Each is set up as its users would for
a checkpoint that outlives the job: SCR with an asynchronous flush, VELOC in asynchronous mode, FTI
at level 4. All write to the same disk, in turn.

blocked: how long the call keeps the program; durable: from the call until the library says that it
is safe, with nothing beside it; slower: what a window of computation with a checkpoint takes longer
than one without; memory: what the machine had less of, wherever the library keeps it. SCR does not
tell when a flush has ended.

The adapters for SCR, VELOC and FTI have neither been compiled with their headers nor run yet.
"""

import argparse
import os
import statistics
import subprocess
from collections.abc import Callable

from orcbench import facts, reporting, running, stats, svg
from orcbench.stats import Sample, Samples

NAMES = {
    "orcheck": "Orcheck",
    "posix": "write + fsync",
    "scr": "SCR",
    "veloc": "VELOC",
    "fti": "FTI",
}
LIBRARIES = {"scr": ["-lscr"], "veloc": ["-lveloc-client"], "fti": ["-lfti", "-lcrypto", "-lm"]}


# Title, unit and value of each panel.
SHOWN: list[tuple[str, str, Callable[[Sample], float]]] = [
    ("blocked", "ms", lambda one: 1e3 * one["blocked_s"]),
    ("durable", "s", lambda one: one["durable_s"]),
    ("slower", "ms", lambda one: 1e3 * (one["with_s"] - one["window_s"])),
]


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mib", type=int, default=512, help="MiB of state of each rank (default 512)"
    )
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument(
        "--rounds", type=int, default=None, help="rounds in each turn (default 4, --full 15)"
    )
    parser.add_argument(
        "--turns", type=int, default=None, help="turns through all libraries (default 2, --full 3)"
    )


def flags_of(name: str) -> list[str] | None:
    """How to compile with a library; None where it is not found."""
    prefix = os.environ.get(f"{name.upper()}_DIR")
    if prefix:
        libs = [path for path in (f"{prefix}/lib64", f"{prefix}/lib") if os.path.isdir(path)]
        return [
            f"-I{prefix}/include",
            *(word for path in libs for word in (f"-L{path}", f"-Wl,-rpath,{path}")),
            *LIBRARIES[name],
        ]
    found = facts.output("pkg-config", "--cflags", "--libs", name)
    return found.split() or None


def settings(name: str, where: str, ranks: int) -> tuple[str, dict[str, str]]:
    """What a library reads: a file, and the environment."""
    local, conf = os.path.join(where, "local"), os.path.join(where, "conf")
    os.makedirs(local)
    text, env = "", {}
    if name == "veloc":
        text = f"scratch = {local}\npersistent = {where}\nmode = async\n"
    if name == "fti":
        text = (
            f"[basic]\nhead = 0\nnode_size = {ranks}\nckpt_dir = {local}\nglbl_dir = "
            f"{where}\nmeta_dir = {local}\n"
            "ckpt_l1 = 0\nckpt_l2 = 0\nckpt_l3 = 0\nckpt_l4 = 0\ninline_l2 = 1\ninline_l3 = "
            "1\ninline_l4 = 1\n"
            "keep_last_ckpt = 0\ngroup_size = 1\nmax_sync_intv = 0\nckpt_io = 1\nverbosity = 3\n"
            "[restart]\nfailure = 0\nexec_id = NULL\n[injection]\nrank = 0\nnumber = 0\nposition = "
            "0\nfrequency = 0\n"
            "[advanced]\nblock_size = 1024\ntransfer_size = 16\ngeneral_tag = 2612\nckpt_tag = "
            "711\nstage_tag = 406\n"
            "final_tag = 3107\nlocal_test = 1\nlustre_striping_unit = "
            "4194304\nlustre_striping_factor = -1\n"
            "lustre_striping_offset = -1\n"
        )
    if name == "scr":
        env = {
            "SCR_PREFIX": where,
            "SCR_CACHE_BASE": local,
            "SCR_CNTL_BASE": local,
            "SCR_FLUSH": "1",
            "SCR_FLUSH_ASYNC": "1",
            "SCR_COPY_TYPE": "SINGLE",
            "SCR_CACHE_SIZE": "2",
        }
    with open(conf, "w") as file:
        file.write(text)
    return conf, env


def run(args: argparse.Namespace, program: str, name: str, rounds: int) -> list[Sample]:
    with running.scratch(args.dir) as where:
        conf, env = settings(name, where, args.ranks)
        kept = {key: os.environ.get(key) for key in env}
        os.environ.update(env)
        try:
            found: list[Sample] = running.run(
                program,
                args.ranks,
                [
                    "--with",
                    name,
                    "--size",
                    args.mib * running.MIB,
                    "--dir",
                    where,
                    "--conf",
                    conf,
                    "--rounds",
                    rounds,
                ],
            )
            return found
        finally:
            for key, value in kept.items():
                os.environ.pop(key) if value is None else os.environ.update({key: value})


def show(args: argparse.Namespace, samples: Samples, missing: dict[str, str]) -> None:
    rows = []
    for name, title in NAMES.items():
        if name not in samples:
            rows.append([title, "missing", "", "", ""])
            continue
        median = {
            key: statistics.median(one[key] for one in samples[name])
            for key in ("blocked_s", "durable_s", "memory_bytes")
        }
        slower = statistics.median(one["with_s"] - one["window_s"] for one in samples[name])
        durable = f"{median['durable_s']:.3f}" if samples[name][0]["tells"] else "-"
        rows.append(
            [
                title,
                f"{1e3 * median['blocked_s']:.1f}",
                durable,
                f"{1e3 * slower:.0f}",
                f"{median['memory_bytes'] / running.MIB:.0f}",
            ]
        )
    print(
        f"\n{args.ranks} rank(s) of {args.mib} MiB, "
        f"{statistics.median(one['window_s'] for one in samples['orcheck']):.1f} s of computing a "
        "window"
    )
    reporting.table(["", "blocked ms", "durable s", "slower by ms", "memory MiB"], rows)
    for name, why in missing.items():
        print(f"{NAMES[name]} is missing: {why}")


def panels_of(samples: Samples) -> list[svg.Panel]:
    there = [name for name in NAMES if name in samples]
    panels = []
    for title, unit, value in SHOWN:
        panel = svg.Panel(
            title, "", unit, x_names=[(i, NAMES[name]) for i, name in enumerate(there)]
        )
        for i, name in enumerate(there):
            found = stats.spread([value(one) for one in samples[name]])
            panel.line(NAMES[name], [(i, found["median"], found["q1"], found["q3"])])
        panels.append(panel)
    return panels


def main() -> None:
    args = running.arguments("peers", __doc__, more)
    running.end_on_signals()
    programs = dict.fromkeys(("orcheck", "posix"), running.build(args.prefix, "peers"))
    missing = {}
    for name in LIBRARIES:
        flags = flags_of(name)
        if flags is None:
            missing[name] = f"not found by pkg-config, and {name.upper()}_DIR is not set"
            continue
        try:
            programs[name] = running.build(
                args.prefix, "peers", name, [f"-DWITH_{name.upper()}", *flags]
            )
        except subprocess.CalledProcessError:
            missing[name] = "found, but the adapter does not compile with it (above)"
    machine = facts.Machine(args.dir)
    rounds, turns = args.rounds or (15 if args.full else 4), args.turns or (3 if args.full else 2)
    samples: Samples = {name: [] for name in programs}
    names = list(programs)
    for turn in range(turns):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if name in missing:
                continue
            try:
                samples[name] += run(args, programs[name], name, rounds)
            except (RuntimeError, ValueError) as error:
                if name in ("orcheck", "posix"):
                    raise
                missing[name] = f"failed: {str(error).strip().splitlines()[-1]}"
                del samples[name]
    show(args, samples, missing)
    figures = {
        f"{key}_over_{name}": stats.figure(
            [
                (a[f"{key}_s"] / b[f"{key}_s"])
                for a, b in zip(samples["orcheck"], samples.get(name, []))
            ]
        )
        for name in NAMES
        if name != "orcheck"
        for key in ("blocked", "durable")
    }
    figures["window_over_window"] = stats.figure(
        [b["window_s"] / a["window_s"] for a, b in zip(samples["posix"], samples["posix"][1:])]
    )
    footnote = reporting.finish(
        args, "peers", machine, figures, {}, {"missing": missing, "raw": samples}
    )
    panels = panels_of(samples)
    svg.save(os.path.join(args.results, "peers.svg"), footnote, panels)


if __name__ == "__main__":
    main()
