"""Quadruplets (a is more like b than c is like d) beside a textbook loop, and as triplets."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import simstream
from cases import items, triplets
from simstream import OASIS, OGD, SORS, Items, Mahalanobis, PAMetric
from simstream.data import open_rows

N = 200


def quadruplets(n=N, n_items=40, seed=3):
    return np.random.default_rng(seed).integers(0, n_items, (n, 4))


def textbook(M, steps, length):
    """One step at a time: `steps` are matrices G, `length` is a function of (round, loss, ||G||^2)."""
    iterates, losses = [], []
    for t, G in enumerate(steps):
        loss = 1 - np.sum(M * G)
        losses.append(max(0.0, loss))
        norm = np.sum(G * G)
        if norm > 0:
            M = M + length(t, loss, norm) * G
        iterates.append(M)
    return iterates, losses


def bilinear_steps(X, Q, Y=None):
    Y = X if Y is None else Y
    return [np.outer(X[a], Y[b]) - np.outer(X[c], Y[d]) for a, b, c, d in Q]


def distance_steps(X, Q):
    V, W = X[Q[:, 0]] - X[Q[:, 1]], X[Q[:, 2]] - X[Q[:, 3]]
    return [np.outer(w, w) - np.outer(v, v) for v, w in zip(V, W, strict=True)]


LENGTHS = {
    "PA-I": (OASIS(C=0.02), lambda t, loss, norm: min(0.02, max(0, loss) / norm)),
    "PA": (OASIS(variant="PA"), lambda t, loss, norm: max(0, loss) / norm),
    "PA-II": (OASIS(C=0.5, variant="PA-II"), lambda t, loss, norm: max(0, loss) / (norm + 1)),
    "OGD": (OGD(eta=0.03), lambda t, loss, norm: 0.03 * (loss > 0)),
    "OGD, inv-sqrt": (
        OGD(eta=0.1, schedule="inv-sqrt"),
        lambda t, loss, norm: 0.1 / np.sqrt(t + 1) * (loss > 0),
    ),
}


@pytest.mark.parametrize("block_size", [None, 7, 200])
@pytest.mark.parametrize("name", LENGTHS)
def test_bilinear_learners_take_the_textbook_steps(name, block_size):
    learner, length = LENGTHS[name]
    X, Q = items(), quadruplets()
    iterates, losses = textbook(np.eye(16), bilinear_steps(X, Q), length)
    model = learner.set_params(block_size=block_size, preprocessor=X).fit(Q)
    np.testing.assert_allclose(model.get_bilinear_matrix(), iterates[-1], atol=1e-9)
    assert model.average_loss_ == pytest.approx(np.mean(losses))
    assert model.n_rounds_ == N
    in_parts = learner.fit(Q[:50]).partial_fit(Q[50:51]).partial_fit(Q[51:])
    np.testing.assert_allclose(in_parts.get_bilinear_matrix(), iterates[-1], atol=1e-9)


def test_the_average_of_the_matrices_that_rounds_began_with():
    X, Q = items(), quadruplets()
    iterates, _ = textbook(np.eye(16), bilinear_steps(X, Q), LENGTHS["PA-I"][1])
    model = OASIS(C=0.02, average_from=1, preprocessor=X).fit(Q)
    expected = np.mean([np.eye(16), *iterates[:-1]], axis=0)
    np.testing.assert_allclose(model.get_bilinear_matrix(), expected, atol=1e-9)


@pytest.mark.parametrize("variant", ["PA-I", "PA", "PA-II", "PALS"])
def test_distances_take_the_textbook_steps_and_keep_their_threshold(variant):
    X, Q = items(), quadruplets()
    lengths = {
        "PA-I": lambda t, loss, norm: min(0.02, max(0, loss) / norm),
        "PA": lambda t, loss, norm: max(0, loss) / norm,
        "PA-II": lambda t, loss, norm: max(0, loss) / (norm + 25),
        "PALS": lambda t, loss, norm: loss / (norm + 25),
    }
    start = np.diag(np.linspace(1, 2, 16))
    model = PAMetric(0.02, variant=variant, init=start, preprocessor=X)
    P = np.random.default_rng(5).permutation(40).reshape(-1, 2)
    model.fit(P, np.tile([1, -1], 10))
    M, threshold = model._engine.matrix().copy(), model.threshold_
    iterates, _ = textbook(M, distance_steps(X, Q), lengths[variant])
    model.partial_fit(Q)
    np.testing.assert_allclose(model._engine.matrix(), iterates[-1], atol=1e-8)
    assert model.threshold_ == threshold


def test_with_one_anchor_they_are_triplets():
    X, T = items(), triplets()
    Q = T[:, [0, 1, 0, 2]]
    for learner in (
        OASIS(0.05, preprocessor=X),
        OGD(0.05, average_from=20, preprocessor=X),
        OASIS(0.05, init_scale="auto", centre="auto", item_term=True, preprocessor=X),
        OASIS(0.05, init="zeros", preprocessor=(X, X[:, :9])),
    ):
        expected = learner.fit(T).get_bilinear_matrix()
        margins = learner.decision_function(T)
        learner.fit(Q)
        np.testing.assert_allclose(learner.get_bilinear_matrix(), expected, atol=1e-9)
        np.testing.assert_allclose(learner.decision_function(Q), margins, atol=1e-9)


def test_a_centre_and_an_item_term():
    """By hand: queries [q - m, k], items x - m, and the last row of the matrix is the item term over k."""
    X, Q = items(), quadruplets()
    m, k = np.linspace(-0.3, 0.4, 16), 0.7
    left = np.column_stack([X - m, np.full(len(X), k)])
    iterates, _ = textbook(np.eye(17, 16), bilinear_steps(left, Q, X - m), LENGTHS["PA-I"][1])
    model = OASIS(0.02, centre=m, item_term=k, preprocessor=X).fit(Q)
    np.testing.assert_allclose(model.get_bilinear_matrix(), iterates[-1][:16], atol=1e-9)
    scores = left @ iterates[-1] @ (X - m).T
    expected = scores[Q[:, 0], Q[:, 1]] - scores[Q[:, 2], Q[:, 3]]
    np.testing.assert_allclose(model.quadruplet_margin(Q), expected, atol=1e-9)


def test_vectors_row_numbers_and_single_ones_are_the_same():
    X, Q = items(), quadruplets(60)
    for learner in (OASIS(0.02), PAMetric(0.02)):
        rows = learner.set_params(preprocessor=X).fit(Q).score_items(X, X)
        learner.set_params(preprocessor=None)
        np.testing.assert_allclose(learner.fit(X[Q]).score_items(X, X), rows, atol=1e-9)
        one = type(learner)(0.02)
        for a, b, c, d in Q:
            one.learn_one(X[a], X[b], X[c], X[d])
        np.testing.assert_allclose(one.score_items(X, X), rows, atol=1e-9)


def test_single_precision_to_its_rounding():
    X, Q = items(dtype=np.float32), quadruplets()
    model = OASIS(0.02, preprocessor=X).fit(Q)
    assert model.dtype_ == np.float32
    wide = OASIS(0.02, preprocessor=X.astype(float)).fit(Q)
    np.testing.assert_allclose(model.get_bilinear_matrix(), wide.get_bilinear_matrix(), atol=1e-3)


def test_what_says_nothing_is_skipped_and_counted():
    X = items()
    model = OASIS(preprocessor=X).fit([[0, 1, 0, 1], [2, 3, 4, 5]])
    assert (model.n_rounds_, model.n_skipped_) == (2, 1)


def test_margins_predictions_and_scores():
    X, Q = items(), quadruplets()
    S = np.diag(np.linspace(0.5, 2, 16))
    metric = Mahalanobis(S, preprocessor=X)
    V, W = X[Q[:, 0]] - X[Q[:, 1]], X[Q[:, 2]] - X[Q[:, 3]]
    expected = np.einsum("ij,jk,ik->i", W, S, W) - np.einsum("ij,jk,ik->i", V, S, V)
    np.testing.assert_allclose(metric.quadruplet_margin(Q), expected)
    np.testing.assert_allclose(metric.decision_function(X[Q]), expected)
    np.testing.assert_array_equal(metric.predict(Q), np.where(expected > 0, 1, -1))
    assert metric.score(Q) == np.mean(expected > 0)
    learner = OASIS(preprocessor=X).fit(triplets())
    assert learner.score(Q) == np.mean(learner.predict(Q) == 1)


def test_they_recover_a_planted_distance():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5))
    planted = Mahalanobis(np.diag([4.0, 2.0, 1.0, 0.2, 0.0]), preprocessor=X)
    Q = rng.integers(0, 60, (4000, 4))
    Q = np.where(planted.quadruplet_margin(Q)[:, None] > 0, Q, Q[:, [2, 3, 0, 1]])
    model = PAMetric(0.1, preprocessor=X).fit(Q[:3000])
    assert simstream.Euclidean(preprocessor=X).fit(Q[:1, :3]).score(Q[3000:]) < 0.8
    assert model.score(Q[3000:]) > 0.9


def test_where_they_cannot_be_learnt_from():
    X, Q = items(), quadruplets(20)
    sparse = OASIS(preprocessor=sp.csr_matrix(X))
    with pytest.raises(ValueError, match="quadruplets: expected dense items"):
        sparse.fit(Q)
    assert not hasattr(sparse, "n_features_in_")
    sparse.fit(triplets()).set_params(preprocessor=X)
    with pytest.raises(ValueError, match="began with sparse"):
        sparse.partial_fit(Q)
    assert sparse.fit(Q).n_rounds_ == 20  # forgets how it began
    with pytest.raises(ValueError, match="triplets of row numbers: expected shape"):
        SORS(preprocessor=X).fit(Q)
    with pytest.raises(ValueError, match="expected"):
        PAMetric(projection="every-step", preprocessor=X).fit(Q)
    with pytest.raises(ValueError, match="y: expected None with quadruplets"):
        PAMetric(preprocessor=X).fit(Q, np.ones(20))
    with pytest.raises(TypeError, match="SORS does not learn from quadruplets"):
        SORS().learn_one(*X[:4])
    with pytest.raises(ValueError, match="as many features"):
        OASIS().learn_one(X[0], X[1], X[2, :5], X[3])
    with pytest.raises((ValueError, IndexError), match="fourth item"):
        OASIS(preprocessor=X).fit([[0, 1, 2, 40]])


def test_what_diverges_keeps_the_rounds_before():
    X, Q = items(), quadruplets()
    model = OGD(1e28, preprocessor=X)
    with pytest.raises(simstream.DivergedError, match="diverged"):
        model.fit(Q)
    n = model.n_rounds_
    assert 0 < n < N
    expected = OGD(1e28, preprocessor=X).fit(Q[:n])
    np.testing.assert_allclose(model.get_bilinear_matrix(), expected.get_bilinear_matrix())


def test_devices_are_refused():
    pytest.importorskip("torch")
    message = "device: expected 'cpu' or 'auto' for quadruplets, got 'torch'"
    with pytest.raises(ValueError, match=message):
        OASIS(device="torch", preprocessor=items()).fit(quadruplets())


@pytest.mark.parametrize("learner", [OASIS(0.02), PAMetric(0.02)], ids=repr)
def test_auto_learns_on_the_cpu_and_triplets_on_the_device(learner, monkeypatch):
    torch = pytest.importorskip("torch")
    find = simstream.online.base.find_device

    def find_gpu(device, *, is_sparse=False):
        """As on a machine with a GPU, which is the code for GPUs on the CPU."""
        if device == "auto" and not is_sparse:
            return torch.device("cpu")
        return find(device, is_sparse=is_sparse)

    monkeypatch.setattr(simstream.online.base, "find_device", find_gpu)
    X, Q, T = items(), quadruplets(), triplets()
    pairs = X[Q[:, :2]]
    scores = []
    for device in ("cpu", "auto"):
        model = clone(learner).set_params(device=device, preprocessor=X).fit(Q[:100])
        assert model._engine.device is None
        model.partial_fit(T)
        assert (model._engine.device is None) == (device == "cpu")
        model.partial_fit(Q[100:]).learn_one(*X[:4])
        scores.append(model.pair_score(pairs))
    np.testing.assert_allclose(*scores, rtol=1e-8, atol=1e-8)


def test_saved_and_loaded_goes_on(tmp_path):
    X, Q = items(), quadruplets()
    never = OASIS(0.02, preprocessor=X).fit(Q[:128])
    never.save(tmp_path / "m")
    again = simstream.load(tmp_path / "m", preprocessor=X).partial_fit(Q[128:])
    never.partial_fit(Q[128:])
    np.testing.assert_array_equal(again.get_bilinear_matrix(), never.get_bilinear_matrix())


@pytest.mark.parametrize("learner", [OASIS(), OASIS(centre="auto", item_term=True), PAMetric()])
def test_two_files_are_learnt_from_like_two_arrays(tmp_path, learner):
    sides = items(n=20), items(n=12, seed=1)
    rows = []
    for number, side in enumerate(sides):
        np.save(tmp_path / f"{number}.npy", side)
        rows.append(open_rows(tmp_path / f"{number}.npy"))
    Q = [[10 + i, i % 2, 2 + i % 2, 1 - i % 2] for i in range(10)]
    pairs = [[q, i] for q in range(20) for i in range(12)]
    expected = learner.set_params(preprocessor=sides).fit(Q).pair_score(pairs)
    found = learner.set_params(preprocessor=tuple(rows)).fit(Q).pair_score(pairs)
    np.testing.assert_array_equal(found, expected)


def test_names_of_features_are_kept_and_checked():
    X, Q = items(), quadruplets()
    names = [f"feature {n}" for n in range(X.shape[1])]
    right, wrong = Items.with_feature_names(X, names), Items.with_feature_names(X, names[::-1])
    model = PAMetric(preprocessor=right).fit(Q)
    assert model.feature_names_in_.tolist() == names
    for items_given in (wrong, (right, wrong)):
        model.set_params(preprocessor=items_given)
        with pytest.raises(ValueError, match="the same names in another order"):
            model.partial_fit(Q)
    model.set_params(preprocessor=(right, right)).partial_fit(Q)
