"""The verdict: do a class's loss histories fall into two, or do its samples differ in difficulty only?

A class whose samples differ only in difficulty has one hump of loss histories. Two-means cuts it all the
same, and the cut explains 64% of the variance along its own axis if the hump is normal, 75% if it is flat.
Two separate humps exceed that. The thresholds were calibrated on digits with planted colours and measured
on others: docs/verdict.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenhand.audit.evidence import Evidence, late_samples
from evenhand.audit.labels import follow
from evenhand.core.partition import Partition, partition

CLIP = 3.0  # losses above so many times chance count as that: a few outliers must not make a hump
FLOOR, CLASS_FLOOR = 0.77, 0.85  # of the mean over classes, and of one class by itself
BASE, SPREAD = 0.70, 2.3  # few samples need more: BASE + SPREAD / sqrt(samples)
FEWEST = 3  # samples that may be called a minority, of one class or of all
MOST_DOUBTED = 0.5  # beyond this share of late samples with a doubtful label, they are no minority
ENOUGH = 20  # late samples, to judge that share
TOLERATED = 0.03  # validation accuracy that a better worst group may cost


@dataclass(frozen=True)
class ClassVerdict:
    """One class: how far its late samples stand apart."""

    name: str
    samples: int
    late: int
    gap: float  # share of the variance along the axis between the clusters that the cut explains, 0 to 1
    threshold: float  # what one hump of so many samples hardly ever exceeds
    clear: bool
    words: str


@dataclass(frozen=True)
class Verdict:
    """All classes, and what to do: "retrain", "look first" or "leave it"."""

    advice: str
    reasons: tuple[str, ...]
    strength: float  # mean gap of the classes, counted once each or by their late samples
    threshold: float
    late: int
    doubted: int  # late samples whose label is likely wrong
    doubts: tuple[str, ...]  # why retraining on the late samples may not help
    classes: tuple[ClassVerdict, ...]


def threshold(samples: int, floor: float = FLOOR) -> float:
    """The gap that one hump of so many samples hardly ever exceeds.

    >>> round(threshold(100), 2), threshold(5000)
    (0.93, 0.77)
    """
    return float(max(floor, min(BASE + SPREAD / max(samples, 1) ** 0.5, 1.0)))


def class_gaps(parts: Partition) -> np.ndarray:
    """For every class, the share of the margins' variance that its two clusters explain, (classes,)."""
    gaps = np.zeros(len(parts.classes))
    for number, label in enumerate(parts.classes):
        own = parts.labels == label
        margin, minority = parts.margin[own].astype(np.float64), parts.minority[own]
        total = margin.var() * len(margin)
        if minority.any() and total > 0:
            within = sum(margin[each].var() * each.sum() for each in (minority, ~minority))
            gaps[number] = 1 - within / total
    return gaps


def humps(losses: np.ndarray, labels: np.ndarray) -> tuple[Partition, np.ndarray]:
    """The clusters of losses in units of chance, extremes clipped, and every class's gap."""
    chance = np.log(max(len(np.unique(labels)), 2))
    parts = partition(np.minimum(losses, CLIP * chance), labels)
    return parts, class_gaps(parts)


def overall(gaps: np.ndarray, late: np.ndarray) -> float:
    """The mean gap of the classes, each counted once or by its late samples, whichever is more.

    One minority sample in most classes is not outvoted by the large cut of another class.

    >>> overall(np.array([0.9, 0.9, 0.75]), np.array([1, 1, 36]))
    0.85
    >>> overall(np.array([0.5, 0.9]), np.array([1, 81]))
    0.86
    """
    weights = np.sqrt(late)
    return float(max(gaps.mean(), weights @ gaps / max(weights.sum(), 1.0)))


