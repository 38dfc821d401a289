"""The page: complete, self-contained, inert to hostile names, and the same for the same runs."""

import base64
import dataclasses
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_records import plant, scores, write_run
from parsed_page import Page

from evenhand import Split, Task, execute, tasks
from evenhand.report import palette
from evenhand.report.page import build, task_loader
from evenhand.training import store
from evenhand.training.record import Record
from evenhand.training.store import read_json, write_json

HOSTILE = (
    "\"><img src=x onerror=alert(1)></script><script>window.taken=1</script>'--><svg/onload=a()>{{7*7}}&amp;"
)
NOT_THERE = "No samples are shown because the data were not available"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Two real runs, small."""
    task = tasks.load("digits_even_odd:limit=160")
    folder = tmp_path_factory.mktemp("runs")
    torch.set_num_threads(1)  # several threads on a busy machine wait for each other
    return [execute(task, method, {"epochs": 4}, runs=folder, device="cpu") for method in ("erm", "tab")]


@pytest.fixture(scope="module")
def page(runs: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(runs, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def parsed(page: Path) -> Page:
    return Page(page.read_text())


class Photographs:
    """As a dataset gives them, one by one; of noise, the worst case for any picture format."""

    def __len__(self) -> int:
        return 2400

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.from_numpy(np.random.default_rng(row).integers(0, 256, (3, 120, 160), dtype=np.uint8))


def split(y: np.ndarray, x: torch.Tensor | Photographs, group: np.ndarray | None = None) -> Split:
    return Split(x, torch.from_numpy(y), group=None if group is None else torch.from_numpy(group))


def planted(tmp_path: Path, task: Task, test: dict, **more: object) -> list[Record]:
    """ERM and TAB on a task whose minority is planted."""
    found = plant(task.train.y.numpy())
    return [
        write_run(tmp_path, "erm", test, task=task, **more),
        write_run(tmp_path, "tab", test, task=task, found=found, **more),
    ]


def picture_task() -> Task:
    y = np.repeat([0, 1], 20)
    pixels = np.random.default_rng(0).integers(0, 256, (len(y), 3, 8, 8), dtype=np.uint8)
    one = split(y, torch.from_numpy(pixels))
    return Task("planted", one, one, one, ("class 0", "class 1"), checksum="planted")


def test_the_page_has_every_part_and_is_small(page: Path, parsed: Page, runs: list[Record]) -> None:
    assert page.stat().st_size < 300_000
    for title in (
        "Methods side by side",
        "Accuracy in every group",
        "What TAB found",
        "Training",
        "All runs, with the commands that repeat them",
    ):
        assert title in parsed.words
    parts = runs[1].partition
    assert parts is not None
    assert f"set apart {int(parts.minority.sum())} of {len(parts.minority)} training samples" in parsed.words
    assert "True groups, used only for scoring" in parsed.words and "Bias-conflicting" in parsed.words
    wga = runs[1].metrics["test"]["wga"]
    assert f"{100 * wga:.1f}%" in parsed.words
    shown = min(24, int(parts.minority.sum()))
    assert len(parsed.all("img")) >= shown


def test_the_page_can_be_read_without_seeing_it(parsed: Page) -> None:
    for landmark in ("header", "nav", "main", "footer"):
        assert len(parsed.all(landmark)) == 1, landmark
    assert [tag for tag, _ in parsed.tags if re.fullmatch("h[1-6]", tag)][:3] == ["h1", "h2", "h3"]
    assert all(image["alt"] for image in parsed.all("img"))
    assert all(cell.get("scope") in ("col", "colgroup", "row") for cell in parsed.all("th"))
    identifiers = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    for link in parsed.all("a"):
        assert link["href"].removeprefix("#") in identifiers
    named = [a["aria-labelledby"] for _, a in parsed.tags if "aria-labelledby" in a]
    assert named and set(named) <= set(identifiers)


def test_the_page_fetches_nothing(page: Path, parsed: Page) -> None:
    for tag, attributes in parsed.tags:
        for name, value in attributes.items():
            assert name not in ("srcset", "action", "formaction", "style", "background", "poster"), (
                tag,
                name,
            )
            if name in ("src", "href", "data"):
                assert value.startswith(("data:image/", "#")), (tag, name, value[:40])
    assert not parsed.all("link") and not parsed.all("iframe") and not parsed.all("base")
    (style,) = [content for tag, _, content in parsed.raw if tag == "style"]
    assert "url(" not in style and "@import" not in style
    assert not re.search(r"https?://", page.read_text())


def test_the_policy_lets_only_our_own_script_and_style_count(parsed: Page) -> None:
    (policy,) = [meta["content"] for meta in parsed.all("meta") if "http-equiv" in meta]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for tag, attributes, content in parsed.raw:
        if attributes.get("type") != "application/json":
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}'" in policy
    assert len(parsed.raw) == 2  # style and script


def test_the_same_runs_make_the_same_page(page: Path, runs: list[Record], tmp_path: Path) -> None:
    again = build([Record(run.path) for run in reversed(runs)], tmp_path / "again.html")
    assert again.read_bytes() == page.read_bytes()


def test_only_times_depend_on_timing(runs: list[Record], tmp_path: Path) -> None:
    copy = shutil.copytree(runs[0].path.parents[2], tmp_path / "runs")
    records = [Record(copy / run.path.relative_to(runs[0].path.parents[2])) for run in runs]
    before = build(records, tmp_path / "a.html").read_text()
    for record in records:
        timing = read_json(record.path / "timing.json")
        stages = dict.fromkeys(timing["stages"], 7200.0)
        write_json(record.path / "timing.json", {"seconds": 1.0, "stages": stages, "unshared": 7200.0})
        names = read_json(record.path / "checksums.json")["files"]
        store.write_manifest(record.path, {name: (record.path / name).read_bytes() for name in names})
    after = build([Record(record.path) for record in records], tmp_path / "b.html").read_text()
    assert before != after
    time = re.compile(r"\d+ h \d+ min|\d+ min \d+ s|[\d.]+ s\b")
    assert time.sub("T", before) == time.sub("T", after)


@pytest.mark.parametrize("with_data", [True, False])
def test_hostile_names_are_only_text(tmp_path: Path, with_data: bool) -> None:
    y = np.repeat([0, 1], 30)
    one = split(y, torch.zeros(60, 3, 8, 8, dtype=torch.uint8), y * 2 + (np.arange(60) % 2))
    task = Task(
        "planted", one, one, one, (HOSTILE, "b"), group_names=tuple(f"{HOSTILE}, {i}" for i in range(4)),
        conflicting=frozenset([1, 2]), checksum="x",
    )  # fmt: skip
    test = scores({f"{HOSTILE}, {i}": 0.5 + i / 10 for i in range(4)}, {HOSTILE: 0.6, "b": 0.7})
    records = planted(tmp_path, task, test, spec=f"own:{HOSTILE}", hyperparameters={HOSTILE: HOSTILE})
    html = build(records, tmp_path / "p.html", load_task=lambda _: task if with_data else None).read_text()
    found = Page(html)
    assert len(found.raw) == 2 and not found.all("img", src="x")
    assert not [a for _, attributes in found.tags for a in attributes if a.startswith("on")]
    assert found.text.count(HOSTILE) > 5
    plots = [json.loads(attributes["data-plot"]) for _, attributes in found.tags if "data-plot" in attributes]
    assert plots and any(plot.get("title") == f"Loss of the class {HOSTILE}" for plot in plots)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30))
def test_no_name_changes_the_structure(tmp_path: Path, name: str) -> None:
    def structure(group: str) -> list[tuple[str, list[str]]]:
        record = write_run(tmp_path, "erm", scores({group: 0.5, "other": 0.9}, {"a": 0.7, "b": 0.7}))
        found = Page(build([record], tmp_path / "p.html", load_task=lambda _: None).read_text())
        return [(tag, sorted(attributes)) for tag, attributes in found.tags]

    assert structure(name) == structure("plain")


def test_without_the_data_the_page_says_so(runs: list[Record], tmp_path: Path) -> None:
    found = Page(build(runs, tmp_path / "p.html", load_task=lambda _: None).read_text())
    assert NOT_THERE in found.words and not found.all("img")
    assert "Loss by epoch" in found.words  # the histories are in the records


def test_changed_data_are_not_shown_as_if_they_were_the_old(runs: list[Record], tmp_path: Path) -> None:
    other = tasks.load("digits_even_odd:limit=250")
    found = Page(build(runs, tmp_path / "p.html", load_task=lambda _: other).read_text())
    assert "No samples are shown because the data have changed" in found.words and not found.all("img")


def test_a_task_that_cannot_be_loaded_is_no_error(tmp_path: Path) -> None:
    record = write_run(tmp_path, "erm", scores(None, {"a": 0.5}), spec="nobody.has_this")
    assert task_loader()(record) is None
    own = write_run(tmp_path, "tab", scores(None, {"a": 0.5}), spec="")
    assert task_loader()(own) is None


def test_without_groups_the_worst_class_is_shown(tmp_path: Path) -> None:
    task = picture_task()
    records = planted(tmp_path, task, scores(None, {"class 0": 0.4, "class 1": 0.9}))
    found = Page(build(records, tmp_path / "p.html", load_task=lambda _: task).read_text())
    assert "worst class" in found.words and "Accuracy in every class" in found.words
    assert "ias-conflicting" not in found.words
    assert (
        "only for scoring" not in found.words and "No groups are annotated, so the worst class" in found.words
    )
    assert len(found.all("img")) == 2 * (2 + 12)


def test_one_run_is_enough(runs: list[Record], tmp_path: Path) -> None:
    found = Page(build(runs[:1], tmp_path / "p.html").read_text())
    assert "ERM reaches" in found.words and "no run of another method" in found.words
    assert "class by class" not in found.words


def test_two_hundred_classes_of_photographs_stay_readable_and_small(tmp_path: Path) -> None:
    y = np.repeat(np.arange(200), 12)
    one = split(y, Photographs())
    task = Task("planted", one, one, one, tuple(f"species {i}" for i in range(200)), checksum="photographs")
    test = scores(None, {name: 0.5 + i / 500 for i, name in enumerate(task.class_names)})
    path = build(planted(tmp_path, task, test), tmp_path / "p.html", load_task=lambda _: task)
    found = Page(path.read_text())
    assert path.stat().st_size < 5_000_000
    assert len(found.all("details", class_="class")) == 12
    assert "188 more classes, less clearly separated" in found.words
    assert "188 more classes, none worse than these" in found.words
    assert found.words.count("species 199") >= 2
    assert len(found.all("progress")) == 12 * 3 + 188


def test_rows_of_a_table_show_the_features_that_differ(tmp_path: Path) -> None:
    y = np.repeat([0, 1], 40)
    parts, _ = plant(y)
    x = np.random.default_rng(0).normal(size=(80, 20))
    x[parts.minority, 17] += 9
    one = split(y, torch.from_numpy(x))
    task = Task("planted", one, one, one, ("a", "b"), checksum="table")
    records = planted(tmp_path, task, scores(None, {"a": 0.5, "b": 0.6}))
    found = Page(build(records, tmp_path / "p.html", load_task=lambda _: task).read_text())
    assert found.words.count("feature 17") == 4 and len(found.all("table", class_="values")) == 4
    assert not found.all("img")


def test_a_minority_that_is_learned_first_is_said_to_be(tmp_path: Path) -> None:
    task = picture_task()
    parts, losses = plant(task.train.y.numpy())
    test = scores(None, {"class 0": 0.4, "class 1": 0.9})
    for flipped in (False, True):
        found = (parts, 3 - losses if flipped else losses)
        record = write_run(tmp_path / str(flipped), "tab", test, task=task, found=found)
        page = Page(build([record], tmp_path / "p.html", load_task=lambda _: task).read_text())
        assert ("learned earlier than the larger one" in page.words) == flipped


def test_classes_that_were_left_alone_are_named_with_the_reason(tmp_path: Path) -> None:
    parts = dataclasses.replace(
        plant(np.repeat([0, 1], 20))[0],
        minority=np.zeros(40, dtype=bool),
        sizes=np.array([[20, 0], [20, 0]]),
        unsplit={0: "identical histories", 1: "identical histories"},
    )
    losses = np.zeros((40, 3), dtype=np.float32)
    test = scores(None, {"a": 0.4, "b": 0.9})
    record = write_run(tmp_path, "tab", test, found=(parts, losses))
    found = Page(build([record], tmp_path / "p.html", load_task=lambda _: None).read_text())
    assert "Classes that were not split: a (identical histories), b (identical histories)." in found.words
    assert "TAB found no minority in any class, so nothing was rebalanced." in found.words


@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_the_page_says_how_far_minorities_were_repeated(tmp_path: Path, strength: float) -> None:
    parts, losses = plant(np.repeat([0, 1], 20))
    parts = dataclasses.replace(parts, strength=strength)
    large, small = parts.sizes[0].tolist()
    record = write_run(tmp_path, "evenhand", scores(None, {"a": 0.4, "b": 0.9}), found=(parts, losses))
    found = Page(build([record], tmp_path / "p.html", load_task=lambda _: None).read_text())
    assert ("The two parts are hardly distinct." in found.words) == (strength < 1)
    wanted = large if strength == 1 else round((large * small) ** 0.5)
    how = "rebalanced" if strength == 1 else "rebalanced in part"
    assert f"{how} {large} and {wanted}" in found.words, (large, small)


def test_samples_of_an_odd_shape_are_named(tmp_path: Path) -> None:
    y = np.repeat([0, 1], 20)
    one = split(y, torch.zeros(40, 5, 7))
    task = Task("planted", one, one, one, ("a", "b"), checksum="odd")
    records = planted(tmp_path, task, scores(None, {"a": 0.5, "b": 0.6}))
    found = Page(build(records, tmp_path / "p.html", load_task=lambda _: task).read_text())
    assert "Samples of the shape (5, 7) cannot be shown." in found.words


def test_several_tasks_and_seeds_share_a_page(tmp_path: Path) -> None:
    test = scores({"g": 0.2, "h": 0.9}, {"a": 0.6, "b": 0.5})
    labels = np.repeat([0, 1], 30)
    records = [write_run(tmp_path, "erm", test, name="first", seed=seed) for seed in (0, 1)]
    records += [write_run(tmp_path, "tab", test, name="first", seed=s, found=plant(labels)) for s in (0, 1)]
    records += [write_run(tmp_path, "erm", test, name="second")]
    found = Page(build([*records, records[0]], tmp_path / "p.html", load_task=lambda _: None).read_text())
    assert "5 runs on 2 tasks" in found.words and len(found.all("article")) == 2
    assert "TAB seed 1 20.0% worst" in found.words
    assert "With seed 1, 100% of them are in the minority too." in found.words


def test_older_records_are_marked_and_never_beside_newer_ones(tmp_path: Path) -> None:
    low, high = (scores({"g": worst, "h": 0.9}, {"a": 0.6, "b": 0.5}) for worst in (0.2, 0.7))
    older = [write_run(tmp_path / "old", method, low, seed=s) for method in ("erm", "tab") for s in (0, 1)]
    for record in older:
        config = read_json(record.path / "config.json")
        write_json(record.path / "config.json", {k: v for k, v in config.items() if k != "numerics"})
    older = [Record(record.path) for record in older]
    newer = [write_run(tmp_path / "new", "erm", high, seed=s) for s in (2, 3)]
    sentence = "These are older records, which do not describe how they were computed."

    def words(records: list[Record]) -> str:
        return Page(build(records, tmp_path / "p.html", load_task=lambda _: None).read_text()).words

    assert sentence in words(older) and "planted, older records" not in words(older)
    assert sentence not in words(newer)
    both = words([*older, *newer])
    assert sentence in both and "planted, older records" in both
    assert "20.0%" in both and "70.0%" in both and "45.0%" not in both and "36.7%" not in both


def test_variants_that_were_computed_otherwise_are_told_apart(tmp_path: Path) -> None:
    test = scores({"g": 0.2, "h": 0.9}, {"a": 0.6, "b": 0.5})
    records = [write_run(tmp_path / str(seed), "erm", test, seed=seed) for seed in (0, 1)]
    config = read_json(records[1].path / "config.json")
    config["arithmetic"]["compute"] = "compiled"
    write_json(records[1].path / "config.json", config)
    records = [Record(record.path) for record in records]
    found = Page(build(records, tmp_path / "p.html", load_task=lambda _: None).read_text())
    assert "compute=eager" in found.words and "compute=compiled" in found.words


def test_a_method_that_trains_with_groups_is_marked(tmp_path: Path) -> None:
    test = scores({"g": 0.2, "h": 0.9}, {"a": 0.6, "b": 0.5})
    records = [write_run(tmp_path, method, test) for method in ("erm", "gdro")]
    found = Page(build(records, tmp_path / "p.html", load_task=lambda _: None).read_text())
    assert "Group DRO uses group labels" in found.words
    alone = Page(build(records[:1], tmp_path / "p.html", load_task=lambda _: None).read_text())
    assert "uses group labels" not in alone.words
    assert "only for scoring, except by Group DRO." in found.words


def test_no_runs_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one finished run, got none; run `evenhand demo`"):
        build([], tmp_path / "p.html")
    assert not list(tmp_path.iterdir())


def test_losses_are_drawn_on_a_logarithmic_axis_and_accuracies_as_shares(parsed: Page) -> None:
    plots = [json.loads(each["data-plot"]) for _, each in parsed.tags if "data-plot" in each]
    lines = [plot for plot in plots if "y" in plot]
    scales = {plot.get("title", "run"): plot["y"]["scale"] for plot in lines}
    assert scales["Loss of the class odd"] == scales["Training loss"] == scales["run"] == "log"
    assert scales["Accuracy"] == "share"
    for plot in lines:
        for series in plot["series"]:
            assert len(series["x"]) == len(series["y"]) > 1


def test_a_method_has_one_colour_in_every_chart_and_legend(tmp_path: Path) -> None:
    test = scores({"g": 0.2, "h": 0.9}, {"a": 0.6, "b": 0.5})
    methods = ("erm", "evenhand", "tab", "mine.method")
    records = [write_run(tmp_path, method, test) for method in methods]
    html = build(records, tmp_path / "p.html", load_task=lambda _: None).read_text()
    for method in methods:
        variable = palette.variable(method)
        assert f'class="key {variable}"' in html and f'"colour": "{variable}"' in html
        assert f"--{variable}:{palette.look(method).light};" in html
        assert f"--{variable}:{palette.look(method).dark};" in html


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs the browser chromium")
def test_a_browser_runs_our_script_under_the_policy(page: Path, tmp_path: Path) -> None:
    words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    done = subprocess.run(
        [*words, "--enable-logging=stderr", "--dump-dom", page.resolve().as_uri()],
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr, done.stderr
    dom = Page(done.stdout)
    assert "hidden" not in dom.all("button", class_="theme")[0]  # the script unhides it
    pressed = [button["aria-pressed"] for button in dom.all("button") if "data-sample" in button]
    assert pressed and set(pressed) == {"false"}
    assert len(dom.all("canvas")) == 2 * sum("data-plot" in attributes for _, attributes in dom.tags)
