"""two_means on a GPU: what a pass costs against a copy of the same bytes, and the whole to convergence.

    python benchmarks/two_means.py --gpu                    100,000,000 samples x 100 epochs in float16
    python benchmarks/two_means.py --gpu --rows 10000000    fewer samples
    python benchmarks/two_means.py --gpu --sweep            also the ways to launch the kernel

Every section stands alone: one that fails is reported and the others go on.
"""

from __future__ import annotations

import statistics
import time
import traceback
from collections.abc import Callable

import common
import torch
from torch import Tensor

from evenhand.core import passes as core_passes
from evenhand.core import twomeans
from evenhand.core.kernels import LAUNCH, Launch, TritonPasses
from evenhand.core.passes import Passes
from evenhand.core.twomeans import two_means

EPOCHS = 100
CLASSES = (1, 10)


def made(samples: int, dtype: torch.dtype, device: str, seed: int = 0) -> Tensor:
    """Losses (samples, epochs), column after column; 2% fall much later than the others."""
    random = torch.Generator(device).manual_seed(seed)
    uniform = torch.rand(2, samples, device=device, generator=random).clamp_(min=1e-6)
    speed = uniform.log().sum(0).mul_(-0.3)  # the gamma distribution of shape 2
    speed *= torch.where(torch.rand(samples, device=device, generator=random) < 0.02, 0.1, 1.0)
    columns = torch.empty(EPOCHS, samples, dtype=dtype, device=device)
    for epoch in range(EPOCHS):
        noise = torch.randn(samples, device=device, generator=random).abs_().mul_(0.05)
        columns[epoch] = torch.exp(-speed * epoch).mul_(2.3).add_(noise)
    return columns.t()


def labels_of(samples: int, classes: int, device: str) -> Tensor | None:
    if classes == 1:
        return None
    random = torch.Generator(device).manual_seed(1)
    return torch.randint(classes, (samples,), device=device, generator=random)


def clock(work: Callable[[], object], repeats: int = 5, warm: int = 2) -> float:
    """The median of some calls in seconds, on a device that is idle before and after."""
    return common.seconds(work, repeats=repeats, warm=warm)


def section(title: str, work: Callable[[], None]) -> None:
    print(f"\n### {title}", flush=True)
    begun = time.perf_counter()
    try:
        work()
        common.finish()
    except Exception:
        print(f"FAILED: {title}\n{traceback.format_exc()}", flush=True)
    print(f"({time.perf_counter() - begun:.1f} s)", flush=True)


