"""Results: one DataFrame with a row per finished run, from which tables, figures and pages are computed.

    runs = results.load("runs", "results/even_odd.zip")    # or results.frame(records); imports no torch
    rows = results.of_task(runs, "even_odd")               # the runs of one task, by its name or spec
    results.result(rows, "tab").wga.mean                   # the WGA of a method's selected candidate
    results.selected(runs)                                 # the runs of all selected candidates
    results.groups(rows)                                   # the accuracy of every group in every run

Columns, one row per run:

    task, spec, data, method, seed       what was run; `data` is the checksum of the data
    hyperparameters, lr, weight_decay    as given to the run; `settings`: the values of the grid's keys
    recipe, version                      how the run was trained and computed, without the grid's keys
    older, sealed                        older records lack the computation's details; sealed ones have
                                         checksums
    variant                              what distinguishes the run from others of its method and task
    candidate, point                     the point of the method's grid, as text and as a number
    alike, left_out                      whether the run has the compared recipe and version; why it is
                                         excluded from comparisons, "" if it is not
    val_…, test_…                        wga, accuracy, accuracy_weighted, accuracy_balanced, worst_class
    test_low, test_high, worst_group     95% interval of the test WGA; the worst group's name
    worst_size, over                     that group's number of test samples; "groups" or "classes"
    identified, purity, share            scores of the found minority; NaN if unknown
    epochs, seconds, unshared            epochs of every training; seconds of the run, and of its trainings
                                         as if none were shared; NaN if they were not kept
    path, record                         the run's folder and its Record

One rule selects everywhere: the candidate with the best mean over seeds of validation accuracy, of
validation WGA for methods that read groups (`grid.rule`), or of a requested criterion, one of CRITERIA.
Only runs whose `left_out` is "" are candidates. They share one recipe, one arithmetic and one version of
each method, lie on the grid, and have the learning rate and weight decay selected for ERM.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from evenhand.bench import pack
from evenhand.bench.grid import (
    PAIR,
    PAPER,
    Settings,
    combinations,
    grid_of,
    method_file,
    named,
    reads_groups,
    rule,
    task_recipe,
    title,
)
from evenhand.core.metrics import (
    Mean,
    Price,
    first_highest,
    highest,
    mean_model_selection,
    price_of_unawareness,
    wilson_interval,
    worst_group_accuracy,
)
from evenhand.training.recipe import Recipe
from evenhand.training.record import Record

__all__ = ["CRITERIA", "Frame", "Result", "frame", "groups", "load", "of_task", "reads_groups", "result"]
__all__ += ["rule", "selected", "title"]

Frame: TypeAlias = pd.DataFrame
# Selection criteria, all on the validation set; the paper uses "accuracy".
CRITERIA = ("accuracy", "wga", "worst_class", "worst_pseudo_group")
CHOSEN_BY = {"accuracy": "val_accuracy_weighted", "wga": "val_wga", "worst_class": "val_worst_class"}
SCORES = ("wga", "accuracy", "accuracy_weighted", "accuracy_balanced", "worst_class")
COLLAPSED = 0.01  # a WGA below this means that a group was not learned at all
VERSIONS = ("version", "source")  # of a method: its number, or the checksum of its source
# Keys of a base recipe that are no recipe fields; older records have "record" instead.
COMPUTED = ("device", "compute", "numerics", "model_source")


class NoRuns(ValueError):
    """No record was found."""


# -- the frame ---------------------------------------------------------------------------------------------


def load(*sources: str | Path) -> Frame:
    """Return every finished run in runs folders and packed .zip files. The first copy of a run counts."""
    return frame(pack.load(*sources))


def frame(records: Iterable[Record]) -> Frame:
    """Return one row per record, in the given order, with the runs that count in comparisons marked."""
    rows = [_row(record) for record in {record.path: record for record in records}.values()]
    by_task: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_task.setdefault(row["task"], []).append(row)
    for own in by_task.values():
        _name_variants(own)
        _mark(own)
    return pd.DataFrame(map(_storable, rows), columns=COLUMNS)


def _storable(row: dict[str, Any]) -> dict[str, Any]:
    """Replace lone surrogates, which pandas cannot store, by question marks."""
    return {
        name: value.encode(errors="replace").decode() if isinstance(value, str) else value
        for name, value in row.items()
    }


def _row(record: Record) -> dict[str, Any]:
    config, metrics = record.config, record.metrics
    recipe = _full_recipe(record)
    test, found = metrics["test"], metrics["identification"] or {}
    parts = test["groups"] or test["classes"]
    try:
        timing = record.timing
    except FileNotFoundError:  # packed records may come without times; damaged ones are refused
        timing = {}
    low, high = test.get("wga_interval", (math.nan, math.nan))
    return {
        "task": str(config["task"]), "spec": str(config.get("spec", "")), "data": str(config.get("data", "")),
        "method": record.method, "seed": record.seed,
        "hyperparameters": dict(config["hyperparameters"]), **{name: recipe[name] for name in PAIR},
        "recipe": _base_recipe(record, recipe),
        "version": named({name: value for name, value in record.made_with.items() if name in VERSIONS}),
        "older": record.older, "sealed": record.sealed,
        "variant": "", "candidate": "", "settings": {}, "point": -1, "alike": False, "left_out": "",
        **{f"{split}_{score}": float(metrics[split][score]) for split in ("val", "test") for score in SCORES},
        "test_low": low, "test_high": high, "worst_group": str(test["worst_group"]),
        "worst_size": next(int(part["count"]) for part in parts if part["name"] == test["worst_group"]),
        "over": str(test["wga_over"]),
        **{name: _number(found.get(name)) for name in ("identified", "purity", "share")},
        "epochs": dict(metrics["epochs"]),
        **{name: _number(timing.get(name)) for name in ("seconds", "unshared")},
        "path": record.path, "record": record,
    }  # fmt: skip


COLUMNS = [
    *("task", "spec", "data", "method", "seed", "hyperparameters", *PAIR, "recipe", "version"),
    *("older", "sealed", "variant", "candidate", "settings", "point", "alike", "left_out"),
    *(f"{split}_{score}" for split in ("val", "test") for score in SCORES),
    *("test_low", "test_high", "worst_group", "worst_size", "over", "identified", "purity", "share"),
    *("epochs", "seconds", "unshared", "path", "record"),
]


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _full_recipe(record: Record) -> dict[str, Any]:
    changed = record.config["recipe"]
    given = record.config.get("full_recipe") or changed
    # Ignore fields of other versions that were left at their defaults.
    return {
        **_DEFAULTS,
        **{name: value for name, value in given.items() if name in _DEFAULTS or name in changed},
    }


_DEFAULTS = dataclasses.asdict(Recipe())


def _base_recipe(record: Record, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a run was trained and computed, without the grid's keys and the method's version."""
    full = {**({"record": "older"} if record.older else record.made_with), **recipe}
    if isinstance(full["weights"], str):  # the same file may have another path on another machine
        full["weights"] = PurePath(full["weights"]).name
    return {name: value for name, value in full.items() if name not in (*PAIR, *VERSIONS, "compile")}


