"""What several tests share."""

import os
from pathlib import Path

import hypothesis
import pytest
import torch
from shortcut import shortcut_task

from evenhand import Task

collect_ignore_glob = ["conftest.py", "*/conftest.py"]  # they hold no doctests, and share one name

hypothesis.settings.register_profile("patient", deadline=None)  # the machine may be busy
hypothesis.settings.load_profile("patient")
torch.set_num_threads(1)  # tiny models: threads would only wait for each other


@pytest.fixture
def tiny() -> Task:
    return shortcut_task()


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data, where there is one; tests that need it are skipped elsewhere."""
    named = os.environ.get("EVENHAND_DATA")
    root = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    if not root.is_dir():
        pytest.skip("real data are not here; set EVENHAND_DATA to test with them")
    return root
