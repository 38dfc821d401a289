"""The search: which hyperparameters each criterion selects, and what looking for them costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from evenhand.bench.grid import named
from evenhand.bench.grid import title as method_title
from evenhand.bench.result import mean, result
from evenhand.bench.select import CRITERIA, Bench, Candidate, rule, select
from evenhand.report import paper
from evenhand.report.table import EMPTY, Cell, Column, Row, Section, Table, mark_best, number, percents, words
from evenhand.report.tables import notes
from evenhand.report.tables.notes import Failure
from evenhand.report.tables.results import methods_of
from evenhand.report.words import duration
from evenhand.training.record import Record

SELECTED = (
    Column("method", text=True),
    Column("searched", below="method", text=True),
    Column("candidates"),
    Column("selected", text=True),
    Column("selected, paper", below="selected", text=True),
    Column("oracle", text=True),
    Column("oracle, paper", below="oracle", text=True),
    *(Column(f"by {by}") for by in CRITERIA),
    Column("by the oracle"),
)
COST = (
    Column("method", text=True),
    Column("runs"),
    Column("longest run"),
    Column("over ERM's"),
    Column("over ERM's, paper", below="over ERM's"),
    Column("search"),
    Column("over TAB's longest run"),
    Column("over TAB's, paper", below="over TAB's longest run"),
    Column("really spent"),
)


def table_selected(benches: Sequence[Bench], by: str | None = None, failed: Sequence[Failure] = ()) -> Table:
    """What is selected, by us and by the paper, and the oracle: the best test WGA."""
    sections = []
    for bench in benches:
        methods = [name for name in methods_of(bench) if bench.candidates(name)]
        rows = [_selected(bench, method, by) for method in methods]
        sections.append(
            Section(
                bench.spec,
                rows,
                [
                    _inherited(bench),
                    *notes.ties(bench, methods, CRITERIA),
                    *notes.of_task(bench, methods, failed),
                ],
            )
        )
    explained = (
        "Selected: by validation "
        + (f"{by}" if by else "accuracy, or WGA for methods that are told the groups, as in the paper")
        + "; oracle: the best test WGA. By …: the test WGA, per cent, mean ± population deviation over "
        "seeds, of what each criterion would select on the validation set."
    )
    return Table("selected", "Selected hyperparameters", SELECTED, sections, [explained])


def _inherited(bench: Bench) -> str:
    return f"Methods that do not search them train with ERM's {named(bench.pair)}."


def _selected(bench: Bench, method: str, by: str | None) -> Row:
    compared, _ = paper.counterpart(bench.spec)
    found = result(bench, method, by)
    theirs = [paper.settings(method, compared, part) for part in ("selected", "oracle")]
    return [
        words(method_title(method)),
        words(", ".join(found.selected.settings) or "nothing"),
        number(found.num_candidates),
        *(settings_cell(each) for each in (found.selected.settings, theirs[0])),
        *(settings_cell(each) for each in (found.oracle.settings, theirs[1])),
        *(_reached(bench, bench.candidates(method), criterion) for criterion in CRITERIA),
        percents(found.oracle_wga),
    ]


def settings_cell(settings: Mapping[str, Any] | None) -> Cell:
    """Values of the searched hyperparameters; a machine also reads their names."""
    if not settings:
        return EMPTY
    return Cell(named(settings), ", ".join(named({"": value})[1:] for value in settings.values()))


def _reached(bench: Bench, found: Sequence[Candidate], by: str) -> Cell:
    if by == "worst_pseudo_group" and not set(bench.pseudo) >= set(bench.seeds):
        return EMPTY  # without pseudo-groups for every seed, candidates could not be compared
    return percents(mean(select(found, by, pseudo=bench.pseudo), "wga"))


def table_cost(benches: Sequence[Bench], by: str | None = None, failed: Sequence[Failure] = ()) -> Table:
    """The longest run of every method, and its whole search, as the paper counts and as really spent."""
    sections = []
    for bench in benches:
        methods = [name for name in methods_of(bench) if bench.candidates(name)]
        rows = [_cost(bench, method) for method in methods]
        rows.append(_all(bench, methods))
        baselines = {method_title(name) for name in methods if name == "erm" or rule(name) == "wga"}
        part = {method_title(name) for name in methods if bench.missing(name)}  # a part of a search is cheap
        mark_best([row for row in rows[:-1] if row[0].text not in baselines | part], 5, lowest=True)
        sections.append(Section(bench.spec, rows, notes.of_task(bench, methods, failed)))
    explained = (
        "Seconds of training. A run counts all its trainings, as if none were shared, as in the paper; a "
        "search is one seed's sum over all candidates, averaged over seeds. Really spent: by all "
        "seeds, trainings that runs share counted once. The paper's numbers are of cMNIST on other hardware."
    )
    return Table("cost", "What a run and a search cost", COST, sections, [explained])


def _cost(bench: Bench, method: str) -> Row:
    found = bench.candidates(method)
    compared, _ = paper.counterpart(bench.spec)
    cost = paper.numbers()["cost"].get(compared, {})
    longest, total = longest_run(found), search_seconds(found)
    erm, tab = longest_run(bench.candidates("erm")), longest_run(bench.candidates("tab"))
    over_erm = cost.get("tab_over_erm_worst_run") if method == "tab" else None
    return [
        words(method_title(method)),
        number(sum(len(each.records) for each in found)),
        seconds_cell(longest),
        _ratio(longest, erm),
        number(over_erm, "{:.1f}×"),
        seconds_cell(total),
        _ratio(total, tab),
        number(cost.get(f"{method}_search_over_tab"), "{:g}×"),
        seconds_cell(spent(record for each in found for record in each.records.values())),
    ]


def _all(bench: Bench, methods: Sequence[str]) -> Row:
    """What all of it took, trainings that methods share counted once."""
    records = [r for name in methods for each in bench.candidates(name) for r in each.records.values()]
    return [words("all"), number(len(records)), *[EMPTY] * 6, seconds_cell(spent(records))]


def unshared(record: Record) -> float | None:
    """Seconds of all of a run's trainings, as if none were shared."""
    try:
        return float(record.timing["unshared"])
    except (OSError, KeyError, ValueError):
        return None  # packed records may come without timings


def longest_run(found: Iterable[Candidate]) -> float | None:
    """The seconds of the slowest run of any candidate."""
    times = [unshared(record) for each in found for record in each.records.values()]
    return max((time for time in times if time is not None), default=None)


def search_seconds(found: Iterable[Candidate]) -> float | None:
    """The seconds of trying every candidate once: of each the mean over its seeds."""
    total = 0.0
    for each in found:
        times = [time for record in each.records.values() if (time := unshared(record)) is not None]
        if not times:
            return None
        total += float(np.mean(times))
    return total or None


def spent(records: Iterable[Record]) -> float | None:
    """Seconds of all trainings of these runs, each counted once however many runs share it."""
    folders: dict[str, float] = {}
    for record in records:
        try:
            times = record.timing["stages"]
        except (OSError, KeyError, ValueError):
            return None
        for stage, content in record.config["stages"].items():
            folder = str(content["folder"])
            folders[folder] = max(folders.get(folder, 0.0), float(times.get(stage, 0.0)))
    return sum(folders.values()) or None


def seconds_cell(value: float | None) -> Cell:
    """A time; a machine reads seconds."""
    return EMPTY if value is None else Cell(value, duration(value))


def _ratio(value: float | None, base: float | None) -> Cell:
    return EMPTY if value is None or not base else number(value / base, "{:.2f}×")


__all__ = ["longest_run", "rule", "search_seconds", "spent", "table_cost", "table_selected", "unshared"]
