"""Checkpoints and histories of a training; early stopping, and which weights are kept then."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evenhand.core import ranks
from evenhand.core.history import LossHistory
from evenhand.training import store
from evenhand.training.recipe import Recipe
from evenhand.training.store import Damaged, set_aside


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write nested dictionaries of tensors and plain values, followed by their digest."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    store.write_digested(path, [buffer.getvalue()])


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; one that was cut short or changed raises Damaged."""
    store.verify_digested(path)
    return _parse(path.read_bytes())


def load_for_all(path: Path) -> dict[str, Any] | None:
    """Return a checkpoint as the first rank reads it, for all ranks; None if there is none.

    A damaged one is set aside, as if it had never been written.
    """
    data = ranks.bytes_from_first(path.read_bytes() if ranks.first() and store.is_intact(path) else None)
    return None if data is None else _parse(data)


def _parse(data: bytes) -> dict[str, Any]:
    payload = io.BytesIO(memoryview(data)[: -store.DIGEST_SIZE])
    try:
        state: dict[str, Any] = torch.load(payload, map_location="cpu", weights_only=True)
    except Exception as error:  # its digest was right, so somebody made it so; torch raises many kinds
        raise Damaged(f"a checkpoint holds what torch does not load safely: {error}") from error
    if not isinstance(state, dict):
        raise Damaged(f"a checkpoint should hold a dictionary, got {type(state).__name__}")
    return state


@contextlib.contextmanager
def claim_together(folder: Path) -> Iterator[None]:
    """Hold a folder for all ranks of one training: the first takes the claim, the others wait for it."""
    with store.claim(folder) if ranks.first() else contextlib.nullcontext():
        ranks.barrier()
        yield
        ranks.barrier()  # what one rank writes last, the others may read when they leave


def write_curve(folder: Path, log: list[dict[str, Any]], *, complete: bool = False) -> None:
    """Write the learning curve, a line of JSON for each epoch, unless the one on disk begins with it.

    Unpacked records come without checkpoints, and finished runs may refer to more of the same curve. Where
    the training is `complete`, any other curve on disk is damaged.
    """
    path, curve = folder / "epochs.jsonl", "".join(json.dumps(row) + "\n" for row in log).encode()
    if path.exists() and path.read_bytes().startswith(curve):
        return
    if path.exists() and complete:
        set_aside(path, f"{path} should hold the learning curve of {len(log)} epochs, but it is damaged")
    store.write_bytes(path, curve)


class Histories:
    """The histories of a recorded training for every sample and epoch, (samples, epochs) each."""

    losses: LossHistory
    hits: LossHistory  # whether the sample was classified correctly
    val_losses: LossHistory
    val_hits: LossHistory

    def __init__(self, folder: Path, num_train: int, num_val: int) -> None:
        self._folder = folder
        self._sums: dict[str, list[str]] = {name: [] for name in store.HISTORIES}
        for name in store.HISTORIES:
            history = partial(
                LossHistory,
                num_val if name.startswith("val_") else num_train,
                path=folder / f"{name}.npy",
                dtype=torch.bool if name.endswith("hits") else torch.float32,
            )
            ranks.from_first(partial(_set_unreadable_aside, history, folder / f"{name}.npy"))
            setattr(self, name, history(across_ranks=True))

    def __iter__(self) -> Iterator[LossHistory]:
        return (getattr(self, name) for name in store.HISTORIES)

    @property
    def sums(self) -> dict[str, list[str]]:
        """Sync every epoch's column to the disk and return name -> digests, for checkpoints.

        Only the first rank's are complete.
        """
        for history, (name, known) in zip(self, self._sums.items(), strict=True):
            history.flush()
            if ranks.first():
                history.sync()
                path = self._folder / f"{name}.npy"
                known += store.column_digests(path, history.num_epochs, len(known))
        return self._sums

    @staticmethod
    def whole(folder: Path, epochs: int, sums: dict[str, list[str]]) -> bool:
        """Return whether a folder's histories match a checkpoint; a damaged history is set aside."""
        expected = {f"{name}.npy": store.joined_digest(sums[name][:epochs]) for name in store.HISTORIES}
        wrong = store.find_damaged(folder, expected, epochs)
        for path, error in wrong:
            if path.exists():
                set_aside(path, error)
        return not wrong

    def restore(self, epochs: int, sums: dict[str, list[str]]) -> None:
        """Continue after so many epochs, whose digests a checkpoint knows."""
        self._sums = {name: sums[name] for name in store.HISTORIES}
        self.truncate(epochs)

    def truncate(self, epochs: int) -> None:
        for history, known in zip(self, self._sums.values(), strict=True):
            history.truncate(epochs)
            del known[epochs:]

    def fetch(self) -> None:
        """Copy recorded losses to the CPU and write the previous epoch, while the device is busy."""
        for history in self:
            history.fetch()

    def end_epoch(self) -> None:
        """End the epoch of all of them; it is written when the device has the next one's work."""
        for history in self:
            history.end_epoch(wait=False)


def _set_unreadable_aside(history: partial[LossHistory], path: Path) -> None:
    try:
        history()
    except ValueError as error:
        set_aside(path, error)


# -- early stopping, and an EMA of the weights -----------------------------------------------------------