def recipe_changes(recipe: Mapping[str, Any], spec: str) -> dict[str, Any]:
    """Return the fields, except precision, in which a recipe differs from the task's default, with values."""
    published = task_recipe(spec)
    return {
        name: value
        for name, value in sorted(recipe.items())
        if published is not None and name != "precision" and value != getattr(published, name, value)
    }


# -- which runs are compared -------------------------------------------------------------------------------


def _name_variants(rows: list[dict[str, Any]]) -> None:
    """Name what distinguishes the runs of a task apart from their seeds: settings and recipe fields."""
    mixed = mixed_fields([row["recipe"] for row in rows])
    shown = PAIR if len({tuple(row[name] for name in PAIR) for row in rows}) > 1 else ()
    versions = {(row["method"], row["version"]) for row in rows if not row["older"]}
    several = Counter(method for method, _ in versions)
    published = task_recipe(rows[0]["spec"])
    for row in rows:
        rest = {key: row["recipe"][key] for key in mixed if key in row["recipe"]}
        if published is not None:
            rest = {key: value for key, value in rest.items() if value != getattr(published, key, None)}
        pair = {name: row[name] for name in shown}
        words = [named({**dict(sorted(row["hyperparameters"].items())), **pair, **rest})]
        words += [row["version"]] if several[row["method"]] > 1 else []
        row["variant"] = ", ".join(filter(None, words))


