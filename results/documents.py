"""The blocks that `make.py` writes into documents: each function gives one as markdown, from records."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.bench import results
from evenhand.bench.grid import title
from evenhand.bench.results import Frame
from evenhand.report import paper
from evenhand.report.compare import students_interval

HERE = Path(__file__).parent
FIVE = ("erm", "class_balanced", "tab", "gdro", "evenhand")
NONE = "–"  # no run exists


@functools.cache
def runs(*archives: str) -> Frame:
    """All records of some packed files of this folder."""
    return results.load(*(HERE / archive for archive in archives))


# -- one row, one setting ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Runs that may be compared: one task, recipe, arithmetic and weight decay, and the same seeds."""

    label: str
    task: str
    archives: Sequence[str]
    weight_decay: float = 0.0
    methods: Sequence[str] = FIVE
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the recipe

    def frame(self, method: str, **settings: Any) -> Frame:
        """The runs of a method with these settings and all else at its default, by seed."""
        every = runs(*self.archives)
        rows = every[(every.spec == self.task) & (every.method == method)]
        kept = [
            given == settings and decay == self.weight_decay and self._own_recipe(record.config)
            for given, decay, record in zip(rows.hyperparameters, rows.weight_decay, rows.record, strict=True)
        ]
        return rows[np.array(kept, dtype=bool)].sort_values("seed").drop_duplicates("seed").set_index("seed")

    def _own_recipe(self, config: Mapping[str, Any]) -> bool:
        recipe = config["full_recipe"]
        usual = {"keep": "last", "check_every": 5, "lr": 1e-3, **self.changes}
        # A method may ask for weights of its own choice; that is then in its stage, not in the recipe.
        return all(recipe.get(name, value) == value for name, value in usual.items())

    def frames(self) -> dict[str, Frame]:
        """The runs of every method that has some, of the seeds that all of these have."""
        found = {method: self.frame(method) for method in self.methods}
        found = {method: rows for method, rows in found.items() if len(rows)}
        if not found:
            return {}
        seeds = sorted(set.intersection(*(set(rows.index) for rows in found.values())))
        found = {method: rows.loc[seeds] for method, rows in found.items()}
        check_alike(self.label, found.values())
        return found


def check_alike(label: str, frames: Iterable[Frame]) -> None:
    """Raise if runs differ in anything but their method and seed."""
    known = set()
    for rows in frames:
        for record in rows.record:
            config, recipe = record.config, record.config["full_recipe"]
            versions = {name: config["versions"].get(name) for name in ("torch", "device")}
            fields = ("epochs", "batch_size", "optimizer", "lr", "weight_decay", "patience", "precision")
            known.add(
                json.dumps([versions, config["data"], config.get("numerics"), *map(recipe.get, fields)])
            )
    if len(known) != 1:
        raise ValueError(f"the runs of {label} are not of one setting: {sorted(known)}")


EVEN_ODD_DIGITS = ("digits_even_odd.zip",)
TEN_DIGITS = ("digits.zip",)
EVEN_ODD = Setting(label="Even-Odd, p = 99%", task="even_odd", archives=["methods.zip"])
BAR_0 = Setting(label="BAR, weight decay 0", task="bar", archives=["studies/even_photos.zip"])
BAR_SELECTED = Setting(
    label="BAR, weight decay 0.01",
    task="bar",
    archives=["bar.zip", "studies/even_bar.zip"],
    weight_decay=0.01,
)
REPORTED = ("studies/even_reported.zip",)
PALETTES = {"random colors": "cmnist", "evenly spaced hues": "cmnist:palette=hues"}
PALETTES["other random colors"] = "cmnist:palette=random7"
CELEBA = Setting(label="CelebA (15%)", task="celeba:size=96", archives=["celeba.zip"], weight_decay=1e-4)
CELEBA_EAGER = Setting(
    label="CelebA (15%), without `torch.compile`",
    task="celeba:size=96",
    archives=["studies/even_photos.zip"],
    weight_decay=1e-4,
)
SETTINGS = (
    Setting(label="`digits_even_odd`, p = 97%", task="digits_even_odd", archives=EVEN_ODD_DIGITS),
    Setting(label="`digits`, p = 90%", task="digits", archives=TEN_DIGITS),
    EVEN_ODD,
    Setting(label="Even-Odd, p = 99%, more seeds", task="even_odd", archives=REPORTED),
    *(
        Setting(label=f"cMNIST, p = 98%, {name}", task=task, archives=REPORTED, weight_decay=1e-4)
        for name, task in PALETTES.items()
    ),
    Setting(
        label="cMNIST, random colors, weight decay 0, first series", task="cmnist", archives=["cmnist.zip"]
    ),
    BAR_0,
    BAR_SELECTED,
    CELEBA,
    CELEBA_EAGER,
)


