"""Train a head on embeddings: here of scikit-learn's digits, whose colour is a shortcut, by random features.

Any vectors do: save those of a torchvision or timm model, or of a sentence encoder, as one .npy file.

Run with: python examples/embeddings_head.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from evenhand import execute, tasks


def embed(folder: Path) -> None:
    """Embeddings of all three splits in one file of half precision, with labels, groups and splits beside."""
    digits = tasks.load("digits_even_odd:p=0.97")
    parts = (digits.train, digits.val, digits.test)
    images = torch.cat([part.x[part.rows] for part in parts]).flatten(1).float() / 255
    generator = torch.Generator().manual_seed(0)
    vectors = torch.relu(images @ torch.randn(images.shape[1], 128, generator=generator))  # the "encoder"
    np.save(folder / "vectors.npy", vectors.numpy().astype(np.float16))
    np.save(folder / "labels.npy", torch.cat([part.y for part in parts]).numpy())
    np.save(folder / "colours.npy", torch.cat([part.group % 2 for part in parts]).numpy())
    np.save(folder / "splits.npy", np.repeat(["train", "val", "test"], [len(part) for part in parts]))


def main(folder: Path = Path("embedded")) -> dict[str, float]:
    folder.mkdir(exist_ok=True)
    embed(folder)
    files = "path=vectors.npy,labels=labels.npy,groups=colours.npy,splits=splits.npy"
    task = tasks.load(f"embeddings:{files}", folder)
    worst = {
        method: execute(task, method, runs=folder / "runs").metrics["test"]["wga"]
        for method in ("erm", "tab", "evenhand")
    }
    print({method: round(value, 3) for method, value in worst.items()})
    return worst


if __name__ == "__main__":
    main()
