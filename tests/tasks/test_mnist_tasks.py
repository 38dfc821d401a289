"""Even-Odd and cMNIST from idx files: splits, groups, weights, and every way in which a file can be wrong."""

from __future__ import annotations

import gzip

import numpy as np
import published_layouts as layouts
import pytest
import torch
from published_layouts import REAL_ROOT

from evenhand import tasks
from evenhand.tasks import colour
from evenhand.training.data import training_weights

needs_mnist = pytest.mark.skipif(
    not (REAL_ROOT / "mnist" / "train-images-idx3-ubyte.gz").is_file(), reason="MNIST is not here"
)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(("name", "num_colours"), [("even_odd", 2), ("cmnist", 10)])
def test_splits_groups_and_weights(tmp_path, name, num_colours, zipped):
    layouts.make_mnist(tmp_path, zipped=zipped)
    task = tasks.load(f"{name}:p=0.9", tmp_path)
    assert (len(task.train), len(task.val), len(task.test)) == (320, 80, 200)
    assert task.train.x.shape[1:] == (3, 28, 28) and task.train.x.dtype == torch.uint8
    for split in (task.train, task.val):
        for label in range(task.num_classes):
            members = split.group[split.y == label]
            assert (members == label * num_colours + label).sum() == round(0.9 * len(members))
    counts = torch.bincount(task.test.group, minlength=task.num_classes * num_colours)
    assert counts.max() - counts.min() <= 1
    expected = training_weights(task.train.group, task.test.group, len(task.group_names))
    assert torch.equal(task.test.weight, expected) and task.val.weight is None


def test_labels_belong_to_images_and_splits_do_not_overlap(tmp_path):
    layouts.make_mnist(tmp_path)
    _, images = colour.read_idx(tmp_path / "mnist", "train-images-idx3-ubyte")
    _, labels = colour.read_idx(tmp_path / "mnist", "train-labels-idx1-ubyte")
    known = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
    train, val, _ = colour.mnist_splits(tmp_path, "cmnist")
    seen = [image.tobytes() for part in (train, val) for image in part.images]
    assert len(set(seen)) == 400
    assert [known[image] for image in seen] == [*train.y, *val.y]


def test_p_changes_colours_but_not_the_split(tmp_path):
    layouts.make_mnist(tmp_path)
    sharp, blunt = (tasks.load(f"cmnist:p={p}", tmp_path) for p in (0.98, 0.5))
    assert torch.equal(sharp.train.y, blunt.train.y) and torch.equal(sharp.test.group, blunt.test.group)
    assert sharp.checksum != blunt.checksum


def damage(folder, name, change):
    content = gzip.decompress((folder / f"{name}.gz").read_bytes())
    (folder / f"{name}.gz").write_bytes(gzip.compress(change(content)))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "train-images-idx3-ubyte",
            lambda data: data[:-5],
            "train-images.*must hold 313600 values.*cut short",
        ),
        ("train-labels-idx1-ubyte", lambda data: data + b"x", "train-labels.*followed by something else"),
        (
            "t10k-images-idx3-ubyte",
            lambda data: b"\0\0\x08\x01" + data[4:],
            "magic number 0x00000803, got 0x00000801",
        ),
        ("t10k-labels-idx1-ubyte", lambda data: data[:3], "must begin with 8 bytes of header, got 3"),
        (
            "t10k-labels-idx1-ubyte",
            lambda data: data[:-1] + b"\x0b",
            "must hold the digits 0 to 9, got a label 11",
        ),
        (
            "t10k-labels-idx1-ubyte",
            lambda data: layouts.idx_bytes(np.zeros(7, np.uint8)),
            "t10k-images.* holds 200 images but .*t10k-labels.* 7 labels",
        ),
    ],
)
def test_damaged_files_are_named_and_explained(tmp_path, name, change, message):
    damage(layouts.make_mnist(tmp_path), name, change)
    with pytest.raises(ValueError, match=message):
        tasks.load("even_odd", tmp_path)


def test_a_damaged_archive_and_a_missing_file_are_named(tmp_path):
    folder = layouts.make_mnist(tmp_path)
    file = folder / "train-images-idx3-ubyte.gz"
    whole = file.read_bytes()
    for part in (whole[:500], b"not gzip"):
        file.write_bytes(part)
        with pytest.raises(
            ValueError, match=r"train-images-idx3-ubyte.gz cannot be unzipped .* fetch it again"
        ):
            tasks.load("even_odd", tmp_path)
    file.unlink()
    with pytest.raises(
        ValueError, match=r"even_odd needs .*train-images-idx3-ubyte.gz.*evenhand data fetch even_odd"
    ):
        tasks.load("even_odd", tmp_path)


def test_the_data_root_comes_from_the_environment(tmp_path, monkeypatch):
    layouts.make_mnist(tmp_path)
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path))
    assert len(tasks.load("even_odd").train) == 320


@needs_mnist
@pytest.mark.parametrize(("name", "num_groups", "smallest"), [("even_odd", 4, 236), ("cmnist", 100, 9)])
def test_real_mnist_has_the_papers_sizes(name, num_groups, smallest):
    task = tasks.load(name, REAL_ROOT)
    assert (len(task.train), len(task.val), len(task.test)) == (48_000, 12_000, 10_000)
    counts = torch.bincount(task.train.group, minlength=num_groups)
    assert len(counts) == num_groups and counts.min() == smallest