def boundary(counts: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A boundary per class such as Lloyd's steps have: from the mean towards higher losses."""
    mean = sums / counts[:, None]
    return core_passes.boundary(torch.stack([mean - 0.1, mean + 0.3], 1))


def exact_moments(x: Tensor, position: Tensor | None, data: Passes) -> tuple[Tensor, ...]:
    """What the pass for the moments should give, in float64."""
    own = torch.zeros(len(x), dtype=torch.long, device=x.device) if position is None else position.long()
    member = torch.nn.functional.one_hot(own, data.num_classes).double()
    shift, origin = data.shift.to(x.device), data.origin.to(x.device)
    distances = (x.double() - origin).square().sum(1)
    sums = (member.sum(0), member.T @ (x.double() - shift), member.T @ distances)
    return *(part.cpu() for part in sums), distances


def copy_speed(device: str, gigabytes: float) -> float:
    """Bytes read and written in a second by a plain copy."""
    source = torch.ones(int(gigabytes * 1e9) // 2, dtype=torch.float16, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / clock(lambda: target.copy_(source), repeats=9)


CASES = [  # those of the large runs, so that their kernels are compiled once; and rows that nothing divides
    (torch.float16, 1, "column", 100_000),
    (torch.float16, 10, "column", 100_000),
    (torch.float16, 10, "column", 100_003),
    (torch.float16, 10, "row", 100_000),
    (torch.float32, 10, "column", 100_000),
]


def correctness(device: str) -> None:
    """Passes against float64, and the whole against the search on the CPU."""
    rows = []
    for dtype, classes, major, samples in CASES:
        x = made(samples, dtype, device)
        x = x.contiguous() if major == "row" else x
        labels = labels_of(len(x), classes, device)
        position = None if labels is None else labels.to(torch.uint8)
        ours = TritonPasses(x, position, classes)
        exact = Passes(x.double(), position, classes)
        exact.dtype, exact.shift = torch.float64, ours.shift
        moments = exact_moments(x, position, ours)
        d, t, scale = boundary(*moments[:2])
        pairs = [*zip(ours.moments(), moments, strict=True)][1:]
        pairs += [*zip(ours.mark(d, t, scale), exact.mark(d, t, scale), strict=True)]
        pairs += [*zip(ours.split(d[None], t[None]), exact.split(d[None], t[None]), strict=True)]
        errors = [float((a.double() - b.double()).abs().max() / b.double().abs().max()) for a, b in pairs]
        moved = int((pairs[6][0] != pairs[6][1]).sum())
        found = twomeans.two_means_on_device(x, labels)
        wanted = two_means(x.cpu(), None if labels is None else labels.cpu())
        ratio = float(found.inertia.sum() / wanted.inertia.sum())
        shown = [f"{errors[i]:.0e}" for i in (0, 1, 2, 5, 3, 7, 4, 8)]
        case = f"{dtype} {samples:,} by {major}"
        rows.append((case, classes, *shown, moved, f"{100 * (ratio - 1):+.4f}%"))
        print(rows[-1], flush=True)
    head = [
        "",
        "classes",
        "total sums",
        "squares",
        "distances",
        "margin",
        "sizes, marked",
        "sizes",
        "sums, marked",
    ]
    common.table([*head, "sums", "rows moved", "inertia over the search's"], rows)


class Clocked(TritonPasses):
    """Passes that say how long they took; every one ends with a copy to the CPU, so the clock is right."""

    took: dict[str, list[float]] = {}  # noqa: RUF012 one benchmark, one process

    def _launch(self, mode: int, *rest: Tensor, **named: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        begun = time.perf_counter()
        answer = super()._launch(mode, *rest, **named)
        self.took.setdefault(("split", "moments", "mark")[mode], []).append(time.perf_counter() - begun)
        return answer


def converge(x: Tensor, classes: int, copied: float) -> None:
    """The whole call, what it consists of, and whether a second one gives the same bits."""
    labels = labels_of(len(x), classes, str(x.device))
    twomeans.TritonPasses, before = Clocked, twomeans.TritonPasses  # type: ignore[misc]
    if x.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    try:
        runs, whole = [], []
        for _ in range(3):
            Clocked.took = {}
            common.finish()
            begun = time.perf_counter()
            runs.append(two_means(x, labels))
            common.finish()
            whole.append(time.perf_counter() - begun)
            if len(runs) > 2:
                runs.pop(1)
    finally:
        twomeans.TritonPasses = before  # type: ignore[misc]
    tries, marks = Clocked.took.get("split", []), Clocked.took["mark"]
    each = statistics.median(marks)
    speed = x.numel() * x.element_size() / each
    moments = 1000 * sum(Clocked.took["moments"])
    print(f"whole call: first {whole[0]:.3f} s (compiles), then {whole[1]:.3f} s and {whole[2]:.3f} s")
    print(f"of the last: {len(marks)} passes of {1000 * each:.2f} ms, all marking; moments {moments:.1f} ms")
    rest = whole[-1] - sum(map(sum, Clocked.took.values()))
    print(f"{len(tries)} starts tried in {1000 * sum(tries):.1f} ms; the sample and all else {rest:.3f} s")
    print(f"a pass reads {speed / 1e12:.2f} TB/s = {100 * speed / copied:.0f}% of the copy's")
    first, last = runs[0], runs[-1]
    fields = ("assignment", "margin", "sizes", "centroids", "inertia", "total")
    same = all(torch.equal(getattr(first, name), getattr(last, name)) for name in fields)
    print(f"two runs equal in every bit: {same}")
    print(
        f"cluster 1: {[round(float(part), 4) for part in (last.sizes[:, 1] / last.sizes.sum(1))]} of a class"
    )
    print(f"separation: {[round(float(part), 4) for part in 1 - last.inertia / last.total]}")
    peak = torch.cuda.max_memory_allocated() / 1e9
    print(f"peak memory: {peak:.1f} GB, of which histories {x.nbytes / 1e9:.1f} GB")


def passes(x: Tensor, classes: int, launches: list[Launch], copied: float, plain: bool = False) -> None:
    """An iteration by each way to launch the kernel."""
    labels = labels_of(len(x), classes, str(x.device))
    position = None if labels is None else labels.to(torch.uint8)
    d, t, scale = boundary(*TritonPasses(x, position, classes).moments()[:2])
    d, t = d[None], t[None]
    rows = []
    for launch in launches:
        begun = time.perf_counter()
        try:
            data = TritonPasses(x, position, classes, launch)
            took = clock(lambda data=data: data.split(d, t))
            marked = clock(lambda data=data: data.mark(d[0], t[0], scale))
        except Exception as error:
            rows.append((*launch, type(error).__name__, str(error)[:60], "", "", ""))
            continue
        speed = x.numel() * x.element_size() / took
        rest = (f"{100 * speed / copied:.0f}%", f"{time.perf_counter() - begun:.1f}")
        shown = (f"{1000 * took:.2f}", f"{1000 * marked:.2f}", f"{speed / 1e12:.2f}")
        rows.append((*launch, *shown, *rest))
    if plain:
        data = Passes(x, position, classes)
        took = clock(lambda: data.split(d, t), repeats=1, warm=1)
        speed = x.numel() * x.element_size() / took
        share = f"{100 * speed / copied:.0f}%"
        rows.append(("plain torch", "", "", "", f"{1000 * took:.2f}", "", f"{speed / 1e12:.2f}", share, ""))
    head = [
        "rows",
        "warps",
        "stages",
        "programs",
        "ms",
        "ms, marking",
        "TB/s read",
        "of the copy's",
        "s in all",
    ]
    common.table(head, rows)


SWEEP = [
    Launch(rows, warps, stages, 1056)
    for rows, warps, stages in (
        (64, 4, 2),
        (64, 4, 3),
        (64, 4, 4),
        (128, 4, 2),
        (128, 4, 3),
        (128, 8, 2),
        (128, 8, 3),
        (256, 8, 2),
    )
]
SWEEP += [Launch(128, 4, 3, programs) for programs in (264, 528, 2112, 4224)]
SWEEP += [Launch(64, 4, 3, programs) for programs in (396, 792, 4224)]
SWEEP_FLOAT = [Launch(32, 8, 3, 1056), Launch(32, 4, 3, 1056), Launch(64, 8, 2, 1056), Launch(16, 4, 3, 2112)]


def main(samples: int, sweep: bool) -> None:
    if not torch.cuda.is_available():
        print("no GPU here")
        return
    copied = float("nan")

    def measure() -> None:
        nonlocal copied
        copied = copy_speed("cuda", min(8.0, samples * EPOCHS * 2 / 1e9))
        print(f"copy: {copied / 1e12:.2f} TB/s read and written")

    section("The card", measure)
    section("Correctness", lambda: correctness("cuda"))
    x = made(samples, torch.float16, "cuda")
    print(f"\n{samples:,} x {EPOCHS} float16, {x.nbytes / 1e9:.1f} GB")
    for classes in CLASSES:
        section(f"To convergence, {classes} classes", lambda c=classes: converge(x, c, copied))
    ways = SWEEP if sweep else [LAUNCH[torch.float16]]
    for classes in CLASSES:
        section(f"A pass, {classes} classes", lambda c=classes: passes(x, c, ways, copied, not sweep))
    quarter = x[: samples // 4]
    wide_ways = SWEEP_FLOAT if sweep else [LAUNCH[torch.float32]]
    section(
        "A pass, a quarter of the rows in float32, 10 classes",
        lambda: passes(quarter.t().float().contiguous().t(), 10, wide_ways, copied),
    )
    section(
        "A pass, a quarter of the rows, row after row, 10 classes",
        lambda: passes(quarter.contiguous(), 10, [LAUNCH[torch.float16], Launch(64, 4, 3, 1056)], copied),
    )
