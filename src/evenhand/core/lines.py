"""Lines along which good cuts of rows often lie, for search.py."""

from __future__ import annotations

import itertools
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from evenhand.core.search import Rows

TAIL = 1024  # of a sample, the rows farthest from the mean: few rows far out can be a cluster


def directions(rows: Rows) -> Tensor:
    """Lines along which good cuts often lie, (classes, directions, epochs); none is drawn by chance.

    Between all pairs of few rows; else mixtures of the principal axes, towards the farthest rows, the
    epochs of the largest variance, and the mean over epochs.
    """
    x = rows.x
    classes, count, epochs = x.shape
    if count <= 16:
        first, second = torch.triu_indices(count, count, 1)
        return x[:, first] - x[:, second]
    weighted = x
    if rows.weight is not None:
        weighted = x.clone()
        weighted[:, TAIL:] *= rows.weight[:, :, None]
    axes, deviation = _principal(x, weighted, min(8, epochs, count))
    signs, mixtures = _mixtures(axes.shape[1])
    real = deviation > (1e-6 if x.dtype == torch.float64 else 3e-3) * deviation[:, :1]
    evened = torch.where(real, 1 / deviation.clamp(min=1e-30), 0.0)[:, :, None] * axes
    strongest = (x * weighted).sum(1).topk(min(epochs, 10), 1).indices
    return torch.cat(
        [
            signs.to(x.dtype) @ evened[:, : signs.shape[1]],
            mixtures.to(x.dtype) @ (deviation[:, :, None] * axes),
            rows.at(rows.norms.topk(4, 1).indices),
            torch.nn.functional.one_hot(strongest, epochs).to(x.dtype),
            x.new_ones(classes, 1, epochs),
        ],
        1,
    )


def _principal(x: Tensor, weighted: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first principal axes, (classes, axes, epochs), and the deviations along them."""
    few = x.shape[1] < x.shape[2]  # rows than epochs: their products are the smaller matrix
    square, vectors = torch.linalg.eigh(x @ x.transpose(1, 2) if few else x.transpose(1, 2) @ weighted)
    deviation = square[:, -count:].flip(1).clamp(min=0).sqrt()
    axes = vectors[:, :, -count:].flip(2).transpose(1, 2)
    return axes @ x / deviation.clamp(min=1e-30)[:, :, None] if few else axes, deviation


@cache
def _mixtures(count: int) -> tuple[Tensor, Tensor]:
    """How axes are mixed: all signs of the first three, and fixed weights of all; more where axes are few."""
    signs = itertools.product((0, 1, -1), repeat=min(count, 3))
    one_way = [sign for sign in signs if next((s for s in sign if s), 0) == 1]
    weights = np.random.default_rng(0).standard_normal((48 if count <= 3 else 16, 8))[:, :count]
    return torch.tensor(one_way), torch.from_numpy(weights)
