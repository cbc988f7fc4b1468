"""Ranking measures and k-NN against textbook definitions, hand-computed cases and scikit-learn."""

import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse
from sklearn.metrics import average_precision_score, ndcg_score

from simstream import metrics
from simstream.metrics import sweep

fast = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def dot(queries, items):
    """A similarity that works for arrays and CSR matrices."""
    scores = queries @ items.T
    return scores.toarray() if sparse.issparse(scores) else scores


class DotModel:
    def score_items(self, queries, items):
        return dot(queries, items)


# The definitions, one query at a time, on the plain list of relevances in ranked order.


def ranked_relevances(scores, relevant, excluded):
    candidates = [j for j in range(len(scores)) if not excluded[j]]
    return [int(relevant[j]) for j in sorted(candidates, key=lambda j: (-scores[j], j))]


def precision(rel, k):
    return sum(rel[:k]) / k


def average_precision(rel, k, normalizer):
    total = sum(precision(rel, j + 1) for j in range(min(k, len(rel))) if rel[j])
    by = min(k, sum(rel)) if normalizer == "relevant" else sum(rel[:k])
    return total / by if by else 0.0


def normalised_gain(rel, k):
    def gain(x):
        return sum(r / math.log2(j + 2) for j, r in enumerate(x[:k]))

    return gain(rel) / gain(sorted(rel, reverse=True))


def textbook_report(scores, relevant, excluded, ks, normalizer):
    lists = [ranked_relevances(*row) for row in zip(scores, relevant, excluded, strict=True)]
    used = [rel for rel in lists if sum(rel)]
    per_query = []
    for rel in used:
        one = {
            "mAP": average_precision(rel, len(rel), "relevant"),
            "MRR": 1 / (rel.index(1) + 1),
            "nDCG": normalised_gain(rel, len(rel)),
            "random_P": sum(rel) / len(rel),
        }
        for k in ks:
            one[f"P@{k}"] = precision(rel, k)
            one[f"mAP@{k}"] = average_precision(rel, k, normalizer)
            one[f"recall@{k}"] = sum(rel[:k]) / sum(rel)
            one[f"nDCG@{k}"] = normalised_gain(rel, k)
        per_query.append(one)
    report = {name: np.mean([one[name] for one in per_query]) for name in per_query[0]}
    return report | {"n_queries": len(used), "n_left_out": len(lists) - len(used)}


@st.composite
def rankings(draw, tied):
    """Scores (all distinct, or of few values), relevances with at least one, exclusions."""
    n_queries, n_items = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(seeds))
    shape = (n_queries, n_items)
    if tied:
        values = np.array([-np.inf, -1.0, -0.0, 0.0, 2.5, np.inf])
        scores = rng.choice(values[: draw(st.integers(1, 6))], shape)
    else:
        scores = rng.permutation(n_queries * n_items).reshape(shape) - 20.0
    relevant = rng.random(shape) < draw(st.sampled_from([0.1, 0.5, 0.9]))
    excluded = rng.random(shape) < draw(st.sampled_from([0.0, 0.3]))
    relevant[0, 0], excluded[0, 0] = True, False
    return scores.astype(draw(st.sampled_from(["float32", "float64"]))), relevant, excluded


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("normalizer", ["relevant", "hits"])
@fast
@given(data=st.data())
def test_equals_textbook(data, tied, normalizer):
    scores, relevant, excluded = data.draw(rankings(tied))
    before = scores.copy()
    options = {"k": (1, 3, 5, 40), "normalizer": normalizer}
    report = metrics.ranking_report_from_scores(scores, relevant, exclude=excluded, **options)
    expected = textbook_report(scores, relevant, excluded, options["k"], normalizer)
    assert report == pytest.approx(expected, abs=1e-12)
    assert report.keys() == expected.keys()
    np.testing.assert_array_equal(scores, before)


@pytest.mark.parametrize("tied", [False, True])
@fast
@given(data=st.data())
def test_measures_lie_between_0_and_1(data, tied):
    scores, relevant, excluded = data.draw(rankings(tied))
    for normalizer in ("relevant", "hits"):
        report = metrics.ranking_report_from_scores(
            scores, relevant, exclude=excluded, normalizer=normalizer
        )
        assert report.pop("n_queries") + report.pop("n_left_out") == len(scores)
        assert all(0 <= value <= 1 for value in report.values())
        assert report["mAP@1"] == report["P@1"]  # under both normalisers


