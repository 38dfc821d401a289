"""Numbers at their limits: every one has a defined outcome, and the same seed gives the same bytes in any order."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[1]))

from shortcut import shortcut_task

import evenhand
from evenhand import LossHistory, LossSummary, Recipe, Split, Task, partition, rebalance, sample_weights
from evenhand.core.twomeans import two_means
from evenhand.training.loop import TrainingDiverged

# -- losses that are no numbers ----------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_refused_with_its_sample(value: float) -> None:
    history = LossHistory(4)
    with pytest.raises(ValueError, match=r"losses must be finite, got (nan|-?inf) for sample 2"):
        history.record([0, 2], [1.0, value])
    history.record([0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0])
    history.end_epoch()
    assert history.losses[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]  # nothing of the refused batch is left
    with pytest.raises(ValueError, match=r"losses must be finite, got (nan|-?inf) for sample 1 in epoch 1"):
        partition([[1.0, 2.0], [1.0, value]], [0, 0])
    with pytest.raises(ValueError, match="must be finite"):
        partition([1.0, value], [0, 0])


def test_a_summary_says_when_a_loss_was_not_finite() -> None:
    summary = LossSummary(2, of="loss")
    summary.record([0, 1], [1.0, math.inf])
    with pytest.raises(ValueError, match="losses must be finite; lower the learning rate"):
        _ = summary.values
    summary = LossSummary(2, of="error")
    summary.record([0, 1], [1.0, math.inf])  # a probability of error of one
    assert summary.values[1] == 1.0


def test_sums_that_overflow_are_refused() -> None:
    history = LossHistory(1)
    for _ in range(3):
        history.record([0], [3e38])
    with pytest.raises(ValueError, match="losses must be finite.*the epoch is dropped"):
        history.end_epoch()
    assert history.num_epochs == 0


def test_half_precision_saturates_instead_of_overflowing() -> None:
    history = LossHistory(3, dtype=torch.float16)
    history.record([0, 1, 2], [1e9, -1e9, 1e-9])
    history.end_epoch()
    assert history.losses[:, 0].tolist() == [65504.0, -65504.0, 0.0]
    parts = partition(history.losses, [0, 0, 0])
    assert parts.sizes.sum() == 3 and np.isfinite(parts.margin).all()


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1e-3, 1.0, 1e15, 1e30])
def test_the_scale_of_the_losses_does_not_matter(scale: float) -> None:
    losses = np.array([[1.0, 0.2], [1.1, 0.2], [1.0, 0.1], [2.0, 1.9], [2.1, 1.8]])
    parts = partition(losses * scale, [0] * 5)
    assert parts.minority.tolist() == [False, False, False, True, True]
    assert parts.separation[0] == pytest.approx(partition(losses, [0] * 5).separation[0])


def test_losses_whose_squares_overflow_are_refused() -> None:
    for losses in (np.array([[1e200], [0.0]]), np.array([1e200, 0.0])):
        with pytest.raises(ValueError, match=r"losses must lie between -1e\+100 and 1e\+100"):
            partition(losses, [0, 0])


# -- classes -----------------------------------------------------------------------------------------


def test_identical_histories_and_single_samples_stay_whole() -> None:
    parts = partition(np.ones((6, 4)), [0, 0, 0, 1, 2, 2])
    assert dict(parts.unsplit) == {0: "identical histories", 1: "one sample", 2: "identical histories"}
    assert not parts.minority.any() and (parts.margin == 0).all() and (parts.separation == 0).all()
    assert rebalance(parts).indices.tolist() == list(range(6)) and (sample_weights(parts) == 1).all()


@pytest.mark.parametrize("num_classes", [200, 10_000])
def test_many_classes_are_each_split_as_if_alone(num_classes: int) -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(num_classes), 6)
    late = np.tile([0, 0, 0, 0, 1, 1], num_classes)
    losses = (0.2 + 1.5 * late[:, None] + 0.1 * random.random((len(labels), 5))).astype(np.float32)
    parts = partition(losses, labels)
    assert np.array_equal(parts.minority, late == 1) and len(parts.classes) == num_classes
    assert len(rebalance(parts)) == 8 * num_classes
    for label in (0, num_classes // 2, num_classes - 1):
        own = labels == label
        assert two_means(losses[own]).assignment.tolist() == parts.minority[own].tolist()


def odd_task(y: list[int], val: list[int], test: list[int], classes: int, epochs: int = 2) -> Task:
    """Labels as given; the input says the class."""

    def split(labels: list[int]) -> Split:
        x = torch.eye(classes)[labels] + 0.01 * torch.arange(len(labels))[:, None]
        return Split(x, torch.tensor(labels))

    names = tuple(f"class {i}" for i in range(classes))
    recipe = Recipe(model="linear", epochs=epochs, batch_size=8, check_every=1)
    return Task("odd", split(y), split(val), split(test), names, recipe=recipe)


@pytest.mark.parametrize("method", ["erm", "tab", "jtt", "lff", "masktune"])
def test_a_class_that_is_absent_from_a_split_is_left_out_of_its_scores(method: str, tmp_path: Path) -> None:
    if method == "masktune":
        pytest.skip("masks images, and these are rows")
    task = odd_task([0, 1, 2] * 6, [0, 1] * 3, [0, 2] * 3, 3)
    metrics = evenhand.execute(task, method, runs=tmp_path, device="cpu").metrics
    assert [part["name"] for part in metrics["val"]["classes"]] == ["class 0", "class 1"]
    assert [part["name"] for part in metrics["test"]["classes"]] == ["class 0", "class 2"]
    assert metrics["test"]["worst_class"] == min(part["accuracy"] for part in metrics["test"]["classes"])


def test_a_class_that_is_never_trained_on_is_no_class_of_the_partition(tmp_path: Path) -> None:
    record = evenhand.execute(
        odd_task([0, 1] * 8, [0, 1, 2], [0, 1, 2], 3), "tab", runs=tmp_path, device="cpu"
    )
    assert record.partition is not None and record.partition.classes.tolist() == [0, 1]


def test_classes_of_one_sample_are_trained_on_and_kept(tmp_path: Path) -> None:
    record = evenhand.execute(
        odd_task([0] * 8 + [1, 2], [0, 1, 2], [0, 1, 2], 3), "tab", runs=tmp_path, device="cpu"
    )
    assert record.partition is not None
    assert {record.partition.unsplit[label] for label in (1, 2)} == {"one sample"}


def test_two_hundred_classes_through_a_whole_run(tmp_path: Path) -> None:
    labels = list(range(200))
    record = evenhand.execute(odd_task(labels * 2, labels, labels, 200), "tab", runs=tmp_path, device="cpu")
    assert len(record.metrics["test"]["classes"]) == 200 and record.partition is not None
    assert len(record.partition.classes) == 200


def test_groups_without_samples_have_no_accuracy(tmp_path: Path) -> None:
    task = shortcut_task(aligned=1.0)  # no sample conflicts
    record = evenhand.execute(task, "tab", runs=tmp_path, device="cpu")
    assert {part["name"] for part in record.metrics["test"]["groups"]} == {"class 0, 0", "class 1, 1"}
    assert record.metrics["identification"]["identified"] is None


# -- trainings that leave the numbers ----------------------------------------------------------------


@pytest.mark.parametrize("method", ["erm", "tab", "jtt", "lff", "gdro"])
def test_an_exploding_training_ends_with_advice_and_can_be_mended(
    method: str, tmp_path: Path, tiny: Task
) -> None:
    recipe = tiny.recipe.replace(optimizer="sgd", lr=1e30)
    with pytest.raises(
        TrainingDiverged, match=r"not finite in epoch \d+; lower the learning rate \(now 1e\+30\)"
    ):
        evenhand.execute(tiny, method, recipe=recipe, runs=tmp_path, device="cpu")
    assert not list(tmp_path.rglob("metrics.json"))
    log = next(path for path in tmp_path.rglob("log.txt"))
    assert "end: TrainingDiverged" in log.read_text().splitlines()[-1]
    record = evenhand.execute(tiny, method, runs=tmp_path, device="cpu")  # another key, so another folder
    assert math.isfinite(record.metrics["test"]["wga"])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_inputs_that_are_not_finite_end_with_advice(value: float, tmp_path: Path) -> None:
    task = odd_task([0, 1] * 8, [0, 1], [0, 1], 2)
    task.train.x[3] = value
    with pytest.raises(TrainingDiverged, match="check the inputs"):
        evenhand.execute(task, "erm", runs=tmp_path, device="cpu")


class Half(nn.Module):
    """A model whose outputs are float16, and far beyond what float16 holds."""

    def __init__(self, factor: float = 1e6) -> None:
        super().__init__()
        self.layer, self.factor = nn.Linear(3, 2), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layer(x) * self.factor).half()


def test_a_model_that_overflows_in_half_precision_ends_with_advice() -> None:
    split = Split(torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2)
    with pytest.raises(ValueError, match="not finite.*lower the learning rate"):
        evenhand.fit(Half, split, recipe=Recipe(epochs=2, batch_size=8), device="cpu")
    result = evenhand.fit(lambda: Half(1.0), split, recipe=Recipe(epochs=2, batch_size=8), device="cpu")
    assert np.isfinite(result.record.metrics["test"]["wga"])


# -- the same seed, the same bytes -------------------------------------------------------------------

METHODS = ("erm", "tab", "jtt", "lff")
SAME = ("metrics.json", "model.safetensors", "predictions.npz")


def bytes_of(runs: Path) -> dict[str, bytes]:
    """All that must be reproducible to the byte."""
    return {str(path.relative_to(runs)): path.read_bytes() for path in runs.rglob("*") if path.name in SAME}


def run_all(runs: Path, order: list[tuple[str, int]]) -> dict[str, bytes]:
    for method, seed in order:
        evenhand.execute(shortcut_task(epochs=3), method, seed=seed, runs=runs, device="cpu")
    return bytes_of(runs)


def test_any_order_of_runs_gives_the_same_bytes(tmp_path: Path) -> None:
    order = [(method, seed) for method in METHODS for seed in (0, 1)]
    first = run_all(tmp_path / "a", order)
    assert len(first) == len(SAME) * len(order)
    torch.manual_seed(123)
    np.random.seed(5)  # noqa: NPY002  what a program did before must not matter
    assert run_all(tmp_path / "b", order[::-1]) == first
    assert (
        run_all(tmp_path / "c", [order[i] for i in np.random.default_rng(0).permutation(len(order))]) == first
    )


def test_runs_that_share_nothing_on_disk_give_the_same_bytes(tmp_path: Path) -> None:
    together = run_all(tmp_path / "together", [("erm", 0), ("tab", 0)])
    alone = {**run_all(tmp_path / "a", [("tab", 0)]), **run_all(tmp_path / "b", [("erm", 0)])}
    assert alone == together


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_does_not_change_a_small_run(threads: int, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = run_all(tmp_path / "x", [("tab", 0)])
    finally:
        torch.set_num_threads(before)
    assert found == run_all(tmp_path / "y", [("tab", 0)])


def test_any_number_of_workers_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    from evenhand import cli

    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # each worker would compile torch anew
    found = []
    for jobs in (1, 3):
        words = [
            "bench",
            "digits_even_odd",
            "--methods",
            "erm,tab",
            "--seeds",
            "0",
            "--limit",
            "60",
            "--epochs",
            "2",
        ]
        words += [
            "--device",
            "cpu",
            "--quiet",
            "--json",
            "--jobs",
            str(jobs),
            "--runs",
            str(tmp_path / str(jobs)),
        ]
        monkeypatch.setattr(sys, "argv", ["evenhand", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code
        assert json.loads(capsys.readouterr().out)["left"] == 0
        found.append(bytes_of(tmp_path / str(jobs)))
    assert found[0] == found[1] and len(found[0]) >= 3 * 3
