"""Commands that lead back to their runs, pictures that hold their pixels, charts that hold their data."""

import base64
import re
import shlex
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import scores, write_run

from evenhand import execute, tasks
from evenhand.bench.grid import is_told_groups
from evenhand.report import figures, thumbnails
from evenhand.report.commands import command
from evenhand.report.figures import Series, chart
from evenhand.report.study import method_title
from evenhand.training.plugins import parse_assignments
from evenhand.training.record import Record


@pytest.mark.parametrize("with_task", [True, False])
def test_a_command_leads_back_to_its_run(tmp_path: Path, with_task: bool) -> None:
    task = tasks.load("digits_even_odd:limit=40,p=0.9")
    run = execute(task, "erm", {"epochs": 1, "lr": 3e-4, "keep": "best"}, seed=3, runs=tmp_path, device="cpu")
    words = shlex.split(command(run, task if with_task else None))
    assert words[:2] == ["evenhand", "run"] and words[-4:] == ["--seed", "3", "--device", "cpu"]
    if with_task:
        assert sorted(words[4:-4]) == ["epochs=1", "keep=best", "lr=0.0003"]
    before = (run.path / "metrics.json").stat().st_mtime_ns
    given_ = parse_assignments(words[4:-4])
    again = execute(tasks.load(words[2]), words[3], given_, seed=3, runs=tmp_path, device="cpu")
    assert again == run and (run.path / "metrics.json").stat().st_mtime_ns == before


def test_a_command_quotes_what_a_shell_would_read(tmp_path: Path) -> None:
    run = write_run(tmp_path, "erm", scores(None, {"a": 1.0}), spec="own.task:x=$(reboot)")
    assert "'own.task:x=$(reboot)'" in command(run, None)
    own = write_run(tmp_path / "own", "erm", scores(None, {"a": 1.0}), spec="", hyperparameters={"q": 0.5})
    assert re.fullmatch(r"execute\(task, 'erm', \{.*'q': 0.5\}, seed=0\)", command(own, None))