@fast
@given(data=st.data(), seed=seeds)
def test_order_of_the_pool_is_irrelevant_without_ties(data, seed):
    scores, relevant, excluded = data.draw(rankings(tied=False))
    order = np.random.default_rng(seed).permutation(scores.shape[1])
    report = metrics.ranking_report_from_scores(scores, relevant, exclude=excluded)
    shuffled = metrics.ranking_report_from_scores(
        scores[:, order], relevant[:, order], exclude=excluded[:, order]
    )
    assert shuffled == report


@fast
@given(data=st.data())
def test_perfect_and_worst_order(data):
    _, relevant, excluded = data.draw(rankings(tied=False))
    perfect = metrics.ranking_report_from_scores(relevant, relevant, exclude=excluded, k=1)
    for name in ("mAP", "MRR", "nDCG", "P@1", "mAP@1", "nDCG@1"):
        assert perfect[name] == 1.0
    worst = metrics.ranking_report_from_scores(~relevant, relevant, exclude=excluded, k=1)
    assert all(worst[name] <= perfect[name] for name in perfect)


@fast
@given(data=st.data())
def test_agrees_with_scikit_learn_without_ties(data):
    scores, relevant, _ = data.draw(rankings(tied=False))
    used = relevant.any(axis=1)
    report = metrics.ranking_report_from_scores(scores, relevant, k=3)
    ap = [average_precision_score(r, s) for r, s in zip(relevant[used], scores[used], strict=True)]
    assert report["mAP"] == pytest.approx(np.mean(ap))
    if scores.shape[1] > 1:  # scikit-learn refuses a single document
        assert report["nDCG"] == pytest.approx(ndcg_score(relevant[used], scores[used]))
        assert report["nDCG@3"] == pytest.approx(ndcg_score(relevant[used], scores[used], k=3))


def test_hand_computed():
    # Ranked relevances 0 1 0 1 1 (R = 3): precisions at the hits 1/2, 2/4, 3/5.
    report = metrics.ranking_report_from_scores([[5, 4, 3, 2, 1]], [[0, 1, 0, 1, 1]], k=(2, 4, 10))
    gain = {j: 1 / math.log2(1 + j) for j in range(1, 6)}
    assert report == pytest.approx(
        {
            "mAP": (1 / 2 + 2 / 4 + 3 / 5) / 3,
            "MRR": 1 / 2,
            "nDCG": (gain[2] + gain[4] + gain[5]) / (gain[1] + gain[2] + gain[3]),
            "random_P": 3 / 5,
            "P@2": 1 / 2,
            "mAP@2": (1 / 2) / 2,
            "recall@2": 1 / 3,
            "nDCG@2": gain[2] / (gain[1] + gain[2]),
            "P@4": 2 / 4,
            "mAP@4": (1 / 2 + 2 / 4) / 3,
            "recall@4": 2 / 3,
            "nDCG@4": (gain[2] + gain[4]) / (gain[1] + gain[2] + gain[3]),
            "P@10": 3 / 10,  # five of the ten are missing
            "mAP@10": (1 / 2 + 2 / 4 + 3 / 5) / 3,
            "recall@10": 1.0,
            "nDCG@10": (gain[2] + gain[4] + gain[5]) / (gain[1] + gain[2] + gain[3]),
            "n_queries": 1,
            "n_left_out": 0,
        }
    )
    hits = metrics.ranking_report_from_scores(
        [[5, 4, 3, 2, 1]], [[0, 1, 0, 1, 1]], k=(1, 4), normalizer="hits"
    )
    assert hits["mAP@4"] == pytest.approx((1 / 2 + 2 / 4) / 2)
    assert hits["mAP@1"] == 0.0  # no hit


def test_ties_go_to_the_lower_index():
    same = np.zeros((1, 3))
    assert metrics.ranking_report_from_scores(same, [[1, 0, 0]])["MRR"] == 1.0
    assert metrics.ranking_report_from_scores(same, [[0, 0, 1]])["MRR"] == pytest.approx(1 / 3)
    # Without item 0 the relevant one moves up.
    report = metrics.ranking_report_from_scores(same, [[0, 0, 1]], exclude=[[1, 0, 0]])
    assert report["MRR"] == 1 / 2


