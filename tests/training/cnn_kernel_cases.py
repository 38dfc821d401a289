"""Run with TRITON_INTERPRET=1: the kernels of the paper's CNN against torch, on the CPU in float32."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from evenhand.training import cnn as fast
from evenhand.training.models import cnn


def main() -> None:
    torch.manual_seed(0)
    # Small data have few pixels: smaller blocks, and more than one to a chunk.
    fast.WEIGHTS = dict.fromkeys(fast.WEIGHTS, (16, 4, 2, 3))
    fast.CONVOLVE = dict.fromkeys(fast.CONVOLVE, (32, 4, 2))
    fast.FEW = (32, 4, 2, 3)
    for shape, images, classes in (((3, 7, 5), 4, 10), ((1, 8, 8), 3, 2)):
        model = cnn(shape, classes)
        x, y = torch.randn(images, *shape), torch.randint(0, classes, (images,))
        outputs = model(x)
        F.cross_entropy(outputs, y).backward()
        expected = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        ours = fast.network(model, x, torch.float32)
        F.cross_entropy(ours, y).backward()
        torch.testing.assert_close(ours, outputs, rtol=1e-5, atol=1e-6)
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            error = (parameter.grad - gradient).norm() / gradient.norm()
            assert error < 1e-5, f"a gradient of shape {tuple(gradient.shape)} is off by {error:.1e}"


if __name__ == "__main__":
    main()
