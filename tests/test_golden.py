"""Golden numbers of one tiny run: a refactoring leaves them as they are.

A change of numerics updates them in a commit of its own: `python tests/test_golden.py`.
"""

import json
import tempfile
from pathlib import Path

import pytest
import torch
from shortcut import shortcut_task

from evenhand import execute
from evenhand.training.progress import Silent

ASSET = Path(__file__).parent / "assets" / "golden.json"


def numbers(runs: Path) -> dict[str, object]:
    record = execute(shortcut_task(), "tab", runs=runs, device="cpu", show=Silent())
    curves = {stage: [row["loss"] for row in record.epochs(stage)] for stage in ("erm", "model")}
    parts = record.partition
    assert parts is not None
    return {"losses": curves, "sizes": parts.sizes.tolist(), "key": record.path.name}


def test_a_tiny_run_gives_the_golden_numbers(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    golden, now = json.loads(ASSET.read_text()), numbers(tmp_path)
    assert now["key"] == golden["key"], "the key changed: old records would be orphaned"
    assert now["sizes"] == golden["sizes"]
    for stage, losses in golden["losses"].items():
        # Other versions of torch add in another order.
        assert now["losses"][stage] == pytest.approx(losses, rel=1e-3), stage


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        ASSET.write_text(json.dumps(numbers(Path(folder)), indent=1) + "\n")
