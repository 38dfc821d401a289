"""Selection, PoU and MMS equal hand-made answers: ties, zeros, missing seeds and unfinished grids included."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from made_bench import LABELS, whole, write

from evenhand.bench.grid import combinations, grid_of, method_file, rule
from evenhand.bench.needs import DYNAMICS, FIGURES, STRENGTHS, base, needs, searches, swept
from evenhand.bench.result import interval, price, result
from evenhand.bench.select import (
    NoRuns,
    best,
    candidates,
    gather,
    num_equal,
    recipe_changes,
    scores,
    scores_on_test,
    select,
)
from evenhand.core.metrics import wilson_interval
from evenhand.training.recipe import Recipe
from evenhand.training.record import Record

PAIR = {"lr": 1e-3, "weight_decay": 0.0}


def lff(runs: Path, q: float, **values: float) -> Record:
    return write(runs, "lff", {"q": q, **PAIR}, **values)


def test_the_best_mean_over_seeds_is_selected_by_each_criterion(tmp_path: Path) -> None:
    records = [
        *(
            lff(tmp_path, 0.05, seed=s, wga=0.2, val=v, val_wga=0.1, wrong=2)
            for s, v in enumerate((0.9, 0.96))
        ),
        *(lff(tmp_path, 0.1, seed=s, wga=0.6, val=0.92, val_wga=0.9, wrong=1) for s in (0, 1)),
        *(lff(tmp_path, 0.5, seed=s, wga=0.7, val=0.91, val_wga=0.4, wrong=0) for s in (0, 1)),
        *(write(tmp_path, "tab", PAIR, seed=s, pseudo=True) for s in (0, 1)),
    ]
    found = candidates(records, "even_odd", "lff")
    assert [each.settings for each in found] == [{"q": 0.05}, {"q": 0.1}, {"q": 0.5}]
    assert [each.task for each in found] == ["even_odd"] * 3 and list(found[0].records) == [0, 1]
    assert select(found).settings == {"q": 0.05}  # 0.93, 0.92, 0.91
    assert select(found, "wga").settings == {"q": 0.1}
    assert select(found, "worst_class").settings == {"q": 0.1}  # (0.9 + 0.92) / 2
    pseudo = gather(records, "even_odd").pseudo
    assert select(found, "worst_pseudo_group", pseudo=pseudo).settings == {"q": 0.5}
    table = scores(found, "worst_pseudo_group", pseudo=pseudo)
    np.testing.assert_allclose(table, [[0, 0], [0.5, 0.5], [1, 1]])  # of two samples set apart in each class


def test_the_accuracy_that_selects_is_the_weighted_one(tmp_path: Path) -> None:
    records = [lff(tmp_path, 0.05, val=0.9, unweighted=0.95), lff(tmp_path, 0.1, val=0.92, unweighted=0.85)]
    found = candidates(records, "even_odd", "lff")
    assert scores(found).tolist() == [[0.9], [0.92]] and select(found).settings == {"q": 0.1}


def test_pseudo_groups_are_needed_and_must_fit(tmp_path: Path) -> None:
    found = candidates([lff(tmp_path, 0.05)], "even_odd", "lff")
    with pytest.raises(ValueError, match="needs the validation set's pseudo-groups, which runs of tab leave"):
        select(found, "worst_pseudo_group")
    with pytest.raises(ValueError, match="one of accuracy, wga, worst_class, worst_pseudo_group, got 'luck'"):
        select(found, "luck")
    with pytest.raises(ValueError, match="no candidate to select from"):
        select([])
    tab = write(tmp_path, "tab", PAIR, pseudo=True)
    parts = tab.val_partition
    assert parts is not None and len(parts.labels) == len(LABELS)
    short = np.savez_compressed(found[0].records[0].path / "predictions.npz", val=np.zeros(3, dtype=np.int32))
    assert short is None
    with pytest.raises(
        ValueError, match="predicts 3 validation samples, but this task's pseudo-groups are of 12"
    ):
        select(found, "worst_pseudo_group", pseudo={0: parts})


def test_the_first_of_equals_wins(tmp_path: Path) -> None:
    records = [lff(tmp_path, q, wga=w, val=0.9) for q, w in ((0.1, 0.3), (0.05, 0.5), (0.5, 0.5))]
    found = candidates(reversed(records), "even_odd", "lff")
    assert [each.settings["q"] for each in found] == [
        0.05,
        0.1,
        0.5,
    ]  # the grid's order, not that of the files
    assert select(found).settings == {"q": 0.05}
    outcome = result(gather(records, "even_odd"), "lff")
    assert outcome.oracle.settings == {"q": 0.05} and outcome.pou is not None and outcome.pou.mean == 1


def test_price_and_mean_have_their_known_values(tmp_path: Path) -> None:
    wga = {0.05: (0.2, 0.4), 0.1: (0.4, 0.6), 0.5: (0.0, 0.0), 0.9: (0.3, 0.3)}
    val = {0.05: 0.95, 0.1: 0.9, 0.5: 0.99, 0.9: 0.8}
    records = [lff(tmp_path, q, seed=s, wga=wga[q][s], val=val[q]) for q in wga for s in (0, 1)]
    bench = gather(records, "even_odd")
    outcome = result(bench, "lff")
    assert outcome.selected.settings == {"q": 0.5} and outcome.wga.mean == 0  # what accuracy alone selects
    assert outcome.pou is not None  # of the candidates with a WGA above zero: 0.05 is selected, 0.1 is best
    assert outcome.pou.per_seed == pytest.approx((2.0, 1.5))
    assert outcome.pou.mean == pytest.approx(1.75) and outcome.pou.deviation == pytest.approx(0.25)
    assert outcome.pou.ratio_of_means == pytest.approx(0.5 / 0.3)
    assert outcome.mms.per_seed == pytest.approx((0.225, 0.325))  # the zeros count here
    assert outcome.mms.mean == pytest.approx(0.275) and outcome.mms.deviation == pytest.approx(0.05)
    assert outcome.oracle.settings == {"q": 0.1} and outcome.oracle_wga.mean == pytest.approx(0.5)


def test_nothing_but_zeros_has_no_price(tmp_path: Path) -> None:
    bench = gather([lff(tmp_path, q, wga=0.0) for q in (0.05, 0.1)], "even_odd")
    assert result(bench, "lff").pou is None and result(bench, "lff").mms.mean == 0


def test_missing_seeds_are_missing_not_zero(tmp_path: Path) -> None:
    records = [
        lff(tmp_path, 0.05, seed=0, wga=0.2, val=0.9),
        lff(tmp_path, 0.05, seed=2, wga=0.4, val=0.9),
        lff(tmp_path, 0.1, seed=0, wga=0.6, val=0.8),
        lff(tmp_path, 0.1, seed=1, wga=0.9, val=0.8),
    ]
    bench = gather(records, "even_odd")
    found = bench.candidates("lff")
    table = scores_on_test(found)
    assert bench.seeds == [0, 1, 2] and math.isnan(table[0, 1]) and math.isnan(table[1, 2])
    assert best(np.array([[0.9, math.nan, math.nan], [0.8, 0.8, 0.8]])) == 0
    worth = price(found, "accuracy", bench)
    assert worth is not None and worth.per_seed == pytest.approx((3.0,))  # only seed 0 has both
    assert worth.ratio_of_means == pytest.approx(0.75 / 0.3)
    assert result(bench, "lff").mms.per_seed == pytest.approx((0.4, 0.9, 0.4))
    missing = bench.missing("lff")
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
    records = [
        write(tmp_path, "erm", {"lr": 1e-3, "weight_decay": 0.0}, val=0.9, wga=0.9),
        write(tmp_path, "erm", {"lr": 1e-3, "weight_decay": 1e-4}, val=0.95, wga=0.1),
        write(tmp_path, "tab", {"lr": 1e-3, "weight_decay": 0.0}, wga=0.99),
        write(tmp_path, "tab", {"lr": 1e-3, "weight_decay": 1e-4}, wga=0.5),
        write(tmp_path, "gdro", {"lr": 1e-3, "weight_decay": 1e-2}, wga=0.8),
    ]
    bench = gather(records, "even_odd")
    assert bench.pair == {"lr": 1e-3, "weight_decay": 1e-4} and bench.methods == ["erm", "gdro", "tab"]
    (tab,) = bench.candidates("tab")
    assert tab.settings == {} and tab.records[0].metrics["test"]["wga"] == 0.5
    (gdro,) = bench.candidates("gdro")  # it searches its own
    assert gdro.settings == {"lr": 1e-3, "weight_decay": 1e-2}
    assert bench.left_out == {"of tab without ERM's selected lr=0.001, weight_decay=0.0001": 1}


def test_without_erm_the_commonest_pair_counts(tmp_path: Path) -> None:
    records = [write(tmp_path, "tab", {"weight_decay": 1e-4}, seed=s) for s in (0, 1)]
    records.append(write(tmp_path, "tab", {"weight_decay": 1.0}))
    bench = gather(records, "even_odd")
    assert bench.pair == {"lr": 1e-3, "weight_decay": 1e-4} and sum(bench.left_out.values()) == 1


def test_a_recipes_field_that_is_no_more_tells_runs_apart_only_where_it_was_changed(tmp_path: Path) -> None:
    records = [write(tmp_path, "erm", PAIR, seed=s) for s in range(3)]
    for record, changed in zip(records[1:], ({}, {"gone": 2}), strict=True):
        config = json.loads((record.path / "config.json").read_text())
        config["full_recipe"]["gone"] = changed.get("gone", 1)
        config["recipe"].update(changed)
        (record.path / "config.json").write_text(json.dumps(config))
    bench = gather([Record(record.path) for record in records], "even_odd")
    assert len(bench.records) == 2 and bench.left_out == {"of another recipe": 1}


def test_only_runs_of_one_recipe_are_compared(tmp_path: Path) -> None:
    long = Recipe(batch_size=2048, precision="fp32", **DYNAMICS)
    records = [write(tmp_path, "erm", PAIR, seed=s, recipe=long, wga=0.9) for s in range(4)]
    records += [write(tmp_path, "erm", PAIR, wga=0.5)]
    bench = gather(records, "even_odd")  # the task's own recipe, though more runs have another
    assert [r.metrics["test"]["wga"] for r in bench.records] == [0.5] and recipe_changes(bench) == {}
    assert bench.left_out == {"of another recipe": 4}
    asked = gather(records, "even_odd", DYNAMICS)
    assert len(asked.records) == 4 and recipe_changes(asked) == DYNAMICS
    assert gather(records[:4], "even_odd").recipe["epochs"] == 50  # nothing else is there
    assert candidates(records, "even_odd", "erm", {"epochs": 7}) == []
    with pytest.raises(NoRuns, match="no finished run of even_odd with epochs=7"):
        gather(records, "even_odd", {"epochs": 7})


def test_precision_is_no_other_recipe_but_is_not_mixed(tmp_path: Path) -> None:
    other = Recipe(batch_size=2048, precision="bf16")
    records = [write(tmp_path, "erm", PAIR, seed=s, recipe=other) for s in (0, 1)]
    records += [write(tmp_path, "erm", PAIR, seed=0)]
    bench = gather(records, "even_odd")
    assert recipe_changes(bench) == {} and bench.recipe["precision"] == "bf16" and len(bench.records) == 2


def test_older_and_newer_records_are_never_mixed(tmp_path: Path) -> None:
    old = [write(tmp_path, "erm", PAIR, seed=s, wga=0.1, older=True) for s in (0, 1)]
    new = [write(tmp_path, "erm", PAIR, seed=s, wga=0.9) for s in (1, 2, 3)]
    bench = gather([*old, *new], "even_odd")
    assert {record.metrics["test"]["wga"] for record in bench.records} == {0.9}
    assert bench.left_out == {"of older records": 2}
    few = gather([*old, new[0]], "even_odd")
    assert all(record.older for record in few.records) and few.left_out == {"of newer records": 1}
    as_many = gather([*old, *new[:2]], "even_odd")
    assert not any(record.older for record in as_many.records)


def test_of_several_ways_of_computing_most_runs_count(tmp_path: Path) -> None:
    records = [write(tmp_path, "erm", PAIR, seed=s, compute="compiled") for s in (0, 1)]
    records += [write(tmp_path, "erm", PAIR, seed=2), write(tmp_path, "erm", PAIR, seed=3, numerics=2)]
    bench = gather(records, "even_odd")
    (erm,) = bench.candidates("erm")
    assert sorted(erm.records) == [0, 1] and bench.recipe["compute"] == "compiled"
    assert bench.left_out == {"with compute=eager": 1, "with compute=eager, numerics=2": 1}
    assert recipe_changes(bench) == {}


def test_of_several_versions_of_a_method_most_runs_count_and_then_the_newest(tmp_path: Path) -> None:
    records = [write(tmp_path, "erm", PAIR, seed=s) for s in (0, 1)]
    records += [write(tmp_path, "tab", seed=s, version=v) for s, v in ((0, 9), (1, 9), (2, 10))]
    bench = gather(records, "even_odd")
    assert {name: sorted(each.records) for name in bench.methods for each in bench.candidates(name)} == {
        "erm": [0, 1],
        "tab": [0, 1],
    }
    assert bench.left_out == {"of tab with version=10": 1}
    (tab,) = gather([*records[:3], records[-1]], "even_odd").candidates("tab")
    assert sorted(tab.records) == [2], "of equally many the newest"


def test_what_stands_outside_the_grid_is_left_out_and_said(tmp_path: Path) -> None:
    records = [
        lff(tmp_path, 0.05),
        lff(tmp_path, 0.3, wga=0.99),
        write(tmp_path, "lff", {"q": 0.1, "scale_by_q": False, **PAIR}, wga=0.99),
        lff(tmp_path, 0.05, data="other"),
    ]
    bench = gather(records, "even_odd")
    assert [each.settings for each in bench.candidates("lff")] == [{"q": 0.05}]
    assert bench.left_out == {
        "of lff outside its grid": 1,
        "of lff with scale_by_q=False": 1,
        "of lff done twice, on other data or code": 1,
    }


def test_default_settings_count_though_records_omit_them(tmp_path: Path) -> None:
    record = write(tmp_path, "jtt", PAIR)  # 50 and 25 are the method's defaults
    (found,) = candidates([record], "even_odd", "jtt")
    assert found.settings == {"identifier_epochs": 50, "upweight": 25}
    assert found.name == "identifier_epochs=50, upweight=25"


def test_a_method_or_task_that_is_not_here_still_has_candidates(tmp_path: Path) -> None:
    records = [
        write(tmp_path, "mine.method", {"b": b, "a": 1}, task="theirs", spec="not.here", wga=b)
        for b in (0.2, 0.1)
    ]
    bench = gather(records, "theirs")
    assert [each.settings for each in bench.candidates("mine.method")] == [
        {"a": 1, "b": 0.1},
        {"a": 1, "b": 0.2},
    ]
    assert bench.missing("mine.method") == [] and result(bench, "mine.method").wga.mean in (0.1, 0.2)
    assert gather(records, "not.here").task == "theirs"


def test_a_record_never_makes_us_import_a_module(tmp_path: Path) -> None:
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / "__init__.py").write_text("")
    (tmp_path / "trap" / "sprung.py").write_text("raise SystemExit('imported')")
    import sys

    sys.path.insert(0, str(tmp_path))
    try:
        record = write(tmp_path / "runs", "trap.sprung", {}, task="t", spec="trap.sprung:a=1")
        assert result(gather([record], "t"), "trap.sprung").num_candidates == 1
        assert method_file("trap.sprung") is None and "trap.sprung" not in sys.modules
    finally:
        sys.path.remove(str(tmp_path))


def test_unknown_tasks_are_said_to_have_no_runs(tmp_path: Path) -> None:
    assert candidates([], "even_odd", "erm") == []
    with pytest.raises(ValueError, match="no finished run of cmnist; make some with: evenhand bench cmnist"):
        gather([write(tmp_path, "erm")], "cmnist")


def test_the_interval_counts_the_test_images_once(tmp_path: Path) -> None:
    records = [write(tmp_path, "erm", PAIR, seed=s, wga=w) for s, w in enumerate((0.4, 0.5, 0.6))]
    assert interval(records) == wilson_interval(50, 100)
    other = write(tmp_path, "erm", PAIR, seed=3, wga=0.5, size=20)
    assert interval([*records, other]) == wilson_interval(10, 20)  # the smallest worst group


def test_a_whole_bench_is_complete(tmp_path: Path) -> None:
    records = whole(tmp_path)
    bench = gather(records, "even_odd")
    sizes = {name: len(bench.candidates(name)) for name in bench.methods}
    assert sizes == {"erm": 5, "gdro": 4, "jtt": 25, "lff": 7, "masktune": 7, "tab": 1}
    assert all(bench.missing(name) == [] for name in bench.methods) and not bench.left_out
    assert rule("gdro") == "wga" and rule("tab") == "accuracy" and rule("nobody.knows") == "accuracy"
    assert result(bench, "gdro").by == "wga" and set(bench.pseudo) == {0, 1, 2}
    assert [point["q"] for point in combinations(grid_of("even_odd", "lff") or {})][-1] == 0.95


def test_figures_need_what_they_show() -> None:
    assert {run.method for run in needs("training", "even_odd")} == {"erm", "tab"}
    assert all(run.changes == DYNAMICS for run in needs("validation", "celeba:size=96", [0]))
    specs = {run.spec for run in needs("correlation", "cmnist")}
    assert len(specs) == len(STRENGTHS) and "cmnist" in specs and "cmnist:p=0.995" in specs
    assert len(needs("eta", "even_odd", [0, 1])) == 7 * 4 * 2
    assert needs("cost", "even_odd") == [] and set(searches("cost")) >= {"gdro", "jtt", "tab"}
    assert searches("eta") == () and len(FIGURES) == 7
    assert [base(spec)[1] for spec in swept("even_odd:p=0.7")] == list(STRENGTHS)
    assert base("cmnist:palette=hues")[0] == base("cmnist:p=0.5,palette=hues")[0] != base("cmnist")[0]
    with pytest.raises(ValueError, match="bar has no strength p to vary"):
        needs("eta", "bar")
    with pytest.raises(ValueError, match="no figure 'six'; there are validation, selection"):
        needs("six", "bar")
