"""The answer in sentences, for the terminal and the page."""

from __future__ import annotations

from typing import Any

from evenhand.audit.triage import Triage
from evenhand.audit.verdict import FEWEST, FLOOR, ClassVerdict, Verdict

ADVICE = {
    "retrain": "Retrain: a minority is learned later than the rest.",
    "look first": "Look first: some samples stand apart, but it is not sure that retraining on them helps.",
    "leave it": "Leave it: there is no sign of a minority that is learned later.",
}


def advice_sentence(verdict: Verdict) -> str:
    """What to do, in one sentence."""
    return ADVICE[verdict.advice]


def class_advice(verdict: ClassVerdict) -> str:
    """What one class's gap says."""
    if verdict.words == "clear":
        return "Some of its samples are learned later than the rest."
    if verdict.words == "weak":
        return "Some may be learned later than the rest; by itself it is not sure."
    if verdict.gap >= FLOOR:
        return f"Fewer than {FEWEST} of its samples are learned late."
    return "By itself it shows no minority."


def list_counts(triage: Triage) -> str:
    """How many samples are on the two lists."""
    minority, mislabelled = (len(triage.rows(kind)) for kind in ("minority", "mislabelled"))
    return (
        f"Of {len(triage.verdict):,} training samples {_number(minority)} {'are' if minority > 1 else 'is'} "
        f"likely of a minority, {_number(mislabelled)} likely mislabelled."
    )


def _number(count: int) -> str:
    return f"{count:,}" if count else "none"


def list_notes(triage: Triage) -> list[str]:
    """What the two lists do not say by themselves."""
    notes = []
    if len(triage.rows("mislabelled")):
        notes.append(
            "A sample that is called likely mislabelled looks like an ordinary sample of another class. It "
            "may as well be of a kind that the model cannot learn yet. Look before you change its label."
        )
    if triage.hidden.any():
        notes.append(
            f"{int(triage.hidden.sum()):,} of the likely minority were found by a second split, after the "
            "likely mislabelled had been set aside; the balanced set does not repeat them."
        )
    return notes


def recommendation(ship: dict[str, Any], verdict: Verdict) -> str:
    """Which model to ship, and why."""
    if ship["model"] == "balanced":
        return f"Ship the balanced model: {ship['reason']}."
    name, reason = "the model trained on the data as they are", ship["reason"]
    if verdict.advice != "retrain":
        return f"Ship {name}: {reason}."
    # Said with the advice in mind, which it would seem to contradict otherwise.
    first = f"For now ship {name}; the balanced one is a first try at retraining."
    return f"{first} {reason[:1].upper()}{reason[1:]}."
