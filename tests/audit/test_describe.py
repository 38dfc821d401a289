"""What late samples share is named: columns, words, looks; and duplicates and telling columns unasked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evenhand.audit.describe import (
    Finding,
    colour_name,
    describe,
    duplicates,
    image_columns,
    predicts_alone,
    row_keys,
    text_keys,
)

NAMES = ("well", "ill")


def made(num: int = 1000, num_late: int = 60) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Labels and late samples, as many of each class."""
    rng = np.random.default_rng(0)
    y = np.arange(num) % 2
    late = np.zeros(num, dtype=bool)
    late[:num_late] = True
    return y, late, rng


def test_the_planted_column_is_named_first_with_its_counts() -> None:
    y, late, rng = made()
    hospital = np.where((y == 1) != late, "B", "A").astype(object)
    columns = {
        "age": rng.normal(size=1000),
        "hospital": hospital,
        "ward": rng.choice(["x", "y"], 1000).astype(object),
    }
    headline, overall, classes = describe(columns, [], y, late, NAMES)
    assert headline in (
        "In class ill, 30 of 30 late samples have hospital = A; of the others 0% do.",
        "In class well, 30 of 30 late samples have hospital = B; of the others 0% do.",
    )
    assert overall[0].name == "hospital" and (overall[0].late, overall[0].others) == (60, 0)
    assert [each.name for each in classes["ill"]] == ["hospital"]
    assert classes["ill"][0].effect == 1 and 0.8 < classes["ill"][0].interval[0] < 1


def test_a_number_is_cut_where_late_samples_differ_and_of_many_values_the_usual_one_is_denied() -> None:
    y, late, rng = made()
    pressure = rng.normal(size=1000) + np.where(late, 6, 0)
    site = np.where(late, rng.integers(2, 9, 1000), y).astype(str).astype(object)
    _, _, classes = describe({"pressure": pressure}, [], y, late, NAMES)
    assert classes["ill"][0].words.startswith("have pressure > ") and classes["ill"][0].late == 30
    _, _, classes = describe({"site": site}, [], y, late, NAMES)
    assert classes["ill"][0].words == "have site other than 1"
    camera = np.where(late, 1.0 - y, y)
    assert describe({"camera": camera}, [], y, late, NAMES)[2]["ill"][0].words == "have camera = 0"
    gaps = np.where(late, np.nan, rng.normal(size=1000))
    assert describe({"gap": gaps}, [], y, late, NAMES)[1][0].words == "have gap missing"


def test_a_phrase_is_named_whole() -> None:
    y, late, rng = made()
    words = np.array([f"word{n}" for n in range(50)])
    texts = [
        f"{' '.join(rng.choice(words, 8))} {'sent from phone' if (label == 1) != is_late else 'kind regards'}"
        for label, is_late in zip(y, late, strict=True)
    ]
    headline, _, classes = describe({}, texts, y, late, NAMES)
    assert {classes[name][0].words for name in NAMES} == {
        "contain “sent from phone”",
        "contain “kind regards”",
    }
    assert "30 of 30 late samples contain" in headline


@pytest.mark.parametrize(("num_late", "headed"), [(19, False), (20, True)])
def test_fewer_than_twenty_samples_are_never_headlined(num_late: int, headed: bool) -> None:
    y, late, _ = made(num_late=num_late)
    hospital = np.where((y == 1) != late, "B", "A").astype(object)
    headline, overall, _ = describe({"hospital": hospital}, [], y, late, NAMES)
    assert bool(headline) == headed and overall[0].name == "hospital"
    if headed:  # ten of each class: only all of them together are enough
        assert headline.startswith("Over all classes, 20 of 20 late samples differ")


def test_chance_is_not_named() -> None:
    y, late, rng = made()
    columns = {f"c{n}": rng.choice(list("abcdef"), 1000).astype(object) for n in range(40)}
    columns |= {f"n{n}": rng.normal(size=1000) for n in range(40)}
    assert describe(columns, [], y, late, NAMES) == ("", (), {})


def test_the_interval_against_newcombes_example() -> None:
    # Newcombe 1998, method 10: 56/70 against 48/80.
    from evenhand.audit.describe import _counted

    found = _counted("x", "have x", 56, 70, 48, 80)
    assert isinstance(found, Finding)
    assert found.interval == pytest.approx((0.0524, 0.3339), abs=1e-4)


def test_a_column_that_alone_predicts_the_label_is_reported() -> None:
    y, _, rng = made()
    columns = {"key": np.where(y == 1, "a", "b").astype(object), "noise": rng.normal(size=1000)}
    columns["size"] = y * 10 + rng.normal(size=1000)
    rows = rng.permutation(1000)
    notes = predicts_alone(columns, y, rows[:700], rows[700:], accuracy=0.99)
    assert [note.split()[0] for note in notes] == ["key", "size"]
    assert "key alone predicts the label of 100.0% of the held-out samples" in notes[0]
    half = {"half": np.where(rng.random(1000) < 0.8, y, 1 - y).astype(str).astype(object)}
    assert not predicts_alone(half, y, rows[:700], rows[700:], accuracy=0.99)


def test_copies_across_splits_are_counted() -> None:
    texts = ["one two", "three four", "five", "one two", "Three, four!", "six"]
    train, held_out = np.arange(3), np.arange(3, 6)
    notes = duplicates(text_keys(texts), train, held_out)
    assert notes == [
        "1 of 3 held-out samples are exact copies of training samples",
        "1 of 3 held-out samples are near copies of training samples",
    ]
    columns = {"a": np.array([1.0, 2.0, 1.0, 2.0001]), "b": np.array(["x", "y", "x", "y"], dtype=object)}
    assert len(duplicates(row_keys(columns), np.arange(2), np.arange(2, 4))) == 2
    assert duplicates(row_keys({"a": np.arange(4.0)}), np.arange(2), np.arange(2, 4)) == []


def test_images_are_measured(tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (4, 3, 32, 32)).astype(np.uint8)
    images[0, :, :3] = images[0, :, -3:] = images[0, :, :, :3] = images[0, :, :, -3:] = np.array(
        [230, 30, 30], dtype=np.uint8
    )[:, None, None]
    images[1] = 250
    images[3] = images[2]
    columns, keys = image_columns(lambda row: images[row], 4)
    assert columns["border colour"][0] == "red" and columns["colour"][1] == "white"
    assert columns["brightness"][1] == pytest.approx(250) and columns["sharpness"][1] == 0
    assert keys[2] == keys[3] and keys[0] != keys[1]
    file = tmp_path / "a.png"
    Image.fromarray(images[0].transpose(1, 2, 0)).save(file)
    columns, _ = image_columns(lambda row: images[row], 1, [file])
    assert (columns["width"][0], columns["format"][0]) == (32, "PNG RGB")
    assert colour_name(np.array([30, 200, 60])) == "green"
