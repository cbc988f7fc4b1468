"""The adapter: it gains where feedback says something, and keeps the baseline where it does not."""

import json
import time

import numpy as np
import pytest
import scipy.sparse as sp

import simstream
from simstream import Adapter, Items
from simstream.adaptation.judgements import grades_by_query
from simstream.adaptation.report import measures_of_ranks
from simstream.adaptation.searched import SearchedItems

N_FEATURES = 16


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def collection(n_items=300, n_queries=200, seed=0):
    """Items, and queries that belong to them by a hidden rotation which inner products know half of."""
    rng = np.random.default_rng(seed)
    items = unit(rng.normal(size=(n_items, N_FEATURES)))
    rotation = np.linalg.qr(rng.normal(size=(N_FEATURES, N_FEATURES)))[0]
    relevant = rng.integers(0, n_items, n_queries)
    noise = 0.4 * unit(rng.normal(size=(n_queries, N_FEATURES)))
    queries = unit(items[relevant] @ rotation + items[relevant] + noise)
    return items, queries, np.column_stack([np.arange(n_queries), relevant])


def mean_rank(transformed, items, relevant):
    scores = transformed @ items.T
    own = scores[np.arange(len(relevant)), relevant]
    return float(np.mean((scores > own[:, None]).sum(axis=1)))


def mean_ndcg(transformed, items, relevant):
    scores = transformed @ items.T
    ranks = 1 + (scores > scores[np.arange(len(relevant)), relevant][:, None]).sum(axis=1)
    return float(measures_of_ranks(ranks[:, None], np.ones(1))[:, 0].mean())


@pytest.fixture(scope="module")
def data():
    return collection()


@pytest.fixture(scope="module")
def adapter(data):
    items, queries, relevance = data
    return Adapter(random_state=0).fit(queries[:150], items, relevance[:150])


def test_it_gains_on_queries_it_has_not_seen(data, adapter):
    items, queries, relevance = data
    held_out, relevant = queries[150:], relevance[150:, 1]
    assert adapter.chosen_ is not None
    before = mean_rank(held_out, items, relevant)
    after = mean_rank(adapter.transform_query(held_out), items, relevant)
    assert after < 0.7 * before


def test_inner_products_of_transformed_queries_rank_as_search_does(data, adapter):
    items, queries, _ = data
    found = adapter.search(queries[150:], items, k=len(items)).indices
    scores = adapter.transform_query(queries[150:]) @ items.T.astype(np.float32)
    assert np.array_equal(found, np.argsort(-scores, axis=1, kind="stable"))


