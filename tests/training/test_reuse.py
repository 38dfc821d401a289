"""What decides reuse: nothing that changes the numbers is left out of a key, and nothing is shared by mistake."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from test_hooks import network
from test_run import Interrupted, StopAt, make_run
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from evenhand import Split, Task, execute
from evenhand.training import store
from evenhand.training.augment import Warp
from evenhand.training.checkpoint import EMA
from evenhand.training.data import Batch
from evenhand.training.keys import Description, is_named
from evenhand.training.log import Silent
from evenhand.training.run import Run


def as_ours(monkeypatch: pytest.MonkeyPatch, function: Any) -> Any:
    """The function as if it stood in a method's file of this package."""
    module = importlib.import_module("evenhand.methods.erm")
    function.__module__, function.__qualname__ = module.__name__, function.__name__
    monkeypatch.setattr(module, function.__name__, function, raising=False)
    return function


def other_run(task: Task, runs: Path) -> Run:
    """A run of another method, or with other settings."""
    run = make_run(task, runs)
    run.identity = {"another": 1}
    return run


# -- arguments of a partial ------------------------------------------------------------------------------


def test_arguments_of_an_objective_of_ours_are_in_the_key(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scaled(model: Any, batch: Batch, factor: float, weights: Tensor | None = None) -> Tensor:
        return factor * F.cross_entropy(model(batch.x), batch.y, weight=weights)

    def doubled(value: float) -> float:
        return 2 * value

    as_ours(monkeypatch, scaled), as_ours(monkeypatch, doubled)
    objectives = [
        functools.partial(scaled, factor=1.0),
        functools.partial(scaled, factor=9.0),
        functools.partial(scaled, factor=1.0, weights=torch.tensor([1.0, 2.0])),
        functools.partial(scaled, factor=1.0, weights=torch.tensor([1.0, 3.0])),
        functools.partial(scaled, factor=functools.partial(doubled, 1.0)),
    ]
    run = make_run(tiny, tmp_path)
    for name, objective in enumerate(objectives[:4]):
        fit = run.fit("model", objective=objective, stop=1)
        again = other_run(tiny, tmp_path).fit(
            "model", objective=functools.partial(objective.func, **objective.keywords), stop=1
        )
        assert again.folder == fit.folder, f"{name}: the key says all of it, so all runs share it"
    assert len({run.fit("model", objective=each, stop=1).folder for each in objectives[:4]}) == 4
    assert is_named(objectives[4]) and not is_named(functools.partial(scaled, factor=object()))
    assert not is_named(functools.partial(scaled, factor=lambda: 1))


def test_arguments_of_a_score_of_ours_are_in_the_key(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def agreement(logits: Tensor, val: Split, wanted: Tensor) -> float:
        return (logits.argmax(1) == wanted).double().mean().item()

    as_ours(monkeypatch, agreement)
    run = make_run(tiny, tmp_path)
    folders = [
        run.fit("model", score=functools.partial(agreement, wanted=wanted)).folder
        for wanted in (run.val.y, 1 - run.val.y, run.val.y.clone())
    ]
    assert folders[0] != folders[1] and folders[0] == folders[2]


# -- estimators ------------------------------------------------------------------------------------------


TRANSFORMER = """
from sklearn.base import BaseEstimator, TransformerMixin

class Scaled(TransformerMixin, BaseEstimator):
    def fit(self, x, y=None):
        return self
    def transform(self, x):
        return FACTOR * x
"""


def test_the_text_of_a_transformer_in_a_pipeline_is_in_the_key(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, read = [], inspect.getsource
    for factor in ("1.0", "1e-3", "1.0"):
        text, module = TRANSFORMER.replace("FACTOR", factor), ModuleType("my_steps")
        exec(text, module.__dict__)
        monkeypatch.setitem(sys.modules, "my_steps", module)
        monkeypatch.setattr(
            inspect, "getsource", lambda each, own=module, text=text: text if each is own else read(each)
        )
        classifier = make_pipeline(module.Scaled(), LogisticRegression())
        fit = make_run(tiny, tmp_path).fit_estimator("model", classifier)
        found.append((fit.folder, fit.predict_logits(tiny.test.x)))
    assert found[0][0] == found[2][0] != found[1][0]
    assert not np.allclose(found[0][1], found[1][1])


class Shifted(TransformerMixin, BaseEstimator):
    """Adds an array to the features."""

    def __init__(self, shift: Any = None, random: Any = None) -> None:
        self.shift, self.random = shift, random

    def fit(self, x: np.ndarray, y: Any = None) -> Shifted:
        return self

    def transform(self, x: np.ndarray) -> np.ndarray:
        return x * self.shift[: x.shape[1]]


def test_long_arrays_and_functions_among_the_parameters_are_in_the_key(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path)
    shift = np.ones(5000)
    other = shift.copy()
    other[20] = 0  # which a printed array does not show
    assert repr(shift) == repr(other)
    folders = [
        run.fit_estimator("model", make_pipeline(step, LogisticRegression())).folder
        for step in (
            Shifted(shift),
            Shifted(other),
            Shifted(shift.copy()),
            FunctionTransformer(np.sqrt),
            FunctionTransformer(np.square),
            StandardScaler(),
        )
    ]
    assert folders[0] == folders[2] and len({*folders}) == 5


def test_an_estimator_that_no_key_tells_apart_needs_a_stage_of_its_own(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path)
    random = [Shifted(np.ones(36), np.random.default_rng(seed)) for seed in (0, 1)]
    first, second = (make_pipeline(step, LogisticRegression()) for step in random)
    run.fit_estimator("model", first)
    run.fit_estimator("model", first)
    with pytest.raises(ValueError, match="stage 'model' is used twice with another estimator; name each"):
        run.fit_estimator("model", second)


def test_weights_of_validation_samples_are_in_an_estimators_key(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path)
    weighted = dataclasses.replace(run.val, weight=torch.linspace(0, 1, len(run.val)))
    folders = [
        run.fit_estimator("model", LogisticRegression(), val=val).folder for val in (run.val, weighted)
    ]
    assert folders[0] != folders[1], "its learning curve has the weighted accuracy"


# -- inputs ----------------------------------------------------------------------------------------------


def test_whether_inputs_are_ready_is_in_the_keys(tiny: Task, tmp_path: Path) -> None:
    task = dataclasses.replace(tiny, mean=(0.5,), std=(0.25,))
    run = make_run(task, tmp_path)
    ready = dataclasses.replace(run.train, ready=True)
    assert (
        run.fit("model", run.train.take(range(60)), stop=1).folder != run.fit("model", ready, stop=1).folder
    )
    vals = [run.val, dataclasses.replace(run.val, ready=True)]
    assert len({run.fit("model", ready, val=val, stop=1).folder for val in vals}) == 2
    fits = [run.fit_estimator("sklearn", LogisticRegression(), split) for split in (run.train, ready)]
    assert fits[0].folder != fits[1].folder
    erm = run.fit("erm", stop=1)
    assert not np.allclose(run.features(erm, run.train), run.features(erm, ready))


@pytest.mark.parametrize(
    "change",
    [
        {"mean": (0.5,), "std": (0.25,)},
        {"augment": Warp(flip=True)},
        {"augment": Warp(rotate=9.0)},
        {"augment": lambda x, generator: 1 - x},
        {"make_model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 2))},
        {"make_model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 2, bias=False))},
    ],
)
def test_how_a_task_prepares_inputs_and_its_network_are_in_the_keys(
    change: dict[str, Any], tiny: Task, tmp_path: Path
) -> None:
    changed = dataclasses.replace(tiny, **change)
    assert changed.checksum == tiny.checksum
    others = [dataclasses.replace(tiny, mean=(0.1,), std=(1.0,)), dataclasses.replace(tiny, augment=Warp())]
    others.append(dataclasses.replace(tiny, make_model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 3))))
    found = [
        execute(task, "erm", {"epochs": 1}, runs=tmp_path, device="cpu", show=Silent())
        for task in (tiny, changed, *others)
    ]
    assert len({record.path for record in found}) == len({record.stage("erm") for record in found}) == 5


def test_the_same_network_of_a_task_has_the_same_key(tiny: Task, tmp_path: Path) -> None:
    """Else nothing would be found again."""

    def task(width: int) -> Task:
        return dataclasses.replace(
            tiny, make_model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, width), nn.Linear(width, 2))
        )

    keys = [make_run(task(width), tmp_path).fit("erm", stop=1).folder for width in (3, 3, 4)]
    assert keys[0] == keys[1] != keys[2]


# -- snapshots -------------------------------------------------------------------------------------------


def test_two_snapshots_of_one_epoch_are_two_starts_and_have_two_arrays(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path, tiny.recipe.replace(epochs=3, keep="best", patience=9, lr=0.05))
    fits = [run.fit("erm"), run.fit("erm", stop=3)]
    assert fits[0].folder == fits[1].folder and fits[0].epochs == fits[1].epochs
    outputs = [run.predict(fit.model, run.val) for fit in fits]
    assert not torch.equal(*outputs), "or the test could not fail"
    kept = [
        run.cached(fit, "outputs", lambda fit=fit: run.predict(fit.model, run.val).numpy()) for fit in fits
    ]
    for found, expected in zip(kept, outputs, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert len({run.fit("more", start=fit, stop=1).folder for fit in fits}) == 2


# -- features --------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """A network with attributes that are no weights."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor, self.head = factor, nn.Linear(36, 2)
        self.function: Callable[[Tensor], Tensor] = torch.sin
        self.register_buffer("shift", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.function(self.factor * x.flatten(1) + self.shift))
        return outputs


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "factor", 2.0),
        lambda model: setattr(model, "function", torch.cos),
        lambda model: model.shift.add_(1),
        lambda model: model.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,)),
    ],
    ids=["number", "function", "buffer that is not saved", "hook"],
)
def test_features_of_a_module_know_all_that_changes_them(
    change: Callable[[Any], Any], tiny: Task, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    run, model = make_run(tiny, tmp_path), Scaled()
    before = np.array(run.features(model, run.val))
    np.testing.assert_array_equal(make_run(tiny, tmp_path).features(model, run.val), before)
    change(model)
    after = run.features(model, run.val)
    assert not np.allclose(after, before)
    with torch.no_grad():
        inputs: list[Tensor] = []
        model.head.register_forward_pre_hook(lambda module, given: inputs.append(given[0]))
        model(run.val.x)
    np.testing.assert_allclose(after, inputs[0].numpy(), rtol=1e-5)


def test_features_of_what_cannot_be_described_are_computed_again(tiny: Task, tmp_path: Path) -> None:
    run, model = make_run(tiny, tmp_path), Scaled()
    count = iter(range(1, 9))  # an object of unknown content
    model.function = lambda x, count=count: x * next(count)
    model.count = count
    first, second = (run.features(model, run.val).copy() for _ in range(2))
    assert not Description(model).complete and not np.array_equal(first, second)


def test_features_are_read_only(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path)
    fit = run.fit("erm", stop=1)
    for source in (fit, Scaled(), fit.model):
        features = run.features(source, run.val)
        with pytest.raises(ValueError, match="read-only"):
            features[:] = 0
        assert run.features(source, run.val).any()


# -- validation samples, and training samples, that a method replaces ------------------------------------


def test_validation_samples_that_are_replaced_twice_do_not_share_a_folder(tiny: Task, tmp_path: Path) -> None:
    run, found = make_run(tiny, tmp_path), []
    own_val = run.val
    for rows in (range(10), range(10, 20), range(10)):
        run.val = own_val.take(rows)
        fit = run.fit("erm")
        found.append((fit.folder, run.fit_estimator("sklearn", LogisticRegression()).folder))
        correct = run.predict(fit.model, run.val).argmax(1) == run.val.y
        assert (fit.val_hits[:, -1] == correct.numpy()).all()
    assert found[0] == found[2]
    assert found[0][0] != found[1][0] and found[0][1] != found[1][1]


def test_training_samples_that_are_replaced_do_not_share_a_folder(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path)
    whole = run.fit("erm", stop=1).folder, run.fit_estimator("sklearn", LogisticRegression()).folder
    run.train = run.train.take(range(15, 45))
    part = run.fit("erm", stop=1).folder, run.fit_estimator("sklearn", LogisticRegression()).folder
    assert not {*whole} & {*part}


# -- an objective with a state ---------------------------------------------------------------------------


class Counting(nn.Module):
    """Cross-entropy that grows with every step that the object has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("taken", torch.zeros(()))
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, model: Any, batch: Batch) -> Tensor:
        self.taken += 1
        return F.cross_entropy(model(batch.x), batch.y) * self.taken * self.factor.square()


def in_two_stages(run: Run) -> bytes:
    objective = Counting().eval()
    fits = [run.fit(stage, objective=objective, stop=2) for stage in ("first", "second")]
    assert objective.taken == 0 and objective.factor == 1 and not objective.training
    assert fits[1].objective_state["taken"] == 8  # two epochs of four batches
    return b"".join(value.numpy().tobytes() for value in fits[1].model.state_dict().values())


@pytest.mark.parametrize("stage", ["first", "second"])
def test_an_objective_that_two_stages_share_resumes_to_the_same_weights(
    tiny: Task, tmp_path: Path, stage: str
) -> None:
    expected = in_two_stages(make_run(tiny, tmp_path / "whole"))
    with pytest.raises(Interrupted):
        in_two_stages(make_run(tiny, tmp_path / "killed", show=StopAt(stage, epoch=1)))
    assert in_two_stages(make_run(tiny, tmp_path / "killed")) == expected


# -- claims ----------------------------------------------------------------------------------------------


def test_what_is_cached_may_use_features_and_trainings_of_the_same_folder(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path)
    fit = run.fit("erm", stop=1)

    def compute() -> np.ndarray:
        assert run.fit("erm", stop=2).folder == fit.folder
        return np.array(run.features(fit, run.val)) + run.cached(
            fit, "inner", lambda: np.ones((20, 1), np.float32)
        )

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(run.cached(fit, "outer", compute)), daemon=True)
    thread.start()
    thread.join(timeout=600)
    assert found, "it waits for itself"
    np.testing.assert_array_equal(found[0], run.features(fit, run.val) + 1)
    assert not store.claimed(fit.folder)


def test_a_thread_that_holds_a_folder_may_claim_it_again_and_others_wait(tmp_path: Path) -> None:
    entered = threading.Event()

    def other() -> None:
        with store.claim(tmp_path):
            entered.set()

    with store.claim(tmp_path):
        with store.claim(tmp_path / "." / "", wait=False):
            pass
        assert store.claimed(tmp_path), "the inner claim has not given it up"
        thread = threading.Thread(target=other)
        thread.start()
        assert not entered.wait(0.3)
    thread.join(timeout=600)
    assert entered.is_set() and not store.claimed(tmp_path)


# -- where a training starts -----------------------------------------------------------------------------


class Stepping(nn.Module):
    """A step of its own, with a second network."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(2, 2)

    def step(self, model: Any, batch: Batch, optimizers: dict[str, Any]) -> Tensor:
        loss = F.cross_entropy(self.second(model(batch.x)), batch.y)
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers.values():
            optimizer.step()
        return loss.detach()


@pytest.mark.parametrize(
    "options",
    [
        {"objective": Stepping()},
        {"train_only": "head"},
        {"objective": Counting()},
        {"recipe": "sgd"},
    ],
    ids=["a step of its own", "the head alone", "an objective with parameters", "another optimiser"],
)
def test_a_start_that_trained_other_parameters_gives_its_weights(
    options: dict[str, Any], tiny: Task, tmp_path: Path
) -> None:
    run = make_run(tiny, tmp_path)
    if options.get("recipe") == "sgd":
        options = {"recipe": run.recipe.replace(optimizer="sgd")}
    first = run.fit("first", model=network, stop=1, **options)
    second = run.fit("second", start=first, stop=2)
    # The same as from a network that is made with these weights: the optimiser is fresh.
    weights = first.model.state_dict()

    def made() -> nn.Module:
        model = network()
        model.load_state_dict(weights)
        return model

    plain = run.fit("second", model=made, stop=2, draw=None, val=run.val)
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name


def test_a_start_that_cannot_be_continued_is_refused(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path)
    estimator = run.fit_estimator("sklearn", LogisticRegression())
    with pytest.raises(ValueError, match="start must be a training of a network, but .* is of an estimator"):
        run.fit("model", start=estimator)
    with pytest.raises(ValueError, match="start must be a training of the same network: Error"):
        run.fit("model", start=run.fit("erm", stop=1), model=network)


# -- the average of weights ------------------------------------------------------------------------------


def test_the_average_takes_one_launch_a_step_and_copies_nothing_to_the_device() -> None:
    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    seen: list[str] = []
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to("meta")
    ema = EMA(model, steps=10)
    ema.update(model)
    with Operations():
        ema.update(model)
    assert sorted(seen) == ["aten._foreach_copy_.default", "aten._foreach_lerp_.Scalar"]


# -- descriptions ----------------------------------------------------------------------------------------


def test_a_description_is_the_same_for_equal_values_and_ends() -> None:
    around: dict[str, Any] = {"a": [1, {2, 3}], "b": np.float32(0.5), "c": (torch.ones(2), np.arange(3))}
    again = {"a": [1, {3, 2}], "b": np.float32(0.5), "c": (torch.ones(2), np.arange(3))}
    assert Description(around).content == Description(again).content
    around["itself"] = around
    assert Description(around).complete
    model = Scaled()
    model.function = functools.partial(Scaled.forward, model)  # a cycle, as in batch normalization over ranks
    assert Description(model).complete and not Description(model).ours
    assert not Description(iter([])).complete


def test_a_class_in_a_notebook_counts_with_its_own_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "notebook", ModuleType("notebook"))

    class Net(nn.Module):
        pass

    Net.__module__ = "notebook"
    texts = iter(["one", "another", "one"])

    def source(thing: Any) -> str:
        if isinstance(thing, ModuleType):
            raise OSError("a notebook")
        return next(texts)

    monkeypatch.setattr(inspect, "getsource", source)
    first, second, third = (Description(Net()).content for _ in range(3))
    assert first == third != second


