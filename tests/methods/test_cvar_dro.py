"""CVaR-DRO against weights worked out by hand."""

import math

import numpy as np
import pytest
import torch
from by_hand import LN2, asked, batch, close, identity, logits

from evenhand.methods import cvar_dro
from evenhand.methods.cvar_dro import Dual, regularised, worst_share


def test_cvar_1_the_largest_losses_weigh_the_same_and_the_next_one_has_the_rest() -> None:
    # alpha m is 2.5: two samples weigh 1 / 2.5, the third 0.5 / 2.5, whatever their order in the batch.
    close(worst_share(torch.tensor([1.0, 5, 3, 2, 4]), alpha=0.5), [0, 0.4, 0.2, 0, 0.4])
    close(worst_share(torch.tensor([1.0, 5, 3, 2, 4]), alpha=0.4), [0, 0.5, 0, 0, 0.5])
    close(worst_share(torch.tensor([1.0, 2, 3, 4]), alpha=1.0), [0.25] * 4)
    close(worst_share(torch.tensor([1.0, 2]), alpha=0.1), [0, 1])  # a small last batch: its worst sample


def test_cvar_1_the_loss_is_the_mean_of_the_worst_and_the_weights_carry_no_gradient() -> None:
    objective = asked(cvar_dro, [0, 1], alpha=0.5)["objective"]
    x = logits(1, 3, 2, 4)
    loss = objective(identity, batch(x))
    close(loss, (3 + 4) / 2 * LN2)
    loss.backward()
    # A loss of k ln 2 leaves the probability 1 - 2^-k for the wrong class; the two others get no gradient.
    close(x.grad[:, 1], [0, 7 / 8 / 2, 0, 15 / 16 / 2])


def test_cvar_2_weights_are_exponential_up_to_the_limit_and_sum_to_one() -> None:
    # exp(v / reg) is 1, 2, 4, 8, and the limit is 1 / (0.5 x 4) = 1/2: 8/15 > 1/2, so the others share 1/2.
    v = torch.tensor([0, 1, 2, 3]) * LN2
    close(regularised(v, alpha=0.5, reg=1.0), [1 / 14, 2 / 14, 4 / 14, 1 / 2])
    close(
        regularised(v, alpha=0.25, reg=1.0), [1 / 15, 2 / 15, 4 / 15, 8 / 15]
    )  # a limit of 1 is not reached
    close(regularised(v, alpha=0.5, reg=LN2 / 20), worst_share(v, alpha=0.5))  # little regularisation
    close(regularised(v, alpha=1.0, reg=0.1), [0.25] * 4)
    close(regularised(torch.full((3,), 2.0), alpha=0.1, reg=0.01), [1 / 3] * 3)


@pytest.mark.parametrize("seed", range(5))
def test_cvar_2_weights_maximise_the_regularised_mean(seed: int) -> None:
    """No other weights within the limit have a higher mean loss less reg x their divergence from even ones."""
    random = np.random.default_rng(seed)
    v, alpha, reg = torch.from_numpy(random.exponential(size=9)).float(), 0.4, 0.3
    best = regularised(v, alpha=alpha, reg=reg).double()
    assert float(best.sum()) == pytest.approx(1) and float(best.max()) <= 1 / (alpha * 9) + 1e-6

    def value(w: torch.Tensor) -> float:
        return float((w * v).sum() - reg * (w * (9 * w).log()).sum())

    for _ in range(200):
        w = torch.from_numpy(random.dirichlet(np.full(9, 2.0)))
        if w.max() <= 1 / (alpha * 9):
            assert value(w) <= value(best) + 1e-6


def test_cvar_3_the_dual_form_and_the_gradient_of_its_threshold() -> None:
    objective = Dual(alpha=0.25, guess=2 * LN2)
    loss = objective(identity, batch(logits(1, 3, 2.5, 6)))
    close(loss, (2 + (1 + 0.5 + 4) / 4 / 0.25) * LN2)
    loss.backward()
    close(objective.eta.grad, 1 - 3 / 4 / 0.25)  # three of four lie above it


def test_cvar_3_the_best_threshold_gives_the_mean_of_the_worst() -> None:
    x = logits(1, 3, 2, 4)
    for eta in (2.0, 2.5, 3.0):  # anywhere between the second and the third largest loss
        close(Dual(0.5, eta * LN2)(identity, batch(x)), (3 + 4) / 2 * LN2)


def test_the_form_decides_what_is_minimised() -> None:
    x = logits(1, 2, 3, 4)
    settings = {"alpha": 0.5, "reg": 1.0}
    found = [
        asked(cvar_dro, [0, 1], form=form, **settings)["objective"](identity, batch(x))
        for form in ("batch", "kl", "dual")
    ]
    mixed = (1 * 1 / 14 + 2 * 2 / 14 + 3 * 4 / 14 + 4 / 2) * LN2
    dual = (1 + (0 + 1 + 2 + 3) / 4 / 0.5) * LN2  # with two classes a guess has the loss ln 2
    close(torch.stack(found), [3.5 * LN2, mixed, dual])


@pytest.mark.parametrize("settings", [{"alpha": 0.05}, {"alpha": 1.5}, {"reg": 0.0}, {"alpha": math.nan}])
def test_a_share_of_less_than_one_sample_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="at least one of the 10 samples of a batch and be at most 1"):
        asked(cvar_dro, [0, 1], **settings)
