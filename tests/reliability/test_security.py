"""Nobody in: no pickle runs, no archive escapes, no name is more than text, nothing calls home, the umask counts."""

import ast
import dataclasses
import gzip
import hashlib
import importlib.util
import io
import json
import os
import pickle
import re
import shutil
import socket
import stat
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

TESTS = Path(__file__).parents[1]
for folder in (TESTS / "tasks", TESTS / "report", Path(__file__).parent):
    sys.path.append(str(folder))

import made_audit  # noqa: E402
import made_bench  # noqa: E402
import published_layouts as layouts  # noqa: E402
from attacks import ATTACKS, MARK, formulas, steers  # noqa: E402
from shortcut import shortcut_task  # noqa: E402

import evenhand  # noqa: E402
from evenhand import LossHistory, Partition, Task, cli, tasks  # noqa: E402
from evenhand.bench import pack as records  # noqa: E402
from evenhand.core import arrays  # noqa: E402
from evenhand.integrations import files, prediction  # noqa: E402
from evenhand.report.page import Score, Verdict, build  # noqa: E402
from evenhand.report.samples import Pictures, Rows, Texts  # noqa: E402
from evenhand.tasks import (  # noqa: E402
    colour,
    cub,
    datasets,
    samples,
    table,
)
from evenhand.training import models, store  # noqa: E402
from evenhand.training.checkpoint import load_checkpoint  # noqa: E402
from evenhand.training.record import Record  # noqa: E402

SOURCE = Path(evenhand.__file__).parent

# -- nothing unpickles -------------------------------------------------------------------------------

FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "yaml", "xmlrpc", "telnetlib"}  # fmt: skip
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "input"}


def calls(tree: ast.AST) -> Iterator[tuple[str, dict[str, ast.expr], int]]:
    """Every call as its dotted name, its keyword arguments, and its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {k.arg: k.value for k in node.keywords if k.arg}, node.lineno


def is_(value: ast.expr | None, constant: object) -> bool:
    return isinstance(value, ast.Constant) and value.value is constant


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_file_of_the_library_runs_what_it_reads(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.split(".")[0] not in FORBIDDEN_MODULES, f"{path}: imports {name}"
    for name, given, line in calls(tree):
        where = f"{path.name}:{line}: {name}"
        assert name not in FORBIDDEN_CALLS, where
        assert not name.startswith("joblib.") or name == "joblib.dump", where  # for others to read
        assert not name.endswith((".read_pickle", ".to_pickle", ".loads_pickle", "hub.load")), where
        assert "shell" not in given or is_(given["shell"], False), where
        assert name not in ("os.system", "os.popen", "tempfile.mktemp"), where
        if name in ("np.load", "numpy.load"):
            assert is_(given.get("allow_pickle"), False), where
        if name == "torch.load":
            assert is_(given.get("weights_only"), True), where
        if name in ("np.save", "numpy.save"):
            assert is_(given.get("allow_pickle"), False), where
        if name.endswith(".extractall"):
            assert "filter" in given, where


class Payload:
    """Makes the folder MARK where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (MARK,)


def npy_with_objects() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Payload()], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def npz_with_objects(name: str = "minority") -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **{name: np.array([Payload()], dtype=object)})
    return buffer.getvalue()


def torch_with_objects() -> bytes:
    buffer = io.BytesIO()
    torch.save({"w": Payload()}, buffer)
    return buffer.getvalue()


