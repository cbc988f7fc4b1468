"""Parameter mixing: what one round is, what is averaged, and that learning goes on from it."""

import re

import numpy as np
import pytest
import scipy.sparse as sp

import simstream
from commands import fail, succeed
from simstream import (
    AROMA,
    OASIS,
    OGD,
    SORS,
    AdaSORS,
    DivergedError,
    ListwiseSoftmax,
    TripletSampler,
)
from simstream._engines.mixing import entries_before_rows, mixed_rows, mixed_state, row_ranges
from simstream.distributed import MixedLearner
from simstream.distributed.mixing import ShardWorker

N_ITEMS, N_FEATURES = 60, 40

LEARNERS = {
    "SORS-I": SORS(lam=1e-3, eta=0.5),
    "SORS-II": SORS(lam=1e-3, eta=0.5, off_diagonal=True),
    "SORS, eta / sqrt(t)": SORS(lam=1e-3, eta=0.5, schedule="inv-sqrt"),
    "AdaSORS-I": AdaSORS(lam=1e-3, eta=0.5),
    "AdaSORS-II": AdaSORS(lam=1e-3, eta=0.5, off_diagonal=True),
    "AROMA": AROMA(r=1.0),
    "AROMA-drop": AROMA(r=1.0, covariance="diagonal-drop"),
    "OGD": OGD(eta=0.1, block_size=1),
    "OASIS": OASIS(C=0.1, block_size=1),
}


def items(dtype=np.float64, density=0.2):
    X = sp.random(N_ITEMS, N_FEATURES, density=density, format="csr", random_state=0)
    return X.astype(dtype)


def stream(n, seed=0):
    return TripletSampler(np.arange(N_ITEMS) % 3, seed).draw(n)


def with_items(learner, X):
    """The learner over these items; `clone` would copy them."""
    return type(learner)(**{**learner.get_params(deep=False), "preprocessor": X})


def matrix(model):
    M = model.get_bilinear_matrix()
    return M.toarray() if sp.issparse(M) else np.array(M)


def second_numbers(learner):
    """H of AdaSORS or the precision minus one of AROMA, as a full matrix."""
    _, arrays = learner._get_state()
    if "u" in arrays:
        return arrays["aux"]
    full = np.zeros((N_FEATURES, N_FEATURES))
    rows = np.repeat(np.arange(N_FEATURES), np.diff(arrays["indptr"]))
    full[rows, arrays["indices"]] = arrays["numbers"][:, 1]
    return full


def each(kinds):
    return pytest.mark.parametrize("name", kinds)


# -- identities ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@each(LEARNERS)
def test_one_shard_in_any_number_of_rounds_is_the_learner_itself(name, dtype, dense):
    X = items(dtype).toarray() if dense else items(dtype)
    learner = with_items(LEARNERS[name], X)
    triplets, more = stream(120), stream(60, 1)
    alone = with_items(learner, X).fit(triplets)
    mixed = MixedLearner(learner, n_shards=1, n_rounds=7).fit(triplets)
    np.testing.assert_array_equal(matrix(mixed), matrix(alone))
    np.testing.assert_array_equal(matrix(mixed.partial_fit(more)), matrix(alone.partial_fit(more)))
    assert mixed.learner_.n_updates_ == alone.n_updates_
    assert mixed.learner_.average_loss_ == alone.average_loss_


@pytest.mark.parametrize("dense", [False, True])
@each(LEARNERS)
def test_identical_shards_are_each_of_them(name, dense):
    X = items().toarray() if dense else items()
    learner = with_items(LEARNERS[name], X)
    one = stream(40)
    mixed = MixedLearner(learner, n_shards=4, n_rounds=1).fit(np.tile(one, (4, 1)))
    alone = with_items(learner, X).fit(one)
    np.testing.assert_array_equal(matrix(mixed), matrix(alone))
    if name.startswith("A"):
        np.testing.assert_allclose(
            second_numbers(mixed.learner_), second_numbers(alone), rtol=1e-14
        )
    assert mixed.learner_.n_rounds_ == 4 * alone.n_rounds_


