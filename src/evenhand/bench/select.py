"""Which records are candidates of one fair comparison, and which candidate each criterion selects."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from evenhand.bench.grid import (
    PAIR,
    Settings,
    combinations,
    grid_of,
    method_file,
    named,
    rule,
    task_recipe,
)
from evenhand.bench.recipes import base_recipe, differences, fits, pair_of, version_of, why_left_out
from evenhand.core.metrics import first_highest, highest, worst_group_accuracy
from evenhand.core.partition import Partition
from evenhand.training.record import Record

__all__ = ["CRITERIA", "Bench", "Candidate", "candidates", "gather", "rule", "scores", "select"]

# What a candidate is selected by, each on the validation set: "accuracy" is the paper's.
CRITERIA = ("accuracy", "wga", "worst_class", "worst_pseudo_group")
SCORES = {"accuracy": "accuracy_weighted", "wga": "wga", "worst_class": "worst_class"}

Pseudo = Mapping[int, Partition]  # the validation set's pseudo-groups, by seed


class NoRuns(ValueError):
    """There is no record to compare."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """One hyperparameterisation of a method on a task, with its record of every seed that is finished."""

    task: str
    method: str
    settings: Settings  # the values of the grid's keys
    records: dict[int, Record]

    @property
    def name(self) -> str:
        """The settings in one line: `threshold=2.5`; empty where there is nothing to set."""
        return named(self.settings)


def candidates(
    records: Iterable[Record], task: str, method: str, changes: Mapping[str, Any] | None = None
) -> list[Candidate]:
    """A method's candidates on a task (its name or spec), in the order of the grid; see `gather`."""
    try:
        return gather(records, task, changes).candidates(method)
    except NoRuns:
        return []


def select(found: Sequence[Candidate], by: str = "accuracy", *, pseudo: Pseudo | None = None) -> Candidate:
    """The candidate with the best mean over its seeds; the first of equals wins."""
    if not found:
        raise ValueError("there is no candidate to select from; run some with: evenhand bench")
    return found[best(scores(found, by, pseudo=pseudo))]


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


def scores(
    found: Sequence[Candidate],
    by: str = "accuracy",
    *,
    pseudo: Pseudo | None = None,
    seeds: Sequence[int] | None = None,
) -> npt.NDArray[np.float64]:
    """What candidates are selected by, (candidates, seeds) from 0 to 1; NaN where a seed is missing."""
    if by not in CRITERIA:
        raise ValueError(f"candidates are selected by one of {', '.join(CRITERIA)}, got {by!r}")
    if by == "worst_pseudo_group":
        if not pseudo:
            raise ValueError(
                "selecting by worst_pseudo_group needs the validation set's pseudo-groups, which runs of tab "
                "leave, and there is none for this task; make one with: evenhand bench TASK --methods tab"
            )
        groups = pseudo
        return _table(found, seeds, lambda record: pseudo_group_accuracy(record, groups.get(record.seed)))
    return _table(found, seeds, lambda record: float(record.metrics["val"][SCORES[by]]))


def scores_on_test(
    found: Sequence[Candidate], score: str = "wga", seeds: Sequence[int] | None = None
) -> npt.NDArray[np.float64]:
    """A score on the test set, (candidates, seeds); NaN where a seed is missing."""
    return _table(found, seeds, lambda record: float(record.metrics["test"][score]))


def seeds_of(found: Iterable[Candidate]) -> list[int]:
    """The seeds that any of the candidates has."""
    return sorted({seed for candidate in found for seed in candidate.records})


def pseudo_group_accuracy(record: Record, parts: Partition | None) -> float:
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


@dataclass(frozen=True, eq=False)
class Bench:
    """The records of one task that can be compared fairly: one recipe, ERM's selected pair, the grids."""

    task: str
    spec: str
    recipe: dict[str, Any]  # of all the records here, less what the grids set
    records: list[Record]
    left_out: Counter[str] = field(default_factory=Counter)  # why records do not count -> how many

    @cached_property
    def methods(self) -> list[str]:
        """The methods that have candidates."""
        return [name for name in sorted({record.method for record in self.records}) if self.candidates(name)]

    @cached_property
    def seeds(self) -> list[int]:
        return sorted({record.seed for record in self.records})

    @cached_property
    def pair(self) -> Settings:
        """ERM's selected learning rate and weight decay; without ERM, those of most other runs."""
        if erm := self.candidates("erm"):
            return pair_of(next(iter(select(erm).records.values())))
        inheriting = [record for record in self.records if not _sets_pair(self.grid(record.method))]
        pairs = Counter(json.dumps(pair_of(record)) for record in inheriting)
        return dict(json.loads(pairs.most_common(1)[0][0])) if pairs else {}

    def grid(self, method: str) -> dict[str, list[Any]] | None:
        return grid_of(self.spec, method)

    def candidates(self, method: str) -> list[Candidate]:
        """The method's candidates, in the order of the grid."""
        if method not in self._found:
            grid = self.grid(method)
            pair = None if method == "erm" or _sets_pair(grid) else self.pair
            self._found[method] = _candidates(self, method, grid, pair)
        return self._found[method]

    @cached_property
    def _found(self) -> dict[str, list[Candidate]]:
        return {}

    @cached_property
    def pseudo(self) -> Pseudo:
        """The validation set's pseudo-groups for each seed: TAB's where it has them, else a variant's."""
        found: dict[int, Partition] = {}
        names = ["tab", *(name for name in self.methods if name != "tab")]
        for candidate in itertools.chain.from_iterable(self.candidates(name) for name in names):
            for seed, record in candidate.records.items():
                if seed not in found and (parts := record.val_partition) is not None:
                    found[seed] = parts
        return found

    def missing(self, method: str) -> list[tuple[Settings, int]]:
        """The settings and seeds of the method's grid that have no finished run here."""
        grid = self.grid(method)
        found = {candidate.name: candidate.records for candidate in self.candidates(method)}
        points = [] if grid is None else combinations(grid)
        return [(point, s) for point in points for s in self.seeds if s not in found.get(named(point), {})]


