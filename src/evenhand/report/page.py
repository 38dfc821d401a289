"""build: runs in, one self-contained HTML file out, which needs no network and runs no foreign script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

import evenhand
from evenhand import tasks
from evenhand.report import benchpage, commands, comparison, curves, document, findings, story
from evenhand.report.benchpage import MethodRuns
from evenhand.report.comparison import Groups, Row
from evenhand.report.curves import Curves
from evenhand.report.figures import Chart
from evenhand.report.findings import Findings
from evenhand.report.story import Story
from evenhand.report.study import Study, studies
from evenhand.tasks import cache_root
from evenhand.training.data import Task
from evenhand.training.record import Record
from evenhand.training.store import write_bytes

THUMBNAILS = 3_000_000  # bytes, in all galleries of a page; the rest of a page takes well under 2 MB


@dataclass(frozen=True)
class Done:
    """One run: what it was and how to do it again."""

    label: str
    seed: int
    folder: str
    command: str
    settings: dict[str, object]
    versions: dict[str, str]


@dataclass(frozen=True)
class View:
    """All that the template shows of one study."""

    name: str  # identifier in the page
    title: str  # the task, marked where it is of older records and others are of newer ones
    study: Study
    story: Story
    rows: list[tuple[Row, list[Row]]]
    failed: list[str]  # runs, where no bench says it
    groups: Groups
    findings: Findings | None
    no_samples: str  # why no samples are shown, or empty
    trainings: list[Curves]
    more_trainings: int
    runs: list[Done]
    many: list[MethodRuns]  # all runs in short, where there are many

    @property
    def charts(self) -> Iterator[Chart]:
        for each in self.findings.classes if self.findings else ():
            if each.chart is not None:
                yield each.chart
        for training in self.trainings:
            yield from (training.loss, training.accuracy)


TaskLoader = Callable[[Record], Task | None]


def task_loader(root: Path | None = None) -> TaskLoader:
    """Gives the task that a run was trained on, or None when its data are not there.

    `root` is the folder that holds the datasets, as for `tasks.load`.
    """

    def load(record: Record) -> Task | None:
        spec = record.config.get("spec")
        if not isinstance(spec, str) or not spec:
            return None
        packed = record.path.resolve().is_relative_to((cache_root() / "unpacked").resolve())
        if packed and "." in tasks.parse(spec)[0]:
            return None  # a packed record may be a stranger's, and must not say what we import
        try:
            return tasks.load(spec, root)
        except (ValueError, OSError, ImportError):
            return None

    return load


def build(records: Sequence[Record], out: Path, *, load_task: TaskLoader | None = None) -> Path:
    """Write the report on these runs; the file is whole or absent.

    `load_task` gives a run's task, so that the page can show its samples, or None where it cannot; by
    default tasks are loaded by their names.
    """
    write_bytes(Path(out), render(records, load_task=load_task or task_loader()).encode("utf-8", "replace"))
    return Path(out)


def render(records: Sequence[Record], *, load_task: TaskLoader) -> str:
    """The page as text."""
    found = studies(records)
    bench = benchpage.view(records) if any(map(benchpage.is_bench, found)) else None
    budget = THUMBNAILS // len(found)
    mark = ", older records" if len({study.older for study in found}) > 1 else ""
    views = [
        _view(study, f"s{i}", mark if study.older else "", load_task, budget, bench is None)
        for i, study in enumerate(found)
    ]
    style, script = (document.resource(name) for name in ("page.css", "page.js"))
    return (
        document.environment()
        .get_template("page.html")
        .render(
            views=views,
            bench=bench,
            num_runs=sum(len(study.records) for study in found),
            data={chart.name: chart.data for view in views for chart in view.charts},
            style=Markup(style),
            script=Markup(script),
            policy=document.policy(style, script),
            version=evenhand.__version__,
        )
    )


def _view(whole: Study, name: str, mark: str, load_task: TaskLoader, budget: int, alone: bool) -> View:
    """`alone`: there is no bench above that says which runs failed."""
    study = benchpage.selected(whole)
    shown = study.found or study.records[0]
    task, no_samples = _task(shown, load_task)
    drawn, more = curves.curves(study, name)
    return View(
        name=name,
        title=study.task + mark,
        study=study,
        story=story.tell(study),
        rows=comparison.rows(study),
        failed=benchpage.failed_runs(whole) if alone else [],
        groups=comparison.groups(study),
        findings=findings.find(study, task, name, budget),
        no_samples=no_samples,
        trainings=drawn,
        more_trainings=more,
        runs=[_done(study, record, task) for record in study.records],
        many=benchpage.all_runs(whole, lambda record: commands.command(record, task)),
    )


def _task(record: Record, load_task: TaskLoader) -> tuple[Task | None, str]:
    """The record's task, only if its data are those that the run saw: else the samples would be others."""
    task = load_task(record)
    if task is None:
        return None, "The data are not on the machine that made this page, so no samples are shown."
    parts = record.partition
    same_data = task.checksum == record.config.get("data", "")
    if not same_data or (parts is not None and len(parts.labels) != len(task.train)):
        return None, "The data have changed since these runs, so no samples are shown."
    return task, ""


def _done(study: Study, record: Record, task: Task | None) -> Done:
    config = record.config
    return Done(
        label=study.variant_of(record).label,
        seed=record.seed,
        folder="/".join(record.path.parts[-3:]),
        command=commands.command(record, task),
        settings={
            **(config.get("full_recipe") or config.get("recipe", {})),
            **config.get("hyperparameters", {}),
            **record.made_with,
        },
        versions=dict(config.get("versions", {})),
    )
