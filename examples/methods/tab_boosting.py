"""TAB on gradient boosting: rows that the first model learns late count more in the second."""

from sklearn.ensemble import HistGradientBoostingClassifier

from evenhand import partition, sample_weights

GRID = {"depth": [2, 3, 4]}


def train(run, *, depth: int = 3, rounds: int = 100):
    boosting = HistGradientBoostingClassifier(max_depth=depth, max_iter=rounds, early_stopping=False)
    identifier = run.fit_estimator("identifier", boosting)  # recorded, because nothing is changed
    parts = run.found(partition(identifier.losses, run.train.y))
    return run.fit_estimator("model", boosting, sample_weight=sample_weights(parts)).model
