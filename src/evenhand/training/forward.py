"""Forward passes: outputs, features and accuracies; compiled or as a CUDA graph; XGradCAM maps."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenhand.core import ranks
from evenhand.training.batches import Batches, batch_sizes
from evenhand.training.data import Batch
from evenhand.training.models import CNN, find_head, head_inputs
from evenhand.training.recipe import Recipe

if TYPE_CHECKING:
    pass


def autocast(recipe: Recipe, device: torch.device, **options: bool) -> torch.autocast:
    """Return a context of bf16 arithmetic, if the recipe asks for it."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=recipe.precision == "bf16", **options)


def eval_batch_size(recipe: Recipe) -> int:
    """Return how many samples are evaluated at a time."""
    return max(recipe.batch_size, 256)


@torch.no_grad()
def logits(model: nn.Module, batches: Batches, recipe: Recipe) -> Tensor:
    """Return the model's outputs for every row, in order and in evaluation mode: (samples, classes) float32.

    Ranks share the batches out among them, and all get all outputs.
    """
    model.eval()
    generator = torch.Generator(batches.source.device)
    num_rows = len(batches.split)
    sizes = batch_sizes(num_rows, batches.batch_size)
    shard, rows = ranks.shard(sizes)
    outputs = []
    for batch in batches(torch.arange(num_rows)[rows], generator, sizes[shard]):
        with autocast(recipe, batches.source.device):
            outputs.append(model(batch.x).float())
    return ranks.all_gather(torch.cat(outputs), rows, num_rows)


@torch.no_grad()
def features(model: nn.Module, batches: Batches, recipe: Recipe) -> Iterator[np.ndarray]:
    """Yield the inputs of the model's head for every row, in order and in evaluation mode.

    (rows, dimensions) float32 each, so that features larger than memory can be written. Ranks share the
    batches out among them, and all get all features.
    """
    model.eval()
    device, head, start = batches.source.device, None, 0
    sizes, block = batch_sizes(len(batches.split), batches.batch_size), max(8, ranks.count())
    for first in range(0, len(sizes), block):
        part = sizes[first : first + block]
        shard, rows = ranks.shard(part)
        order, found = torch.arange(start, start + sum(part))[rows], []
        for batch in batches(order, torch.Generator(device), part[shard]):
            head = head or find_head(model, batch.x)[1]
            with head_inputs(head) as kept, autocast(recipe, device):
                model(batch.x)
            found.append(kept[-1].float())
        yield ranks.all_gather(torch.cat(found), rows, sum(part)).cpu().numpy()
        start += sum(part)


def evaluate(model: nn.Module, batches: Batches, recipe: Recipe) -> tuple[Tensor, Tensor, Tensor]:
    """Return every sample's loss, whether it is correct, and its outputs, which stay on the device."""
    outputs = logits(model, batches, recipe)
    labels = batches.split.y.to(outputs.device)
    losses = F.cross_entropy(outputs, labels, reduction="none")
    return losses.cpu(), (outputs.argmax(1) == labels).cpu(), outputs


def weighted_mean(correct: Tensor, weight: Tensor | None) -> float:
    """Return the accuracy, with each sample weighted by its weight."""
    if weight is None:
        return correct.double().mean().item()
    return ((correct.double() * weight).sum() / weight.double().sum()).item()


def standard_error(correct: Tensor, weight: Tensor | None) -> float:
    """Return the standard error of a weighted accuracy.

    >>> standard_error(torch.tensor([True, True, False, False]), None)
    0.25
    """
    share = torch.ones(len(correct)).double() if weight is None else weight.double()
    # As if there were two more of the heaviest samples, one of them wrong: few that are right prove little.
    more, total = share.max(), share.sum()
    accuracy = ((share * correct).sum() + more) / (total + 2 * more)
    return ((accuracy * (1 - accuracy) * (share * share).sum()).sqrt() / total).item()


# -- the fast forward pass on a GPU: compiled, or a CUDA graph where launching takes longer than computing

Forward = Callable[[Tensor], Tensor]
GRAPH = 200  # steps from which capturing, about a second, pays


def fast_forward(
    model: nn.Module,
    recipe: Recipe,
    device: torch.device,
    *,
    compiled: bool,
    steps: int,
    resident: bool,
    known: bool,
) -> Forward:
    """Return the model's forward pass for batches of one size, each followed by its backward pass.

    `compiled`: as the arithmetic was resolved. `steps`: how many a whole training may take. `resident`: no
    thread fetches data meanwhile, which capturing does not bear. `known`: a network of ours or torchvision's;
    what a user's does in Python, a graph would do once.
    """
    # What torch.compile makes of a network moves less memory, but still launches hundreds of kernels a step.
    forward: Any = torch.compile(model, dynamic=False) if compiled else model
    # The parts of a batch would share the gradients' memory, and ranks talk to each other within a step.
    alone = recipe.slices == 1 and ranks.count() == 1
    pays = recipe.compile == "on" or (recipe.compile == "auto" and steps > GRAPH)
    graph = device.type == "cuda" and alone and known and resident and pays
    return Graphed(forward, recipe) if graph else forward


def allow_kernels(module: object, allowed: bool) -> None:
    """Whether networks in a module may use kernels of our own."""
    for part in module.modules() if isinstance(module, nn.Module) else ():
        if isinstance(part, CNN):
            part.kernels = allowed


class Graphed:
    """A model whose forward and backward pass are one launch each, captured with its first batch.

    The outputs of a call are overwritten by the next. Hooks, and what else Python does in the model's
    forward pass, happen while capturing and never again.
    """

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        self._model, self._recipe = model, recipe
        self._replay: Forward | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if self._replay is None:
            self._replay = self._capture(x)
        return self._replay(x)

    def release(self) -> None:
        """Give the graphs and their memory back.

        They are in a cycle that Python frees at some later time, and if that is in a process forked
        meanwhile, such as a DataLoader's worker, CUDA ends it.
        """
        if self._replay is not None:
            self._replay = None
            gc.collect()

    def _capture(self, x: Tensor) -> Forward:
        # Trying out changes running averages and draws random numbers; the training must not notice.
        buffers = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
        drawn = torch.cuda.get_rng_state(x.device)
        names, parameters = zip(*self._model.named_parameters(), strict=True)

        def whole(x: Tensor, *values: Tensor) -> Tensor:
            outputs: Tensor = torch.func.functional_call(
                self._model, dict(zip(names, values, strict=True)), (x,)
            )
            return outputs

        # Captured with other names for the same memory: the parameters themselves would remember the stream.
        same = [each.detach().requires_grad_(each.requires_grad) for each in parameters]
        with autocast(self._recipe, x.device, cache_enabled=False), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of streams that differ, as those of capturing do
            replay: Any = torch.cuda.make_graphed_callables(whole, (x.detach().clone(), *same))
        for buffer, before in buffers:
            buffer.copy_(before)
        torch.cuda.set_rng_state(drawn, x.device)
        return lambda x: replay(x, *parameters)


# -- XGradCAM (Fu et al., BMVC 2020): which parts of an image speak for the class that a model predicts --


def saliency(model: nn.Module, batches: Iterable[Batch], layer: str = "") -> np.ndarray:
    """Return a map of each image's predicted class at the layer's resolution: (samples, height, width).

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
    """Return XGradCAM of each image's predicted class, (batch, height, width), not scaled.

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
    """Return the layer of this name, or the last one whose maps are as large as the last convolution's.

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
