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
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


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
    """Compute the ReLU of a convolution."""
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
    """Return the number of columns of windows of few channels: a power of two, at least 16."""
    return triton.next_power_of_2(max(9 * few, 16))


def _top(outer: Tensor, head: Tensor, gate: Tensor) -> Tensor:
    """Compute the gradient of the last convolution; `gate` is what its ReLU let through."""
    images, features, rows, columns = len(gate), gate[0].numel(), 64, 256
    g, grid = torch.empty_like(gate), (triton.cdiv(features, columns), triton.cdiv(images, rows))
    top_gradient[grid](outer, head, gate, g, images, features, C=len(head), ROWS=rows, COLUMNS=columns)
    return g


def _back(g: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
    """Compute the gradient below a convolution; `gate` is what the ReLU there let through."""
    (images, height, width, out), few = g.shape, gate.shape[3]
    below, pixels = torch.empty_like(gate), images * height * width
    rows, warps, stages = CONVOLVE[out, few]
    common = {"H": height, "W": width, "IN": out, "OUT": few, "ROWS": rows, "STAGES": stages}
    grid = (triton.cdiv(pixels, rows),)
    convolve[grid](g, weight, weight, gate, below, pixels, BACK=True, **common, num_warps=warps)
    return below


def _weights_back(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the gradients of a convolution's weight and bias, in the shapes of the parameters."""
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
    """Return the outputs of `model`, one of `models.CNN`, for images (images, channels, height, width)."""
    return _Network.apply(x, dtype, *model.parameters())


# -- the kernels: 3x3 convolutions with few channels, and their ReLU -------------------------------------

# Pixels are rows: activations are (images * height * width, channels), which is what channels_last means.
# No kernel adds to memory that another one adds to, so equal inputs give equal bits.


@triton.jit
def _taps(pixel, tap, num_pixels, H: tl.constexpr, W: tl.constexpr):
    """Return the pixels that the tap of a 3x3 window sees from these, and whether they lie in the image."""
    y, x = pixel // W % H + tap // 3 - 1, pixel % W + tap % 3 - 1
    inside = (y >= 0) & (y < H) & (x >= 0) & (x < W) & (pixel < num_pixels)
    return pixel + (tap // 3 - 1) * W + tap % 3 - 1, inside


@triton.jit
def _seen(source, pixel, tap, num_pixels, H: tl.constexpr, W: tl.constexpr, IN: tl.constexpr):
    """Return what a tap of the window sees from these pixels, (pixels, in); zero outside the image."""
    place, inside = _taps(pixel, tap, num_pixels, H, W)
    return tl.load(source + place[:, None] * IN + tl.arange(0, IN)[None, :], mask=inside[:, None], other=0.0)


@triton.jit
def convolve(
    source,
    weight,  # (out, 9, in), or to go back: its channels exchanged
    bias,
    gate,
    target,
    num_pixels,
    H: tl.constexpr,
    W: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    BACK: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Forward: ReLU of the convolution. Back: the gradient below it, where the ReLU there lets it through."""
    pixel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i, o = tl.arange(0, IN), tl.arange(0, OUT)
    total = tl.zeros((ROWS, OUT), tl.float32)
    for tap in tl.range(9, num_stages=STAGES):
        x = _seen(source, pixel, tap, num_pixels, H, W, IN)
        if BACK:  # weight is (in, 9, out) in our names, and the window is turned around
            w = tl.load(weight + i[:, None] * (9 * OUT) + (8 - tap) * OUT + o[None, :])
        else:
            w = tl.trans(tl.load(weight + o[:, None] * (9 * IN) + tap * IN + i[None, :]))
        total = tl.dot(x, w, total)
    place = pixel[:, None] * OUT + o[None, :]
    real = (pixel < num_pixels)[:, None]
    if BACK:
        total = tl.where(tl.load(gate + place, mask=real, other=0.0) > 0, total, 0.0)
    else:
        total = tl.maximum(total + tl.load(bias + o)[None, :], 0.0)
    tl.store(target + place, total.to(target.dtype.element_ty), mask=real)


@triton.jit
def _window(source, pixel, num_pixels, H: tl.constexpr, W: tl.constexpr, IN: tl.constexpr, K: tl.constexpr):
    """Return the whole 3x3 windows of few channels, (pixels, K); the columns from 9 * IN on are zero."""
    k = tl.arange(0, K)
    seen, inside = _taps(pixel[:, None], (k // IN)[None, :], num_pixels, H, W)
    return tl.load(source + seen * IN + (k % IN)[None, :], mask=inside & (k < 9 * IN)[None, :], other=0.0)


@triton.jit
def convolve_few(
    source,
    weight,  # (out, 9, in)
    bias,
    target,
    num_pixels,
    H: tl.constexpr,
    W: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Compute the ReLU of the first convolution as one product of the whole window of few channels."""
    pixel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k, o = tl.arange(0, K), tl.arange(0, OUT)
    x = _window(source, pixel, num_pixels, H, W, IN, K)
    w = tl.load(weight + o[None, :] * (9 * IN) + k[:, None], mask=(k < 9 * IN)[:, None], other=0.0)
    total = tl.maximum(tl.dot(x, w) + tl.load(bias + o)[None, :], 0.0)
    place = pixel[:, None] * OUT + o[None, :]
    tl.store(target + place, total.to(target.dtype.element_ty), mask=(pixel < num_pixels)[:, None])


@triton.jit
def _gradient(gradient, pixel, num_pixels, OUT: tl.constexpr, WIDE: tl.constexpr):
    """Return the transposed gradient of these pixels, (wide, pixels), padded with zeros for speed."""
    o = tl.arange(0, WIDE)
    real = (pixel < num_pixels)[:, None] & (o < OUT)[None, :]
    return tl.trans(tl.load(gradient + pixel[:, None] * OUT + o[None, :], mask=real, other=0.0))


@triton.jit
def _one(rows: tl.constexpr, dtype: tl.constexpr):
    """Return a matrix (rows, 16) with ones in the first column and zeros elsewhere, which sums rows."""
    return tl.where(tl.arange(0, 16)[None, :] + tl.zeros((rows, 16), tl.int32) == 0, 1.0, 0.0).to(dtype)


@triton.jit(do_not_specialize=["blocks"])
def weight_gradient(
    source,
    gradient,
    parts,  # (chunks, out * 9 * in + out) float32: of the weight, then of the bias
    num_pixels,
    blocks,
    H: tl.constexpr,
    W: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute a chunk's part of the gradient, with the taps side by side, so pixels are fetched once."""
    t0 = tl.zeros((WIDE, IN), tl.float32)
    t1 = tl.zeros((WIDE, IN), tl.float32)
    t2 = tl.zeros((WIDE, IN), tl.float32)
    t3 = tl.zeros((WIDE, IN), tl.float32)
    t4 = tl.zeros((WIDE, IN), tl.float32)
    t5 = tl.zeros((WIDE, IN), tl.float32)
    t6 = tl.zeros((WIDE, IN), tl.float32)
    t7 = tl.zeros((WIDE, IN), tl.float32)
    t8 = tl.zeros((WIDE, IN), tl.float32)
    total = tl.zeros((WIDE, 16), tl.float32)
    one = _one(ROWS, source.dtype.element_ty)
    chunk = tl.program_id(0)
    for block in tl.range(chunk * blocks, (chunk + 1) * blocks, num_stages=STAGES):
        pixel = block * ROWS + tl.arange(0, ROWS)
        g = _gradient(gradient, pixel, num_pixels, OUT, WIDE)
        t0 = tl.dot(g, _seen(source, pixel, 0, num_pixels, H, W, IN), t0)
        t1 = tl.dot(g, _seen(source, pixel, 1, num_pixels, H, W, IN), t1)
        t2 = tl.dot(g, _seen(source, pixel, 2, num_pixels, H, W, IN), t2)
        t3 = tl.dot(g, _seen(source, pixel, 3, num_pixels, H, W, IN), t3)
        t4 = tl.dot(g, _seen(source, pixel, 4, num_pixels, H, W, IN), t4)
        t5 = tl.dot(g, _seen(source, pixel, 5, num_pixels, H, W, IN), t5)
        t6 = tl.dot(g, _seen(source, pixel, 6, num_pixels, H, W, IN), t6)
        t7 = tl.dot(g, _seen(source, pixel, 7, num_pixels, H, W, IN), t7)
        t8 = tl.dot(g, _seen(source, pixel, 8, num_pixels, H, W, IN), t8)
        total = tl.dot(g, one, total)
    i, o = tl.arange(0, IN), tl.arange(0, WIDE)
    part, real = parts + chunk * (OUT * 9 * IN + OUT), (o < OUT)[:, None]
    place = part + o[:, None] * (9 * IN) + i[None, :]
    tl.store(place + 0 * IN, t0, mask=real)
    tl.store(place + 1 * IN, t1, mask=real)
    tl.store(place + 2 * IN, t2, mask=real)
    tl.store(place + 3 * IN, t3, mask=real)
    tl.store(place + 4 * IN, t4, mask=real)
    tl.store(place + 5 * IN, t5, mask=real)
    tl.store(place + 6 * IN, t6, mask=real)
    tl.store(place + 7 * IN, t7, mask=real)
    tl.store(place + 8 * IN, t8, mask=real)
    tl.store(part + OUT * 9 * IN + o, tl.sum(total, 1), mask=o < OUT)


@triton.jit(do_not_specialize=["blocks"])
def weight_gradient_few(
    source,
    gradient,
    parts,
    num_pixels,
    blocks,
    H: tl.constexpr,
    W: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute the weight gradient of the first convolution, the whole window at once."""
    weights, total = tl.zeros((OUT, K), tl.float32), tl.zeros((OUT, 16), tl.float32)
    one = _one(ROWS, source.dtype.element_ty)
    chunk = tl.program_id(0)
    for block in tl.range(chunk * blocks, (chunk + 1) * blocks, num_stages=STAGES):
        pixel = block * ROWS + tl.arange(0, ROWS)
        g = _gradient(gradient, pixel, num_pixels, OUT, OUT)
        weights = tl.dot(g, _window(source, pixel, num_pixels, H, W, IN, K), weights)
        total = tl.dot(g, one, total)
    k, o = tl.arange(0, K), tl.arange(0, OUT)
    part = parts + chunk * (OUT * 9 * IN + OUT)
    tl.store(part + o[:, None] * (9 * IN) + k[None, :], weights, mask=(k < 9 * IN)[None, :])
    tl.store(part + OUT * 9 * IN + o, tl.sum(total, 1))


@triton.jit
def top_gradient(
    outer,
    weight,
    gate,
    target,
    images,
    features,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Compute outer @ weight, (images, C) @ (C, features), where the last ReLU lets it through."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    c = tl.arange(0, C)
    g = tl.load(outer + row[:, None] * C + c[None, :], mask=(row < images)[:, None], other=0.0)
    w = tl.load(
        weight + c[:, None] * features + column[None, :], mask=(column < features)[None, :], other=0.0
    )
    place = row[:, None] * features + column[None, :]
    real = (row < images)[:, None] & (column < features)[None, :]
    total = tl.where(tl.load(gate + place, mask=real, other=0.0) > 0, tl.dot(g, w), 0.0)
    tl.store(target + place, total.to(target.dtype.element_ty), mask=real)
