"""Estimators: classifiers of scikit-learn and boosting as stages that leave the records of a network's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import is_classifier
from torch import Tensor, nn

from evenhand.core import ranks
from evenhand.training import log
from evenhand.training.checkpoint import Histories, claim_together, load_for_all, save_checkpoint, write_curve
from evenhand.training.data import Split, checksum
from evenhand.training.estimator_histories import fit, losses_of, probabilities, seeded, softmax, training_of
from evenhand.training.evaluation import weighted_mean
from evenhand.training.keys import Description, is_named
from evenhand.training.plan import Fit, is_array, scored

if TYPE_CHECKING:
    from evenhand.training.run import Run

SNAPSHOT = "estimator"
PREFIX = "estimator_"  # of the tensors of such a model
MOST_PROBED = 8192  # features of a pipeline that is asked for the weight of each
NODES: dict[str, tuple[str, type]] = {
    "value": ("value", np.float64),
    "feature": ("feature_idx", np.int64),
    "threshold": ("num_threshold", np.float64),
    "missing_left": ("missing_go_to_left", np.int64),
    "left": ("left", np.int64),
    "right": ("right", np.int64),
    "leaf": ("is_leaf", np.int64),
    "categorical": ("is_categorical", np.int64),
    "set": ("bitset_idx", np.int64),
}  # of every node: what it is called here and in scikit-learn


class EstimatorModel(nn.Module):
    """A fitted classifier as a module: rows in, log probabilities of all classes out.

    Trees and linear models are arrays, which are saved as any model's weights are. An `estimator` of another
    kind is only held: a record cannot give it back, because evenhand reads and writes no pickles.
    """

    def __init__(self, tensors: Mapping[str, Tensor], num_classes: int, estimator: Any = None) -> None:
        super().__init__()
        for name, values in tensors.items():
            self.register_buffer(name, values)
        self.num_classes, self.estimator = num_classes, estimator

    @property
    def unsaved(self) -> str:
        """What cannot be saved, in words; empty where all of it can."""
        return "" if self.estimator is None else type(self.estimator).__name__

    def forward(self, x: Tensor) -> Tensor:
        rows = x.detach().flatten(1).double().cpu().numpy()
        arrays = self._arrays()
        given = from_arrays(arrays, rows) if self.estimator is None else probabilities(self.estimator, rows)
        every = np.zeros((len(rows), self.num_classes))
        every[:, arrays["classes"]] = given
        return torch.from_numpy(np.log(every.clip(1e-7, 1))).float().to(x.device)

    def as_linear(self) -> nn.Linear:
        """A linear model as a layer, to be put on a network with `replace_head`."""
        arrays = self._arrays()
        if "weight" not in arrays or arrays["one_against_all"]:
            raise ValueError("only a linear model whose scores are logits is a linear layer; fit another one")
        if len(arrays["classes"]) != self.num_classes:
            raise ValueError(
                f"expected samples of all {self.num_classes} classes, got {len(arrays['classes'])}"
            )
        weight, bias = (torch.from_numpy(arrays[name]).float() for name in ("weight", "intercept"))
        if len(weight) == 1:  # log odds of the second class
            weight, bias = (torch.cat([torch.zeros_like(each), each]) for each in (weight, bias))
        layer = nn.Linear(weight.shape[1], len(weight))
        layer.weight.data, layer.bias.data = weight, bias
        return layer

    def _arrays(self) -> dict[str, np.ndarray]:
        return {name.removeprefix(PREFIX): each.cpu().numpy() for name, each in self.named_buffers()}


def empty(tensors: Mapping[str, Tensor], num_classes: int) -> EstimatorModel:
    """A model that has room for these tensors."""
    return EstimatorModel({name: torch.zeros_like(each) for name, each in tensors.items()}, num_classes)


# -- classifiers as arrays -------------------------------------------------------------------------------


def arrays_of(estimator: Any, x: np.ndarray) -> dict[str, np.ndarray] | None:
    """A fitted classifier as arrays that say the same of these rows, or None where it is of another kind."""
    expected = probabilities(estimator, x)
    for arrays in (*_trees(estimator), *_linear(estimator, x.shape[1])):
        found = from_arrays(arrays, x)
        if found.shape == expected.shape and np.allclose(found, expected, atol=1e-5):
            return arrays
    return None


def from_arrays(arrays: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Probabilities of the classes that were trained on, (rows, classes)."""
    if "roots" in arrays:
        return softmax(tree_scores(arrays, x))
    scores = x @ arrays["weight"].T + arrays["intercept"]
    if scores.shape[1] == 1 or not arrays["one_against_all"]:
        return softmax(scores)
    odds = 1 / (1 + np.exp(-scores.clip(-500, 500)))
    shares: np.ndarray = odds / odds.sum(axis=1, keepdims=True)
    return shares


def _trees(estimator: Any) -> Iterator[dict[str, np.ndarray]]:
    if type(estimator).__name__ == "HistGradientBoostingClassifier":
        words = estimator.is_categorical_
        if words is None or not words.any():
            yield tree_arrays(estimator)


