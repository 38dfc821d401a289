"""The page of a bench: small and quick with hundreds of runs, inert to hostile names, the same for the same runs."""

import json
import re
from pathlib import Path

import pytest
from made_bench import curves, whole, write
from parsed_page import Page

from evenhand.bench import results
from evenhand.report import page as pages
from evenhand.report import tables
from evenhand.report.page import build
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
    for title in (
        "leads on 2 of 2 tasks",
        "Selected hyperparameters",
        "Cost of a run and of a search",
        "All runs, with the commands that repeat them",
    ):
        assert title in found.words
    assert "83.0 ± 0.8" in found.words and "2.17 ± 0.02" in found.words  # WGA of TAB, PoU of JTT
    assert "outside its grid" in found.words  # what is left out is said
    plots = [json.loads(each["data-plot"]) for _, each in found.tags if "data-plot" in each]
    jtt = [plot for plot in plots if any(each["colour"] == "method-jtt" for each in plot["series"])]
    assert max(len(plot["series"][0]["x"]) for plot in jtt) == 25  # all candidates, beside the selected one
    commands = page.read_text().count("evenhand run even_odd jtt")
    assert commands == 75


def test_the_page_stays_readable_without_seeing_it(page: Path) -> None:
    found = Page(page.read_text())
    identifiers = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    assert all(link["href"].removeprefix("#") in identifiers for link in found.all("a"))
    assert all(cell.get("scope") in ("col", "colgroup", "row") for cell in found.all("th"))
    assert not [a for _, attributes in found.tags for a in attributes if a.startswith("on") or a == "style"]
    assert len(found.raw) == 2


def test_a_large_bench_is_told_by_what_is_selected(records: list[Record]) -> None:
    own = results.frame([record for record in records if record.config["task"] == "even_odd"])
    assert own.variant.nunique() > 40
    view = pages.view(own, "s0", "even_odd", lambda _: None, 0)
    labels = {row["method"]: row["label"] for row in view["methods"]}
    assert sorted(labels) == ["erm", "gdro", "jtt", "lff", "masktune", "tab"]
    assert labels["jtt"] == "identifier_epochs=50, upweight=10" and labels["tab"] == ""


def test_page_and_table_show_the_same_numbers(page: Path, records: list[Record]) -> None:
    """Every method's worst group on every task, also in the chart of its groups."""
    text = re.sub(r"\s+", " ", page.read_text())
    table = tables.make("1", results.frame(records))
    for section in table.sections:
        article = text[text.index(f'<p class="kicker">{section.name}</p>') :]
        article = article[: article.index("</article>")]
        rows = table.cells(section)
        for title in (row[0].text for row in rows):
            wga = table.cell(section.name, title, "WGA")
            own = re.search(rf"</span>{title}(?: <small>.*?)?</th>.*?<strong>([^<]*)</strong>", article)
            assert own and own[1] == f"{wga.text}%", (section.name, title)
            interval = table.cell(section.name, title, "95% interval").value
            low, high = (f"{100 * end:.1f}%" for end in interval)
            assert (
                f"<strong>{wga.text}%</strong> <small>{low} to {high}, {len(wga.value['seeds'])} seeds"
                in article
            )
            row = article[own.start() : article.index("</tr>", own.start())]
            for name in ("weighted", "balanced"):
                accuracy = table.cell(section.name, title, f"accuracy, {name}").text
                assert f'data-label="{name}">{accuracy}%</td>' in row, (section.name, title, name)
        columns = re.findall(
            r'<th scope="col">([^<]*)</th>', article[article.index('<table class="groups">') :]
        )
        worst = re.search(r'<th scope="row"><bdi>odd, green</bdi></th>(.*?)</tr>', article)
        assert worst
        shown = dict(zip(columns[2:], re.findall(r"<td>([\d.]+)%", worst[1]), strict=False))
        means = {row[0].text: f"{100 * row[2].value['mean']:.1f}" for row in rows}
        assert shown == means, section.name


def test_the_page_begins_with_who_leads_by_how_much_and_how_sure(tmp_path: Path) -> None:
    wgas = {"gdro": (0.95, 0.95), "tab": (0.80, 0.90), "erm": (0.82, 0.80), "jtt": (0.2, 0.2)}
    made = [write(tmp_path, m, PAIR, seed=s, wga=w) for m, ws in wgas.items() for s, w in enumerate(ws)]
    found = Page(build(made, tmp_path / "a.html", load_task=lambda _: None).read_text())
    said = (
        "TAB is ahead on the worst group, 85.0% against 81.0% for ERM, but the difference is not significant."
    )
    assert (
        f"even_odd, 8 runs {said} Paired over 2 seeds, the difference is +4.0 points (95% interval"
        in found.words
    )
    assert "Group DRO reaches 95.0 ± 0.0%, with group labels." in found.words
    assert (
        found.words.index(said) < found.words.index("Methods side by side") < found.words.index("its price")
    )
    assert [tag for tag, each in found.tags if tag == "details" and "open" in each] == []  # tables are folded