def readme() -> str:
    """The table of README: WGA of the five main methods, one setting a row."""
    return one_setting([each for each in SETTINGS if "other random" not in each.label])


def one_setting(settings: Sequence[Setting] = SETTINGS) -> str:
    """WGA of the five main methods, one setting a row."""
    rows = []
    for setting in settings:
        found = setting.frames()
        cells = [cell(found[m].test_wga, bold=beats(found, m)) if m in found else NONE for m in FIVE]
        rows.append([setting.label, len(next(iter(found.values()))), *cells])
    heads = ["setting", "seeds", *(title(method) for method in FIVE)]
    heads[heads.index(title("gdro"))] += ", reads groups"
    return table(heads, rows)


def beats(found: Mapping[str, Frame], method: str) -> bool:
    """Whether a method's paired 95% interval against TAB lies above zero."""
    if method == "tab" or "tab" not in found:
        return False
    gains = found[method].test_wga - found["tab"].test_wga
    return excludes_zero(gains) and gains.mean() > 0


def excludes_zero(differences: Any) -> bool:
    """Whether Student's 95% interval of paired differences leaves zero out."""
    bounds = students_interval(differences.to_numpy())
    return bounds is not None and (bounds[0] > 0 or bounds[1] < 0)


# -- every method's own search -----------------------------------------------------------------------------

SEARCHED = {
    "even_odd": "even_odd.zip",
    "cmnist": "cmnist.zip",
    "bar": "bar.zip",
    "celeba:size=96": "celeba.zip",
}
NAMES = {"even_odd": "Even-Odd", "cmnist": "cMNIST", "bar": "BAR", "celeba:size=96": "CelebA (15%)"}


def own_search() -> str:
    """WGA of what every method's own search selects, and the paper's."""
    methods = ("gdro", *paper.METHODS) if "gdro" not in paper.METHODS else paper.METHODS
    rows = []
    for method in methods:
        line: list[object] = [title(method)]
        for task, archive in SEARCHED.items():
            own = results.of_task(runs(archive), task)
            theirs = paper.score("wga", method, task.partition(":")[0])
            if method not in results.methods(own):
                line.append(NONE)
                continue
            found = results.result(own, method)
            printed = "" if theirs is None else f" ({percent(theirs)})"
            line.append(f"{cell(found.wga.per_seed)}{printed}; {found.num_candidates}")
        rows.append(line)
    return table(["method", *NAMES.values()], rows)


# -- our method --------------------------------------------------------------------------------------------


def against_tab() -> Iterable[tuple[Setting, dict[str, Frame]]]:
    """The settings that TAB and `evenhand` were both run with, and their runs of the same seeds."""
    for setting in SETTINGS:
        found = dataclasses.replace(setting, methods=("tab", "evenhand")).frames()
        if len(found) == 2 and setting is not EVEN_ODD:  # whose seeds are among those of the next row
            yield setting, found


def method() -> str:
    """`evenhand` against TAB, paired by seed."""
    rows = []
    for setting, found in against_tab():
        ours, theirs = found["evenhand"], found["tab"]
        gains = ours.test_wga - theirs.test_wga
        gain, bounds = change(gains)
        rows.append(
            [
                setting.label,
                len(ours),
                cell(theirs.test_wga),
                cell(ours.test_wga),
                f"**{gain}**" if excludes_zero(gains) else gain,
                bounds,
                signed(float((ours.test_accuracy_weighted - theirs.test_accuracy_weighted).mean())),
            ]
        )
    heads = ["setting", "seeds", "TAB", "evenhand", "Δ vs. TAB", "95% over seeds", "Δ weighted accuracy"]
    return table(heads, rows)


