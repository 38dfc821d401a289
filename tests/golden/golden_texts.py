"""The golden texts: every table of every committed record, audits, and what pages say.

Tables are compared letter by letter, since their arithmetic is exact. An audit trains models, so that its
numbers may differ a little from machine to machine: words must agree, and numbers nearly. A page is its
visible text. `make.py texts` writes them all to `texts/`.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
for helpers in ("", "audit", "report"):  # where made-up records and planted data are made
    sys.path.append(str(HERE.parent / helpers))

import made_audit  # noqa: E402
import made_bench  # noqa: E402
import made_records  # noqa: E402
import numpy as np  # noqa: E402
import planted  # noqa: E402
import sklearn  # noqa: E402
import threadpoolctl  # noqa: E402
import torch  # noqa: E402
from parsed_page import Page  # noqa: E402
from rich.console import Console  # noqa: E402

import evenhand  # noqa: E402
from evenhand import cli  # noqa: E402
from evenhand.bench.pack import load  # noqa: E402
from evenhand.bench.results import frame  # noqa: E402
from evenhand.report import render, tables  # noqa: E402
from evenhand.report.page import build, render_audit  # noqa: E402
from evenhand.training import store  # noqa: E402
from evenhand.training.record import Record  # noqa: E402

WIDTH = "100"  # of the terminal
PACKED = sorted([*(ROOT / "results").glob("*.zip"), *(ROOT / "results" / "studies").glob("*.zip")])
SMALL = "even_bar"  # the packed file whose table stands here in every form


@contextlib.contextmanager
def surroundings(folder: Path) -> Iterator[None]:
    """Neither data nor caches of this machine, and a terminal of fixed width."""
    settings = {"COLUMNS": WIDTH, "NO_COLOR": "1", "TERM": "dumb", "EVENHAND_CACHE": str(folder / "cache")}
    settings |= {"EVENHAND_DATA": str(folder / "data"), "TORCH_HOME": str(folder / "hub")}
    (folder / "data").mkdir(exist_ok=True)
    with mock.patch.dict(os.environ, settings), contextlib.chdir(folder):
        os.environ.pop("EVENHAND_WEIGHTS", None)
        yield


def command(*words: object) -> str:
    """What `evenhand WORDS` prints, and how it ends if not well."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["evenhand", *map(str, words)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.suppress(SystemExit),
    ):
        cli.main()
    return out.getvalue() + err.getvalue()


def anywhere(text: str, folder: Path) -> str:
    """The same on every machine, in every version, and however long it took."""
    text = text.replace(str(folder), "FOLDER").replace(str(ROOT), "REPOSITORY")
    text = text.replace(f"Made by evenhand {evenhand.__version__}", "Made by evenhand")
    text = re.sub(r"^seconds\n?[\d.]+$", "seconds", text, flags=re.MULTILINE)
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)


# -- tables ----------------------------------------------------------------------------------------------


def packed_tables(file: Path) -> str:
    """Every table of a packed file; the sentence that refuses it where there is none."""
    parts = []
    for name in tables.NAMES:
        if name not in ("methods", "datasets"):  # these are the same for all
            parts.append(f"$ evenhand table {name}\n{command('table', name, '--runs', file)}")
    return "\n".join(parts)


def other_tables(folder: Path) -> str:
    """Tables without records, and one table in every form."""
    packed = ROOT / "results" / "studies" / f"{SMALL}.zip"
    parts = [f"$ evenhand table methods\n{command('table', 'methods')}"]
    parts.append(f"$ evenhand table datasets\n{command('table', 'datasets', '--task', 'digits')}")
    for form in render.FORMATS:
        text = command("table", "1", "--runs", packed, "--format", form)
        parts.append(f"$ evenhand table 1 --format {form}\n{text}")
    for criterion in ("accuracy", "wga", "worst_class", "worst_pseudo_group", "luck"):
        text = command("table", "1", "--runs", ROOT / "results" / "bar.zip", "--by", criterion)
        parts.append(f"$ evenhand table 1 --by {criterion}\n{text}")
    terminal = Console(file=io.StringIO(), width=int(WIDTH), color_system=None)
    for name in ("1", "compare"):
        for part in render.terminal(tables.make(name, frame(load(packed))), int(WIDTH)):
            terminal.print(part)
    assert isinstance(terminal.file, io.StringIO)
    parts.append(f"on a terminal\n{terminal.file.getvalue()}")
    return "\n".join(parts)


# -- audits ----------------------------------------------------------------------------------------------


