"""Pages: one self-contained HTML file about runs, a bench or an audit. It needs no network.

`build` writes the page of runs: the answer, then sections for every task. With more than one run per method
it is the page of a bench, which includes the tables. `render_audit` makes the page of an audit. All numbers
come from the results frame, so pages and tables agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from evenhand import tasks
from evenhand.bench import results
from evenhand.bench.results import Frame, reads_groups, title
from evenhand.report import notes, palette, samples, story, tables
from evenhand.report.commands import run_command
from evenhand.report.document import Line, Mark, Spec, document, line_plot, row_plot, spark
from evenhand.report.findings import MOST_LINES, findings
from evenhand.report.render import Table, spread
from evenhand.report.samples import Pictures, Rows, Samples, Texts
from evenhand.report.words import count, duration, listed, percent
from evenhand.training.data import Task
from evenhand.training.record import Record
from evenhand.training.store import write_bytes

THUMBNAILS = 3_000_000  # bytes in all galleries of a page; the rest takes well under 2 MB
MANY = 12  # variants of a task above which only the selected ones are compared
MOST_TRAININGS = 12
TABLES = ("1", "2", "selected", "cost")

View = dict[str, Any]  # of a task, as task.html reads it
TaskLoader = Callable[[Record], Task | None]


# -- the page of runs --------------------------------------------------------------------------------------


def task_loader(root: Path | None = None, trust: Collection[str] = ()) -> TaskLoader:
    """Return a function that loads the task of a record, or returns None if its data are missing.

    `root` is the folder of the datasets, as for `tasks.load`. Records may come from strangers, so a task
    that is not built in is loaded only if `trust` names its module.
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
    """Write the page of these runs. The file is written atomically.

    `load_task` returns a run's task, whose samples the page shows, or None. By default tasks are loaded by
    their names.
    """
    write_bytes(Path(out), render(records, load_task=load_task or task_loader()).encode("utf-8", "replace"))
    return Path(out)


def render(records: Sequence[Record], *, load_task: TaskLoader) -> str:
    """Return the page of runs as HTML."""
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
    failed = notes.failures(sorted({path.parents[2] for path in runs.path}))
    made = [tables.make(name, runs, failed=failed) for name in TABLES]
    return [table for table in made if not table.frame.empty]


def view(rows: Frame, name: str, heading: str, load_task: TaskLoader, budget: int) -> View:
    """Return the content of a task's sections. `budget` is the size in bytes of all thumbnails."""
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
        "privileged": listed([title(method) for method in methods if reads_groups(method)]),
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
    """Return the methods in the order of the charts: the baseline, the featured ones, the others."""
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
    """Yield the selected runs, those of the featured methods first."""
    for method in dict.fromkeys((*palette.FEATURED, *_ordered(chosen))):
        yield from chosen.record[chosen.method == method]


def _labelled(shown: Frame, rows: Frame, settings: str) -> Frame:
    """Return the runs with a label: their settings if their method was run with several."""
    several = rows.groupby("method").variant.nunique()
    labels = [
        value if several[method] > 1 else ""
        for method, value in zip(shown.method, shown[settings], strict=True)
    ]
    return shown.assign(label=labels)


def _task(record: Record, load_task: TaskLoader) -> tuple[Task | None, str]:
    """Return the record's task, and why its samples are not shown if they are not those of the run."""
    task = load_task(record)
    if task is None and "." in (name := str(record.config.get("spec", "")).partition(":")[0]):
        return (
            None,
            f"No samples are shown because the task {name} is not part of evenhand; --trust {name} loads it.",
        )
    if task is None:
        return None, "No samples are shown because the data were not available when this page was made."
    parts = record.partition
    same_data = task.checksum == record.config.get("data", "")
    if not same_data or (parts is not None and len(parts.labels) != len(task.train)):
        return None, "No samples are shown because the data have changed since these runs."
    return task, ""


def _failed(rows: Frame) -> list[str]:
    """Return the task's failed runs, from the same folders of runs."""
    found = notes.failures(sorted({path.parents[2] for path in rows.path}))
    return [str(each) for each in found if each.task == rows.task.iloc[0]]


def _overview(views: Sequence[View]) -> tuple[str, list[str]]:
    """Return a headline and sentences about which method leads on how many tasks."""
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
    """Return a method's worst-group accuracy, with its range over seeds or a single seed's 95% interval."""
    low, high = (own.test_low, own.test_high) if len(own) == 1 else (own.test_wga, own.test_wga)
    value, colour = float(own.test_wga.mean()), palette.variable(str(own.method.iloc[0]))
    return Mark(value, value if alone else float(low.min()), value if alone else float(high.max()), colour)


def _method(own: Frame, rows: Frame) -> dict[str, Any]:
    """Return one row of the comparison: a method's variant with its scores over seeds."""
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
        "reads_groups": reads_groups(method),
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
    """Return the accuracy of every group with each method's selected variant, the worst groups first."""
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
    """Return the learning curves of aligned and conflicting samples, if they were recorded."""
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
    """Return the learning curves of trainings, shared ones only once, and how many are not shown."""
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
        return []  # packed records may lack their trainings


def _stage_seconds(record: Record, stage: str) -> str:
    try:
        return f"{duration(float(record.timing['stages'][stage]))}."
    except (FileNotFoundError, KeyError):
        return ""


def _runs(own: Frame, task: Task | None) -> dict[str, Any]:
    """Return all runs of a method with the commands that repeat them, and list common settings once."""
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


# -- the page of an audit ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The strength of the evidence that a class contains a minority, and the advice."""

    strength: float  # 0 to 1
    words: str  # such as "strong"
    advice: str  # such as "Retrain on the balanced set."
    threshold: float | None = None  # a strength that a class without a minority rarely reaches
    nothing: float = 0.0  # the typical strength without a minority, where the meter starts

    def meter(self, value: float) -> float:
        """Return the position of a strength on the meter, 0 to 1."""
        return max(0.0, (value - self.nothing) / (1 - self.nothing))


@dataclass(frozen=True, kw_only=True)
class Score:
    """One accuracy of both models, such as that of the worst class; None if it was not measured."""

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
    """The content of an audit's page."""

    title: str  # what was audited
    headline: str  # the answer in one sentence
    samples: Samples
    class_names: Sequence[str]
    verdicts: Sequence[Verdict]  # one per class
    lede: Sequence[str] = ()  # further sentences below the headline
    shared: Sequence[Shared] = ()  # what late samples share, the most telling first
    scores: Sequence[Score] = ()  # the most important first; up to three appear beside the headline
    recommendation: str = ""  # which model to ship, and why
    ship: str = ""  # "baseline", "balanced", or empty if unknown
    groups: Sequence[Score] = ()  # true groups, used only for scoring
    facts: Sequence[tuple[str, str]] = ()  # name and value: data, model, epochs, versions
    baseline_name: str = "as collected"
    balanced_name: str = "balanced"
    media: Pictures | Rows | Texts | None = None


def render_audit(audit: Audit) -> str:
    """Return the page of an audit as HTML."""
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
    if len(groups) > MOST_LINES:  # those with a note represent several groups and come first, then the worst
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
    """Raise ValueError if the parts of an audit are inconsistent."""
    own, num_classes = audit.samples, len(audit.class_names)
    n = len(own.ids)
    if n == 0:
        raise ValueError("an audit must contain at least one sample, got none")
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