KINDS = {
    "pickle": lambda: pickle.dumps(Payload()),
    "old pickle": lambda: pickle.dumps(Payload(), protocol=0),
    "npy": npy_with_objects,
    "npz": npz_with_objects,
    "npz predictions": lambda: npz_with_objects("val"),
    "torch": torch_with_objects,
    "zipped pickle": lambda: gzip.compress(pickle.dumps(Payload())),
}
READERS: dict[str, Callable[[Path], object]] = {
    "a.npy": lambda f: files._read(f, "losses"),
    "b.npy": lambda f: arrays.read_array(f),
    "c.npz": lambda f: prediction._inputs(f, torch.zeros(3)),
    "partition.npz": Partition.load,
    "predictions.npz": lambda f: Record(f.parent).predictions,
    "losses.npy": lambda f: LossHistory(1, path=f).losses,
    "w.pth": lambda f: models.make_model("linear", shape=(3,), num_classes=2, weights=str(f)),
    "w.pt": lambda f: models.make_model("linear", shape=(3,), num_classes=2, weights=str(f)),
    "w.ckpt": lambda f: models.make_model("linear", shape=(3,), num_classes=2, weights=str(f)),
    "w.safetensors": lambda f: models.make_model("linear", shape=(3,), num_classes=2, weights=str(f)),
    "last.ckpt": load_checkpoint,
    "config.json": store.read_json,
    "t.csv": lambda f: table.read(f) and None,
    "t.parquet": table.read,
    "i.png": lambda f: samples.read_image(f, 8),
    "x-idx1-ubyte.gz": lambda f: colour.parse_idx(datasets.content(f), f, 1),
    "val.pkl": cub._image_paths,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_a_malicious_pickle_never_runs(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(KINDS[kind]())
    with pytest.raises(ValueError):
        READERS[name](tmp_path / name)
    assert not Path(MARK).exists()


def test_the_payload_would_run_if_anything_unpickled_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Payload()))
    assert Path(MARK).is_dir()


def test_a_checkpoint_with_a_right_checksum_does_not_run_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for payload in (torch_with_objects(), pickle.dumps(Payload())):
        path = tmp_path / "last.ckpt"
        path.write_bytes(payload + hashlib.sha256(payload).digest())
        with pytest.raises(store.Damaged):
            load_checkpoint(path)
        assert not Path(MARK).exists()


# -- archives ----------------------------------------------------------------------------------------


def tar_with(path: Path, **fields: Any) -> Path:
    entry, content = tarfile.TarInfo(), b"x"
    for name, value in fields.items():
        setattr(entry, name, value)
    entry.size = len(content) if entry.isreg() else 0
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as tar:
        tar.addfile(entry, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "../outside"},
        {"name": "a/../../outside"},
        {"name": "link", "type": tarfile.SYMTYPE, "linkname": "/etc"},
        {"name": "link", "type": tarfile.SYMTYPE, "linkname": "inside"},
        {"name": "link", "type": tarfile.LNKTYPE, "linkname": "../../outside"},
        {"name": "fifo", "type": tarfile.FIFOTYPE},
        {"name": "device", "type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3},
    ],
    ids=str,
)
def test_a_tar_that_leads_elsewhere_is_refused(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path / "cache"))
    archive = tar_with(tmp_path / "a.tar.gz", **fields)
    with pytest.raises(ValueError, match="holds an unsafe entry.*do not use it"):
        datasets.unpack("t", [archive])
    assert not list(tmp_path.rglob("outside")) and not list(tmp_path.rglob("content"))


def test_absolute_names_stay_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path / "cache"))
    content = datasets.unpack("t", [tar_with(tmp_path / "a.tar", name=f"{tmp_path}/outside")])
    assert [file.name for file in content.rglob("*") if file.is_file()] == ["outside"]
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("name", ["../outside", "/tmp/evenhand-outside", "a/../../../outside"])
def test_a_zip_that_leads_elsewhere_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path / "cache"))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        zipped.writestr("fine", "x")
        zipped.writestr(name, "x")
    with pytest.raises(ValueError, match="holds an unsafe entry"):
        datasets.unpack("t", [tmp_path / "a.zip"])
    assert not list(tmp_path.rglob("*outside")) and not Path("/tmp/evenhand-outside").exists()


def test_a_zip_with_a_link_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path / "cache"))
    entry = zipfile.ZipInfo("link")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        zipped.writestr(entry, "/etc/passwd")
    with pytest.raises(ValueError, match="holds an unsafe entry"):
        datasets.unpack("t", [tmp_path / "a.zip"])


