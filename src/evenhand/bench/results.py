"""Results: every finished run as a row of one DataFrame. Tables, figures and pages are functions of it.

    runs = results.load("runs", "results/even_odd.zip")    # or results.frame(records); imports no torch
    rows = results.of_task(runs, "even_odd")               # the runs of one task, by its name or spec
    results.result(rows, "tab").wga.mean                   # what a method's selected candidate reaches
    results.selected(runs)                                 # the runs of all selected candidates
    results.groups(rows)                                   # the accuracy of every group in every run

Columns, one row per run:

    task, spec, data, method, seed       what was run; `data` is the checksum of the data
    hyperparameters, lr, weight_decay    as given to the run; `settings`: the values of the grid's keys
    recipe, version                      how it was trained and computed, without what the grids set
    older, sealed                        older records do not say how they were computed; sealed ones
                                         have checksums
    variant                              what tells it from other runs of its method on the task, in words
    candidate, point                     the point of the method's grid, in words and as a number
    alike, left_out                      whether it shares the recipe and version that are compared, and why
                                         it does not count in a comparison; "" where it counts
    val_…, test_…                        wga, accuracy, accuracy_weighted, accuracy_balanced, worst_class
    test_low, test_high, worst_group     95% interval of the test WGA, and whose it is
    worst_size, over                     how many test samples that group has; "groups" or "classes"
    identified, purity, share            of the samples that break the shortcut; NaN where unknown
    epochs, seconds, unshared            epochs of every training; seconds of the run, and of its trainings
                                         as if none were shared; NaN where they were not kept
    path, record                         its folder, and all else that it has left

One rule selects everywhere: the candidate with the best mean over seeds by validation accuracy, or by
validation WGA for methods that are told the groups (`grid.rule`), or by what is asked for, one of CRITERIA.
Only runs that count (`left_out` is "") are candidates: those of one recipe, one arithmetic and one version of
each method, at points of the grid, with the learning rate and weight decay that are selected for ERM.
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
    is_told_groups,
    method_file,
    named,
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

__all__ = ["CRITERIA", "Frame", "Result", "frame", "groups", "is_told_groups", "load", "of_task", "result"]
__all__ += ["rule", "selected", "title"]

Frame: TypeAlias = pd.DataFrame
# What a candidate is selected by, each on the validation set: "accuracy" is the paper's.
CRITERIA = ("accuracy", "wga", "worst_class", "worst_pseudo_group")
CHOSEN_BY = {"accuracy": "val_accuracy_weighted", "wga": "val_wga", "worst_class": "val_worst_class"}
SCORES = ("wga", "accuracy", "accuracy_weighted", "accuracy_balanced", "worst_class")
COLLAPSED = 0.01  # a WGA below this is a group that was not learned at all
VERSIONS = ("version", "source")  # of a method: its number, or its text's checksum
# What a base recipe has besides fields of the recipe; that of an older record has "record" instead.
COMPUTED = ("device", "compute", "numerics", "model_source")


class NoRuns(ValueError):
    """There is no record to compare."""


# -- the frame ---------------------------------------------------------------------------------------------


def load(*sources: str | Path) -> Frame:
    """Every finished run in runs folders and packed .zip files; of the same run, the first counts."""
    return frame(pack.load(*sources))


def frame(records: Iterable[Record]) -> Frame:
    """One row for every record, in their order, with what counts in a comparison marked."""
    rows = [_row(record) for record in {record.path: record for record in records}.values()]
    by_task: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_task.setdefault(row["task"], []).append(row)
    for own in by_task.values():
        _name_variants(own)
        _mark(own)
    return pd.DataFrame(map(_storable, rows), columns=[*_row_names()])


def _storable(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose texts pandas can hold: half of a surrogate pair becomes a question mark."""
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


