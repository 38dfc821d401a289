"""Accuracy and calibration of any model's predictions, for every group and every intersection of groups."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas

from evenhand.core.metrics import wilson_interval
from evenhand.report import render
from evenhand.tasks import table as tables

PREDICTED = ("predicted", "prediction")  # what a column of predicted classes is called
COLUMNS = (
    render.Column("group", words=True),
    render.Column("samples", "{:,}".format),
    render.Column("accuracy", lambda share: f"{100 * share:.1f}%"),
    render.Column("95% interval", render.interval),
    render.Column("overconfidence", lambda gap: f"{100 * gap:+.1f}"),
    render.Column("its interval", lambda bounds: render.interval(bounds, "+.1f")),
    render.Column("below average", words=True),
)


@dataclass(frozen=True)
class Evaluation:
    """Scores of every group, worst first.

    frame: One row per group: its `group` and the columns that it is made `by`, `samples`, `accuracy` with
        the 95% interval `low` to `high` (Wilson), `gap` (mean confidence minus accuracy) with the interval
        `gap_low` to `gap_high`, and `below`: whether the accuracy is below the overall one, at a level of
        5% that is corrected for the number of groups (Bonferroni).
    """

    frame: pandas.DataFrame
    samples: int
    accuracy: float  # of all samples
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> dict[str, Any]:
        """The row of the group with the lowest accuracy."""
        return dict(self.frame.iloc[0])

    def table(self, most: int | None = None) -> render.Table:
        """The table, or its worst `most` rows, for `evenhand.report.render`."""
        hits = round(self.accuracy * self.samples)
        bounds = render.interval(wilson_interval(hits, self.samples))
        title = f"{self.samples:,} samples: accuracy {100 * self.accuracy:.1f}% ({bounds})"
        rows = [
            {
                **{name: row[name] for name in ("group", "samples", "accuracy")},
                "95% interval": (row["low"], row["high"]),
                "overconfidence": row["gap"],
                "its interval": "" if np.isnan(row["gap"]) else (row["gap_low"], row["gap_high"]),
                "below average": "yes" if row["below"] else "",
            }
            for row in self.frame.head(most or len(self.frame)).to_dict("records")
        ]
        left = len(self.frame) - len(rows)
        notes = [*self.notes, *([f"{left:,} more groups have a higher accuracy"] if left else [])]
        return render.Table("evaluate", title, COLUMNS, [render.Section("", rows)], notes)

    def _repr_html_(self) -> str:
        return render.html(self.table(20))

    def plot(self, most: int = 20) -> Any:
        """A matplotlib figure: the accuracies of the worst groups with their intervals."""
        from evenhand.report.notebook import Plot

        rows = self.frame.head(most).iloc[::-1]
        figure = Plot(figsize=(7, 1 + 0.3 * len(rows)), layout="constrained")
        axes = figure.subplots()
        bars = np.abs(rows[["low", "high"]].to_numpy().T - rows["accuracy"].to_numpy())
        axes.errorbar(rows["accuracy"], rows["group"], xerr=bars, fmt="o", capsize=3)
        axes.axvline(self.accuracy, linestyle="--", color="grey")
        axes.set(xlabel="accuracy", xlim=(0, 1))
        return figure


def evaluate(
    predictions: Any,
    *,
    label: str,
    groups: Sequence[str] = (),
    prediction: str | None = None,
    probability: str = "probability",
    least: int = 10,
    depth: int = 3,
) -> Evaluation:
    """Score a table of predictions by class, by group and by their intersections.

    - `predictions`: a CSV or Parquet file, a DataFrame, a dict of columns, or a `datasets.Dataset`, with one
      row per sample.
    - `label`: the column of true classes. Rows without a label are left out.
    - `groups`: the columns of known groups. Rows with a missing group are scored as a separate group.
    - `prediction`: the column of predicted classes. By default `predicted` or `prediction`, else the class
      with the highest probability.
    - `probability`: with two classes, the column with the probability of the second class. With more, the
      prefix of one column per class: `probability_cat`, `probability_dog`. Without either, a column
      `confidence` holds the probability of the predicted class.
    - `least`: groups with fewer samples are left out.
    - `depth`: the largest number of columns that are intersected, including the label.

    Returns an `Evaluation`, whose `frame` has one row per group, worst first. Raises ValueError for missing
    columns, for probabilities that are not between 0 and 1, and if no group has `least` samples.

    >>> columns = {"y": [0, 1] * 20, "predicted": [0] * 20 + [0, 1] * 10, "site": ["a"] * 20 + ["b"] * 20}
    >>> evaluate(columns, label="y", groups=["site"]).worst["group"]
    'site = a, y = 1'
    """
    frame = _frame(predictions)
    for name in (label, *groups, *([prediction] if prediction else [])):
        if name not in frame.columns:
            listed = ", ".join(map(str, frame.columns[:40]))
            raise ValueError(f"expected a column {name!r}, but the columns are {listed}")
    if label in groups or len(set(groups)) < len(groups):
        raise ValueError(f"groups must be different columns, without the label, got {', '.join(groups)}")
    if least < 1 or depth < 1:
        raise ValueError(f"least and depth must be at least 1, got {least} and {depth}")
    notes = []
    labelled = frame[label].notna()
    if not labelled.all():
        notes.append(f"{int((~labelled).sum()):,} rows without a label were left out")
        frame = frame[labelled]
    if len(frame) == 0:
        raise ValueError("expected rows with a label, but there are none")
    truth = np.array(tables.as_names(frame[label]))
    predicted, confidence = _predicted(frame, truth, prediction, probability)
    scored = pandas.DataFrame({name: tables.as_text(frame[name], "") for name in groups})
    known = {name: frame[name].notna().to_numpy() for name in groups}
    scored = scored.assign(**{label: truth}, _hit=predicted == truth, _gap=confidence - (predicted == truth))
    rows = [
        *_rows(scored, known, (*groups, label), depth),
        *(_row(f"{name} unknown", name, scored[~known[name]]) for name in groups if not known[name].all()),
    ]
    small = [row for row in rows if row["samples"] < least]
    if small:
        notes.append(f"{len(small):,} groups with fewer than {least} samples were left out")
    rows = [row for row in rows if row["samples"] >= least]
    if not rows:
        raise ValueError(f"no group has {least} samples; lower the limit (least)")
    z = NormalDist().inv_cdf(1 - 0.025 / len(rows))
    overall = float(scored["_hit"].mean())
    for row in rows:
        hits = round(row["accuracy"] * row["samples"])
        row["low"], row["high"] = wilson_interval(hits, row["samples"])
        row["below"] = wilson_interval(hits, row["samples"], z)[1] < overall
    notes.append(
        f"below average: the accuracy is below that of all samples, at a level of 5% corrected for "
        f"{len(rows):,} groups. Overconfidence is the mean confidence minus the accuracy, in points."
    )
    made = pandas.DataFrame(rows).sort_values(["accuracy", "samples", "group"], ascending=[True, False, True])
    return Evaluation(made.reset_index(drop=True), len(scored), overall, tuple(notes))


def _frame(predictions: Any) -> pandas.DataFrame:
    if isinstance(predictions, (str, Path)):
        predictions = tables.read(Path(predictions))
    elif hasattr(predictions, "to_pandas"):  # datasets, polars, pyarrow
        predictions = predictions.to_pandas()
    return pandas.DataFrame(predictions).reset_index(drop=True)


def _predicted(
    frame: pandas.DataFrame, truth: np.ndarray, prediction: str | None, probability: str
) -> tuple[np.ndarray, np.ndarray]:
    """The predicted classes, and the probability of each; NaN where no column has it."""
    prediction = prediction or next((name for name in PREDICTED if name in frame.columns), None)
    given = None if prediction is None else np.array(tables.as_names(frame[prediction]))
    classes = sorted({*truth.tolist(), *([] if given is None else given.tolist())})
    starts = f"{probability}_"
    named = [name for name in frame.columns if str(name).startswith(starts)]
    if named:
        classes = [str(name).removeprefix(starts) for name in named]
        shares = np.stack([_shares(frame[name]) for name in named], axis=1)
        if (np.abs(shares.sum(1) - 1) > 0.01).any():
            raise ValueError(f"the probabilities {', '.join(named)} must add up to 1 in every row")
    elif probability in frame.columns:
        if len(classes) != 2:
            raise ValueError(
                f"one column {probability!r} needs two classes, but there are {len(classes)}; give a column "
                f"{starts}… for every class"
            )
        second = _shares(frame[probability])
        shares = np.stack([1 - second, second], axis=1)
    elif given is None:
        raise ValueError(
            f"expected a column of predicted classes ({' or '.join(PREDICTED)}) or of probabilities "
            f"({probability}, {starts}…), but the columns are {', '.join(map(str, frame.columns[:40]))}"
        )
    else:
        confidence = "confidence" in frame.columns
        return given, _shares(frame["confidence"]) if confidence else np.full(len(frame), np.nan)
    if given is None:
        return np.array(classes)[shares.argmax(1)], shares.max(1)
    position = {name: number for number, name in enumerate(classes)}
    if unknown := sorted(set(given.tolist()) - set(classes)):
        raise ValueError(f"there is no probability of the predicted class {unknown[0]!r}")
    return given, shares[np.arange(len(given)), [position[name] for name in given.tolist()]]


def _shares(values: Any) -> np.ndarray:
    shares = np.asarray(values, dtype=np.float64)
    if not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError(f"the column {values.name!r} must hold probabilities between 0 and 1 in every row")
    return shares


def _rows(
    scored: pandas.DataFrame, known: dict[str, np.ndarray], columns: tuple[str, ...], depth: int
) -> list[dict[str, Any]]:
    """A row for every value of every combination of at most `depth` columns, where all of them are known."""
    rows = []
    for size in range(1, min(depth, len(columns)) + 1):
        for chosen in itertools.combinations(columns, size):
            here = np.logical_and.reduce([known.get(name, np.ones(len(scored), bool)) for name in chosen])
            for values, members in scored[here].groupby(list(chosen)):
                text = ", ".join(f"{name} = {value}" for name, value in zip(chosen, values, strict=True))
                rows.append(_row(text, " × ".join(chosen), members))
    return rows


def _row(group: str, by: str, members: pandas.DataFrame) -> dict[str, Any]:
    gap, error = members["_gap"].mean(), members["_gap"].std(ddof=0) / np.sqrt(len(members))
    bounds = {"gap": gap, "gap_low": gap - 1.96 * error, "gap_high": gap + 1.96 * error}
    accuracy = float(members["_hit"].mean())
    return {"group": group, "by": by, "samples": len(members), "accuracy": accuracy, **bounds}
