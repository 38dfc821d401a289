"""Run: a folder that can fit and predict, and remembers what it has finished."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenhand.core import ranks
from evenhand.core.partition import Partition
from evenhand.core.rebalance import Balanced
from evenhand.training import log, plugins, progress, sync
from evenhand.training.arithmetic import num_steps, resolve
from evenhand.training.batches import Batches, Source, Transform
from evenhand.training.checkpoint import Histories, claim_together, load_for_all, write_curve
from evenhand.training.cuda_graphs import allow_kernels
from evenhand.training.data import Batch, Split, Task, as_input
from evenhand.training.evaluation import logits
from evenhand.training.identity import trained
from evenhand.training.loop import Training
from evenhand.training.manifest import is_intact, write_digested
from evenhand.training.models import make_model
from evenhand.training.objective import Objective, cross_entropy
from evenhand.training.plan import Fit, Plan
from evenhand.training.recipe import Recipe
from evenhand.training.record import key_of
from evenhand.training.store import Damaged


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
        self.train = dataclasses.replace(task.train, index=torch.arange(len(task.train)))
        self.val = task.val
        self.stages: dict[str, Fit] = {}
        self.partition: Partition | None = None
        self.balanced: Balanced | None = None
        self._identity = identity
        self._show = (show or progress.choose()) if ranks.first() else progress.Silent()
        self._sources: dict[int, Source] = {}
        self._used: dict[Path, tuple[Objective, Transform | None]] = {}

    @property
    def num_classes(self) -> int:
        return self.task.num_classes

    def make_model(self, salt: int = 0) -> nn.Module:
        """A fresh model; the same initial weights in every stage of a run, others with another salt."""
        seed, recipe = self.seed * 1000 + salt, self.recipe
        if self.task.make_model is not None:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                model = self.task.make_model()
        else:
            shape = tuple(as_input(self.train.x[int(self.train.rows[0])]).shape)
            model = make_model(
                recipe.model, shape=shape, num_classes=self.num_classes, weights=recipe.weights, seed=seed
            )
        allow_kernels(model, self.arithmetic.compute == "kernels")
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
        stop: str | int = "val",
        start: Fit | None = None,
        recipe: Recipe | None = None,
        record: bool = False,
        again: bool = False,
    ) -> Fit:
        """Train a fresh model, or return at once what an earlier call has finished.

        `split`: other samples than the training set; `draw`: one weight per row, each epoch then draws
        that many rows with replacement; `choose`: one weight per validation sample, and where the recipe
        keeps the best check, it is the one with the best sum of plain and so weighted accuracy, of those
        that gave up at most a point, or the standard error, of the plain one; `stop`: "val" or "train", the
        accuracy whose rise is awaited, or a number of epochs; `start`: continue from another training's
        weights and optimiser; `again`: where nothing was learned, begin again with other weights, twice at
        most.

        A training that none of the arguments above changes is plain ERM. It is recorded, sees no groups, and
        every method that asks for the same stage shares it: each takes its snapshot where its own rule stops.
        One of the same data, with an objective function of this package and no transform, is shared by runs
        that ask for the same rows of them.
        """
        if isinstance(stop, str) and stop not in ("val", "train"):
            raise ValueError(f"stop must be 'val', 'train' or a number of epochs, got {stop!r}")
        # The recipe is part of all keys.
        shared = all(change is None for change in (split, objective, transform, draw, choose, start))
        plan = Plan(
            stage=stage,
            split=self.train.without_groups() if shared else self.train if split is None else split,
            objective=objective or cross_entropy,
            transform=transform,
            draw=None if draw is None else torch.as_tensor(draw),
            choose=None if choose is None else torch.as_tensor(choose),
            stop=stop,
            start=start,
            recipe=recipe or self.recipe,
            arithmetic=resolve(
                self.task, recipe or self.recipe, self.device, steps=num_steps(self.task, self.recipe)
            ),
            shared=shared,
            recorded=record or shared,
        )
        if plan.needs_whole_batches:
            plan = dataclasses.replace(plan, arithmetic=dataclasses.replace(plan.arithmetic, slices=1))
        fit = self._fit(plan)
        while again and start is None and plan.salt < 2 and fit.accuracy <= chance(plan.split.y):
            log.note("%s: learned nothing, and begins again with other weights", stage)
            plan = dataclasses.replace(plan, salt=plan.salt + 1, shared=False)
            earlier, fit = fit.seconds, self._fit(plan)
            fit = dataclasses.replace(fit, seconds=earlier + fit.seconds)
        self.stages[stage] = fit
        return fit

    def predict(self, model: nn.Module, split: Split) -> Tensor:
        """The model's outputs in evaluation mode, (samples, classes) float32 on the CPU."""
        batches = self._batches(split.without_groups(), self._eval_batch_size(self.recipe))
        return logits(model.to(self.device), batches, self.recipe).cpu()

    def batches(self, split: Split) -> Iterator[Batch]:
        """The samples in order, on the device, as the model sees them in evaluation: not augmented."""
        batches = self._batches(split.without_groups(), self._eval_batch_size(self.recipe))
        return batches(torch.arange(len(split)), torch.Generator(self.device))

    def found(self, partition: Partition, balanced: Balanced) -> None:
        """Keep the pseudo-groups that a method has found, for the scorer and the page."""
        self.partition, self.balanced = partition, balanced

    def cached(self, fit: Fit, name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        """An array derived from a training, kept in its folder so that it is computed once."""
        path = fit.folder / f"{name}-at{fit.epochs}.npy"
        with claim_together(fit.folder):
            if not ranks.from_first(lambda: is_intact(path)):
                buffer = io.BytesIO()
                np.save(buffer, compute(), allow_pickle=False)
                if ranks.first():
                    write_digested(path, [buffer.getvalue()])
        array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
        return array

    # -- inside --------------------------------------------------------------------------------------

    def _fit(self, plan: Plan) -> Fit:
        folder = self._stage_folder(plan)
        sync.check_stage(plan.stage, folder.name, plan.needs_whole_batches, plan.recipe.slices)
        used = (plan.objective, plan.transform)
        if self._used.setdefault(folder, used) != used:
            raise ValueError(
                f"stage {plan.stage!r} is used twice with another objective or transform; name each"
            )
        with claim_together(folder):
            epochs, seconds = self._reach(plan, folder)
        return Fit(folder, epochs, seconds, lambda: self._read(plan, folder))

    def _stage_folder(self, plan: Plan) -> Path:
        content = {**trained(self.task, plan.recipe, plan.arithmetic), "stage": plan.stage}
        content["objective"] = plugins.definition(plan.objective)
        if not plan.shared:
            content.update(plan.dependencies())
        if self.val is not self.task.val or not (plan.shared or plan.is_named(self.task.train.x)):
            content["run"] = self._identity
        return self.path.parent.parent / "stages" / f"{key_of(content)}-s{self.seed}"

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
        model = self.make_model(plan.salt)
        model.load_state_dict(state["model"])
        return model.to(self.device).eval(), state

    def _training(self, plan: Plan, folder: Path) -> Training:
        resolved = plan.arithmetic
        recipe = plan.recipe.replace(precision=resolved.precision, slices=resolved.slices)
        rules = ("val", "train") if plan.shared else (plan.stop,) if isinstance(plan.stop, str) else ()
        training = Training(
            folder,
            stage=plan.stage,
            model=self.make_model(plan.salt),
            objective=plan.objective,
            train=self._batches(
                plan.split, recipe.batch_size, transform=plan.transform, augment=recipe.augment
            ),
            val=self._batches(self.val, self._eval_batch_size(recipe)),
            draw=plan.draw,
            choose=plan.choose,
            recipe=recipe,
            compute=resolved.compute,
            seed=self.seed,
            rules=rules,
            histories=Histories(folder, len(self.train), len(self.val)) if plan.recorded else None,
            progress=self._show,
        )
        if plan.salt:
            training.title = f"{plan.stage}, which learned nothing, with other weights"
        if plan.start is not None:
            training.adopt(plan.start.load()[1])
        return training

    def _batches(
        self, split: Split, batch_size: int, *, transform: Transform | None = None, augment: bool = False
    ) -> Batches:
        source = self._sources.get(id(split.x))
        if source is None:
            source = self._sources[id(split.x)] = Source(split.x, self.device)
        return Batches(split, self.task, source, batch_size=batch_size, transform=transform, augment=augment)

    def _eval_batch_size(self, recipe: Recipe) -> int:
        return max(recipe.batch_size, 256)


def chance(labels: Tensor) -> float:
    """What always giving the commonest label would reach, and what chance may add to it.

    >>> chance(torch.tensor([0, 0, 0, 1]))
    0.966...
    """
    share = labels.bincount().max().item() / len(labels)
    return float(share + math.sqrt(share * (1 - share) / len(labels)))
