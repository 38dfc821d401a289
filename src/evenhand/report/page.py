"""Pages: one self-contained HTML file about runs, a bench or an audit. It needs no network.

`build` makes the page of runs: an answer, then sections for every task. With more runs than one of each
method it is the page of a bench, which also holds the tables. `render_audit` makes the page of an audit.
All numbers come from the results frame, so that pages and tables agree.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

import evenhand
from evenhand import tasks
from evenhand.bench import results
from evenhand.bench.results import Frame, is_told_groups, title
from evenhand.core.partition import Partition
from evenhand.report import palette, samples, story, tables
from evenhand.report.commands import run_command
from evenhand.report.render import Table, html_section, spread
from evenhand.report.samples import Indices, Pictures, Rows, Samples, Texts
from evenhand.report.words import count, duration, listed, percent, points
from evenhand.training.data import Task
from evenhand.training.record import Record
from evenhand.training.store import write_bytes

THUMBNAILS = 3_000_000  # bytes, in all galleries of a page; the rest of a page takes well under 2 MB
MANY = 12  # variants of a task, above which only the selected ones stand side by side
MOST_LINES = 12  # groups or classes in sight; with a few more than that, all
MOST_TRAININGS = 12
LONG_NAME = 24  # characters
MOST_POINTS = 120  # of one line: more cannot be told apart on a screen
TABLES = ("1", "2", "selected", "cost")

Floats = npt.NDArray[np.float64]
Spec = dict[str, Any]  # of a plot, as plot.js reads it
View = dict[str, Any]  # of a task, as task.html reads it
TaskLoader = Callable[[Record], Task | None]


# -- documents ---------------------------------------------------------------------------------------------


@cache
def environment() -> jinja2.Environment:
    """The templates. Whatever names from data hold stays text."""
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
    """A name that may be broken at its dots where it is long.

    >>> print(dotted("results.eta_parts"), dotted("my_package.methods.balanced_tab"))
    results.eta_parts my_package.<wbr>methods.<wbr>balanced_tab
    """
    return escape(name).replace(".", Markup(".<wbr>")) if len(name) > LONG_NAME else escape(name)


def options(command: str) -> Markup:
    """A command whose options are not broken at their dashes.

    >>> print(options("evenhand run 'a<b' erm --seed 0"))
    evenhand run &#39;a&lt;b&#39; erm <span class="unbroken">--seed</span> 0
    """
    whole = str(escape(command))
    return Markup(re.sub(r"(?<= )--[a-z-]+", r'<span class="unbroken">\g<0></span>', whole))


def document(template: str, *, explore: bool = False, **content: Any) -> str:
    """A page as text. Its policy lets nothing be fetched, and only this script and style count."""
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
    """An accuracy in a chart and in a cell."""

    value: float
    low: float  # of its interval, or of the range over seeds
    high: float
    colour: str  # a variable of the palette


@dataclass(frozen=True)
class Line:
    """One line of a table of accuracies: a mark, or None, for each model or method."""

    name: str
    note: str
    count: str
    marks: tuple[Mark | None, ...]

    @property
    def change(self) -> str:
        """From the first to the second of two."""
        first, second = self.marks
        return points(second.value - first.value).removesuffix(" points") if first and second else "–"

    @property
    def plot(self) -> Spec:
        return row_plot(self.marks)


def row_plot(marks: Sequence[Mark | None], others: Sequence[float] = (), *, one_row: bool = False) -> Spec:
    """Accuracies in a cell of a table, one below the other or in one row; `others` are pale rings."""
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
    """Lines over epochs: label -> (colour, values), or (colour, (low, middle, high)) for a line in a band."""
    x = np.asarray(epochs)
    kept = _thinned(len(x))
    lines = []
    for label, (colour, values) in series.items():
        rows = np.atleast_2d(np.asarray(values, np.float64))[:, kept]
        low, middle, high = (_rounded(row) for row in (rows[0], rows[len(rows) // 2], rows[-1]))
        band = {"low": low, "high": high} if len(rows) == 3 else {}
        lines.append(
            {"label": label, "colour": colour, "x": x[kept].tolist(), "y": middle, "joined": 1} | band
        )
    axis = {"scale": "linear", "whole": True, "label": "epoch"}
    return {"title": heading, "x": axis, "y": {"scale": scale}, "series": lines}


def spark(colour: str, values: Sequence[float]) -> Spec:
    """A small line without axes."""
    kept = _thinned(len(values), 40)
    line = {"colour": colour, "x": kept.tolist(), "y": _rounded(np.asarray(values, np.float64)[kept])}
    series = [line | {"width": 1.5, "joined": 1}]
    return {"bare": True, "x": {"scale": "linear"}, "y": {"scale": "log"}, "series": series}


def _thinned(num_epochs: int, most: int = MOST_POINTS) -> Indices:
    """Which epochs a line is drawn through: all, or evenly picked ones with the first and the last."""
    return np.unique(np.linspace(0, num_epochs - 1, min(num_epochs, most)).round().astype(np.int64))


def _rounded(values: Floats) -> list[float | None]:
    return [float(f"{value:.4g}") if np.isfinite(value) else None for value in values]  # JSON has no NaN


# -- the page of runs --------------------------------------------------------------------------------------


def task_loader(root: Path | None = None, trust: Collection[str] = ()) -> TaskLoader:
    """Gives the task that a run was trained on, or None when its data are not there.

    `root` is the folder that holds the datasets, as for `tasks.load`. A record may be a stranger's, so a task
    that is not one of ours is loaded only if `trust` names its module.
    """

    def load(record: Record) -> Task | None:
        spec = record.config.get("spec")
        if not isinstance(spec, str) or not spec:
            return None
        try:
            name = tasks.parse(spec)[0]
            return None if "." in name and name not in trust else tasks.load(spec, root)
        except (ValueError, OSError, ImportError):
            return None

    return load


def build(records: Sequence[Record], out: Path, *, load_task: TaskLoader | None = None) -> Path:
    """Write the page of these runs; the file is whole or absent.

    `load_task` gives a run's task, so that the page can show its samples, or None where it cannot; by
    default tasks are loaded by their names.
    """
    write_bytes(Path(out), render(records, load_task=load_task or task_loader()).encode("utf-8", "replace"))
    return Path(out)


def render(records: Sequence[Record], *, load_task: TaskLoader) -> str:
    """The page of runs as text."""
    if not records:
        raise ValueError("a report needs at least one finished run, got none; run `evenhand demo` first")
    unique = {record.path.resolve(): record for record in sorted(records, key=lambda each: str(each.path))}
    groups: dict[tuple[str, str, bool], list[Record]] = {}
    for record in unique.values():
        group = str(record.config["task"]), str(record.config.get("data", "")), record.older
        groups.setdefault(group, []).append(record)
    mark = ", older records" if len({older for _, _, older in groups}) > 1 else ""
    budget = THUMBNAILS // len(groups)
    views = [
        view(results.frame(own), f"s{i}", task + (mark if older else ""), load_task, budget)
        for i, ((task, _, older), own) in enumerate(sorted(groups.items()))
    ]
    bench = any(each["is_bench"] for each in views)
    return document(
        "page.html",
        views=views,
        overview=_overview(views) if len(views) > 1 else None,
        tables=_tables(results.frame(unique.values())) if bench else [],
        most=MOST_LINES,
    )


def _tables(runs: Frame) -> list[Table]:
    failed = tables.failures(sorted({path.parents[2] for path in runs.path}))
    made = [tables.make(name, runs, failed=failed) for name in TABLES]
    return [table for table in made if any(section.rows for section in table.sections)]


def view(rows: Frame, name: str, heading: str, load_task: TaskLoader, budget: int) -> View:
    """What the page shows of one task; `budget` is in bytes, for all thumbnails."""
    chosen = results.selected(rows, every_method=True)
    variants = rows.drop_duplicates(["method", "variant", "seed"])
    many = len(variants.groupby(["method", "variant"])) > MANY
    shown = _labelled(chosen if many else variants, rows, "candidate" if many else "variant")
    methods = _ordered(chosen)
    found = next((record for record in _preferred(chosen) if record.partition is not None), None)
    task, no_samples = _task(found or chosen.record.iloc[0], load_task)
    trainings, more = _trainings(shown)
    several = bool(chosen.method.duplicated().any())
    return {
        "name": name,  # identifier in the page
        "title": heading,
        "num_runs": len(rows),
        "is_bench": len(rows) > max(2, rows.method.nunique()),
        "over": "class" if set(rows.over) == {"classes"} else "group",
        "scored_on": rows.record.iloc[0].config.get("scored_on", "test"),
        "whiskers": "the range over seeds" if several else "95% intervals",
        "privileged": listed([title(method) for method in methods if is_told_groups(method)]),
        "columns": methods,  # of the charts
        "strip": row_plot([_mark(own, alone=True) for _, own in _by_method(chosen)], one_row=True),
        "story": story.tell(chosen, found),
        "methods": [_method(own, rows) for own in _variants(shown)],
        "failed": _failed(rows),
        "groups": _groups(chosen, methods),
        "found": None if found is None else findings(found, chosen, task, budget),
        "no_samples": no_samples,
        "learned": _learned(chosen),
        "trainings": trainings,
        "more_trainings": more,
        "runs": {method: _runs(own, task) for method, own in _by_method(rows)},
    }


def _ordered(rows: Frame) -> list[str]:
    """The methods in the order of the charts: the baseline, the featured ones, the others."""
    rank = {method: i for i, method in enumerate((palette.BASELINE, *palette.FEATURED))}
    return sorted(set(rows.method), key=lambda method: (rank.get(method, len(rank)), method))


def _by_method(rows: Frame) -> Iterator[tuple[str, Frame]]:
    for method in _ordered(rows):
        yield method, rows[rows.method == method].sort_values(["point", "variant", "seed"], kind="stable")


def _variants(rows: Frame) -> Iterator[Frame]:
    for _, own in _by_method(rows):
        for _, variant in own.groupby("variant", sort=False):
            yield variant


def _preferred(chosen: Frame) -> Iterator[Record]:
    """The selected runs, those of the featured methods first."""
    for method in dict.fromkeys((*palette.FEATURED, *_ordered(chosen))):
        yield from chosen.record[chosen.method == method]


def _labelled(shown: Frame, rows: Frame, settings: str) -> Frame:
    """The runs with a label: their settings where their method was run with several."""
    several = rows.groupby("method").variant.nunique()
    labels = [
        value if several[method] > 1 else ""
        for method, value in zip(shown.method, shown[settings], strict=True)
    ]
    return shown.assign(label=labels)


def _task(record: Record, load_task: TaskLoader) -> tuple[Task | None, str]:
    """The record's task, only if its data are those that the run saw: else the samples would be others."""
    task = load_task(record)
    if task is None and "." in (name := str(record.config.get("spec", "")).partition(":")[0]):
        return (
            None,
            f"The task {name} is not part of evenhand, so no samples are shown; --trust {name} loads it.",
        )
    if task is None:
        return None, "The data are not on the machine that made this page, so no samples are shown."
    parts = record.partition
    same_data = task.checksum == record.config.get("data", "")
    if not same_data or (parts is not None and len(parts.labels) != len(task.train)):
        return None, "The data have changed since these runs, so no samples are shown."
    return task, ""


