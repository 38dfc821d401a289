"""The paper's Table 1 (WGA, PoU, MMS, accuracies) and Table 2 (who was identified), ours beside its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from evenhand.bench.grid import combinations, is_told_groups, parse, task_file
from evenhand.bench.grid import title as method_title
from evenhand.bench.result import mean_of, result
from evenhand.bench.select import Bench, rule
from evenhand.core.metrics import Mean
from evenhand.report import paper
from evenhand.report.table import (
    EMPTY,
    Cell,
    Column,
    Row,
    Section,
    Table,
    interval,
    mark_best,
    number,
    percents,
    ratio,
    words,
)  # fmt: skip
from evenhand.report.tables import notes
from evenhand.report.tables.notes import Failure
from evenhand.report.words import count, listed
from evenhand.training.record import Record

ONE = (
    Column("method", text=True),
    Column("seeds"),
    Column("WGA"),
    Column("95% interval", below="WGA"),
    Column("WGA, paper", below="WGA"),
    Column("PoU"),
    Column("PoU, paper", below="PoU"),
    Column("PoU, of the means", below="PoU"),
    Column("MMS"),
    Column("MMS, paper", below="MMS"),
    Column("accuracy, weighted"),
    Column("accuracy, balanced"),
    Column("accuracy, paper", below="accuracy, balanced"),
)
TWO = (
    Column("task", text=True),
    Column("method", text=True),
    Column("seeds"),
    Column("in D"),
    Column("in D, paper", below="in D"),
    Column("in D'"),
    Column("in D', times", below="in D'"),
    Column("purity"),
    Column("purity, times", below="purity"),
    Column("in D', paper"),
    Column("in D', paper, times", below="in D', paper"),
    Column("identified"),
    Column("identified, paper", below="identified"),
)
HOW = (
    "Per cent; mean ± population deviation over seeds. The interval is Wilson's, with the size of the worst "
    "group: seeds are tested on the same images. The best of each column is marked, "
    "methods that are told the groups aside."
)


def table_one(benches: Sequence[Bench], by: str | None = None, failed: Sequence[Failure] = ()) -> Table:
    """WGA, PoU, MMS and mean accuracies of every method's selected candidate."""
    chosen = f"Selected by validation {by}." if by else (
        "Selected by validation accuracy, methods that are told the groups by validation WGA."
    )  # fmt: skip
    sections = [_one(bench, by, failed) for bench in benches]
    return Table("1", "Worst-group accuracy, its price, and mean accuracy", ONE, sections, [chosen, HOW])


def methods_of(bench: Bench) -> list[str]:
    """The methods of a task's tables: the paper's, where it has numbers for it, and all that were run."""
    compared, _ = paper.counterpart(bench.spec)
    wanted = [name for name in paper.METHODS if paper.score("wga", name, compared) is not None]
    known = [*paper.METHODS, "eta_tab", "minibatch_tab", "erm_randaug"]
    found = sorted({*wanted, *bench.methods}, key=lambda name: (_place(name, known), name))
    return found


def _place(name: str, known: list[str]) -> int:
    return known.index(name) if name in known else len(known)


def _one(bench: Bench, by: str | None, failed: Sequence[Failure]) -> Section:
    methods = methods_of(bench)
    rows = [_row(bench, method, by) for method in methods]
    told = [is_told_groups(method) for method in methods]
    free = [row for row, privileged in zip(rows, told, strict=True) if not privileged]
    for i, column in enumerate(ONE[2:], start=2):
        if column.name != "95% interval":
            mark_best(free, i, lowest=column.name.startswith("PoU"))
    said = _without_pseudo_groups(bench, by)
    begun = [name for name in methods if _begun(bench, name) and rule(name) == "accuracy"]
    if begun:
        said.append(f"PoU and MMS need more than the one candidate that is there of {listed(begun)}.")
    said += [*notes.ties(bench, methods, [by]), *_zeros(bench, methods, by), *_uneven(bench, methods)]
    return Section(bench.spec, rows, [*said, *notes.of_task(bench, methods, failed)])


