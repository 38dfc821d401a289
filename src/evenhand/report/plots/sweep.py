"""Figure 5 left and appendices H and I: methods as the strength p of the correlation varies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from evenhand.bench.grid import SWEPT, base
from evenhand.bench.grid import title as method_title
from evenhand.bench.results import COLLAPSED, Frame, counting, mean, methods, result, seeds
from evenhand.core.metrics import Mean
from evenhand.report.plots.style import SOFT, Drawn, colour, finish, legend_above, marker, new, percent_axis
from evenhand.report.words import count

BASELINES = ("erm", "erm_randaug")


@dataclass(frozen=True, eq=False)
class Sweep:
    """One task at several strengths, by increasing p."""

    name: str
    tasks: dict[float, Frame]

    def scores(self, method: str, score: str) -> dict[float, Mean]:
        """p -> mean over seeds of `wga`, `accuracy_weighted` or `accuracy_balanced`, as selected."""
        if (method, score) not in self._known:
            found = {p: rows for p, rows in self.tasks.items() if not counting(rows, method).empty}
            self._known[method, score] = {
                p: mean(result(rows, method).rows[f"test_{score}"]) for p, rows in found.items()
            }
        return self._known[method, score]

    @cached_property
    def _known(self) -> dict[tuple[str, str], dict[float, Mean]]:
        return {}

    @property
    def num_seeds(self) -> int:
        return max(len(seeds(rows)) for rows in self.tasks.values())


def sweeps(runs: Frame, wanted: Sequence[str], names: Sequence[str]) -> list[Sweep]:
    """The tasks that were run at several strengths with at least one of the methods besides the baselines."""
    families: dict[Any, dict[float, Frame]] = {}
    only = {base(spec)[0] for spec in wanted}
    for _, rows in runs.groupby("task"):
        family, p = base(rows.spec.iloc[0])
        special = ({*names} - {*BASELINES}) & {*methods(rows)}
        if p is not None and special and (not only or family in only):
            families.setdefault(family, {})[p] = rows
    found = []
    for (name, options), tasks in sorted(families.items(), key=lambda item: (item[0][0], sorted(item[0][1]))):
        text = ",".join(f"{key}={value}" for key, value in sorted(options))
        found.append(Sweep(f"{name}:{text}" if text else name, dict(sorted(tasks.items()))))
    return found


def correlation(found: Sequence[Sweep]) -> Drawn:
    """Figure 5, left: mean accuracy and WGA against p."""
    figure, axes = new(2.15 * len(found), nrows=len(found), ncols=3)
    panels = (("accuracy_weighted", "mean accuracy, as in training"),
              ("accuracy_balanced", "mean accuracy, balanced"), ("wga", "worst-group accuracy"))  # fmt: skip
    data: dict[str, Any] = {}
    for row, sweep in zip(axes, found, strict=True):
        strengths = list(sweep.tasks)
        shown = [name for name in SWEPT["correlation"] if sweep.scores(name, "wga")]
        for panel, (score, title) in zip(row, panels, strict=True):
            for method in shown:
                values = sweep.scores(method, score)
                data[f"{sweep.name} {method} {score}"] = {p: _shown(m) for p, m in values.items()}
                _line(panel, strengths, values, method)
            panel.set_xticks(range(len(strengths)), [f"{100 * p:g}" for p in strengths])
            if sweep is found[0]:
                panel.set_title(title)
            percent_axis(panel, high=None)
        row[0].set_ylabel(sweep.name)
    for panel in axes[-1]:
        panel.set_xlabel("p, per cent")
    legend_above(axes[0, 0], [
        Line2D([], [], color=colour(name), marker=marker(name), markersize=4, label=method_title(name))
        for name in SWEPT["correlation"] if any(sweep.scores(name, "wga") for sweep in found)
    ])  # fmt: skip
    caption = _caption(found, SWEPT["correlation"]) + " The steps of p are not to scale."
    return finish(
        "correlation", figure, _title("Accuracy and the strength of the correlation", found), caption, data
    )


def _line(axes: Axes, strengths: list[float], values: dict[float, Mean], method: str) -> None:
    x = [strengths.index(p) for p in values]
    means = 100 * np.array([each.mean for each in values.values()])
    spread = np.hstack([_spread(each) for each in values.values()])
    axes.errorbar(x, means, yerr=spread, color=colour(method), marker=marker(method), markersize=3.5,
                  linewidth=1.3, elinewidth=0.8, capsize=1.5)  # fmt: skip


def comparison(name: str, found: Sequence[Sweep]) -> Drawn:
    """Appendices H and I: accuracy (solid) and WGA (hatched) of TAB, its variant, baselines at every p."""
    methods = [each for each in SWEPT[name] if any(sweep.scores(each, "wga") for sweep in found)]
    figure, axes = new(2.2 * len(found), nrows=len(found), ncols=1)
    data: dict[str, Any] = {}
    for panel, sweep in zip(axes[:, 0], found, strict=True):
        ticks, labels = [], []
        group = 2 * len(methods) + 2.2
        for i, p in enumerate(sweep.tasks):
            for half, score in enumerate(("accuracy_balanced", "wga")):
                for j, method in enumerate(methods):
                    each = sweep.scores(method, score).get(p)
                    if each is None:
                        continue
                    x = i * group + half * (len(methods) + 0.4) + j
                    panel.bar(x, 100 * each.mean, yerr=_spread(each), width=0.9, color=colour(method),
                              hatch="////" if half else "", edgecolor="white", linewidth=0,
                              error_kw={"elinewidth": 0.8, "ecolor": SOFT})  # fmt: skip
                    data[f"{sweep.name} {method} {score} {p:g}"] = _shown(each)
            ticks.append(i * group + len(methods) - 0.3)
            labels.append(f"p = {100 * p:g}%")
        panel.set_xticks(ticks, labels)
        panel.tick_params(axis="x", length=0)
        panel.set_title(sweep.name)
        percent_axis(panel, 0, 100)
    handles: list[Any] = [Patch(facecolor=colour(each), label=method_title(each)) for each in methods]
    handles.append(Patch(facecolor=SOFT, label="mean accuracy, balanced"))
    handles.append(Patch(facecolor=SOFT, hatch="////", edgecolor="white", label="WGA"))
    legend_above(axes[0, 0], handles)
    what = "TAB with transformed copies" if name == "eta" else "TAB with mini-batch k-means"
    return finish(name, figure, _title(what, found), _caption(found, methods), data)


def _shown(score: Mean) -> tuple[float, float, float]:
    return score.mean, min(score.per_seed), max(score.per_seed)


def _spread(score: Mean) -> Any:
    """From the mean down to the lowest seed and up to the highest, in points."""
    mean, low, high = _shown(score)
    return 100 * np.array([[mean - low], [high - mean]]).clip(min=0)  # equal seeds: their mean is rounded


def _title(what: str, found: Sequence[Sweep]) -> str:
    return f"{what}: {' and '.join(sweep.name for sweep in found)}"


def _caption(found: Sequence[Sweep], methods: Sequence[str]) -> str:
    recipes = [rows.recipe[rows.alike].iloc[0] for sweep in found for rows in sweep.tasks.values()]
    models = sorted({str(recipe["model"]) for recipe in recipes})
    parts = [f"{sweep.name}, {count(sweep.num_seeds, 'seed')}" for sweep in found]
    text = f"{'; '.join(parts)}; model {', '.join(models)}. Lines: from the lowest seed to the highest."
    lost = [words for sweep in found for method in methods if (words := _lost(sweep, method))]
    return f"{text} Seeds with a WGA below {100 * COLLAPSED:g}%: {'; '.join(lost)}." if lost else text


def _lost(sweep: Sweep, method: str) -> str:
    """Where a method's seeds collapsed, and how many of how many; empty where none did."""
    places = []
    for p, score in sweep.scores(method, "wga").items():
        collapsed = sum(value < COLLAPSED for value in score.per_seed)
        if collapsed:
            places.append(f"{100 * p:g}% ({collapsed} of {len(score.per_seed)})")
    return f"{method_title(method)} on {sweep.name} at p = {', '.join(places)}" if places else ""
