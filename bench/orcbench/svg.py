"""Plots of the benchmarks as SVG, by the standard library alone.

panel = Panel("title", "x axis", "y axis", log_x=True, log_y=True)
panel.line("name", [(x, y), (x, y, low, high), ...], dashed=False)
panel.limit(1.5, "goal")
save("bench/results/name.svg", "footnote", [panel, ...])
"""

import math
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from html import escape

COLOURS = ["#1f5fa8", "#c8501e", "#3a8a3f", "#7a4aa0", "#a0791a", "#4a4a4a", "#c2437f", "#2a9aa0"]
# From a value to a place in the picture.
Scale = Callable[[float], float]
# x, y, and the bounds of y.
Point = tuple[float, float, float | None, float | None]
# Name, points, dashed, joined, colour, hollow, dots.
Line = tuple[str | None, list[Point], bool, bool, str, bool, bool]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 400, 66, 16, 46, 62


class Panel:
    def __init__(
        self,
        title: str,
        x_label: str,
        y_label: str,
        log_x: bool = False,
        log_y: bool = False,
        x_names: Sequence[tuple[float, object]] | None = None,
        y_from_zero: bool = True,
        x_even: bool = False,
    ) -> None:
        """x_even: round numbers at the x axis instead of the points' own."""
        self.x_even = x_even
        self.title, self.x_label, self.y_label = title, x_label, y_label
        self.log_x, self.log_y, self.x_names, self.y_from_zero = log_x, log_y, x_names, y_from_zero
        self.lines: list[Line] = []
        self.limits: list[tuple[float, str]] = []

    def line(
        self,
        name: str | None,
        points: Iterable[Sequence[float | None]],
        dashed: bool = False,
        joined: bool = True,
        colour: int | None = None,
        hollow: bool = False,
        dots: bool = True,
    ) -> None:
        """points: (x, y) or (x, y, low, high); y None: left out. colour: a number, default the
        next. name None: not in the key. dots: mark each point."""
        drawn: list[Point] = []
        for x, y, *bounds in points:
            if x is not None and y is not None and not (self.log_y and y <= 0):
                low, high = (*bounds, None, None)[:2]
                drawn.append((x, y, low, high))
        if drawn:
            number = len(self.lines) % len(COLOURS) if colour is None else colour
            self.lines.append((name, drawn, dashed, joined, COLOURS[number], hollow, dots))

    def limit(self, y: float, name: str) -> None:
        self.limits.append((y, name))

    def _range(self) -> tuple[float, float, float, float]:
        xs = [p[0] for line in self.lines for p in line[1]] or [1, 2]
        ys = [v for line in self.lines for p in line[1] for v in p[1:] if v is not None]
        ys += [y for y, _ in self.limits]
        ys = [y for y in ys if not self.log_y or y > 0] or [1]
        x0, x1, y0, y1 = min(xs), max(xs), min(ys), max(ys)
        if self.log_y:
            y0, y1 = (
                10 ** math.floor(math.log10(y0)),
                10 ** (math.ceil(math.log10(y1 * 1.05)) + (len(self.lines) > 3)),
            )
        else:
            y0 = min(0.0, y0) if self.y_from_zero else y0
            y0 -= 0.05 * (y1 - y0) if y0 < 0 else 0
            y1 += (0.04 + 0.05 * len(self.lines)) * ((y1 - y0) or 1)  # room for the key
        if self.log_x:
            x0, x1 = x0 / 1.2, x1 * 1.2
        else:
            pad = 0.06 * ((x1 - x0) or 1)
            x0, x1 = x0 - pad, x1 + pad
        return x0, x1, y0, y1

    def _lines(self, px: Scale, py: Scale, left: float, top: float) -> tuple[list[str], list[str]]:
        """The lines, and the key to them."""
        out: list[str] = []
        key: list[str] = []
        for name, points, dashed, joined, colour, hollow, dots in self.lines:
            stroke = f'stroke="{colour}" fill="none" stroke-width="1.8"' + (
                ' stroke-dasharray="5 4"' if dashed else ""
            )
            if joined:
                path = " ".join(f"{px(p[0]):.1f},{py(p[1]):.1f}" for p in points)
                out.append(f'<polyline points="{path}" {stroke}/>')
            for x, y, low, high in points:
                if low is not None and high is not None:
                    out.append(
                        f'<line x1="{px(x):.1f}" x2="{px(x):.1f}" y1="{py(low):.1f}" '
                        f'y2="{py(high):.1f}" stroke="{colour}" stroke-width="1.2"/>'
                    )
                if dots and not dashed:
                    out.append(
                        f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="3.2" stroke="{colour}" '
                        f'fill="{"#fff" if hollow else colour}"/>'
                    )
            if name is None:
                continue
            y = top + 16 + 15 * len(key)
            mark = (
                f'<circle cx="{left + 19}" cy="{y - 4}" r="3.2" stroke="{colour}" fill="#fff"/>'
                if hollow
                else f'<line x1="{left + 8}" x2="{left + 30}" y1="{y - 4}" y2="{y - 4}" {stroke}/>'
            )
            key.append(f'{mark}<text x="{left + 36}" y="{y}" class="k">{escape(name)}</text>')
        return out, key

    def draw(self, at_x: float) -> str:
        x0, x1, y0, y1 = self._range()

        def place(value: float, low: float, high: float, log: bool) -> float:
            if log:
                return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
            return (value - low) / (high - low)

        def px(x: float) -> float:
            return at_x + LEFT + place(x, x0, x1, self.log_x) * (WIDTH - LEFT - RIGHT)

        def py(y: float) -> float:
            y = max(y, y0) if self.log_y else y
            return HEIGHT - BOTTOM - place(y, y0, y1, self.log_y) * (HEIGHT - TOP - BOTTOM)

        left, right, top, bottom = at_x + LEFT, at_x + WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
        across = (left + right) / 2
        out = [f'<text x="{across:.1f}" y="{TOP - 12}" class="t">{escape(self.title)}</text>']
        if self.log_y:
            y_ticks = [10.0**e for e in range(round(math.log10(y0)), round(math.log10(y1)) + 1)]
        else:
            y_ticks = nice_ticks(y0, y1)
        for y in y_ticks:
            out.append(
                f'<line x1="{left}" x2="{right}" y1="{py(y):.1f}" y2="{py(y):.1f}" class="g"/>'
                f'<text x="{left - 6}" y="{py(y) + 4:.1f}" class="y">{y:g}</text>'
            )
        even = [(x, f"{x:g}") for x in nice_ticks(x0, x1)] if self.x_even else None
        x_ticks = (
            self.x_names
            or even
            or [
                (x, f"{x:g}")
                for x in sorted({p[0] for line in self.lines if not line[5] for p in line[1]})
            ]
        )
        for x, name in x_ticks:
            out.append(
                f'<line x1="{px(x):.1f}" x2="{px(x):.1f}" y1="{bottom}" y2="{bottom + 4}" '
                'class="a"/>'
                f'<text x="{px(x):.1f}" y="{bottom + 17}" class="x">{escape(str(name))}</text>'
            )
        out.append(
            f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" class="b"/>'
        )
        out.append(
            f'<text x="{across:.1f}" y="{bottom + 34}" class="x">{escape(self.x_label)}</text>'
        )
        middle = (top + bottom) / 2
        out.append(
            f'<text x="{at_x + 14}" y="{middle}" class="x" '
            f'transform="rotate(-90 {at_x + 14} {middle})">{escape(self.y_label)}</text>'
        )
        for y, name in self.limits:
            out.append(
                f'<line x1="{left}" x2="{right}" y1="{py(y):.1f}" y2="{py(y):.1f}" class="l"/>'
                f'<text x="{right - 4}" y="{py(y) - 4:.1f}" class="y">{escape(name)}</text>'
            )
        lines, key = self._lines(px, py, left, top)
        out += lines
        wide = 44 + 6.2 * max((len(line[0]) for line in self.lines if line[0]), default=0)
        out.append(
            f'<rect x="{left + 3}" y="{top + 3}" width="{wide:.0f}" height="{15 * len(key) + 5}" '
            'fill="#fff" fill-opacity="0.75"/>'
        )
        return "\n".join(out + key)


