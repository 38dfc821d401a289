"""Score the predictions of any model by group: here logistic regression on scikit-learn's breast cancer data.

Run with: python examples/evaluate_groups.py
"""

from __future__ import annotations

import numpy as np
import pandas
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import evenhand
from evenhand.by_group import Evaluation


def main() -> Evaluation:
    x, y = load_breast_cancer(return_X_y=True)
    model = make_pipeline(StandardScaler(), LogisticRegression())
    probability = cross_val_predict(model, x[:, :3], y, method="predict_proba")[:, 1]
    size = pandas.qcut(x[:, 3], 3, labels=["small", "medium", "large"]).astype(object)
    size[::10] = None  # groups may be known for some samples only
    texture = np.where(x[:, 1] > np.median(x[:, 1]), "rough", "smooth")
    predictions = pandas.DataFrame({"y": y, "probability": probability, "size": size, "texture": texture})

    scores = evenhand.evaluate(predictions, label="y", groups=["size", "texture"])
    print(scores.frame.head(8).to_string())
    return scores


if __name__ == "__main__":
    main()
