"""Paper: the paper's published numbers; accuracies are fractions."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from evenhand.bench.grid import parse
from evenhand.core.metrics import Mean

METHODS = ("gdro", "erm", "lff", "jtt", "masktune", "tab")  # in the order of its Table 1
TASKS = ("even_odd", "cmnist", "waterbirds", "celeba", "bar", "cub")
SAME = {"palette", "size", "fraction"}  # options with which a task is still compared, with a note


@cache
def numbers() -> dict[str, Any]:
    """Return the content of paper.json."""
    file = resources.files("evenhand.report") / "paper.json"
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def counterpart(spec: str) -> tuple[str | None, str]:
    """Return the paper's task with which a task is compared, and how the two differ.

    >>> counterpart("cmnist:palette=hues")
    ('cmnist', 'palette=hues, which the paper does not mention')
    >>> counterpart("even_odd:p=0.5")
    (None, '')
    """
    name, options = parse(spec)
    if name not in TASKS or options.keys() - SAME:
        return None, ""
    given = ", ".join(f"{key}={value}" for key, value in options.items())
    return name, f"{given}, which the paper does not mention" if given else ""


def score(name: str, method: str, task: str | None) -> Mean | None:
    """Return `wga`, `pou`, `mms` or `mean_accuracy` of Table 1."""
    cell = numbers()["table1"][name].get(method, {}).get(task)
    if cell is None:
        return None
    unit = 1 if name == "pou" else 100
    return Mean(round(cell["mean"] / unit, 6), round(cell["std"] / unit, 6), ())


def identification(name: str, task: str | None) -> Mean | None:
    """Return a row of Table 2: `bc_share_train`, `bc_share_augmented_as_printed` or `bc_identified`."""
    cell = numbers()["table2"][name].get(task)
    return None if cell is None else Mean(round(cell[0] / 100, 6), round(cell[1] / 100, 6), ())


def settings(method: str, task: str | None, part: str = "selected") -> dict[str, Any] | None:
    """Return the hyperparameters that the paper selected, or those of its `oracle`."""
    found: dict[str, Any] | None = numbers()[part].get(method, {}).get(task)
    return found


def dataset(task: str | None) -> dict[str, Any]:
    """Return a row of the dataset table: n, L, k, worst_group_pct, shape."""
    found: dict[str, Any] = numbers()["datasets"].get(task, {})
    return found
