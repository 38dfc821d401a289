"""The page's part about a bench: tables, figures, and every run with its settings and a small curve."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenhand.bench import results
from evenhand.bench.grid import is_told_groups
from evenhand.bench.grid import title as method_title
from evenhand.bench.results import Frame, result
from evenhand.core.metrics import Mean
from evenhand.report import figures, plots, tables
from evenhand.report.comparison import seconds
from evenhand.report.render import Table
from evenhand.report.study import Study, Variant, studies
from evenhand.report.words import duration, percent
from evenhand.training.record import Record

SHOWN = ("1", "2", "selected", "cost")
MANY = 12  # variants, above which a study is told by the selected ones alone
MOST_TASKS = 6  # that are shown unfolded and get figures, as many as the paper has
POINTS = 40  # of a small curve
HEIGHT = 24  # of it, in pixels


@dataclass(frozen=True)
class Picture:
    """A figure as a data URI, which the page's policy allows and in which no script can run."""

    name: str
    title: str
    caption: str
    uri: str


@dataclass(frozen=True)
class BenchView:
    """What the page shows of all tasks together."""

    leads: list[str]
    tables: list[Table]
    pictures: list[Picture]
    most: int  # tasks that are shown unfolded


@dataclass(frozen=True)
class Small:
    """One of many runs, in one line that unfolds."""

    label: str
    seed: int
    worst: str
    accuracy: str
    time: str
    stage: str
    loss: str  # path of the training loss, from its largest value down to zero
    accuracy_path: str  # path of the validation accuracy, from 0 to 1
    folder: str
    command: str
    settings: dict[str, Any]  # what the method's other runs do not all have


@dataclass(frozen=True)
class MethodRuns:
    """All runs of one method, with what is common to them said once."""

    title: str
    common: dict[str, Any]
    runs: list[Small]


def is_bench(study: Study) -> bool:
    """Whether a study compares more than one run of each method."""
    methods = {variant.method for variant in study.variants}
    return len(study.records) > max(2, len(methods))


def view(records: Sequence[Record]) -> BenchView:
    """The tables and the figures that these records allow; tables without a row are left out."""
    ordered = sorted(records, key=lambda record: str(record.path))
    failed = tables.failures(sorted({record.path.parents[2] for record in ordered}))
    runs = results.frame(ordered)
    made = [tables.make(name, runs, failed=failed) for name in SHOWN]
    filled = [table for table in made if any(section.rows for section in table.sections)]
    told = [words for rows in tables.by_task(runs) if (words := lead(rows))]
    pictures = [_picture(drawn) for drawn in plots.drawable(runs, MOST_TASKS)]
    return BenchView(told, filled, pictures, MOST_TASKS)


def failed_runs(study: Study) -> list[str]:
    """The runs of a study's task that ended with an error, in the folders of the others."""
    found = tables.failures(sorted({record.path.parents[2] for record in study.records}))
    return [f"{each.method}/{each.folder}: {each.error}" for each in found if each.task == study.task]


def lead(rows: Frame) -> str:
    """Which of the methods that are told no groups has the best worst group; empty where it is alone."""
    free = [name for name in results.methods(rows) if not is_told_groups(name)]
    ordered = sorted((result(rows, name) for name in free), key=lambda each: -each.wga.mean)
    if len(ordered) < 2:
        return ""
    best, second = ordered[:2]
    gap, spread = best.wga.mean - second.wga.mean, max(best.wga.deviation, second.wga.deviation)
    close = ", within what seeds differ by" if gap <= spread else ""
    what = "class" if set(rows.over[rows.alike]) == {"classes"} else "group"
    return (
        f"{tables.spec_of(rows)}: told no groups, {method_title(best.method)} has the best "
        f"worst-{what} accuracy, "
        f"{_mean(best.wga)}; {method_title(second.method)} follows with {_mean(second.wga)}{close}."
    )


def _mean(score: Mean) -> str:
    spread = f" ± {100 * score.deviation:.1f}" if len(score.per_seed) > 1 else ""
    return f"{100 * score.mean:.1f}{spread}%"


def _picture(drawn: plots.Drawn) -> Picture:
    svg = base64.b64encode(plots.encode(drawn, "svg", letters=True)).decode()
    return Picture(drawn.name, drawn.title, drawn.caption, f"data:image/svg+xml;base64,{svg}")


def selected(study: Study) -> Study:
    """Of a study with many variants, each method's selected one, as in the tables."""
    if len(study.variants) <= MANY:
        return study
    runs = results.frame(sorted(study.records, key=lambda record: str(record.path)))
    records = list(results.selected(runs).record)
    return studies(records)[0] if records else study


def all_runs(study: Study, command: Callable[[Record], str]) -> list[MethodRuns]:
    """Every run, by method; none where there are few, which the page shows at length."""
    if len(study.variants) <= MANY:
        return []
    methods: dict[str, list[Variant]] = {}
    for variant in study.variants:
        methods.setdefault(variant.title, []).append(variant)
    return [_method(title, variants, command) for title, variants in methods.items()]


def _method(title: str, variants: Sequence[Variant], command: Callable[[Record], str]) -> MethodRuns:
    every = [_settings(record) for variant in variants for record in variant.records]
    common = {
        name: value
        for name, value in every[0].items()
        if all(name in each and each[name] == value for each in every)
    }
    return MethodRuns(
        title=title,
        common=common,
        runs=[_small(variant, record, common, command) for variant in variants for record in variant.records],
    )


def _settings(record: Record) -> dict[str, Any]:
    config = record.config
    recipe = config.get("full_recipe") or config.get("recipe", {})
    return {**recipe, **config.get("hyperparameters", {}), **record.made_with, **config.get("versions", {})}


def _small(
    variant: Variant, record: Record, common: dict[str, Any], command: Callable[[Record], str]
) -> Small:
    stage, loss, accuracy = _curves(record)
    test = record.metrics["test"]
    return Small(
        label=", ".join(f"{name}={value}" for name, value in variant.settings.items()) or variant.title,
        seed=record.seed,
        worst=percent(float(test["wga"])),
        accuracy=percent(float(test["accuracy_weighted"])),
        time=duration(seconds(record)),
        stage=stage,
        loss=loss,
        accuracy_path=accuracy,
        folder="/".join(record.path.parts[-3:]),
        command=command(record),
        settings={name: value for name, value in _settings(record).items() if name not in common},
    )


def _curves(record: Record) -> tuple[str, str, str]:
    """The last training of a run: its name, and the paths of its loss and of its validation accuracy."""
    stages = list(record.config["stages"])
    stage = "model" if "model" in stages else stages[-1]
    try:
        rows = record.epochs(stage)
    except FileNotFoundError:
        return stage, "", ""
    paths = []
    for name in ("loss", "val_accuracy"):
        values = np.array([row[name] for row in rows if row.get(name) is not None], dtype=np.float64)
        values = values[np.isfinite(values)]
        kept = values[
            np.unique(np.linspace(0, len(values) - 1, min(len(values), POINTS)).round().astype(int))
        ]
        highest = 1.0 if name == "val_accuracy" else float(kept.max(initial=0.0)) or 1.0
        paths.append(figures.sparkline(kept, highest, HEIGHT) if len(kept) else "")
    return stage, paths[0], paths[1]
