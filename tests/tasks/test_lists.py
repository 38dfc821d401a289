"""Test labels and groups from a dataset's lists alone, without opening a photograph."""

from pathlib import Path

import numpy as np
import published_layouts as layouts
import pytest
from test_photo_tasks import MAKERS, small_pacs  # noqa: F401 (a fixture)

from evenhand import tasks
from evenhand.report.catalog import facts_of_data, read_split


@pytest.mark.parametrize("name", MAKERS)
def test_the_lists_say_what_the_loaded_task_says(tmp_path: Path, name: str) -> None:
    MAKERS[name](tmp_path)
    spec = f"{name}:size=8" + {"celeba": ",fraction=0.5", "pacs": ",p=0.8"}.get(name, "")
    test = tasks.load(spec, tmp_path).test
    limited = read_split(f"{spec},limit={len(test)}", tmp_path, "test")  # opens them
    for photo in tmp_path.rglob("*.jpg"):
        photo.write_bytes(b"not a picture")
    truth = read_split(spec, tmp_path, "test")
    for found in (truth, limited):
        assert found is not None
        np.testing.assert_array_equal(found.labels, test.y)
        np.testing.assert_equal(found.groups, None if test.group is None else test.group.numpy())


def test_the_samples_of_one_s_own_data_are_listed_too(tmp_path: Path) -> None:
    for number in range(20):
        layouts.picture(tmp_path / "photos" / "ab"[number % 2] / f"{number}.jpg", number)
    lines = [f"{n},{'ab'[n % 2]},{'xy'[n % 3 == 0]}" for n in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["size,label,site", *lines]))
    for spec in ("folder:path=photos,size=8", "table:path=t.csv,group=site", "table:path=t.csv"):
        task, truth, facts = (
            tasks.load(spec, tmp_path),
            read_split(spec, tmp_path, "test"),
            facts_of_data(spec, tmp_path),
        )
        group = None if task.test.group is None else task.test.group.tolist()
        assert truth is not None and truth.labels.tolist() == task.test.y.tolist()
        assert (None if truth.groups is None else truth.groups.tolist()) == group
        assert (facts["N"], facts["L"]) == (len(task.train), 2)
        assert facts["shape"] == tuple(task.train.x[0].shape) and facts.get("k", 0) == len(task.group_names)
    assert tasks.listing("folder:path=photos,limit=4", tmp_path) is None
    assert tasks.listing("digits") is None
