"""Runs one benchmark by its name, or lists them: python3 -m orcbench [NAME [OPTION...]]."""

import importlib
import sys
from types import ModuleType

# One module each. The Makefile reads this list.
BENCHMARKS = (
    "contention",
    "elastic",
    "files",
    "mount",
    "mount-load",
    "flush",
    "hpl",
    "lbm",
    "mixed",
    "model",
    "npb",
    "overlap",
    "parity",
    "peers",
    "peers-runs",
    "pfs",
    "replication",
    "restart",
    "scale",
    "small",
    "staging",
    "stall",
    "tiers",
    "waste",
    "waste-levels",
    "weak",
)


def module_of(name: str) -> ModuleType:
    return importlib.import_module("orcbench." + name.replace("-", "_"))


def question(name: str) -> str:
    """The first line of what a benchmark says of itself."""
    return (module_of(name).__doc__ or "").splitlines()[0]


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print("usage: orcbench NAME [OPTION...]      (orcbench NAME --help: its options)\n")
        for name in BENCHMARKS:
            print(f"  {name:<12} {question(name)}")
        return 0
    name = sys.argv.pop(1)
    if name not in BENCHMARKS:
        print(f"there is no benchmark '{name}'. Next: choose one of:", file=sys.stderr)
        for known in BENCHMARKS:
            print(f"    make bench-{known}", file=sys.stderr)
        return 2
    module_of(name).main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
