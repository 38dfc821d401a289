"""Which runs are planned, in which waves and order, and where each is kept."""

from pathlib import Path

import pytest

from evenhand.bench.grid import (
    DYNAMICS,
    FIGURES,
    PAPER,
    SEARCHED,
    STRENGTHS,
    Planned,
    base,
    part_of_grid,
    product,
    runs_of_figure,
    swept,
    waves,
)
from evenhand.bench.sweep import grouped, load, locate
from evenhand.training.execute import execute
from evenhand.training.log import Silent


def test_a_tasks_own_grid_replaces_the_methods() -> None:
    from evenhand.methods import lff
    from evenhand.tasks import even_odd

    assert part_of_grid("even_odd:p=0.95", "erm") == even_odd.GRIDS["erm"]
    assert part_of_grid("even_odd", "lff") == lff.GRID
    assert part_of_grid("mine.tiny", "lff") == {"q": [0.1, 0.5]} != lff.GRID


def test_methods_that_search_the_learning_rate_begin_and_the_others_inherit_it() -> None:
    found = waves("mine.tiny", [*reversed(PAPER), "erm"], [0, 1], {"epochs": 3})
    assert [one.method for one in found.first] == ["erm"] * 4 + ["gdro"] * 4
    assert found.methods == ["tab", "lff", "jtt", "masktune"] and found.notes == []
    second = found.second({"lr": 0.01, "weight_decay": 0.0})
    assert len(second) == 2 * (1 + 2 + 4 + 2) == len({repr(one) for one in second})
    assert all(one.changes == {"epochs": 3, "lr": 0.01, "weight_decay": 0.0} for one in second)


def test_the_seeds_of_a_candidate_stand_together_and_jtts_longest_come_first() -> None:
    found = product("even_odd", ["jtt"], [0, 1, 2])
    assert [one.seed for one in found[:4]] == [0, 1, 2, 0]
    assert found[0].settings == {"identifier_epochs": 1, "upweight": 100}
    assert {one.settings["upweight"] for one in found[-15:]} == {"ratio"} and len(found) == 75


def test_settings_that_are_given_leave_a_part_of_the_grid_to_search() -> None:
    plan = waves("digits", ["erm:lr=0.001", "masktune", "jtt:upweight=ratio"], [0, 1], {})
    assert {one.settings["lr"] for one in plan.first} == {0.001}
    assert len(plan.first) == 2 * len(part_of_grid("digits", "erm")["weight_decay"])
    second = plan.second({"lr": 0.001, "weight_decay": 0.0})
    jtt = [one.settings for one in second if one.method == "jtt"]
    assert {one["upweight"] for one in jtt} == {"ratio"}
    assert {one["identifier_epochs"] for one in jtt} == set(
        part_of_grid("digits", "jtt")["identifier_epochs"]
    )
    assert len([one for one in second if one.method == "masktune"]) == 2 * len(
        part_of_grid("digits", "masktune")["threshold"]
    )
    assert product("digits", ["jtt", "jtt:upweight=5"], [0]) == product("digits", ["jtt"], [0])
    assert product("digits", ["jtt:upweight=5.0"], [0])[0].settings["upweight"] == 5
    for text in ("jtt:upweight=3", "jtt:speed=3", "erm:lr=7", "jtt:identifier_epochs=true"):
        with pytest.raises(ValueError, match=r"is not in .*'s grid on digits, which has .*--no-search"):
            waves("digits", [text], [0], {})


def test_erm_is_planned_for_those_that_inherit_and_gdro_not_without_groups() -> None:
    known = grouped(load("mine.plain", None))
    found = waves("mine.plain", ["tab", "gdro"], [0], {}, known)
    assert {one.method for one in found.first} == {"erm"} and found.methods == ["tab"]
    assert any("no groups, so gdro, which needs them, is not planned" in note for note in found.notes)
    assert any("tab inherit from erm, so its grid is planned too" in note for note in found.notes)
    alone = waves("mine.plain", ["erm"], [0], {}, known)
    assert alone.notes == [] and alone.methods == []


@pytest.mark.parametrize(
    ("method", "settings", "changes"),
    [
        ("erm", {"lr": 1e-2, "weight_decay": 0.0}, {"epochs": 1}),
        ("jtt", {"identifier_epochs": 50, "upweight": 2}, {"epochs": 1, "patience": 50}),
        ("mine.failing", {"lr": 1e-2}, {"epochs": 1}),
    ],
)
def test_a_run_is_looked_for_where_execute_keeps_it(
    tmp_path: Path, method: str, settings: dict, changes: dict
) -> None:
    planned = Planned("mine.tiny:size=10", method, settings, 3, changes)
    task = load(planned.spec, None)
    recipe = task.recipe.replace(**changes)
    record = execute(
        task, method, settings, recipe=recipe, seed=3, runs=tmp_path, device="cpu", show=Silent()
    )
    assert locate(planned, task, tmp_path, "cpu") == record.path


def test_unknown_names_are_refused_before_anything_is_run() -> None:
    with pytest.raises(ValueError, match="unknown method 'jt'; known methods are adversarial, .*erm, "):
        waves("mine.tiny", ["jt"], [0], {})
    with pytest.raises(ValueError, match="has no setting 'upwait'"):
        locate(Planned("mine.tiny", "jtt", {"upwait": 3}), load("mine.tiny", None), Path("runs"), "cpu")


def test_figures_need_what_they_show() -> None:
    assert {run.method for run in runs_of_figure("training", "even_odd")} == {"erm", "tab"}
    assert all(run.changes == DYNAMICS for run in runs_of_figure("validation", "celeba:size=96", [0]))
    specs = {run.spec for run in runs_of_figure("correlation", "cmnist")}
    assert len(specs) == len(STRENGTHS) and "cmnist" in specs and "cmnist:p=0.995" in specs
    assert len(runs_of_figure("eta", "even_odd", [0, 1])) == 7 * 4 * 2
    assert runs_of_figure("cost", "even_odd") == [] and set(SEARCHED["cost"]) >= {"gdro", "jtt", "tab"}
    assert "eta" not in SEARCHED and len(FIGURES) == 7
    assert [base(spec)[1] for spec in swept("even_odd:p=0.7")] == list(STRENGTHS)
    assert base("cmnist:palette=hues")[0] == base("cmnist:p=0.5,palette=hues")[0] != base("cmnist")[0]
    with pytest.raises(ValueError, match="bar has no strength p to vary"):
        runs_of_figure("eta", "bar")
    with pytest.raises(ValueError, match="no figure 'six'; there are validation, selection"):
        runs_of_figure("six", "bar")
