"""Advice: retrain on the balanced set, nothing found, or cannot tell; and which model to ship.

All counts are of training samples, each predicted by models that have not seen it. First, the property that
alone predicts most labels is tested: of the samples that contradict it, does a model that does not see it
predict more correctly? Without a proven shortcut, three numbers decide:

- The *gain*: the change of accuracy with pseudo-groups even, so that late samples and the others count the
  same. A balanced model that repeats noise loses as much on the others as it gains on late samples.
- The *information*: among samples to which the first model gives the same answer with the same confidence,
  does the second model's answer still tell the label? This is a Cochran-Mantel-Haenszel test.
- The *strength*, for images and embeddings: how far the loss histories of each class fall into two.

Accuracy on data as collected decides nothing by itself: it falls wherever a shortcut is dropped.
docs/verdict.md has the error rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from evenhand.audit.evidence import Evidence, late_samples
from evenhand.audit.labels import learned, wrong_labels
from evenhand.core.metrics import wilson_interval
from evenhand.core.partition import Partition, partition

AIMS = ("worst-group", "accuracy")
CLIP = 3.0  # losses are clipped at so many times chance, since a few outliers must not make a hump
FLOOR, CLASS_FLOOR = 0.77, 0.85  # of the strength over all classes, and of one class by itself
BASE, SPREAD = 0.70, 2.3  # fewer samples have a higher threshold: BASE + SPREAD / sqrt(samples)
FEWEST_LATE = 3  # samples that may be called a minority, of one class or of all
FEWEST_ERRORS = 10  # of the first model; with fewer, no test of their correction has power
LIKELY, POSSIBLE, SURE, CERTAIN = 0.84, 1.28, 1.645, 2.33  # standard errors: 20%, 10%, 5%, 1% by chance
CLEARLY, HARDLY = 0.05, 0.03  # by which the strength exceeds its threshold
MOST_DOUBTED = 0.1  # of all labels that may look wrong
MOST_LOST = 0.2  # late samples lost per corrected one, where only the gain indicates a minority
LEAST_GAIN = 0.05  # of the samples that a shortcut contradicts
FEWEST_AGAINST = 6  # samples that a property contradicts; fewer cannot be tested
BINS = 5  # of the first model's confidence, within each of its answers


@dataclass(frozen=True)
class Change:
    """An accuracy of both models on the same samples."""

    before: float
    after: float
    error: float  # standard error of the difference

    @property
    def gain(self) -> float:
        return self.after - self.before

    @property
    def z(self) -> float:
        return self.gain / self.error if self.error else 0.0


@dataclass(frozen=True)
class Information:
    """A test of whether the second answer predicts the label among samples with the same first answer."""

    z: float
    odds_ratio: float

    @property
    def chance(self) -> float:
        """The one-sided probability of so large a statistic if the second answer tells nothing."""
        return math.erfc(self.z / math.sqrt(2)) / 2


@dataclass(frozen=True)
class ShortcutTest:
    """The accuracies, on samples that a property contradicts, of models with and without that property."""

    name: str
    words: str
    accuracy: float  # of the property alone
    count: int  # training samples that it contradicts
    right: int  # of these, by the model of the data as collected
    right_without: int  # by a model that does not see the property, or else by the balanced one
    z: float  # of the difference
    seen: bool  # whether the second model was the balanced one

    @property
    def gain(self) -> float:
        return (self.right_without - self.right) / max(self.count, 1)

    @property
    def chance(self) -> float:
        """The one-sided probability of so large a difference by chance."""
        return math.erfc(self.z / math.sqrt(2)) / 2

    @property
    def sentence(self) -> str:
        other = "after balancing" if self.seen else "without seeing it"
        return (
            f"of the {self.count:,} samples that contradict {self.words}, the model predicts {self.right:,} "
            f"correctly, and {other} {self.right_without:,}"
        )


def shortcut_test(found: Evidence) -> ShortcutTest | None:
    """Return McNemar's test of the property that alone predicts most labels; None if there is none."""
    known = found.shortcut
    if known is None:
        return None
    second = found.unseen_balanced if found.unseen_without is None else found.unseen_without
    y = found.y["train"]
    before, after = (each.argmax(1)[known.against] == y[known.against] for each in (found.unseen, second))
    changed = int((before != after).sum())
    right, without = int(before.sum()), int(after.sum())
    z = (without - right) / math.sqrt(changed + 1)
    return ShortcutTest(
        known.name, known.words, known.accuracy, int(known.against.sum()), right, without, z,
        found.unseen_without is None,
    )  # fmt: skip


