"""The colouring of digits: exact shares, even spread, and test images in every colour."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenhand import tasks
from evenhand.tasks import colour, digits


@given(
    sizes=st.lists(st.integers(1, 200), min_size=2, max_size=10),
    p=st.floats(0.0, 1.0),
    seed=st.integers(0, 100),
)
def test_exactly_p_of_each_class_is_aligned_and_the_rest_is_spread_evenly(sizes, p, seed):
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    colours = colour.correlated_colours(y, len(sizes), p, np.random.default_rng(seed))
    for label, size in enumerate(sizes):
        counts = np.bincount(colours[y == label], minlength=len(sizes))
        assert counts[label] == round(p * size)
        others = np.delete(counts, label)
        assert others.max() - others.min() <= 1


def test_a_larger_p_keeps_the_aligned_samples_of_a_smaller_one():
    y = np.repeat(np.arange(10), 50)
    aligned = [
        colour.correlated_colours(y, 10, p, np.random.default_rng(0)) == y
        for p in (0.5, 0.9, 0.95, 0.98, 1.0)
    ]
    for fewer, more in itertools.pairwise(aligned):
        assert (more | ~fewer).all()


@given(size=st.integers(1, 300), num_colours=st.integers(1, 10))
def test_balanced_colours_differ_by_at_most_one(size, num_colours):
    counts = np.bincount(
        colour.balanced_colours(np.zeros(size, np.int64), num_colours, np.random.default_rng(0)),
        minlength=num_colours,
    )
    assert counts.max() - counts.min() <= 1


def test_paint_multiplies_intensity_and_colour():
    images = np.array([[[0, 100, 255]], [[0, 100, 255]]], dtype=np.uint8)
    rgb = np.array([[1.0, 0.5, 0.0], [0.2, 0.0, 1.0]])
    painted = colour.paint(images, np.array([0, 1]), rgb)
    reference = np.rint(images[:, None] * rgb[:, :, None, None]).astype(np.uint8)
    assert painted.shape == (2, 3, 1, 3) and (painted == reference).all()


@pytest.mark.parametrize("name", ["random42", "random7", "hues"])
def test_palettes_are_ten_different_colours_that_never_change(name):
    rgb = colour.palette(name)
    assert rgb.shape == (10, 3) and rgb.min() >= 0 and rgb.max() <= 1
    distances = np.abs(rgb[:, None] - rgb[None]).sum(-1)[~np.eye(10, dtype=bool)]
    assert distances.min() > 0.1
    assert (rgb == colour.palette(name)).all()


@pytest.mark.parametrize(("name", "num_colours"), [("digits", 10), ("digits_even_odd", 2)])
def test_digits_show_every_test_image_in_every_colour(name, num_colours):
    task = tasks.load(name)
    assert len(task.train) + len(task.val) + len(task.test) // num_colours == 1797
    counts = torch.bincount(task.test.group, minlength=task.num_classes * num_colours).view(-1, num_colours)
    assert (counts == counts[:, :1]).all()
    intensity = task.test.x.float().amax(1).view(-1, num_colours, 64)  # the brightest channel shows the shape
    lit = intensity > 0
    assert (lit == lit[:, :1]).all()


@pytest.mark.parametrize(("name", "p"), [("digits", 0.85), ("digits_even_odd", 0.97)])
def test_digits_have_the_promised_groups(name, p):
    task = tasks.load(f"{name}:p={p}")
    num_colours = len(task.group_names) // task.num_classes
    for split in (task.train, task.val):
        assert torch.equal(split.group // num_colours, split.y)
        for label in range(task.num_classes):
            members = split.group[split.y == label] % num_colours
            assert (members == label).sum() == round(p * len(members))
        assert split.weight is None
    assert task.conflicting == {
        group for group in range(len(task.group_names)) if group // num_colours != group % num_colours
    }
    # The weights restate the balanced test set in training proportions.
    weighted = torch.zeros(len(task.group_names)).index_add(0, task.test.group, task.test.weight)
    trained = torch.bincount(task.train.group, minlength=len(task.group_names))
    torch.testing.assert_close(weighted / weighted.sum(), trained / trained.sum())


def test_red_is_odd_and_green_is_even():
    task = tasks.load("digits_even_odd:p=1.0")
    assert task.class_names == ("odd", "even")
    channels = task.train.x.float().mean(dim=(2, 3))
    assert (channels[task.train.y == 0][:, 0] > 0).all() and (channels[task.train.y == 0][:, 1:] == 0).all()
    assert (channels[task.train.y == 1][:, 1] > 0).all() and (
        channels[task.train.y == 1][:, [0, 2]] == 0
    ).all()


def test_every_image_is_in_one_split():
    from sklearn.datasets import load_digits

    parts = digits.splits()
    found = sorted(image.tobytes() for part in parts for image in part.images)
    images = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)
    assert found == sorted(image.tobytes() for image in images)
    for part, share in zip(parts, (0.60, 0.15, 0.25), strict=True):
        counts = np.bincount(part.y) / np.bincount(load_digits().target)
        assert np.abs(counts - share).max() < 0.005


def test_a_share_of_the_training_and_validation_labels_can_be_wrong():
    right, wrong = tasks.load("digits"), tasks.load("digits:mislabelled=0.1")
    assert torch.equal(right.train.x, wrong.train.x) and torch.equal(right.test.y, wrong.test.y)
    for name, least, most in (("train", 0.07, 0.13), ("val", 0.04, 0.18)):
        assert least < (getattr(right, name).y != getattr(wrong, name).y).float().mean() < most
    assert torch.equal(wrong.train.group // 10, wrong.train.y), "groups are of the labels that are given"
    assert right.checksum != wrong.checksum and right.checksum == tasks.load("digits:p=0.9").checksum
    with pytest.raises(ValueError, match="mislabelled must be at least 0 and below 1, got 1"):
        tasks.load("digits:mislabelled=1")
