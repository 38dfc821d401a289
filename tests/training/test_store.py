"""Files are whole or absent."""

import multiprocessing
from pathlib import Path

import pytest
import torch

from evenhand.training import store
from evenhand.training.checkpoint import load_checkpoint, save_checkpoint


def test_a_failed_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    store.write_bytes(path, b"old")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        store.write_bytes(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("way", ["a file", "no permission"])
def test_a_place_that_cannot_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    if way == "a file":
        (tmp_path / "runs").write_text("")
    else:
        monkeypatch.setattr(Path, "mkdir", refuse)
    place = tmp_path / "runs" if way == "a file" else tmp_path
    for write in (
        lambda: store.write_bytes(tmp_path / "runs" / "a.svg", b""),
        lambda: store.claim(tmp_path / "runs" / "b").__enter__(),
    ):
        with pytest.raises(OSError) as caught:
            write()
        said = str(caught.value)
        assert said.startswith(f"{place} cannot be written to (") and said.endswith("; name another place")


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "other"])
def test_a_damaged_checkpoint_is_noticed(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "last.ckpt"
    save_checkpoint(path, {"weights": torch.arange(100.0), "epoch": 3, "log": [{"loss": 0.5}]})
    assert load_checkpoint(path)["log"] == [{"loss": 0.5}]
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[-20] ^= 4
    path.write_bytes({"flip": bytes(flipped), "cut": content[:-1], "empty": b"", "other": b"PK" * 99}[harm])
    with pytest.raises(store.Damaged, match="its checksum does not match"):
        load_checkpoint(path)


def test_damaged_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text('{"wga": ')
    with pytest.raises(store.Damaged, match="metrics.json should hold JSON"):
        store.read_json(tmp_path / "metrics.json")


def _hold(folder: Path, ready: "multiprocessing.Queue[int]") -> None:
    with store.claim(folder):
        ready.put(1)
        import time

        time.sleep(60)


def test_a_claim_is_exclusive_and_ends_with_its_owner(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    owner = context.Process(target=_hold, args=(tmp_path, ready))
    owner.start()
    ready.get(timeout=600)
    with (
        pytest.raises(BlockingIOError, match=rf'is held by another process: .*"pid": {owner.pid}'),
        store.claim(tmp_path, wait=False),
    ):
        pass
    owner.kill()
    owner.join()
    with store.claim(tmp_path, wait=False):
        pass
