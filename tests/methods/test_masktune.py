"""MaskTune: which pixels are masked, and what one epoch of fine-tuning at the final rate means."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from shortcut import shortcut_task
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand import Recipe, Split, Task
from evenhand.core.ranks import seed_epoch
from evenhand.methods import masktune
from evenhand.methods.masktune import masked
from evenhand.training.batches import Batches, Source
from evenhand.training.forward import saliency
from evenhand.training.log import Silent
from evenhand.training.run import Run


def make_run(task: Task, folder: Path, recipe: Recipe | None = None, **identity: object) -> Run:
    recipe = (recipe or task.recipe).replace(precision="fp32")
    path = folder / task.name / "masktune" / "key"
    return Run(task, recipe, seed=0, path=path, identity=identity, device=torch.device("cpu"), show=Silent())


def kept(values: list[float], threshold: float) -> list[int]:
    """Which pixels of a map stay visible."""
    x = torch.ones(1, 3, 1, len(values))
    result = masked(x, torch.tensor(values).float().view(1, 1, -1), threshold)
    assert torch.equal(result[:, 0], result[:, 1]) and torch.equal(result[:, 0], result[:, 2])
    return result[0, 0, 0].int().tolist()


def test_the_threshold_is_taken_over_the_positive_pixels() -> None:
    pixels = [0, 0, 0, 0, 1, 5]  # of the positive ones: mean 3, deviation 2, variance 4
    assert kept(pixels, 0) == [1, 1, 1, 1, 1, 0]  # the mean of all pixels is 1, not above 1 but close:
    assert kept([0, 0, 0, 0, 2, 4], 0) == [1, 1, 1, 1, 1, 0]  # here the mean of all would mask the 2 as well
    assert kept(pixels, 0.9) == [1, 1, 1, 1, 1, 0]  # 4.8; the variance would give 6.6, n - 1 in it 5.5
    assert kept(pixels, 1.1) == [1, 1, 1, 1, 1, 1]  # 5.2
    assert kept([0, 0, 3, 3], 0) == [1, 1, 1, 1]  # above, not at
    assert kept([0, 0, 0, 0], 0) == [1, 1, 1, 1]


def test_every_image_has_its_own_threshold() -> None:
    maps = torch.tensor([[[0.0, 1.0, 0.5]], [[0.0, 0.1, 0.05]]])
    assert masked(torch.ones(2, 1, 1, 3), maps, 0.5)[:, 0, 0].tolist() == [[1, 0, 1], [1, 0, 1]]


def test_maps_are_resized_between_pixel_centres() -> None:
    """A step from 0 to 1 becomes 0, 1/4, 3/4, 1: positive mean 2/3, deviation 0.312."""
    step = torch.tensor([[[0.0, 1.0]]])
    x = torch.ones(1, 1, 1, 4)
    assert masked(x, step, 0.0)[0, 0, 0].tolist() == [1, 1, 0, 0]
    assert masked(x, step, 0.5)[0, 0, 0].tolist() == [1, 1, 1, 0]  # 0.822


def test_masked_pixels_are_black_before_they_are_normalised() -> None:
    task = shortcut_task()
    task = dataclasses.replace(task, mean=(0.5,), std=(0.25,))
    maps = np.zeros((len(task.train), 6, 6), dtype=np.float32)
    maps[:, 2, 3], maps[:, 0, 0] = 1.0, 0.1
    device = torch.device("cpu")
    transform = masktune.masking_by(maps, 0.0, device)
    batches = Batches(task.train, task, Source(task.train.x, device), batch_size=4, transform=transform)
    seen = next(batches(torch.arange(4), torch.Generator())).x
    expected = (task.train.x[:4] - 0.5) / 0.25
    expected[:, :, 2, 3] = -0.5 / 0.25
    torch.testing.assert_close(seen, expected)


def test_each_sample_is_masked_by_its_own_map() -> None:
    maps = np.zeros((60, 6, 6), dtype=np.float32)
    maps[np.arange(60), np.arange(60) % 6, 0], maps[:, 5, 5] = 1.0, 0.1
    task, device = shortcut_task(), torch.device("cpu")
    transform = masktune.masking_by(maps, 0.0, device)
    split = task.train.take([7, 7, 30, 4])
    batches = Batches(split, task, Source(split.x, device), batch_size=4, transform=transform)
    black = (next(batches(torch.arange(4), torch.Generator())).x[:, 0, :, 0] == 0).int().argmax(1)
    assert black.tolist() == [1, 1, 0, 4]


def small_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(64, 2))


def small_task() -> Task:
    """Every third label is wrong, so that the loss soon stops falling."""
    task = shortcut_task()
    y = torch.where(torch.arange(60) % 3 == 0, 1 - task.train.y, task.train.y)
    return dataclasses.replace(task, train=Split(task.train.x, y), make_model=small_net)


def falling_rate() -> Recipe:
    """A recipe whose learning rate has fallen by the end of ERM's training."""
    return Recipe(epochs=8, batch_size=16, lr=0.1, plateau_epochs=1, plateau_factor=0.25, check_every=1)


