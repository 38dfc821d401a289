"""Variants side by side: every method with every setting that was run, seed by seed against one of them.

Differences of WGA have two intervals: over seeds (Student's), and over test samples, by drawing the samples
of each group anew.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evenhand.bench import results
from evenhand.bench.grid import title
from evenhand.bench.results import COLLAPSED, Frame
from evenhand.report.render import Column, Row, Section, Table, interval, percents
from evenhand.report.tables import (
    Truth,
    mean_of_known,
    older,
    other_data,
    read_split,
    spec_of,
    told_left_out,
    trained_otherwise,
    unsealed,
)
from evenhand.training.record import Record

REPLICATES = 2000
AT_ONCE = 1 << 22  # drawn samples that are held in memory
signed = partial(interval, form="+.1f")


def change(value: float) -> str:
    """A difference in points."""
    return f"{100 * value:+.1f}"


Resampled = dict[Path, npt.NDArray[np.float64]]  # a run's folder -> its WGA in every replicate


def table_compare(parts: Sequence[Frame], root: Path | None = None, against: str | None = None) -> Table:
    """Every variant of a task's runs with its difference to the first, over the seeds that both have.

    Here runs of all recipes count, however they were computed: what differs is part of a variant's name.
    `root` is the folder of the datasets, whose test labels the intervals over test samples need; `against`
    the method whose variants come first, or one variant by the name that the table gives it.
    """
    ordered = [_ordered(rows, against or "tab") for rows in parts]
    names = list(dict.fromkeys(name for rows in ordered for name in rows.sort_values("seed").name))
    if against is not None and not any(against in (name, name.split()[0]) for name in names):
        raise ValueError(f"--against must be one of {'; '.join(names)}; or its method; got {against!r}")
    firsts = {
        (rows.method.iloc[0], rows.name[rows.method == rows.method.iloc[0]].nunique()) for rows in ordered
    }
    method, variants = firsts.pop() if len(firsts) == 1 else ("", 0)
    delta = f"Δ vs. {title(method) if variants == 1 else 'first row'}"
    columns = (
        Column("method", words=True),
        Column("seeds"),
        Column("WGA", percents),
        Column(delta, change),
        Column("95% interval", signed, below=delta),
        Column("95% interval, test samples", signed, below=delta, label="test samples"),
        Column("collapsed", below="seeds"),
        Column("accuracy, weighted", percents),
        Column(f"accuracy, weighted, {delta}", change, below="accuracy, weighted"),
        Column("accuracy, weighted, 95% interval", signed, below="accuracy, weighted"),
        Column("purity", percents),
        Column("identified", percents, below="purity"),
    )
    how = (
        "Per cent; mean ± population deviation over seeds. Differences are paired by seed, with Student's "
        f"95% interval of their mean: other seeds, the same test samples. Test samples: the middle 95% of "
        f"{REPLICATES:,} mean differences, each with every group's test samples drawn anew with replacement, "
        "the same for all seeds and both variants: other test samples, the same seeds. "
        f"Collapsed: seeds with a WGA below {100 * COLLAPSED:g}%. Purity: of the "
        "minority clusters, bias-conflicting samples; identified: of these, the part in minority clusters."
    )
    sections = [_section(rows, root, delta) for rows in ordered]
    shown = [rows.assign(shown=~rows.duplicated(["name", "seed"])) for rows in ordered]
    return Table(
        "compare",
        "Variants, seed by seed",
        columns,
        sections,
        [how, *unsealed(shown, "shown"), *older(shown, "shown")],
    )


def _ordered(rows: Frame, against: str) -> Frame:
    """The runs with their variants' names: what to compare with, then ERM, then by method and name."""

    def place(name: str) -> tuple[bool, bool, str, int, str]:
        method = name.split()[0]
        return against not in (name, method), method != "erm", method, len(name), name

    named = rows.assign(name=(rows.method + " " + rows.variant).str.strip())
    return named.assign(place=[*map(place, named.name)]).sort_values(["place", "seed"], kind="stable")


def _section(rows: Frame, root: Path | None, delta: str) -> Section:
    kept, spec = rows.drop_duplicates(["name", "seed"]), spec_of(rows)
    twice = [f"of {method} done twice, on other data or code" for method in rows.method.drop(kept.index)]
    mixed = results.mixed_fields(list(rows.recipe))
    compared = rows.recipe[rows.alike].iloc[0]
    recipe = {key: compared[key] for key in compared if key not in mixed}
    notes = [*trained_otherwise(recipe, spec), *other_data(kept), *told_left_out(Counter(twice))]
    variants = {str(name): own.set_index("seed") for name, own in kept.groupby("name", sort=False)}
    resampled: Resampled = {}
    if len(variants) > 1:
        resampled, why = resample(list(kept.record), spec, root)
        notes += why
    first = next(iter(variants.values()))
    return Section(spec, [_row(name, own, first, resampled, delta) for name, own in variants.items()], notes)


