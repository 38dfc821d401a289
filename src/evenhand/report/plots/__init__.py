"""The paper's figures from records: `draw` gives one, `save` writes it as svg, png or pdf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evenhand.bench.needs import FIGURES, LEARNED, SWEPT, base, check, nothing_conflicts
from evenhand.bench.select import Bench, task_names
from evenhand.report.plots import dynamics, search, sweep
from evenhand.report.plots.style import Drawn, check_form, encode, look, save
from evenhand.report.tables import make_benches
from evenhand.training.record import Record

__all__ = ["FIGURES", "Drawn", "check_form", "draw", "drawable", "encode", "save"]


def draw(name: str, records: Sequence[Record], wanted: Sequence[str] = ()) -> Drawn:
    """One of FIGURES, of the `wanted` task, else of the first that can be drawn; sweeps of several or all."""
    check(name)
    if name not in SWEPT and len(set(wanted)) > 1:
        raise ValueError(
            f"the figure {name!r} shows one task, got {' and '.join(dict.fromkeys(wanted))}; "
            f"draw one of each, such as: evenhand figure {name} --task {wanted[0]}"
        )
    with look():
        drawn = _draw(name, records, wanted)
    if drawn is None:
        task = wanted[0] if wanted else _example(name, records)
        own = [r for r in records if not wanted or task in (r.config["task"], r.config["spec"])]
        if name in LEARNED and own and all(record.metrics["test"]["groups"] is None for record in own):
            raise nothing_conflicts(name, " and ".join(sorted({str(r.config["spec"]) for r in own})))
        raise ValueError(
            f"there are no runs for the figure {name!r}{f' of {task}' if wanted else ''}; "
            f"make them with: evenhand bench {task} --figure {name}"
        )
    return drawn


def _example(name: str, records: Sequence[Record]) -> str:
    """A task that the figure can be made of: one of the records' where there is one."""
    specs = [bench.spec for bench in make_benches(records, ())] if records else []
    if name in SWEPT:
        specs = [spec for spec in specs if base(spec)[1] is not None]
    if name in LEARNED:
        known = {r.config["spec"] for r in records if r.metrics["test"]["groups"] is not None}
        specs = [spec for spec in specs if spec in known]
    return specs[0] if specs else "even_odd"


def drawable(records: Sequence[Record], most: int) -> list[Drawn]:
    """Every figure that these records allow, of so many tasks; of a sweep over p, the first that has it."""
    alike: dict[Any, list[tuple[str, ...]]] = {}
    for bench in make_benches(records, ()) if records else []:
        alike.setdefault(base(bench.spec)[0], []).append((bench.spec,))
    with look():
        found = [
            next(filter(None, (_draw(name, records, wanted) for wanted in specs)), None)
            for name in FIGURES
            for specs in ([[()]] if name in SWEPT else list(alike.values())[:most])
        ]
    return [each for each in found if each is not None]


def _draw(name: str, records: Sequence[Record], wanted: Sequence[str]) -> Drawn | None:
    if name in SWEPT:
        found = sweep.sweeps(records, wanted, SWEPT[name])
        found = found if wanted else [each for each in found if len(each.benches) > 1]
        if name != "correlation":  # a comparison with a variant of TAB, which must be there
            found = [each for each in found if each.scores(SWEPT[name][-1], "wga")]
        if not found:
            return None
        return sweep.correlation(found) if name == "correlation" else sweep.comparison(name, found)
    if name in LEARNED:
        names = list(wanted) or [bench.spec for bench in make_benches(records, ())]
        clusters = name == "training"
        curves = next(filter(None, (dynamics.dynamics(records, task, clusters) for task in names)), None)
        if curves is None:
            return None
        return dynamics.validation(curves) if name == "validation" else dynamics.training(curves)
    known = set(task_names(records)) | {str(record.config["spec"]) for record in records}
    benches = make_benches(records, [task for task in wanted if task in known]) if records else []
    if wanted and not known & set(wanted):
        return None
    return _searched(name, benches)


def _searched(name: str, benches: Sequence[Bench]) -> Drawn | None:
    """Figures of whole searches: of the first task that has one."""
    for bench in benches:
        if name == "selection" and max(len(bench.candidates(method)) for method in search.SHOWN) > 1:
            return search.selection(bench)
        if name == "cost" and sum(bool(bench.candidates(method)) for method in search.COSTS) > 1:
            return search.cost(bench)
    return None