def linear(shape: tuple[int, ...], num_classes: int) -> torch.nn.Module:
    """A model that does not amplify rounding."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(math.prod(shape), num_classes))


def sklearn_version() -> str:
    return ".".join(sklearn.__version__.split(".")[:2])


def comparable(golden: str) -> bool:
    """Whether a text is of no audit, or of one with the same version of scikit-learn."""
    first = golden.partition("\n")[0]
    return not first.startswith("made with") or first.endswith(f" {sklearn_version()}")


def audit_of(kind: str, folder: Path) -> str:
    """What `evenhand audit` prints on planted data, its summary, and the first lines of its lists."""
    if kind == "photos":
        source: Path = planted.photos(folder / "photos", count=120)
        for number in range(10):  # light ones that are called dark
            (source / "light" / f"{number}.png").rename(source / "dark" / f"light {number}.png")
        words: tuple[object, ...] = ("--epochs", 10, "--size", 8, "--model", f"{__name__}:linear")
    else:
        frame = getattr(planted, kind)(0.95, num_samples=800).drop(columns="swapped")
        source = planted.saved(frame, folder / f"{kind}.csv")
        label = (
            ("--label", "outcome", "--missing")
            if kind == "table"
            else ("--label", "topic", "--text", "message")
        )
        words = (*label, "--group", "aligned", *(("--hide-group",) if kind == "table" else ()))
    with threadpoolctl.threadpool_limits(1):  # threads of a small model wait for each other
        printed = command("audit", source, *words, "--out", folder / "out", "--device", "cpu", "--quiet")
    summary = json.loads((folder / "out" / "summary.json").read_text())
    del summary["evenhand"]  # the version
    summary["training"] = {key: value for key, value in summary["training"].items() if "seconds" not in key}
    lists = [
        "\n".join([f"{name}, {len(lines)} lines", *lines[:6]])
        for name in ("samples.csv", "weights.csv")
        for lines in [(folder / "out" / name).read_text().splitlines()]
    ]
    files = "\n".join(sorted(path.name for path in (folder / "out").iterdir()))
    parts = [
        f"made with scikit-learn {sklearn_version()}",
        printed,
        json.dumps(summary, indent=1),
        *lists,
        files,
        visible((folder / "out" / "report.html").read_text()),
    ]
    return "\n\n".join(parts).replace(f"\nevenhand{evenhand.__version__}\n", "\n")


# -- pages -----------------------------------------------------------------------------------------------


def visible(html: str) -> str:
    """The text of a page, without scripts and styles."""
    lines = (" ".join(line.split()) for line in Page(html).lines)
    return "\n".join(line for line in lines if line) + "\n"


def sealed(records: list[Record]) -> list[Record]:
    """The same records with checksums, as a run leaves them."""
    for record in records:
        store.write_manifest(record.path, {each.name: each.read_bytes() for each in record.path.iterdir()})
    return [Record(record.path) for record in records]


def run_page(folder: Path) -> str:
    """Two methods on a made-up task, one of which found a minority."""
    labels = np.repeat([0, 1], 100)
    groups = {"cat, indoors": 0.95, "cat, outdoors": 0.6, "dog, indoors": 0.7, "dog, outdoors": 0.97}
    better = {**groups, "cat, outdoors": 0.85, "dog, indoors": 0.88}
    classes = {"cat": 0.9, "dog": 0.92}
    identified = {"identified": 0.8, "purity": 0.9, "share": 0.45}
    records = [
        *(
            made_records.write_run(folder, "erm", made_records.scores(groups, classes), seed=s)
            for s in (0, 1)
        ),
        *(
            made_records.write_run(
                folder,
                "tab",
                made_records.scores(better, classes),
                seed=s,
                found=made_records.plant(labels),
                identification=identified,
            )
            for s in (0, 1)
        ),
    ]
    page = build(sealed(records), folder / "page.html", load_task=lambda _: None)
    return visible(page.read_text())


def bench_page(folder: Path) -> str:
    """The paper's six methods with their whole grids, two seeds."""
    records = made_bench.whole(folder, seeds=(0, 1))
    page = build(sealed(records), folder / "page.html", load_task=lambda _: None)
    return visible(page.read_text())


def packed_page(folder: Path) -> str:
    """A committed bench."""
    page = build(load(ROOT / "results" / "bar.zip"), folder / "page.html", load_task=lambda _: None)
    return visible(page.read_text())


def audit_page(folder: Path) -> str:
    """The page of a made-up audit, for every kind of data."""
    parts = [
        f"{kind}\n{visible(render_audit(made_audit.audit(kind=kind)))}"
        for kind in ("pictures", "texts", "rows")
    ]
    return "\n".join(parts)


# -- all of them -----------------------------------------------------------------------------------------

TEXTS: dict[str, Callable[[Path], str]] = {
    **{f"tables-{file.stem}": (lambda folder, file=file: packed_tables(file)) for file in PACKED},
    "tables": other_tables,
    **{
        f"audit-{kind}": (lambda folder, kind=kind: audit_of(kind, folder))
        for kind in ("table", "text", "photos")
    },
    "page-run": run_page,
    "page-bench": bench_page,
    "page-bar": packed_page,
    "page-audit": audit_page,
}


def path_of(name: str) -> Path:
    return HERE / "texts" / f"{name}.txt"


def make(name: str) -> str:
    """A text as it is now."""
    with tempfile.TemporaryDirectory() as folder, surroundings(Path(folder)):
        return anywhere(TEXTS[name](Path(folder)), Path(folder))


def difference(name: str, golden: str, found: str) -> str:
    """The lines that differ; empty where nothing does."""
    before, after = golden.splitlines(), found.splitlines()
    if name.startswith("audit-") and len(before) == len(after):  # what nearly agrees is no difference
        after = [a if alike(a, b) else b for a, b in zip(before, after, strict=True)]
    return "\n".join(difflib.unified_diff(before, after, "golden", "now", lineterm="", n=1))


NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def alike(golden: str, found: str) -> bool:
    """Whether two lines have the same words, and numbers within 2%, or 0.02, of each other.

    >>> alike("late: 40 of 800 (5.0%)", "late: 40 of 801 (5.0%)"), alike("late: 40", "late: 60")
    (True, False)
    """
    if NUMBER.sub("#", golden).split() != NUMBER.sub("#", found).split():
        return False
    pairs = zip(NUMBER.findall(golden), NUMBER.findall(found), strict=True)
    numbers = [tuple(float(text.replace(",", "")) for text in pair) for pair in pairs]
    return all(abs(a - b) <= max(0.02, 0.02 * abs(a)) for a, b in numbers)
