"""DebiAN against numbers worked out by hand, and its two updates one by one."""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.methods.debian import Alternating, unevenness, worse_part
from evenhand.training.data import Batch

# Two samples of class 0 and two of class 1. Only the columns of their labels count.
LABELS = torch.tensor([0, 0, 1, 1])
PARTS = torch.tensor([[0.75, 9.0], [0.25, 9.0], [9.0, 0.5], [9.0, 1.0]])
PROBABILITIES = torch.tensor([[0.8, 9.0], [0.4, 9.0], [9.0, 0.2], [9.0, 0.6]])
# Class 0: (0.75 x 0.8 + 0.25 x 0.4) / 1 = 0.7 and (0.25 x 0.8 + 0.75 x 0.4) / 1 = 0.5.
# Class 1: (0.5 x 0.2 + 1 x 0.6) / 1.5 = 0.7 / 1.5 and 0.5 x 0.2 / 0.5 = 0.2.


def close(actual: Tensor, expected: list[float] | float) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=1e-4, atol=1e-6)


def test_debian_1_the_discoverer_seeks_a_gap_between_the_parts() -> None:
    """[DEBIAN-1] Gaps of 0.2 and 0.7 / 1.5 - 0.2."""
    close(unevenness(PARTS, PROBABILITIES, LABELS, 0.0), -math.log(0.2) - math.log(0.7 / 1.5 - 0.2))


def test_debian_2_neither_part_may_be_empty() -> None:
    """[DEBIAN-2] The shares of the first part are 0.5 and 0.75, so that |mean d - mean (1 - d)| is 0 and 0.5."""
    without = unevenness(PARTS, PROBABILITIES, LABELS, 0.0)
    close(unevenness(PARTS, PROBABILITIES, LABELS, 2.0) - without, -2 * math.log(0.5))


def test_debian_3_the_part_with_the_lower_probability_counts_more() -> None:
    """[DEBIAN-3] In both classes that is the second part, so that d becomes 1 - d."""
    close(worse_part(PARTS, PROBABILITIES, LABELS), [0.25, 0.75, 0.5, 0.0])
    # With class 0's probabilities exchanged, its first part is the worse one.
    close(worse_part(PARTS, PROBABILITIES[[1, 0, 2, 3]], LABELS), [0.75, 0.25, 0.5, 0.0])


def test_classes_are_judged_by_themselves() -> None:
    alone = unevenness(PARTS[:2], PROBABILITIES[:2], LABELS[:2], 1.0)
    rest = unevenness(PARTS[2:], PROBABILITIES[2:], LABELS[2:], 1.0)
    close(unevenness(PARTS, PROBABILITIES, LABELS, 1.0), (alone + rest).item())
    close(worse_part(PARTS[2:], PROBABILITIES[2:], LABELS[2:]), [0.5, 0.0])


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def batch(epoch: int = 0) -> Batch:
    rows = torch.arange(6)
    return Batch(x=torch.randn(6, 3), y=torch.tensor([0, 0, 0, 1, 1, 1]), index=rows, row=rows, epoch=epoch)


def descended(network: nn.Module, loss: Tensor) -> list[Tensor]:
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    return [old - new for old, new in zip(network.parameters(), gradients, strict=True)]


def test_debian_4_a_step_updates_both_nets_each_against_the_other_in_evaluation_mode() -> None:
    torch.manual_seed(0)
    model, objective = net(), Alternating(net(), balance=0.3)
    groups = objective.parameter_groups(model)
    optimizers = {name: torch.optim.SGD(group, lr=1.0) for name, group in groups.items()}
    previous = batch()
    objective.step(model, previous, optimizers)
    for other in (
        previous,
        None,
    ):  # the second step learns from the first one's batch; a new epoch from its own
        given = batch(epoch=0 if other is not None else 1)
        other = given if other is None else other
        old_model, old = copy.deepcopy(model).train(), copy.deepcopy(objective.discoverer)
        with torch.no_grad():
            parts = old.eval()(given.x).sigmoid()
        logits = old_model(given.x)
        weight = 1 + worse_part(parts, logits.softmax(1).detach(), given.y)
        loss = (weight * F.cross_entropy(logits, given.y, reduction="none")).mean()
        wanted = descended(old_model, loss)
        assert torch.equal(objective.step(model, given, optimizers), loss.detach())
        torch.testing.assert_close(list(model.parameters()), wanted)
        with torch.no_grad():
            probabilities = copy.deepcopy(model).eval()(other.x).softmax(1)
        wanted = descended(old, unevenness(old.train()(other.x).sigmoid(), probabilities, other.y, 0.3))
        torch.testing.assert_close(list(objective.discoverer.parameters()), wanted)
        assert model.training