def _failed(rows: Frame) -> list[str]:
    """The task's runs that ended with an error, in the folders of the others."""
    found = tables.failures(sorted({record.path.parents[2] for record in rows.record}))
    own = [each for each in found if each.task == rows.task.iloc[0]]
    return [f"{each.method}/{each.folder}: {each.error}" for each in own]


def _overview(views: Sequence[View]) -> tuple[str, list[str]]:
    """Who leads on how many of several tasks: a headline and a sentence."""
    leads = [view["story"] for view in views if view["story"].leader]
    if not leads:
        return f"Runs on {len(views)} tasks", []
    leaders: dict[int, list[str]] = {}  # number of tasks -> who leads on so many
    for name, number in Counter(title(each.leader) for each in leads).most_common():
        leaders.setdefault(number, []).append(name)
    parts = [
        f"{listed(names)}{'' if i else ' lead' if len(names) > 1 else ' leads'} on {number}"
        f"{'' if i else f' of {len(views)} tasks'}{' each' if len(names) > 1 else ''}"
        for i, (number, names) in enumerate(leaders.items())
    ]
    sure = sum(each.change is not None and each.change.verdict != "unsure" for each in leads)
    are = "is" if sure == 1 else "are"
    return (
        f"{'; '.join(parts)}.",
        [f"{sure} of these leads {are} significant: the paired 95% interval excludes zero."],
    )