@dataclass(frozen=True)
class ClassEvidence:
    """The evidence of one class: how far its late samples stand apart, and what balancing does to them."""

    name: str
    samples: int
    late: int
    mended: int  # late samples that turn from wrong to right
    lost: int  # other samples that turn from right to wrong
    gap: float  # share of the variance along the axis between the clusters that the cut explains, 0 to 1
    threshold: float  # what one hump of so many samples hardly ever exceeds
    words: str  # "clear", "weak" or "none"


@dataclass(frozen=True)
class Judgement:
    """The advice with its evidence in numbers."""

    advice: str  # "retrain", "nothing found" or "cannot tell"
    model: str  # the one to ship: "baseline" or "balanced"
    aim: str
    reasons: tuple[str, ...]
    late: int
    late_mended: int
    late_lost: int
    others_mended: int
    others_lost: int
    even: Change
    collected: Change
    information: Information
    strength: float
    threshold: float
    classes: tuple[ClassEvidence, ...]
    shortcut: ShortcutTest | None = None

    @property
    def proven(self) -> bool:
        """Whether the advice rests on a property that has a name."""
        test = self.shortcut
        return self.advice == "retrain" and test is not None and test.z > CERTAIN and test.gain > LEAST_GAIN

    def minority(self, found: Evidence) -> np.ndarray:
        """Return the training samples of the minority: those that contradict the shortcut, or late ones."""
        return found.shortcut.against if self.proven and found.shortcut is not None else found.late

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for summary.json."""
        derived = {"even": self.even.z, "collected": self.collected.z}
        result = asdict(self) | {name: asdict(getattr(self, name)) | {"z": z} for name, z in derived.items()}
        return result | {"information": asdict(self.information) | {"chance": self.information.chance}}


def judge(found: Evidence, aim: str = "worst-group") -> Judgement:
    """Return the advice with its evidence, overall and for every class."""
    if aim not in AIMS:
        raise ValueError(f"--aim must be {' or '.join(AIMS)}, got {aim!r}")
    y, late = found.y["train"], found.late
    before, after = found.unseen.argmax(1) == y, found.unseen_balanced.argmax(1) == y
    mended, lost = after & ~before, before & ~after
    counts = [int((change & part).sum()) for part in (late, ~late) for change in (mended, lost)]
    even, collected = even_change(before, after, late, y), paired_change(before, after)
    information = conditional_information(found.unseen, found.unseen_balanced, y)
    parts, gaps = humps(found.losses, y)
    apart = late_samples(parts, found.losses)
    sizes = np.array([int((apart & (y == label)).sum()) for label in parts.classes])
    strength, needed = overall(gaps, sizes), threshold(len(y))
    # Gaps have no direction: if the smaller parts are learned sooner, there are no late samples to repeat.
    excess = strength - needed if min(sizes.sum(), late.sum()) >= FEWEST_LATE else -1.0
    test = shortcut_test(found)
    losing = _losing(found, before, after)
    advice, reason = advise(found, even, information, excess, counts[:2], losing, test)
    better = advice == "retrain" and (aim == "worst-group" or collected.gain >= 0)
    classes = tuple(
        _class(found.class_names[int(label)], y == label, late, mended, lost, float(gap))
        for label, gap in zip(parts.classes, gaps, strict=True)
    )
    judged = Judgement(
        advice=advice,
        model="balanced" if better else "baseline",
        aim=aim,
        reasons=(),
        late=int(late.sum()),
        late_mended=counts[0],
        late_lost=counts[1],
        others_mended=counts[2],
        others_lost=counts[3],
        even=even,
        collected=collected,
        information=information,
        strength=strength,
        threshold=needed,
        classes=classes,
        shortcut=test,
    )
    return replace(judged, reasons=(reason, *evidence_sentences(judged)))


def advise(
    found: Evidence,
    even: Change,
    information: Information,
    excess: float,
    late_changes: Sequence[int],
    losing: str,
    test: ShortcutTest | None = None,
) -> tuple[str, str]:
    """Return the advice and its main reason.

    excess: The excess of the strength over its threshold.
    late_changes: The numbers of late samples that are corrected and that are lost.
    losing: A class that loses while the others gain; empty if there is none.
    test: The test of the property that alone predicts most labels; None if there is no such property.
    """
    y = found.y["train"]
    errors = int((found.unseen.argmax(1) != y).sum())
    if not learned(found.unseen, y):
        right, largest = (found.unseen.argmax(1) == y).mean(), np.bincount(y).max() / len(y)
        return "cannot tell", (
            f"the model predicts {100 * right:.1f}% of the samples that it had not seen, and the largest "
            f"class has {100 * largest:.1f}%: it has learned too little; try another --model, more epochs or "
            "more data"
        )
    if len(only := np.unique(found.balanced["train"])) == 1:
        return "cannot tell", (
            f"the training of the balanced model failed: it predicts {found.class_names[int(only[0])]!r} for "
            "every training sample; another --model may learn"
        )
    if test is not None and test.z > CERTAIN and test.gain > LEAST_GAIN:
        return "retrain", f"{test.sentence}; by chance alone, p = {test.chance:.1g}"
    if test is not None and (test.z > POSSIBLE or test.count < FEWEST_AGAINST):
        return "cannot tell", f"{test.sentence}; these are too few to be certain"
    if found.direct:  # all properties of the data are known, and none is a shortcut by itself
        steady = late_changes[1] <= MOST_LOST * late_changes[0]
        if even.z > CERTAIN and information.z > 0 and steady and not losing:
            return "retrain", "late samples gain more from balancing than the others lose"
        if even.z > SURE and information.z > 0 and not losing:
            return "cannot tell", "balancing may help late samples; more samples would tell"
        return "nothing found", "no property is a shortcut, and late samples do not gain from balancing"
    if errors < FEWEST_ERRORS:
        return "cannot tell", (
            f"the model gets {errors} of {len(y):,} samples wrong that it had not seen, too few to test "
            "whether another model mends them"
        )
    return _advise_by_histories(found, even, information, excess, late_changes, losing)


def _advise_by_histories(
    found: Evidence,
    even: Change,
    information: Information,
    excess: float,
    late_changes: Sequence[int],
    losing: str,
) -> tuple[str, str]:
    """Return the advice where shortcuts may have no named property, as in images and embeddings."""
    y, informed = found.y["train"], information.z > -SURE
    steady = late_changes[1] <= MOST_LOST * late_changes[0]
    clearly = even.z > LIKELY and excess >= CLEARLY
    certainly = even.z > CERTAIN and (excess >= 0 or (informed and steady))
    if (clearly or certainly) and not losing:
        doubted = int(wrong_labels(found, minority=False).sum())
        if doubted > MOST_DOUBTED * len(y):
            return "cannot tell", (
                f"{doubted:,} of {len(y):,} labels look wrong, too many to tell a minority from them; mend "
                "the labels first"
            )
        apart = "stand clearly apart, and they" if clearly else "certainly"
        return "retrain", f"late samples {apart} gain more from balancing than the others lose"
    if excess >= HARDLY and even.z > -SURE:
        return "cannot tell", "late samples stand apart, but whether balancing helps them is not certain"
    if losing:
        return "nothing found", f"balancing costs the class {losing!r} more than its late samples gain"
    if even.z > POSSIBLE and informed:
        return "cannot tell", "balancing may help late samples; more samples would tell"
    if even.z > POSSIBLE:
        return "nothing found", (
            "balancing trades errors on late samples for errors on others that the first model was as unsure "
            "of: the late samples are hard, not a minority"
        )
    return "nothing found", "late samples do not gain more from balancing than the others lose"


# -- the three numbers -----------------------------------------------------------------------------------


def even_change(before: np.ndarray, after: np.ndarray, late: np.ndarray, y: np.ndarray) -> Change:
    """Return the change of the mean accuracy over pseudo-groups: each class's late and other samples."""
    sides = [_mean_over_classes(before[part], after[part], y[part]) for part in (late, ~late) if part.any()]
    if len(sides) < 2:
        return Change(float(before.mean()), float(after.mean()), 1.0)
    few, most = sides
    return Change(
        (few.before + most.before) / 2, (few.after + most.after) / 2, math.hypot(few.error, most.error) / 2
    )