def unpacked(png: bytes) -> np.ndarray:
    """A reader of the two PNG row filters that we write."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    position, body, size = 8, b"", (0, 0)
    while position < len(png):
        (length,) = struct.unpack(">I", png[position : position + 4])
        kind, content = png[position + 4 : position + 8], png[position + 8 : position + 8 + length]
        (check,) = struct.unpack(">I", png[position + 8 + length : position + 12 + length])
        assert check == zlib.crc32(kind + content)
        if kind == b"IHDR":
            size = struct.unpack(">II", content[:8])
        body += content if kind == b"IDAT" else b""
        position += 12 + length
    width, height = size
    rows = np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, 1 + 3 * width)
    pixels = rows[:, 1:].reshape(height, width, 3)
    filtered = rows[:, 0].astype(bool)[:, None, None]
    return np.where(filtered, np.cumsum(pixels, axis=1, dtype=np.uint8), pixels)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1), st.booleans())
def test_a_png_holds_the_pixels(height: int, width: int, seed: int, smooth: bool) -> None:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if smooth:
        pixels = np.cumsum(pixels // 64, axis=1, dtype=np.uint8)
    assert np.array_equal(unpacked(thumbnails.png(pixels)), pixels)


def test_pillow_reads_our_png_too() -> None:
    image = pytest.importorskip("PIL.Image", reason="needs pillow")
    import io

    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert np.array_equal(np.asarray(image.open(io.BytesIO(thumbnails.png(pixels)))), pixels)


def test_reduced_is_the_mean_over_areas() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (128, 64, 3), dtype=np.uint8)
    blocks = pixels.reshape(32, 4, 16, 4, 3).mean((1, 3))
    assert np.abs(thumbnails.reduced(pixels, 32).astype(float) - blocks).max() <= 0.5
    assert thumbnails.reduced(pixels, 50).shape == (50, 25, 3)
    assert thumbnails.reduced(pixels, 128) is pixels


def decoded(uri: str) -> np.ndarray:
    return unpacked(base64.b64decode(uri.removeprefix("data:image/png;base64,")))


def test_floats_are_intensities_or_scaled_together() -> None:
    (half,) = thumbnails.data_uris([np.full((1, 2, 2), 0.5, np.float32)])
    assert decoded(half).tolist() == [[[128] * 3] * 2] * 2
    low, high = thumbnails.data_uris([np.full((1, 1, 1), -2.0), np.full((1, 1, 1), 3.0)])
    assert decoded(low).max() == 0 and decoded(high).min() == 255


def test_large_pictures_without_pillow_become_small_png(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    uri = thumbnails.data_uri(np.zeros((200, 100, 3), np.uint8))
    assert decoded(uri).shape == (32, 16, 3)


@given(st.floats(0, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_even_and_cover_the_range(low: float, span: float) -> None:
    ticks = figures.nice_ticks(0.0, span)
    assert 2 <= len(ticks) <= 5 and ticks[0] == 0 and ticks[-1] >= span * (1 - 1e-6)
    assert np.allclose(np.diff(ticks), ticks[1] - ticks[0], rtol=1e-3)


def test_a_chart_draws_its_data_where_the_ticks_say() -> None:
    values = np.array([4.0, 2.0, 1.0])
    drawn = chart(
        "c", "Loss", np.array([1, 2, 3]), [Series("a", "a", values, values / 2, values)], height=100
    )
    assert drawn.lines[0].path == "M0.0 0.0L500.0 50.0L1000.0 75.0"
    assert drawn.lines[0].band.startswith("M0.0 0.0L500.0 50.0L1000.0 75.0L1000.0 87.5")
    assert drawn.y_ticks[0] == (100.0, "0") and drawn.y_ticks[-1] == (0.0, "4")
    assert drawn.x_ticks == ((0.0, "1"), (50.0, "2"), (100.0, "3"))
    assert drawn.summary == "Loss, epochs 1 to 3. a: from 4.00 to 1.00."
    assert drawn.data["series"] == [[4.0, 2.0, 1.0]]


def test_missing_values_are_skipped_and_one_epoch_is_a_level_line() -> None:
    gaps = np.array([np.nan, 0.5, np.nan, 0.75])
    drawn = chart("c", "Accuracy", np.arange(1, 5), [Series("a", "a", gaps)], share=True)
    assert drawn.lines[0].path.count("L") == 1 and drawn.data["series"] == [[None, 50.0, None, 75.0]]
    alone = chart(
        "c", "Loss", np.array([1]), [Series("a", "a", np.array([1.0]), np.array([0.5]), np.array([1.0]))]
    )
    assert alone.lines[0].path == "M0.0 0.0L1000 0.0" and "NaN" not in alone.lines[0].band.upper()
    none = chart("c", "Loss", np.array([1, 2]), [Series("a", "a", np.full(2, np.nan))])
    assert none.lines[0].path == ""


def test_methods_are_called_as_their_files_call_them() -> None:
    titles = [method_title(name) for name in ("jtt", "gdro", "erm_randaug", "someone.elses")]
    assert titles == ["JTT", "Group DRO", "ERM-RandAug", "someone.elses"]
    assert is_told_groups("gdro") and not is_told_groups("tab") and not is_told_groups("someone.elses")


def test_long_trainings_are_thinned_but_keep_their_ends() -> None:
    shown = figures.thinned(5000)
    assert len(shown) == figures.MOST_POINTS and shown[0] == 0 and shown[-1] == 4999
    assert figures.thinned(3).tolist() == [0, 1, 2]


def test_records_without_timings_or_stages_still_make_a_page(tmp_path: Path) -> None:
    from evenhand.report.page import build

    run = write_run(tmp_path, "erm", scores(None, {"a": 0.5, "b": 1.0}))
    (run.path / "timing.json").unlink()
    (run.stage("erm") / "epochs.jsonl").unlink()
    html = build([Record(run.path)], tmp_path / "p.html", load_task=lambda _: None).read_text()
    assert "1 more training not drawn here" in html