def _mark(own: Frame, *, alone: bool = False) -> Mark:
    """The worst group of a method, with the range over its seeds, or the 95% interval of one, or `alone`."""
    low, high = (own.test_low, own.test_high) if len(own) == 1 else (own.test_wga, own.test_wga)
    value, colour = float(own.test_wga.mean()), palette.variable(str(own.method.iloc[0]))
    return Mark(value, value if alone else float(low.min()), value if alone else float(high.max()), colour)


def _method(own: Frame, rows: Frame) -> dict[str, Any]:
    """A variant of a method in the comparison: its scores over seeds."""
    method = str(own.method.iloc[0])
    names = list(dict.fromkeys(own.worst_group))
    low, high = results.interval(own) if len(own) > 1 else (own.test_low.iloc[0], own.test_high.iloc[0])
    seeds = f", {len(own)} seeds" if len(own) > 1 else ""
    candidates = results.counting(rows, method).groupby("point").test_wga.mean().tolist()
    stages = list(own.epochs)
    epochs = [np.mean([run[stage] for run in stages if stage in run]) for stage in stages[0]]
    return {
        "method": method,
        "label": own.label.iloc[0],
        "told_groups": is_told_groups(method),
        "plot": row_plot([_mark(own)], candidates if len(candidates) > 1 else ()),
        "worst": spread(own.test_wga),
        "interval": f"{percent(low)} to {percent(high)}{seeds}",
        "which": " · ".join(names) if len(names) <= 2 else count(len(names), "different one"),
        "weighted": spread(own.test_accuracy_weighted),
        "balanced": spread(own.test_accuracy_balanced),
        "identified": spread(own.identified.dropna()),
        "purity": spread(own.purity.dropna()),
        "epochs": " + ".join(f"{mean:.0f}" for mean in epochs) or "–",
        "time": duration(None if own.unshared.isna().all() else float(own.unshared.mean())),
    }


