"""Folders of one's own images: what is found, how it is divided, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evenhand import tasks
from evenhand.tasks import folder, samples

image = pytest.importorskip("PIL.Image", reason="images need pillow")


def picture(file: Path, shade: int = 0) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    image.fromarray(np.full((6, 9, 3), shade, dtype=np.uint8)).save(file)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path / "cache"))
    for number in range(20):
        picture(tmp_path / "photos" / "cat" / f"{number}.png", number)
        picture(tmp_path / "photos" / "dog" / "deep" / f"{number}.JPG", 100 + number)
    (tmp_path / "photos" / "cat" / "notes.txt").write_text("no image")
    return tmp_path / "photos"


def test_classes_are_folders_and_images_are_found_recursively(photos: Path) -> None:
    data = folder.read_folder(photos)
    assert data.class_names == ("cat", "dog") and np.bincount(data.y).tolist() == [20, 20]
    assert data.ids[0] == "cat/0.png" and data.ids[-1] == "dog/deep/9.JPG"
    for part, count in ((samples.TRAIN, 14), (samples.VAL, 3), (samples.TEST, 3)):
        assert np.bincount(data.y[data.split == part]).tolist() == [count, count]
    assert np.array_equal(folder.read_folder(photos).split, data.split)


def test_the_task_holds_the_pixels_in_their_places(photos: Path) -> None:
    task = tasks.load(f"folder:path={photos},size=4")
    assert task.class_names == ("cat", "dog") and task.train.x.shape == (40, 3, 4, 4)
    for split in (task.train, task.val, task.test):
        shades = split.x[split.rows.numpy()][:, 0, 0, 0]
        assert ((shades >= 100) == split.y.numpy().astype(bool)).all()


def test_files_that_are_not_read_are_noted(photos: Path, tmp_path: Path) -> None:
    for name in ("cat/a.heic", "dog/b.svg", "dog/deep/c.heic", ".hidden"):
        (photos / name).write_bytes(b"")
    note = "4 files were left out because of their endings: 2 .heic, 1 .txt, 1 .svg"
    (said,) = folder.read_folder(photos).notes
    assert said.startswith(note)
    with pytest.warns(UserWarning, match=f"photos: {note}; convert images to PNG or JPEG"):
        tasks.load(f"folder:path={photos},size=4")
    (tmp_path / "phone" / "cat").mkdir(parents=True)
    (tmp_path / "phone" / "cat" / "1.heic").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"holds no images \(1 file was left out because of its ending: 1 .heic; convert"
    ):
        folder.read_folder(tmp_path / "phone")


def test_given_parts_are_kept_and_absent_ones_are_held_out(photos: Path, tmp_path: Path) -> None:
    for part in ("train", "test"):
        for kind in ("cat", "dog"):
            for number in range(10):
                picture(tmp_path / "parts" / part / kind / f"{number}.png")
    data = folder.read_folder(tmp_path / "parts")
    tested = np.array([each.startswith("test/") for each in data.ids])
    assert (data.split[tested] == samples.TEST).all() and (data.split[~tested] != samples.TEST).all()
    assert (data.split == samples.VAL).sum() == 4 and data.class_names == ("cat", "dog")


def test_what_is_no_folder_of_classes_is_refused(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare" / "cat").mkdir(parents=True)
    picture(tmp_path / "loose" / "1.png")
    for number in range(5):
        picture(tmp_path / "single" / "cat" / f"{number}.png")
    picture(tmp_path / "rare" / "cat" / "1.png")
    picture(tmp_path / "rare" / "dog" / "1.png")
    for name, message in (
        ("empty", "one folder for each class.*holds no images"),
        ("bare", "one folder for each class.*holds no images"),
        ("loose", "the 1 images of .* lie in no class folder; sort them"),
        ("single", "at least two classes.*has one, 'cat'"),
        ("rare", r"at least 5 samples of every class.*'cat' \(1\), 'dog' \(1\); add samples"),
        ("absent", "there is no folder"),
    ):
        with pytest.raises(ValueError, match=message):
            folder.read_folder(tmp_path / name)
    with pytest.raises(ValueError, match="needs to know where your data are: folder:path=…"):
        tasks.load("folder")


def test_a_class_that_train_lacks_is_refused(tmp_path: Path) -> None:
    for place in ("train/a", "train/b", "val/a", "val/c", "test/a"):
        for number in range(6):
            picture(tmp_path / "parts" / place / f"{number}.png")
    with pytest.raises(
        ValueError, match=r"every class in the train folder .* fewer of 'c' \(0\); add images"
    ):
        folder.read_folder(tmp_path / "parts")


def test_a_damaged_image_is_named(photos: Path) -> None:
    (photos / "cat" / "3.png").write_bytes(b"\x89PNG nothing")
    with pytest.raises(ValueError, match=r"3\.png cannot be decoded"):
        tasks.load(f"folder:path={photos}")
