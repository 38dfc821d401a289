"""The GPU's kernel, run by triton's interpreter, equals plain passes in float64; test_passes.py starts this."""

import pytest
import torch
from torch import Tensor

from evenhand.core.kernels import Launch, TritonPasses
from evenhand.core.passes import Passes, boundary


def histories(samples: int, epochs: int) -> Tensor:
    random = torch.Generator().manual_seed(0)
    return torch.rand(samples, epochs, generator=random) + (torch.rand(samples, 1, generator=random) < 0.2)


def near(ours: Tensor, exact: Tensor, tolerance: float) -> None:
    scale = exact.double().abs().max().clamp(min=1e-30)
    assert float((ours.double() - exact.double()).abs().max() / scale) <= tolerance


@pytest.mark.parametrize("num_classes", [1, 3, 20])
@pytest.mark.parametrize("kind", [torch.float16, torch.float32])
def test_the_kernel_equals_plain_passes_in_float64(num_classes: int, kind: torch.dtype) -> None:
    x = histories(300, 13).to(kind)
    position = None if num_classes == 1 else torch.arange(300).mul(7).remainder(num_classes).to(torch.uint8)
    launch = Launch(rows=32, warps=4, stages=2, programs=4)
    for laid in (x.contiguous(), x.t().contiguous().t()):
        ours = TritonPasses(laid, position, num_classes, launch)
        exact = Passes(x.double(), position, num_classes)
        exact.dtype, exact.shift = torch.float64, ours.shift
        one_hot = torch.nn.functional.one_hot(
            torch.zeros(300, dtype=torch.long) if position is None else position.long(), num_classes
        ).double()
        distances = (x.double() - ours.origin).square().sum(1)
        sums = one_hot.T @ (x.double() - ours.shift)
        wanted = (one_hot.sum(0), sums, one_hot.T @ distances, distances)
        for a, b in zip(ours.moments(), wanted, strict=True):
            near(a, b, 1e-6)
        mean = sums / one_hot.sum(0)[:, None]
        d, t, scale = boundary(torch.stack([mean - 0.1, mean + 0.3], 1))
        several = torch.stack([d, -d]), torch.stack([t, -t - 0.1])
        assert 0 < float(exact.split(*several)[0][0].sum()) < 300
        for a, b in zip(ours.split(*several), exact.split(*several), strict=True):
            near(a, b, 1e-6)
        for a, b in zip(ours.mark(d, t, scale), exact.mark(d, t, scale), strict=True):
            near(a, b, 1e-6)
        assert torch.equal(ours.mark(d, t, scale)[2], ours.mark(d, t, scale)[2])


def test_rows_less_than_a_program_takes_and_one_epoch() -> None:
    x = torch.tensor([[0.5], [3.0], [0.25]], dtype=torch.float16)
    ours = TritonPasses(x, None, 1)
    sizes, sums, margin, inside = ours.mark(torch.ones(1, 1), torch.ones(1), torch.ones(1))
    assert sizes.tolist() == [1] and sums.tolist() == [[3.0]]
    assert margin.tolist() == [-0.5, 2.0, -0.75] and inside.tolist() == [False, True, False]
