"""Commands that lead back to their runs, pictures that hold their pixels, charts that hold their data."""

import base64
import io
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import scores, write_run
from PIL import Image

from evenhand import execute, tasks
from evenhand.bench.grid import reads_groups
from evenhand.bench.grid import title as method_title
from evenhand.report import samples
from evenhand.report.commands import run_command
from evenhand.report.document import MOST_POINTS, Mark, line_plot, row_plot
from evenhand.training.plugins import parse_assignments
from evenhand.training.record import Record


@pytest.mark.parametrize("with_task", [True, False])
def test_a_command_leads_back_to_its_run(tmp_path: Path, with_task: bool) -> None:
    task = tasks.load("digits_even_odd:limit=40,p=0.9")
    run = execute(task, "erm", {"epochs": 1, "lr": 3e-4, "keep": "best"}, seed=3, runs=tmp_path, device="cpu")
    words = shlex.split(run_command(run, task if with_task else None))
    assert words[:2] == ["evenhand", "run"] and words[-4:] == ["--seed", "3", "--device", "cpu"]
    if with_task:
        assert sorted(words[4:-4]) == ["epochs=1", "keep=best", "lr=0.0003"]
    before = (run.path / "metrics.json").stat().st_mtime_ns
    given_ = parse_assignments(words[4:-4])
    again = execute(tasks.load(words[2]), words[3], given_, seed=3, runs=tmp_path, device="cpu")
    assert again == run and (run.path / "metrics.json").stat().st_mtime_ns == before


def test_a_command_quotes_what_a_shell_would_read(tmp_path: Path) -> None:
    run = write_run(tmp_path, "erm", scores(None, {"a": 1.0}), spec="own.task:x=$(reboot)")
    assert "'own.task:x=$(reboot)'" in run_command(run, None)
    own = write_run(tmp_path / "own", "erm", scores(None, {"a": 1.0}), spec="", hyperparameters={"q": 0.5})
    assert re.fullmatch(r"execute\(task, 'erm', \{.*'q': 0.5\}, seed=0\)", run_command(own, None))


def decoded(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


@given(st.integers(1, 32), st.integers(1, 32), st.integers(0, 2**32 - 1))
def test_a_small_picture_keeps_its_pixels(height: int, width: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (3, height, width), dtype=np.uint8)
    (uri,) = samples.data_uris([pixels])
    assert uri.startswith("data:image/png;base64,")
    assert np.array_equal(decoded(uri), pixels.transpose(1, 2, 0))


def test_a_large_picture_becomes_a_small_jpeg_of_mean_areas() -> None:
    pixels = np.zeros((3, 192, 96), np.uint8)
    pixels[:, ::2] = 200  # rows in turn, so that their mean is grey
    (uri,) = samples.data_uris([pixels])
    small = decoded(uri)
    assert uri.startswith("data:image/jpeg;base64,") and small.shape == (samples.SIDE, samples.SIDE // 2, 3)
    assert np.abs(small.astype(int) - 100).max() <= 3


def test_floats_are_intensities_or_scaled_together() -> None:
    (half,) = samples.data_uris([np.full((1, 2, 2), 0.5, np.float32)])
    assert decoded(half).tolist() == [[[128] * 3] * 2] * 2
    low, high = samples.data_uris([np.full((1, 1, 1), -2.0), np.full((1, 1, 1), 3.0)])
    assert decoded(low).max() == 0 and decoded(high).min() == 255


def test_a_plot_holds_its_data_and_null_where_there_is_none() -> None:
    gaps = [np.nan, 0.51234, None, 0.75]
    plot = line_plot("Accuracy", range(1, 5), {"a": ("ink", gaps)}, "share")
    (series,) = plot["series"]
    assert series["x"] == [1, 2, 3, 4] and series["y"] == [None, 0.5123, None, 0.75] and "low" not in series
    band = line_plot("Loss", [1, 2], {"a": ("ink", [[1, 2], [3, 4], [5, 6]])}, "log")["series"][0]
    assert (band["low"], band["y"], band["high"]) == ([1, 2], [3, 4], [5, 6])
    assert json.loads(json.dumps(plot, allow_nan=False)) == plot


def test_long_trainings_are_thinned_but_keep_their_ends() -> None:
    plot = line_plot("Loss", np.arange(1, 5001), {"a": ("ink", np.arange(5000.0))}, "log")
    x = plot["series"][0]["x"]
    assert len(x) == MOST_POINTS and x[0] == 1 and x[-1] == 5000


def test_a_row_holds_a_mark_for_each_method_and_pale_rings_for_the_others() -> None:
    plot = row_plot([Mark(0.5, 0.4, 0.6, "method-erm"), None, Mark(0.7, 0.7, 0.7, "method-tab")], [0.1, 0.2])
    pale, erm, tab = plot["series"]
    assert pale["x"] == [0.1, 0.2] and pale["row"] == 0 and pale["mark"] == "ring"
    assert (erm["x"], erm["low"], erm["high"], erm["row"], erm["mark"]) == ([0.5], [0.4], [0.6], 0, "disc")
    assert (tab["x"], tab["row"], tab["mark"]) == ([0.7], 2, "dot") and "low" not in tab


def test_methods_are_called_as_their_files_call_them() -> None:
    titles = [method_title(name) for name in ("jtt", "gdro", "erm_randaug", "someone.elses")]
    assert titles == ["JTT", "Group DRO", "ERM-RandAug", "someone.elses"]
    assert reads_groups("gdro") and not reads_groups("tab") and not reads_groups("someone.elses")


def test_records_without_timings_or_stages_still_make_a_page(tmp_path: Path) -> None:
    from evenhand.report.page import build

    run = write_run(tmp_path, "erm", scores(None, {"a": 0.5, "b": 1.0}))
    (run.path / "timing.json").unlink()
    (run.stage("erm") / "epochs.jsonl").unlink()
    html = build([Record(run.path)], tmp_path / "p.html", load_task=lambda _: None).read_text()
    assert "1 more training not shown" in html
