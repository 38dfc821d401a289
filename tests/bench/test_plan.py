"""Which runs are planned, in which waves and order, and where each is kept."""

import json
from pathlib import Path

import pytest

from evenhand.bench.needs import DYNAMICS, FIGURES, STRENGTHS, base, needs, searches, swept
from evenhand.bench.plan import PAPER, Planned, grid, locate, product, waves
from evenhand.bench.work import load
from evenhand.training.execute import execute
from evenhand.training.progress import Silent


def test_a_tasks_own_grid_replaces_the_methods() -> None:
    from evenhand.methods import lff
    from evenhand.tasks import even_odd

    assert grid("even_odd:p=0.95", "erm") == even_odd.GRIDS["erm"]
    assert grid("even_odd", "lff") == lff.GRID
    assert grid("mine.tiny", "lff") == {"q": [0.1, 0.5]} != lff.GRID


def test_a_planned_run_survives_json() -> None:
    planned = Planned("digits:p=0.8", "jtt", {"upweight": "ratio", "identifier_epochs": 3}, 2, {"epochs": 5})
    assert Planned(**json.loads(json.dumps(planned.as_json()))) == planned


def test_methods_that_search_the_learning_rate_begin_and_the_others_inherit_it() -> None:
    found = waves(load("mine.tiny", None), [*reversed(PAPER), "erm"], [0, 1], {"epochs": 3})
    assert [one.method for one in found.first] == ["erm"] * 4 + ["gdro"] * 4
    assert found.methods == ["tab", "lff", "jtt", "masktune"] and found.notes == []
    second = found.second({"lr": 0.01, "weight_decay": 0.0})
    assert len(second) == 2 * (1 + 2 + 4 + 2) == len({json.dumps(one.as_json()) for one in second})
    assert all(one.changes == {"epochs": 3, "lr": 0.01, "weight_decay": 0.0} for one in second)


def test_the_seeds_of_a_candidate_stand_together_and_jtts_longest_come_first() -> None:
    found = product("even_odd", ["jtt"], [0, 1, 2])
    assert [one.seed for one in found[:4]] == [0, 1, 2, 0]
    assert found[0].settings == {"identifier_epochs": 1, "upweight": 100}
    assert {one.settings["upweight"] for one in found[-15:]} == {"ratio"} and len(found) == 75


def test_settings_that_are_given_leave_a_part_of_the_grid_to_search() -> None:
    task = load("digits", None)
    plan = waves(task, ["erm:lr=0.001", "masktune", "jtt:upweight=ratio"], [0, 1], {})
    assert {one.settings["lr"] for one in plan.first} == {0.001}
    assert len(plan.first) == 2 * len(grid("digits", "erm")["weight_decay"])
    second = plan.second({"lr": 0.001, "weight_decay": 0.0})
    jtt = [one.settings for one in second if one.method == "jtt"]
    assert {one["upweight"] for one in jtt} == {"ratio"}
    assert {one["identifier_epochs"] for one in jtt} == set(grid("digits", "jtt")["identifier_epochs"])
    assert len([one for one in second if one.method == "masktune"]) == 2 * len(
        grid("digits", "masktune")["threshold"]
    )
    assert product("digits", ["jtt", "jtt:upweight=5"], [0]) == product("digits", ["jtt"], [0])
    assert product("digits", ["jtt:upweight=5.0"], [0])[0].settings["upweight"] == 5
    for text in ("jtt:upweight=3", "jtt:speed=3", "erm:lr=7", "jtt:identifier_epochs=true"):
        with pytest.raises(ValueError, match=r"is not in .*'s grid on digits, which has .*--no-search"):
            waves(task, [text], [0], {})


def test_erm_is_planned_for_those_that_inherit_and_gdro_not_without_groups() -> None:
    found = waves(load("mine.plain", None), ["tab", "gdro"], [0], {})
    assert {one.method for one in found.first} == {"erm"} and found.methods == ["tab"]
    assert any("no groups, which gdro needs: not planned" in note for note in found.notes)
    assert any("tab inherit from erm, so its grid is planned too" in note for note in found.notes)
    alone = waves(load("mine.plain", None), ["erm"], [0], {})
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
        waves(load("mine.tiny", None), ["jt"], [0], {})
    with pytest.raises(ValueError, match="has no setting 'upwait'"):
        locate(Planned("mine.tiny", "jtt", {"upwait": 3}), load("mine.tiny", None), Path("runs"), "cpu")


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