def _mean_over_classes(before: np.ndarray, after: np.ndarray, y: np.ndarray) -> Change:
    """Return the change of the mean class accuracy. Small classes borrow the overall rate of changes."""
    present, y = np.unique(y, return_inverse=True)
    sizes = np.bincount(y)
    right = [np.bincount(y, each) / sizes for each in (before, after)]
    rate = ((before != after).sum() + 1) / len(y)
    changed = (np.bincount(y, before != after) + rate) / (sizes + 1)
    variance = np.maximum(changed - (right[1] - right[0]) ** 2, rate / 4) / sizes
    error = math.sqrt(variance.sum()) / len(present)
    return Change(float(right[0].mean()), float(right[1].mean()), error)


def _losing(found: Evidence, before: np.ndarray, after: np.ndarray) -> str:
    """Return the class with the surest loss, with equal pseudo-groups; empty if it may be chance."""
    y, late = found.y["train"], found.late
    changes = [even_change(before[y == k], after[y == k], late[y == k], y[y == k]) for k in np.unique(y)]
    lowest = int(np.argmin([change.z for change in changes]))
    return found.class_names[int(np.unique(y)[lowest])] if changes[lowest].z < -CERTAIN else ""


def paired_change(before: np.ndarray, after: np.ndarray) -> Change:
    """Return the accuracies of two models on the same samples, given which each gets right.

    One changed sample is added to the variance, because no change among few samples proves little.

    >>> paired_change(np.array([1, 0, 0, 1], bool), np.array([1, 1, 0, 1], bool)).gain
    0.25
    """
    gain, changed = float(after.mean() - before.mean()), int((before != after).sum())
    variance = (changed + 1) / len(before) - gain**2
    return Change(float(before.mean()), float(after.mean()), math.sqrt(max(variance, 0) / len(before)))