def test_archives_are_cached_by_what_they_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two archives of one name, size and time are two; copies of one archive are one."""
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path / "cache"))
    for folder, wga in (("a", 0.25), ("b", 0.75)):
        made_bench.write(tmp_path / folder / "runs", "erm", wga=wga)
        records.pack(records.load(tmp_path / folder / "runs"), tmp_path / folder / "records.zip")
    files = [tmp_path / folder / "records.zip" for folder in "ab"]
    longest = max(file.stat().st_size for file in files)
    for file in files:
        with zipfile.ZipFile(file, "a") as zipped:  # the comment at the end makes both equally long
            zipped.comment = b" " * (1 + longest - file.stat().st_size)
        os.utime(file, (1_700_000_000, 1_700_000_000))
    assert files[0].stat().st_size == files[1].stat().st_size
    found = [records.load(file)[0].metrics["test"]["wga"] for file in files]
    assert found == [0.25, 0.75]
    shutil.copy(files[0], tmp_path / "records.zip")
    assert records.load(tmp_path / "records.zip")[0].path == records.load(files[0])[0].path


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_a_bomb_is_refused_before_it_goes_off(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "LARGE", 1 << 20)
    path, zeros = tmp_path / f"a.{kind}", bytes(2 << 20)
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            zipped.writestr("zeros", zeros)
    else:
        entry = tarfile.TarInfo("zeros")
        entry.size = len(zeros)
        with tarfile.open(path, "w:gz") as tar:
            tar.addfile(entry, io.BytesIO(zeros))
    with pytest.raises(ValueError, match="would unpack to more than"):
        datasets.unpack("t", [path])
    assert sum(file.stat().st_size for file in (tmp_path / "cache").rglob("*") if file.is_file()) < 1000


def test_bombs_of_arrays_and_of_digits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_LARGE", 1 << 16)
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1 << 20))
    for read in (arrays.read_arrays, lambda file: prediction._inputs(file, torch.zeros(3))):
        with pytest.raises(ValueError, match="would unpack to 8,388,7.. bytes"):
            read(tmp_path / "a.npz")
    monkeypatch.setattr(datasets, "LARGEST_FILE", 1 << 16)
    with pytest.raises(ValueError, match="unpacks to more than 65,536 bytes"):
        datasets.unzipped(gzip.compress(bytes(1 << 20)), "the file")


# -- names are text ----------------------------------------------------------------------------------

NAMES = [name for name in ATTACKS if name.strip()]
FILE_NAMES = [
    name
    for name in NAMES
    if "/" not in name and "\x00" not in name and len(name) < 200 and "\ud800" not in name
]
OWN_TASK = '''
"""A task whose classes and groups are called by attacks."""
import dataclasses
from attacks import ATTACKS
from shortcut import shortcut_task

def load(root=None):
    task = shortcut_task(per_class=12, epochs=2)
    names = [name for name in ATTACKS if name.strip()]
    groups = tuple(f"{names[i]}, {names[i + 4]}" for i in range(4))
    return dataclasses.replace(task, class_names=(names[NUMBER % len(names)], names[(NUMBER + 1) % len(names)]), group_names=groups, checksum="")
'''


def hostile_task(names: list[str]) -> Task:
    task = shortcut_task(per_class=12, epochs=2)
    groups = tuple(f"{names[i]}, {names[i + 4]}" for i in range(4))
    return dataclasses.replace(
        task, class_names=(names[0], names[1]), group_names=groups, spec=f"own:{names[2]}", checksum=""
    )


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """One call of the command line, whose output must not steer a terminal."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["evenhand", *map(str, words)])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        assert not steers(out) and not steers(err), (out, err)
        return code, out, err

    return call


