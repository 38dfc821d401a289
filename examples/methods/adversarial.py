"""Adversarial debiasing (Zhang et al., AIES 2018): a second network cannot tell the group by the outputs."""

import torch
from torch import nn
from torch.nn import functional as F

GRID = {"alpha": [0.1, 1.0]}
NEEDS_GROUPS = "train"


def train(run, *, alpha: float = 0.1, adversary_lr: float = 0.005):
    adversary = run.make(lambda: nn.Linear(2 * run.num_classes, len(run.task.group_names)), salt=1)
    return run.fit("model", objective=Debiased(adversary, alpha, adversary_lr)).model


class Debiased(nn.Module):
    def __init__(self, adversary, alpha, lr):
        super().__init__()
        self.adversary, self.alpha, self.lr = adversary, alpha, lr  # a submodule: checkpoints hold it

    def parameter_groups(self, model):
        second = {"params": self.adversary.parameters(), "lr": self.lr}
        return {"model": model.parameters(), "adversary": second}

    def step(self, model, batch, optimizers):
        logits = model(batch.x).float()
        seen = torch.cat([logits.softmax(1), F.one_hot(batch.y, logits.shape[1])], dim=1)
        guess = F.cross_entropy(self.adversary(seen), batch.group)
        weights = list(model.parameters())
        away = torch.autograd.grad(guess, weights, retain_graph=True)
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        (loss := F.cross_entropy(logits, batch.y)).backward(retain_graph=True)
        guess.backward(inputs=list(self.adversary.parameters()))
        for weight, g in zip(weights, away, strict=True):
            unit = g / g.norm().clamp(min=1e-12)
            weight.grad -= (weight.grad * unit).sum() * unit + self.alpha * g  # per tensor, as in the paper
        for optimizer in optimizers.values():
            optimizer.step()
        return loss.detach()
