"""Stages: one training of a run, from the request to the files in its folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from evenhand.core import ranks
from evenhand.core.arrays import as_whole
from evenhand.training import log
from evenhand.training.batches import Transform
from evenhand.training.checkpoint import Histories, claim_together, load_for_all, write_curve
from evenhand.training.data import Split, checksum
from evenhand.training.keys import (
    Arithmetic,
    Description,
    describe_callable,
    is_named,
    num_steps,
    resolve,
    trained,
)
from evenhand.training.loop import Training
from evenhand.training.objective import Objective, cross_entropy, has_step, is_separable, left_as_it_was
from evenhand.training.plugins import definition
from evenhand.training.recipe import Recipe
from evenhand.training.record import key_of
from evenhand.training.store import Damaged

if TYPE_CHECKING:
    from evenhand.training.run import Run

Factory = Callable[[], nn.Module]
Score = Callable[[Tensor, Split], float]  # (logits (samples, classes) float32 on the CPU, split) -> score


@dataclass(frozen=True, eq=False)
class Fit:
    """A finished training: model, epochs and histories at the stop of one rule."""

    folder: Path
    epochs: int  # how many it had run when it was stopped
    seconds: float  # how long those took, whoever computed them
    snapshot: str  # the name of the rule, or of the epoch, that stopped it
    curve: list[dict[str, Any]]  # the learning curve, a row for each epoch
    make: Callable[[], nn.Module]  # makes the trained model
    read: Callable[[], dict[str, Any]]  # reads the whole checkpoint
    factory: Factory | None = None  # what makes its network, if not the recipe

    @cached_property
    def model(self) -> nn.Module:
        """The trained model, on the device and in evaluation mode; made when first asked for."""
        return self.make()

    @property
    def objective_state(self) -> dict[str, Tensor]:
        """The state of the objective, an nn.Module, where the training was stopped.

        The objective that was given to `Run.fit` does not have it where the training was reused.
        """
        state: dict[str, Tensor] = self.read()["objective"]
        return state

    @property
    def accuracy(self) -> float:
        """The best training accuracy of any epoch."""
        return max(float(row["accuracy"]) for row in self.curve)

    @property
    def recorded(self) -> bool:
        """Return whether the training kept its histories."""
        return (self.folder / "losses.npy").exists()

    @property
    def losses(self) -> np.ndarray:
        """Loss histories of the training samples, (samples, epochs); only a recorded training has them."""
        return self._history("losses")

    @property
    def hits(self) -> np.ndarray:
        """Return whether each sample was correct when it was trained on, (samples, epochs) bool."""
        return self._history("hits")

    @property
    def val_losses(self) -> np.ndarray:
        """Losses of the validation samples after every epoch, (samples, epochs)."""
        return self._history("val_losses")

    @property
    def val_hits(self) -> np.ndarray:
        """Return whether each validation sample was classified correctly, (samples, epochs) bool."""
        return self._history("val_hits")

    def _history(self, name: str) -> np.ndarray:
        history: np.ndarray = np.load(self.folder / f"{name}.npy", mmap_mode="c", allow_pickle=False)
        if history.shape[1] < self.epochs:
            raise Damaged(
                f"{self.folder / name}.npy should hold {self.epochs} epochs, got {history.shape[1]}"
            )
        return history[:, : self.epochs]


@dataclass(frozen=True, eq=False)
class Request:
    """One call of `Run.fit`, which explains the arguments."""

    stage: str
    split: Split | None = None
    _: dataclasses.KW_ONLY
    objective: Objective | None = None
    transform: Transform | None = None
    draw: Tensor | np.ndarray | None = None
    choose: Tensor | np.ndarray | None = None
    score: Score | None = None
    environments: Tensor | np.ndarray | None = None
    val: Split | None = None
    model: Factory | None = None
    train_only: Literal["head"] | None = None
    stop: str | int = "val"
    start: Fit | None = None
    recipe: Recipe | None = None
    record: bool = False
    again: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.stop, str) and self.stop not in ("val", "train"):
            raise ValueError(f"stop must be 'val', 'train' or a number of epochs, got {self.stop!r}")
        if self.train_only not in (None, "head"):
            raise ValueError(f"train_only must be 'head' or None, got {self.train_only!r}")
        if self.start is not None and self.start.snapshot == "estimator":
            raise ValueError(
                f"start must be a training of a network, but {self.start.folder.name} is of an estimator; "
                "train the network from scratch"
            )
        if self.choose is not None and self.score is not None:
            raise ValueError("choose and score both decide which check is kept; give one of them")

    @property
    def is_plain(self) -> bool:
        """Return whether the training is ERM on the training set, with any recipe."""
        changes = [each.name for each in dataclasses.fields(self) if each.default is None]
        return all(getattr(self, name) is None for name in changes if name != "recipe")


class Stage:
    """A request with all defaults resolved, and the folder of its training.

    A plain training is shared by all stopping rules and all methods; one that begins again with other
    weights, by a `salt` above 0, follows its own rule only.
    """

    def __init__(self, run: Run, request: Request, salt: int = 0) -> None:
        self.run, self.request, self.name, self.salt = run, request, request.stage, salt
        split = other_samples(run, request)
        plain = split is None and request.is_plain
        self.shared = plain and not salt
        self.split = run.train.without_groups() if plain else run.train if split is None else split
        self.val = run.val if request.val is None else request.val
        self.recorded = request.record or plain
        check_recorded(run, self.recorded, self.val)
        self.objective, start = request.objective or cross_entropy, request.start
        self.factory = request.model or (None if start is None else start.factory)
        self.draw, self.choose = (
            None if weights is None else torch.as_tensor(weights)
            for weights in (request.draw, request.choose)
        )
        self.environments = _environments(request.environments, len(self.split))
        recipe = request.recipe or run.recipe
        self.arithmetic = self._resolve(recipe)
        self.recipe = recipe.replace(precision=self.arithmetic.precision, slices=self.arithmetic.slices)
        self.stop = request.stop
        self.rules = ("val", "train") if self.shared else (self.stop,) if isinstance(self.stop, str) else ()
        self.snapshot = self.stop if isinstance(self.stop, str) else f"epoch-{self.stop}"
        content, named = self._content()
        self.folder = stage_folder(run, content, named=named)
        ranks.check_stage(
            self.name, self.folder.name, self.needs_whole_batches, recipe.slices, separable=not self.has_step
        )
        if not self._is_named():
            used = (self.objective, request.transform, request.score, self.factory)
            check_unused(run, self.name, self.folder, used, "objective, transform, score or model")

    @property
    def has_step(self) -> bool:
        """Return whether the objective updates the weights itself."""
        return has_step(self.objective)

    @property
    def needs_whole_batches(self) -> str:
        """Return a sentence on what needs whole batches; empty if all batches may be cut."""
        if self.has_step:
            kind = type(self.objective).__qualname__
            return f"the objective {kind} has a step of its own for whole batches"
        for kind, each in {"objective": self.objective, "transform": self.request.transform}.items():
            if each is not None and not is_separable(each):
                name = getattr(each, "__qualname__", type(each).__qualname__)
                return f"the {kind} {name} does not declare that batches may be cut"
        return ""

    def _resolve(self, recipe: Recipe) -> Arithmetic:
        run = self.run
        steps, is_users = num_steps(run.task, run.recipe), self.factory is not None
        found = resolve(run.task, recipe, run.device, steps=steps, own_model=is_users)
        if self.needs_whole_batches:
            found = dataclasses.replace(found, slices=1)
        if self.has_step and found.compute == "compiled":  # torch does not go back twice through it
            found = dataclasses.replace(found, compute="eager")
        return found

    # -- the key -------------------------------------------------------------------------------------

    def _content(self) -> tuple[dict[str, Any], bool]:
        """Return the content that the key hashes, and whether it determines the training."""
        run, request = self.run, self.request
        content = {**trained(run.task, self.recipe, self.arithmetic, run.preparation), "stage": self.name}
        content["objective"] = describe_callable(self.objective)
        if not self.shared:
            content.update(self._changes())
        if request.score is not None and request.val is None and run.val.group is not None:
            content["val_groups"] = checksum(run.val.group)  # which the score may read
        named = self.shared or self._is_named()
        if request.val is None and run.val is not run.task.val:
            content["val"] = f"{run.inputs.name(run.val)} {scored(run.val)}"
            named = named and is_array(run.val)
        return content, named

    def _changes(self) -> dict[str, Any]:
        """Return what a non-plain training depends on, besides the contents of its transform or objective."""
        run, request, split, start = self.run, self.request, self.split, self.request.start
        val = request.val
        more = {
            "x": "" if (inputs := run.inputs.name(split)) == "train" else inputs,
            "environments": "" if self.environments is None else checksum(self.environments),
            "val": "" if val is None else f"{run.inputs.name(val)} {scored(val)}",
            "model": "" if self.factory is None else Description(self.factory).content,
            "score": "" if request.score is None else describe_callable(request.score),
            "train_only": request.train_only,
        }
        return {
            # Options that came later are named only where they are used, so that older keys still hold.
            **{name: value for name, value in more.items() if value},
            "rows": checksum(split.index, split.rows, split.copies, split.y),
            "groups": "" if split.group is None else checksum(split.group),
            "transform": "" if request.transform is None else definition(request.transform),
            "draw": "" if self.draw is None else checksum(self.draw),
            "choose": "" if self.choose is None else checksum(self.choose),
            "start": "" if start is None else f"{start.folder.name}@{start.snapshot}",
            "stop": self.stop,
            "salt": self.salt,
            "recorded": self.recorded,  # such a training is checked in every epoch
        }

    def _is_named(self) -> bool:
        """Return whether `_changes` determine this training.

        Only of functions of this package, which mean the same whenever they are named. What a user's needs, a
        transform, a dataset, or where another training stood, may be anything.
        """
        request = self.request
        ours = all(each is None or is_named(each) for each in (self.objective, self.factory, request.score))
        arrays = is_array(self.split) and (request.val is None or is_array(request.val))
        return ours and arrays and request.transform is None and request.start is None

    # -- the training --------------------------------------------------------------------------------

    def fit(self, folder: Path | None = None) -> Fit:
        """Train until the rule has fired, or return what an earlier call has left in the folder."""
        folder = folder or self.folder
        with claim_together(folder):
            done = self._load(folder, self.snapshot)
            if done is not None:
                if ranks.first():
                    write_curve(folder, done["log"], complete=True)
                log.note("%s: reused, %d epochs in %s", self.name, done["epoch"], folder.name)
                return self._fit(folder, done["epoch"], done["seconds"], done["log"], done["model"])
            last = self._load(folder, "last")
            if last is not None and isinstance(self.stop, int) and last["epoch"] > self.stop:
                share = self.stop / last["epoch"]  # the history is there; the weights are not, see _read
                return self._fit(folder, self.stop, last["seconds"] * share, last["log"][: self.stop], None)
            with left_as_it_was(self.objective):
                training = Training(self, folder)
                if last is not None and not self._must_restart(last):
                    training.restore(last)
                    log.note("%s: continues after epoch %d in %s", self.name, training.epoch, folder.name)
                else:
                    training.start_over()
                    log.note("%s: begins in %s", self.name, folder.name)
                training.run(self.stop)
            log.note("%s: %d epochs, %.1f s in all", self.name, training.epoch, training.seconds)
            # Several ranks take the weights that the first one has written.
            weights = training.kept_weights(self.snapshot) if ranks.count() == 1 else None
            return self._fit(folder, training.epoch, training.seconds, training.log, weights)

    def _fit(
        self,
        folder: Path,
        epochs: int,
        seconds: float,
        curve: list[dict[str, Any]],
        weights: dict[str, Tensor] | None,
    ) -> Fit:
        """`weights`: those of the model, if they are in memory; they are read otherwise."""
        kept = None if weights is None else {name: value.cpu() for name, value in weights.items()}
        make, read = partial(self._model, folder, kept), partial(self._read, folder)
        return Fit(folder, epochs, seconds, self.snapshot, curve, make, read, self.factory)

    def _load(self, folder: Path, name: str) -> dict[str, Any] | None:
        """Load a checkpoint, if the histories beside it still match its digests."""
        state = load_for_all(folder / f"{name}.ckpt")
        if state is None or not self.recorded:
            return state
        epochs, sums = state["epoch"], state["histories"]
        return state if ranks.from_first(lambda: Histories.whole(folder, epochs, sums)) else None

    def _must_restart(self, state: dict[str, Any]) -> bool:
        """Return whether training must restart, since the rule has fired but its snapshot is missing."""
        return isinstance(self.stop, str) and state["rules"][self.stop]["stopped"] is not None

    def _read(self, folder: Path) -> dict[str, Any]:
        """Return the whole state where the training was stopped."""
        path = folder / f"{self.snapshot}.ckpt"
        if not ranks.from_first(path.exists):
            # A shared training went past this epoch without keeping its weights: walk there again.
            path = self.fit(folder.with_name(f"{folder.name}-{self.stop}")).folder / path.name
        state = load_for_all(path)
        if state is None:
            raise Damaged(f"{path} was damaged; run the same again to make it anew")
        return state

    def _model(self, folder: Path, weights: dict[str, Tensor] | None) -> nn.Module:
        weights = self._read(folder)["model"] if weights is None else weights
        run, factory = self.run, self.factory
        model = run.make_network(self.salt) if factory is None else run.make(factory, self.salt)
        model.load_state_dict(weights)
        return model.to(run.device).eval()


# -- what stages of networks and of estimators have in common --------------------------------------------


def other_samples(run: Run, request: Request) -> Split | None:
    """What is trained on instead of the whole training set; a method may also replace `run.train`."""
    return run.train if request.split is None and run.train is not run.whole else request.split


def stage_folder(run: Run, content: dict[str, Any], *, named: bool) -> Path:
    """Return the folder of the training whose key hashes `content`; `named`: this determines it."""
    content = content if named else {**content, "run": run.identity}
    return run.path.parent.parent / "stages" / f"{key_of(content)}-s{run.seed}"


def check_recorded(run: Run, recorded: bool, val: Split) -> None:
    """Refuse to record the losses of other validation samples than the run's."""
    same = torch.equal(val.index, run.val.index) and torch.equal(val.y, run.val.y)
    if recorded and not same:
        raise ValueError(
            "record keeps the losses of the run's validation samples, but val holds others; give these "
            "samples, such as features of run.val, or fit without record"
        )


def check_unused(run: Run, stage: str, folder: Path, used: tuple[object, ...], what: str) -> None:
    """Raise if a folder is asked for with other objects than before that its key does not cover."""
    if run.used.setdefault(folder, used) != used:
        raise ValueError(f"stage {stage!r} is used twice with another {what}; name each")


def is_array(split: Split) -> bool:
    """Return whether a checksum says all of the inputs; of most datasets, only some items are looked at."""
    return isinstance(split.x, (Tensor, np.ndarray)) or hasattr(split.x, "content")


def scored(split: Split) -> str:
    """Return what, besides the inputs of validation samples, decides when a training stops."""
    parts = (split.rows, split.y, *(part for part in (split.group, split.weight) if part is not None))
    return checksum(*parts)


def _environments(given: Tensor | np.ndarray | None, num_rows: int) -> Tensor | None:
    """Return environments as batches hold them, (rows,) int64."""
    if given is None:
        return None
    found = torch.from_numpy(np.array(as_whole(given, "environments"))).long()
    if found.shape != (num_rows,):
        raise ValueError(
            f"environments must hold one number for each of the {num_rows} rows that are trained on, got "
            f"shape {tuple(found.shape)}"
        )
    return found
