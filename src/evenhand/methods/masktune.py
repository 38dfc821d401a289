"""MaskTune (Asgari et al., NeurIPS 2022): mask what ERM looks at, then fine-tune for one epoch."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.training.batches import Transform
from evenhand.training.forward import saliency
from evenhand.training.objective import separable
from evenhand.training.run import Run

VERSION = 1
HELPS = "the shortcut is a place in the image"
GRID = {"threshold": [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]}
TRAININGS = 2
COST = 0.05  # saliency maps and one epoch, on top of ERM


def train(
    run: Run,
    *,
    threshold: float = 2.5,
    layer: str = "",
    masks_from: Literal["same", "best"] = "same",
) -> nn.Module:
    """Fine-tune ERM on masked images, at the learning rate that it ended with, by the same optimizer.

    - `threshold`: mask pixels that many deviations above the mean of a saliency map.
    - `layer`: make the maps from the output of this layer, by its name; by default the last convolution.
    - `masks_from`: the last checkpoint makes the masks, or the best one, as in the official code.
    """
    if masks_from not in ("same", "best"):
        raise ValueError(f"masks_from must be 'same' or 'best', got {masks_from!r}")
    if masks_from == "best":
        masking = run.fit("erm", recipe=run.recipe.replace(keep="best"))
        erm = run.fit("erm", recipe=run.recipe.replace(keep="last"))
    else:
        erm = masking = run.fit("erm")
    maps = run.cached(
        masking, f"saliency-{layer or 'last'}", lambda: saliency(masking.model, run.batches(run.train), layer)
    )
    return run.fit("model", transform=masking_by(maps, threshold, run.device), start=erm, stop=1).model


def masking_by(maps: np.ndarray, threshold: float, device: torch.device) -> Transform:
    """Mask every image by its own map, (samples, height, width) on the device."""
    on_device = torch.from_numpy(np.array(maps)).to(device)
    return separable(lambda x, batch, generator: masked(x, on_device[batch.index], threshold))


def masked(x: Tensor, maps: Tensor, threshold: float) -> Tensor:
    """Images with every pixel set to zero whose saliency is above its map's mean + threshold deviations.

    Mean and deviation are taken over the map's positive pixels, after it has been resized to the image.
    """
    maps = F.interpolate(maps[:, None], x.shape[-2:], mode="bilinear", align_corners=False)
    positive = maps > 0
    count = positive.sum((1, 2, 3), keepdim=True).clamp(min=1)
    mean = (maps * positive).sum((1, 2, 3), keepdim=True) / count
    variance = ((maps - mean) ** 2 * positive).sum((1, 2, 3), keepdim=True) / count
    return x * (maps <= mean + threshold * variance.sqrt())
