"""The tables of the answer: meters that begin at no evidence, and groups too many to show at once."""

import re

from made_audit import audit
from parsed_page import Page

from evenhand.report import explorer
from evenhand.report.explorer import Score, Verdict


def test_a_meter_is_empty_where_there_is_no_evidence() -> None:
    verdicts = [
        Verdict(strength=strength, words="weak", advice="Look.", threshold=0.9, nothing=0.6)
        for strength in (0.5, 0.8)
    ]
    page = explorer.render(audit(verdicts=verdicts))
    assert re.findall(r'class="part" width="([\d.]+)"', page) == ["32.0", "0.0"]  # of 64, strongest first
    assert set(re.findall(r'class="needed" x="([\d.]+)"', page)) == {"47.0"}
    assert "0.80 of 1, threshold 0.90" in Page(page).words


def test_the_worst_of_many_groups_come_first_and_the_others_unfold() -> None:
    groups = [Score(name=f"group {i}", baseline=(i * 7 % 20) / 20, balanced=0.5) for i in range(20)]
    page = Page(explorer.render(audit(groups=groups)))
    places = [page.words.index(f"{each.name} ") for each in sorted(groups, key=lambda each: each.baseline)]
    assert places == sorted(places)
    assert (
        places[11]
        < page.words.index("8 more groups, in which the model as collected does no worse")
        < places[12]
    )
    few = Page(explorer.render(audit(groups=groups[:12]))).words
    places = [few.index(f"group {i} ") for i in range(12)]
    assert places == sorted(places) and "more groups" not in few


def test_rows_that_stand_for_several_groups_never_unfold() -> None:
    groups = [Score(name=f"group {i}", baseline=0.1, balanced=0.5) for i in range(20)]
    groups.append(Score(name="all of them", baseline=0.9, balanced=0.9, note="all classes"))
    page = Page(explorer.render(audit(groups=groups)))
    assert page.words.index("all of them ") < page.words.index("group 0 ")
