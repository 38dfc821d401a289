"""Adversarial Debiasing (Zhang et al., AIES 2018): outputs must not reveal the attribute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.training.data import Batch
from evenhand.training.run import Run

VERSION = 1
HELPS = "training samples have attributes; groups are not tiny"
NEEDS_GROUPS = "train"
GRID = {"alpha": [0.1, 0.3, 1.0, 3.0]}


def train(
    run: Run,
    *,
    alpha: float = 1.0,
    constraint: Literal["equalized_odds", "demographic_parity"] = "equalized_odds",
    balanced_sampling: bool = True,
) -> nn.Module:
    """Train the model against an adversary that reads the attribute, which is the group without its class.

    - `alpha`: how strongly the model works against the adversary.
    - `constraint`: the adversary sees the label as well (equalized odds), or the outputs alone.
    - `balanced_sampling`: all groups are equally likely to be drawn. Otherwise a rare group teaches the
      adversary nothing.
    """
    group, num_groups = run.train.group, len(run.task.group_names)
    num_attributes = num_groups // run.num_classes
    if group is None or num_attributes < 2 or num_groups % run.num_classes:
        raise ValueError(
            "adversarial needs the group y * attributes + attribute of every training sample, with at least "
            f"two attributes; task {run.task.name!r} has {num_groups} groups of {run.num_classes} classes; "
            "use a method that needs no groups, such as tab"
        )
    objective = Adversary(run.num_classes, num_attributes, alpha=alpha, constraint=constraint)
    draw = 1 / torch.bincount(group)[group] if balanced_sampling else None
    return run.fit("model", objective=objective, draw=draw).model


class Adversary(nn.Module):
    """A linear model of the attribute, and the step that trains it against the classifier.

    With c learned by the adversary:

    - [ADV-1] s = softmax((1 + |c|) x logits); for two classes it is the paper's sigmoid.
    - [ADV-2] inputs for equalized odds: s, and s x [y = k] for each class k; for demographic parity: s alone.
    - [ADV-3] gradient of each of the model's tensors: g - proj_h(g) - alpha x h, where g is the gradient of
      the classifier's loss and h that of the adversary's. The adversary descends its own loss.
    """

    def __init__(self, num_classes: int, num_attributes: int, *, alpha: float, constraint: str) -> None:
        super().__init__()
        self.num_classes, self.num_attributes = num_classes, num_attributes
        self.alpha, self.sees_labels = alpha, constraint == "equalized_odds"
        self.scale = nn.Parameter(torch.ones(()))
        inputs = num_classes * (1 + num_classes * self.sees_labels)
        # Of zeros, because the weights of a convex problem need no random start.
        self.weight = nn.Parameter(torch.zeros(num_attributes, inputs))
        self.bias = nn.Parameter(torch.zeros(num_attributes))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The adversary's outputs, (batch, attributes)."""
        inputs = ((1 + self.scale.abs()) * logits.float()).softmax(1)
        if self.sees_labels:
            by_label = F.one_hot(labels, self.num_classes)[:, :, None] * inputs[:, None]
            inputs = torch.cat([inputs, by_label.flatten(1)], 1)
        return F.linear(inputs, self.weight, self.bias)

    def parameter_groups(self, model: nn.Module) -> dict[str, list[nn.Parameter]]:
        return {"model": list(model.parameters()), "adversary": list(self.parameters())}

    def step(self, model: Callable[[Tensor], Tensor], batch: Batch, optimizers: dict[str, Any]) -> Tensor:
        assert batch.group is not None
        logits = model(batch.x)
        loss = F.cross_entropy(logits, batch.y)
        guess = F.cross_entropy(self(logits, batch.y), batch.group % self.num_attributes)
        own = [each for group in optimizers["model"].param_groups for each in group["params"]]
        gradients = torch.autograd.grad(loss, own, retain_graph=True)
        hints = torch.autograd.grad(guess, [*own, *self.parameters()])
        for parameter, gradient, hint in zip(own, gradients, hints, strict=False):
            parameter.grad = against(gradient, hint, self.alpha)
        for parameter, hint in zip(self.parameters(), hints[len(own) :], strict=True):
            parameter.grad = hint
        for optimizer in optimizers.values():
            optimizer.step()
        return loss.detach()


def against(gradient: Tensor, hint: Tensor, alpha: float) -> Tensor:
    """The gradient without its part along the adversary's, and alpha times away from it: [ADV-3].

    >>> against(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0]), 0.5).tolist()
    [3.0, -1.0]
    """
    along = (gradient * hint).sum() / (hint * hint).sum().clamp(min=torch.finfo(hint.dtype).tiny)
    return gradient - (along + alpha) * hint
