"""Digests of files, of the first epochs of histories and curves, and the schemas of what is read back."""

import json
from pathlib import Path

import numpy as np
import pytest

from evenhand.training import store
from evenhand.training.record import METRICS
from evenhand.training.store import NUMBER, SHARE, Damaged, schema_error


def history(path: Path, epochs: int) -> None:
    values = np.random.default_rng(0).random((5, 4), np.float32)[:, :epochs]
    np.save(path, np.asfortranarray(values))


def curve(path: Path, epochs: int) -> None:
    path.write_text("".join(json.dumps({"epoch": epoch}) + "\n" for epoch in range(epochs)))


@pytest.mark.parametrize(("name", "make"), [("losses.npy", history), ("epochs.jsonl", curve)])
def test_the_digest_of_the_first_epochs_stays_when_a_training_goes_on(tmp_path: Path, name, make) -> None:
    path = tmp_path / name
    make(path, 3)
    expected, whole = store.digest(path, 3), store.digest(path)
    make(path, 4)
    store.verify(path, expected, 3)
    assert store.digest(path, 2) != expected != store.digest(path, 4) and store.digest(path) != whole
    make(path, 2)
    with pytest.raises(Damaged, match=rf"{name} is not as it was written: its checksum does not match"):
        store.verify(path, expected, 3)


@pytest.mark.parametrize(("name", "make"), [("losses.npy", history), ("epochs.jsonl", curve)])
def test_every_flipped_bit_of_the_first_epochs_is_noticed(tmp_path: Path, name, make) -> None:
    path = tmp_path / name
    make(path, 4)
    expected, content = store.digest(path, 3), path.read_bytes()
    end = len(content) - 20 if name == "losses.npy" else content.rindex(b"\n", 0, -1)
    begin = len(content) - 80 if name == "losses.npy" else 0  # the values; numpy looks at its header itself
    for at in range(8 * begin, 8 * end):
        changed = bytearray(content)
        changed[at // 8] ^= 1 << at % 8
        path.write_bytes(changed)
        assert store.find_damaged(tmp_path, {name: expected}, 3), at
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # of an epoch that nobody asks for
    assert not store.find_damaged(tmp_path, {name: expected}, 3)


def test_a_file_that_is_gone_is_named_and_one_without_a_digest_is_not_looked_at(tmp_path: Path) -> None:
    ((path, error),) = store.find_damaged(tmp_path, {"config.json": "0" * 64})
    assert path == tmp_path / "config.json" and "config.json should be there, but it is gone" in str(error)
    store.verify(path, None)


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan"), True, "1", None])
def test_only_finite_numbers_are_numbers(value: object) -> None:
    assert schema_error(value, NUMBER) == "it is not a finite number"
    assert schema_error({"wga": value}, {"wga": SHARE}) == "its 'wga' is not a share between 0 and 1"


def test_what_does_not_fit_is_named_with_its_place() -> None:
    assert schema_error([], METRICS) == "it is not an object"
    assert schema_error({"a": {"b": 1}}, {str: {"b": str}}) == "its 'a' 'b' is not str"
    assert schema_error({"a": []}, {"a": (None, {})}) == "its 'a' is not an object"
    assert schema_error({"a": [1, 2.5]}, {"a": [int]}) == "its 'a' is not int"
    assert schema_error({}, {"a": int}) == "it has no 'a'"
    assert schema_error({"a": None}, {"a": (None, int)}) == ""


def test_every_change_of_a_file_that_ends_with_its_digest_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "maps.npy"
    np.save(path, np.arange(3))
    content = path.read_bytes()
    store.write_digested(path, iter([content[:50], content[50:]]))
    assert np.load(path).tolist() == [0, 1, 2] and store.is_intact(path)
    whole = path.read_bytes()
    changes = [bytes([*whole[:at], whole[at] ^ 4, *whole[at + 1 :]]) for at in range(len(whole))]
    for changed in [b"", whole[:31], whole[:-1], whole + b"\0", *changes]:
        path.write_bytes(changed)
        with pytest.raises(Damaged, match=r"maps.npy is not as it was written: its checksum does not match"):
            store.verify_digested(path)
    with pytest.warns(
        UserWarning, match=r"maps.npy is not .* kept as maps.npy.damaged-\d+, and computed again"
    ):
        assert not store.is_intact(path)
    assert not path.exists() and not store.is_intact(path)
