"""What a notebook shows of a partition, of a fit's result and of an audit: HTML summaries and plots."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from evenhand.core.partition import Partition
from evenhand.report import palette
from evenhand.report.render import Table
from evenhand.report.worst import pseudo_groups, worst_table
from evenhand.training.record import Record

MAJORITY, MINORITY, SOFT = (palette.THEMES["light"][name] for name in ("majority", "minority", "soft"))
MOST = 20  # classes that are shown


class Plot(Figure):
    """A figure that a notebook shows, also where pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def table_html(heads: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """Return an HTML table without styles of its own, so that it looks as the notebook's other tables do.

    >>> table_html(["class"], [["<cat>"]])
    '<table><thead><tr><th>class</th></tr></thead><tbody><tr><td>&lt;cat&gt;</td></tr></tbody></table>'
    """
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def partition_html(parts: Partition) -> str:
    """Return a table of the classes of a partition: their sizes and how clearly they were split."""
    rows = [
        (label, f"{large:,}", f"{small:,}", parts.unsplit.get(label, f"{share:.2f}"))
        for label, (large, small), share in zip(
            parts.classes.tolist(), parts.sizes.tolist(), parts.separation.tolist(), strict=True
        )
    ]
    more = f", {MOST} of {len(rows)} classes" if len(rows) > MOST else ""
    held_out = int((~parts.clustered).sum())
    caption = (
        f"Partition of {len(parts.labels):,} samples{f', {held_out:,} held out' if held_out else ''}{more}"
    )
    return table_html(("class", "majority", "minority", "separation"), rows[:MOST], caption)


def plot_partition(parts: Partition) -> Figure:
    """Plot the sizes of every class's majority and minority, and the margins of the samples of both."""
    figure = Plot(figsize=(9, 1.2 + 0.35 * min(max(len(parts.classes), 4), MOST)), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = [str(label) for label in parts.classes.tolist()[:MOST]]
    large, small = parts.sizes[:MOST].T
    left.barh(names, large, color=MAJORITY, label="majority")
    left.barh(names, small, left=large, color=MINORITY, label="minority")
    left.invert_yaxis()
    left.set(xlabel="samples", ylabel="class")
    left.legend()
    bins = np.linspace(-1.5, 1.5, 61)
    for chosen, color in ((parts.clustered & ~parts.minority, MAJORITY), (parts.minority, MINORITY)):
        right.hist(parts.margin[chosen].clip(-1.5, 1.5), bins=bins, color=color)
    right.set(xlabel="margin (above 0: learned late)", ylabel="samples", yscale="log")
    return figure


def runs_html(records: Sequence[Record], parts: Partition | None) -> str:
    """Return the worst class, pseudo-group and known group of every run's model, then the partition."""
    tables = [_table(worst_table(record), f"{record.method}: accuracy in percent") for record in records]
    return "".join([*tables, *([] if parts is None else [partition_html(parts)])])


def plot_runs(records: Sequence[Record]) -> Figure:
    """Plot the accuracy of every class, pseudo-group or known group under every run's model."""
    shown = {record.method: _parts(record) for record in records}
    names = list(dict.fromkeys(part["name"] for parts in shown.values() for part in parts))[: 2 * MOST]
    figure = Plot(figsize=(7, 1.2 + 0.4 * len(names)), layout="constrained")
    axes = figure.subplots()
    for number, (method, parts) in enumerate(shown.items()):
        rows = [part for part in parts if part["name"] in names]
        shift = 0.15 * (number - (len(shown) - 1) / 2)
        accuracy = np.array([part["accuracy"] for part in rows])
        bounds = np.abs(np.array([part["interval"] for part in rows]).T - accuracy)
        height = [names.index(part["name"]) + shift for part in rows]
        look = palette.look(method)
        axes.errorbar(
            accuracy, height, xerr=bounds, fmt=look.marker, color=look.light, capsize=3, label=method
        )
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel="accuracy, 95% intervals", xlim=(-0.02, 1.02))
    axes.legend()
    return figure


def audit_html(summary: dict[str, Any]) -> str:
    """Return the answer of an audit: which model to ship, how many samples were listed, and its sentences."""
    triage = summary["triage"]
    rows = [
        ("recommended model", summary["ship"]["model"]),
        ("learned late", f"{triage['minority']:,}"),
        ("likely mislabeled", f"{triage['mislabelled']:,}"),
        *(("", sentence) for sentence in summary["sentences"]),
    ]
    return table_html(("audit", str(summary["data"]["source"])), rows)


def _parts(record: Record) -> list[dict[str, Any]]:
    if record.metrics["test"]["groups"]:
        return list(record.metrics["test"]["groups"])
    if record.val_partition is not None:
        classes = record.config["inputs"]["classes"]
        return pseudo_groups(record.val_partition, record.predictions["val"], classes)
    return list(record.metrics["test"]["classes"])


def _table(table: Table, caption: str) -> str:
    rows = [[cell.text for cell in row] for section in table.sections for row in table.cells(section)]
    return table_html([column.name for column in table.columns], rows, caption)