def test_the_blend_is_between_the_baseline_and_the_candidate(data, adapter):
    _, queries, _ = data
    candidate, share = adapter.chosen_
    items = data[0]
    learner = adapter.candidates_[candidate]
    constant = np.full((len(queries), 1), 0.1)  # of the length of the items, which is 1
    moved = learner.transform_query(np.hstack([queries - items.mean(axis=0), constant]))
    np.testing.assert_allclose(
        adapter.transform_query(queries),
        (1 - share) * queries + share * moved,
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("seed", range(5))
def test_random_feedback_keeps_the_baseline(data, seed):
    items, queries, relevance = data
    random = relevance.copy()
    random[:, 1] = np.random.default_rng(seed).integers(0, len(items), len(random))
    adapter = Adapter(random_state=seed).fit(queries, items, random)
    assert adapter.chosen_ is None
    assert np.array_equal(adapter.transform_query(queries), queries.astype(np.float32))
    assert "baseline kept" in adapter.report().verdict


def test_cutting_the_stream_into_calls_changes_nothing(data, adapter):
    items, queries, relevance = data
    cut = Adapter(random_state=0).set_items(items)
    for begin, end in ((0, 1), (1, 70), (70, 150)):
        cut.partial_fit(queries, relevance[begin:end])
    assert cut.chosen_ == adapter.chosen_
    assert np.array_equal(cut.transform_query(queries), adapter.transform_query(queries))
    assert cut.report().to_dict() == adapter.report().to_dict()


def test_saved_and_loaded_it_goes_on_as_if_nothing_had_happened(data, adapter, tmp_path):
    items, queries, relevance = data
    half = Adapter(random_state=0).fit(queries, items, relevance[:75])
    half.save(tmp_path / "adapter.safetensors")
    loaded = simstream.load(tmp_path / "adapter.safetensors")
    assert np.array_equal(loaded.transform_query(queries), half.transform_query(queries))
    loaded.partial_fit(queries, relevance[75:150], items=items)
    assert loaded.chosen_ == adapter.chosen_
    assert np.array_equal(loaded.transform_query(queries), adapter.transform_query(queries))
    assert loaded.report().to_dict() == adapter.report().to_dict()
    loaded.save(tmp_path / "again.safetensors")


def test_own_candidates_are_saved_too(data, tmp_path):
    items, queries, relevance = data
    candidates = [simstream.ListwiseSoftmax(eta=3.0, temperature=0.1, n_steps=2)]
    adapter = Adapter(candidates, random_state=0).fit(queries, items, relevance[:60])
    adapter.save(tmp_path / "own.safetensors")
    loaded = simstream.load(tmp_path / "own.safetensors")
    for one in (adapter, loaded):
        one.partial_fit(queries, relevance[60:], items=items)
    assert loaded.chosen_ == adapter.chosen_
    assert np.array_equal(loaded.transform_query(queries), adapter.transform_query(queries))
    assert (loaded.candidates[0].eta, loaded.candidates_[0].n_steps) == (3.0, 2)


def test_a_query_that_was_learnt_from_is_no_evidence_any_more(data):
    items, queries, relevance = data
    adapter = Adapter(random_state=0).fit(queries, items, relevance[:20])
    adapter.partial_fit(queries, relevance[:20])
    assert adapter.report().n_queries == 20
    assert adapter.n_queries_ == 40


def test_ids_and_rows_are_the_same(data, adapter):
    items, queries, relevance = data
    item_ids = [f"item {row}" for row in range(len(items))]
    query_ids = [f"query {row}" for row in range(len(queries))]
    named = [(query_ids[q], item_ids[i]) for q, i in relevance[:150]]
    by_id = Adapter(random_state=0).fit(
        queries, items, named, query_ids=query_ids, item_ids=item_ids
    )
    assert np.array_equal(by_id.transform_query(queries), adapter.transform_query(queries))
    assert by_id.report({"query 3": "three"}).n_queries == 150


def test_ids_may_be_numbers_of_numpy(data, tmp_path):
    items, queries, relevance = data
    ids = np.arange(len(queries)) + 1000
    named = [(int(q) + 1000, int(i)) for q, i in relevance[:30]]
    adapter = Adapter(random_state=0).fit(queries, items, named, query_ids=ids)
    adapter.learn_one(queries[40], [1, 2], [2], name=np.int64(7))
    adapter.save(tmp_path / "model.safetensors")
    told = json.loads(json.dumps(adapter.report().to_dict()))
    assert told["n_queries"] == 31


def test_ids_survive_new_rows(data, tmp_path):
    items, queries, relevance = data
    ids = [f"item {row}" for row in range(len(items))]
    named = [(q, ids[i]) for q, i in relevance.tolist()]
    first = Adapter(random_state=0).fit(queries, items, named[:100], item_ids=ids)
    first.save(tmp_path / "model.safetensors")
    more = unit(np.random.default_rng(9).normal(size=(20, N_FEATURES)))
    moved = simstream.load(tmp_path / "model.safetensors").set_items(
        np.concatenate([more, items]), [f"new {n}" for n in range(20)] + ids
    )
    assert moved._searched.is_learnt[:20].sum() == 0
    assert np.array_equal(moved._searched.is_learnt[20:], first._searched.is_learnt)


def test_grades_say_how_relevant_and_whether_at_all(data):
    items, queries, _ = data
    graded = Adapter(random_state=0).fit(
        queries, items, [(0, 1, 3), (0, 2, 1), (0, 3, 0), (1, 4, -1)]
    )
    assert graded.n_judgements_ == 3
    assert graded.n_skipped_ == 1  # the second query has no relevant item
    assert graded._state.learnt == {1, 2}
    last_counts = Adapter(random_state=0).fit(queries, items, [(0, 1, 1), (0, 1, 0), (0, 2, 1)])
    assert last_counts._state.learnt == {2}


def test_measures_of_ranks_are_those_of_simstream_metrics():
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores, relevant = rng.normal(size=(1, 40)), rng.random((1, 40)) < 0.15
        if not relevant.any():
            continue
        report = simstream.metrics.ranking_report_from_scores(scores, relevant, k=(1, 10))
        order = np.argsort(np.argsort(-scores[0]))[relevant[0]] + 1
        measured = measures_of_ranks(order, np.ones(len(order)))
        expected = [report[name] for name in ("nDCG@10", "mAP", "P@1", "recall@10")]
        np.testing.assert_allclose(measured, expected)


def test_grades_of_any_size_learn_the_same(data):
    items, queries, relevance = data
    small = Adapter(random_state=0).fit(queries, items, [(q, i, 1) for q, i in relevance])
    large = Adapter(random_state=0).fit(queries, items, [(q, i, 1e30) for q, i in relevance])
    assert small.chosen_ == large.chosen_
    assert np.array_equal(small.transform_query(queries), large.transform_query(queries))


def test_graded_ndcg_by_hand():
    # Grades 3 and 1 at ranks 2 and 1: (3 / log2(3) + 1) / (3 + 1 / log2(3)).
    measured = measures_of_ranks(np.array([2, 1]), np.array([3.0, 1.0]))
    log = np.log2(3)
    assert measured[0] == pytest.approx((3 / log + 1) / (3 + 1 / log))


def test_queries_that_are_items_do_not_find_themselves():
    rng = np.random.default_rng(3)
    items = unit(rng.normal(size=(200, N_FEATURES)))
    partner = np.roll(np.arange(200), 100)
    items[100:] = unit(0.5 * np.roll(items[:100], 8, axis=1) + 0.5 * items[100:])
    links = [(row, int(partner[row])) for row in range(150)]
    own = list(range(200))
    adapter = Adapter(random_state=0).fit(items, items, links, own_items=own)
    assert adapter.chosen_ is not None
    moved = adapter.transform_query(items[150:]) @ items.T
    plain = items[150:] @ items.T
    for scores in (moved, plain):
        scores[np.arange(50), np.arange(150, 200)] = -np.inf

    def ranks(scores):
        return (scores > scores[np.arange(50), partner[150:]][:, None]).sum(axis=1).mean()

    assert ranks(moved) < ranks(plain)
    # The item itself would be first whatever is learnt, and a negative of its own query.
    with_itself = Adapter(random_state=0).fit(items, items, links)
    assert (
        adapter.report().measures["P@1"].baseline >= with_itself.report().measures["P@1"].baseline
    )
    with pytest.raises(ValueError, match="own_items: expected one for each of 200 queries, got 1"):
        Adapter().fit(items, items, links, own_items=[0])


# -- clicks ---------------------------------------------------------------------------------------


def searched(queries, items, k=10):
    return np.argsort(-(queries @ items.T), axis=1)[:, :k]


def test_it_learns_from_clicks(data):
    items, queries, relevance = data
    adapter = Adapter(random_state=0).set_items(items)
    shown = searched(queries, items)
    n_clicks = 0
    for row in range(150):
        clicked = [item for item in shown[row] if item == relevance[row, 1]]
        n_clicks += len(clicked)
        adapter.learn_one(queries[row], shown[row].tolist(), clicked)
    assert adapter.n_queries_ == n_clicks
    assert adapter.n_skipped_ == 150 - n_clicks
    held_out, relevant = queries[150:], relevance[150:, 1]
    after = mean_rank(adapter.transform_query(held_out), items, relevant)
    assert adapter.chosen_ is not None
    assert after < mean_rank(held_out, items, relevant)


def test_items_below_the_last_click_are_unknown(data):
    items, queries, _ = data
    adapter = Adapter(random_state=0).set_items(items)
    adapter.learn_one(queries[0], [5, 6, 7, 8], [6])
    assert adapter.n_judgements_ == 2  # 5 was passed over, 6 clicked


def test_a_click_far_down_counts_more_but_not_without_limit(data):
    items, queries, _ = data

    def learnt(propensities):
        adapter = Adapter(random_state=0).set_items(items)
        for row in range(5):
            adapter.learn_one(queries[row], [5, 6, 7], [7], propensities=propensities)
        adapter.learn_one(queries[9], [5, 6, 7], [5])
        return adapter._state.trust._weight[0], adapter._state.changes.change(0, queries[:1])

    plain, plain_change = learnt(None)
    rare, rare_change = learnt([1.0, 0.5, 0.5])
    limited, _ = learnt([1.0, 0.5, 0.001])
    assert plain == pytest.approx(6, rel=0.02)
    assert rare == pytest.approx(11, rel=0.02)  # five that count twice, and one
    assert limited == pytest.approx(51, rel=0.02)
    assert np.linalg.norm(rare_change) > 1.1 * np.linalg.norm(plain_change)


@pytest.mark.parametrize(
    ("shown", "clicked", "options", "message"),
    [
        ([1, 1], [1], {}, "shown: expected different items"),
        ([1, 2], [3], {}, "clicked: expected items that were shown"),
        ([1, 999], [1], {}, "shown: expected a row number below 300, got 999"),
        ([1, 2], [1], {"propensities": [0.5]}, "propensities: expected 2 numbers"),
        ([1, 2], [1], {"propensities": [0.5, 0.0]}, "propensities: expected 2 numbers"),
    ],
)
def test_contradictory_clicks_are_refused(data, shown, clicked, options, message):
    items, queries, _ = data
    adapter = Adapter(random_state=0).set_items(items)
    with pytest.raises(ValueError, match=message):
        adapter.learn_one(queries[0], shown, clicked, **options)
    assert adapter.n_queries_ == 0


# -- drift and new items ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["random", "baseline"])
@pytest.mark.parametrize("recurring", [False, True], ids=["new", "recurring"])
def test_feedback_that_turns_against_it_brings_the_baseline_back(kind, recurring):
    items, queries, relevance = collection(n_queries=500, seed=1)
    adapter = Adapter(random_state=0, half_life=50).fit(queries, items, relevance[:200])
    assert adapter.chosen_ is not None
    misleading = relevance[200:450].copy()
    if kind == "random":
        misleading[:, 1] = np.random.default_rng(1).integers(0, len(items), len(misleading))
    else:  # people like what the baseline shows first, whatever it is
        misleading[:, 1] = searched(queries[200:450], items, 1)[:, 0]
    for begin in range(0, 250, 50):
        part = misleading[begin : begin + 50]
        if recurring:  # the very same queries come again and again
            part[:, 0] = np.arange(50)
            if kind == "baseline":
                part[:, 1] = searched(queries[:50], items, 1)[:, 0]
        adapter.partial_fit(queries, part)
    held_out, relevant = queries[450:], relevance[450:, 1]
    after = mean_rank(adapter.transform_query(held_out), items, relevant)
    assert after <= 1.05 * mean_rank(held_out, items, relevant)


def test_what_is_only_learnt_by_heart_is_not_used_on_new_items():
    """Groups of queries always want the same item, which says nothing about other items."""
    rng = np.random.default_rng(1)
    items = unit(rng.normal(size=(400, N_FEATURES)))
    groups = unit(rng.normal(size=(20, N_FEATURES)))
    wanted = rng.choice(200, 20, replace=False)
    rows, judged = [], []
    for number in range(300):
        group = rng.integers(20)
        if number % 3:  # by heart
            rows.append(groups[group] + 0.3 * rng.normal(size=N_FEATURES) / 4)
            judged.append((number, wanted[group]))
        else:  # where the baseline is right, about items not judged before
            item = 200 + number // 3
            rows.append(items[item] + 0.8 * rng.normal(size=N_FEATURES) / 4)
            judged.append((number, item))
    queries = unit(np.array(rows))
    careful = Adapter(random_state=0).fit(queries, items, judged)
    bold = Adapter(random_state=0, tolerance=1.0).fit(queries, items, judged)
    new = unit(rng.normal(size=(400, N_FEATURES)))
    relevant = np.arange(200)
    held_out = unit(new[relevant] + 0.8 * rng.normal(size=(200, N_FEATURES)) / 4)
    baseline, by_careful, by_bold = (
        mean_ndcg(transformed, new, relevant)
        for transformed in (
            held_out,
            careful.transform_query(held_out),
            bold.transform_query(held_out),
        )
    )
    assert by_careful >= baseline - 0.02
    assert by_bold < baseline - 0.2


def test_drawing_by_weights(data):
    items, queries, relevance = data
    adapter = Adapter(random_state=0, selection="weights").fit(queries, items, relevance)
    again = Adapter(random_state=0, selection="weights").fit(queries, items, relevance)
    assert adapter.chosen_ == again.chosen_
    trust = adapter._state.trust
    assert trust.expected_total_gain >= trust.best_total_gain - trust.regret_bound


def test_the_length_of_vectors_does_not_matter(data, adapter):
    items, queries, relevance = data
    longer = Adapter(random_state=0).fit(50 * queries, 50 * items, relevance[:150])
    assert longer.chosen_ == adapter.chosen_
    np.testing.assert_allclose(
        longer.transform_query(50 * queries) / 50,
        adapter.transform_query(queries),
        rtol=0.01,
        atol=0.01,
    )


def test_the_length_of_queries_alone_does_not_matter(data, adapter):
    items, queries, relevance = data
    lengths = np.random.default_rng(0).uniform(0.01, 100, (len(queries), 1))
    other = Adapter(random_state=0).fit(lengths * queries, items, relevance[:150])
    assert other.chosen_ == adapter.chosen_
    np.testing.assert_allclose(
        other.transform_query(lengths * queries) / lengths,
        adapter.transform_query(queries),
        rtol=0.01,
        atol=0.01,
    )


@pytest.mark.parametrize(
    "changed", [{"measure": "P@1"}, {"trust": (0.1, 0.2)}, {"selection": "weights"}]
)
def test_what_gains_were_measured_with_cannot_change(data, changed):
    items, queries, relevance = data
    adapter = Adapter(random_state=0).fit(queries, items, relevance[:30])
    adapter.set_params(**changed)
    for call in (
        lambda: adapter.partial_fit(queries, relevance[30:]),
        lambda: adapter.transform_query(queries),
    ):
        with pytest.raises(ValueError, match=f"{next(iter(changed))}: cannot change in the middle"):
            call()


def test_many_items_are_ranked_in_part(data):
    items, queries, relevance = data
    adapter = Adapter(random_state=0, pool_size=100).fit(queries[:150], items, relevance[:150])
    held_out, relevant = queries[150:], relevance[150:, 1]
    assert adapter.chosen_ is not None
    assert mean_rank(adapter.transform_query(held_out), items, relevant) < mean_rank(
        held_out, items, relevant
    )


# -- bad input -------------------------------------------------------------------------------------


def test_one_single_query_keeps_the_baseline(data):
    items, queries, _ = data
    adapter = Adapter(random_state=0).fit(queries[:1], items, [(0, 7)])
    assert adapter.chosen_ is None
    assert adapter.report().n_queries == 1


def test_items_that_are_all_zero_are_refused(data):
    _, queries, relevance = data
    with pytest.raises(ValueError, match="items: expected some that are not zero, got only zeros"):
        Adapter().fit(queries, np.zeros((300, N_FEATURES)), relevance)


def test_one_single_item_and_very_long_vectors(data):
    items, queries, relevance = data
    one = Adapter(random_state=0).fit(queries, items[:1], [(row, 0) for row in range(20)])
    assert one.chosen_ is None
    long = Adapter(random_state=0, dtype="float64").fit(1e20 * queries, 1e20 * items, relevance)
    assert np.isfinite(long.transform_query(1e20 * queries)).all()


def test_zero_vectors_are_skipped(data):
    items, queries, relevance = data
    queries, items = queries.copy(), items.copy()
    queries[3] = 0
    items[5] = 0
    adapter = Adapter(random_state=0).fit(queries, items, [*relevance[:20].tolist(), (4, 5)])
    assert adapter.n_skipped_ == 1
    assert np.isfinite(adapter.transform_query(queries)).all()


def test_a_million_judgements_of_one_item_are_one(data):
    items, queries, _ = data
    started = time.process_time()
    adapter = Adapter(random_state=0).fit(queries, items, np.full((10**6, 2), (3, 7)))
    assert adapter.n_judgements_ == 1
    assert time.process_time() - started < 60


def test_an_item_that_everybody_wants(data):
    items, queries, _ = data
    judged = [(row, 7) for row in range(len(queries))]
    adapter = Adapter(random_state=0).fit(queries, items, judged)
    transformed = adapter.transform_query(queries)
    assert np.isfinite(transformed).all()
    assert mean_rank(transformed, items, np.full(len(queries), 7)) < mean_rank(
        queries, items, np.full(len(queries), 7)
    )


@pytest.mark.parametrize(
    ("relevance", "error", "message"),
    [
        (
            [(0, 999)],
            ValueError,
            "relevance, entry 1, item: expected a row number below 300, got 999",
        ),
        (
            [(0, 1), (999, 1)],
            ValueError,
            "entry 2, query: expected a row number below 200, got 999",
        ),
        ([(0, -1)], ValueError, "expected a row number below 300, got -1"),
        ([], ValueError, "relevance: expected at least one judgement, got none"),
        ([(0,)], ValueError, "relevance: expected query, item and maybe a grade"),
        ([(0, 1, float("nan"))], ValueError, "expected a finite grade, got nan"),
        ([("a", 1)], TypeError, "expected row numbers, got 'a'"),
        (np.array([[0.5, 1.0]]), ValueError, "relevance: expected row numbers, got fractions"),
        (np.zeros((3, 4), int), ValueError, r"got shape \(3, 4\)"),
    ],
)
def test_bad_judgements_are_refused_and_nothing_is_lost(data, relevance, error, message):
    items, queries, good = data
    adapter = Adapter(random_state=0).fit(queries, items, good[:30])
    before = adapter.transform_query(queries)
    for call in (
        lambda: adapter.partial_fit(queries, relevance),
        lambda: adapter.fit(queries, items, relevance),
    ):
        with pytest.raises(error, match=message):
            call()
        assert np.array_equal(adapter.transform_query(queries), before)
        assert adapter.n_queries_ == 30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, x: (np.where(q == q[0, 0], np.nan, q), x), "queries: expected finite numbers"),
        (lambda q, x: (q, np.where(x == x[0, 0], np.inf, x)), "items: expected finite numbers"),
        (lambda q, x: (q[:, :5], x), "queries: expected 16 features, got 5"),
        (lambda q, x: (q, x[:0]), "items: expected at least one item"),
    ],
)
def test_bad_vectors_are_refused_and_nothing_is_lost(data, change, message):
    items, queries, good = data
    adapter = Adapter(random_state=0).fit(queries, items, good[:30])
    with pytest.raises(ValueError, match=message):
        adapter.fit(*change(queries, items), good)
    assert adapter.n_queries_ == 30


