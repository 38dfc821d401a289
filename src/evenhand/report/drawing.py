"""Drawing: what all figures share. Their colors are those of pages; the same data give the same bytes."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from evenhand.report import palette
from evenhand.training.store import write_bytes

Curves = npt.NDArray[np.float64]  # (seeds, epochs)
INK, SOFT, RULE = (palette.THEMES["light"][name] for name in ("ink", "soft", "rule"))
MAJORITY, MINORITY, ACCENT = (palette.THEMES["light"][name] for name in ("majority", "minority", "accent"))
GOLD = "#e0b03a"
SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # included in matplotlib, so figures are the same everywhere
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
    "text.parse_math": False,  # names come from data, where a dollar sign starts no formula
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
    """A finished figure with its title, caption and data."""

    name: str
    figure: Figure
    title: str
    caption: str
    data: dict[str, Any] = field(default_factory=dict)


@contextmanager
def look() -> Iterator[None]:
    """Draw and save in a context that neither uses nor changes the user's matplotlib settings."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        known: Any = matplotlib.rcParams  # its keys are typed individually, but not in all versions
        known.update(SETTINGS)
        yield


def encode(drawn: Drawn, form: str) -> bytes:
    """Return the figure as svg, png or pdf."""
    buffer = io.BytesIO()
    with look():
        drawn.figure.savefig(buffer, format=form, dpi=200, metadata=METADATA[form])
    return buffer.getvalue()


def save(drawn: Drawn, out: Path) -> Path:
    """Write the figure in the format of the file's suffix."""
    write_bytes(out, encode(drawn, check_form(out)))
    return out


def check_form(out: Path) -> str:
    """Return the format of a file's suffix; raises ValueError for one that is not in METADATA."""
    form = out.suffix.removeprefix(".").lower()
    if form not in METADATA:
        raise ValueError(f"a figure's file must end with .{', .'.join(METADATA)}, got {str(out)!r}")
    return form


# -- parts that figures share ------------------------------------------------------------------------------


def panels(height: float, **grid: Any) -> tuple[Figure, Any]:
    """Return a figure and its axes, (rows, columns); `finish` adds room for the title and the caption.

    The axes are in a subfigure, so a legend outside them does not overlap the title.
    """
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    part: Any = figure.subfigures(1, 1)
    return figure, part.subplots(squeeze=False, **grid)


def finish(name: str, figure: Figure, heading: str, caption: str, data: dict[str, Any]) -> Drawn:
    """Add the title above and the caption below the axes."""
    lines = textwrap.wrap(caption, 128)
    above, below = 0.28, 0.16 + 0.135 * len(lines)
    width, height = figure.get_size_inches()
    total = height + above + below
    figure.set_size_inches(width, total)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, below / total, 1, height / total))
    figure.text(0.012, 1 - 0.06 / total, heading, fontsize=9.5, fontweight="bold", va="top", ha="left")
    figure.text(
        0.012, (below - 0.1) / total, "\n".join(lines), fontsize=7, color=SOFT, va="top", ha="left",
        linespacing=1.3,
    )  # fmt: skip
    return Drawn(name, figure, heading, caption, data)


def color(method: str) -> str:
    """Return a method's color, as on pages."""
    return palette.look(method).light


def number(axes: Axes, x: float, y: float, text: str, size: float = 7, **more: Any) -> None:
    """Draw a number above a bar, readable over lines."""
    outline = [withStroke(linewidth=2, foreground="white")]
    axes.annotate(text, (x, y), xytext=(0, 1.5), textcoords="offset points", ha="center", va="bottom",
                  fontsize=size, path_effects=outline, zorder=5, **more)  # fmt: skip


def curve(axes: Axes, curves: Curves, colour: str, band: str, alpha: float, width: float) -> Any:
    """Draw the mean over seeds in a band of their range, and return the epochs."""
    epochs = np.arange(1, curves.shape[1] + 1)
    if len(curves) > 1:
        axes.fill_between(epochs, curves.min(0), curves.max(0), color=band, alpha=alpha, linewidth=0)
    axes.plot(epochs, curves.mean(0), color=colour, linewidth=width)
    return epochs


def epoch_axis(axes: Axes) -> None:
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))


def percent_axis(axes: Axes, low: float | None = None, high: float | None = None) -> None:
    """Format a percentage axis. Limits of None fit the data, with at least one point of height."""
    bottom, top = axes.get_ylim()
    slack = max(0.0, 1 - (top - bottom)) / 2
    axes.set_ylim(bottom - slack if low is None else low, top + slack if high is None else high)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}%" if 0 <= value <= 100 else "")
