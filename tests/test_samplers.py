"""Samplers: which triplets may be drawn, how often, and that a seed determines the stream."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from simstream import TripletSampler


@settings(max_examples=50, deadline=None)
@given(labels=st.lists(st.integers(0, 4), min_size=3, max_size=40), seed=st.integers(0, 99))
def test_triplets_are_legal(labels, seed):
    y = np.array(labels)
    counts = np.bincount(y)
    if len(np.unique(y)) < 2 or counts.max() < 2:
        with pytest.raises(ValueError, match="labels: expected"):
            TripletSampler(y, seed)
        return
    T = TripletSampler(y, seed).draw(200)
    assert (y[T[:, 0]] == y[T[:, 1]]).all()
    assert (y[T[:, 0]] != y[T[:, 2]]).all()
    assert (T[:, 0] != T[:, 1]).all()
    assert (counts[y[T[:, 0]]] > 1).all()


def test_every_draw_is_uniform():
    y = np.repeat([0, 1, 2, 3], [2, 5, 12, 1])
    T = TripletSampler(y, 0).draw(60_000)
    anchors = np.bincount(T[:, 0], minlength=20)
    assert anchors[19] == 0  # alone in its class
    assert chisquare(anchors[:19]).pvalue > 1e-3
    for a in (0, 4, 10):
        mine = T[T[:, 0] == a]
        mates = np.flatnonzero((y == y[a]) & (np.arange(20) != a))
        others = np.flatnonzero(y != y[a])
        if len(mates) > 1:
            assert chisquare(np.bincount(mine[:, 1], minlength=20)[mates]).pvalue > 1e-3
        assert chisquare(np.bincount(mine[:, 2], minlength=20)[others]).pvalue > 1e-3


def test_allow_self_draws_the_anchor_too():
    T = TripletSampler([0, 0, 1, 2], 0, allow_self=True).draw(2000)
    assert (T[:, 0] == T[:, 1]).any()
    assert set(T[:, 0]) == {0, 1, 2, 3}


def test_same_seed_same_stream_however_it_is_cut():
    y = np.arange(30) % 3
    whole = TripletSampler(y, 7).draw(100)
    cut = TripletSampler(y, 7)
    np.testing.assert_array_equal(whole, np.concatenate([cut.draw(n) for n in (1, 0, 9, 90)]))
    assert not np.array_equal(whole, TripletSampler(y, 8).draw(100))


def test_state_can_be_written_as_json_and_resumed():
    y = np.arange(30) % 3
    sampler = TripletSampler(y, 7)
    sampler.draw(13)
    state = json.loads(json.dumps(sampler.state))
    expected = sampler.draw(50)
    resumed = TripletSampler(y, 0)
    resumed.state = state
    np.testing.assert_array_equal(resumed.draw(50), expected)


def test_string_labels():
    T = TripletSampler(np.array(["b", "a", "b", "a"]), 0).draw(10)
    assert T.dtype == np.int64


@pytest.mark.parametrize("labels", [[1, 1, 1], [], [[1, 2], [3, 4]], [1, 2, 3]])
def test_bad_labels(labels):
    with pytest.raises(ValueError, match="labels: expected"):
        TripletSampler(labels)
