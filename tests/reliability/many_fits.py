"""Memory of one process that calls `evenhand.fit` again and again: `python tests/reliability/many_fits.py --fits 500`.

Prints the memory in use after every twentieth part of the fits, and the slope over the second half of them.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).parents[1]))

from torch import nn

import evenhand


def resident() -> float:
    """Resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def one_fit(seed: int, *, page: bool) -> None:
    """Data, a model, two trainings and records of their own, and a page; nothing of it is needed afterwards."""
    x = np.random.default_rng(seed).random((64, 8), dtype=np.float32)
    split = evenhand.Split(x, (x[:, 0] > 0.5).astype(np.int64))
    recipe = evenhand.Recipe(epochs=1, batch_size=64)
    with tempfile.TemporaryDirectory() as runs:
        where = {"device": "cpu", "runs": Path(runs), "seed": seed}
        result = evenhand.fit(model, split, val_set=split, recipe=recipe, method="tab", **where)
        if page:
            result.report(Path(runs) / "page.html")


def measured(fits: int) -> list[float]:
    """Memory in MB after every twentieth part of the fits."""
    points = []
    for number in range(1, fits + 1):
        one_fit(number, page=number % 20 == 1)
        if number % max(fits // 20, 1) == 0:
            gc.collect()
            points.append(resident())
    return points


def slope(points: list[float], fits: int) -> float:
    """KB of growth per fit, by least squares over the second half."""
    late = points[len(points) // 2 :]
    every = max(fits // 20, 1)
    return float(np.polyfit(np.arange(len(late)) * every, late, 1)[0]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fits", type=int, default=500)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    points = measured(given.fits)
    print(" ".join(f"{point:.0f}" for point in points), "MB")
    print(f"{given.fits} fits: {slope(points, given.fits):.1f} KB per fit over the second half")


if __name__ == "__main__":
    main()
