"""CB-LLR (LaBonte et al., NeurIPS 2023): retrain the last layer on held-out samples with balanced classes."""

from __future__ import annotations

from functools import partial

from torch import nn

from evenhand.methods._heads import even_weights
from evenhand.training.models import replace_head
from evenhand.training.run import Run

VERSION = 1
HELPS = "classes are uneven; ERM's features are good"
GRID = {"retrain_epochs": [100, 10]}
COST = 1.05  # ERM on most samples, and epochs of its last layer
TRAININGS = 2


def train(run: Run, *, held_out: float = 0.2, retrain_epochs: int = 100) -> nn.Module:
    """Class-balanced last-layer retraining, which reads no groups at all.

    [LLR-1] A share `held_out` of every class is set aside. The network is trained on the rest, and every
    class is equally likely in each draw.
    [LLR-2] Its last layer is reset, and trained for `retrain_epochs` on the samples set aside, drawn in the
    same way, at a constant learning rate. The other layers stay as they are.
    """
    rest, held = run.hold_out(held_out)
    base = run.fit("base", rest, draw=even_weights(rest.y))
    features = run.feature_split(base, held)
    head = run.fit(
        "head",
        features,
        draw=even_weights(held.y),
        model=partial(nn.Linear, features.x.shape[1], run.num_classes),  # type: ignore[union-attr]
        val=run.feature_split(base, run.val),
        stop=retrain_epochs,
        recipe=run.recipe.replace(plateau_epochs=retrain_epochs),
    )
    return replace_head(base.model, head.model)