def test_hostile_class_and_group_names_are_text_in_every_output(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for number in (0, 8, 16, 20):
        (tmp_path / f"hostile{number}").mkdir()
        (tmp_path / f"hostile{number}" / "task.py").write_text(OWN_TASK.replace("NUMBER", str(number)))
        for method in ("erm", "tab"):
            code, _, err = command("run", f"hostile{number}.task", method, "--device", "cpu", "--quiet")
            assert code == 0, err
    for name in ("1", "2", "methods", "selected", "cost"):
        for form in ("md", "csv", "latex", "json"):
            code, text, err = command("table", name, "--format", form)
            assert code == 0, err
            check_table(text, form)
    assert command("report", "--out", "page.html")[0] == 0
    page = Path("page.html").read_text()
    for inert in ("&lt;script&gt;window", r"\u003cscript\u003ewindow"):  # as words, and in the data of a plot
        page = page.replace(inert, "")
    assert page.count("<script") == 1 and f"window.{MARK}=1;" not in page
    for log in tmp_path.rglob("log.txt"):
        assert not steers(log.read_text())


def check_table(text: str, form: str) -> None:
    if form == "csv":
        assert formulas(text) == []
    elif form == "latex":
        assert not re.search(r"\\(input|write18)", text)
    elif form == "json":
        json.loads(text)
    else:
        assert "<script" not in text and "<img" not in text and "](javascript" not in text


def test_hostile_labels_in_partition(command: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    names = [name.encode("utf-8", "replace").decode() for name in NAMES]
    shown = ""
    for start in range(0, len(names), 10):
        labels = np.repeat(names[start : start + 10], 4)
        np.save(tmp_path / "y.npy", labels)
        np.save(tmp_path / "l.npy", np.random.default_rng(0).random((len(labels), 3)))
        code, out, err = command("partition", tmp_path / "l.npy", tmp_path / "y.npy", "-o", tmp_path / "out")
        assert code == 0, err
        shown += out
        for name in ("samples.csv", "weights.csv"):
            assert formulas((tmp_path / "out" / name).read_bytes().decode()) == []
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert {row["label"] for row in summary["classes"]} == {name.rstrip("\x00") for name in labels}
    assert "[bold" in shown and ":bomb:" in shown  # markup is not taken for markup


def test_hostile_file_and_class_names_in_predict_and_audit(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for number, kind in enumerate((FILE_NAMES[0][:100], FILE_NAMES[11])):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for i in range(24):
            pixels = rng.integers(0, 100, (8, 8, 3), dtype=np.uint8) + np.uint8(100 * number)
            name = f"{FILE_NAMES[i % len(FILE_NAMES)]}{i}.png"
            Image.fromarray(pixels).save(tmp_path / "photos" / kind / name)
    code, _, err = command("audit", tmp_path / "photos", "-o", tmp_path / "audit", "--model", "cnn", "--size", 8, "--epochs", 2, "--device", "cpu", "-q")  # fmt: skip
    assert code == 0, err
    for name in ("samples.csv", "weights.csv"):
        assert formulas((tmp_path / "audit" / name).read_bytes().decode()) == []
    run = next(path.parent for path in (tmp_path / "audit" / "runs").rglob("model.safetensors"))
    code, _, err = command("predict", run, tmp_path / "photos", "-o", tmp_path / "p.csv", "--device", "cpu")
    assert code == 0, err
    assert formulas((tmp_path / "p.csv").read_bytes().decode()) == []


@pytest.mark.parametrize("name", [name for name in ATTACKS if "\x00" not in name and "\ud800" not in name])
def test_a_hostile_word_in_an_error_does_not_steer_the_terminal(
    command: Callable[..., tuple[int, str, str]], name: str
) -> None:
    code, _, err = command("partition", name, name)
    assert code == 2 and err
    code, _, err = command("run", name or "x", "tab")
    assert code == 2 and err


# -- nobody is called --------------------------------------------------------------------------------


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every attempt to reach another machine is noted and fails."""
    tried: list[str] = []

    def refuse(*given: object, **_options: object) -> None:
        tried.append(str(given[-1]))
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return tried


def test_nothing_is_sent_anywhere(
    command: Callable[..., tuple[int, str, str]],
    no_network: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path / "cache"))
    for method in ("erm", "tab"):
        assert (
            command("run", "digits_even_odd", method, "--limit", 80, "--epochs", 2, "-q", "--device", "cpu")[
                0
            ]
            == 0
        )
    assert command("table", "selected")[0] == 0
    assert command("report")[0] == 0
    lines = ["a,b,label", *(f"{i % 7},{i * 3 % 5},{'yes' if i % 2 else 'no'}" for i in range(60))]
    Path("t.csv").write_text("\n".join(lines))
    code, _, err = command("audit", "t.csv", "--label", "label", "--epochs", 2, "-q")
    assert code == 0, err
    assert command("doctor")[0] in (0, 1)
    assert command("data", "list")[0] == 0
    assert no_network == []


def test_a_fetch_that_was_asked_for_is_noticed(no_network: list[str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="could not be fetched"):
        datasets.fetch("even_odd", tmp_path)
    assert no_network


# -- permissions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0o027, 0o077])
def test_every_file_respects_the_umask(mask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path / "cache"))
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        entry = tarfile.TarInfo("open.txt")
        entry.mode = 0o666
        tar.addfile(entry, io.BytesIO(b""))
    (tmp_path / "a.tar").chmod(0o666 & ~mask)
    layouts.picture(tmp_path / "i.jpg", 0)
    (tmp_path / "i.jpg").chmod(0o666 & ~mask)
    before = os.umask(mask)
    try:
        record = evenhand.execute(shortcut_task(epochs=2), "tab", runs=tmp_path / "runs", device="cpu")
        np.save(tmp_path / "l.npy", np.random.default_rng(0).random((8, 2)))
        np.save(tmp_path / "y.npy", np.arange(8) % 2)
        files.partition_files(tmp_path / "l.npy", tmp_path / "y.npy", tmp_path / "out")
        build([record], tmp_path / "page.html", load_task=lambda _: None)
        records.pack([record], tmp_path / "packed.zip")
        records.unpack(tmp_path / "packed.zip", tmp_path / "again")
        datasets.unpack("t", [tmp_path / "a.tar"])
        samples.decode_images("t", [tmp_path / "i.jpg"], 8)
    finally:
        os.umask(before)
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(found) > 30
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask, path
    for path in tmp_path.rglob("*"):
        assert not path.is_dir() or stat.S_IMODE(path.stat().st_mode) == 0o777 & ~mask, path


def test_records_of_strangers_import_nothing(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record names a task; only evenhand's own are loaded for its page, unless the user trusts that one."""
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger" / "evil.py").write_text(
        f"import os\nos.mkdir({MARK!r})\ndef load(root=None): raise ValueError\n"
    )
    made_bench.write(tmp_path / "runs", "tab", task="t", spec="stranger.evil", pseudo=True)
    records.pack(records.load(tmp_path / "runs"), tmp_path / "p.zip")
    build(records.load(tmp_path / "p.zip"), tmp_path / "p.html")
    assert not Path(MARK).exists() and tasks.names()
    for words in (("report", "--runs", "p.zip"), ("table", "1"), ("table", "datasets"), ("report",)):
        assert command(*words)[0] == 0
        assert not Path(MARK).exists(), words
    assert "--trust stranger.evil" in Path("report.html").read_text()
    assert command("report", "--trust", "stranger")[0] == 0 and not Path(MARK).exists()
    assert command("report", "--trust", "stranger.evil")[0] == 0 and Path(MARK).exists()
    Path(MARK).rmdir()
    for name in ("stranger.evil", "stranger"):
        sys.modules.pop(name)


def test_a_file_in_the_current_folder_is_not_imported_in_place_of_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that stands in for a package which is not installed."""
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(tmp_path))])
    monkeypatch.chdir(tmp_path)
    Path("lightgbm.py").write_text(f"import os\nos.mkdir({MARK!r})\n")
    monkeypatch.setattr(sys, "argv", ["evenhand", "--version"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "" not in sys.path and importlib.util.find_spec("lightgbm") is None
    Path("own_task.py").write_text("def load(root=None): pass\n")
    with pytest.raises(ValueError, match="own_task.other"):
        tasks.load("own_task.other")
    assert sys.path[-1] == "", "a module that the user names may be in the current folder"


@pytest.mark.parametrize("names", ["method", "model"])
def test_predict_imports_nothing_that_a_record_names(
    names: str, command: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the user says that this very code is trusted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger" / "evil.py").write_text(
        f"import os\nos.mkdir({MARK!r})\ndef train(run): pass\n"
        "from evenhand.training.models import linear as make\n"
    )
    task = shortcut_task(epochs=1)
    record = evenhand.execute(task, "erm", {"model": "linear"}, runs=tmp_path / "runs", device="cpu")
    config = json.loads((record.path / "config.json").read_text())
    if names == "method":
        config["method"] = named = "stranger.evil"
    else:
        config["full_recipe"]["model"] = named = "stranger.evil:make"
    (record.path / "config.json").write_text(json.dumps(config))
    (record.path / "checksums.json").unlink()
    np.save("x.npy", np.asarray(task.test.x))
    code, _, error = command("predict", str(record.path), "x.npy", "--device", "cpu")
    assert not Path(MARK).exists(), "the stranger's code has run"
    assert code == 0 if names == "method" else (code == 2 and f"--trust {named}" in " ".join(error.split()))
    assert command("predict", str(record.path), "x.npy", "--device", "cpu", "--trust", named)[0] == 0
    assert Path(MARK).exists()
    Path(MARK).rmdir()
    for name in ("stranger.evil", "stranger"):
        sys.modules.pop(name)


# -- pages in a browser ------------------------------------------------------------------------------

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    pytest.importorskip("selenium", reason="needs the Python package selenium, which drives the browser")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs the browser chromium and its chromedriver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        "window-size=1280,1000",
    ):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


WIDER_THAN_THE_SCREEN = """
    if (document.documentElement.scrollWidth <= window.innerWidth + 1) return '';
    return [...document.querySelectorAll('body *')]
      .filter(each => each.getBoundingClientRect().right > window.innerWidth + 1)
      .filter(each => !each.children.length && !each.closest('.scroll, .list, nav'))
      .map(each => each.closest('[class]').className + ' ' + each.tagName + ' ' + each.textContent.slice(0, 30))
      .slice(0, 8).join('; ') || 'something';"""


def clicked_through(browser: Any, page: Path, selectors: list[str]) -> None:
    """Open a page, press whatever can be pressed, and see that nothing ran and nothing broke."""
    browser.get(page.as_uri())
    for selector in selectors:
        assert browser.find_elements("css selector", selector), f"{selector} is not in {page.name}"
    browser.execute_script(
        "for (const each of document.querySelectorAll('details')) each.open = true;"
        "for (const each of document.querySelectorAll('button, summary, .item')) each.click();"
        "for (const each of document.querySelectorAll('img, svg, [tabindex]'))"
        " each.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}));"
        "window.scrollTo(0, document.body.scrollHeight);"
    )
    assert browser.execute_script(f"return window.{MARK} === undefined && !('{MARK}' in window)")
    foreign = "script[src], iframe, object, embed, base, [onerror], [onload], img:not([src^='data:image/']):not([src=''])"
    assert browser.execute_script("return document.querySelectorAll(arguments[0]).length", foreign) == 0
    assert browser.execute_script("return getComputedStyle(document.body).display") != "none"
    assert browser.execute_script(WIDER_THAN_THE_SCREEN) == ""
    assert [entry["message"] for entry in browser.get_log("browser")] == []


@pytest.mark.parametrize("start", range(0, len(NAMES), 8))
def test_a_page_of_hostile_names_does_nothing_in_a_browser(browser: Any, tmp_path: Path, start: int) -> None:
    some = (NAMES * 2)[start : start + 8]
    task = hostile_task(some)
    runs = [evenhand.execute(task, method, runs=tmp_path / "runs", device="cpu") for method in ("erm", "tab")]
    page = build(runs, tmp_path / "page.html", load_task=lambda _: task)
    clicked_through(browser, page, ["h1", "main", "footer", "table", "canvas", "img"])


def test_a_bench_page_of_hostile_names_does_nothing_in_a_browser(browser: Any, tmp_path: Path) -> None:
    made = [
        made_bench.write(tmp_path, method, {NAMES[i]: f"{NAMES[-1 - i]}{i}"}, seed=seed, task="own", spec=f"own:{NAMES[i]}")
        for method in ("erm", "tab")
        for i in range(14)
        for seed in (0, 1)
    ]  # fmt: skip
    page = build(made, tmp_path / "bench.html", load_task=lambda _: None)
    clicked_through(browser, page, ["h1", "main", "footer", "table", "details"])


@pytest.mark.parametrize("kind", ["texts", "rows", "pictures"])
def test_an_audit_of_hostile_samples_does_nothing_in_a_browser(
    browser: Any, tmp_path: Path, kind: str
) -> None:
    n = 4 * len(NAMES)
    own = made_audit.samples(n, ids=[NAMES[i % len(NAMES)] + str(i) for i in range(n)])
    media = {
        "texts": Texts(lambda i: ATTACKS[i % len(ATTACKS)]),
        "rows": Rows(NAMES[:6], [[ATTACKS[(i + j) % len(ATTACKS)] for i in range(n)] for j in range(6)]),
        "pictures": Pictures(made_audit.picture),
    }[kind]
    score = Score(name=NAMES[0], baseline=0.5, balanced=0.6, note=NAMES[2])
    verdict = Verdict(strength=0.5, words=NAMES[1], advice=NAMES[3])
    told = made_audit.audit(
        own, title=NAMES[1], headline=NAMES[2], lede=NAMES, class_names=[NAMES[0], NAMES[4]], verdicts=[verdict, verdict],
        scores=[score], groups=[score], recommendation=NAMES[1], facts=list(zip(NAMES, NAMES, strict=True)), media=media,
    )  # fmt: skip
    page = made_audit.write(tmp_path / "report.html", told)
    clicked_through(browser, page, ["h1", "#map-plot", ".item", ".shown", "#export"])
