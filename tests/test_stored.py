"""Scores of large sparse models are read from their stores, as if all of M had been decoded."""

import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from cases import items, triplets
from simstream import AROMA, OASIS, OGD, OMTRSL, OSTRSL, SORS, AdaSORS, ListwiseSoftmax
from simstream._engines import base as engines
from simstream._engines import sparse as stores
from simstream.similarity import bilinear, stored

D = 30
X = sp.csr_matrix(items(d=D, n=60, density=0.3))
T = triplets(n=150, n_items=60)
PAIRS = T[:12, :2]
HASHED = {"head_bytes": 8 * 5 * 5}
CENTRES = np.linspace(0, 0.3, D), np.linspace(0.3, 0, D)

LEARNERS = {
    "plain": OASIS(),
    "averaged": OASIS(average_from=40),
    "thresholded": SORS(lam=1e-3),
    "thresholded off the diagonal": SORS(lam=1e-3, off_diagonal=True),
    "adaptive": AdaSORS(lam=1e-3),
    "adaptive off the diagonal": AdaSORS(lam=1e-3, off_diagonal=True),
    "confident": AROMA(),
    "confident, averaged": AROMA(average_from=40),
    "scaled": OASIS(init_scale=0.3),
    "centred, averaged": OASIS(centre="auto", average_from=40),
    "centred, item term": OASIS(centre="auto", item_term=True),
    "two centres": OASIS(centre=CENTRES, item_term=0.7),
    "item term": OGD(item_term=0.5),
    "lists": ListwiseSoftmax(),
}


@pytest.fixture
def all_are_large(monkeypatch):
    """Small matrices are read like large ones, whatever it costs."""
    monkeypatch.setattr(stored, "_FEW_ENTRIES", 0)
    monkeypatch.setattr(stored.StoredBilinear, "_pays", lambda self, work: True)
    for module in (stored, bilinear):
        monkeypatch.setattr(module, "MANY_FEATURES", 10)


def has_decoded(model):
    return model._similarity()._decoded is not None


