"""Compare: every method with every setting that was run, paired by seed with one of them.

Differences of WGA have two intervals: Student's over seeds, and a bootstrap over the test samples of each
group.
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
from evenhand.bench.results import COLLAPSED, Frame, spec_of
from evenhand.report import notes
from evenhand.report.catalog import Truth, read_split
from evenhand.report.render import Column, Row, Section, Table, interval, percents
from evenhand.report.tables import mean_of_known
from evenhand.training.record import Record

REPLICATES = 2000
AT_ONCE = 1 << 22  # drawn samples in memory
signed = partial(interval, form="+.1f")


def change(value: float) -> str:
    """Return a difference in percentage points."""
    return f"{100 * value:+.1f}"


Resampled = dict[Path, npt.NDArray[np.float64]]  # a run's folder -> its WGA in every replicate


def table_compare(parts: Sequence[Frame], root: Path | None = None, against: str | None = None) -> Table:
    """Return every variant of a task's runs with its difference from the first, over their common seeds.

    Runs of all recipes count, and differing fields are part of a variant's name.

    - `root`: the folder of the datasets, which the intervals over test samples need for their labels
    - `against`: the method whose variants come first, or the name of one variant in the table
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
        "Percentages; mean ± population standard deviation over seeds. Differences are paired by seed, with "
        "Student's 95% interval of their mean, which covers other seeds on the same test samples. "
        f"Test samples: the middle 95% of {REPLICATES:,} bootstrap differences, which cover other test "
        "samples with the same seeds; each resamples the test samples of every group, the same for all seeds "
        f"and both variants. Collapsed: seeds with a WGA below {100 * COLLAPSED:g}%. Purity: share of "
        "bias-conflicting samples in the minority clusters; identified: share of them that is found there."
    )
    sections = [_section(rows, root, delta) for rows in ordered]
    shown = [rows.assign(shown=~rows.duplicated(["name", "seed"])) for rows in ordered]
    return Table(
        "compare",
        "Variants, seed by seed",
        columns,
        sections,
        [how, *notes.unsealed(shown, "shown"), *notes.older(shown, "shown")],
    )


def _ordered(rows: Frame, against: str) -> Frame:
    """Return the runs with the names of their variants: the reference, then ERM, then by method and name."""

    def place(name: str) -> tuple[bool, bool, str, int, str]:
        method = name.split()[0]
        return against not in (name, method), method != "erm", method, len(name), name

    named = rows.assign(name=(rows.method + " " + rows.variant).str.strip())
    return named.assign(place=[*map(place, named.name)]).sort_values(["place", "seed"], kind="stable")


def _section(rows: Frame, root: Path | None, delta: str) -> Section:
    kept, spec = rows.drop_duplicates(["name", "seed"]), spec_of(rows)
    twice = [f"of {method} repeated on other data or code" for method in rows.method.drop(kept.index)]
    mixed = results.mixed_fields(list(rows.recipe))
    compared = rows.recipe[rows.alike].iloc[0]
    recipe = {key: compared[key] for key in compared if key not in mixed}
    below = [*notes.other_recipe(recipe, spec), *notes.other_data(kept), *notes.excluded(Counter(twice))]
    variants = {str(name): own.set_index("seed") for name, own in kept.groupby("name", sort=False)}
    resampled: Resampled = {}
    if len(variants) > 1:
        resampled, why = resample(list(kept.record), spec, root)
        below += why
    first = next(iter(variants.values()))
    return Section(spec, [_row(name, own, first, resampled, delta) for name, own in variants.items()], below)


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
        if all(len(each) == len(both) for each in pairs):  # fewer seeds would give another difference
            row["95% interval, test samples"] = interval_of_difference(*pairs)
    return row


def students_interval(gains: Sequence[float] | npt.NDArray[np.float64]) -> tuple[float, float] | None:
    """Return Student's 95% interval of the mean of paired differences; None if there is only one.

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
    """Return the WGA of each run in bootstrap samples of every group, (runs, replicates).

    `correct` is (runs, samples). All runs share the draws, so their differences are paired. The draws depend
    only on the group sizes, not on the number of runs.

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
    """Return the middle 95% of the mean differences over seeds. Both arguments are (seeds, replicates)."""
    low, high = np.percentile(np.mean(np.subtract(ours, theirs), axis=0), [2.5, 97.5])
    return float(low), float(high)


def resample(records: Sequence[Record], spec: str, root: Path | None) -> tuple[Resampled, list[str]]:
    """Return the replicates of a task's runs, and notes on the runs for which there are none.

    Records contain predictions but neither labels nor groups, which are read from the data below `root`.
    They are used only for runs whose recorded group accuracies they reproduce.
    """
    predicted = [record for record in records if (record.path / "predictions.npz").exists()]
    why = Counter({"keep no predictions": len(records) - len(predicted)})
    truth = read_split(spec, root, "test") if predicted else None
    if truth is None:
        lacking = "have test labels that are not here (see evenhand data list, and --data)"
        return {}, _unsampled(why + Counter({lacking: len(predicted)}), len(records))
    usable = {record.path: hits for record in predicted if (hits := _correct(record, truth)) is not None}
    why["were tested on samples other than those here"] = len(predicted) - len(usable)
    if not usable:
        return {}, _unsampled(why, len(records))
    worst = resampled_wga(np.stack(list(usable.values())), _groups(truth))
    return dict(zip(usable, worst, strict=True)), _unsampled(why, len(records))


def _unsampled(why: Counter[str], total: int) -> list[str]:
    reasons = [(reason, count) for reason, count in why.items() if count]
    return [f"No interval over test samples of runs that {r}: {count} of {total}." for r, count in reasons]


def _groups(truth: Truth) -> npt.NDArray[np.int64]:
    """Return the groups of samples, (samples,); their classes if there are no groups."""
    return truth.labels if truth.groups is None else truth.groups


def _correct(record: Record, truth: Truth) -> npt.NDArray[np.bool_] | None:
    """Return the test samples that a run classifies correctly, (samples,); None if scored on others."""
    predictions = record.predictions.get("test")
    if predictions is None or predictions.shape != truth.labels.shape:
        return None
    correct = np.asarray(predictions == truth.labels)
    _, position, sizes = np.unique(_groups(truth), return_inverse=True, return_counts=True)
    parts = record.metrics["test"]["groups"] or record.metrics["test"]["classes"]
    known = [(int(part["count"]), round(part["count"] * part["accuracy"])) for part in parts]
    hits = np.bincount(position, weights=correct).astype(np.int64)
    return correct if known == list(zip(sizes.tolist(), hits.tolist(), strict=True)) else None
