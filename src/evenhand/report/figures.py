"""Figures: the paper's figures from the results frame. `draw` makes one, and drawing.py saves it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter

from evenhand.bench import results
from evenhand.bench.grid import (
    DYNAMICS,
    LEARNED,
    PAIR,
    SWEPT,
    base,
    check_figure,
    named,
    nothing_conflicts,
    title,
)
from evenhand.bench.results import COLLAPSED, Frame, counting, spec_of
from evenhand.report import drawing, palette
from evenhand.report.drawing import ACCENT, GOLD, INK, MAJORITY, MINORITY, RULE, SOFT, WIDTH, Curves, Drawn
from evenhand.report.notes import differences
from evenhand.report.render import plain
from evenhand.report.tables import by_task, longest_run, search_seconds
from evenhand.report.words import count
from evenhand.training.record import Record

KINDS = ("aligned", "conflicting")  # samples that follow the shortcut, and samples that break it
BASELINES = ("erm", "erm_randaug")
SEARCHES = ("erm", "masktune", "lff", "jtt")  # of figure 3, as in the paper
SELECTED: dict[str, Any] = {"erm": "--", "tab": ":", "evenhand": "-."}  # its lines
COSTS = ("erm", "gdro", "tab", "evenhand", "masktune", "lff", "jtt")
MANY = 12  # candidates from which a method of figure 3 gets a separate row


def _made_of(rows: Frame, mean: str = "") -> str:
    """Return the task, the model and the seeds of a caption."""
    model = rows.recipe[rows.alike].iloc[0]["model"]
    return f"{spec_of(rows)} with {model}, {mean}{count(len(results.seeds(rows)), 'seed')}"


def _unfinished(rows: Frame, methods: Sequence[str]) -> str:
    """Return the missing runs of the grids."""
    known = [name for name in methods if name in results.methods(rows)]
    lacking = {name: len(results.missing(rows, name)) for name in known}
    parts = [f"{name} lacks {count(number, 'run')}" for name, number in lacking.items() if number]
    return f" Unfinished: {', '.join(parts)}." if parts else ""


# -- figures 2 and 4: how aligned and conflicting samples are learned ----------------------------------------


def _stage(record: Record) -> dict[str, Any]:
    """Return the curves of plain training, which is also TAB's identifier; {} if none were recorded."""
    found: dict[str, Any] = (record.dynamics or {}).get("stages", {}).get("erm", {})
    return found


def _num_epochs(record: Record) -> int:
    """Return the number of epochs with curves of conflicting samples in both splits."""
    parts = [_stage(record).get(split, {}).get("conflicting", {"count": 0}) for split in ("train", "val")]
    return min(len(part["accuracy"]) if part["count"] else 0 for part in parts)


def _whole(record: Record) -> bool:
    """Return whether the run was made for these figures, without early stopping."""
    return bool(record.config["full_recipe"]["patience"] >= DYNAMICS["patience"])


def _learned(rows: Frame, clusters: bool) -> tuple[list[Record], str] | None:
    """Return one run per seed of a task's plain training, and the start of a caption; None without curves.

    Runs without early stopping are preferred. They share one recipe, with ERM's selected learning rate and
    weight decay if available. Methods share this training but stop it by different rules: for `clusters`
    TAB's is used, else the one with the most epochs.
    """
    known = [record for record in rows.record if _num_epochs(record)]
    if not known:
        return None
    found = results.frame([record for record in known if _whole(record)] or known)
    found = found[found.alike].assign(
        pair=lambda own: own[[*PAIR]].to_dict("records"),
        curve=lambda own: own.record.map(_num_epochs),
        num_settings=lambda own: own.hyperparameters.map(len),
        text=lambda own: own.path.map(str),
    )
    wanted, usual = results.inherited_pair(rows), results.inherited_pair(found)
    pair = min(found.pair, key=lambda own: (own != wanted, own != usual, named(own)))
    ordered = found[found.pair.map(lambda own: own == pair)].sort_values(
        ["num_settings", "curve", "text"], ascending=[True, False, True]
    )
    by_method = dict(list(ordered.drop_duplicates(["method", "seed"]).groupby("method")))

    def rank(name: str) -> tuple[bool, int, bool]:
        own = by_method[name]
        shown = len(own) * int(own.curve.min())  # curves are cut to the shortest
        return clusters and name == "tab", shown, name == "erm"

    records = list(by_method[max(sorted(by_method), key=rank)].sort_values("seed").record)
    model, spec = records[0].config["full_recipe"]["model"], str(records[0].config["spec"])
    ended = "no early stopping" if _whole(records[0]) else "with early stopping"
    if pair != wanted and not counting(rows, "erm").empty:
        ended += f", with {named(pair)} since no such run has ERM's selected {named(wanted)}"
    theirs = (
        "" if spec.split(":")[0] == "waterbirds" else " The paper's figure is of Waterbirds with ResNet-34."
    )
    return records, f"{spec} with {model}, {count(len(records), 'seed')}, {ended}.{theirs}"