def again() -> str:
    """The seeds of Even-Odd that were run twice, at commits that are days apart."""
    first = Setting(label="Even-Odd", task="even_odd", archives=REPORTED)
    rows = []
    for method in ("tab", "evenhand"):
        pair = [each.frame(method).test_wga for each in (first, EVEN_ODD)]
        seeds = sorted(set(pair[0].index) & set(pair[1].index))
        cells = [", ".join(f"{100 * wga:.4f}" for wga in each.loc[seeds]) for each in pair]
        rows.append([title(method), *cells])
    return table(["method, seeds 0 to 2", "`studies/even_reported.zip`", "`methods.zip`"], rows)


NO_SHORTCUT = (Setting(label="`even_odd:p=0.5`", task="even_odd:p=0.5", archives=REPORTED),)


def no_shortcut() -> str:
    """Accuracy where no shortcut is."""
    return accuracies(NO_SHORTCUT)


def accuracies(settings: Sequence[Setting]) -> str:
    rows = []
    for setting in settings:
        found = dataclasses.replace(setting, methods=("erm", "tab", "evenhand")).frames()
        scores = {method: frame.test_accuracy_weighted for method, frame in found.items()}
        gain, bounds = change(scores["evenhand"] - scores["erm"])
        rows.append([setting.label, len(scores["erm"]), *map(cell, scores.values()), f"{gain} ({bounds})"])
    return table(["task", "seeds", "ERM", "TAB", "evenhand", "Δ vs. ERM"], rows)


ABLATION = {
    "evenhand": {},
    "TAB": {},
    "`identifier=erm`": {"identifier": "erm"},
    "`summary=history`": {"summary": "history"},
    "`split=any`": {"split": "any"},
    "`average=false`": {"average": False},
    "`keep=last`": {"keep": "last"},
    "`draw=fresh`": {"draw": "fresh"},
}


def ablation() -> str:
    """`evenhand` with one ingredient less."""
    tasks = {"even_odd:p=0.985": 0.0, "cmnist:p=0.97": 1e-4}
    rows: list[list[object]] = []
    frames: dict[str, list[Frame]] = {}
    for name, settings in ABLATION.items():
        frames[name] = []
        for task, decay in tasks.items():
            setting = Setting(
                label=task, task=task, archives=["studies/even_ablation.zip"], weight_decay=decay
            )
            frames[name].append(setting.frame("tab" if name == "TAB" else "evenhand", **settings))
    for name, found in frames.items():
        line: list[object] = [name]
        for own, first in zip(found, frames["evenhand"], strict=True):
            gain, bounds = change(own.test_wga - first.test_wga)
            delta = f"**{gain}**" if excludes_zero(own.test_wga - first.test_wga) else gain
            line += [cell(own.test_wga), "" if name == "evenhand" else f"{delta} ({bounds})"]
        rows.append(line)
    heads = ["variant"]
    for task in tasks:
        heads += [f"`{task}`", "Δ vs. evenhand"]
    return table(heads, rows)


# -- the demo ----------------------------------------------------------------------------------------------


def demo() -> str:
    """What `make demo` prints, from the records of the same two runs."""
    from evenhand.cli.common import print_results

    found = [
        Setting(label="demo", task="digits_even_odd", archives=EVEN_ODD_DIGITS).frame(m)
        for m in ("erm", "evenhand")
    ]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print_results([rows.loc[0].record for rows in found], False)
    lines = [line.rstrip() for line in out.getvalue().strip("\n").splitlines()]
    return "```text\n" + "\n".join(lines).rstrip() + "\n```"


# -- what a fair comparison shows --------------------------------------------------------------------------


def stopping() -> str:
    """ERM with a check in every epoch and in every fifth."""
    rows = []
    for every in (1, 5):
        changes = {"check_every": every}
        digits = Setting(label=f"{every}", task="digits_even_odd", archives=EVEN_ODD_DIGITS, changes=changes)
        found = digits.frame("erm")
        scores = cell(found.test_wga), cell(found.test_accuracy_weighted)
        rows.append([every, len(found), *scores, epochs(found)])
    return table(
        ["epochs between checks", "seeds", "WGA of ERM", "weighted accuracy", "epochs trained"], rows
    )


