"""Ranks: the processes that torchrun starts for one training; alone, a process needs nothing of this.

Every rank must make the same calls in the same order, for each call waits for the others.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun sets
_MEETING = timedelta(minutes=30)  # to find each other, and for GPUs to answer
# Messages wait longer: the first rank may have to wait for another run to give a folder free. That a rank has
# died is torchrun's to notice.
_PATIENCE = timedelta(days=7)
_messages: Any = None  # carries what lies on the CPU, whatever the GPUs talk through


def launched() -> bool:
    """Whether torchrun, or whatever sets the same variables, has started this process as one of several."""
    return all(name in os.environ for name in _ENVIRONMENT) and int(os.environ["WORLD_SIZE"]) > 1


def join(*, gpu: bool) -> None:
    """Meet the other ranks, where several were launched and nobody has joined them yet."""
    if launched() and dist.is_available() and not dist.is_initialized():
        dist.init_process_group("nccl" if gpu else "gloo", timeout=_MEETING)
        atexit.register(leave)  # threads of a group that outlives the interpreter abort the process


def leave() -> None:
    """Part from the other ranks at the end of the program."""
    global _messages
    if count() > 1:
        dist.destroy_process_group()
        _messages = None


def count() -> int:
    """How many ranks there are."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def number() -> int:
    """Which of them this process is, from 0."""
    return dist.get_rank() if count() > 1 else 0


def local_number() -> int:
    """Which of the ranks on its machine this process is: the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")))


def first() -> bool:
    """Whether this is the rank that decides, writes and shows."""
    return number() == 0


def barrier() -> None:
    """Go on when every rank has come here."""
    add(torch.zeros(1))


def part(size: int, of: int | None = None) -> tuple[int, int]:
    """Where a rank's share of `size` things in a row begins and ends; of this rank unless another is named.

    >>> part(10)
    (0, 10)
    """
    rank = number() if of is None else of
    return size * rank // count(), size * (rank + 1) // count()


def add(values: Tensor) -> Tensor:
    """Sum over the ranks, in place; all of them get the same bits."""
    if count() > 1:
        dist.all_reduce(values, group=_group(values))
    return values


def add_parts(values: Tensor) -> Tensor:
    """This rank's part of the sum over the ranks of a row of values; overwrites them."""
    if count() > 1:
        for rank in range(count()):
            start, end = part(len(values), rank)
            if end > start:
                dist.reduce(values[start:end], rank, group=_group(values))
    return values[slice(*part(len(values)))]


def concatenate(values: Tensor) -> Tensor:
    """The rows of every rank's values, in the order of the ranks, for all."""
    if count() == 1:
        return values
    sizes = torch.zeros(count(), dtype=torch.int64)
    sizes[number()] = len(values)
    sizes = add(sizes)
    start = int(sizes[: number()].sum())
    whole = values.new_zeros(int(sizes.sum()), *values.shape[1:])
    whole[start : start + len(values)] = values
    return add(whole)


def copy_from_first(values: Tensor) -> None:
    """Overwrite the values by the first rank's."""
    if count() > 1:
        dense = values.contiguous()
        dist.broadcast(dense, 0, group=_group(values))
        values.copy_(dense)


def from_first(compute: Callable[[], T]) -> T:
    """What the first rank computes, for all; the others do not call it. It must be a value of JSON."""
    if count() == 1:
        return compute()
    answer = bytes_from_first(json.dumps(compute()).encode() if first() else None)
    assert answer is not None
    value: Any = json.loads(answer)
    return value  # type: ignore[no-any-return]


def from_all(value: T) -> list[T]:
    """What every rank has, in their order, for all; it must be a value of JSON."""
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    sizes = concatenate(torch.tensor([len(text)])).tolist()
    return [json.loads(part.numpy().tobytes()) for part in concatenate(text).split(sizes)]


def bytes_from_first(data: bytes | None) -> bytes | None:
    """The first rank's bytes, or None where it has none."""
    if count() == 1:
        return data
    size = torch.tensor([-1 if data is None else len(data)])
    dist.broadcast(size, 0, group=_group(size))
    if size.item() <= 0:
        return None if size.item() < 0 else b""
    buffer = torch.empty(int(size.item()), dtype=torch.uint8)
    if first():
        assert data is not None
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    dist.broadcast(buffer, 0, group=_group(buffer))
    return buffer.numpy().tobytes()


def _group(values: Tensor) -> Any:
    """Who carries these values: the default group on a GPU, one of our own on the CPU."""
    global _messages
    if values.is_cuda:
        return None
    if _messages is None:
        _messages = dist.new_group(backend="gloo", timeout=_PATIENCE)
    return _messages
