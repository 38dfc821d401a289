"""Intervals over test samples: against loops, against known distributions, and from records."""

import dataclasses
import io
import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_bench import write
from scipy.stats import binom

from evenhand import Task, tasks
from evenhand.bench.results import frame
from evenhand.report import catalog, compare, render, tables
from evenhand.report.compare import interval_of_difference, resampled_wga
from evenhand.report.render import Table
from evenhand.training.execute import score
from evenhand.training.recipe import Recipe
from evenhand.training.record import Record


def make(name: str, records: list[Record], **options) -> Table:
    """One of the tables, of records."""
    return tables.make(name, frame(records), **options)


# -- the replicates --------------------------------------------------------------------------------------


def in_loops(correct: np.ndarray, groups: np.ndarray, replicates: int) -> list[list[float]]:
    """The same, sample by sample."""
    rng = np.random.default_rng(0)
    members = {group: np.flatnonzero(groups == group) for group in sorted(set(groups.tolist()))}
    drawn = {group: rng.integers(len(rows), size=(replicates, len(rows))) for group, rows in members.items()}
    worst = []
    for run in correct:
        worst.append([])
        for replicate in range(replicates):
            accuracies = []
            for group, rows in members.items():
                hits = 0
                for place in drawn[group][replicate]:
                    hits += bool(run[rows[place]])
                accuracies.append(hits / len(rows))
            worst[-1].append(min(accuracies))
    return worst


