"""Which model to ship: both side by side on held-out samples, and a rule that needs no groups."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evenhand.audit.evidence import Evidence
from evenhand.audit.verdict import Verdict, paired_change
from evenhand.core.metrics import wilson_interval


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
    return result


def side_by_side(found: Evidence) -> dict[str, Any]:
    """Both models on validation and test samples."""
    models = {"baseline": dict(found.baseline), "balanced": dict(found.balanced)}
    return {
        key: {part: scores(found, predictions, part) for part in ("val", "test")}
        for key, predictions in models.items()
    }


def recommend(found: Evidence, verdict: Verdict) -> dict[str, Any]:
    """The model to ship and why; the balanced one only where there is a minority that it helps.

    Late validation samples are those that the baseline does badly on, so another model does better on them
    by chance alone. They count only once the verdict, which rests on training histories, says retrain.
    """
    late = found.val_late
    change, error = paired_change(found.baseline["val"], found.balanced["val"], found.y["val"])
    picked = {
        key: each["val"][late] for key, each in (("baseline", found.baseline), ("balanced", found.balanced))
    }
    gain = (
        paired_change(picked["baseline"], picked["balanced"], found.y["val"][late])[0] if late.any() else 0.0
    )
    facts = {"accuracy_change": change, "accuracy_error": error, "late_change": gain}
    if verdict.advice == "leave it":
        return {"model": "baseline", "reason": "no minority was found that retraining could help", **facts}
    if verdict.advice == "look first":
        return {"model": "baseline", "reason": "first look at the late samples; see the verdict", **facts}
    if gain < 0:
        reason = f"the balanced model is {-100 * gain:.0f} points worse on late validation samples"
        return {"model": "baseline", "reason": reason, **facts}
    reason = (
        f"{100 * gain:+.0f} points on the {int(late.sum())} validation samples that are learned late, "
        f"{100 * change:+.1f} on all {len(found.y['val'])}"
    )
    return {"model": "balanced", "reason": reason, **facts}
