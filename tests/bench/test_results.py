"""The frame of all runs: selection, PoU and MMS equal hand-made answers, also of ties, zeros and missing runs."""

import itertools
import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from made_bench import LABELS, whole, write

from evenhand.bench import results
from evenhand.bench.grid import DYNAMICS, combinations, grid_of, method_file, rule, task_file
from evenhand.bench.results import NoRuns, best, choose, counting, frame, num_equal, of_task, result
from evenhand.core.metrics import wilson_interval
from evenhand.training import plugins
from evenhand.training.recipe import Recipe
from evenhand.training.record import Record

PAIR = {"lr": 1e-3, "weight_decay": 0.0}


def lff(runs: Path, q: float, **values: float) -> Record:
    return write(runs, "lff", {"q": q, **PAIR}, **values)


def left_out(rows) -> Counter:
    return Counter(rows.left_out[rows.left_out != ""])


def points(rows, method: str) -> list[dict]:
    """The settings of a method's candidates, in the order of the grid."""
    return list(counting(rows, method).drop_duplicates("point").settings)


def test_the_best_mean_over_seeds_is_selected_by_each_criterion(tmp_path: Path) -> None:
    rows = frame(
        [
            *(
                lff(tmp_path, 0.05, seed=s, wga=0.2, val=v, val_wga=0.1, wrong=2)
                for s, v in enumerate((0.9, 0.96))
            ),
            *(lff(tmp_path, 0.1, seed=s, wga=0.6, val=0.92, val_wga=0.9, wrong=1) for s in (0, 1)),
            *(lff(tmp_path, 0.5, seed=s, wga=0.7, val=0.91, val_wga=0.4, wrong=0) for s in (0, 1)),
            *(write(tmp_path, "tab", PAIR, seed=s, pseudo=True) for s in (0, 1)),
        ]
    )
    assert points(rows, "lff") == [{"q": 0.05}, {"q": 0.1}, {"q": 0.5}]
    assert result(rows, "lff").settings == {"q": 0.05}  # 0.93, 0.92, 0.91
    assert result(rows, "lff", "wga").settings == {"q": 0.1}
    assert result(rows, "lff", "worst_class").settings == {"q": 0.1}  # (0.9 + 0.92) / 2
    assert result(rows, "lff", "worst_pseudo_group").settings == {"q": 0.5}
    found = results.scores(counting(rows, "lff"), "worst_pseudo_group", results.pseudo_groups(rows))
    np.testing.assert_allclose(found, [[0, 0], [0.5, 0.5], [1, 1]])  # of two samples set apart in each class
    chosen = results.selected(rows, "wga")
    assert list(chosen.method) == ["lff", "lff", "tab", "tab"] and list(chosen.seed) == [0, 1, 0, 1]
    assert set(chosen.candidate) == {"q=0.1", ""}


def test_the_accuracy_that_selects_is_the_weighted_one(tmp_path: Path) -> None:
    rows = frame(
        [lff(tmp_path, 0.05, val=0.9, unweighted=0.95), lff(tmp_path, 0.1, val=0.92, unweighted=0.85)]
    )
    assert results.scores(counting(rows, "lff"), "accuracy").tolist() == [[0.9], [0.92]]
    assert result(rows, "lff").settings == {"q": 0.1}


def test_one_rule_selects_for_methods_that_are_told_the_groups_too(tmp_path: Path) -> None:
    accurate = write(tmp_path, "gdro", PAIR, val=0.95, val_wga=0.5, wga=0.4)
    fair = write(tmp_path, "gdro", {**PAIR, "weight_decay": 1e-2}, val=0.9, val_wga=0.8, wga=0.7)
    rows = frame([accurate, fair])
    assert result(rows, "gdro").wga.mean == 0.7 == results.selected(rows).test_wga.mean()
    assert result(rows, "gdro", "accuracy").wga.mean == 0.4


def test_a_method_none_of_whose_runs_count_has_a_variant_all_the_same(tmp_path: Path) -> None:
    rows = frame(
        [
            write(tmp_path, "erm", PAIR, val=0.9),
            *(write(tmp_path, "tab", {**PAIR, "summary": "loss"}, seed=s, val=0.8, wga=0.3) for s in (1, 0)),
            write(tmp_path, "tab", {**PAIR, "summary": "error"}, val=0.7, wga=0.9),
        ]
    )
    assert set(results.selected(rows).method) == {"erm"}
    tab = results.selected(rows, every_method=True).query("method == 'tab'")
    assert set(tab.variant) == {"summary=loss"} and list(tab.seed) == [0, 1]
    assert set(tab.left_out) == {"of tab with summary=loss"}


