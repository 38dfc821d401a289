"""Tasks by name: options, run-folder names, a user's own module, and small versions."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenhand import tasks
from evenhand.tasks import digits
from evenhand.training import plugins
from evenhand.training.data import limited, shares, training_weights

DEFAULT_P = plugins.keywords(digits.load)["p"]


def test_every_module_with_load_is_a_task_and_says_what_it_is():
    expected = {
        "bar",
        "celeba",
        "cmnist",
        "cub",
        "digits",
        "digits_even_odd",
        "even_odd",
        "pacs",
        "reviews",
        "waterbirds",
    }
    assert expected <= set(tasks.names())
    assert {"colour", "datasets", "images", "samples"}.isdisjoint(tasks.names())
    assert all(tasks.describe().values())


def test_names_are_read_without_torch():
    code = "import sys; from evenhand import tasks; tasks.describe(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("spec", "name", "canonical"),
    [
        ("digits", "digits", "digits"),
        (f"digits:p={DEFAULT_P}", "digits", "digits"),
        ("digits:p=0.5", "digits-p0.5", "digits:p=0.5"),
        ("digits:palette=hues,p=0.50", "digits-p0.5-palettehues", "digits:p=0.5,palette=hues"),
        ("digits:limit=200", "digits-limit200", "digits:limit=200"),
    ],
)
def test_the_run_folder_carries_what_differs_from_the_defaults(spec, name, canonical):
    task = tasks.load(spec)
    assert (task.name, task.spec) == (name, canonical)
    assert tasks.load(task.spec).checksum == task.checksum


def test_the_limit_argument_is_the_limit_option():
    assert tasks.load("digits", limit=100).spec == tasks.load("digits:limit=100").spec


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("digit", "unknown task 'digit'; known tasks are .*digits, digits_even_odd, .*package.module"),
        ("digits:q=1", "task 'digits' has no option 'q'; it has p, palette, mislabelled, limit"),
        ("digits:p", "a task is written name or name:key=value,…; cannot read 'p'"),
        ("digits:p=0.9,p=0.8", "option 'p' is given twice"),
        ("digits:p=high", "p of task 'digits' must be of type float, got 'high'"),
        ("digits:p=1.5", "p must be a share between 0 and 1, got 1.5"),
        ("digits:palette=rainbow", "unknown palette 'rainbow'; known palettes are random42, random7, hues"),
        ("digits:limit=3", "limit must allow one sample of each of 10 classes, got 3"),
        ("no.such.module", "cannot import the task 'no.such.module'"),
        ("os.path", "a task module must have a function load"),
    ],
)
def test_mistakes_list_what_is_known(spec, message):
    with pytest.raises(ValueError, match=message):
        tasks.load(spec)


OWN = """
from typing import Literal
from evenhand.tasks import digits
def load(root=None, *, p: float = 0.9, fast: bool = False, part: float | None = None,
         kind: Literal["a", "b"] = "a"):
    assert isinstance(fast, bool) and (part is None or isinstance(part, float))
    return digits.load(root, p=p)
