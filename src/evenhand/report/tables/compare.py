"""Variants side by side: every method with every setting that was run, seed by seed against one of them."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evenhand.bench.grid import PAIR, named, task_recipe
from evenhand.bench.recipes import COMPUTED, base_recipe, pair_of, version_of
from evenhand.bench.result import COLLAPSED, mean_of
from evenhand.bench.select import Bench
from evenhand.report.table import EMPTY, Cell, Column, Row, Section, Table, number, percents, words
from evenhand.report.tables.bootstrap import REPLICATES, Resampled, interval_of_difference, resample
from evenhand.report.tables.notes import older, other_data, told_left_out, trained_otherwise
from evenhand.training.record import Record

COLUMNS = (
    Column("method", text=True),
    Column("seeds"),
    Column("WGA"),
    Column("more than the first"),
    Column("95% interval", below="more than the first"),
    Column("95% interval, test samples", below="more than the first"),
    Column("collapsed"),
    Column("accuracy, weighted"),
    Column("accuracy, weighted, more than the first", below="accuracy, weighted"),
    Column("accuracy, weighted, 95% interval", below="accuracy, weighted"),
    Column("purity"),
    Column("identified"),
)
Variant = dict[int, Record]  # by seed


def table_compare(
    benches: Sequence[Bench], records: Sequence[Record], root: Path | None = None, against: str | None = None
) -> Table:
    """Every variant of a task's runs with its difference to the first, over the seeds that both have.

    Here runs of all recipes count, however they were computed: what differs is part of a variant's name.
    `root` is the folder of the datasets, whose test labels the intervals over test samples need; `against`
    the method whose variants come first, or one variant by the name that the table gives it.
    """
    how = (
        "Per cent; mean ± population deviation over seeds. Differences are paired by seed, with Student's "
        f"95% interval of their mean: other seeds, the same test samples. Test samples: the middle 95% of "
        f"{REPLICATES:,} mean differences, each with every group's test samples drawn anew with replacement, "
        "the same for all seeds and both variants: other test samples, the same seeds. "
        f"Collapsed: seeds with a WGA below {100 * COLLAPSED:g}%. Purity: of the "
        "minority clusters, bias-conflicting samples; identified: of these, the part in minority clusters."
    )
    found = {bench.spec: _variants(bench, records) for bench in benches}
    names = {name: None for variants, _ in found.values() for name in variants}
    if against is not None and not any(against in (name, name.split()[0]) for name in names):
        raise ValueError(f"--against must be one of {'; '.join(names)}; or its method; got {against!r}")
    sections = [_section(spec, *made, root, against or "tab") for spec, made in found.items()]
    compared = [
        record for made in found.values() for variant in made[0].values() for record in variant.values()
    ]
    return Table("compare", "Variants, seed by seed", COLUMNS, sections, [how, *older(compared)])


def _variants(bench: Bench, records: Sequence[Record]) -> tuple[dict[str, Variant], list[str]]:
    """The variants of a task by name, and what a reader must know of them."""
    found: dict[str, Variant] = {}
    left_out: Counter[str] = Counter()
    own = [record for record in records if record.config["task"] == bench.task]
    recipes = [base_recipe(record) for record in own]
    fields, newer = set().union(*recipes), [recipe for recipe in recipes if "record" not in recipe]
    mixed = {
        key
        for key in fields
        if len({repr(recipe.get(key)) for recipe in (newer if key in COMPUTED else recipes)}) > 1
    }
    pairs = {tuple(pair_of(record).items()) for record in own}
    shown = PAIR if len(pairs) > 1 else ()  # learning rate and weight decay, where they differ at all
    versions = {(record.method, named(version_of(record))) for record in own if not record.older}
    several = Counter(method for method, _ in versions)
    published = task_recipe(bench.spec)
    for record, recipe in sorted(zip(own, recipes, strict=True), key=lambda both: both[0].seed):
        pair = {key: value for key, value in pair_of(record).items() if key in shown}
        rest = {key: recipe[key] for key in sorted(mixed) if key in recipe}
        rest = {
            key: rest[key] for key in rest if published is None or rest[key] != getattr(published, key, None)
        }
        rest |= version_of(record) if several[record.method] > 1 else {}
        name = named({**dict(sorted(record.config["hyperparameters"].items())), **pair, **rest})
        variant = found.setdefault(f"{record.method} {name}".strip(), {})
        if variant.setdefault(record.seed, record) is not record:
            left_out[f"of {record.method} done twice, on other data or code"] += 1
    alike = {key: value for key, value in bench.recipe.items() if key not in mixed}
    notes = trained_otherwise(dataclasses.replace(bench, recipe=alike))
    kept = [record for variant in found.values() for record in variant.values()]
    return found, [*notes, *other_data(kept), *told_left_out(left_out)]


def _section(
    spec: str, found: dict[str, Variant], known: list[str], root: Path | None, against: str
) -> Section:
    names = sorted(found, key=lambda name: _place(name, against))
    first = found[names[0]]
    kept = [record for variant in found.values() for record in variant.values()]
    resampled, notes = resample(kept, spec, root) if len(found) > 1 else ({}, [])
    rows = [_row(name, found[name], first, resampled) for name in names]
    return Section(spec, rows, [*known, *notes])


def _place(name: str, against: str) -> tuple[bool, bool, str, int, str]:
    """What to compare with comes first, then ERM; of a method, the variants with few settings."""
    method = name.split()[0]
    return against not in (name, method), method != "erm", method, len(name), name


def _row(name: str, variant: Variant, first: Variant, resampled: Resampled) -> Row:
    wga, weighted = _scores(variant, "wga"), _scores(variant, "accuracy_weighted")
    both = [seed for seed in variant if seed in first] if variant is not first else []
    gains, more = (
        [own[seed] - _scores(first, key)[seed] for seed in both]
        for own, key in ((wga, "wga"), (weighted, "accuracy_weighted"))
    )
    collapsed = sum(value < COLLAPSED for value in wga.values())
    scores = [score for record in variant.values() if (score := record.metrics.get("identification"))]
    return [
        words(name),
        number(len(variant)),
        percents(mean_of(list(wga.values()))),
        _difference(gains),
        _interval(gains),
        _over_samples([variant[seed] for seed in both], [first[seed] for seed in both], resampled),
        Cell(collapsed, str(collapsed)),
        percents(mean_of(list(weighted.values()))),
        _difference(more),
        _interval(more),
        *(_share([score[key] for score in scores]) for key in ("purity", "identified")),
    ]


def _scores(variant: Variant, key: str) -> dict[int, float]:
    return {seed: float(record.metrics["test"][key]) for seed, record in variant.items()}


def _difference(gains: Sequence[float]) -> Cell:
    return Cell(float(np.mean(gains)), f"{100 * np.mean(gains):+.1f}") if gains else EMPTY


def _over_samples(ours: Sequence[Record], theirs: Sequence[Record], resampled: Resampled) -> Cell:
    """Empty where a run cannot be resampled: an interval over fewer seeds would be of another difference."""
    if not ours or any(record.path not in resampled for record in (*ours, *theirs)):
        return EMPTY
    return _bounds(
        *interval_of_difference(*([resampled[run.path] for run in runs] for runs in (ours, theirs)))
    )


def _share(values: Sequence[float | None]) -> Cell:
    known = [value for value in values if value is not None]
    return percents(mean_of(known)) if known else EMPTY


def _interval(gains: Sequence[float]) -> Cell:
    """Student's 95% interval of the mean of paired differences.

    >>> _interval([0.0, 0.02, 0.04]).text
    '-3.0 to +7.0'
    """
    if len(gains) < 2:
        return EMPTY
    from scipy.stats import t  # type: ignore[import-untyped]

    mean = float(np.mean(gains))
    half = float(t.ppf(0.975, len(gains) - 1)) * float(np.std(gains, ddof=1)) / math.sqrt(len(gains))
    return _bounds(mean - half, mean + half)


def _bounds(low: float, high: float) -> Cell:
    return Cell([low, high], f"{100 * low:+.1f} to {100 * high:+.1f}")
