"""DFR (Kirichenko et al., ICLR 2023): retrain ERM's last layer on group-balanced validation samples."""

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from evenhand.training.models import replace_head

GRID = {"strength": [1.0, 0.1, 0.01]}
NEEDS_GROUPS = "val"


def train(run, *, strength: float = 1.0, retrains: int = 5):
    """Average of last layers, each fitted on as many samples of every group; L2 where the paper has L1."""
    erm = run.fit("erm")
    val, groups = run.feature_split(erm, run.val), run.val.group.numpy()
    present, counts = np.unique(groups, return_counts=True)
    heads = []
    for k in range(retrains):
        random = np.random.default_rng([run.seed, k])
        parts = [random.permutation(np.flatnonzero(groups == group))[: counts.min()] for group in present]
        classifier = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=1000))
        rows = val.take(np.concatenate(parts))
        heads.append(run.fit_estimator(f"head-{k}", classifier, rows, val=val).model.as_linear())
    head = heads[0]
    head.weight.data = torch.stack([each.weight.data for each in heads]).mean(0)
    head.bias.data = torch.stack([each.bias.data for each in heads]).mean(0)
    return replace_head(erm.model, head)
