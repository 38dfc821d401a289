"""Ranks: the processes that torchrun starts for one training. A single process passes through unchanged.

Every rank must make the same calls in the same order, because each call waits for the others.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import random
import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.core import ranks

T = TypeVar("T")

_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun sets
_MEETING = timedelta(minutes=30)  # to find each other, and for GPUs to answer
# Messages wait longer: the first rank may have to wait for another run to give a folder free. That a rank has
# died is torchrun's to notice.
_PATIENCE = timedelta(days=7)
_messages: Any = None  # a gloo group for CPU tensors, also when GPUs use NCCL


def launched() -> bool:
    """Return whether torchrun, or a compatible launcher, started this process as one of several."""
    return all(name in os.environ for name in _ENVIRONMENT) and int(os.environ["WORLD_SIZE"]) > 1


def join(*, gpu: bool) -> None:
    """Join the process group if several ranks were launched and have not joined yet."""
    if launched() and dist.is_available() and not dist.is_initialized():
        dist.init_process_group("nccl" if gpu else "gloo", timeout=_MEETING)
        atexit.register(leave)  # threads of a group that outlives the interpreter abort the process


def leave() -> None:
    """Leave the process group at the end of the program."""
    global _messages
    if count() > 1:
        dist.destroy_process_group()
        _messages = None


def count() -> int:
    """Return the world size."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def number() -> int:
    """Return the rank of this process, from 0."""
    return dist.get_rank() if count() > 1 else 0


def local_number() -> int:
    """Return the local rank of this process on its machine, which is the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")))


def first() -> bool:
    """Return whether this is the rank that decides, writes and shows."""
    return number() == 0


def barrier() -> None:
    """Wait until every rank has reached this call."""
    add(torch.zeros(1))


def part(size: int, of: int | None = None) -> tuple[int, int]:
    """Return the bounds of a rank's share of `size` consecutive items; the default is this rank.

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
    """Return this rank's part of the sum of the values over the ranks; overwrites the values."""
    if count() > 1:
        for rank in range(count()):
            start, end = part(len(values), rank)
            if end > start:
                dist.reduce(values[start:end], rank, group=_group(values))
    return values[slice(*part(len(values)))]


def concatenate(values: Tensor) -> Tensor:
    """Return the rows of every rank's values, in rank order, on all ranks."""
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
    """Broadcast rank 0's values, in place."""
    if count() > 1:
        dense = values.contiguous()
        dist.broadcast(dense, 0, group=_group(values))
        values.copy_(dense)


def from_first(compute: Callable[[], T]) -> T:
    """Return the result of `compute` on rank 0, broadcast to all ranks; it must be serializable as JSON."""
    if count() == 1:
        return compute()
    answer = bytes_from_first(json.dumps(compute()).encode() if first() else None)
    assert answer is not None
    value: Any = json.loads(answer)
    return value  # type: ignore[no-any-return]


def from_all(value: T) -> list[T]:
    """Return the values of all ranks, in rank order; they must be serializable as JSON."""
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    sizes = concatenate(torch.tensor([len(text)])).tolist()
    return [json.loads(part.numpy().tobytes()) for part in concatenate(text).split(sizes)]


def bytes_from_first(data: bytes | None) -> bytes | None:
    """Return the first rank's bytes, or None if it has none."""
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
    """Return the group that carries these values: the default group on a GPU, our own on the CPU."""
    global _messages
    if values.is_cuda:
        return None
    if _messages is None:
        _messages = dist.new_group(backend="gloo", timeout=_PATIENCE)
    return _messages


# -- training steps taken together: one seed, a slice of every batch for each rank, the same update ------


def resolve_device(device: str) -> torch.device:
    """Return the device; `auto` selects the GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", device):
        raise ValueError(f"device must be auto, cpu, cuda, cuda:N or mps, got {device!r}")
    where = torch.device(device)
    if where.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device mps was asked for, but torch sees no Apple GPU here; use --device cpu")
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {device} was asked for, but torch sees {torch.cuda.device_count() or 'no'} GPU here; "
            "use --device cpu or auto"
        )
    return where


def join_ranks(device: str) -> torch.device:
    """Return the device of this process; under torchrun, each process takes one GPU."""
    where = resolve_device(device)
    if ranks.launched() and where.type == "cuda":
        if where.index is not None:
            raise ValueError(f"ranks take a GPU each, but --device {device} is one GPU; use --device cuda")
        if ranks.local_number() >= torch.cuda.device_count():
            raise ValueError(
                f"ranks take a GPU each, but there are more of them than GPUs ({torch.cuda.device_count()}); "
                "lower torchrun's --nproc-per-node, or use --device cpu"
            )
        where = torch.device("cuda", ranks.local_number())
        torch.cuda.set_device(where)
    ranks.join(gpu=where.type == "cuda")
    return where


def seed_epoch(seed: int, stage: str, epoch: int, device: torch.device) -> tuple[int, torch.Generator]:
    """Seed torch's global generator and make one for the device, as a function of (seed, stage, epoch).

    This is the only place that seeds global state. Since nothing random outlives an epoch, a training
    that continues from a checkpoint needs no stored generator states. The number, from which the order of
    the samples follows, is the same for all ranks; the generators, for augmentation and dropout, are not.
    """
    digest = hashlib.sha256(f"{seed}/{stage}/{epoch}".encode()).digest()
    number = int.from_bytes(digest[:7], "little")
    rank_seed = number + ranks.number()
    torch.manual_seed(rank_seed)
    random.seed(rank_seed)  # for datasets that augment with these two
    np.random.seed(rank_seed % 2**32)  # noqa: NPY002
    return number, torch.Generator(device).manual_seed(rank_seed)


class Slice(NamedTuple):
    """A rank's piece of one batch."""

    length: int  # how many samples it has
    batch: int  # how many the whole batch has
    copies: int  # how many ranks compute this same piece
    last: bool  # the update follows it

    @property
    def share(self) -> float:
        """The part of the batch that it stands for."""
        return self.length / self.batch / self.copies


