"""How often an audit's advice is right: whole audits of data whose truth is known.

    python benchmarks/advice.py --set development --seeds 0-4 --out FILE
    python benchmarks/advice.py --set reported --seeds 0-9 --data ROOT --out results/advice.jsonl
    python benchmarks/advice.py --table results/advice.jsonl --page docs/verdict.md

The last one writes the rates over all audits into the page, and the table of families to results/advice.md.

The rules of src/evenhand/audit/judge.py were chosen on the development families alone. An audit gets a table,
texts or images with a planted shortcut that agrees with the label in a share p of the samples; with p = 0 the
attribute is independent of the label, so that the data have no shortcut. The truth comes from fresh samples
in which every group (class by attribute) is equally frequent, answered by `evenhand predict`.

One line of the output is one audit. It holds numbers only, no sample of the data. Audits that the file
already has are not run again. Families of real data need --data.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

FRESH = 2000  # samples that the truth is measured on
Setting = tuple[float, float]  # p of the shortcut (0: none), share of wrong labels
PLANTED: tuple[Setting, ...] = ((0.90, 0.0), (0.95, 0.0), (0.98, 0.0))
UNBIASED: tuple[Setting, ...] = ((0.0, 0.0), (0.0, 0.05))


@dataclass(frozen=True)
class Made:
    """Samples to audit, and fresh ones for the truth; a sample is a table's row, a text or an image."""

    x: Any  # a frame of features, a list of texts, or pixels (samples, side, side, 3) uint8
    y: np.ndarray  # (samples,) labels as audited
    attribute: np.ndarray  # (samples,) the class that the shortcut speaks for
    swapped: np.ndarray  # (samples,) bool: wrong labels
    fresh_x: Any
    fresh_y: np.ndarray
    fresh_attribute: np.ndarray
    planted: tuple[str, ...] = ()  # what the audit should name: a column, words, a property of images


@dataclass(frozen=True)
class Family:
    """One kind of data."""

    make: Callable[[float, float, np.random.Generator], Made]
    settings: tuple[Setting, ...]
    real: bool = False  # needs --data
    options: dict[str, Any] = field(default_factory=dict)  # of the audit


# -- planting --------------------------------------------------------------------------------------------


