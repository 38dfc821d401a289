"""Describe what late samples share that the other samples of their class do not: columns, words or looks.

Inputs are *properties*: a table's columns, the words and phrases of texts, or measurements of images. For
every property and class, the share of late samples that have it is compared with the share of the others.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.core.metrics import wilson_interval

FEWEST = 20  # late samples that a headline may be about
MOST_FINDINGS = 5  # of one class, and over all classes
MOST_VALUES = 100  # values of a category that are tested, the most frequent first
FEW_VALUES = 10  # up to so many values, a number is tested value by value
CUTS = 31  # thresholds that divide the values of a number in two
LEVEL = 0.05  # probability of any finding if late samples share nothing
ALONE = 0.02  # a property predicts the label alone if it is so much worse than the model, or better
MOST_ROWS = 20_000  # texts and images that are tested; of more, every n-th
WORDS = re.compile(r"\w+")
WORDING = "wording"  # the property of texts
COLOURS = {
    "black": (0, 0, 0), "white": (255, 255, 255), "grey": (128, 128, 128), "red": (215, 40, 40),
    "orange": (240, 140, 30), "yellow": (230, 215, 50), "green": (40, 180, 60), "cyan": (40, 205, 210),
    "blue": (50, 70, 220), "violet": (130, 50, 190), "magenta": (215, 50, 205), "pink": (245, 170, 190),
    "brown": (125, 80, 45),
}  # fmt: skip

Columns = dict[str, np.ndarray]  # per property: (samples,) float64, or objects that are categories


@dataclass(frozen=True)
class Finding:
    """A property that late samples share."""

    name: str  # a column, a measurement of images, or WORDING
    words: str  # such as "hospital = B"
    late: int  # late samples that have it
    num_late: int
    others: int
    num_others: int
    effect: float  # difference of the two shares
    interval: tuple[float, float]  # 95%, Newcombe's

    @property
    def sentence(self) -> str:
        share = 100 * self.others / max(self.num_others, 1)
        shown = f"{share:.0f}%" if share >= 0.5 or not self.others else "under 1%"
        return f"{self.late:,} of {self.num_late:,} late samples {self.words}; of the others {shown} do"


@dataclass(frozen=True)
class Description:
    """The most informative properties, over all classes and in each class, and notes for the user."""

    headline: str  # one sentence; empty if nothing is certain enough
    overall: tuple[Finding, ...]
    classes: dict[str, tuple[Finding, ...]]
    notes: tuple[str, ...]  # properties that predict the label alone, duplicates across splits

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for summary.json."""
        return {
            "headline": self.headline,
            "overall": [asdict(each) for each in self.overall],
            "classes": {name: [asdict(each) for each in found] for name, found in self.classes.items()},
            "notes": list(self.notes),
        }


def describe(
    columns: Columns, texts: Sequence[str], y: np.ndarray, late: np.ndarray, class_names: Sequence[str]
) -> tuple[str, tuple[Finding, ...], dict[str, tuple[Finding, ...]]]:
    """Return the headline, the findings over all classes, and the findings of each class.

    columns: Properties of the training samples.
    texts: The samples' texts, whose words and phrases are properties too; may be empty.
    """
    found: dict[int, list[Finding]] = {}
    tried = 0
    for label in np.unique(y).tolist():
        own = np.flatnonzero(y == label)
        if not late[own].any() or late[own].all():
            continue
        some = list(
            _of_class(columns, [texts[row] for row in own.tolist()] if len(texts) else [], own, late[own])
        )
        tried += len(some)
        found[label] = some
    sure = {label: sorted(_sure(some, tried), key=_order) for label, some in found.items()}
    classes = {class_names[label]: _best(some) for label, some in sure.items() if some}
    overall = _overall(sure, y, late)
    return _headline(overall, classes), overall, classes


def _of_class(columns: Columns, texts: list[str], own: np.ndarray, late: np.ndarray) -> Iterator[Finding]:
    """Yield a finding for every property of the samples of one class."""
    for name, values in columns.items():
        for words, has in _splits(values[own]):
            yield _finding(name, f"have {name} {words}", has, late)
    if texts:
        phrases, shares = _phrases(texts, late)
        sizes = int(late.sum()), int((~late).sum())
        for phrase, few, most in zip(phrases, *shares.T.tolist(), strict=True):
            yield _counted(WORDING, f"contain “{phrase}”", few, sizes[0], most, sizes[1])


