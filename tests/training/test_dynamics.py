"""dynamics.json and val_partition.npz: what figures and group-free selection read of a run."""

import dataclasses
from pathlib import Path

import numpy as np
from shortcut import shortcut_task

from evenhand.core.partition import partition
from evenhand.training.execute import execute


def test_curves_are_those_of_the_histories(tmp_path: Path) -> None:
    task = shortcut_task(per_class=60, aligned=0.5)
    record = execute(task, "tab", runs=tmp_path, device="cpu")
    dynamics = record.dynamics
    assert dynamics is not None and list(dynamics["stages"]) == ["erm"]  # "model" is not recorded
    epochs = record.metrics["epochs"]["erm"]
    for part, split in (("train", task.train), ("val", task.val)):
        prefix = "" if part == "train" else "val_"
        losses, hits = (np.load(record.stage("erm") / f"{prefix}{name}.npy") for name in ("losses", "hits"))
        conflicting = np.isin(split.group.numpy(), list(task.conflicting))
        for name, rows in (("aligned", ~conflicting), ("conflicting", conflicting)):
            curve = dynamics["stages"]["erm"][part][name]
            assert curve["count"] == rows.sum() > 0
            for epoch in range(epochs):
                np.testing.assert_allclose(curve["loss"][epoch], losses[rows, epoch].mean(), rtol=1e-5)
                np.testing.assert_allclose(curve["accuracy"][epoch], hits[rows, epoch].mean(), rtol=1e-9)
            assert len(curve["loss"]) == len(curve["accuracy"]) == epochs
    # The last validation accuracy is the one of the learning curve.
    val = dynamics["stages"]["erm"]["val"]
    counts = [val[name]["count"] for name in ("aligned", "conflicting")]
    last = np.average([val[name]["accuracy"][-1] for name in ("aligned", "conflicting")], weights=counts)
    np.testing.assert_allclose(last, record.epochs("erm")[-1]["val_accuracy"], rtol=1e-9)


def test_clusters_add_up_to_the_identification_scores(tmp_path: Path) -> None:
    record = execute(shortcut_task(), "tab", runs=tmp_path, device="cpu")
    assert record.dynamics is not None
    cells, scores = record.dynamics["clusters"], record.metrics["identification"]
    found = [cell for cell in cells if cell["cluster"] == "minority"]
    conflicting = sum(cell["conflicting"] for cell in found)
    np.testing.assert_allclose(conflicting / sum(cell["size"] for cell in found), scores["purity"])
    np.testing.assert_allclose(conflicting / sum(cell["conflicting"] for cell in cells), scores["identified"])
    assert sum(cell["size"] for cell in cells) == len(shortcut_task().train)


def test_the_validation_set_is_partitioned_by_its_own_losses(tmp_path: Path) -> None:
    task = shortcut_task()
    record = execute(task, "tab", runs=tmp_path, device="cpu")
    losses = np.load(record.stage("erm") / "val_losses.npy")[:, : record.metrics["epochs"]["erm"]]
    wanted = partition(losses, task.val.y)
    assert record.val_partition is not None
    np.testing.assert_array_equal(record.val_partition.minority, wanted.minority)
    np.testing.assert_array_equal(record.val_partition.labels, task.val.y)
    assert len(record.predictions["val"]) == len(task.val)


def test_without_groups_there_are_no_curves(tmp_path: Path) -> None:
    task = shortcut_task()
    bare = dataclasses.replace(task.without_groups(), conflicting=frozenset())
    record = execute(bare, "tab", runs=tmp_path, device="cpu")
    assert record.dynamics is None
    assert record.val_partition is not None
    assert execute(task, "erm", runs=tmp_path, device="cpu").val_partition is None
