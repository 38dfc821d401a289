"""The audit of embeddings: what lies beside them is on the page, and slices are written on request."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from evenhand.cli import app

SAMPLES = 400


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, SAMPLES)
    site = np.where(rng.random(SAMPLES) < 0.1, 1 - y, y)
    x = rng.normal(0, 1, (SAMPLES, 8))
    x[:, :4] += 3 * site[:, None]
    x[:, 4] += 3 * y
    np.save(tmp_path / "x.npy", x.astype(np.float16))
    (tmp_path / "y.txt").write_text("\n".join(np.array(["cat", "dog"])[y]))
    (tmp_path / "texts.txt").write_text("\n".join(f"from site {s}, number {n}" for n, s in enumerate(site)))
    (tmp_path / "ids.txt").write_text("\n".join(f"pet {n}" for n in range(SAMPLES)))
    return tmp_path


def audited(files: Path, *options: str) -> dict:
    arguments = ["audit", str(files / "x.npy"), "--labels", str(files / "y.txt"), "--text", "texts.txt"]
    arguments += ["--ids", "ids.txt", "--out", str(files / "out"), "--epochs", "4", "--device", "cpu"]
    result = CliRunner().invoke(app, [*arguments, "--json", *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_ids_and_texts_are_shown_and_slices_written(files: Path) -> None:
    summary = audited(files, "--slices", "domino")
    assert summary["data"]["kind"] == "text" and summary["data"]["classes"] == ["cat", "dog"]
    with (files / "out" / "samples.csv").open() as file:
        assert [row["id"] for row in csv.DictReader(file)] == [f"pet {n}" for n in range(SAMPLES)]
    with (files / "out" / "slices.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {"domino"} and rows[0]["rank"] == "1"
    train = {row["id"] for row in rows}
    assert train <= {f"pet {n}" for n in range(SAMPLES)} and len(train) > 20


def test_unknown_slices_are_refused_before_anything_is_trained(files: Path) -> None:
    arguments = ["audit", str(files / "x.npy"), "--labels", str(files / "y.txt"), "--slices", "pizza"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(files / "out")])
    assert result.exit_code != 0 and not (files / "out").exists()
    assert "--slices must be domino, spotlight, facts or history, got 'pizza'" in str(result.exception)