def test_pseudo_groups_are_needed_and_must_fit(tmp_path: Path) -> None:
    run = lff(tmp_path, 0.05)
    with pytest.raises(
        ValueError, match="needs pseudo-groups of the validation set, but this task has no run of tab"
    ):
        result(frame([run]), "lff", "worst_pseudo_group")
    with pytest.raises(ValueError, match="one of accuracy, wga, worst_class, worst_pseudo_group, got 'luck'"):
        result(frame([run]), "lff", "luck")
    with pytest.raises(ValueError, match="no candidate to select from"):
        choose(frame([]))
    tab = write(tmp_path, "tab", PAIR, pseudo=True)
    assert tab.val_partition is not None and len(tab.val_partition.labels) == len(LABELS)
    np.savez_compressed(run.path / "predictions.npz", val=np.zeros(3, dtype=np.int32))
    with pytest.raises(
        ValueError, match="predicts 3 validation samples, but this task's pseudo-groups cover 12"
    ):
        result(frame([run, tab]), "lff", "worst_pseudo_group")


def test_the_first_of_equals_wins(tmp_path: Path) -> None:
    records = [lff(tmp_path, q, wga=w, val=0.9) for q, w in ((0.1, 0.3), (0.05, 0.5), (0.5, 0.5))]
    rows = frame(reversed(records))
    assert [point["q"] for point in points(rows, "lff")] == [0.05, 0.1, 0.5]  # the grid's order
    outcome = result(rows, "lff")
    assert outcome.settings == {"q": 0.05} and outcome.oracle.settings.iloc[0] == {"q": 0.05}
    assert outcome.pou is not None and outcome.pou.mean == 1


def test_price_and_mean_have_their_known_values(tmp_path: Path) -> None:
    wga = {0.05: (0.2, 0.4), 0.1: (0.4, 0.6), 0.5: (0.0, 0.0), 0.9: (0.3, 0.3)}
    val = {0.05: 0.95, 0.1: 0.9, 0.5: 0.99, 0.9: 0.8}
    rows = frame([lff(tmp_path, q, seed=s, wga=wga[q][s], val=val[q]) for q in wga for s in (0, 1)])
    outcome = result(rows, "lff")
    assert outcome.settings == {"q": 0.5} and outcome.wga.mean == 0  # what accuracy alone selects
    assert outcome.pou is not None  # of the candidates with a WGA above zero: 0.05 is selected, 0.1 is best
    assert outcome.pou.per_seed == pytest.approx((2.0, 1.5))
    assert outcome.pou.mean == pytest.approx(1.75) and outcome.pou.deviation == pytest.approx(0.25)
    assert outcome.pou.ratio_of_means == pytest.approx(0.5 / 0.3)
    assert outcome.mms.per_seed == pytest.approx((0.225, 0.325))  # the zeros count here
    assert outcome.mms.mean == pytest.approx(0.275) and outcome.mms.deviation == pytest.approx(0.05)
    assert outcome.oracle.settings.iloc[0] == {"q": 0.1} and outcome.oracle.test_wga.mean() == pytest.approx(
        0.5
    )


def test_nothing_but_zeros_has_no_price(tmp_path: Path) -> None:
    rows = frame([lff(tmp_path, q, wga=0.0) for q in (0.05, 0.1)])
    assert result(rows, "lff").pou is None and result(rows, "lff").mms.mean == 0


def test_missing_seeds_are_missing_not_zero(tmp_path: Path) -> None:
    rows = frame(
        [
            lff(tmp_path, 0.05, seed=0, wga=0.2, val=0.9),
            lff(tmp_path, 0.05, seed=2, wga=0.4, val=0.9),
            lff(tmp_path, 0.1, seed=0, wga=0.6, val=0.8),
            lff(tmp_path, 0.1, seed=1, wga=0.9, val=0.8),
        ]
    )
    table = results.table_of(counting(rows, "lff"), "test_wga")
    assert results.seeds(rows) == [0, 1, 2] and math.isnan(table[0, 1]) and math.isnan(table[1, 2])
    assert best(np.array([[0.9, math.nan, math.nan], [0.8, 0.8, 0.8]])) == 0
    worth = result(rows, "lff").pou
    assert worth is not None and worth.per_seed == pytest.approx((3.0,))  # only seed 0 has both
    assert worth.ratio_of_means == pytest.approx(0.75 / 0.3)
    assert result(rows, "lff").mms.per_seed == pytest.approx((0.4, 0.9, 0.4))
    missing = results.missing(rows, "lff")
    assert len(missing) == 7 * 3 - 4
    assert ({"q": 0.05}, 1) in missing and ({"q": 0.95}, 0) in missing and ({"q": 0.1}, 0) not in missing


