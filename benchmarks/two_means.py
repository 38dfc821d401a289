"""two_means against scikit-learn's k-means: seconds and inertia, as ratios from one run.

    python benchmarks/two_means.py             48,000 and 1,000,000 samples x 50 epochs in ten classes, CPU
    python benchmarks/two_means.py --smoke     a small size, seconds
    python benchmarks/two_means.py --gpu       100,000,000 x 100 in float16 on a GPU (two_means_gpu.py)

The histories are made: losses that fall at a speed of each sample's own, 5% of them much later, with noise.
faiss is compared where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable

import common
import numpy as np
import two_means_gpu

from evenhand.core.twomeans import two_means


def made(samples: int, epochs: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Loss histories (samples, epochs) float32 and labels."""
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=samples)
    speed = random.gamma(2.0, 0.3, size=samples) * np.where(random.random(samples) < 0.05, 0.2, 1.0)
    histories = np.empty((samples, epochs), np.float32)
    for epoch in range(epochs):
        histories[:, epoch] = 2.3 * np.exp(-speed * epoch) + 0.05 * np.abs(random.standard_normal(samples))
    return histories, labels


def by_class(fit: Callable[[np.ndarray], float], x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Seconds and inertia of a clustering of every class."""
    begun, inertia = time.perf_counter(), 0.0
    for label in np.unique(y):
        inertia += fit(x[y == label])
    return time.perf_counter() - begun, inertia


def rivals() -> dict[str, Callable[[np.ndarray], float]]:
    """What others use, each giving the inertia that it reaches."""
    from sklearn.cluster import KMeans, MiniBatchKMeans  # not needed for --gpu

    found: dict[str, Callable[[np.ndarray], float]] = {
        "scikit-learn KMeans(n_init=10)": lambda x: KMeans(2, n_init=10, random_state=0).fit(x).inertia_,
        "scikit-learn KMeans(n_init=1)": lambda x: KMeans(2, n_init=1, random_state=0).fit(x).inertia_,
        "scikit-learn MiniBatchKMeans": lambda x: (
            MiniBatchKMeans(2, random_state=0, n_init=3).fit(x).inertia_
        ),
    }
    if importlib.util.find_spec("faiss"):
        found["faiss Kmeans(nredo=10)"] = _faiss
    return found


def _faiss(x: np.ndarray) -> float:
    import faiss

    kmeans = faiss.Kmeans(x.shape[1], 2, nredo=10, niter=100, max_points_per_centroid=len(x))
    kmeans.train(np.ascontiguousarray(x))
    return float(kmeans.index.search(np.ascontiguousarray(x), 1)[0].sum())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--rows", type=int, default=100_000_000, help="samples on the GPU")
    parser.add_argument("--sweep", action="store_true", help="all ways to launch the GPU's kernel")
    given = parser.parse_args()
    smoke = given.smoke
    warnings.filterwarnings("ignore", module="sklearn")
    print(common.machine())
    if given.gpu:
        two_means_gpu.main(100_000 if smoke else given.rows, given.sweep)
        return
    for samples in (5_000,) if smoke else (48_000, 1_000_000):
        x, y = made(samples, 50, 10)
        ours = common.seconds(lambda x=x, y=y: two_means(x, y), repeats=3)
        inertia = float(two_means(x, y).inertia.sum())
        rows = [("two_means", f"{ours:.3f}", "1.0", f"{inertia:.6g}", "")]
        for name, fit in rivals().items():
            took, reached = by_class(fit, x, y)
            excess = f"{100 * (inertia / reached - 1):+.3f}%"
            rows.append((name, f"{took:.3f}", f"{took / ours:.1f}", f"{reached:.6g}", excess))
        print(f"\n{samples:,} x 50 in ten classes")
        common.table(["", "seconds", "times ours", "inertia", "ours against it"], rows)


if __name__ == "__main__":
    main()
