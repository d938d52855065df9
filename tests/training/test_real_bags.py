"""Real histology bags, where the shared data is at hand."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

from asmil import MILClassifier
from shared_data import SHARED_DATA, shared_file


@pytest.mark.heavy
def test_learns_from_the_breast_bags_of_ucsb():
    data = np.load(shared_file(SHARED_DATA / "ucsb" / "ucsb_breast.npz"))
    labels = data["label"]
    bags = [data["features"][data["bag"] == bag] for bag in range(len(labels))]
    aucs = []
    for train, test in StratifiedKFold(3, shuffle=True, random_state=0).split(bags, labels):
        tiles = np.concatenate([bags[i] for i in train])
        mean, spread = tiles.mean(axis=0), tiles.std(axis=0) + 1e-6
        scaled = [(bag - mean) / spread for bag in bags]
        classifier = MILClassifier("abmil", epochs=10, lr=1e-3).fit([scaled[i] for i in train], labels[train])
        aucs.append(roc_auc_score(labels[test], classifier.predict_proba([scaled[i] for i in test])[:, 1]))
    # An AUC of 58 bags without signal has a standard error of 0.08: this is 2.5 of them above 0.5.
    assert np.mean(aucs) > 0.7