def _without_pseudo_groups(bench: Bench, by: str | None) -> list[str]:
    if by != "worst_pseudo_group":
        return []
    lacking = [str(seed) for seed in bench.seeds if seed not in bench.pseudo]
    without = f"Selected without seed {listed(lacking)}, of which no run of tab has left pseudo-groups."
    return [without] if lacking else []


def _row(bench: Bench, method: str, by: str | None) -> Row:
    compared, _ = paper.counterpart(bench.spec)
    theirs = {name: paper.score(name, method, compared) for name in ("wga", "pou", "mms", "mean_accuracy")}
    ours: list[Cell] = [EMPTY] * 8
    if bench.candidates(method):
        found = result(bench, method, by)
        price = found.pou
        # As in the paper, no price for who knows the groups; nor one of a search that has hardly begun.
        searched = rule(method) == "accuracy" and not _begun(bench, method)
        pou = Mean(price.mean, price.deviation, price.per_seed) if price and searched else None
        ours = [
            number(len(found.seeds)),
            percents(found.wga),
            interval(found.interval),
            ratio(pou),
            percents(found.mms) if searched else EMPTY,
            percents(found.accuracy_weighted),
            percents(found.accuracy_balanced),
            number(price.ratio_of_means, "{:.2f}") if pou and price else EMPTY,
        ]
    seeds, wga, bounds, pou_cell, mms, weighted, balanced, of_means = ours
    return [
        words(method_title(method)), seeds, wga, bounds, percents(theirs["wga"]), pou_cell,
        ratio(theirs["pou"]), of_means, mms, percents(theirs["mms"]), weighted, balanced,
        percents(theirs["mean_accuracy"]),
    ]  # fmt: skip


def _begun(bench: Bench, method: str) -> bool:
    """Whether only one of several candidates is there, whose price is always 1."""
    return len(bench.candidates(method)) == 1 and len(combinations(bench.grid(method) or {})) > 1


def _zeros(bench: Bench, methods: Sequence[str], by: str | None) -> list[str]:
    """Candidates and seeds that PoU cannot count."""
    dropped, selected, fewer = [], [], []
    for method in methods:
        found = bench.candidates(method)
        zero = [each for each in found if all(_wga(record) == 0 for record in each.records.values())]
        if zero and rule(method) == "accuracy":
            dropped.append(f"{len(zero)} of {method}'s {len(found)}")
            if result(bench, method, by).selected in zero and len(zero) < len(found):
                selected.append(method)
        if found and rule(method) == "accuracy" and (price := result(bench, method, by).pou):
            both = found[price.selected].records.keys() & found[price.best].records.keys()
            if len(price.per_seed) < len(both):
                fewer.append(f"{method} is of {len(price.per_seed)} of {count(len(both), 'seed')}")
    lines = [f"Candidates with a WGA of zero, dropped from PoU: {', '.join(dropped)}."] if dropped else []
    if fewer:
        lines.append(f"PoU of {listed(fewer)}: in the others the WGA that it divides by is zero.")
    if selected:
        lines.append(f"The selected candidate of {listed(selected)} is among them: PoU is of the next one.")
    return lines


def _uneven(bench: Bench, methods: Sequence[str]) -> list[str]:
    """Searches of which a seed has fewer candidates than another."""
    sizes = {name: Counter(s for each in bench.candidates(name) for s in each.records) for name in methods}
    uneven = [name for name, counts in sizes.items() if len(set(counts.values())) > 1]
    return (
        [f"MMS of {listed(uneven)} is of other candidates with some seeds: runs are missing."]
        if uneven
        else []
    )


def _wga(record: Record) -> float:
    return float(record.metrics["test"]["wga"])


