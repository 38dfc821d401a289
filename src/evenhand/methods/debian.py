"""DebiAN (Li et al., ECCV 2022): a discoverer finds biased parts of each class, which are reweighted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.training.data import Batch
from evenhand.training.run import Run

VERSION = 1
HELPS = "the shortcut is learned early; classes are large"
GRID: dict[str, list[Any]] = {}
PUBLISHED = "accuracy on the test set (DebiAN, bar_exp/base_trainer.py)"
COST = 2.0  # two nets; each also looks at the other's batch
TINY = 1e-6


def train(run: Run, *, balance: float = 1.0) -> nn.Module:
    """Train classifier and discoverer in turn; `balance`: how strongly neither part may be empty."""
    objective = Alternating(run.make_model(salt=1), balance=balance)
    fit = run.fit("model", objective=objective)
    objective.load_state_dict(fit.objective_state)
    parts = run.predict(objective.discoverer, run.train).sigmoid()
    weight = worse_part(parts, run.predict(fit.model, run.train).softmax(1), run.train.y)
    run.found(weight.numpy() > 0.5)
    return fit.model


class Alternating(nn.Module):
    """Both nets learn in turn.

    [DEBIAN-4] Each step updates the classifier, then the discoverer on another batch, that of the step
    before. The net that is not updated is in evaluation mode.
    """

    def __init__(self, discoverer: nn.Module, *, balance: float) -> None:
        super().__init__()
        self.discoverer, self.balance = discoverer, balance
        self._previous: Batch | None = None

    def parameter_groups(self, model: nn.Module) -> dict[str, list[nn.Parameter]]:
        return {"model": list(model.parameters()), "discoverer": list(self.discoverer.parameters())}

    def step(self, model: nn.Module, batch: Batch, optimizers: dict[str, Any]) -> Tensor:
        with torch.no_grad():
            parts = self.discoverer.eval()(batch.x).float().sigmoid()
        logits = model(batch.x)
        weight = 1 + worse_part(parts, logits.detach().float().softmax(1), batch.y)  # [DEBIAN-3]
        loss = (weight * F.cross_entropy(logits, batch.y, reduction="none")).mean()
        update(optimizers["model"], loss)

        # An epoch begins without an earlier batch, so that a resumed training makes the same steps.
        other = (
            self._previous if self._previous is not None and self._previous.epoch == batch.epoch else batch
        )
        self._previous = batch
        model.eval()
        with torch.no_grad():
            probabilities = (
                model(other.x.detach()).float().softmax(1)
            )  # not batch.x itself: its pass is above
        model.train()
        parts = self.discoverer.train()(other.x).float().sigmoid()
        update(optimizers["discoverer"], unevenness(parts, probabilities, other.y, self.balance))
        return loss.detach()


def update(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def part_means(parts: Tensor, values: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """The classes' means of values, weighted by parts and by 1 - parts, (classes,) each.

    `parts` and `values` are (batch,), `member` is (classes, batch).
    """
    weights = torch.stack([member * parts, member * (1 - parts)])
    first, second = (weights * values).sum(2) / (weights.sum(2) + TINY)
    return first, second


def unevenness(parts: Tensor, probabilities: Tensor, labels: Tensor, balance: float) -> Tensor:
    """The discoverer's loss, a sum over the classes of the batch.

    With d a sample's output for its label, and p the classifier's probability of the label:

    - [DEBIAN-1] -log(e + |mean of p weighted by d - mean of p weighted by 1 - d|)
    - [DEBIAN-2] -balance x log(e + 1 - |mean of d - mean of 1 - d|)
    """
    d, p = (each.gather(1, labels[:, None])[:, 0] for each in (parts, probabilities))
    member = (labels == labels.unique()[:, None]).float()
    first, second = part_means(d, p, member)
    share = (member * d).sum(1) / member.sum(1)
    uneven = -torch.log(TINY + (first - second).abs())
    empty = -torch.log(TINY + 1 - (2 * share - 1).abs())
    return (uneven + balance * empty).sum()


def worse_part(parts: Tensor, probabilities: Tensor, labels: Tensor) -> Tensor:
    """[DEBIAN-3] How far each sample is in its class's part with the lower mean p, (batch,) in [0, 1].

    The classifier's loss of a sample is multiplied by 1 + this number.
    """
    d, p = (each.gather(1, labels[:, None])[:, 0] for each in (parts, probabilities))
    classes, position = labels.unique(return_inverse=True)
    first, second = part_means(
        d, p, (position == torch.arange(len(classes), device=d.device)[:, None]).float()
    )
    return torch.where((second < first)[position], 1 - d, d)
