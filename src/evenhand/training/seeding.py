"""Seeding: what is random in an epoch follows from (seed, stage, epoch)."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch

from evenhand.core import ranks


def seed_epoch(seed: int, stage: str, epoch: int, device: torch.device) -> tuple[int, torch.Generator]:
    """Seed torch's global generator and make one for the device, as a function of (seed, stage, epoch).

    This is the only place that seeds global state. Since nothing random outlives an epoch, a training
    that continues from a checkpoint needs no stored generator states. The number, from which the order of
    the samples follows, is the same for all ranks; the generators, for augmentation and dropout, are not.
    """
    digest = hashlib.sha256(f"{seed}/{stage}/{epoch}".encode()).digest()
    number = int.from_bytes(digest[:7], "little")
    own = number + ranks.number()
    torch.manual_seed(own)
    random.seed(own)  # for datasets that augment with these two
    np.random.seed(own % 2**32)  # noqa: NPY002
    return number, torch.Generator(device).manual_seed(own)
