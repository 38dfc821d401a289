"""Random warps of a whole batch on its device: every sample gets its own crop, zoom, flip, turn and shift.

All of them are one affine map, so an image is resampled once. `sample` draws the numbers and `apply` uses
them, so that a method can draw once and show a copy in the same guise every epoch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

TRIES = 10  # at a crop that fits into the image, as torchvision's RandomResizedCrop does
KERNEL = 5  # pixels on each side of the blur


@dataclass(frozen=True, kw_only=True)
class Warp:
    """Random crop, then flip, then zoom and rotation about the center, then shift, then blur.

    Numbers are drawn uniformly from their ranges, the crop's aspect on a logarithmic scale. What the map
    shows from outside the image is black.

    >>> warp = Warp(flip=True, rotate=10.0)
    >>> warp(torch.zeros(4, 3, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 8, 8])
    """

    crop: tuple[float, float] | None = None  # share of the area that is kept and enlarged to the full size
    ratio: tuple[float, float] = (
        3 / 4,
        4 / 3,
    )  # of the crop's width to its height, both as shares of the image
    flip: bool = False  # left to right, every second sample on average
    scale: tuple[float, float] = (1.0, 1.0)  # zoom: 2 shows the middle half of the image at twice the size
    rotate: float = 0.0  # at most so many degrees to either side
    translate: tuple[float, float] = (0.0, 0.0)  # to the right and down, as a share of the side
    blur: tuple[float, float] | None = None  # the deviation, in pixels, of a 5x5 Gaussian

    def __post_init__(self) -> None:
        for name in ("crop", "ratio", "scale", "translate", "blur"):
            value = getattr(self, name)
            if value is not None and not value[0] <= value[1]:
                raise ValueError(f"{name} must be a range (low, high), got {value}")
        if self.crop is not None and not 0 < self.crop[0] <= self.crop[1] <= 1:
            raise ValueError(f"crop must be shares of the area between 0 and 1, got {self.crop}")
        for name in ("ratio", "scale", "blur"):
            if getattr(self, name) is not None and not getattr(self, name)[0] > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random version of every image of (batch, channels, height, width) float in [0, 1]."""
        return self.apply(x, self.sample(len(x), generator, x.device))

    def sample(self, num: int, generator: torch.Generator, device: torch.device | str = "cpu") -> Tensor:
        """Return the parameters of `num` warps for `apply`, (num, 10) float32, whose rows can be reused.

        Columns: left, top, width and height of the crop as shares of the image, zoom, -1 for a mirrored image
        and else 1, counter-clockwise angle in radians, shifts to the right and down as shares of the side,
        deviation of the blur in pixels.
        """
        random = torch.rand(num, 2 * TRIES + 8, generator=generator, device=generator.device)
        width, height = self._crop_size(random[:, :TRIES], random[:, TRIES : 2 * TRIES])
        left, top, zoom, mirror, angle, right, down, sigma = random[:, 2 * TRIES :].unbind(1)
        columns = (
            left * (1 - width),
            top * (1 - height),
            width,
            height,
            _between(self.scale, zoom),
            torch.where(mirror < 0.5, -1.0, 1.0) if self.flip else torch.ones_like(mirror),
            math.radians(self.rotate) * (2 * angle - 1),
            _between(self.translate, right),
            _between(self.translate, down),
            _between(self.blur or (1.0, 1.0), sigma),
        )
        return torch.stack(columns, dim=1).to(device)

    def _crop_size(self, area: Tensor, aspect: Tensor) -> tuple[Tensor, Tensor]:
        """Return the width and height of the first try that fits, or of the whole image if none does."""
        if self.crop is None:
            return torch.ones_like(area[:, 0]), torch.ones_like(area[:, 0])
        area = _between(self.crop, area)
        ratio = _between((math.log(self.ratio[0]), math.log(self.ratio[1])), aspect).exp()
        width, height = (area * ratio).sqrt(), (area / ratio).sqrt()
        fits = (width <= 1) & (height <= 1)
        first = fits.int().argmax(dim=1, keepdim=True)
        found = fits.any(dim=1)
        return (
            torch.where(found, width.gather(1, first)[:, 0], 1.0),
            torch.where(found, height.gather(1, first)[:, 0], 1.0),
        )

    def apply(self, x: Tensor, params: Tensor) -> Tensor:
        """Warp the images (batch, channels, height, width) by the parameters `params` (batch, 10)."""
        if x.ndim != 4 or not x.is_floating_point():
            raise ValueError(
                f"x must be a float batch (batch, channels, height, width), got {x.dtype} {x.shape}"
            )
        if params.shape != (len(x), 10):
            raise ValueError(f"params must be ({len(x)}, 10), one row per image, got {tuple(params.shape)}")
        params = params.to(x.device)
        may_leave = self.rotate != 0 or self.translate != (0.0, 0.0) or self.scale[0] < 1
        if may_leave or self.crop is not None or self.scale != (1.0, 1.0):
            theta = affine(params, x.shape[2], x.shape[3]).to(x.dtype)
            grid = F.affine_grid(theta, list(x.shape), align_corners=False)
            padding = "zeros" if may_leave else "border"  # a crop at the edge must not get a dark rim
            x = F.grid_sample(x, grid, mode="bilinear", padding_mode=padding, align_corners=False)
        elif self.flip:
            x = torch.where(params[:, 5].view(-1, 1, 1, 1) < 0, x.flip(-1), x)
        return x if self.blur is None else gaussian_blur(x, params[:, 9])