def nice_ticks(low: float, high: float) -> list[float]:
    step = 10 ** math.floor(math.log10((high - low) / 4 or 1))
    for factor in (1, 2, 5, 10):
        if (high - low) / (step * factor) <= 6:
            step *= factor
            break
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


STYLE = (
    "text{font:12px sans-serif;fill:#222}.t{font-size:14px;font-weight:bold;text-anchor:middle}\n"
    ".x{text-anchor:middle}.y{text-anchor:end}.k{font-size:11px}.f{font-size:10px;fill:#666}\n"
    ".h{font-size:16px;font-weight:bold}.g{stroke:#e4e4e4}.a{stroke:#222}.b{fill:none;stroke:#222}\n"
    ".l{stroke:#b00;stroke-dasharray:2 3}"
)


def save(path: str, footnote: str, panels: Sequence[Panel]) -> None:
    """Writes an SVG, and a PNG beside it where rsvg-convert is installed."""
    width = WIDTH * len(panels)
    body = "\n".join(panel.draw(i * WIDTH) for i, panel in enumerate(panels))
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" '
        f'viewBox="0 0 {width} {HEIGHT}"><style>{STYLE}</style>'
        f'<rect width="{width}" height="{HEIGHT}" fill="#fff"/>\n{body}\n'
        f'<text x="8" y="{HEIGHT - 8}" class="f">{escape(footnote)}</text></svg>\n'
    )
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
    if shutil.which("rsvg-convert"):
        subprocess.run(["rsvg-convert", "-o", path[:-4] + ".png", path], check=False)