def epochs(rows: Frame) -> str:
    """How many epochs the last training of each run took."""
    found = sorted({list(each.values())[-1] for each in rows.epochs})
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def stopping_groups() -> str:
    """Group DRO on CelebA, by its number of epochs."""
    every = runs("studies/celeba_short.zip")
    rows = every[every.method == "gdro"]
    limits = [record.config["full_recipe"]["epochs"] for record in rows.record]
    means = rows.assign(limit=limits).groupby("limit")
    full = CELEBA.task, results.of_task(runs("celeba.zip"), CELEBA.task)
    chosen = results.result(full[1], "gdro").rows
    heads = ["epochs", *(str(limit) for limit, _ in means), "by validation accuracy"]
    wga = ["WGA", *(cell(own.test_wga) for _, own in means), cell(chosen.test_wga)]
    accuracy = ["weighted accuracy", *(cell(own.test_accuracy_weighted) for _, own in means)]
    return table(heads, [wga, [*accuracy, cell(chosen.test_accuracy_weighted)]])


def weight_decay() -> str:
    """TAB and `evenhand` on BAR at two weight decays."""
    rows = []
    for setting in (BAR_0, BAR_SELECTED):
        found = setting.frames()
        for method in ("erm", "tab", "evenhand"):
            own = found[method]
            scores = cell(own.test_wga), cell(own.test_accuracy_weighted)
            rows.append([f"{setting.weight_decay:g}", title(method), len(own), *scores])
    return table(["weight decay", "method", "seeds", "worst class", "accuracy"], rows)


def leads() -> str:
    """Our method's lead over TAB in every setting."""
    rows = []
    for setting, found in against_tab():
        gains = found["evenhand"].test_wga - found["tab"].test_wga
        gain, bounds = change(gains)
        rows.append([setting.label, len(gains), f"**{gain}**" if excludes_zero(gains) else gain, bounds])
    return table(["setting", "seeds", "Δ vs. TAB", "95% over seeds"], rows)


def group_labels() -> str:
    """Group DRO's lead over ERM in every setting."""
    rows = []
    for setting in SETTINGS:
        found = dataclasses.replace(setting, methods=("erm", "gdro")).frames()
        if len(found) == 2:
            gains = found["gdro"].test_wga - found["erm"].test_wga
            gain, bounds = change(gains)
            rows.append([setting.label, len(gains), f"**{gain}**" if excludes_zero(gains) else gain, bounds])
    return table(["setting", "seeds", "Δ vs. ERM", "95% over seeds"], rows)


def prices() -> str:
    """Price of unawareness of every method's own search."""
    methods = [name for name in paper.METHODS if name != "gdro"]
    rows = []
    for method in methods:
        line: list[object] = [title(method)]
        for task, archive in SEARCHED.items():
            found = results.result(results.of_task(runs(archive), task), method)
            several = found.num_candidates > 1 and found.pou is not None
            line.append(f"{found.pou.mean:.2f}" if several and found.pou else NONE)
        if set(line[1:]) != {NONE}:
            rows.append(line)
    return table(["method", *NAMES.values()], rows)


def arithmetic() -> str:
    """The same settings and seeds in two arithmetics."""
    rows = []
    first = Setting(label="Even-Odd", task="even_odd", archives=["even_odd.zip"])
    for method in ("erm", "gdro"):
        for decay in (0.0, 1e-4):
            pair = [dataclasses.replace(each, weight_decay=decay).frame(method) for each in (first, EVEN_ODD)]
            a, b = (each.test_wga for each in pair)
            apart = 100 * float(np.abs(a - b).mean())
            seeds = 100 * float(np.mean([of_two(a.to_numpy()), of_two(b.to_numpy())]))
            rows.append(
                [f"{title(method)}, weight decay {decay:g}", cell(a), cell(b), f"{apart:.1f}", f"{seeds:.1f}"]
            )
    heads = ["Even-Odd", "first arithmetic", "today's", "mean difference of a seed", "of two seeds"]
    return table(heads, rows)


