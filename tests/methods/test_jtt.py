"""JTT: which samples are errors, and how often they return."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from shortcut import shortcut_task
from torch import nn

from evenhand import Recipe, Split, execute
from evenhand.core.ranks import seed_epoch
from evenhand.methods import jtt
from evenhand.training.log import Silent
from evenhand.training.run import Run
from evenhand.training.stage import Fit

# (samples, epochs): sample 2 is learned in epoch 2, sample 3 never, sample 4 is forgotten in epoch 3.
HITS = np.array([[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 0, 0], [1, 1, 0]], dtype=bool)


def repeated(hits: np.ndarray = HITS, epochs: int = 100, **settings: object) -> Split:
    """The samples that JTT trains its second model on."""
    fits: list[tuple] = []

    def fit(stage: str, split: Split | None = None, stop: object = "val") -> SimpleNamespace:
        fits.append((stage, split, stop))
        return SimpleNamespace(hits=hits[:, :stop] if isinstance(stop, int) else None, model=None)

    train = Split(torch.zeros(len(hits), 1), torch.zeros(len(hits), dtype=torch.int64))
    jtt.train(SimpleNamespace(train=train, fit=fit, recipe=Recipe(epochs=epochs)), **settings)
    (first, no_split, trained), (second, split, stop) = fits
    assert (first, no_split, trained) == ("erm", None, min(settings.get("identifier_epochs", 50), epochs))
    assert second == "model" and stop == "val", "the second model is stopped as every model is"
    return split


def times(split: Split) -> list[int]:
    return torch.bincount(split.index, minlength=len(HITS)).tolist()


def test_errors_are_those_of_the_chosen_epoch() -> None:
    assert times(repeated(identifier_epochs=1, upweight=10)) == [1, 1, 10, 10, 1]
    assert times(repeated(identifier_epochs=2, upweight=10)) == [1, 1, 1, 10, 1]
    assert times(repeated(identifier_epochs=3, upweight=10)) == [1, 1, 1, 10, 10]


def test_a_recipe_with_fewer_epochs_ends_the_identifier_too() -> None:
    assert times(repeated(epochs=2, identifier_epochs=50, upweight=10)) == [1, 1, 1, 10, 1]


def test_an_error_is_included_lambda_times_or_with_the_official_code_once_more() -> None:
    assert times(repeated(identifier_epochs=1, upweight=4)) == [1, 1, 4, 4, 1]
    assert times(repeated(identifier_epochs=1, upweight=4, appended=True)) == [1, 1, 5, 5, 1]
    assert times(repeated(identifier_epochs=1, upweight=1)) == [1, 1, 1, 1, 1]


def test_ratio_is_the_whole_number_of_correct_samples_per_error() -> None:
    assert times(repeated(identifier_epochs=2, upweight="ratio")) == [1, 1, 1, 4, 1]  # 4 to 1
    assert times(repeated(identifier_epochs=1, upweight="ratio")) == [1, 1, 1, 1, 1]  # 3 to 2
    assert times(repeated(~HITS, identifier_epochs=1, upweight="ratio")) == [1, 1, 1, 1, 1]  # 2 to 3
    assert times(repeated(identifier_epochs=2, upweight="ratio", appended=True)) == [1, 1, 1, 4, 1]


@pytest.mark.parametrize("upweight", [25, "ratio"])
@pytest.mark.parametrize("appended", [False, True])
def test_without_errors_the_data_stay_as_they_are(upweight: int | str, appended: bool) -> None:
    split = repeated(np.ones((5, 3), dtype=bool), identifier_epochs=1, upweight=upweight, appended=appended)
    assert split.index.tolist() == [0, 1, 2, 3, 4]


def test_repeated_errors_are_known_as_copies() -> None:
    split = repeated(identifier_epochs=2, upweight=3)
    assert split.copies.tolist() == [False] * 5 + [True] * 2
    assert split.index[split.copies].tolist() == [3, 3]


@pytest.mark.parametrize("upweight", [0, -1, 2.5, "twice", True])
def test_upweight_is_a_whole_number_or_ratio(upweight: object) -> None:
    with pytest.raises(ValueError, match="upweight must be a whole number of at least 1, or 'ratio'"):
        repeated(identifier_epochs=1, upweight=upweight)


def test_there_is_no_epoch_zero() -> None:
    with pytest.raises(ValueError, match="identifier_epochs must be at least 1, got 0"):
        repeated(identifier_epochs=0)


def small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 2))


def test_errors_are_collected_on_the_fly_in_training_mode(tmp_path: Path, monkeypatch) -> None:
    """An error is what the model got wrong, dropout and all, just before it was trained on that batch."""
    task = dataclasses.replace(shortcut_task(), make_model=small_net)
    device = torch.device("cpu")
    recipe = task.recipe.replace(precision="fp32")
    run = Run(
        task, recipe, seed=0, path=tmp_path / "a" / "b" / "c", identity={}, device=device, show=Silent()
    )
    splits: list[Split] = []
    fit = run.fit

    def spy(stage: str, split: Split | None = None, **given: object) -> Fit:
        splits.extend([] if split is None else [split])
        return fit(stage, split, **given)

    monkeypatch.setattr(run, "fit", spy)
    jtt.train(run, identifier_epochs=2, upweight=3)

    model = run.make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.lr)
    for epoch in range(2):
        number, _ = seed_epoch(0, "erm", epoch, device)
        order = np.random.default_rng(number).permutation(len(task.train))
        errors = []
        model.train()
        for rows in np.split(order, range(16, len(order), 16)):
            outputs = model(task.train.x[rows])
            errors += rows[(outputs.argmax(1) != task.train.y[rows]).numpy()].tolist()
            optimizer.zero_grad()
            nn.functional.cross_entropy(outputs, task.train.y[rows]).backward()
            optimizer.step()
    wrong_afterwards = (model.eval()(task.train.x).argmax(1) != task.train.y).nonzero()[:, 0].tolist()
    assert sorted(errors) != wrong_afterwards, "the test could not tell the two apart"
    assert splits[0].index[splits[0].copies].tolist() == sorted(errors) * 2


def test_every_number_of_identifier_epochs_shares_one_training(tmp_path: Path) -> None:
    task, device = dataclasses.replace(shortcut_task(epochs=3), make_model=small_net), torch.device("cpu")
    recipe = task.recipe.replace(precision="fp32")
    for epochs in (3, 1, 2):
        path = tmp_path / task.name / "jtt" / str(epochs)
        run = Run(task, recipe, seed=0, path=path, identity={"T": epochs}, device=device, show=Silent())
        jtt.train(run, identifier_epochs=epochs, upweight=2)
        assert run.stages["erm"].epochs == epochs
    assert len({fit.name for fit in (tmp_path / task.name / "stages").iterdir()}) == 1 + 3


def test_settings_that_ask_for_the_same_rows_train_once_and_as_alone(tmp_path: Path) -> None:
    task = dataclasses.replace(shortcut_task(epochs=3), make_model=small_net)
    records = [
        execute(task, "jtt", settings, runs=tmp_path / place, device="cpu", show=Silent())
        for place, settings in (
            ("shared", {"identifier_epochs": 1, "upweight": 1}),  # an error stands once: nothing is repeated
            ("shared", {"identifier_epochs": 2, "upweight": 1}),
            ("shared", {"identifier_epochs": 2, "upweight": 3}),
            ("alone", {"identifier_epochs": 2, "upweight": 1}),
        )
    ]
    first, same, other, alone = (record.config["stages"]["model"]["folder"] for record in records)
    assert first == same == alone != other
    logs = "".join(log.read_text() for log in (tmp_path / "shared").rglob("log.txt"))
    assert logs.count("model: begins") == 2 and logs.count("model: reused") == 1
    weights = [(record.path / "model.safetensors").read_bytes() for record in records]
    assert weights[0] == weights[1] == weights[3] != weights[2]
