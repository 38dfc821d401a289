"""SELF (LaBonte et al., NeurIPS 2023): fine-tune the last layer where an early and a final net disagree."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.methods._heads import descend, even_weights, head_of, on_device, with_head
from evenhand.training.run import Run

VERSION = 1
HELPS = "few samples contradict the shortcut; ERM's features are good"
GRID = {"num_points": [100, 20, 500]}
PUBLISHED = "worst group of validation (last-layer-retraining, exps/disagreement.py)"
COST = 1.5  # the early net is trained beside ERM
TRAININGS = 2


def train(
    run: Run,
    *,
    num_points: int = 100,
    score: Literal["disagreement", "loss", "early_loss", "dropout"] = "disagreement",
    early: float = 0.1,
    dropout: float = 0.5,
    head_lr: float = 1e-2,
    steps: int = 250,
    held_out: float = 0.2,
) -> nn.Module:
    """Train without a share `held_out` of every class, and fine-tune the last layer on a few of that share.

    It uses the `num_points` samples with the highest score. p are the probabilities of the final network, and
    q those of a network that was trained for a share `early` of its epochs.
    [SELF-1] score "disagreement": mean over classes of q log(q / p), which needs no labels.
    [SELF-2] score "loss": -log p of the label, or "early_loss": -log q of the label.
    [SELF-3] score "dropout": [SELF-1] where q are the final net's with a share `dropout` of its features off.
    [SELF-4] The last layer goes on from its weights for `steps`, [HEAD-1] with every class counting the same.
    """
    rest, held = run.hold_out(held_out)
    draw = even_weights(rest.y)
    base = run.fit("base", rest, draw=draw)
    features, labels = on_device(run, run.features(base, held), held.y)
    head = head_of(base.model)
    final = head(features)
    if score == "dropout":
        generator = torch.Generator().manual_seed(run.seed)
        kept = torch.rand(features.shape, generator=generator).to(features.device) >= dropout
        other = head(features * kept / (1 - dropout))
    elif score == "loss":
        other = final
    else:
        first = run.fit("early", rest, draw=draw, stop=max(1, round(early * base.epochs)))
        other = head_of(first.model)(*on_device(run, run.features(first, held)))
    scores = disagreement(other, final) if score in ("disagreement", "dropout") else losses(other, labels)
    rows = scores.sort(descending=True, stable=True).indices[:num_points]
    chosen = labels[rows]
    weights = even_weights(chosen)
    tuned = descend(head, features[rows], chosen, weights, steps=steps, lr=head_lr, momentum=0.9)
    return with_head(base.model, tuned)


def disagreement(early: Tensor, final: Tensor) -> Tensor:
    """[SELF-1] from both nets' logits, (samples,)."""
    q = early.log_softmax(1)
    return (q.exp() * (q - final.log_softmax(1))).mean(1)


def losses(logits: Tensor, labels: Tensor) -> Tensor:
    """[SELF-2], (samples,)."""
    return F.cross_entropy(logits, labels, reduction="none")