def gather(records: Iterable[Record], task: str, changes: Mapping[str, Any] | None = None) -> Bench:
    """The records of a task, given by its name or spec, that share one recipe and one arithmetic.

    That is the task's own with these `changes`; without any being asked for, the task's own where a run has
    it, else the one of most runs. Learning rate and weight decay belong to the grids and may differ. Of a
    method's versions the one of most runs counts. Older records are apart from newer ones.
    """
    own = [record for record in records if task in (record.config["task"], record.config["spec"])]
    if not own:
        raise NoRuns(f"there is no finished run of {task}; make some with: evenhand bench {task}")
    spec, name = str(own[0].config["spec"]), str(own[0].config["task"])
    published = task_recipe(spec)
    by_recipe: dict[str, list[Record]] = {}
    for record in own:
        by_recipe.setdefault(json.dumps(base_recipe(record), sort_keys=True), []).append(record)

    def rank(text: str) -> tuple[bool, int, bool, str]:
        older = by_recipe[text][0].older
        return differences(json.loads(text), published) != {}, -len(by_recipe[text]), older, text

    wanted = None if changes is None else {key: changes[key] for key in changes if key not in PAIR}
    fitting = [text for text in by_recipe if wanted is None or fits(json.loads(text), published, wanted)]
    if not fitting:
        raise NoRuns(f"there is no finished run of {task} with {named(wanted or {}) or 'its own recipe'}")
    chosen = min(fitting, key=rank)
    recipe = json.loads(chosen)
    left_out: Counter[str] = Counter()
    for text, others in by_recipe.items():
        if text != chosen:
            left_out[why_left_out(json.loads(text), recipe)] += len(others)
    kept = _of_one_version(by_recipe[chosen], left_out)
    bench = Bench(name, spec, recipe, kept, left_out)
    for method in {record.method for record in kept}:
        bench.candidates(method)  # so that what is left out has been counted
    return bench


def _of_one_version(records: list[Record], left_out: Counter[str]) -> list[Record]:
    """Of every method the version that most runs are of, the newest of equals; counts the others."""
    runs = Counter((record.method, named(version_of(record))) for record in records)
    chosen: dict[str, str] = {}
    for (method, name), _ in sorted(runs.items(), key=lambda item: (item[1], len(item[0][1]), item[0])):
        chosen[method] = name  # the last is of most runs; version=10 is after version=9
    for (method, name), number in runs.items():
        if name != chosen[method]:
            left_out[f"of {method} with {name}"] += number
    return [record for record in records if named(version_of(record)) == chosen[record.method]]


def task_names(records: Iterable[Record]) -> list[str]:
    """The names of all tasks that have records."""
    return sorted({str(record.config["task"]) for record in records})


def recipe_changes(bench: Bench) -> dict[str, Any]:
    """Where the bench's recipe is not the task's own: field -> value."""
    return differences(bench.recipe, task_recipe(bench.spec))


def _candidates(
    bench: Bench, method: str, grid: dict[str, list[Any]] | None, pair: Settings | None
) -> list[Candidate]:
    """Sort a method's records into the points of its grid, counting those that fit none."""
    points = {} if grid is None else {named(point): point for point in combinations(grid)}
    found: dict[str, Candidate] = {}
    for record in bench.records:
        if record.method != method:
            continue
        settings, extra = _settings(record, grid)
        name = named(settings)
        if extra:
            bench.left_out[f"of {method} with {named(extra)}"] += 1
        elif grid is not None and name not in points:
            bench.left_out[f"of {method} outside its grid"] += 1
        elif pair and pair_of(record) != pair:
            bench.left_out[f"of {method} without ERM's selected {named(pair)}"] += 1
        elif (
            record.seed
            in (known := found.setdefault(name, Candidate(bench.task, method, settings, {}))).records
        ):
            bench.left_out[f"of {method} done twice, on other data or code"] += 1
        else:
            known.records[record.seed] = record
    order = list(points) or sorted(found)
    return [found[name] for name in order if name in found]


def _settings(record: Record, grid: dict[str, list[Any]] | None) -> tuple[Settings, Settings]:
    """The values of the grid's keys in a run, and its other settings that are not the defaults."""
    given = dict(record.config["hyperparameters"])
    if grid is None:
        return dict(sorted(given.items())), {}
    found = method_file(record.method)
    known = {**(found.options if found else {}), **pair_of(record), **given}
    return {key: known.get(key) for key in grid}, {key: given[key] for key in given if key not in grid}


def _sets_pair(grid: Mapping[str, Any] | None) -> bool:
    return grid is not None and any(name in grid for name in PAIR)


def _table(found: Sequence[Candidate], seeds: Sequence[int] | None, value: Any) -> npt.NDArray[np.float64]:
    columns = seeds_of(found) if seeds is None else seeds
    rows = [[value(c.records[seed]) if seed in c.records else math.nan for seed in columns] for c in found]
    return np.array(rows, dtype=np.float64).reshape(len(found), len(columns))
