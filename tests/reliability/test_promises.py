"""docs/reliability.md promises what tests show: each row names a test that exists and the trials of its campaigns."""

import csv
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PROMISES = {  # as in campaigns.csv -> the promise and its test
    "faults": (
        "After a kill, a torn write, a disk error, a full disk or an error of memory or GPU at any disk operation, "
        "the same command ends with the same bytes",
        "test_faults.py",
        "fault_matrix.py",
    ),
    "power": ("After a power failure at any moment, no checkpoint knows of an epoch that is not on disk", "test_lost_writes.py"),
    "damage": ("A damaged file of a run or a training is named, set aside and computed again", "test_damage.py"),
    "flips": ("A flipped bit in a record changes no table or page unnoticed", "test_damage.py"),
    "audit flips": ("A flipped bit in an audit's model is noticed", "tests/audit/test_audit_predict.py"),
    "workers": ("Workers that are killed lose no run and do none twice", "test_concurrency.py", "workers.py"),
    "folders": ("Two configurations never share a folder", "test_concurrency.py"),
    "fuzz": ("A mutated file is read, or refused with an error that names it", "test_fuzz.py", "fuzz/fuzz.py"),
}  # fmt: skip


def table() -> str:
    """The rows of the table of promises."""
    with (HERE / "campaigns.csv").open(newline="") as file:
        campaigns = list(csv.DictReader(file))
    trials, losses = Counter[str](), Counter[str]()
    for each in campaigns:
        trials[each["promise"]] += int(each["trials"])
        losses[each["promise"]] += int(each["losses"])
    assert trials.keys() == PROMISES.keys()
    rows = []
    for name, (promise, *tests) in PROMISES.items():
        for test in tests:
            path = ROOT / test if test.startswith("tests/") else HERE / test
            assert path.is_file(), path
        shown = ", ".join(f"`{Path(test).name}`" for test in tests)
        rows.append(f"| {promise} | {shown} | {trials[name]:,} | {losses[name]} |")
    return "\n".join(rows)


def test_the_table_of_promises_is_that_of_the_campaigns() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    assert table() in page
    assert len(page.split()) <= 900


def test_the_threat_model_fits_on_one_page_and_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    assert len(page.split()) <= 600
    named = set(re.findall(r"`((?:tests/\w+/)?test_\w+\.py)`", page))
    assert named and all((ROOT / each if "/" in each else HERE / each).is_file() for each in named)


if __name__ == "__main__":
    print(table())
