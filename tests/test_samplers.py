"""Samplers: which triplets may be drawn, how often, and that a seed determines the stream."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from sklearn.datasets import load_digits

from simstream import OMTRSL, PairSampler, TaskTripletSampler, TripletSampler
from simstream.data.samplers import nearer_first


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


# -- triplets of tasks ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits():
    """Some digits of three users."""
    X, y = load_digits(return_X_y=True)
    X, y = X[:300] / 64.0, y[:300]
    return X, y, np.array(["ann", "bob", "eve"])[np.arange(300) * 7 % 3]


def test_triplets_stay_inside_tasks_and_follow_the_spec(digits):
    _, labels, users = digits
    triplets, y, tasks = TaskTripletSampler(labels, users, 0).draw(20_000)
    for column in triplets.T:
        np.testing.assert_array_equal(users[column], tasks)
    anchor, positive, negative = nearer_first(triplets, y).T
    assert (labels[anchor] == labels[positive]).all()
    assert (labels[anchor] != labels[negative]).all()
    assert (anchor != positive).all()
    assert abs(np.mean(y)) < 0.03  # a fair coin: 4 standard deviations


def test_tasks_come_as_often_as_they_have_items_and_small_ones_not_at_all():
    labels = np.array([0, 1] * 100 + [0, 1] * 50 + [0, 0, 0] + [0, 1])
    tasks = np.repeat([10, 20, 30, 40], [200, 100, 3, 2])
    sampler = TaskTripletSampler(labels, tasks, 1)
    assert sampler.left_out == [30, 40]
    drawn = sampler.draw(30_000)[2]
    assert set(drawn.tolist()) == {10, 20}
    assert abs(np.mean(drawn == 10) - 2 / 3) < 0.012  # 4 standard deviations


def test_negatives_are_uniform_over_the_other_classes_of_the_task():
    labels, tasks = np.array([0, 0, 1, 2, 2, 2, 0, 1]), np.array([0, 0, 0, 0, 0, 0, 1, 1])
    triplets, y, _ = TaskTripletSampler(labels, tasks, 2).draw(40_000)
    anchor, _, negative = nearer_first(triplets, y).T
    counts = np.bincount(negative[anchor == 0], minlength=8)
    assert counts[[0, 1, 6, 7]].sum() == 0
    assert np.ptp(counts[2:6]) < 0.15 * counts[2:6].mean()


def test_the_cut_into_calls_does_not_matter_and_the_state_can_be_kept(digits):
    _, labels, users = digits
    whole = TaskTripletSampler(labels, users, 3).draw(50)
    sampler = TaskTripletSampler(labels, users, 3)
    first = sampler.draw(20)
    other = TaskTripletSampler(labels, users)
    other.state = sampler.state
    for all_of_it, a, b in zip(whole, first, other.draw(30), strict=True):
        np.testing.assert_array_equal(all_of_it, np.concatenate([a, b]))


def test_the_sampler_says_what_is_wrong():
    with pytest.raises(ValueError, match="one for each of 2 items"):
        TaskTripletSampler([0, 1], ["a"])
    with pytest.raises(ValueError, match="got none in 2 tasks"):
        TaskTripletSampler([0, 1, 0, 1], [0, 0, 1, 1])


@pytest.mark.parametrize(
    "kinds",
    [(1, "1"), (("a", 1), ("b", 2)), (None, "ann"), (("a", 1), "ann", 7, None), (2.5, "x")],
    ids=repr,
)
def test_tasks_may_be_any_hashable_values_as_for_the_learners(digits, kinds):
    X, labels, _ = digits
    tasks = [kinds[row % len(kinds)] for row in range(len(labels))]
    triplets, y, drawn = TaskTripletSampler(labels, tasks, 0).draw(500)
    for column in triplets.T:
        assert [tasks[row] for row in column] == drawn.tolist()
    assert set(drawn.tolist()) == set(kinds)
    model = OMTRSL(preprocessor=X).fit(triplets, y, drawn)
    assert set(model.tasks_) == set(kinds)


def test_what_tasks_are_called_does_not_change_the_stream(digits):
    _, labels, users = digits
    first, y, names = TaskTripletSampler(labels, users, 4).draw(300)
    other = {"ann": "zoe", "bob": ("b", 1), "eve": 3}  # another order, were they sorted
    second, z, others = TaskTripletSampler(labels, [other[user] for user in users], 4).draw(300)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(y, z)
    assert [other[name] for name in names.tolist()] == others.tolist()


def test_nan_is_no_task_and_tasks_are_hashable():
    labels = [0, 0, 1, 1]
    for tasks in ([1.0, np.nan, 1.0, 1.0], ["a", float("nan"), "a", "a"]):
        with pytest.raises(ValueError, match=r"tasks: expected .* got nan"):
            TaskTripletSampler(labels, tasks)
    with pytest.raises(TypeError, match="hashable"):
        TaskTripletSampler(labels, [["a"], ["a"], ["b"], ["b"]])


# -- pairs -----------------------------------------------------------------------------------------


def test_pairs_are_balanced_unless_told_otherwise():
    labels = np.arange(800) % 100
    P, y = PairSampler(labels, 0).draw(5000)
    assert abs(np.mean(y > 0) - 0.5) < 0.03  # 4 standard deviations
    np.testing.assert_array_equal(y, np.where(labels[P[:, 0]] == labels[P[:, 1]], 1, -1))
    _, y = PairSampler(labels, 0, similar_share=None).draw(5000)
    assert np.mean(y > 0) < 0.02
    for share, n_similar in ((0.5, 1000), (0.25, 500), (0.0, 0), (1.0, 2000)):
        P, y = PairSampler(labels, 0, similar_share=share).draw_distinct(2000)
        assert np.sum(y > 0) == n_similar
        assert len(np.unique(P, axis=0)) == 2000
        assert (P[:, 0] < P[:, 1]).all()
        np.testing.assert_array_equal(y, np.where(labels[P[:, 0]] == labels[P[:, 1]], 1, -1))


def test_distinct_balanced_pairs_are_uniform_within_each_kind_and_in_random_order():
    labels = np.array([2, 0, 1, 0, 2, 0, 1, 3])
    sampler = PairSampler(labels, 0)
    drawn = [sampler.draw_distinct(4) for _ in range(5000)]
    P, y = np.concatenate([P for P, _ in drawn]), np.concatenate([y for _, y in drawn])
    assert np.sum(y > 0) == 10_000
    for sign, n_pairs in ((1, 5), (-1, 23)):
        number = P[y == sign] @ [8, 1]
        counts = np.unique(number, return_counts=True)[1]
        assert len(counts) == n_pairs
        assert np.ptp(counts) < 6 * np.sqrt(counts.mean())
    first = np.array([y[0] for _, y in drawn])
    assert abs(np.mean(first > 0) - 0.5) < 0.03


def test_all_distinct_pairs_of_a_kind_where_there_are_not_enough():
    labels = np.array([0, 0, 0, 1, 2])
    P, y = PairSampler(labels, 0).draw_distinct(12)
    assert (np.sum(y > 0), np.sum(y < 0)) == (3, 6)
    assert len({tuple(p) for p in P.tolist()}) == 9
    P, y = PairSampler(labels, 0).draw_distinct(100)
    assert len({tuple(p) for p in P.tolist()}) == 10
    assert len(PairSampler(labels, 0).draw_distinct(0)[1]) == 0
    _, y = PairSampler(np.zeros(4), 0, similar_share=1).draw_distinct(100)
    assert y.tolist() == [1] * 6


def test_labels_without_one_kind_of_pairs():
    with pytest.raises(ValueError, match=r"at least two classes .*None or 1.*got 1 class"):
        PairSampler([1, 1, 1])
    with pytest.raises(ValueError, match=r"a class with at least two items .*None or 0.*3 classes"):
        PairSampler([1, 2, 3])
    assert PairSampler([1, 1, 1], 0, similar_share=None).draw(5)[1].tolist() == [1] * 5
    assert PairSampler([1, 2, 3], 0, similar_share=0).draw(5)[1].tolist() == [-1] * 5