def _curves(records: Sequence[Record], split: str, score: str) -> tuple[Curves, Curves]:
    """Return `accuracy` or `loss` of aligned and of conflicting samples, cut to the shortest training."""
    shortest = min(map(_num_epochs, records))
    aligned, conflicting = (
        np.array([_stage(record)[split][kind][score][:shortest] for record in records]) for kind in KINDS
    )
    return aligned, conflicting


def unlearning(aligned: npt.NDArray[Any], conflicting: npt.NDArray[Any]) -> tuple[int, int] | None:
    """Return the first and last epoch of the longest zone of unlearning; None if none has three epochs.

    In this zone, aligned accuracy stays below its start while conflicting accuracy rises. The epochs are
    positions.
    """
    longest: tuple[int, int] | None = None
    for start in range(len(aligned) - 2):
        end = start
        while end + 1 < len(aligned) and aligned[end + 1] < aligned[start]:
            end += 1
        rises = conflicting[end] > conflicting[start]
        if end - start >= 2 and rises and (longest is None or end - start > longest[1] - longest[0]):
            longest = (start, end)
    return longest


def validation(rows: Frame) -> Drawn | None:
    """Draw figure 2: conflicting, aligned and all validation samples, and conflicting training samples."""
    found = _learned(rows, clusters=False)
    if found is None:
        return None
    records, caption = found
    aligned, conflicting = _curves(records, "val", "accuracy")
    counts = [_stage(records[0])["val"][kind]["count"] for kind in KINDS]
    panels = {
        "a  conflicting,\n    validation": conflicting,
        "b  aligned,\n    validation": aligned,
        "c  all,\n    validation": np.average([aligned, conflicting], axis=0, weights=counts),
        "d  conflicting,\n    training": _curves(records, "train", "accuracy")[1],
    }
    zone = unlearning(aligned.mean(0), conflicting.mean(0))
    figure, axes = drawing.panels(1.75, ncols=4)
    for panel, (heading, curves) in zip(axes[0], panels.items(), strict=True):
        epochs, mean = drawing.curve(panel, 100 * curves, INK, RULE, 1, 1.2), 100 * curves.mean(0)
        if zone is not None:  # colored by the change since the start of the zone
            panel.axvspan(epochs[zone[0]], epochs[zone[1]], color=GOLD, alpha=0.18, linewidth=0)
            for i in range(*zone):
                colour = ACCENT if mean[i + 1] >= mean[zone[0]] else MINORITY
                panel.plot(epochs[i : i + 2], mean[i : i + 2], color=colour, linewidth=2)
        panel.set_title(heading)
        drawing.epoch_axis(panel)
        drawing.percent_axis(panel)
    caption += (
        f" Shaded, epochs {zone[0] + 1} to {zone[1] + 1}: conflicting accuracy ends above its start (teal "
        "above, orange below that level) while aligned accuracy stays below its start."
        if zone
        else " In no interval does conflicting accuracy rise while aligned accuracy falls."
    )
    heading = f"Accuracy while training on {spec_of(rows)}"
    return drawing.finish("validation", figure, heading, caption, {"panels": panels, "zone": zone})


