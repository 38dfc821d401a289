"""The look of all figures: the page's colours, legible at column width, the same bytes for the same data."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from evenhand.report import palette
from evenhand.training.store import write_bytes

INK, SOFT, RULE, WASH = (palette.THEMES["light"][name] for name in ("ink", "soft", "rule", "wash"))
MAJORITY, MINORITY, ACCENT = (palette.THEMES["light"][name] for name in ("majority", "minority", "accent"))
GOLD = "#e0b03a"
OUTLINE = [withStroke(linewidth=2, foreground="white")]  # keeps numbers clear of lines
SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so figures are the same everywhere
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.5,
    "hatch.linewidth": 0.6,
    "figure.facecolor": "white",
    "text.parse_math": False,  # names come from data: a dollar sign in one is no formula
    "svg.hashsalt": "evenhand",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
}
METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "evenhand"},
    "pdf": {"CreationDate": None, "Creator": "evenhand", "Producer": "evenhand"},
    "png": {"Software": None},
}
WIDTH = 7.0  # inches: two columns of text


@dataclass(frozen=True, eq=False)
class Drawn:
    """A finished figure, what it says in words, and the numbers that it shows."""

    name: str
    figure: Figure
    title: str
    caption: str
    data: dict[str, Any] = field(default_factory=dict)


def colour(method: str) -> str:
    """A method's colour, the same as on pages."""
    return palette.look(method).light


def marker(method: str) -> str:
    return palette.look(method).marker


@contextmanager
def look() -> Iterator[None]:
    """Draw and save in here: the reader's own matplotlib settings do not count, nor are they changed."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        known: Any = matplotlib.rcParams  # its keys are typed one by one, not in all versions
        known.update(SETTINGS)
        yield


def new(height: float, **grid: Any) -> tuple[Figure, Any]:
    """A figure with axes, (rows, columns) of them; room for title and caption is added by `finish`.

    The axes stand in a part of the figure, so that a legend outside them stays clear of the title.
    """
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    part: Any = figure.subfigures(1, 1)
    return figure, part.subplots(squeeze=False, **grid)


def finish(name: str, figure: Figure, title: str, caption: str, data: dict[str, Any]) -> Drawn:
    """Put the title above and the caption below, each on room of its own."""
    lines = textwrap.wrap(caption, 128)
    above, below = 0.28, 0.16 + 0.135 * len(lines)
    width, height = figure.get_size_inches()
    total = height + above + below
    figure.set_size_inches(width, total)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, below / total, 1, height / total))
    figure.text(0.012, 1 - 0.06 / total, title, fontsize=9.5, fontweight="bold", va="top", ha="left")
    figure.text(
        0.012, (below - 0.1) / total, "\n".join(lines), fontsize=7, color=SOFT, va="top", ha="left",
        linespacing=1.3,
    )  # fmt: skip
    return Drawn(name, figure, title, caption, data)


def encode(drawn: Drawn, form: str) -> bytes:
    """The figure as svg, png or pdf; the same data give the same bytes."""
    if form not in METADATA:
        raise ValueError(f"a figure is written as {', '.join(METADATA)}, got {form!r}")
    buffer = io.BytesIO()
    with look():
        drawn.figure.savefig(buffer, format=form, dpi=200, metadata=METADATA[form])
    return buffer.getvalue()


def save(drawn: Drawn, out: Path) -> Path:
    """Write the figure in the form that the file's name ends with."""
    write_bytes(out, encode(drawn, check_form(out)))
    return out


def check_form(out: Path) -> str:
    """The form that a file's name ends with; one that is not ours is refused."""
    form = out.suffix.removeprefix(".").lower()
    if form not in METADATA:
        raise ValueError(f"a figure's file must end with .{', .'.join(METADATA)}, got {str(out)!r}")
    return form


def legend_above(axes: Axes, handles: list[Any]) -> None:
    """One legend for all axes of a figure."""
    axes.figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), columnspacing=1.2)


def epoch_axis(axes: Axes) -> None:
    """An axis of whole epochs."""
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))


def percent_axis(axes: Axes, low: float | None = None, high: float | None = 100) -> None:
    """An axis of per cents; a limit of None fits what is drawn, with at least a point of height."""
    bottom, top = axes.get_ylim()
    slack = max(0.0, 1 - (top - bottom)) / 2
    axes.set_ylim(bottom - slack if low is None else low, top + slack if high is None else high)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}%" if 0 <= value <= 100 else "")
