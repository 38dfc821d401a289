"""A million samples through LossHistory, partition and rebalance: seconds and peak memory of each step.

python tests/reliability/big_history.py
python tests/reliability/big_history.py --samples 100000 --epochs 20
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from evenhand import LossHistory, partition, rebalance


def record(path: Path, num_samples: int, epochs: int, batch: int = 8192) -> LossHistory:
    """Losses of two kinds of samples, which fall early or late, recorded batch by batch."""
    history, random = LossHistory(num_samples, path=path), torch.Generator().manual_seed(0)
    for epoch in range(epochs):
        for index in torch.randperm(num_samples, generator=random).split(batch):
            late = index % 10 == 0
            losses = torch.where(late, 2.0, 1.0) / (1 + epoch) + 0.1 * torch.rand(
                len(index), generator=random
            )
            history.record(index, losses)
        history.end_epoch()
    return history


def peak() -> float:
    """Of this program, in MB; ru_maxrss would begin with the memory of the process that has started it."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--samples", type=int, default=1_000_000)
    options.add_argument("--epochs", type=int, default=20)
    given = options.parse_args()
    torch.set_num_threads(1)
    labels = np.arange(given.samples) % 7
    partition(np.random.default_rng(0).random((100, given.epochs)), labels[:100])  # what loading costs
    start, steps = peak(), {}
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        history = record(Path(folder) / "losses.npy", given.samples, given.epochs)
        steps["record"] = time.monotonic() - begun, peak() - start
        parts = partition(history.losses, labels)
        steps["partition"] = time.monotonic() - begun, peak() - start
        balanced = rebalance(parts)
        steps["rebalance"] = time.monotonic() - begun, peak() - start
    size = given.samples * given.epochs * 4 / 2**20
    print(
        f"{given.samples} samples, {given.epochs} epochs: {size:.0f} MB; {start:.0f} MB before the first step"
    )
    before = 0.0
    for name, (seconds, megabytes) in steps.items():
        print(f"{name}: {seconds - before:.1f} s, peak {megabytes:.0f} MB more than before the first step")
        before = seconds
    right = (parts.minority == (np.arange(given.samples) % 10 == 0)).mean()
    print(f"{100 * right:.2f}% as made; {len(balanced)} rows after rebalancing")
    print("peak", max(megabytes for _, megabytes in steps.values()))


if __name__ == "__main__":
    main()
