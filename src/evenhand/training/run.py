"""Run: a folder that can fit and predict, and remembers what it has finished."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from evenhand.core import ranks
from evenhand.core.arrays import as_whole
from evenhand.core.partition import Partition, of_mask
from evenhand.core.rebalance import Balanced
from evenhand.training import log, progress, sync
from evenhand.training.batches import Batches, Source, Transform
from evenhand.training.checkpoint import Histories, claim_together, load_for_all, write_curve
from evenhand.training.cuda_graphs import allow_kernels
from evenhand.training.data import Batch, Split, Task, as_input, checksum, content_of
from evenhand.training.evaluation import features, logits
from evenhand.training.keys import (
    Description,
    describe_callable,
    describe_inputs,
    num_steps,
    resolve,
    trained,
)
from evenhand.training.loop import Training
from evenhand.training.manifest import is_intact, write_digested
from evenhand.training.models import make_model
from evenhand.training.objective import Objective, cross_entropy, left_as_it_was
from evenhand.training.plan import Factory, Fit, Plan, Score, is_array, scored
from evenhand.training.recipe import Recipe
from evenhand.training.record import key_of
from evenhand.training.store import Damaged

if TYPE_CHECKING:
    from evenhand.training.estimator import EstimatorFit


class Run:
    """What a method works with: data without groups, and trainings that are never done twice.

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
        show: progress.Silent | None = None,
    ) -> None:
        self.arithmetic = resolve(task, recipe, device)
        self.recipe = recipe.replace(precision=self.arithmetic.precision)
        self.task, self.seed, self.path, self.device = task, seed, path, device
        # Histories are indexed by position in the training set, whatever the split was taken from.
        self.train = self._all = dataclasses.replace(task.train, index=torch.arange(len(task.train)))
        self.val = task.val
        self.stages: dict[str, Fit] = {}
        self.partition: Partition | None = None
        self.balanced: Balanced | np.ndarray | None = None
        self._identity = identity
        self._inputs = describe_inputs(task)
        self._show = (show or progress.choose()) if ranks.first() else progress.Silent()
        self._sources: dict[int, Source] = {}
        self._storages: dict[int, tuple[object, str]] = {}
        self._feature_files: dict[Path, Tensor] = {}
        self._used: dict[Path, tuple[object, ...]] = {}

    @property
    def num_classes(self) -> int:
        return self.task.num_classes

    def make_network(self) -> nn.Module:
        """The recipe's network, or the task's, with weights that are to be replaced."""
        if self.task.make_model is not None:
            return self.make(self.task.make_model, 0)
        shape = tuple(as_input(self.train.x[int(self.train.rows[0])]).shape)
        return make_model(self.recipe.model, shape=shape, num_classes=self.num_classes)

    def make_model(self, salt: int = 0) -> nn.Module:
        """A fresh model; the same initial weights in every stage of a run, others with another salt."""
        recipe = self.recipe
        if self.task.make_model is not None:
            model = self.make(self.task.make_model, salt)
        else:
            shape = tuple(as_input(self.train.x[int(self.train.rows[0])]).shape)
            model = make_model(
                recipe.model,
                shape=shape,
                num_classes=self.num_classes,
                weights=recipe.weights,
                seed=self._model_seed(salt),
            )
        allow_kernels(model, self.arithmetic.compute == "kernels")
        return model

    def make(self, factory: Factory, salt: int = 0) -> nn.Module:
        """What `factory()` makes; its fresh weights are a function of the run's seed and the salt."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self._model_seed(salt))
            model = factory()
        if not isinstance(model, nn.Module):
            raise ValueError(f"model must make a torch.nn.Module, but it made a {type(model).__name__}")
        return model

    def fit(
        self,
        stage: str,
        split: Split | None = None,
        *,
        objective: Objective | None = None,
        transform: Transform | None = None,
        draw: Tensor | np.ndarray | None = None,
        choose: Tensor | np.ndarray | None = None,
        score: Score | None = None,
        environments: Tensor | np.ndarray | None = None,
        val: Split | None = None,
        model: Factory | None = None,
        train_only: Literal["head"] | None = None,
        stop: str | int = "val",
        start: Fit | None = None,
        recipe: Recipe | None = None,
        record: bool = False,
        again: bool = False,
    ) -> Fit:
        """Train a fresh model, or return at once what an earlier call has finished.

        - `split`: other samples than the training set.
        - `draw`: one weight per row; each epoch then draws that many rows with replacement.
        - `choose`: one weight per validation sample. Where the recipe keeps the best check, it is the one
          with the best sum of plain and so weighted accuracy, of those that gave up at most a point, or the
          standard error, of the plain one.
        - `score`: `(logits, val) -> float`, higher is better. It replaces validation accuracy in the rule
          "val" and where the recipe keeps the best check.
        - `environments`: one whole number per row, which the objective sees as `batch.environment`.
        - `val`: other validation samples than the run's.
        - `model`: a function without arguments that makes another network than the recipe's.
        - `stop`: "val" or "train", the accuracy whose rise is awaited, or a number of epochs.
        - `train_only`: "head" leaves all weights but the last layer's, and the batch statistics, as they are.
        - `start`: continue from another training's weights, and with its optimiser. The optimiser is fresh
          where the two train different parameters (`train_only`, those of an objective, a step of its own) or
          with another kind of optimiser.
        - `record`: keep the loss of every training and validation sample in every epoch.
        - `again`: where nothing was learned, begin again with other weights, twice at most.

        A training that none of the arguments above changes is plain ERM. It is recorded, sees no groups, and
        every method that asks for the same stage shares it: each takes its snapshot where its own rule stops.
        One of the same data, with an objective function of this package and no transform, is shared by runs
        that ask for the same rows of them.
        """
        if isinstance(stop, str) and stop not in ("val", "train"):
            raise ValueError(f"stop must be 'val', 'train' or a number of epochs, got {stop!r}")
        # The recipe is part of all keys.
        if train_only not in (None, "head"):
            raise ValueError(f"train_only must be 'head' or None, got {train_only!r}")
        split = self.train if split is None and self.train is not self._all else split
        changes = (
            split,
            objective,
            transform,
            draw,
            choose,
            score,
            environments,
            val,
            model,
            train_only,
            start,
        )
        shared = all(change is None for change in changes)
        rows = self.train.without_groups() if shared else self.train if split is None else split
        if start is not None and start.snapshot == "estimator":
            raise ValueError(
                f"start must be a training of a network, but {start.folder.name} is of an estimator; train "
                "the network from scratch"
            )
        factory = model or (None if start is None else start.factory)
        if choose is not None and score is not None:
            raise ValueError("choose and score both decide which check is kept; give one of them")
        plan = Plan(
            stage=stage,
            split=rows,
            objective=objective or cross_entropy,
            transform=transform,
            draw=None if draw is None else torch.as_tensor(draw),
            choose=None if choose is None else torch.as_tensor(choose),
            score=score,
            environments=None if environments is None else _environments(environments, len(rows)),
            val=val,
            model=factory,
            train_only=train_only,
            stop=stop,
            start=start,
            recipe=recipe or self.recipe,
            arithmetic=resolve(
                self.task,
                recipe or self.recipe,
                self.device,
                steps=num_steps(self.task, self.recipe),
                own_model=factory is not None,
            ),
            shared=shared,
            recorded=record or shared,
        )
        self._check_recorded(plan.recorded, val)
        if plan.needs_whole_batches:
            plan = dataclasses.replace(plan, arithmetic=dataclasses.replace(plan.arithmetic, slices=1))
        if plan.has_step and plan.arithmetic.compute == "compiled":  # torch does not go back twice through it
            plan = dataclasses.replace(plan, arithmetic=dataclasses.replace(plan.arithmetic, compute="eager"))
        fit = self._fit(plan)
        while again and start is None and plan.salt < 2 and fit.accuracy <= chance(plan.split.y):
            log.note("%s: learned nothing, and begins again with other weights", stage)
            plan = dataclasses.replace(plan, salt=plan.salt + 1, shared=False)
            earlier, fit = fit.seconds, self._fit(plan)
            fit = dataclasses.replace(fit, seconds=earlier + fit.seconds)
        self.stages[stage] = fit
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
        from evenhand.training import estimator as estimators

        estimators.check(estimator, record=record)
        split = self.train if split is None and self.train is not self._all else split
        shared = all(change is None for change in (split, sample_weight, val))
        weight = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        rows = self.train if split is None else split
        if weight is not None and weight.shape != (len(rows),):
            raise ValueError(
                f"sample_weight must hold one number for each of the {len(rows)} rows, got {weight.shape}"
            )
        self._check_recorded(record, val)
        plan = estimators.EstimatorPlan(
            stage=stage,
            estimator=estimator,
            split=rows,
            val=self.val if val is None else val,
            weight=weight,
            epochs=epochs,
            recorded=record or shared,
            num_classes=self.num_classes,
            seed=self.seed,
        )
        content = {"task": self.task.name, "data": self.task.checksum, **plan.content(self._storage)}
        if self._inputs:
            content["inputs"] = self._inputs
        if not plan.is_named():
            content["run"] = self._identity
        folder = self._folder(content)
        if not Description(estimator).complete:
            self._check_unused(stage, folder, (estimator,), "estimator")
        fit = self.stages[stage] = estimators.fit_estimator(self, plan, folder)
        return fit

    def predict(self, model: nn.Module, split: Split) -> Tensor:
        """The model's outputs in evaluation mode, (samples, classes) float32 on the CPU."""
        batches = self._batches(split.without_groups(), eval_batch_size(self.recipe))
        return logits(model.to(self.device), batches, self.recipe).cpu()

    def batches(self, split: Split) -> Iterator[Batch]:
        """The samples in order, on the device, as the model sees them in evaluation: not augmented."""
        batches = self._batches(split.without_groups(), eval_batch_size(self.recipe))
        return batches(torch.arange(len(split)), torch.Generator(self.device))

    def found(
        self, parts: Partition | Tensor | np.ndarray, balanced: Balanced | np.ndarray | None = None
    ) -> Partition:
        """Keep the pseudo-groups that a method has found, for the scorer and the page; gives them.

        `parts`: a partition of the training samples, or True for each sample that was set apart, (samples,).
        `balanced`: the rows of the training set that were trained on then, if they were drawn by them.
        """
        self.partition = parts if isinstance(parts, Partition) else of_mask(parts, self.train.y)
        self.balanced = balanced
        return self.partition

    def hold_out(self, fraction: float, *, split: Split | None = None, salt: int = 0) -> tuple[Split, Split]:
        """Two parts of the training set, or of `split`: the rest and a `fraction` of every class, held out.

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
        """An array derived from a training, kept in its folder so that it is computed once."""

        def parts() -> Iterator[bytes]:
            array = compute()
            return npy_parts(iter([array]), len(array))

        return self._kept(fit.folder / f"{name}-{fit.snapshot}.npy", parts)

    def features(self, source: Fit | nn.Module, split: Split) -> np.ndarray:
        """What a model gives to its last layer for these samples, (samples, dimensions) float32.

        In evaluation mode, not augmented. Features of a training are kept in its folder, and those of a
        module in the run's, so that they are computed once. They are memory-mapped and read-only.
        """
        found = self._features(source, split).numpy()
        found.flags.writeable = False  # other calls get the same memory
        return found

    def feature_split(self, source: Fit | nn.Module, split: Split) -> Split:
        """The same samples with their features for inputs, so that a last layer can be trained on them."""
        return dataclasses.replace(
            split, x=self._features(source, split), rows=torch.arange(len(split)), ready=True
        )

    # -- inside --------------------------------------------------------------------------------------

    def _kept(self, path: Path, parts: Callable[[], Iterator[bytes]]) -> np.ndarray:
        """The array in a file, which is written, from the parts of an .npy file, if it is not there."""
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
            model = source.model if isinstance(source, Fit) else source
            batches = self._batches(split.without_groups(), eval_batch_size(self.recipe))
            return features(model.to(self.device), batches, self.recipe)

        if isinstance(source, Fit):
            folder, name = source.folder, source.snapshot
        else:
            description = Description(source)
            if not description.complete:  # what it computes may change without a trace
                return torch.from_numpy(np.concatenate(list(compute())))
            folder, name = self.path / "features", key_of(description.content)
        path = folder / f"features-{name}-{checksum(self._storage(split), split.rows)}.npy"
        if path not in self._feature_files:
            found = self._kept(path, lambda: npy_parts(compute(), len(split)))
            self._feature_files[path] = torch.from_numpy(found)
        return self._feature_files[path]

    def _check_recorded(self, recorded: bool, val: Split | None) -> None:
        if recorded and val is not None and not _same_samples(val, self.val):
            raise ValueError(
                "record keeps the losses of the run's validation samples, but val holds others; give these "
                "samples, such as features of run.val, or fit without record"
            )

    def _check_unused(self, stage: str, folder: Path, used: tuple[object, ...], what: str) -> None:
        """Refuse what the key of a training does not tell apart from what the training was made with."""
        if self._used.setdefault(folder, used) != used:
            raise ValueError(f"stage {stage!r} is used twice with another {what}; name each")

    def _model_seed(self, salt: int) -> int:
        return self.seed * 1000 + salt

    def _fresh(self, plan: Plan) -> nn.Module:
        return self.make_model(plan.salt) if plan.model is None else self.make(plan.model, plan.salt)

    def _fit(self, plan: Plan) -> Fit:
        folder = self._stage_folder(plan)
        sync.check_stage(
            plan.stage,
            folder.name,
            plan.needs_whole_batches,
            plan.recipe.slices,
            separable=not plan.has_step,
        )
        used = (plan.objective, plan.transform, plan.score, plan.model)
        if not plan.is_named():
            self._check_unused(plan.stage, folder, used, "objective, transform, score or model")
        with claim_together(folder):
            epochs, seconds = self._reach(plan, folder)
        return Fit(
            folder, epochs, seconds, lambda: self._read(plan, folder), Path(plan.snapshot).stem, plan.model
        )

    def _stage_folder(self, plan: Plan) -> Path:
        content = {**trained(self.task, plan.recipe, plan.arithmetic, self._inputs), "stage": plan.stage}
        content["objective"] = describe_callable(plan.objective)
        if not plan.shared:
            content.update(plan.dependencies(self._storage))
        if plan.score is not None and plan.val is None and self.val.group is not None:
            content["val_groups"] = checksum(self.val.group)  # which the score may read
        named = plan.shared or plan.is_named()
        if plan.val is None and self.val is not self.task.val:
            content["val"] = f"{self._storage(self.val)} {scored(self.val)}"
            named = named and is_array(self.val)
        if not named:
            content["run"] = self._identity
        return self._folder(content)

    def _folder(self, content: dict[str, Any]) -> Path:
        """Where a training with this content of its key is kept."""
        return self.path.parent.parent / "stages" / f"{key_of(content)}-s{self.seed}"

    def _storage(self, split: Split) -> str:
        """The name of a split's inputs: that of the task's own split, or else a checksum."""
        ready = " ready" if split.ready else ""  # neither augmented nor normalised
        for name in ("train", "val"):
            if split.x is getattr(self.task, name).x:
                return name + ready
        known = self._storages.get(id(split.x))
        if known is None:  # kept with the inputs, so that no others get their identity
            known = self._storages[id(split.x)] = (split.x, checksum(*content_of(split)))
        return known[1] + ready

    def _reach(self, plan: Plan, folder: Path) -> tuple[int, float]:
        """Bring a training to where it is asked to stop; gives the epochs and seconds it then has."""
        done = load_for_all(folder / plan.snapshot)
        if done is not None and plan.has_history(folder, done):
            if ranks.first():
                write_curve(folder, done["log"], complete=True)
            log.note("%s: reused, %d epochs in %s", plan.stage, done["epoch"], folder.name)
            return done["epoch"], done["seconds"]
        last = load_for_all(folder / "last.ckpt")
        if last is not None and not plan.has_history(folder, last):
            last = None
        if last is not None and isinstance(plan.stop, int) and last["epoch"] > plan.stop:
            share = plan.stop / last["epoch"]  # the history is there; the weights are not, see _read
            return plan.stop, last["seconds"] * share
        with left_as_it_was(plan.objective):
            training = self._training(plan, folder)
            if last is not None and not plan.lost(last):
                training.restore(last)
                log.note("%s: continues after epoch %d in %s", plan.stage, training.epoch, folder.name)
            else:
                training.start_over()
                log.note("%s: begins in %s", plan.stage, folder.name)
            training.run(plan.stop)
        log.note("%s: %d epochs, %.1f s in all", plan.stage, training.epoch, training.seconds)
        return training.epoch, training.seconds

    def _read(self, plan: Plan, folder: Path) -> tuple[nn.Module, dict[str, Any]]:
        """The model and the whole state at the stop."""
        if not ranks.from_first((folder / plan.snapshot).exists):
            # A shared training went past this epoch without keeping its weights: walk there again.
            folder = folder.with_name(f"{folder.name}-{plan.stop}")
            with claim_together(folder):
                self._reach(plan, folder)
        state = load_for_all(folder / plan.snapshot)
        if state is None:
            raise Damaged(f"{folder / plan.snapshot} was damaged; run the same again to make it anew")
        model = self._fresh(plan)
        model.load_state_dict(state["model"])
        return model.to(self.device).eval(), state

    def _training(self, plan: Plan, folder: Path) -> Training:
        recipe, val = plan.resolved_recipe, self.val if plan.val is None else plan.val
        training = Training(
            folder,
            plan,
            model=self._fresh(plan),
            train=self._batches(
                plan.split,
                recipe.batch_size,
                transform=plan.transform,
                environments=plan.environments,
                augment=recipe.augment,
            ),
            val=self._batches(val, eval_batch_size(recipe)),
            seed=self.seed,
            histories=Histories(folder, len(self.train), len(self.val)) if plan.recorded else None,
            progress=self._show,
        )
        if plan.start is not None:
            training.adopt(plan.start.load()[1])
        return training

    def _batches(self, split: Split, batch_size: int, **options: Any) -> Batches:
        source = self._sources.get(id(split.x))
        if source is None:
            source = self._sources[id(split.x)] = Source(split.x, self.device)
        return Batches(split, self.task, source, batch_size=batch_size, **options)


def eval_batch_size(recipe: Recipe) -> int:
    """How many samples are evaluated at a time."""
    return max(recipe.batch_size, 256)


def npy_parts(blocks: Iterator[np.ndarray], num_rows: int) -> Iterator[bytes]:
    """The bytes of an .npy file that holds these blocks of rows one after another."""
    for number, block in enumerate(blocks):
        if number == 0:
            header = io.BytesIO()
            kind, shape = np.lib.format.dtype_to_descr(block.dtype), (num_rows, *block.shape[1:])
            about = {"descr": kind, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(header, about)
            yield header.getvalue()
        yield np.ascontiguousarray(block).tobytes()


def _environments(given: Tensor | np.ndarray, num_rows: int) -> Tensor:
    """Environments as batches hold them, (rows,) int64."""
    found = torch.from_numpy(np.array(as_whole(given, "environments"))).long()
    if found.shape != (num_rows,):
        raise ValueError(
            f"environments must hold one number for each of the {num_rows} rows that are trained on, got "
            f"shape {tuple(found.shape)}"
        )
    return found


def _same_samples(one: Split, other: Split) -> bool:
    return torch.equal(one.index, other.index) and torch.equal(one.y, other.y)


def chance(labels: Tensor) -> float:
    """What always giving the commonest label would reach, and what chance may add to it.

    >>> chance(torch.tensor([0, 0, 0, 1]))
    0.966...
    """
    share = labels.bincount().max().item() / len(labels)
    return float(share + math.sqrt(share * (1 - share) / len(labels)))