def _groups(chosen: Frame, methods: Sequence[str]) -> list[Line]:
    """Every group's accuracy under each method's selected variant, the worst ones first."""
    lines = []
    for group, own in results.groups(chosen).groupby("group", sort=False):
        marks: list[Mark | None] = []
        for method in methods:
            of = own[own.method == method]
            low, high = (of.low, of.high) if len(of) == 1 else (of.accuracy, of.accuracy)
            ends = float(low.min()), float(high.max())
            marks.append(
                Mark(float(of.accuracy.mean()), *ends, palette.variable(method)) if len(of) else None
            )
        lines.append(Line(str(group), "", f"{own['count'].max():,}", tuple(marks)))
    return sorted(lines, key=lambda line: min(mark.value for mark in line.marks if mark))


def _learned(chosen: Frame) -> list[Spec]:
    """How samples that follow the shortcut and samples that break it are learned, where that was recorded."""
    kinds = {"aligned": "majority", "conflicting": "minority"}
    known = (record.dynamics for record in _preferred(chosen) if record.dynamics)
    stage = next((stage for dynamics in known for stage in dynamics.get("stages", {}).values()), None)
    if stage is None:
        return []
    x = np.arange(1, max(len(stage["train"][kind]["loss"]) for kind in kinds) + 1)
    plots = []
    for heading, split, score, scale in (
        ("Loss of training samples", "train", "loss", "log"),
        ("Accuracy of validation samples", "val", "accuracy", "share"),
    ):
        series = {kind: (colour, stage[split][kind][score]) for kind, colour in kinds.items()}
        series = {kind: each for kind, each in series.items() if len(each[1]) == len(x)}  # others are unknown
        plots += [line_plot(heading, x, series, scale)] if series else []
    return plots