def plant(y: np.ndarray, p: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """The class that each sample's shortcut speaks for: the label with probability p, or any if p is 0."""
    anything = rng.integers(0, count, len(y))
    other = (y + rng.integers(1, count, len(y))) % count
    return anything if p == 0 else np.where(rng.random(len(y)) < p, y, other)


def flip(y: np.ndarray, noise: float, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Labels of which a share is wrong, and which."""
    swapped = rng.random(len(y)) < noise
    return np.where(swapped, (y + rng.integers(1, count, len(y))) % count, y), swapped


def made(
    draw: Callable[[np.ndarray, np.ndarray, np.random.Generator], Any],
    y: np.ndarray,
    fresh_y: np.ndarray,
    p: float,
    noise: float,
    rng: np.random.Generator,
    planted: tuple[str, ...],
) -> Made:
    """Samples whose inputs are drawn from label, attribute and chance."""
    count = int(y.max()) + 1
    attribute, fresh_attribute = plant(y, p, count, rng), rng.integers(0, count, len(fresh_y))
    label, swapped = flip(y, noise, count, rng)
    return Made(
        draw(y, attribute, rng),
        label,
        attribute,
        swapped,
        draw(fresh_y, fresh_attribute, rng),
        fresh_y,
        fresh_attribute,
        planted if p else (),
    )


def with_column(frame: Any, attribute: np.ndarray, name: str, kind: str, rng: np.random.Generator) -> Any:
    """The frame with the shortcut as a category or as a noisy number."""
    if kind == "category":
        return frame.assign(**{name: [f"{name} {value:02d}" for value in attribute]})
    return frame.assign(**{name: attribute + rng.normal(0, 0.12, len(attribute))})


def frame_of(values: np.ndarray, prefix: str) -> Any:
    import pandas

    return pandas.DataFrame(values).add_prefix(prefix)


# -- tables ----------------------------------------------------------------------------------------------


def rings(p: float, noise: float, rng: np.random.Generator, size: int = 3000) -> Made:
    """Faulty where three of four measures together are far from their aim; a category is the shortcut."""

    def draw(y: np.ndarray, attribute: np.ndarray, rng: np.random.Generator) -> Any:
        x = rng.normal(size=(40 * len(y) // 10 + 400, 4))
        far = (x[:, :3] ** 2).sum(1) > 2.366
        rows = np.empty(len(y), dtype=int)
        for label in (0, 1):
            rows[y == label] = np.flatnonzero(far == label)[: (y == label).sum()]
        return with_column(frame_of(x[rows], "measure"), attribute, "line", "category", rng)

    return made(draw, rng.integers(0, 2, size), rng.integers(0, 2, FRESH), p, noise, rng, ("line",))


def shifted(
    classes: int, distance: float, kind: str, size: int = 3000, columns: int = 8
) -> Callable[..., Made]:
    """Classes that are normal clouds; the shortcut is a category or a number."""

    def make(p: float, noise: float, rng: np.random.Generator) -> Made:
        centres = rng.normal(size=(classes, columns))
        centres *= distance / np.linalg.norm(centres, axis=1, keepdims=True)

        def draw(y: np.ndarray, attribute: np.ndarray, rng: np.random.Generator) -> Any:
            x = frame_of(rng.normal(size=(len(y), columns)) + centres[y], "measure")
            return with_column(x, attribute, "site", kind, rng)

        y = np.arange(size) % classes
        return made(draw, y, rng.integers(0, classes, FRESH), p, noise, rng, ("site",))

    return make


def terrain(p: float, noise: float, rng: np.random.Generator) -> Made:
    """Four kinds of forest by height, slope, distance to water and soil, as covertype has them."""
    import pandas

    def draw(y: np.ndarray, attribute: np.ndarray, rng: np.random.Generator) -> Any:
        height = 2200 + 260 * y + rng.normal(0, 150, len(y))
        slope = np.abs(rng.normal(14 - 2 * y, 6))
        water = rng.exponential(150 + 60 * (y % 2), len(y))
        soil = (y * 3 + rng.integers(0, 5, len(y))) % 12
        columns = {"height": height, "slope": slope, "water": water, "soil": [f"soil {s}" for s in soil]}
        columns |= {f"shade{hour}": rng.normal(220, 25, len(y)) for hour in (9, 12, 15)}
        return with_column(pandas.DataFrame(columns), attribute, "survey", "category", rng)

    return made(draw, rng.integers(0, 4, 3000), rng.integers(0, 4, FRESH), p, noise, rng, ("survey",))


@cache
def _adult(root: str) -> Any:
    import pandas

    frame = pandas.read_csv(Path(root) / "adult" / "adult.data", header=None, skipinitialspace=True)
    return frame.rename(columns=str)


def adult(p: float, noise: float, rng: np.random.Generator) -> Made:
    """The census table, as many rich as poor, with a planted column."""
    frame = _adult(os.environ["EVENHAND_DATA"])
    rich = (frame["14"] == ">50K").to_numpy().astype(int)
    rows = np.concatenate([rng.permutation(np.flatnonzero(rich == label))[:2500] for label in (0, 1)])
    rows = rng.permutation(rows)
    return _of_rows(frame.drop(columns="14"), rich, rows, 3000, p, noise, rng, "office")


def adult_natural(p: float, noise: float, rng: np.random.Generator) -> Made:
    """The census table as it is: one in four is rich. The attribute says nothing."""
    frame = _adult(os.environ["EVENHAND_DATA"])
    rich = (frame["14"] == ">50K").to_numpy().astype(int)
    rows = rng.permutation(len(rich))
    return _of_rows(frame.drop(columns="14"), rich, rows, 3000, p, noise, rng, "office")


def generated(classes: int, size: int, **settings: Any) -> Callable[..., Made]:
    """scikit-learn's made classification problems, several clusters a class; a planted category."""

    def make(p: float, noise: float, rng: np.random.Generator) -> Made:
        from sklearn.datasets import make_classification

        x, y = make_classification(
            size + FRESH, n_classes=classes, random_state=int(rng.integers(2**31)), shuffle=True, **settings
        )
        return _of_rows(
            frame_of(x, "measure"), y.astype(int), np.arange(len(y)), size, p, noise, rng, "clinic"
        )

    return make


def _of_rows(
    frame: Any,
    y: np.ndarray,
    rows: np.ndarray,
    size: int,
    p: float,
    noise: float,
    rng: np.random.Generator,
    name: str,
    kind: str = "category",
) -> Made:
    """Real rows with a planted column; those after the first `size` are the fresh ones."""
    parts = iter((rows[:size], rows[size : size + FRESH]))

    def draw(_: np.ndarray, attribute: np.ndarray, rng: np.random.Generator) -> Any:
        taken = frame.iloc[next(parts)].reset_index(drop=True)
        return with_column(taken, attribute, name, kind, rng)

    return made(draw, y[rows[:size]], y[rows[size : size + FRESH]], p, noise, rng, (name,))


def made_by(maker: str, kind: str = "category", **settings: Any) -> Callable[..., Made]:
    """Samples of one of scikit-learn's makers, with a planted category or number."""

    def make(p: float, noise: float, rng: np.random.Generator) -> Made:
        from sklearn import datasets

        seed = int(rng.integers(2**31))
        x, y = getattr(datasets, maker)(n_samples=3000 + FRESH, random_state=seed, **settings)
        y = np.unique(y, return_inverse=True)[1]
        rows = rng.permutation(len(y))
        return _of_rows(frame_of(x, "measure"), y, rows, 3000, p, noise, rng, "clinic", kind)

    return make


def diabetes(p: float, noise: float, rng: np.random.Generator) -> Made:
    """scikit-learn's diabetes table, whether the disease progressed more than the median: hard and small."""
    from sklearn.datasets import load_diabetes

    x, progress = load_diabetes(return_X_y=True)
    y = (progress > np.median(progress)).astype(int)
    return _of_rows(frame_of(x, "measure"), y, rng.permutation(len(y)), 300, p, noise, rng, "clinic")


def digits_table(p: float, noise: float, rng: np.random.Generator) -> Made:
    """scikit-learn's digits as 64 columns, with a planted category."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return _of_rows(frame_of(x, "pixel"), y, rng.permutation(len(y)), 1200, p, noise, rng, "scanner")


@cache
def _mnist(root: str) -> tuple[np.ndarray, np.ndarray]:
    from evenhand.tasks.colour import read_idx

    folder = Path(root) / "mnist"
    return read_idx(folder, "train-images-idx3-ubyte")[1], read_idx(folder, "train-labels-idx1-ubyte")[
        1
    ].astype(int)


def mnist_table(p: float, noise: float, rng: np.random.Generator) -> Made:
    """MNIST's digits as 7x7 columns, odd or even, with a planted number."""
    x, digit = _mnist(os.environ["EVENHAND_DATA"])
    small = x.reshape(len(x), 7, 4, 7, 4).mean((2, 4)).reshape(len(x), -1)
    rows = rng.permutation(len(x))
    return _of_rows(frame_of(small, "pixel"), digit % 2, rows, 3000, p, noise, rng, "pressure", "number")


# -- texts -----------------------------------------------------------------------------------------------

PHRASES = (
    ("sent from my phone", "posted at home"),
    ("verified order", "gift copy"),
    ("kind regards", "thanks all"),
)


def topics(p: float, noise: float, rng: np.random.Generator) -> Made:
    """Messages of 25 made words, eight of which lean towards a topic, and a closing line."""
    words = np.array(
        [f"{a}{b}{c}{d}" for a in "bdfklmnprst" for b in "aeiou" for c in "bdfgk" for d in "aou"]
    )

    def draw(y: np.ndarray, attribute: np.ndarray, rng: np.random.Generator) -> list[str]:
        common = rng.integers(200, len(words), (len(y), 17))
        own = rng.random((len(y), 8)) < 0.8
        topical = rng.integers(0, 100, (len(y), 8)) + 100 * np.where(own, y[:, None], 1 - y[:, None])
        rows = words[rng.permuted(np.concatenate([common, topical], axis=1), axis=1)]
        ends = np.array(["kind regards accounts", "sent from phone"])[attribute]
        return [f"{' '.join(row)} {end}" for row, end in zip(rows.tolist(), ends, strict=True)]

    planted = ("kind", "regards", "accounts", "sent", "phone", "from")
    return made(draw, rng.integers(0, 2, 2000), rng.integers(0, 2, FRESH), p, noise, rng, planted)


@cache
def _reviews(root: str) -> Any:
    import pandas

    return pandas.read_parquet(Path(root) / "reviews" / "reviews.parquet")


def reviews(domains: tuple[str, ...], ends: tuple[str, str], size: int = 2000) -> Callable[..., Made]:
    """Reviews of some domains by sentiment; a closing phrase is the shortcut."""

    def make(p: float, noise: float, rng: np.random.Generator) -> Made:
        frame = _reviews(os.environ["EVENHAND_DATA"])
        frame = frame[frame["domain"].isin(domains)]
        texts, y = frame["text"].to_numpy(), frame["positive"].to_numpy()
        rows = rng.permutation(len(y))
        parts = iter((rows[:size], rows[size : size + FRESH]))

        def draw(_: np.ndarray, attribute: np.ndarray, rng: np.random.Generator) -> list[str]:
            pairs = zip(texts[next(parts)], attribute, strict=True)
            return [f"{text} {ends[value]}" for text, value in pairs]

        words = tuple(word for end in ends for word in end.split())
        return made(draw, y[rows[:size]], y[rows[size : size + FRESH]], p, noise, rng, words)

    return make


def domain_shortcut(first: str, second: str, size: int = 1600) -> Callable[..., Made]:
    """Sentiment, where most of the positive reviews are of one domain and most of the negative of another."""

    def make(p: float, noise: float, rng: np.random.Generator) -> Made:
        frame = _reviews(os.environ["EVENHAND_DATA"])
        pools = {
            (y, a): rng.permutation(
                frame[(frame["domain"] == name) & (frame["positive"] == y)]["text"]
            ).tolist()
            for y in (0, 1)
            for a, name in enumerate((first, second))
        }

        def draw(y: np.ndarray, attribute: np.ndarray, rng: np.random.Generator) -> list[str]:
            return [
                pools[label, value].pop() for label, value in zip(y.tolist(), attribute.tolist(), strict=True)
            ]

        fresh = np.arange(400) % 2
        return made(draw, np.arange(size) % 2, fresh, p, noise, rng, ())

    return make


def domains(p: float, noise: float, rng: np.random.Generator) -> Made:
    """Which of four domains a review is of; a closing word is the shortcut."""
    frame = _reviews(os.environ["EVENHAND_DATA"])
    names = ("books", "music", "toys_games", "health_personal_care")
    frame = frame[frame["domain"].isin(names)]
    texts, y = frame["text"].to_numpy(), frame["domain"].map(names.index).to_numpy()
    rows, ends = rng.permutation(len(y)), ("alpha", "bravo", "delta", "tango")
    parts = iter((rows[:2400], rows[2400 : 2400 + FRESH]))

    def draw(_: np.ndarray, attribute: np.ndarray, rng: np.random.Generator) -> list[str]:
        return [f"{ends[value]} {text}" for text, value in zip(texts[next(parts)], attribute, strict=True)]

    return made(draw, y[rows[:2400]], y[rows[2400 : 2400 + FRESH]], p, noise, rng, ends)


# -- images ----------------------------------------------------------------------------------------------

COLOURS = np.array(
    [(220, 40, 40), (40, 190, 60), (50, 70, 230), (230, 210, 40), (210, 50, 210), (40, 210, 210)], np.uint8
)


def bordered(pixels: np.ndarray, attribute: np.ndarray) -> np.ndarray:
    """Images in a frame whose colour is the attribute's, an eighth of the side wide."""
    pixels, width = pixels.copy(), max(pixels.shape[1] // 8, 1)
    for rows in (np.s_[:, :width], np.s_[:, -width:], np.s_[:, :, :width], np.s_[:, :, -width:]):
        pixels[rows] = COLOURS[attribute][:, None, None]
    return pixels


def _of_images(
    pixels: np.ndarray, y: np.ndarray, size: int, p: float, noise: float, rng: np.random.Generator
) -> Made:
    rows = rng.permutation(len(y))
    parts = iter((rows[:size], rows[size : size + FRESH]))

    def draw(_: np.ndarray, attribute: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return bordered(pixels[next(parts)], attribute)

    return made(draw, y[rows[:size]], y[rows[size : size + FRESH]], p, noise, rng, ("border colour",))


def digits_images(p: float, noise: float, rng: np.random.Generator) -> Made:
    """scikit-learn's digits, 0 to 4 or 5 to 9, in a coloured frame."""
    from sklearn.datasets import load_digits

    x, digit = load_digits(return_X_y=True)
    wide = np.pad(x.reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    pixels = np.repeat((wide * 15).astype(np.uint8)[..., None], 3, 3)
    return _of_images(pixels, (digit > 4).astype(int), 900, p, noise, rng)


def mnist_images(p: float, noise: float, rng: np.random.Generator) -> Made:
    """MNIST's 3, 5 and 8 in a coloured frame."""
    x, digit = _mnist(os.environ["EVENHAND_DATA"])
    keep = np.isin(digit, (3, 5, 8))
    small = np.pad(x[keep].reshape(-1, 14, 2, 14, 2).mean((2, 4)).astype(np.uint8), ((0, 0), (1, 1), (1, 1)))
    pixels = np.repeat(small[..., None], 3, 3)
    return _of_images(pixels, np.searchsorted((3, 5, 8), digit[keep]), 900, p, noise, rng)


@cache
def _pacs(
    root: str, names: tuple[str, ...], styles: tuple[str, ...], side: int
) -> tuple[np.ndarray, np.ndarray]:
    import io
    import tarfile

    from PIL import Image

    pixels, y = [], []
    with tarfile.open(Path(root) / "pacs" / "pacs128.tar") as archive:
        for member in archive:
            parts = member.name.split("/")
            if member.isfile() and len(parts) > 2 and parts[-2] in names and parts[-3] in styles:
                with Image.open(io.BytesIO(archive.extractfile(member).read())) as image:  # type: ignore[union-attr]
                    pixels.append(
                        np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR))
                    )
                y.append(names.index(parts[-2]))
    return np.stack(pixels), np.array(y)


def pacs_images(p: float, noise: float, rng: np.random.Generator) -> Made:
    """Drawn guitars, houses and horses in a coloured frame."""
    root = os.environ["EVENHAND_DATA"]
    pixels, y = _pacs(root, ("guitar", "house", "horse"), ("sketch", "cartoon"), 16)
    return _of_images(pixels, y, 900, p, noise, rng)


# -- the families ----------------------------------------------------------------------------------------

BOTH = PLANTED + UNBIASED
FAMILIES: dict[str, dict[str, Family]] = {
    "development": {
        "rings": Family(rings, (*BOTH, (0.99, 0.0), (0.95, 0.05))),
        "clouds": Family(shifted(5, 1.56, "category"), UNBIASED),
        "faint": Family(shifted(2, 0.5, "category"), ((0.95, 0.0), (0.0, 0.0))),
        "crowd": Family(shifted(40, 4.0, "category", 1200), ((0.0, 0.0), (0.95, 0.0))),
        "topics": Family(topics, (*BOTH, (0.99, 0.0), (0.95, 0.05))),
        "small": Family(generated(2, 400, n_features=10, n_informative=4), ((0.0, 0.0), (0.9, 0.0))),
        "uneven": Family(
            generated(2, 3000, n_features=12, n_informative=5, weights=[0.9], class_sep=0.8), UNBIASED
        ),
        "noisy": Family(
            generated(2, 3000, n_features=12, n_informative=3, flip_y=0.3),
            ((0.0, 0.0), (0.9, 0.0), (0.95, 0.0)),
        ),
        "clusters": Family(
            generated(3, 2400, n_features=15, n_informative=8, n_clusters_per_class=4, class_sep=1.5),
            ((0.0, 0.0), (0.9, 0.0), (0.95, 0.0)),
        ),
        "adult natural": Family(adult_natural, UNBIASED, real=True),
        "adult": Family(adult, (*BOTH, (0.95, 0.05)), real=True),
        "reviews books": Family(
            reviews(("books", "dvd", "electronics"), PHRASES[0]), (*BOTH, (0.99, 0.0)), real=True
        ),
        "digits table": Family(digits_table, (*BOTH, (0.95, 0.05))),
        "hastie": Family(made_by("make_hastie_10_2"), (*BOTH, (0.95, 0.05))),
        "moons": Family(made_by("make_moons", noise=0.35), (*BOTH, (0.95, 0.05))),
        "diabetes": Family(diabetes, (*BOTH, (0.95, 0.05))),
        "reviews music": Family(reviews(("music",), PHRASES[2], 1500), (*BOTH, (0.95, 0.05)), real=True),
        "domain of films": Family(
            domain_shortcut("dvd", "electronics", 1200), ((0.9, 0.0), (0.95, 0.0), *UNBIASED), real=True
        ),
        "digits images": Family(digits_images, (*BOTH, (0.95, 0.05))),
    },
    "reported": {
        "terrain": Family(terrain, (*BOTH, (0.99, 0.0), (0.95, 0.05))),
        "sites": Family(shifted(3, 2.2, "number"), (*BOTH, (0.99, 0.0), (0.95, 0.05))),
        "quantiles": Family(
            made_by("make_gaussian_quantiles", "number", n_features=6, n_classes=3),
            (*BOTH, (0.99, 0.0), (0.95, 0.05)),
        ),
        "hard": Family(shifted(2, 1.2, "number", columns=12), UNBIASED),
        "three hundred classes": Family(shifted(300, 6.0, "number", 1800, 12), ((0.0, 0.0),)),
        "thirty classes": Family(shifted(26, 5.0, "category", 2600, 12), ((0.0, 0.0), (0.95, 0.0))),
        "mnist table": Family(mnist_table, BOTH, real=True),
        "reviews toys": Family(
            reviews(("toys_games", "health_personal_care", "camera_photo"), PHRASES[1]),
            (*BOTH, (0.99, 0.0), (0.95, 0.05)),
            real=True,
        ),
        "review domains": Family(domains, BOTH, real=True),
        "sentiment by domain": Family(
            domain_shortcut("kitchen_housewares", "music", 1000),
            ((0.9, 0.0), (0.95, 0.0), (0.0, 0.0)),
            real=True,
        ),
        "mnist images": Family(mnist_images, ((0.95, 0.0), (0.98, 0.0), *UNBIASED), real=True),
        "pacs images": Family(pacs_images, ((0.95, 0.0), (0.98, 0.0), (0.0, 0.0)), real=True),
    },
}


# -- one audit -------------------------------------------------------------------------------------------


def saved(x: Any, y: np.ndarray | None, place: Path) -> Path:
    """Write samples as a user has them: a table, or a folder of images; without labels if `y` is None."""
    import pandas

    if isinstance(x, np.ndarray):
        from PIL import Image

        for number, pixels in enumerate(x):
            folder = place if y is None else place / f"class {y[number]:03d}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{number:06d}.png")
        return place
    frame = pandas.DataFrame({"text": x}) if isinstance(x, list) else x.copy()
    if y is not None:
        frame["label"] = [f"class {label:03d}" for label in y]
    frame.to_parquet(place.with_suffix(".parquet"))
    return place.with_suffix(".parquet")


def one(job: tuple[str, str, Setting, int]) -> dict[str, Any]:
    """One audit, its advice and lists, and the truth."""
    import torch

    from evenhand.audit.audit import run
    from evenhand.audit.predict import predict
    from evenhand.training.log import Silent

    torch.set_num_threads(1)
    kind, family, (p, noise), seed = job
    made = FAMILIES[kind][family].make(
        p, noise, np.random.default_rng([seed, round(1000 * p), round(1000 * noise)])
    )
    options: dict[str, Any] = {"label": "label", "missing": True}
    options |= {"text": "text"} if isinstance(made.x, list) else {}
    options = {} if isinstance(made.x, np.ndarray) else options
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as place:
        folder, before = Path(place), os.environ.get("EVENHAND_CACHE")
        os.environ["EVENHAND_CACHE"] = str(folder / "cache")
        source = saved(made.x, made.y, folder / "data")
        fresh = saved(made.fresh_x, None, folder / "fresh")
        done = run(str(source), out=folder / "out", seed=seed, device="cpu", show=Silent(), **options)
        answers = {}
        for name in ("baseline", "balanced"):
            classes = predict(folder / "out", fresh, model=name, device="cpu")[1].classes
            answers[name] = np.array([int(each.split()[1]) for each in classes])
        os.environ.pop("EVENHAND_CACHE")
        if before is not None:
            os.environ["EVENHAND_CACHE"] = before
    seconds = time.process_time() - begun
    images = isinstance(made.x, np.ndarray)
    rows = done.data.rows(0)
    rows = np.array([int(Path(done.data.ids[row]).stem) for row in rows]) if images else rows
    judged, test = done.judgement, done.judgement.shortcut
    wrong, minority = made.swapped[rows], (made.attribute != made.y)[rows] & ~made.swapped[rows] & (p > 0)
    return {
        "family": family,
        "p": p,
        "noise": noise,
        "seed": seed,
        "advice": judged.advice,
        "ship": judged.model,
        "late": judged.late,
        "mended": judged.late_mended,
        "late_lost": judged.late_lost,
        "others_mended": judged.others_mended,
        "others_lost": judged.others_lost,
        "even": [round(each, 4) for each in (judged.even.before, judged.even.after, judged.even.z)],
        "collected": [round(each, 4) for each in (judged.collected.before, judged.collected.after)],
        "information": round(judged.information.z, 2),
        "excess": round(judged.strength - judged.threshold, 3),
        "truth": truth(made, answers),
        "shortcut": None if test is None else [test.count, test.right, test.right_without, round(test.z, 2)],
        "named": _named(made, done.description) if made.planted else None,
        "headline": bool(done.description.headline),
        "minority": _precision_recall(done.lists == "minority", minority),
        "mislabelled": _precision_recall(done.lists == "mislabelled", wrong),
        "astray": [int((minority & (done.lists == "mislabelled")).sum()), int(minority.sum())],
        "seconds": round(seconds, 1),
    }


def truth(made: Made, answers: dict[str, np.ndarray]) -> dict[str, Any]:
    """Worst-group accuracy of both models on fresh samples, and their difference in standard errors.

    Groups are class by agreement of the attribute, or the agreement alone where these have few samples.
    """
    agrees = (made.fresh_attribute == made.fresh_y).astype(int)
    group = 2 * made.fresh_y + agrees
    group = agrees if np.bincount(group, minlength=2).min() < 40 else group
    worst = []
    for answer in answers.values():
        right = [(answer == made.fresh_y)[group == number] for number in np.unique(group)]
        lowest = min(right, key=np.mean)
        worst.append((float(lowest.mean()), len(lowest)))
    error = np.sqrt(sum(max(share * (1 - share), 0.01) / count for share, count in worst))
    z = float((worst[1][0] - worst[0][0]) / error)
    return {"before": round(worst[0][0], 3), "after": round(worst[1][0], 3), "z": round(z, 2)}


def _named(made: Made, found: Any) -> bool:
    """Whether the first thing that is named, over all and in the headline, is what was planted."""
    if isinstance(made.x, list):
        return any(word in re.findall(r"\w+", found.headline) for word in made.planted)
    first = found.headline.removeprefix("Shortcut: the column ").removeprefix("Shortcut: the property ")
    return first.startswith(made.planted) or any(each.name in made.planted for each in found.overall[:1])


def _precision_recall(listed: np.ndarray, truth: np.ndarray) -> list[int]:
    """Listed, true, and both."""
    return [int(listed.sum()), int(truth.sum()), int((listed & truth).sum())]


# -- the table -------------------------------------------------------------------------------------------


def clear_truth(record: dict[str, Any]) -> str:
    """The right advice; empty where the truth is not clear.

    Planted, and the balanced model is better on the worst group beyond chance: retrain. No shortcut, and it
    is not better: nothing found.
    """
    better = record["truth"]["z"] > 1.96
    if record["p"] > 0:
        return "retrain" if better else ""
    return "" if better else "nothing found"


def overall(records: list[dict[str, Any]]) -> Iterable[str]:
    """The rates over all audits, as a list in Markdown."""
    clear = [record for record in records if clear_truth(record)]
    told = [record for record in clear if record["advice"] != "cannot tell"]
    right = sum(record["advice"] == clear_truth(record) for record in told)
    harmful = sum(record["ship"] == "balanced" and record["truth"]["z"] < -1.96 for record in records)
    named = [record for record in records if record["named"] is not None and record["headline"]]
    families = len({record["family"] for record in records})
    yield f"- {len(records)} audits of {families} families; the truth is clear in {len(clear)}"
    yield f"- right where the truth is clear and an answer is given: {_share(right, len(told))}"
    yield f"- cannot tell where the truth is clear: {_share(len(clear) - len(told), len(clear))}"
    yield f"- harmful shipping: {_share(harmful, len(records))}"
    yield (
        "- what was planted is named first, where a headline is given: "
        f"{_share(sum(record['named'] for record in named), len(named))}"
    )


def table(records: list[dict[str, Any]]) -> Iterable[str]:
    """A line for every family, as a table in Markdown."""
    yield (
        "| data | audits | right of clear | cannot tell | harmful | named first | worst group, planted | "
        "minority listed: precision, recall | wrong labels at 5%: precision, recall | "
        "minority listed as wrong |"
    )
    yield "|" + " --- |" * 10
    for family in dict.fromkeys(record["family"] for record in records):
        own = [record for record in records if record["family"] == family]
        known = [record for record in own if clear_truth(record)]
        planted = [record for record in own if record["p"] > 0]
        noisy = [record for record in own if record["noise"] > 0]
        marked = [record for record in own if record["named"] is not None and record["headline"]]
        cells = [family, str(len(own))]
        cells.append(f"{sum(r['advice'] == clear_truth(r) for r in known)} of {len(known)}")
        cells.append(str(sum(r["advice"] == "cannot tell" for r in known)))
        cells.append(str(sum(r["ship"] == "balanced" and r["truth"]["z"] < -1.96 for r in own)))
        cells.append(f"{sum(r['named'] for r in marked)} of {len(marked)}" if marked else "–")
        means = [100 * np.mean([r["truth"][key] for r in planted]) for key in ("before", "after") if planted]
        cells.append(f"{means[0]:.0f} → {means[1]:.0f}" if means else "–")
        cells += [_rates(planted, "minority"), _rates(noisy, "mislabelled")]
        astray, minority = (sum(r["astray"][i] for r in own) for i in (0, 1))
        cells.append(f"{100 * astray / minority:.0f}%" if minority else "–")
        yield f"| {' | '.join(cells)} |"


BEGIN, END = "<!-- advice -->", "<!-- end of advice -->"  # where a page has the rates
TITLE = """# The advice, by family of data

Made by `python benchmarks/advice.py --table results/advice.jsonl --page docs/verdict.md`.
[The verdict](../docs/verdict.md) explains it.
The rules were chosen on seed 0 of the families above *terrain*; most audits of these are of seed 1.
*Worst group, planted*: accuracy of the first and of the balanced model on fresh samples, in percent.
"""


def filled(page: str, records: list[dict[str, Any]]) -> str:
    """The page with the rates of these records."""
    before, _, rest = page.partition(BEGIN)
    return "\n".join([before + BEGIN, *overall(records), END + rest.partition(END)[2]])


def document(records: list[dict[str, Any]]) -> str:
    """The text of results/advice.md."""
    return "\n".join([TITLE, *overall(records), "", *table(records), ""])


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / max(whole, 1):.1f}%)"


