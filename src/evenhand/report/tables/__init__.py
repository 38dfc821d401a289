"""The paper's tables from records: `make` gives one as a Table, which formats.py writes in any form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from evenhand.bench.select import Bench, gather, task_names
from evenhand.report import paper
from evenhand.report.table import Table
from evenhand.report.tables.compare import table_compare
from evenhand.report.tables.facts import table_datasets, table_methods
from evenhand.report.tables.notes import Failure, failures, older
from evenhand.report.tables.results import table_one, table_two
from evenhand.report.tables.search import table_cost, table_selected
from evenhand.training.record import Record

NAMES = {
    "1": "WGA, PoU, MMS and mean accuracy of every method (the paper's Table 1)",
    "2": "bias-conflicting samples represented and identified (Table 2)",
    "datasets": "size, classes, groups and smallest group of every task",
    "methods": "groups, hyperparameters and trainings that every method needs (Table B.1)",
    "selected": "the hyperparameters that are selected, the paper's, and the oracle's",
    "cost": "time of the longest run and of the whole search",
    "compare": "every method with every setting that was run, seed by seed against TAB or another",
}
OF_TASKS = {"1": table_one, "selected": table_selected, "cost": table_cost}
__all__ = ["NAMES", "Failure", "check", "failures", "make", "make_benches"]


def make(
    name: str,
    records: Sequence[Record],
    *,
    wanted: Sequence[str] = (),
    by: str | None = None,
    failed: Sequence[Failure] = (),
    root: Path | None = None,
    against: str | None = None,
) -> Table:
    """One of the tables in NAMES; of the `wanted` tasks, else of all that have records.

    `by` is what candidates are selected by, in place of the paper's rule; `root` the folder of the datasets;
    `against` the method or variant that `compare` compares the others with, TAB if none is named.
    """
    check(name)
    if against is not None and name != "compare":
        raise ValueError(f"--against is for the table compare, got the table {name}; leave it out")
    if name == "methods":
        return table_methods()
    if name == "datasets":
        found = {bench.spec: bench for bench in make_benches(records, ())} if records else {}
        return table_datasets(list(wanted) or list(found) or list(paper.TASKS), list(found.values()), root)
    benches = make_benches(records, wanted)
    if name == "compare":
        return table_compare(benches, records, root, against)
    made = table_two(benches, by) if name == "2" else OF_TASKS[name](benches, by, failed)
    return replace(made, notes=[*made.notes, *older([r for bench in benches for r in bench.records])])


def check(name: str) -> None:
    """Raise for a table that there is not."""
    if name not in NAMES:
        raise ValueError(f"there is no table {name!r}; there are {', '.join(NAMES)}")


def make_benches(records: Sequence[Record], wanted: Sequence[str]) -> list[Bench]:
    """The records of every task, the paper's in its order; last those at another p or size."""
    names = list(wanted) or task_names(records)
    benches = {bench.task: bench for bench in (gather(records, name) for name in names)}

    def place(bench: Bench) -> tuple[bool, int, str]:
        name = bench.spec.partition(":")[0]
        position = paper.TASKS.index(name) if name in paper.TASKS else len(paper.TASKS)
        return name in paper.TASKS and paper.counterpart(bench.spec)[0] is None, position, bench.spec

    return sorted(benches.values(), key=place)
