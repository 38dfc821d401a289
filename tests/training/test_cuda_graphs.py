"""Fast ways on a GPU: kernels of our own, CUDA graphs, and who may use them."""

from __future__ import annotations

import copy
import dataclasses
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from evenhand import Task, execute
from evenhand.core.kernels import has_triton
from evenhand.training.data import Split
from evenhand.training.forward import Graphed, allow_kernels, fast_forward
from evenhand.training.log import Silent
from evenhand.training.models import cnn, mlp
from evenhand.training.objective import Tap
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
    cpu = torch.device("cpu")
    assert fast_forward(model, Recipe(), cpu, compiled=False, steps=10**6, resident=True, known=True) is model
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
    ],
)
def test_graphs_are_for_long_trainings_that_bear_them(
    recipe: Recipe, steps: int, resident: bool, graphed: bool
) -> None:
    model = cnn((3, 8, 8), 2)
    found = fast_forward(model, recipe, CUDA, compiled=False, steps=steps, resident=resident, known=True)
    assert isinstance(found, Graphed) is graphed and (graphed or found is model)


@pytest.mark.parametrize(
    ("recipe", "steps", "resident", "known", "compiled", "graphed"),
    [
        (Recipe(), 201, True, True, True, True),
        (Recipe(), 200, True, True, True, False),
        (Recipe(), 201, True, True, False, True),
        (Recipe(compile="on"), 100, True, True, True, True),
        (Recipe(compile="off"), 10_000, True, True, False, False),
        (Recipe(), 10_000, False, True, True, False),
        (Recipe(), 10_000, True, False, True, False),
    ],
)
def test_the_graph_of_another_network_is_of_what_was_compiled(
    recipe: Recipe, steps: int, resident: bool, known: bool, compiled: bool, graphed: bool
) -> None:
    model = mlp((3, 8, 8), 2)
    found = fast_forward(model, recipe, CUDA, compiled=compiled, steps=steps, resident=resident, known=known)
    assert isinstance(found, Graphed) is graphed
    inner = found._model if isinstance(found, Graphed) else found
    assert (inner is not model) is compiled and isinstance(inner, nn.Module)


def test_a_cpu_compiles_when_asked_to_and_has_no_graphs() -> None:
    model = mlp((3, 8, 8), 2)
    asked = Recipe(compile="on")
    cpu = torch.device("cpu")
    found = fast_forward(model, asked, cpu, compiled=True, steps=10_000, resident=True, known=True)
    assert found is not model and not isinstance(found, Graphed)


@pytest.mark.parametrize("own", ["make_model", "recipe"])
def test_a_model_of_ones_own_is_never_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    told: list[bool] = []

    def watched(model: nn.Module, *_: object, known: bool, **__: object) -> nn.Module:
        told.append(known)
        return model

    monkeypatch.setattr("evenhand.training.loop.fast_forward", watched)
    task = _task(8)
    recipe = task.recipe.replace(epochs=1)
    execute(task, "erm", recipe=recipe, runs=tmp_path / "ours", show=Silent())
    if own == "make_model":
        task = dataclasses.replace(task, make_model=lambda: mlp((3, 8, 8), 3))
    else:
        recipe = recipe.replace(model="evenhand.training.models:mlp")
    execute(task, "erm", recipe=recipe, runs=tmp_path / "own", show=Silent())
    assert told == [True, False]


def test_what_is_captured_of_a_compiled_network_is_that_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capturing is played by three trials and a call that is kept, as torch does it; no GPU is needed."""

    def played(function: Any, given: tuple[Tensor, ...]) -> Any:
        for _ in range(3):
            torch.autograd.grad(function(*given).sum(), [each for each in given if each.requires_grad])
        return function

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", played)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda _device=None: torch.get_rng_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, _device=None: torch.set_rng_state(state))
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU6(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 2))  # fmt: skip
    copied = copy.deepcopy(plain)
    fast = Graphed(torch.compile(copied, backend="aot_eager"), Recipe(precision="fp32"))
    for _ in range(3):
        x = torch.randn(8, 3, 8, 8)
        outputs = []
        for network, way in ((plain, plain), (copied, fast)):
            torch.manual_seed(1)
            outputs.append(way(x))
            outputs[-1].square().sum().backward()
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter -= 0.01 * parameter.grad
            network.zero_grad()
        torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=0)
    for (name, mine), theirs in zip(plain.state_dict().items(), copied.state_dict().values(), strict=True):
        torch.testing.assert_close(theirs, mine, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("allowed", [True, False])
def test_kernels_may_be_forbidden(allowed: bool) -> None:
    inner = nn.ModuleList([cnn((3, 8, 8), 2)])
    allow_kernels(inner, allowed)
    assert inner[0].kernels is allowed


def test_the_fast_way_is_taken_once_a_step_and_only_for_full_batches() -> None:
    calls: list[int] = []

    def fast(x: Tensor) -> Tensor:
        calls.append(len(x))
        return x

    model = nn.Identity()
    tap = Tap(model, fast, 4)

    def step(*sizes: int) -> list[int]:
        tap.begin(torch.zeros(sizes[0], 2))
        for size in sizes:
            tap(torch.zeros(size, 2))
        return calls

    assert step(4, 4) == [4]
    assert step(3) == [4]
    assert step(4) == [4, 4]
    model.eval()
    assert step(4) == [4, 4]


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
            patch.setattr("evenhand.training.forward.GRAPH", steps)
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
    monkeypatch.setattr("evenhand.training.forward.GRAPH", 0)
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
