"""The five methods of docs/extending.md are complete: they run, resume and leave records that predict."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from shortcut import shortcut_task

from evenhand import Task, execute
from evenhand.integrations.prediction import predict
from evenhand.training.log import Silent
from evenhand.training.record import Record

PAGE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text()
FOLDER = Path(__file__).parents[1] / "examples" / "methods"
NAMES = re.findall(r"^```{literalinclude} \.\./examples/methods/(\w+)\.py$", PAGE, re.MULTILINE)
EXAMPLES = {name: (FOLDER / f"{name}.py").read_text() for name in NAMES}
MOST_LINES = 40


class Interrupted(Exception):
    pass


class StopAt(Silent):
    """Raises once, in the second epoch of the last training."""

    def __init__(self, stage: str) -> None:
        self.stage, self.now = stage, 0

    def start(self, title: str, *, epochs: int, samples: int, done: int = 0) -> None:
        self.title, self.now = title, done

    def epoch(self, row: dict) -> None:
        self.now = row["epoch"]

    def advance(self, samples: int) -> None:
        if self.title == self.stage and self.now == 1:
            raise Interrupted


def made(task: Task, method: str, runs: Path, show: Silent | None = None) -> Record:
    return execute(task, method, runs=runs, device="cpu", show=show or Silent())


def test_there_are_five() -> None:
    assert list(EXAMPLES) == ["cvar_dro", "dfr", "eiil", "tab_boosting", "adversarial"]
    assert sorted(EXAMPLES) == sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.fixture(autouse=True)
def _modules_of_the_page_are_forgotten() -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "study"]:
        del sys.modules[name]


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs_resumes_and_predicts(
    name: str, num_classes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = EXAMPLES[name]
    assert len(source.splitlines()) <= MOST_LINES
    assert max(map(len, source.splitlines())) <= 110
    package = tmp_path / "study"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    task = shortcut_task(num_classes, per_class=40, aligned=0.8)
    task = dataclasses.replace(task, recipe=task.recipe.replace(epochs=6, lr=0.01, model="mlp"))

    whole = made(task, f"study.{name}", tmp_path / "whole")
    stage = {"dfr": "erm", "tab_boosting": ""}.get(name, "model")
    if stage:
        with pytest.raises(Interrupted):
            made(task, f"study.{name}", tmp_path / "again", StopAt(stage))
    else:  # estimators resume by stages
        made(task, f"study.{name}", tmp_path / "again")
        next((tmp_path / "again").rglob("metrics.json")).unlink()
    again = made(task, f"study.{name}", tmp_path / "again")
    for file in ("metrics.json", "model.safetensors", "predictions.npz"):
        assert (again.path / file).read_bytes() == (whole.path / file).read_bytes(), file
    assert (whole.metrics["identification"] is not None) == (name in ("eiil", "tab_boosting"))
    assert whole.metrics["test"]["accuracy"] > 1.5 / num_classes

    np.save(tmp_path / "x.npy", np.asarray(task.test.x))
    found = predict(whole.path, tmp_path / "x.npy", device="cpu")
    assert found.classes == [task.class_names[label] for label in whole.predictions["test"]]


def test_every_hook_is_on_the_page_and_every_option_in_the_docstring() -> None:
    import inspect

    from evenhand.training.run import Run

    public = [name for name, each in vars(Run).items() if inspect.isfunction(each) and name[0] != "_"]
    missing = [name for name in public if name != "make_network" and f"run.{name}(" not in PAGE]
    options = [*inspect.signature(Run.fit).parameters][1:]
    missing += [name for name in options if f"- `{name}`: " not in (Run.fit.__doc__ or "")]
    assert missing == []
