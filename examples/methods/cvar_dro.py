"""CVaR-DRO (Levy et al., NeurIPS 2020): minimize the mean of the largest losses of every batch."""

import torch
from torch.nn import functional as F

GRID = {"size": [0.02, 0.1, 0.5]}


def train(run, *, size: float = 0.1):
    """`size`: the share of a batch that counts. It needs whole batches, so it is not declared separable."""

    def worst_share(model, batch):
        losses = F.cross_entropy(model(batch.x), batch.y, reduction="none").float()
        count = size * len(losses)  # may be a fraction: the last sample counts in part
        rank = torch.arange(len(losses), device=losses.device)
        weight = (count - rank).clamp(0, 1) / count
        return (losses.sort(descending=True).values * weight).sum()

    return run.fit("model", objective=worst_share).model