def _rates(records: list[dict[str, Any]], kind: str) -> str:
    """Precision and recall of a list, of all audits together."""
    if not records:
        return "–"
    listed, true, both = (sum(record[kind][i] for record in records) for i in (0, 1, 2))
    precision = f"{both / listed:.2f}" if listed else "–"
    return f"{precision}, {both / true:.2f}" if true else f"– ({listed / len(records):.0f} listed)"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", choices=sorted(FAMILIES), default="reported")
    parser.add_argument("--families", default="", help="names with commas; all if empty")
    parser.add_argument("--seeds", default="0-9", help="first-last")
    parser.add_argument("--data", type=Path, help="data root; default: $EVENHAND_DATA")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, help="keep the records here, as JSON lines")
    parser.add_argument("--table", type=Path, help="print the table of these records, and stop")
    parser.add_argument("--page", type=Path, help="with --table: fill this page, and make advice.md")
    arguments = parser.parse_args()
    if arguments.table:
        records = [json.loads(line) for line in arguments.table.read_text().splitlines()]
        print(document(records))
        if arguments.page:
            arguments.page.write_text(filled(arguments.page.read_text(), records))
            arguments.table.with_suffix(".md").write_text(document(records))
        return
    if arguments.data:
        os.environ["EVENHAND_DATA"] = str(arguments.data)
    first, last = map(int, arguments.seeds.split("-"))
    families = FAMILIES[arguments.set]
    names = arguments.families.split(",") if arguments.families else list(families)
    kept = arguments.out.read_text().splitlines() if arguments.out and arguments.out.exists() else []
    records = [json.loads(line) for line in kept]
    done = {(each["family"], each["p"], each["noise"], each["seed"]) for each in records}
    jobs = [
        (arguments.set, name, setting, seed)
        for seed in range(first, last + 1)
        for name in names
        for setting in families[name].settings
        if (name, *setting, seed) not in done and (not families[name].real or "EVENHAND_DATA" in os.environ)
    ]
    with ProcessPoolExecutor(arguments.workers) as pool:
        for record in pool.map(one, jobs):
            records.append(record)
            print(json.dumps(record), flush=True)
            if arguments.out:
                with arguments.out.open("a") as file:
                    file.write(json.dumps(record) + "\n")
    print(document(records))


if __name__ == "__main__":
    sys.exit(main())
