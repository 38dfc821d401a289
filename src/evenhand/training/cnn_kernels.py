"""GPU kernels for 3x3 convolutions with few channels and their ReLU; cnn.py puts them together.

Pixels are rows: activations are (images * height * width, channels), which is what channels_last means.
No kernel adds to memory that another one adds to, so equal inputs give equal bits.
"""

# mypy: ignore-errors
# Triton has no types.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _taps(pixel, tap, num_pixels, H: tl.constexpr, W: tl.constexpr):
    """The pixels that the tap of a 3x3 window sees from these, and whether they lie in the image."""
    y, x = pixel // W % H + tap // 3 - 1, pixel % W + tap % 3 - 1
    inside = (y >= 0) & (y < H) & (x >= 0) & (x < W) & (pixel < num_pixels)
    return pixel + (tap // 3 - 1) * W + tap % 3 - 1, inside


@triton.jit
def _seen(source, pixel, tap, num_pixels, H: tl.constexpr, W: tl.constexpr, IN: tl.constexpr):
    """What a tap of the window sees from these pixels, (pixels, in); zero outside the image."""
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
    """The whole 3x3 windows of few channels, (pixels, K); the columns from 9 * IN on are zero."""
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
    """ReLU of the first convolution, whose few channels make one product of the whole window."""
    pixel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k, o = tl.arange(0, K), tl.arange(0, OUT)
    x = _window(source, pixel, num_pixels, H, W, IN, K)
    w = tl.load(weight + o[None, :] * (9 * IN) + k[:, None], mask=(k < 9 * IN)[:, None], other=0.0)
    total = tl.maximum(tl.dot(x, w) + tl.load(bias + o)[None, :], 0.0)
    place = pixel[:, None] * OUT + o[None, :]
    tl.store(target + place, total.to(target.dtype.element_ty), mask=(pixel < num_pixels)[:, None])


@triton.jit
def _gradient(gradient, pixel, num_pixels, OUT: tl.constexpr, WIDE: tl.constexpr):
    """The gradient of these pixels, turned, (wide, pixels); zeros fill it to a width that multiplies fast."""
    o = tl.arange(0, WIDE)
    real = (pixel < num_pixels)[:, None] & (o < OUT)[None, :]
    return tl.trans(tl.load(gradient + pixel[:, None] * OUT + o[None, :], mask=real, other=0.0))


@triton.jit
def _one(rows: tl.constexpr, dtype: tl.constexpr):
    """A matrix (rows, 16) whose first column is one and the others zero: a product with it sums rows."""
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
    """A chunk's part of the gradient, one tap of the window beside the other: each pixel is fetched once."""
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
    """The same for the first convolution, the whole window at once."""
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
    """outer @ weight, (images, C) @ (C, features), where the last ReLU lets it through."""
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
