"""What the page and the terminal say of an audit is what the audit found."""

from __future__ import annotations

import dataclasses

import pytest
from made_evidence import made

from evenhand.audit.choice import recommend
from evenhand.audit.triage import sort_out
from evenhand.audit.verdict import CLASS_FLOOR, ClassVerdict, judge
from evenhand.audit.words import class_advice, list_counts, recommendation


def of_class(words: str, gap: float, late: int) -> ClassVerdict:
    return ClassVerdict("cat", 400, late, gap, CLASS_FLOOR, words == "clear", words)


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        (of_class("clear", 0.9, 5), "Some of its samples are learned later"),
        (of_class("weak", 0.8, 5), "by itself it is not sure"),
        (of_class("none", 0.9, 2), "Fewer than 3 of its samples are learned late."),  # too few, not too weak
        (of_class("none", 0.7, 5), "By itself it shows no minority."),  # all classes together may
    ],
)
def test_a_class_says_why(verdict: ClassVerdict, says: str) -> None:
    assert says in class_advice(verdict)


def test_both_lists_are_counted() -> None:
    found = made(apart=0.05)
    triage = sort_out(found, judge(found))
    assert (
        list_counts(triage) == "Of 800 training samples 40 are likely of a minority, none likely mislabelled."
    )
    lists = triage.verdict.copy()
    lists[:] = ""
    lists[:3] = ["minority", "mislabelled", "mislabelled"]
    one = dataclasses.replace(triage, verdict=lists)
    assert list_counts(one) == "Of 800 training samples 1 is likely of a minority, 2 likely mislabelled."


def test_a_model_is_recommended_with_what_balancing_changed() -> None:
    found = made(apart=0.05)
    wrong = found.unseen.copy()
    wrong[:3] = wrong[:3, ::-1]
    few = made(apart=0.05, unseen=wrong, unseen_balanced=found.unseen, val_losses=0 * found.val_losses)
    verdict = judge(few)
    said = recommendation(recommend(few, verdict), verdict)
    assert verdict.advice == "retrain"  # which the words must not seem to contradict
    assert said.startswith(
        "For now ship the model trained on the data as they are; the balanced one is a first try at "
        "retraining. Of 40 late samples that the models had not seen, "
    )
    assert said.endswith(
        "turns 3 from wrong to right and none from right to wrong, which may be chance; "
        "more samples like them would tell."
    )
    same = made(apart=0.05, unseen=wrong, unseen_balanced=wrong, val_losses=0 * found.val_losses)
    assert recommendation(recommend(same, judge(same)), judge(same)).endswith(
        "Of 40 late samples that the models had not seen, both get the same 37 right."
    )


def test_the_words_of_a_recommendation_fit_the_advice() -> None:
    verdict = judge(made(apart=0.05))
    left = dataclasses.replace(verdict, advice="leave it")
    assert recommendation({"model": "balanced", "reason": "why"}, verdict) == "Ship the balanced model: why."
    assert (
        recommendation({"model": "baseline", "reason": "why"}, left)
        == "Ship the model trained on the data as they are: why."
    )
