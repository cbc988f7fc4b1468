"""Near triplets and lists: what is chosen, by which model, how often, and that the stream can be resumed."""

import json

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from simstream import OASIS, Bilinear, PAMetric, RelevanceSampler, TripletSampler
from simstream.data.mining import _distinct


@pytest.fixture(scope="module")
def points():
    """Sixty items of six classes in the plane."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 6
    return rng.normal(size=(60, 2)) + 2 * rng.normal(size=(6, 2))[labels], labels


class Table:
    """A model that knows items by their rows: the items are the row numbers, the scores a table."""

    def __init__(self, table):
        self.table = table
        self.n_asked = 0

    def score_items(self, queries, items):
        self.n_asked += 1
        return self.table[np.ix_(queries[:, 0].astype(int), items[:, 0].astype(int))]


def by_row(n):
    """Items that `Table` knows."""
    return np.arange(n, dtype=float)[:, None]


def near(labels, model, seed=0, **options):
    options = {"negatives": "near", "share": 1.0, "candidates": 300, **options}
    return TripletSampler(labels, seed, items=by_row(len(labels)), model=model, **options)


# -- what is chosen --------------------------------------------------------------------------------


def test_near_negatives_and_positives_are_the_most_similar_ones():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 20)
    table = rng.normal(size=(20, 20))
    # With 300 candidates of at most 20 items, all of them are among the candidates.
    triplets = near(labels, Table(table), positives="near").draw(200)
    for anchor, positive, negative in triplets:
        mates = [i for i in range(20) if labels[i] == labels[anchor] and i != anchor]
        others = [i for i in range(20) if labels[i] != labels[anchor]]
        assert positive == max(mates, key=lambda i: table[anchor, i])
        assert negative == max(others, key=lambda i: table[anchor, i])


def test_semi_hard_negatives_are_the_nearest_behind_the_positive():
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 3, 20)
    table = rng.normal(size=(20, 20))
    triplets = near(labels, Table(table), negatives="semi-hard").draw(300)
    n_without = 0
    for anchor, positive, negative in triplets:
        assert labels[anchor] != labels[negative]
        behind = [
            i
            for i in range(20)
            if labels[i] != labels[anchor] and table[anchor, i] < table[anchor, positive]
        ]
        if behind:
            assert negative == max(behind, key=lambda i: table[anchor, i])
        n_without += not behind  # then it is a random one
    assert 0 < n_without < 300


def test_a_function_says_which_candidates_are_wanted():
    labels = np.arange(20) % 2
    table = np.tile(np.arange(20.0), (20, 1))
    farthest = near(
        labels,
        Table(table),
        negatives=lambda scores, positive: -scores,
        positives=lambda scores: -np.abs(scores - 10),
    )
    anchor, positive, negative = farthest.draw(100).T
    np.testing.assert_array_equal(negative, np.where(labels[anchor] == 0, 1, 0))
    # The nearest to 10 of the anchor's class that is not the anchor itself.
    expected = {(0, True): {8, 12}, (0, False): {10}, (1, True): {9, 11}, (1, False): {9, 11}}
    for a, p in zip(anchor, positive, strict=True):
        assert p in expected[labels[a], a == 10] - {a}
    seen = []
    near(labels, Table(table), negatives=lambda s, p: seen.append((s, p)) or s).draw(1)
    (scores, positives), *_ = seen
    assert scores.shape == (1000, 300)
    assert positives.shape == (1000,)


@pytest.mark.parametrize("negatives", ["near", "semi-hard", lambda s, p: np.full(s.shape, -np.inf)])
def test_near_triplets_are_legal(points, negatives):
    items, labels = points
    sampler = TripletSampler(
        labels, 3, items=items, negatives=negatives, positives="near", share=0.7
    )
    anchor, positive, negative = sampler.draw(2500).T
    assert (labels[anchor] == labels[positive]).all()
    assert (labels[anchor] != labels[negative]).all()
    assert (anchor != positive).all()


def test_the_share_of_near_draws_and_the_rest_is_uniform():
    labels = np.arange(40) % 2
    table = np.zeros((40, 40))
    table[:, :2] = 1.0  # items 0 and 1 are near to everybody
    sampler = near(labels, Table(table), share=0.25, candidates=400)
    anchor, _, negative = sampler.draw(20_000).T
    is_near = negative < 2
    # A random negative is the near one of the other class once in twenty.
    expected = 0.25 + 0.75 / 20
    assert abs(is_near.mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / 20_000)
    counts = np.bincount(negative[~is_near], minlength=40)[2:]
    assert chisquare(counts).pvalue > 1e-3
    assert chisquare(np.bincount(anchor, minlength=40)).pvalue > 1e-3


def test_candidates_bound_how_near_a_negative_is():
    """The best of c random candidates beats a share of c / (c + 1) of all negatives on average."""
    labels = np.arange(400) % 2
    table = np.tile(np.arange(400.0), (400, 1))
    for c in (1, 4, 16):
        negative = near(labels, Table(table), candidates=c).draw(4000)[:, 2]
        assert np.mean(negative / 400) == pytest.approx(c / (c + 1), abs=0.02)


def test_the_same_scores_whether_all_items_or_only_candidates_are_scored():
    """Few candidates of many items are scored apart from the other items."""
    rng = np.random.default_rng(4)
    items = rng.normal(size=(900, 5))
    labels = rng.integers(0, 4, 900)
    model = Bilinear(rng.normal(size=(5, 5)))
    sampler = TripletSampler(labels, 0, items=items, model=model, negatives="near")
    anchors, found = rng.integers(0, 900, 200), rng.integers(0, 900, (200, 3))
    assert 64 * 3 < 900  # else all items are scored
    expected = np.take_along_axis(model.score_items(items[anchors], items), found, axis=1)
    np.testing.assert_allclose(sampler._scores(anchors, found), expected, rtol=1e-12)
    wide = rng.integers(0, 900, (200, 50))
    expected = np.take_along_axis(model.score_items(items[anchors], items), wide, axis=1)
    np.testing.assert_allclose(sampler._scores(anchors, wide), expected, rtol=1e-12)


def test_sparse_items_give_the_same_triplets(points):
    items, labels = points
    dense, sparse = (
        TripletSampler(labels, 0, items=rows, negatives="near").draw(500)
        for rows in (items, sp.csr_matrix(items))
    )
    np.testing.assert_array_equal(dense, sparse)


# -- the model and the stream ----------------------------------------------------------------------


def test_random_draws_never_look_at_the_model():
    labels = np.arange(30) % 3
    model = Table(np.zeros((30, 30)))
    plain = TripletSampler(labels, 7).draw(100)
    for options in ({"negatives": "random"}, {"share": 0.0}):
        sampler = near(labels, model, 7, **options)
        np.testing.assert_array_equal(sampler.draw(100), plain)
        assert sampler.until_refresh is None
    assert model.n_asked == 0


def test_the_model_is_looked_at_every_so_many_draws():
    labels = np.arange(30) % 3
    model = Table(np.random.default_rng(0).normal(size=(30, 30)))
    sampler = near(labels, model, refresh=50)
    sampler.draw(20)
    assert model.n_asked == 1
    assert sampler.until_refresh == 30
    sampler.draw(30)
    assert model.n_asked == 1
    sampler.draw(1)
    assert model.n_asked == 2
    model.table = -model.table  # it learns; what was drawn stays as it is
    waiting = sampler.draw(49)
    for anchor, _, negative in waiting:
        others = np.flatnonzero(labels != labels[anchor])
        assert negative == others[np.argmin(model.table[anchor, others])]
    for anchor, _, negative in sampler.draw(50):
        others = np.flatnonzero(labels != labels[anchor])
        assert negative == others[np.argmax(model.table[anchor, others])]


def test_a_learner_that_has_not_learnt_yet_counts_as_the_inner_product(points):
    items, labels = points
    options = {"items": items, "negatives": "near", "positives": "near"}
    expected = TripletSampler(labels, 0, **options).draw(300)
    unfitted = TripletSampler(labels, 0, model=OASIS(), **options).draw(300)
    identity = TripletSampler(labels, 0, model=Bilinear(np.eye(2)), **options).draw(300)
    np.testing.assert_array_equal(unfitted, expected)
    np.testing.assert_array_equal(identity, expected)


def test_the_cut_does_not_matter_and_neither_does_an_interruption(points):
    """The learner learns what it was given before it is asked again, in pieces of any size."""
    items, labels = points
    options = {"negatives": "near", "positives": "near", "refresh": 40, "items": items}

    def learnt(cuts, interrupted=False):
        learner = OASIS(preprocessor=items)
        sampler = TripletSampler(labels, 5, model=learner, **options)
        parts = []
        for n in cuts:
            parts.append(sampler.draw(n))
            learner.partial_fit(parts[-1])
            if interrupted:
                state = json.loads(json.dumps(sampler.state))
                sampler = TripletSampler(labels, 99, model=learner, **options)
                sampler.state = state
        return np.concatenate(parts), learner.get_bilinear_matrix()

    triplets, matrix = learnt([40] * 5)
    for cuts, interrupted in (
        ([13, 27, 40, 1, 39, 20, 20, 40], False),
        ([7, 33, 40, 40, 15, 25, 40], True),
    ):
        others, other_matrix = learnt(cuts, interrupted)
        np.testing.assert_array_equal(others, triplets)
        np.testing.assert_array_equal(other_matrix, matrix)


@pytest.mark.parametrize("learner", [OASIS(), PAMetric(C=0.1)], ids=["similarity", "distance"])
def test_near_negatives_are_harder_for_the_learner(points, learner):
    items, labels = points
    learner.set_params(preprocessor=items).fit(TripletSampler(labels, 0).draw(300))
    random = learner.score(TripletSampler(labels, 1).draw(2000))
    sampler = TripletSampler(labels, 1, items=items, model=learner, negatives="near", share=1)
    assert learner.score(sampler.draw(2000)) < random - 0.1


# -- lists -----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 12), k=st.integers(1, 12), seed=st.integers(0, 999))
def test_distinct_integers(n, k, seed):
    k = min(n, k)
    found = _distinct(np.random.default_rng(seed).random((50, k)), np.full(50, n))
    assert found.min() >= 0
    assert found.max() < n
    assert all(len(set(row)) == k for row in found.tolist())


def test_every_set_of_distinct_integers_is_equally_likely():
    found = _distinct(np.random.default_rng(0).random((20_000, 3)), np.full(20_000, 6))
    sets = np.sort(found, axis=1) @ [36, 6, 1]
    counts = np.unique(sets, return_counts=True)[1]
    assert len(counts) == 20
    assert chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(
    "options", [{}, {"negatives": "near", "positives": "near"}, {"negatives": "semi-hard"}]
)
def test_lists_are_legal(points, options):
    items, labels = points
    for k in (1, 7, 50):
        lists = TripletSampler(labels, 0, items=items, **options).draw_lists(300, k)
        assert lists.shape == (300, 2 + k)
        assert (labels[lists[:, 1]] == labels[lists[:, 0]]).all()
        assert (lists[:, 1] != lists[:, 0]).all()
        assert (labels[lists[:, 2:]] != labels[lists[:, :1]]).all()
        assert all(len(set(row)) == k for row in lists[:, 2:].tolist())


def test_near_negatives_of_a_list_are_the_most_similar_ones():
    rng = np.random.default_rng(5)
    labels = np.arange(30) % 2
    table = rng.normal(size=(30, 30))
    lists = near(labels, Table(table), share=0.5, candidates=500).draw_lists(300, 4)
    for anchor, _, *negatives in lists:
        others = np.flatnonzero(labels != labels[anchor])
        best = others[np.argsort(-table[anchor, others])][:4].tolist()
        # Two of four are near: the best that were not drawn at random already.
        assert set(negatives[:2]) <= set(best)
        assert best[0] in negatives
        assert best[1] in negatives


def test_a_list_of_one_negative_is_a_triplet(points):
    _, labels = points
    np.testing.assert_array_equal(
        TripletSampler(labels, 3).draw_lists(80, 1), TripletSampler(labels, 3).draw(80)
    )


def test_lists_can_be_cut_and_resumed(points):
    items, labels = points
    for options in ({}, {"negatives": "near", "refresh": 30}):
        whole = TripletSampler(labels, 3, items=items, **options).draw_lists(90, 4)
        sampler = TripletSampler(labels, 3, items=items, **options)
        first = sampler.draw_lists(17, 4)
        other = TripletSampler(labels, 0, items=items, **options)
        other.state = json.loads(json.dumps(sampler.state))
        np.testing.assert_array_equal(np.vstack([first, other.draw_lists(73, 4)]), whole)


# -- what is wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"negatives": "hard"},
            "negatives: expected one of 'random', 'near', 'semi-hard' or a fun",
        ),
        ({"negatives": 3}, "negatives: expected one of"),
        ({"positives": "semi-hard"}, "positives: expected one of 'random', 'near' or a function"),
        ({"share": 1.5}, "share: expected a number from 0 to 1"),
        ({"share": -0.1}, "share: expected a number >= 0"),
        ({"share": float("nan")}, "share: expected a number"),
        ({"candidates": 0}, "candidates: expected an integer >= 1"),
        ({"refresh": 0}, "refresh: expected an integer >= 1"),
        ({"items": None}, "items: expected the rows"),
        ({"items": np.ones((5, 2))}, "expected 6 rows, got 5"),
        ({"items": np.full((6, 2), np.nan)}, "items: expected finite numbers"),
    ],
)
def test_bad_parameters(options, message):
    options = {"negatives": "near", "items": np.ones((6, 2)), **options}
    with pytest.raises(ValueError, match=message):
        TripletSampler(np.arange(6) % 2, 0, **options)


def test_bad_functions_and_lists_that_are_too_long(points):
    items, labels = points
    for function, message in (
        (lambda s, p: s[:, 0], "a number for each candidate"),
        (lambda s, p: np.full(s.shape, np.nan), "got NaN"),
    ):
        sampler = TripletSampler(labels, 0, items=items, negatives=function)
        with pytest.raises(ValueError, match=message):
            sampler.draw(10)
    with pytest.raises(ValueError, match="k: expected at most 50 negatives, as item 0 has, got 51"):
        TripletSampler(labels, 0).draw_lists(1, 51)
    with pytest.raises(ValueError, match="k: expected an integer >= 1"):
        TripletSampler(labels, 0).draw_lists(1, 0)


# -- relevance judgements ----------------------------------------------------------------------------


def test_triplets_from_relevance_are_uniform():
    relevance = [[3, 0], [3, 5], [3, 9], [7, 5], [0, 2], [0, 3]]
    sampler = RelevanceSampler(relevance, 10, 0)
    triplets = sampler.draw(60_000)
    known = {q: {i for r, i in relevance if r == q} for q in (0, 3, 7)}
    counts = np.bincount(triplets[:, 0], minlength=8)
    assert set(np.flatnonzero(counts)) == {0, 3, 7}
    assert chisquare(counts[[0, 3, 7]]).pvalue > 1e-3
    for query, relevant in known.items():
        mine = triplets[triplets[:, 0] == query]
        positives = np.bincount(mine[:, 1], minlength=10)
        negatives = np.bincount(mine[:, 2], minlength=10)
        assert set(np.flatnonzero(positives)) == relevant
        assert set(np.flatnonzero(negatives)) == set(range(10)) - relevant
        if len(relevant) > 1:
            assert chisquare(positives[positives > 0]).pvalue > 1e-3
        assert chisquare(negatives[negatives > 0]).pvalue > 1e-3


@settings(max_examples=60, deadline=None)
@given(
    relevance=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 6)), min_size=1, max_size=25, unique=True
    ),
    same=st.booleans(),
    k=st.integers(1, 3),
)
def test_triplets_from_relevance_are_legal(relevance, same, k):
    relevant = {}
    for query, item in relevance:
        relevant.setdefault(query, set()).add(item)
    others = {q: set(range(7)) - found - ({q} if same else set()) for q, found in relevant.items()}
    usable = {q for q in relevant if others[q]}
    if not usable:
        return
    sampler = RelevanceSampler(relevance, 7, 0, same_rows=same)
    assert sampler.left_out == sorted(set(relevant) - usable)
    if min(len(others[q]) for q in usable) < k:
        with pytest.raises(ValueError, match="k: expected at most"):
            sampler.draw_lists(1, k)
        return
    for query, positive, *negatives in sampler.draw_lists(100, k).tolist():
        assert query in usable
        assert positive in relevant[query]
        assert set(negatives) <= others[query]
        assert len(set(negatives)) == k


def test_grades_say_how_often_and_zero_says_never():
    relevance = [[0, 1], [0, 2], [0, 3], [1, 4]]
    sampler = RelevanceSampler(relevance, 6, 0, grades=[3, 1, 0, -1])
    assert sampler.left_out == [1]  # nothing is relevant to it
    triplets = sampler.draw(20_000)
    positives = np.bincount(triplets[:, 1], minlength=6)
    assert set(np.flatnonzero(positives)) == {1, 2}
    assert positives[1] / 20_000 == pytest.approx(0.75, abs=0.02)
    assert set(triplets[:, 2]) == {0, 3, 4, 5}


def test_the_last_of_several_judgements_counts():
    relevance = [[0, 1], [0, 2], [0, 1]]
    triplets = RelevanceSampler(relevance, 5, 0, grades=[1, 1, 0]).draw(200)
    assert set(triplets[:, 1]) == {2}
    triplets = RelevanceSampler([[0, 1]] * 10_000 + [[0, 2]], 5, 0).draw(2000)
    assert np.mean(triplets[:, 1] == 1) == pytest.approx(0.5, abs=0.06)


def test_near_negatives_of_queries_in_another_space():
    rng = np.random.default_rng(3)
    queries, items = rng.normal(size=(8, 3)), rng.normal(size=(40, 4))
    relevance = np.column_stack([rng.integers(0, 8, 30), rng.integers(0, 40, 30)])
    model = Bilinear(rng.normal(size=(3, 4)))
    sampler = RelevanceSampler(
        relevance,
        None,
        0,
        queries=queries,
        items=items,
        model=model,
        negatives="near",
        share=1,
        candidates=600,
    )
    scores = model.score_items(queries, items)
    for query, positive, negative in sampler.draw(300):
        relevant = relevance[relevance[:, 0] == query, 1]
        assert positive in relevant
        others = np.setdiff1d(np.arange(40), relevant)
        assert negative == others[np.argmax(scores[query, others])]
    learner = OASIS(init="zeros", preprocessor=(queries, items)).fit(sampler.draw(100))
    assert learner.n_rounds_ == 100


def test_relevance_can_be_cut_and_resumed():
    rng = np.random.default_rng(3)
    relevance = np.column_stack([rng.integers(0, 8, 30), rng.integers(0, 40, 30)])
    whole = RelevanceSampler(relevance, 40, 4).draw_lists(60, 3)
    sampler = RelevanceSampler(relevance, 40, 4)
    first = sampler.draw_lists(25, 3)
    other = RelevanceSampler(relevance, 40, 0)
    other.state = json.loads(json.dumps(sampler.state))
    np.testing.assert_array_equal(np.vstack([first, other.draw_lists(35, 3)]), whole)


@pytest.mark.parametrize(
    ("relevance", "options", "message"),
    [
        (np.empty((0, 2), int), {}, "expected at least one, got none"),
        ([[0, 5]], {}, "item of tuple 0 must be a row number from 0 to 4, got 5"),
        ([[0, -1]], {}, "item of tuple 0"),
        ([[-1, 0]], {}, "query of tuple 0"),
        ([[2, 0]], {"queries": np.ones((2, 3))}, "query of tuple 0 must be a row number from 0 to 1"),
        ([[0, 1, 2]], {}, r"expected shape \(n, 2\)"),
        ([[0, i] for i in range(5)], {}, "expected a query with a relevant item and with one that is"),
        ([[0, i] for i in range(1, 5)], {"same_rows": True}, "got none in 1 queries of 5 items"),
        ([[0, 1]], {"grades": [0]}, "grades: expected one above 0"),
        ([[0, 1]], {"grades": [-2.5]}, "grades: expected one above 0"),
        ([[0, 1]], {"grades": [np.nan]}, "grades: expected finite numbers, got nan"),
        ([[0, 1]], {"grades": [1, 2]}, "grades: expected a number for each of 1 judgements"),
        ([[0, 1]], {"grades": ["high"]}, "grades: expected a number for each"),
        ([[0, 1]], {"n_items": None}, "n_items: expected the number of items"),
        ([[0, 1]], {"n_items": 0}, "n_items: expected an integer >= 1"),
        ([[0, 1]], {"negatives": "near"}, "items: expected the rows that the model scores"),
        (
            [[0, 1]],
            {"negatives": "near", "items": np.ones((5, 2))},
            "queries: expected the rows that the model scores",
        ),
    ],
)  # fmt: skip
def test_bad_judgements(relevance, options, message):
    with pytest.raises(ValueError, match=message):
        RelevanceSampler(relevance, **{"n_items": 5, **options})


def test_judgements_are_whole_numbers():
    with pytest.raises(TypeError, match="expected integers"):
        RelevanceSampler([[0.0, 1.0]], 5)
