"""EIIL against slopes worked out by hand, and against what its objective must lead to."""

import pytest
import torch
from by_hand import close
from torch.nn import functional as F

from evenhand.methods import eiil
from evenhand.methods.eiil import slopes, soft_environments


def test_eiil_1_the_slope_of_the_loss_in_the_scale_of_the_logits() -> None:
    # p = (3/4, 1/4) for logits (ln 3, 0): the mean logit is 3/4 ln 3, less that of the label.
    ln3 = torch.tensor(3.0).log()
    found = slopes(torch.tensor([[ln3, 0.0], [ln3, 0.0]]), torch.tensor([0, 1]))
    close(found, [-0.25 * ln3, 0.75 * ln3])


def test_eiil_1_is_the_derivative_that_autograd_gives() -> None:
    logits, labels = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 4
    scale = torch.ones(6, requires_grad=True)
    F.cross_entropy(scale[:, None] * logits, labels, reduction="sum").backward()
    close(slopes(logits, labels), scale.grad)


def test_eiil_2_the_first_step_follows_the_gradient_of_the_penalty() -> None:
    """Adam's first step has the size of the rate, and the direction of the gradient."""
    slope, start = torch.tensor([2.0, -1.0, 3.0]), torch.zeros(3)
    # w = 1/2: both means are 2/3, so that nothing changes yet.
    close(soft_environments(slope, start, steps=1, lr=0.1), [0.5] * 3)
    # A first sample that leans to 1 makes the first mean larger: positive slopes go up, negative ones down.
    start = torch.tensor([1.0, 0.0, 0.0])
    found = soft_environments(slope, start, steps=1, lr=0.1).logit()
    close(found, [1.1, -0.1, 0.1], rtol=1e-4)


def test_eiil_3_environments_separate_what_the_reference_gets_wrong() -> None:
    slope = torch.tensor([1.0] * 5 + [-1.0] * 15)
    start = torch.randn(20, generator=torch.Generator().manual_seed(3))
    found = soft_environments(slope, start, steps=400, lr=0.05) > 0.5
    assert found[:5].all() != found[5:].all() and len(found[:5].unique()) == len(found[5:].unique()) == 1


@pytest.mark.parametrize("settings", [{"reference_epochs": 0}, {"steps": 0}])
def test_too_few_epochs_or_steps_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="reference_epochs and steps must be at least 1"):
        eiil.train(None, **settings)  # type: ignore[arg-type]
