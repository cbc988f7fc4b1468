"""The listwise softmax learner against its textbook version."""

import numpy as np
import pytest

import simstream_repro.reference as ref
from simstream._kernels.listwise import implicit_step

TOLERANCE = {np.float64: 1e-12, np.float32: 2e-5}


def one_list(seed=0, n_relevant=3, n_negatives=8, d=6, dtype=np.float64):
    rng = np.random.default_rng(seed)
    q, relevant, negatives = (rng.normal(size=s) for s in ((d,), (n_relevant, d), (n_negatives, d)))
    return q.astype(dtype), relevant.astype(dtype), negatives.astype(dtype)


# -- the step of the kernels ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n_steps", [1, 5])
@pytest.mark.parametrize("n_relevant", [1, 3])
def test_step_equals_the_textbook(n_relevant, n_steps, dtype):
    q, relevant, negatives = one_list(n_relevant=n_relevant, dtype=dtype)
    t = 2 * q
    loss, margin = implicit_step(t, float(q @ q), relevant, negatives, 0.3, 0.7, n_steps)
    M = 2 * np.eye(len(q))
    assert loss == pytest.approx(ref.softmax_loss(M, q, relevant, negatives, 0.7), rel=1e-5)
    assert margin == pytest.approx((relevant @ q).min() * 2 - (negatives @ q).max() * 2, rel=1e-5)
    stream = [(q.astype(float), relevant.astype(float), negatives.astype(float))]
    expected = ref.listwise(M, stream, 0.3, 0.7, n_steps)[-1].T @ q
    np.testing.assert_allclose(t, expected, rtol=0, atol=10 * TOLERANCE[dtype])


def test_step_is_along_the_gradient_of_the_loss():
    """By finite differences of the loss, entry by entry of M."""
    q, relevant, negatives = one_list(d=4)
    M, h = np.random.default_rng(1).normal(size=(4, 4)), 1e-6
    gradient = np.zeros((4, 4))
    for i, j in np.ndindex(4, 4):
        change = np.zeros((4, 4))
        change[i, j] = h
        gradient[i, j] = (
            ref.softmax_loss(M + change, q, relevant, negatives, 0.8)
            - ref.softmax_loss(M - change, q, relevant, negatives, 0.8)
        ) / (2 * h)
    t = q @ M
    before = t.copy()
    implicit_step(t, float(q @ q), relevant, negatives, 0.5, 0.8, 1)
    moved = np.outer(q, t - before) / (q @ q)
    np.testing.assert_allclose(moved, -0.5 * 0.8**2 * gradient, rtol=0, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4, 1e150])
def test_step_is_safe_for_scores_of_any_size(scale):
    q, relevant, negatives = one_list(n_relevant=2)
    for sign in (1.0, -1.0):
        t = sign * scale * relevant.sum(axis=0)
        loss, margin = implicit_step(t, float(q @ q), relevant, negatives, 1.0, 0.05, 5)
        assert np.isfinite([loss, margin, *t]).all()
        assert loss >= 0


def test_step_without_either_kind_of_item_does_nothing():
    q, relevant, negatives = one_list()
    for some, others in ((relevant[:0], negatives), (relevant, negatives[:0])):
        t = q.copy()
        assert implicit_step(t, float(q @ q), some, others, 1.0, 0.1, 5) == (0.0, 0.0)
        np.testing.assert_array_equal(t, q)
