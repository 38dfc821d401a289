"""XGradCAM (Fu et al., BMVC 2020): which parts of an image speak for the class that a model predicts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenhand.training.data import Batch


def saliency(model: nn.Module, batches: Iterable[Batch], layer: str = "") -> np.ndarray:
    """A map of the predicted class for every image, at the layer's resolution: (samples, height, width).

    Every map is scaled to 0..1 by its own extremes; one that is the same everywhere becomes zero.
    """
    model.eval()
    maps, chosen = [], None
    for batch in batches:
        chosen = chosen or find_layer(model, batch.x, layer)
        raw = xgradcam(model, chosen, batch.x)
        above = raw - raw.amin((1, 2), keepdim=True)
        maps.append((above / above.amax((1, 2), keepdim=True).clamp(min=1e-30)).cpu())
    return torch.cat(maps).numpy()


def xgradcam(model: nn.Module, layer: nn.Module, x: Tensor) -> Tensor:
    """XGradCAM of each image's predicted class, (batch, height, width), not scaled.

    Channel k weighs sum(gradient_k x activation_k) / sum(activation_k); the map is the positive part of the
    weighed sum of the activations. The model must be in evaluation mode, where no image affects another.
    """
    found: dict[str, Tensor] = {}

    def cut(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor | None:
        if not _is_map(output):
            return None
        found["activation"] = output.detach().requires_grad_()  # no gradient is needed below the layer
        return found["activation"].clone()  # what follows may change it in place

    with _hooked([layer], cut), torch.enable_grad():
        outputs = model(x)
        if "activation" not in found:
            raise ValueError("the layer must give (batch, channels, height, width) maps; name another one")
        score = outputs.gather(1, outputs.argmax(1, keepdim=True)).sum()
        (gradient,) = torch.autograd.grad(score, found["activation"])
    activation, gradient = found["activation"].detach().float(), gradient.float()
    weight = (gradient * activation).sum((2, 3)) / (activation.sum((2, 3)) + 1e-7)
    return (weight[:, :, None, None] * activation).sum(1).clamp(min=0)


def find_layer(model: nn.Module, x: Tensor, name: str = "") -> nn.Module:
    """The layer of this name, or the last one whose maps are as large as the last convolution's.

    That is the activation that follows the last convolution, or the residual block that ends with it.
    """
    layers: dict[str, nn.Module] = dict(model.named_modules())
    if name:
        if name not in layers:
            raise ValueError(f"the model has no layer {name!r}; it has {', '.join(filter(None, layers))}")
        return layers[name]
    seen: list[tuple[nn.Module, torch.Size]] = []

    def note(module: nn.Module, _inputs: Any, output: Any) -> None:
        if _is_map(output):
            seen.append((module, output.shape[2:]))

    with _hooked(layers.values(), note), torch.no_grad():
        model(x[:1])
    sizes = [size for module, size in seen if isinstance(module, nn.Conv2d)]
    if not sizes:
        raise ValueError(
            f"saliency maps need a model with convolutions, but {type(model).__name__} has no nn.Conv2d that "
            "gives more than one pixel; name a layer that gives (batch, channels, height, width) maps"
        )
    return [module for module, size in seen if size == sizes[-1]][-1]


def _is_map(output: Any) -> bool:
    return isinstance(output, Tensor) and output.ndim == 4 and output.shape[2:].numel() > 1


@contextlib.contextmanager
def _hooked(layers: Iterable[nn.Module], hook: Callable[..., Any]) -> Iterator[None]:
    """Call a function after each of these layers, inside a `with` block."""
    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(layer.register_forward_hook(hook))
        yield