@st.composite
def runs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Some runs on some samples of some groups: correct (runs, samples), groups (samples,)."""
    groups = draw(st.lists(st.sampled_from([0, 1, 4]), min_size=1, max_size=12))
    row = st.lists(st.booleans(), min_size=len(groups), max_size=len(groups))
    return np.array(draw(st.lists(row, min_size=1, max_size=4))), np.array(groups)


@given(runs())
def test_replicates_equal_plain_loops(made: tuple[np.ndarray, np.ndarray]) -> None:
    assert resampled_wga(*made, replicates=7).tolist() == in_loops(*made, 7)


@given(runs(), st.integers(1, 40))
def test_what_fits_into_memory_at_once_changes_nothing(made: tuple[np.ndarray, np.ndarray], few: int) -> None:
    whole = resampled_wga(*made, replicates=9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "AT_ONCE", few)
        np.testing.assert_array_equal(resampled_wga(*made, replicates=9), whole)


@given(runs())
def test_other_runs_change_nothing_and_what_has_more_right_is_never_lower(
    made: tuple[np.ndarray, np.ndarray],
) -> None:
    correct, groups = made
    either = correct[0] | correct[-1]
    worst = resampled_wga(np.stack([correct[0], either, np.ones_like(either)]), groups, replicates=30)
    np.testing.assert_array_equal(worst[:1], resampled_wga(correct[:1], groups, replicates=30))
    assert (worst[0] <= worst[1]).all() and (worst[2] == 1).all() and (worst >= 0).all()
    for group in np.unique(groups):
        if not correct[0][groups == group].any():
            assert (worst[0] == 0).all()


@given(runs())
@settings(max_examples=30)
def test_the_interval_of_the_opposite_difference_is_the_opposite(made: tuple[np.ndarray, np.ndarray]) -> None:
    worst = resampled_wga(*made)
    low, high = interval_of_difference(worst[:2], worst[::-1][:2])
    assert interval_of_difference(worst[::-1][:2], worst[:2]) == pytest.approx((-high, -low))
    assert interval_of_difference(worst, worst) == (0.0, 0.0)
    assert -1 <= low <= high <= 1


def test_one_group_gives_the_binomial_interval() -> None:
    correct = np.zeros((2, 200), bool)
    correct[0] = True
    correct[1, :140] = True
    worst = resampled_wga(correct, np.zeros(200, np.int64))
    low, high = interval_of_difference(worst[1:], worst[:1])
    wanted = binom.ppf([0.025, 0.975], 200, 0.7) / 200 - 1
    assert (low, high) == pytest.approx(tuple(wanted), abs=0.011)  # two of the 200 samples


def test_the_worst_of_two_groups_is_taken_in_each_replicate_and_seed_before_the_mean() -> None:
    """Three samples of each group, two seeds: all 27 x 27 ways to draw them, each as likely as another."""
    correct, groups = np.array([[1, 1, 0, 1, 0, 0], [1, 0, 0, 1, 1, 1]], bool), np.array([0] * 3 + [5] * 3)
    exact: Counter[float] = Counter()
    for a, b in itertools.product(itertools.product(range(3), repeat=3), repeat=2):
        worst = [min(run[list(a)].mean(), run[3:][list(b)].mean()) for run in correct]
        exact[round(float(np.mean(worst)), 6)] += 1 / 27**2
    found = Counter(np.round(resampled_wga(correct, groups, 20_000).mean(0), 6).tolist())
    assert set(found) == set(exact)
    for value, chance in exact.items():
        assert found[value] / 20_000 == pytest.approx(chance, abs=4 * (chance / 20_000) ** 0.5)


# -- from records ----------------------------------------------------------------------------------------

SPEC = "digits_even_odd"


@pytest.fixture(scope="module")
def task() -> Task:
    return tasks.load(SPEC)


def made_run(runs: Path, task: Task, method: str, right: float, *, seed: int = 0, **more: object) -> Record:
    """A record of a run that gets this share of the test samples right, with its true scores."""
    recipe = Recipe(batch_size=64, epochs=40, precision="fp32")
    record = write(runs, method, seed=seed, task=SPEC, recipe=recipe, **more)
    y = task.test.y.numpy()
    wrong = np.random.default_rng([seed, int(1000 * right)]).random(len(y)) >= right
    predictions = np.where(wrong, 1 - y, y)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, test=predictions.astype(np.int32))
    (record.path / "predictions.npz").write_bytes(buffer.getvalue())
    metrics = json.loads((record.path / "metrics.json").read_text())
    metrics["test"] = score(task.test, predictions, task)
    (record.path / "metrics.json").write_text(json.dumps(metrics))
    return Record(record.path)


def compared(table: Table, method: str, column: str = "95% interval, test samples") -> str:
    return table.cell(SPEC, method, column).text


def test_a_table_resamples_what_the_records_predicted(tmp_path: Path, task: Task) -> None:
    made = [made_run(tmp_path, task, "tab", 0.9, seed=seed) for seed in (0, 1)]
    made += [made_run(tmp_path, task, "evenhand", 0.7, seed=seed) for seed in (0, 1, 2)]
    table = make("compare", made)
    correct = np.stack([record.predictions["test"] == task.test.y.numpy() for record in made])
    worst = in_loops(correct[:4, :], task.test.group.numpy(), compare.REPLICATES // 40)
    part = resampled_wga(correct[:4], task.test.group.numpy(), compare.REPLICATES // 40)
    np.testing.assert_array_equal(part, worst)
    full = resampled_wga(correct[:4], task.test.group.numpy())  # of the seeds that both have
    low, high = np.percentile((full[2:] - full[:2]).mean(0), [2.5, 97.5])
    assert table.cell(SPEC, "evenhand", "95% interval, test samples").value == pytest.approx([low, high])
    gain = table.cell(SPEC, "evenhand", "Δ vs. TAB").value
    assert low < gain < high < 0
    assert compared(table, "tab") == "" and not table.sections[0].notes
    content = json.loads(render.write(table, "json"))["sections"][0]["rows"][1]
    assert content["95% interval, test samples"] == pytest.approx([low, high])
    shown = f"{100 * low:+.1f} to {100 * high:+.1f}"
    assert shown in render.write(table, "md") and shown in render.write(table, "latex")
    assert f"{low}"[:12] in render.write(table, "csv")


def test_the_weighted_accuracy_is_compared_too(tmp_path: Path, task: Task) -> None:
    made = [made_run(tmp_path, task, name, share, seed=s) for s in (0, 1) for name, share in (("tab", 0.9), ("evenhand", 0.8))]  # fmt: skip
    table = make("compare", made)
    scores = {(r.method, r.seed): r.metrics["test"]["accuracy_weighted"] for r in made}
    gains = [scores["evenhand", seed] - scores["tab", seed] for seed in (0, 1)]
    name = "accuracy, weighted, "
    assert table.cell(SPEC, "evenhand", f"{name}Δ vs. TAB").value == pytest.approx(np.mean(gains))
    half = 12.7062 * abs(gains[0] - gains[1]) / 2  # Student's 97.5% with one degree of freedom
    bounds = [np.mean(gains) - half, np.mean(gains) + half]
    assert table.cell(SPEC, "evenhand", f"{name}95% interval").value == pytest.approx(bounds, rel=1e-4)
    assert compared(table, "tab", f"{name}Δ vs. TAB") == ""


def test_equal_predictions_differ_by_nothing(tmp_path: Path, task: Task) -> None:
    made = [made_run(tmp_path, task, name, 0.8, seed=s) for name in ("tab", "evenhand") for s in (0, 1)]
    assert compared(make("compare", made), "evenhand") == "+0.0 to +0.0"


def test_where_there_are_no_groups_classes_are_resampled(tmp_path: Path, task: Task) -> None:
    bare = dataclasses.replace(task, test=task.test.without_groups())
    made = [made_run(tmp_path, bare, name, share) for name, share in (("tab", 0.9), ("evenhand", 0.8))]
    labels = bare.test.y.numpy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "load", lambda *_: bare)
        table = make("compare", made)
    full = resampled_wga(np.stack([record.predictions["test"] == labels for record in made]), labels)
    expected = list(np.percentile(full[1] - full[0], [2.5, 97.5]))
    assert table.cell(SPEC, "evenhand", "95% interval, test samples").value == pytest.approx(expected)


def test_runs_that_cannot_be_resampled_are_counted_with_the_reason(tmp_path: Path, task: Task) -> None:
    made = [made_run(tmp_path, task, "tab", 0.9, seed=seed) for seed in (0, 1)]
    made += [made_run(tmp_path, task, "evenhand", 0.8, seed=seed) for seed in (0, 1)]
    other = [made_run(tmp_path, task, "erm", 0.7, seed=seed) for seed in (0, 1)]
    (made[3].path / "predictions.npz").unlink()
    buffer = io.BytesIO()
    np.savez_compressed(buffer, test=1 - task.test.y.numpy())  # not what its scores are of
    (other[0].path / "predictions.npz").write_bytes(buffer.getvalue())
    table = make("compare", [Record(record.path) for record in (*made, *other)])
    assert compared(table, "evenhand") == compared(table, "erm") == ""
    assert compared(table, "evenhand", "95% interval") != ""
    assert table.sections[0].notes == [
        "No interval over test samples of runs that keep no predictions: 1 of 6.",
        "No interval over test samples of runs that were tested on samples other than those here: 1 of 6.",
    ]


def test_without_the_data_the_table_says_so(tmp_path: Path) -> None:
    made = [write(tmp_path, name, seed=seed) for name in ("tab", "evenhand") for seed in (0, 1)]
    table = make("compare", made, root=tmp_path)
    (note,) = table.sections[0].notes
    assert note.startswith("No interval over test samples of runs that have test labels that are not here")
    assert note.endswith("4 of 4.")
    assert table.cell("even_odd", "evenhand", "Δ vs. TAB").text == "+0.0"
    assert catalog.read_split("nobody.knows:p=1", tmp_path, "test") is None
