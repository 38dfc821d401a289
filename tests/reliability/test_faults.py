"""A sample of the fault matrix; all of it is `python tests/reliability/fault_matrix.py`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults import FAULTS, InjectedOSError, watch

from evenhand.training import store

HERE = Path(__file__).parent
needs_linux = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")


def script(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """One of the scripts here, in a process of its own, which forks its trials: so without a GPU."""
    command = [sys.executable, str(HERE / name), *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, capture_output=True, text=True, env=env)


@needs_linux
def test_sampled_faults_lose_nothing() -> None:
    done = script("fault_matrix.py", "--sample", "40", "--seed", "7")
    assert done.returncode == 0, done.stderr[-5000:]
    assert "40 trials at" in done.stdout and "losses: 0" in done.stdout
    assert all(f" {fault} |" in done.stdout for fault in FAULTS)


@needs_linux
def test_the_harness_notices_a_writer_that_is_not_atomic(tmp_path: Path) -> None:
    whole = b"the whole content"
    with watch(tmp_path) as seen:
        store.write_bytes(tmp_path / "a", whole)
    assert [operation for operation, _ in seen.points] == [
        "open",
        "write",
        "flush",
        "fsync",
        "close",
        "rename",
    ]
    for at in range(len(seen.points)):
        with watch(tmp_path, at, "ENOSPC"), pytest.raises(InjectedOSError):
            store.write_bytes(tmp_path / "a", b"another content")
        assert (tmp_path / "a").read_bytes() == whole
    with watch(tmp_path, 1, "ENOSPC"), pytest.raises(InjectedOSError):
        (tmp_path / "a").write_bytes(b"another content")
    assert (tmp_path / "a").read_bytes() == b"another"


def test_what_a_killed_writer_left_is_swept_by_the_next_holder(tmp_path: Path) -> None:
    (tmp_path / ".last.ckpt.4711.tmp").write_bytes(b"half of")
    with store.claim(tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["claim", "claim.owner"]
    assert [path.name for path in tmp_path.iterdir()] == ["claim"]