def _trainings(rows: Frame) -> tuple[list[dict[str, Any]], int]:
    """The learning curves of trainings, each once however many runs share it, and how many are left out."""
    uses: dict[str, list[tuple[Record, str, str]]] = {}
    for _, own in _by_method(rows):
        for row in own.itertuples():
            label = title(row.method) + (f" ({row.label})" if row.label else "")
            for stage in row.record.config["stages"]:
                uses.setdefault(row.record.stage(stage).name, []).append((row.record, stage, label))
    shown: list[dict[str, Any]] = []
    for used in uses.values():
        longest, stage, _ = max(used, key=lambda use: use[0].config["stages"][use[1]]["epochs"])
        epochs = _epochs(longest, stage)
        if not epochs or len(shown) == MOST_TRAININGS:
            continue
        users = [
            f"{label} ({count(run.config['stages'][own]['epochs'], 'epoch')})" for run, own, label in used
        ]
        x = [row["epoch"] for row in epochs]
        loss, accuracy, validation = (
            [row.get(name) for row in epochs] for name in ("loss", "accuracy", "val_accuracy")
        )
        both = {"training": ("ink", accuracy), "validation": ("accent", validation)}
        shown.append(
            {
                "name": f"“{stage}”" + (f", seed {longest.seed}" if rows.seed.nunique() > 1 else ""),
                "users": f"Used by {listed(users)}.",
                "time": _stage_seconds(longest, stage),
                "plots": [
                    line_plot("Training loss", x, {"loss": ("ink", loss)}, "log"),
                    line_plot("Accuracy", x, both, "share"),
                ],
            }
        )
    return shown, len(uses) - len(shown)


def _epochs(record: Record, stage: str) -> list[dict[str, Any]]:
    try:
        return record.epochs(stage)
    except FileNotFoundError:
        return []  # packed records may come without their trainings


def _stage_seconds(record: Record, stage: str) -> str:
    try:
        return f"{duration(float(record.timing['stages'][stage]))}."
    except (FileNotFoundError, KeyError):
        return ""


def _runs(own: Frame, task: Task | None) -> dict[str, Any]:
    """All runs of a method and how to repeat them, with the settings that are common to them said once."""
    every = [_settings(record) for record in own.record]
    common = {k: v for k, v in every[0].items() if all(k in each and each[k] == v for each in every)}
    done = []
    for row, settings in zip(own.itertuples(), every, strict=True):
        stages = list(row.record.config["stages"])
        epochs = _epochs(row.record, "model" if "model" in stages else stages[-1])
        losses = [each["loss"] for each in epochs if each.get("loss") is not None]
        done.append(
            {
                "label": row.variant or title(row.method),
                "seed": row.seed,
                "worst": percent(row.test_wga),
                "mean": percent(row.test_accuracy_weighted),
                "time": duration(None if np.isnan(row.unshared) else row.unshared),
                "folder": "/".join(row.record.path.parts[-3:]),
                "command": run_command(row.record, task),
                "settings": {name: value for name, value in settings.items() if name not in common},
                "plot": spark(palette.variable(row.method), losses) if losses else None,
            }
        )
    return {"common": common, "done": done}


