"""Figure 3, every hyperparameterisation and which one is selected; figure 5 right, what the search costs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter

from evenhand.bench import results
from evenhand.bench.grid import title as method_title
from evenhand.bench.results import Frame, best, counting, result, scores, table_of
from evenhand.report.plots.style import (
    GOLD,
    INK,
    MAJORITY,
    OUTLINE,
    SOFT,
    WIDTH,
    Drawn,
    colour,
    finish,
    new,
    percent_axis,
)
from evenhand.report.render import plain
from evenhand.report.tables import differences, longest_run, search_seconds, spec_of
from evenhand.report.words import count

SHOWN = ("erm", "masktune", "lff", "jtt")  # as in the paper
COSTS = ("erm", "gdro", "tab", "masktune", "lff", "jtt")
LONG = 12  # candidates, from which on a method gets a row of its own


def bars(rows: Frame, method: str) -> dict[str, Any]:
    """What figure 3 shows of a method: WGA and rank of every candidate, and which ones are selected."""
    own = counting(rows, method)
    found = list(own.drop_duplicates("point").settings)
    wga, accuracy = table_of(own, "test_wga"), scores(own, "accuracy")
    means = np.array([row[np.isfinite(row)].mean() for row in accuracy])
    order = np.argsort(-means, kind="stable")  # the first of equals has the better rank
    ranks = np.empty(len(found), dtype=int)
    ranks[order] = np.arange(1, len(found) + 1)
    return {
        "varied": varied(found),
        "labels": [_label(each, varied(found)) for each in found],
        "wga": [float(row[np.isfinite(row)].mean()) for row in wga],
        "deviation": [float(row[np.isfinite(row)].std()) for row in wga],
        "ranks": ranks.tolist(),
        "by_accuracy": best(accuracy),
        "by_wga": best(scores(own, "wga")),
    }


def varied(found: Sequence[dict[str, Any]]) -> list[str]:
    """The hyperparameters that differ between candidates; all of them, where there is one candidate."""
    names = list(found[0]) if found else []
    differ = [name for name in names if len({str(each[name]) for each in found}) > 1]
    return names if len(found) == 1 else differ


def _label(settings: dict[str, Any], names: Sequence[str]) -> str:
    return "/".join(plain(settings[name]) for name in names)


def selection(rows: Frame) -> Drawn:
    """Figure 3: the WGA of all candidates with their ranks by validation accuracy."""
    spec, known = spec_of(rows), set(results.methods(rows))
    methods = [name for name in SHOWN if name in known]
    data = {method: bars(rows, method) for method in methods}
    short = [name for name in methods if len(data[name]["wga"]) < LONG]
    lines_of = [row for row in (short, *[[name] for name in methods if name not in short]) if row]
    figure = Figure(figsize=(WIDTH, 1.95 * len(lines_of)), layout="constrained")
    parts = figure.subfigures(len(lines_of), 1, squeeze=False)[:, 0]
    lines: dict[str, float] = {name: mean_wga(rows, name) for name in ("erm", "tab") if name in known}
    highest = max([*lines.values(), *(max(each["wga"]) for each in data.values())])
    for part, row in zip(parts, lines_of, strict=True):
        ratios = [len(data[name]["wga"]) + 2 for name in row]
        axes = part.subplots(1, len(row), squeeze=False, width_ratios=ratios, sharey=True)[0]
        for i, (panel, method) in enumerate(zip(axes, row, strict=True)):
            _bars(panel, data[method], lines)
            panel.set_title(method_title(method))
            names = " / ".join(data[method]["varied"]).replace("_", " ")
            narrow = len(data[method]["wga"]) < 3
            panel.set_xlabel(textwrap.fill(names, 12) if narrow else names, color=SOFT)
            percent_axis(panel, 0, max(20, min(112, 100 * highest * 1.22 + 4)))
            if i == 0:
                panel.set_ylabel("test WGA")
    parts[0].legend(handles=_legend(lines), loc="outside upper right", ncols=4)
    said = " ".join(differences(rows))
    waterbirds = "" if spec.startswith("waterbirds") else " The paper's figure is of Waterbirds."
    caption = (
        f"{spec} with {model_of(rows)}, mean of {count(len(results.seeds(rows)), 'seed')}. Above each "
        "bar, its rank by validation accuracy; the crossed bar is selected by it, the starred one by "
        f"validation WGA.{waterbirds}{_unfinished(rows, SHOWN)} {said}"
    ).strip()
    title = f"Every hyperparameterisation on {spec}"
    return finish("selection", figure, title, caption, {**data, "lines": lines})


def _unfinished(rows: Frame, methods: Sequence[str]) -> str:
    """What of the grids is not there yet."""
    lacking = {name: len(results.missing(rows, name)) for name in methods if name in results.methods(rows)}
    parts = [f"{name} lacks {count(number, 'run')}" for name, number in lacking.items() if number]
    return f" Unfinished: {', '.join(parts)}." if parts else ""


def mean_wga(rows: Frame, method: str) -> float:
    """The test WGA of what is selected by validation accuracy."""
    return result(rows, method, "accuracy").wga.mean


def model_of(rows: Frame) -> str:
    """The model of the runs that are compared."""
    return str(rows.recipe[rows.alike].iloc[0]["model"])


def _bars(axes: Axes, shown: dict[str, Any], lines: dict[str, float]) -> None:
    x, heights = np.arange(len(shown["wga"])), 100 * np.array(shown["wga"])
    drawn = axes.bar(x, heights, width=0.78, color=MAJORITY)
    chosen, starred = shown["by_accuracy"], shown["by_wga"]
    drawn[chosen].set(facecolor=GOLD, hatch="xxx", edgecolor=INK, linewidth=0.6)
    if heights[chosen] == 0:  # such a bar is not seen
        axes.plot(x[chosen], 0, "X", color=GOLD, markeredgecolor=INK, clip_on=False, zorder=4)
    for i, rank in enumerate(shown["ranks"]):
        star = "★\n" if i == starred else ""
        axes.annotate(f"{star}{rank}", (x[i], heights[i]), xytext=(0, 1.5), textcoords="offset points",
                      ha="center", va="bottom", fontsize=6.5, linespacing=0.95, zorder=5,
                      path_effects=OUTLINE)  # fmt: skip
    for name, dash in (("erm", "--"), ("tab", ":")):
        if name in lines:
            axes.axhline(100 * lines[name], color=colour(name), linestyle=dash, linewidth=1.1)
    axes.set_xlim(-0.7, len(x) - 0.3)
    axes.set_xticks(x, shown["labels"], rotation=90 if max(map(len, shown["labels"])) > 5 else 0)
    axes.tick_params(axis="x", length=0, labelsize=6.5)


def _legend(lines: dict[str, float]) -> list[Any]:
    handles: list[Any] = [
        Patch(facecolor=GOLD, hatch="xxx", edgecolor=INK, label="selected by accuracy"),
        Line2D([], [], color=INK, marker="*", linestyle="", label="selected by WGA"),
    ]
    dashes: list[tuple[str, Any]] = [("erm", "--"), ("tab", ":")]
    for name, dash in dashes:
        if name in lines:
            label = f"{method_title(name)}, selected" if name == "erm" else method_title(name)
            handles.append(Line2D([], [], color=colour(name), linestyle=dash, label=label))
    return handles


def cost(rows: Frame) -> Drawn | None:
    """Figure 5, right: the longest run of each method, and its search in units of TAB's longest run."""
    data: dict[str, dict[str, float | None]] = {}
    spec, unit = spec_of(rows), longest_run(counting(rows, "tab"))
    for method in COSTS:
        found = counting(rows, method)
        longest, total = longest_run(found), search_seconds(found)
        if longest is not None and total is not None:
            data[method] = {"longest": longest, "search": total / unit if unit else None}
    if not data:
        return None
    figure, axes = new(2.2, ncols=2)
    left, right = axes[0]
    _costs(left, {name: each["longest"] for name, each in data.items()}, "", "{:.3g} s")
    left.set_title("longest run")
    left.set_ylabel("seconds")
    searched = {name: each["search"] for name, each in data.items() if each["search"] is not None}
    _costs(right, searched, "////", "{:.3g}×")
    right.set_title("whole search, over TAB's longest run")
    if searched:
        if max(searched.values()) > 10 * min(searched.values()):
            right.set_yscale("log")
            right.set_ylim(bottom=min(searched.values()) / 2, top=max(searched.values()) * 2)
            right.yaxis.set_minor_formatter(NullFormatter())
        right.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
        right.axhline(1, color=SOFT, linewidth=0.8)
    caption = (
        f"{spec} with {model_of(rows)}, {count(len(results.seeds(rows)), 'seed')}, "
        f"{_device(rows)}. Trainings are counted as if no run shared any, as in the paper. There, on "
        "cMNIST, TAB's longest run took 2.5× ERM's; the searches of MaskTune and JTT 1.14× and 14.8× TAB's "
        f"longest run.{_unfinished(rows, COSTS)}"
    )
    return finish("cost", figure, f"What training on {spec} costs", caption, data)


def _device(rows: Frame) -> str:
    names = {str(record.config.get("versions", {}).get("device", "")) for record in rows.record[rows.alike]}
    return " and ".join(sorted(names - {""})) or "device unknown"


def _costs(axes: Axes, values: dict[str, Any], hatch: str, text: str) -> None:
    for i, (method, value) in enumerate(values.items()):
        axes.bar(i, value, width=0.7, color=colour(method), hatch=hatch, edgecolor="white", linewidth=0)
        axes.annotate(text.format(value), (i, value), xytext=(0, 1.5), textcoords="offset points",
                      ha="center", va="bottom", fontsize=7, path_effects=OUTLINE)  # fmt: skip
    axes.set_xticks(range(len(values)), [method_title(name).replace(" ", "\n") for name in values])
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.12)
