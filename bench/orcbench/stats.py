"""Statistics of samples: spread, bootstrap intervals, and the figures that have both."""

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

# What a program measured, as its JSON has it; and that of several ways, in order of the rounds.
Sample = dict[str, Any]
Samples = dict[str, list[Sample]]
# Key -> "<=" or ">=", and the number.
Goals = Mapping[str, tuple[str, float]]


class Spread(TypedDict):
    """Median, quartiles and extremes of samples."""

    median: float
    q1: float
    q3: float
    min: float
    max: float
    n: int


class Figure(TypedDict):
    """A figure and its 95 % interval; value None: it could not be measured."""

    value: Any
    interval: list[float] | None
    n: int


def spread(values: Sequence[float]) -> Spread:
    """Median, quartiles and extremes of at least one value."""
    ordered = sorted(values)
    quartiles = (
        statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else ordered * 3
    )
    return {
        "median": statistics.median(ordered),
        "q1": quartiles[0],
        "q3": quartiles[2],
        "min": ordered[0],
        "max": ordered[-1],
        "n": len(ordered),
    }


def spread_if_any(values: Sequence[float]) -> Spread | None:
    """The same, where there may be no value at all."""
    return spread(values) if values else None


def interval(
    values: Sequence[Any],
    of: Callable[[Sequence[Any]], float] = statistics.median,
    resamples: int = 4000,
) -> list[float] | None:
    """Bootstrap 95 % confidence interval of a statistic; rows (tuples) are resampled as a whole."""
    if len(values) < 2:
        return None
    source = random.Random(1)
    found = sorted(of(source.choices(values, k=len(values))) for _ in range(resamples))
    return [found[int(0.025 * resamples)], found[int(0.975 * resamples)]]


def figure(
    values: Sequence[Any], of: Callable[[Sequence[Any]], float] = statistics.median
) -> Figure:
    """A figure from paired samples: its value, its interval and the number of samples."""
    if not values:
        return {"value": None, "interval": None, "n": 0}
    return {"value": of(values), "interval": interval(values, of), "n": len(values)}


def ratio_of_medians(rows: Sequence[tuple[float, float]]) -> float:
    """Of two columns whose values may be near zero, where a median of ratios would be wild."""
    below = statistics.median(row[1] for row in rows)
    return statistics.median(row[0] for row in rows) / below if below > 0 else float("inf")


def ratio_of_means(rows: Sequence[tuple[float, float]]) -> float:
    """Of two columns."""
    return statistics.mean(row[0] for row in rows) / statistics.mean(row[1] for row in rows)


def chance(differences: Sequence[float], flips: int = 20000) -> float:
    """One-sided p-value of paired differences: how often their sum is as large when each has its
    sign by chance.
    """
    source, total = random.Random(1), sum(differences)
    as_large = sum(
        sum(d if source.getrandbits(1) else -d for d in differences) >= total - 1e-12
        for _ in range(flips)
    )
    return (1 + as_large) / (1 + flips)
