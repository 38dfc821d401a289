"""Catalog: the tables of tasks and of methods, and what the data of a task hold."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from evenhand import tasks
from evenhand.bench.grid import combinations, grid_of, method_file, reads_groups, task_file, title
from evenhand.bench.results import Frame
from evenhand.report import paper
from evenhand.report.render import Column, Row, Section, Table, percents, plain
from evenhand.training import plugins

DATASETS = (
    Column("task", words=True),
    Column("N", "{:,}".format),
    Column("N, paper", "{:,}".format, below="N"),
    Column("L"),
    Column("L, paper", below="L"),
    Column("k"),
    Column("k, paper", below="k"),
    Column("worst group", partial(percents, digits=2)),
    Column("worst group, paper", partial(percents, digits=2), below="worst group"),
    Column("conflicting", partial(percents, digits=2)),
    Column("shape", words=True),
    Column("shape, paper", below="shape", words=True),
)


def table_datasets(specs: Sequence[str], runs: dict[str, Frame], root: Path | None = None) -> Table:
    """Return every task's size, classes, groups and smallest group, from the records or the data."""
    lines, below = [], []
    for spec in specs:
        if spec not in runs:
            tasks.module(tasks.parse(spec)[0])  # raises ValueError for an unknown task
        facts = {**facts_of_data(spec, root), **(_facts_of_runs(runs[spec]) if spec in runs else {})}
        if "N" not in facts:
            below.append(f"Missing: {spec}, whose data are not here; see: evenhand data list")
        compared, how = paper.counterpart(spec)
        theirs = paper.dataset(compared)
        share = theirs.get("worst_group_pct")
        shape = {"shape": facts.get("shape"), "shape, paper": theirs.get("shape")}
        lines.append({
            "task": spec, **facts, "N, paper": theirs.get("n"), "L, paper": theirs.get("L"),
            "k, paper": theirs.get("k"), "worst group, paper": None if share is None else share / 100,
            **{name: "×".join(map(str, sizes)) if sizes else "" for name, sizes in shape.items()},
        })  # fmt: skip
        below += [f"{spec}: compared with the paper's {compared}, but made with {how}."] if how else []
    explained = (
        "N: training samples; L: classes; k: groups; worst group: share of the smallest group in the "
        "training set, in per cent; conflicting: share of bias-conflicting samples, in per cent."
    )
    return Table("datasets", "Tasks", DATASETS, [Section("", lines, below)], [explained])


def _facts_of_runs(rows: Frame) -> dict[str, Any]:
    """Return the facts that finished runs record about their training set."""
    records = rows.record[rows.alike]
    test = records.iloc[0].metrics["test"]
    facts: dict[str, Any] = {"L": len(test["classes"])}
    if test["groups"]:
        facts["k"] = len(test["groups"])
    for record in records:
        for stage in (record.dynamics or {"stages": {}})["stages"].values():
            conflicting, aligned = (int(stage["train"][kind]["count"]) for kind in ("conflicting", "aligned"))
            total = conflicting + aligned
            return {**facts, "N": total, "conflicting": conflicting / total}
        if record.partition is not None:
            return {**facts, "N": len(record.partition.labels)}
    return facts


def facts_of_data(spec: str, root: Path | None) -> dict[str, Any]:
    """Return the columns of the dataset table from the data; {} if the data are not here."""
    train = read_split(spec, root, "train")
    if train is None:
        return {}
    size = len(train.labels)
    facts: dict[str, Any] = {"N": size, "L": len(train.class_names), "shape": train.shape}
    if train.groups is not None:
        facts["k"] = len(train.group_names)
        facts["worst group"] = float(np.unique(train.groups, return_counts=True)[1].min() / size)
        if train.conflicting:
            facts["conflicting"] = float(np.isin(train.groups, sorted(train.conflicting)).mean())
    return facts


