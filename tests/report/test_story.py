"""The headline says what the records say, also when the news is bad, unclear or missing."""

from pathlib import Path

import numpy as np
import pytest
from made_records import plant, scores, write_run

from evenhand.bench import results
from evenhand.report.story import Story, compare, tell
from evenhand.training.record import Record


def told(records: list[Record]) -> Story:
    chosen = results.selected(results.frame(records), every_method=True)
    return tell(chosen, next((record for record in chosen.record if record.partition is not None), None))


def story_of(tmp_path: Path, **accuracies: list[float]) -> Story:
    """The story of runs whose worst group has these accuracies, seed by seed."""
    records = [
        write_run(
            tmp_path, method, scores({"g": value, "h": 0.99}, {"a": 0.9, "b": 0.9}), seed=seed,
            found=plant(np.repeat([0, 1], 20)) if method == "tab" else None,
        )
        for method, values in accuracies.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip
    return told(records)


@pytest.mark.parametrize(
    "erm, tab, headline",
    [
        ([0.1], [0.6], "TAB raised accuracy on the worst group from 10.0% to 60.0%."),
        ([0.6], [0.1], "TAB lowered accuracy on the worst group from 60.0% to 10.0%."),
        ([0.6], [0.6], "TAB and ERM have the same accuracy on the worst group, 60.0%."),
        ([0.6], [0.62], "On the worst group, TAB reaches 62.0% and ERM 60.0%: the difference is not significant."),
        ([0.6], [0.58], "On the worst group, TAB reaches 58.0% and ERM 60.0%: the difference is not significant."),
        ([0.1, 0.3], [0.6, 0.8], "TAB raised accuracy on the worst group from 20.0% to 70.0%, averaged over 2 seeds."),
        ([0.6, 0.8], [0.1, 0.3], "TAB lowered accuracy on the worst group from 70.0% to 20.0%, averaged over 2 seeds."),
        (
            [0.2, 0.4], [0.6, 0.3],
            "On the worst group, TAB reaches 45.0% and ERM 30.0%, averaged over 2 seeds: the difference is not significant.",
        ),
        ([0.1], [], "ERM reaches 10.0% accuracy on the worst group."),
        ([], [0.5, 0.7], "TAB reaches 60.0 ± 10.0% accuracy on the worst group."),
    ],
)  # fmt: skip
def test_the_headline_follows_the_records(
    tmp_path: Path, erm: list[float], tab: list[float], headline: str
) -> None:
    assert story_of(tmp_path, erm=erm, tab=tab).headline == headline


@pytest.mark.parametrize(
    "worst, headline",
    [
        ({"erm": [0.1, 0.12], "tab": [0.6, 0.62], "jtt": [0.5, 0.52]}, "TAB leads on the worst group: 61.0%, 10.0 points above JTT."),
        ({"erm": [0.1], "tab": [0.62], "jtt": [0.6]},
         "TAB is ahead on the worst group, 62.0% against 60.0% for JTT, but the difference is not significant."),
        ({"erm": [0.1], "tab": [0.6], "jtt": [0.6]}, "JTT and TAB share the lead on the worst group, at 60.0%."),
        ({"erm": [0.9], "tab": [0.6], "gdro": [0.95]}, "ERM leads on the worst group: 90.0%, 30.0 points above TAB."),
        ({"erm": [0.1], "gdro": [0.9]}, "Group DRO raised accuracy on the worst group from 10.0% to 90.0%."),
    ],
)  # fmt: skip
def test_with_more_methods_the_headline_says_who_leads_and_how_sure_that_is(
    tmp_path: Path, worst: dict[str, list[float]], headline: str
) -> None:
    assert story_of(tmp_path, **worst).headline == headline


def test_the_interval_of_a_difference_is_students_over_the_seeds_that_both_have(tmp_path: Path) -> None:
    story = story_of(tmp_path, erm=[0.1, 0.2, 0.3, 0.9], tab=[0.3, 0.42, 0.54])
    assert story.change is not None and story.change.num_seeds == 3 and story.change.interval is not None
    low, high = story.change.interval  # gains of 20, 22 and 24 points
    half = 4.302653 * 0.02 / 3**0.5
    assert (low, high) == (pytest.approx(0.22 - half), pytest.approx(0.22 + half))
    assert (
        story.sentences[0]
        == "Paired over 3 seeds, the difference is +22.0 points (95% interval +17.0 to +27.0)."
    )
    single = story_of(tmp_path / "one", erm=[0.1], tab=[0.6])
    assert single.sentences[0] == "With one seed, the 95% intervals of the two accuracies do not overlap."


def test_seeds_that_only_one_method_has_do_not_enter_the_comparison(tmp_path: Path) -> None:
    def run(method: str, seed: int, worst: float) -> Record:
        return write_run(tmp_path, method, scores({"g": worst, "h": 0.99}, {"a": 0.9}), seed=seed)

    runs = results.frame([run("erm", 0, 0.1), run("erm", 1, 0.9), run("tab", 0, 0.5)])
    change = compare(runs[runs.method == "erm"], runs[runs.method == "tab"])
    assert (change.before, change.after, change.num_seeds, change.verdict) == (0.1, 0.5, 1, "rose")
    story = told([run("erm", 1, 0.9), run("tab", 0, 0.5)])
    assert story.headline.endswith("but no seed was run with both.")


def test_the_sentences_name_the_worst_group_and_the_price(tmp_path: Path) -> None:
    before = scores({"g": 0.1, "h": 0.99}, {"a": 0.95, "b": 0.95})
    after = scores({"g": 0.8, "h": 0.7}, {"a": 0.90, "b": 0.90})
    found = plant(np.repeat([0, 1], 20))
    story = told([write_run(tmp_path, "erm", before), write_run(tmp_path, "tab", after, found=found)])
    text = " ".join(story.sentences)
    assert "The worst group is “g” for ERM and “h” for TAB, measured on 400 test samples in 2 groups." in text
    assert "TAB set apart 4 of 40 training samples (10.0%)" in text
    assert "Mean accuracy went from 95.0% to 90.0% (−5.0 points)." in text
    assert [(stat.name, stat.fell) for stat in story.stats[:2]] == [
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
        named = "“g” or “h”" if number == 2 else "one of 4 groups, depending on the seed"
        assert any(
            each.startswith(f"The worst group is {named}, measured") for each in told(records).sentences
        )


def test_identification_is_told_only_where_it_was_scored(tmp_path: Path) -> None:
    found = plant(np.repeat([0, 1], 20))
    test = scores({"g": 0.5}, {"a": 0.9})
    known = {"identified": 0.9, "purity": 0.8, "share": 0.4}
    story = told([write_run(tmp_path, "tab", test, found=found, identification=known)])
    assert "They include 90.0% of the bias-conflicting samples" in " ".join(story.sentences)
    story = told([write_run(tmp_path / "other", "tab", test, found=found)])
    assert "bias-conflicting" not in " ".join(story.sentences)


def test_of_several_configurations_validation_accuracy_chooses(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path, "erm", scores({"g": worst}, {"a": val}), hyperparameters={"strength": strength})
        for strength, val, worst in ((0.1, 0.8, 0.9), (0.2, 0.9, 0.1))
    ]
    assert told(runs).headline == "ERM reaches 10.0% accuracy on the worst group."
