"""Every formula of a method has an id, a conformance test that names the id, and patches that a test notices.

A docstring writes an id as `[PGI-1]`. A test names it in its own name: `test_pgi_1_…`, `test_llr_1_and_2_…` or
`test_dpe_2_to_4_…`.
"""

import ast
import importlib
import re
from collections import Counter
from pathlib import Path

import mutants
import pytest

from evenhand import methods

METHODS = Path(methods.__file__).parent
TESTS = Path(__file__).parent


def ids_of_docstrings(folder: Path) -> dict[str, set[str]]:
    """The ids that the docstrings of each file define or use, in lower case; files without ids are left out."""
    found: dict[str, set[str]] = {}
    for file in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                ids = re.findall(r"\[([A-Za-z]+-\d+)\]", ast.get_docstring(node) or "")
                found.setdefault(file.stem, set()).update(map(str.lower, ids))
    return {name: ids for name, ids in found.items() if ids}


def ids_of_tests(folder: Path) -> set[str]:
    """The ids that names of tests in a folder name."""
    text = "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("test_*.py")))
    named = re.findall(r"^def test_([a-z]+)_(\d+)(?:_(?:and|to)_(\d+))?_", text, re.MULTILINE)
    return {f"{name}-{n}" for name, first, last in named for n in range(int(first), int(last or first) + 1)}


def test_every_formula_has_a_test_and_every_test_a_formula() -> None:
    defined = set().union(*ids_of_docstrings(METHODS).values())
    assert len(defined) > 60, "the docstrings were not read"
    assert defined - ids_of_tests(TESTS) == set(), "formulas without a test"
    assert ids_of_tests(TESTS) - defined == set(), "tests of formulas that no docstring has"


def test_formulas_are_numbered_without_a_gap() -> None:
    for name, count in Counter(each.split("-")[0] for each in ids_of_tests(TESTS)).items():
        assert {f"{name}-{n}" for n in range(1, count + 1)} <= ids_of_tests(TESTS), name


def test_ids_are_found_in_docstrings_and_in_names_of_tests(tmp_path: Path) -> None:
    """Else the tests above could not fail."""
    (tmp_path / "one.py").write_text('def f():\n    """[PGI-7] and [XRM-2]."""\n    return x[A-1]\n')
    (tmp_path / "none.py").write_text('"""No id."""\n')
    assert ids_of_docstrings(tmp_path) == {"one": {"pgi-7", "xrm-2"}}
    names = (
        "test_ab_3_one",
        "test_cd_1_and_2_two",
        "test_ef_2_to_4_three",
        "test_another",
        "other_ab_9_four",
    )
    (tmp_path / "test_one.py").write_text("".join(f"def {name}():\n    pass\n" for name in names))
    assert ids_of_tests(tmp_path) == {"ab-3", "cd-1", "cd-2", "ef-2", "ef-3", "ef-4"}


def test_every_file_with_a_formula_has_two_patches_that_a_test_of_methods_notices() -> None:
    here = [each for each in mutants.read() if each.test.startswith("tests/methods/")]
    patched = Counter(each.file(METHODS.parent).stem for each in here)
    assert {name: patched[name] for name in ids_of_docstrings(METHODS) if patched[name] < 2} == {}


def test_formulas_that_are_restated_in_numpy_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(mutants.ROOT / "benchmarks")
    side_by_side = importlib.import_module("side_by_side")
    compared = [
        (method, side_by_side.same(ours, expected))
        for method, _, ours, expected in side_by_side.formulas(side_by_side.Inputs())
    ]
    assert len(compared) > 35
    with pytest.raises(AssertionError, match="they differ by"):
        side_by_side.same(1.0, 1.0001)
