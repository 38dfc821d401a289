"""Power fails at any moment: a checkpoint never knows of an epoch that is not on disk, and the rest is made again."""

import os
import random
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_matrix import different
from lost_writes import Tree, broken_promises, losing, materialize
from scenarios import results, run, save_always

from evenhand.training import execute
from evenhand.training.loop import Training

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")


def moments(root: Path, *methods: str) -> list[Tree]:
    root.mkdir(parents=True)
    with losing(root) as disk:
        for method in methods:
            run(method)(root)
    return disk.moments


@pytest.fixture(scope="module", autouse=True)
def alike() -> Iterator[None]:
    """Two runs write the same files at the same places, and none starts git."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "_commit", lambda folder: "")
        patch.setattr(Training, "_save", Training._save)  # put back afterwards
        save_always()
        yield


@pytest.fixture(scope="module")
def lost(alike: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Tree]]:
    """A whole run, and what the disk would have held at every moment of it."""
    folder = tmp_path_factory.mktemp("lost")
    return folder / "whole", moments(folder / "whole", "erm", "tab")


def test_a_checkpoint_never_knows_of_an_epoch_that_is_not_on_disk(
    lost: tuple[Path, list[Tree]], tmp_path: Path
) -> None:
    _, trees = lost
    assert len(trees) > 100
    checkpoints = finished = 0
    for tree in trees:
        materialize(tree, tmp_path / "now")
        assert broken_promises(tmp_path / "now") == []
        checkpoints += any(name.endswith(".ckpt") for name in tree)
        finished += any(name.endswith("metrics.json") for name in tree)
    assert checkpoints > 50 and finished > 5, "the moments that matter were looked at"


def check_resumed(lost: tuple[Path, list[Tree]], chosen: list[Tree], root: Path) -> None:
    """After a loss of power, the same command comes to the same bytes, and nothing is damaged."""
    whole, _ = lost
    for tree in chosen:
        materialize(tree, root)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for method in ("erm", "tab"):
                run(method)(root)
        assert different(results(root), results(whole)) == []


def test_what_power_has_taken_is_made_again(lost: tuple[Path, list[Tree]], tmp_path: Path) -> None:
    check_resumed(lost, random.Random(0).sample(lost[1], 4), tmp_path / "now")


@pytest.mark.long
def test_what_power_has_taken_at_any_moment_is_made_again(
    lost: tuple[Path, list[Tree]], tmp_path: Path
) -> None:
    check_resumed(lost, lost[1], tmp_path / "now")


def test_a_writer_that_does_not_sync_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test itself: where histories and files are not synced, a checkpoint is ahead of the disk."""
    (tmp_path / "root").mkdir()
    with losing(tmp_path / "root") as disk:
        noting = os.fsync

        def only_checkpoints(number: int) -> None:
            if ".ckpt" in str(Path(f"/proc/self/fd/{number}").readlink()):
                noting(number)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", only_checkpoints)
            run("tab")(tmp_path / "root")
    wrong = []
    for tree in disk.moments:
        materialize(tree, tmp_path / "now")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrong += broken_promises(tmp_path / "now")
    assert any("that the histories do not hold" in each for each in wrong)
    assert any("the curve 0" in each for each in wrong)