def _linear(estimator: Any, num_features: int) -> Iterator[dict[str, np.ndarray]]:
    """What its decision values say of each feature alone, which is all if they are linear."""
    if hasattr(estimator, "coef_") and hasattr(estimator, "intercept_"):
        weight, intercept = np.asarray(estimator.coef_), np.asarray(estimator.intercept_)
        weight = weight.reshape(-1, num_features)
    elif hasattr(estimator, "decision_function") and num_features <= MOST_PROBED:
        intercept = np.reshape(estimator.decision_function(np.zeros((1, num_features))), -1)
        rows = [np.eye(1024, num_features, k) for k in range(0, num_features, 1024)]
        scores = np.concatenate([estimator.decision_function(each) for each in rows])[:num_features]
        weight = scores.reshape(num_features, -1).T - intercept[:, None]
    else:
        return
    for one_against_all in (False, True):
        yield {
            "weight": weight.astype(np.float64),
            "intercept": np.broadcast_to(intercept, len(weight)).astype(np.float64),
            "one_against_all": np.array(one_against_all),
        }


def tree_arrays(model: Any) -> dict[str, np.ndarray]:
    """The trees of a HistGradientBoostingClassifier, whose nodes are numbered through all of them."""
    trees = [tree for stage in model._predictors for tree in stage]
    sets = [tree.raw_left_cat_bitsets.reshape(-1, 8).astype(np.int64) for tree in trees]
    firsts = np.cumsum([0, *(len(each) for each in sets)])
    nodes = np.concatenate([tree.nodes for tree in trees])
    sizes = np.array([len(tree.nodes) for tree in trees], dtype=np.int64)
    starts = np.cumsum([0, *sizes[:-1]])
    arrays: dict[str, np.ndarray] = {name: nodes[old].astype(kind) for name, (old, kind) in NODES.items()}
    for name in ("left", "right"):
        arrays[name] += np.repeat(starts, sizes)
    arrays["set"] += np.repeat(firsts[:-1], sizes)
    arrays |= {"roots": starts, "sets": np.concatenate(sets)}  # of words' codes that go left, a bit for each
    arrays["start"] = np.asarray(model._baseline_prediction, dtype=np.float64).reshape(-1)
    return arrays


