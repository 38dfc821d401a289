"""What a method reaches on a task under a way of selecting: WGA, PoU, MMS and accuracies over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from evenhand.bench.select import Bench, Candidate, best, rule, scores, scores_on_test, seeds_of, select
from evenhand.core.metrics import Mean, Price, mean_model_selection, price_of_unawareness, wilson_interval
from evenhand.training.record import Record

COLLAPSED = 0.01  # a WGA below this is a group that was not learned at all


@dataclass(frozen=True, eq=False)
class Result:
    """A method's selected candidate with its scores, and what another selection would have given."""

    method: str
    by: str  # the criterion that selected
    selected: Candidate
    oracle: Candidate  # the best mean test WGA of all candidates
    num_candidates: int
    wga: Mean
    interval: tuple[float, float]  # 95%, of the WGA
    accuracy_weighted: Mean
    accuracy_balanced: Mean
    oracle_wga: Mean
    mms: Mean
    pou: Price | None  # None where every candidate has WGA zero

    @property
    def seeds(self) -> list[int]:
        return sorted(self.selected.records)


def result(bench: Bench, method: str, by: str | None = None) -> Result:
    """Select one of a method's candidates, by the paper's criterion for it if none is given."""
    found, by = bench.candidates(method), by or rule(method)
    pseudo = bench.pseudo if by == "worst_pseudo_group" else None
    selected = select(found, by, pseudo=pseudo)
    oracle = found[best(scores_on_test(found))]
    return Result(
        method=method,
        by=by,
        selected=selected,
        oracle=oracle,
        num_candidates=len(found),
        wga=mean(selected, "wga"),
        interval=interval(selected.records.values()),
        accuracy_weighted=mean(selected, "accuracy_weighted"),
        accuracy_balanced=mean(selected, "accuracy_balanced"),
        oracle_wga=mean(oracle, "wga"),
        mms=mean_model_selection(scores_on_test(found)),
        pou=price(found, by, bench),
    )


def price(found: Sequence[Candidate], by: str, bench: Bench) -> Price | None:
    """The price of unawareness of these candidates under a criterion; None if none that has it has a WGA."""
    pseudo = bench.pseudo if by == "worst_pseudo_group" else None
    criterion, wga = scores(found, by, pseudo=pseudo, seeds=seeds_of(found)), scores_on_test(found)
    if not (np.isfinite(criterion).any(axis=1) & (wga > 0).any(axis=1)).any():
        return None
    return price_of_unawareness(criterion, wga)


def mean(candidate: Candidate, score: str) -> Mean:
    """A test score of a candidate's seeds."""
    return mean_of([float(record.metrics["test"][score]) for record in _by_seed(candidate)])


def mean_of(values: Sequence[float]) -> Mean:
    """Mean and population deviation.

    >>> mean_of([0.25, 0.75]).deviation
    0.25
    """
    return Mean(float(np.mean(values)), float(np.std(values)), tuple(values))


def interval(records: Iterable[Record]) -> tuple[float, float]:
    """Wilson's 95% interval of the mean WGA of several seeds.

    All seeds are tested on the same images, so these count once: with the size of the smallest group that
    is the worst of a seed.
    """
    tests = [record.metrics["test"] for record in records]
    size = min(_worst_size(test) for test in tests)
    return wilson_interval(round(size * float(np.mean([test["wga"] for test in tests]))), size)


def _worst_size(test: dict[str, object]) -> int:
    parts: list[dict[str, object]] = test["groups"] or test["classes"]  # type: ignore[assignment]
    return next(int(str(part["count"])) for part in parts if part["name"] == test["worst_group"])


def _by_seed(candidate: Candidate) -> list[Record]:
    return [candidate.records[seed] for seed in sorted(candidate.records)]
