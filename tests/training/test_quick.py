"""Fast ways on a GPU: kernels of our own, CUDA graphs, and who may use them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from evenhand import Task, execute
from evenhand.core.compiler import has_triton
from evenhand.training.data import Split
from evenhand.training.models import cnn, mlp
from evenhand.training.objective import Tap
from evenhand.training.progress import Silent
from evenhand.training.quick import Graphed, allow_kernels, quickest
from evenhand.training.recipe import Recipe

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
CUDA = torch.device("cuda")


def test_the_kernels_compute_what_the_network_does() -> None:
    if not has_triton():
        pytest.skip("there is no Triton that the kernels work with")
    case = Path(__file__).with_name("cnn_kernel_cases.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, case], env=environment, capture_output=True, text=True)
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("this Triton's interpreter does not work with this NumPy")
    assert done.returncode == 0, done.stderr


def test_on_a_cpu_the_network_is_a_plain_one() -> None:
    model = cnn((3, 8, 8), 2)
    assert quickest(model, Recipe(), torch.device("cpu"), steps=10**6, resident=True) is model
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(torch.zeros(1, 3, 8, 8)).dtype == torch.bfloat16  # the kernels would give float32


@pytest.mark.parametrize(
    ("recipe", "steps", "resident", "graphed"),
    [
        (Recipe(), 10_000, True, True),
        (Recipe(), 100, True, False),
        (Recipe(compile="on"), 100, True, True),
        (Recipe(compile="off"), 10_000, True, False),
        (Recipe(), 10_000, False, False),
        (Recipe(slices=2), 10_000, True, False),
        (Recipe(model="package.module:function"), 10_000, True, False),
    ],
)
def test_graphs_are_for_long_trainings_that_bear_them(
    recipe: Recipe, steps: int, resident: bool, graphed: bool
) -> None:
    model = cnn((3, 8, 8), 2)
    found = quickest(model, recipe, CUDA, steps=steps, resident=resident)
    assert isinstance(found, Graphed) is graphed and (graphed or found is model)


@pytest.mark.parametrize(
    ("recipe", "steps", "resident", "compiled", "graphed"),
    [
        (Recipe(model="mlp"), 10_000, True, True, True),
        (Recipe(model="mlp"), 1_000, True, False, True),
        (Recipe(model="mlp", compile="on"), 100, True, True, True),
        (Recipe(model="mlp", compile="off"), 10_000, True, False, False),
        (Recipe(model="mlp"), 10_000, False, True, False),
        (Recipe(model="package.module:function"), 10_000, True, True, False),
    ],
)
def test_the_graph_of_another_network_is_of_what_was_compiled(
    recipe: Recipe, steps: int, resident: bool, compiled: bool, graphed: bool
) -> None:
    model = mlp((3, 8, 8), 2)
    found = quickest(model, recipe, CUDA, steps=steps, resident=resident)
    assert isinstance(found, Graphed) is graphed
    inner = found._model if isinstance(found, Graphed) else found
    assert (inner is not model) is compiled and isinstance(inner, nn.Module)


def test_compile_off_forbids_the_kernels() -> None:
    inner = nn.ModuleList([cnn((3, 8, 8), 2)])
    allow_kernels(inner, Recipe(compile="off"))
    assert not inner[0].kernels
    allow_kernels(inner, Recipe())
    assert inner[0].kernels


def test_the_fast_way_is_taken_once_a_step_and_only_for_full_batches() -> None:
    calls: list[int] = []

    def fast(x: Tensor) -> Tensor:
        calls.append(len(x))
        return x

    model = nn.Identity()
    tap = Tap(model, fast, 4)
    tap(torch.zeros(4, 2)), tap(torch.zeros(4, 2))
    assert calls == [4]
    tap.begin(), tap(torch.zeros(3, 2))
    assert calls == [4]
    tap.begin(), tap(torch.zeros(4, 2))
    assert calls == [4, 4]
    model.eval()
    tap.begin(), tap(torch.zeros(4, 2))
    assert calls == [4, 4]


def _task(size: int = 12) -> Task:
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.integers(0, 3, 300))
    x = (
        torch.from_numpy(rng.integers(0, 60, (300, 3, size, size), dtype=np.uint8))
        + 60 * y[:, None, None, None]
    )
    splits = [
        Split(x[part].to(torch.uint8), y[part]) for part in (slice(200), slice(200, 250), slice(250, 300))
    ]
    recipe = Recipe(model="cnn", epochs=4, batch_size=64, check_every=1)
    return Task("made", *splits, class_names=("a", "b", "c"), recipe=recipe)


@on_gpu
def test_the_kernels_are_as_exact_as_bf16_is() -> None:
    torch.manual_seed(0)
    model = cnn((3, 28, 28), 10).to(CUDA)
    x, y = torch.randn(64, 3, 28, 28, device=CUDA), torch.randint(0, 10, (64,), device=CUDA)
    exact = nn.functional.cross_entropy(model(x), y)
    truth = torch.autograd.grad(exact, list(model.parameters()))
    errors = {}
    for kernels in (True, False):
        model.kernels = kernels
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        found = torch.autograd.grad(loss, list(model.parameters()))
        errors[kernels] = [float((a - b).norm() / b.norm()) for a, b in zip(found, truth, strict=True)]
    for ours, cudnn in zip(errors[True], errors[False], strict=True):
        assert ours < 1.5 * cudnn + 1e-3


@on_gpu
@pytest.mark.parametrize("model", ["cnn", "mobilenet_v2"])
def test_a_graph_changes_nothing(tmp_path: Path, model: str) -> None:
    task = _task(32 if model == "mobilenet_v2" else 12)
    torch.backends.cudnn.deterministic = True
    records = []
    for name, steps in (("graphed", 0), ("plain", 10**9)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("evenhand.training.quick.GRAPH", steps)
            recipe = task.recipe.replace(model=model)
            records.append(execute(task, "tab", recipe=recipe, runs=tmp_path / name, show=Silent()))
    losses = [np.load(record.stage("erm") / "losses.npy") for record in records]
    if model == "cnn":
        np.testing.assert_array_equal(*losses)
        assert records[0].metrics == records[1].metrics
    else:  # cuDNN's sums may differ in their order
        np.testing.assert_allclose(*losses, rtol=0.05, atol=0.05)


@on_gpu
def test_a_graph_leaves_nothing_that_a_forked_process_would_trip_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenhand.training.quick.GRAPH", 0)
    gc.disable()
    try:
        execute(_task(), "erm", runs=tmp_path, show=Silent())
        child = os.fork()
        if child == 0:
            gc.collect()  # frees a graph that is left, which CUDA answers by abort()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        gc.enable()