# -- what is not read again ------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"keep": "best"}, {"average": True}], ids=str)
def test_a_model_is_made_without_reading_its_checkpoint_again(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    recipe = tiny.recipe.replace(epochs=3, **options)
    fits = [make_run(tiny, tmp_path, recipe).fit("erm") for _ in range(2)]  # trained, and reused
    assert len({*fits}) == 2, "a fit can be a member of a set"
    kept = fits[0].read()["model"]
    monkeypatch.setattr(torch, "load", None)
    for fit in fits:
        found = fit.model.state_dict()
        assert found.keys() == kept.keys()
        assert all(torch.equal(found[name], kept[name]) for name in kept)


# -- what functions, objects and fitted estimators hold ----------------------------------------------------


def test_what_a_function_among_the_parameters_holds_is_in_the_key(tiny: Task, tmp_path: Path) -> None:
    def transformer(function: Any) -> Any:
        return make_pipeline(FunctionTransformer(function), LogisticRegression())

    def closing_over(factor: Any) -> Any:
        return lambda x: x * factor

    run = make_run(tiny, tmp_path)
    by_default = [transformer(lambda x, factor=factor: x * factor) for factor in (1.0, 0.001)]
    by_keyword = [transformer(lambda x, *, factor=factor: x * factor) for factor in (1.0, 0.001)]
    by_closure = [transformer(closing_over(np.float32(factor))) for factor in (1.0, 0.001)]
    for pair in (by_default, by_keyword, by_closure):
        assert len({run.fit_estimator("head", each).folder for each in pair}) == 2
    for number, held in enumerate(({"factor": 1.0}, object())):
        run.fit_estimator(f"held-{number}", transformer(lambda x, held=held: x))
        with pytest.raises(ValueError, match="used twice with another estimator"):
            run.fit_estimator(f"held-{number}", transformer(lambda x, held=held: x))


def test_what_a_frozen_estimator_has_learned_is_in_the_key(tiny: Task, tmp_path: Path) -> None:
    frozen = pytest.importorskip("sklearn.frozen").FrozenEstimator
    run = make_run(tiny, tmp_path)
    x = run.train.x[run.train.rows].flatten(1).numpy()
    folders = [
        run.fit_estimator(
            "head", make_pipeline(frozen(StandardScaler().fit(x * scale)), LogisticRegression())
        )
        for scale in (1.0, 1000.0, 1.0)
    ]
    assert folders[0].folder != folders[1].folder and folders[0].folder == folders[2].folder


def test_a_trained_model_that_is_changed_does_not_change_its_kept_features(
    tiny: Task, tmp_path: Path
) -> None:
    run = make_run(tiny, tmp_path)
    fit = run.fit("erm", stop=1)
    with torch.no_grad():
        for weight in fit.model.parameters():
            weight.zero_()
    found = run.features(fit, run.val)
    again = make_run(tiny, tmp_path / "alone")
    assert np.array_equal(found, again.features(again.fit("erm", stop=1), again.val)) and found.any()


def test_attributes_of_a_callable_object_of_ours_are_in_the_key(
    tiny: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Weighted:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def __call__(self, model: Any, batch: Batch) -> Tensor:
            return self.factor * F.cross_entropy(model(batch.x), batch.y)

    kind = as_ours(monkeypatch, Weighted)
    run, other = make_run(tiny, tmp_path), other_run(tiny, tmp_path)
    fits = [each.fit("model", objective=kind(factor), stop=1) for each, factor in ((run, 1.0), (other, -9.0))]
    assert fits[0].folder != fits[1].folder


class Offset(nn.Module):
    """Cross-entropy of logits that are shifted by weights of its own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(size))

    def forward(self, model: Any, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.x) + self.offset.sum(), batch.y)


def test_an_objective_with_weights_starts_with_a_fresh_optimizer(tiny: Task, tmp_path: Path) -> None:
    run = make_run(tiny, tmp_path)
    first = run.fit("first", objective=Offset(3), stop=1)
    assert run.fit("second", objective=Offset(5), start=first, stop=1).epochs == 1
    assert run.fit("third", start=first, stop=1).epochs == 1
