"""The paper's figures from records: `draw` gives one, `save` writes it as svg, png or pdf."""

from __future__ import annotations

from collections.abc import Sequence

from evenhand.bench.grid import FIGURES, LEARNED, SWEPT, base, check_figure, nothing_conflicts
from evenhand.bench.results import Frame, counting, methods
from evenhand.report.plots import dynamics, search, sweep
from evenhand.report.plots.style import Drawn, check_form, encode, look, save
from evenhand.report.tables import by_task, spec_of

__all__ = ["FIGURES", "Drawn", "check_form", "draw", "encode", "save"]


def draw(name: str, runs: Frame, wanted: Sequence[str] = ()) -> Drawn:
    """One of FIGURES, of the `wanted` task, else of the first that can be drawn; sweeps of several or all."""
    check_figure(name)
    if name not in SWEPT and len(set(wanted)) > 1:
        raise ValueError(
            f"the figure {name!r} shows one task, got {' and '.join(dict.fromkeys(wanted))}; "
            f"draw one of each, such as: evenhand figure {name} --task {wanted[0]}"
        )
    with look():
        drawn = _draw(name, runs, wanted)
    if drawn is None:
        task = wanted[0] if wanted else _example(name, runs)
        own = runs[(runs.task == task) | (runs.spec == task)] if wanted else runs
        if name in LEARNED and len(own) and set(own.over) == {"classes"}:
            raise nothing_conflicts(name, " and ".join(sorted(set(own.spec))))
        raise ValueError(
            f"there are no runs for the figure {name!r}{f' of {task}' if wanted else ''}; "
            f"make them with: evenhand bench {task} --figure {name}"
        )
    return drawn


def _example(name: str, runs: Frame) -> str:
    """A task that the figure can be made of: one of the runs' where there is one."""
    specs = [spec_of(rows) for rows in by_task(runs) if name not in LEARNED or "groups" in set(rows.over)]
    if name in SWEPT:
        specs = [spec for spec in specs if base(spec)[1] is not None]
    return specs[0] if specs else "even_odd"


def _draw(name: str, runs: Frame, wanted: Sequence[str]) -> Drawn | None:
    if name in SWEPT:
        found = sweep.sweeps(runs, wanted, SWEPT[name])
        found = found if wanted else [each for each in found if len(each.tasks) > 1]
        if name != "correlation":  # a comparison with a variant of TAB, which must be there
            found = [each for each in found if each.scores(SWEPT[name][-1], "wga")]
        if not found:
            return None
        return sweep.correlation(found) if name == "correlation" else sweep.comparison(name, found)
    known = runs[runs.task.isin(wanted) | runs.spec.isin(wanted)] if wanted else runs
    if name in LEARNED:
        found_curves = (dynamics.dynamics(runs, spec_of(rows), name == "training") for rows in by_task(known))
        curves = next(filter(None, found_curves), None)
        if curves is None:
            return None
        return dynamics.validation(curves) if name == "validation" else dynamics.training(curves)
    for rows in by_task(known):  # figures of whole searches: of the first task that has one
        if name == "selection" and max(counting(rows, method).point.nunique() for method in search.SHOWN) > 1:
            return search.selection(rows)
        if name == "cost" and len({*search.COSTS} & {*methods(rows)}) > 1:
            return search.cost(rows)
    return None