def training(rows: Frame) -> Drawn | None:
    """Draw figure 4: misclassified conflicting samples, losses, and the composition of the clusters."""
    found = _learned(rows, clusters=True)
    if found is None:
        return None
    (records, caption), spec = found, spec_of(rows)
    figure, axes = drawing.panels(2.3, ncols=3, width_ratios=(1, 1, 1.15))
    wrong, loss, composition = axes[0]
    missed = 100 * (1 - _curves(records, "train", "accuracy")[1])
    epochs = drawing.curve(wrong, missed, MAJORITY, MAJORITY, 0.15, 1.5)
    losses = dict(zip(KINDS, (each.mean(0) for each in _curves(records, "train", "loss")), strict=True))
    for kind, dash in (("conflicting", "--"), ("aligned", "-")):
        loss.plot(epochs, losses[kind], color=MAJORITY, linestyle=dash, label=kind)
    shares = _conflicting_in_clusters(records)
    _composition(composition, shares)
    wrong.set_title("a  conflicting, still wrong")
    drawing.percent_axis(wrong, low=0)
    loss.set_title("b  training loss")
    loss.set_ylim(bottom=0)
    loss.legend(loc="upper right")
    for panel in (wrong, loss):
        drawing.epoch_axis(panel)
    caption += (
        " a: misclassified conflicting training samples. c: share of conflicting samples in the two clusters "
        "of loss histories, over all classes, and in the training set (dotted)."
    )
    data = {spec: {"wrong": missed.mean(0), "loss": losses, "clusters": shares}}
    return drawing.finish("training", figure, f"How {spec} is learned", caption, data)


def _conflicting_in_clusters(records: Sequence[Record]) -> dict[str, float] | None:
    """Return the mean conflicting share over seeds: of majority and minority clusters, and of all samples."""
    shares = []
    for record in records:
        if clusters := (record.dynamics or {}).get("clusters"):
            sums = {
                kind: np.sum(
                    [(c["conflicting"], c["size"]) for c in clusters if c["cluster"] == kind], axis=0
                )
                for kind in ("majority", "minority")
            }
            sums["all"] = sums["majority"] + sums["minority"]
            shares.append([part / max(whole, 1) for part, whole in sums.values()])
    return dict(zip(sums, np.mean(shares, axis=0).tolist(), strict=True)) if shares else None


def _composition(axes: Axes, shares: dict[str, float] | None) -> None:
    axes.set_title("c  conflicting in the clusters")
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.12)
    if shares is None:
        axes.text(0.5, 0.5, "no clusters recorded;\nruns of TAB record them", transform=axes.transAxes,
                  ha="center", va="center", color=SOFT)  # fmt: skip
        axes.set_xticks([])
    else:
        for x, name in enumerate(("majority", "minority")):
            axes.bar(x, 100 * shares[name], width=0.8, color=MAJORITY, alpha=1 if x else 0.45)
            drawing.number(axes, x, 100 * shares[name], f"{100 * shares[name]:.1f}%")
        axes.plot([-0.5, 1.5], [100 * shares["all"]] * 2, color=INK, linewidth=1, linestyle=":")
        axes.set_xticks([0, 1], ["larger", "smaller"])
    drawing.percent_axis(axes, low=0)


# -- figure 3: every candidate; figure 5, right: the cost of the search -----------------------------------


def _candidates(rows: Frame, method: str) -> dict[str, Any]:
    """Return the data of a method in figure 3: WGA and rank of every candidate, and the selected ones."""
    own = counting(rows, method)
    points = own.groupby("point")
    settings = list(points.settings.first())
    varied = [name for name in settings[0] if len({str(each[name]) for each in settings}) > 1]
    varied = list(settings[0]) if len(settings) == 1 else varied
    accuracy = results.scores(own, "accuracy")
    ranks = pd.Series(np.nanmean(accuracy, axis=1)).rank(ascending=False, method="first")
    return {
        "varied": varied,
        "labels": ["/".join(plain(each[name]) for name in varied) for each in settings],
        "wga": points.test_wga.mean().tolist(),
        "ranks": ranks.astype(int).tolist(),
        "by_accuracy": results.best(accuracy),
        "by_wga": results.best(results.scores(own, "wga")),
    }