@pytest.mark.parametrize(
    "parameters",
    [
        {"trust": ()},
        {"trust": (0.0, 1.0)},
        {"trust": (0.5, 1.5)},
        {"measure": "MRR"},
        {"selection": "best"},
        {"half_life": 0},
        {"n_near": 0},
        {"pool_size": 2.5},
        {"candidates": []},
        {"candidates": [simstream.OASIS()]},
        {"candidates": [simstream.ListwiseSoftmax(normalise=True)]},
    ],
)
def test_bad_parameters_are_refused(data, parameters):
    items, queries, relevance = data
    with pytest.raises((TypeError, ValueError), match=next(iter(parameters))):
        Adapter(**parameters).fit(queries, items, relevance)


def test_ids_must_be_different_and_as_many_as_items(data):
    items, _, _ = data
    with pytest.raises(ValueError, match="ids: expected one for each of 300 rows, got 2"):
        Adapter().set_items(items, ["a", "b"])
    with pytest.raises(ValueError, match="ids: expected different ids, got 'a' twice"):
        Adapter().set_items(items[:3], ["a", "b", "a"])
    with pytest.raises(TypeError, match="ids: expected strings or integers"):
        Adapter().set_items(items[:1], [1.5])


def test_it_says_what_to_call_first(data):
    _, queries, relevance = data
    with pytest.raises(ValueError, match="set_items"):
        Adapter().learn_one(queries[0], [0], [0])
    with pytest.raises(ValueError, match="set_items"):
        Adapter().partial_fit(queries, relevance)
    with pytest.raises(Exception, match="call fit or set_items first"):
        Adapter().transform_query(queries)


