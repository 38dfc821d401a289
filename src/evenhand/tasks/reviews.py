"""Reviews: is a product review positive? The product's domain is the shortcut, made by subsampling."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch

from evenhand.tasks import data_root, datasets, table
from evenhand.tasks.samples import TEST, TRAIN, VAL, Samples, data_rng
from evenhand.training.data import Task, reweighted
from evenhand.training.recipe import Recipe

RECIPE = Recipe(model="linear", epochs=60, batch_size=128, lr=1e-2, check_every=1, keep="best")

SOURCE = datasets.Source(
    folder="reviews",
    needs=("reviews.parquet",),
    size="10 MB",
    licence="none stated; distributed with MIT-licensed code for multi-domain sentiment",
    url="any product reviews of several domains, as one Parquet file",
    layout="reviews/\n  reviews.parquet (columns text, positive (0 or 1), domain, split (train or test))",
)

COLUMNS = ("text", "positive", "domain", "split")
DOMAINS = "books+dvd+electronics+kitchen_housewares"


def load(root: Path | None = None, *, p: float = 0.95, domains: str = DOMAINS, embeddings: str = "") -> Task:
    """Load reviews as TF-IDF weights of the 2,000 most frequent words, or as given embeddings.

    p: The share of each class that comes from the domains that go with it, in training and validation.
    domains: An even number of domains, with + between them. The first half goes with positive reviews.
    embeddings: A .npy file in the data folder's `reviews`, one row for each row of reviews.parquet.
    """
    data = listing(root, p=p, domains=domains)
    if embeddings:
        rows = np.array(data.ids, dtype=np.int64)
        vectors = np.load(data_root(root) / SOURCE.folder / embeddings, mmap_mode="r", allow_pickle=False)
        x = torch.from_numpy(np.ascontiguousarray(vectors[rows], dtype=np.float32))
    else:
        x = table.inputs(data)
    task = data.task("reviews", x, x, recipe=RECIPE)
    return dataclasses.replace(task, test=reweighted(task.test, task.train))


def listing(root: Path | None = None, *, p: float = 0.95, domains: str = DOMAINS) -> Samples:
    """List the reviews of each split. A larger p leaves out reviews of a smaller one and adds none."""
    if not 0.5 <= p < 1:
        raise ValueError(f"p must be at least 0.5 and below 1, got {p}")
    file = data_root(root) / SOURCE.folder / "reviews.parquet"
    if not file.is_file():
        raise datasets.missing("reviews", file)
    frame = table.read(file)
    if lacking := [name for name in COLUMNS if name not in frame.columns]:
        raise ValueError(
            f"{file} must have the columns {', '.join(COLUMNS)}, but has no {', '.join(lacking)}"
        )
    chosen, known = domains.split("+"), sorted(set(frame["domain"]))
    if len(chosen) % 2 or len(set(chosen)) < len(chosen) or not set(chosen) <= set(known):
        raise ValueError(
            f"domains must be an even number of different domains with + between them, got {domains!r}; "
            f"known domains are {', '.join(known)}"
        )
    positive, tested = frame["positive"].to_numpy(), frame["split"].to_numpy() == "test"
    domain = np.array([chosen.index(each) if each in chosen else -1 for each in frame["domain"]])
    # Class 0 is negative; the second half of the domains goes with it.
    aligned = {
        (label, d): (d < len(chosen) // 2) == bool(label) for d in range(len(chosen)) for label in (0, 1)
    }
    cells = {
        cell: data_rng(60 + number).permutation(
            np.flatnonzero((positive == cell[0]) & (domain == cell[1]) & ~tested)
        )
        for number, cell in enumerate(aligned)
    }
    val = min(map(len, cells.values())) // 5
    sizes = np.array([min(map(len, cells.values())) - val, val])  # of an aligned cell: training, validation
    split = np.where(tested & (domain >= 0), TEST, -1)
    for cell, members in cells.items():
        train, val = sizes if aligned[cell] else np.round(sizes * (1 - p) / p).astype(np.int64)
        split[members[:train]] = TRAIN
        split[members[len(members) - val :]] = VAL
    rows = np.flatnonzero(split >= 0)
    return Samples(
        kind="text",
        texts=table.as_text(frame["text"].iloc[rows]),
        ids=[str(row) for row in rows],
        y=positive[rows].astype(np.int64),
        class_names=("negative", "positive"),
        split=split[rows],
        attribute=domain[rows],
        attribute_names=tuple(chosen),
        conflicting=frozenset(label * len(chosen) + d for (label, d), fits in aligned.items() if not fits),
    )