def test_one_epoch_at_the_final_rate_with_erms_own_optimiser(tmp_path: Path) -> None:
    run = make_run(small_task(), tmp_path, falling_rate())
    found = masktune.train(run, threshold=1.0)
    fit = run.fit("erm")
    erm, state = fit.model, fit.read()
    rate = state["optimizer"]["param_groups"][0]["lr"]
    assert rate < 0.1, "the test needs a learning rate that has fallen"
    assert run.stages["model"].epochs == 1

    x, y = run.train.x, run.train.y
    maps = torch.from_numpy(saliency(erm, run.batches(run.train)))
    assert (masked(x, maps, 1.0) != x).flatten(1).any(1).float().mean() > 0.5, "the test needs masks"
    optimizer = torch.optim.Adam(erm.parameters())
    optimizer.load_state_dict(state["optimizer"])
    assert len(optimizer.state_dict()["state"]) == len(list(erm.parameters()))
    number, _ = seed_epoch(0, "model", 0, torch.device("cpu"))
    erm.train()
    for rows in np.split(np.random.default_rng(number).permutation(60), range(16, 60, 16)):
        optimizer.zero_grad()
        F.cross_entropy(erm(masked(x[rows], maps[rows], 1.0)), y[rows]).backward()
        optimizer.step()
    for name, value in erm.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, rtol=1e-5, atol=1e-7)


def test_maps_are_made_once_for_all_thresholds(tmp_path: Path, monkeypatch) -> None:
    made = []

    def counted(*given: object) -> np.ndarray:
        made.append(1)
        return saliency(*given)

    monkeypatch.setattr(masktune, "saliency", counted)
    models = []
    for threshold in (0.0, 2.0):
        run = make_run(small_task(), tmp_path, falling_rate(), threshold=threshold)
        models.append(masktune.train(run, threshold=threshold))
    assert len(made) == 1
    assert not torch.equal(next(models[0].parameters()), next(models[1].parameters()))


@pytest.mark.parametrize("keep", ["last", "best"])
def test_masks_come_from_the_same_model_or_from_the_best_checkpoint(
    tmp_path: Path, monkeypatch, keep: str
) -> None:
    """With `best`, the last weights are fine-tuned, whatever the recipe keeps."""
    recipe = falling_rate().replace(keep=keep, delta=1.0, patience=9)  # so the first epoch stays the best
    masking: list[dict[str, Tensor]] = []

    def spy(model: nn.Module, *given: object) -> np.ndarray:
        masking.append({name: value.clone() for name, value in model.state_dict().items()})
        return saliency(model, *given)

    monkeypatch.setattr(masktune, "saliency", spy)
    started = []
    for number, masks_from in enumerate(("same", "best")):
        run = make_run(small_task(), tmp_path / str(number), recipe, masks_from=masks_from)
        masktune.train(run, threshold=1.0, masks_from=masks_from)
        started.append(run.stages["erm"].read()["model"])

    run = make_run(small_task(), tmp_path / "reference", recipe)
    weights = {stop: run.fit("erm", recipe=recipe.replace(keep="last"), stop=stop).model for stop in (1, 8)}
    best, last = (weights[stop].state_dict()["0.weight"] for stop in (1, 8))
    assert not torch.equal(best, last)
    expected = {"last": last, "best": best}[keep]
    assert torch.equal(masking[0]["0.weight"], expected) and torch.equal(started[0]["0.weight"], expected)
    assert torch.equal(masking[1]["0.weight"], best) and torch.equal(started[1]["0.weight"], last)


def test_masks_from_must_be_known() -> None:
    with pytest.raises(ValueError, match="masks_from must be 'same' or 'best', got 'worst'"):
        masktune.train(None, masks_from="worst")  # type: ignore[arg-type]


def test_a_model_without_convolutions_gets_a_clear_error(tmp_path: Path) -> None:
    run = make_run(shortcut_task(epochs=1), tmp_path, Recipe(epochs=1, batch_size=16, model="mlp"))
    with pytest.raises(ValueError, match="need a model with convolutions, but Sequential"):
        masktune.train(run)
