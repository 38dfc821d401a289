"""A small version of a task, for a quick look: at most n samples of each split."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from evenhand.training.data import Split, Task, checksum, training_weights


def limited(task: Task, limit: int) -> Task:
    """At most `limit` samples of each split; classes and groups keep their shares as far as possible.

    Every class keeps at least one sample where the limit allows it. Weights are made again, from the
    training samples that are left.
    """
    if limit < task.num_classes:
        raise ValueError(f"limit must allow one sample of each of {task.num_classes} classes, got {limit}")
    train = _smaller(task.train, limit)
    return dataclasses.replace(
        task,
        train=train,
        val=_weighted(_smaller(task.val, limit), train),
        test=_weighted(_smaller(task.test, limit), train),
        checksum=checksum(task.checksum, f"limit={limit}"),
    )


def _weighted(split: Split, train: Split) -> Split:
    if split.weight is None or split.group is None or train.group is None:
        return split
    num_groups = int(torch.cat([train.group, split.group]).max()) + 1
    return dataclasses.replace(split, weight=training_weights(train.group, split.group, num_groups))


def _smaller(split: Split, limit: int) -> Split:
    if len(split) <= limit:
        return split
    y = split.y.numpy()
    group = y if split.group is None else split.group.numpy()
    rng = np.random.default_rng(0)
    chosen = []
    labels, counts = np.unique(y, return_counts=True)
    for label, wanted in zip(labels, shares(counts, limit), strict=True):
        present, sizes = np.unique(group[y == label], return_counts=True)
        for number, keep in zip(present, shares(sizes, int(wanted)), strict=True):
            members = np.flatnonzero((y == label) & (group == number))
            chosen.append(rng.permutation(members)[:keep])
    smaller = split.take(np.sort(np.concatenate(chosen)))
    return dataclasses.replace(smaller, index=torch.arange(len(smaller)))


def shares(counts: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers in the proportions of `counts` that add up to `total`, each at least 1 if possible.

    >>> shares(np.array([970, 30]), 10).tolist()
    [9, 1]
    """
    total = min(total, int(counts.sum()))
    exact = counts * (total / counts.sum())
    whole: np.ndarray = np.floor(exact).astype(np.int64)
    if total >= len(counts):
        whole = np.maximum(whole, 1)
    while (rest := total - whole.sum()) != 0:  # ends: each step moves one sample towards the total
        if rest > 0:
            whole[np.argmax(np.where(whole < counts, exact - whole, -np.inf))] += 1
        else:
            whole[np.argmax(np.where(whole > 1, whole - exact, -np.inf))] -= 1
    return whole
