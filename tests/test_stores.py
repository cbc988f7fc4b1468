"""The sparse store: growth, compaction, forgetting, rebasing, and where an entry lives."""

import pickle
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import simstream_repro.reference as ref
from cases import CASES, dense, items, stream, triplets
from simstream import AROMA, OASIS, OMTRSL, SORS, AdaSORS, TripletSampler, load
from simstream._engines import SparseTasksEngine
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


@pytest.mark.parametrize("copied", [False, True], ids=["own memory", "of a pickle"])
def test_an_arena_moves_to_a_larger_one(copied, monkeypatch):
    monkeypatch.setattr(stores, "_MOVED_AT_A_TIME", 1 << 16)  # whole pages, of 64 KiB at most
    rng = np.random.default_rng(0)
    for width in (1, 3):
        numbers = rng.random((200_000, width), np.float32)
        array = stores._zeros(numbers.shape, np.float32)
        assert not array.any()
        array[:] = numbers
        larger = stores._enlarged(pickle.loads(pickle.dumps(array)) if copied else array, 300_000)
        np.testing.assert_array_equal(larger[:200_000], numbers)
        assert larger.shape == (300_000, width)
        assert not larger[200_000:].any()
        if not copied and stores._memory_of(array) is not None:
            assert not array[: 3 << 16].any()  # that memory was given back
    assert stores._zeros((0, 2), np.float32).shape == (0, 2)


def test_an_arena_grows_where_it_is_while_memory_is_reserved():
    for width in (1, 3):
        array = stores._reserved((1000, width), np.float64)
        array[:] = np.arange(1000)[:, None]
        longer = stores._enlarged(array, 1500)
        assert longer.shape == (1500, width)
        assert np.shares_memory(array, longer)
        moved = stores._enlarged(longer, 2001)
        assert not np.shares_memory(array, moved)
        np.testing.assert_array_equal(moved[:1000], np.tile(np.arange(1000)[:, None], width))
        assert not moved[1000:].any()


def test_an_arena_has_no_reserve_where_memory_is_refused(monkeypatch):
    zeros = stores._zeros

    def refused(shape, dtype):
        if shape[0] > 1500:
            raise OSError("Cannot allocate memory")
        return zeros(shape, dtype)

    monkeypatch.setattr(stores, "_zeros", refused)
    array = stores._reserved((1000, 1), np.float64)
    array[:] = 1.0
    assert stores._enlarged(array, 1500).sum() == 1000
    with pytest.raises(OSError, match="Cannot allocate"):
        stores._enlarged(array, 1501)


def test_an_arena_is_hardly_larger_than_its_tables(tiny_arena, monkeypatch):
    """They have at least four fifths of an arena that becomes an eighth larger."""
    original, grown = stores.SparseStore.make_space, []

    def make_space(self, *now):
        before = len(self.arrays.key)
        original(self, *now)
        if len(self.arrays.key) > before:
            grown.append(len(self.arrays.key) / self.arrays.room.sum())

    monkeypatch.setattr(stores.SparseStore, "make_space", make_space)
    X, T = sp.random(300, 2000, 0.01, "csr", random_state=0), triplets(n=300, n_items=300)
    SORS(preprocessor=X, **HASHED).fit(T)
    assert len(grown) > 10
    assert max(grown) <= 9 / 8 * 5 / 4 + 0.02  # whole numbers


def test_reading_gives_back_the_memory_that_tables_have_left(monkeypatch):
    monkeypatch.setattr(stores, "_SMALLEST_ARENA", 1 << 20)  # learning needs no space
    X, T = sp.random(300, 2000, 0.01, "csr", random_state=0), triplets(n=300, n_items=300)
    model = SORS(preprocessor=X, **HASHED).fit(T[:150])
    arrays = model._engine.store.arrays
    if sys.platform != "linux":
        pytest.skip(
            "other systems keep what they are given back, or cannot be given part of an array"
        )
    assert arrays.room.sum() < 7 / 8 * arrays.arena_top[0]
    arrays.tail[arrays.arena_top[0] :] = 1.0
    model.get_bilinear_matrix()
    assert arrays.room.sum() >= 7 / 8 * arrays.arena_top[0]
    page = (1 << 16) // 8  # of 64 KiB at most
    above = arrays.tail[int(arrays.arena_top[0]) + page :]
    assert len(above) > page
    assert not above.any()
    read = model.partial_fit(T[150:]).get_bilinear_matrix()
    whole = SORS(preprocessor=X, **HASHED).fit(T).get_bilinear_matrix()
    np.testing.assert_array_equal(read.toarray(), whole.toarray())


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
    model._reads().clear()
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


