"""A tiny task with a shortcut, for tests that train."""

import numpy as np
import torch

from evenhand import Recipe, Split, Task


def shortcut_task(
    num_classes: int = 2, per_class: int = 30, aligned: float = 0.9, seed: int = 0, epochs: int = 4
) -> Task:
    """A tiny image task: the class is in the pattern, and for most samples also in the brightness."""
    random = np.random.default_rng(seed)
    patterns = random.random((num_classes, 1, 6, 6))

    def split(size: int) -> Split:
        y = np.repeat(np.arange(num_classes), size)
        attribute = np.where(random.random(len(y)) < aligned, y, random.integers(num_classes, size=len(y)))
        x = (
            patterns[y]
            + 0.3 * random.random((len(y), 1, 6, 6))
            + attribute[:, None, None, None] / num_classes
        )
        group = torch.from_numpy(y * num_classes + attribute)
        return Split(torch.from_numpy(x).float(), torch.from_numpy(y), group=group)

    names = tuple(f"class {label}" for label in range(num_classes))
    groups = range(num_classes**2)
    return Task(
        name="tiny",
        train=split(per_class),
        val=split(max(per_class // 3, 1)),
        test=split(max(per_class // 3, 1)),
        class_names=names,
        group_names=tuple(f"{names[group // num_classes]}, {group % num_classes}" for group in groups),
        conflicting=frozenset(group for group in groups if group // num_classes != group % num_classes),
        recipe=Recipe(epochs=epochs, batch_size=16, check_every=1),
        checksum=f"tiny-{num_classes}-{per_class}-{aligned}-{seed}",
    )
