"""What the data and the methods are: the paper's dataset table and its summary of methods (Table B.1)."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evenhand import tasks
from evenhand.bench.grid import combinations, grid_of, is_told_groups, method_file, named, task_file
from evenhand.bench.grid import title as method_title
from evenhand.bench.select import Bench
from evenhand.report import paper
from evenhand.report.table import EMPTY, Cell, Column, Row, Section, Table, number, words
from evenhand.tasks.samples import TRAIN
from evenhand.training import plugins
from evenhand.training.record import Record

DATASETS = (
    Column("task", text=True),
    Column("N"),
    Column("N, paper", below="N"),
    Column("L"),
    Column("L, paper", below="L"),
    Column("k"),
    Column("k, paper", below="k"),
    Column("worst group"),
    Column("worst group, paper", below="worst group"),
    Column("conflicting"),
    Column("shape", text=True),
    Column("shape, paper", below="shape", text=True),
)
METHODS = (
    Column("method", text=True),
    Column("name", text=True),
    Column("needs groups for", text=True),
    Column("groups, paper", below="needs groups for", text=True),
    Column("searched", text=True),
    Column("candidates"),
    Column("candidates elsewhere", text=True),
    Column("trainings"),
    Column("paper's hyperparameters", text=True),
    Column("what it does", text=True),
)


def table_datasets(specs: Sequence[str], benches: Sequence[Bench], root: Path | None = None) -> Table:
    """Every task's size, classes, groups and smallest group, from the records or the data."""
    by_spec = {bench.spec: bench for bench in benches}
    rows, said = [], []
    for spec in specs:
        if spec not in by_spec:
            tasks.module(tasks.parse(spec)[0])  # a task that there is not is refused
        facts = {**_from_data(spec, root), **(_from_records(by_spec[spec]) if spec in by_spec else {})}
        if "n" not in facts:
            said.append(f"Missing: {spec}; its data are not here, see: evenhand data list")
        compared, how = paper.counterpart(spec)
        rows.append(_dataset(spec, facts, paper.dataset(compared)))
        said += [f"{spec}: compared with the paper's {compared}, though made with {how}."] if how else []
    explained = (
        "N: training samples; L: classes; k: groups; worst group: the smallest one's per cent of the "
        "training set; conflicting: per cent that breaks the shortcut."
    )
    return Table("datasets", "Tasks", DATASETS, [Section("", rows, said)], [explained])


def _dataset(spec: str, ours: dict[str, Any], theirs: dict[str, Any]) -> Row:
    worst, share = ours.get("worst_group"), ours.get("conflicting")
    shape, printed = ours.get("shape"), theirs.get("shape")
    return [
        words(spec),
        number(ours.get("n"), "{:,}"),
        number(theirs.get("n"), "{:,}"),
        number(ours.get("L")),
        number(theirs.get("L")),
        number(ours.get("k")),
        number(theirs.get("k")),
        EMPTY if worst is None else Cell(worst, f"{100 * worst:.2f}"),
        _percent(theirs.get("worst_group_pct")),
        EMPTY if share is None else Cell(share, f"{100 * share:.2f}"),
        words("×".join(map(str, shape)) if shape else ""),
        words("×".join(map(str, printed)) if printed else ""),
    ]


def _percent(value: float | None) -> Cell:
    return EMPTY if value is None else Cell(value / 100, f"{value:.2f}")


def _from_records(bench: Bench) -> dict[str, Any]:
    """What finished runs say of their training set."""
    test = bench.records[0].metrics["test"]
    facts: dict[str, Any] = {"L": len(test["classes"])}
    if test["groups"]:
        facts["k"] = len(test["groups"])
    for record in bench.records:
        counts = _counts(record)
        if counts:
            return {**facts, **counts}
    return facts


def _counts(record: Record) -> dict[str, Any]:
    if record.dynamics:
        for stage in record.dynamics["stages"].values():
            train = stage["train"]
            conflicting = int(train["conflicting"]["count"])
            n = conflicting + int(train["aligned"]["count"])
            return {"n": n, "conflicting": conflicting / n}
    return {"n": len(record.partition.labels)} if record.partition is not None else {}