def _row(name: str, own: Frame, first: Frame, resampled: Resampled, delta: str) -> Row:
    row: dict[str, Any] = {
        "method": name,
        "seeds": len(own),
        "WGA": results.mean(own.test_wga),
        "collapsed": int((own.test_wga < COLLAPSED).sum()),
        "accuracy, weighted": results.mean(own.test_accuracy_weighted),
        **{score: mean_of_known(own[score]) for score in ("purity", "identified")},
    }
    both = [seed for seed in own.index if seed in first.index] if own is not first else []
    if both:
        for column, head in (("test_wga", ""), ("test_accuracy_weighted", "accuracy, weighted, ")):
            gains = (own[column][both] - first[column][both]).to_numpy()
            row |= {f"{head}{delta}": float(np.mean(gains)), f"{head}95% interval": students_interval(gains)}
        pairs = [[resampled[path] for path in each.path[both] if path in resampled] for each in (own, first)]
        if all(len(each) == len(both) for each in pairs):  # of fewer seeds it would be of another difference
            row["95% interval, test samples"] = interval_of_difference(*pairs)
    return row


def students_interval(gains: Sequence[float] | npt.NDArray[np.float64]) -> tuple[float, float] | None:
    """Student's 95% interval of the mean of paired differences; None where there is but one.

    >>> signed(students_interval([0.0, 0.02, 0.04]))
    '-3.0 to +7.0'
    """
    if len(gains) < 2:
        return None
    from scipy.stats import t  # type: ignore[import-untyped]

    mean = float(np.mean(gains))
    half = float(t.ppf(0.975, len(gains) - 1)) * float(np.std(gains, ddof=1)) / math.sqrt(len(gains))
    return mean - half, mean + half


def resampled_wga(
    correct: npt.NDArray[np.bool_], groups: npt.NDArray[np.int64], replicates: int = REPLICATES
) -> npt.NDArray[np.float64]:
    """Each run's WGA when the samples of every group are drawn anew with replacement, (runs, replicates).

    `correct` is (runs, samples). All runs get the same draws, so differences between them are paired; the
    draws depend on nothing but the sizes of the groups, so other runs beside two change nothing.

    >>> resampled_wga(np.array([[True, True, False]]), np.array([0, 0, 1]), replicates=2)
    array([[0., 0.]])
    """
    rng = np.random.default_rng(0)
    worst = np.full((len(correct), replicates), np.inf)
    for group in np.unique(groups):
        hits = correct[:, groups == group].astype(np.float32)  # sums of a group's hits are exact in float32
        size = hits.shape[1]
        step = max(1, AT_ONCE // size)
        for start in range(0, replicates, step):
            count = min(step, replicates - start)
            drawn = rng.integers(size, size=(count, size)) + size * np.arange(count)[:, None]
            times = np.bincount(drawn.ravel(), minlength=count * size).reshape(count, size)
            part = worst[:, start : start + count]
            np.minimum(part, (hits @ times.T.astype(np.float32)).astype(np.float64) / size, out=part)
    return worst


def interval_of_difference(
    ours: Sequence[npt.NDArray[np.float64]], theirs: Sequence[npt.NDArray[np.float64]]
) -> tuple[float, float]:
    """The middle 95% of the replicates' mean differences over seeds; both are (seeds, replicates)."""
    low, high = np.percentile(np.mean(np.subtract(ours, theirs), axis=0), [2.5, 97.5])
    return float(low), float(high)


def resample(records: Sequence[Record], spec: str, root: Path | None) -> tuple[Resampled, list[str]]:
    """The replicates of all runs of a task for which that is possible, and why it is not for the others.

    Records keep predictions, but neither labels nor groups: these are read from the data below `root`. They
    are believed only where they give a run's own accuracies again, group by group.
    """
    predicted = [record for record in records if (record.path / "predictions.npz").exists()]
    why = Counter({"keep no predictions": len(records) - len(predicted)})
    truth = read_split(spec, root, "test") if predicted else None
    if truth is None:
        lacking = "have test samples whose labels are not here, see: evenhand data list, and --data"
        return {}, _said(why + Counter({lacking: len(predicted)}), len(records))
    usable = {record.path: hits for record in predicted if (hits := _correct(record, truth)) is not None}
    why["were tested on other samples than the data here"] = len(predicted) - len(usable)
    if not usable:
        return {}, _said(why, len(records))
    worst = resampled_wga(np.stack(list(usable.values())), _groups(truth))
    return dict(zip(usable, worst, strict=True)), _said(why, len(records))


def _said(why: Counter[str], total: int) -> list[str]:
    reasons = [(reason, count) for reason, count in why.items() if count]
    return [f"No interval over test samples of runs that {r}: {count} of {total}." for r, count in reasons]


def _groups(truth: Truth) -> npt.NDArray[np.int64]:
    """The groups of samples, (samples,); the classes where there are no groups."""
    return truth.labels if truth.groups is None else truth.groups


def _correct(record: Record, truth: Truth) -> npt.NDArray[np.bool_] | None:
    """Which test samples a run has right, (samples,); None where that is not what it was scored with."""
    predictions = record.predictions.get("test")
    if predictions is None or predictions.shape != truth.labels.shape:
        return None
    correct = np.asarray(predictions == truth.labels)
    _, position, sizes = np.unique(_groups(truth), return_inverse=True, return_counts=True)
    parts = record.metrics["test"]["groups"] or record.metrics["test"]["classes"]
    known = [(int(part["count"]), round(part["count"] * part["accuracy"])) for part in parts]
    hits = np.bincount(position, weights=correct).astype(np.int64)
    return correct if known == list(zip(sizes.tolist(), hits.tolist(), strict=True)) else None