def _settings(record: Record) -> dict[str, Any]:
    config = record.config
    recipe = config.get("full_recipe") or config.get("recipe", {})
    return {**recipe, **config.get("hyperparameters", {}), **record.made_with, **config.get("versions", {})}


# -- what a method found -----------------------------------------------------------------------------------


def findings(record: Record, chosen: Frame, task: Task | None, budget: int) -> dict[str, Any]:
    """The partition of a run, class by class; `chosen` has the method's runs with other seeds."""
    parts = record.partition
    assert parts is not None
    labels = parts.classes.tolist()
    scored = [str(part["name"]) for part in record.metrics["test"]["classes"]]
    names = scored if len(scored) == len(labels) else [f"class {label}" for label in labels]
    if task is not None:
        names = [task.class_names[int(label)] for label in labels]
    order = [int(i) for i in np.argsort(-parts.separation, kind="stable") if parts.sizes[i, 1] > 0]
    own = chosen[(chosen.method == record.method) & (chosen.seed != record.seed)]
    others = [(run.seed, run.partition) for run in own.record if run.partition is not None]
    losses = _histories(record, len(parts.labels))
    budget //= max(1, len(order[:MOST_LINES]))
    classes = [
        _class(parts, i, names[i], losses, task if place < MOST_LINES else None, others, budget)
        for place, i in enumerate(order)
    ]
    unsplit = [(i, label) for i, label in enumerate(labels) if parts.sizes[i, 1] == 0]
    return {
        "method": title(record.method),
        "seed": record.seed if len(own) else None,
        "classes": classes,  # the most clearly separated first
        "unsplit": [f"{names[i]} ({parts.unsplit.get(label, 'no minority')})" for i, label in unsplit],
        "scored": task is not None and task.train.group is not None and len(task.conflicting) > 0,
        "strength": parts.strength,  # of rebalancing; below 1, minorities are repeated less than to equality
    }


def _class(
    parts: Partition,
    position: int,
    name: str,
    losses: npt.NDArray[Any] | None,
    task: Task | None,
    others: Sequence[tuple[int, Partition]],
    budget: int,
) -> dict[str, Any]:
    """One class: the loss histories and samples of its two parts, and how they compare with true groups."""
    own = parts.labels == parts.classes[position]
    majority, minority = np.flatnonzero(own & ~parts.minority), np.flatnonzero(own & parts.minority)
    shown = None if task is None else samples.gallery(task, parts, majority, minority, name, budget)
    plot, earlier, again = None, False, ""
    if losses is not None:
        members = {"majority": losses[majority], "minority": losses[minority]}
        bands = {kind: (kind, np.quantile(each, [0.1, 0.5, 0.9], axis=0)) for kind, each in members.items()}
        plot = line_plot(f"Loss of the class {name}", np.arange(1, losses.shape[1] + 1), bands, "log")
        traced = [] if shown is None else [each.index for each in (*shown.minority, *shown.majority)]
        kept = _thinned(losses.shape[1])
        plot["samples"] = [_rounded(np.asarray(losses[index], np.float64)[kept]) for index in traced]
        earlier = bool(members["minority"].mean() < members["majority"].mean())
    known = [(seed, other) for seed, other in others if len(other.minority) > minority.max(initial=-1)]
    if known:
        share = float(np.mean([other.minority[minority].mean() for _, other in known]))
        seeds = listed([str(seed) for seed, _ in known])
        again = f"{percent(share, 0)} of them are set apart with seed {seeds} too."
    truth, groups = _truth(task, majority, minority, name)
    return {
        "name": name,
        "majority": len(majority),
        "minority": len(minority),
        "repeated": int(parts.repeated_sizes[position]),  # the size to which the minority was repeated
        "separation": float(parts.separation[position]),
        "plot": plot,
        "gallery": shown,
        "truth": truth,
        "groups": groups,
        "earlier": earlier,  # the smaller part has the lower losses: it is learned first, not late
        "again": again,
    }


