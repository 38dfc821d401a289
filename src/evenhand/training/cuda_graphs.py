"""The fast forward pass on a GPU: compiled, or a CUDA graph where launching takes longer than computing."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from evenhand.core import ranks
from evenhand.training.evaluation import autocast
from evenhand.training.models import CNN
from evenhand.training.recipe import Recipe

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
    """The model's forward pass for batches of one size, each followed by its backward pass.

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