"""


def test_a_dotted_path_loads_a_task_of_your_own(tmp_path, monkeypatch):
    (tmp_path / "aviary").mkdir()
    (tmp_path / "aviary" / "birds.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    task = tasks.load("aviary.birds:fast=true,part=0.5,kind=b")
    assert task.name == "aviary.birds-fastTrue-part0.5-kindb"
    assert tasks.load("aviary.birds:part=none").name == "aviary.birds"
    with pytest.raises(ValueError, match=r"fast of task 'aviary\.birds' must be true or false, got 'yes'"):
        tasks.load("aviary.birds:fast=yes")
    with pytest.raises(ValueError, match=r"kind of task 'aviary\.birds' must be one of a, b, got 'c'"):
        tasks.load("aviary.birds:kind=c")


@pytest.mark.parametrize("limit", [20, 100, 300])
def test_a_limited_task_is_stratified_deterministic_and_weighted_anew(limit):
    full = tasks.load("digits_even_odd:p=0.9")
    small = tasks.load("digits_even_odd:p=0.9", limit=limit)
    for name in ("train", "val", "test"):
        before, after = getattr(full, name), getattr(small, name)
        assert len(after) == min(limit, len(before))
        assert after.index.tolist() == list(range(len(after)))
        wanted = torch.bincount(before.group, minlength=4) * len(after) / len(before)
        assert (torch.bincount(after.group, minlength=4) - wanted).abs().max() <= 2
        for row in (0, len(after) - 1):  # the labels still belong to the images
            original = before.rows.tolist().index(int(after.rows[row]))
            assert (before.y[original], before.group[original]) == (after.y[row], after.group[row])
    assert torch.equal(small.test.weight, training_weights(small.train.group, small.test.group, 4))
    again = tasks.load("digits_even_odd:p=0.9", limit=limit)
    assert torch.equal(small.train.rows, again.train.rows)
    assert small.checksum == again.checksum != full.checksum


def test_a_limited_validation_split_restates_the_limited_training_split():
    """As Waterbirds, whose validation groups are of equal size and weighted."""
    full = tasks.load("digits_even_odd:p=0.9")
    groups = [torch.nonzero(full.val.group == group)[:5, 0] for group in range(4)]
    even = full.val.take(torch.cat(groups))
    weight = training_weights(full.train.group, even.group, 4)
    small = limited(dataclasses.replace(full, val=dataclasses.replace(even, weight=weight)), 11)
    expected = training_weights(small.train.group, small.val.group, 4)
    assert torch.equal(small.val.weight, expected)
    shares = torch.bincount(small.val.group, weights=small.val.weight.double()) / len(small.val)
    torch.testing.assert_close(
        shares, torch.bincount(small.train.group) / len(small.train), check_dtype=False
    )
    assert not torch.allclose(small.val.weight, weight[0] * torch.ones(11)), "the weights differ"


@given(counts=st.lists(st.integers(1, 500), min_size=1, max_size=12), total=st.integers(1, 800))
def test_shares_add_up_and_keep_proportions(counts, total):
    array = np.array(counts)
    found = shares(array, total)
    total = min(total, int(array.sum()))
    assert found.sum() == total
    assert (found >= 0).all() and (found <= array).all()
    if total >= len(array):
        assert (found >= 1).all()
        # Each group that had less than one takes at most one from the others.
        assert np.abs(found - array * total / array.sum()).max() <= len(array)


SETTINGS = {  # epochs, batch size, optimiser, learning rate and weight decay of the paper's appendix
    "even_odd": (100, 2048, "adam", 1e-3, 0.0),
    "cmnist": (100, 2048, "adam", 1e-3, 1e-4),
    "waterbirds": (300, 137, "sgd", 1e-3, 1e-2),
    "celeba": (150, 436, "sgd", 1e-3, 1e-4),
    "bar": (200, 194, "sgd", 1e-3, 0.0),
    "cub": (300, 128, "sgd", 1e-2, 1e-4),
}


def test_the_recipe_of_pacs_is_that_of_its_trial():
    recipe = tasks.module("pacs").RECIPE
    assert (recipe.model, recipe.weights, recipe.keep) == ("mobilenet_v2", "pretrained", "best")
    assert (recipe.optimizer, recipe.lr, recipe.batch_size) == ("sgd", 1e-3, 128)


@pytest.mark.parametrize("name", SETTINGS)
def test_recipes_are_the_papers(name):
    recipe = tasks.module(name).RECIPE
    found = (recipe.epochs, recipe.batch_size, recipe.optimizer, recipe.lr, recipe.weight_decay)
    assert found == SETTINGS[name]
    assert (recipe.check_every, recipe.patience, recipe.delta, recipe.momentum) == (5, 5, 0.001, 0.9)
    pretrained = recipe.optimizer == "sgd"
    assert (recipe.model, recipe.weights) == (("resnet18", "pretrained") if pretrained else ("cnn", None))


@pytest.mark.parametrize("name", SETTINGS)
def test_the_selected_pair_and_every_grid_belong_to_their_method(name):
    module = tasks.module(name)
    fields = {field.name for field in dataclasses.fields(module.RECIPE)}
    grids = getattr(module, "GRIDS", {})
    for method, grid in grids.items():
        own = plugins.keywords(plugins.load("evenhand.methods", method, "train").train)
        assert set(grid) <= set(own) | fields, method
    erm = grids.get("erm", plugins.load("evenhand.methods", "erm", "train").GRID)
    assert module.RECIPE.lr in erm["lr"] and module.RECIPE.weight_decay in erm["weight_decay"]