@dataclass(frozen=True, eq=False)
class Truth:
    """The labels and groups of one split."""

    labels: npt.NDArray[np.int64]  # (samples,)
    groups: npt.NDArray[np.int64] | None  # (samples,)
    class_names: Sequence[str]
    group_names: Sequence[str]
    conflicting: Collection[int]  # groups
    shape: tuple[int, ...]  # of a sample


def read_split(spec: str, root: Path | None, name: Literal["train", "test"]) -> Truth | None:
    """Return a split of a task; None if its data are not here or the task is unknown.

    Photographs are looked up in their lists; no image is opened.
    """
    declared = task_file(spec)
    if declared is None:
        return None
    try:
        listing = tasks.listing(spec, root)
        if listing is not None and listing.kind == "images":
            from evenhand.tasks.samples import TEST, TRAIN

            rows, group = listing.rows(TRAIN if name == "train" else TEST), listing.group
            size = int(tasks.parse(spec)[1].get("size") or declared.options["size"])
            names = listing.class_names, listing.group_names, listing.conflicting
            return Truth(listing.y[rows], None if group is None else group[rows], *names, (3, size, size))
        task = tasks.load(spec, root)
    except (ValueError, OSError, ImportError):
        return None
    split = task.train if name == "train" else task.test
    groups = None if split.group is None else split.group.numpy()
    names = task.class_names, task.group_names, task.conflicting
    return Truth(split.y.numpy(), groups, *names, tuple(split.x[0].shape))


METHODS = (
    Column("method", words=True),
    Column("name", words=True),
    Column("needs groups for", words=True),
    Column("groups, paper", below="needs groups for", words=True),
    Column("published code selects by", words=True),
    Column("searched", words=True),
    Column("candidates"),
    Column("candidates elsewhere", words=True),
    Column("trainings"),
    Column("paper's hyperparameters", words=True),
    Column("what it does", words=True),
)


def table_methods() -> Table:
    """Return the groups, hyperparameters and trainings of every method, as its file declares them."""
    known = plugins.describe("evenhand.methods", "train")
    order = [*paper.METHODS, *(name for name in known if name not in paper.METHODS)]
    explained = (
        "Candidates: points of the paper's grid, each run with every seed. Trainings: per run. The paper "
        "also counts hyperparameters that it does not search."
    )
    return Table("methods", "Methods", METHODS, [Section("", [_method(name) for name in order])], [explained])


def _method(name: str) -> Row:
    declared = method_file(name)
    assert declared is not None, f"{name} is a built-in method"
    grid, theirs = declared.constants.GRID, paper.numbers()["methods"].get(name)
    others = {task: grid_of(task, name) for task in tasks.names()}
    row: dict[str, Any] = {
        "method": name,
        "name": title(name),
        "needs groups for": groups_read(name),
        "published code selects by": getattr(declared.constants, "PUBLISHED", ""),
        "searched": "; ".join(f"{key}: {' '.join(map(plain, grid[key]))}" for key in grid) or "nothing",
        "candidates": len(combinations(grid)),
        "candidates elsewhere": ", ".join(
            f"{task} {len(combinations(other or {}))}" for task, other in others.items() if other != grid
        ),
        "trainings": getattr(declared.constants, "TRAININGS", 1),
        "what it does": declared.summary.partition(": ")[2] or declared.summary,
    }
    if theirs:
        row["groups, paper"] = _groups(theirs["train_groups"], theirs["val_groups"])
        more = " or more" if theirs.get("or_more") else ""
        row["paper's hyperparameters"] = ", ".join(theirs["hyperparameters"]) + more or "none"
    return row


def groups_read(method: str) -> str:
    """Return the purposes for which a method reads groups, as its file declares."""
    declared, both = method_file(method), reads_groups(method)
    reads = getattr(declared and declared.constants, "NEEDS_GROUPS", None)
    return "validation" if reads == "val" else _groups(both, both)


def _groups(training: bool, selection: bool) -> str:
    return " and ".join(["training"] * training + ["selection"] * selection) or "nothing"