def labelled_data(n=40, d=5, n_classes=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.integers(-2, 3, (n, d)).astype(float)  # integers: products are exact, ties occur
    return X, rng.integers(0, n_classes, n)


def test_the_pool_is_the_other_queries():
    X, y = labelled_data()
    expected = textbook_report(X @ X.T, y[:, None] == y, np.eye(len(y)), (1, 5, 10), "relevant")
    assert metrics.ranking_report(dot, X, y) == pytest.approx(expected)


def test_a_separate_pool_keeps_the_query():
    X, y = labelled_data()
    X /= np.linalg.norm(X, axis=1, keepdims=True) + 1e-9
    assert metrics.precision_at_k(dot, X, np.arange(40), X, np.arange(40), k=1) > 0.5
    expected = textbook_report(X[:9] @ X.T, y[:9, None] == y, np.zeros((9, 40)), (7,), "hits")
    report = metrics.ranking_report(dot, X[:9], y[:9], X, y, k=7, normalizer="hits")
    assert report == pytest.approx(expected)


def test_model_function_and_csr_agree_for_any_labels():
    X, y = labelled_data()
    names = np.array(["ant", "bee", "cat", "dog"])[y]
    reference = metrics.ranking_report(dot, X, y)
    csr = sparse.csr_matrix(X)
    assert metrics.ranking_report(DotModel(), X, names) == reference
    assert metrics.ranking_report(DotModel(), csr, list(names)) == reference
    assert metrics.ranking_report(lambda q, x: q @ x.T, csr, y) == reference  # sparse scores
    pool = metrics.ranking_report(dot, X[:9], y[:9], X, y)
    assert metrics.ranking_report(dot, csr[:9], y[:9], csr, y) == pool


@pytest.mark.parametrize("chunk_size", [1, 3, 39, 40, 1000])
@pytest.mark.parametrize("n_threads", [1, 7])
def test_chunks_do_not_change_results(chunk_size, n_threads, monkeypatch):
    X, y = labelled_data()
    report = metrics.ranking_report(dot, X, y)
    labels = metrics.knn_predict(dot, X, X, y, 5, exclude_self=True)
    monkeypatch.setattr(sweep.config, "NUMBA_NUM_THREADS", n_threads)
    assert metrics.ranking_report(dot, X, y, chunk_size=chunk_size) == report
    again = metrics.knn_predict(dot, X, X, y, 5, chunk_size=chunk_size, exclude_self=True)
    np.testing.assert_array_equal(again, labels)


def test_default_chunks_bound_the_memory():
    class FirstChunkSeen(Exception):
        pass

    def score(queries, items):
        raise FirstChunkSeen(8 * len(queries) * len(items))

    X, items = np.ones((300, 1)), np.ones((100_000, 1))
    with pytest.raises(FirstChunkSeen) as seen:
        metrics.ranking_report(score, X, np.zeros(300), items, np.zeros(100_000))
    assert 60e6 < seen.value.args[0] <= 64 * 2**20
    with pytest.raises(FirstChunkSeen) as seen:
        metrics.knn_predict(score, X, items, np.zeros(100_000))
    assert 60e6 < seen.value.args[0] <= 64 * 2**20


def test_single_measures_are_those_of_the_report():
    X, y = labelled_data()
    data = (dot, X[:9], y[:9], X, y)
    report = metrics.ranking_report(*data, k=(3, 10))
    hits = metrics.ranking_report(*data, k=3, normalizer="hits")
    assert metrics.mean_average_precision(*data) == report["mAP"]
    assert metrics.mean_reciprocal_rank(*data, chunk_size=2) == report["MRR"]
    assert metrics.ndcg(*data) == report["nDCG"]
    assert metrics.ndcg(*data, k=3) == report["nDCG@3"]
    assert metrics.precision_at_k(*data, k=3) == report["P@3"]
    assert metrics.precision_at_k(*data) == report["P@10"]
    assert metrics.recall_at_k(*data, k=3) == report["recall@3"]
    assert metrics.mean_average_precision_at_k(*data, k=3) == report["mAP@3"]
    assert (
        metrics.mean_average_precision_at_k(*data, k=3, normalizer="hits")
        == hits["mAP@3"]
        != report["mAP@3"]
    )


def test_queries_without_relevant_candidates_are_left_out():
    X = np.array([[1.0], [2.0], [3.0]])
    report = metrics.ranking_report(dot, X, ["a", "a", "alone"], k=1)
    assert (report["n_queries"], report["n_left_out"]) == (2, 1)
    assert report["MRR"] == 1 / 2  # the third item is ranked before the only relevant one
    assert json.loads(json.dumps(report)) == report


@fast
@given(data=st.data(), seed=seeds)
def test_knn_equals_textbook(data, seed):
    rng = np.random.default_rng(seed)
    n = data.draw(st.integers(2, 12))
    k = data.draw(st.integers(1, n - 1))
    exclude_self = data.draw(st.booleans())
    X = rng.integers(-2, 3, (n, 2)).astype(float)
    y = rng.choice(["a", "b", "c"], n)
    expected = []
    for i in range(n):
        order = sorted(range(n), key=lambda j: (-(X[i] @ X[j]), j))
        near = [y[j] for j in order if not (exclude_self and j == i)][:k]
        most = max(Counter(near).values())
        expected.append(next(label for label in near if near.count(label) == most))
    predicted = metrics.knn_predict(dot, X, X, y, k, exclude_self=exclude_self)
    assert list(predicted) == expected


def test_triplet_accuracy_counts_positive_decisions():
    class Model:
        def decision_function(self, triplets):
            return np.array([1.0, 0.0, -1.0, 1e-300])

    assert metrics.triplet_accuracy(Model(), np.zeros((4, 3), int)) == 0.5
    with pytest.raises(ValueError, match="at least one"):
        metrics.triplet_accuracy(Model(), np.zeros((0, 3), int))
    with pytest.raises(ValueError, match=r"expected 5, got shape \(4,\)"):
        metrics.triplet_accuracy(Model(), np.zeros((5, 3), int))
    Model.decision_function = lambda self, triplets: np.array([1.0, np.nan])
    with pytest.raises(ValueError, match="1 NaN"):
        metrics.triplet_accuracy(Model(), np.zeros((2, 3), int))


def test_sparsity():
    M = np.array([[1.0, 1e-12, 0.0], [0.0, -2e-12, -3.0]])
    assert metrics.sparsity(M) == pytest.approx(3 / 6)
    assert metrics.sparsity(M, tol=0) == pytest.approx(2 / 6)
    for kind in (sparse.csr_matrix, sparse.csc_array, sparse.coo_matrix):
        assert metrics.sparsity(kind(M)) == pytest.approx(3 / 6)
    assert metrics.sparsity(sparse.csr_matrix((3, 3))) == 1.0
    assert metrics.sparsity(np.eye(7)) == pytest.approx(1 - 1 / 7)
    halves = sparse.csr_matrix((np.array([1.0, -1.0]), np.array([0, 0]), np.array([0, 2])), (1, 2))
    assert metrics.sparsity(halves) == 1.0  # one entry stored in two parts that cancel
    assert halves.nnz == 2
    for bad in (np.zeros((0, 3)), np.zeros(3), np.array([[np.nan]]), sparse.csr_matrix([[np.nan]])):
        with pytest.raises(ValueError, match=r"^M: expected"):
            metrics.sparsity(bad)


X4, Y4 = np.eye(4), [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((X4, [0, 1]), {}, r"query_labels: expected one for each of the 4 queries, got .*\(2,\)"),
        ((X4, Y4, X4, [0, 1]), {}, "item_labels: expected one for each of the 4 items"),
        ((X4, Y4, X4), {}, "both or neither, got only items"),
        ((X4, Y4, None, Y4), {}, "both or neither, got only item_labels"),
        ((np.zeros((0, 2)), []), {}, "queries: expected at least one"),
        ((X4, Y4, np.zeros((0, 4)), []), {}, "items: expected at least one"),
        ((X4, Y4), {"k": 0}, "k: expected an integer >= 1, got"),
        ((X4, Y4), {"k": (3, -1)}, "k: expected an integer >= 1, got"),
        ((X4, Y4), {"normalizer": "trec"}, "normalizer: expected one of 'relevant', 'all', 'hits'"),
        ((X4, Y4), {"chunk_size": 0}, "chunk_size: expected an integer >= 1"),
        (
            (X4, [0, 1, 2, 3]),
            {},
            "queries: expected at least one with a relevant candidate, got none",
        ),
    ],
)
def test_wrong_input_is_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        metrics.ranking_report(dot, *arguments, **options)


