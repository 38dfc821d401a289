"""The headline says what the records say, also when the news is bad, unclear or missing."""

from pathlib import Path

import numpy as np
import pytest
from made_records import plant, scores, write_run

from evenhand.report.story import compare, tell
from evenhand.report.study import studies


def story_of(tmp_path: Path, **accuracies: list[float]):
    """The story of runs whose worst group has these accuracies, seed by seed."""
    records = [
        write_run(
            tmp_path, method, scores({"g": value, "h": 0.99}, {"a": 0.9, "b": 0.9}), seed=seed,
            found=plant(np.repeat([0, 1], 20)) if method == "tab" else None,
        )
        for method, values in accuracies.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip
    (study,) = studies(records)
    return tell(study)


@pytest.mark.parametrize(
    "erm, tab, headline",
    [
        ([0.1], [0.6], "TAB raised accuracy on the worst group from 10.0% to 60.0%."),
        ([0.6], [0.1], "TAB lowered accuracy on the worst group from 60.0% to 10.0%."),
        ([0.6], [0.6], "TAB left accuracy on the worst group where ERM has it, at 60.0%."),
        ([0.6], [0.62], "On the worst group, TAB reaches 62.0% and ERM 60.0%: too close to call."),
        ([0.6], [0.58], "On the worst group, TAB reaches 58.0% and ERM 60.0%: too close to call."),
        ([0.1, 0.3], [0.6, 0.8], "TAB raised accuracy on the worst group from 20.0% to 70.0%, averaged over 2 seeds."),
        ([0.6, 0.8], [0.1, 0.3], "TAB lowered accuracy on the worst group from 70.0% to 20.0%, averaged over 2 seeds."),
        (
            [0.2, 0.4], [0.6, 0.3],
            "On the worst group, TAB reaches 45.0% and ERM 30.0%, averaged over 2 seeds, but it rose in only 1 of 2.",
        ),
        ([0.1], [], "ERM reaches 10.0% accuracy on the worst group."),
        ([], [0.5, 0.7], "TAB reaches 60.0 ± 10.0% accuracy on the worst group."),
    ],
)  # fmt: skip
def test_the_headline_follows_the_records(
    tmp_path: Path, erm: list[float], tab: list[float], headline: str
) -> None:
    assert story_of(tmp_path, erm=erm, tab=tab).headline == headline


def test_seeds_that_only_one_method_has_do_not_enter_the_comparison(tmp_path: Path) -> None:
    def run(method: str, seed: int, worst: float):
        return write_run(tmp_path, method, scores({"g": worst, "h": 0.99}, {"a": 0.9}), seed=seed)

    (study,) = studies([run("erm", 0, 0.1), run("erm", 1, 0.9), run("tab", 0, 0.5)])
    assert study.baseline is not None and study.main is not None
    change = compare(study.baseline, study.main)
    assert (change.before, change.after, change.num_seeds, change.verdict) == (0.1, 0.5, 1, "rose")
    (study,) = studies([run("erm", 1, 0.9), run("tab", 0, 0.5)])
    assert tell(study).headline.endswith("but no seed was run with both.")


def test_the_sentences_name_the_worst_group_and_the_price(tmp_path: Path) -> None:
    before = scores({"g": 0.1, "h": 0.99}, {"a": 0.95, "b": 0.95})
    after = scores({"g": 0.8, "h": 0.7}, {"a": 0.90, "b": 0.90})
    found = plant(np.repeat([0, 1], 20))
    (study,) = studies([write_run(tmp_path, "erm", before), write_run(tmp_path, "tab", after, found=found)])
    text = " ".join(tell(study).sentences)
    assert "The worst group is “g” for ERM and “h” for TAB, measured on 400 test samples in 2 groups." in text
    assert "TAB set apart 4 of 40 training samples (10.0%)" in text
    assert "Mean accuracy went from 95.0% to 90.0% (−5.0 points)." in text
    assert [(stat.name, stat.fell) for stat in tell(study).stats[:2]] == [
        ("Worst group", False),
        ("Mean accuracy", True),
    ]


def test_worst_groups_that_differ_by_seed_are_all_named(tmp_path: Path) -> None:
    worst = ["g", "h", "i", "j"]
    for number in (2, 4):
        records = [
            write_run(
                tmp_path, "erm", scores({**dict.fromkeys(worst, 0.9), name: 0.1}, {"a": 0.9}), seed=seed
            )
            for seed, name in enumerate(worst[:number])
        ]
        (study,) = studies(records)
        named = "“g” or “h”" if number == 2 else "another of 4 groups with every seed"
        assert tell(study).sentences[0].startswith(f"The worst group is {named}, measured")


def test_identification_is_told_only_where_it_was_scored(tmp_path: Path) -> None:
    found = plant(np.repeat([0, 1], 20))
    test = scores({"g": 0.5}, {"a": 0.9})
    known = {"identified": 0.9, "purity": 0.8, "share": 0.4}
    (study,) = studies([write_run(tmp_path, "tab", test, found=found, identification=known)])
    assert "They hold 90.0% of the bias-conflicting samples" in " ".join(tell(study).sentences)
    (study,) = studies([write_run(tmp_path / "other", "tab", test, found=found)])
    assert "bias-conflicting" not in " ".join(tell(study).sentences)


def test_of_several_configurations_validation_accuracy_chooses(tmp_path: Path) -> None:
    runs = []
    for lr, val, worst in ((0.1, 0.8, 0.9), (0.2, 0.9, 0.1)):
        run = write_run(
            tmp_path, "erm", scores({"g": worst}, {"a": val}), hyperparameters={"lr": lr, "same": 1}
        )
        runs.append(run)
    (study,) = studies(runs)
    assert study.baseline is not None and study.baseline.settings == {"lr": 0.2}
    assert [variant.label for variant in study.variants] == ["ERM (lr=0.1)", "ERM (lr=0.2)"]
