"""Last layers against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch
from by_hand import close, linear
from torch import nn

from evenhand.methods._heads import (
    Head,
    descend,
    even_subset,
    even_weights,
    head_of,
    sparse_head,
    with_head,
)

START = Head(torch.tensor([[1.0], [-1.0]]), torch.tensor([0.5, 0.0]))


def test_a_new_head_replaces_the_old_one_in_a_copy() -> None:
    model = nn.Sequential(nn.Linear(3, 1), linear([[2.0], [3.0]], [4.0, 5.0]))
    assert head_of(model).bias.tolist() == [4, 5]
    changed = with_head(model, START)
    assert head_of(changed).weight.tolist() == [[1], [-1]] and head_of(model).weight.tolist() == [[2], [3]]
    assert torch.equal(changed[0].weight, model[0].weight)


@pytest.mark.parametrize("layer", [nn.Linear(3, 2, bias=False), nn.Bilinear(3, 3, 2)])
def test_a_last_layer_of_another_kind_is_refused(layer: nn.Module) -> None:
    with pytest.raises(ValueError, match="must be an nn.Linear with a bias|no linear layer"):
        head_of(nn.Sequential(nn.Identity(), layer))


def test_every_class_weighs_the_same() -> None:
    close(even_weights(torch.tensor([0, 0, 2, 2, 2, 2])), [1 / 4] * 2 + [1 / 8] * 4)  # class 1 is absent


def test_an_even_subset_has_as_many_of_each_as_of_the_rarest() -> None:
    labels = np.array([5] * 9 + [1] * 2 + [3] * 4)
    rows = even_subset(labels, 0, 1)
    assert np.unique(labels[rows], return_counts=True)[1].tolist() == [2, 2, 2]
    assert len(set(rows.tolist())) == 6
    assert rows.tolist() == even_subset(labels, 0, 1).tolist() != even_subset(labels, 0, 2).tolist()


def test_head_1_one_step_of_descent() -> None:
    """Logits 1.5 and -1 for x = 1, and -0.5 and 1 for x = -1; both samples have the label 0."""
    features, labels, weights = (
        torch.tensor([[1.0], [-1.0]]),
        torch.tensor([0, 0]),
        torch.tensor([0.75, 0.25]),
    )
    wrong = [1 / (1 + math.exp(2.5)), 1 / (1 + math.exp(-1.5))]  # probabilities of class 1
    slope = [0.75 * wrong[0], 0.25 * wrong[1]]
    found = descend(START, features, labels, weights, steps=1, lr=0.1)
    change = 0.1 * (slope[0] - slope[1])
    close(found.weight, [[1 + change], [-1 - change]])
    close(found.bias, [0.5 + 0.1 * sum(slope), -0.1 * sum(slope)])


def test_head_1_the_pull_draws_back_to_the_start() -> None:
    features, labels, weights = torch.tensor([[1.0]]), torch.tensor([0]), torch.tensor([1.0])
    first = descend(START, features, labels, weights, steps=1, lr=0.1)
    free, pulled = (
        descend(START, features, labels, weights, steps=2, lr=0.1, pull=pull) for pull in (0.0, 0.5)
    )
    # In the second step the gradient of 0.5 x |head - start|^2 is the distance that the first step went.
    close(free.weight - pulled.weight, 0.1 * (first.weight - START.weight))
    close(free.bias - pulled.bias, 0.1 * (first.bias - START.bias))


def test_head_1_long_gradients_are_cut() -> None:
    features, labels, weights = torch.tensor([[-40.0]]), torch.tensor([0]), torch.tensor([1.0])
    found = descend(START, features, labels, weights, steps=1, lr=0.1, most=1.0)
    moved = torch.cat([(found.weight - START.weight).flatten(), found.bias - START.bias])
    close(moved.norm(), 0.1)


@pytest.mark.parametrize("num_classes", [2, 4])
@pytest.mark.parametrize("strength", [0.03, 0.15, 0.5])
def test_head_2_fulfils_the_conditions_of_an_optimum(num_classes: int, strength: float) -> None:
    """Where a weight is not zero, the slope of the losses balances the penalty's; elsewhere it is smaller."""
    random = np.random.default_rng(num_classes)
    x = random.normal(size=(60, 5))
    y = (x[:, :num_classes] + 0.5 * random.normal(size=(60, num_classes))).argmax(1)
    data = torch.from_numpy(x).float(), torch.from_numpy(y)
    weight, bias = (each.double().numpy() for each in sparse_head(*data, num_classes, strength, steps=4000))
    scores = np.exp(x @ weight.T + bias)
    error = scores / scores.sum(1, keepdims=True) - np.eye(num_classes)[y]
    slope = strength * error.T @ x
    np.testing.assert_allclose(strength * error.sum(0), 0, atol=1e-3)  # the bias has no penalty
    np.testing.assert_allclose(slope[weight != 0], -np.sign(weight[weight != 0]), atol=2e-3)
    assert (np.abs(slope[weight == 0]) <= 1 + 2e-3).all() and (weight == 0).any()
    assert strength < 0.1 or (weight != 0).any()
