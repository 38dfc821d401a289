"""uLA, unsupervised logit adjustment (Tsirigotis et al., NeurIPS 2023): adjust logits by a biased probe."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.training.data import Batch, Split
from evenhand.training.run import Run

VERSION = 1
HELPS = "a short probe learns only the shortcut"
GRID = {"strength": [0.5, 1.0, 1.5, 2.0]}
PUBLISHED = "validation accuracy, even over cells of probe and label (uLA, ula/methods/ula.py)"
TRAININGS = 2
COST_NOTE = "counted as one training; the probe and its outputs come on top"


def train(
    run: Run, *, strength: float = 1.0, probe_epochs: int = 10, temperature: float = 0.1, decay: float = 0.99
) -> nn.Module:
    """Fit a linear probe for `probe_epochs`, then train a model whose logits are adjusted by its confusions.

    The paper's probe reads features of self-supervised pretraining. There is none here: the probe reads the
    network's features as they are before training, so random ones or those of the recipe's weights.
    [ULA-4] The check is kept that is best by [ULA-3].

    - `strength`: of the adjustment, the paper's eta; `temperature`: of the probe's probabilities.
    - `decay`: of the moving average of the confusion matrix.
    """
    probe = run.fit("probe", train_only="head", stop=min(probe_epochs, run.recipe.epochs)).model
    guesses = run.predict(probe, run.val).argmax(1)
    objective = Adjusted(probe, run.num_classes, strength=strength, temperature=temperature, decay=decay)
    return run.fit(
        "model",
        objective=objective,
        score=partial(even_cells, guesses=guesses),
        recipe=run.recipe.replace(keep="best", patience=run.recipe.epochs),
    ).model


class Adjusted(nn.Module):
    """Cross-entropy of logits that are shifted, in training alone, by what the probe says of the label.

    - [ULA-1] P <- decay x P + (1 - decay) x mean over the batch of softmax(probe / temperature) x [y]. P
      starts uniform, so that no cell is ever empty.
    - [ULA-2] logits + strength x log P(y | the probe's prediction)
    """

    confusion: (
        Tensor  # (classes, classes): the probe's class, the label; a buffer, so that checkpoints carry it
    )

    def __init__(
        self, probe: nn.Module, num_classes: int, *, strength: float, temperature: float, decay: float
    ) -> None:
        super().__init__()
        self.probe = probe.requires_grad_(False)
        self.strength, self.temperature, self.decay = strength, temperature, decay
        self.register_buffer("confusion", torch.full((num_classes, num_classes), num_classes**-2.0))

    def forward(self, model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        with torch.no_grad():
            guess = self.probe.eval()(batch.x).float()
            label = F.one_hot(batch.y, len(self.confusion)).float()
            seen = (guess / self.temperature).softmax(1).T @ label / len(label)
            self.confusion = self.decay * self.confusion + (1 - self.decay) * seen
            joint = self.confusion[guess.argmax(1)]
            prior = (joint / joint.sum(1, keepdim=True)).log()
        return F.cross_entropy(model(batch.x) + self.strength * prior, batch.y)


def even_cells(logits: Tensor, split: Split, *, guesses: Tensor) -> float:
    """[ULA-3] Accuracy in which every cell (prediction of the probe, label) that occurs counts the same."""
    cell = torch.stack([guesses, split.y], 1).unique(dim=0, return_inverse=True)[1]
    correct = (logits.argmax(1) == split.y).double()
    return float((torch.bincount(cell, correct) / torch.bincount(cell)).mean())