# -- sparse items ----------------------------------------------------------------------------------


def test_sparse_items_give_what_dense_ones_do(data):
    items, queries, relevance = data
    keep = np.random.default_rng(0).random(items.shape) < 0.5
    thin = unit(np.where(keep, items, 0.0) + 1e-9 * (np.arange(N_FEATURES) == 0))
    asked = unit(
        np.where(np.abs(queries) > 0.15, queries, 0.0) + 1e-9 * (np.arange(N_FEATURES) == 0)
    )
    dense = Adapter(random_state=0, dtype="float64").set_items(thin)
    # Sparse items are not centred.
    dense._state.changes._features = lambda rows: rows
    for learner in dense.candidates_:
        learner.set_params(init="identity")
    dense.partial_fit(asked, relevance)
    sparse = Adapter(random_state=0, dtype="float64")
    sparse.fit(sp.csr_matrix(asked), sp.csr_matrix(thin), relevance)
    assert sparse.chosen_ == dense.chosen_ is not None
    moved = sparse.transform_query(sp.csr_matrix(asked))
    np.testing.assert_allclose(moved, dense.transform_query(asked), atol=1e-8)
    assert sparse.report().measures == dense.report().measures


def test_sparse_items_saved_and_loaded(data, tmp_path):
    items, queries, relevance = data
    rows, asked = (sp.csr_matrix(np.where(np.abs(m) > 0.2, m, 0.0)) for m in (items, queries))
    whole = Adapter(random_state=0).fit(asked, rows, relevance)
    half = Adapter(random_state=0).fit(asked, rows, relevance[:100])
    half.save(tmp_path / "sparse.safetensors")
    loaded = simstream.load(tmp_path / "sparse.safetensors")
    loaded.partial_fit(asked, relevance[100:], items=rows)
    assert loaded.chosen_ == whole.chosen_
    np.testing.assert_allclose(
        loaded.transform_query(asked), whole.transform_query(asked), rtol=1e-6
    )


