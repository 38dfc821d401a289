"""write: an audit in, one self-contained HTML file out, to explore its samples without a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

import evenhand
from evenhand.report import document, explorer_data
from evenhand.report.explorer_input import (
    Audit,
    Interval,
    Pictures,
    Rows,
    Samples,
    Score,
    Texts,
    Verdict,
    check,
)
from evenhand.report.words import count, percent, points
from evenhand.training.store import write_bytes

__all__ = ["Audit", "Pictures", "Rows", "Samples", "Score", "Texts", "Verdict", "render", "write"]

STYLES = ("page.css", "explorer.css")
SCRIPTS = ("explorer_store.js", "explorer_plots.js", "explorer_list.js", "explorer.js")
MOST_LINES = 12  # classes or groups shown at once; the others unfold


@dataclass(frozen=True)
class Mark:
    """One model's accuracy in a chart, in percent of its width."""

    text: str
    interval: str
    x: str
    low: str
    high: str


@dataclass(frozen=True)
class Line:
    """One score of both models; a mark is None where it could not be measured."""

    name: str
    note: str
    count: str
    marks: tuple[Mark | None, Mark | None]
    change: str


@dataclass(frozen=True)
class ClassLine:
    """One class: its verdict, and how many of its samples are on the two lists."""

    position: int
    name: str
    total: int
    late: int
    mislabelled: int
    verdict: Verdict
    filled: float  # of the meter, 0 to 1
    needed: float  # where its tick stands, 0 to 1


def write(out: Path, audit: Audit) -> Path:
    """Write the page; the file is whole or absent."""
    # Names of files may hold bytes that are no text; they become question marks.
    write_bytes(Path(out), render(audit).encode(errors="replace"))
    return Path(out)


def render(audit: Audit) -> str:
    """The page as text."""
    check(audit)
    packed = explorer_data.pack(audit)
    style = "".join(map(document.resource, STYLES))
    script = '"use strict";\n(() => {\n' + "".join(map(document.resource, SCRIPTS)) + "})();\n"
    lines, groups = _class_lines(audit), _group_lines(audit)
    return (
        document.environment()
        .get_template("explorer.html")
        .render(
            audit=audit,
            scores=[_line(score) for score in audit.scores],
            groups=groups[:MOST_LINES],
            more_groups=groups[MOST_LINES:],
            lines=lines[:MOST_LINES],
            more_lines=lines[MOST_LINES:],
            triaged=[
                sum(each == kind for each in audit.samples.triage) for kind in ("minority", "mislabelled")
            ],
            notes=_notes(audit, packed),
            packed=packed,
            data=Markup(packed.data),
            pictures=Markup(packed.pictures),
            style=Markup(style),
            script=Markup(script),
            policy=document.policy(style, script),
            version=evenhand.__version__,
        )
    )


def _class_lines(audit: Audit) -> list[ClassLine]:
    """All classes, the strongest evidence first."""
    samples, num_classes = audit.samples, len(audit.class_names)
    labels, triage = np.asarray(samples.labels), np.asarray(samples.triage)
    totals, late, mislabelled = (
        np.bincount(labels[chosen], minlength=num_classes).tolist()
        for chosen in (
            slice(None),
            triage == "minority",
            triage == "mislabelled",
        )
    )
    lines = [
        ClassLine(i, audit.class_names[i], totals[i], late[i], mislabelled[i], each, *_meter(each))
        for i, each in enumerate(audit.verdicts)
    ]
    return sorted(lines, key=lambda line: (-line.verdict.strength, line.position))


def _meter(verdict: Verdict) -> tuple[float, float]:
    """How far a meter is filled and where its tick stands; it begins at what says nothing."""
    nothing = verdict.nothing
    filled, needed = (
        max(0.0, (each - nothing) / (1 - nothing)) for each in (verdict.strength, verdict.threshold or 0.0)
    )
    return filled, needed


def _group_lines(audit: Audit) -> list[Line]:
    """The true groups in their order; where they are too many to show at once those with a note, which stand
    for several, and then the worst.
    """
    groups = list(audit.groups)
    if len(groups) > MOST_LINES:
        groups.sort(key=lambda score: (not score.note, 1.0 if score.baseline is None else score.baseline))
    return [_line(score) for score in groups]


def _line(score: Score) -> Line:
    both = score.baseline is not None and score.balanced is not None
    return Line(
        name=score.name,
        note=score.note,
        count="" if score.num_samples is None else f"{score.num_samples:,}",
        marks=(
            _mark(score.baseline, score.baseline_interval),
            _mark(score.balanced, score.balanced_interval),
        ),
        change=points((score.balanced or 0.0) - (score.baseline or 0.0)).removesuffix(" points")
        if both
        else "–",
    )


def _mark(value: float | None, interval: Interval | None) -> Mark | None:
    if value is None:
        return None
    low, high = interval or (value, value)
    return Mark(
        text=percent(value),
        interval="" if interval is None else f"{percent(low)} to {percent(high)}",
        x=f"{100 * value:.2f}",
        low=f"{100 * low:.2f}",
        high=f"{100 * high:.2f}",
    )


def _notes(audit: Audit, packed: explorer_data.Packed) -> Sequence[str]:
    """What this page leaves out, so that nobody takes a part for the whole."""
    total, num_epochs = len(audit.samples.ids), np.shape(audit.samples.curves)[1]
    notes = []
    if packed.num_samples < total:
        notes.append(
            f"The page holds {packed.num_samples:,} of {count(total, 'sample')}: both triage lists, the "
            "boundary between the pseudo-groups and typical samples, from all classes in turns."
        )
    if isinstance(audit.media, Pictures) and packed.num_pictures < packed.num_samples:
        notes.append(
            f"It holds pictures of {count(packed.num_pictures, 'sample')}: first those of both triage lists "
            "and of the boundary, from all classes in turns."
        )
    if isinstance(audit.media, Rows) and packed.num_columns < len(audit.media.columns):
        notes.append(f"It holds the first {packed.num_columns} of {len(audit.media.columns)} columns.")
    if packed.num_epochs < num_epochs:
        notes.append(f"Of {num_epochs} epochs, {packed.num_epochs} at equal distances are drawn.")
    return notes
