"""Story: the answer in words from the results frame: which method leads, by how much, how surely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from evenhand.bench.results import Frame, reads_groups, title
from evenhand.report.compare import students_interval
from evenhand.report.palette import BASELINE, FEATURED
from evenhand.report.render import spread
from evenhand.report.words import count, listed, percent, points
from evenhand.training.record import Record

NOTHING = 0.0005  # a difference that rounds to zero


@dataclass(frozen=True)
class Change:
    """The worst-group accuracies of two methods, over the seeds that both have."""

    before: float
    after: float
    num_seeds: int  # that both have; if 0, means over all seeds are compared
    interval: tuple[float, float] | None  # 95%, of the mean paired difference; None below two seeds
    verdict: Literal["rose", "fell", "same", "unsure"]

    @property
    def certainty(self) -> str:
        """A sentence on the significance of the difference."""
        if self.num_seeds == 0:
            return "No seed was run with both."
        if self.interval is None:
            apart = "overlap" if self.verdict in ("same", "unsure") else "do not overlap"
            return f"With one seed, the 95% intervals of the two accuracies {apart}."
        low, high = (points(end).removesuffix(" points") for end in self.interval)
        return (
            f"Paired over {self.num_seeds} seeds, the difference is {points(self.after - self.before)} "
            f"(95% interval {low} to {high})."
        )


@dataclass(frozen=True)
class Stat:
    """One of the key numbers beside the headline."""

    name: str
    value: str
    before: str  # the baseline's, or empty
    note: str
    fell: bool = False  # below the baseline's


@dataclass(frozen=True)
class Story:
    """The headline, the sentences below it, and the numbers beside it."""

    headline: str
    sentences: list[str]
    stats: list[Stat]
    leader: str  # among the methods that read no groups; empty if there are fewer than two, or a tie
    change: Change | None


def tell(chosen: Frame, found: Record | None) -> Story:
    """Return the story of one task's selected runs; `found` is the run whose minorities the page shows."""
    methods = by_worst_group(chosen)
    unaware = [method for method in methods if not reads_groups(method)]
    worst = "class" if set(chosen.over) == {"classes"} else "group"
    scored_on = str(chosen.record.iloc[0].config.get("scored_on", "test"))
    before, after = _of(chosen, BASELINE), None
    leader, change, sentences = unaware[0] if len(unaware) > 1 else "", None, []
    if len(methods) == 2 and not before.empty:  # with and without
        after = _of(chosen, next(method for method in methods if method != BASELINE))
        change = compare(before, after)
        headline = _changed(change, title(BASELINE), title(after.method.iloc[0]), worst)
    elif leader:
        second = unaware[1]
        after, change = _of(chosen, leader), compare(_of(chosen, second), _of(chosen, leader))
        headline = _leads(change, title(leader), title(second), worst)
        others = [m for m in (BASELINE, *FEATURED) if m in methods and m not in (leader, second)]
        sentences = [_reached(chosen, others), _reached(chosen, sorted(set(methods) - set(unaware)))]
    else:
        only = _of(chosen, methods[0])
        headline = f"{title(methods[0])} reaches {spread(only.test_wga)} accuracy on the worst {worst}."
        missing = "another method" if methods[0] == BASELINE else title(BASELINE)
        sentences = [f"There is no run of {missing} to compare with."]
    compared = (before, after) if after is None or after.method.iloc[0] != BASELINE else (after,)
    shown = [each for each in compared if each is not None and not each.empty] or [chosen]
    if change is not None and change.verdict != "same":
        sentences.insert(0, change.certainty)
    sentences += [_worst_names(shown, worst, scored_on), *_found(chosen, found)]
    if len(shown) == 2:
        sentences.append(_price(*shown))
    if scored_on == "validation":
        sentences.append(
            "There was no test set, so the weights were selected on the samples that are scored."
        )
    if chosen.older.iloc[0]:
        sentences.append("These are older records, which do not describe how they were computed.")
    if not chosen.sealed.all():
        sentences.append("Unsealed: these records have no checksums, so a changed number would go unnoticed.")
    stats = _stats(shown, worst, scored_on, chosen, found)
    leader = "" if change is None or change.verdict == "same" else leader
    return Story(headline, [sentence for sentence in sentences if sentence], stats, leader, change)


def compare(before: Frame, after: Frame) -> Change:
    """Compare two methods seed by seed, with Student's 95% interval of the mean difference.

    With a single seed, a difference is significant if the 95% intervals of both accuracies do not overlap.
    """
    both = before.merge(after, on="seed", suffixes=("_0", "_1"))
    if both.empty:
        return Change(float(before.test_wga.mean()), float(after.test_wga.mean()), 0, None, "unsure")
    gains = (both.test_wga_1 - both.test_wga_0).to_numpy(float)
    gain, interval, one = float(gains.mean()), students_interval(gains), both.iloc[0]
    if interval is not None:
        sure = interval[0] > 0 or interval[1] < 0
    else:
        sure = one.test_high_0 < one.test_low_1 or one.test_high_1 < one.test_low_0
    verdict: Literal["rose", "fell", "same", "unsure"] = "rose" if gain > 0 else "fell"
    verdict = "same" if abs(gain) < NOTHING else verdict if sure else "unsure"
    return Change(float(both.test_wga_0.mean()), float(both.test_wga_1.mean()), len(gains), interval, verdict)


def by_worst_group(chosen: Frame) -> list[str]:
    """Return the methods, the best mean on the worst group first."""
    means = chosen.groupby("method", sort=True).test_wga.mean()
    return [str(method) for method in means.sort_values(ascending=False, kind="stable").index]


def _of(chosen: Frame, method: str) -> Frame:
    return chosen[chosen.method == method]