def _splits(values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the ways to divide samples by one property, each as a description and a mask."""
    if values.dtype == object:
        known = np.array(["missing" if value is None or value != value else str(value) for value in values])
        names, counts = np.unique(known, return_counts=True)
        for name in names[np.argsort(-counts, kind="stable")][:MOST_VALUES].tolist():
            yield f"= {name}", known == name
        return
    gaps = np.isnan(values)
    if gaps.any():
        yield "missing", gaps
    distinct = np.unique(values[~gaps])
    if len(distinct) <= FEW_VALUES:
        for value in distinct.tolist():
            yield f"= {value:g}", values == value
        return
    cuts = np.unique(np.quantile(values[~gaps], np.linspace(0, 1, CUTS + 2)[1:-1]))
    for cut in cuts.tolist():
        yield f"≤ {cut:.4g}", values <= cut


def _finding(name: str, words: str, has: np.ndarray, late: np.ndarray) -> Finding:
    sizes = int(late.sum()), int((~late).sum())
    few, most = int((has & late).sum()), int((has & ~late).sum())
    if few / sizes[0] < most / sizes[1]:  # late samples may share that they lack the value
        words = words.replace(" = ", " other than ").replace(" ≤ ", " > ").replace(" missing", " known")
        few, most = sizes[0] - few, sizes[1] - most
    return _counted(name, words, few, sizes[0], most, sizes[1])


def _counted(name: str, words: str, few: int, num_late: int, most: int, num_others: int) -> Finding:
    """Return a finding with Newcombe's interval of the difference of two shares."""
    share, rest = few / num_late, most / num_others
    (low, high), (rest_low, rest_high) = wilson_interval(few, num_late), wilson_interval(most, num_others)
    effect = share - rest
    interval = (
        effect - math.hypot(share - low, rest_high - rest),
        effect + math.hypot(high - share, rest - rest_low),
    )
    return Finding(name, words, few, num_late, most, num_others, effect, interval)


def _phrases(texts: list[str], late: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Return phrases of up to three words, and how many late and other texts contain each, (phrases, 2)."""
    from sklearn.feature_extraction.text import CountVectorizer

    rows = np.arange(len(texts))
    least = max(2, min(5, int(late.sum()) // 4))
    counter = CountVectorizer(binary=True, ngram_range=(1, 3), min_df=least, token_pattern=r"(?u)\b\w+\b")
    try:
        counts = counter.fit_transform(texts).tocsr()
    except ValueError:  # no word occurs often enough
        return [], np.zeros((0, 2), dtype=np.int64)
    both = [np.asarray(counts[rows[part]].sum(axis=0)).reshape(-1) for part in (late, ~late)]
    return counter.get_feature_names_out().tolist(), np.stack(both, axis=1)


def _sure(found: list[Finding], tried: int) -> list[Finding]:
    """Return the significant findings, by Fisher's exact test with Bonferroni's correction."""
    from scipy.stats import hypergeom  # type: ignore[import-untyped]

    if not found:
        return []
    counts = np.array([(each.late, each.num_late, each.others, each.num_others) for each in found]).T
    late, num_late, others, num_others = counts
    chance = hypergeom.sf(late - 1, num_late + num_others, late + others, num_late)
    return [each for each, single in zip(found, chance.tolist(), strict=True) if single * tried < LEVEL]


def _order(found: Finding) -> tuple[float, int]:
    """Return a sort key that puts the surest difference first.

    Among equal differences, the longer phrase comes first, and "= B" comes before "other than A".
    """
    length = len(found.words)
    return (-round(found.interval[0], 6), -length if found.name == WORDING else length)


def _best(found: list[Finding]) -> tuple[Finding, ...]:
    """Return the first findings, one for each column, without phrases that are part of another."""
    kept: list[Finding] = []
    for each in found:
        known = any(
            each.name == other.name and (each.name != WORDING or _overlap(each, other)) for other in kept
        )
        if not known:
            kept.append(each)
        if len(kept) == MOST_FINDINGS:
            break
    return tuple(kept)


def _overlap(first: Finding, second: Finding) -> bool:
    return bool(set(WORDS.findall(first.words)[1:]) & set(WORDS.findall(second.words)[1:]))


def _overall(sure: dict[int, list[Finding]], y: np.ndarray, late: np.ndarray) -> tuple[Finding, ...]:
    """Return the properties by which late samples of all classes differ, by the best split of each class."""
    names = dict.fromkeys(each.name for some in sure.values() for each in some)
    sizes = int(late.sum()), int((~late).sum())
    result = []
    for name in names:
        best = [next((each for each in some if each.name == name), None) for some in sure.values()]
        chosen = [each for each in best if each is not None]
        few, most = (sum(getattr(each, side) for each in chosen) for side in ("late", "others"))
        words = chosen[0].words if len({each.words for each in chosen}) == 1 else ""
        words = words or f"differ from the others of their class in {name}"
        result.append(_counted(name, words, few, sizes[0], most, sizes[1]))
    return tuple(sorted(result, key=_order)[:MOST_FINDINGS])


def _headline(overall: tuple[Finding, ...], classes: dict[str, tuple[Finding, ...]]) -> str:
    """Return a sentence on the most informative property, for the class with the most late samples."""
    if not overall:
        return ""
    first = overall[0].name
    chosen = [
        (name, each)
        for name, found in classes.items()
        for each in found
        if each.name == first and each.num_late >= FEWEST
    ]
    if chosen:
        name, best = max(chosen, key=lambda pair: pair[1].interval[0])
        return f"In class {name}, {best.sentence}."
    return f"Over all classes, {overall[0].sentence}." if overall[0].num_late >= FEWEST else ""


# -- what else a user should know ------------------------------------------------------------------------


def predicts_alone(
    columns: Columns, y: np.ndarray, train: np.ndarray, held_out: np.ndarray, accuracy: float
) -> list[str]:
    """Return sentences on properties that alone predict held-out labels as well as the model does.

    train, held_out: Rows of `columns` and `y`.
    accuracy: The model's accuracy on the held-out rows.
    """
    notes = []
    largest = float(np.bincount(y[held_out]).max() / len(held_out))
    for name, values in columns.items():
        codes = _codes(values, train)
        table = np.zeros((int(codes.max()) + 1, int(y.max()) + 1))
        np.add.at(table, (codes[train], y[train]), 1)
        table += np.bincount(y[train], minlength=table.shape[1]) / len(train)  # for unseen values
        right = float((table.argmax(1)[codes[held_out]] == y[held_out]).mean())
        error = math.sqrt(max(largest * (1 - largest), 1e-9) / len(held_out))
        if right >= accuracy - ALONE and right > largest + 3 * error:
            notes.append(
                f"{name} alone predicts the label of {100 * right:.1f}% of the held-out samples (the model: "
                f"{100 * accuracy:.1f}%, the largest class: {100 * largest:.1f}%)"
            )
    return notes


def _codes(values: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Return a property as integer codes: categories, or 16 ranges of a number with similar sample counts."""
    if values.dtype == object:
        return np.unique(values.astype(str), return_inverse=True)[1].reshape(-1)
    known = values[train][~np.isnan(values[train])]
    cuts = np.unique(np.quantile(known, np.linspace(0, 1, 17)[1:-1])) if len(known) else np.zeros(0)
    return np.where(np.isnan(values), len(cuts) + 1, np.searchsorted(cuts, values))


def duplicates(keys: Sequence[tuple[str, str]], train: np.ndarray, held_out: np.ndarray) -> list[str]:
    """Return sentences on held-out samples that are copies of training samples.

    keys: Two digests of every sample: one of its content, and one of what hardly changes in a near copy.
    """
    exact, near = ({keys[row][kind] for row in train.tolist()} for kind in (0, 1))
    copies = sum(keys[row][0] in exact for row in held_out.tolist())
    alike = sum(keys[row][0] not in exact and keys[row][1] in near for row in held_out.tolist())
    total = f"of {len(held_out):,} held-out samples"
    notes = [f"{copies:,} {total} are exact copies of training samples"] if copies else []
    return notes + ([f"{alike:,} {total} are near copies of training samples"] if alike else [])


def text_keys(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return the keys of texts for `duplicates`.

    A near copy has the same words in the same order, regardless of case, digits and punctuation.
    """
    return [(_digest(text), _digest(" ".join(re.findall(r"[^\W\d_]+", text.lower())))) for text in texts]


def row_keys(columns: Columns) -> list[tuple[str, str]]:
    """Return the keys of a table's rows for `duplicates`.

    A near copy has the same categories, and numbers that agree to three digits.
    """
    exact = zip(*(values.tolist() for values in columns.values()), strict=True)
    near = zip(
        *(
            values.tolist() if values.dtype == object else [f"{value:.3g}" for value in values.tolist()]
            for values in columns.values()
        ),
        strict=True,
    )
    return [(_digest(repr(a)), _digest(repr(b))) for a, b in zip(exact, near, strict=True)]


def _digest(content: str | bytes) -> str:
    data = content if isinstance(content, bytes) else content.encode(errors="replace")
    return hashlib.sha256(data).hexdigest()


# -- properties ------------------------------------------------------------------------------------------


def frame_columns(frame: Any) -> Columns:
    """Return a table's columns as properties."""
    return {str(name): frame[name].to_numpy() for name in frame.columns}


def image_columns(
    pixels: Callable[[int], np.ndarray], count: int, files: Sequence[Path] = ()
) -> tuple[Columns, list[tuple[str, str]]]:
    """Return measurements of images, and their keys for `duplicates`.

    pixels: A function that returns an image, (3, height, width) uint8.
    files: The paths of the images, if they are files. Then size and format are measured too.
    """
    rows, keys = [], []
    for number in range(count):
        image = np.asarray(pixels(number), dtype=np.uint8)
        image = np.repeat(image, 3, axis=0) if len(image) == 1 else image
        rows.append(_measured(image) | (_file_facts(files[number]) if files else {}))
        small = image.astype(np.float64)
        small = small[:, : small.shape[1] // 8 * 8, : small.shape[2] // 8 * 8]
        small = small.reshape(3, 8, small.shape[1] // 8, 8, -1).mean((2, 4))
        keys.append((_digest(image.tobytes()), _digest(np.rint(small / 8).astype(np.uint8).tobytes())))
    names = rows[0] if rows else {}
    return {
        name: np.array(
            [row[name] for row in rows], dtype=object if isinstance(names[name], str) else np.float64
        )
        for name in names
    }, keys


def _measured(image: np.ndarray) -> dict[str, float | str]:
    """Return the colors, brightness, contrast and sharpness of one image, and the color of its border."""
    values = image.astype(np.float64)
    grey = values.mean(axis=0)
    width = max(min(grey.shape) // 16, 1)
    inner = np.zeros(grey.shape, dtype=bool)
    inner[width:-width, width:-width] = True
    border, edges = (
        values[:, ~inner],
        np.abs(np.diff(grey, axis=0)).mean() + np.abs(np.diff(grey, axis=1)).mean(),
    )
    mean = values.mean((1, 2))
    return {
        "border colour": colour_name(np.median(border, axis=1)),
        "colour": colour_name(mean),
        "brightness": float(grey.mean()),
        "contrast": float(grey.std()),
        "sharpness": float(edges),
        "saturation": float((values.max(0) - values.min(0)).mean()),
        "red": float(mean[0] - grey.mean()),
        "green": float(mean[1] - grey.mean()),
        "blue": float(mean[2] - grey.mean()),
    }


def colour_name(colour: np.ndarray) -> str:
    """Return the name of the nearest of some named colors.

    >>> colour_name(np.array([230, 30, 30]))
    'red'
    """
    names = list(COLOURS)
    distances = np.square(np.array([COLOURS[name] for name in names]) - colour).sum(axis=1)
    return names[int(distances.argmin())]


def _file_facts(file: Path) -> dict[str, float | str]:
    from PIL import Image

    with Image.open(file) as image:
        width, height = image.size
        kind = f"{image.format} {image.mode}"
    return {
        "width": float(width),
        "height": float(height),
        "format": kind,
        "bytes": float(file.stat().st_size),
    }