def _from_data(spec: str, root: Path | None) -> dict[str, Any]:
    """What the data themselves say, where they are; photographs are counted in their lists, not opened."""
    declared = task_file(spec)
    if declared is None:
        return {}
    try:
        listing = tasks.listing(spec, root)
        if listing is not None and listing.kind == "images":
            size = int(tasks.parse(spec)[1].get("size") or declared.options["size"])
            train, group = listing.rows(TRAIN), listing.group
            counted = (
                len(train),
                None if group is None else group[train],
                getattr(declared.constants, "CONFLICTING", ()),
            )
            return _facts(listing.class_names, listing.group_names, (3, size, size), *counted)
        task = tasks.load(spec, root)
    except (ValueError, OSError, ImportError):
        return {}
    groups = None if task.train.group is None else task.train.group.numpy()
    shape = tuple(task.train.x[0].shape)
    return _facts(task.class_names, task.group_names, shape, len(task.train), groups, task.conflicting)


def _facts(
    classes: Sequence[str],
    group_names: Sequence[str],
    shape: tuple[int, ...],
    n: int,
    group: np.ndarray | None,
    conflicting: Collection[int],
) -> dict[str, Any]:
    """The columns of the dataset table; `group`, (n,), is of the training samples."""
    facts: dict[str, Any] = {"n": n, "L": len(classes), "shape": shape}
    if group is not None:
        facts["k"] = len(group_names)
        facts["worst_group"] = float(np.unique(group, return_counts=True)[1].min() / n)
        if conflicting:
            facts["conflicting"] = float(np.isin(group, sorted(conflicting)).mean())
    return facts


def table_methods() -> Table:
    """Which groups a method needs, what must be searched, and how often it trains; read from its file."""
    known = plugins.describe("evenhand.methods", "train")
    order = [*paper.METHODS, *(name for name in known if name not in paper.METHODS)]
    rows = [_method(name, known[name]) for name in order]
    explained = (
        "Candidates: the points of the paper's grid, each run with every seed. Trainings: of one "
        "run. The paper counts as hyperparameters also those that it does not search."
    )
    return Table("methods", "Methods", METHODS, [Section("", rows)], [explained])


def _method(name: str, line: str) -> Row:
    declared = method_file(name)
    grid = dict(getattr(declared and declared.constants, "GRID", {}))
    theirs = paper.numbers()["methods"].get(name)
    told = is_told_groups(name)
    listed = ", ".join(theirs["hyperparameters"]) if theirs else ""
    return [
        words(name),
        words(method_title(name)),
        words(_groups(told, told)),
        words(_groups(theirs["train_groups"], theirs["val_groups"]) if theirs else ""),
        words("; ".join(f"{key}: {_values(grid[key])}" for key in grid) or "nothing"),
        number(len(combinations(grid))),
        words(_other_grids(name, grid)),
        number(num_trainings(name)),
        words("" if theirs is None else listed + (" or more" if theirs.get("or_more") else "") or "none"),
        words(line.partition(": ")[2] or line),
    ]


def _groups(training: bool, selection: bool) -> str:
    return " and ".join(["training"] * training + ["selection"] * selection) or "nothing"


def _values(values: Sequence[Any]) -> str:
    return " ".join(named({"": value})[1:] for value in values)


def _other_grids(name: str, grid: dict[str, Any]) -> str:
    """The tasks that search another grid, with their numbers of candidates."""
    sizes = []
    for task in tasks.names():
        other = grid_of(task, name) or {}
        if other != grid:
            sizes.append(f"{task} {len(combinations(other))}")
    return ", ".join(sizes)


def num_trainings(method: str) -> int:
    """How many trainings a run takes: the different stages that the method's file fits."""
    tree = ast.parse(inspect.getsource(plugins.load("evenhand.methods", method, "train")))
    names = {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "fit"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    return len(names)
