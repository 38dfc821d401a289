"""Variants side by side: every method with every setting that was run, seed by seed against one of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from evenhand.bench.grids import PAIR, named
from evenhand.bench.recipes import pair_of
from evenhand.bench.result import mean_of
from evenhand.bench.select import Bench
from evenhand.report.table import EMPTY, Cell, Column, Row, Section, Table, number, percents, words
from evenhand.training.record import Record

COLLAPSED = 0.01  # a WGA below this is a group that was not learned at all
COLUMNS = (
    Column("method", text=True),
    Column("seeds"),
    Column("WGA"),
    Column("more than the first"),
    Column("95% interval", below="more than the first"),
    Column("collapsed"),
    Column("accuracy, weighted"),
    Column("purity"),
    Column("identified"),
)
Variant = dict[int, Record]  # by seed


def table_compare(benches: Sequence[Bench]) -> Table:
    """Every variant of a task's runs with its difference to the first, over the seeds that both have."""
    how = (
        "Per cent; mean ± population deviation over seeds. Differences are paired by seed, with Student's "
        f"95% interval of their mean. Collapsed: seeds with a WGA below {100 * COLLAPSED:g}%. Purity: of the "
        "minority clusters, bias-conflicting samples; identified: of these, the part in minority clusters."
    )
    sections = [_section(bench) for bench in benches]
    return Table("compare", "Variants, seed by seed", COLUMNS, sections, [how])


def _section(bench: Bench) -> Section:
    found: dict[str, Variant] = {}
    pairs = {tuple(pair_of(record).items()) for record in bench.records}
    shown = PAIR if len(pairs) > 1 else ()  # learning rate and weight decay, where they differ at all
    for record in sorted(bench.records, key=lambda record: record.seed):
        pair = {key: value for key, value in pair_of(record).items() if key in shown}
        settings = named({**dict(sorted(record.config["hyperparameters"].items())), **pair})
        found.setdefault(f"{record.method} {settings}".strip(), {})[record.seed] = record
    names = sorted(found, key=lambda name: (not name.startswith("tab"), len(name), name))
    first = found[names[0]]
    return Section(bench.spec, [_row(name, found[name], first) for name in names])


def _row(name: str, variant: Variant, first: Variant) -> Row:
    wga = {seed: float(record.metrics["test"]["wga"]) for seed, record in variant.items()}
    weighted = [float(record.metrics["test"]["accuracy_weighted"]) for record in variant.values()]
    both = [seed for seed in wga if seed in first] if variant is not first else []
    gains = [wga[seed] - float(first[seed].metrics["test"]["wga"]) for seed in both]
    collapsed = sum(value < COLLAPSED for value in wga.values())
    scores = [score for record in variant.values() if (score := record.metrics.get("identification"))]
    return [
        words(name),
        number(len(variant)),
        percents(mean_of(list(wga.values()))),
        Cell(float(np.mean(gains)), f"{100 * np.mean(gains):+.1f}") if gains else EMPTY,
        _interval(gains),
        Cell(collapsed, str(collapsed)),
        percents(mean_of(weighted)),
        *(_share([score[key] for score in scores]) for key in ("purity", "identified")),
    ]


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
    return Cell([mean - half, mean + half], f"{100 * (mean - half):+.1f} to {100 * (mean + half):+.1f}")
