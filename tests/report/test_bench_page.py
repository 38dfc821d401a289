"""The page of a bench: small and quick with hundreds of runs, inert to hostile names, the same for the same runs."""

import base64
from pathlib import Path

import pytest
from made_bench import curves, whole, write
from parsed_page import Page

from evenhand.bench.results import frame
from evenhand.report import benchpage
from evenhand.report.page import build
from evenhand.report.study import studies
from evenhand.training.record import Record

HOSTILE = "\"><img src=x onerror=alert(1)></script><script>window.taken=1</script>'-->{{7*7}}"
PAIR = {"lr": 1e-3, "weight_decay": 0.0}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """300 runs of two tasks."""
    runs = tmp_path_factory.mktemp("runs")
    made = [*whole(runs), *whole(runs, "cmnist")]
    made += [write(runs, "lff", {"q": 0.3, **PAIR}, seed=s) for s in range(300 - len(made))]
    return made


@pytest.fixture(scope="module")
def page(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(records, tmp_path_factory.mktemp("page") / "p.html", load_task=lambda _: None)


def test_three_hundred_runs_make_a_small_page_that_shows_them_all(page: Path, records: list[Record]) -> None:
    assert len(records) == 300 and page.stat().st_size < 2_500_000
    found = Page(page.read_text())
    assert len(found.all("details", class_="each")) == 300
    for title in ("The comparison", "Selected hyperparameters", "What a run and a search cost", "Every run"):
        assert title in found.words
    assert "83.0 ± 0.8" in found.words and "2.17 ± 0.02" in found.words  # WGA of TAB, PoU of JTT
    assert "outside its grid" in found.words  # what is left out is said
    pictures = [image for image in found.all("img") if image["src"].startswith("data:image/svg+xml")]
    assert len(pictures) >= 3 and all("seeds" in image["alt"] for image in pictures)
    for image in pictures:
        svg = base64.b64decode(image["src"].partition(",")[2])
        assert b"<script" not in svg and b"<svg" in svg
    commands = page.read_text().count("evenhand run even_odd jtt")
    assert commands == 75


def test_the_page_stays_readable_without_seeing_it(page: Path) -> None:
    found = Page(page.read_text())
    identifiers = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    assert all(link["href"].removeprefix("#") in identifiers for link in found.all("a"))
    assert all(cell.get("scope") in ("col", "colgroup", "row") for cell in found.all("th"))
    assert not [a for _, attributes in found.tags for a in attributes if a.startswith("on") or a == "style"]
    assert len(found.raw) == 3


def test_a_large_study_is_told_by_what_is_selected(records: list[Record]) -> None:
    (study,) = [each for each in studies(records) if each.task == "even_odd"]
    assert len(study.variants) > 40
    told = benchpage.selected(study)
    assert sorted(variant.method for variant in told.variants) == [
        "erm",
        "gdro",
        "jtt",
        "lff",
        "masktune",
        "tab",
    ]
    (jtt,) = [variant for variant in told.variants if variant.method == "jtt"]
    assert jtt.records[0].config["hyperparameters"] == {"identifier_epochs": 50, "upweight": 10}


def test_the_page_begins_with_who_leads_and_whether_seeds_differ_by_more(tmp_path: Path) -> None:
    wgas = {"gdro": (0.95, 0.95), "tab": (0.80, 0.90), "erm": (0.82, 0.80), "jtt": (0.2, 0.2)}
    made = [write(tmp_path, m, PAIR, seed=s, wga=w) for m, ws in wgas.items() for s, w in enumerate(ws)]
    found = Page(build(made, tmp_path / "a.html", load_task=lambda _: None).read_text())
    said = "even_odd: told no groups, TAB has the best worst-group accuracy, 85.0 ± 5.0%; ERM follows with "
    assert f"{said}81.0 ± 1.0%, within what seeds differ by." in found.words
    one = [record for record in made if record.seed == 0 and record.method != "tab"]
    assert benchpage.lead(frame(one)).endswith("accuracy, 82.0%; JTT follows with 20.0%.")
    alone = [record for record in made if record.method in ("gdro", "erm")]
    assert benchpage.lead(frame(alone)) == ""


def test_many_tasks_are_folded_and_none_is_left_out(tmp_path: Path) -> None:
    tasks = [f"own{i}" for i in range(8)]
    made = [write(tmp_path, m, PAIR, seed=s, task=t) for t in tasks for m in ("erm", "tab") for s in range(2)]
    found = Page(build(made, tmp_path / "p.html", load_task=lambda _: None).read_text())
    assert "2 more tasks" in found.words and found.words.count("told no groups") == 6
    assert all(task in found.words for task in tasks)


def test_the_same_runs_make_the_same_page(tmp_path: Path) -> None:
    made = [write(tmp_path, m, PAIR, seed=s, dynamics=curves(6)) for m in ("erm", "tab") for s in (0, 1)]
    first = build(made, tmp_path / "a.html", load_task=lambda _: None).read_bytes()
    again = [Record(record.path) for record in reversed(made)]
    assert build(again, tmp_path / "b.html", load_task=lambda _: None).read_bytes() == first


def test_one_or_two_runs_are_no_bench(tmp_path: Path) -> None:
    made = [write(tmp_path, m, PAIR, dynamics=curves(6)) for m in ("erm", "tab", "lff")]
    for some in (made[:1], made[:2], made):
        found = Page(build(some, tmp_path / "p.html", load_task=lambda _: None).read_text())
        assert "The comparison" not in found.words and not found.all("img")
    more = [*made[:2], write(tmp_path, "tab", PAIR, seed=1)]
    found = Page(build(more, tmp_path / "p.html", load_task=lambda _: None).read_text())
    assert "The comparison" in found.words and "Reproduce" in found.words  # few enough to be shown at length
    assert "failed" not in found.words


def test_failed_runs_are_named_on_the_page_of_a_bench_and_on_that_of_a_few_runs(tmp_path: Path) -> None:
    made = [write(tmp_path, m, PAIR) for m in ("erm", "tab")]
    for task in ("even_odd", "cmnist"):  # nothing on the page is of cmnist
        file = tmp_path / task / "jtt" / "key-s0" / "failure.json"
        file.parent.mkdir(parents=True)
        file.write_text('{"error": "RuntimeError: no <b>memory</b>"}')
    said = "jtt/key-s0: RuntimeError: no <b>memory</b>"
    found = Page(build(made, tmp_path / "p.html", load_task=lambda _: None).read_text())
    assert found.words.count(said) == 1 and "1 run failed and is not counted here" in found.words
    more = [*made, write(tmp_path, "tab", PAIR, seed=1)]
    found = Page(build(more, tmp_path / "p.html", load_task=lambda _: None).read_text())
    assert f"Failed: {said}" in found.words and "not counted here" not in found.words


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    made = [
        write(
            tmp_path,
            m,
            {HOSTILE: f"{HOSTILE}{i}"},
            seed=s,
            task="own",
            spec=f"own:{HOSTILE}",
            dynamics=curves(5),
        )
        for m in ("erm", "tab")
        for i in range(7)
        for s in (0, 1)
    ]
    found = Page(build(made, tmp_path / "p.html", load_task=lambda _: None).read_text())
    assert len(found.raw) == 3 and not found.all("img", src="x")
    assert not [a for _, attributes in found.tags for a in attributes if a.startswith("on")]
    assert found.text.count(HOSTILE) > 5 and "49" not in found.text.replace(HOSTILE, "")[:200]


def test_runs_without_curves_or_timings_are_shown(tmp_path: Path) -> None:
    made = [write(tmp_path, "jtt", {"upweight": u, **PAIR}, seed=s) for u in range(1, 15) for s in (0, 1)]
    for record in made:
        (record.path / "timing.json").unlink()
    for file in (tmp_path / "even_odd" / "stages").glob("*/epochs.jsonl"):
        file.unlink()
    path = build([Record(r.path) for r in made], tmp_path / "p.html", load_task=lambda _: None)
    assert len(Page(path.read_text()).all("details", class_="each")) == 28
