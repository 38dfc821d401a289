"""The committed records: they agree with each other and with every document that quotes them."""

from __future__ import annotations

import doctest
import json
import runpy
import subprocess
import sys
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parents[1] / "results"
PACKED = sorted([*RESULTS.glob("*.zip"), *RESULTS.glob("studies/*.zip")])
COMMITTED = 12_000_000  # bytes that results/ may have


def records(archive: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Every run of a packed file: task/method/key-seed -> its configuration and its metrics."""
    with zipfile.ZipFile(archive) as opened:
        runs = [
            name.removesuffix("/metrics.json") for name in opened.namelist() if name.endswith("/metrics.json")
        ]
        return {
            run: tuple(json.loads(opened.read(f"{run}/{name}.json")) for name in ("config", "metrics"))
            for run in runs
        }  # type: ignore[misc]


def test_no_two_records_have_one_key_and_different_numbers() -> None:
    found: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for archive in PACKED:
        for run, (config, metrics) in records(archive).items():
            scores = {name: metrics[name] for name in ("train", "val", "test") if name in metrics}
            found[run].append((archive.name, {"data": config["data"], **scores}))
    twice = {run: each for run, each in found.items() if len(each) > 1}
    assert [run for run, each in twice.items() if any(one[1] != each[0][1] for one in each)] == []
    assert len(found) > 500 and twice, "some settings are in several files, with the same numbers"


def test_new_records_name_their_commit_and_arithmetic() -> None:
    new = [config for archive in PACKED for config, _ in records(archive).values() if "numerics" in config]
    assert len(new) > 50
    assert all(config["versions"].get("commit") and config["versions"]["torch"] for config in new)


def test_results_stay_small() -> None:
    sizes = {
        path: path.stat().st_size
        for path in RESULTS.rglob("*")
        if path.is_file() and "__pycache__" not in str(path)
    }
    assert sum(sizes.values()) < COMMITTED


def test_every_number_of_the_documents_is_what_the_records_have() -> None:
    done = subprocess.run(
        [sys.executable, RESULTS / "make.py", "--check"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rates_of_the_advice_are_those_of_its_audits() -> None:
    advice = runpy.run_path(str(RESULTS.parent / "benchmarks" / "advice.py"))
    audits = [json.loads(line) for line in (RESULTS / "advice.jsonl").read_text().splitlines()]
    page = (RESULTS.parent / "docs" / "verdict.md").read_text()
    assert advice["filled"](page, audits) == page and f"- {len(audits)} audits of " in page
    assert (RESULTS / "advice.md").read_text() == advice["document"](audits)


def test_a_number_that_somebody_typed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RESULTS))
    make = runpy.run_path(str(RESULTS / "make.py"))
    begin, end = "<!-- made by results/make.py: arithmetic -->\n", "<!-- end -->\n"
    made = make["filled"](begin + end)
    assert made.startswith(begin) and made.endswith(end) and "| ERM, weight decay 0 | 76.7 ± 3.6 |" in made
    assert make["filled"](made) == made
    assert make["filled"](made.replace("76.7", "77.7")) == made
    with pytest.raises(KeyError, match="nothing"):
        make["filled"](begin.replace("arithmetic", "nothing") + end)


def test_runs_of_different_settings_make_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RESULTS))
    documents = __import__("documents")
    mixed = [documents.BAR_0.frame("tab"), documents.BAR_SELECTED.frame("tab")]
    with pytest.raises(ValueError, match="the runs of BAR are not of one setting"):
        documents.check_alike("BAR", mixed)


def test_the_examples_of_the_cells_are_true(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RESULTS))
    done = doctest.testmod(__import__("documents"))
    assert done.attempted >= 3 and not done.failed
