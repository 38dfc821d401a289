"""Slice discovery: a planted slice is among the first, every method is deterministic, scores equal a loop."""

from __future__ import annotations

import numpy as np
import pytest

from evenhand.audit import slices


def planted(seed: int = 0, samples: int = 600) -> tuple[np.ndarray, ...]:
    """Two classes; a twentieth of class 0 lies apart and is classified as 1."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, samples)
    wanted = (y == 0) & (rng.random(samples) < 0.1)
    x = rng.normal(0, 1, (samples, 10))
    x[:, 0] += 4 * y
    x[wanted, 1] += 6
    share = np.clip(rng.normal(0.9, 0.03, samples), 0.5, 0.99)
    of_one = np.where((y == 1) ^ wanted, share, 1 - share)
    return x, y, np.stack([1 - of_one, of_one], axis=1), wanted


SMALL = {"domino": {"num_components": 9}, "spotlight": {"num_slices": 2, "steps": 300}, "facts": {}}


@pytest.mark.parametrize("name", slices.METHODS)
def test_a_planted_slice_is_found(name: str) -> None:
    x, y, p, wanted = planted()
    scores = slices.METHODS[name](x, y, p, **SMALL[name])
    assert scores.shape[0] == len(y) and np.isfinite(scores).all()
    assert slices.precision_among_first(scores[:, :1], wanted) == 1.0, "the first slice holds it"
    assert slices.average_precision(scores, wanted) > 0.9
    assert np.array_equal(scores, slices.METHODS[name](x, y, p, **SMALL[name])), "the same on every call"


@pytest.mark.parametrize("name", slices.METHODS)
def test_without_a_slice_nothing_is_precise(name: str) -> None:
    x, y, p, _ = planted()
    random = np.random.default_rng(1).permutation(len(y)) < 30
    scores = slices.METHODS[name](np.random.default_rng(2).normal(size=x.shape), y, p, **SMALL[name])
    assert slices.average_precision(scores, random) < 0.3


def test_domino_of_many_classes_and_few_samples() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), np.arange(40) % 5
    p = rng.dirichlet(np.ones(5), 40)
    for name, method in slices.METHODS.items():
        assert np.isfinite(method(x, y, p, **(SMALL[name] if name == "spotlight" else {}))).all()


def test_spotlight_covers_its_least_share() -> None:
    x, y, p, _ = planted()
    for least in (0.05, 0.2):
        total = slices.spotlight(x, y, p, num_slices=1, steps=300, least=least).sum()
        assert total > 0.9 * least * len(y)


def test_the_slices_of_histories_follow_the_margin() -> None:
    margin, y = np.array([0.5, -0.2, 0.9, 0.1]), np.array([0, 0, 1, 1])
    scores = slices.history(margin, y)
    assert np.argsort(-scores[:, 0]).tolist()[:2] == [0, 1] and np.argsort(-scores[:, 1]).tolist()[:2] == [
        2,
        3,
    ]


def test_scores_equal_a_loop() -> None:
    rng = np.random.default_rng(0)
    scores, wanted = rng.random((50, 3)), rng.random(50) < 0.3
    best = 0.0
    for column in scores.T:
        order, hits, total = np.argsort(-column), 0, 0.0
        for rank, row in enumerate(order, start=1):
            if wanted[row]:
                hits += 1
                total += hits / rank
        best = max(best, total / wanted.sum())
    assert slices.average_precision(scores, wanted) == pytest.approx(best)
    firsts = [wanted[np.argsort(-column)[:10]].mean() for column in scores.T]
    assert slices.precision_among_first(scores, wanted) == pytest.approx(max(firsts))


def test_mistakes_are_named() -> None:
    x, y, p, _ = planted(samples=20)
    with pytest.raises(ValueError, match=r"expected embeddings \(samples, dimensions\)"):
        slices.domino(x, y[:5], p)
    with pytest.raises(ValueError, match="labels must be 0 to 1 for 2 columns"):
        slices.facts(x, y + 1, p)


def test_the_audit_command_takes_embeddings(tmp_path, monkeypatch) -> None:
    from typer.testing import CliRunner

    from evenhand.audit import audit as module
    from evenhand.cli import app

    asked = []
    monkeypatch.setattr(
        module, "run", lambda data, **_: asked.append(data) or (_ for _ in ()).throw(KeyError)
    )
    x, y, _, _ = planted(samples=60)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(app, ["audit", "x.npy", "--labels", "y.npy"])
    from evenhand import tasks

    assert len(tasks.load(asked[0]).train) == 42