@each(LEARNERS)
def test_a_round_is_the_average_of_its_shards(name):
    learner = with_items(LEARNERS[name], items())
    triplets = stream(90)
    mixed = MixedLearner(learner, n_shards=3, n_rounds=1).fit(triplets)
    shards = [with_items(learner, items()).fit(part) for part in np.split(triplets, 3)]
    np.testing.assert_allclose(
        matrix(mixed), np.mean([matrix(one) for one in shards], axis=0), rtol=1e-12, atol=1e-15
    )
    second = [second_numbers(one) for one in shards] if name.startswith("A") else []
    if name.startswith("AdaSORS"):  # the average sum of squared gradients
        expected = np.sqrt(np.mean(np.square(second), axis=0))
        np.testing.assert_allclose(second_numbers(mixed.learner_), expected, rtol=1e-12)
    elif name.startswith("AROMA"):
        np.testing.assert_allclose(
            second_numbers(mixed.learner_), np.mean(second, axis=0), rtol=1e-12
        )
    assert mixed.learner_.n_rounds_ == 90
    for count in ("n_updates_", "n_skipped_"):
        assert getattr(mixed.learner_, count) == sum(getattr(one, count) for one in shards)
    losses = [one.average_loss_ for one in shards]
    assert mixed.learner_.average_loss_ == pytest.approx(np.mean(losses), rel=1e-12)


@each(["SORS-I", "SORS-II", "OGD", "OASIS"])
def test_learning_goes_on_as_from_the_average(name):
    """These learners remember nothing but M: a learner that starts from the mixed M is the same one."""
    learner = with_items(LEARNERS[name], items())
    mixed = MixedLearner(learner, n_shards=2, n_rounds=3).fit(stream(60))
    other = with_items(learner, items()).set_params(init=mixed.get_bilinear_matrix())
    rest = stream(80, 1)
    np.testing.assert_allclose(
        matrix(mixed.learner_.partial_fit(rest)), matrix(other.fit(rest)), rtol=1e-12, atol=1e-15
    )


