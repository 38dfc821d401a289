"""Which model to ship: both side by side on held-out samples, and a rule that needs no groups."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evenhand.audit.evidence import Evidence
from evenhand.audit.verdict import TOLERATED, Verdict, paired_change
from evenhand.core.metrics import wilson_interval

CHANCE = 0.05  # a gain on late samples that chance makes more often than that is none


@dataclass(frozen=True)
class Share:
    """A share of samples that a model gets right."""

    name: str
    count: int
    accuracy: float
    interval: tuple[float, float]


def share(name: str, correct: np.ndarray) -> Share:
    right, total = int(correct.sum()), len(correct)
    return Share(name, total, right / total, wilson_interval(right, total))


def shares(correct: np.ndarray, part: np.ndarray, names: tuple[str, ...]) -> list[Share]:
    """The accuracy of every class or group that has samples."""
    return [share(names[i], correct[part == i]) for i in np.unique(part).tolist()]


def scores(found: Evidence, predictions: dict[str, np.ndarray], part: str) -> dict[str, Any]:
    """One model on one part: accuracy, every class, every pseudo-group (validation), every true group."""
    correct = predictions[part] == found.y[part]
    classes = shares(correct, found.y[part], found.class_names)
    result: dict[str, Any] = {
        "accuracy": asdict(share("all", correct)),
        "worst_class": asdict(min(classes, key=lambda each: each.accuracy)),
        "classes": [asdict(each) for each in classes],
    }
    if part == "val":
        names = tuple(f"{name}, {kind}" for name in found.class_names for kind in ("early", "late"))
        late = found.val_late
        pseudo = shares(correct, 2 * found.y["val"] + late, names)
        result["pseudo_groups"] = [asdict(each) for each in pseudo]
        # Judged together: one class's late samples are often too few to say anything.
        result["late"] = asdict(share("late", correct[late])) if late.any() else None
        result["worst_pseudo_group"] = asdict(min(pseudo, key=lambda each: each.accuracy))
    if found.group is not None:
        groups = shares(correct, found.group[part], found.group_names)
        result["groups"] = [asdict(each) for each in groups]
        result["worst_group"] = asdict(min(groups, key=lambda each: each.accuracy))
        names = value_names(found)
        if names:  # more samples each than where a class is asked for, too
            values = shares(correct, found.group[part] % len(names), names)
            result["values"] = [asdict(each) for each in values]
            result["worst_value"] = asdict(min(values, key=lambda each: each.accuracy))
    return result


def value_names(found: Evidence) -> tuple[str, ...]:
    """Names of the group column's values, where the groups are its values within each class in turn.

    A task of one's own may number its groups otherwise; then there are none.
    """
    number = len(found.group_names) // len(found.class_names)
    values = [name.removeprefix(f"{found.class_names[0]}, ") for name in found.group_names[:number]]
    whole = tuple(f"{name}, {value}" for name in found.class_names for value in values)
    return tuple(f"{value}, all classes" for value in values) if whole == found.group_names else ()


def side_by_side(found: Evidence) -> dict[str, Any]:
    """Both models on validation and test samples."""
    models = {"baseline": dict(found.baseline), "balanced": dict(found.balanced)}
    return {
        key: {part: scores(found, predictions, part) for part in ("val", "test")}
        for key, predictions in models.items()
    }


def recommend(found: Evidence, verdict: Verdict) -> dict[str, Any]:
    """The model to ship and why; the balanced one only where there is a minority that it surely helps.

    Late samples are those that the baseline does badly on, so another model does better on some of them by
    chance alone. They count only once the verdict, which rests on training histories, says retrain.
    """
    change, error = paired_change(found.baseline["val"], found.balanced["val"], found.y["val"])
    better, worse, late = late_changes(found)
    facts = {"accuracy_change": change, "accuracy_error": error}
    facts |= {"late": late, "late_better": better, "late_worse": worse, "chance": sign_test(better, worse)}
    if verdict.advice == "leave it":
        return {"model": "baseline", "reason": "no minority was found that retraining could help", **facts}
    if verdict.advice == "look first":
        return {"model": "baseline", "reason": "first look at the late samples; see the verdict", **facts}
    turned, back = (f"{number:,}" if number else "none" for number in (better, worse))
    counts = f"balancing turns {turned} from wrong to right and {back} from right to wrong"
    if not better and not worse:
        counts = f"both get the same {int(unseen_late(found)[0].sum()):,} right"
    counts = f"of {late:,} late samples that the models had not seen, {counts}"
    if facts["chance"] > CHANCE:
        chance = ", which may be chance; more samples like them would tell" if better else ""
        return {"model": "baseline", "reason": f"{counts}{chance}", **facts}
    if change < -TOLERATED:
        lost = f"but costs {-100 * change:.1f} points of validation accuracy"
        return {"model": "baseline", "reason": f"{counts}, {lost}", **facts}
    gained = f"{100 * change:+.1f} points on all {len(found.y['val']):,} validation samples"
    return {"model": "balanced", "reason": f"{counts}; {gained}", **facts}


def late_changes(found: Evidence) -> tuple[int, int, int]:
    """Late samples that balancing turns from wrong to right, from right to wrong, and all of them."""
    before, after = unseen_late(found)
    return int((after & ~before).sum()), int((before & ~after).sum()), len(before)


def unseen_late(found: Evidence) -> tuple[np.ndarray, np.ndarray]:
    """Which late samples the model as collected and the balanced one get right, neither having seen them.

    Validation samples are too few by themselves; so the training samples count as well, each by the two
    models that were trained without its fold.
    """
    y = np.concatenate([found.y["train"], found.y["val"]])
    late = np.concatenate([found.late, found.val_late])
    before = np.concatenate([found.unseen.argmax(1), found.baseline["val"]]) == y
    after = np.concatenate([found.unseen_balanced.argmax(1), found.balanced["val"]]) == y
    return before[late], after[late]


def sign_test(better: int, worse: int) -> float:
    """How likely so many or more would be better, were better and worse equally likely.

    >>> sign_test(5, 0), sign_test(0, 0)
    (0.03125, 1.0)
    """
    total = better + worse
    ways, term = 0, math.comb(total, better)  # each from the one before: of 100,000 none is quick by itself
    for more in range(better, total + 1):
        ways += term
        term = term * (total - more) // (more + 1)
    return float(ways / 2**total)
