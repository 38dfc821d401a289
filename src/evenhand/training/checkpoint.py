"""Checkpoints: the state of a training with its digest, and the histories that grow beside it."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from evenhand.core import ranks
from evenhand.core.history import LossHistory
from evenhand.training import manifest, store
from evenhand.training.store import Damaged, set_aside


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write nested dictionaries of tensors and plain values, followed by their digest."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    manifest.write_digested(path, [buffer.getvalue()])


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; one that was cut short or changed raises Damaged."""
    manifest.verify_digested(path)
    return _parse(path.read_bytes())


def load_for_all(path: Path) -> dict[str, Any] | None:
    """A checkpoint as the first rank reads it, for all ranks; None where there is none.

    A damaged one is set aside, as if it had never been written.
    """
    data = ranks.bytes_from_first(path.read_bytes() if ranks.first() and manifest.is_intact(path) else None)
    return None if data is None else _parse(data)


def _parse(data: bytes) -> dict[str, Any]:
    payload = io.BytesIO(memoryview(data)[: -manifest.SIZE])
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
    """What a recorded training keeps of every sample and epoch, (samples, epochs) each."""

    losses: LossHistory
    hits: LossHistory  # whether the sample was classified correctly
    val_losses: LossHistory
    val_hits: LossHistory

    def __init__(self, folder: Path, num_train: int, num_val: int) -> None:
        self._folder = folder
        self._sums: dict[str, list[str]] = {name: [] for name in manifest.HISTORIES}
        for name in manifest.HISTORIES:
            history = partial(
                LossHistory,
                num_val if name.startswith("val_") else num_train,
                path=folder / f"{name}.npy",
                dtype=torch.bool if name.endswith("hits") else torch.float32,
            )
            ranks.from_first(partial(_set_unreadable_aside, history, folder / f"{name}.npy"))
            setattr(self, name, history(across_ranks=True))

    def __iter__(self) -> Iterator[LossHistory]:
        return (getattr(self, name) for name in manifest.HISTORIES)

    @property
    def sums(self) -> dict[str, list[str]]:
        """Name -> digest of every epoch's column, all of which are on the disk then; for checkpoints.

        Only the first rank's are complete.
        """
        for history, (name, known) in zip(self, self._sums.items(), strict=True):
            history.flush()
            if ranks.first():
                history.sync()
                path = self._folder / f"{name}.npy"
                known += manifest.column_digests(path, history.num_epochs, len(known))
        return self._sums

    @staticmethod
    def whole(folder: Path, epochs: int, sums: dict[str, list[str]]) -> bool:
        """Whether a folder's histories hold what a checkpoint knows of them; a damaged one is set aside."""
        expected = {f"{name}.npy": manifest.joined(sums[name][:epochs]) for name in manifest.HISTORIES}
        wrong = manifest.damaged(folder, expected, epochs)
        for path, error in wrong:
            if path.exists():
                set_aside(path, error)
        return not wrong

    def restore(self, epochs: int, sums: dict[str, list[str]]) -> None:
        """Continue after so many epochs, whose digests a checkpoint knows."""
        self._sums = {name: sums[name] for name in manifest.HISTORIES}
        self.truncate(epochs)

    def truncate(self, epochs: int) -> None:
        for history, known in zip(self, self._sums.values(), strict=True):
            history.truncate(epochs)
            del known[epochs:]

    def fetch(self) -> None:
        """While the device has work: let it copy what was recorded to the CPU, and write the last epoch."""
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
