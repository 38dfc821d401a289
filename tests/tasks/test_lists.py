"""Test labels and groups from a dataset's lists alone, without opening a photograph."""

from pathlib import Path

import numpy as np
import pytest
from test_photo_tasks import MAKERS

from evenhand import tasks
from evenhand.report.tables.bootstrap import read_truth


@pytest.mark.parametrize("name", MAKERS)
def test_the_lists_say_what_the_loaded_task_says(tmp_path: Path, name: str) -> None:
    MAKERS[name](tmp_path)
    spec = f"{name}:size=8" + (",fraction=0.5" if name == "celeba" else "")
    test = tasks.load(spec, tmp_path).test
    limited = read_truth(f"{spec},limit={len(test)}", tmp_path)  # opens them
    for photo in tmp_path.rglob("*.jpg"):
        photo.write_bytes(b"not a picture")
    truth = read_truth(spec, tmp_path)
    for found in (truth, limited):
        assert found is not None
        np.testing.assert_array_equal(found.labels, test.y)
        np.testing.assert_array_equal(found.groups, test.y if test.group is None else test.group)
