"""Statistics of samples: spread, bootstrap intervals, and the figures that have both."""

import random
import statistics


def spread(values):
    """Median, quartiles and extremes."""
    if not values:
        return None
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


def interval(values, of=statistics.median, resamples=4000):
    """Bootstrap 95 % confidence interval of a statistic; rows (tuples) are resampled as a whole."""
    if len(values) < 2:
        return None
    source = random.Random(1)
    found = sorted(of(source.choices(values, k=len(values))) for _ in range(resamples))
    return [found[int(0.025 * resamples)], found[int(0.975 * resamples)]]


def figure(values, of=statistics.median):
    """A figure from paired samples: its value, its interval and the number of samples."""
    if not values:
        return {"value": None, "interval": None, "n": 0}
    return {"value": of(values), "interval": interval(values, of), "n": len(values)}
