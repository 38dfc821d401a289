"""Batches: what happens to the inputs on their way to the model, and in which order."""

import dataclasses

import torch
from shortcut import shortcut_task

from evenhand import Split, Task
from evenhand.training.batches import Batches, Source

CPU = torch.device("cpu")
ORDER = torch.tensor([3, 0, 2])


def photo_task() -> Task:
    """Bytes that are turned into their negative and normalized."""
    bytes_ = torch.randint(
        0, 256, (6, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    split = Split(bytes_, torch.tensor([0, 1, 0, 1, 0, 1]))
    return dataclasses.replace(
        shortcut_task(),
        train=split,
        mean=(0.5, 0.4, 0.3),
        std=(0.2, 0.3, 0.4),
        augment=lambda x, generator: 1 - x,
        group_names=(),
    )


def first_batch(task: Task, **options: object) -> torch.Tensor:
    batches = Batches(task.train, task, Source(task.train.x, CPU), batch_size=3, **options)
    return next(iter(batches(ORDER, torch.Generator()))).x


def normalized(x: torch.Tensor, task: Task) -> torch.Tensor:
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (task.mean, task.std))
    return (x - mean) / std


def test_images_are_augmented_in_the_unit_interval_and_then_normalized() -> None:
    task = photo_task()
    x = task.train.x[ORDER].float() / 255
    torch.testing.assert_close(first_batch(task, augment=True), normalized(1 - x, task))
    torch.testing.assert_close(first_batch(task), normalized(x, task))


def test_a_method_transforms_before_the_task_augments() -> None:
    task = photo_task()
    x = task.train.x[ORDER].float() / 255
    found = first_batch(task, augment=True, transform=lambda x, batch, generator: x * x)
    torch.testing.assert_close(found, normalized(1 - x * x, task))