def by_hand(model, queries, others):
    """(q - m)'M(x - m) + w'(x - m) from the matrix of a model."""
    M, frozen = model.get_bilinear_matrix(), model.similarity_
    M = M.toarray() if sp.issparse(M) else M
    centre = frozen.centre if isinstance(frozen.centre, tuple) else (frozen.centre,) * 2
    m, n = (np.zeros(D) if c is None else c for c in centre)
    w = np.zeros(D) if frozen.item_term is None else frozen.item_term
    q, x = queries - m, others - n
    return np.einsum("ij,jk,ik->i", q, M, x) + x @ w


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize("layout", [{}, HASHED], ids=["head", "hashed"])
@pytest.mark.parametrize("name", LEARNERS)
def test_scores_from_the_store_are_those_of_the_matrix(name, layout):
    head_bytes = layout.get("head_bytes")
    model = LEARNERS[name].set_params(preprocessor=X, head_bytes=head_bytes, normalise=False).fit(T)
    scores, margins = model.pair_score(PAIRS), model.triplet_margin(T[:20])
    dense = X.toarray()
    from_vectors = model.pair_score(dense[PAIRS])
    accuracy = model.score(T)
    assert not has_decoded(model)
    q, p, n = (dense[T[:20, k]] for k in range(3))
    expected = by_hand(model, q, p) - by_hand(model, q, n)
    np.testing.assert_allclose(margins, expected, rtol=0, atol=1e-11)
    expected = by_hand(model, dense[PAIRS[:, 0]], dense[PAIRS[:, 1]])
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-11)
    np.testing.assert_allclose(from_vectors, expected, rtol=0, atol=1e-11)
    assert accuracy == model.similarity_.score(T)


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize("name", LEARNERS)
def test_cosines_from_the_store_are_those_of_the_matrix(name):
    model = LEARNERS[name].set_params(preprocessor=X, normalise=True, **HASHED).fit(T)
    scores, margins = model.pair_score(PAIRS), model.triplet_margin(T[:20])
    # Items that are measured from elsewhere than queries have no row in the store.
    assert has_decoded(model) == (name == "two centres")
    frozen = model.similarity_
    np.testing.assert_allclose(scores, frozen.pair_score(PAIRS), rtol=0, atol=1e-11)
    np.testing.assert_allclose(margins, frozen.triplet_margin(T[:20]), rtol=0, atol=1e-11)


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize("normalise", [False, True])
def test_single_precision_is_kept_to_rounding(normalise):
    model = SORS(lam=1e-3, preprocessor=X.astype(np.float32), normalise=normalise, **HASHED).fit(T)
    scores, margins = model.pair_score(PAIRS), model.triplet_margin(T[:20])
    assert not has_decoded(model)
    frozen = model.similarity_
    for read, expected in (
        (scores, frozen.pair_score(PAIRS)),
        (margins, frozen.triplet_margin(T[:20])),
    ):
        assert read.dtype == expected.dtype
        np.testing.assert_allclose(read, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize("learner", [OMTRSL(coupling=0.5), OSTRSL()], ids=["coupled", "apart"])
@pytest.mark.parametrize("normalise", [False, True])
def test_scores_of_tasks_are_those_of_their_matrices(learner, normalise):
    tasks = np.array(["ann", "bob"])[np.arange(len(T)) % 2]
    model = learner.set_params(preprocessor=X, normalise=normalise, **HASHED).fit(T, tasks=tasks)
    for task in ("ann", "bob", "nobody"):
        read = model.pair_score(PAIRS, task=task)
        assert model._similarity()._of_task(task)._decoded is None
        expected = model.for_task(task).pair_score(PAIRS)
        np.testing.assert_allclose(read, expected, rtol=0, atol=1e-11)


def test_a_matrix_is_decoded_once_that_costs_less(monkeypatch):
    monkeypatch.setattr(stored, "_FEW_ENTRIES", 0)
    model = SORS(lam=1e-3, preprocessor=X).fit(T)
    expected = model.similarity_.pair_score(T[:, :2])
    model.learn_one(X[0], X[1], X[2])
    model.fit(T)
    model.pair_score(PAIRS[:2])
    assert not has_decoded(model)  # two pairs of about 9 x 9 entries, 30 x 30 in all
    np.testing.assert_allclose(model.pair_score(T[:, :2]), expected, rtol=0, atol=1e-12)
    assert has_decoded(model)
    model.fit(T)
    for _ in range(10):
        model.triplet_margin(T[:1])
    assert has_decoded(model)  # many single triplets cost as much as many at once
    model.learn_one(X[0], X[1], X[2])
    assert not has_decoded(model)


def test_small_matrices_are_decoded_at_once():
    model = SORS(lam=1e-3, preprocessor=X).fit(T)
    np.testing.assert_array_equal(model.pair_score(PAIRS), model.similarity_.pair_score(PAIRS))
    assert has_decoded(model)


@pytest.mark.parametrize("options", [{"symmetric": True}, {"projection": "end"}])
@pytest.mark.usefixtures("all_are_large")
def test_a_matrix_that_is_read_as_another_is_decoded(options):
    model = OASIS(preprocessor=X, **options).fit(T)
    expected = by_hand(model, *(X.toarray()[PAIRS[:, k]] for k in (0, 1)))
    np.testing.assert_allclose(model.pair_score(PAIRS), expected, rtol=0, atol=1e-11)


def test_a_few_pairs_of_a_wide_model_decode_nothing(monkeypatch):
    d = 100_000
    wide = sp.random(40, d, density=20 / d, format="csr", random_state=0)
    monkeypatch.setattr(stored, "_FEW_ENTRIES", d)
    model = SORS(lam=1e-5, preprocessor=wide, head_bytes=2**25).fit(triplets(n=50, n_items=40))
    with monkeypatch.context() as patch:
        patch.setattr(stores.SparseStore, "entries", None)  # calling it would fail
        for k in range(3):
            model.learn_one(wide[k], wide[k + 1], wide[k + 2])
            scores = model.pair_score(PAIRS[:4] % 40)
            margins = model.decision_function(T[:4] % 40)
    frozen = model.similarity_
    np.testing.assert_allclose(scores, frozen.pair_score(PAIRS[:4] % 40), rtol=1e-12)
    np.testing.assert_allclose(margins, frozen.triplet_margin(T[:4] % 40), rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize("options", [{}, {"normalise": True}, {"centre": "auto"}])
def test_what_one_thread_reads_is_a_state_that_another_has_learnt(options, monkeypatch):
    monkeypatch.setattr(stores, "ENTRIES_PER_CALL", 1)  # a triplet at a time
    stream = np.tile(T, (4, 1))
    options = {"lam": 0.0 if "centre" in options else 1e-3, "preprocessor": X, **HASHED, **options}
    alone = SORS(**options).fit(stream[:1])
    states = [alone.pair_score(PAIRS)]
    for t in range(1, len(stream)):
        states.append(alone.partial_fit(stream[t : t + 1]).pair_score(PAIRS))
    states = np.array(states)

    model = SORS(**options).fit(stream[:1])
    done, seen = threading.Event(), []

    def read():
        while not done.is_set() or not seen:
            seen.append(model.pair_score(PAIRS))

    reader = threading.Thread(target=read)
    reader.start()
    model.partial_fit(stream[1:])
    done.set()
    reader.join()
    for scores in seen:
        assert np.abs(states - scores).max(axis=1).min() < 1e-11
    np.testing.assert_array_equal(
        model._engine.matrix().toarray(), alone._engine.matrix().toarray()
    )


def test_learners_are_pickled_without_their_locks():
    model = pickle.loads(pickle.dumps(SORS(lam=1e-3, preprocessor=X).fit(T[:100])))
    assert isinstance(model._engine, engines.Engine)
    np.testing.assert_array_equal(
        model.partial_fit(T[100:]).get_bilinear_matrix().toarray(),
        SORS(lam=1e-3, preprocessor=X).fit(T).get_bilinear_matrix().toarray(),
    )


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learner_that_was_read_is_gone_with_its_last_reference(name):
    """Its store may be of many GB: it must not wait for the collector of cycles."""
    model = clone(LEARNERS[name]).set_params(preprocessor=X).fit(T)
    model.pair_score(PAIRS)
    engine = weakref.ref(model._engine)
    gc.disable()
    try:
        del model
        assert engine() is None
    finally:
        gc.enable()
