"""AGRO (Paranjape et al., ICLR 2023): a grouper finds the groups with the highest loss."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.methods._environments import worst_and_mean
from evenhand.training.data import Batch, Split, fixed_randomness
from evenhand.training.run import Run

VERSION = 1
HELPS = "errors form groups in ERM's features"
GRID = {"cover": [0.1, 0.2], "warmup": [0, 1]}
PUBLISHED = "worst group of validation (robust-transformers, trainer_slicer.py)"
TRAININGS = 2
COST_NOTE = "counted as one training beside ERM's; the grouper, a small net on ERM's features, comes on top"
TINY = 1e-12


def train(
    run: Run, *, num_groups: int = 6, cover: float = 0.2, min_weight: float = 0.1, warmup: int = 0
) -> nn.Module:
    """Train ERM's model further on the worst groups of a grouper, which reads ERM's features and errors.

    - `cover`: the share of the samples that gets the full weight, the paper's alpha; `min_weight`: the weight
      of the other groups.
    - `warmup`: for so many epochs the grouper learns, and the model does not. Then it is the other way round.

    The check is kept whose accuracies in the grouper's groups of validation samples are best.
    """
    erm = run.fit("erm")

    def inputs(split: Split) -> tuple[np.ndarray, Tensor]:
        probabilities = run.predict(erm.model, split).softmax(1)
        return run.features(erm, split), torch.cat([probabilities, F.one_hot(split.y, run.num_classes)], 1)

    (features, errors), val = inputs(run.train), inputs(run.val)
    with fixed_randomness(run.seed):
        slices = KMeans(num_groups, n_init=10, random_state=run.seed).fit_predict(errors.numpy())
        objective = Grouped(features, errors, num_groups, cover=cover, min_weight=min_weight, warmup=warmup)
        objective.imitate(torch.from_numpy(slices).long())

    def score(logits: Tensor, split: Split) -> float:
        return worst_and_mean(logits, split, group=objective.groups(*val).argmax(1).cpu())

    recipe = run.recipe.replace(keep="best", patience=run.recipe.epochs)
    return run.fit("model", objective=objective, start=erm, score=score, recipe=recipe).model


class Grouped(nn.Module):
    """A step of the model down the covered loss, or of the grouper up the same loss.

    With a_ig how far sample i is in group g, as the grouper says:

    - [AGRO-1] loss of group g: L_g = sum of a_ig x loss_i / sum of a_ig
    - [AGRO-2] A_g <- (A_g + L_g) / 2, starting with the first L_g; size_g <- 0.95 size_g + 0.05 sum of a_ig
    - [AGRO-4] covered loss: sum over g of share_g x weight_g x L_g, where shares are those of the sizes, and
      weights are `cover_weights` of A
    - [AGRO-5] in the first `warmup` epochs the grouper ascends the covered loss; then the model descends it
    """

    average: Tensor  # (groups,) A, zeros before the first step; buffers, so that checkpoints carry them
    sizes: Tensor  # (groups,)
    errors: Tensor  # (samples, 2 x classes): probabilities and labels

    def __init__(
        self,
        features: np.ndarray,
        errors: Tensor,
        num_groups: int,
        *,
        cover: float,
        min_weight: float,
        warmup: int,
    ) -> None:
        super().__init__()
        self.features, self.cover, self.min_weight, self.warmup = features, cover, min_weight, warmup
        widths = [features.shape[1] + errors.shape[1], 128, 64, num_groups]
        first, second, last = (nn.Linear(wide, narrow) for wide, narrow in itertools.pairwise(widths))
        self.grouper = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last, nn.Softmax(1))
        self.register_buffer("errors", errors, persistent=False)
        self.register_buffer("average", torch.zeros(num_groups))
        self.register_buffer("sizes", torch.ones(num_groups))

    def groups(self, features: np.ndarray, errors: Tensor) -> Tensor:
        """The soft groups of samples, (samples, groups)."""
        given = torch.from_numpy(np.array(features)).to(self.sizes.device)
        given = F.normalize(given - given.mean(1, keepdim=True))
        groups: Tensor = self.grouper(torch.cat([given, errors.to(given.device)], 1))
        return groups

    def imitate(self, slices: Tensor) -> None:
        """Teach the grouper the groups that it starts with, (samples,)."""
        optimizer = torch.optim.Adam(self.grouper.parameters(), lr=1e-3)
        for _ in range(1000):
            rows = torch.randint(len(slices), (256,))
            groups = self.groups(self.features[rows.numpy()], self.errors[rows])
            optimizer.zero_grad()
            F.nll_loss(groups.clamp(min=TINY).log(), slices[rows]).backward()
            optimizer.step()

    def parameter_groups(self, model: nn.Module) -> dict[str, list[nn.Parameter]]:
        return {"model": list(model.parameters()), "grouper": list(self.grouper.parameters())}

    def step(self, model: Any, batch: Batch, optimizers: dict[str, Any]) -> Tensor:
        losses = F.cross_entropy(model(batch.x), batch.y, reduction="none")
        groups = self.groups(self.features[batch.index.cpu().numpy()], self.errors[batch.index])
        loss = self.covered(losses, groups)
        seeking = batch.epoch < self.warmup
        optimizer = optimizers["grouper" if seeking else "model"]
        optimizer.zero_grad(set_to_none=True)
        (-loss if seeking else loss).backward()
        optimizer.step()
        return loss.detach()

    def covered(self, losses: Tensor, groups: Tensor) -> Tensor:
        """[AGRO-4], after its averages have taken these samples in."""
        means = losses @ groups / groups.sum(0).clamp(min=TINY)  # [AGRO-1]
        new = means.detach()
        self.average = torch.where((self.average > 0).any(), (self.average + new) / 2, new)
        self.sizes = 0.95 * self.sizes + 0.05 * groups.detach().sum(0)
        share = self.sizes / self.sizes.sum()
        return (share * cover_weights(self.average, share, self.cover, self.min_weight) * means).sum()


def cover_weights(average: Tensor, share: Tensor, cover: float, min_weight: float) -> Tensor:
    """[AGRO-3] Weights of the groups, (groups,), by which the worst `cover` of the samples has a mass of one.

    From the highest average loss on, groups get 1 / cover as long as they lie within the cover together. The
    next one gets what is left of the mass, divided by its share. All others get `min_weight`.

    >>> cover_weights(torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0.5, 0.25, 0.25]), 0.4, 0.1)
    tensor([0.1000, 2.5000, 1.5000])
    """
    order = average.argsort(descending=True)
    within = share[order].cumsum(0) < cover
    weight = torch.where(within, 1 / cover, min_weight)
    border = within.sum().clamp(max=len(share) - 1)
    weight[border] = (1 - (share[order] * within).sum() / cover) / share[order][border]
    return torch.empty_like(weight).scatter(0, order, weight)
