"""A tiny task with tiny grids, and methods of a user's own that misbehave."""

import os
from pathlib import Path

import pytest

TASK = '''
"""A tiny task of a user's own."""
from shortcut import shortcut_task

GRIDS = {
    "erm": {"lr": [1e-3, 1e-2], "weight_decay": [0.0]},
    "gdro": {"lr": [1e-3], "weight_decay": [0.0, 1e-2]},
    "lff": {"q": [0.1, 0.5]},
    "jtt": {"identifier_epochs": [1, 3], "upweight": [2, "ratio"]},
    "masktune": {"threshold": [1.0, 2.0]},
}

def load(root=None, *, size: int = 20):
    return shortcut_task(per_class=size)
'''
PLAIN = '''
"""The same without groups."""
import dataclasses
from shortcut import shortcut_task

def load(root=None):
    task = shortcut_task(per_class=10)
    hide = {name: getattr(task, name).without_groups() for name in ("train", "val", "test")}
    return dataclasses.replace(task, **hide, group_names=(), conflicting=frozenset(), checksum="plain")
'''
# Dies, or fails, as often as the file DEATHS says; afterwards it is ERM.
FATAL = '''
"""A method that takes its whole process with it."""
import os, signal
from pathlib import Path

GRID = {"lr": [1e-3]}

def train(run):
    left = Path(os.environ["DEATHS"])
    count = int(left.read_text())
    if count:
        left.write_text(str(count - 1))
        os.kill(os.getpid(), signal.SIGKILL)
    return run.fit("erm").model
'''
FAILING = '''
"""A method that fails while the file of $BROKEN is there."""
import os
from pathlib import Path

GRID = {"lr": [1e-3, 1e-2]}

def train(run):
    if run.recipe.lr == 1e-3 and Path(os.environ["BROKEN"]).exists():
        raise RuntimeError("the disk is full of water")
    return run.fit("erm").model
'''

SPOKEN = '''
"""A method that says why before it takes its process with it."""
import os, sys

GRID = {"lr": [1e-3]}

def train(run):
    print("a harmless warning\\nOSError: the disk is on fire", file=sys.stderr, flush=True)
    os._exit(7)
'''
BUSY = '''
"""A method that computes for minutes without letting another thread of its process run."""
import os
from pathlib import Path

GRID = {"lr": [1e-3]}

def train(run):
    file = Path(os.environ["BUSY"])
    file.with_suffix(".new").write_text(str(os.getpid()))
    file.with_suffix(".new").replace(file)
    sum(range(10**11))
'''


@pytest.fixture(scope="session")
def mine_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user")
    package = folder / "mine"
    package.mkdir()
    files = {
        "__init__": "",
        "tiny": TASK,
        "plain": PLAIN,
        "fatal": FATAL,
        "failing": FAILING,
        "spoken": SPOKEN,
        "busy": BUSY,
    }
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    return folder


@pytest.fixture(autouse=True)
def mine(mine_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`mine.tiny`, `mine.plain` and the methods of `mine` can be imported, here and in workers."""
    monkeypatch.syspath_prepend(str(mine_folder))
    tests = Path(__file__).parents[1]
    inherited = os.environ.get("PYTHONPATH")
    paths = [str(mine_folder), str(tests), *([inherited] if inherited else [])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("BROKEN", str(tmp_path / "broken"))
    monkeypatch.setenv("DEATHS", str(tmp_path / "deaths"))
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path / "cache"))
    return mine_folder
