"""evenhand.fit: any dataset and any model, in one call."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

import evenhand
from evenhand import rebalance
from evenhand.api import as_split, hold_out

RECIPE = evenhand.Recipe(epochs=2, batch_size=16)


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def tensors(num_samples: int = 60) -> TensorDataset:
    random = torch.Generator().manual_seed(0)
    y = torch.arange(num_samples) % 2
    return TensorDataset(torch.randn(num_samples, 4, generator=random) + y[:, None], y)


class Items(Dataset):
    """Items one by one, labels as numpy integers; `noise` augments at random."""

    def __init__(self, noise: float = 0.0, transform=int) -> None:
        self.x, self.y = tensors().tensors
        self.noise, self.transform = noise, transform
        self.targets = self.y.tolist()

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int):
        return self.x[row] + self.noise * torch.randn(4), np.int64(self.transform(self.y[row]))


def test_a_dataset_gives_what_its_tensors_give(tmp_path: Path) -> None:
    results = [evenhand.fit(make_model, data, recipe=RECIPE) for data in (tensors(), Items())]
    first, second = (result.model.state_dict() for result in results)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert len(results[0].partition.minority) == 60 and results[0].partition.clustered.sum() == 48
    assert results[0].indices.num_original == 48  # a fifth is held out
    page = results[0].report(tmp_path / "page.html").read_text()
    assert "There was no test set" in page and "measured on 12 validation samples" in page
    assert "Test samples" not in page and "test sample" not in page


def planted() -> TensorDataset:
    """One clear number agrees with the class for 95%, twelve faint ones for all."""
    random = torch.Generator().manual_seed(0)
    y = torch.arange(600) % 2
    agrees = torch.rand(600, generator=random) < 0.95
    clear = 4.0 * (2 * torch.where(agrees, y, 1 - y) - 1)
    faint = torch.randn(600, 12, generator=random) + 0.4 * (2 * y[:, None] - 1)
    return TensorDataset(torch.cat([clear[:, None], faint], 1), y)


def test_it_trains_with_even_and_with_tab_if_told_to() -> None:
    recipe = evenhand.Recipe(epochs=10, batch_size=32, check_every=1)
    for settings, name in (({}, "evenhand"), ({"method": "tab"}, "tab")):
        result = evenhand.fit(lambda: nn.Linear(13, 2), planted(), recipe=recipe, **settings)
        assert (result.record.metrics["method"], result.baseline_record.metrics["method"]) == (name, "erm")
        assert result.partition.minority.sum() > 5 and result.indices.copies.any()
        assert result.partition.minority[result.indices.indices[result.indices.copies]].all()
        seen = json.loads((result.record.stage("model") / "epochs.jsonl").read_text().splitlines()[0])
        rows = seen["accuracy"] * len(result.indices)
        assert abs(rows - round(rows)) < 1e-6, "the second training was on these rows"
    with pytest.raises(ValueError, match="method must be 'evenhand' or 'tab', got 'jtt'; others run with"):
        evenhand.fit(make_model, tensors(), recipe=RECIPE, method="jtt")


@pytest.mark.parametrize("as_rows", [False, True])
def test_rows_are_those_of_the_dataset_though_a_part_was_held_out(as_rows: bool, tmp_path: Path) -> None:
    data = planted()
    given: Any = data
    if as_rows:  # a Split whose samples lie in x in another order, among others
        rows = torch.randperm(600, generator=torch.Generator().manual_seed(1))[:500]
        given = evenhand.Split(data.tensors[0], data.tensors[1][rows], rows=rows)
        data = Subset(data, rows.tolist())
    recipe = evenhand.Recipe(epochs=10, batch_size=32, check_every=1)
    result = evenhand.fit(lambda: nn.Linear(13, 2), given, recipe=recipe, seed=3)
    parts, own = result.partition, result.record.partition
    labels = np.array([int(label) for _, label in data])
    assert np.array_equal(parts.labels, labels) and len(parts.minority) == len(parts.margin) == len(data)
    assert np.array_equal(parts.sizes, own.sizes) and "held out" in repr(parts)
    kept = np.flatnonzero(parts.clustered)
    assert len(kept) == round(0.8 * len(data)) == result.indices.num_original
    for name in ("labels", "minority", "margin"):
        assert np.array_equal(getattr(parts, name)[kept], getattr(own, name))
        assert name == "labels" or not getattr(parts, name)[~parts.clustered].any()
    minority = np.flatnonzero(parts.minority)
    for chosen, trained in (
        (minority, result.task.train.take(np.flatnonzero(own.minority))),
        (result.indices, result.task.train.take(rebalance(own, seed=3))),  # what the second training saw
    ):
        inputs = torch.stack([x for x, _ in Subset(data, chosen)])
        assert len(chosen) > 5 and torch.equal(inputs, trained.x[trained.rows])
    assert np.array_equal(rebalance(parts, seed=3), result.indices) and result.indices.copies.any()
    # The page calls samples by the same numbers.
    page = result.report(tmp_path / "page.html").read_text()
    shown = {int(row) for row in re.findall(r'<th scope="row">(\d+)</th>', page)}
    assert shown <= set(kept.tolist()) and set(minority[np.argsort(-parts.margin[minority])][:1]) <= shown
    assert not shown <= set(range(len(kept))), "the test needs a row that training numbers do not reach"


def test_with_a_validation_set_every_row_is_trained_on() -> None:
    result = evenhand.fit(make_model, tensors(), tensors(20), recipe=RECIPE)
    assert result.partition.clustered.all() and len(result.partition.clustered) == 60
    assert result.indices.indices[:60].tolist() == list(range(60))


def test_random_augmentation_is_reproducible() -> None:
    first, second = (
        evenhand.fit(make_model, Items(noise=0.5), recipe=RECIPE).model.state_dict() for _ in range(2)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_kept_runs_are_returned_and_never_confused(tmp_path: Path) -> None:
    def path(model=make_model, data: Dataset | None = None, **settings) -> Path:
        data = data or Items(noise=0.5)
        return evenhand.fit(model, data, recipe=RECIPE, runs=tmp_path, **settings).record.path

    def wider() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 2))

    def pretrained() -> nn.Module:
        model = make_model()
        nn.init.ones_(model[0].weight)
        return model

    class Scaled(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.inner, self.scale = make_model(), scale

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scale * self.inner(x)

    changed = Items(noise=0.5)
    changed.x = changed.x * 5
    first = path()
    assert path() == first
    others = [path(wider), path(pretrained), path(data=tensors()), path(seed=1), path(class_names=("a", "b"))]
    others += [path(data=changed), path(lambda: Scaled(1.0)), path(lambda: Scaled(-9.0))]
    assert len({first, *others}) == 9


def test_labels_come_from_the_items_when_targets_say_otherwise() -> None:
    flipped = as_split(Items(transform=lambda label: 1 - int(label)), "train_set")
    assert flipped.y.tolist() == [1 - label for label in Items().targets]


@pytest.mark.parametrize(
    "data, message",
    [
        (
            TensorDataset(torch.zeros(4, 4), torch.tensor([0.0, 1.0, 0.0, 1.0])),
            "one integer label per sample",
        ),
        (TensorDataset(torch.zeros(4, 4), torch.tensor([-1, 0, 1, 0])), "labels from 0 upwards, got -1"),
        ([], "must hold samples, got an empty one"),
        (TensorDataset(torch.zeros(0, 4), torch.zeros(0).long()), "must hold samples, got an empty one"),
        ((torch.zeros(4, 4), torch.zeros(4)), r"got a tuple; use TensorDataset\(inputs, labels\)"),
        ([(torch.zeros(4), 0.5)] * 3, "one integer label per sample"),
        (iter([]), "must be a Dataset with a length"),
        ([torch.zeros(4)] * 3, r"must give \(input, label\) pairs, got Tensor"),
        ([(torch.zeros(4), "cat")] * 3, "one integer label per sample"),
    ],
)
def test_what_is_no_dataset_is_refused(data, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evenhand.fit(make_model, data, recipe=RECIPE)


@pytest.mark.parametrize(
    "model, message",
    [
        (make_model(), "make_model must be a function that makes a fresh model each time, got a Sequential"),
        (lambda: nn.Linear(4, 1), r"one value per class, 2 for labels 0 to 1, got \(2, 1\) for 2 samples"),
        (lambda: nn.Linear(5, 2), "the model cannot take the first two inputs of train_set: .*mat1 and mat2"),
        (lambda: nn.LSTM(4, 2), "one value per class, 2 for labels 0 to 1, got tuple"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_any_work(model, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        evenhand.fit(model, tensors(), recipe=RECIPE, runs=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_class_that_only_validation_has_is_refused() -> None:
    train, val = tensors(), TensorDataset(torch.zeros(2, 4), torch.tensor([0, 5]))
    with pytest.raises(ValueError, match="labels must be 0 to 1 for 2 classes, got up to 5"):
        evenhand.fit(make_model, train, val, recipe=RECIPE)


def test_a_single_class_is_refused() -> None:
    alone = TensorDataset(torch.zeros(8, 4), torch.ones(8, dtype=torch.long))
    with pytest.raises(ValueError, match="must have samples of two classes or more, got only label 1"):
        evenhand.fit(make_model, alone, recipe=RECIPE)


def test_identifiers_are_no_labels() -> None:
    named = TensorDataset(torch.zeros(8, 4), torch.tensor([0, 10**12] * 4))
    with pytest.raises(
        ValueError, match="labels must be numbered from 0 to 99,999 at most, got 1,000,000,000"
    ):
        evenhand.fit(make_model, named, recipe=RECIPE)


def test_holding_out_keeps_every_class_and_every_sample_once() -> None:
    split = evenhand.Split(torch.zeros(23, 1), torch.tensor([0] * 20 + [1] * 2 + [2]))
    kept, held, rows = hold_out(split)
    assert np.array_equal(rows, kept.rows)
    assert sorted([*kept.rows.tolist(), *held.rows.tolist()]) == list(range(23))
    assert kept.y.unique().tolist() == [0, 1, 2] and held.y.unique().tolist() == [0, 1]
    assert kept.index.tolist() == list(range(len(kept)))