def judge(found: Evidence) -> Verdict:
    """The verdict on every class and the advice for the whole."""
    parts, gaps = humps(found.losses, found.y["train"])
    late = late_samples(parts, found.losses)
    counts = np.array([int((late & (parts.labels == label)).sum()) for label in parts.classes])
    classes = tuple(
        _class(found.class_names[int(label)], int((parts.labels == label).sum()), int(count), float(gap))
        for label, count, gap in zip(parts.classes, counts, gaps, strict=True)
    )
    strength, needed = overall(gaps, counts), threshold(len(found.losses))
    clear = [each for each in classes if each.clear]
    doubted, total = int((follow(found).mislabelled & found.late).sum()), int(found.late.sum())
    doubts = (*_doubted(doubted, total), *_harm(found))
    figures = f"strength {strength:.2f}, threshold {needed:.2f}"
    unlearned = _unlearned(found)
    # Gaps know no direction: where the smaller parts are learned sooner, there is nothing late to repeat.
    if strength >= needed and min(counts.sum(), total) >= FEWEST:
        reason = f"late samples stand apart, all classes taken together ({figures})"
    elif len(clear) >= max(1, len(classes) / 20):
        names = ", ".join(each.name for each in clear[:5])
        reason = f"late samples stand apart in {len(clear)} of {len(classes)} classes: {names}"
    else:
        reason = "differences in difficulty explain the loss histories"
        if strength >= needed:
            reason = (
                f"the loss histories fall in two, but fewer than {FEWEST} samples are in a late, smaller part"
            )
        reasons = (f"{reason} ({figures})", *unlearned)
        return Verdict("leave it", reasons, strength, needed, total, doubted, doubts, classes)
    advice = "look first" if doubts else "retrain"
    reasons = (reason, *doubts, *unlearned)
    return Verdict(advice, reasons, strength, needed, total, doubted, doubts, classes)


def _class(name: str, samples: int, late: int, gap: float) -> ClassVerdict:
    needed = threshold(samples, CLASS_FLOOR)
    clear = gap >= needed and late >= FEWEST
    words = "clear" if clear else "weak" if gap >= FLOOR and late >= FEWEST else "none"
    return ClassVerdict(name, samples, late, gap, needed, clear, words)


def doubtful(doubted: int, late: int) -> bool:
    """Whether wrong labels explain most late samples."""
    return late >= ENOUGH and doubted > MOST_DOUBTED * late


def _doubted(doubted: int, late: int) -> tuple[str, ...]:
    """Wrong labels, or kinds not learned yet: late samples look like ordinary ones of another class."""
    if not doubtful(doubted, late):
        return ()
    return (
        f"{doubted} of {late} late samples look like ordinary samples of another class to a model that has "
        "not seen them: wrong labels, or kinds that the model cannot learn yet, explain them better than "
        "a minority",
    )


def _harm(found: Evidence) -> tuple[str, ...]:
    """What was repeated teaches the wrong thing: accuracy falls."""
    change, error = paired_change(found.baseline["val"], found.balanced["val"], found.y["val"])
    if change >= -TOLERATED or change >= -2 * error:
        return ()
    lost = f"the balanced model loses {-100 * change:.1f} points of validation accuracy"
    if len(only := np.unique(found.balanced["train"])) == 1:
        return (
            f"{lost}: its training failed, it says {found.class_names[int(only[0])]!r} of every training "
            "sample, so whether retraining helps is not known; another --model may learn",
        )
    return (f"{lost}: what was repeated does not generalise",)


def _unlearned(found: Evidence) -> tuple[str, ...]:
    """Histories of a model that has learned nothing show nothing, neither a minority nor its absence."""
    y = found.y["val"]
    right, most = float((found.baseline["val"] == y).mean()), float(np.bincount(y).max() / len(y))
    if right > most:
        return ()
    return (
        f"the model is right on {100 * right:.1f}% of the validation samples, where naming the largest class "
        f"would be on {100 * most:.1f}%: it has learned too little for its loss histories to tell; try "
        "another --model, more epochs or more data",
    )


def paired_change(before: np.ndarray, after: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """How much more often the second is right on the same samples, and the standard error of that.

    >>> paired_change(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), np.array([0, 1, 1, 1]))[0]
    0.25
    """
    difference = (after == y).astype(float) - (before == y).astype(float)
    return float(difference.mean()), float(difference.std() / max(len(y), 1) ** 0.5)
