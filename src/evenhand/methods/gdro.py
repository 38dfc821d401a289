"""Group DRO (Sagawa et al., ICLR 2020): weight groups by their losses, so the worst group counts most."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.training.data import Batch
from evenhand.training.run import Run

VERSION = 1
HELPS = "training samples have group labels"
NEEDS_GROUPS = "train"
GRID = {"lr": [1e-3, 1e-4], "weight_decay": [0.0, 1e-4, 1e-2, 1.0]}


def train(
    run: Run, *, step_size: float = 0.01, balanced_sampling: bool = True, adjustment: float = 0.0
) -> nn.Module:
    """Minimize the groups' mean losses, weighted by q. It reads the groups of training samples.

    - `step_size`: of the exponential update of q.
    - `balanced_sampling`: each epoch draws samples with replacement, all groups equally often, as the
      official runs do.
    - `adjustment`: the C of C / sqrt(group size), which is added to a group's loss when q is updated.
    """
    group = run.train.group
    if group is None:
        raise ValueError(
            f"gdro needs the group of every training sample, but task {run.task.name!r} has no groups; "
            "use a method that needs none, such as tab"
        )
    counts = torch.bincount(group, minlength=len(run.task.group_names))
    objective = WorstGroup(counts, step_size=step_size, adjustment=adjustment)
    draw = 1 / counts[group] if balanced_sampling else None
    return run.fit("model", objective=objective, draw=draw).model


class WorstGroup(nn.Module):
    """sum over g of q_g x mean loss of g, where q_g grows exponentially with its group's loss.

    Groups are the environments that `Run.fit` was given, or else the annotated ones.
    """

    q: Tensor  # (groups,) sums to 1; a buffer, so that checkpoints carry it
    penalty: Tensor  # (groups,)

    def __init__(self, counts: Tensor, *, step_size: float, adjustment: float) -> None:
        super().__init__()
        present = counts > 0  # a group without training samples never gets any weight
        self.step_size = step_size
        self.register_buffer("q", present / present.sum())
        self.register_buffer("penalty", adjustment / counts.clamp(min=1).sqrt(), persistent=False)

    def forward(self, model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        group = batch.group if batch.environment is None else batch.environment
        assert group is not None
        losses = F.cross_entropy(model(batch.x), batch.y, reduction="none")
        member = group == torch.arange(len(self.q), device=losses.device)[:, None]  # (groups, batch)
        # A group that is absent from the batch has loss zero: its q shrinks only by the renormalization.
        group_losses = (member * losses).sum(1) / member.sum(1).clamp(min=1)
        q = self.q * torch.exp(self.step_size * (group_losses.detach() + self.penalty))
        self.q = q / q.sum()
        return (self.q * group_losses).sum()
