"""The core: arrays in, arrays out, for any model and any training loop."""

from evenhand.core.history import LossHistory
from evenhand.core.kmeans import TwoMeans, two_means
from evenhand.core.metrics import (
    balanced_accuracy,
    group_accuracies,
    identification,
    mean_accuracy,
    mean_model_selection,
    price_of_unawareness,
    wilson_interval,
    worst_class_accuracy,
    worst_group_accuracy,
)
from evenhand.core.partition import Partition, partition
from evenhand.core.rebalance import Balanced, rebalance, sample_weights

__all__ = [
    "Balanced",
    "LossHistory",
    "Partition",
    "TwoMeans",
    "balanced_accuracy",
    "group_accuracies",
    "identification",
    "mean_accuracy",
    "mean_model_selection",
    "partition",
    "price_of_unawareness",
    "rebalance",
    "sample_weights",
    "two_means",
    "wilson_interval",
    "worst_class_accuracy",
    "worst_group_accuracy",
]
