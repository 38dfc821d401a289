"""The worst class, pseudo-group and known group of a run's model, with sizes and intervals."""

from __future__ import annotations

from typing import Any

import numpy as np

from evenhand.core.metrics import wilson_interval
from evenhand.core.partition import Partition
from evenhand.report.render import Column, Section, Table, interval, percents
from evenhand.training.record import Record


def worst_parts(record: Record) -> list[dict[str, Any]]:
    """Return the worst class, pseudo-group and known group of a run's model, as far as each is known.

    Each has `what`, `name`, `split`, `count`, `accuracy` and `interval`, the 95% interval of the accuracy.
    Pseudo-groups are known of validation samples only.
    """
    split = record.config.get("scored_on", "test")
    scores = record.metrics["test"]
    found = [{"what": "worst class", "split": split, **_lowest(scores["classes"])}]
    if record.val_partition is not None:
        parts = pseudo_groups(
            record.val_partition, record.predictions["val"], record.config["inputs"]["classes"]
        )
        found.append({"what": "worst pseudo-group", "split": "validation", **_lowest(parts)})
    if scores["groups"]:
        found.append({"what": "worst known group", "split": split, **_lowest(scores["groups"])})
    return found


def pseudo_groups(parts: Partition, predicted: np.ndarray, classes: list[str]) -> list[dict[str, Any]]:
    """Return the name, count, accuracy and 95% interval of every class's majority and minority.

    >>> from evenhand.core.partition import of_mask
    >>> [found] = pseudo_groups(of_mask([False, False], [0, 0]), np.array([0, 1]), ["cat"])
    >>> found["name"], found["count"], found["accuracy"]
    ('cat, majority', 2, 0.5)
    """
    found = []
    for label in parts.classes.tolist():
        for minority in (False, True):
            rows = (parts.labels == label) & parts.clustered & (parts.minority == minority)
            if not rows.any():
                continue
            hits, count = int((predicted[rows] == label).sum()), int(rows.sum())
            bounds = list(wilson_interval(hits, count))
            name = f"{classes[label]}, {'minority' if minority else 'majority'}"
            found.append({"name": name, "count": count, "accuracy": hits / count, "interval": bounds})
    return found


def _lowest(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return min(parts, key=lambda part: part["accuracy"])


def worst_table(record: Record) -> Table:
    """Return `worst_parts` and the accuracy of all samples, as a table."""
    scores, split = record.metrics["test"], record.config.get("scored_on", "test")
    count = sum(part["count"] for part in scores["classes"])
    hits = round(scores["accuracy"] * count)
    whole = {"name": "all samples", "count": count, "accuracy": hits / count, "split": split}
    rows = [{"what": "all", **whole, "interval": list(wilson_interval(hits, count))}, *worst_parts(record)]
    columns = ("measured on", "name", "split", "samples", "accuracy", "95% interval")
    cells = [
        (
            row["what"],
            row["name"],
            row["split"],
            f"{row['count']:,}",
            percents(row["accuracy"]),
            interval(row["interval"]),
        )
        for row in rows
    ]
    heads = [Column(name, words=name in columns[:3]) for name in columns]
    return Table(
        "",
        "Accuracy in percent",
        heads,
        [Section("", [dict(zip(columns, row, strict=True)) for row in cells])],
    )


def summary(record: Record) -> dict[str, Any]:
    """Return the scores that a tracker shows, by name."""
    scores = record.metrics["test"]
    found = {"accuracy": scores["accuracy"], "worst_class": scores["worst_class"]}
    for part in worst_parts(record):
        found[part["what"].replace(" ", "_").replace("-", "_")] = part["accuracy"]
    return {key: float(value) for key, value in found.items()}
