"""AGRO against numbers worked out by hand."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.methods.agro import Grouped, cover_weights
from evenhand.training.data import Batch

LOSSES = torch.tensor([1.0, 2.0, 4.0])
GROUPS = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
MEANS = [2 / 1.5, 5 / 1.5]


def close(actual: Tensor, expected: list[float] | float) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=1e-5, atol=1e-7)


def grouped(num_groups: int = 2, cover: float = 0.2, warmup: int = 0) -> Grouped:
    features = np.random.default_rng(0).random((4, 3), dtype=np.float32)
    return Grouped(features, torch.eye(4), num_groups, cover=cover, min_weight=0.1, warmup=warmup)


def test_agro_1_and_2_losses_of_soft_groups_and_sizes_are_moving_averages() -> None:
    """[AGRO-1] (1 + 0.5 x 2) / 1.5 and (0.5 x 2 + 4) / 1.5; [AGRO-2] then half of each new loss."""
    objective = grouped()
    objective.covered(LOSSES, GROUPS)
    close(objective.average, MEANS)
    close(objective.sizes, [0.95 + 0.05 * 1.5] * 2)
    objective.covered(4 * LOSSES, GROUPS)
    close(objective.average, [2.5 * each for each in MEANS])
    close(objective.sizes, [0.95 * (0.95 + 0.05 * 1.5) + 0.05 * 1.5] * 2)


@pytest.mark.parametrize(
    "cover, expected",
    [
        # Ordered by loss: the groups 2, 0 and 1, with shares of 0.3, 0.2 and 0.5.
        (0.4, [(1 - 0.3 / 0.4) / 0.2, 0.1, 1 / 0.4]),
        (0.2, [0.1, 0.1, 1 / 0.3]),
        (0.6, [1 / 0.6, (1 - 0.5 / 0.6) / 0.5, 1 / 0.6]),
        (1.0, [1.0, 1.0, 1.0]),
    ],
)
def test_agro_3_the_worst_share_of_the_samples_has_all_the_mass(cover: float, expected: list[float]) -> None:
    """[AGRO-3]"""
    average, share = torch.tensor([2.0, 1.0, 3.0]), torch.tensor([0.2, 0.5, 0.3])
    close(cover_weights(average, share, cover, 0.1), expected)


def test_agro_4_the_covered_loss_counts_groups_by_share_and_weight() -> None:
    """[AGRO-4] Shares of 1/4 and 3/4; group 1 is the worse, and the cover of 1/2 lies within it."""
    objective = grouped(cover=0.5)
    objective.average = torch.tensor([1.0, 2.0])
    objective.sizes = (torch.tensor([2.0, 6.0]) - 0.05 * 1.5) / 0.95
    close(objective.covered(LOSSES, GROUPS), 0.25 * 0.1 * MEANS[0] + 1.0 * MEANS[1])


@pytest.mark.parametrize("epoch", [0, 1])
def test_agro_5_the_grouper_climbs_the_covered_loss_and_then_the_model_descends_it(epoch: int) -> None:
    torch.manual_seed(0)
    objective, reference = (grouped(3, cover=0.5, warmup=1) for _ in range(2))
    reference.load_state_dict(objective.state_dict())
    model, rows = nn.Linear(3, 2), torch.arange(4)
    batch = Batch(x=torch.randn(4, 3), y=torch.tensor([0, 0, 1, 1]), index=rows, row=rows, epoch=epoch)
    groups = objective.parameter_groups(model)
    optimizers = {name: torch.optim.SGD(group, lr=1.0) for name, group in groups.items()}
    losses = F.cross_entropy(model(batch.x), batch.y, reduction="none")
    loss = reference.covered(losses, reference.groups(reference.features, reference.errors))
    grouper, own = list(reference.grouper.parameters()), list(model.parameters())
    up, down = torch.autograd.grad(loss, grouper, retain_graph=True), torch.autograd.grad(loss, own)
    expected = [old + (epoch == 0) * new for old, new in zip(grouper, up, strict=True)]
    expected += [old.detach() - (epoch == 1) * new for old, new in zip(own, down, strict=True)]
    assert torch.equal(objective.step(model, batch, optimizers), loss.detach())
    torch.testing.assert_close([*objective.grouper.parameters(), *model.parameters()], expected)


def test_the_grouper_starts_with_the_groups_that_it_is_taught() -> None:
    torch.manual_seed(0)
    objective = grouped(3)
    slices = torch.tensor([2, 0, 1, 2])
    objective.imitate(slices)
    assert objective.groups(objective.features, objective.errors).argmax(1).tolist() == slices.tolist()


def test_the_averages_are_kept_in_checkpoints_and_the_features_are_not() -> None:
    state = grouped().state_dict()
    assert {"average", "sizes", "grouper.0.weight"} <= set(state) and "errors" not in state