def selection(rows: Frame) -> Drawn | None:
    """Draw figure 3: the WGA of all candidates with their ranks by validation accuracy."""
    spec, known = spec_of(rows), results.methods(rows)
    data = {method: _candidates(rows, method) for method in SEARCHES if method in known}
    if not any(len(each["wga"]) > 1 for each in data.values()):
        return None
    short = [name for name in data if len(data[name]["wga"]) < MANY]
    grid = [row for row in (short, *[[name] for name in data if name not in short]) if row]
    figure = Figure(figsize=(WIDTH, 1.95 * len(grid)), layout="constrained")
    parts = figure.subfigures(len(grid), 1, squeeze=False)[:, 0]
    lines = {name: results.result(rows, name, "accuracy").wga.mean for name in SELECTED if name in known}
    top = max([*lines.values(), *(max(each["wga"]) for each in data.values())])
    for part, row in zip(parts, grid, strict=True):
        ratios = [len(data[name]["wga"]) + 2 for name in row]
        axes = part.subplots(1, len(row), squeeze=False, width_ratios=ratios, sharey=True)[0]
        axes[0].set_ylabel("test WGA")
        for panel, method in zip(axes, row, strict=True):
            _ranked_bars(panel, data[method], lines)
            panel.set_title(title(method))
            names = " / ".join(data[method]["varied"]).replace("_", " ")
            narrow = len(data[method]["wga"]) < 3
            panel.set_xlabel(textwrap.fill(names, 12) if narrow else names, color=SOFT)
            drawing.percent_axis(panel, 0, max(20, min(112, 100 * top * 1.22 + 4)))
    handles: list[Any] = [
        Patch(facecolor=GOLD, hatch="xxx", edgecolor=INK, label="selected by accuracy"),
        Line2D([], [], color=INK, marker="*", linestyle="", label="selected by WGA"),
        *(Line2D([], [], color=drawing.color(name), linestyle=SELECTED[name],
                 label=title(name) + (", selected" if name == "erm" else "")) for name in lines),
    ]  # fmt: skip
    parts[0].legend(handles=handles, loc="outside upper right", ncols=len(handles))
    theirs = "" if spec.startswith("waterbirds") else " The paper's figure is of Waterbirds."
    caption = (
        f"{_made_of(rows, 'mean of ')}. Above each bar: its rank by validation accuracy, which "
        f"selects the crossed bar; validation WGA selects the starred one.{theirs}"
        f"{_unfinished(rows, SEARCHES)} " + " ".join(differences(rows))
    ).strip()
    return drawing.finish("selection", figure, f"All candidates on {spec}", caption, {**data, "lines": lines})


def _ranked_bars(axes: Axes, shown: Mapping[str, Any], lines: Mapping[str, float]) -> None:
    x, heights = np.arange(len(shown["wga"])), 100 * np.array(shown["wga"])
    drawn = axes.bar(x, heights, width=0.78, color=MAJORITY)
    chosen = shown["by_accuracy"]
    drawn[chosen].set(facecolor=GOLD, hatch="xxx", edgecolor=INK, linewidth=0.6)
    if heights[chosen] == 0:  # such a bar is invisible
        axes.plot(x[chosen], 0, "X", color=GOLD, markeredgecolor=INK, clip_on=False, zorder=4)
    for i, rank in enumerate(shown["ranks"]):
        star = "★\n" if i == shown["by_wga"] else ""
        drawing.number(axes, x[i], heights[i], f"{star}{rank}", 6.5, linespacing=0.95)
    for name, value in lines.items():
        axes.axhline(100 * value, color=drawing.color(name), linestyle=SELECTED[name], linewidth=1.1)
    axes.set_xlim(-0.7, len(x) - 0.3)
    axes.set_xticks(x, shown["labels"], rotation=90 if max(map(len, shown["labels"])) > 5 else 0)
    axes.tick_params(axis="x", length=0, labelsize=6.5)


