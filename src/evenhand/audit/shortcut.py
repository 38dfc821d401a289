"""Find the property that alone nearly predicts the label, and the samples that contradict it.

The property is a column, a wording or a look.

A property is only a candidate. Whether models rely on it more than they should is tested in judge.py: of the
samples that it contradicts, does a model that does not see it get more right?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenhand.audit.describe import Columns

LEAST = 0.84  # accuracy of a property alone, as a mean over classes and over samples
BINS = (8, 128)  # ranges of a number, at least and at most
PER_BIN = 20  # samples
NEARLY = 0.8  # phrases with this share of the best phrase's association are parts or copies of it


@dataclass(frozen=True, eq=False)
class Shortcut:
    """A property that alone predicts most labels."""

    name: str  # the property, such as a column
    words: str  # the same in a sentence: "the column 'site'"
    accuracy: float  # share of training samples whose label it predicts
    against: np.ndarray  # (training samples,) bool: those whose label it does not predict


def find(columns: Columns, y: np.ndarray, num_classes: int, what: str = "the column") -> Shortcut | None:
    """Return the property that predicts most labels, or None if none predicts enough.

    columns: Properties of the training samples.
    what: The noun for a property.
    """
    best, found = LEAST, None
    for name, values in columns.items():
        against = contradicted(values, y, num_classes)
        classes = np.bincount(y, against, minlength=num_classes) / np.maximum(np.bincount(y), 1)
        accuracy = 1 - max(float(classes.mean()), float(against.mean()))
        if accuracy > best:
            best, found = accuracy, Shortcut(name, f"{what} {name}", 1 - float(against.mean()), against)
    return found


def contradicted(values: np.ndarray, y: np.ndarray, num_classes: int) -> np.ndarray:
    """Return the samples whose value is more frequent in another class, (samples,) bool.

    A sample does not count itself.

    >>> contradicted(np.array(["a", "a", "a", "b", "b", "b"], dtype=object), np.array([0, 0, 1, 1, 1, 1]), 2)
    array([False, False,  True, False, False, False])
    """
    if values.dtype == object:
        codes = np.unique(values.astype(str), return_inverse=True)[1].reshape(-1)
    else:
        known = values[~np.isnan(values)]
        count = int(np.clip(len(y) // PER_BIN, *BINS))
        cuts = np.unique(np.quantile(known, np.linspace(0, 1, count + 1)[1:-1])) if len(known) else known
        codes = np.where(np.isnan(values), len(cuts) + 1, np.searchsorted(cuts, values))
    rows = np.arange(len(y))
    counts = np.zeros((int(codes.max()) + 1, num_classes))
    np.add.at(counts, (codes, y), 1)
    shares = np.empty((len(y), num_classes))
    np.divide(counts[codes], np.maximum(np.bincount(y, minlength=num_classes), 1), out=shares)
    own = counts[codes, y] - 1
    shares[rows, y] = own / np.maximum(np.bincount(y, minlength=num_classes)[y] - 1, 1)
    return np.asarray(shares.argmax(axis=1) != y)


def wordings(texts: Sequence[str], y: np.ndarray, num_classes: int) -> tuple[np.ndarray, list[str], set[str]]:
    """Return the phrase that each text contains, the phrases, and the words of similar phrases.

    There is one phrase per class, the one that best predicts it. The first result is (samples,) objects, with
    "" for a text that contains none. The words are those of all phrases that predict a class nearly as well.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(
        binary=True, ngram_range=(1, 3), min_df=max(3, len(y) // 100), token_pattern=r"(?u)\b\w+\b"
    )
    value = np.full(len(y), "", dtype=object)
    try:
        has = counter.fit_transform(texts).tocsr()
    except ValueError:  # no word occurs often enough
        return value, [], set()
    names = counter.get_feature_names_out()
    sizes = np.bincount(y, minlength=num_classes)
    counts = np.stack([np.asarray(has[y == k].sum(axis=0)).reshape(-1) for k in range(num_classes)])
    phrases, similar = [], set[str]()
    for k in range(num_classes):
        others = (counts.sum(axis=0) - counts[k]) / max(len(y) - sizes[k], 1)
        tells = counts[k] / max(sizes[k], 1) - others
        if len(tells) == 0 or tells.max() <= 0:
            continue
        close = np.flatnonzero(tells >= tells.max() - 1e-9)
        chosen = int(close[np.argmax([len(names[row]) for row in close])])
        phrases.append(str(names[chosen]))
        for row in np.flatnonzero(tells >= NEARLY * tells.max()):
            similar |= set(str(names[row]).split())
        value[(has[:, chosen].toarray().reshape(-1) > 0) & (value == "")] = names[chosen]
    return value, phrases, similar