def _changed(change: Change, before: str, after: str, worst: str) -> str:
    old, new = percent(change.before), percent(change.after)
    average = f", averaged over {change.num_seeds} seeds" if change.num_seeds > 1 else ""
    if change.verdict == "same":
        return f"{after} and {before} have the same accuracy on the worst {worst}, {new}{average}."
    if change.verdict != "unsure":
        how = "raised" if change.verdict == "rose" else "lowered"
        return f"{after} {how} accuracy on the worst {worst} from {old} to {new}{average}."
    why = ", but no seed was run with both" if not change.num_seeds else ": the difference is not significant"
    return f"On the worst {worst}, {after} reaches {new} and {before} {old}{average}{why}."


def _leads(change: Change, leader: str, second: str, worst: str) -> str:
    new, old = percent(change.after), percent(change.before)
    if change.verdict == "same":
        return f"{leader} and {second} share the lead on the worst {worst}, at {new}."
    if change.verdict == "rose":
        gap = points(change.after - change.before).removeprefix("+")
        return f"{leader} leads on the worst {worst}: {new}, {gap} above {second}."
    why = "no seed was run with both" if not change.num_seeds else "the difference is not significant"
    return f"{leader} is ahead on the worst {worst}, {new} against {old} for {second}, but {why}."


def _reached(chosen: Frame, methods: Sequence[str]) -> str:
    if not methods:
        return ""
    said = [f"{title(method)} reaches {spread(_of(chosen, method).test_wga)}" for method in methods]
    told = ", with group labels" if reads_groups(methods[0]) else ""
    return f"{listed(said)}{told}."


def _worst_names(shown: Sequence[Frame], worst: str, scored_on: str) -> str:
    """Return the worst group of each method, and on how many samples it was measured."""
    plural = "classes" if worst == "class" else "groups"
    test = shown[0].record.iloc[0].metrics["test"]
    sizes = [int(part["count"]) for part in test["groups"] or test["classes"]]
    samples = count(sum(sizes), f"{scored_on} sample")
    tested = f"measured on {samples} in {count(len(sizes), worst, plural)}"
    named = []
    for own in shown:
        names = list(dict.fromkeys(own.worst_group))
        listing = " or ".join(f"“{name}”" for name in names)
        named.append(listing if len(names) <= 3 else f"one of {len(names)} {plural}, depending on the seed")
    if len(set(named)) == 1:
        return f"The worst {worst}{' for both' if len(named) > 1 else ''} is {named[0]}, {tested}."
    said = [f"{names} for {title(own.method.iloc[0])}" for names, own in zip(named, shown, strict=True)]
    return f"The worst {worst} is {listed(said)}, {tested}."


def _found(chosen: Frame, record: Record | None) -> list[str]:
    if record is None or record.partition is None:
        return []
    minority, name = record.partition.minority, title(record.method)
    seed = f" (seed {record.seed})" if len(_of(chosen, record.method)) > 1 else ""
    size = int(minority.sum())
    if size == 0:
        return [f"{name} found no minority in any class{seed}, so nothing was rebalanced."]
    sentences = [
        f"From loss histories alone, {name} set apart {size:,} of "
        f"{count(len(minority), 'training sample')} ({percent(size / len(minority))}){seed}."
    ]
    scores = record.metrics.get("identification")
    if scores and scores["identified"] is not None and scores["purity"] is not None:
        sentences.append(
            f"They include {percent(scores['identified'])} of the bias-conflicting samples, which break the "
            f"shortcut; {percent(scores['purity'])} of the samples set apart are bias-conflicting."
        )
    return sentences


def _price(before: Frame, after: Frame) -> str:
    """Return the change of the mean accuracy."""
    old, new = (float(each.test_accuracy_weighted.mean()) for each in (before, after))
    proportions = ", groups counted in training proportions," if _weighted(before) or _weighted(after) else ""
    if abs(new - old) < NOTHING:
        return f"Mean accuracy{proportions} stayed at {percent(new)}."
    return f"Mean accuracy{proportions} went from {percent(old)} to {percent(new)} ({points(new - old)})."


def _weighted(own: Frame) -> bool:
    return bool(((own.test_accuracy_weighted - own.test_accuracy).abs() > 1e-9).any())


def _stats(
    shown: Sequence[Frame], worst: str, scored_on: str, chosen: Frame, found: Record | None
) -> list[Stat]:
    own, reference = shown[-1], shown[0] if len(shown) == 2 else None

    def stat(name: str, column: str, note: str) -> Stat:
        value, before = own[column].mean(), None if reference is None else reference[column].mean()
        old = "" if before is None else percent(before)
        return Stat(name, percent(value), old, note, before is not None and value < before)

    low, high = own.test_wga.min(), own.test_wga.max()
    note = f"{percent(low)} to {percent(high)} over {len(own)} seeds"
    if len(own) == 1:
        note = f"95% interval {percent(own.test_low.iloc[0])} to {percent(own.test_high.iloc[0])}"
    over = "groups weighted as in training" if _weighted(own) else f"over all {scored_on} samples"
    stats = [stat(f"Worst {worst}", "test_wga", note), stat("Mean accuracy", "test_accuracy_weighted", over)]
    if found is not None and found.partition is not None:
        scored = _of(chosen, found.method)
        if scored.identified.notna().any():
            purity = f"purity {percent(scored.purity.mean())}" if scored.purity.notna().any() else ""
            stats.append(Stat("Bias-conflicting found", percent(scored.identified.mean()), "", purity))
        else:
            minority = found.partition.minority
            note = f"of {count(len(minority), 'training sample')}"
            stats.append(Stat("Set apart", f"{np.count_nonzero(minority):,}", "", note))
    return stats
