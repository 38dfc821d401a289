"""AFR (Qiu et al., ICML 2023): refit the last layer, upweighting samples that ERM finds unlikely."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evenhand.methods._heads import descend, even_weights, head_of, on_device, with_head
from evenhand.training.run import Run

VERSION = 1
HELPS = "ERM's features are good; its confidence shows the minority"
GRID = {"gamma": [1.44, 4.0, 10.0]}
PUBLISHED = "worst group of validation (afr, README and train_embeddings.py)"
COST = 1.05  # ERM on most samples, and features of the others


def train(
    run: Run,
    *,
    gamma: float = 1.44,
    pull: float = 1e-3,
    head_lr: float = 2e-2,
    steps: int = 1000,
    even_classes: bool = True,
    held_out: float = 0.2,
) -> nn.Module:
    """Train ERM without a share `held_out` of every class, then train its last layer on that share.

    [AFR-1] Weights are proportional to exp(-gamma p_y), p_y being ERM's probability of the label, times
    1 / class size with `even_classes`, and sum to one.
    [AFR-2] The last layer minimizes the weighted loss + pull x its squared distance from ERM's: [HEAD-1],
    with gradients of a norm of at most 1.
    """
    rest, held = run.hold_out(held_out)
    base = run.fit("base", rest)
    features, labels = on_device(run, run.features(base, held), held.y)
    head = head_of(base.model)
    weights = unlikely(head(features), labels, gamma=gamma, even_classes=even_classes)
    tuned = descend(head, features, labels, weights, steps=steps, lr=head_lr, pull=pull, most=1.0)
    return with_head(base.model, tuned)


def unlikely(logits: Tensor, labels: Tensor, *, gamma: float, even_classes: bool) -> Tensor:
    """[AFR-1], (samples,)."""
    p = logits.softmax(1).gather(1, labels[:, None])[:, 0]
    weights = torch.exp(-gamma * p) * (even_weights(labels) if even_classes else 1)
    return weights / weights.sum()
