"""Both trainings in one call: a model factory and a dataset in, the better model and a page out.

Run it with `python examples/one_call.py`; the digits ship with scikit-learn, so nothing is downloaded.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import evenhand


def make_data() -> TensorDataset:
    """Handwritten digits, odd or even; most odd ones carry a bright corner, which a model is glad to use."""
    images, digits = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(digits % 2)
    follows = torch.rand(len(y), generator=torch.Generator().manual_seed(0)) < 0.97
    x[:, 0, 0, 0] = torch.where(follows, y, 1 - y).float()
    return TensorDataset(x, y)


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 64, 2),
    )  # fmt: skip


def main(page: str = "report.html") -> evenhand.Result:
    recipe = evenhand.Recipe(epochs=10, batch_size=64)
    result = evenhand.fit(make_model, make_data(), recipe=recipe, class_names=("even", "odd"))
    parts = result.partition  # by rows of the dataset, a fifth of which was held out for early stopping
    print(f"{parts.minority.sum()} of {parts.clustered.sum()} training samples were set apart")
    print(f"the page: {result.report(page)}")
    return result


if __name__ == "__main__":
    main(*sys.argv[1:2])
