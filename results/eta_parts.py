"""Why transformed copies cost worst-group accuracy: eta-TAB with parts of the transformation, as a method.

    PYTHONPATH=. evenhand bench even_odd --no-search --data ROOT --methods \
        tab,eta_tab,results.eta_parts:blur=false,results.eta_parts:turn=false,results.eta_parts:whole=true

studies/even_odd_eta.zip is of this; studies/digits_eta.zip of digits_even_odd:p=0.98, --seeds 0,1,2,3,4,
with results.eta_parts as well.
With `whole`, the samples themselves are transformed too, so that no mark tells copies from them.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from evenhand.core.partition import partition
from evenhand.core.rebalance import rebalance
from evenhand.training.augment import ETA
from evenhand.training.data import Batch
from evenhand.training.run import Run


def train(run: Run, *, turn: bool = True, blur: bool = True, whole: bool = False) -> nn.Module:
    """TAB whose copies, or all rows, are turned and shifted, blurred, or both, once."""
    identifier = run.fit("erm", stop="train")
    parts = partition(identifier.losses, run.train.y)
    balanced = rebalance(parts, seed=run.seed)
    run.found(parts, balanced)
    rows = run.train.take(balanced)
    warp = ETA if turn else dataclasses.replace(ETA, rotate=0.0, translate=(0.0, 0.0))
    warp = warp if blur else dataclasses.replace(warp, blur=None)
    chosen = torch.ones(len(rows), dtype=torch.bool) if whole else rows.copies
    chosen = chosen.to(run.device)
    drawn = warp.sample(len(rows), torch.Generator().manual_seed(run.seed), run.device)

    def transform(x: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
        return torch.where(chosen[batch.row].view(-1, 1, 1, 1), warp.apply(x, drawn[batch.row]), x)

    return run.fit("model", rows, transform=transform).model