def _histories(record: Record, num_samples: int) -> npt.NDArray[Any] | None:
    """The (samples, epochs) loss histories that the partition was made from, if they were kept."""
    for stage in sorted(record.config["stages"], key=lambda name: (name != "erm", name)):
        losses = record.losses(stage)
        if losses is not None and losses.shape[0] == num_samples and losses.shape[1] > 0:
            return losses
    return None


def _truth(
    task: Task | None, majority: Indices, minority: Indices, class_name: str
) -> tuple[str, list[tuple[str, int, int]]]:
    """A sentence on the true groups, and (group, number in the minority, number in the class)."""
    if task is None or task.train.group is None or not task.group_names:
        return "", []
    group = task.train.group.numpy()
    inside, everywhere = (
        np.bincount(group[members], minlength=len(task.group_names))
        for members in (minority, np.concatenate([majority, minority]))
    )
    present = sorted(np.flatnonzero(everywhere), key=lambda g: (-inside[g], -everywhere[g]))[:6]
    groups = [
        (samples.short(task.group_names[g], class_name), int(inside[g]), int(everywhere[g])) for g in present
    ]
    if not task.conflicting:
        return "", groups
    hits, total = (int(counts[sorted(task.conflicting)].sum()) for counts in (inside, everywhere))
    return (
        f"{hits:,} of these {len(minority):,} are bias-conflicting; the class has {total:,} of them in all.",
        groups,
    )


# -- the page of an audit ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How strong the evidence is that one class hides a minority, and what to do about it."""

    strength: float  # 0 to 1
    words: str  # such as "strong"
    advice: str  # such as "Retrain on the balanced set."
    threshold: float | None = None  # the strength that a class without a minority hardly ever reaches
    nothing: float = 0.0  # the strength that a class without a minority has anyhow; the meter begins there

    def meter(self, value: float) -> float:
        """Where a strength stands on the meter, 0 to 1."""
        return max(0.0, (value - self.nothing) / (1 - self.nothing))


@dataclass(frozen=True, kw_only=True)
class Score:
    """One accuracy of both models, such as that of the worst class; None where it could not be measured."""

    name: str
    baseline: float | None
    balanced: float | None
    baseline_interval: tuple[float, float] | None = None
    balanced_interval: tuple[float, float] | None = None
    num_samples: int | None = None
    note: str = ""  # such as the name of the worst class


@dataclass(frozen=True, kw_only=True)
class Shared:
    """A property that late samples of a class share."""

    class_name: str
    words: str  # such as "have hospital = B"
    late: str  # such as "57 of 58"
    others: str
    effect: float  # difference of the shares, in points
    interval: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Audit:
    """One audit as the page presents it, the answer first."""

    title: str  # what was audited
    headline: str  # the answer in one sentence
    samples: Samples
    class_names: Sequence[str]
    verdicts: Sequence[Verdict]  # one per class
    lede: Sequence[str] = ()  # further sentences below the headline
    shared: Sequence[Shared] = ()  # what late samples share, the most telling first
    scores: Sequence[Score] = ()  # the most important first; up to three stand beside the headline
    recommendation: str = ""  # which model to ship, and why
    ship: str = ""  # "baseline", "balanced", or empty where the page cannot tell
    groups: Sequence[Score] = ()  # true groups, for scoring only
    facts: Sequence[tuple[str, str]] = ()  # name and value: data, model, epochs, versions
    baseline_name: str = "as collected"
    balanced_name: str = "balanced"
    media: Pictures | Rows | Texts | None = None