@example([[0.0, 0.0, 0.0], [1.5e-87, 0.0, 0.0]], [True] * 18)
@given(
    st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=6),
    st.lists(st.booleans(), min_size=18, max_size=18),
)
def test_best_is_the_first_highest_mean(rows: list[list[float]], present: list[bool]) -> None:
    """Means that differ by less than 1e-12, as the rounding of sums may make them, are equal."""
    values = np.array(rows)
    values[~np.array(present)[: values.size].reshape(values.shape)] = np.nan
    means = [np.nanmean(row) if np.isfinite(row).any() else -math.inf for row in values]
    chosen = best(values)
    assert means[chosen] >= max(means) - 1.01e-12
    assert all(mean < max(means) - 0.99e-12 for mean in means[:chosen])


def test_the_order_of_the_seeds_decides_nothing() -> None:
    """These means lie at half a unit of the 12th decimal place, where `np.round` goes both ways."""
    rows = np.array(list(itertools.permutations([952 / 1113, 1102 / 1113, 813 / 1113])))
    assert len(set(rows.mean(axis=1))) > 1, "the test needs sums that are rounded differently"
    assert all(best(rows[list(order)]) == 0 for order in itertools.permutations(range(6)))
    assert num_equal(rows) == 6


def test_methods_inherit_the_pair_that_is_selected_for_erm(tmp_path: Path) -> None:
    rows = frame(
        [
            write(tmp_path, "tab", {"lr": 1e-3, "weight_decay": 0.0}, wga=0.99),
            write(tmp_path, "tab", {"lr": 1e-3, "weight_decay": 1e-4}, wga=0.5),
            write(tmp_path, "gdro", {"lr": 1e-3, "weight_decay": 1e-2}, wga=0.8),
            write(tmp_path, "erm", {"lr": 1e-3, "weight_decay": 0.0}, val=0.9, wga=0.9),
            write(tmp_path, "erm", {"lr": 1e-3, "weight_decay": 1e-4}, val=0.95, wga=0.1),
        ]
    )
    assert results.inherited_pair(rows) == {"lr": 1e-3, "weight_decay": 1e-4}
    assert results.methods(rows) == ["erm", "gdro", "tab"]
    assert points(rows, "tab") == [{}] and counting(rows, "tab").test_wga.tolist() == [0.5]
    assert points(rows, "gdro") == [{"lr": 1e-3, "weight_decay": 1e-2}]  # it searches its own
    assert left_out(rows) == {"of tab without ERM's selected lr=0.001, weight_decay=0.0001": 1}


def test_without_erm_the_commonest_pair_counts(tmp_path: Path) -> None:
    records = [write(tmp_path, "tab", {"weight_decay": 1e-4}, seed=s) for s in (0, 1)]
    rows = frame([*records, write(tmp_path, "tab", {"weight_decay": 1.0})])
    assert results.inherited_pair(rows) == {"lr": 1e-3, "weight_decay": 1e-4}
    assert sum(left_out(rows).values()) == 1


def test_a_recipes_field_that_is_no_more_tells_runs_apart_only_where_it_was_changed(tmp_path: Path) -> None:
    records = [write(tmp_path, "erm", PAIR, seed=s) for s in range(3)]
    for record, changed in zip(records[1:], ({}, {"gone": 2}), strict=True):
        config = json.loads((record.path / "config.json").read_text())
        config["full_recipe"]["gone"] = changed.get("gone", 1)
        config["recipe"].update(changed)
        (record.path / "config.json").write_text(json.dumps(config))
    rows = frame(Record(record.path) for record in records)
    assert rows.alike.sum() == 2 and left_out(rows) == {"of another recipe": 1}


def test_only_runs_of_one_recipe_are_compared(tmp_path: Path) -> None:
    long = Recipe(batch_size=2048, precision="fp32", **DYNAMICS)
    records = [write(tmp_path, "erm", PAIR, seed=s, recipe=long, wga=0.9) for s in range(4)]
    records += [write(tmp_path, "erm", PAIR, wga=0.5)]
    rows = frame(records)  # the task's own recipe, though more runs have another
    assert counting(rows).test_wga.tolist() == [0.5] and left_out(rows) == {"of another recipe": 4}
    assert results.recipe_changes(counting(rows).recipe.iloc[0], "even_odd") == {}
    others = frame(records[:4])  # nothing else is there
    assert results.recipe_changes(counting(others).recipe.iloc[0], "even_odd") == DYNAMICS
    assert set(rows.variant) == {"", "epochs=50, patience=1000"} and set(others.variant) == {
        "",
    }


