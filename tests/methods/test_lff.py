"""LfF against numbers worked out by hand, and against two nets trained by two optimisers."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from shortcut import shortcut_task
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.core.ranks import seed_epoch
from evenhand.methods import lff
from evenhand.methods.lff import Failures
from evenhand.training.data import Batch
from evenhand.training.log import Silent
from evenhand.training.run import Run

LN2 = math.log(2)
LABELS = torch.tensor([0, 0, 1, 1])


class FirstTwo(nn.Module):
    """The biased net of these tests: the first two inputs are its outputs; the other net's are the rest."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :2]


def debiased(x: Tensor) -> Tensor:
    return x[:, 2:]


def objective(q: float = 0.5, decay: float = 0.7, scale_by_q: bool = True) -> Failures:
    return Failures(FirstTwo(), LABELS, 2, q=q, decay=decay, scale_by_q=scale_by_q)


def batch(samples: dict[int, tuple[float, float]]) -> Batch:
    """Samples whose losses under the biased and the debiased net are these multiples of ln 2."""
    index = torch.tensor(list(samples))
    x = torch.zeros(len(samples), 4)
    for row, (sample, multiples) in enumerate(samples.items()):
        for net, multiple in enumerate(multiples):
            x[row, 2 * net + 1 - LABELS[sample]] = math.log(2**multiple - 1)  # the wrong class's output
    return Batch(x=x.requires_grad_(), y=LABELS[index], index=index, row=index)


def step(module: Failures, samples: dict[int, tuple[float, float]]) -> tuple[float, Tensor, Tensor]:
    """One step: the loss in units of ln 2, and by what the cross-entropies of both nets were multiplied."""
    given = batch(samples)
    loss = module(debiased, given)
    (gradient,) = torch.autograd.grad(loss, given.x)
    # The gradient of a cross-entropy at its wrong output is that class's probability, here 1 - 2^-multiple.
    wrong = torch.tensor([[1 - 2.0**-multiple for multiple in multiples] for multiples in samples.values()])
    pairs = gradient.view(len(samples), 2, 2)
    shares = pairs.gather(2, (1 - given.y)[:, None, None].expand(-1, 2, 1))[..., 0] / wrong * len(samples)
    return loss.item() / LN2, shares[:, 0], shares[:, 1]


def close(actual: Tensor | float, expected: list[float] | float) -> None:
    torch.testing.assert_close(
        torch.as_tensor(actual).float(), torch.tensor(expected).float(), rtol=2e-5, atol=1e-6
    )


def test_weights_follow_the_averages_relative_to_the_class_maximum() -> None:
    module = objective()
    # First visits: the averages are the losses themselves. Class maxima: biased 2 and 3, debiased 2 and 1.
    loss, biased, weight = step(module, {0: (1, 2), 1: (2, 2), 2: (3, 1)})
    close(module.averages / LN2, [[1, 2, 3, 0], [2, 2, 1, 0]])
    close(weight, [0.5 / 1.5, 1 / 2, 1 / 2])
    close(biased, [0.5 * 2**-0.5, 0.5 * 2**-1, 0.5 * 2**-1.5])  # q p^q, p being 2^-loss
    expected_biased = (0.5 * 2**-0.5 * 1 + 0.5 * 2**-1 * 2 + 0.5 * 2**-1.5 * 3) / 3
    close(loss, expected_biased + (1 / 3 * 2 + 1 / 2 * 2 + 1 / 2 * 1) / 3)

    # Sample 0 alone: 0.7 x 1 + 0.3 x 3 and 0.7 x 2 + 0.3 x 1. The maxima are those of sample 1, not here.
    _, _, weight = step(module, {0: (3, 1)})
    close(module.averages / LN2, [[1.6, 2, 3, 0], [1.7, 2, 1, 0]])
    close(weight, [(1.6 / 2) / (1.6 / 2 + 1.7 / 2)])

    # Sample 1 gets easier, and with it the maximum of its class falls from 2 to 1.7.
    _, _, weight = step(module, {1: (1, 2)})
    close(module.averages / LN2, [[1.6, 1.7, 3, 0], [1.7, 2, 1, 0]])
    close(weight, [1 / 2])

    # A first visit late in training stores the loss itself; class 0 has no influence on class 1.
    _, _, weight = step(module, {3: (1, 4)})
    close(module.averages / LN2, [[1.6, 1.7, 3, 1], [1.7, 2, 1, 4]])
    close(weight, [(1 / 3) / (1 / 3 + 1)])