def test_wrong_scores_are_refused():
    for score in (np.nan, [np.nan, 1, 2, 3]):
        with pytest.raises(ValueError, match=r"scores: expected numbers, got .* NaN"):
            metrics.ranking_report(lambda q, x, s=score: q @ x.T + s, X4, Y4)
        with pytest.raises(ValueError, match=r"scores: expected numbers, got .* NaN"):
            metrics.knn_predict(lambda q, x, s=score: q @ x.T + s, X4, X4, Y4)
    with pytest.raises(ValueError, match=r"expected shape \(4, 4\), got \(4,\)"):
        metrics.ranking_report(lambda q, x: np.ones(4), X4, Y4)
    with pytest.raises(TypeError, match="model: expected a method score_items"):
        metrics.ranking_report(None, X4, Y4)
    with pytest.raises(ValueError, match="relevant: expected the shape of scores"):
        metrics.ranking_report_from_scores(X4, X4[:2])
    with pytest.raises(ValueError, match="exclude: expected the shape of scores"):
        metrics.ranking_report_from_scores(X4, X4, exclude=[1, 2, 3, 0])
    with pytest.raises(ValueError, match="relevant: expected booleans or 0/1"):
        metrics.ranking_report_from_scores(X4, 2 * X4)
    with pytest.raises(ValueError, match="scores: expected a non-empty matrix"):
        metrics.ranking_report_from_scores([], [])
    with pytest.raises(ValueError, match="expected at most the 3 candidates, got 4"):
        metrics.knn_predict(dot, X4, X4, Y4, n_neighbors=4, exclude_self=True)
    with pytest.raises(
        ValueError, match="exclude_self: expected queries and items to be the same list"
    ):
        metrics.knn_predict(dot, X4[:2], X4, Y4, exclude_self=True)


