#!/usr/bin/env python3
"""Runs the smallest examples twice: the second run continues where the first one ended."""

import os
import subprocess
import sys
import tempfile

SUM = sum(1 / n for n in range(1, 10001))


def lines(program: str, directory: str) -> list[str]:
    environment = dict(os.environ, ORCHECK_GLOBAL=directory)
    done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=120)
    if done.returncode:
        sys.exit(f"{program} ended with {done.returncode}: {done.stderr}")
    return done.stdout.split("\n")


def main() -> None:
    for program in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as directory:
            for begin in (0, 10000):
                first, last = lines(program, directory)[:2]
                if first != f"from step {begin}" or abs(float(last.split()[-1]) - SUM) > 1e-9:
                    sys.exit(
                        f"{program}: expected step {begin} and {SUM:.12f}, found {first!r} and "
                        f"{last!r}"
                    )
    print(f"{len(sys.argv) - 1} passed, 0 failed")


if __name__ == "__main__":
    main()
