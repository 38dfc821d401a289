"""Tables, audits and pages say what they said: a change is seen, and recorded on purpose."""

import golden_texts as golden
import pytest

COMMAND = "python tests/golden/make.py texts"
SHORT = ("tables-celeba_short", "tables-even_bar", "page-run")


def check(name: str) -> None:
    path = golden.path_of(name)
    assert path.exists(), f"no golden text {name}: run {COMMAND}"
    if not golden.comparable(path.read_text()):
        pytest.skip("the audit was made with another version of scikit-learn")
    found = golden.difference(name, path.read_text(), golden.make(name))
    assert not found, f"{name} says something else; if that is intended, run {COMMAND}\n{found}"


@pytest.mark.parametrize("name", SHORT)
def test_some_texts_are_the_golden_ones(name: str) -> None:
    check(name)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in golden.TEXTS if name not in SHORT])
def test_every_text_is_the_golden_one(name: str) -> None:
    check(name)


def test_the_golden_texts_are_small_and_no_others_are_there() -> None:
    files = list((golden.HERE / "texts").iterdir())
    assert {file.stem for file in files} == set(golden.TEXTS), f"run {COMMAND}"
    assert sum(file.stat().st_size for file in files) < 1_500_000


def test_a_difference_shows_the_lines() -> None:
    shown = golden.difference("tables", "a\nWGA 83.0\nb", "a\nWGA 83.1\nb")
    assert "-WGA 83.0" in shown and "+WGA 83.1" in shown
    assert not golden.difference("audit-text", "a\nWGA 83.0\nb", "a\nWGA 83.1\nb"), "nearly the same"
    assert golden.difference("audit-text", "a\nWGA 83.0\nb", "a\nWGA 93.0\nb")
