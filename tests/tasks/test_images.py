"""Decoding once: every kind of image becomes RGB, an interrupted decoding goes on, damage is noticed."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
import warnings
from collections import Counter

import numpy as np
import published_layouts as layouts
import pytest
from PIL import Image, ImageOps

from evenhand.tasks import samples


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "CHUNK", 4)
    files = [tmp_path / "pictures" / f"{number:02d}.jpg" for number in range(18)]
    for number, file in enumerate(files):
        layouts.picture(file, number)
    return files


def test_pixels_are_pillows_own_bilinear_resize(tmp_path):
    rng = np.random.default_rng(0)
    file = tmp_path / "noise.png"
    Image.fromarray(rng.integers(0, 256, (30, 45, 3), dtype=np.uint8)).save(file)
    found = samples.decode_images("test", [file], 16)
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
            assert (
                np.abs(samples.read_image(tmp_path / name, 4)[:, 2, 2].astype(int) - [200, 20, 20]).max() <= 4
            ), name
        assert np.abs(samples.read_image(tmp_path / "grey.jpg", 4).astype(int) - 77).max() <= 1


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(10))  # 1 to 8 are defined
def test_images_are_put_upright(tmp_path, format, orientation):
    rng, exif, file = np.random.default_rng(0), Image.Exif(), tmp_path / "turned.png"
    exif[0x0112] = orientation
    Image.fromarray(rng.integers(0, 256, (6, 9, 3), dtype=np.uint8)).save(file, format, exif=exif)
    with Image.open(file) as image:
        upright = ImageOps.exif_transpose(image).resize((5, 5), Image.Resampling.BILINEAR)
    assert (samples.read_image(file, 5) == np.asarray(upright).transpose(2, 0, 1)).all()


def test_a_camera_held_upright_gives_an_upright_picture(tmp_path):
    """Such a camera writes 6: the file's left column is the picture's upper row."""
    pixels, exif = np.zeros((4, 4, 3), np.uint8), Image.Exif()
    pixels[:, 0] = 255
    exif[0x0112], exif[0x011A] = 6, 72.0
    Image.fromarray(pixels).save(tmp_path / "tall.png", exif=exif)
    expected = np.zeros((3, 4, 4), np.uint8)
    expected[:, 0] = 255
    assert (samples.read_image(tmp_path / "tall.png", 4) == expected).all()
    damaged = exif.tobytes().replace(b"\x01\x1a\x00\x05", b"\x01\x1a\x00\x02")  # a resolution that is a text
    Image.fromarray(pixels).save(tmp_path / "damaged.png", exif=damaged)
    with Image.open(tmp_path / "damaged.png") as image, pytest.raises((TypeError, struct.error)):
        ImageOps.exif_transpose(image)
    assert (samples.read_image(tmp_path / "damaged.png", 4) == expected).all()


def grey(file, values):
    """A grey image, as it is read."""
    if file.suffix == ".pgm":  # which not all versions of pillow write with 16 bits
        file.write_bytes(b"P5 %d %d 65535\n" % values.shape + values.astype(">u2").tobytes())
    else:
        Image.fromarray(values).save(file)
    return samples.read_image(file, values.shape[0])


def test_16_bits_are_scaled_to_8(tmp_path):
    wanted = np.arange(0, 256, 4, dtype=np.uint16).reshape(8, 8)
    for name in ("grey.png", "grey.tif", "grey.pgm"):
        assert (grey(tmp_path / name, wanted * 257) == wanted).all(), name
        assert (grey(tmp_path / name, wanted) <= 1).all(), "a dark picture stays dark"
    big_endian = Image.fromarray((wanted * 257).astype(">u2"))
    assert big_endian.mode == "I;16B"
    big_endian.save(tmp_path / "big.tif")
    assert (samples.read_image(tmp_path / "big.tif", 8) == wanted).all()


def test_32_bits_are_scaled_by_their_range(tmp_path):
    file, wanted = tmp_path / "grey.tif", np.array([[0, 51, 102], [204, 255, 153], [0, 1, 2]])
    counts = (wanted * 1000 - 7).astype(np.int32)
    for values in (counts, counts.astype(np.float32)):
        assert (grey(file, values) == wanted).all(), "the lowest is black, the highest white"
    fractions = np.array([[0, 20], [100, 200]])
    assert (grey(file, (fractions / 255).astype(np.float32)) == fractions).all(), "1 is white"
    holes = counts.astype(np.float32)
    holes[0] = [np.nan, -np.inf, np.inf]
    assert (grey(file, holes)[:, 0] == [0, 0, 255]).all() and (grey(file, holes)[:, 1:] == wanted[1:]).all()
    assert (grey(file, np.full((2, 2), 9, np.int32)) == 0).all()
    assert (grey(file, np.full((2, 2), np.nan, np.float32)) == 0).all()


@pytest.mark.parametrize("mode", ["LA", "RGBA", "P"])
@pytest.mark.parametrize("ink, ground", [(0, 255), (255, 0)])
def test_a_drawing_on_a_transparent_ground_is_seen(tmp_path, mode, ink, ground):
    alpha = np.zeros((4, 4), np.uint8)
    alpha[:, :2] = 255
    drawing = Image.merge("LA", [Image.new("L", (4, 4), ink), Image.fromarray(alpha)]).convert("RGBA")
    if mode == "P":
        drawing = Image.fromarray(alpha // 255).convert("P")  # two entries of one colour
        drawing.putpalette([ink] * 6)
        drawing.info["transparency"] = bytes([0, 255])
    else:
        drawing = drawing.convert(mode)
    drawing.save(tmp_path / "drawing.png")
    assert (samples.read_image(tmp_path / "drawing.png", 4) == np.where(alpha, ink, ground)).all()


def test_files_that_are_not_read_are_counted(tmp_path):
    for name in ("b.PNG", "deep/a.jpeg", "c.heic", "deep/d.HEIC", "e.svg", "plain", ".f.png", "deep/._b.PNG"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found, endings = samples.find_images(tmp_path)
    assert found == [tmp_path / "b.PNG", tmp_path / "deep" / "a.jpeg"]
    assert endings == {".heic": 2, ".svg": 1, "": 1}
    assert samples.left_out(endings) == (
        "4 files were left out because of their endings: 2 .heic, 1 .svg, 1 without one; "
        "convert images to PNG or JPEG"
    )
    many = Counter({f".{letter}": 1000 for letter in "abcdefg"})
    assert samples.left_out(many).startswith("7,000 files were left out")
    assert "1,000 .e, 2,000 others; convert" in samples.left_out(many) and samples.left_out(Counter()) == ""


def test_the_second_time_nothing_is_decoded(pictures, monkeypatch):
    first = samples.decode_images("test", pictures, 8)
    monkeypatch.setattr(samples, "read_image", lambda file, size: pytest.fail("decoded again"))
    again = samples.decode_images("test", pictures, 8)
    assert again.digest == first.digest and (again.pixels == first.pixels).all()
    assert sorted(file.name for file in first.folder.iterdir()) == ["claim", "images.npy", "manifest.json"]


def test_a_changed_image_is_decoded_anew(pictures):
    first = samples.decode_images("test", pictures, 8)
    layouts.picture(pictures[3], 99)
    again = samples.decode_images("test", pictures, 8)
    assert again.digest != first.digest and again.folder != first.folder
    assert (again.pixels[3] != first.pixels[3]).any() and (again.pixels[4] == first.pixels[4]).all()


def test_another_decoder_decodes_anew(pictures, monkeypatch):
    first = samples.decode_images("test", pictures, 8)
    monkeypatch.setattr(samples, "image_decoder", lambda: "libjpeg_turbo 1.0")
    assert samples.decode_images("test", pictures, 8).folder != first.folder


def counting(monkeypatch, stop_after=None):
    read, seen = samples.read_image, []

    def counted(file, size):
        if stop_after is not None and len(seen) >= stop_after:
            raise KeyboardInterrupt
        seen.append(file.name)
        return read(file, size)

    monkeypatch.setattr(samples, "read_image", counted)
    return seen


def test_an_interrupted_decoding_goes_on_where_it_stopped(pictures, monkeypatch, tmp_path):
    whole = samples.decode_images("whole", pictures, 8)
    with monkeypatch.context() as patch:
        counting(patch, stop_after=10)
        with pytest.raises(KeyboardInterrupt):
            samples.decode_images("test", pictures, 8)
    folder = next((tmp_path / "cache" / "images").glob("test-8-*"))
    assert len(json.loads((folder / "manifest.json").read_text())["chunks"]) == 2, "of five"
    with monkeypatch.context() as patch:
        seen = counting(patch)
        resumed = samples.decode_images("test", pictures, 8)
    assert sorted(seen) == [file.name for file in pictures[8:]], "two chunks of four were done"
    assert resumed.digest == whole.digest and (resumed.pixels == whole.pixels).all()


def test_a_finished_chunk_that_was_damaged_is_decoded_again(pictures, monkeypatch, tmp_path):
    whole = samples.decode_images("whole", pictures, 8)
    with monkeypatch.context() as patch:
        counting(patch, stop_after=10)
        with pytest.raises(KeyboardInterrupt):
            samples.decode_images("test", pictures, 8)
    part = next((tmp_path / "cache" / "images").glob("test-8-*")) / "images.npy"
    with part.open("r+b") as file:
        file.seek(300)
        file.write(b"\x55" * 20)
    seen = counting(monkeypatch)
    resumed = samples.decode_images("test", pictures, 8)
    assert sorted(seen) == [file.name for file in pictures[:4] + pictures[8:]]
    assert (resumed.pixels == whole.pixels).all()


SLOW = """
import sys, time
from pathlib import Path
from evenhand.tasks import samples
samples.CHUNK = 2
read = samples.read_image
samples.read_image = lambda file, size: (time.sleep(0.1), read(file, size))[1]
samples.decode_images("test", sorted(Path(sys.argv[1]).iterdir()), 8)
"""


def test_a_killed_decoding_goes_on(pictures, monkeypatch, tmp_path):
    monkeypatch.setattr(samples, "CHUNK", 2)
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(pictures[0].parent)], env=dict(os.environ))
    deadline = time.monotonic() + 60
    notes = tmp_path / "cache" / "images"
    while not any(file.stat().st_size for file in notes.glob("test-8-*/manifest.json")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    seen = counting(monkeypatch)
    resumed = samples.decode_images("test", pictures, 8)
    assert 0 < len(seen) < len(pictures)
    assert (resumed.pixels == np.stack([samples.read_image(file, 8) for file in pictures])).all()


def test_a_damaged_manifest_starts_the_decoding_over(pictures, monkeypatch):
    first = samples.decode_images("test", pictures, 8)
    manifest = first.folder / "manifest.json"
    content = json.loads(manifest.read_text())
    seen = counting(monkeypatch)
    for text in ("{", json.dumps({**content, "chunks": content["chunks"][::-1]})):
        manifest.write_text(text)
        seen.clear()
        assert samples.decode_images("test", pictures, 8).digest == first.digest and len(seen) == len(
            pictures
        )


def test_a_lost_or_cut_array_is_made_again(pictures):
    first = samples.decode_images("test", pictures, 8)
    pixels = np.array(first.pixels)
    array = first.folder / "images.npy"
    for size in (0, 500):
        os.truncate(array, size)
        assert (samples.decode_images("test", pictures, 8).pixels == pixels).all()
    array.unlink()
    assert (samples.decode_images("test", pictures, 8).pixels == pixels).all()


def test_changed_pixels_are_found_by_their_checksum(pictures):
    found = samples.decode_images("test", pictures, 8)
    assert samples.damaged_chunks(found) == []
    with (found.folder / "images.npy").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01" if found.pixels[-1, -1, -1, -1] != 1 else b"\x02")
    assert samples.damaged_chunks(samples.decode_images("test", pictures, 8)) == [4]


def test_what_is_not_an_image_is_named(pictures):
    pictures[9].write_text("<html>not found</html>")
    with pytest.raises(
        ValueError, match=r"09.jpg cannot be decoded .*damaged or not an image: fetch it again"
    ):
        samples.decode_images("test", pictures, 8)
