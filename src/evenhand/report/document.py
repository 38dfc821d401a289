"""Document: a page as one self-contained HTML file, and its charts as data for plot.js."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import jinja2
import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

import evenhand
from evenhand.bench.results import title
from evenhand.report import palette
from evenhand.report.render import html_section
from evenhand.report.samples import Indices
from evenhand.report.words import count, percent, points

LONG_NAME = 24  # characters
MOST_POINTS = 120  # of one line: more cannot be distinguished on a screen

Floats = npt.NDArray[np.float64]
Spec = dict[str, Any]  # of a plot, as plot.js reads it


@cache
def environment() -> jinja2.Environment:
    """Return the templates. Names from data are escaped."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("evenhand.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"count": count, "percent": percent, "colour": palette.variable, "title": title}
    made.filters |= {"dotted": dotted, "options": options}
    made.filters["part"] = lambda table, section: Markup(html_section(table, section))
    return made


def dotted(name: str) -> Markup:
    """Return a long name that may be broken at its dots.

    >>> print(dotted("results.eta_parts"), dotted("my_package.methods.balanced_tab"))
    results.eta_parts my_package.<wbr>methods.<wbr>balanced_tab
    """
    return escape(name).replace(".", Markup(".<wbr>")) if len(name) > LONG_NAME else escape(name)


def options(command: str) -> Markup:
    """Return a command whose options are never broken at their dashes.

    >>> print(options("evenhand run 'a<b' erm --seed 0"))
    evenhand run &#39;a&lt;b&#39; erm <span class="unbroken">--seed</span> 0
    """
    whole = str(escape(command))
    return Markup(re.sub(r"(?<= )--[a-z-]+", r'<span class="unbroken">\g<0></span>', whole))


def document(template: str, *, explore: bool = False, **content: Any) -> str:
    """Return a page as HTML. Its content policy allows only its own script and style, and no network."""
    files = resources.files("evenhand.report") / "templates"
    style = palette.css() + (files / "page.css").read_text(encoding="utf-8")
    scripts = ["plot.js", "page.js", *(["explore.js"] if explore else [])]
    parts = "".join((files / name).read_text(encoding="utf-8") for name in scripts)
    script = f'"use strict";\n(() => {{\n{parts}}})();\n'
    digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (style, script)]
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src 'sha256-{digests[0]}'; script-src 'sha256-{digests[1]}'"
    )
    shared = {"style": Markup(style), "script": Markup(script), "policy": policy}
    made = environment().get_template(template)
    return made.render(**shared, version=evenhand.__version__, empty_plot=row_plot([]), **content)


# -- plots and lines ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mark:
    """An accuracy in a chart and a table cell."""

    value: float
    low: float  # of its interval, or of the range over seeds
    high: float
    colour: str  # a variable of the palette


@dataclass(frozen=True)
class Line:
    """One row of a table of accuracies, with a mark or None for each model or method."""

    name: str
    note: str
    count: str
    marks: tuple[Mark | None, ...]

    @property
    def change(self) -> str:
        """The difference between the two marks."""
        first, second = self.marks
        return points(second.value - first.value).removesuffix(" points") if first and second else "–"

    @property
    def plot(self) -> Spec:
        return row_plot(self.marks)


def row_plot(marks: Sequence[Mark | None], others: Sequence[float] = (), *, one_row: bool = False) -> Spec:
    """Return a plot of accuracies in a table cell, in separate rows or in one; `others` are pale rings."""
    pale = {"row": 0, "colour": "soft", "x": [round(v, 4) for v in others], "mark": "ring", "size": 3}
    series = [{**pale, "width": 1, "alpha": 0.5}] if others else []
    for row, mark in enumerate(marks):
        if mark is not None:
            x, low, high = ([round(value, 4)] for value in (mark.value, mark.low, mark.high))
            kind = "disc" if mark.colour == palette.variable(palette.BASELINE) else "dot"
            look = {"row": 0 if one_row else row, "colour": mark.colour, "mark": kind, "x": x}
            series.append(look | ({"low": low, "high": high} if low != high else {}))
    return {"x": {"scale": "share", "low": 0, "high": 1}, "series": series}


def line_plot(heading: str, epochs: npt.ArrayLike, series: dict[str, tuple[str, Any]], scale: str) -> Spec:
    """Return a plot of lines over epochs.

    `series` maps labels to (color, values), or to (color, (low, middle, high)) for a line in a band.
    """
    x = np.asarray(epochs)
    kept = thinned(len(x))
    lines = []
    for label, (colour, values) in series.items():
        rows = np.atleast_2d(np.asarray(values, np.float64))[:, kept]
        low, middle, high = (rounded(row) for row in (rows[0], rows[len(rows) // 2], rows[-1]))
        band = {"low": low, "high": high} if len(rows) == 3 else {}
        lines.append(
            {"label": label, "colour": colour, "x": x[kept].tolist(), "y": middle, "joined": 1} | band
        )
    axis = {"scale": "linear", "whole": True, "label": "epoch"}
    return {"title": heading, "x": axis, "y": {"scale": scale}, "series": lines}


def spark(colour: str, values: Sequence[float]) -> Spec:
    """Return a small line without axes."""
    kept = thinned(len(values), 40)
    line = {"colour": colour, "x": kept.tolist(), "y": rounded(np.asarray(values, np.float64)[kept])}
    series = [line | {"width": 1.5, "joined": 1}]
    return {"bare": True, "x": {"scale": "linear"}, "y": {"scale": "log"}, "series": series}


def thinned(num_epochs: int, most: int = MOST_POINTS) -> Indices:
    """Return the epochs that a line shows: all, or evenly spaced ones that include the first and the last."""
    return np.unique(np.linspace(0, num_epochs - 1, min(num_epochs, most)).round().astype(np.int64))


def rounded(values: Floats) -> list[float | None]:
    return [float(f"{value:.4g}") if np.isfinite(value) else None for value in values]  # JSON has no NaN
