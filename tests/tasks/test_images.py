"""Decoding once: every kind of image becomes RGB, an interrupted decoding goes on, damage is noticed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import published_layouts as layouts
import pytest
from PIL import Image

from evenhand.tasks import images


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "CHUNK", 4)
    files = [tmp_path / "pictures" / f"{number:02d}.jpg" for number in range(18)]
    for number, file in enumerate(files):
        layouts.picture(file, number)
    return files


def test_pixels_are_pillows_own_bilinear_resize(tmp_path):
    rng = np.random.default_rng(0)
    file = tmp_path / "noise.png"
    Image.fromarray(rng.integers(0, 256, (30, 45, 3), dtype=np.uint8)).save(file)
    found = images.decoded("test", [file], 16)
    expected = np.asarray(Image.open(file).resize((16, 16), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert found.pixels.dtype == np.uint8 and (found.pixels[0] == expected).all()
    assert not found.pixels.flags.writeable


def test_palette_grey_transparent_and_cmyk_images_become_rgb(tmp_path):
    red = Image.new("RGB", (10, 10), (200, 20, 20))
    kinds = {
        "palette.jpg": (red.quantize(4), "PNG", {}),
        "clear.jpg": (red.quantize(4), "PNG", {"transparency": bytes([0, 128])}),
        "alpha.png": (red.convert("RGBA"), "PNG", {}),
        "cmyk.jpg": (red.convert("CMYK"), "JPEG", {"quality": 95}),
        "plain.jpg": (red, "JPEG", {"quality": 95}),
    }
    for name, (image, format, options) in kinds.items():
        image.save(tmp_path / name, format, **options)
    Image.new("L", (10, 10), 77).save(tmp_path / "grey.jpg", "JPEG")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in kinds:
            assert np.abs(images.read(tmp_path / name, 4)[:, 2, 2].astype(int) - [200, 20, 20]).max() <= 4, (
                name
            )
        assert np.abs(images.read(tmp_path / "grey.jpg", 4).astype(int) - 77).max() <= 1


def test_the_second_time_nothing_is_decoded(pictures, monkeypatch):
    first = images.decoded("test", pictures, 8)
    monkeypatch.setattr(images, "read", lambda file, size: pytest.fail("decoded again"))
    again = images.decoded("test", pictures, 8)
    assert again.digest == first.digest and (again.pixels == first.pixels).all()
    assert sorted(file.name for file in first.folder.iterdir()) == ["claim", "images.npy", "manifest.json"]


def test_a_changed_image_is_decoded_anew(pictures):
    first = images.decoded("test", pictures, 8)
    layouts.picture(pictures[3], 99)
    again = images.decoded("test", pictures, 8)
    assert again.digest != first.digest and again.folder != first.folder
    assert (again.pixels[3] != first.pixels[3]).any() and (again.pixels[4] == first.pixels[4]).all()


def counting(monkeypatch, stop_after=None):
    read, seen = images.read, []

    def counted(file, size):
        if stop_after is not None and len(seen) >= stop_after:
            raise KeyboardInterrupt
        seen.append(file.name)
        return read(file, size)

    monkeypatch.setattr(images, "read", counted)
    return seen


def test_an_interrupted_decoding_goes_on_where_it_stopped(pictures, monkeypatch, tmp_path):
    whole = images.decoded("whole", pictures, 8)
    with monkeypatch.context() as patch:
        counting(patch, stop_after=10)
        with pytest.raises(KeyboardInterrupt):
            images.decoded("test", pictures, 8)
    folder = next((tmp_path / "cache" / "images").glob("test-8-*"))
    assert not (folder / "images.npy").exists() and not (folder / "manifest.json").exists()
    with monkeypatch.context() as patch:
        seen = counting(patch)
        resumed = images.decoded("test", pictures, 8)
    assert sorted(seen) == [file.name for file in pictures[8:]], "two chunks of four were done"
    assert resumed.digest == whole.digest and (resumed.pixels == whole.pixels).all()


def test_a_finished_chunk_that_was_damaged_is_decoded_again(pictures, monkeypatch, tmp_path):
    whole = images.decoded("whole", pictures, 8)
    with monkeypatch.context() as patch:
        counting(patch, stop_after=10)
        with pytest.raises(KeyboardInterrupt):
            images.decoded("test", pictures, 8)
    part = next((tmp_path / "cache" / "images").glob("test-8-*")) / "images.npy.part"
    with part.open("r+b") as file:
        file.seek(300)
        file.write(b"\x55" * 20)
    (part.parent / "progress.jsonl").open("a").write('[2, "cut sho')  # a line that was being written
    seen = counting(monkeypatch)
    resumed = images.decoded("test", pictures, 8)
    assert sorted(seen) == [file.name for file in pictures[:4] + pictures[8:]]
    assert (resumed.pixels == whole.pixels).all()


SLOW = """
import sys, time
from pathlib import Path
from evenhand.tasks import images
images.CHUNK = 2
read = images.read
images.read = lambda file, size: (time.sleep(0.1), read(file, size))[1]
images.decoded("test", sorted(Path(sys.argv[1]).iterdir()), 8)
"""


def test_a_killed_decoding_goes_on(pictures, monkeypatch, tmp_path):
    monkeypatch.setattr(images, "CHUNK", 2)
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(pictures[0].parent)], env=dict(os.environ))
    deadline = time.monotonic() + 60
    notes = tmp_path / "cache" / "images"
    while not any(file.stat().st_size for file in notes.glob("test-8-*/progress.jsonl")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    seen = counting(monkeypatch)
    resumed = images.decoded("test", pictures, 8)
    assert 0 < len(seen) < len(pictures)
    assert (resumed.pixels == np.stack([images.read(file, 8) for file in pictures])).all()


def test_a_lost_or_cut_array_is_made_again(pictures):
    first = images.decoded("test", pictures, 8)
    pixels = np.array(first.pixels)
    array = first.folder / "images.npy"
    for size in (0, 500):
        os.truncate(array, size)
        assert (images.decoded("test", pictures, 8).pixels == pixels).all()
    array.unlink()
    assert (images.decoded("test", pictures, 8).pixels == pixels).all()


def test_changed_pixels_are_found_by_their_checksum(pictures):
    found = images.decoded("test", pictures, 8)
    assert images.damaged_chunks(found) == []
    with (found.folder / "images.npy").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01" if found.pixels[-1, -1, -1, -1] != 1 else b"\x02")
    assert images.damaged_chunks(images.decoded("test", pictures, 8)) == [4]


def test_what_is_not_an_image_is_named(pictures):
    pictures[9].write_text("<html>not found</html>")
    with pytest.raises(
        ValueError, match=r"09.jpg cannot be decoded .*damaged or not an image: fetch it again"
    ):
        images.decoded("test", pictures, 8)


def test_without_pillow_the_error_names_the_extra(pictures, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'evenhand\[vision\]'"):
        images.read(pictures[0], 8)
