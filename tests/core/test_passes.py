"""A start from a sample and passes over all rows: as good as the search, whatever the rows and classes."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from test_twomeans import best_of_ten, inertia
from torch import Tensor

from evenhand.core import passes, twomeans
from evenhand.core.kernels import has_triton
from evenhand.core.passes import Passes
from evenhand.core.twomeans import two_means, two_means_on_device


def curves(samples: int, epochs: int = 20, seed: int = 0) -> Tensor:
    random = np.random.default_rng(seed)
    late = random.random(samples) < 0.05
    rate = np.where(late, 0.05, 0.5)[:, None] * random.lognormal(0, 0.3, size=(samples, 1))
    x = 2 * np.exp(-rate * np.arange(epochs)) * random.lognormal(0, 0.3, (samples, epochs))
    return torch.from_numpy(x.astype("f4"))


def test_the_kernel_equals_plain_passes() -> None:
    """In a process of its own, for triton decides on its interpreter when it is imported."""
    if not has_triton():
        pytest.skip("there is no Triton that the kernel works with")
    cases = Path(__file__).with_name("kernel_cases.py")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(cases)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    if "only 0-dimensional arrays can be converted" in run.stdout:
        pytest.skip("this Triton's interpreter does not work with this NumPy")
    assert run.returncode == 0 and "7 passed" in run.stdout, run.stdout + run.stderr


@pytest.mark.parametrize("num_classes", [1, 4, 70])
def test_all_classes_at_once_are_split_as_each_alone(
    num_classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "_ROWS", 300)  # several parts
    x, labels = curves(14_000), torch.arange(14_000) % num_classes * 3
    found, wanted = two_means_on_device(x, labels), two_means(x, labels)
    assert (found.inertia <= wanted.inertia * 1.001).all()
    for c in range(min(num_classes, 4)):
        rows = labels == 3 * c
        own, inside = x[rows].numpy(), found.assignment[rows].numpy()
        assert inertia(own, inside) <= 1.001 * best_of_ten(own)
        assert float(found.inertia[c]) == pytest.approx(inertia(own, inside), rel=1e-4)
    assert torch.allclose(found.total, wanted.total, rtol=1e-5)
    assert (found.classes == wanted.classes).all() and (found.sizes.sum(1) == wanted.sizes.sum(1)).all()
    assert ((found.margin > 0) == found.assignment).all()
    agree = (found.assignment == wanted.assignment).float().mean()
    assert agree > 0.99 and torch.allclose(found.centroids, wanted.centroids, atol=0.05)
    again = two_means_on_device(x, labels)
    assert torch.equal(again.assignment, found.assignment) and torch.equal(again.margin, found.margin)


def heavy(kind: str, samples: int, epochs: int) -> Tensor:
    """Rows of which few are far out: in any direction, with few spikes, or in all epochs alike."""
    random = np.random.default_rng(0)
    x = random.normal(size=(samples, epochs))
    if kind == "any direction":
        x *= random.pareto(1.5, size=(samples, 1)) / np.linalg.norm(x, axis=1, keepdims=True)
    elif kind == "spikes":
        x = random.exponential(size=x.shape) * (random.random(x.shape) < 0.1)
    else:
        x = np.exp(1.5 * x)
    return torch.from_numpy(x)


@pytest.mark.parametrize("epochs", [2, 20])
@pytest.mark.parametrize("kind", ["any direction", "spikes", "lognormal"])
def test_heavy_tails_are_split_as_well_as_by_the_best_of_ten(kind: str, epochs: int) -> None:
    x = heavy(kind, 50_000, epochs)
    best = best_of_ten(x.numpy())
    for found in (two_means_on_device(x), two_means(x)):
        assert inertia(x.numpy(), found.assignment.numpy()) <= 1.001 * best


def test_the_description_is_that_of_the_assignment() -> None:
    x = curves(5000).double() + 1000  # far from zero
    found = two_means_on_device(x)
    given = two_means(x, assignment=found.assignment)
    assert torch.equal(found.sizes, given.sizes)
    assert torch.allclose(found.centroids, given.centroids) and torch.allclose(found.inertia, given.inertia)


def test_the_higher_mean_is_cluster_1_and_identical_rows_stay_whole() -> None:
    x = torch.cat([curves(3000), torch.full((50, 20), 0.7), torch.full((1, 20), 0.3)])
    labels = torch.cat([torch.zeros(3000), torch.ones(50), torch.full((1,), 2.0)]).long()
    found = two_means_on_device(x, labels)
    assert found.centroids[0, 1].mean() > found.centroids[0, 0].mean()
    assert found.sizes[1:].tolist() == [[50, 0], [1, 0]] and found.total[1:].tolist() == [0, 0]
    assert not found.assignment[3000:].any() and not found.margin[3000:].any()


def test_a_flip_after_the_last_pass_is_put_right() -> None:
    x = torch.tensor([[0.0], [0.1], [5.0]])
    data = Passes(x, None, 1)
    first = data.first_pass(100)
    mean = first.sums / first.counts[:, None]
    upside_down = torch.tensor([[[5.0], [0.0]]], dtype=torch.float64) - data.shift
    sizes, sums, margin, inside = data.mark(*passes.boundary(upside_down))
    centroids, between = twomeans._updated(upside_down, first.counts, mean, sizes, sums)
    marked = sizes, between, margin, inside
    found = twomeans._described(data, np.zeros(1), centroids, first.counts, mean, first.squares, marked)
    assert found.assignment.tolist() == [False, False, True] and found.sizes.tolist() == [[2, 1]]
    assert ((found.margin > 0) == found.assignment).all()
    assert found.centroids.flatten().tolist() == pytest.approx([0.05, 5.0])


@pytest.mark.parametrize("scale", [1e-25, 1e30])
def test_very_large_and_very_small_losses(scale: float) -> None:
    x = curves(3000)
    wanted, found = two_means_on_device(x), two_means_on_device(x.double() * scale)
    assert torch.equal(found.assignment, wanted.assignment)
    if scale > 1:  # beyond what squares in float32 hold
        assert torch.equal(two_means_on_device(x * scale).assignment, wanted.assignment)


def test_wrong_input_is_refused() -> None:
    x = curves(100)
    x[3, 4] = torch.nan
    with pytest.raises(ValueError, match="histories must be finite, got nan for sample 3 in epoch 4"):
        two_means_on_device(x)
    x[3, 4] = torch.inf
    with pytest.raises(ValueError, match="histories must be finite, got inf for sample 3 in epoch 4"):
        two_means_on_device(x)
    with pytest.raises(ValueError, match="one row per sample, got 100 and 3"):
        two_means_on_device(curves(100), [0, 1, 1])
    with pytest.raises(ValueError, match=r"histories must be shaped \(samples, epochs\), got \(3,\)"):
        two_means_on_device(torch.ones(3))