def mixed_fields(recipes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields in which recipes differ. Older records lack the fields in COMPUTED."""
    newer = [recipe for recipe in recipes if "record" not in recipe]
    return sorted(
        key
        for key in set().union(*recipes)
        if len({repr(recipe.get(key)) for recipe in (newer if key in COMPUTED else recipes)}) > 1
    )


def _mark(rows: list[dict[str, Any]]) -> None:
    """Mark the runs of a task that can be compared fairly, and give the reason for every other run.

    The compared recipe is the task's default if a run has it, else the most frequent one. Of each method
    the most frequent version is compared. Older records are never mixed with newer ones.
    """
    by_recipe: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_recipe.setdefault(json.dumps(row["recipe"], sort_keys=True), []).append(row)

    def rank(text: str) -> tuple[bool, int, bool, str]:
        own = by_recipe[text]
        return bool(recipe_changes(own[0]["recipe"], own[0]["spec"])), -len(own), own[0]["older"], text

    chosen = min(by_recipe, key=rank)
    for text, others in by_recipe.items():
        for row in others if text != chosen else ():
            row["left_out"] = _why_left_out(row["recipe"], by_recipe[chosen][0]["recipe"])
    alike = _of_one_version(by_recipe[chosen])
    for row in alike:
        row["alike"] = True
        row["settings"], extra = _settings(row)
        row["candidate"] = named(row["settings"])
        if extra:
            row["left_out"] = f"of {row['method']} with {named(extra)}"
    methods = sorted({row["method"] for row in alike}, key=lambda method: method != "erm")
    pair: tuple[Any, ...] | None = None  # known once ERM's candidates are marked
    for method in methods:
        own = [row for row in alike if row["method"] == method]
        searches_pair = method == "erm" or _sets_pair(grid_of(own[0]["spec"], method))
        if not searches_pair and pair is None:
            pair = _pair(alike)
        _mark_candidates(own, None if searches_pair else pair)


def _mark_candidates(rows: list[dict[str, Any]], pair: tuple[Any, ...] | None) -> None:
    """Assign a method's runs to the points of its grid."""
    grid, method = grid_of(rows[0]["spec"], rows[0]["method"]), rows[0]["method"]
    points = sorted({row["candidate"] for row in rows}) if grid is None else map(named, combinations(grid))
    position = {name: i for i, name in enumerate(points)}
    done: set[tuple[str, int]] = set()
    for row in rows:
        row["point"] = position.get(row["candidate"], -1)
        if row["left_out"]:
            continue
        if row["point"] < 0:
            row["left_out"] = f"of {method} outside its grid"
        elif pair and pair != tuple(row[name] for name in PAIR):
            wanted = named(dict(zip(PAIR, pair, strict=True)))
            row["left_out"] = f"of {method} without ERM's selected {wanted}"
        elif (row["candidate"], row["seed"]) in done:
            row["left_out"] = f"of {method} repeated on other data or code"
        else:
            done.add((row["candidate"], row["seed"]))


def _pair(rows: list[dict[str, Any]]) -> tuple[Any, ...] | None:
    """Return ERM's selected learning rate and weight decay, or the most frequent inherited ones."""
    erm = pd.DataFrame([row for row in rows if row["method"] == "erm" and not row["left_out"]])
    if len(erm):
        first = choose(erm).iloc[0]
        return tuple(first[name] for name in PAIR)
    inheriting = [row for row in rows if not _sets_pair(grid_of(row["spec"], row["method"]))]
    pairs = Counter(tuple(row[name] for name in PAIR) for row in inheriting)
    return pairs.most_common(1)[0][0] if pairs else None


def _settings(row: Mapping[str, Any]) -> tuple[Settings, Settings]:
    """Return the values of the grid's keys in a run, and its other settings that are not defaults."""
    given, grid = row["hyperparameters"], grid_of(row["spec"], row["method"])
    if grid is None:
        return dict(sorted(given.items())), {}
    found = method_file(row["method"])
    known = {**(found.options if found else {}), **{name: row[name] for name in PAIR}, **given}
    return {key: known.get(key) for key in grid}, {key: given[key] for key in given if key not in grid}


def _sets_pair(grid: Mapping[str, Any] | None) -> bool:
    return grid is not None and any(name in grid for name in PAIR)


def _of_one_version(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs of each method's most frequent version, the newest in a tie, and mark the others."""
    runs = Counter((row["method"], row["version"]) for row in rows)
    chosen: dict[str, str] = {}
    for (method, name), _ in sorted(runs.items(), key=lambda item: (item[1], len(item[0][1]), item[0])):
        chosen[method] = name  # the last one is the most frequent; version=10 sorts after version=9
    for row in rows:
        if row["version"] != chosen[row["method"]]:
            row["left_out"] = f"of {row['method']} with {row['version']}"
    return [row for row in rows if not row["left_out"]]


def _why_left_out(recipe: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    """Return why runs of one base recipe are not compared with those of another.

    >>> _why_left_out({"epochs": 5, "compute": "eager"}, {"epochs": 5, "compute": "compiled"})
    'with compute=eager'
    """
    apart = sorted(name for name in {*recipe, *chosen} if recipe.get(name) != chosen.get(name))
    if "record" in apart:
        return "of older records" if "record" in recipe else "of newer records"
    if "compute" in recipe and set(apart) <= {*COMPUTED, "precision"}:
        return f"with {named({name: recipe.get(name) for name in apart})}"
    return "of another recipe"


# -- parts of the frame ------------------------------------------------------------------------------------


def of_task(runs: Frame, task: str) -> Frame:
    """Return the runs of a task, given by its name or spec. Raises NoRuns if there are none."""
    rows = runs[(runs.task == task) | (runs.spec == task)]
    if rows.empty:
        raise NoRuns(f"there is no finished run of {task}; make some with: evenhand bench {task}")
    return rows


def spec_of(rows: Frame) -> str:
    """Return the spec of a task's runs."""
    return str(rows.spec.iloc[0])


def counting(rows: Frame, method: str | None = None) -> Frame:
    """Return the runs that count in comparisons, of one method or of all, ordered by grid point and seed."""
    kept = rows[(rows.left_out == "") & ((rows.method == method) | (method is None))]
    return kept.sort_values(["method", "point", "seed"], kind="stable")


def methods(rows: Frame) -> list[str]:
    """Return the methods that have candidates."""
    return sorted(set(rows.method[rows.left_out == ""]))


def seeds(rows: Frame) -> list[int]:
    """Return the seeds of the runs with the compared recipe."""
    return sorted(set(rows.seed[rows.alike].tolist()))


def inherited_pair(rows: Frame) -> Settings:
    """Return the learning rate and weight decay of methods that do not search them."""
    pair = _pair(rows[rows.alike].to_dict("records"))
    return dict(zip(PAIR, pair, strict=True)) if pair else {}


def missing(rows: Frame, method: str) -> list[tuple[Settings, int]]:
    """Return the settings and seeds of a method's grid that have no finished run."""
    grid, own = grid_of(rows.spec.iloc[0], method), counting(rows, method)
    found = set(zip(own.candidate, own.seed, strict=True))
    points = [] if grid is None else combinations(grid)
    return [(point, seed) for point in points for seed in seeds(rows) if (named(point), seed) not in found]


def groups(rows: Frame) -> Frame:
    """Return the test accuracy of every group in every run, one row each, or of every class.

    Classes are used for runs without known groups.

    The columns identify the run, followed by group, count, accuracy, and low and high, the 95% interval.
    """
    listing = [
        {
            **{
                name: row[name] for name in ("task", "method", "variant", "candidate", "seed", "over", "path")
            },
            **{"group": str(part["name"]), "count": int(part["count"]), "accuracy": float(part["accuracy"])},
            **dict(zip(("low", "high"), part["interval"], strict=True)),
        }
        for row in rows.to_dict("records")
        for test in [row["record"].metrics["test"]]
        for part in test["groups"] or test["classes"]
    ]
    return pd.DataFrame(map(_storable, listing))


# -- selection ---------------------------------------------------------------------------------------------


def table_of(rows: Frame, column: str) -> npt.NDArray[np.float64]:
    """Return a column of one method's candidates, (candidates, seeds); NaN for a missing seed."""
    return np.asarray(rows.pivot(index="point", columns="seed", values=column), dtype=np.float64)


def scores(rows: Frame, by: str, pseudo: Mapping[int, Any] | None = None) -> npt.NDArray[np.float64]:
    """Return the selection criterion of one method's candidates, (candidates, seeds) from 0 to 1."""
    if by not in CRITERIA:
        raise ValueError(f"candidates are selected by one of {', '.join(CRITERIA)}, got {by!r}")
    if by != "worst_pseudo_group":
        return table_of(rows, CHOSEN_BY[by])
    if not pseudo:
        raise ValueError(
            "selecting by worst_pseudo_group needs pseudo-groups of the validation set, but this task has no "
            "run of tab, which finds them; make one with: evenhand bench TASK --methods tab"
        )
    values = [pseudo_group_accuracy(record, pseudo.get(record.seed)) for record in rows.record]
    return table_of(rows.assign(worst_pseudo_group=values), by)


def best(values: npt.NDArray[np.float64]) -> int:
    """Return the row of (candidates, seeds) with the highest mean over its available seeds."""
    return first_highest(_means(values))


def num_equal(values: npt.NDArray[np.float64]) -> int:
    """Return how many rows of (candidates, seeds) share the highest mean; 0 if all values are missing."""
    means = _means(values)
    return int(np.count_nonzero(np.isfinite(means) & highest(means)))


def _means(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    means = [row[np.isfinite(row)].mean() if np.isfinite(row).any() else -math.inf for row in values]
    return np.array(means)


def choose(rows: Frame, by: str = "accuracy", pseudo: Mapping[int, Any] | None = None) -> Frame:
    """Return the runs of the candidate with the best mean over its seeds; the first one in a tie."""
    if rows.empty:
        raise ValueError("no candidate to select from; run some with: evenhand bench")
    points = sorted(set(rows.point))
    return rows[rows.point == points[best(scores(rows, by, pseudo))]]


def selected(runs: Frame, by: str | None = None, *, every_method: bool = False) -> Frame:
    """Return the runs of every method's selected candidate on every task, by seed.

    `every_method`: if none of a method's runs count, include its best variant by the same criterion, for
    example one outside the grid. Its `left_out` gives the reason why it does not count.
    """
    found = []
    for _, rows in runs.groupby("task", sort=False):
        for method, own in rows.groupby("method", sort=True):
            kept = counting(own)
            if kept.empty and every_method:
                names = {name: i for i, name in enumerate(dict.fromkeys(own.variant))}
                once = own.drop_duplicates(["variant", "seed"]).sort_values("seed", kind="stable")
                kept = once.assign(point=[names[name] for name in once.variant])
            if not kept.empty:
                criterion = by or rule(str(method))
                pseudo = pseudo_groups(rows) if criterion == "worst_pseudo_group" else None
                found.append(choose(kept, criterion, pseudo))
    return pd.concat(found) if found else runs.iloc[:0]


def pseudo_groups(rows: Frame) -> dict[int, Any]:
    """Return a task's pseudo-groups of validation samples by seed: TAB's if available, else a variant's."""
    found: dict[int, Any] = {}
    kept = counting(rows)
    for record in sorted(kept.record, key=lambda record: record.method != "tab"):
        if record.seed not in found and (parts := record.val_partition) is not None:
            found[record.seed] = parts
    return found


def pseudo_group_accuracy(record: Record, parts: Any | None) -> float:
    """Return the lowest validation accuracy of any class's minority or majority; NaN without clusters."""
    if parts is None:
        return math.nan
    predictions = record.predictions["val"]
    if len(predictions) != len(parts.labels):
        raise ValueError(
            f"{record.path} predicts {len(predictions)} validation samples, but this task's pseudo-groups "
            f"cover {len(parts.labels)}; the runs have different data"
        )
    cells = np.searchsorted(parts.classes, parts.labels) * 2 + parts.minority
    return worst_group_accuracy(predictions, parts.labels, cells)


# -- a method's result -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Result:
    """A method's selected candidate on a task, and the results of other selections."""

    method: str
    by: str  # the selection criterion
    rows: Frame  # the runs of the selected candidate, by seed
    oracle: Frame  # the runs of the candidate with the best mean test WGA
    num_candidates: int
    mms: Mean
    pou: Price | None  # None if every candidate has a WGA of zero

    @property
    def wga(self) -> Mean:
        return mean(self.rows.test_wga)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the WGA."""
        return interval(self.rows)

    @property
    def settings(self) -> Settings:
        """The selected values of the grid's keys."""
        return dict(self.rows.settings.iloc[0])


def result(rows: Frame, method: str, by: str | None = None) -> Result:
    """Return the result of one method on a task, selected `by` a criterion, by default the paper's for it."""
    found, by = counting(rows, method), by or rule(method)
    pseudo = pseudo_groups(rows) if by == "worst_pseudo_group" else None
    chosen, wga = choose(found, by, pseudo), table_of(found, "test_wga")
    points = sorted(set(found.point))
    return Result(
        method=method,
        by=by,
        rows=chosen,
        oracle=found[found.point == points[best(wga)]],
        num_candidates=len(points),
        mms=mean_model_selection(wga),
        pou=price(scores(found, by, pseudo), wga),
    )


def summary(runs: Frame) -> list[dict[str, Any]]:
    """Return the result of every method on every task, one row of plain values each."""
    rows = []
    for task, own in runs.groupby("task"):
        for method in sorted(methods(own), key=lambda name: PAPER.index(name) if name in PAPER else 99):
            found = result(own, method)
            # With a selected candidate at a WGA of zero, PoU is another candidate's, as only tables note.
            price = None if found.pou is None or not found.wga.mean else found.pou.mean
            rows.append(
                {
                    "task": str(task),
                    "method": method,
                    "selected": found.rows.candidate.iloc[0],
                    "seeds": len(found.rows),
                    "wga": found.wga.mean,
                    "wga_deviation": found.wga.deviation,
                    "pou": price,
                    "mms": found.mms.mean,
                    "candidates": found.num_candidates,
                }
            )
    return rows


def price(criterion: npt.NDArray[np.float64], wga: npt.NDArray[np.float64]) -> Price | None:
    """Return the price of unawareness of (candidates, seeds); None if no candidate has a WGA above zero."""
    if not (np.isfinite(criterion).any(axis=1) & (wga > 0).any(axis=1)).any():
        return None
    return price_of_unawareness(criterion, wga)


def mean(values: Sequence[float]) -> Mean:
    """Return the mean and the population deviation.

    >>> mean([0.25, 0.75]).deviation
    0.25
    """
    values = [float(value) for value in values]
    return Mean(float(np.mean(values)), float(np.std(values)), tuple(values))


def interval(rows: Frame) -> tuple[float, float]:
    """Return Wilson's 95% interval of the mean WGA over seeds.

    All seeds are tested on the same samples, which therefore count once. The sample size is that of the
    smallest group that is worst for any seed.
    """
    size = int(rows.worst_size.min())
    return wilson_interval(round(size * float(np.mean(rows.test_wga))), size)
