"""The functions behind `evenhand data`: list, fetch, prepare and verify."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import urllib.error

import published_layouts as layouts
import pytest
from published_layouts import REAL_ROOT

from evenhand import tasks
from evenhand.cli.data import data_list, print_report
from evenhand.tasks import colour, datasets


@pytest.fixture
def printed(capsys, monkeypatch):
    """What a report says on a terminal."""
    monkeypatch.setenv("COLUMNS", "140")

    def shown(report) -> str:
        print_report(report)
        return capsys.readouterr().out

    return shown


@pytest.fixture
def tiny_mnist(tmp_path, monkeypatch):
    """A stand-in for MNIST whose checksums are the known ones, and its files as a mirror would send them."""
    folder = layouts.make_mnist(tmp_path / "mirror")
    sent = {file.name: file.read_bytes() for file in folder.iterdir()}
    for name in colour.FILES:
        monkeypatch.setitem(
            colour.FILES, name, hashlib.sha256(gzip.decompress(sent[f"{name}.gz"])).hexdigest()
        )
    return sent


def answer_with(monkeypatch, sent):
    """Let every mirror send these files, and count what is asked for."""
    asked = []

    def urlopen(url, timeout):
        asked.append(url)
        name = url.rsplit("/", 1)[-1]
        if name not in sent:
            raise urllib.error.URLError("not found")
        return io.BytesIO(sent[name])

    monkeypatch.setattr(datasets.urllib.request, "urlopen", urlopen)
    return asked


def test_the_list_says_what_is_here(tmp_path, capsys):
    layouts.make_mnist(tmp_path)
    layouts.make_celeba(tmp_path)
    (tmp_path / "celeba" / "list_eval_partition.txt").unlink()
    lines = {line.task: line for line in datasets.data_list(tmp_path)}
    assert {"even_odd", "cmnist", "waterbirds", "celeba", "bar", "cub", "digits"} <= set(lines)
    here = [name for name in ("digits", "even_odd", "cmnist", "celeba", "bar", "cub") if lines[name].present]
    assert here == ["digits", "even_odd", "cmnist"]
    assert lines["celeba"].absent == ("list_eval_partition.txt|list_eval_partition.csv",)
    data_list(tmp_path)
    text = capsys.readouterr().out
    assert "non-commercial research" in text and "0.5 GB" in text


@pytest.mark.parametrize("name", ["waterbirds", "celeba", "bar", "pacs", "cub"])
def test_fetching_what_may_not_be_fetched_says_where_to_put_it(tmp_path, name):
    result = datasets.fetch(name, tmp_path)
    text = "\n".join(result.messages)
    module = tasks.module(name)
    assert not result.present and module.SOURCE.url in text and f"{name}/\n" in text
    if name != "cub":
        getattr(layouts, f"make_{name}")(tmp_path)
        assert datasets.fetch(name, tmp_path).present


def test_mnist_comes_from_the_first_mirror_that_has_it(tmp_path, monkeypatch, tiny_mnist):
    asked = answer_with(monkeypatch, tiny_mnist)
    root = tmp_path / "root"
    result = datasets.fetch("even_odd", root)
    assert (
        result.present and len(asked) == 4 and all(url.startswith(colour.MNIST.mirrors[0]) for url in asked)
    )
    assert len(tasks.load("even_odd", root).train) == 320
    assert "already" in datasets.fetch("cmnist", root).messages[0] and len(asked) == 4


def test_a_mirror_that_breaks_off_is_followed_by_the_next(tmp_path, monkeypatch, tiny_mnist):
    asked = answer_with(monkeypatch, tiny_mnist)
    answer = datasets.urllib.request.urlopen

    def urlopen(url, timeout):
        if url.startswith(colour.MNIST.mirrors[0]):
            raise http.client.IncompleteRead(b"")
        return answer(url, timeout)

    monkeypatch.setattr(datasets.urllib.request, "urlopen", urlopen)
    assert datasets.fetch("even_odd", tmp_path / "root").present
    assert len(asked) == 4 and all(url.startswith(colour.MNIST.mirrors[1]) for url in asked)


@pytest.mark.parametrize("damage", [lambda data: data[:100], lambda data: gzip.compress(b"something else")])
def test_a_download_that_is_not_mnist_is_never_written(tmp_path, monkeypatch, tiny_mnist, damage):
    wrong = {**tiny_mnist, "t10k-images-idx3-ubyte.gz": damage(tiny_mnist["t10k-images-idx3-ubyte.gz"])}
    answer_with(monkeypatch, wrong)
    root = tmp_path / "root"
    with pytest.raises(
        ValueError, match=r"t10k-images-idx3-ubyte.gz could not be fetched .*place the files yourself"
    ):
        datasets.fetch("even_odd", root)
    assert not list(root.rglob("*ubyte*"))


def test_a_damaged_file_is_set_aside_and_fetched_again(tmp_path, monkeypatch, tiny_mnist):
    asked = answer_with(monkeypatch, tiny_mnist)
    folder = layouts.make_mnist(tmp_path)
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="does not have the published checksum"):
        result = datasets.fetch("even_odd", tmp_path)
    assert len(asked) == 1 and "train-labels" in result.messages[0]
    assert len(tasks.load("even_odd", tmp_path).train) == 320
    assert [file.read_bytes() for file in folder.glob("*.damaged-*")] == [b"damaged"]


def test_offline_the_way_out_is_named(tmp_path, monkeypatch):
    answer_with(monkeypatch, {})
    with pytest.raises(ValueError, match=r"could not be fetched .*place the files yourself:\nmnist/"):
        datasets.fetch("even_odd", tmp_path)


def test_verify_counts_groups_and_compares_with_the_paper(tmp_path, printed):
    layouts.make_waterbirds(tmp_path)
    report = datasets.verify("waterbirds:size=8", tmp_path)
    assert [(group.train, group.val, group.test) for group in report.groups] == [
        (14, 3, 4),
        (2, 3, 4),
        (1, 2, 3),
        (3, 2, 3),
    ]
    assert [group.conflicting for group in report.groups] == [False, True, True, False]
    found = {check.name: (check.expected, check.found, check.state) for check in report.checks}
    assert found["N (paper)"] == ("4,795", "20", "differs")
    assert found["L (paper)"] == ("2", "2", "ok") and found["k (paper)"] == ("4", "4", "ok")
    assert found["worst group (paper)"] == ("1.17 %", "5.00 %", "differs")
    assert report.ok, "another size is no damage"
    text = printed(report)
    assert "waterbird, land (conflicting)" in text and "5.00%" in text


def test_verify_finds_changed_pixels_and_wrong_checksums(tmp_path, tiny_mnist, printed):
    layouts.make_bar(tmp_path)
    task = tasks.load("bar:size=8", tmp_path)
    assert datasets.prepare("bar:size=8", tmp_path).ok and datasets.verify("bar:size=8", tmp_path).ok
    with open(task.train.x.filename, "r+b") as file:  # noqa: PTH123
        file.seek(400)
        file.write(b"\x00\xff" * 8)
    report = datasets.verify("bar:size=8", tmp_path)
    assert not report.ok and "delete" in printed(report)
    folder = layouts.make_mnist(tmp_path)
    assert datasets.verify("even_odd", tmp_path).ok
    name = "t10k-labels-idx1-ubyte"
    content = bytearray(datasets.content(folder / f"{name}.gz"))
    content[-1] = (content[-1] + 1) % 10
    (folder / f"{name}.gz").write_bytes(gzip.compress(bytes(content)))
    report = datasets.verify("even_odd", tmp_path)
    assert [check.name for check in report.checks if check.state == "damaged"] == [f"{name}.gz"]


def test_tasks_without_groups_list_their_classes_and_long_tables_are_cut(tmp_path, printed):
    layouts.make_bar(tmp_path)
    report = datasets.prepare("bar:size=8", tmp_path)
    assert [group.name for group in report.groups][3] == "pole vaulting"
    assert not any(group.conflicting for group in report.groups)
    assert "worst-class accuracy" in report.note and "class " in printed(report)
    long = printed(datasets.verify("digits"))
    assert long.count("colour") <= 21


@pytest.mark.skipif(not (REAL_ROOT / "mnist").is_dir(), reason="MNIST is not here")
@pytest.mark.parametrize("name", ["even_odd", "cmnist"])
def test_real_mnist_verifies(name):
    report = datasets.verify(name, REAL_ROOT)
    assert report.ok
    differing = {check.name for check in report.checks if check.state == "differs"}
    assert differing == {"worst group (paper)"} and report.note


def test_a_task_of_one_s_own_may_have_a_source_of_another_kind(tmp_path, monkeypatch):
    (tmp_path / "attic").mkdir()
    text = "from evenhand.tasks.digits import load\nSOURCE = 'the attic'\n"
    (tmp_path / "attic" / "mine.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert datasets.verify("attic.mine").ok
    assert datasets.fetch("attic.mine").messages == ("attic.mine needs no download",)