# What may be given up of the accuracy on all validation samples for the accuracy that chooses: so much, or
# its standard error, where that is more.
POINT = 0.01


@dataclass
class Rule:
    """Early stopping on one accuracy or score: no gain above delta in the last `patience` checks."""

    best: float = -math.inf
    waited: int = 0
    stopped: int | None = None  # the epoch at which it fired

    def check(self, accuracy: float, recipe: Recipe) -> bool:
        """Take one more accuracy; True when it is a gain."""
        if accuracy > self.best + recipe.delta:
            self.best, self.waited = accuracy, 0
            return True
        self.waited += 1
        return False


@dataclass
class Check:
    """One validation check: the sum of two accuracies, the plain one with its error, and the weights."""

    score: float
    accuracy: float
    error: float
    weights: dict[str, Tensor]


class Rules:
    """The stopping rules of a training, "val" or "train", each with its best weights."""

    def __init__(self, names: tuple[str, ...], recipe: Recipe) -> None:
        self.recipe = recipe
        self.rules = {name: Rule() for name in names}
        self.best: dict[str, dict[str, Tensor]] = {}  # rule -> weights, unless the recipe keeps the last
        self.checks: list[Check] = []  # those whose weights may still be chosen

    def state(self) -> dict[str, Any]:
        rules = {name: asdict(rule) for name, rule in self.rules.items()}
        checks = [vars(check) for check in self.checks]  # not asdict, which would copy the weights
        return {"rules": rules, "best": self.best, "checks": checks}

    def restore(self, state: dict[str, Any]) -> None:
        self.rules = {name: Rule(**values) for name, values in state["rules"].items()}
        self.best = state["best"]
        self.checks = [Check(**values) for values in state.get("checks", [])]

    def stopped(self, name: str) -> bool:
        return self.rules[name].stopped is not None

    def check(self, row: dict[str, Any], weights: Callable[[], dict[str, Tensor]]) -> list[str]:
        """Let every rule see an epoch's row; gives those that fire. `weights`: those after the epoch."""
        fired, end = [], row["epoch"] >= self.recipe.epochs
        for name, rule in self.rules.items():
            if rule.stopped is not None:
                continue
            accuracy = row["accuracy"] if name == "train" else row.get("score", row["val_accuracy"])
            due = name == "train" or row["epoch"] % self.recipe.check_every == 0 or end
            if due:
                self._keep(name, rule.check(accuracy, self.recipe), row, weights)
            if rule.waited >= self.recipe.patience or end:
                rule.stopped = row["epoch"]
                fired.append(name)
        return fired

    def _keep(
        self, name: str, gain: bool, row: dict[str, Any], weights: Callable[[], dict[str, Tensor]]
    ) -> None:
        """Keep the weights after a check if they may be chosen; `gain`: they are the rule's best so far."""

        def copied() -> dict[str, Tensor]:
            return {key: value.detach().cpu().clone() for key, value in weights().items()}

        if self.recipe.keep == "best" and name == "val" and "choice" in row:
            score, accuracy = row["choice"] + row["val_accuracy"], row["val_accuracy"]
            self.best[name] = self._serving_both(Check(score, accuracy, row["val_error"], copied()))
        elif self.recipe.keep == "best" and gain:
            self.best[name] = copied()

    def _serving_both(self, new: Check) -> dict[str, Tensor]:
        """Return the weights of the check with the best sum of both accuracies, of those that gave up little.

        Of equal ones the one with more plain accuracy, and then the last.
        """
        # A later check that is as good in both respects will always do in place of an earlier one.
        earlier = [one for one in self.checks if one.score > new.score or one.accuracy > new.accuracy]
        top = max([*earlier, new], key=lambda check: check.accuracy)
        floor = top.accuracy - max(POINT, top.error)
        self.checks = [check for check in [*earlier, new] if check.accuracy >= floor]
        return max(self.checks, key=lambda check: (check.score, check.accuracy)).weights


class EMA:
    """A copy of a model whose weights are an exponential moving average over about so many `steps`.

    Until then, they are the plain mean over all steps taken. Running statistics are averaged in the same way.
    torch's `AveragedModel` does the same, but copies its counter to the device in every step.

    >>> weights = nn.Linear(1, 1, bias=False)
    >>> ema = EMA(weights, steps=2)
    >>> for value in (2.0, 4.0, 8.0):
    ...     _ = weights.weight.data.fill_(value)
    ...     ema.update(weights)
    >>> ema.module.weight.item()  # of 2 and 4 their mean, then half of the way to 8
    5.5
    """

    def __init__(self, model: nn.Module, steps: int) -> None:
        self.module = copy.deepcopy(model).requires_grad_(False)
        self.steps, self.taken = max(steps, 1), 0  # how many, and how many there were

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take the weights after one more step; a launch for all weights of one type, and no wait."""
        self.taken += 1
        kinds: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
        parts = ([*each.parameters(), *each.buffers()] for each in (self.module, model))
        for average, value in zip(*parts, strict=True):
            kinds.setdefault(average.dtype, []).append((average, value))
        for kind, pairs in kinds.items():
            averages, values = map(list, zip(*pairs, strict=True))
            if kind.is_floating_point and self.taken > 1:
                torch._foreach_lerp_(averages, values, 1 / min(self.taken, self.steps))
            else:
                torch._foreach_copy_(averages, values)