def conditional_information(first: np.ndarray, second: np.ndarray, y: np.ndarray) -> Information:
    """Return the Cochran-Mantel-Haenszel test of the second model's answers against the labels.

    The probabilities are (samples, classes). A stratum contains the samples with the same answer and similar
    confidence of the first model. For each other class, a table per stratum counts whether the second model
    names that class and whether it is the label.
    """
    answer, other = first.argmax(1), second.argmax(1)
    observed = expected = variance = 0.0
    discordant = np.zeros(2)
    for stratum in strata(first):
        own, size = int(answer[stratum[0]]), len(stratum)
        for name in np.unique(other[stratum]):
            if name == own or size < 2:
                continue
            says, is_so = other[stratum] == name, y[stratum] == name
            both, row, column = int((says & is_so).sum()), int(says.sum()), int(is_so.sum())
            observed += both
            expected += row * column / size
            variance += row * column * (size - row) * (size - column) / (size**2 * (size - 1))
            discordant += [both * (size - row - column + both) / size, (row - both) * (column - both) / size]
    if variance == 0:
        return Information(0.0, 1.0)
    distance = observed - expected
    z = math.copysign(max(abs(distance) - 0.5, 0.0), distance) / math.sqrt(variance)
    return Information(z, float((discordant[0] + 0.5) / (discordant[1] + 0.5)))


