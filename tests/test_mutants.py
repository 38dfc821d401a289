"""The list of mutants fits the code: every patch applies, and the tests that it names are there."""

import ast
from pathlib import Path

import mutants
import pytest

MUTANTS = mutants.read()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_patch_applies_to_code_and_names_a_test(mutant: mutants.Mutant) -> None:
    source = mutants.ROOT / "src" / "evenhand"
    file = mutant.file(source)
    before = file.read_text(encoding="utf-8")
    after = before.replace(mutant.before, mutant.after)
    assert ast.dump(ast.parse(before)) != ast.dump(ast.parse(after)), "the patch changes no code"
    path, name = mutant.test.split("::")
    assert f"\ndef {name}(" in (mutants.ROOT / path).read_text(encoding="utf-8"), "there is no such test"


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_a_snippet_must_occur_once(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 2\ny = 2\n")
    made = mutants.Mutant("made", "", "x = 1", "x = 2", "")
    made.apply(tmp_path)
    assert (tmp_path / "a.py").read_text() == "x = 2\ny = 2\ny = 2\n"
    with pytest.raises(ValueError, match="must occur once in src/evenhand, but is found nowhere: 'x = 1'"):
        made.apply(tmp_path)
    with pytest.raises(ValueError, match=r"found a\.py \(2\): 'y = 2'"):
        mutants.Mutant("made", "", "y = 2", "", "").apply(tmp_path)