def test_without_the_factor_q_the_biased_loss_tends_to_cross_entropy() -> None:
    _, with_factor, _ = step(objective(q=0.01), {0: (3, 1)})
    _, without, _ = step(objective(q=0.01, scale_by_q=False), {0: (3, 1)})
    close(with_factor, [0.01 * 2**-0.03])
    close(without, [2**-0.03])


def test_the_decay_can_be_set() -> None:
    module = objective(decay=0.25)
    step(module, {0: (1, 2)})
    step(module, {0: (3, 4)})
    close(module.averages[:, 0] / LN2, [0.25 * 1 + 0.75 * 3, 0.25 * 2 + 0.75 * 4])


def test_losses_of_exactly_zero_do_no_harm() -> None:
    module = objective()
    x = torch.tensor([[1000.0, 0.0, 1000.0, 0.0]])
    index = torch.tensor([0])
    assert module(debiased, Batch(x=x, y=LABELS[index], index=index, row=index)) == 0


def test_the_biased_net_and_the_averages_are_kept_in_checkpoints() -> None:
    module = Failures(nn.Linear(4, 2), LABELS, 2, q=0.5, decay=0.7, scale_by_q=True)
    assert set(module.state_dict()) == {"biased.weight", "biased.bias", "visited", "averages"}


@pytest.mark.parametrize("q", [0, -0.1, 1.5])
def test_q_must_be_a_share(q: float) -> None:
    with pytest.raises(ValueError, match="q must be above 0 and at most 1"):
        lff.train(None, q=q)  # type: ignore[arg-type]


def test_two_epochs_equal_two_nets_with_an_optimiser_each(tmp_path: Path) -> None:
    task = shortcut_task(epochs=2)
    device = torch.device("cpu")
    recipe = task.recipe.replace(weight_decay=1e-2, precision="fp32")
    run = Run(
        task, recipe, seed=3, path=tmp_path / "a" / "b" / "c", identity={}, device=device, show=Silent()
    )
    found = lff.train(run, q=0.7)

    nets = [run.make_model(salt=1), run.make_model()]
    first_weights = [next(net.parameters()).detach().clone() for net in nets]
    assert not torch.equal(*first_weights), "the two nets must not start alike"
    optimizers = [torch.optim.Adam(net.parameters(), lr=recipe.lr, weight_decay=1e-2) for net in nets]
    y = task.train.y
    averages: list[dict[int, float]] = [{}, {}]
    for epoch in range(2):
        number, _ = seed_epoch(3, "model", epoch, device)
        order = np.random.default_rng(number).permutation(len(y))
        for rows in np.split(order, range(16, len(order), 16)):
            outputs = [net(task.train.x[rows]) for net in nets]
            losses = [F.cross_entropy(output, y[rows], reduction="none") for output in outputs]
            relative = []
            for average, loss in zip(averages, losses, strict=True):
                for row, value in zip(rows.tolist(), loss.tolist(), strict=True):
                    average[row] = 0.7 * average[row] + 0.3 * value if row in average else value
                top = [max(value for row, value in average.items() if y[row] == label) for label in (0, 1)]
                relative.append(torch.tensor([average[row] / top[y[row]] for row in rows.tolist()]))
            weight = relative[0] / (relative[0] + relative[1] + 1e-8)
            chosen = outputs[0].softmax(1)[range(len(rows)), y[rows]].detach()
            for optimizer, loss in zip(
                optimizers, [(0.7 * chosen**0.7 * losses[0]).mean(), (weight * losses[1]).mean()], strict=True
            ):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    for name, value in nets[1].state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, rtol=1e-3, atol=1e-5)
