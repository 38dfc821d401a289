"""Every table from hand-made records, in every form, read back."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from made_bench import curves, whole, write
from rich.console import Console
from typer.testing import CliRunner

from evenhand.bench.grid import combinations, grid_of, title
from evenhand.bench.pack import load, pack
from evenhand.bench.results import CRITERIA, counting, frame, summary
from evenhand.cli import app
from evenhand.report import notes, paper, render, tables
from evenhand.report.render import Column, Section, Table
from evenhand.report.tables import conflicting_share, longest_run, search_seconds, spent
from evenhand.training import plugins
from evenhand.training.recipe import Recipe
from evenhand.training.record import Record

PAIR = {"lr": 1e-3, "weight_decay": 0.0}
HOSTILE = '=HYPERLINK("x")|a_b$%&#{}~^\\<b>**`\x1b[31m\n'


def make(name: str, records: list[Record], **options) -> Table:
    """One of the tables, of records."""
    return tables.make(name, frame(records), **options)


def names_of(table: Table, section: int = 0) -> list[str]:
    """The first cell of every row."""
    return [row[0].text for row in table.cells(table.sections[section])]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    return whole(tmp_path_factory.mktemp("runs"))


def rows_of(markdown: str) -> list[dict[str, str]]:
    """The rows of all tables in a Markdown text, by their headers."""
    found, header = [], None
    for line in markdown.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            header = None
        elif header is None:
            header = cells
        elif not all(re.fullmatch(":?-+:?", cell) for cell in cells):
            found.append(dict(zip(header, cells, strict=True)))
    return found


def test_table_one_holds_the_known_numbers_beside_the_papers(records: list[Record]) -> None:
    table = make("1", records)
    text = {each["method"]: each for each in rows_of(render.write(table, "md"))}
    assert list(text) == ["Group DRO", "ERM", "LfF", "JTT", "MaskTune", "TAB"]
    assert text["TAB"]["WGA"] == "**83.0 ± 0.8**" and text["TAB"]["WGA, paper"] == "**81.8 ± 2.4**"
    assert text["JTT"]["WGA"] == "41.0 ± 0.8" and text["JTT"]["PoU"] == "2.17 ± 0.02"
    assert text["JTT"]["MMS"] == "65.0 ± 0.8" and text["JTT"]["MMS, paper"] == "78.3 ± 1.1"
    assert text["Group DRO"]["PoU"] == text["Group DRO"]["MMS"] == ""  # as in the paper
    assert text["Group DRO"]["WGA"] == "81.0 ± 0.8"  # never marked: it is told the groups
    assert text["TAB"]["95% interval"] == "74.5 to 89.1" and text["TAB"]["seeds"] == "3"
    assert not [note for note in table.sections[0].notes if note.startswith(("Missing", "Failed"))]


def test_the_same_numbers_stand_in_every_form(records: list[Record]) -> None:
    table = make("1", records)
    content = json.loads(render.write(table, "json"))
    (section,) = content["sections"]
    by_method = {row["method"]: row for row in section["rows"]}
    assert by_method["TAB"]["WGA"]["seeds"] == pytest.approx([0.82, 0.83, 0.84])
    assert "WGA" in by_method["TAB"]["best"] and by_method["Group DRO"]["PoU"] is None
    assert by_method["ERM"]["WGA, paper"] == {"mean": 0.5598, "deviation": 0.1385}
    rows = list(csv.DictReader(io.StringIO(render.write(table, "csv"))))
    assert [row["method"] for row in rows] == list(by_method) and {row["section"] for row in rows} == {
        "even_odd"
    }
    for row in rows:
        wanted = by_method[row["method"]]
        assert float(row["WGA"]) == wanted["WGA"]["mean"]
        assert float(row["WGA deviation"]) == wanted["WGA"]["deviation"]
        assert float(row["95% interval low"]) == wanted["95% interval"][0]
    latex = render.write(table, "latex")
    assert r"\textbf{83.0 $\pm$ 0.8}" in latex and latex.count(" & ") == 7 * 12
    shown = on_terminal(table, 140)
    assert "83.0 ± 0.8" in shown and "74.5 to 89.1" in shown and "95% interval" in shown
    assert "<strong>83.0 ± 0.8</strong>" in render.write(table, "html")


def on_terminal(table: Table, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    for part in render.terminal(table, width):
        console.print(part)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_on_a_terminal_every_number_below_another_has_its_label(records: list[Record]) -> None:
    lines = on_terminal(make("1", records), 100).splitlines()
    (start,) = [i for i, line in enumerate(lines) if line.split()[:1] == ["TAB"]]
    own, bounds, theirs, means = (line.split() for line in lines[start : start + 4])
    assert own[:5] == ["TAB", "3", "83.0", "±", "0.8"] and bounds == ["95%", "interval", "74.5", "to", "89.1"]
    assert theirs[:4] == ["paper", "81.8", "±", "2.4"] and theirs.count("±") == 4  # WGA, PoU, MMS, accuracy
    assert means == ["of", "the", "means", "1.00"]


@pytest.mark.parametrize("name", list(tables.NAMES))
@pytest.mark.parametrize("width", [60, 100, 160])
def test_no_word_is_broken_on_a_terminal(records: list[Record], name: str, width: int) -> None:
    table = make(name, records)
    shown = on_terminal(table, width)
    assert max(map(len, shown.splitlines())) <= width
    words = set(shown.split())
    cells = [cell for section in table.sections for row in table.cells(section) for cell in row]
    wanted = {word for cell in cells for word in cell.text.split()}
    assert wanted - words == set(), "a word was broken or left out"


@pytest.mark.parametrize("name", list(tables.NAMES))
@pytest.mark.parametrize("form", list(render.FORMATS))
def test_every_table_is_well_formed_in_every_form(records: list[Record], name: str, form: str) -> None:
    text = render.write(make(name, records), form)
    if form == "json":
        assert json.loads(text)["table"] == name
    elif form == "csv":
        rows = list(csv.reader(io.StringIO(text)))
        assert len(rows) > 1 and len({len(row) for row in rows}) == 1
    elif form == "md":
        assert rows_of(text)
    elif form == "html":
        assert text.count("<tr>") == text.count("</tr>") > 1 and text.count("<td") == text.count("</td>")
    else:
        check_latex(text)


def check_latex(text: str) -> None:
    """What TeX would stumble over: braces, environments, cells of a row, special letters."""
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    body = "\n".join(lines)
    plain = re.sub(r"\\[{}&%$#_\\]", "", body)
    assert plain.count("{") == plain.count("}") and plain.count("$") % 2 == 0
    assert body.count(r"\begin{tabular}") == body.count(r"\end{tabular}") > 0
    assert not re.search(r"(?<!\\)[%#_~^]", re.sub(r"\$[^$]*\$", "", body))
    for block in re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", body, re.S):
        for row in (line for line in block[1].splitlines() if line.endswith(r"\\")):
            assert len(re.findall(r"(?<!\\)&", row)) == len(block[0]) - 1
    assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_hostile_names_stay_text_in_every_form(tmp_path: Path) -> None:
    columns = (Column("name", words=True), Column("n"))
    table = Table("x", "title", columns, [Section("s|x", [{"name": HOSTILE, "n": 1}])])
    cell = table.cells(table.sections[0])[0][0]
    assert "\x1b" not in cell.text and "\n" not in cell.text
    check_latex(render.write(table, "latex"))
    (row,) = csv.DictReader(io.StringIO(render.write(table, "csv")))
    assert row["name"].startswith("'=HYPERLINK")
    (shown,) = rows_of(render.write(table, "md"))
    assert shown["n"] == "1" and "<b>" not in shown["name"]
    assert json.loads(render.write(table, "json"))["sections"][0]["rows"][0]["name"] == cell.text
    record = write(tmp_path, HOSTILE.replace("/", ""), {HOSTILE: HOSTILE}, task="own", spec=f"own:{HOSTILE}")
    for name in ("1", "selected", "cost"):
        for form in render.FORMATS:
            assert "\x1b" not in render.write(make(name, [record]), form).replace("\\u001b", "\x1b")


def test_an_unfinished_bench_says_what_is_missing(tmp_path: Path) -> None:
    made = [write(tmp_path, "erm", PAIR, seed=s) for s in (0, 1)]
    made += [write(tmp_path, "lff", {"q": 0.05, **PAIR}, seed=0)]
    failed = tmp_path / "even_odd" / "jtt" / "abc-s0" / "failure.json"
    failed.parent.mkdir(parents=True)
    failed.write_text(json.dumps({"error": "RuntimeError: out of memory\nmore", "traceback": "", "time": 0}))
    table = make("1", made, failed=notes.failures([tmp_path]))
    below = table.sections[0].notes
    assert "Missing: tab, all runs." in below and "Failed: jtt/abc-s0: RuntimeError: out of memory" in below
    assert any(
        note.startswith("Missing: erm, 8 of 10 runs: lr=0.001, weight_decay=1e-05 (seed 0, 1)")
        for note in below
    )
    assert any(
        note.startswith("Missing: lff, 13 of 14 runs: q=0.05 (seed 1), q=0.1 (seed 0, 1)") for note in below
    )
    command = next(note for note in below if note.startswith("To complete them, run: "))
    words = "evenhand bench even_odd --methods gdro,erm,lff,jtt,masktune,tab --seeds 0,1 --device cpu --runs"
    assert command.endswith(f"{words} {tmp_path}")
    assert table.cell("even_odd", "TAB", "WGA").text == ""
    assert table.cell("even_odd", "ERM", "PoU").text == ""  # one candidate has no price
    assert any("PoU and MMS are omitted for erm and lff" in note for note in below)


def test_a_selected_candidate_that_pou_cannot_count_is_said(tmp_path: Path) -> None:
    for q, wga, val in ((0.05, 0.0, 0.9), (0.1, 0.4, 0.8), (0.25, 0.5, 0.7)):
        made = [write(tmp_path, "lff", {"q": q, **PAIR}, seed=s, wga=wga, val=val) for s in (0, 1)]
    table = make("1", load(tmp_path))
    assert made and table.cell("even_odd", "LfF", "WGA").text == "0.0 ± 0.0"
    assert table.cell("even_odd", "LfF", "PoU").value["mean"] == pytest.approx(1.25)
    assert table.cell("even_odd", "LfF", "PoU, of the means").text == "1.25"
    notes = table.sections[0].notes
    assert "Candidates excluded from PoU for a WGA of zero: 1 of lff's 3." in notes
    assert "The selected candidate of lff is among them; PoU is the next one's." in notes


def test_seeds_that_pou_cannot_count_are_said(tmp_path: Path) -> None:
    for q, wga, val in ((0.05, (0.4, 0.0), 0.9), (0.1, (0.6, 0.1), 0.8)):
        for seed in (0, 1):
            write(tmp_path, "lff", {"q": q, **PAIR}, seed=seed, wga=wga[seed], val=val)
    table = make("1", load(tmp_path))
    assert table.cell("even_odd", "LfF", "PoU").text == "1.50"
    said = "PoU of lff uses 1 of 2 seeds; in the others its denominator, a WGA, is zero."
    assert said in table.sections[0].notes
    (row,) = summary(frame(load(tmp_path)))
    assert row["pou"] == pytest.approx(1.5)
    for path in tmp_path.glob("*/lff/*-s0"):
        shutil.rmtree(path)
    (row,) = summary(frame(load(tmp_path)))
    assert row["wga"] == 0 and row["pou"] is None  # it would be another candidate's


def test_equal_candidates_are_said(tmp_path: Path) -> None:
    for q, wga in ((0.05, 0.2), (0.1, 0.4), (0.25, 0.5)):
        for seed, val in ((0, 0.8), (1, 0.9)):  # the same means
            write(tmp_path, "lff", {"q": q, **PAIR}, seed=seed, wga=wga, val=val if q < 0.2 else 0.5, wrong=2)
    assert not any(note.startswith("Tied") for note in make("1", load(tmp_path), by="wga").sections[0].notes)
    write(tmp_path, "tab", PAIR, seed=0, pseudo=True), write(tmp_path, "tab", PAIR, seed=1, pseudo=True)
    made = make("1", load(tmp_path)), make("selected", load(tmp_path))
    one, selected = ([note for note in table.sections[0].notes if note.startswith("Tied")] for table in made)
    assert one == ["Tied candidates, of which the first in the grid is selected: by accuracy 2 of lff's 3."]
    assert selected[0].endswith("by accuracy 2 of lff's 3; by worst_pseudo_group 3 of lff's 3.")


def test_runs_on_other_data_and_uneven_searches_are_said(tmp_path: Path) -> None:
    for q in (0.05, 0.1):
        for seed in (0, 1):
            write(tmp_path, "lff", {"q": q, **PAIR}, seed=seed)
    notes = make("1", load(tmp_path)).sections[0].notes
    assert not any("checksums" in note or "MMS of" in note for note in notes)
    write(tmp_path, "lff", {"q": 0.25, **PAIR}, seed=0)
    write(tmp_path, "tab", PAIR, seed=0, data="other")
    notes = make("1", load(tmp_path)).sections[0].notes
    assert "Runs whose data have another checksum than most: 1 of tab." in notes
    assert "MMS of lff averages different candidates for different seeds: runs are missing." in notes


def test_packed_records_are_unpacked_before_a_bench_goes_on(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("EVENHAND_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "runs", "tab", PAIR)
    pack(load(tmp_path / "runs"), tmp_path / "records.zip")
    notes = make("1", load(tmp_path / "records.zip")).sections[0].notes
    start = "To complete them, first unpack the records (evenhand unpack FILE --runs runs), then run: evenhand bench"
    assert any(note.startswith(start) and "--runs" not in note.removeprefix(start) for note in notes)


def test_a_part_of_a_search_is_not_the_cheapest(tmp_path: Path) -> None:
    for threshold in (0, 0.5, 1, 1.5, 2, 2.5, 3):
        write(tmp_path, "masktune", {"threshold": threshold, **PAIR}, seconds=9)
    write(tmp_path, "lff", {"q": 0.05, **PAIR}, seconds=1), write(tmp_path, "tab", PAIR, seconds=20)
    table = make("cost", load(tmp_path))
    best = {row[0].text for row in table.cells(table.sections[0]) if row[5].best}
    assert best == {"TAB"}


def test_a_seed_without_pseudo_groups_is_said_and_the_others_select(tmp_path: Path) -> None:
    for q, wrong in ((0.05, 2), (0.1, 0)):
        for seed in (0, 1):
            write(tmp_path, "lff", {"q": q, **PAIR}, seed=seed, wga=0.3 + q, wrong=wrong)
    write(tmp_path, "tab", PAIR, seed=1, pseudo=True)
    table = make("1", load(tmp_path), by="worst_pseudo_group")
    assert table.cell("even_odd", "LfF", "WGA").text == "40.0 ± 0.0"
    (said,) = [note for note in table.sections[0].notes if note.startswith("Selected without")]
    assert said == "Selected without seed 0, for which no run of tab has pseudo-groups."
    for path in tmp_path.glob("*/lff/*-s1"):
        shutil.rmtree(path)  # no candidate can be judged now
    table = make("1", load(tmp_path), by="worst_pseudo_group")
    assert table.cell("even_odd", "LfF", "PoU").text == ""


def test_other_recipes_palettes_and_models_are_said(tmp_path: Path) -> None:
    small = Recipe(
        model="mobilenet_v2", weights="x", epochs=200, batch_size=194, optimizer="sgd", precision="fp32"
    )
    bar = write(tmp_path, "erm", {"lr": 1e-3, "weight_decay": 0.0}, task="bar", recipe=small, groups=False)
    hues = write(
        tmp_path, "tab", {"weight_decay": 1e-4}, task="cmnist-palettehues", spec="cmnist:palette=hues"
    )
    table = make("1", [bar, hues])
    notes = {section.name: " ".join(section.notes) for section in table.sections}
    assert "The model is mobilenet_v2 instead of resnet18." in notes["bar"]
    assert "the worst class replaces the worst group" in notes["bar"]
    assert "--set model=mobilenet_v2" in notes["bar"]  # the command that fills what is missing
    assert "Compared with the paper's cmnist, but run with palette=hues" in notes["cmnist:palette=hues"]
    assert table.cell("cmnist:palette=hues", "TAB", "WGA, paper").text == "63.3 ± 2.5"
    assert table.cell("bar", "ERM", "WGA, paper").text == "29.6 ± 1.8"
    assert "Group DRO" not in names_of(table, 1)  # none for bar
    half = make("1", [write(tmp_path, "erm", PAIR, task="even_odd-p0.5", spec="even_odd:p=0.5")])
    assert half.cell("even_odd:p=0.5", "ERM", "WGA, paper").text == ""


def test_table_two_has_shares_and_their_multiples(tmp_path: Path) -> None:
    made = [write(tmp_path, "tab", PAIR, seed=s, pseudo=True, dynamics=curves(4)) for s in (0, 1)]
    table = make("2", made)
    told = write(tmp_path / "told", "tab", PAIR, task="waterbirds", pseudo=True)
    file = told.path / "metrics.json"
    file.write_text(json.dumps({**told.metrics, "identification": None}))
    (section,) = make("2", [Record(told.path)]).sections  # groups, none of which conflicts
    assert section.notes == ["waterbirds does not mark bias-conflicting samples, so none can be counted."]
    plain = write(tmp_path / "plain", "tab", PAIR, task="bar", groups=False)
    (section,) = make("2", [plain]).sections
    assert not section.rows and section.notes == [
        "bar does not mark bias-conflicting samples, so none can be counted."
    ]
    assert table.cell("", "even_odd", "in D").text == "1.00"  # 100 of 10,000
    assert table.cell("", "even_odd", "in D'").text == "40.0 ± 0.0"
    assert table.cell("", "even_odd", "in D', times").text == "40.0×"
    assert table.cell("", "even_odd", "purity, times").text == "50.0×"
    assert table.cell("", "even_odd", "in D', paper, times").text == "67.4×"  # the paper says 67.35
    assert table.cell("", "even_odd", "identified").text == "80.0 ± 0.0"
    assert table.cell("", "even_odd", "identified, paper").text == "66.1 ± 0.6"
    without = write(tmp_path / "b", "tab", PAIR, pseudo=True)
    assert conflicting_share(without) == pytest.approx(0.5 * 4 / 0.8 / 12)  # purity x minority / identified
    (without.path / "partition.npz").unlink()
    assert conflicting_share(Record(without.path)) == pytest.approx(0.01)  # 1 - p


def test_variants_are_compared_seed_by_seed(tmp_path: Path) -> None:
    made = [write(tmp_path, "tab", PAIR, seed=s, wga=w) for s, w in enumerate((0.5, 0.6, 0.0, 0.9))]
    other = {"summary": "loss", **PAIR}
    made += [write(tmp_path, "tab", other, seed=s, wga=w) for s, w in enumerate((0.5, 0.62, 0.04))]
    table = make("compare", made, root=tmp_path)
    assert names_of(table) == ["tab", "tab summary=loss"]
    assert table.cell("even_odd", "tab", "Δ vs. first row").text == ""
    assert table.cell("even_odd", "tab", "collapsed").text == "1"
    assert table.cell("even_odd", "tab summary=loss", "Δ vs. first row").text == "+2.0"
    # differences 0, 2 and 4 points: deviation 2, and Student's 4.303 for three of them
    assert table.cell("even_odd", "tab summary=loss", "95% interval").text == "-3.0 to +7.0"
    assert table.cell("even_odd", "tab summary=loss", "collapsed").text == "0"
    lower = [*made, write(tmp_path, "tab", {"lr": 0.1, "weight_decay": 0.0}, seed=0)]
    names = names_of(make("compare", lower, root=tmp_path))
    assert "tab lr=0.1, weight_decay=0" in names  # said where it differs


def test_variants_of_other_recipes_are_compared_and_named_by_what_differs(tmp_path: Path) -> None:
    own = Recipe(batch_size=2048, precision="fp32")
    scores = {"last": (0.5, 0.1), "best": (0.6, 0.6)}
    made = [
        write(tmp_path, "tab", PAIR, seed=s, wga=w, recipe=own.replace(keep=keep))
        for keep, each in scores.items()
        for s, w in enumerate(each)
    ]
    table = make("compare", made, root=tmp_path)
    assert names_of(table) == ["tab", "tab keep=best"]
    assert table.cell("even_odd", "tab", "WGA").text == "30.0 ± 20.0"
    assert table.cell("even_odd", "tab keep=best", "Δ vs. first row").text == "+30.0"
    again = write(tmp_path, "tab", PAIR, seed=0, wga=0.9, data="other")
    table = make("compare", [*made, again], root=tmp_path)
    assert table.cell("even_odd", "tab", "seeds").text == "2"
    assert "Excluded: 1 run (1 of tab repeated on other data or code)." in table.sections[0].notes
    assert not any("checksums" in note for note in table.sections[0].notes)  # it is left out
    other = write(tmp_path, "erm", PAIR, seed=0, data="other")
    notes = make("compare", [*made, other], root=tmp_path).sections[0].notes
    assert "Runs whose data have another checksum than most: 1 of erm." in notes
    table = make("compare", made[2:], root=tmp_path)
    assert names_of(table) == ["tab"]  # all have it, so it is said below
    assert "The recipe differs from the task's default: keep=best." in table.sections[0].notes
    short = [write(tmp_path, "gdro", PAIR, recipe=own.replace(epochs=e)) for e in (16, 2, 1)]
    table = make("compare", short, root=tmp_path)
    assert names_of(table) == [
        "gdro epochs=1",
        "gdro epochs=2",
        "gdro epochs=16",
    ]


def test_variants_that_were_computed_otherwise_are_named_by_what_differs(tmp_path: Path) -> None:
    made = [
        *(write(tmp_path, "erm", PAIR, seed=s, wga=0.1) for s in (0, 1)),
        *(write(tmp_path, "tab", PAIR, seed=s, wga=0.2) for s in (0, 1)),
        write(tmp_path, "tab", PAIR, seed=2, wga=0.9, compute="compiled"),
        write(tmp_path, "tab", PAIR, seed=3, wga=0.9, version=2),
    ]

    def names(records: list[Record]) -> list[str]:
        return names_of(make("compare", records, root=tmp_path))

    assert names(made[:4]) == ["tab", "erm"]
    assert names(made[:5]) == ["tab compute=eager", "tab compute=compiled", "erm compute=eager"]
    assert names([*made[:4], made[5]]) == ["tab version=1", "tab version=2", "erm"]
    old = write(tmp_path, "tab", PAIR, seed=2, wga=0.9, older=True)
    assert names([*made[:4], old]) == ["tab", "tab record=older", "erm"]
    assert make("compare", [*made[:4], old], root=tmp_path).cell("even_odd", "tab", "WGA").text[:4] == "20.0"


@pytest.mark.parametrize("name", ["1", "2", "selected", "cost", "compare"])
def test_older_records_are_marked_below_a_table(tmp_path: Path, name: str) -> None:
    made = {
        older: [write(tmp_path / str(older), "tab", PAIR, seed=s, pseudo=True, older=older) for s in (0, 1)]
        for older in (False, True)
    }
    new, old = (make(name, made[older], root=tmp_path) for older in (False, True))
    assert old.notes[:-1] == new.notes
    assert old.notes[-1].startswith("Older records: all runs. They do not name the arithmetic")
    cells = [[[cell.text for cell in row] for row in table.cells(table.sections[0])] for table in (new, old)]
    assert cells[0] == cells[1]
    digits = write(tmp_path, "tab", PAIR, task="digits", pseudo=True)
    both = make(name, [*made[True], digits], root=tmp_path)
    assert both.notes[-1].startswith("Older records: even_odd. ")
    if name == "compare":  # where both kinds stand side by side
        mixed = make(name, [*made[True], *made[False]], root=tmp_path)
        assert mixed.notes[-1].startswith("Older records: some of even_odd. ")


def test_what_is_missing_is_computed_as_the_rest_was(tmp_path: Path) -> None:
    own = Recipe(batch_size=2048, precision="fp32", compile="on")
    made = [write(tmp_path, "erm", PAIR, recipe=own, compute="compiled")]
    notes = make("1", made).sections[0].notes
    assert any(f"--set compile=on --device cpu --runs {tmp_path}" in note for note in notes)


def test_variants_are_compared_with_the_method_that_is_named(tmp_path: Path) -> None:
    scores = {"erm": (0.2, 0.3), "tab": (0.5, 0.6), "evenhand": (0.7, 0.9)}
    made = [write(tmp_path, m, PAIR, seed=s, wga=w) for m, each in scores.items() for s, w in enumerate(each)]
    table = make("compare", made, root=tmp_path, against="erm")
    assert names_of(table) == ["erm", "evenhand", "tab"]
    assert table.cell("even_odd", "tab", "Δ vs. ERM").text == "+30.0"
    assert table.cell("even_odd", "evenhand", "Δ vs. ERM").text == "+55.0"
    lasting = [write(tmp_path, "evenhand", {"keep": "last", **PAIR}, seed=s, wga=0.1) for s in (0, 1)]
    table = make("compare", [*made, *lasting], root=tmp_path, against="evenhand keep=last")
    assert names_of(table) == ["evenhand keep=last", "erm", "evenhand", "tab"]
    assert table.cell("even_odd", "erm", "Δ vs. first row").text == "+15.0"
    with pytest.raises(ValueError, match="must be one of erm; evenhand; tab; or its method; got 'jtt'"):
        make("compare", made, root=tmp_path, against="jtt")
    with pytest.raises(ValueError, match="--against is for the table compare, got the table 1"):
        make("1", made, against="erm")


def test_selected_shows_every_criterion_and_the_oracle(records: list[Record]) -> None:
    table = make("selected", records)
    assert table.cell("even_odd", "JTT", "selected").text == "50, 10"
    assert table.cell("even_odd", "JTT", "selected").value == "identifier_epochs=50, upweight=10"
    assert table.cell("even_odd", "JTT", "oracle").text == "1, ratio"
    assert table.cell("even_odd", "JTT", "selected, paper").text == "50, 10"
    assert table.cell("even_odd", "LfF", "oracle, paper").text == "0.1"
    assert table.cell("even_odd", "JTT", "by the oracle").text == "89.0 ± 0.8"
    assert table.cell("even_odd", "JTT", "by worst_pseudo_group").text != ""
    by = make("selected", records, by="wga")
    assert by.cell("even_odd", "JTT", "selected").text == "1, ratio"
    one = make("1", records, by="wga")
    assert one.cell("even_odd", "JTT", "WGA").text == "89.0 ± 0.8"
    assert one.cell("even_odd", "JTT", "PoU").text == "1.00 ± 0.00"


def test_cost_counts_unshared_and_really_spent_time(records: list[Record]) -> None:
    rows = frame(records)
    erm, jtt = counting(rows, "erm"), counting(rows, "jtt")
    assert longest_run(erm) == 14 and search_seconds(erm) == 60
    assert longest_run(jtt) == 36  # (20 + 4) x 1.5
    assert search_seconds(jtt) == pytest.approx(5 * sum(1.5 * (20 + j) for j in range(5)))
    masktune = list(counting(rows, "masktune").record)
    assert spent(masktune) == 3 * (9 + 7 * 4.5)  # one erm and seven models, each of three seeds
    assert spent([*masktune, *masktune]) == spent(masktune)
    table = make("cost", records)
    assert table.cell("even_odd", "JTT", "over TAB's longest run").text == "55.00×"
    assert table.cell("even_odd", "JTT", "over ERM's").text == "2.57×"
    cmnist = make("cost", [write(records[0].path.parents[3] / "c", m, task="cmnist") for m in ("tab", "jtt")])
    assert cmnist.cell("cmnist", "JTT", "over TAB's, paper").text == "14.8×"
    assert cmnist.cell("cmnist", "TAB", "over ERM's, paper").text == "2.5×"


def test_a_search_costs_the_mean_over_its_seeds(tmp_path: Path) -> None:
    for seed, seconds in enumerate((10.0, 20.0, 60.0)):
        write(tmp_path, "erm", PAIR, seed=seed, seconds=seconds)
        write(tmp_path, "erm", {**PAIR, "weight_decay": 1e-4}, seed=seed, seconds=2 * seconds)
    found = counting(frame(load(tmp_path)), "erm")
    assert search_seconds(found) == 30 + 60 and longest_run(found) == 120


def test_timings_that_are_not_there_leave_cells_empty(tmp_path: Path) -> None:
    record = write(tmp_path, "erm", PAIR)
    (record.path / "timing.json").unlink()
    assert make("cost", [Record(record.path)]).cell("even_odd", "ERM", "search").text == ""


def test_the_field_has_the_methods_that_were_run_with_privileges_and_costs(tmp_path: Path) -> None:
    for seed, seconds in enumerate((10.0, 30.0)):
        write(tmp_path, "erm", PAIR, seed=seed, seconds=seconds)
        write(tmp_path, "gdro", PAIR, seed=seed, seconds=3 * seconds)
        write(tmp_path, "cvar_dro", {"alpha": 0.1}, seed=seed, seconds=seconds / 2, wga=0.25)
        write(tmp_path, "cvar_dro", {"alpha": 0.5}, seed=seed, seconds=seconds, wga=0.5)
    table = make("field", load(tmp_path))
    assert names_of(table) == ["Group DRO", "ERM", "CVaR-DRO"], "no row of a method that was not run"
    read = {name: table.cell("even_odd", name, "needs groups for").text for name in names_of(table)}
    assert read == {"Group DRO": "training and selection", "ERM": "nothing", "CVaR-DRO": "nothing"}
    assert table.cell("even_odd", "Group DRO", "over ERM's").text == "3.00×"
    # The selected candidate took half of ERM's time, and a made record has a second stage of half the first.
    assert table.cell("even_odd", "CVaR-DRO", "over ERM's").text == "0.75×"
    assert table.cell("even_odd", "CVaR-DRO", "candidates").value == 2
    one = make("1", load(tmp_path))
    for column in ("WGA", "PoU", "accuracy, balanced"):
        assert table.cell("even_odd", "CVaR-DRO", column) == one.cell("even_odd", "CVaR-DRO", column)
    assert table.cell("even_odd", "CVaR-DRO", "PoU").text, "there is a grid, so there is a price"


def test_every_method_with_a_grid_stands_by_every_criterion_beside_the_oracle(tmp_path: Path) -> None:
    write(tmp_path, "tab", PAIR, pseudo=True)
    grids = {name: grid_of("even_odd", name) for name in plugins.describe("evenhand.methods", "train")}
    searched = [name for name, grid in grids.items() if len(combinations(grid or {})) > 1]
    assert {"afr", "agro", "dpe", "self_", "ula"} <= set(searched), "published code selects them by groups"
    for name in searched:
        for settings in combinations(grids[name] or {})[:2]:
            write(tmp_path, name, settings)
    table = make("selected", load(tmp_path))
    for name in searched:
        cells = [table.cell("even_odd", title(name), f"by {by}").text for by in (*CRITERIA, "the oracle")]
        assert all(cells), name


def test_methods_are_read_from_their_files() -> None:
    table = make("methods", [])
    trainings = {name: table.cell("", name, "trainings").value for name in (*paper.METHODS, "eta_tab")}
    assert trainings == {"erm": 1, "gdro": 1, "lff": 1, "jtt": 2, "masktune": 2, "tab": 2, "eta_tab": 2}
    assert table.cell("", "jtt", "candidates").value == 25 and table.cell("", "tab", "candidates").value == 1
    assert "cub 6" in table.cell("", "jtt", "candidates elsewhere").text
    assert table.cell("", "gdro", "needs groups for").text == "training and selection"
    assert table.cell("", "lff", "groups, paper").text == "selection"
    assert table.cell("", "tab", "paper's hyperparameters").text == "none"
    assert "exps/disagreement.py" in table.cell("", "self_", "published code selects by").text


def test_datasets_come_from_data_and_records(tmp_path: Path) -> None:
    record = write(tmp_path, "tab", PAIR, pseudo=True, dynamics=curves(4))
    table = make("datasets", [record], wanted=["even_odd", "digits_even_odd"], root=tmp_path)
    assert table.cell("", "even_odd", "N").value == 10_000 and table.cell("", "even_odd", "k").value == 4
    assert table.cell("", "even_odd", "conflicting").text == "1.00"
    assert table.cell("", "even_odd", "N, paper").text == "48,000"
    assert table.cell("", "digits_even_odd", "N").value == 1078  # ships with scikit-learn
    assert table.cell("", "digits_even_odd", "shape").text == "3×8×8"
    with pytest.raises(ValueError, match="unknown task 'nonsense'; known tasks are bar"):
        make("datasets", [], wanted=["nonsense"])
    empty = make("datasets", [], wanted=["bar"], root=tmp_path)
    assert "Missing: bar, whose data are not here" in empty.sections[0].notes[0]


def test_the_best_is_marked_with_all_that_look_equal() -> None:
    def best(*values: float, order: str = "highest", unranked: tuple[str, ...] = ()) -> list[bool]:
        columns = (Column("name"), Column("score", "{:.1f}".format, best=order))  # type: ignore[arg-type]
        rows = [{"name": str(i), "score": value} for i, value in enumerate(values)]
        table = Table("", "", columns, [Section("", rows, unranked=unranked)])
        return [row[1].best for row in table.cells(table.sections[0])]

    assert best(1.01, 1.04, 0.5) == [True, True, False]
    assert best(1.0, 0.5, order="lowest") == [False, True]
    assert best(1.0, 1.0) == [False, False] and best(1.0) == [False]
    assert best(1.0, 0.5, 0.7, unranked=("0",)) == [False, False, True]


def test_the_papers_numbers_are_those_of_the_paper() -> None:
    found = paper.score("wga", "tab", "cmnist")
    assert found is not None and (found.mean, found.deviation) == pytest.approx((0.6326, 0.025))
    assert paper.score("pou", "tab", "cub") is None and paper.score("wga", "gdro", "bar") is None
    assert paper.settings("jtt", "cmnist") == {"identifier_epochs": 50, "upweight": 25}
    assert paper.counterpart("celeba:fraction=0.15,size=96")[0] == "celeba"
    assert paper.counterpart("cmnist:limit=100") == (None, "") == paper.counterpart("my.task")


def test_the_command_prints_and_writes(records: list[Record], tmp_path: Path) -> None:
    runs = str(records[0].path.parents[2])
    runner = CliRunner()
    shown = runner.invoke(app, ["table", "1", "--runs", runs])
    assert shown.exit_code == 0 and shown.stdout.startswith("# Worst-group accuracy")
    for name, start in (("a.csv", "section,"), ("a.tex", "% Worst"), ("a.json", "{"), ("a.md", "# Worst")):
        out = tmp_path / name
        assert runner.invoke(app, ["table", "1", "--runs", runs, "-o", str(out)]).exit_code == 0
        assert out.read_text().startswith(start)
    words = ["table", "1", "--runs", runs, "--format", "csv", "-o", str(tmp_path / "a.txt")]
    assert runner.invoke(app, words).exit_code == 0 and (tmp_path / "a.txt").read_text().startswith(
        "section,"
    )
    with pytest.raises(ValueError, match="no finished run of bar; make some with: evenhand bench bar"):
        runner.invoke(app, ["table", "1", "--runs", runs, "--task", "bar"], catch_exceptions=False)
    assert runner.invoke(app, ["table", "methods", "--runs", str(tmp_path / "none")]).exit_code == 0


def test_a_table_is_made_without_torch() -> None:
    packed = Path(__file__).parents[2] / "results" / "even_odd.zip"
    code = (
        "import sys, time; from evenhand.cli import main\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules, time.process_time(), file=sys.stderr)"
    )
    words = [sys.executable, "-c", code, "table", "1", "--runs", str(packed)]
    done = subprocess.run(words, capture_output=True, text=True)
    loaded, seconds = done.stderr.split()[-2:]
    assert done.returncode == 0 and "| TAB | 3 |" in done.stdout and loaded == "False", done.stderr
    assert float(seconds) < 3  # of a processor; 0.9 on an idle machine, 2.4 when torch is imported
