"""PGI against numbers worked out by hand."""

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.methods.pgi import Invariance, contrast, divide, unlike
from evenhand.training.data import Batch

LN3, LN7 = math.log(3), math.log(7)


def close(actual: Tensor, expected: list | float) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=1e-5, atol=1e-7)


def batch(x: Tensor, y: list[int], environment: list[int], step: int = 0) -> Batch:
    rows = torch.arange(len(y))
    return Batch(
        x=x, y=torch.tensor(y), index=rows, row=rows, environment=torch.tensor(environment), step=step
    )


def taken(objective: Invariance, model: nn.Module, given: Batch) -> Tensor:
    """The loss of one step, whose gradients the model keeps."""
    groups = objective.parameter_groups(model)
    optimizers = {name: torch.optim.SGD(group, lr=0.0) for name, group in groups.items() if group}
    return objective.step(model, given, optimizers)


def test_pgi_1_both_parts_count_the_same() -> None:
    """[PGI-1] Losses of ln 4, ln 4, ln 4 in the majority and ln 2 in the minority."""
    x = torch.tensor([[0.0, LN3]] * 3 + [[0.0, 0.0]])
    model = nn.Linear(2, 2, bias=False)
    model.weight.data = torch.eye(2)
    close(
        taken(Invariance(0.0, 1), model, batch(x, [0, 0, 0, 0], [0, 0, 0, 1])),
        (math.log(4) + math.log(2)) / 2,
    )
    # A part that is absent adds nothing.
    close(taken(Invariance(0.0, 1), model, batch(x[:3], [0, 0, 0], [0, 0, 0])), math.log(4) / 2)


def test_pgi_4_the_penalty_compares_the_parts_mean_predictions() -> None:
    """[PGI-4] Class 0: majority (1/2, 1/2), minority mean of (1/4, 3/4) and (1/2, 1/2); class 1 has one part."""
    logits = torch.tensor([[0.0, 0.0], [0.0, LN3], [0.0, 0.0], [0.0, LN7]])
    minority = 3 / 8, 5 / 8
    expected = sum(p * math.log(p / 0.5) for p in minority) / 2
    labels, parts = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 1, 1])
    close(unlike(logits, labels, parts), expected)
    # The other way round, the logarithm's other side counts.
    turned = sum(0.5 * math.log(0.5 / p) for p in minority) / 2
    close(unlike(logits, labels, 1 - parts), turned)


def test_pgi_4_classes_add_up_and_certain_predictions_stay_finite() -> None:
    logits = torch.tensor([[0.0, 0.0], [0.0, LN3]])
    once = unlike(logits, torch.tensor([0, 0]), torch.tensor([0, 1]))
    both = unlike(logits.repeat(2, 1), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1]))
    close(both, 2 * once.item())
    certain = torch.tensor([[1000.0, 0.0], [0.0, 1000.0]])
    close(unlike(certain, torch.tensor([0, 0]), torch.tensor([0, 1])), -math.log(1e-12) / 2)


def test_pgi_2_the_penalty_rises_and_does_not_reach_the_last_layer() -> None:
    """[PGI-2] After 3 of 4 steps three quarters of the weight; the head has the gradient of the loss alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    for step, share in ((0, 0.25), (2, 0.75), (9, 1.0)):
        given = batch(torch.randn(6, 3), [0, 0, 0, 1, 1, 1], [0, 1, 1, 0, 0, 1], step)
        loss = taken(Invariance(8.0, 4), model, given)
        found = [parameter.grad.clone() for parameter in model.parameters()]
        logits = model(given.x)
        losses = F.cross_entropy(logits, given.y, reduction="none")
        plain = (losses[given.environment == 0].mean() + losses[given.environment == 1].mean()) / 2
        close(loss, plain.item())
        total = plain + 8 * share * unlike(logits, given.y, given.environment)
        body, head = list(model[0].parameters()), list(model[2].parameters())
        expected = [*torch.autograd.grad(total, body, retain_graph=True), *torch.autograd.grad(plain, head)]
        torch.testing.assert_close(found, expected)


def test_pgi_3_a_division_is_good_if_its_parts_differ_in_risk_and_slope() -> None:
    """[PGI-3] Two samples of class 0 with logits (0, ln 3) and (0, 0), divided into (3/4, 1/4) and the rest.

    Losses are ln 4 and ln 2. Slopes (softmax - label) x logit are (0, 3/4 ln 3) and (0, 0).
    """
    logits, labels = torch.tensor([[0.0, LN3], [0.0, 0.0]]), torch.tensor([0, 0])
    first, second = math.log(4), math.log(2)
    risks = (0.75 * first + 0.25 * second) + (0.25 * first + 0.75 * second)
    slopes = (0.75 * 0.75 * LN3) ** 2 + (0.25 * 0.75 * LN3) ** 2
    close(contrast(torch.tensor([0.75, 0.25]), logits, labels), risks + 10 * slopes)


def test_pgi_3_slopes_are_gradients_with_respect_to_factors_of_the_logits() -> None:
    torch.manual_seed(0)
    logits, labels, parts = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0]), torch.rand(5)
    total = torch.zeros(())
    for part in (parts, 1 - parts):
        factors = torch.ones(3, requires_grad=True)
        risk = (part * F.cross_entropy(logits * factors, labels, reduction="none")).sum() / part.sum()
        (slope,) = torch.autograd.grad(risk, factors)
        total += risk.detach() + 10 * (slope**2).sum()
    close(contrast(parts, logits, labels), total.item())


def test_pgi_5_the_part_with_the_higher_loss_is_the_minority_and_small_classes_stay_whole() -> None:
    random = np.random.default_rng(0)
    labels = torch.tensor([0] * 40 + [1] * 40 + [2] * 3)
    hard = torch.zeros(83, dtype=torch.bool)
    hard[:20], hard[40:60] = True, True
    features = (random.standard_normal((83, 4)) + 6 * hard.numpy()[:, None]).astype(np.float32)
    logits = torch.where(hard[:, None], -1.0, 1.0) * F.one_hot(labels, 3)
    found = divide(features, features[60:], logits, labels, labels[60:], seed=0)
    assert found.dtype == bool and not found[80:83].any()
    assert divide(features, features[60:], logits, labels, labels[60:], seed=0).tolist() == found.tolist()
    assert found[83:].tolist() == found[60:83].tolist(), "validation samples are divided by the same nets"
    losses = F.cross_entropy(logits, labels, reduction="none").numpy()
    for own in (slice(0, 40), slice(40, 80)):
        part = found[own]
        assert 0 < part.sum() < 40, "the test could not fail"
        assert losses[own][part].mean() > losses[own][~part].mean()