def test_precision_is_no_other_recipe_but_is_not_mixed(tmp_path: Path) -> None:
    other = Recipe(batch_size=2048, precision="bf16")
    records = [write(tmp_path, "erm", PAIR, seed=s, recipe=other) for s in (0, 1)]
    kept = counting(frame([*records, write(tmp_path, "erm", PAIR, seed=0)]))
    assert len(kept) == 2 and {recipe["precision"] for recipe in kept.recipe} == {"bf16"}
    assert results.recipe_changes(kept.recipe.iloc[0], "even_odd") == {}


def test_older_and_newer_records_are_never_mixed(tmp_path: Path) -> None:
    old = [write(tmp_path, "erm", PAIR, seed=s, wga=0.1, older=True) for s in (0, 1)]
    new = [write(tmp_path, "erm", PAIR, seed=s, wga=0.9) for s in (1, 2, 3)]
    rows = frame([*old, *new])
    assert set(counting(rows).test_wga) == {0.9} and left_out(rows) == {"of older records": 2}
    few = frame([*old, new[0]])
    assert counting(few).older.all() and left_out(few) == {"of newer records": 1}
    assert not counting(frame([*old, *new[:2]])).older.any(), "of equally many the newer ones"


def test_of_several_ways_of_computing_most_runs_count(tmp_path: Path) -> None:
    records = [write(tmp_path, "erm", PAIR, seed=s, compute="compiled") for s in (0, 1)]
    records += [write(tmp_path, "erm", PAIR, seed=2), write(tmp_path, "erm", PAIR, seed=3, numerics=2)]
    rows = frame(records)
    assert counting(rows).seed.tolist() == [0, 1]
    assert left_out(rows) == {"with compute=eager": 1, "with compute=eager, numerics=2": 1}


def test_of_several_versions_of_a_method_most_runs_count_and_then_the_newest(tmp_path: Path) -> None:
    records = [write(tmp_path, "erm", PAIR, seed=s) for s in (0, 1)]
    records += [write(tmp_path, "tab", seed=s, version=v) for s, v in ((0, 9), (1, 9), (2, 10))]
    rows = frame(records)
    assert counting(rows).groupby("method").seed.apply(list).to_dict() == {"erm": [0, 1], "tab": [0, 1]}
    assert left_out(rows) == {"of tab with version=10": 1}
    assert set(rows.variant[rows.method == "tab"]) == {"version=9", "version=10"}
    equal = frame([*records[:3], records[-1]])
    assert counting(equal, "tab").seed.tolist() == [2], "of equally many the newest"


def test_what_stands_outside_the_grid_is_left_out_and_said(tmp_path: Path) -> None:
    rows = frame(
        [
            lff(tmp_path, 0.05),
            lff(tmp_path, 0.3, wga=0.99),
            write(tmp_path, "lff", {"q": 0.1, "scale_by_q": False, **PAIR}, wga=0.99),
            lff(tmp_path, 0.05, data="other"),
        ]
    )
    assert points(rows, "lff") == [{"q": 0.05}]
    assert left_out(rows) == {
        "of lff outside its grid": 1,
        "of lff with scale_by_q=False": 1,
        "of lff repeated on other data or code": 1,
    }
    assert list(rows.variant) == ["q=0.05", "q=0.3", "q=0.1, scale_by_q=False", "q=0.05"]


def test_default_settings_count_though_records_omit_them(tmp_path: Path) -> None:
    rows = frame([write(tmp_path, "jtt", PAIR)])  # 50 and 25 are the method's defaults
    assert points(rows, "jtt") == [{"identifier_epochs": 50, "upweight": 25}]
    assert rows.candidate.tolist() == ["identifier_epochs=50, upweight=25"]


def test_a_method_or_task_that_is_not_here_still_has_candidates(tmp_path: Path) -> None:
    rows = frame(
        write(tmp_path, "mine.method", {"b": b, "a": 1}, task="theirs", spec="not.here", wga=b)
        for b in (0.2, 0.1)
    )
    assert points(rows, "mine.method") == [{"a": 1, "b": 0.1}, {"a": 1, "b": 0.2}]
    assert results.missing(rows, "mine.method") == [] and result(rows, "mine.method").wga.mean in (0.1, 0.2)
    assert of_task(rows, "not.here").equals(of_task(rows, "theirs"))