def table_two(benches: Sequence[Bench], by: str | None = None) -> Table:
    """How many bias-conflicting samples were in the data, in the balanced set, and found."""
    rows, said = [], []
    for bench in benches:
        found = [name for name in methods_of(bench) if _identifications(bench, name, by)]
        rows += [_two(bench, name, by) for name in found]
        if not found and all(_knows_no_conflicts(record) for record in bench.records):
            said.append(f"{bench.spec} does not say which samples conflict, so none can be counted.")
        elif not found:
            said.append(f"Missing: {bench.spec}; do it with: {notes.command(bench, ['tab'])}")
        said += [f"{bench.spec}: {note}" for note in notes.differences(bench)] if found else []
    explained = (
        "Per cent of bias-conflicting samples. In D: of the training set; in D': of the balanced set; "
        "purity: of the minority clusters; times: over D; identified: of all conflicting ones, those in "
        "minority clusters."
    )
    if any(paper.identification("bc_identified", paper.counterpart(bench.spec)[0]) for bench in benches):
        explained += (
            " Three of the four shares in D' that the paper prints are well above half, which balancing does "
            "not exceed at the shares it identifies."
        )
    title = "Bias-conflicting samples: represented and identified"
    return Table("2", title, TWO, [Section("", rows, said)], [explained])


def _knows_no_conflicts(record: Record) -> bool:
    """Whether a run says that its task has no groups, or none of them that breaks the shortcut."""
    split = record.partition is not None and not record.metrics.get("identification")
    return split or record.metrics["test"]["groups"] is None


def _two(bench: Bench, method: str, by: str | None) -> Row:
    compared = paper.counterpart(bench.spec)[0] if method == "tab" else None
    scores = _identifications(bench, method, by)
    chosen = result(bench, method, by).selected
    base = conflicting_share(chosen.records[min(chosen.records)])
    share, purity, identified = (_scores(scores, name) for name in ("share", "purity", "identified"))
    printed = paper.identification("bc_share_augmented_as_printed", compared)
    before = paper.identification("bc_share_train", compared)
    return [
        words(bench.spec), words(method_title(method)), number(len(scores)),
        EMPTY if base is None else Cell(base, f"{100 * base:.2f}"),
        percents(before, 2), percents(share), _times(share, base), percents(purity), _times(purity, base),
        percents(printed), _times(printed, before.mean if before else None), percents(identified),
        percents(paper.identification("bc_identified", compared)),
    ]  # fmt: skip


def _times(share: Mean | None, base: float | None) -> Cell:
    """The multiple of the representation in the training set."""
    return EMPTY if share is None or not base else number(share.mean / base, "{:.1f}×")


def _scores(scores: Sequence[dict[str, float | None]], name: str) -> Mean | None:
    values = [float(value) for score in scores if (value := score[name]) is not None]
    return mean_of(values) if values else None


def _identifications(bench: Bench, method: str, by: str | None) -> list[dict[str, float | None]]:
    if not bench.candidates(method):
        return []
    records = result(bench, method, by).selected.records
    scores = [records[seed].metrics.get("identification") for seed in sorted(records)]
    return [score for score in scores if score]


def conflicting_share(record: Record) -> float | None:
    """The bias-conflicting part of the training set, from whatever the record holds; None if unknown."""
    if record.dynamics:
        clusters = record.dynamics["clusters"]
        sizes = sum(int(each["size"]) for each in clusters)
        if sizes:
            return sum(int(each["conflicting"]) for each in clusters) / sizes
    found, parts = record.metrics.get("identification"), record.partition
    if parts is not None and found and found["identified"]:
        conflicting = found["purity"] * int(np.count_nonzero(parts.minority)) / found["identified"]
        return float(conflicting / len(parts.minority))
    return _by_construction(str(record.config["spec"]))


def _by_construction(spec: str) -> float | None:
    """1 - p, where the task says how many samples carry their class's own colour."""
    name, options = parse(spec)
    found = task_file(name)
    p = options.get("p") or (found.options.get("p") if found else None)
    return None if p is None else 1 - float(p)
