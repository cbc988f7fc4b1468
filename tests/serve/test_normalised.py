"""A service whose learner is read as a cosine: searches and questions use it, numbers belong to a version."""

import numpy as np
import pytest
import scipy.sparse as sp
from live import add_items, do, judge, learner_of, running, vectors

from simstream.serve.engine import margins, model_of, similarities
from simstream.serve.events import SparseVector
from simstream.serve.state import Learning
from simstream.serve.writer import Ledger, NewItem

NORMALISED = Learning("oasis", {"C": 0.5, "normalise": True})
CENTRED = Learning("oasis", {"C": 0.5, "normalise": True, "centre": "auto", "item_term": True})


def learn(service, rows, n, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        receipt = judge(service, *(f"i{i}" for i in rng.permutation(len(rows))[:3]))
    assert service.wait_for(receipt, 60)


def expected_of(service, query, rows):
    """Cosines by the library, of the rows in the order they were added."""
    learner = learner_of(service)
    learner.set_params(normalise=True)
    return learner.score_items(query, rows)[0]


def assert_finds(version, query, names_and_scores, k):
    found = version.search_many(query, k)[0]
    order = sorted(names_and_scores.items(), key=lambda pair: -pair[1])[:k]
    np.testing.assert_allclose([score for _, score in found], [s for _, s in order], atol=2e-5)
    for position, score in found:
        assert names_and_scores[position] == pytest.approx(score, abs=2e-5)


@pytest.mark.parametrize("learning", [NORMALISED, CENTRED])
def test_searches_are_by_the_cosine_and_versions_keep_their_numbers(tmp_path, learning):
    rows = vectors(30) * np.random.default_rng(1).uniform(0.2, 5, (30, 1)).astype(np.float32)
    query = vectors(1, seed=5)
    with running(tmp_path, learning=learning) as service:
        add_items(service, rows)
        assert service.version.scaled is None  # nothing learnt: the inner product
        learn(service, rows, 30)
        position = {
            name: service.position_of(name, service.version)
            for name in (f"i{n}" for n in range(30))
        }
        first = service.version
        cosines = expected_of(service, query, rows)
        at_first = {position[f"i{n}"]: cosines[n] for n in range(30)}
        assert_finds(first, query, at_first, 10)
        plain = first.search_many(query, 30, learnt=False)[0]
        np.testing.assert_allclose(
            sorted(score for _, score in plain), np.sort(rows @ query[0]), rtol=1e-5
        )
        # An item more, the model as it was: only its number is new.
        added = (3 * vectors(1, seed=9)).astype(np.float32)
        do(service, Ledger.add_items, [NewItem("new", added[0], {})])
        new = service.position_of("new", service.version)
        with_new = {**at_first, new: expected_of(service, query, added)[0]}
        assert_finds(service.version, query, with_new, 31)
        assert service.version.model.common is first.model.common
        # What is learnt later changes the numbers of later versions only.
        learn(service, rows, 30, seed=2)
        later = expected_of(service, query, rows)
        assert np.abs(later - cosines).max() > 0.01
        assert_finds(first, query, at_first, 30)
        now = {position[f"i{n}"]: later[n] for n in range(30)}
        now[new] = expected_of(service, query, added)[0]
        assert_finds(service.version, query, now, 31)
        last = service.version.search_many(query, 31)[0]
    with running(tmp_path, learning=learning) as again:
        assert again.version.search_many(query, 31)[0] == last


@pytest.mark.parametrize("learning", [NORMALISED, CENTRED])
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix])
def test_margins_and_similarities_are_cosines(kind, learning):
    rows, rng = vectors(12) * 3, np.random.default_rng(0)
    learner = learning.new_learner().set_params(preprocessor=rows)
    learner.fit(np.array([rng.permutation(12)[:3] for _ in range(40)]))
    model = model_of(1, learner, has_tasks=False)
    cosines = learner.score_items(rows, rows)
    got = similarities(model, kind(rows[:3]), kind(rows[3:9]))
    want = [[cosines[i, 3 + 2 * i + j] for j in range(2)] for i in range(3)]
    np.testing.assert_allclose(got, want, atol=1e-5)
    triplets = margins(model, kind(rows))
    np.testing.assert_allclose(
        triplets, [cosines[i, i + 1] - cosines[i, i + 2] for i in range(0, 12, 3)], atol=1e-5
    )


def test_sparse_items(tmp_path):
    rows, rng = [], np.random.default_rng(0)
    for _ in range(20):
        where = np.sort(rng.permutation(40)[:6])
        rows.append(SparseVector(where, rng.uniform(0.5, 2, 6).astype(np.float32)))
    table = np.zeros((20, 40), np.float32)
    for row, vector in zip(table, rows, strict=True):
        row[vector.indices] = vector.values
    with running(tmp_path, learning=NORMALISED, n_features=40) as service:
        add_items(service, rows)
        learn(service, rows, 20)
        position = [service.position_of(f"i{n}", service.version) for n in range(20)]
        query = sp.csr_matrix(table[:1])
        cosines = expected_of(service, query, sp.csr_matrix(table))
        assert_finds(service.version, query, dict(zip(position, cosines, strict=True)), 20)


def test_a_first_matrix_of_triplets_is_refused():
    with pytest.raises(ValueError, match="init: expected 'identity' or 'zeros' in a service"):
        Learning("oasis", {"init": "lda"}).new_learner()


def test_tasks_are_refused():
    with pytest.raises(ValueError, match="normalise: expected False for OMTRSL, got True"):
        Learning("omtrsl", {"normalise": True}).new_learner()
