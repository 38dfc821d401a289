"""Two processes that train together come to what one comes to, also when one of them dies on the way."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks_worker import (
    METHODS,
    carry_out,
    cnn_task,
    hooked_run,
    normalised_model,
    ranks_task,
    record,
    take_step,
)
from torch import nn

from evenhand import LossHistory, execute
from evenhand.core import ranks
from evenhand.training.batches import batch_sizes
from evenhand.training.log import Silent
from evenhand.training.record import Record, find

HERE = Path(__file__).parent
EXACT = ("metrics.json", "model.safetensors", "predictions.npz")


def torchrun(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Two ranks on this machine, without a GPU, that are expected to end within minutes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    paths = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [*command, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=600
    )


def work(command: str, *folders: Path) -> "subprocess.CompletedProcess[str]":
    return torchrun(HERE / "ranks_worker.py", command, *folders)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks leave when they do everything that ranks_worker.py knows."""
    folder = tmp_path_factory.mktemp("two")
    done = work("everything", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of a single process that computes two slices in turn."""
    folder = tmp_path_factory.mktemp("one")
    for method in METHODS:
        carry_out(method, ranks_task(slices=2), folder)
    return folder


def run_of(runs: Path, method: str) -> Record:
    (found,) = (record for record in find(runs) if record.method == method)
    return found


def same_bytes(first: Record, second: Record) -> None:
    assert first.path.name == second.path.name, "the key must not depend on the ranks"
    for name in EXACT:
        assert (first.path / name).read_bytes() == (second.path / name).read_bytes(), name


# -- slices ----------------------------------------------------------------------------------------------


@given(
    num_rows=st.integers(1, 60),
    batch_size=st.integers(1, 20),
    world=st.integers(1, 5),
    each=st.integers(1, 3),
)
def test_the_slices_of_all_ranks_are_the_batches(
    num_rows: int, batch_size: int, world: int, each: int
) -> None:
    order, sizes = torch.randperm(num_rows), batch_sizes(num_rows, batch_size)
    num = world * each
    found: list[list[torch.Tensor]] = [[] for _ in sizes]
    shares = np.zeros(len(sizes))
    with mock.patch.object(ranks, "count", lambda: world):
        for rank in range(world):
            with mock.patch.object(ranks, "number", lambda rank=rank: rank):
                rows, pieces = ranks.slices(order, sizes, num)
            batch, start = 0, 0
            for piece in pieces:
                assert piece.length >= 1 and piece.batch == sizes[batch]
                if piece.copies == 1 or rank == 0:
                    found[batch].append(rows[start : start + piece.length])
                shares[batch] += piece.share
                start, batch = start + piece.length, batch + piece.last
            assert batch == len(sizes) and start == len(rows), "every rank takes part in every update"
    assert torch.equal(torch.cat([part for batch in found for part in batch]), order)
    np.testing.assert_allclose(shares, 1)


def test_slices_that_ranks_cannot_share_are_refused() -> None:
    with (
        mock.patch.object(ranks, "count", lambda: 2),
        pytest.raises(ValueError, match="slices must be 1 or a multiple of the number of ranks, 2, got 3"),
    ):
        ranks.check_stage("erm", "folder", "", 3)


@pytest.mark.parametrize("kind, sizes", [("even", [8]), ("uneven", [13]), ("tiny", [12, 1])])
def test_gradients_and_batch_normalisation_are_those_of_one_process(
    two: Path, kind: str, sizes: list[int]
) -> None:
    model = normalised_model() if kind != "tiny" else normalised_model()[:1].append(nn.Flatten())
    expected = take_step(model, sizes)
    for rank in range(2):
        found = torch.load(two / f"{kind}-{rank}.pt", weights_only=True)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-5, msg=name)


# -- histories -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_ranks_keep_one_history(two: Path, dtype: torch.dtype) -> None:
    alone = LossHistory(13, dtype=dtype)
    record(alone, 0, 1)
    expected = alone.losses.numpy()
    for found in (f"kept-{dtype}-0.npy", f"kept-{dtype}-1.npy", f"{dtype}.npy"):
        np.testing.assert_allclose(np.load(two / found), expected, rtol=1e-6)


# -- runs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_two_ranks_leave_the_bytes_of_one_process_with_two_slices(two: Path, one: Path, method: str) -> None:
    found, expected = run_of(two / "exact", method), run_of(one, method)
    same_bytes(found, expected)
    assert found.config["versions"]["ranks"] == "2" and "ranks" not in expected.config["versions"]
    first = "identifier" if method == "evenhand" else "erm"
    for name in ("losses", "hits", "val_losses"):
        ours, theirs = (np.load(run.stage(first) / f"{name}.npy") for run in (found, expected))
        np.testing.assert_array_equal(ours, theirs)


def test_two_ranks_find_the_partition_of_one_process(two: Path, tmp_path: Path) -> None:
    found, expected = run_of(two / "plain", "tab"), Record(carry_out("tab", ranks_task(), tmp_path))
    assert found.path.name == expected.path.name, "the key must not depend on the ranks"
    assert found.metrics["epochs"] == expected.metrics["epochs"]
    np.testing.assert_allclose(found.losses(), expected.losses(), atol=1e-5)
    np.testing.assert_array_equal(found.partition.minority, expected.partition.minority)
    assert found.partition.minority.any()
    curves = [[row["loss"] for row in run.epochs("model")] for run in (found, expected)]
    np.testing.assert_allclose(*curves, atol=1e-4)
    assert found.metrics["test"]["accuracy"] == pytest.approx(expected.metrics["test"]["accuracy"], abs=0.02)


def test_two_ranks_leave_the_bytes_of_one_process_with_the_paper_s_network(two: Path, tmp_path: Path) -> None:
    found, expected = run_of(two / "cnn", "tab"), Record(carry_out("tab", cnn_task(), tmp_path))
    assert found.config["full_recipe"]["slices"] == 1  # nobody asked for them
    same_bytes(found, expected)
    np.testing.assert_array_equal(found.losses(), expected.losses())
    assert found.partition.minority.any()


def test_fit_gives_every_rank_the_same(two: Path) -> None:
    first, second = (np.load(two / f"fit-{rank}.npy") for rank in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("method, objective", [("gdro", "WorstGroup"), ("lff", "Failures")])
def test_objectives_that_need_whole_batches_are_refused(two: Path, method: str, objective: str) -> None:
    for rank in range(2):
        message = json.loads((two / f"refused-{rank}.json").read_text())[method]
        assert f"the objective {objective} does not declare that batches may be cut" in message
        assert "run it without torchrun and with slices=1" in message


def test_a_step_of_its_own_is_refused(two: Path) -> None:
    message = json.loads((two / "refused-1.json").read_text())["step"]
    assert "the objective Stepping has a step of its own for whole batches" in message
    assert "run it without torchrun and with slices=1" in message and "separable" not in message


def test_ranks_compute_the_features_together(two: Path, tmp_path: Path) -> None:
    run = hooked_run(tmp_path)
    trained = run.fit("erm", stop=2)
    expected = run.features(trained, run.train.take(np.arange(3000) % len(run.train)))
    for name in ("features", "module-features"):
        for rank in range(2):
            np.testing.assert_array_equal(np.load(two / f"{name}-{rank}.npy"), expected)


# -- deaths ----------------------------------------------------------------------------------------------


class Interrupted(Exception):
    pass


class StopAt(Silent):
    """Dies in the middle of the third epoch."""

    epochs = 0

    def epoch(self, row: dict) -> None:
        self.epochs = row["epoch"]

    def advance(self, samples: int) -> None:
        if self.epochs == 2:
            raise Interrupted


def test_a_run_continues_whoever_died_and_however_many_go_on(one: Path, tmp_path: Path) -> None:
    whole, task = run_of(one, "tab"), ranks_task(slices=2)
    died = work("killed", tmp_path / "two then two")
    assert died.returncode != 0 and "Signal 9 (SIGKILL)" in died.stderr
    assert list(tmp_path.glob("*/*/stages/*/last.ckpt")), "it died before anything was kept"
    assert not list(find(tmp_path / "two then two"))
    shutil.copytree(tmp_path / "two then two", tmp_path / "two then one")
    with pytest.raises(Interrupted):
        execute(task, "tab", runs=tmp_path / "one then two", device="cpu", show=StopAt())
    continued = work("continue", tmp_path / "two then two", tmp_path / "one then two")
    assert continued.returncode == 0, continued.stderr
    carry_out("tab", task, tmp_path / "two then one")
    for name in ("two then two", "one then two", "two then one"):
        resumed = run_of(tmp_path / name, "tab")
        same_bytes(resumed, whole)
        np.testing.assert_array_equal(resumed.losses(), whole.losses())


def test_an_error_on_one_rank_ends_all(tmp_path: Path) -> None:
    failed = work("failed", tmp_path)
    assert failed.returncode != 0
    assert "OSError: the disk of rank 1 is gone" in failed.stderr


# -- the command line ------------------------------------------------------------------------------------


def test_the_command_line_prints_once_and_trains_together(tmp_path: Path) -> None:
    settings = ("--runs", tmp_path, "--epochs", 2, "--limit", 60, "--json", "--quiet")
    done = torchrun("-m", "evenhand", "run", "digits_even_odd", "tab", *settings)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert result["method"] == "tab"
    assert run_of(tmp_path, "tab").config["versions"]["ranks"] == "2"