def strata(first: np.ndarray) -> list[np.ndarray]:
    """Return the samples of each answer, in BINS of equal size by the confidence of the answer."""
    answer, confidence = first.argmax(1), first.max(1)
    result = []
    for label in np.unique(answer):
        rows = np.flatnonzero(answer == label)
        result += np.array_split(rows[np.argsort(confidence[rows], kind="stable")], BINS)
    return [rows for rows in result if len(rows)]


def threshold(samples: int, floor: float = FLOOR) -> float:
    """Return the gap that one hump of so many samples hardly ever exceeds.

    >>> round(threshold(100), 2), threshold(5000)
    (0.93, 0.77)
    """
    return float(max(floor, min(BASE + SPREAD / max(samples, 1) ** 0.5, 1.0)))


def class_gaps(parts: Partition) -> np.ndarray:
    """Return the share of the margins' variance that the two clusters of each class explain, (classes,)."""
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
    """Return the clusters of losses, clipped at CLIP times chance, and the gap of every class."""
    chance = np.log(max(len(np.unique(labels)), 2))
    parts = partition(np.minimum(losses, CLIP * chance), labels)
    return parts, class_gaps(parts)


def overall(gaps: np.ndarray, late: np.ndarray) -> float:
    """Return the mean gap of the classes, weighted equally or by their late samples, whichever is larger.

    The weights are square roots of late samples. One minority sample in most classes is not outvoted by the
    large cut of another class.

    >>> overall(np.array([0.9, 0.9, 0.75]), np.array([1, 1, 36]))
    0.85
    >>> overall(np.array([0.5, 0.9]), np.array([1, 81]))
    0.86
    """
    weights = np.sqrt(late)
    return float(max(gaps.mean(), weights @ gaps / max(weights.sum(), 1.0)))


def _class(
    name: str, own: np.ndarray, late: np.ndarray, mended: np.ndarray, lost: np.ndarray, gap: float
) -> ClassEvidence:
    samples, count = int(own.sum()), int((own & late).sum())
    needed = threshold(samples, CLASS_FLOOR)
    words = "clear" if gap >= needed else "weak" if gap >= FLOOR else "none"
    return ClassEvidence(
        name, samples, count, int((own & late & mended).sum()), int((own & ~late & lost).sum()), gap, needed,
        words if count >= FEWEST_LATE else "none",
    )  # fmt: skip


# -- the answer in sentences -----------------------------------------------------------------------------

HEADLINES = {
    "retrain": "Retrain: a minority is learned later than the rest, and balancing helps it.",
    "nothing found": "Nothing found: no minority that balancing would help.",
    "cannot tell": "Cannot tell: the evidence is not sufficient.",
}


def evidence_sentences(judged: Judgement) -> list[str]:
    """Return sentences on the counts and the three numbers."""
    even, collected, information = judged.even, judged.collected, judged.information
    low, high = (100 * (even.gain + side * 1.96 * even.error) for side in (-1, 1))
    tells = "tells more about the label" if information.z > SURE else "tells nothing more about the label"
    tells = "misleads" if information.z < -SURE else tells
    return [
        f"of {judged.late:,} late samples, the balanced model mends {judged.late_mended:,} and loses "
        f"{judged.late_lost:,}; of the others, it mends {judged.others_mended:,} and loses "
        f"{judged.others_lost:,} (neither model had seen them)",
        f"accuracy with late samples and others even: {_both(even)} ({100 * even.gain:+.1f} points, 95% "
        f"interval {low:+.1f} to {high:+.1f}); as collected: {_both(collected)}",
        f"where the first model gives the same answer with the same confidence, the second model's answer "
        f"{tells} (odds ratio {information.odds_ratio:.1f}, p = {information.chance:.2g})",
        f"loss histories fall into two with a strength of {judged.strength:.2f}; one hump hardly ever "
        f"exceeds {judged.threshold:.2f}",
    ]


def _both(change: Change) -> str:
    return f"{100 * change.before:.1f}% → {100 * change.after:.1f}%"


