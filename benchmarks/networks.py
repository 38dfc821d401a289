"""A training step of a torchvision network: eager, as CUDA graphs, compiled, and graphs of what was compiled.

    python benchmarks/networks.py                 MobileNetV2, batches of 436 of 96 and of 194 of 224 pixels
    python benchmarks/networks.py --model NAME    another network
    python benchmarks/networks.py --smoke         a CPU, tiny batches, no graphs; shows that it runs

Forward and backward pass in bf16, channels last, and a step of SGD, on one batch that lies ready. `kernels`
is the time of the GPU's kernels alone: what lies between it and `ms` is launching.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import common
import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from evenhand.training.forward import Graphed, autocast
from evenhand.training.loop import make_optimizer
from evenhand.training.models import make_model
from evenhand.training.recipe import Recipe

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def stepper(name: str, way: str, batch: int, size: int, num: int) -> tuple[Callable[[], None], Any]:
    """`num` training steps of a fresh network, taken the given way, and what its forward pass is."""
    recipe = Recipe(model=name, precision="bf16")
    model = make_model(name, shape=(3, size, size), num_classes=2).to(DEVICE)
    model.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(batch, 3, size, size, device=DEVICE).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 2, (batch,), device=DEVICE)
    optimizer = make_optimizer(list(model.parameters()), recipe.replace(optimizer="sgd"), DEVICE)
    forward = torch.compile(model, dynamic=False) if "compiled" in way else model
    fast = Graphed(forward, recipe) if "graphs" in way else forward

    def steps() -> None:
        for _ in range(num):
            with autocast(recipe, DEVICE):
                loss = F.cross_entropy(fast(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return steps, fast


def kernels(work: Callable[[], None]) -> float:
    """Seconds that the GPU's kernels take in some steps."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        common.finish()
    return sum(event.self_device_time_total for event in seen.key_averages()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="mobilenet_v2")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    print(common.machine())
    on_gpu = DEVICE.type == "cuda"
    ways = ["eager", "graphs", "compiled", "graphs, compiled"] if on_gpu else ["eager", "compiled"]
    num = 2 if options.smoke else 15
    for batch, size in [(4, 32)] if options.smoke else [(436, 96), (194, 224)]:
        print(f"\n{options.model}, {batch} images of {size} pixels\n")
        rows, plain = [], 0.0
        for way in ways:
            steps, fast = stepper(options.model, way, batch, size, num)
            took = common.seconds(steps, warm=2) / num
            plain = plain or took
            alone = f"{kernels(steps) / num * 1e3:.1f}" if on_gpu else ""
            if isinstance(fast, Graphed):
                fast.release()
            rows.append((way, f"{took * 1e3:.1f}", alone, f"{batch / took:,.0f}", f"{plain / took:.2f}"))
        common.table(("way", "ms a step", "kernels, ms", "images/s", "times eager"), rows)


if __name__ == "__main__":
    main()
