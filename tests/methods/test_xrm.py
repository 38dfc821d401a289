"""XRM's twins against numbers worked out by hand."""

import math

import torch
from by_hand import LN2, close
from torch import Tensor, nn

from evenhand.methods.xrm import Twins
from evenhand.training.data import Batch


class Second(nn.Module):
    """The twin of these tests: its outputs are the last two inputs; the model's are the first two."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 2:]


def model(x: Tensor) -> Tensor:
    return x[:, :2]


def outputs(*losses: tuple[float, float]) -> Tensor:
    """Inputs for which the losses of class 0 under the model and its twin are these multiples of ln 2."""
    rows = [[0.0, math.log(2**first - 1), 0.0, math.log(2**second - 1)] for first, second in losses]
    return torch.tensor(rows, requires_grad=True)


def step(twins: Twins, x: Tensor) -> Tensor:
    index = torch.arange(len(x))
    return twins(model, Batch(x=x, y=torch.zeros(len(x), dtype=torch.int64), index=index, row=index))


def make(labels: list[int], half: list[int]) -> Twins:
    return Twins(Second(), torch.tensor(labels), torch.tensor(half, dtype=torch.int64), 2)


def test_xrm_1_each_twin_has_the_sum_over_classes_of_the_mean_loss_in_its_half(monkeypatch) -> None:
    monkeypatch.setattr(torch, "rand_like", torch.ones_like)  # no label flips
    twins = make([0, 0, 1, 0], half=[3])
    x = outputs((1, 5), (3, 5), (1, 5), (5, 2))
    loss = step(twins, x)
    # The model: class 0 has (1 + 3) / 2, and class 1, at even odds, 1. The twin: 2.
    close(loss, (2 + 1 + 2) * LN2)
    loss.backward()
    # Each sample moves its own twin alone; 1/2, as two samples of class 0 are in the model's half.
    wrong = 1 - 2.0 ** -torch.tensor([1.0, 3.0])
    close(x.grad[:2, 1], wrong / 2)
    assert not x.grad[:3, 2:].any() and not x.grad[3, :2].any() and x.grad[3, 2:].any()


def test_xrm_2_labels_flip_to_the_held_out_twins_prediction_for_good(monkeypatch) -> None:
    drawn = torch.tensor([0.49, 0.51, 0.0, 0.49])
    monkeypatch.setattr(torch, "rand_like", lambda chance: drawn)
    twins = make([0, 0, 0, 0], half=[3])
    # The held-out twin gives class 1 a probability of 3/4, so that the chance is (3/4 - 1/2) 2 = 1/2. Of the
    # third sample it knows nothing: the chance is 0. The last one's held-out twin is the model.
    x = outputs((9, 2), (9, 2), (9, 1), (2, 9))
    step(twins, x)
    assert twins.labels.tolist() == [1, 0, 0, 1]
    drawn = torch.ones(4)
    step(twins, x)
    assert twins.labels.tolist() == [1, 0, 0, 1], "they stay as they are"


def test_xrm_2_a_flipped_label_is_trained_on(monkeypatch) -> None:
    monkeypatch.setattr(torch, "rand_like", torch.zeros_like)
    twins = make([0], half=[])
    x = outputs((2, 3))
    close(step(twins, x), 2 * LN2)
    close(step(twins, x), math.log(4 / 3))  # now the label is 1, which the model gives 3/4


def test_xrm_2_the_labels_and_the_twin_are_kept_in_checkpoints() -> None:
    twins = Twins(nn.Linear(4, 2), torch.tensor([0, 1]), torch.tensor([1]), 2)
    assert set(twins.state_dict()) == {"twin.weight", "twin.bias", "labels"}