def render_audit(audit: Audit) -> str:
    """The page of an audit as text."""
    check(audit)
    facts = {
        "title": audit.title,
        "classes": list(audit.class_names),
        "models": [audit.baseline_name, audit.balanced_name],
    }
    packed = samples.pack(audit.samples, audit.media, facts)
    labels, triage = np.asarray(audit.samples.labels), np.asarray(audit.samples.triage)
    every = {"samples": triage == triage, **{f"likely {kind}": triage == kind for kind in samples.TRIAGE[1:]}}
    classes = [
        {
            "position": i,
            "name": name,
            "verdict": verdict,
            "counts": {kind: np.count_nonzero(each & (labels == i)) for kind, each in every.items()},
        }
        for i, (name, verdict) in enumerate(zip(audit.class_names, audit.verdicts, strict=True))
    ]
    groups = list(audit.groups)
    if len(groups) > MOST_LINES:  # first those with a note, which stand for several, then the worst
        groups.sort(key=lambda score: (not score.note, 1.0 if score.baseline is None else score.baseline))
    return document(
        "audit.html",
        explore=True,
        audit=audit,
        most=MOST_LINES,
        classes=sorted(classes, key=lambda each: (-each["verdict"].strength, each["position"])),
        scores=[_line(score) for score in audit.scores],
        groups=[_line(score) for score in groups],
        packed=packed,
        data=Markup(packed.data),
        pictures=Markup(packed.pictures),
    )


def _line(score: Score) -> Line:
    marks = []
    for value, interval, colour in (
        (score.baseline, score.baseline_interval, palette.variable(palette.BASELINE)),
        (score.balanced, score.balanced_interval, "accent"),
    ):
        marks.append(None if value is None else Mark(value, *(interval or (value, value)), colour))
    counted = "" if score.num_samples is None else f"{score.num_samples:,}"
    return Line(score.name, score.note, counted, tuple(marks))


def check(audit: Audit) -> None:
    """Raise ValueError when the parts of an audit do not fit each other."""
    own, num_classes = audit.samples, len(audit.class_names)
    n = len(own.ids)
    if n == 0:
        raise ValueError("an audit must hold at least one sample, got none; there is nothing to explore")
    if np.ndim(own.curves) != 2 or len(own.curves) != n or np.shape(own.curves)[1] == 0:
        shape = np.shape(own.curves)
        raise ValueError(f"curves must have the shape ({n}, epochs) for {n} ids, got {shape}")
    for name in ("labels", "minority", "margin", "triage", "predicted_baseline", "predicted_balanced"):
        values = getattr(own, name)
        if values is not None and len(values) != n:
            raise ValueError(f"{name} must hold one value for each of {n} ids, got {len(values)}")
        whole = name in ("labels", "predicted_baseline", "predicted_balanced") and values is not None
        if whole and not (np.min(values) >= 0 and np.max(values) < num_classes):
            raise ValueError(
                f"{name} must lie between 0 and {num_classes - 1}, the positions in class_names, "
                f"got {np.min(values)} to {np.max(values)}"
            )
    unknown = sorted(set(own.triage) - set(samples.TRIAGE))
    if unknown:
        known = ", ".join(map(repr, samples.TRIAGE))
        raise ValueError(f"triage must be one of {known}, got {unknown[0]!r}")
    if len(audit.verdicts) != num_classes:
        raise ValueError(f"verdicts must hold one per class ({num_classes}), got {len(audit.verdicts)}")
    if audit.ship not in ("", "baseline", "balanced"):
        raise ValueError(f"ship must be 'baseline', 'balanced' or '', got {audit.ship!r}")
    if isinstance(audit.media, Rows):
        lengths = [len(each) for each in audit.media.values]
        if lengths != [n] * len(audit.media.columns):
            raise ValueError(f"rows must hold {n} values for each of their columns, got {lengths}")
