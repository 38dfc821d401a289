"""Two short tables of a bench: what it would do, and what it has found."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenhand.bench.agenda import Agenda
from evenhand.bench.plan import PAPER, method_module
from evenhand.bench.results import Result, frame, methods, result
from evenhand.bench.show import progress
from evenhand.bench.work import load
from evenhand.training.record import Record


@dataclass(frozen=True)
class Row:
    """A method on a task: the candidate selected the paper's way, and what it costs to select so."""

    task: str
    method: str
    selected: str
    seeds: int
    wga: float
    wga_deviation: float
    pou: float | None  # None where the selected candidate has a WGA of zero
    mms: float
    candidates: int


def results(records: Sequence[Record]) -> list[Row]:
    """One row for every task and method that has records."""
    return [
        _row(str(name), result(rows, method))
        for name, rows in frame(records).groupby("task")
        for method in sorted(methods(rows), key=lambda method: PAPER.index(method) if method in PAPER else 99)
    ]


def _row(task: str, found: Result) -> Row:
    return Row(
        task=task,
        method=found.method,
        selected=found.rows.candidate.iloc[0],
        seeds=len(found.rows),
        wga=found.wga.mean,
        wga_deviation=found.wga.deviation,
        # Where the selected one has no WGA, PoU is that of another candidate, which only a table can say.
        pou=None if found.pou is None or not found.wga.mean else found.pou.mean,
        mms=found.mms.mean,
        candidates=found.num_candidates,
    )


def results_table(rows: Sequence[Row]) -> Any:
    """The rows as a table for a terminal."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name in ("task", "method"):
        table.add_column(name, no_wrap=True)
    table.add_column("selected")
    for name in ("WGA", "seeds", "PoU", "MMS"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        wga = f"{100 * row.wga:.1f} ± {100 * row.wga_deviation:.1f}"
        price = "–" if row.pou is None else f"{row.pou:.3f}"
        figures = (wga, str(row.seeds), price, f"{100 * row.mms:.1f}")
        table.add_row(row.task, row.method, row.selected or "–", *figures)
    return table


@dataclass(frozen=True)
class Estimate:
    """A method's part of the plan; an epoch is one pass over the task's training samples."""

    task: str
    method: str
    candidates: int
    seeds: int
    runs: int
    done: int
    epochs: int  # at most, of the runs that are not done
    note: str = ""


def estimates(agenda: Agenda) -> list[Estimate]:
    """One line for every task and method of an agenda."""
    lines = []
    planned = [entry.planned for entry in agenda.entries] + agenda.expected()
    for (spec, method), counts in progress(agenda).items():
        own = [one for one in planned if (one.spec, one.method) == (spec, method)]
        seeds = len({one.seed for one in own})
        recipe, left = load(spec, agenda.place.data).recipe, sum(counts.values()) - counts["done"]
        epochs = max(recipe.replace(**one.changes).epochs for one in own)
        module = method_module(method)
        passes = round(left * epochs * getattr(module, "COST", 1.0))
        note = getattr(module, "COST_NOTE", "")
        lines.append(Estimate(spec, method, len(own) // seeds, seeds, len(own), counts["done"], passes, note))
    return lines


def estimates_table(lines: Sequence[Estimate]) -> Any:
    """The plan as a table for a terminal, with its sum."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_footer=True)
    table.add_column("task", footer="total", overflow="fold")
    table.add_column("method")
    names = ("candidates", "seeds", "runs", "done", "epochs ≤")
    for name, key in zip(names, ("candidates", "seeds", "runs", "done", "epochs"), strict=True):
        total = sum(getattr(line, key) for line in lines) if key in ("runs", "done", "epochs") else ""
        table.add_column(name, footer=f"{total:,}" if total != "" else "", justify="right", no_wrap=True)
    for line in lines:
        figures = (line.candidates, line.seeds, line.runs, line.done, line.epochs)
        table.add_row(line.task, line.method, *(f"{figure:,}" for figure in figures))
    return table


def as_json(rows: Sequence[Any]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(row) for row in rows]
