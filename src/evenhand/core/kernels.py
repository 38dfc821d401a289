"""The passes of passes.py on a GPU, each by one Triton kernel that reads the histories once for all classes.

Every program of the GPU adds its own rows in float32, and the programs' sums are added in float64 in their
order, so that no sum depends on which program finishes first.
"""

from __future__ import annotations

import functools
import importlib.util
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evenhand.core.passes import FirstPass, Passes, sample_sizes
from evenhand.core.search import TAIL

OLDEST_TRITON = (3, 6)  # that the kernels of this package have been tried with


@functools.cache
def has_triton() -> bool:
    """Return whether Triton is installed in a version known to work, without importing it."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        numbers = version("triton").split(".")[:2]
    except PackageNotFoundError:  # under another name, as AMD's
        return False
    return tuple(map(int, numbers)) >= OLDEST_TRITON


if has_triton():
    import triton  # type: ignore
    import triton.language as tl  # type: ignore
else:
    triton = tl = None

MOST_CLASSES = 64  # that a kernel takes at once
MOST_EPOCHS = 256
_SPLIT, _MOMENTS, _MARK = 0, 1, 2  # what a kernel computes


class Launch(NamedTuple):
    """The launch settings of a kernel; results differ only in rounding."""

    rows: int  # read at once
    warps: int
    stages: int  # reads under way
    programs: int


LAUNCH = {torch.float16: Launch(128, 4, 3, 1056), torch.float32: Launch(32, 8, 3, 1056)}


class TritonPasses(Passes):
    """Passes over float16 or float32 histories on a GPU."""

    x: Tensor

    def __init__(
        self, x: Tensor, position: Tensor | None, num_classes: int, launch: Launch | None = None
    ) -> None:
        super().__init__(x, position, num_classes)
        if x.dtype != torch.float32:  # sums of halves are exact enough, and subtracting would round them
            self.shift = torch.zeros_like(self.origin)
        if 1 not in x.stride():
            self.x = x.contiguous()
        self.launch = launch or LAUNCH[x.dtype]

    @staticmethod
    def takes(x: Tensor, num_classes: int) -> bool:
        """Return whether the kernel is made for such histories."""
        fits = (
            x.dtype in (torch.float16, torch.float32)
            and x.shape[1] <= MOST_EPOCHS
            and num_classes <= MOST_CLASSES
        )
        return fits and triton is not None and x.is_cuda

    def first_pass(self, sample: int) -> FirstPass:
        counts, sums, squares, distances = self.moments()
        size, tailed = sample_sizes(counts, self.num_epochs, sample)
        chosen = []
        for c, (count, number, tail) in enumerate(
            zip(counts.long().tolist(), size.long().tolist(), (TAIL * tailed).tolist(), strict=True)
        ):
            rows = None if self.position is None else (self.position == c).nonzero()[:, 0]
            order = (distances if rows is None else distances[rows]).argsort(stable=True, descending=True)
            spaced = torch.linspace(tail, count - 1, number - tail, dtype=torch.float64).round().long()
            order = order[torch.cat([torch.arange(tail), spaced]).to(order.device)]
            chosen.append(order if rows is None else rows[order])
        found = self.x[torch.cat(chosen)].float() - self.shift.to(self.device, torch.float32)
        samples = list(found.cpu().split([len(rows) for rows in chosen]))
        return FirstPass(counts, sums, squares, samples, tailed.tolist())

    def moments(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return each class's size, sum and summed squared distances to `origin`, and each row's distance."""
        distances = torch.empty(self.num_samples, device=self.device)
        nothing = torch.zeros(self.num_classes, self.num_epochs)
        sizes, sums, squares = self._launch(_MOMENTS, nothing, nothing[:, 0], out=distances)
        return sizes, sums, squares, distances

    def split(self, direction: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
        found = [self._launch(_SPLIT, d, t)[:2] for d, t in zip(direction, threshold, strict=True)]
        sizes, sums = zip(*found, strict=True)
        return torch.stack(sizes), torch.stack(sums)

    def mark(
        self, direction: Tensor, threshold: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        margin, inside = self._marks()
        sizes, sums, _ = self._launch(_MARK, direction, threshold, scale, margin, inside)
        return sizes, sums, margin, inside

    def _launch(
        self,
        mode: int,
        direction: Tensor,
        threshold: Tensor,
        scale: Tensor | None = None,
        out: Tensor | None = None,
        inside: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        device, (samples, epochs), classes = self.device, self.x.shape, self.num_classes
        block_e, block_c = max(16, triton.next_power_of_2(epochs)), max(16, triton.next_power_of_2(classes))
        rows, warps, stages, programs = self.launch
        each = -(-samples // (programs * rows)) * rows
        programs = -(-samples // each)
        table = torch.zeros(block_e + 3, block_c)  # directions, thresholds, scales: one copy to the device
        table[:epochs, :classes], table[block_e, :classes] = direction.T, threshold
        if scale is not None:
            table[block_e + 1, :classes] = scale
        points = torch.zeros(2, block_e)
        points[0, :epochs], points[1, :epochs] = self.shift, self.origin
        table, points = table.to(device), points.to(device)
        high = table[:block_e].to(self.x.dtype)
        low = (table[:block_e] - high.float()).to(self.x.dtype)  # what a half does not hold of a direction
        parts = torch.empty(programs, block_e, block_c, device=device)
        counts = torch.empty(programs, block_c, dtype=torch.int32, device=device)
        squares = torch.empty(programs, block_c, device=device)
        nothing = parts  # for what a mode does not use
        step, across = self.x.stride()
        _kernel[(programs,)](
            self.x,
            nothing if self.position is None else self.position,
            high,
            low,
            table,
            points,
            parts,
            counts,
            squares,
            nothing if out is None else out,
            nothing if inside is None else inside.view(torch.uint8),
            samples,
            across,
            each,
            1.0,
            STEP=step if across == 1 else 1,
            EPOCHS=epochs,
            ROWS=rows,
            BLOCK_E=block_e,
            BLOCK_C=block_c,
            CLASSES=self.position is not None,
            SHIFTED=self.x.dtype == torch.float32,
            MODE=mode,
            num_warps=warps,
            num_stages=stages,
        )
        sums = parts.sum(0, dtype=torch.float64)[:epochs, :classes].T
        sizes = counts.sum(0)[:classes].double()
        return sizes.cpu(), sums.cpu(), squares.sum(0, dtype=torch.float64)[:classes].cpu()


def _pass(  # type: ignore[no-untyped-def]
    x,
    position,
    high,
    low,
    table,
    points,
    parts,
    counts,
    squares,
    out,
    out_inside,
    samples,
    across,  # from one epoch to the next
    each,  # rows of a program
    one,
    STEP: tl.constexpr,  # from one row to the next
    EPOCHS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_C: tl.constexpr,
    CLASSES: tl.constexpr,
    SHIFTED: tl.constexpr,
    MODE: tl.constexpr,
):
    """Process this program's stretch of rows, ROWS at a time as (epochs, rows)."""
    exact: tl.constexpr = "tf32x3" if SHIFTED else "tf32"  # of float32; halves are exact in any case
    program = tl.program_id(0)
    e, c, r = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_C), tl.arange(0, ROWS)
    first = program.to(tl.int64) * each  # 64 bits: there may be more numbers than 32 can count
    square = e[:, None] * BLOCK_C + c[None, :]
    shift, origin = tl.load(points + e), tl.load(points + BLOCK_E + e)
    t, scale = tl.load(table + BLOCK_E * BLOCK_C + c), tl.load(table + (BLOCK_E + 1) * BLOCK_C + c)
    d_high, d_low = tl.load(high + square), tl.load(low + square)
    total = tl.zeros((BLOCK_E, BLOCK_C), tl.float32)
    size, sum_of_squares = tl.zeros((BLOCK_C,), tl.int32), tl.zeros((BLOCK_C,), tl.float32)
    corner = x + e.to(tl.int64)[:, None] * across
    if CLASSES:
        k = tl.load(position + first + r, mask=first + r < samples, other=0)
    for start in range(0, each, ROWS):
        row = first + start + r
        there = row < samples
        v = tl.load(corner + row[None, :] * STEP, mask=(e < EPOCHS)[:, None] & there[None, :], other=0.0)
        if SHIFTED:
            v -= shift[:, None]
        if CLASSES:
            hot = (k.to(tl.int32)[:, None] == c[None, :]) & there[:, None]
            k = tl.load(position + row + ROWS, mask=row + ROWS < samples, other=0)  # early, for the next rows
        else:
            hot = (c == 0)[None, :] & there[:, None]
        if MODE == 1:
            chosen = hot
            values = v.to(tl.float32)
            if SHIFTED:
                values += shift[:, None]
            apart = values - origin[:, None]
            distance = tl.sum(apart * apart, 0)
            sum_of_squares += tl.sum(tl.where(hot, distance[:, None], 0.0), 0)
            tl.store(out + row, distance, mask=there)
        else:  # every row's place relative to every class's boundary, of which only its own counts
            turned = tl.trans(v)
            p = tl.dot(turned, d_high, input_precision=exact)
            if not SHIFTED:
                p = tl.dot(turned, d_low, p)
            p -= t[None, :]
            chosen = hot & (p > 0)
        if MODE == 2:
            tl.store(out + row, tl.sum(tl.where(hot, p * scale[None, :], 0.0), 1), mask=there)
            tl.store(out_inside + row, tl.sum(chosen.to(tl.int32), 1).to(tl.uint8), mask=there)
        # Times one, which the compiler does not know: tensor cores round towards zero in long sums.
        total += tl.dot(v, chosen.to(v.dtype), input_precision=exact) * one
        size += tl.sum(chosen.to(tl.int32), 0)
    tl.store(parts + program.to(tl.int64) * BLOCK_E * BLOCK_C + square, total)
    tl.store(counts + program * BLOCK_C + c, size)
    tl.store(squares + program * BLOCK_C + c, sum_of_squares)


_kernel: Any = None if triton is None else triton.jit(_pass)
