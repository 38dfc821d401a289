"""TAB's variants: transformed copies, mini-batch k-means, balanced epochs; and ERM-RandAug."""

import dataclasses
import inspect
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from shortcut import shortcut_task
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor, nn

from evenhand import Split, Task, partition
from evenhand.core.partition import Balanced
from evenhand.core.ranks import seed_epoch
from evenhand.methods import erm_randaug, eta_tab, minibatch_tab, tab
from evenhand.methods.eta_tab import changing_copies
from evenhand.training.augment import ETA
from evenhand.training.data import Batch
from evenhand.training.log import Silent
from evenhand.training.run import Run

CPU = torch.device("cpu")


def small_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))


def small_task(epochs: int = 4) -> Task:
    return dataclasses.replace(shortcut_task(epochs=epochs), make_model=small_net)


def make_run(task: Task, folder: Path, *, seed: int = 0, **identity: object) -> Run:
    path = folder / task.name / "tab" / "key"
    recipe = task.recipe.replace(precision="fp32")
    return Run(task, recipe, seed=seed, path=path, identity=identity, device=CPU, show=Silent())


def asked_of(run: Run, monkeypatch) -> dict:
    """What the method's last call of fit asks for."""
    asked: dict = {}
    fit = run.fit

    def spy(stage: str, split: Split | None = None, **given: object) -> object:
        asked.clear()
        asked.update(given, stage=stage, split=split)
        return fit(stage, split, **given)

    monkeypatch.setattr(run, "fit", spy)
    return asked