def test_a_record_never_makes_us_import_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / "__init__.py").write_text("")
    (tmp_path / "trap" / "sprung.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    record = write(tmp_path / "runs", "trap.sprung", {}, task="t", spec="trap.sprung:a=1")
    assert result(frame([record]), "trap.sprung").num_candidates == 1
    assert method_file("trap.sprung") is None and "trap.sprung" not in sys.modules


def test_unknown_tasks_are_said_to_have_no_runs(tmp_path: Path) -> None:
    with pytest.raises(NoRuns, match="no finished run of cmnist; make some with: evenhand bench cmnist"):
        of_task(frame([write(tmp_path, "erm")]), "cmnist")
    with pytest.raises(NoRuns):
        of_task(frame([]), "cmnist")


def test_the_interval_counts_the_test_images_once(tmp_path: Path) -> None:
    records = [write(tmp_path, "erm", PAIR, seed=s, wga=w) for s, w in enumerate((0.4, 0.5, 0.6))]
    assert results.interval(frame(records)) == wilson_interval(50, 100)
    other = write(tmp_path, "erm", PAIR, seed=3, wga=0.5, size=20)
    assert results.interval(frame([*records, other])) == wilson_interval(10, 20)  # the smallest worst group


def test_a_row_has_what_the_record_says(tmp_path: Path) -> None:
    record = write(tmp_path, "tab", {**PAIR, "summary": "loss"}, seed=3, wga=0.4, val=0.8, pseudo=True)
    (row,) = frame([record, record]).to_dict("records")
    assert (row["task"], row["method"], row["seed"], row["hyperparameters"]) == (
        *("even_odd", "tab", 3),
        {"summary": "loss"},
    )
    assert row["test_wga"] == 0.4 and row["val_accuracy_weighted"] == 0.8 and row["worst_size"] == 100
    assert row["identified"] == 0.8 and row["seconds"] == 10 and row["unshared"] == 15
    assert row["path"] == record.path and row["record"] is record and not row["older"] and not row["sealed"]
    (record.path / "timing.json").unlink()
    assert math.isnan(frame([Record(record.path)]).unshared.iloc[0])
    assert list(frame([]).columns) == list(row)


def test_groups_have_a_row_for_every_run(tmp_path: Path) -> None:
    runs = frame([write(tmp_path, "erm", PAIR, seed=s, wga=0.5) for s in (0, 1)])
    found = results.groups(runs)
    assert len(found) == 2 * 4 and set(found.over) == {"groups"}
    worst = found[found.group == "odd, green"]
    assert worst.accuracy.tolist() == [0.5, 0.5] and worst["count"].tolist() == [100, 100]
    assert (worst.low < 0.5).all() and (worst.high > 0.5).all()
    classes = results.groups(frame([write(tmp_path / "plain", "erm", PAIR, groups=False)]))
    assert classes.group.tolist() == ["odd", "even"] and set(classes.over) == {"classes"}


def test_a_whole_bench_is_complete(tmp_path: Path) -> None:
    rows = frame(whole(tmp_path))
    sizes = {name: result(rows, name).num_candidates for name in results.methods(rows)}
    assert sizes == {"erm": 5, "gdro": 4, "jtt": 25, "lff": 7, "masktune": 7, "tab": 1}
    assert all(results.missing(rows, name) == [] for name in sizes) and not left_out(rows)
    assert rule("gdro") == "wga" and rule("tab") == "accuracy" and rule("nobody.knows") == "accuracy"
    assert result(rows, "gdro").by == "wga" and set(results.pseudo_groups(rows)) == {0, 1, 2}
    assert [point["q"] for point in combinations(grid_of("even_odd", "lff") or {})][-1] == 0.95


@pytest.mark.parametrize("package", ["methods", "tasks"])
def test_what_a_file_declares_is_what_its_module_has(package: str) -> None:
    function = "train" if package == "methods" else "load"
    for name, found in plugins.declared(f"evenhand.{package}", function).items():
        module = plugins.load(f"evenhand.{package}", name, function)
        assert found.options == plugins.keywords(getattr(module, function))
        for constant in ("GRID", "GRIDS", "RECIPE", "NEEDS_GROUPS", "CONFLICTING", "COST", "VERSION"):
            assert getattr(found.constants, constant, "absent") == getattr(module, constant, "absent"), name


def test_reading_results_loads_no_torch(tmp_path: Path) -> None:
    packed = Path(__file__).parents[2] / "results" / "even_odd.zip"
    code = (
        "import sys; from evenhand.bench import results\n"
        f"runs = results.load({str(packed)!r}); print(len(runs), results.result(runs, 'tab').num_candidates)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["147", "1", "False"], done.stderr


def test_a_task_is_known_by_its_spec() -> None:
    found = task_file("even_odd:p=0.9")
    assert found is not None and found.options["p"] == 0.99 and found.constants.RECIPE.batch_size == 2048