@pytest.mark.parametrize("learner", [AdaSORS(lam=0.0, eta=0.5), AROMA(r=1.0), OGD(eta=0.1)])
def test_the_sum_over_shards_with_features_of_their_own_is_learning_in_order(learner):
    halves = [items()[: N_ITEMS // 2], items()[N_ITEMS // 2 :]]
    X = sp.csr_matrix(sp.block_diag(halves))
    sampler = TripletSampler(np.arange(N_ITEMS // 2) % 3, 0)
    triplets = np.concatenate([sampler.draw(50), sampler.draw(50) + N_ITEMS // 2])
    learner = with_items(learner, X)
    mixed = MixedLearner(learner, n_shards=2, n_rounds=1, step="sum").fit(triplets)
    in_order = with_items(learner, X).fit(triplets)
    np.testing.assert_allclose(matrix(mixed), matrix(in_order), rtol=1e-10, atol=1e-13)
    average = MixedLearner(learner, n_shards=2, n_rounds=1).fit(triplets)
    assert not np.allclose(matrix(average), matrix(in_order))


# -- steps and weights --------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "factor"), [("sqrt", 2.0), ("sum", 4.0), (0.5, 0.5)])
@each(["OGD", "AROMA"])
def test_a_step_is_a_multiple_of_the_way_to_the_average(name, step, factor):
    learner = with_items(LEARNERS[name], items())
    triplets = stream(80)
    average = matrix(MixedLearner(learner, n_shards=4, n_rounds=1).fit(triplets))
    moved = matrix(MixedLearner(learner, n_shards=4, n_rounds=1, step=step).fit(triplets))
    start = np.eye(N_FEATURES)
    np.testing.assert_allclose(moved, start + factor * (average - start), rtol=1e-12, atol=1e-14)


@each(["SORS-I", "AdaSORS-I"])
def test_a_long_step_does_not_carry_thresholded_entries_past_zero(name):
    learner = with_items(LEARNERS[name], items())
    triplets = stream(80)
    start = np.random.default_rng(0).normal(0, 0.02, (N_FEATURES, N_FEATURES))
    learner.set_params(init=start)
    average = matrix(MixedLearner(learner, n_shards=4, n_rounds=1).fit(triplets))
    moved = matrix(MixedLearner(learner, n_shards=4, n_rounds=1, step="sum").fit(triplets))
    beyond = start + 4.0 * (average - start)
    crosses = beyond * average < 0
    assert crosses.sum() > 10
    assert (average == 0).sum() > 10
    assert (moved[crosses | (average == 0)] == 0).all()
    if name == "SORS-I":
        np.testing.assert_allclose(
            moved[~crosses & (average != 0)], beyond[~crosses & (average != 0)]
        )


def test_the_diagonal_of_the_second_variant_is_never_cut():
    learner = with_items(SORS(lam=10.0, eta=0.1, off_diagonal=True), items())
    for step in ("mean", "sum"):
        M = matrix(MixedLearner(learner, n_shards=2, n_rounds=2, step=step).fit(stream(40)))
        assert (np.diag(M) != 0).all()
        assert (M[~np.eye(N_FEATURES, dtype=bool)] == 0).all()


def test_weights_by_updates():
    X = items(density=0.5)
    learner = with_items(OGD(eta=0.1, init=50.0 * np.eye(N_FEATURES)), X)
    margins = with_items(learner, X).fit(stream(1)).triplet_margin(stream(400))
    easy, hard = stream(400)[margins > 5][:30], stream(400)[margins < 0][:30]
    triplets = np.concatenate([easy, easy[:15], hard[:15]])  # only the second shard learns
    mixed = MixedLearner(learner, n_shards=2, n_rounds=1, weights="updates").fit(triplets)
    assert mixed.mixings_[0].n_updates[0] == 0 < mixed.mixings_[0].n_updates[1]
    second = with_items(learner, X).fit(triplets[30:])
    np.testing.assert_allclose(matrix(mixed), matrix(second), rtol=1e-12)
    nothing = MixedLearner(learner, n_shards=2, n_rounds=1, weights="updates").fit(easy)
    np.testing.assert_array_equal(matrix(nothing), 50.0 * np.eye(N_FEATURES))


# -- a round is a function of what it is given --------------------------------------------------


@pytest.mark.parametrize("dense", [False, True])
@each(["SORS-I", "AdaSORS-II", "AROMA"])
def test_a_round_that_is_repeated_is_the_same(name, dense):
    X = items().toarray() if dense else items()
    learner = with_items(LEARNERS[name], X).fit(stream(50))
    start = learner._get_state()
    before = {key: array.copy() for key, array in start[1].items()}
    for array in start[1].values():
        array.flags.writeable = False  # as arrays of Ray are
    job = with_items(learner, None), X
    worker = ShardWorker()
    _, first = worker.learn(job, start, stream(40, 1))
    worker.learn(job, start, stream(70, 2))
    _, again = worker.learn(job, start, stream(40, 1))
    _, elsewhere = ShardWorker().learn((with_items(learner, None), X), start, stream(40, 1))
    for state in (again, elsewhere):
        for key, array in first[1].items():
            np.testing.assert_array_equal(state[1][key], array)
    for key, array in before.items():
        np.testing.assert_array_equal(start[1][key], array)


def learnt_states(learner, X, n_shards=3):
    start = with_items(learner, X).fit(stream(30))._get_state()
    job = with_items(learner, None), X
    worker = ShardWorker()
    states = [worker.learn(job, start, part)[1] for part in np.split(stream(90, 1), n_shards)]
    return start, states


@pytest.mark.parametrize("dense", [False, True])
@each(["SORS-II", "AdaSORS-I", "AROMA"])
def test_rows_may_be_mixed_in_any_number_of_parts(name, dense):
    X = items().toarray() if dense else items()
    start, states = learnt_states(LEARNERS[name], X)
    clocks = [arrays["clock"] for _, arrays in states]
    found = []
    for n_parts in (1, 2, 5, 1000):
        ranges = row_ranges([entries_before_rows(arrays) for _, arrays in states], n_parts)
        assert [a for a, _ in ranges] == [0, *(b for _, b in ranges[:-1])]
        assert ranges[-1][1] == N_FEATURES
        parts = [mixed_rows(start, states, np.full(3, 1 / 3), 1.0, rows) for rows in ranges]
        found.append(mixed_state(start, clocks, parts)[1])
    for other in found[1:]:
        for key, array in found[0].items():
            np.testing.assert_array_equal(other[key], array)


def test_states_may_number_their_features_differently():
    """An engine of sparse items may choose its dense block again, each shard for itself."""
    learner = with_items(AdaSORS(lam=1e-3, eta=0.5, head_bytes=800), items())
    start, states = learnt_states(learner, items())
    clocks = [arrays["clock"] for _, arrays in states]
    rows = 0, N_FEATURES
    expected = mixed_state(start, clocks, [mixed_rows(start, states, np.full(3, 1 / 3), 1.0, rows)])
    header, arrays = states[1]
    place = np.random.default_rng(0).permutation(N_FEATURES)  # of each row, and of each column
    entries = sp.csr_matrix(
        (np.arange(len(arrays["indices"])), arrays["indices"], arrays["indptr"]),
        start[0]["scalars"]["shape"],
    )
    moved = entries[np.argsort(place)]
    states[1] = (
        header,
        {
            **arrays,
            "indptr": moved.indptr.astype(np.int64),
            "indices": place[moved.indices].astype(np.int32),
            "numbers": arrays["numbers"][moved.data],
            "row_rank": place[arrays["row_rank"]],
            "column_rank": place[arrays["column_rank"]],
        },
    )
    again = with_items(learner, items())
    again._set_state(*states[1])  # the same model
    np.testing.assert_array_equal(
        matrix(again), matrix(_restored(with_items(learner, items()), (header, arrays)))
    )
    found = mixed_state(start, clocks, [mixed_rows(start, states, np.full(3, 1 / 3), 1.0, rows)])
    np.testing.assert_array_equal(
        matrix(_restored(again, found)), matrix(_restored(with_items(learner, items()), expected))
    )


def _restored(learner, state):
    learner._set_state(*state)
    return learner


@each(LEARNERS)
def test_sparse_and_dense_items_mix_alike(name):
    triplets = stream(120)
    models = [
        MixedLearner(with_items(LEARNERS[name], X), n_shards=3, n_rounds=4).fit(triplets)
        for X in (items(), items().toarray())
    ]
    np.testing.assert_allclose(matrix(models[0]), matrix(models[1]), rtol=1e-9, atol=1e-12)


def test_where_entries_are_stored_changes_nothing():
    triplets = stream(120)
    models = [
        MixedLearner(
            with_items(AdaSORS(lam=1e-3, eta=0.5, head_bytes=n), items()), n_shards=3, n_rounds=4
        ).fit(triplets)
        for n in (800, 2**20)
    ]
    np.testing.assert_allclose(matrix(models[0]), matrix(models[1]), rtol=1e-12, atol=1e-15)


def test_means_item_terms_and_lists_are_mixed_too():
    X = items()
    learner = SORS(
        lam=0.0, eta=0.05, centre="auto", item_term=True, init_scale="auto", preprocessor=X
    )
    triplets, others = stream(80), stream(100, 3)
    mixed = MixedLearner(learner, n_shards=2, n_rounds=1).fit(triplets)
    np.testing.assert_allclose(mixed.learner_.centre_, np.asarray(X.mean(axis=0)).ravel())
    margins = [
        with_items(learner, X).fit(part).triplet_margin(others) for part in np.split(triplets, 2)
    ]
    np.testing.assert_allclose(mixed.triplet_margin(others), np.mean(margins, axis=0), rtol=1e-9)
    lists = TripletSampler(np.arange(N_ITEMS) % 3, 0).draw_lists(60, 5)
    listwise = MixedLearner(ListwiseSoftmax(preprocessor=X), n_shards=2, n_rounds=3).fit(lists)
    assert listwise.learner_.n_rounds_ == 60


def test_triplets_of_vectors():
    X, triplets = items().toarray(), stream(60)
    by_rows = MixedLearner(AROMA(preprocessor=X), n_shards=2, n_rounds=3).fit(triplets)
    by_vectors = MixedLearner(AROMA(), n_shards=2, n_rounds=3).fit(X[triplets])
    np.testing.assert_array_equal(matrix(by_rows), matrix(by_vectors))


# -- using it -----------------------------------------------------------------------------------


def test_a_mixed_model_is_saved_as_a_file_of_its_learner(tmp_path):
    X = items(np.float32)
    learner = SORS(lam=1e-3, eta=0.5, preprocessor=X)
    mixed = MixedLearner(learner, n_shards=4, n_rounds=2).fit(stream(80))
    mixed.save(tmp_path / "model.safetensors", extra={"note": 1})
    loaded = simstream.load(tmp_path / "model.safetensors", preprocessor=X)
    assert type(loaded) is SORS
    np.testing.assert_array_equal(matrix(loaded), matrix(mixed))
    rest = stream(30, 1)
    np.testing.assert_array_equal(
        matrix(loaded.partial_fit(rest)), matrix(mixed.learner_.partial_fit(rest))
    )
    assert learner._engine is None  # the given learner is left alone


def test_it_is_read_like_any_learner():
    X = items()
    mixed = MixedLearner(SORS(preprocessor=X, normalise=True), n_shards=2, n_rounds=5)
    mixed.fit(stream(50))
    inner = mixed.learner_
    np.testing.assert_array_equal(mixed.transform_query(X), inner.transform_query(X))
    np.testing.assert_array_equal(mixed.search(X, X, 3).indices, inner.search(X, X, 3).indices)
    assert mixed.similarity_.normalise
    assert mixed.dtype_ == np.float64
    assert [one.n_tuples for one in mixed.mixings_] == [(5, 5)] * 5
    assert all(one.critical_seconds >= max(one.learning) for one in mixed.mixings_)


# -- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_shards": 0}, ValueError, "n_shards: expected an integer >= 1, got 0"),
        ({"n_rounds": 0}, ValueError, "n_rounds: expected an integer >= 1, got 0"),
        ({"n_shards": 2.0}, TypeError, "n_shards: expected an integer, got 2.0"),
        ({"n_workers": -1}, ValueError, "n_workers: expected an integer >= 0, got -1"),
        (
            {"weights": "loss"},
            ValueError,
            "weights: expected one of 'uniform', 'updates', got 'loss'",
        ),
        ({"step": "twice"}, ValueError, "step: expected one of 'mean', 'sqrt', 'sum', got 'twice'"),
        ({"step": 0.0}, ValueError, "step: expected a number > 0"),
        (
            {"n_shards": 6, "n_rounds": 5},
            ValueError,
            r"at least n_shards x n_rounds \(6 x 5\), got 29",
        ),
    ],
)
def test_bad_parameters(options, error, message):
    with pytest.raises(error, match=message):
        MixedLearner(SORS(preprocessor=items()), **options).fit(stream(29))


@pytest.mark.parametrize(
    ("learner", "error", "message"),
    [
        (simstream.PAMetric(), TypeError, "learner: expected SORS, .*, got PAMetric"),
        (OASIS(average_from=1), ValueError, "average_from: expected None"),
        (AROMA(covariance="factored"), ValueError, "covariance: expected 'diagonal'"),
        (OASIS(device="torch"), ValueError, "device: expected 'cpu'"),
        (SORS(eta=-1.0), ValueError, "eta: expected"),
    ],
)
def test_learners_that_cannot_be_mixed(learner, error, message):
    with pytest.raises(error, match=message):
        MixedLearner(learner.set_params(preprocessor=items())).fit(stream(50))


def test_bad_input_changes_nothing():
    X = items()
    mixed = MixedLearner(SORS(preprocessor=X), n_shards=2, n_rounds=2)
    with pytest.raises(
        simstream.similarity.learner.NotFittedError, match="call fit or partial_fit"
    ):
        mixed.search(X, X, 1)
    bad = X.copy()
    bad.data[0] = np.nan
    with pytest.raises(ValueError, match=r"preprocessor: .*NaN"):
        MixedLearner(SORS(preprocessor=bad)).fit(stream(50))
    mixed.fit(stream(40))
    before = matrix(mixed)
    with pytest.raises(ValueError, match="anchor"):
        mixed.partial_fit(stream(40) + N_ITEMS)
    with pytest.raises(ValueError, match="features"):
        mixed.partial_fit(np.zeros((8, 3, N_FEATURES + 1)))
    np.testing.assert_array_equal(matrix(mixed), before)
    assert mixed.learner_.n_rounds_ == 40


def test_a_shard_that_diverges_is_an_error_and_changes_nothing():
    X = items(np.float32)
    mixed = MixedLearner(OGD(eta=0.1, preprocessor=X), n_shards=2, n_rounds=2).fit(stream(40))
    before = matrix(mixed)
    mixed.learner_.set_params(eta=1e35)
    with pytest.raises(DivergedError, match="diverged"):
        mixed.partial_fit(stream(400))
    np.testing.assert_array_equal(matrix(mixed), before)


# -- the command --------------------------------------------------------------------------------


@pytest.fixture
def items_file(tmp_path):
    path = tmp_path / "items.npz"
    sp.save_npz(path, items())
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(str(n % 3) for n in range(N_ITEMS)))
    return path, "--labels", labels


def test_train_mixed(items_file, tmp_path):
    output = tmp_path / "model.safetensors"
    given = ("-a", "sors", "-p", "lam=0.001", "-n", 300, "--seed", 4, "-o", output)
    result = succeed("train", *items_file, *given, "--mix", 3, "--rounds", 2)
    assert "300 triplets in 2 rounds of 3 shards" in result.stdout
    model = simstream.load(output)
    triplets = TripletSampler([str(n % 3) for n in range(N_ITEMS)], 4).draw(300)
    learner = SORS(lam=0.001, preprocessor=items())
    expected = MixedLearner(learner, n_shards=3, n_rounds=2).fit(triplets)
    np.testing.assert_array_equal(matrix(model), matrix(expected))
    assert model.normalise  # as without --mix
    goes_on = tmp_path / "more.safetensors"
    succeed("train", *items_file, "--resume", output, "-n", 50, "-o", goes_on)
    assert simstream.load(goes_on).n_rounds_ == 350
    np.savetxt(tmp_path / "triplets.csv", triplets, "%d", delimiter=",")
    from_file = tmp_path / "file.safetensors"
    given = (
        "-a",
        "sors",
        "-p",
        "lam=0.001",
        "--triplets",
        tmp_path / "triplets.csv",
        "-o",
        from_file,
    )
    succeed("train", items_file[0], *given, "--mix", 3, "--rounds", 2)
    np.testing.assert_array_equal(matrix(simstream.load(from_file)), matrix(expected))


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--rounds", 2), 2, "--rounds requires --mix"),
        (("--workers", 2), 2, "--workers: .*; use --mix N instead"),
        (
            ("--mix", 2, "--checkpoint", "folder"),
            2,
            "--checkpoint is for learning in order",
        ),
        (("--mix", 2, "--address", "auto"), 2, "--address requires --workers"),
        (("--mix", 2, "--checkpoint-every", 5), 2, "--checkpoint-every is for learning in order"),
        (("--mix", 2, "--negatives", "near"), 2, "--negatives is for learning in order"),
        (("--mix", 0), 2, "Invalid value for '--mix': 0"),
        (("--mix", 2, "-a", "pametric"), 2, "--mix: learner: expected SORS, .* got PAMetric"),
        (("--mix", 2, "-a", "lmnn"), 2, "--mix is for online learners"),
        (("--mix", 30, "-n", 20), 2, r"--n-tuples: expected at least --mix times --rounds \(30\)"),
        (("--mix", 2, "-a", "aroma", "-p", "covariance=factored"), 2, "covariance: expected"),
    ],
)
def test_options_that_do_not_fit_mixing(items_file, tmp_path, options, code, message):
    output = tmp_path / "model.safetensors"
    line = fail(code, "train", *items_file, "-a", "sors", *options, "-o", output)
    assert re.search(message, line), line
    assert not output.exists()
