"""Accelerate and Fabric in two processes: everybody's samples, once, and the whole history in both."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BEGIN = """
import os, sys, torch, numpy as np
from torch.utils.data import DataLoader, TensorDataset
from evenhand import BalancedSampler, indexed, partition
from evenhand.integrations.torch import Recorder, balanced_loader
torch.set_num_threads(1)
data = TensorDataset(torch.arange(40.0), torch.arange(40) % 2)
loader = DataLoader(indexed(data), batch_size=4, shuffle=True)
late = np.where(np.arange(40) >= 34, 2.0, 0.1)[:, None] + 0.01 * np.random.default_rng(0).random((40, 3))
parts = partition(late, data.tensors[1])
recorder = Recorder(40)
"""
END = """
for epoch in range(2):
    for x, y, index in first:
        recorder.record(index, x + epoch)
    recorder.end_epoch()
seen = [index.tolist() for _, _, index in second]
np.save(f"losses-{rank}.npy", recorder.history.losses.numpy())
np.save(f"seen-{rank}.npy", np.concatenate(seen))
torch.distributed.barrier()
os._exit(0)  # gloo's threads can abort the interpreter as it exits
"""
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
rank = accelerator.process_index
first = accelerator.prepare(loader)
second = accelerator.prepare(balanced_loader(loader, parts, shard=False))
"""
FABRIC = """
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
rank = fabric.global_rank
first = fabric.setup_dataloaders(loader)
second = fabric.setup_dataloaders(balanced_loader(loader, parts))
"""


@pytest.mark.parametrize(("name", "code"), [("accelerate", ACCELERATE), ("lightning", FABRIC)])
def test_two_processes_share_an_epoch_and_both_know_the_history(name: str, code: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    (tmp_path / "script.py").write_text(BEGIN + code + END)
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "script.py",
    ]
    done = subprocess.run(launch, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = np.arange(40.0)[:, None] + [[0, 1]]
    seen = [np.load(tmp_path / f"seen-{rank}.npy") for rank in (0, 1)]
    for rank in (0, 1):
        assert np.array_equal(np.load(tmp_path / f"losses-{rank}.npy"), expected)
    counts = np.bincount(np.concatenate(seen), minlength=40)
    assert len(seen[0]) == len(seen[1]) and len(seen[0]) < 40, "each has a share"
    assert counts[:34].min() >= 1 and counts[34:].min() >= 2 and counts[:34].max() <= 2
    assert abs(counts[34:].sum() - counts[:34].sum()) <= 4, "both clusters count the same, up to padding"
