"""evenhand trains classifiers that stay accurate on the groups a dataset under-represents."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_EXPORTS = {
    "LossHistory": "evenhand.core.history",
    "LossSummary": "evenhand.core.history",
    "partition": "evenhand.core.partition",
    "Partition": "evenhand.core.partition",
    "rebalance": "evenhand.core.partition",
    "sample_weights": "evenhand.core.partition",
    "BalancedSampler": "evenhand.core.partition",
    "indexed": "evenhand.integrations.torch",
    "worst_group_accuracy": "evenhand.core.metrics",
    "price_of_unawareness": "evenhand.core.metrics",
    "mean_model_selection": "evenhand.core.metrics",
    "Recipe": "evenhand.training.recipe",
    "Split": "evenhand.training.data",
    "Task": "evenhand.training.data",
    "execute": "evenhand.training.execute",
    "separable": "evenhand.training.objective",
    "fit": "evenhand.api",
    "evaluate": "evenhand.by_group",
    "Result": "evenhand.api",
    "Audit": "evenhand.audit.result",
}

__all__ = [*_EXPORTS, "audit", "__version__"]

if TYPE_CHECKING:
    from evenhand.api import Result as Result
    from evenhand.api import fit as fit
    from evenhand.audit.result import Audit as Audit
    from evenhand.audit.result import audit as audit
    from evenhand.by_group import evaluate as evaluate
    from evenhand.core.history import LossHistory as LossHistory
    from evenhand.core.history import LossSummary as LossSummary
    from evenhand.core.metrics import mean_model_selection as mean_model_selection
    from evenhand.core.metrics import price_of_unawareness as price_of_unawareness
    from evenhand.core.metrics import worst_group_accuracy as worst_group_accuracy
    from evenhand.core.partition import BalancedSampler as BalancedSampler
    from evenhand.core.partition import Partition as Partition
    from evenhand.core.partition import partition as partition
    from evenhand.core.partition import rebalance as rebalance
    from evenhand.core.partition import sample_weights as sample_weights
    from evenhand.integrations.torch import indexed as indexed
    from evenhand.training.data import Split as Split
    from evenhand.training.data import Task as Task
    from evenhand.training.execute import execute as execute
    from evenhand.training.objective import separable as separable
    from evenhand.training.recipe import Recipe as Recipe


def __getattr__(name: str) -> Any:
    """Load torch and the rest only when something is used."""
    if name == "audit":  # the package, which can be called
        return importlib.import_module("evenhand.audit")
    if name not in _EXPORTS:
        raise AttributeError(f"module 'evenhand' has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
