"""The paper's CNN in few large GPU kernels: what `models.CNN` computes, in bf16.

cuDNN is far from the card's limits where convolutions have 16 to 64 channels, and a plain network moves
every activation several more times than it must. Here a convolution, its bias and its ReLU are one kernel; a
gradient meets the ReLU below in the kernel that makes it; and no activation changes its layout, because the
last layer's weights do. docs/performance.md has the measurements.
"""

# mypy: ignore-errors
# Triton has no types.

from __future__ import annotations

import torch
import triton
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from evenhand.training.cnn_kernels import (
    convolve,
    convolve_few,
    top_gradient,
    weight_gradient,
    weight_gradient_few,
)


class _Network(torch.autograd.Function):
    """Logits of the whole network, (images, classes) float32, and the gradients of its parameters."""

    @staticmethod
    def forward(ctx, x: Tensor, dtype: torch.dtype, *parameters: Tensor) -> Tensor:
        images, _, height, width = x.shape
        weights = [each.detach().permute(0, 2, 3, 1).to(dtype).contiguous() for each in parameters[:-2:2]]
        last, last_bias = parameters[-2].detach(), parameters[-1].detach()
        classes, padded = len(last), -(-len(last) // 16) * 16
        head = last.new_zeros(padded, last.shape[1], dtype=dtype)
        head[:classes].view(classes, height * width, -1).copy_(
            last.view(classes, -1, height * width).transpose(1, 2)
        )
        layers = [x.permute(0, 2, 3, 1).to(dtype).contiguous()]
        for weight, bias in zip(weights, parameters[1:-2:2], strict=True):
            layers.append(_forward(layers[-1], weight, bias.detach()))
        outputs = layers[-1].view(images, -1) @ head.t()
        ctx.save_for_backward(*layers, *weights, head)
        ctx.shape = (classes, height, width, parameters[-2].shape)
        return outputs[:, :classes].float() + last_bias

    @staticmethod
    @once_differentiable  # the kernels' own gradients are not known
    def backward(ctx, outer: Tensor):
        classes, height, width, shape = ctx.shape
        saved = ctx.saved_tensors
        depth = (len(saved) - 2) // 2
        layers, weights, head = saved[: depth + 1], saved[depth + 1 : -1], saved[-1]
        top = layers[-1].view(len(layers[0]), -1)
        padded = torch.zeros(len(outer), len(head), dtype=top.dtype, device=top.device)
        padded[:, :classes] = outer
        last = (padded.t() @ top)[:classes].float().view(classes, height * width, -1).transpose(1, 2)
        gradients = [last.reshape(shape), outer.float().sum(0)]
        g = _top(padded, head, layers[-1])
        for number in reversed(range(depth)):
            gradients = [*_weights_back(layers[number], g), *gradients]
            if number:
                g = _back(g, weights[number], layers[number])
        return (None, None, *gradients)


# The fastest of those tried on an H200: rows of pixels, warps and stages, by the channels (in, out), and for
# the weights' gradients in how many chunks, which are summed one after the other.
CONVOLVE = {(16, 16): (256, 4, 3), (16, 32): (128, 4, 3), (32, 16): (128, 4, 3), (32, 32): (256, 4, 3),
            (32, 64): (256, 8, 3), (64, 32): (256, 8, 3), (64, 64): (128, 4, 3)}  # fmt: skip
WEIGHTS = {(16, 16): (64, 2, 3, 528), (16, 32): (128, 4, 3, 264), (32, 32): (64, 4, 3, 132),
           (32, 64): (64, 4, 3, 132), (64, 64): (32, 8, 3, 132)}  # fmt: skip
FEW = (256, 4, 2, 264)
CUDNN = 64  # outputs from which cuDNN's own convolution with bias and ReLU is faster


def _forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """ReLU of a convolution."""
    (images, height, width, few), out = x.shape, len(weight)
    if x.is_cuda and out >= CUDNN:
        given = (x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2), bias.to(x.dtype))
        return torch.cudnn_convolution_relu(*given, (1, 1), (1, 1), (1, 1), 1).permute(0, 2, 3, 1)
    y = x.new_empty(images, height, width, out)
    pixels, common = images * height * width, {"H": height, "W": width, "IN": few, "OUT": out}
    if few >= 16:
        rows, warps, stages = CONVOLVE[few, out]
        common |= {"BACK": False, "ROWS": rows, "STAGES": stages, "num_warps": warps}
        convolve[(triton.cdiv(pixels, rows),)](x, weight, bias, x, y, pixels, **common)
    else:
        rows, warps, *_ = FEW
        common |= {"K": _window_size(few), "ROWS": rows, "num_warps": warps}
        convolve_few[(triton.cdiv(pixels, rows),)](x, weight, bias, y, pixels, **common)
    return y


def _window_size(few: int) -> int:
    """How many columns the windows of few channels have: a power of two, at least 16."""
    return triton.next_power_of_2(max(9 * few, 16))


def _top(outer: Tensor, head: Tensor, gate: Tensor) -> Tensor:
    """The gradient of the last convolution; `gate` is what its ReLU let through."""
    images, features, rows, columns = len(gate), gate[0].numel(), 64, 256
    g, grid = torch.empty_like(gate), (triton.cdiv(features, columns), triton.cdiv(images, rows))
    top_gradient[grid](outer, head, gate, g, images, features, C=len(head), ROWS=rows, COLUMNS=columns)
    return g


def _back(g: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
    """The gradient below a convolution; `gate` is what the ReLU there let through."""
    (images, height, width, out), few = g.shape, gate.shape[3]
    below, pixels = torch.empty_like(gate), images * height * width
    rows, warps, stages = CONVOLVE[out, few]
    common = {"H": height, "W": width, "IN": out, "OUT": few, "ROWS": rows, "STAGES": stages}
    grid = (triton.cdiv(pixels, rows),)
    convolve[grid](g, weight, weight, gate, below, pixels, BACK=True, **common, num_warps=warps)
    return below


def _weights_back(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of a convolution's weight and bias, as the parameters are shaped."""
    (images, height, width, few), out = x.shape, g.shape[3]
    rows, warps, stages, chunks = WEIGHTS[few, out] if few >= 16 else FEW
    pixels, size = images * height * width, out * 9 * few
    parts = torch.empty(chunks, size + out, device=x.device)
    given = (x, g, parts, pixels, triton.cdiv(pixels, rows * chunks))
    common = {"H": height, "W": width, "IN": few, "OUT": out, "ROWS": rows, "STAGES": stages}
    if few >= 16:
        wide = 64 if few >= 32 else out  # from there on, the tensor cores' fast way pays for the zeros
        weight_gradient[(chunks,)](*given, **common, WIDE=wide, num_warps=warps)
    else:
        weight_gradient_few[(chunks,)](*given, **common, K=_window_size(few), num_warps=warps)
    total = parts.sum(0)
    return total[:size].view(out, 3, 3, few).permute(0, 3, 1, 2), total[size:]


def network(model: nn.Sequential, x: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """What `model`, one of `models.CNN`, gives for images (images, channels, height, width)."""
    return _Network.apply(x, dtype, *model.parameters())