def cost(rows: Frame) -> Drawn | None:
    """Draw figure 5, right: each method's longest run, and its search in units of TAB's longest run."""
    spec, unit = spec_of(rows), longest_run(counting(rows, "tab"))
    data: dict[str, dict[str, float | None]] = {}
    for method in COSTS:
        found = counting(rows, method)
        longest, total = longest_run(found), search_seconds(found)
        if longest is not None and total is not None:
            data[method] = {"longest": longest, "search": total / unit if unit else None}
    if len({*COSTS} & {*results.methods(rows)}) < 2 or not data:
        return None
    figure, axes = drawing.panels(2.2, ncols=2)
    left, right = axes[0]
    _costs(left, {name: each["longest"] for name, each in data.items()}, "", " s")
    left.set_title("longest run")
    left.set_ylabel("seconds")
    searched = {name: each["search"] for name, each in data.items() if each["search"] is not None}
    _costs(right, searched, "////", "×")
    right.set_title("entire search, relative to TAB's longest run")
    if searched:
        if max(searched.values()) > 10 * min(searched.values()):
            right.set_yscale("log")
            right.set_ylim(bottom=min(searched.values()) / 2, top=max(searched.values()) * 2)
            right.yaxis.set_minor_formatter(NullFormatter())
        right.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
        right.axhline(1, color=SOFT, linewidth=0.8)
    devices = {str(record.config.get("versions", {}).get("device", "")) for record in rows.record[rows.alike]}
    caption = (
        f"{_made_of(rows)}, {' and '.join(sorted(devices - {''})) or 'device unknown'}. "
        "As in the paper, shared trainings count in full for every run. In the "
        "paper, on cMNIST, TAB's longest run took 2.5× as long as ERM's, and the searches of MaskTune and "
        f"JTT 1.14× and 14.8× as long as TAB's longest run.{_unfinished(rows, COSTS)}"
    )
    return drawing.finish("cost", figure, f"Cost of training on {spec}", caption, data)


def _costs(axes: Axes, values: Mapping[str, Any], hatch: str, unit: str) -> None:
    for i, (method, value) in enumerate(values.items()):
        axes.bar(
            i, value, width=0.7, color=drawing.color(method), hatch=hatch, edgecolor="white", linewidth=0
        )
        drawing.number(axes, i, value, f"{value:.3g}{unit}")
    axes.set_xticks(range(len(values)), [title(name).replace(" ", "\n") for name in values])
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.12)


# -- figure 5 left, appendices H and I: methods as the strength p of the correlation varies ------------------


def _family(spec: str) -> tuple[str, float | None]:
    """Return a task without its p, and its p."""
    (name, options), p = base(spec)
    text = ",".join(f"{key}={value}" for key, value in sorted(options))
    return f"{name}:{text}" if text else name, p


def _sweeps(name: str, runs: Frame, wanted: Sequence[str]) -> dict[str, Frame]:
    """Return the selected runs of every task with several p, by name, each with its `p`."""
    shown = results.selected(
        runs[runs.method.isin((*SWEPT[name], "evenhand" if name == "correlation" else ""))]
    )
    families = [_family(spec) for spec in shown.spec]
    shown = shown.assign(sweep=[name for name, _ in families], p=[p for _, p in families]).dropna(subset="p")
    shown = shown[shown.task.isin(shown.task[~shown.method.isin(BASELINES)])]
    found = {str(sweep): own for sweep, own in shown.groupby("sweep")}
    if wanted:
        found = {sweep: own for sweep, own in found.items() if sweep in {_family(spec)[0] for spec in wanted}}
    else:
        found = {sweep: own for sweep, own in found.items() if own.p.nunique() > 1}
    if name == "correlation":
        return found
    variant = SWEPT[name][-1]  # of TAB, to compare with
    return {sweep: own for sweep, own in found.items() if variant in set(own.method)}


