"""Does HPL end with its own residual check passed after ten kills?

It is not ours: you have the sources of HPCC 1.5 (hpcc-1.5.0, as distributions have them), and
`--hpl DIR` or HPL_DIR names their directory. Nothing is fetched. A copy of its `hpl/` gets three
lines in HPL_pdgesv0, which factors the matrix panel by panel, and calls `bench/src/hpl.c` from
there; two MPI functions that were removed in MPI 3.0 get their new names. The reference BLAS
computes (Debian: libblas-dev).

It takes a checkpoint every `--every-s` seconds and is killed (SIGKILL, all ranks at once) at a
random moment after the first new one, again and again. Then it runs to its end, computes the
residual, and says PASSED or FAILED.
"""

import argparse
import glob
import os
import re
import shutil

from orcbench import facts, killing, reporting, running, stats

GOALS = {"hpl_verified": (">=", 1)}
LOOP = "for( j = 0; j < N; j += nb )\n   {"
PATCHES = {
    "src/pgesv/HPL_pdgesv0.c": (
        ('#include "hpl.h"', '#include "hpl.h"\n#include "hpl_checkpoints.h"'),
        (LOOP, LOOP.replace("j = 0", "j = hpl_begin( GRID->all_comm, A )") + " hpl_panel( j );"),
        ("   (void) HPL_pdpanel_disp(", "   hpl_end();\n   (void) HPL_pdpanel_disp("),
    ),
    "src/comm/HPL_packL.c": (
        ("MPI_Type_struct(", "MPI_Type_create_struct("),
        ("MPI_Address(", "MPI_Get_address("),
    ),
}
HEADER = """int hpl_begin(MPI_Comm comm, const HPL_T_pmat *matrix);
void hpl_panel(int column);
void hpl_end(void);
"""
INPUT = """HPLinpack benchmark input file
with checkpoints
HPL.out output file name
8 device out
1 # of problems sizes (N)
{n} Ns
1 # of NBs
64 NBs
0 PMAP process mapping
1 # of process grids (P x Q)
{p} Ps
{q} Qs
16.0 threshold
1 # of panel fact
2 PFACTs
1 # of recursive stopping criterium
4 NBMINs
1 # of panels in recursion
2 NDIVs
1 # of recursive panel fact.
1 RFACTs
1 # of broadcast
1 BCASTs
1 # of lookahead depth
0 DEPTHs
2 SWAP
64 swapping threshold
0 L1 in
0 U in
1 Equilibration
8 memory alignment
"""
PASSED = re.compile(r"\bPASSED\b")


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hpl", default=os.environ.get("HPL_DIR"), help="the directory hpcc-1.5.0 of its sources"
    )
    parser.add_argument("--size", type=int, default=8000, help="order of the matrix (default 8000)")
    killing.more(parser)


def build(args: argparse.Namespace, where: str) -> str:
    """A copy of the sources with our lines, compiled; the program's path."""
    copy, program = os.path.join(where, "hpl"), os.path.join(where, "xhpl")
    shutil.copytree(os.path.join(args.hpl, "hpl"), copy)
    with open(os.path.join(copy, "include", "hpl_checkpoints.h"), "w") as file:
        file.write(HEADER)
    for path, changes in PATCHES.items():
        full = os.path.join(copy, path)
        with open(full) as file:
            text = file.read()
        for before, after in changes:
            if before not in text:
                raise RuntimeError(f"{path} has no '{before}'; these are not the sources of 1.5")
            text = text.replace(before, after)
        with open(full, "w") as file:
            file.write(text)
    files = [one for part in ("src", "testing") for one in glob.glob(f"{copy}/{part}/*/*.c")]
    own = os.path.join(running.ROOT, "bench", "src", "hpl.c")
    libs = [f"-L{args.prefix}/lib", f"-Wl,-rpath,{args.prefix}/lib", "-lorcheck", "-lblas", "-lm"]
    includes = [f"-I{copy}/include", f"-I{args.hpl}/include", f"-I{args.prefix}/include"]
    # Its sources are from before C99.
    command = ["mpicc", "-std=gnu89", "-O2", "-w", *includes, *files]
    objects = os.path.join(where, "objects")
    os.mkdir(objects)
    killing.checked([*command, "-c"], objects, running.environment())
    compiled = glob.glob(f"{objects}/*.o")
    link = ["mpicc", "-O2", *includes, own, *compiled, *libs, "-o", program]
    killing.checked(link, where, running.environment())
    shutil.rmtree(copy)
    return program


def grid(ranks: int) -> tuple[int, int]:
    """The squarest grid of processes."""
    rows = next(one for one in range(int(ranks**0.5), 0, -1) if ranks % one == 0)
    return rows, ranks // rows


def main() -> None:
    args = running.arguments("hpl", __doc__, more)
    running.end_on_signals()
    if not args.hpl or not os.path.isdir(os.path.join(args.hpl, "hpl", "src", "pgesv")):
        why = "the sources of HPL are not here. Next: --hpl DIR, the directory hpcc-1.5.0"
        reporting.not_measured(args, "hpl", why, GOALS)
        return
    args.hpl = os.path.abspath(args.hpl)
    machine = facts.Machine(args.dir)
    with running.scratch(args.dir) as where:
        program = build(args, where)
        rows, columns = grid(args.ranks)
        with open(os.path.join(where, "hpccinf.txt"), "w") as file:
            file.write(INPUT.format(n=args.size, p=rows, q=columns))
        killed = killing.kill_and_finish(args, "hpl", program, where, PASSED, "hpccoutf.txt")
    enough = killed["verified"] and len(killed["steps"]) >= 10
    print(f"\nkilled {len(killed['steps'])} times, newest column at each: {killed['steps']}")
    print("\n".join(line for line in killed["said"].splitlines() if PASSED.search(line)))
    figures = {"hpl_verified": stats.figure([int(enough)])}
    reporting.finish(args, "hpl", machine, figures, GOALS, {"kills": killed})


if __name__ == "__main__":
    main()