def tree_scores(arrays: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """(rows, classes) log odds: every row falls through all trees, whose leaves add up."""
    scores = np.tile(arrays["start"], (len(x), 1))
    for number, root in enumerate(arrays["roots"].tolist()):
        scores[:, number % scores.shape[1]] += _leaves(arrays, root, x)
    return scores


def _leaves(arrays: Mapping[str, np.ndarray], root: int, x: np.ndarray) -> np.ndarray:
    """What one tree says of every row, (rows,)."""
    at = np.full(len(x), root)
    for _ in range(len(arrays["left"])):  # a damaged tree may run in circles
        inner = np.flatnonzero(arrays["leaf"][at] == 0)
        if not len(inner):
            break
        node = at[inner]
        value = x[inner, arrays["feature"][node]]
        gone = np.isnan(value)
        left = value <= arrays["threshold"][node]
        words = (arrays["categorical"][node] != 0) & ~gone
        code = value[words].astype(np.int64)
        bits = arrays["sets"][arrays["set"][node[words]], code // 32]
        left[words] = (bits >> (code % 32)) & 1 != 0
        left[gone] = arrays["missing_left"][node[gone]] != 0
        at[inner] = np.where(left, arrays["left"][node], arrays["right"][node])
    values: np.ndarray = arrays["value"][at]
    return values


# -- the stage -------------------------------------------------------------------------------------------


class EstimatorFit(Fit):
    """A classifier as its training left it."""

    def predict_logits(self, x: np.ndarray) -> np.ndarray:
        """Log probabilities, (rows, classes) float32, of rows such as it was trained on."""
        outputs: np.ndarray = self.model(torch.from_numpy(np.asarray(x, dtype=np.float32))).numpy()
        return outputs


@dataclass(frozen=True)
class EstimatorPlan:
    """One call of `Run.fit_estimator`."""

    stage: str
    estimator: Any
    split: Split
    val: Split
    weight: np.ndarray | None  # (rows,)
    epochs: int | None
    recorded: bool
    num_classes: int
    seed: int

    def content(self, storage: Callable[[Split], str]) -> dict[str, Any]:
        """What the key of the stage hashes."""
        return {
            "stage": self.stage,
            "estimator": Description(self.estimator).content,
            "x": [storage(split) for split in (self.split, self.val)],
            "rows": checksum(self.split.index, self.split.rows, self.split.y),
            "val": scored(self.val),
            "weight": "" if self.weight is None else checksum(self.weight),
            "epochs": self.epochs,
            "recorded": self.recorded,
        }

    def is_named(self) -> bool:
        """Whether the content says all of what makes this training."""
        return is_named(self.estimator) and is_array(self.split) and is_array(self.val)


def fit_estimator(run: Run, plan: EstimatorPlan, folder: Path) -> EstimatorFit:
    """Train a classifier, or return what an earlier call has left."""
    if ranks.count() > 1:
        raise ValueError(
            f"stage {plan.stage!r} trains an estimator, which one process does; run it without torchrun"
        )
    made: list[EstimatorModel] = []
    with claim_together(folder):
        state = load_for_all(folder / f"{SNAPSHOT}.ckpt")
        if state is not None and not _is_whole(folder, state):
            state = None
        if state is None:
            log.note("%s: begins in %s", plan.stage, folder.name)
            model, state = _train(run, plan, folder)
            made.append(model)
            log.note("%s: %d epochs, %.1f s in all", plan.stage, state["epoch"], state["seconds"])
        else:
            write_curve(folder, state["log"], complete=True)
            log.note("%s: reused, %d epochs in %s", plan.stage, state["epoch"], folder.name)

    def load() -> tuple[nn.Module, dict[str, Any]]:
        if not made and state["tensors"] is None:
            log.note("%s: trains again, because it cannot be saved", plan.stage)
            made.append(_trained(run, plan, lambda _: None))
        elif not made:
            made.append(EstimatorModel(state["tensors"], plan.num_classes))
        return made[0], state

    return EstimatorFit(folder, state["epoch"], state["seconds"], load, SNAPSHOT)


def check(estimator: Any, *, record: bool) -> None:
    """Refuse what is not a classifier as scikit-learn's are, or cannot be recorded."""
    if not hasattr(estimator, "get_params") or not is_classifier(estimator):
        raise ValueError(
            "estimator must be a classifier with scikit-learn's interface, such as LogisticRegression() or "
            f"HistGradientBoostingClassifier(), got {estimator!r}"
        )
    if record and training_of(estimator) is None:
        raise ValueError(
            "record needs a classifier that learns step by step (boosting, partial_fit or warm_start), got "
            f"{estimator!r}"
        )


def _is_whole(folder: Path, state: dict[str, Any]) -> bool:
    return state["histories"] is None or Histories.whole(folder, state["epoch"], state["histories"])


def _rows(run: Run, split: Split) -> np.ndarray:
    """The samples as the model will see them, (samples, features) float64."""
    return np.concatenate([batch.x.flatten(1).double().cpu().numpy() for batch in run.batches(split)])


def _trained(run: Run, plan: EstimatorPlan, look: Callable[[list[np.ndarray]], None]) -> EstimatorModel:
    """Train it, and look at what it says of training and validation samples at every step that it shows."""
    estimator = seeded(plan.estimator, plan.seed)
    inputs, y = [_rows(run, plan.split), _rows(run, plan.val)], plan.split.y.numpy()
    training = training_of(estimator) if plan.recorded else None
    if training is not None:
        for scores in training(estimator, inputs, y, plan.weight, plan.epochs, plan.seed):
            look(scores)
    else:
        fit(estimator, inputs[0], y, plan.weight)
        look([probabilities(estimator, x) for x in inputs])
    arrays = arrays_of(estimator, inputs[0])
    tensors = {PREFIX + name: torch.from_numpy(each) for name, each in (arrays or {}).items()}
    tensors[PREFIX + "classes"] = torch.from_numpy(np.asarray(estimator.classes_).astype(np.int64))
    return EstimatorModel(tensors, plan.num_classes, estimator if arrays is None else None)


def _train(run: Run, plan: EstimatorPlan, folder: Path) -> tuple[EstimatorModel, dict[str, Any]]:
    begun, curve = time.monotonic(), list[dict[str, Any]]()
    histories = None
    if plan.recorded and training_of(plan.estimator) is not None:
        histories = Histories(folder, len(run.train), len(run.val))
        histories.truncate(0)
    labels = [plan.split.y.numpy(), plan.val.y.numpy()]
    places = [plan.split.index, torch.arange(len(plan.val))]
    classes = np.unique(labels[0])

    def look(scores: list[np.ndarray]) -> None:
        losses, hits = [], []
        for given, y in zip(scores, labels, strict=True):
            every = np.zeros((len(y), plan.num_classes))
            every[:, classes] = given
            losses.append(torch.from_numpy(losses_of(every, y)))
            hits.append(torch.from_numpy(every.argmax(1) == y))
        curve.append(
            {
                "epoch": len(curve) + 1,
                "loss": losses[0].double().mean().item(),
                "accuracy": hits[0].double().mean().item(),
                "val_accuracy": weighted_mean(hits[1], plan.val.weight),
            }
        )
        if histories is not None:
            names = (("losses", "hits"), ("val_losses", "val_hits"))
            for (loss, hit), place, *values in zip(names, places, losses, hits, strict=True):
                getattr(histories, loss).record(place, values[0])
                getattr(histories, hit).record(place, values[1])
            histories.end_epoch()

    model = _trained(run, plan, look)
    state = {
        "epoch": len(curve),
        "log": curve,
        "seconds": time.monotonic() - begun,
        "tensors": None if model.unsaved else model.state_dict(),
        "histories": None if histories is None else histories.sums,
        "objective": {},
    }
    write_curve(folder, curve, complete=True)
    save_checkpoint(folder / f"{SNAPSHOT}.ckpt", state)
    return model, state
