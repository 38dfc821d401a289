"""Our methods beside public packages, and beside formulas in plain numpy, on the same inputs.

    python benchmarks/side_by_side.py [-o results/side_by_side.md]

Packages are compared where they can be imported, in an environment of their own:
`pip install spuco dpe netcal fairlearn` (dpe imports netcal without naming it) beside evenhand. Every other
row evaluates a formula, by its id in the method's docstring, in numpy alone. The script raises if two numbers
differ by more than 1e-5 of their size without a reason. A reason is a formula of what the package does
instead, which must give its number.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import importlib.metadata
import io
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from common import table
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.methods import (
    _environments,
    _heads,
    adversarial,
    afr,
    agro,
    class_balanced,
    cvar_dro,
    debian,
    dfr,
    dpe,
    eiil,
    gdro,
    george,
    multiaccuracy,
    occamnet,
    pgi,
    self_,
    spectral_decoupling,
    ula,
    xrm,
)
from evenhand.training.data import Batch

TOLERANCE = 1e-5
N, L, D = 200, 3, 6  # samples, classes, dimensions of the inputs


class Row(NamedTuple):
    """A comparison: of what, against what, the largest difference, and why there is one."""

    method: str
    what: str
    against: str
    difference: str
    reason: str = ""


class Inputs:
    """Random inputs that every comparison shares, as tensors and as numpy arrays in double precision."""

    def __init__(self, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.random = random
        self.logits = self.single(2 * random.normal(size=(N, L)))
        self.other = self.single(2 * random.normal(size=(N, L)))
        self.features = self.single(random.normal(size=(N, D)))
        self.labels = random.integers(0, L, N)
        self.share = self.single(random.uniform(0.05, 0.95, N))  # of each sample in a soft part
        self.part = (self.share > 0.6).astype(np.int64)

    @staticmethod
    def single(values: np.ndarray) -> np.ndarray:
        """Rounded to single precision, in which our methods compute."""
        return values.astype(np.float32).astype(np.float64)


def tensor(values: np.ndarray) -> Tensor:
    made = torch.from_numpy(np.array(values))
    return made.float() if made.is_floating_point() else made


def softmax(z: np.ndarray) -> np.ndarray:
    power = np.exp(z - z.max(axis=-1, keepdims=True))
    return power / power.sum(axis=-1, keepdims=True)


def entropy(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Cross-entropies, (samples,)."""
    return -np.log(softmax(z)[np.arange(len(y)), y])


def gap(ours: Any, theirs: Any) -> float:
    """The largest difference, relative where numbers are above 1."""
    a, b = (
        np.asarray(each.detach() if isinstance(each, Tensor) else each, dtype=float)
        for each in (ours, theirs)
    )
    assert a.shape == b.shape, f"{a.shape} and {b.shape}"
    return float(np.max(np.abs(a - b) / np.maximum(np.abs(b), 1)))


def same(ours: Any, theirs: Any) -> float:
    """The largest difference, which must be a matter of rounding."""
    found = gap(ours, theirs)
    assert found <= TOLERANCE, f"they differ by {found:.2g}"
    return found


