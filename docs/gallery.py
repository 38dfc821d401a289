"""Make the pictures of docs/gallery.md, from generated data and scikit-learn digits."""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import evenhand
from evenhand import tasks

OUT = Path(__file__).parent / "gallery"
COLORS = {"majority": "#4477aa", "minority": "#ee6677"}


def digits(folder: Path) -> None:
    """Digits of each cluster, and the loss histories of the clusters."""
    task = tasks.load("digits_even_odd")
    run = evenhand.execute(task, "tab", runs=folder, device="cpu")
    parts, losses, labels = run.partition, run.losses(), task.train.y.numpy()
    assert parts is not None and losses is not None
    rng = np.random.default_rng(0)
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.6), width_ratios=(2, 2, 1.6))
    for axis, name, chosen in zip(axes, COLORS, (~parts.minority, parts.minority), strict=False):
        rows = [row for y in (0, 1) for row in rng.choice(np.flatnonzero(chosen & (labels == y)), 8)]
        images = np.asarray(task.train.x)[task.train.rows.numpy()[rows]].transpose(0, 2, 3, 1)
        images = images / images.max()
        axis.imshow(np.vstack([np.hstack(images[i : i + 8]) for i in (0, 8)]))
        axis.set_title(f"{name}: {chosen.sum():,} samples", fontsize=9)
        axis.set_yticks([4, 12], [task.class_names[0], task.class_names[1]], fontsize=8)
        axis.set_xticks([])
        axes[2].plot(range(1, losses.shape[1] + 1), losses[chosen].mean(0), color=COLORS[name], label=name)
    axes[2].set(xlabel="epoch", ylabel="mean loss")
    axes[2].legend(fontsize=8)
    save(figure, "digits")


def table() -> None:
    """A generated table whose column `brightness` agrees with the label in 95% of the rows."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 2000)
    camera = np.where(rng.random(2000) < 0.95, y, 1 - y)
    x = rng.standard_normal((2000, 13)) + 0.4 * (2 * y - 1)[:, None]
    x[:, 12] = 4 * (2 * camera - 1) + 0.3 * rng.standard_normal(2000)
    data = TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y))
    found = evenhand.fit(
        lambda: nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 2)), data, method="tab"
    ).partition
    figure, axes = plt.subplots(1, 2, figsize=(9, 2.4), sharex=True)
    for axis, label, name in zip(axes, (0, 1), ("well", "ill"), strict=True):
        for part, chosen in (("majority", ~found.minority), ("minority", found.minority)):
            rows = chosen & found.clustered & (y == label)
            axis.hist(x[rows, 12], np.linspace(-5, 5, 41), color=COLORS[part], label=f"{part}: {rows.sum()}")
        axis.set(title=f"class {name}", xlabel="brightness", ylabel="rows", yscale="log")
        axis.legend(fontsize=8)
    save(figure, "table")


def save(figure: plt.Figure, name: str) -> None:
    OUT.mkdir(exist_ok=True)
    figure.tight_layout()
    figure.savefig(OUT / f"{name}.png", dpi=90)
    print(OUT / f"{name}.png", (OUT / f"{name}.png").stat().st_size)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        digits(Path(place) / "runs")
        table()