def _over_seeds(sweep: Frame, method: str, score: str) -> Frame:
    """Return the mean, minimum and maximum over seeds for every p, in per cent."""
    own = sweep[sweep.method == method]
    return 100 * own.groupby("p")[f"test_{score}"].agg(["mean", "min", "max"])


def _whiskers(values: Frame) -> npt.NDArray[np.float64]:
    """Return the distances from the mean to the lowest and the highest seed, (2, values)."""
    ends = [values["mean"] - values["min"], values["max"] - values["mean"]]
    return np.array(ends).clip(min=0)  # with equal seeds, rounding of the mean may give negative values


def _swept(name: str, runs: Frame, wanted: Sequence[str]) -> Drawn | None:
    found = _sweeps(name, runs, wanted)
    if not found:
        return None
    present = set().union(*(own.method for own in found.values()))
    methods = [method for method in (*SWEPT[name], "evenhand") if method in present]
    figure, data = (_correlation if name == "correlation" else _comparison)(found, methods)
    headings = {
        "correlation": "Accuracy and the strength of the correlation",
        "eta": "TAB with transformed copies",
        "minibatch": "TAB with mini-batch k-means",
    }
    models = sorted({str(recipe["model"]) for own in found.values() for recipe in own.recipe})
    parts = [
        f"{sweep}, {count(own.groupby('p').seed.nunique().max(), 'seed')}" for sweep, own in found.items()
    ]
    caption = f"{'; '.join(parts)}; model {', '.join(models)}. Lines show the range over seeds."
    collapsed = [
        words for sweep in found for method in methods if (words := _collapsed(sweep, found[sweep], method))
    ]
    caption += f" Seeds with a WGA below {100 * COLLAPSED:g}%: {'; '.join(collapsed)}." if collapsed else ""
    caption += " The axis of p is not to scale." if name == "correlation" else ""
    return drawing.finish(name, figure, f"{headings[name]}: {' and '.join(found)}", caption, data)


def _collapsed(sweep: str, own: Frame, method: str) -> str:
    """Return the strengths p at which seeds of a method collapsed, with counts; empty if none did."""
    places = []
    for p, wga in own[own.method == method].groupby("p").test_wga:
        if collapsed := int((wga < COLLAPSED).sum()):
            places.append(f"{100 * p:g}% ({collapsed} of {len(wga)})")
    return f"{title(method)} on {sweep} at p = {', '.join(places)}" if places else ""


def _legend_above(axes: Axes, handles: list[Any]) -> None:
    axes.figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), columnspacing=1.2)


def _correlation(found: Mapping[str, Frame], methods: Sequence[str]) -> tuple[Figure, dict[str, Frame]]:
    """Draw mean accuracy and WGA against p."""
    figure, axes = drawing.panels(2.15 * len(found), nrows=len(found), ncols=3)
    scores = {"accuracy_weighted": "mean accuracy, as in training",
              "accuracy_balanced": "mean accuracy, balanced", "wga": "worst-group accuracy"}  # fmt: skip
    data = {}
    for row, (sweep, own) in zip(axes, found.items(), strict=True):
        strengths = sorted(set(own.p))
        for panel, score in zip(row, scores, strict=True):
            for method in methods:
                values = data[f"{sweep} {method} {score}"] = _over_seeds(own, method, score)
                if len(values):
                    panel.errorbar([strengths.index(p) for p in values.index], values["mean"],
                                   yerr=_whiskers(values), color=drawing.color(method),
                                   marker=palette.look(method).marker, markersize=3.5, linewidth=1.3,
                                   elinewidth=0.8, capsize=1.5)  # fmt: skip
            panel.set_xticks(range(len(strengths)), [f"{100 * p:g}" for p in strengths])
            drawing.percent_axis(panel)
        row[0].set_ylabel(sweep)
    for heading, first, last in zip(scores.values(), axes[0], axes[-1], strict=True):
        first.set_title(heading)
        last.set_xlabel("p, per cent")
    handles = [
        Line2D([], [], color=drawing.color(name), marker=palette.look(name).marker, markersize=4)
        for name in methods
    ]
    for name, handle in zip(methods, handles, strict=True):
        handle.set_label(title(name))
    _legend_above(axes[0, 0], handles)
    return figure, data