# -- k-NN error curves -----------------------------------------------------------------------------


def minus_squared_distance(queries, items):
    return -((queries[:, None] - items) ** 2).sum(axis=2)


@st.composite
def classification(draw):
    """Few distinct points and unbalanced classes, some of them among the queries only."""
    n_queries, n_items = draw(st.integers(1, 12)), draw(st.integers(2, 12))
    points = st.integers(-2, 2).map(float)
    queries = draw(arrays(float, (n_queries, 2), elements=points))
    items = draw(arrays(float, (n_items, 2), elements=points))
    labels = st.sampled_from(["a", "a", "a", "a", "b", "c"])
    y = draw(st.lists(labels | st.just("unseen"), min_size=n_queries, max_size=n_queries))
    z = draw(st.lists(labels, min_size=n_items, max_size=n_items))
    return queries, np.array(y), items, np.array(z)


def errors_by_hand(predicted, truth, class_averaged):
    if not class_averaged:
        return sum(p != t for p, t in zip(predicted, truth, strict=True)) / len(truth)
    within = []
    for one in set(truth):
        members = [i for i, t in enumerate(truth) if t == one]
        within.append(sum(predicted[i] != one for i in members) / len(members))
    return sum(within) / len(within)


@pytest.mark.parametrize("class_averaged", [False, True])
@pytest.mark.parametrize("exclude_self", [False, True])
@fast
@given(data=classification(), backwards=st.booleans())
def test_curve_equals_one_prediction_per_k(data, class_averaged, exclude_self, backwards):
    queries, y, items, z = data
    if exclude_self:
        queries, y = items, z
    k_values = np.arange(1, len(items) + (not exclude_self))
    k_values = k_values[::-1] if backwards else k_values
    options = {"class_averaged": class_averaged, "exclude_self": exclude_self}
    arguments = (minus_squared_distance, queries, y, items, z, k_values)
    expected = []
    for k in k_values:
        predicted = metrics.knn_predict(
            minus_squared_distance, queries, items, z, int(k), exclude_self=exclude_self
        )
        expected.append(errors_by_hand(predicted, y, class_averaged))
    curve = metrics.knn_error_curve(*arguments, **options)
    np.testing.assert_allclose(curve, expected, atol=1e-12)
    error, k = metrics.knn_error_best_k(*arguments, **options)
    assert error == curve.min()
    assert k == min(k_values[curve == error])
    assert (type(error), type(k)) == (float, int)