def class_advice(evidence: ClassEvidence) -> str:
    """Return what the loss histories of one class show."""
    if evidence.words == "clear":
        return "Some of its samples are learned later than the rest."
    if evidence.words == "weak":
        return "Some may be learned later than the rest. This class alone is not sufficient evidence."
    if evidence.gap >= FLOOR:
        return f"Fewer than {FEWEST_LATE} of its samples are learned late."
    return "By itself it shows no minority."


def recommendation(judged: Judgement) -> str:
    """Return which model to ship, and why."""
    if judged.advice != "retrain":
        return "Ship the model trained on the data as collected."
    change = f"accuracy as collected changes by {100 * judged.collected.gain:+.1f} points"
    if judged.model == "balanced":
        return f"Ship the balanced model: it is better for the late samples; {change}."
    return (
        "Ship the model trained on the data as collected, since the aim is accuracy: with the balanced "
        f"model, {change}. For the worst group (--aim worst-group), ship the balanced model."
    )


def sentences(judged: Judgement, shortcut: str) -> tuple[str, ...]:
    """Return sentences on the shortcut, if it has a name, on what to do, and on how sure that is."""
    return tuple(each for each in (shortcut, recommendation(judged), judged.reasons[0]) if each)


# -- both models side by side ----------------------------------------------------------------------------


def shares(correct: np.ndarray, part: np.ndarray, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the accuracy of every class or group that has samples, with its interval."""
    result = []
    for number in np.unique(part).tolist():
        own = correct[part == number]
        right, total = int(own.sum()), len(own)
        interval = wilson_interval(right, total)
        result.append(
            {"name": names[number], "count": total, "accuracy": right / total, "interval": interval}
        )
    return result


def _worst(lines: list[dict[str, Any]]) -> dict[str, Any]:
    return min(lines, key=lambda line: float(line["accuracy"]))


def scores(found: Evidence, predictions: dict[str, np.ndarray], part: str) -> dict[str, Any]:
    """Return one model's accuracies on one split: overall, by class, by pseudo-group and by true group.

    Pseudo-groups are known for validation samples only.
    """
    y, correct = found.y[part], predictions[part] == found.y[part]
    everything = np.zeros(len(y), dtype=np.int64)
    classes = shares(correct, y, found.class_names)
    result: dict[str, Any] = {
        "accuracy": shares(correct, everything, ("all",))[0],
        "worst_class": _worst(classes),
        "classes": classes,
    }
    if part == "val":
        late = found.val_late
        names = tuple(f"{name}, {kind}" for name in found.class_names for kind in ("early", "late"))
        pseudo = shares(correct, 2 * y + late, names)
        # They are judged together, because one class often has too few late samples.
        together = shares(correct[late], everything[late], ("late",))
        result |= {"pseudo_groups": pseudo, "worst_pseudo_group": _worst(pseudo)}
        result["late"] = together[0] if together else None
    if found.group is not None:
        groups = shares(correct, found.group[part], found.group_names)
        result |= {"groups": groups, "worst_group": _worst(groups)}
        if names := value_names(found):  # more samples each than where a class is asked for, too
            values = shares(correct, found.group[part] % len(names), names)
            result |= {"values": values, "worst_value": _worst(values)}
    return result


def value_names(found: Evidence) -> tuple[str, ...]:
    """Return the names of the group column's values, if the groups are its values within each class in turn.

    A user's task may number its groups differently. Then the result is empty.
    """
    number = len(found.group_names) // len(found.class_names)
    values = [name.removeprefix(f"{found.class_names[0]}, ") for name in found.group_names[:number]]
    whole = tuple(f"{name}, {value}" for name in found.class_names for value in values)
    return tuple(f"{value}, all classes" for value in values) if whole == found.group_names else ()


def side_by_side(found: Evidence) -> dict[str, Any]:
    """Return the scores of both models on validation and test samples."""
    models = {"baseline": dict(found.baseline), "balanced": dict(found.balanced)}
    return {
        key: {part: scores(found, predictions, part) for part in ("val", "test")}
        for key, predictions in models.items()
    }
