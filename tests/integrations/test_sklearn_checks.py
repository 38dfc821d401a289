"""TabClassifier passes scikit-learn's own checks, around estimators of every kind."""

from typing import Any

import pytest
import sklearn
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.ensemble import HistGradientBoostingClassifier as HistBoosting
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from evenhand.integrations.sklearn import TabClassifier

try:
    from lightgbm import LGBMClassifier
except ImportError:
    LGBMClassifier = None

VERSION = tuple(int(part) for part in sklearn.__version__.split(".")[:2])
CHECKED = [
    TabClassifier(),
    TabClassifier(HistBoosting(max_iter=5, min_samples_leaf=5)),
    TabClassifier(GradientBoostingClassifier(n_estimators=5)),
    TabClassifier(SGDClassifier(loss="log_loss", average=True)),
    TabClassifier(MLPClassifier((20,), max_iter=30, learning_rate_init=0.02)),
    TabClassifier(GaussianNB()),
    TabClassifier(LogisticRegression()),
    TabClassifier(make_pipeline(StandardScaler(), LogisticRegression()), rebalance="indices"),
    *(
        []
        if LGBMClassifier is None
        else [TabClassifier(LGBMClassifier(n_estimators=5, n_jobs=1, verbose=-1))]
    ),
]


def exemption(model: TabClassifier, check: str) -> str | None:
    """Why a check does not apply; none for the default and LightGBM from scikit-learn 1.6 on."""
    estimator = model.estimator
    if estimator is None and check == "check_classifiers_classes" and VERSION < (1, 6):
        return "30 rows, leaves of 20: scikit-learn's own HistGradientBoostingClassifier() fails it too"
    if estimator is not None and "sample_weight_equivalence" in check and "LGBM" not in repr(estimator):
        return "weights change what is learned; the split counts rows, so weight 2 is not two rows"
    if isinstance(estimator, MLPClassifier) and check.startswith("check_sample_weight") and VERSION < (1, 7):
        return "MLPClassifier takes no weights before scikit-learn 1.7"
    return None


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(CHECKED)
def test_scikit_learns_own_checks(estimator: TabClassifier, check: Any) -> None:
    if reason := exemption(estimator, check.func.__name__):
        pytest.skip(reason)
    check(estimator)
