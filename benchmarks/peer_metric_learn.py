"""Fit a learner of metric-learn and say how long it took. Runs in the environment of that library.

    python benchmarks/peer_metric_learn.py REQUEST.json ANSWER.json

`bench_peers.py` calls it. It knows nothing of simstream: data come with the request, and what was learnt
goes back with the answer.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np


def timed(function):
    start = time.process_time()
    function()
    return time.process_time() - start


def itml(X, pairs, labels, bounds, gamma, sweeps):
    """The sweeps alone: the public `fit` would also calibrate a threshold, which is not compared."""
    from metric_learn import ITML
    from metric_learn.itml import _BaseITML

    model = ITML(gamma=gamma, max_iter=sweeps, tol=0.0, prior="identity", preprocessor=np.array(X))
    pairs, labels, bounds = np.array(pairs), np.array(labels), np.array(bounds)
    seconds = timed(lambda: _BaseITML._fit(model, pairs, labels, bounds=bounds))
    calibration = timed(lambda: model.calibrate_threshold(pairs, labels))
    return {
        "seconds": seconds,
        "calibration_seconds": calibration,
        "sweeps": model.n_iter_ + 1,
        "matrix": model.get_mahalanobis_matrix().tolist(),
    }


def lmnn(X, y, k, learn_rate, max_iter):
    from metric_learn import LMNN

    model = LMNN(
        n_neighbors=k,
        learn_rate=learn_rate,
        max_iter=max_iter,
        regularization=0.5,
        init="identity",
    )
    X, y = np.array(X), np.array(y)
    seconds = timed(lambda: model.fit(X, y))
    return {
        "seconds": seconds,
        "iterations": int(model.n_iter_),
        "components": model.components_.tolist(),
    }


def rca(X, chunks, repeats):
    from metric_learn import RCA

    model = RCA()
    X, chunks = np.array(X), np.array(chunks)
    return {
        "seconds": min(timed(lambda: model.fit(X, chunks)) for _ in range(repeats)),
        "matrix": model.get_mahalanobis_matrix().tolist(),
    }


def supervised(name, options, X, y):
    """Any of its learners from class labels. What it cannot learn from is an answer, too."""
    import metric_learn

    model = getattr(metric_learn, name)(**options)
    X, y = np.array(X), np.array(y)
    try:
        seconds = timed(lambda: model.fit(X, y))
    except (RuntimeError, ValueError) as error:
        return {"error": str(error)}
    if not np.isrealobj(model.components_):
        return {"error": "complex numbers"}
    return {"seconds": seconds, "components": model.components_.tolist()}


def main():
    import metric_learn
    import scipy
    import sklearn

    warnings.simplefilter("ignore")  # it uses names that scikit-learn is about to drop
    request = json.loads(Path(sys.argv[1]).read_text())
    learners = {"itml": itml, "lmnn": lmnn, "rca": rca, "supervised": supervised}
    learner = learners[request.pop("learner")]
    answer = learner(**request)
    answer["versions"] = (
        f"metric-learn {metric_learn.__version__}, scikit-learn {sklearn.__version__}, "
        f"NumPy {np.__version__}, SciPy {scipy.__version__}"
    )
    Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
