"""Group DRO against numbers worked out by hand: the losses are multiples of ln 2."""

import inspect
import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from evenhand import Split
from evenhand.methods import gdro
from evenhand.methods.gdro import WorstGroup
from evenhand.training.data import Batch

LN2 = math.log(2)


def logits(*multiples: float) -> Tensor:
    """Outputs (samples, 2) whose cross-entropy for class 0 is this many times ln 2."""
    return torch.tensor([[0.0, math.log(2**multiple - 1)] for multiple in multiples], requires_grad=True)


def batch(x: Tensor, group: list[int]) -> Batch:
    rows = torch.arange(len(x))
    return Batch(
        x=x, y=torch.zeros(len(x), dtype=torch.int64), index=rows, row=rows, group=torch.tensor(group)
    )


def identity(x: Tensor) -> Tensor:
    return x


def close(actual: Tensor, expected: list[float] | float) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=1e-5, atol=1e-7)


def test_q_grows_exponentially_and_an_absent_group_has_loss_zero() -> None:
    objective = WorstGroup(torch.tensor([5, 5, 5]), step_size=1.0, adjustment=0.0)
    close(objective.q, [1 / 3, 1 / 3, 1 / 3])

    # Group 0 has the mean loss (1 + 3) / 2 ln 2, group 1 is absent, group 2 has 4 ln 2.
    loss = objective(identity, batch(logits(1, 3, 4), [0, 0, 2]))
    close(objective.q, [4 / 21, 1 / 21, 16 / 21])
    close(loss, (4 * 2 + 16 * 4) / 21 * LN2)

    # Only group 1 is there: its q doubles, the others shrink only because all must sum to one.
    loss = objective(identity, batch(logits(1), [1]))
    close(objective.q, [4 / 22, 2 / 22, 16 / 22])
    close(loss, 2 / 22 * LN2)


def test_the_step_size_is_the_official_one_unless_told_otherwise() -> None:
    assert inspect.signature(gdro.train).parameters["step_size"].default == 0.01
    objective = WorstGroup(torch.tensor([1, 1]), step_size=0.01, adjustment=0.0)
    objective(identity, batch(logits(3), [1]))
    close(objective.q[1] / objective.q[0], 2**0.03)


def test_a_samples_gradient_is_its_groups_q_over_the_groups_size() -> None:
    """q itself carries no gradient."""
    objective = WorstGroup(torch.tensor([5, 5]), step_size=1.0, adjustment=0.0)
    x = logits(1, 1, 2)
    objective(identity, batch(x, [0, 0, 1])).backward()
    share = torch.tensor([1 / 3 / 2, 1 / 3 / 2, 2 / 3])  # q = (2, 4) / 6
    wrong = torch.tensor([1 / 2, 1 / 2, 3 / 4])  # probability of the wrong class
    torch.testing.assert_close(x.grad, (share * wrong)[:, None] * torch.tensor([-1.0, 1.0]))


def test_the_adjustment_enters_q_but_not_the_loss() -> None:
    objective = WorstGroup(torch.tensor([1, 4, 16]), step_size=1.0, adjustment=4 * LN2)
    loss = objective(identity, batch(logits(1, 1), [0, 2]))
    # C / sqrt(n) is 4, 2 and 1 times ln 2; group 1 is absent.
    close(objective.q, [2**5 / 40, 2**2 / 40, 2**2 / 40])
    close(loss, 36 / 40 * LN2)


def test_without_adjustment_the_sizes_play_no_part() -> None:
    objective = WorstGroup(torch.tensor([1, 4, 16]), step_size=1.0, adjustment=0.0)
    objective(identity, batch(logits(1, 1), [0, 2]))
    close(objective.q, [2 / 5, 1 / 5, 2 / 5])


def test_a_group_without_training_samples_gets_no_weight() -> None:
    objective = WorstGroup(torch.tensor([3, 0, 1]), step_size=1.0, adjustment=1.0)
    close(objective.q, [0.5, 0, 0.5])
    assert torch.isfinite(objective(identity, batch(logits(1), [0])))
    assert objective.q[1] == 0


def test_q_is_kept_in_checkpoints() -> None:
    objective = WorstGroup(torch.tensor([1, 1]), step_size=1.0, adjustment=0.0)
    objective(identity, batch(logits(3), [1]))
    again = WorstGroup(torch.tensor([1, 1]), step_size=1.0, adjustment=0.0)
    again.load_state_dict(objective.state_dict())
    assert torch.equal(again.q, objective.q) and again.q[1] > again.q[0]


def fitted(group: list[int] | None, **settings: object) -> dict:
    """What gdro asks the engine for."""
    asked: dict = {}

    def fit(stage: str, **given: object) -> SimpleNamespace:
        asked.update(given)
        return SimpleNamespace(model=None)

    groups = None if group is None else torch.tensor(group)
    train = Split(torch.zeros(4, 1), torch.tensor([0, 0, 1, 1]), group=groups)
    task = SimpleNamespace(name="plain", group_names=("a", "b", "c", "d"))
    gdro.train(SimpleNamespace(train=train, task=task, fit=fit), **settings)
    return asked


def test_groups_are_drawn_evenly_as_in_the_official_runs() -> None:
    draw = fitted([0, 0, 0, 2])["draw"]
    close(draw, [1 / 3, 1 / 3, 1 / 3, 1])


def test_balanced_sampling_can_be_switched_off() -> None:
    assert fitted([0, 0, 0, 2], balanced_sampling=False)["draw"] is None


def test_there_is_a_weight_for_every_group_of_the_task() -> None:
    assert len(fitted([0, 0, 0, 2])["objective"].q) == 4


def test_a_task_without_groups_is_refused() -> None:
    with pytest.raises(ValueError, match="gdro needs the group of every training sample, but task 'plain'"):
        fitted(None)