def test_queries_may_be_of_the_other_kind_but_items_stay_what_they_are(data):
    items, queries, relevance = data
    rows, asked = sp.csr_matrix(items), sp.csr_matrix(queries)
    sparse = Adapter(random_state=0).fit(queries, rows, relevance)
    np.testing.assert_allclose(sparse.transform_query(queries), sparse.transform_query(asked))
    dense = Adapter(random_state=0).fit(asked, items, relevance)
    assert np.array_equal(dense.transform_query(queries), dense.transform_query(asked))
    with pytest.raises(TypeError, match="items: expected an array, as before, got a CSR matrix"):
        dense.set_items(rows)
    dense.partial_fit(queries, relevance)  # with the items it had


def test_items_given_again_are_not_kept_again(data):
    items, queries, relevance = data
    rows, asked = sp.csr_matrix(items), sp.csr_matrix(queries)
    at_once = Adapter(random_state=0).fit(asked, rows, relevance[:40])
    in_calls = Adapter(random_state=0)
    for row in range(40):
        in_calls.partial_fit(asked, relevance[row : row + 1], items=rows)
    kept = [one._state.changes._items.n_rows for one in (at_once, in_calls)]
    assert kept[0] == kept[1] <= rows.shape[0]
    in_calls.set_items(rows.copy())  # another object: its rows may mean other items
    assert in_calls._state.changes._kept_at == {}


