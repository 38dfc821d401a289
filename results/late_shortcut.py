"""Where a shortcut is learned before the rule, and where after it: ERM, evenhand and TAB on two made tables.

    python results/late_shortcut.py            half a minute on a CPU

2,000 training samples whose camera tells 95% of the labels; 40,000 new ones where it tells half of them.
Printed: accuracy where the camera is right / wrong, for three seeds. "early": one loud column for the camera,
twelve faint measures, a small network. "late": a column of 0 and 1 among twenty measures, a linear model.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import evenhand


def table(seed: int, samples: int, agreement: float, early: bool) -> tuple[TensorDataset, np.ndarray]:
    """The samples, and where their camera is right."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 2, samples)
    camera = np.where(random.random(samples) < agreement, y, 1 - y)
    signs = (2 * y - 1)[:, None]
    measures = random.standard_normal((samples, 12 if early else 20)) + (0.4 if early else 0.25) * signs
    shown = 4.0 * (2 * camera - 1) + 0.3 * random.standard_normal(samples) if early else camera
    x = torch.tensor(np.column_stack([measures, shown]), dtype=torch.float32)
    return TensorDataset(x, torch.tensor(y)), camera == y


def network(early: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 2)) if early else nn.Linear(21, 2)


def scores(model: Callable[[torch.Tensor], torch.Tensor], new: TensorDataset, right: np.ndarray) -> str:
    x, y = new.tensors
    correct = (model(x).argmax(1) == y).numpy()
    return f"{100 * correct[right].mean():.1f} / {100 * correct[~right].mean():.1f}"


def main() -> None:
    for early in (True, False):
        train, _ = table(0, 2_000, 0.95, early)
        new, right = table(99, 40_000, 0.5, early)
        print("early" if early else "late")
        for seed in range(3):
            ours, tab = (
                evenhand.fit(lambda early=early: network(early), train, seed=seed, method=method)
                for method in ("evenhand", "tab")
            )
            models = {"ERM": ours.baseline, "evenhand": ours.model, "TAB": tab.model}
            print(f"  seed {seed}: ", ", ".join(f"{k} {scores(m, new, right)}" for k, m in models.items()))


if __name__ == "__main__":
    main()
