"""The same bench as tasks of a real local Ray, of which one loses its worker process."""

import sys
from pathlib import Path

import pytest
from inline import bench, metrics, run_inline

from evenhand.bench.sweep import Ray, launch


def test_a_missing_ray_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"needs Ray.*pip install 'evenhand\[ray\]'"):
        Ray(1)


def test_with_a_worker_killed_on_the_way_the_results_are_the_same(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    methods = ["mine.fatal", "erm", "tab"]
    (tmp_path / "deaths").write_text("0")
    run_inline(bench(tmp_path / "inline", methods=methods, seeds=[0]))
    (tmp_path / "deaths").write_text("1")
    agenda = bench(tmp_path / "ray", methods=methods, seeds=[0])
    with Ray(2, device="cpu") as engine:
        assert engine.slots == 2
        launch(agenda, engine)
    assert (tmp_path / "deaths").read_text() == "0", "the worker was killed"
    assert agenda.left() == 0 and not agenda.failures()
    assert metrics(tmp_path / "ray") == metrics(tmp_path / "inline") != {}
