"""Data with a shortcut planted by a known rule, so that what an audit finds can be held against the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def aligned(num_samples: int, p: float, rng: np.random.Generator) -> np.ndarray:
    """Which samples follow the shortcut: exactly a share p of them, (samples,) bool."""
    follows = np.zeros(num_samples, dtype=bool)
    follows[rng.permutation(num_samples)[: round(p * num_samples)]] = True
    return follows


def _with_noise(y: np.ndarray, noise: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Labels of two classes, a share of them swapped, and which ones were."""
    swapped = aligned(len(y), noise, rng)
    return np.where(swapped, 1 - y, y), swapped


def table(p: float, seed: int = 0, *, num_samples: int = 3000, noise: float = 0.0) -> Any:
    """Parts from a machine: faulty where three measures together are far from their aim, an honest rule that takes many cuts.

    The `line` they come from agrees with the outcome for a share p of them, a rule that takes one cut. A tenth of one measure
    is missing; `shift` says nothing. The columns `aligned` and `swapped` are the truth, not features.
    """
    import pandas as pd

    rng = np.random.default_rng([seed, 1])
    measures = rng.normal(size=(num_samples, 4))
    y = ((measures[:, :3] ** 2).sum(axis=1) > 2.366).astype(
        int
    )  # the median: both classes are equally frequent
    follows = aligned(num_samples, p, rng)
    measures[rng.random(num_samples) < 0.1, 3] = np.nan
    label, swapped = _with_noise(y, noise, rng)
    frame = pd.DataFrame(measures, columns=["length", "width", "height", "weight"])
    frame["line"] = np.where(np.where(follows, y, 1 - y) == 1, "north", "south")
    frame["shift"] = np.array(["early", "late", "night"])[rng.integers(0, 3, num_samples)]
    frame["outcome"] = np.where(label == 1, "faulty", "sound")
    return frame.assign(aligned=np.where(follows, "yes", "no"), swapped=swapped)


def text(p: float, seed: int = 0, *, num_samples: int = 2000, noise: float = 0.0) -> Any:
    """Messages of 25 words, eight of which lean towards a topic of a hundred words, and a closing line.

    The closing line agrees with the topic for a share p of the messages.
    """
    import pandas as pd

    rng = np.random.default_rng([seed, 2])
    y = rng.integers(0, 2, num_samples)
    follows = aligned(num_samples, p, rng)
    vocabulary = np.array([f"{first}{second}" for first in _SYLLABLES for second in _SYLLABLES])
    common = rng.integers(200, 800, (num_samples, 17))
    own = rng.random((num_samples, 8)) < 0.8
    topical = rng.integers(0, 100, (num_samples, 8)) + 100 * np.where(own, y[:, None], 1 - y[:, None])
    words = vocabulary[rng.permuted(np.concatenate([common, topical], axis=1), axis=1)]
    closing = np.where(np.where(follows, y, 1 - y) == 1, "kind regards accounts", "sent from phone")
    label, swapped = _with_noise(y, noise, rng)
    messages = [f"{' '.join(row)} {end}" for row, end in zip(words.tolist(), closing, strict=True)]
    frame = pd.DataFrame({"message": messages, "topic": np.where(label == 1, "billing", "delivery")})
    return frame.assign(aligned=np.where(follows, "yes", "no"), swapped=swapped)


def clouds(p: float, seed: int = 0, *, num_samples: int = 3000, noise: float = 0.0) -> Any:
    """Five classes that overlap, with no shortcut: two in five samples lie nearer to another class's centre."""
    import pandas as pd

    rng = np.random.default_rng([seed, 9])
    y = rng.integers(0, 5, num_samples)
    x = rng.normal(size=(num_samples, 6)) + 1.56 * np.eye(5, 6)[y]
    swapped = aligned(num_samples, noise, rng)
    label = np.where(swapped, y + rng.integers(1, 5, num_samples), y) % 5
    frame = pd.DataFrame(x).add_prefix("measure_").assign(outcome=np.array(list("abcde"))[label])
    return frame.assign(aligned="yes", swapped=swapped)


def faint(p: float, seed: int = 0, *, num_samples: int = 3000, noise: float = 0.0) -> Any:
    """A shortcut, and an honest rule so faint that the minority cannot be learned: it allows about 70%."""
    import pandas as pd

    rng = np.random.default_rng([seed, 10])
    y = rng.integers(0, 2, num_samples)
    follows = aligned(num_samples, p, rng)
    x = rng.normal(size=(num_samples, 6))
    x[:, :4] += 0.25 * (2 * y - 1)[:, None]
    label, swapped = _with_noise(y, noise, rng)
    frame = pd.DataFrame(x).add_prefix("measure_")
    frame["line"] = np.where(np.where(follows, y, 1 - y) == 1, "north", "south")
    frame["outcome"] = np.where(label == 1, "faulty", "sound")
    return frame.assign(aligned=np.where(follows, "yes", "no"), swapped=swapped)


_SYLLABLES = [f"{a}{b}" for a in "bdfklmnprst" for b in "aeiou"]


COLOURS = ((230, 30, 30), (30, 200, 30), (40, 60, 230), (230, 220, 30), (220, 40, 220), (30, 220, 220))


def bordered(files: list[Path], labels: list[str], p: float, target: Path, seed: int = 0) -> np.ndarray:
    """Copy photos into class folders with a border whose colour agrees with the class for a share p of each.

    Gives which photos follow the shortcut, in the order of `files`.
    """
    names = sorted(set(labels))
    rng = np.random.default_rng([seed, 3])
    follows = np.zeros(len(files), dtype=bool)
    for number, name in enumerate(names):
        members = np.flatnonzero(np.array(labels) == name)
        follows[members] = aligned(len(members), p, rng)
        for row in members:
            other = (number + 1 + rng.integers(len(names) - 1)) % len(names)
            with_border(
                files[row], number if follows[row] else other, target / name / f"{files[row].stem}.png"
            )
    return follows


def with_border(photo: Path, colour: int, target: Path) -> None:
    """A copy of a photo in a frame of this colour, a tenth of its side wide."""
    from PIL import Image, ImageDraw

    with Image.open(photo) as image:
        copy = image.convert("RGB")
    box, width = (0, 0, copy.size[0] - 1, copy.size[1] - 1), max(min(copy.size) // 10, 2)
    ImageDraw.Draw(copy).rectangle(box, outline=COLOURS[colour], width=width)
    target.parent.mkdir(parents=True, exist_ok=True)
    copy.save(target)


def photos(folder: Path, names: tuple[str, ...] = ("dark", "light"), count: int = 20) -> Path:
    """Folders of small pictures, each lighter than the one before."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for label, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 100, (8, 8, 3)) + 120 * (label % 2)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


def saved(frame: Any, file: Path) -> Path:
    """The file of a table."""
    frame.to_csv(file, index=False)
    return file
