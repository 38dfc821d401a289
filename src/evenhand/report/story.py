"""The finding in plain words: computed from the records, whatever they say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from evenhand.report.study import Study, Variant
from evenhand.report.words import count, percent, points, spread
from evenhand.training.record import Record


@dataclass(frozen=True)
class Change:
    """What happened to the worst group between two variants, over the seeds that both have."""

    before: float
    after: float
    num_seeds: int  # that both variants have; without one in common, means over all seeds are compared
    num_risen: int
    verdict: Literal["rose", "fell", "same", "unsure"]


@dataclass(frozen=True)
class Stat:
    """One of the few numbers a reader should remember."""

    name: str
    value: str
    before: str  # the baseline's, or empty
    note: str
    fell: bool = False  # below the baseline's


@dataclass(frozen=True)
class Story:
    """Headline, the sentences under it, and the numbers beside it."""

    headline: str
    sentences: list[str]
    stats: list[Stat]


def tell(study: Study) -> Story:
    """What was found, and whether it helped."""
    before, after = study.baseline, study.main
    sentences = [*_worst_names(study), *_found(study), *_price(before, after), *_best(study)]
    if study.scored_on == "validation":
        sentences.append("There was no test set: the weights were chosen by the samples that are scored.")
    if study.older:
        sentences.append("These are older records: they do not say how they were computed.")
    if before is not None and after is not None:
        change = compare(before, after)
        headline = _headline(change, before, after, study.over)
    else:
        only = before or after
        assert only is not None, "a study has at least one variant"
        worst = spread(only.values("wga"))
        headline = f"{only.title} reaches {worst} accuracy on the worst {study.over}."
        sentences.append(_missing(before))
    return Story(headline, sentences, _stats(study))


def compare(before: Variant, after: Variant) -> Change:
    """Compare seed by seed; with a single seed, a difference counts when the 95% intervals are apart."""
    seeds = [seed for seed in before.seeds if seed in after.seeds]
    pairs = [(_of_seed(before, seed), _of_seed(after, seed)) for seed in seeds]
    if not pairs:
        return Change(before.mean("wga"), after.mean("wga"), 0, 0, "unsure")
    worst = np.array([[run.metrics["test"]["wga"] for run in pair] for pair in pairs])  # (seeds, 2)
    old, new = worst.mean(0).tolist()
    risen, fallen = int((worst[:, 1] > worst[:, 0]).sum()), int((worst[:, 1] < worst[:, 0]).sum())
    verdict: Literal["rose", "fell", "same", "unsure"]
    if abs(new - old) < 0.0005:
        verdict = "same"
    elif len(pairs) == 1:
        first, second = (run.metrics["test"]["wga_interval"] for run in pairs[0])
        apart = first[1] < second[0] or second[1] < first[0]
        verdict = ("rose" if new > old else "fell") if apart else "unsure"
    elif risen == len(pairs) or fallen == len(pairs):
        verdict = "rose" if new > old else "fell"
    else:
        verdict = "unsure"
    return Change(old, new, len(pairs), risen, verdict)


def _of_seed(variant: Variant, seed: int) -> Record:
    return variant.records[variant.seeds.index(seed)]


def _headline(change: Change, before: Variant, after: Variant, over: str) -> str:
    old, new = percent(change.before), percent(change.after)
    average = f", averaged over {change.num_seeds} seeds" if change.num_seeds > 1 else ""
    if change.verdict == "rose":
        return f"{after.title} raised accuracy on the worst {over} from {old} to {new}{average}."
    if change.verdict == "fell":
        return f"{after.title} lowered accuracy on the worst {over} from {old} to {new}{average}."
    if change.verdict == "same":
        return (
            f"{after.title} left accuracy on the worst {over} where {before.title} has it, at {new}{average}."
        )
    both = (
        f"On the worst {over}, {after.title} reaches {new} and {before.title} {old}"  # no verdict: say both
    )
    if change.num_seeds == 0:
        return f"{both}, but no seed was run with both."
    if change.num_seeds == 1:
        return f"{both}: too close to call."
    return f"{both}{average}, but it rose in only {change.num_risen} of {change.num_seeds}."


def _worst_names(study: Study) -> list[str]:
    """Which group is the worst, before and after."""
    shown = [variant for variant in (study.baseline, study.main) if variant is not None]
    named = [_worst_of(variant, study.over) for variant in shown]
    sizes = [part["count"] for part in _parts(shown[0].records[0])]
    samples = count(sum(sizes), f"{study.scored_on} sample")
    tested = f"on {samples} in {count(len(sizes), study.over, _plural(study.over))}"
    if len(set(named)) == 1:
        both = " for both" if len(named) > 1 else ""
        return [f"The worst {study.over}{both} is {named[0]}, measured {tested}."]
    first, second = (f"{names} for {variant.title}" for variant, names in zip(shown, named, strict=True))
    return [f"The worst {study.over} is {first} and {second}, measured {tested}."]


def _worst_of(variant: Variant, over: str) -> str:
    names = list(dict.fromkeys(str(run.metrics["test"]["worst_group"]) for run in variant.records))
    if len(names) > 3:
        return f"another of {len(names)} {_plural(over)} with every seed"
    return " or ".join(f"“{name}”" for name in names)


def _found(study: Study) -> list[str]:
    record = study.found
    if record is None or record.partition is None:
        return []
    parts = record.partition
    size, samples = int(parts.minority.sum()), len(parts.minority)
    title = study.variant_of(record).title
    seed = f" (seed {record.seed})" if len(study.variant_of(record).records) > 1 else ""
    if size == 0:
        return [f"{title} found no minority in any class{seed}, so nothing was rebalanced."]
    share = percent(size / samples)
    sentences = [
        f"By their loss histories alone, {title} set apart {size:,} of {count(samples, 'training sample')} "
        f"({share}){seed}."
    ]
    scores = record.metrics.get("identification")
    if scores and scores["identified"] is not None and scores["purity"] is not None:
        sentences.append(
            f"They hold {percent(scores['identified'])} of the bias-conflicting samples, those that break "
            f"the shortcut; {percent(scores['purity'])} of what was set apart is bias-conflicting."
        )
    return sentences


def _price(before: Variant | None, after: Variant | None) -> list[str]:
    """What the mean accuracy did meanwhile."""
    if before is None or after is None:
        return []
    old, new = before.mean("accuracy_weighted"), after.mean("accuracy_weighted")
    weighted = any(_is_weighted(run) for run in (*before.records, *after.records))
    proportions = ", groups counted in training proportions," if weighted else ""
    went = "stayed at" if abs(new - old) < 0.0005 else "went from " + percent(old) + " to"
    change = "" if abs(new - old) < 0.0005 else f" ({points(new - old)})"
    return [f"Mean accuracy{proportions} {went} {percent(new)}{change}."]


def _best(study: Study) -> list[str]:
    """With more methods than two, which has the best worst group."""
    if len(study.comparable) < 3:
        return []
    best = max(study.comparable, key=lambda variant: variant.mean("wga"))
    methods = count(len(study.comparable), "method")
    return [
        f"Of the {methods} here, {best.title} has the best worst {study.over}, {percent(best.mean('wga'))}."
    ]


def _missing(before: Variant | None) -> str:
    if before is None:
        return "There is no run of ERM to compare with."
    return "There is no run of another method to compare with."


def _stats(study: Study) -> list[Stat]:
    before, after = study.baseline, study.main
    shown = after or before
    assert shown is not None
    reference = before if after is not None else None

    def stat(name: str, score: str, note: str) -> Stat:
        old = percent(reference.mean(score)) if reference else ""
        fell = reference is not None and shown.mean(score) < reference.mean(score)
        return Stat(name, percent(shown.mean(score)), old, note, fell)

    worst_note = _interval_note(shown)
    stats = [stat(f"Worst {study.over}", "wga", worst_note)]
    if any(_is_weighted(run) for run in shown.records):
        stats.append(stat("Mean accuracy", "accuracy_weighted", "groups weighted as in training"))
    else:
        stats.append(stat("Mean accuracy", "accuracy_weighted", f"over all {study.scored_on} samples"))
    record = study.found
    if record is not None and record.partition is not None:
        found = study.variant_of(record)
        if identified := found.identification("identified"):
            purity = found.identification("purity")
            note = f"purity {percent(float(np.mean(purity)))}" if purity else ""
            stats.append(Stat("Bias-conflicting found", percent(float(np.mean(identified))), "", note))
        else:
            minority = record.partition.minority
            note = f"of {count(len(minority), 'training sample')}"
            stats.append(Stat("Set apart", f"{int(minority.sum()):,}", "", note))
    return stats


def _interval_note(variant: Variant) -> str:
    if len(variant.records) > 1:
        low, high = min(variant.values("wga")), max(variant.values("wga"))
        return f"{percent(low)} to {percent(high)} over {len(variant.records)} seeds"
    low, high = variant.records[0].metrics["test"]["wga_interval"]
    return f"95% interval {percent(low)} to {percent(high)}"


def _is_weighted(record: Record) -> bool:
    test = record.metrics["test"]
    return abs(float(test["accuracy_weighted"]) - float(test["accuracy"])) > 1e-9


def _parts(record: Record) -> list[dict[str, int]]:
    test = record.metrics["test"]
    return list(test["groups"] or test["classes"])


def _plural(over: str) -> str:
    return "classes" if over == "class" else "groups"
