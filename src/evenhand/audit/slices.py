"""Slice discovery: which samples of each class a model fails together, from embeddings and probabilities.

Each function returns scores (samples, slices): how much a sample belongs to a slice. The first slice is the
one that is most worth inspecting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from evenhand.audit.evidence import Evidence
from evenhand.training.data import Task

Array = np.ndarray
EPSILON = 1e-12


def domino(
    embeddings: Array,
    labels: Array,
    probabilities: Array,
    *,
    num_slices: int = 5,
    num_components: int = 25,
    weight: float = 10.0,
    iterations: int = 100,
    dimensions: int = 128,
    seed: int = 0,
) -> Array:
    """Run Domino (Eyuboglu et al., ICLR 2022): a mixture model of embeddings, labels and predictions.

    A component has a diagonal Gaussian over the embeddings' principal components, and a categorical
    distribution over labels and one over predicted labels. The slices are the components whose two
    distributions differ most.

    weight: The weight of the log-likelihoods of labels and predictions.
    """
    x, y, p = _checked(embeddings, labels, probabilities)
    x = _principal(x, dimensions)
    truth, predicted = np.eye(p.shape[1])[y], p
    rng = np.random.default_rng(seed)
    # Each component starts with the samples of one cell of the confusion matrix; cells take turns.
    cell = y * p.shape[1] + p.argmax(1)
    cells = np.unique(cell)
    owner = cells[np.arange(num_components) % len(cells)]
    weights = (cell[:, None] == owner) + 1e-3 * rng.random((len(x), num_components))
    # Components of one cell start at different places, because they would otherwise stay equal.
    weights *= rng.random(weights.shape) + 0.1
    weights /= weights.sum(1, keepdims=True)
    for _ in range(iterations):
        total = weights.sum(0) + EPSILON
        mean = weights.T @ x / total[:, None]
        variance = np.maximum(weights.T @ (x * x) / total[:, None] - mean * mean, 0) + 1e-6
        of_labels, of_predictions = weights.T @ truth / total[:, None], weights.T @ predicted / total[:, None]
        likelihood = (
            np.log(total / total.sum())
            + _gaussian(x, mean, variance)
            + weight * truth @ np.log(of_labels + EPSILON).T
            + weight * predicted @ np.log(of_predictions + EPSILON).T
        )
        new = np.exp(likelihood - likelihood.max(1, keepdims=True))
        new /= new.sum(1, keepdims=True)
        moved, weights = np.abs(new - weights).max(), new
        if moved < 1e-5:
            break
    gap = np.abs(of_labels - of_predictions).max(1)
    gap[total < 1] = -1  # a component without samples
    return np.asarray(weights[:, np.argsort(-gap)[:num_slices]])


def spotlight(
    embeddings: Array,
    labels: Array,
    probabilities: Array,
    *,
    num_slices: int = 5,
    least: float = 0.02,
    dimensions: int = 128,
    steps: int = 1000,
    seed: int = 0,
) -> Array:
    """Run Spotlight (d'Eon et al., FAccT 2022): Gaussian kernels over embeddings with the highest mean loss.

    A quadratic barrier keeps the kernel's total weight above a share `least` of the samples. It is
    tightened geometrically from all samples to 5% of that minimum. Losses of later slices are multiplied by
    one minus the weights found.
    """
    x, y, p = _checked(embeddings, labels, probabilities)
    x = _principal(x, dimensions)  # centered; distances are nearly those of the embeddings
    points = torch.as_tensor(x / max(np.sqrt((x * x).sum(1).mean()), EPSILON), dtype=torch.float32)
    losses = torch.as_tensor(-np.log(p[np.arange(len(y)), y] + 1e-8), dtype=torch.float32)
    generator, minimum, found = torch.Generator().manual_seed(seed), least * len(y), []
    width = np.geomspace(len(y) - minimum, 0.05 * minimum, steps)
    for _ in range(num_slices):
        start = torch.multinomial(losses.clamp(min=0) + 1e-6, 1, generator=generator)
        centre = points[start[0]].clone().requires_grad_()
        precision = torch.zeros((), requires_grad=True)
        optimizer = torch.optim.Adam([centre, precision], lr=1e-2)

        def kernel(centre: torch.Tensor = centre, precision: torch.Tensor = precision) -> torch.Tensor:
            distance = ((points - centre) ** 2).sum(1)
            weights = torch.exp(-precision.exp() * distance / 2)
            return weights / weights.max().clamp(min=EPSILON)

        for step in range(steps):
            weights = kernel()
            total = weights.sum()
            # Outside the barrier, the weight is below the minimum plus the barrier's width.
            short = torch.relu((minimum + float(width[step]) - total) / float(width[step]))
            objective = -(weights * losses).sum() / total + short**2
            optimizer.zero_grad()
            objective.backward()
            optimizer.step()
        weights = kernel().detach()
        found.append(weights.numpy())
        losses = losses * (1 - weights)
    return np.stack(found, axis=1)


def facts(
    embeddings: Array,
    labels: Array,
    probabilities: Array,
    *,
    num_slices: int = 8,
    weight: float = 25.0,
    dimensions: int = 128,
    seed: int = 0,
) -> Array:
    """Run FACTS (Yenamandra et al., ICCV 2023): a mixture of Gaussians in every class.

    The mixture models the embeddings and the probabilities of a model that relies on the shortcut. That model
    was trained with strong weight decay and is taken where its training accuracy peaks. Slices are ranked by
    the mean probability of the true label, the lowest first.

    num_slices: The number of components of every class.
    weight: The weight of the probabilities.
    """
    from sklearn.mixture import GaussianMixture

    x, y, p = _checked(embeddings, labels, probabilities)
    joined = np.concatenate([_principal(x, dimensions), weight * p], axis=1)
    columns, true = [], p[np.arange(len(y)), y]
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        mixture = GaussianMixture(
            min(num_slices, len(rows)), covariance_type="diag", reg_covar=1e-3, random_state=seed
        )
        weights = mixture.fit(joined[rows]).predict_proba(joined[rows])
        for each in weights.T:
            column = np.zeros(len(y))
            column[rows] = each
            columns.append((float(np.average(true[rows], weights=each + EPSILON)), column))
    columns.sort(key=lambda pair: pair[0])
    return np.stack([column for _, column in columns], axis=1)


def history(margin: Array, labels: Array) -> Array:
    """Return our own slices, one per class, scored by the margin in the partition of loss histories.

    margin: `Partition.margin`, (samples,): positive for samples of the minority.
    """
    margin, labels = np.asarray(margin, dtype=np.float64), np.asarray(labels)
    found = np.stack([np.where(labels == label, margin, -np.inf) for label in np.unique(labels)], axis=1)
    return np.where(np.isfinite(found), found, margin.min() - 1)


METHODS: dict[str, Callable[..., Array]] = {"domino": domino, "spotlight": spotlight, "facts": facts}
SHOWN = 100  # samples of a slice


@dataclass(frozen=True, eq=False)
class Slice:
    """One slice of an audit: how much each training sample belongs to it, and which do most."""

    method: str
    scores: Array  # (training samples,)
    first: Array  # rows of the training set, the most typical first
    accuracy: float  # of models that have not seen these samples


def check_slices(method: str | None) -> None:
    """Raise ValueError unless this is a method of slice discovery."""
    if method not in (None, *METHODS, "history"):
        raise ValueError(f"--slices must be {', '.join(METHODS)} or history, got {method!r}")


def discover(method: str, found: Evidence, task: Task | None, seed: int) -> tuple[Slice, ...]:
    """Return the slices of an audit's training samples, from out-of-fold probabilities.

    All methods except `history` need vectors: embeddings, or features of a frozen backbone.
    """
    labels = found.y["train"]
    if method == "history":
        scores = history(found.parts.margin, labels)
    else:
        x = None if task is None else task.train.x
        if not isinstance(x, (np.ndarray, torch.Tensor)) or x.ndim != 2:
            raise ValueError(
                f"--slices {method} needs embeddings, or images with --frozen; history works with all data"
            )
        assert task is not None
        scores = METHODS[method](np.asarray(x[task.train.rows]), labels, found.unseen, seed=seed)
    hits = found.unseen.argmax(1) == labels
    made = []
    for column in scores.T:
        first = np.argsort(-column, kind="stable")[:SHOWN]
        if method == "history":
            first = first[column[first] > 0]
        if len(first):
            made.append(Slice(method, column, first, float(hits[first].mean())))
    return tuple(made)


def precision_among_first(scores: Array, wanted: Array, first: int = 10) -> float:
    """Return the highest share of wanted samples among the first ten of a slice, over all slices.

    >>> precision_among_first(np.array([[3.0], [2.0], [1.0]]), np.array([True, False, True]), first=2)
    0.5
    """
    order = np.argsort(-scores, axis=0, kind="stable")[:first]
    return float(np.asarray(wanted, dtype=bool)[order].mean(0).max())


def average_precision(scores: Array, wanted: Array) -> float:
    """Return the highest average precision of the wanted samples in a slice's order, over all slices."""
    from sklearn.metrics import average_precision_score

    return max(float(average_precision_score(wanted, column)) for column in scores.T)


def _checked(embeddings: Array, labels: Array, probabilities: Array) -> tuple[Array, Array, Array]:
    x, y, p = (np.asarray(each) for each in (embeddings, labels, probabilities))
    if x.ndim != 2 or p.ndim != 2 or y.shape != (len(x),) or len(p) != len(x) or y.dtype.kind not in "iu":
        raise ValueError(
            "expected embeddings (samples, dimensions), labels (samples,) from 0 upwards and probabilities "
            f"(samples, classes), got {x.shape}, {y.shape} of {y.dtype} and {p.shape}"
        )
    if len(x) == 0 or y.min() < 0 or y.max() >= p.shape[1]:
        raise ValueError(f"labels must be 0 to {p.shape[1] - 1} for {p.shape[1]} columns of probabilities")
    return x.astype(np.float64), y, p.astype(np.float64)


def _principal(x: Array, dimensions: int) -> Array:
    """Return the first principal components of standardized embeddings, scaled by one common deviation."""
    from sklearn.decomposition import PCA

    size = min(dimensions, *x.shape)
    reduced = PCA(size, random_state=0).fit_transform(x)
    return np.asarray(reduced / max(reduced.std(), EPSILON))


def _gaussian(x: Array, mean: Array, variance: Array) -> Array:
    """Return the log-densities of diagonal Gaussians, (samples, components)."""
    inverse = 1 / variance
    square = (x * x) @ inverse.T - 2 * x @ (mean * inverse).T + (mean * mean * inverse).sum(1)
    return np.asarray(-0.5 * (square + np.log(variance).sum(1)))
