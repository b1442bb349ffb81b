"""The states that a tested program saves: every 64 bytes say whose they are.

A cell is eight numbers of 64 bits: run, step, magic | region, rank, offset, ~run, ~step, and a sum
of both. So bytes of an older step, of another place, zeros and mixtures are recognised for what
they are, and not only as different. A state is four regions of equal length, one after the other in
a file. The first changes with every step, the others with every odd one, and then keep that step's
cells: as in programs that do not change everything.
"""

import os
import struct
from collections.abc import Mapping

MAGIC = 0x0C4EC4ED00000000
REGIONS = 4
CELL = 64
WORD = (1 << 64) - 1


def state(run: int, step: int, len_bytes: int) -> bytes:
    """The state of a step: len_bytes bytes, a multiple of 4 * 64."""
    region_bytes = len_bytes // REGIONS
    cells = []
    for region in range(REGIONS):
        of = step if region == 0 else step - 1 + step % 2
        for offset in range(0, region_bytes, CELL):
            cells.append(
                struct.pack(
                    "<8Q",
                    run,
                    of,
                    MAGIC | region,
                    0,
                    offset,
                    run ^ WORD,
                    of ^ WORD,
                    run * 1_000_003 + of,
                )
            )
    return b"".join(cells)


def write_series(directory: str, run: int, steps: int, len_bytes: int) -> dict[int, bytes]:
    """Writes the states of steps 1 to steps as files of these names; returns {step: bytes}."""
    os.makedirs(directory, exist_ok=True)
    series = {}
    for step in range(1, steps + 1):
        series[step] = state(run, step, len_bytes)
        with open(os.path.join(directory, str(step)), "wb") as file:
            file.write(series[step])
    return series


def step_of(found: bytes, series: Mapping[int, bytes]) -> int | None:
    """Which step's state these bytes are, exactly; None if of none."""
    return next((step for step, expected in series.items() if found == expected), None)


def explain(found: bytes, expected: bytes) -> str:
    """What is wrong with bytes that are no state, in words."""
    if len(found) != len(expected):
        length = f"{len(found)} bytes instead of {len(expected)}; "
    else:
        length = ""
    wrong = [
        at
        for at in range(0, min(len(found), len(expected)), CELL)
        if found[at : at + CELL] != expected[at : at + CELL]
    ]
    if not wrong:
        return length.rstrip("; ") or "as expected"
    at = wrong[0]
    cell, told = found[at : at + CELL], "bytes of nobody"
    if cell == bytes(len(cell)):
        told = "zeros"
    elif len(cell) == CELL:
        run, step, magic, _, offset, not_run, not_step, _ = struct.unpack("<8Q", cell)
        if not_run == run ^ WORD and not_step == step ^ WORD and magic & ~0xFF == MAGIC:
            told = f"those of step {step}, region {magic & 0xFF}, offset {offset}"
    region_bytes = len(expected) // REGIONS
    place = f"region {at // region_bytes}, offset {at % region_bytes}"
    return f"{length}{len(wrong)} cells wrong, the first at {place}: {told}"