def same_weights(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


# -- TAB itself ------------------------------------------------------------------------------------------


def test_tab_trains_again_on_the_whole_balanced_multiset(tmp_path: Path, monkeypatch) -> None:
    run = make_run(small_task(), tmp_path)
    asked = asked_of(run, monkeypatch)
    tab.train(run)
    identifier = run.stages["erm"]
    parts = partition(identifier.losses, run.train.y)
    assert run.partition is not None and np.array_equal(run.partition.minority, parts.minority)
    counts = np.bincount(asked["split"].index, minlength=60)
    assert (counts[~parts.minority] == 1).all() and (counts[parts.minority] >= 1).all()
    for label in (0, 1):
        own = run.train.y.numpy() == label
        assert counts[own & parts.minority].sum() == counts[own & ~parts.minority].sum()
    assert asked.keys() == {"stage", "split"}, "neither sampled nor transformed"


@pytest.mark.parametrize("method", [tab, eta_tab, minibatch_tab])
def test_the_identifier_stops_when_training_accuracy_no_longer_rises(
    tmp_path: Path, monkeypatch, method: ModuleType
) -> None:
    run, calls = make_run(small_task(epochs=1), tmp_path), []
    fit = run.fit

    def spy(stage: str, *given: object, **named: object) -> object:
        calls.append((stage, named.get("stop", "val")))
        return fit(stage, *given, **named)

    monkeypatch.setattr(run, "fit", spy)
    method.train(run)
    assert calls == [("erm", "train"), ("model", "val")]


# -- balanced epochs -------------------------------------------------------------------------------------


def two_clusters(labels: list[int], late: list[int]) -> object:
    losses = np.zeros((len(labels), 3))
    losses[late] = 1.0
    return partition(losses, np.array(labels))


def test_chances_keep_the_classes_shares_and_halve_them_between_the_clusters() -> None:
    chances = tab.even_chances(two_clusters([5, 5, 5, 5, 8, 8, 8, 8, 8, 8], late=[3, 8, 9]))
    np.testing.assert_allclose(chances[:4], [0.4 / 2 / 3] * 3 + [0.4 / 2])
    np.testing.assert_allclose(chances[4:], [0.6 / 2 / 4] * 4 + [0.6 / 2 / 2] * 2)


def test_a_class_in_one_piece_keeps_its_share() -> None:
    chances = tab.even_chances(two_clusters([0, 0, 0, 1, 1, 1], late=[5]))
    np.testing.assert_allclose(chances, [1 / 6] * 3 + [1 / 8] * 2 + [1 / 4])


def test_balanced_epochs_draw_from_the_training_set(tmp_path: Path, monkeypatch) -> None:
    run = make_run(small_task(), tmp_path)
    asked = asked_of(run, monkeypatch)
    model = tab.train(run, balanced_epochs=True)
    assert asked["split"] is None
    np.testing.assert_allclose(asked["draw"], tab.even_chances(run.partition))
    assert not same_weights(model, tab.train(make_run(small_task(), tmp_path / "other")))


@pytest.mark.parametrize("summary", ["loss", "error"])
def test_a_summary_splits_the_means_of_the_histories(tmp_path: Path, summary: str) -> None:
    run = make_run(small_task(), tmp_path)
    tab.train(run, summary=summary)
    losses = np.asarray(run.stages["erm"].losses, dtype=np.float64)
    means = (losses if summary == "loss" else 1 - np.exp(-losses)).mean(axis=1)
    wanted = partition(means.astype(np.float32), run.train.y)
    np.testing.assert_array_equal(run.partition.minority, wanted.minority)
    np.testing.assert_allclose(run.partition.margin, wanted.margin, atol=1e-3)
    assert abs(partition(losses.astype(np.float32), run.train.y).margin - wanted.margin).max() > 0.01


# -- eta -------------------------------------------------------------------------------------------------


def rows() -> Split:
    """Three samples and two copies of the last."""
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    split = Split(x, torch.zeros(3, dtype=torch.int64))
    return split.take(Balanced(np.array([0, 1, 2, 2, 2]), num_original=3))


def seen(split: Split, *, once: bool, epoch: int, order: list[int], seed: int = 0) -> Tensor:
    """The rows as an epoch shows them, in the split's order."""
    transform = changing_copies(split, seed, CPU, once=once)
    row = torch.tensor(order)
    batch = Batch(x=split.x[split.rows[row]], y=split.y[row], index=split.index[row], row=row)
    result = transform(batch.x, batch, torch.Generator().manual_seed(epoch))
    return result[row.argsort()]


@pytest.mark.parametrize("once", [True, False])
def test_only_the_drawn_copies_are_transformed_each_in_its_own_way(once: bool) -> None:
    split = rows()
    images = seen(split, once=once, epoch=0, order=[4, 2, 0, 3, 1])
    assert torch.equal(images[:3], split.x)
    assert not torch.equal(images[3], images[2]) and not torch.equal(images[3], images[4])


def test_a_copy_looks_the_same_in_every_epoch() -> None:
    first = seen(rows(), once=True, epoch=0, order=[0, 1, 2, 3, 4])
    assert torch.equal(first, seen(rows(), once=True, epoch=1, order=[3, 4, 1, 2, 0]))
    other_seed = seen(rows(), once=True, epoch=0, order=[0, 1, 2, 3, 4], seed=1)
    assert not torch.equal(first[3:], other_seed[3:])


def test_a_copy_can_look_different_in_every_epoch() -> None:
    order = [0, 1, 2, 3, 4]
    first, second = (seen(rows(), once=False, epoch=epoch, order=order) for epoch in (0, 1))
    assert torch.equal(first[:3], second[:3]) and not torch.equal(first[3:], second[3:])


def test_eta_tab_is_tab_but_for_the_copies(tmp_path: Path, monkeypatch) -> None:
    task = small_task()
    models = []
    for once in (True, False):
        run = make_run(task, tmp_path, once=once)
        asked = asked_of(run, monkeypatch)
        models.append(eta_tab.train(run, once=once))
    plain = make_run(task, tmp_path)
    plain_asked = asked_of(plain, monkeypatch)
    models.append(tab.train(plain))
    assert torch.equal(asked["split"].index, plain_asked["split"].index)
    assert torch.equal(asked["split"].copies, plain_asked["split"].copies)
    assert not any(same_weights(models[a], models[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def test_erm_randaug_transforms_every_sample_afresh(tmp_path: Path, monkeypatch) -> None:
    run = make_run(small_task(epochs=1), tmp_path)
    asked = asked_of(run, monkeypatch)
    erm_randaug.train(run)
    x = run.train.x[:4]
    batch = Batch(x=x, y=run.train.y[:4], index=torch.arange(4), row=torch.arange(4))
    first, second = (asked["transform"](x, batch, torch.Generator().manual_seed(n)) for n in (0, 1))
    torch.testing.assert_close(first, ETA(x, torch.Generator().manual_seed(0)))
    assert all(not torch.equal(first[i], x[i]) and not torch.equal(first[i], second[i]) for i in range(4))
    assert asked["split"] is None


# -- mini-batch k-means ----------------------------------------------------------------------------------


def test_minibatch_tab_clusters_with_scikit_learn(tmp_path: Path) -> None:
    run = make_run(small_task(), tmp_path)
    minibatch_tab.train(run)
    losses, y = np.asarray(run.stages["erm"].losses), run.train.y.numpy()
    for label in (0, 1):
        kmeans = MiniBatchKMeans(2, reassignment_ratio=1e-5, random_state=0)
        cluster = kmeans.fit_predict(losses[y == label])
        smaller = np.bincount(cluster).argmin()
        assert np.array_equal(run.partition.minority[y == label], cluster == smaller)


def test_minibatch_tab_takes_its_clusters_from_nowhere_else(tmp_path: Path, monkeypatch) -> None:
    made: list[tuple] = []

    class EveryThird:
        def __init__(self, *given: object, **named: object) -> None:
            made.append((given, named))

        def fit_predict(self, histories: np.ndarray) -> np.ndarray:
            return (np.arange(len(histories)) % 3 == 0).astype(np.int32)

    monkeypatch.setattr(minibatch_tab, "MiniBatchKMeans", EveryThird)
    run = make_run(small_task(epochs=1), tmp_path)
    minibatch_tab.train(run)
    assert made == [((2,), {"reassignment_ratio": 1e-5, "random_state": 0})]
    assert run.partition.minority.tolist() == [row % 30 % 3 == 0 for row in range(60)]


def test_the_papers_reassignment_ratio_is_the_default() -> None:
    assert inspect.signature(minibatch_tab.train).parameters["reassignment_ratio"].default == 1e-5


# -- the recorded loss -----------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [False, True])
def test_the_identifier_records_the_step_itself_or_a_clean_pass_after_the_epoch(
    tmp_path: Path, clean: bool
) -> None:
    """The last step of the epoch has not been taken when its loss is recorded; a clean pass comes after."""
    task = dataclasses.replace(shortcut_task(epochs=1), make_model=dropping)
    task = dataclasses.replace(task, recipe=task.recipe.replace(clean_losses=clean, batch_size=60))
    run = make_run(task, tmp_path)
    fit = run.fit("erm", stop="train")
    losses = nn.functional.cross_entropy
    fresh, x, y = run.make_model(), task.train.x, task.train.y
    number, _ = seed_epoch(0, "erm", 0, CPU)
    order = np.random.default_rng(number).permutation(60)
    step = torch.empty(60)
    step[order] = losses(fresh.train()(x[order]), y[order], reduction="none").detach()
    after = losses(fit.model.eval()(x), y, reduction="none").detach()
    assert not torch.allclose(step, after)
    np.testing.assert_allclose(fit.losses[:, 0], after if clean else step, rtol=1e-5)


def test_a_clean_pass_sees_images_that_are_not_augmented(tmp_path: Path) -> None:
    task = shortcut_task(epochs=1)
    task = dataclasses.replace(
        task, augment=lambda x, generator: 0 * x, recipe=task.recipe.replace(clean_losses=True)
    )
    fit = make_run(task, tmp_path).fit("erm", stop="train")
    after = nn.functional.cross_entropy(fit.model(task.train.x), task.train.y, reduction="none").detach()
    np.testing.assert_allclose(fit.losses[:, 0], after, rtol=1e-5)


def dropping() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 2))