def of_two(values: np.ndarray) -> float:
    """The mean difference of two different values.

    >>> of_two(np.array([0.0, 1.0, 2.0]))
    1.3333333333333333
    """
    return float(np.abs(np.subtract.outer(values, values)).sum() / (len(values) * (len(values) - 1)))


# -- strength ----------------------------------------------------------------------------------------------

STRENGTHS = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995)


def strength() -> str:
    """ERM and TAB by the strength of the shortcut, TAB also with the best check's weights."""
    rows: list[list[object]] = []
    for p in STRENGTHS:
        task = "even_odd" if p == 0.99 else f"even_odd:p={p:g}"
        archives = ["methods.zip"] if p == 0.99 else ["studies/strength.zip"]
        last = Setting(label=task, task=task, archives=archives)
        best = Setting(
            label=task, task=task, archives=["studies/strength.zip"], changes={"keep": "best"}
        ).frame("tab")
        erm, tab = last.frame("erm"), last.frame("tab")
        gain, bounds = change(tab.test_wga - erm.test_wga)
        kept = cell(best.test_wga.loc[list(tab.index)]) if len(best) else NONE
        rows.append([f"{100 * p:g}%", cell(erm.test_wga), cell(tab.test_wga), f"{gain} ({bounds})", kept])
    return table(["p", "ERM", "TAB", "Δ", "TAB, best check"], rows)


# -- cost --------------------------------------------------------------------------------------------------


def tab_cost() -> str:
    """What TAB costs with early stopping, and why."""
    first_cmnist = next(each for each in SETTINGS if each.archives == ["cmnist.zip"])
    ratios, identifiers = [], []
    for setting in (EVEN_ODD, first_cmnist):
        found = setting.frames()
        ratios.append(float(found["tab"].unshared.mean() / found["erm"].unshared.mean()))
        identifiers += [next(iter(each.values())) for each in found["tab"].epochs]
    return (
        f"With early stopping, TAB costs {ratios[0]:.2f} times ERM on Even-Odd and {ratios[1]:.2f} times on "
        f"cMNIST, because its identifier stops after {min(identifiers)} to {max(identifiers)} epochs.\n"
    )


# -- cells -------------------------------------------------------------------------------------------------


def cell(values: Iterable[float], *, bold: bool = False) -> str:
    """Mean and population deviation in per cent; the mean alone of one value.

    >>> cell([0.25, 0.75]), cell([0.5])
    ('50.0 ± 25.0', '50.0')
    """
    numbers = [100 * float(value) for value in values]
    text = f"{np.mean(numbers):.1f}" + (f" ± {np.std(numbers):.1f}" if len(numbers) > 1 else "")
    return f"**{text}**" if bold else text


def percent(value: Any) -> str:
    """The paper's number, of a Mean."""
    return f"{100 * value.mean:.1f} ± {100 * value.deviation:.1f}"


def signed(value: float) -> str:
    """A difference in points, with its sign.

    >>> signed(0.0123), signed(-0.5), signed(0.0001)
    ('+1.2', '−50.0', '+0.0')
    """
    return f"{100 * value:+.1f}".replace("-", "−")


def change(differences: Any) -> tuple[str, str]:
    """The mean of paired differences, and Student's 95% interval."""
    bounds = students_interval(differences.to_numpy())
    return signed(
        float(differences.mean())
    ), "" if bounds is None else f"{signed(bounds[0])} to {signed(bounds[1])}"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A markdown table."""
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]) + "\n"


BLOCKS: dict[str, Callable[[], str]] = {
    "demo": demo,
    "readme": readme,
    "one_setting": one_setting,
    "own_search": own_search,
    "method": method,
    "no_shortcut": no_shortcut,
    "stopping": stopping,
    "stopping_groups": stopping_groups,
    "weight_decay": weight_decay,
    "leads": leads,
    "group_labels": group_labels,
    "prices": prices,
    "again": again,
    "arithmetic": arithmetic,
    "strength": strength,
    "tab_cost": tab_cost,
}