def _row_names() -> list[str]:
    """The columns, also of a frame without rows."""
    scores = [f"{split}_{score}" for split in ("val", "test") for score in SCORES]
    return [
        *("task", "spec", "data", "method", "seed", "hyperparameters", *PAIR, "recipe", "version"),
        *("older", "sealed", "variant", "candidate", "settings", "point", "alike", "left_out", *scores),
        *("test_low", "test_high", "worst_group", "worst_size", "over", "identified", "purity", "share"),
        *("epochs", "seconds", "unshared", "path", "record"),
    ]


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _full_recipe(record: Record) -> dict[str, Any]:
    changed = record.config["recipe"]
    given = record.config.get("full_recipe") or changed
    # A field of another version that was left at its default says nothing.
    return {
        **_DEFAULTS,
        **{name: value for name, value in given.items() if name in _DEFAULTS or name in changed},
    }


_DEFAULTS = dataclasses.asdict(Recipe())


def _base_recipe(record: Record, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """How a run was trained and computed, without what the grids set and what is the method's own."""
    full = {**({"record": "older"} if record.older else record.made_with), **recipe}
    if isinstance(full["weights"], str):  # the same file may lie elsewhere on another machine
        full["weights"] = PurePath(full["weights"]).name
    return {name: value for name, value in full.items() if name not in (*PAIR, *VERSIONS, "compile")}


def recipe_changes(recipe: Mapping[str, Any], spec: str) -> dict[str, Any]:
    """Where a recipe is not the task's own, its precision aside: field -> value."""
    published = task_recipe(spec)
    return {
        name: value
        for name, value in sorted(recipe.items())
        if published is not None and name != "precision" and value != getattr(published, name, value)
    }


# -- which runs are compared -------------------------------------------------------------------------------


def _name_variants(rows: list[dict[str, Any]]) -> None:
    """Name what tells the runs of a task apart besides their seeds: settings, and parts of the recipe."""
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
    """The fields in which recipes differ; older records do not say how they were computed."""
    newer = [recipe for recipe in recipes if "record" not in recipe]
    return sorted(
        key
        for key in set().union(*recipes)
        if len({repr(recipe.get(key)) for recipe in (newer if key in COMPUTED else recipes)}) > 1
    )


def _mark(rows: list[dict[str, Any]]) -> None:
    """Mark the runs of a task that can be compared fairly, and say of the others why they cannot.

    Those are of the task's own recipe where a run has it, else of that of most runs, and of each method's
    version of most runs. Older records are apart from newer ones.
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
    pair: tuple[Any, ...] | None = None  # known as soon as ERM's candidates are
    for method in methods:
        own = [row for row in alike if row["method"] == method]
        searches_pair = method == "erm" or _sets_pair(grid_of(own[0]["spec"], method))
        if not searches_pair and pair is None:
            pair = _pair(alike)
        _mark_candidates(own, None if searches_pair else pair)


def _mark_candidates(rows: list[dict[str, Any]], pair: tuple[Any, ...] | None) -> None:
    """Sort a method's runs into the points of its grid."""
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
            row["left_out"] = f"of {method} done twice, on other data or code"
        else:
            done.add((row["candidate"], row["seed"]))


def _pair(rows: list[dict[str, Any]]) -> tuple[Any, ...] | None:
    """ERM's selected learning rate and weight decay; without ERM, those of most runs that inherit them."""
    erm = pd.DataFrame([row for row in rows if row["method"] == "erm" and not row["left_out"]])
    if len(erm):
        first = choose(erm).iloc[0]
        return tuple(first[name] for name in PAIR)
    inheriting = [row for row in rows if not _sets_pair(grid_of(row["spec"], row["method"]))]
    pairs = Counter(tuple(row[name] for name in PAIR) for row in inheriting)
    return pairs.most_common(1)[0][0] if pairs else None


def _settings(row: Mapping[str, Any]) -> tuple[Settings, Settings]:
    """The values of the grid's keys in a run, and its other settings that are not the defaults."""
    given, grid, found = (
        row["hyperparameters"],
        grid_of(row["spec"], row["method"]),
        method_file(row["method"]),
    )
    if grid is None:
        return dict(sorted(given.items())), {}
    found = method_file(row["method"])
    known = {**(found.options if found else {}), **{name: row[name] for name in PAIR}, **given}
    return {key: known.get(key) for key in grid}, {key: given[key] for key in given if key not in grid}


def _sets_pair(grid: Mapping[str, Any] | None) -> bool:
    return grid is not None and any(name in grid for name in PAIR)


def _of_one_version(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of every method the version that most runs are of, the newest of equals; marks the others."""
    runs = Counter((row["method"], row["version"]) for row in rows)
    chosen: dict[str, str] = {}
    for (method, name), _ in sorted(runs.items(), key=lambda item: (item[1], len(item[0][1]), item[0])):
        chosen[method] = name  # the last is of most runs; version=10 is after version=9
    for row in rows:
        if row["version"] != chosen[row["method"]]:
            row["left_out"] = f"of {row['method']} with {row['version']}"
    return [row for row in rows if not row["left_out"]]


def _why_left_out(recipe: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    """Why runs of one base recipe do not count beside those of another.

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
    """The runs of a task, given by its name or spec."""
    rows = runs[(runs.task == task) | (runs.spec == task)]
    if rows.empty:
        raise NoRuns(f"there is no finished run of {task}; make some with: evenhand bench {task}")
    return rows


def counting(rows: Frame, method: str | None = None) -> Frame:
    """The runs that count in a comparison, of one method or of all, by points of the grid and seeds."""
    kept = (
        rows[rows.left_out == ""] if method is None else rows[(rows.left_out == "") & (rows.method == method)]
    )
    return kept.sort_values(["method", "point", "seed"], kind="stable")


def methods(rows: Frame) -> list[str]:
    """The methods that have candidates."""
    return sorted(set(rows.method[rows.left_out == ""]))


def seeds(rows: Frame) -> list[int]:
    """The seeds of the runs that share the recipe that is compared."""
    return sorted(set(rows.seed[rows.alike].tolist()))


def inherited_pair(rows: Frame) -> Settings:
    """The learning rate and weight decay that methods inherit which do not search them."""
    pair = _pair(rows[rows.alike].to_dict("records"))
    return dict(zip(PAIR, pair, strict=True)) if pair else {}


def missing(rows: Frame, method: str) -> list[tuple[Settings, int]]:
    """The settings and seeds of a method's grid on a task that have no finished run."""
    grid, own = grid_of(rows.spec.iloc[0], method), counting(rows, method)
    found = set(zip(own.candidate, own.seed, strict=True))
    points = [] if grid is None else combinations(grid)
    return [(point, seed) for point in points for seed in seeds(rows) if (named(point), seed) not in found]


def groups(rows: Frame) -> Frame:
    """The test accuracy of every group, of every class where no groups are known: a row for each and run.

    The columns are those of the run, and group, count, accuracy, low, high (its 95% interval).
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
    """A column of one method's candidates, (candidates, seeds); NaN where a seed is missing."""
    return np.asarray(rows.pivot(index="point", columns="seed", values=column), dtype=np.float64)


def scores(rows: Frame, by: str, pseudo: Mapping[int, Any] | None = None) -> npt.NDArray[np.float64]:
    """What one method's candidates are selected by, (candidates, seeds) from 0 to 1."""
    if by not in CRITERIA:
        raise ValueError(f"candidates are selected by one of {', '.join(CRITERIA)}, got {by!r}")
    if by != "worst_pseudo_group":
        return table_of(rows, CHOSEN_BY[by])
    if not pseudo:
        raise ValueError(
            "selecting by worst_pseudo_group needs the validation set's pseudo-groups, which runs of tab "
            "leave, and there is none for this task; make one with: evenhand bench TASK --methods tab"
        )
    values = [pseudo_group_accuracy(record, pseudo.get(record.seed)) for record in rows.record]
    return table_of(rows.assign(worst_pseudo_group=values), by)


def best(values: npt.NDArray[np.float64]) -> int:
    """The row of (candidates, seeds) with the highest mean over the seeds that it has."""
    return first_highest(_means(values))


def num_equal(values: npt.NDArray[np.float64]) -> int:
    """How many rows of (candidates, seeds) share the highest mean; none where no row has one."""
    means = _means(values)
    return int(np.count_nonzero(np.isfinite(means) & highest(means)))


def _means(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    means = [row[np.isfinite(row)].mean() if np.isfinite(row).any() else -math.inf for row in values]
    return np.array(means)


def choose(rows: Frame, by: str = "accuracy", pseudo: Mapping[int, Any] | None = None) -> Frame:
    """The runs of the candidate with the best mean over its seeds; the first of equals wins."""
    if rows.empty:
        raise ValueError("there is no candidate to select from; run some with: evenhand bench")
    points = sorted(set(rows.point))
    return rows[rows.point == points[best(scores(rows, by, pseudo))]]


def selected(runs: Frame, by: str | None = None, *, every_method: bool = False) -> Frame:
    """The runs of every method's selected candidate on every task, by seed.

    `every_method`: of a method none of whose runs count, also its variant with the best mean by the same
    criterion, such as of runs outside the grid. Its `left_out` says why it does not count.
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
    """A task's pseudo-groups of validation samples by seed: TAB's where it has them, else a variant's."""
    found: dict[int, Any] = {}
    kept = counting(rows)
    for record in sorted(kept.record, key=lambda record: record.method != "tab"):
        if record.seed not in found and (parts := record.val_partition) is not None:
            found[record.seed] = parts
    return found


def pseudo_group_accuracy(record: Record, parts: Any | None) -> float:
    """The lowest validation accuracy of any class's minority or majority cluster; NaN without clusters."""
    if parts is None:
        return math.nan
    predictions = record.predictions["val"]
    if len(predictions) != len(parts.labels):
        raise ValueError(
            f"{record.path} predicts {len(predictions)} validation samples, but this task's pseudo-groups "
            f"are of {len(parts.labels)}; the runs are of different data"
        )
    cells = np.searchsorted(parts.classes, parts.labels) * 2 + parts.minority
    return worst_group_accuracy(predictions, parts.labels, cells)


# -- what a method reaches ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Result:
    """A method's selected candidate on a task, and what another selection would have given."""

    method: str
    by: str  # the criterion that selected
    rows: Frame  # the runs of the selected candidate, by seed
    oracle: Frame  # the runs of the candidate with the best mean test WGA
    num_candidates: int
    mms: Mean
    pou: Price | None  # None where every candidate has WGA zero

    @property
    def wga(self) -> Mean:
        return mean(self.rows.test_wga)

    @property
    def interval(self) -> tuple[float, float]:
        """95%, of the WGA."""
        return interval(self.rows)

    @property
    def settings(self) -> Settings:
        """The values of the grid's keys that are selected."""
        return dict(self.rows.settings.iloc[0])


def result(rows: Frame, method: str, by: str | None = None) -> Result:
    """What one of a task's methods reaches, selected by the paper's criterion for it if none is given."""
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
    """What every method reaches on every task: one row of plain values for each."""
    rows = []
    for task, own in runs.groupby("task"):
        for method in sorted(methods(own), key=lambda name: PAPER.index(name) if name in PAPER else 99):
            found = result(own, method)
            # Where the selected candidate has a WGA of zero, PoU is of another one, which only a table says.
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
    """The price of unawareness of candidates, (candidates, seeds); None if none that counts has a WGA."""
    if not (np.isfinite(criterion).any(axis=1) & (wga > 0).any(axis=1)).any():
        return None
    return price_of_unawareness(criterion, wga)


def mean(values: Sequence[float]) -> Mean:
    """Mean and population deviation.

    >>> mean([0.25, 0.75]).deviation
    0.25
    """
    values = [float(value) for value in values]
    return Mean(float(np.mean(values)), float(np.std(values)), tuple(values))


def interval(rows: Frame) -> tuple[float, float]:
    """Wilson's 95% interval of the mean WGA of several seeds.

    All seeds are tested on the same images, so these count once: with the size of the smallest group that
    is the worst of a seed.
    """
    size = int(rows.worst_size.min())
    return wilson_interval(round(size * float(np.mean(rows.test_wga))), size)
