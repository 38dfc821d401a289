"""Training: one trajectory of epochs that can be stopped by several rules, killed, and continued."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.core import ranks
from evenhand.core.history import LossHistory
from evenhand.training.batches import batch_sizes
from evenhand.training.checkpoint import EMA, Histories, Rules, save_checkpoint, write_curve
from evenhand.training.data import Batch
from evenhand.training.forward import (
    Forward,
    Graphed,
    allow_kernels,
    autocast,
    eval_batch_size,
    evaluate,
    fast_forward,
    standard_error,
    weighted_mean,
)
from evenhand.training.models import find_head
from evenhand.training.objective import Tap
from evenhand.training.recipe import Recipe

if TYPE_CHECKING:
    from evenhand.training.stage import Stage


class TrainingDiverged(ValueError):
    """The training loss is no longer a finite number: the settings or the inputs must change."""


class Training:
    """The state of one training; `run` trains until a stopping rule fires."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        run, recipe = stage.run, stage.recipe
        self.folder, self.stage, self.recipe = folder, stage, recipe
        self.train = run.inputs.batches(
            stage.split,
            recipe.batch_size,
            transform=stage.request.transform,
            environments=stage.environments,
            augment=recipe.augment,
        )
        self.val = run.inputs.batches(stage.val, eval_batch_size(recipe))
        self.histories = Histories(folder, len(run.train), len(run.val)) if stage.recorded else None
        self.progress, self.device = run.progress, run.device
        model = run.make_model(stage.salt) if stage.factory is None else run.make(stage.factory, stage.salt)
        self.model, self.objective = ranks.synchronize_batch_norm(model, self.device), stage.objective
        self.model.to(self.device)
        self._head = self._freeze_all_but_the_head() if stage.request.train_only == "head" else None
        # What the objective holds; a function holds nothing.
        self._objective_module = self.objective if isinstance(self.objective, nn.Module) else nn.Module()
        self._objective_module.to(self.device)
        for network in (self.model, self._objective_module):
            allow_kernels(network, stage.arithmetic.compute == "kernels")
            for parameter in network.parameters() if self.device.type == "cuda" else ():
                if parameter.ndim == 4:
                    parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        self.optimizers = self._make_optimizers()
        self.schedulers = {
            name: torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, factor=recipe.plateau_factor, patience=recipe.plateau_epochs
            )
            for name, optimizer in self.optimizers.items()
        }
        steps = len(batch_sizes(len(stage.split), recipe.batch_size))
        self.ema = EMA(self.model, steps) if recipe.average else None
        self._cumulative = None if stage.draw is None else stage.draw.double().cumsum(0)
        self.epoch = 0
        self.log: list[dict[str, Any]] = []
        self.rules = Rules(stage.rules, recipe)
        self.seconds = 0.0
        self._save_cost, self._saved_at = 0.0, -math.inf
        if stage.request.start is not None:
            self._start_from(stage.request.start.read())

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for parameters in self._parameter_groups().values() for parameter in parameters]

    def _parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return the weights that are trained: those of the model and of the objective."""
        trained = self.model if self._head is None else self._head
        return {"model": [*trained.parameters()], "objective": [*self._objective_module.parameters()]}

    def _make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Make one optimizer for all weights, or one per group if the objective makes the steps."""
        if not self.stage.has_step:
            return {"model": make_optimizer(self._parameters(), self.recipe, self.device)}
        given = getattr(self.objective, "parameter_groups", None)
        groups: dict[str, Any] = self._parameter_groups() if given is None else given(self.model)
        made = {}
        for name, group in groups.items():
            options = group if isinstance(group, dict) else {"params": group}
            if parameters := [*options["params"]]:
                made[name] = make_optimizer([{**options, "params": parameters}], self.recipe, self.device)
        return made

    def _freeze_all_but_the_head(self) -> nn.Module:
        first = torch.arange(min(2, len(self.train.split)))
        example = next(iter(self.train.plain()(first, torch.Generator(self.device))))
        head = find_head(self.model, example.x)[1]
        self.model.requires_grad_(False)
        return head.requires_grad_(True)

    @property
    def ema_or_model(self) -> nn.Module:
        """The model that is validated and kept: the EMA, where the recipe asks for it."""
        return self.model if self.ema is None else self.ema.module

    # -- state ---------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return everything that the next epoch depends on."""
        ema = self.ema
        average = None if ema is None else {"model": ema.module.state_dict(), "taken": ema.taken}
        return {
            "epoch": self.epoch,
            "model": self.model.state_dict(),
            "objective": self._objective_module.state_dict(),
            "optimizer": self._states(self.optimizers),
            "scheduler": self._states(self.schedulers),
            "log": self.log,
            "seconds": self.seconds,
            "histories": None if self.histories is None else self.histories.sums,
            "average": average,
            **self.rules.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from a state; later epochs of the histories are dropped."""
        self.model.load_state_dict(state["model"])
        self._load_optimizers(state)
        self._objective_module.load_state_dict(state["objective"])
        self.epoch, self.log, self.seconds = state["epoch"], list(state["log"]), state["seconds"]
        self.rules.restore(state)
        if self.ema is not None:
            self.ema.module.load_state_dict(state["average"]["model"])
            self.ema.taken = state["average"]["taken"]
        if self.histories is not None:
            self.histories.restore(self.epoch, state["histories"])

    def start_over(self) -> None:
        """Delete the checkpoints and histories of earlier processes, to train from the start."""
        for path in self.folder.glob("*.ckpt") if ranks.first() else ():
            path.unlink()
        if self.histories is not None:
            self.histories.truncate(0)

    def _start_from(self, state: dict[str, Any]) -> None:
        """Take another training's weights; also its optimizer and learning rate, if they fit."""
        try:
            self.model.load_state_dict(state["model"])
        except RuntimeError as error:
            raise ValueError(f"start must be a training of the same network: {error}") from error
        # The parameters of an objective may mean something else in another one.
        plain = not [*self._objective_module.parameters()]
        if plain and not self.stage.has_step and self._head is None and self._fits(state["optimizer"]):
            self._load_optimizers(state)

    def _fits(self, state: dict[str, Any]) -> bool:
        """Return whether an optimizer's state is of the same kind as this training's, for as many weights."""

        def kinds(groups: list[dict[str, Any]]) -> list[tuple[set[str], int]]:
            return [({*group}, len(group["params"])) for group in groups]

        groups = self.optimizers["model"].state_dict()["param_groups"]
        return kinds(groups) == kinds(state.get("param_groups", []))  # there are several where it had a step

    def _load_optimizers(self, state: dict[str, Any]) -> None:
        for parts, states in ((self.optimizers, state["optimizer"]), (self.schedulers, state["scheduler"])):
            for name, part in parts.items():
                part.load_state_dict(states[name] if self.stage.has_step else states)

    def _states(self, parts: Mapping[str, Any]) -> Any:
        """Return the states of the optimizers, or of their schedulers, for a checkpoint."""
        states = {name: part.state_dict() for name, part in parts.items()}
        return states if self.stage.has_step else states["model"]

    def _save(self, *, force: bool) -> None:
        # Saving may take a fiftieth of the time, so that a fast training is not slowed down by it.
        now = time.monotonic()
        if ranks.first() and (force or now - self._saved_at >= 50 * self._save_cost):
            write_curve(self.folder, self.log)
            save_checkpoint(self.folder / "last.ckpt", self.state())
            self._saved_at = time.monotonic()
            self._save_cost = self._saved_at - now

    def snapshot(self, name: str) -> None:
        """Save the state under the name of the rule that asked for it, on rank 0."""
        if ranks.first():
            write_curve(self.folder, self.log)  # first: whoever finds the snapshot wants the curve up to it
            state = {**self.state(), "model": self.kept_weights(name), "best": {}, "checks": []}
            save_checkpoint(self.folder / f"{name}.ckpt", state)

    def kept_weights(self, name: str) -> dict[str, Tensor]:
        """Return the weights that a snapshot of this name holds."""
        return self.rules.best.get(name, self.ema_or_model.state_dict())

    # -- epochs --------------------------------------------------------------------------------------

    def run(self, stop: str | int) -> None:
        """Train until the rule `stop` has fired, or for `stop` epochs in all."""
        limit = stop if isinstance(stop, int) else self.recipe.epochs
        for model in dict.fromkeys([self.model, self.ema_or_model]):
            ranks.broadcast(model)
        forward = self._fast_forward()
        size = self.train.batch_size
        full = ranks.slices(torch.arange(size), [size], self.recipe.slices)[1][0].length  # of a full batch
        self._tap = Tap(self.model, forward, full)
        title = self.stage.name + (", which learned nothing, with other weights" if self.stage.salt else "")
        self.progress.start(title, epochs=limit, samples=len(self.train.split), done=min(self.epoch, limit))
        reason = "interrupted"
        try:
            while self.epoch < limit and not (isinstance(stop, str) and self.rules.stopped(stop)):
                self._one_epoch()
                fired = self.rules.check(self.log[-1], self.ema_or_model.state_dict)
                # Snapshots come before last.ckpt, so every stop that it has passed has its snapshot.
                for name in fired:
                    self.snapshot(name)
                self._save(force=bool(fired) or self.epoch >= limit)
            if isinstance(stop, int):
                self.snapshot(f"epoch-{stop}")
            early = isinstance(stop, str) and self.epoch < limit
            scored = stop == "val" and self.stage.request.score is not None
            kind = "score" if scored else "training accuracy" if stop == "train" else "validation accuracy"
            reason = f"stopped: {kind} no longer rises" if early else ""
        finally:
            if isinstance(forward, Graphed):
                self._tap = Tap(self.model, self.model, full)
                forward.release()
            self.progress.finish(reason)

    def _fast_forward(self) -> Forward:
        is_users = self.stage.factory is not None or self.train.task.make_model is not None
        known = not is_users and ":" not in self.recipe.model
        return fast_forward(
            self.model,
            self.recipe,
            self.device,
            compiled=self.stage.arithmetic.compute == "compiled",
            steps=self.recipe.epochs * (len(self.train.split) // self.train.batch_size),
            resident=self.train.source.resident,
            known=known and not self.stage.has_step,  # which may go back through one pass several times
        )

    def _one_epoch(self) -> None:
        begun = time.monotonic()
        number, generator = ranks.seed_epoch(self.stage.run.seed, self.stage.name, self.epoch, self.device)
        order = self._order(np.random.default_rng(number))
        self.model.train(self._head is None)
        if self._head is not None:
            self._head.train()
        self._objective_module.train()
        total, hits = torch.zeros(2, dtype=torch.float64, device=self.device)
        sizes = batch_sizes(len(order), self.train.batch_size)
        rows, slices = ranks.slices(order, sizes, self.recipe.slices)
        steps = self.epoch * len(sizes) + np.cumsum([0, *(piece.last for piece in slices[:-1])])
        lengths = [piece.length for piece in slices]
        batches = self.train(rows, generator, lengths, epoch=self.epoch, steps=steps.tolist())
        self._zero_gradients()
        for batch, piece in zip(batches, slices, strict=True):
            self._tap.begin(batch.x)
            loss = self._step(batch, piece)
            with torch.no_grad():
                logits = self._tap.logits(recorded=self.histories is not None)
                correct = logits.argmax(1) == batch.y
                total += loss * (piece.length / piece.copies)
                hits += correct.sum() / piece.copies
                if self.histories is not None:
                    if not self.recipe.clean_losses:
                        losses = F.cross_entropy(logits.float(), batch.y, reduction="none")
                        self.histories.losses.record(batch.index, losses, later=True)  # `total` tells
                    self.histories.hits.record(batch.index, correct, later=True)
        self._tap.begin(None)  # the batch's memory is for the evaluation
        if self.histories is not None:
            self.histories.fetch()  # while the device still works
        total, hits = ranks.add(torch.stack([total, hits]))
        self._end_epoch(total.item() / len(order), hits.item() / len(order))
        self.seconds += time.monotonic() - begun

    def _zero_gradients(self) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)

    def _step(self, batch: Batch, piece: ranks.Slice) -> Tensor:
        """Go back through a batch or a slice of it, and update the weights after the last; gives the loss."""
        objective: Any = self.objective
        if self.stage.has_step:
            # A step may update weights and use them again, so no copy of theirs in bf16 may be kept.
            with autocast(self.recipe, self.device, cache_enabled=False):
                loss = torch.as_tensor(objective.step(self._tap, batch, self.optimizers), device=self.device)
        else:
            with autocast(self.recipe, self.device):
                loss = objective(self._tap, batch)
            (loss * piece.share).backward()
            if piece.last:
                ranks.all_reduce_gradients(self._parameters())
                self.optimizers["model"].step()
                self._zero_gradients()
        if piece.last:
            if self.ema is not None:
                self.ema.update(self.model)
            self.progress.advance(piece.batch)
        return loss.detach()

    def _record(self, history: LossHistory, values: Tensor, index: Tensor | None = None) -> None:
        """Record values that all ranks hold for all samples; each rank records its part."""
        if not values.isfinite().all():
            raise self._diverged("validation loss" if index is None else "training loss", self.epoch)
        start, end = ranks.part(len(values))
        rows = torch.arange(start, end) if index is None else index[start:end]
        history.record(rows, values[start:end], later=True)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the first optimizer."""
        return float(next(iter(self.optimizers.values())).param_groups[0]["lr"])

    def _diverged(self, what: str, epoch: int) -> TrainingDiverged:
        return TrainingDiverged(
            f"{self.stage.name}: the {what} is not finite in epoch {epoch}; "
            f"lower the learning rate (now {self.learning_rate:g}) or check the inputs"
        )

    def _order(self, generator: np.random.Generator) -> Tensor:
        """Return the rows that this epoch visits: each once, or a weighted draw with replacement."""
        num_rows = len(self.train.split)
        if self._cumulative is None:
            return torch.from_numpy(generator.permutation(num_rows))
        drawn = torch.from_numpy(generator.random(num_rows)) * self._cumulative[-1]
        return torch.searchsorted(self._cumulative, drawn, right=True).clamp(max=num_rows - 1)

    def _end_epoch(self, loss: float, accuracy: float) -> None:
        if not math.isfinite(loss):
            raise self._diverged("training loss", self.epoch + 1)
        self.epoch += 1
        row: dict[str, Any] = {"epoch": self.epoch, "loss": loss, "accuracy": accuracy, "val_accuracy": None}
        row["lr"] = self.learning_rate
        due = "val" in self.rules.rules and self.epoch % self.recipe.check_every == 0
        if self.histories is not None or due or self.epoch >= self.recipe.epochs:
            losses, correct, outputs = evaluate(self.ema_or_model, self.val, self.recipe)
            row["val_accuracy"] = weighted_mean(correct, self.val.split.weight)
            if self.stage.request.score is not None:
                row["score"] = self._score(outputs)
            if self.stage.choose is not None:
                row["choice"] = weighted_mean(correct, self.stage.choose)
                row["val_error"] = standard_error(correct, self.val.split.weight)
            if self.histories is not None:
                self._record(self.histories.val_losses, losses)
                self._record(self.histories.val_hits, correct)
        if self.histories is not None:
            if self.recipe.clean_losses:
                losses, *_ = evaluate(self.model, self.train.plain(), self.recipe)
                self._record(self.histories.losses, losses, self.train.split.index)
            self.histories.end_epoch()
        row = ranks.from_first(lambda: row)  # so that all ranks come to the same decisions
        for scheduler in self.schedulers.values():
            scheduler.step(row["loss"])
        self.log.append(row)
        self.progress.epoch(row)

    def _score(self, outputs: Tensor) -> float:
        """Return the method's own score of the validation samples' outputs."""
        assert self.stage.request.score is not None
        score = float(self.stage.request.score(outputs.float().cpu(), self.val.split))
        if not math.isfinite(score):
            raise ValueError(f"score must give a finite number, got {score} in epoch {self.epoch}")
        return score


def make_optimizer(parameters: list[Any], recipe: Recipe, device: torch.device) -> torch.optim.Optimizer:
    """Make Adam, or SGD with momentum; fused if the device supports it."""
    fused = True if device.type == "cuda" else None
    common: dict[str, Any] = {"lr": recipe.lr, "weight_decay": recipe.weight_decay, "fused": fused}
    if recipe.optimizer == "adam":
        return torch.optim.Adam(parameters, **common)
    return torch.optim.SGD(parameters, momentum=recipe.momentum, **common)