def renamed(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two clusterings are equal but for the numbers of the clusters."""
    pairs = set(zip(first.tolist(), second.tolist(), strict=True))
    return len(pairs) == len(np.unique(first)) == len(np.unique(second))


def batch(x: np.ndarray, y: np.ndarray, **given: Any) -> Batch:
    rows = torch.arange(len(y))
    return Batch(x=tensor(x), y=tensor(y), index=rows, row=rows, **given)


def identity(x: Tensor) -> Tensor:
    return x


# -- packages ----------------------------------------------------------------------------------------------


def spuco_eiil(given: Inputs) -> Iterator[Row]:
    from spuco.group_inference import EIIL

    logits, labels = tensor(given.logits), tensor(given.labels)
    theirs = EIIL(logits=logits, class_labels=given.labels.tolist(), num_steps=2000, lr=0.01)
    torch.manual_seed(0)
    found = theirs.infer_groups().get((0, 1), [])
    torch.manual_seed(0)
    ours = eiil.soft_environments(eiil.slopes(logits, labels), torch.randn(N), steps=2000, lr=0.01) > 0.5
    chosen = np.isin(np.arange(N), found)
    assert 0 < chosen.sum() < N
    differ = int((ours.numpy() != chosen).sum())
    assert differ == 0
    yield Row(
        "eiil",
        f"[EIIL-1] to [EIIL-3]: the {chosen.sum()} of {N} samples in environment 1",
        "spuco",
        "0 samples",
    )


def spuco_george(given: Inputs) -> Iterator[Row]:
    from spuco.group_inference.george_utils.cluster import AutoKMixtureModel, OverclusterModel

    random = np.random.default_rng(1)
    parts = [random.normal(middle, 0.4, (size, 1)) for middle, size in ((0, 300), (2, 80), (4, 80), (9, 60))]
    x = np.concatenate(parts)
    george._some = lambda x, seed: np.arange(len(x))  # both cluster the samples in the same order
    for kind in ("kmeans", "gmm"):
        theirs = AutoKMixtureModel(kind, max_k=10, n_init=3, seed=0).fit_predict(x)
        ours = george.clusters([x, x], kind, seed=0)[0]
        assert renamed(theirs, ours)
        what = f"[GEORGE-2]: {len(np.unique(ours))} clusters of {len(x)} samples by {kind}"
        yield Row("george", what, "spuco", "0 samples")
    base = AutoKMixtureModel("kmeans", max_k=10, n_init=3, seed=0).fit_predict(x)
    model = OverclusterModel("kmeans", max_k=10, seed=0).fit(x)
    theirs = model.predict(x)
    ours = george.overclusters([x, x], [base, base], np.ones(len(x)), "kmeans", 0)[0]
    assert renamed(theirs, ours) and len(np.unique(ours)) > len(np.unique(base))
    reason = (
        "spuco has no condition on losses and validation sizes, which these inputs fulfil; it reduces by UMAP"
    )
    yield Row(
        "george",
        f"[GEORGE-3]: {len(np.unique(ours))} clusters after overclustering",
        "spuco",
        "0 samples",
        reason,
    )


def spuco_pgi(given: Inputs) -> Iterator[Row]:
    from spuco.robust_train.pgi import PGILoss

    theirs = PGILoss(
        num_classes=L, criterion=nn.CrossEntropyLoss(reduction="none"), penalty_weight=1.0, rampup_epochs=1
    )
    theirs.current_epoch = 1
    logits, labels, part = (tensor(each) for each in (given.logits, given.labels, given.part))
    penalty = float(theirs(logits, labels, part)) - float(entropy(given.logits, given.labels).mean())
    p = softmax(given.logits)
    means = [[p[(given.labels == c) & (given.part == k)].mean(0) for k in (0, 1)] for c in range(L)]
    ours = float(pgi.unlike(logits, labels, part))
    same(ours, sum((p1 * np.log(p1 / p0)).mean() for p0, p1 in means))
    p0, p1 = means[-1]
    same(penalty, (p1 * (np.log(p1) - p0)).mean())
    reason = (
        "spuco keeps the last class's term alone, and takes p0 where the formula has log p0. This gives its "
        "number; the formula gives ours"
    )
    yield Row(
        "pgi",
        f"[PGI-4]: penalty {ours:.4f}, spuco {penalty:.4f}",
        "spuco",
        f"{abs(ours - penalty):.2g}",
        reason,
    )


def spuco_dfr(given: Inputs) -> Iterator[Row]:
    from sklearn.linear_model import LogisticRegression
    from spuco.last_layer_retrain import DFR

    random = np.random.default_rng(2)
    groups = np.repeat(np.arange(4), 50)  # as many samples of each, so that no subset is drawn
    y = groups // 2
    x = given.single(random.normal(size=(N, D)) + y[:, None] * np.linspace(0, 1, D) + 0.7)
    model = DFR(group_labeled_set=None, model=None)  # type: ignore[arg-type]
    coefficients, bias = model.train_single_model(0.3, x, y, groups, None)
    head = _heads.sparse_head(tensor(x), tensor(y), 2, 0.3, 5000)
    ours = np.append((head.weight[1] - head.weight[0]).numpy(), float(head.bias[1] - head.bias[0]))
    # liblinear counts the bias divided by `intercept_scaling` among the weights that it penalises.
    free = LogisticRegression(
        penalty="l1", C=0.3, solver="liblinear", intercept_scaling=1e4, tol=1e-8, max_iter=10**5
    )
    with contextlib.redirect_stderr(io.StringIO()):
        free.fit(x, y)
    without = np.append(free.coef_[0], free.intercept_)
    assert gap(ours, without) < 1e-3, gap(ours, without)
    difference = gap(ours, np.append(coefficients[0], bias))
    reason = (
        f"liblinear penalises the bias, too. Without that penalty its coefficients differ from ours by "
        f"{gap(ours, without):.1g}"
    )
    yield Row("dfr", "[HEAD-2]: coefficients and bias of one fit", "spuco", f"{difference:.2g}", reason)


def package_dpe(given: Inputs) -> Iterator[Row]:
    from dpe.isomaxplus import IsoMaxPlusLossFirstPart, IsoMaxPlusLossSecondPart

    x = tensor(given.features)
    standard = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True, correction=0)
    head = IsoMaxPlusLossFirstPart(D, L)
    prototypes = tensor(given.random.normal(size=(L, D)))
    head.prototypes.data, head.distance_scale.data = prototypes, torch.tensor([-1.7])
    logits = dpe.distances(dpe.standardised(x), prototypes[None], torch.tensor([-1.7]))[0]
    yield Row("dpe", "[DPE-1]: logits", "dpe", f"{same(logits, head(standard)):.1g}")
    loss = IsoMaxPlusLossSecondPart(entropic_scale=30.0)(head(standard), tensor(given.labels))
    ours = F.cross_entropy(30 * logits, tensor(given.labels))
    yield Row("dpe", "[DPE-2]: loss of the classification", "dpe", f"{same(ours, loss):.1g}")
    earlier = tensor(given.random.normal(size=(2, L, D)))
    theirs = stepped(head, standard, tensor(given.labels), earlier)
    own = prototypes.clone().requires_grad_()
    products = torch.einsum("cd,hcd->c", own, earlier) / (D - 1)
    (expected,) = torch.autograd.grad((products / 3).mean().abs(), own)
    same(theirs, expected)
    own = prototypes.clone().requires_grad_()
    units = F.normalize(earlier, dim=2)
    (ours,) = torch.autograd.grad(dpe.overlap(own, units), own)
    unit, mean = (each.detach().double().numpy() for each in (F.normalize(own, dim=1), units.mean(0)))
    covariances = [np.cov(unit[label], mean[label], bias=True)[0, 1] for label in range(L)]
    same(dpe.overlap(own, units), np.abs(covariances).mean())
    reason = (
        "dpe takes products of raw prototypes, not covariances of unit ones, divides by one head more, and "
        "takes the absolute value after the mean over classes. That gives its gradient"
    )
    yield Row("dpe", "[DPE-2]: gradient of the diversity", "dpe", f"{gap(ours, theirs):.2g}", reason)


def stepped(head: nn.Module, features: Tensor, labels: Tensor, earlier: Tensor) -> Tensor:
    """The gradient of the package's diversity: what one of its steps changes more with it than without it."""
    from dpe import core

    core._evaluate = lambda *given, **settings: {"min_group": {"accuracy": 1.0}}  # it keeps the last check
    found, start = [], copy.deepcopy(head.state_dict())
    batches = [(None, None, labels, None, features)]
    for strength in (1.0, 0.0):
        head.load_state_dict(start)
        ensemble = [(each[:, None], None) for each in earlier]
        settings = {"epochs": 1, "cov_reg": strength, "device": "cpu", "lr": 1.0}
        kept = core._train_prototypes(batches, None, nn.Sequential(nn.Identity(), head), ensemble, **settings)
        found.append(kept[0][:, 0])
    return found[1] - found[0]


def package_fairlearn(given: Inputs) -> Iterator[Row]:
    from fairlearn.adversarial._pytorch_engine import PytorchEngine

    torch.manual_seed(0)
    predictor = nn.Sequential(nn.Linear(D, 4), nn.ReLU(), nn.Linear(4, 1), nn.Sigmoid())
    adversary = nn.Sequential(nn.Linear(1, 1), nn.Sigmoid())
    x, y, a = (
        tensor(given.features),
        tensor(given.labels > 0).float()[:, None],
        tensor(given.part).float()[:, None],
    )
    loss = nn.BCELoss()
    own = list(predictor.parameters())
    first = torch.autograd.grad(loss(predictor(x), y), own)
    hints = torch.autograd.grad(loss(adversary(predictor(x)), a), own)
    engine = PytorchEngine.__new__(PytorchEngine)
    importlib.import_module("fairlearn.adversarial._pytorch_engine").torch = torch
    still = [torch.optim.SGD(net.parameters(), lr=0.0) for net in (predictor, adversary)]
    engine.__dict__.update(
        base=SimpleNamespace(alpha=0.7, pass_y_=False), predictor_model=predictor, adversary_model=adversary,
        predictor_loss=loss, adversary_loss=loss, predictor_optimizer=still[0], adversary_optimizer=still[1],
    )  # fmt: skip
    engine.train_step(x, y, a)
    ours = [adversarial.against(g, h, 0.7) for g, h in zip(first, hints, strict=True)]
    flat = [same(mine, parameter.grad) for mine, parameter in zip(ours[1:], own[1:], strict=True)]
    yield Row("adversarial", "[ADV-3]: gradients of tensors with one row", "fairlearn", f"{max(flat):.1g}")
    g, h = first[0], hints[0]
    unit = h / h.norm()
    same(own[0].grad, g - (unit @ g.T).sum() * unit - 0.7 * h)
    same(ours[0], g - (unit * g).sum() * unit - 0.7 * h)
    reason = (
        "fairlearn adds the products of different rows to the projection (sum of torch.inner). With them its "
        "gradient results; without, ours, which is the paper's projection"
    )
    difference = gap(ours[0], own[0].grad)
    yield Row("adversarial", "[ADV-3]: gradient of a 4 x 6 weight", "fairlearn", f"{difference:.2g}", reason)


PACKAGES: dict[str, list[Callable[[Inputs], Iterator[Row]]]] = {
    "spuco": [spuco_eiil, spuco_george, spuco_pgi, spuco_dfr],
    "dpe": [package_dpe],
    "fairlearn": [package_fairlearn],
}


# -- formulas ----------------------------------------------------------------------------------------------


def formulas(given: Inputs) -> Iterator[tuple[str, str, Any, Any]]:
    """Method, ids, our number, and the number by the formula in numpy."""
    z, y, x, d, part = given.logits, given.labels, given.features, given.share, given.part
    Z, Y, P, S = tensor(z), tensor(y), tensor(part), tensor(d)
    rows, losses, p = np.arange(N), entropy(z, y), softmax(z)
    own = p[rows, y]
    onehot = np.eye(L)[y]
    counts = np.bincount(y)
    cells = [(y == c) & (part == k) for c in range(L) for k in (0, 1)]

    # CVaR-DRO
    alpha, m = 0.13, 0.13 * N
    order, weight = np.argsort(-losses), np.zeros(N)
    weight[order[: math.floor(m)]] = 1 / m
    weight[order[math.floor(m)]] = 1 - math.floor(m) / m
    yield "cvar_dro", "[CVaR-1]", cvar_dro.worst_share(tensor(losses), alpha=alpha), weight
    found = cvar_dro.regularised(tensor(losses), alpha=alpha, reg=0.5)
    low, high = -50.0, 50.0
    for _ in range(200):
        eta = (low + high) / 2
        total = np.minimum(np.exp((losses - eta) / 0.5), 1 / alpha).mean()
        low, high = (eta, high) if total > 1 else (low, eta)
    yield "cvar_dro", "[CVaR-2]", found, np.minimum(np.exp((losses - eta) / 0.5), 1 / alpha) / N
    dual = cvar_dro.Dual(alpha, 0.9)
    expected = 0.9 + np.maximum(losses - 0.9, 0).mean() / alpha
    yield "cvar_dro", "[CVaR-3]", dual(identity, batch(z, y)), expected

    # spectral decoupling
    goals = np.array([0.4, 2.5, -1.0])
    for ids, only, after, step, goal in (
        ("[SD-1]", False, 0, 0, 0 * goals), ("[SD-2]", False, 0, 0, goals),
        ("[SD-3]", True, 0, 0, 0 * goals), ("[SD-4]", False, 5, 5, 0 * goals),
    ):  # fmt: skip
        squares = ((z - goal[y][:, None]) ** 2 * (onehot if only else 1)).sum(1).mean()
        expected = 0.2 * (losses.mean() + squares) if after else losses.mean() + 0.1 * squares
        made = spectral_decoupling.Decoupled(0.2, tensor(goal), only_true=only, after=after)
        yield "spectral_decoupling", ids, made(identity, batch(z, y, step=step)), expected

    # classes that count the same; last layers
    even = N / (L * counts)
    yield "class_balanced", "[CB-1]", class_balanced.class_weights(Y, L), even
    made = class_balanced.Weighted(tensor(even))
    yield "class_balanced", "[CB-2]", made(identity, batch(z, y)), (even[y] * losses).mean()
    yield "cb_llr", "[LLR-1], [LLR-2]", _heads.even_weights(Y), 1 / (L * counts[y])
    q = softmax(given.other)
    yield "self_", "[SELF-1]", self_.disagreement(tensor(given.other), Z), (q * np.log(q / p)).mean(1)
    yield "self_", "[SELF-2]", self_.losses(Z, Y), losses
    raw = np.exp(-4 * own) / counts[y]
    yield "afr", "[AFR-1]", afr.unlikely(Z, Y, gamma=4.0, even_classes=True), raw / raw.sum()
    start, bias = given.single(given.random.normal(size=(L, D))), np.zeros(L)
    here, there = start.copy(), bias.copy()
    for _ in range(3):
        slope = (softmax(x @ here.T + there) - onehot) * d[:, None]
        steps = slope.T @ x + 2 * 0.3 * (here - start), slope.sum(0) + 2 * 0.3 * (there - bias)
        cut = min(1, 1 / math.sqrt(sum((each**2).sum() for each in steps)))
        here, there = here - 0.5 * cut * steps[0], there - 0.5 * cut * steps[1]
    head = _heads.Head(tensor(start), torch.zeros(L))
    found = _heads.descend(head, tensor(x), Y, S, steps=3, lr=0.5, pull=0.3, most=1.0)
    yield "afr", "[AFR-2], [HEAD-1]", found.weight, here
    worst = min((p.argmax(1) == y)[cell].mean() for cell in cells)
    group = 2 * y + part
    yield "dfr", "[DFR-3]", dfr.worst_group(Z.argmax(1) == Y, group), worst

    # Multiaccuracy Boost
    slope = np.where(own >= 0.1, 1 / np.maximum(own, 0.1), 2 / 0.1 - own / 0.01)
    residual = np.where(onehot == 1, -slope[:, None], slope[:, None] / (L - 1))
    yield "multiaccuracy", "[MA-1]", multiaccuracy.residuals(tensor(p), Y), residual
    centred, target = x - x.mean(0), residual - residual.mean(0)
    ridge = np.linalg.solve(centred.T @ centred + 1.5 * np.eye(D), centred.T @ target)
    inputs = multiaccuracy.with_one(tensor(x))
    found = multiaccuracy.Ridge(inputs.double(), 1.5)(tensor(residual).double())
    yield "multiaccuracy", "[MA-2]", found, np.vstack([ridge, residual.mean(0) - x.mean(0) @ ridge])
    corrections = given.single(given.random.normal(size=(L, D + 1, L)))
    expected = z - np.stack([np.append(x[i], 1) @ corrections[z[i].argmax()] for i in range(N)])
    yield "multiaccuracy", "[MA-3]", multiaccuracy.corrected(Z, inputs, tensor(corrections)), expected

    # environments
    slopes = (p * z).sum(1) - z[rows, y]
    yield "eiil", "[EIIL-1]", eiil.slopes(Z, Y), slopes
    others = np.where(onehot == 1, -np.inf, z).max(1)
    yield "george", "[GEORGE-1]", george.margins(Z, Y)[:, 0], z[rows, y] - others
    split = SimpleNamespace(y=Y)
    accuracies = [(p.argmax(1) == y)[cell].mean() for cell in cells]
    found = _environments.worst_and_mean(Z, split, group=2 * Y + P)  # type: ignore[arg-type]
    yield "george, xrm, pgi", "[ENV-3], [GEORGE-4]", found, min(accuracies) + np.mean(accuracies)
    sizes = np.bincount(group)
    objective = gdro.WorstGroup(tensor(sizes), step_size=0.4, adjustment=1.5)
    means = np.array([losses[group == each].mean() for each in range(2 * L)])
    grown = np.exp(0.4 * (means + 1.5 / np.sqrt(sizes))) / (2 * L)
    yield (
        "gdro, eiil",
        "[ENV-2]",
        objective(identity, batch(z, y, environment=2 * Y + P)),
        (grown / grown.sum()) @ means,
    )
    half = np.flatnonzero(part)
    twins = xrm.Twins(nn.Linear(L, L), Y, tensor(half), L)
    twins.twin.load_state_dict({"weight": tensor(start[:, :L]), "bias": torch.zeros(L)})  # type: ignore[attr-defined]
    second = z @ start[:, :L].T
    outputs = np.where(part[:, None] == 1, second, z)
    own_losses = entropy(outputs, y)
    torch.manual_seed(0)
    draws = torch.rand(N).numpy()
    torch.manual_seed(0)
    loss = twins(identity, batch(z, y))
    yield "xrm", "[XRM-1]", loss, sum(own_losses[cell].mean() for cell in cells)
    held_out = softmax(np.where(part[:, None] == 1, z, second))
    flips = draws < (held_out.max(1) - 1 / L) * L / (L - 1)
    yield "xrm", "[XRM-2]", twins.labels, np.where(flips, held_out.argmax(1), y)

    # parts, discoverers, groupers
    total, soft_losses, factors = 0.0, losses, (p - onehot) * z
    for side in (d, 1 - d):
        share = side / side.sum()
        total += share @ soft_losses + 10 * ((share @ factors) ** 2).sum()
    yield "pgi", "[PGI-3]", pgi.contrast(S, Z, Y), total
    model = nn.Linear(L, L)
    objective = pgi.Invariance(3.0, 4)
    optimizers = {"head": torch.optim.SGD(model.parameters(), lr=0.0)}
    found = objective.step(model, batch(z, y, environment=P), optimizers)
    outputs = z @ model.weight.detach().double().numpy().T + model.bias.detach().double().numpy()
    each = entropy(outputs, y)
    yield "pgi", "[PGI-1]", found, (each[part == 0].mean() + each[part == 1].mean()) / 2
    wide = np.tile(d[:, None], (1, L))
    uneven, empty, worse = 0.0, 0.0, np.zeros(N)
    for label in range(L):
        mine = y == label
        first, second_mean = (np.average(own[mine], weights=side[mine]) for side in (d, 1 - d))
        uneven -= math.log(1e-6 + abs(first - second_mean))
        empty -= math.log(1e-6 + 1 - abs(d[mine].mean() - (1 - d[mine]).mean()))
        worse[mine] = (1 - d if second_mean < first else d)[mine]
    yield (
        "debian",
        "[DEBIAN-1], [DEBIAN-2]",
        debian.unevenness(tensor(wide), tensor(p), Y, 0.7),
        uneven + 0.7 * empty,
    )
    yield "debian", "[DEBIAN-3]", debian.worse_part(tensor(wide), tensor(p), Y), worse
    probe = softmax(given.other / 0.5)
    confusion = 0.9 * np.full((L, L), 1 / L**2) + 0.1 * probe.T @ onehot / N
    joint = confusion[given.other.argmax(1)]
    shifted = z + 1.5 * np.log(joint / joint.sum(1, keepdims=True))
    halves = SimpleNamespace(probe=lambda both: both[:, L:], model=lambda both: both[:, :L])
    adjusted = ula.Adjusted(nn.Identity(), L, strength=1.5, temperature=0.5, decay=0.9)
    adjusted.probe.forward = halves.probe  # type: ignore[method-assign]
    found = adjusted(halves.model, batch(np.hstack([z, given.other]), y))
    yield "ula", "[ULA-1]", adjusted.confusion, confusion
    yield "ula", "[ULA-2]", found, entropy(shifted, y).mean()
    guesses = given.other.argmax(1)
    by_cell = [(p.argmax(1) == y)[(guesses == g) & (y == c)].mean() for g in range(L) for c in range(L)]
    yield "ula", "[ULA-3]", ula.even_cells(Z, split, guesses=tensor(guesses)), np.mean(by_cell)  # type: ignore[arg-type]
    groups = softmax(given.single(given.random.normal(size=(N, 4))))
    grouped = agro.Grouped(x.astype(np.float32), Z, 4, cover=0.4, min_weight=0.1, warmup=0)
    means = (losses @ groups) / groups.sum(0)
    sizes = 0.95 + 0.05 * groups.sum(0)
    share, weight, left = sizes / sizes.sum(), np.full(4, 0.1), 1.0
    for each in np.argsort(-means):  # greedily, until the mass of one is given away
        weight[each] = min(1 / 0.4, left / share[each]) if left > 0 else 0.1
        left -= weight[each] * share[each] if left > 0 else 0
    expected = (share * weight * means).sum()
    yield "agro", "[AGRO-1] to [AGRO-4]", grouped.covered(tensor(losses), tensor(groups)), expected

    # adversaries and exits
    module = adversarial.Adversary(L, 2, alpha=0.5, constraint="equalized_odds")
    weights = given.single(given.random.normal(size=(2, L + L * L)))
    module.weight.data, module.scale.data = tensor(weights), torch.tensor(-0.5)
    sharp = softmax(1.5 * z)
    seen = np.hstack([sharp, *(sharp * onehot[:, [k]] for k in range(L))])
    yield "adversarial", "[ADV-1], [ADV-2]", module(Z, Y), seen @ weights.T
    maps = given.single(given.random.normal(size=(N, L, 4, 4)))
    label = maps[rows, y]
    kl = -math.log(L) - np.log(softmax(np.moveaxis(maps, 1, -1))).mean(-1)
    low = label <= label.mean((1, 2), keepdims=True)
    yield "occamnet", "[OCCAM-1]", occamnet.suppress(tensor(maps), Y), (low * kl).mean()
    exits = occamnet.Exits(N, L, (0.5, 0.6, 0.7, 0.8), suppression=0.1)
    gate, target = x[:, 0], (p.argmax(1) == y).astype(float)
    exits._count(batch(z, y))
    number = np.array([N - target.sum(), target.sum()])
    balance = (number / number.max() + 1e-5) ** -0.5
    sigmoid = 1 / (1 + np.exp(-gate))
    expected = -(balance[target.astype(int)] * np.log(np.where(target == 1, sigmoid, 1 - sigmoid))).mean()
    yield "occamnet", "[OCCAM-2]", exits._gate_loss(0, tensor(gate), Z, batch(z, y)), expected
    for exit_number, before, w in ((0, None, own**3), (1, tensor(gate), 1 - sigmoid)):
        expected = ((w / (w.max() + 1e-5) + 0.1) * losses).mean()
        yield "occamnet", "[OCCAM-3]", exits._weighted_loss(exit_number, before, Z, Y), expected


def compared() -> Iterator[Row]:
    """All rows; those of a package that cannot be imported say why."""
    for package, functions in PACKAGES.items():
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                importlib.import_module(package)
            version = importlib.metadata.version(package)
        except ImportError as error:
            yield Row("", "", package, "not compared", f"it cannot be imported: {error}")
            continue
        for function in functions:
            for row in function(Inputs()):
                yield row._replace(against=row.against.replace(package, f"{package} {version}"))
    found: dict[tuple[str, str], float] = {}
    for method, ids, ours, expected in formulas(Inputs()):
        try:
            found[method, ids] = max(found.get((method, ids), 0.0), same(ours, expected))
        except AssertionError as error:
            raise AssertionError(f"{method} {ids}: {error}") from None
    for (method, ids), difference in found.items():
        yield Row(method, ids, "numpy", f"{difference:.1g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, help="write the table to this file, too")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # of the packages
    rows = list(compared())
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        table(("method", "what", "against", "largest difference", "why they differ"), rows)
    print(written.getvalue(), end="")
    if given.out:
        given.out.write_text(written.getvalue(), encoding="utf-8")


if __name__ == "__main__":
    main()
