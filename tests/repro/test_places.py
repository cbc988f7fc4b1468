"""Labels along a sequence, and the stand-in for IROS."""

import numpy as np
import pytest
from sklearn.naive_bayes import CategoricalNB

from simstream_repro import protocols
from simstream_repro.protocols.places import NaiveBayesFilter, routes
from simstream_repro.records import Cell


@pytest.fixture
def frames():
    rng = np.random.default_rng(0)
    labels = np.repeat([2, 5, 2, 7], 30)
    return rng.normal(size=(120, 6)) + labels[:, None] / 4, labels


def test_frames_are_judged_as_by_another_naive_bayes(frames):
    """The states are quantiles of the training items; scikit-learn counts them, once more than seen."""
    items, labels = frames
    model = NaiveBayesFilter(n_bins=4).fit(items, labels)
    bounds = np.quantile(items, [0.25, 0.5, 0.75], axis=0)

    def states(rows):
        return np.stack(
            [np.searchsorted(bounds[:, k], rows[:, k], side="left") for k in range(rows.shape[1])],
            axis=1,
        )

    known = CategoricalNB(alpha=1.0, min_categories=4).fit(states(items), labels)
    new = np.random.default_rng(1).normal(size=(50, 6)) + 1
    assert model.predict(new).tolist() == known.predict(states(new)).tolist()
    prior = np.log([0.5, 0.25, 0.25])
    joint = model.log_likelihood(new) + prior
    expected = known.predict_joint_log_proba(states(new))
    np.testing.assert_allclose(joint, expected, atol=1e-10)


def test_the_filter_by_hand(frames):
    """Two classes, two frames: q(c) = l(c) * sum over c' of A(c', c) q(c')."""
    items, labels = np.array([[0.0], [0.0], [0.0], [1.0], [1.0], [1.0]]), np.repeat([0, 1], 3)
    model = NaiveBayesFilter(n_bins=2, stay=0.9).fit(items, labels)
    # Counted once more than seen: a low value has probability 4/5 in class 0 and 1/5 in class 1.
    np.testing.assert_allclose(np.exp(model.log_likelihood(items[:1])), [[0.8, 0.2]])
    # After two low frames the odds are 4, then (0.9 * 4 + 0.1) / (0.1 * 4 + 0.9) * 4 = 11.4; a high frame
    # turns them to (0.9 * 11.4 + 0.1) / (0.1 * 11.4 + 0.9) / 4 = 1.27: still class 0. A second one does not.
    sequence = np.array([[0.0], [0.0], [1.0], [1.0]])
    assert model.predict_sequence(sequence).tolist() == [0, 0, 0, 1]
    assert model.predict(sequence).tolist() == [0, 0, 1, 1]
    alone = NaiveBayesFilter(n_bins=2, stay=0.5).fit(items, labels)
    assert alone.predict_sequence(sequence).tolist() == [0, 0, 1, 1]


def test_routes_are_blocks_of_rows():
    assert routes(7, 3).tolist() == [0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("learner", ["Euclidean", "OASIS", ""])
def test_the_protocol(learner):
    """Digits in the order of the file; one of six blocks of rows is left out."""
    settings = {"n_triplets": 300, "stops": [100]}
    cell = Cell("s", "places", "d", "digits", "unit-norm", "m", learner, {}, {}, 1, settings)
    found = protocols.run(cell)
    assert found["n_test"] == 300  # of 1,797
    assert 0.5 < found["measures"]["accuracy"] <= 1
    assert (
        found["measures"]["accuracy, smoothed"] < found["measures"]["accuracy"]
    )  # no runs of labels
    if learner == "OASIS":
        assert found["curves"]["accuracy"]["x"] == [100, 300]