def test_class_average_of_unbalanced_classes():
    # 1-NN on a line: one of the 8 large ones and one of the 2 small ones lie on the wrong side.
    X = np.array([[-1.0]] * 7 + [[1.0]] + [[1.0], [-1.0]])
    y = ["large"] * 8 + ["small"] * 2
    arguments = (minus_squared_distance, X, y, [[-1.0], [1.0]], ["large", "small"])
    assert metrics.knn_error_curve(*arguments, [1]) == pytest.approx([2 / 10])
    averaged = metrics.knn_error_curve(*arguments, [1], class_averaged=True)
    assert averaged == pytest.approx([(1 / 8 + 1 / 2) / 2])
    # A class of the pool that no query has does not count; one that only queries have does.
    more = (*arguments[:3], [[-1.0], [1.0], [9.0]], ["large", "small", "other"])
    assert metrics.knn_error_curve(*more, [1], class_averaged=True) == pytest.approx(averaged)
    unseen = (arguments[0], np.append(X, [[0.5]], axis=0), [*y, "new"], *arguments[3:])
    averaged = metrics.knn_error_curve(*unseen, [1], class_averaged=True)
    assert averaged == pytest.approx([(1 / 8 + 1 / 2 + 1) / 3])


def test_curves_of_models_functions_csr_and_chunks_agree(monkeypatch):
    X, y = labelled_data()
    curve = metrics.knn_error_curve(DotModel(), X, y, X, y, exclude_self=True)
    assert curve.shape == (25,)
    csr = sparse.csr_matrix(X)
    for model, rows in ((dot, X), (DotModel(), csr), (lambda q, x: q @ x.T, csr)):
        again = metrics.knn_error_curve(model, rows, y, rows, y, exclude_self=True)
        np.testing.assert_array_equal(again, curve)
    monkeypatch.setattr(sweep.config, "NUMBA_NUM_THREADS", 5)
    for chunk_size in (1, 7, 1000):
        again = metrics.knn_error_curve(dot, X, y, X, y, exclude_self=True, chunk_size=chunk_size)
        np.testing.assert_array_equal(again, curve)


def test_neighbours_are_looked_up_once():
    calls = []

    def score(queries, items):
        calls.append(len(queries))
        return queries @ items.T

    X = np.eye(6)
    metrics.knn_error_best_k(score, X, range(6), X, range(6), (k for k in range(1, 6)))
    assert calls == [6]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((X4, Y4, X4, Y4), {}, ValueError, "k_values: expected at most the 4 candidates, got 25"),
        ((X4, Y4, X4, Y4, [4]), {"exclude_self": True}, ValueError, "at most the 3 candidates"),
        ((X4, Y4, X4, Y4, []), {}, ValueError, "k_values: expected at least one, got none"),
        ((X4, Y4, X4, Y4, [0]), {}, ValueError, "k_values: expected an integer >= 1, got 0"),
        ((X4, Y4, X4, Y4, [1.0]), {}, TypeError, "k_values: expected an integer, got 1.0"),
        ((X4, Y4, X4, Y4, 3), {}, TypeError, "k_values: expected a sequence of integers, got 3"),
        ((X4, Y4[:2], X4, Y4, [1]), {}, ValueError, "query_labels: expected one for each of the 4"),
        ((X4, Y4, X4, Y4[:2], [1]), {}, ValueError, "item_labels: expected one for each of the 4"),
        ((X4[:2], Y4[:2], X4, Y4, [1]), {"exclude_self": True}, ValueError, "got 2 queries and 4"),
        ((np.nan * X4, Y4, X4, Y4, [1]), {}, ValueError, "queries: expected finite numbers"),
    ],
)
def test_curves_refuse_wrong_input(arguments, options, error, message):
    for function in (metrics.knn_error_curve, metrics.knn_error_best_k):
        with pytest.raises(error, match=message):
            function(dot, *arguments, **options)


def test_curves_refuse_wrong_models():
    with pytest.raises(TypeError, match="model: expected a method score_items"):
        metrics.knn_error_curve(None, X4, Y4, X4, Y4, [1])
    with pytest.raises(ValueError, match="scores: expected numbers, got 16 NaN"):
        metrics.knn_error_curve(lambda q, x: q @ x.T * np.nan, X4, Y4, X4, Y4, [1])