@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (1, 50), (50, 1), (7, 7)])
def test_the_head_keeps_the_most_frequent_features_within_its_memory(shape):
    most = shape[0] * shape[1]
    for n_places in (0, 1, 5, most // 3, most - 1, most, 2 * most):
        widths = stores.head_widths(*shape, n_places)
        assert widths.shape == (shape[0],)
        assert widths.max() <= shape[1]
        assert (np.diff(widths) <= 0).all()
        assert widths.sum() <= n_places
        if n_places >= most:
            assert (widths == shape[1]).all()
        elif n_places >= max(5, most // 3):
            # Entry (i, j) is in the head if another one is that is needed as rarely: i * j is as large.
            products = np.outer(np.arange(1, shape[0] + 1), np.arange(1, shape[1] + 1))
            inside = np.arange(shape[1]) < widths[:, None]
            assert products[inside].max() < products[~inside].min()
            assert 4 * widths.sum() >= n_places


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


# -- choosing the dense block again -----------------------------------------------------------------------


@pytest.fixture
def soon_enough(monkeypatch):
    """Sixty items tell which features are frequent."""
    monkeypatch.setattr(stores, "_ENOUGH_ITEMS", 60)
    monkeypatch.setattr(stores, "_FIRST_HEAD_BYTES", 8 * 3 * 3)


TEN_BY_TEN = {"head_bytes": 8 * 10 * 10}


def has_small_head(store):
    """Whether the dense head is that of streams that have just begun, or that of TEN_BY_TEN."""
    places = len(store.arrays.head)
    assert 0 < places <= 100
    return places <= 9


def rising_items(n=80, d=40):
    """The higher its number, the more frequent a feature; the first items only have rare ones."""
    X = items(n=n, d=d, density=1.0)
    X[np.random.default_rng(1).random(X.shape) > np.linspace(0.02, 0.9, d)] = 0
    X[:3, d // 2 :] = 0
    X[:3, :5] = 1
    return sp.csr_matrix(X)


def learn_all(model, X, T):
    for a, p, n in T:
        model.learn_one(X[a], X[p], X[n])
    return model


@pytest.mark.usefixtures("soon_enough")
@pytest.mark.parametrize("case", [case for case in CASES if case.hashes], ids=lambda c: c.name)
def test_the_dense_block_is_chosen_again_when_enough_has_been_seen(case, monkeypatch):
    X, T = rising_items(), triplets(n=100, n_items=80)
    T[0] = 0, 1, 2
    moves = []
    move = stores.SparseEngine._renumber

    def read_before_and_after(engine, ranks):
        before = engine.matrix().toarray()
        move(engine, ranks)
        moves.append(engine.clock[steps.ROUNDS])
        np.testing.assert_array_equal(engine.matrix().toarray(), before)

    monkeypatch.setattr(stores.SparseEngine, "_renumber", read_before_and_after)
    model = learn_all(case.make(**TEN_BY_TEN), X, T[:19])
    assert has_small_head(model._engine.store)
    learn_all(model, X, T[19:])
    assert moves == [19]  # before the twentieth triplet, with the sixtieth item
    assert not has_small_head(model._engine.store)
    counts = np.zeros(40, int)
    for row in T[:20].ravel():
        counts += X[row].toarray()[0] != 0
    chosen = np.flatnonzero(model._engine.ranks[0] < 10)
    assert counts[chosen].min() >= np.sort(counts)[-10]
    expected = case.make(preprocessor=X).fit(T).get_bilinear_matrix()
    np.testing.assert_allclose(
        dense(model.get_bilinear_matrix()), dense(expected), rtol=0, atol=1e-11
    )


@pytest.mark.usefixtures("soon_enough")
@pytest.mark.parametrize("centre", [None, np.linspace(0, 0.1, 40)], ids=["plain", "centred"])
def test_saving_before_the_dense_block_is_chosen_again_changes_nothing(centre, tmp_path):
    X, T = rising_items(), triplets(n=60, n_items=80)
    options = {"centre": centre, "item_term": 0.5, **TEN_BY_TEN}
    straight = learn_all(OASIS(**options), X, T)
    model = learn_all(OASIS(**options), X, T[:10])
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert has_small_head(loaded._engine.store)
    learn_all(loaded, X, T[10:])
    assert not has_small_head(loaded._engine.store)
    for found, expected in zip(loaded._engine.ranks, straight._engine.ranks, strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(dense(loaded._engine.matrix()), dense(straight._engine.matrix()))
    expected = OASIS(preprocessor=X, centre=centre, item_term=0.5).fit(T)
    np.testing.assert_allclose(
        dense(loaded._engine.matrix()), dense(expected._engine.matrix()), rtol=0, atol=1e-11
    )


@pytest.mark.usefixtures("soon_enough")
def test_items_that_are_given_beforehand_choose_the_dense_block_at_once():
    X, T = rising_items()[:20], triplets(n=70, n_items=20)  # a collection of a few items
    whole = SORS(lam=1e-3, preprocessor=X, **TEN_BY_TEN).fit(T)
    cut = SORS(lam=1e-3, preprocessor=X, **TEN_BY_TEN)
    cut.prepare()
    for t in range(70):
        cut.partial_fit(T[t : t + 1])
        assert not has_small_head(cut._engine.store)
    np.testing.assert_array_equal(
        whole.get_bilinear_matrix().toarray(), cut.get_bilinear_matrix().toarray()
    )
    # .. also when they come after the first vectors.
    late = SORS(lam=1e-3, **TEN_BY_TEN).learn_one(X[0], X[1], X[2])
    assert has_small_head(late._engine.store)
    late.set_params(preprocessor=X).partial_fit(T[:1])
    assert not has_small_head(late._engine.store)


@pytest.mark.usefixtures("soon_enough")
def test_two_item_spaces_are_numbered_apart():
    X, Y = rising_items(), rising_items(n=80, d=30)
    T = triplets(n=60, n_items=80)
    model = OASIS(init="zeros", **TEN_BY_TEN)
    for a, p, n in T:
        model.learn_one(X[a], Y[p], Y[n])
    assert not has_small_head(model._engine.store)
    expected = OASIS(init="zeros", preprocessor=(X, Y)).fit(T).get_bilinear_matrix()
    np.testing.assert_allclose(
        model.get_bilinear_matrix().toarray(), expected.toarray(), rtol=0, atol=1e-12
    )


@pytest.mark.usefixtures("soon_enough")
def test_counts_of_a_file_are_checked():
    X = rising_items()
    scalars, arrays = learn_all(OASIS(**TEN_BY_TEN), X, [[0, 1, 2]])._engine.state()
    assert arrays["row_counts"].sum() == X[:3].nnz
    restored = stores.SparseEngine.from_state(scalars, arrays)
    np.testing.assert_array_equal(restored.state()[1]["row_counts"], arrays["row_counts"])
    for change, message in [
        ({"row_counts": arrays["row_counts"][1:]}, "row_counts: expected counts of 40 features"),
        ({"row_counts": arrays["row_counts"] / 2}, "row_counts: expected int64"),
    ]:
        with pytest.raises(ValueError, match=message):
            stores.SparseEngine.from_state(scalars, {**arrays, **change})
    with pytest.raises(ValueError, match="n_counted: expected an integer >= 0"):
        stores.SparseEngine.from_state({**scalars, "n_counted": -1}, arrays)


@pytest.mark.usefixtures("soon_enough")
@pytest.mark.parametrize("saved", [False, True])
def test_the_dense_block_of_tasks_is_chosen_again(saved, monkeypatch, tmp_path):
    X, T = rising_items(), triplets(n=80, n_items=80)
    T[0] = 0, 1, 2
    tasks = ["ann", "bob", "cat"]
    move, moves = SparseTasksEngine._renumber, []

    def read_before_and_after(engine, ranks):
        before = [engine.matrix(k).toarray() for k in range(3)]
        move(engine, ranks)
        moves.append(engine.clock[steps.ROUNDS])
        for k in range(3):
            np.testing.assert_array_equal(engine.matrix(k).toarray(), before[k])

    monkeypatch.setattr(SparseTasksEngine, "_renumber", read_before_and_after)
    model = OMTRSL(coupling=0.7, **TEN_BY_TEN)
    for t, (a, p, n) in enumerate(T):
        if saved and t == 12:
            model.save(tmp_path / "model")
            model = load(tmp_path / "model")
        model.learn_one(X[a], X[p], X[n], task=tasks[t % 3])
    assert moves == [19]
    assert not has_small_head(model._engine._store)
    expected = OMTRSL(coupling=0.7, preprocessor=X).fit(T, tasks=[tasks[t % 3] for t in range(80)])
    for task in (*tasks, "nobody"):
        np.testing.assert_allclose(
            model.get_bilinear_matrix(task).toarray(),
            expected.get_bilinear_matrix(task).toarray(),
            rtol=0,
            atol=1e-12,
        )
