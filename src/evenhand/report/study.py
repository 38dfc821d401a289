"""Study: all runs of one task, sorted into variants (a method with its settings) over their seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.bench.grid import is_told_groups
from evenhand.bench.grid import title as method_title
from evenhand.training.record import Record

BASELINE = "erm"
MAIN = "tab"


@dataclass(frozen=True)
class Variant:
    """One method with one configuration, run with one or more seeds."""

    method: str
    settings: dict[str, Any]  # what sets it apart from the study's other variants of the method
    records: tuple[Record, ...]  # by seed, one each
    mark: int  # which colour and shape it has in the charts

    @property
    def title(self) -> str:
        return method_title(self.method)

    @property
    def label(self) -> str:
        """The title, with the settings where they are needed to tell variants apart."""
        text = ", ".join(f"{name}={value}" for name, value in self.settings.items())
        return f"{self.title} ({text})" if text else self.title

    @property
    def needs_groups(self) -> bool:
        return is_told_groups(self.method)

    @property
    def seeds(self) -> list[int]:
        return [record.seed for record in self.records]

    def values(self, name: str) -> list[float]:
        """A test score of every seed."""
        return [float(record.metrics["test"][name]) for record in self.records]

    def mean(self, name: str) -> float:
        return float(np.mean(self.values(name)))

    def identification(self, name: str) -> list[float]:
        """`identified`, `purity` or `share` of the seeds that have it."""
        scores = [record.metrics.get("identification") for record in self.records]
        return [float(score[name]) for score in scores if score is not None and score[name] is not None]


@dataclass(frozen=True)
class Study:
    """The variants that were trained on the same data; older records are a study of their own."""

    task: str
    spec: str
    variants: tuple[Variant, ...]

    @property
    def records(self) -> list[Record]:
        return [record for variant in self.variants for record in variant.records]

    @property
    def older(self) -> bool:
        """Whether these are older records, which newer ones are not compared with."""
        return self.records[0].older

    @property
    def over(self) -> str:
        """What the worst is taken over: "group", or "class" where nobody knows the groups."""
        named = {record.metrics["test"]["wga_over"] for record in self.records}
        return "class" if named == {"classes"} else "group"

    @cached_property
    def scored_on(self) -> str:
        """What the scores are of: "test" samples, or "validation" ones where there is no test set."""
        return str(self.records[0].config.get("scored_on", "test"))

    @cached_property
    def baseline(self) -> Variant | None:
        """The ERM that others are measured against."""
        return self._chosen(BASELINE)

    @cached_property
    def main(self) -> Variant | None:
        """The variant that the page is about: TAB where it was run, else any other than the baseline."""
        others = [variant.method for variant in self.variants if variant.method != BASELINE]
        return self._chosen(MAIN if MAIN in others else others[0]) if others else None

    @property
    def comparable(self) -> list[Variant]:
        """The variants in the charts: one of every method, the baseline first and the main one second."""
        first = [variant for variant in (self.baseline, self.main) if variant is not None]
        methods = dict.fromkeys(variant.method for variant in self.variants)
        rest = [self._chosen(method) for method in methods if method not in {v.method for v in first}]
        return first + [variant for variant in rest if variant is not None]

    @cached_property
    def found(self) -> Record | None:
        """The run whose pseudo-groups the page shows: the lowest seed of the main variant that has any."""
        ordered = [self.main, *self.variants] if self.main else list(self.variants)
        for variant in ordered:
            for record in variant.records:
                if record.partition is not None:
                    return record
        return None

    def variant_of(self, record: Record) -> Variant:
        return self._variant_by_path[record.path]

    @cached_property
    def _variant_by_path(self) -> dict[Path, Variant]:
        return {record.path: variant for variant in self.variants for record in variant.records}

    def _chosen(self, method: str) -> Variant | None:
        """Of several configurations the one with the best mean validation accuracy, as the paper selects."""
        candidates = [variant for variant in self.variants if variant.method == method]
        if not candidates:
            return None
        return max(
            candidates,
            key=lambda each: np.mean([run.metrics["val"]["accuracy_weighted"] for run in each.records]),
        )


def studies(records: Sequence[Record]) -> list[Study]:
    """Sort runs by task and data, then by method and configuration; runs given twice count once."""
    if not records:
        raise ValueError("a report needs at least one finished run, got none; run `evenhand demo` first")
    unique = list({record.path.resolve(): record for record in records}.values())
    groups: dict[tuple[str, str, bool], list[Record]] = {}
    for record in unique:
        group = record.config["task"], record.config.get("data", ""), record.older
        groups.setdefault(group, []).append(record)
    return [_study(group) for _, group in sorted(groups.items())]


def _study(records: list[Record]) -> Study:
    by_configuration: dict[str, dict[int, Record]] = {}
    for record in sorted(records, key=lambda run: (_rank(run.method), json.dumps(_settings(run)))):
        key = json.dumps([record.method, _settings(record)])
        by_configuration.setdefault(key, {})[record.seed] = record
    families: dict[str, list[dict[str, Any]]] = {}
    for seeds in by_configuration.values():
        record = next(iter(seeds.values()))
        families.setdefault(record.method, []).append(_settings(record))
    marks = {method: mark for mark, method in enumerate(families)}
    variants = []
    for seeds in by_configuration.values():
        record = next(iter(seeds.values()))
        apart = _telling(_settings(record), families[record.method])
        ordered = tuple(seeds[seed] for seed in sorted(seeds))
        variants.append(Variant(record.method, apart, ordered, marks[record.method]))
    first = records[0].config
    return Study(task=str(first["task"]), spec=str(first.get("spec", "")), variants=tuple(variants))


def _rank(method: str) -> tuple[int, str]:
    """The baseline first, the main method second, the rest by name."""
    return {BASELINE: 0, MAIN: 1}.get(method, 2), method


def _settings(record: Record) -> dict[str, Any]:
    given = {**record.config.get("recipe", {}), **record.config.get("hyperparameters", {})}
    return dict(sorted({**record.made_with, **given}.items()))


def _telling(settings: dict[str, Any], family: list[dict[str, Any]]) -> dict[str, Any]:
    """Those settings that differ within the family."""
    names = sorted({name for each in family for name in each})
    differing = [name for name in names if len({json.dumps(each.get(name)) for each in family}) > 1]
    return {name: settings.get(name, "default") for name in differing}
