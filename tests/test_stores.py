"""The sparse store: growth, compaction, forgetting, rebasing, and where an entry lives."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import simstream_repro.reference as ref
from cases import CASES, dense, items, stream, triplets
from simstream import AROMA, OASIS, OMTRSL, SORS, AdaSORS, TripletSampler
from simstream._engines import sparse as stores
from simstream._kernels import steps

HASHED = {"head_bytes": 8 * 3 * 3}


@pytest.fixture
def tiny_arena(monkeypatch):
    """Start with an arena so small that it must grow and be compacted all the time."""
    monkeypatch.setattr(stores, "_SMALLEST_ARENA", 64)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_growth_and_compaction_change_nothing(case, tiny_arena, monkeypatch):
    calls = []
    original = stores.SparseStore.make_space
    monkeypatch.setattr(
        stores.SparseStore, "make_space", lambda self, *a: (calls.append(1), original(self, *a))[1]
    )
    X, T = sp.csr_matrix(items(d=60, n=80, density=0.15)), triplets(n=400, n_items=80)
    hashed = case.make(preprocessor=X, **HASHED).fit(T).get_bilinear_matrix()
    if case.name != "aroma-factored":
        assert len(calls) > 3
    plain = case.make(preprocessor=X).fit(T).get_bilinear_matrix()
    np.testing.assert_allclose(dense(hashed), dense(plain), rtol=0, atol=1e-12)


def test_dead_entries_are_forgotten_and_memory_stays_bounded(tiny_arena):
    # Every triplet touches new columns; a strong threshold kills them again within some rounds.
    n, d = 3000, 3000
    X = sp.random(n, d, density=5 / d, format="csr", random_state=0)
    T = triplets(n=6000, n_items=n)
    options = {"eta": 0.5, "preprocessor": X, "head_bytes": 8 * 3 * 3, "init": "zeros"}
    sparse = SORS(lam=1e-2, **options).fit(T)
    keeping = SORS(lam=1e-9, **options).fit(T)
    alive = sparse.get_bilinear_matrix().nnz
    assert alive < keeping.get_bilinear_matrix().nnz / 10
    assert len(sparse._engine.store.arrays.key) < len(keeping._engine.store.arrays.key) / 4


def test_adagrad_scales_survive_the_death_of_an_entry(tiny_arena):
    X, T = sp.csr_matrix(items(d=60, n=80, density=0.15)), triplets(n=400, n_items=80)
    options = {"lam": 0.3, "eta": 0.1, "delta": 0.5}
    got = AdaSORS(**options, preprocessor=X, **HASHED).fit(T).get_bilinear_matrix()
    expected = ref.adasors(np.eye(60), stream(X.toarray(), T), **options)[-1]
    assert (
        np.count_nonzero(np.abs(expected) > 1e-12) < expected.size / 5
    )  # most have died, many came back
    np.testing.assert_allclose(dense(got), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("cls", [SORS, AdaSORS])
@pytest.mark.parametrize("off_diagonal", [False, True])
@pytest.mark.parametrize("layout", ["dense", "sparse", "hashed"])
def test_rebasing_keeps_every_value(cls, off_diagonal, layout):
    X, T = items(), triplets(n=100)
    convert = np.asarray if layout == "dense" else sp.csr_matrix
    extra = HASHED if layout == "hashed" else {}
    model = cls(lam=0.01, off_diagonal=off_diagonal, preprocessor=convert(X), **extra).fit(T)
    before = dense(model.get_bilinear_matrix())
    engine = model._engine
    shift = engine.clock[steps.SHIFT]
    assert shift > 0
    engine._rebase()
    engine.clock[steps.SHIFT] = 0.0
    model._read_cache = None
    np.testing.assert_allclose(dense(model.get_bilinear_matrix()), before, rtol=0, atol=1e-14)


def test_float32_threshold_does_not_get_lost_in_long_streams():
    """Entries must go on shrinking by lam * eta a round after the accumulated threshold is large."""
    # A satisfied triplet (margin 5 and more): nothing is touched, only thresholds apply.
    X = sp.csr_matrix(np.eye(3, dtype=np.float32))
    start = 5.0 * np.eye(3, dtype=np.float32)
    model = SORS(lam=1e-4, eta=1e-3, init=start, preprocessor=X)
    rounds = 3_000_000  # at 1e-7 a round, beyond the rebasing point of about 10^6 rounds
    chunk = np.tile([[0, 0, 1]], (rounds // 10, 1))
    for _ in range(10):
        model.partial_fit(chunk)
    assert model.n_updates_ == 0
    assert model._engine.clock[steps.SHIFT] < 1e-7 * rounds  # it was rebased on the way
    np.testing.assert_allclose(
        model.get_bilinear_matrix().diagonal(), 5.0 - 1e-7 * rounds, atol=2e-4
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), side=st.integers(1, 12), density=st.floats(0.05, 0.9))
def test_where_an_entry_lives_never_matters(seed, side, density):
    """Bit for bit, wherever features keep their order: here frequencies are made to follow it."""
    X = items(seed, n=30, d=12, density=density)
    X = X[:, np.argsort(-np.count_nonzero(X, axis=0), kind="stable")]
    T = triplets(seed, n=60, n_items=30)
    options = {"lam": 0.01, "eta": 0.2, "preprocessor": sp.csr_matrix(X)}
    whole = SORS(**options).fit(T).get_bilinear_matrix()
    split = SORS(**options, head_bytes=8 * side * side).fit(T).get_bilinear_matrix()
    np.testing.assert_array_equal(dense(whole), dense(split))


def test_a_large_dimension_takes_memory_only_for_what_it_touches():
    d = 200_000
    X = sp.random(50, d, density=20 / d, format="csr", random_state=0)
    model = OASIS(preprocessor=X, head_bytes=2**20).fit(triplets(n=200, n_items=50))
    M = model.get_bilinear_matrix()
    assert M.shape == (d, d)
    touched = {
        (i, j)
        for a, p, n in triplets(n=200, n_items=50)
        for i in X[a].indices
        for j in np.union1d(X[p].indices, X[n].indices)
    }
    assert M.nnz <= d + len(touched)
    assert model._engine.store.nbytes < 200 * 2**20


def test_large_models_are_read_piece_by_piece_in_their_own_numbering(monkeypatch):
    rng = np.random.default_rng(0)
    items = sp.random(40, 30, density=0.2, random_state=1, format="csr")
    triplets = TripletSampler(rng.integers(0, 3, 40), 0).draw(300)
    whole = AROMA(preprocessor=items).fit(triplets).get_bilinear_matrix()
    monkeypatch.setattr(stores, "_AT_A_TIME", 7)
    split = AROMA(preprocessor=items, head_bytes=8 * 25).fit(triplets)
    assert split._fitted().ranks is not None
    read = split.get_bilinear_matrix()
    assert read.has_sorted_indices
    np.testing.assert_allclose(read.toarray(), whole.toarray(), rtol=1e-12, atol=1e-15)


def test_a_triplet_that_waits_for_space_is_considered_once(tiny_arena):
    X, T = sp.csr_matrix(items(d=60, n=80, density=0.15)), triplets(n=400, n_items=80)
    tasks = np.arange(len(T)) % 3
    counts = []
    for options in (HASHED, {}):  # with hash tables that grow again and again, and with none
        model = OMTRSL(query="active", random_state=0, preprocessor=X, **options)
        clock = model.partial_fit(T, tasks=tasks, oracle=np.ones(len(T)))._engine.clock
        counts.append((clock[steps.CONSIDERED], clock[steps.ASKED]))
    assert counts[0] == counts[1]
    assert counts[0][0] == len(T)
