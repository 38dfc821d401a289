"""LfF, Learning from Failure (Nam et al., NeurIPS 2020): a biased network finds samples to upweight."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.training.data import Batch
from evenhand.training.run import Run

VERSION = 1
HELPS = "the shortcut is learned first; settings can be tuned"
GRID = {"q": [0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95]}
COST = 2.0  # two nets


def train(run: Run, *, q: float = 0.05, decay: float = 0.7, scale_by_q: bool = True) -> nn.Module:
    """Train both networks together. The debiased one is the model, and its accuracy decides when to stop.

    - `q`: how much the biased network prefers what it already knows.
    - `decay`: of the samples' average losses.
    - `scale_by_q`: multiply the loss of the biased network by q, as the official code does.
    """
    if not 0 < q <= 1:
        raise ValueError(f"q must be above 0 and at most 1, got {q}")
    objective = Failures(
        run.make_model(salt=1), run.train.y, run.num_classes, q=q, decay=decay, scale_by_q=scale_by_q
    )
    return run.fit("model", objective=objective).model


class Failures(nn.Module):
    """Loss of the biased net, plus that of the debiased one where the biased net fails."""

    labels: Tensor  # (samples,) of the whole training set
    visited: Tensor  # (samples,) bool
    averages: Tensor  # (2, samples): moving averages of the cross-entropy under the biased, the debiased net

    def __init__(
        self, biased: nn.Module, labels: Tensor, num_classes: int, *, q: float, decay: float, scale_by_q: bool
    ) -> None:
        super().__init__()
        self.biased, self.num_classes = biased, num_classes
        self.q, self.decay, self.factor = q, decay, q if scale_by_q else 1.0
        self.register_buffer("labels", labels.clone(), persistent=False)
        self.register_buffer("visited", torch.zeros(len(labels), dtype=torch.bool))
        self.register_buffer("averages", torch.zeros(2, len(labels)))

    def forward(self, model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        outputs: Tensor = self.biased(batch.x)
        biased = F.cross_entropy(outputs, batch.y, reduction="none")
        debiased = F.cross_entropy(model(batch.x), batch.y, reduction="none")
        with torch.no_grad():
            confidence = outputs.float().softmax(1).gather(1, batch.y[:, None])[:, 0]
            amplified = self.factor * confidence**self.q
            self._average(batch.index, torch.stack([biased, debiased]).float())
            weight = self._difficulty(batch.index)
        # One optimizer for both nets is the same as two: no parameter gets a gradient from both terms.
        return (amplified * biased).mean() + (weight * debiased).mean()

    def _average(self, index: Tensor, losses: Tensor) -> None:
        """Move the samples' averages towards their new losses; the first loss of a sample is its average."""
        moved = self.decay * self.averages[:, index] + (1 - self.decay) * losses
        self.averages[:, index] = torch.where(self.visited[index], moved, losses)
        self.visited[index] = True

    def _difficulty(self, index: Tensor) -> Tensor:
        """The biased net's part of the two average losses, each as a share of its class's largest now."""
        labels = self.labels.expand_as(self.averages)
        largest = self.averages.new_zeros(2, self.num_classes).scatter_reduce(
            1, labels, self.averages, "amax"
        )
        relative = self.averages[:, index] / largest[:, self.labels[index]].clamp(min=1e-30)
        return relative[0] / (relative.sum(0) + 1e-8)