def affine(params: Tensor, height: int, width: int) -> Tensor:
    """Return the maps (batch, 2, 3) from output to input positions, in torch's coordinates from -1 to 1."""
    left, top, crop_width, crop_height, zoom, mirror, angle, right, down, _ = params.unbind(1)
    # Output position -> shifted back -> turned and zoomed back (in pixels, so that a circle stays one) ->
    # mirrored -> into the crop.
    cos, sin = angle.cos() / zoom, angle.sin() / zoom
    turn = torch.stack([cos, -sin * height / width, sin * width / height, cos], dim=1).view(-1, 2, 2)
    shift = -turn @ (2 * torch.stack([right, down], dim=1))[:, :, None]
    size = torch.stack([crop_width * mirror, crop_height], dim=1)[:, :, None]
    centre = torch.stack([2 * left + crop_width - 1, 2 * top + crop_height - 1], dim=1)[:, :, None]
    return torch.cat([size * turn, size * shift + centre], dim=2)


def gaussian_blur(x: Tensor, sigma: Tensor) -> Tensor:
    """Blur each image by a 5x5 Gaussian of its own deviation (batch,), reflecting the image at its edges."""
    offsets = torch.arange(KERNEL, device=x.device, dtype=x.dtype) - KERNEL // 2
    kernel = torch.exp(-0.5 * (offsets / sigma[:, None]) ** 2)
    kernel = (kernel / kernel.sum(dim=1, keepdim=True)).to(x.dtype)
    height, width = x.shape[2:]
    padded = F.pad(x, [KERNEL // 2] * 4, mode="reflect")
    weights = kernel.unbind(1)
    rows = sum(weight.view(-1, 1, 1, 1) * padded[:, :, k : k + height] for k, weight in enumerate(weights))
    assert isinstance(rows, Tensor)
    columns = sum(weight.view(-1, 1, 1, 1) * rows[..., k : k + width] for k, weight in enumerate(weights))
    assert isinstance(columns, Tensor)
    return columns


def _between(limits: tuple[float, float], random: Tensor) -> Tensor:
    return limits[0] + (limits[1] - limits[0]) * random


# The transformation of the paper's eta-TAB and ERM-RandAug. The paper does not give the blur's deviation;
# this range is the default of torchvision's GaussianBlur.
ETA = Warp(rotate=30.0, translate=(0.0, 0.1), blur=(0.1, 2.0))
