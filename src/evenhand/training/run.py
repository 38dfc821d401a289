"""Run: a folder that can fit and predict, and keeps what it has finished."""

from __future__ import annotations

import dataclasses
import inspect
import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from evenhand.core import ranks
from evenhand.core.partition import Balanced, Partition, of_mask
from evenhand.training import log
from evenhand.training.batches import Batches, Inputs
from evenhand.training.checkpoint import claim_together
from evenhand.training.data import Batch, Split, Task, as_input, checksum
from evenhand.training.forward import allow_kernels, eval_batch_size, features, logits
from evenhand.training.keys import Description, describe_inputs, resolve
from evenhand.training.models import make_model
from evenhand.training.recipe import Recipe
from evenhand.training.record import key_of
from evenhand.training.stage import Factory, Fit, Request, Stage
from evenhand.training.store import is_intact, write_digested

if TYPE_CHECKING:
    from evenhand.training.estimator import EstimatorFit

P = ParamSpec("P")
T = TypeVar("T")


def takes(request: Callable[P, object]) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Give a method the arguments of a request, so that they are listed once."""

    def decorate(method: Any) -> Any:
        this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        method.__signature__ = inspect.Signature([this, *inspect.signature(request).parameters.values()])
        return method

    return decorate


class Run:
    """The interface for a method: data without groups, and trainings that are never repeated.

    `identity` is what the run's key hashes; a training whose objective or transform could be anything is
    keyed by it, and the others are shared by all the runs that need them.
    """

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        *,
        seed: int,
        path: Path,
        identity: dict[str, Any],
        device: torch.device,
        show: log.Silent | None = None,
    ) -> None:
        self.arithmetic = resolve(task, recipe, device)
        self.recipe = recipe.replace(precision=self.arithmetic.precision)
        self.task, self.seed, self.path, self.device = task, seed, path, device
        # Histories are indexed by position in the training set.
        self.train = self.whole = dataclasses.replace(task.train, index=torch.arange(len(task.train)))
        self.val = task.val
        self.stages: dict[str, Fit] = {}
        self.partition: Partition | None = None
        self.val_partition: Partition | None = None
        self.balanced: Balanced | np.ndarray | None = None
        # For the stages:
        self.identity, self.preparation = identity, describe_inputs(task)
        self.inputs = Inputs(task, device)
        self.progress = (show or log.choose_progress()) if ranks.first() else log.Silent()
        self.used: dict[Path, tuple[object, ...]] = {}  # what each training was made with
        self._feature_files: dict[Path, Tensor] = {}

    @property
    def num_classes(self) -> int:
        return self.task.num_classes

    def make_model(self, salt: int = 0) -> nn.Module:
        """Make a fresh model, whose initial weights depend only on the seed of the run and the salt."""
        return self.make_network(salt, weights=self.recipe.weights)

    def make_network(self, salt: int = 0, *, weights: str | None = None) -> nn.Module:
        """Make the recipe's or the task's network; its weights must be replaced unless they are named."""
        if self.task.make_model is not None:
            model = self.make(self.task.make_model, salt)
        else:
            shape = tuple(as_input(self.train.x[int(self.train.rows[0])]).shape)
            seed, num_classes = self._model_seed(salt), self.num_classes
            model = make_model(
                self.recipe.model, shape=shape, num_classes=num_classes, weights=weights, seed=seed
            )
        allow_kernels(model, self.arithmetic.compute == "kernels")
        return model

    def make(self, factory: Factory, salt: int = 0) -> nn.Module:
        """Call `factory()`; fresh weights are a function of the run's seed and the salt."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self._model_seed(salt))
            model = factory()
        if not isinstance(model, nn.Module):
            raise ValueError(f"model must make a torch.nn.Module, but it made a {type(model).__name__}")
        return model

    @takes(Request)
    def fit(self, *given: Any, **options: Any) -> Fit:
        """Train a fresh network, or return the result of an earlier call with the same arguments.

        - `stage`: the name of the training, another one for each training of a run.
        - `split`: the rows to train on instead of the training set.
        - `objective`: `(model, batch) -> scalar`, a function or a module; cross-entropy by default.
        - `transform`: `(x, batch, generator) -> x` changes inputs before augmentation and normalization.
        - `draw`: one weight per row. Each epoch draws as many rows, with replacement, by these weights.
        - `environments`: one whole number per row, which the objective sees as `batch.environment`.
        - `val`: validation samples instead of the run's.
        - `model`: a function without arguments that makes another network than the recipe's.
        - `recipe`: settings instead of the run's, such as `run.recipe.replace(lr=0.01)`.
        - `stop`: "val" or "train", until that accuracy stops rising; or a number of epochs.
        - `score`: `(logits, val) -> float`, higher is better. It replaces validation accuracy for early
          stopping and where the recipe keeps the best check.
        - `choose`: one weight per validation sample. Where the recipe keeps the best check, that is the one
          with the best sum of plain and weighted accuracy. Checks that lose more than a point of plain
          accuracy, or its standard error if larger, do not count.
        - `train_only`: "head" freezes everything but the last layer, and the batch statistics.
        - `start`: a fit to continue from, with its weights and optimizer. The optimizer is fresh if other
          parameters are trained, or with another kind of optimizer.
        - `record`: keep the loss of every training and validation sample in every epoch.
        - `again`: restart with other weights if nothing was learned, at most twice.

        A training without changes is plain ERM. It is recorded, sees no groups, and is shared by all methods.
        Trainings on the same rows with an objective of this package and no transform are shared as well.
        """
        request = Request(*given, **options)
        stage = Stage(self, request)
        fit = stage.fit()
        again = request.again and request.start is None
        while again and stage.salt < 2 and fit.accuracy <= chance(stage.split.y):
            log.note("%s: learned nothing, and begins again with other weights", stage.name)
            stage, earlier = Stage(self, request, stage.salt + 1), fit.seconds
            fit = stage.fit()
            fit = dataclasses.replace(fit, seconds=earlier + fit.seconds)
        self.stages[stage.name] = fit
        return fit

    def fit_estimator(
        self,
        stage: str,
        estimator: Any,
        split: Split | None = None,
        *,
        sample_weight: Tensor | np.ndarray | None = None,
        val: Split | None = None,
        epochs: int | None = None,
        record: bool = False,
    ) -> EstimatorFit:
        """Train a classifier of scikit-learn, LightGBM or XGBoost, or return what an earlier call has left.

        - `estimator`: it is copied; each `random_state` that is None becomes the run's seed.
        - `split`, `sample_weight` (one per row), `val`: as for `fit`.
        - `epochs`: points of the history: boosting's rounds, `partial_fit`'s epochs, or stages.
        - `record`: keep every sample's losses; as in `fit`, a training that nothing changes is recorded.

        The fit's model is a module that gives log probabilities. It can be saved where it is linear, also in
        a pipeline, or a HistGradientBoostingClassifier. Another one is trained again when a later call asks
        for its model, and a record keeps its predictions only.
        """
        from evenhand.training.estimator import EstimatorStage

        request = Request(stage, split, val=val, record=record)
        fit = self.stages[stage] = EstimatorStage(self, request, estimator, sample_weight, epochs).fit()
        return fit

    def predict(self, model: nn.Module, split: Split) -> Tensor:
        """Return the model's outputs in evaluation mode, (samples, classes) float32 on the CPU."""
        if hasattr(model, "of_rows"):  # an estimator takes all rows at once, also sparse ones
            from evenhand.training.estimator import matrix

            outputs: Tensor = model.of_rows(matrix(self, split))  # type: ignore[operator]
            return outputs
        return logits(model.to(self.device), self._batches(split), self.recipe).cpu()

    def batches(self, split: Split) -> Iterator[Batch]:
        """Return the samples in order, on the device, as the model sees them in evaluation: not augmented."""
        return self._batches(split)(torch.arange(len(split)), torch.Generator(self.device))

    def found(
        self,
        parts: Partition | Tensor | np.ndarray,
        balanced: Balanced | np.ndarray | None = None,
        *,
        val: Partition | None = None,
    ) -> Partition:
        """Keep the pseudo-groups that a method has found, for the scorer and the page; gives them.

        `parts`: a partition of the training samples, or True for each sample that was set apart, (samples,).
        `balanced`: the rows of the training set that were trained on then, if they were drawn by them.
        `val`: the same of the validation samples, by which any model can be scored without groups.
        """
        self.val_partition = val
        self.partition = parts if isinstance(parts, Partition) else of_mask(parts, self.train.y)
        self.balanced = balanced
        return self.partition

    def hold_out(self, fraction: float, *, split: Split | None = None, salt: int = 0) -> tuple[Split, Split]:
        """Split the training set, or `split`, in two: the rest and a held-out `fraction` of every class.

        A function of the seed and the salt. A class with two samples or more has some in both parts.
        """
        if not 0 < fraction < 1:
            raise ValueError(f"fraction must be above 0 and below 1, got {fraction}")
        whole = self.train if split is None else split
        labels, held_out = whole.y.numpy(), np.zeros(len(whole), dtype=bool)
        for label in np.unique(labels).tolist():
            rows = np.flatnonzero(labels == label)
            number = min(max(round(fraction * len(rows)), 1), len(rows) - 1)
            drawn = np.random.default_rng([self.seed, salt, label]).permutation(rows)[:number]
            held_out[drawn] = True
        return whole.take(np.flatnonzero(~held_out)), whole.take(np.flatnonzero(held_out))

    def cached(self, fit: Fit, name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        """Return an array derived from a training, kept in its folder so that it is computed once."""

        def parts() -> Iterator[bytes]:
            array = compute()
            return npy_parts(iter([array]), len(array))

        return self._kept(fit.folder / f"{name}-{fit.snapshot}.npy", parts)

    def features(self, source: Fit | nn.Module, split: Split) -> np.ndarray:
        """Return the inputs of a model's last layer for these samples, (samples, dimensions) float32.

        In evaluation mode, not augmented. Features of a training are kept in its folder, and those of a
        module in the run's, so that they are computed once. They are memory-mapped and read-only.
        """
        found = self._features(source, split).numpy()
        found.flags.writeable = False  # other calls get the same memory
        return found

    def feature_split(self, source: Fit | nn.Module, split: Split) -> Split:
        """Return the same samples with their features as inputs, for training a last layer on them."""
        return dataclasses.replace(
            split, x=self._features(source, split), rows=torch.arange(len(split)), ready=True
        )

    # -- inside --------------------------------------------------------------------------------------

    def _kept(self, path: Path, parts: Callable[[], Iterator[bytes]]) -> np.ndarray:
        """Return the array in a file; if the file is missing, it is first written from .npy parts."""
        with claim_together(path.parent):
            if not ranks.from_first(lambda: is_intact(path)):
                if ranks.first():
                    write_digested(path, parts())
                else:
                    for _ in parts():  # ranks compute together
                        pass
        array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
        return array

    def _features(self, source: Fit | nn.Module, split: Split) -> Tensor:
        def compute() -> Iterator[np.ndarray]:
            model = source.make() if isinstance(source, Fit) else source  # `source.model` may be changed
            return features(model.to(self.device), self._batches(split), self.recipe)

        if isinstance(source, Fit):
            folder, name = source.folder, source.snapshot
        else:
            description = Description(source)
            if not description.complete:  # what it computes may change without a trace
                return torch.from_numpy(np.concatenate(list(compute())))
            folder, name = self.path / "features", key_of(description.content)
        path = folder / f"features-{name}-{checksum(self.inputs.name(split), split.rows)}.npy"
        if path not in self._feature_files:
            found = self._kept(path, lambda: npy_parts(compute(), len(split)))
            self._feature_files[path] = torch.from_numpy(found)
        return self._feature_files[path]

    def _model_seed(self, salt: int) -> int:
        return self.seed * 1000 + salt

    def _batches(self, split: Split) -> Batches:
        """Return the samples as they are evaluated."""
        return self.inputs.batches(split.without_groups(), eval_batch_size(self.recipe))


def npy_parts(blocks: Iterator[np.ndarray], num_rows: int) -> Iterator[bytes]:
    """Yield the bytes of an .npy file that holds these blocks of rows one after another."""
    for number, block in enumerate(blocks):
        if number == 0:
            header = io.BytesIO()
            kind, shape = np.lib.format.dtype_to_descr(block.dtype), (num_rows, *block.shape[1:])
            about = {"descr": kind, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(header, about)
            yield header.getvalue()
        yield np.ascontiguousarray(block).tobytes()


def chance(labels: Tensor) -> float:
    """Return the share of the most common label plus its standard error.

    >>> chance(torch.tensor([0, 0, 0, 1]))
    0.966...
    """
    share = labels.bincount().max().item() / len(labels)
    return float(share + math.sqrt(share * (1 - share) / len(labels)))
