"""partition: every class's loss histories in two clusters, the smaller one called the minority."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

Cluster = Callable[[npt.NDArray[Any]], npt.ArrayLike]  # (samples, epochs) of one class -> 0/1 per sample


@dataclass(frozen=True)
class Partition:
    """Which samples of every class form its smaller cluster, and how clearly the two separate."""

    minority: npt.NDArray[np.bool_]  # (samples,)
    labels: npt.NDArray[Any]  # (samples,) as given
    classes: npt.NDArray[Any]  # (classes,) the distinct labels, ascending
    sizes: npt.NDArray[np.int64]  # (classes, 2): majority, minority
    separation: npt.NDArray[np.float64]  # (classes,) between-cluster share of the variance, 0 to 1
    margin: npt.NDArray[np.float32]  # (samples,) signed; positive: on the minority's side
    unsplit: Mapping[Any, str]  # classes left alone -> why

    def save(self, path: str | Path) -> None:
        raise NotImplementedError

    @staticmethod
    def load(path: str | Path) -> Partition:
        raise NotImplementedError


def partition(
    losses: Tensor | npt.ArrayLike, labels: Tensor | npt.ArrayLike, cluster: Cluster | Any | None = None
) -> Partition:
    """Split every class's loss histories in two; the smaller cluster is its minority."""
    raise NotImplementedError