def _comparison(found: Mapping[str, Frame], methods: Sequence[str]) -> tuple[Figure, dict[str, Frame]]:
    """Draw accuracy (solid) and WGA (hatched) of TAB, its variant and baselines at every p."""
    figure, axes = drawing.panels(2.2 * len(found), nrows=len(found), ncols=1)
    data, group = {}, 2 * len(methods) + 2.2
    for panel, (sweep, own) in zip(axes[:, 0], found.items(), strict=True):
        strengths = sorted(set(own.p))
        for half, score in enumerate(("accuracy_balanced", "wga")):
            for j, method in enumerate(methods):
                values = data[f"{sweep} {method} {score}"] = _over_seeds(own, method, score)
                x = [strengths.index(p) * group + half * (len(methods) + 0.4) + j for p in values.index]
                panel.bar(x, values["mean"], yerr=_whiskers(values), width=0.9, color=drawing.color(method),
                          hatch="////" if half else "", edgecolor="white", linewidth=0,
                          error_kw={"elinewidth": 0.8, "ecolor": SOFT})  # fmt: skip
        ticks = [i * group + len(methods) - 0.3 for i in range(len(strengths))]
        panel.set_xticks(ticks, [f"p = {100 * p:g}%" for p in strengths])
        panel.tick_params(axis="x", length=0)
        panel.set_title(sweep)
        drawing.percent_axis(panel, 0, 100)
    handles: list[Any] = [Patch(facecolor=drawing.color(method), label=title(method)) for method in methods]
    handles.append(Patch(facecolor=SOFT, label="mean accuracy, balanced"))
    handles.append(Patch(facecolor=SOFT, hatch="////", edgecolor="white", label="WGA"))
    _legend_above(axes[0, 0], handles)
    return figure, data


OF_ONE_TASK: dict[str, Callable[[Frame], Drawn | None]] = {
    "validation": validation,
    "training": training,
    "selection": selection,
    "cost": cost,
}


def draw(name: str, runs: Frame, wanted: Sequence[str] = ()) -> Drawn:
    """Draw one of FIGURES, of the `wanted` task or the first possible one; sweeps show several tasks."""
    check_figure(name)
    if name not in SWEPT and len(set(wanted)) > 1:
        raise ValueError(
            f"the figure {name!r} shows one task, got {' and '.join(dict.fromkeys(wanted))}; "
            f"draw one of each, such as: evenhand figure {name} --task {wanted[0]}"
        )
    known = runs[runs.task.isin(wanted) | runs.spec.isin(wanted)] if wanted else runs
    with drawing.look():
        if name in SWEPT:
            drawn = _swept(name, runs, wanted)
        else:
            drawn = next(filter(None, map(OF_ONE_TASK[name], by_task(known))), None)
    if drawn is not None:
        return drawn
    if name in LEARNED and len(known) and set(known.over) == {"classes"}:
        raise nothing_conflicts(name, " and ".join(sorted(set(known.spec))))
    task = wanted[0] if wanted else _example(name, runs)
    raise ValueError(
        f"no runs for the figure {name!r}{f' of {task}' if wanted else ''}; "
        f"make them with: evenhand bench {task} --figure {name}"
    )


def _example(name: str, runs: Frame) -> str:
    """Return a task for which the figure is possible, from the runs if they have one."""
    specs = [spec_of(rows) for rows in by_task(runs) if name not in LEARNED or "groups" in set(rows.over)]
    specs = [spec for spec in specs if name not in SWEPT or base(spec)[1] is not None]
    return specs[0] if specs else "even_odd"
