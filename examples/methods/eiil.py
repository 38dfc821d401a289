"""EIIL (Creager et al., ICML 2021): infer two environments from an early model, then train Group DRO."""

import torch
from torch.nn import functional as F

from evenhand.methods.gdro import WorstGroup

GRID = {"reference_epochs": [1, 5, 10], "step_size": [0.001, 0.01, 0.1]}


def train(run, *, reference_epochs: int = 1, steps: int = 2000, lr: float = 0.01, step_size: float = 0.01):
    reference = run.fit("erm", stop=min(reference_epochs, run.recipe.epochs))
    logits, y = run.predict(reference.model, run.train), run.train.y
    second = infer(logits, y, steps, lr, run.seed)
    losses = F.cross_entropy(logits, y, reduction="none")
    if second.any() and losses[second].mean() < losses[~second].mean():
        second = ~second  # the environment that the reference finds hard is set apart
    run.found(second)
    cells = 2 * y + second  # environment x class, so that no environment is a class
    counts = torch.bincount(cells, minlength=2 * run.num_classes)
    objective = WorstGroup(counts, step_size=step_size, adjustment=0.0)
    return run.fit("model", objective=objective, environments=cells, draw=1 / counts[cells]).model


def infer(logits, y, steps, lr, seed):
    """The environments, (samples,) bool, in both of which the model's scale is as wrong as can be."""
    wrong = logits.softmax(1) - F.one_hot(y, logits.shape[1])
    slope = (wrong * logits).sum(1)  # of every sample's loss, by a factor on the logits
    free = torch.randn(len(y), generator=torch.Generator().manual_seed(seed)).requires_grad_()
    optimizer = torch.optim.Adam([free], lr=lr)
    for _ in range(steps):
        share = free.sigmoid()
        penalty = (share * slope).mean() ** 2 + ((1 - share) * slope).mean() ** 2
        optimizer.zero_grad()
        (-penalty).backward()
        optimizer.step()
    return free.detach() > 0