def test_refused_judgements_leave_the_items_as_they_were(data):
    items, queries, relevance = data
    adapter = Adapter(random_state=0).fit(queries, items, relevance[:20])
    with pytest.raises(ValueError, match="got 250"):
        adapter.partial_fit(queries, [(0, 250)], items=items[:200])
    adapter.learn_one(queries[30], [250, 1], [250])


def test_an_adapter_with_nothing_learnt_can_be_saved(data, tmp_path):
    items, queries, relevance = data
    for rows in (items, sp.csr_matrix(items)):
        Adapter(random_state=0).set_items(rows).save(tmp_path / "empty.safetensors")
        loaded = simstream.load(tmp_path / "empty.safetensors")
        assert loaded.chosen_ is None
        assert np.array_equal(loaded.transform_query(queries), queries.astype(np.float32))
        again = Adapter(random_state=0).fit(queries, rows, relevance[:100])
        loaded.partial_fit(queries, relevance[:100], items=rows)
        assert np.array_equal(loaded.transform_query(queries), again.transform_query(queries))


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "torch", "tuples"])
def test_judgements_of_a_table_are_its_rows(data, library):
    """Two rows of two columns: a table read by columns would pass unnoticed."""
    items, queries, _ = data
    rows = [(0, 3), (1, 4)]
    if library == "tuples":
        given = iter(rows)
    elif library == "torch":
        given = pytest.importorskip("torch").tensor(rows)
    else:
        module = pytest.importorskip(library)
        table = {"query": [0, 1], "item": [3, 4]}
        given = module.table(table) if library == "pyarrow" else module.DataFrame(table)
    searched = SearchedItems(Items(items), None, 10, set())
    assert grades_by_query(given, None, len(queries), searched) == {0: {3: 1.0}, 1: {4: 1.0}}


@pytest.mark.parametrize("given", [{0: [3]}, 7, [0, 3]])
def test_judgements_that_are_no_rows_are_refused(data, given):
    items, queries, _ = data
    with pytest.raises((TypeError, ValueError), match=r"relevance: expected .*query, item"):
        Adapter().fit(queries, items, given)