def slices(order: Tensor, sizes: list[int], num: int = 1) -> tuple[Tensor, list[Slice]]:
    """Return this rank's slices of every batch, and their rows one after another.

    A batch is cut into `num` contiguous pieces, or one for each rank, as equal as can be. One with fewer
    samples than pieces is computed whole by every rank, since not every model takes an empty batch.
    """
    num = max(num, ranks.count())
    found, rows, start = [], [order[:0]], 0
    for size in sizes:
        whole, (begin, end) = size < num, ranks.part(num)
        cuts = [0, size] if whole else [size * k // num for k in range(begin, end + 1)]
        for first, after in pairwise(cuts):
            rows.append(order[start + first : start + after])
            found.append(Slice(after - first, size, ranks.count() if whole else 1, after == cuts[-1]))
        start += size
    return torch.cat(rows), found


def shard(sizes: list[int]) -> tuple[slice, slice]:
    """Return the whole batches that this rank evaluates, and the rows that they hold.

    An evaluated batch is never cut, so every sample's output has the same bits as in a single process.
    Where there are fewer batches than ranks, all ranks evaluate everything.
    """
    first, last = (0, len(sizes)) if len(sizes) < ranks.count() else ranks.part(len(sizes))
    return slice(first, last), slice(sum(sizes[:first]), sum(sizes[:last]))


def all_gather(outputs: Tensor, rows: slice, size: int) -> Tensor:
    """Return the outputs of all ranks, (size, …); the outputs of this rank belong to `rows`."""
    if rows == slice(0, size):
        return outputs
    whole = outputs.new_zeros(size, *outputs.shape[1:])
    whole[rows] = outputs
    return ranks.add(whole)


def all_reduce_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sum every parameter's gradient over the ranks, in one exchange."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if ranks.count() > 1 and gradients:
        total = ranks.add(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        sums = torch.split(total, [gradient.numel() for gradient in gradients])
        for gradient, summed in zip(gradients, sums, strict=True):
            gradient.copy_(summed.view(gradient.shape))


def broadcast(module: nn.Module) -> None:
    """Give every rank the first one's weights."""
    for value in module.state_dict().values():
        ranks.copy_from_first(value)


def check_stage(
    stage: str, folder: str, needs_whole_batches: str, num_slices: int, *, separable: bool = True
) -> None:
    """Raise for a training that cannot use slices or several ranks.

    `needs_whole_batches`: what does, and why, in words; or nothing.
    """
    if max(ranks.count(), num_slices) == 1:
        return
    if num_slices > 1 and num_slices % ranks.count():
        raise ValueError(
            f"slices must be 1 or a multiple of the number of ranks, {ranks.count()}, got {num_slices}"
        )
    if needs_whole_batches:
        raise ValueError(
            f"{needs_whole_batches}, but they are cut into {max(ranks.count(), num_slices)} slices; run it "
            "without torchrun and with slices=1"
            + (", or, if it treats every sample by itself, decorate it with evenhand.separable" * separable)
        )
    expected = ranks.from_first(lambda: folder)
    if folder != expected:
        raise ValueError(
            f"all ranks must train the same, but stage {stage!r} is {expected} on rank 0 and {folder} on "
            f"rank {ranks.number()}; neither the data nor what a method decides may depend on the rank"
        )


def synchronize_batch_norm(model: nn.Module, device: torch.device) -> nn.Module:
    """Return the model with batch normalization over the whole batch, as in a single process."""
    if ranks.count() == 1:
        return model
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for module in model.modules():
        if isinstance(module, nn.SyncBatchNorm) and device.type == "cpu":  # torch's own needs a GPU
            setattr(module, "forward", partial(_normalise, module))  # noqa: B010
    return model


def _normalise(norm: nn.SyncBatchNorm, x: Tensor) -> Tensor:
    """Normalize a slice by the whole batch's mean and variance."""
    average = norm.momentum
    if norm.training and norm.track_running_stats and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        average = 1 / norm.num_batches_tracked.item() if average is None else average
    if not norm.training and norm.running_mean is not None:
        return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    others = [dimension for dimension in range(x.ndim) if dimension != 1]
    shape = [1, -1] + [1] * (x.ndim - 2)
    count = ranks.add(torch.tensor(float(x.numel() // x.shape[1])))
    mean = _AllReduce.apply(x.sum(others)) / count
    centred = x - mean.view(shape)
    variance = _AllReduce.apply((centred * centred).sum(others)) / count
    if norm.training and norm.running_mean is not None and norm.running_var is not None:
        assert average is not None
        norm.running_mean.lerp_(mean.detach(), average)
        norm.running_var.lerp_(variance.detach() * count / (count - 1), average)
    result: Tensor = centred * (variance + norm.eps).rsqrt().view(shape)
    return result if norm.weight is None else result * norm.weight.view(shape) + norm.bias.view(shape)


class _AllReduce(torch.autograd.Function):
    """The sum over the ranks. The gradient is summed too, since every rank's loss depends on it."""

    @staticmethod
    def forward(_context: Any, values: Tensor) -> Tensor:
        return ranks.add(values.clone())

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        return ranks.add(gradient.clone())
