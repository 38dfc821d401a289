"""Arithmetic: how a training is computed, resolved before it is hashed into a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from evenhand.core.kernels import has_triton
from evenhand.training.data import Task
from evenhand.training.recipe import Recipe

NUMERICS = 1  # part of every key; raise it when the engine computes other numbers from the same settings
COMPILE = 3000  # steps from which compiling, half a minute once a process, pays over several trainings


@dataclass(frozen=True)
class Arithmetic:
    """What changes the last bits of a training, and with them its later course.

    Neither the number of ranks, which come to the same up to rounding, nor CUDA graphs, which replay the same
    kernels, are part of it.
    """

    device: str  # "cpu" or "cuda"
    precision: Literal["fp32", "bf16"]
    compute: Literal["eager", "compiled", "kernels"]  # kernels: our own, where they suit the inputs
    slices: int  # a step's gradient is the sum over so many parts of its batch


def resolve(
    task: Task, recipe: Recipe, device: torch.device, steps: int | None = None, *, own_model: bool = False
) -> Arithmetic:
    """The arithmetic of a training, with all that was left to choose chosen.

    `steps`: of the whole run, if this is one of its stages. By default those of a training on the task's own
    training set, so that all methods and stages of a comparison are computed alike. `own_model`: the network
    is the method's, which is compiled only if the recipe says so.
    """
    gpu = device.type == "cuda"
    cnn = recipe.model == "cnn" and task.make_model is None and not own_model
    precision: Literal["fp32", "bf16"] = "fp32"
    if recipe.precision != "auto":
        precision = recipe.precision
    elif gpu and torch.cuda.is_bf16_supported():
        precision = "bf16"
    compute: Literal["eager", "compiled", "kernels"] = "eager"
    if gpu and cnn:
        if recipe.compile != "off" and precision == "bf16" and has_triton():
            compute = "kernels"
    elif recipe.compile == "on" or (
        gpu
        and not own_model
        and recipe.compile == "auto"
        and (num_steps(task, recipe) if steps is None else steps) > COMPILE
    ):
        compute = "compiled"
    # On a CPU the paper's CNN has two slices, so that two ranks leave the bits of one process.
    halved = cnn and not gpu and recipe.compile != "on"
    slices = 2 if halved and recipe.slices == 1 else recipe.slices
    return Arithmetic(device.type, precision, compute, slices)


def num_steps(task: Task, recipe: Recipe) -> int:
    """How many steps a training on the task's own training set may take."""
    return recipe.epochs * (len(task.train) // recipe.batch_size)