def test_our_own_method_is_as_visible_as_tab(tmp_path: Path) -> None:
    wgas = {"erm": 0.5, "jtt": 0.9, "lff": 0.8, "evenhand": 0.7, "tab": 0.6}
    made = [write(tmp_path, m, PAIR, seed=s, wga=w + s / 100) for m, w in wgas.items() for s in (0, 1)]
    found = Page(build(made, tmp_path / "a.html", load_task=lambda _: None).read_text())
    assert "ERM reaches 50.5 ± 0.5%, Evenhand reaches 70.5 ± 0.5% and TAB reaches 60.5 ± 0.5%." in found.words
    (view,) = [pages.view(results.frame(made), "s0", "even_odd", lambda _: None, 0)]
    assert view["columns"] == ["erm", "evenhand", "tab", "jtt", "lff"]


def test_methods_that_lead_on_equally_many_tasks_are_named_together(tmp_path: Path) -> None:
    best = {"a": "tab", "b": "tab", "c": "jtt", "d": "lff"}
    made = [
        write(tmp_path, m, PAIR, seed=s, task=task, wga=(0.8 if m == leader else 0.5) + s / 100)
        for task, leader in best.items()
        for m in ("erm", "tab", "jtt", "lff")
        for s in (0, 1)
    ]
    text = Page(build(made, tmp_path / "a.html", load_task=lambda _: None).read_text()).words
    assert "TAB leads on 2 of 4 tasks; JTT and LfF on 1 each." in text
    fewer = [each for each in made if each.config["task"] in "ac"]
    text = Page(build(fewer, tmp_path / "b.html", load_task=lambda _: None).read_text()).words
    assert "TAB and JTT lead on 1 of 2 tasks each." in text


def test_many_tasks_begin_with_an_overview_and_none_is_left_out(tmp_path: Path) -> None:
    tasks = [f"own{i}" for i in range(8)]
    made = [
        write(
            tmp_path,
            m,
            PAIR,
            seed=s,
            task=t,
            wga=(0.5 if m == "erm" else 0.8) - (t == "own7") * (m == "tab") * 0.6 + s / 100,
        )
        for t in tasks
        for m in ("erm", "tab")
        for s in range(2)
    ]
    found = Page(build(made, tmp_path / "p.html", load_task=lambda _: None).read_text())
    assert len(found.all("article")) == 8 and all(task in found.words for task in tasks)
    assert (
        found.words.startswith("own0, own1") and "TAB leads on 7 of 8 tasks; ERM on 1." in found.words[:600]
    )
    assert "8 of these leads are significant" in found.words


def test_the_same_runs_make_the_same_page(tmp_path: Path) -> None:
    made = [write(tmp_path, m, PAIR, seed=s, dynamics=curves(6)) for m in ("erm", "tab") for s in (0, 1)]
    first = build(made, tmp_path / "a.html", load_task=lambda _: None).read_bytes()
    again = [Record(record.path) for record in reversed(made)]
    assert build(again, tmp_path / "b.html", load_task=lambda _: None).read_bytes() == first


def test_one_or_two_runs_are_no_bench(tmp_path: Path) -> None:
    made = [write(tmp_path, m, PAIR, dynamics=curves(6)) for m in ("erm", "tab", "lff")]
    for some in (made[:1], made[:2], made):
        found = Page(build(some, tmp_path / "p.html", load_task=lambda _: None).read_text())
        assert "Selected hyperparameters" not in found.words and not found.all("section", id="tables")
    more = [*made[:2], write(tmp_path, "tab", PAIR, seed=1)]
    found = Page(build(more, tmp_path / "p.html", load_task=lambda _: None).read_text())
    assert "Selected hyperparameters" in found.words and found.all("section", id="tables")
    assert "failed" not in found.words


def test_failed_runs_are_named_on_the_page_of_a_bench_and_on_that_of_a_few_runs(tmp_path: Path) -> None:
    made = [write(tmp_path, m, PAIR) for m in ("erm", "tab")]
    for task in ("even_odd", "cmnist"):  # nothing on the page is of cmnist
        file = tmp_path / task / "jtt" / "key-s0" / "failure.json"
        file.parent.mkdir(parents=True)
        file.write_text('{"error": "RuntimeError: no <b>memory</b>"}')
    said = "jtt/key-s0: RuntimeError: no <b>memory</b>"
    found = Page(build(made, tmp_path / "p.html", load_task=lambda _: None).read_text())
    assert found.words.count(said) == 1 and "1 run failed and is excluded: " in found.words
    more = [*made, write(tmp_path, "tab", PAIR, seed=1)]
    found = Page(build(more, tmp_path / "p.html", load_task=lambda _: None).read_text())
    assert f"Failed: {said}" in found.words and "excluded: " not in found.words


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
    assert len(found.raw) == 2 and not found.all("img", src="x")
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
