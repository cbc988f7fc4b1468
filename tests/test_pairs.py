"""Learners from pairs: against their eager references, their identities, and their bounds."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import KNeighborsClassifier

import simstream
import simstream_repro.reference as ref
from cases import LAYOUTS, items, triplets
from pair_cases import PAIR_CASES, SCALE, TARGETS, pairs, stream_of_pairs, stream_of_triplets
from simstream import LEGO, POLA, RDML, Mahalanobis, OnlineITML, PairSampler, PAMetric

every_case = pytest.mark.parametrize("case", PAIR_CASES, ids=lambda c: c.name)
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
VARIANTS = ["PA", "PA-I", "PA-II", "PALS"]


def make(case, layout="dense", dtype=np.float64, **options):
    convert, extra = LAYOUTS[layout]
    if not case.hashes:
        extra = {}
    return case.make(preprocessor=convert(items(dtype=dtype)), **extra, **options)


def close(model, expected, tolerance=1e-10):
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(
        model.get_mahalanobis_matrix(), expected, rtol=0, atol=tolerance * scale
    )


# -- against the references ------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 2e-4)])
@every_layout
@every_case
def test_equals_eager(case, layout, dtype, tolerance):
    P, y = pairs()
    model = make(case, layout, dtype).fit(P, y)
    assert model.get_mahalanobis_matrix().dtype == dtype
    close(model, case.matrix(stream_of_pairs(items(dtype=dtype), P, y)), tolerance)
    assert model.n_rounds_ == len(P)


@every_layout
@every_case
def test_triplets_are_a_similar_and_a_dissimilar_pair(case, layout):
    T = triplets(n=100)
    model = make(case, layout).fit(T)
    close(model, case.matrix(stream_of_triplets(items(), T)))
    assert model.n_rounds_ == 200


@pytest.mark.parametrize("block_size", [2, 7, 64, 1000])
@pytest.mark.parametrize("case", [c for c in PAIR_CASES if c.blocks], ids=lambda c: c.name)
def test_blocks_are_one_at_a_time(case, block_size):
    P, y = pairs()
    one = make(case, block_size=1).fit(P, y)
    blocks = make(case, block_size=block_size).fit(P, y)
    close(blocks, one.get_mahalanobis_matrix())
    assert blocks.threshold_ == pytest.approx(one.threshold_, abs=1e-10)
    assert blocks.n_updates_ == one.n_updates_
    assert blocks.average_loss_ == pytest.approx(one.average_loss_, rel=1e-9)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("projection", ["end", "every-step"])
def test_threshold_counts_and_tolerance_follow_the_reference(variant, projection):
    P, y = pairs()
    stream = stream_of_pairs(items(), P, y)
    for tolerance in (0.0, 0.004):
        model = PAMetric(
            0.01, variant=variant, projection=projection, tolerance=tolerance, preprocessor=items()
        ).fit(P, y)
        path = ref.pa_metric(
            np.zeros((16, 16)), stream, 0.01, variant, projection == "every-step", tolerance
        )
        signed = np.array(
            [1 - label * (b - v @ M @ v) for (M, b), (v, label) in zip(path, stream, strict=False)]
        )
        assert model.threshold_ == pytest.approx(max(1.0, path[-1][1]), abs=1e-10)
        assert model.average_loss_ == pytest.approx(np.maximum(0, signed).mean())
        assert model.mistake_rate_ == np.mean(signed >= 1)
        assert model.violation_rate_ == np.mean(signed > 0)
        assert model.mistake_rate_ <= model.violation_rate_
        changed = [not np.array_equal(a[0], b[0]) for a, b in itertools.pairwise(path)]
        assert model.n_updates_ == sum(changed)
    assert sum(changed) < len(P)  # the tolerance did skip steps


# -- identities --------------------------------------------------------------------------------------


@pytest.mark.parametrize("projection", ["end", "every-step"])
def test_limits_of_c_are_plain_pa(projection):
    P, y = pairs()
    options = {"projection": projection, "preprocessor": items()}
    pa = PAMetric(variant="PA", **options).fit(P, y)
    pa1 = PAMetric(np.inf, variant="PA-I", **options).fit(P, y)
    pa2 = PAMetric(1e12, variant="PA-II", **options).fit(P, y)
    np.testing.assert_array_equal(pa1.get_mahalanobis_matrix(), pa.get_mahalanobis_matrix())
    assert pa1.threshold_ == pa.threshold_
    close(pa2, pa.get_mahalanobis_matrix(), 1e-9)


def test_pola_is_pa_with_projections():
    P, y = pairs()
    pola = POLA(preprocessor=items()).fit(P, y)
    pa = PAMetric(variant="PA", projection="every-step", preprocessor=items()).fit(P, y)
    np.testing.assert_array_equal(pola.get_mahalanobis_matrix(), pa.get_mahalanobis_matrix())
    assert pola.threshold_ == pa.threshold_


def raw(model):
    """(M, b) that learning goes on with."""
    from simstream._kernels.steps import THRESHOLD

    M = model._engine.matrix()
    return (M.toarray() if sp.issparse(M) else M), model._engine.clock[THRESHOLD]


def steps_of(variant, C, P, y, X):
    """(signed loss before, raw M and b before and after) of every pair, one at a time."""
    model = PAMetric(C, variant=variant, preprocessor=X, block_size=1)
    M, b = np.zeros((X.shape[1],) * 2), 0.0
    for pair, label in zip(P, y, strict=True):
        v = X[pair[0]] - X[pair[1]]
        model.partial_fit(pair[None], [label])
        after = raw(model)
        yield v, label, (M.copy(), b), (after[0].copy(), after[1])
        M, b = after[0].copy(), after[1]


def signed_loss(M, b, v, y):
    return 1 - y * (b - v @ M @ v)


def test_an_unprojected_step_repairs_its_pair():
    P, y = pairs(n=80)
    for v, label, before, after in steps_of("PA", 1.0, P, y, items()):
        if signed_loss(*before, v, label) > 0:
            assert signed_loss(*after, v, label) == pytest.approx(0, abs=1e-10)
    for variant in ("PA-II", "PALS"):
        for v, label, before, after in steps_of(variant, 0.02, P, y, items()):
            p, K = signed_loss(*before, v, label), 1 + (v @ v) ** 2
            tau = p / (K + 1 / 0.04)
            if variant == "PALS" or p > 0:
                assert signed_loss(*after, v, label) == pytest.approx(tau / 0.04, abs=1e-9)
                assert after[1] - before[1] == pytest.approx(tau * label)


def test_step_lengths_are_clipped_versions_of_each_other():
    from simstream._kernels import steps

    step_length = getattr(steps.step_length, "py_func", steps.step_length)
    rng = np.random.default_rng(0)
    for p, K, C in np.column_stack(
        [rng.normal(size=200), 1 + rng.random(200) * 5, 10 ** rng.uniform(-3, 2, 200)]
    ):
        tau = {
            rule: step_length(steps.Step(rule, C=C), max(0.0, p), K, 0.0, 0.0)
            for rule in (steps.PA, steps.PA_I, steps.PA_II)
        }
        pals = step_length(steps.Step(steps.PALS, C=C), p, K, 0.0, 0.0)
        assert tau[steps.PA_II] == max(0.0, pals)
        assert tau[steps.PA_I] == min(C, tau[steps.PA])


def test_pals_is_pa_ii_while_every_pair_has_a_loss():
    """Dissimilar pairs that the model has never seen: nothing is ever beyond its margin."""
    X = np.vstack([np.eye(6), np.zeros((1, 6))])
    P, y = np.column_stack([np.arange(6), np.full(6, 6)]), -np.ones(6)
    both = [PAMetric(0.1, variant=v, preprocessor=X).fit(P, y) for v in ("PALS", "PA-II")]
    np.testing.assert_array_equal(*(m.get_mahalanobis_matrix() for m in both))


@pytest.mark.parametrize("variant", VARIANTS)
def test_plus_stays_in_the_cone_with_one_negative_eigenvalue_to_remove(variant):
    P, y = pairs()
    X = items()
    model = PAMetric(0.05, variant=variant, projection="every-step", preprocessor=X)
    M, b = np.zeros((16, 16)), 0.0
    projections = 0
    for pair, label in zip(P, y, strict=True):
        v = X[pair[0]] - X[pair[1]]
        p, K = signed_loss(M, b, v, label), 1 + (v @ v) ** 2
        changed = model.partial_fit(pair[None], [label]).n_updates_
        after, b_after = raw(model)
        if not np.array_equal(after, M):
            values = np.linalg.eigvalsh(after)
            assert values[0] >= -1e-10 * max(1, values[-1])
            assert b_after >= 1
            tau = {
                "PA": max(0, p) / K,
                "PA-I": min(0.05, max(0, p) / K),
                "PA-II": max(0, p) / (K + 10),
                "PALS": p / (K + 10),
            }[variant]
            before_projection = np.linalg.eigvalsh(M - tau * label * np.outer(v, v))
            assert np.count_nonzero(before_projection < -1e-12) <= (tau * label > 0)
            projections += before_projection[0] < -1e-12
        M, b = after, b_after
    assert projections > 20
    assert changed > 50


def test_rank_one_projection_against_a_full_eigendecomposition():
    """500 random cases: full rank, rank-deficient, v inside the range of M, clustered eigenvalues."""
    from simstream._engines import SpectralEngine
    from simstream._kernels import steps
    from simstream.data.comparisons import Comparisons
    from simstream.validation import Items

    rng = np.random.default_rng(0)
    negative = 0
    for case in range(500):
        d = int(rng.integers(1, 25))
        rank = int(rng.integers(0, d + 1)) if case % 2 else d
        Q = np.linalg.qr(rng.normal(size=(d, d)))[0][:rank]
        values = 10.0 ** rng.uniform(-3, 3, rank)
        if case % 5 == 0 and rank > 2:
            values[1:] = values[0] * (1 + 1e-14 * rng.normal(size=rank - 1))
        M = (Q.T * values) @ Q
        v = rng.normal(size=d) * 10.0 ** rng.uniform(-2, 2)
        if case % 3 == 0 and rank:
            v = M @ v / values.max()
        tau = 10.0 ** rng.uniform(-3, 3) / max(v @ v, 1e-12)
        sign = 1.0 if case % 7 == 0 else -1.0
        engine = SpectralEngine(values, Q, np.float64, shortens=False, threshold=0.0)
        pair = Comparisons(
            Items(v[None]), Items(np.zeros((1, d))), np.zeros((1, 2), int), np.array([-sign])
        )
        # A constant step of length tau, whatever the loss.
        engine.learn(steps.Step(steps.ON_MISTAKE, eta=tau, margin=1e20), pair, 1)
        N = M + sign * tau * np.outer(v, v)
        negative += np.linalg.eigvalsh(N)[0] < -1e-12
        expected = ref.positive_part(N)
        np.testing.assert_allclose(
            engine.matrix(), expected, rtol=0, atol=1e-10 * max(1.0, np.abs(N).max())
        )
        E = engine.vectors
        np.testing.assert_allclose(E @ E.T, np.eye(len(E)), atol=1e-12)
    assert negative > 200


# -- bounds ------------------------------------------------------------------------------------------


def comparators(X, P, y):
    """A few (M*, b*) with M* positive semi-definite and b* >= 1."""
    d = X.shape[1]
    diagonal = np.diag((np.arange(d) < 6).astype(float))
    learnt = PAMetric(0.01, preprocessor=X).fit(P, y)
    return [
        (np.zeros((d, d)), 1.0),
        (diagonal, 5.0),
        (0.5 * np.eye(d), 3.0),
        (learnt.get_mahalanobis_matrix(), learnt.threshold_),
    ]


@pytest.mark.parametrize("projection", ["end", "every-step"])
@pytest.mark.parametrize("C", [1e-3, 0.05, 3.0])
@pytest.mark.parametrize("variant", ["PA-I", "PA-II", "PALS"])
def test_loss_bounds_hold_for_every_comparator(variant, C, projection):
    X, (P, y) = items(), pairs()
    stream = stream_of_pairs(X, P, y)
    model = PAMetric(C, variant=variant, projection=projection, preprocessor=X, block_size=1)
    M, b, losses = np.zeros((16, 16)), 0.0, []
    for (v, label), pair in zip(stream, P, strict=True):
        losses.append(signed_loss(M, b, v, label))
        M, b = raw(model.partial_fit(pair[None], [label]))
        M = M.copy()
    losses = np.array(losses)
    R4 = max((v @ v) ** 2 for v, _ in stream)
    for M_star, b_star in comparators(X, P, y):
        star = np.array([signed_loss(M_star, b_star, v, label) for v, label in stream])
        distance = (M_star**2).sum() + b_star**2
        hinge, hinge_star = np.maximum(0, losses), np.maximum(0, star)
        if variant == "PA-I":
            left = np.sum(losses >= 1)
            right = max(R4 + 1, 1 / C) * (distance + 2 * C * hinge_star.sum())
        elif variant == "PA-II":
            left = (hinge**2).sum()
            right = (R4 + 1 + 1 / (2 * C)) * (distance + 2 * C * (hinge_star**2).sum())
        else:
            left = (losses**2).sum()
            right = (R4 + 1 + 1 / (2 * C)) * (distance + 2 * C * (star**2).sum())
        assert left <= right * (1 + 1e-9)


@pytest.mark.parametrize("projection", ["end", "every-step"])
def test_pa_bound_on_separable_pairs(projection):
    """Labels from a metric with margin: sum of squared losses <= (R^4 + 1) ||w*||^2 (POLA's bound)."""
    X = items()
    M_star, b_star = np.diag((np.arange(16) < 4) * 2.0), 6.0
    P, _ = pairs(n=600)
    V = X[P[:, 0]] - X[P[:, 1]]
    distance = np.einsum("ij,jk,ik->i", V, M_star, V)
    clear = np.abs(distance - b_star) >= 1
    P, V, y = P[clear], V[clear], np.where(distance < b_star, 1, -1)[clear]
    assert len(P) > 100
    model = PAMetric(variant="PA", projection=projection, preprocessor=X, block_size=1)
    M, b, total = np.zeros((16, 16)), 0.0, 0.0
    for pair, v, label in zip(P, V, y, strict=True):
        total += max(0.0, signed_loss(M, b, v, label)) ** 2
        M, b = raw(model.partial_fit(pair[None], [label]))
        M = M.copy()
    R4 = max((v @ v) ** 2 for v in V)
    assert 0 < total <= (R4 + 1) * ((M_star**2).sum() + b_star**2)


# -- LEGO, online ITML, RDML -------------------------------------------------------------------------


def test_lego_reaches_its_intermediate_target_and_changes_the_inverse_by_a_rank_one():
    X, (P, y) = items(), pairs(n=60)
    eta = 0.02
    model = LEGO(eta, lower=TARGETS[0], upper=TARGETS[1], preprocessor=X)
    A = np.eye(16)
    updates = 0
    for pair, label in zip(P, y, strict=True):
        v = X[pair[0]] - X[pair[1]]
        after = model.partial_fit(pair[None], [label]).get_mahalanobis_matrix()
        assert np.linalg.eigvalsh(after)[0] > 0
        if model.n_updates_ > updates:
            target, yhat = TARGETS[0 if label > 0 else 1], v @ A @ v
            ybar = v @ after @ v
            assert min(target, yhat) <= ybar <= max(target, yhat)
            # ybar is the positive root of eta yhat ybar^2 - (eta y yhat - 1) ybar - yhat = 0
            root = eta * yhat * ybar**2 - (eta * target * yhat - 1) * ybar - yhat
            assert root == pytest.approx(0, abs=1e-9 * yhat**2)
            change = np.linalg.inv(after) - np.linalg.inv(A)
            np.testing.assert_allclose(change, eta * (ybar - target) * np.outer(v, v), atol=1e-9)
        A, updates = after, model.n_updates_
    assert updates > 30


def test_lego_limits_of_the_step():
    X, (P, y) = items(), pairs(n=1)
    v = X[P[0, 0]] - X[P[0, 1]]
    yhat = v @ v
    options = {"preprocessor": X, "always": True, "lower": 0.5 * yhat, "upper": 2 * yhat}
    target = options["lower"] if y[0] > 0 else options["upper"]
    far = LEGO(1e9, **options).fit(P, y)
    assert far.pair_distance(P)[0] == pytest.approx(target, rel=1e-4)
    near = LEGO(1e-12, **options).fit(P, y)
    np.testing.assert_allclose(near.get_mahalanobis_matrix(), np.eye(16), atol=1e-9)


@pytest.mark.parametrize("dissimilar_only", [False, True])
@pytest.mark.parametrize("eta", [0.5, 20.0, 1e4])
def test_online_itml_stays_between_zero_and_the_identity(eta, dissimilar_only):
    X, (P, y) = items(), pairs(n=600)
    if dissimilar_only:
        P, y = np.tile(P, (3, 1)), -np.ones(1800, int)
    longest = np.sqrt((X**2).sum(axis=1)).max()
    model = OnlineITML(eta, lower=0.2 * longest, upper=3.9 * longest**2, preprocessor=X)
    for part in range(0, len(P), 50):
        model.partial_fit(P[part : part + 50], y[part : part + 50])
        values = np.linalg.eigvalsh(model.get_mahalanobis_matrix())
        assert values[0] > 0
        assert values[-1] <= 1 - 0.99e-4
        companion = np.linalg.eigvalsh(model._engine.matrices[1])
        assert companion[0] > 0
    if eta > 1 and dissimilar_only:
        assert values[-1] > 0.9  # the limit was felt


def test_online_itml_distances_are_in_the_units_of_the_items():
    """Scaling the items scales distances, targets and thresholds alike: nothing else changes."""
    X, (P, y) = items(), pairs()
    plain, large = (OnlineITML(0.5, preprocessor=X * s).fit(P, y) for s in (1.0, 1000.0))
    np.testing.assert_allclose(large.pair_distance(P), 1e6 * plain.pair_distance(P), rtol=1e-9)
    assert large.threshold_ == pytest.approx(1e6 * plain.threshold_)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 3e3, 1e5])
def test_lego_scales_with_the_items_and_stays_positive_definite(scale):
    """X -> s X, targets -> s^2 targets, eta -> eta / s^4 is the same problem in other units."""
    X, (P, y) = items(), pairs()
    lower, upper = TARGETS
    plain = LEGO(0.02, lower=lower, upper=upper, preprocessor=X).fit(P, y)
    scaled = LEGO(
        0.02 / scale**4, lower=lower * scale**2, upper=upper * scale**2, preprocessor=X * scale
    ).fit(P, y)
    np.testing.assert_allclose(
        scaled.get_mahalanobis_matrix(), plain.get_mahalanobis_matrix(), rtol=1e-7, atol=1e-9
    )
    raw_steps = LEGO(0.1, preprocessor=X * scale).fit(P, y)  # the same step in other units: huge
    assert np.linalg.eigvalsh(raw_steps.get_mahalanobis_matrix())[0] > 0


@pytest.mark.parametrize("learner", [LEGO, OnlineITML])
def test_always_updating_follows_the_reference(learner):
    X, (P, y) = items(), pairs()
    options = {"lower": TARGETS[0], "upper": TARGETS[1], "always": True, "preprocessor": X}
    stream = stream_of_pairs(X, P, y)
    if learner is LEGO:
        model = LEGO(0.02, **options).fit(P, y)
        expected = ref.lego(np.eye(16), stream, 0.02, TARGETS, always=True)[-1]
    else:
        model = OnlineITML(0.3, scale=SCALE, **options).fit(P, y)
        scaled = [(v * SCALE, label) for v, label in stream]
        targets = np.array(TARGETS) * SCALE**2
        expected = ref.online_itml(np.eye(16) / 16, scaled, 0.3, targets, always=True)[-1]
    close(model, expected)
    assert model.n_updates_ == len(P)


def test_rdml_margin_follows_the_reference():
    X, (P, y) = items(), pairs()
    model = RDML(0.05, margin=0.5, preprocessor=X).fit(P, y)
    close(model, ref.rdml(np.zeros((16, 16)), stream_of_pairs(X, P, y), 0.05, margin=0.5)[-1])
    assert model.n_updates_ > RDML(0.05, preprocessor=X).fit(P, y).n_updates_


def test_one_feature():
    X = np.array([[0.0], [1.0], [3.0], [4.5]])
    P, y = [[0, 1], [0, 2], [1, 3], [2, 3]], [1, -1, -1, 1]
    for case in PAIR_CASES:
        model = case.make(preprocessor=X).fit(P, y)
        assert model.get_mahalanobis_matrix().shape == (1, 1)
        assert model.get_mahalanobis_matrix()[0, 0] >= 0


def test_small_eigenvalues_of_large_features_are_kept():
    """A direction may have a tiny weight and matter, where its feature is large."""
    for dtype in (np.float32, np.float64):
        fixed = Mahalanobis(np.diag([1.0, 1e-7]).astype(dtype))
        assert fixed.pair_distance(np.array([[[0, 0], [0, 1e4]]], dtype)) == pytest.approx([10.0])
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)) * [1e4, 1.0, 1.0, 1e-2]
    P, y = PairSampler(np.arange(60) % 3, 0).draw(200)
    exact = LEGO(1e-18, preprocessor=X).fit(P, y).pair_distance(P)
    single = LEGO(1e-18, preprocessor=X.astype(np.float32)).fit(P, y).pair_distance(P)
    np.testing.assert_allclose(single, exact, rtol=1e-4)


def test_one_similar_pair_learns_nothing():
    model = PAMetric(preprocessor=items()).fit([[0, 1]], [1])
    assert model.effective_dimension_ == 0
    assert model.transform(items()).shape == (40, 1)


def test_rdml_is_psd_and_a_shortened_step_hits_the_boundary():
    X, (P, y) = items()[:, :4], pairs(n=400)
    model = RDML(0.3, preprocessor=X)
    A, shortened = np.zeros((4, 4)), 0
    for pair, label in zip(P, y, strict=True):
        v = X[pair[0]] - X[pair[1]]
        before = model.n_updates_ if model.__sklearn_is_fitted__() else 0
        after = raw(model.partial_fit(pair[None], [label]))[0]
        values = np.linalg.eigvalsh(after)
        assert values[0] >= -1e-9
        step = np.trace(A - after) / (v @ v)
        if label > 0 and model.n_updates_ > before and step < 0.3 - 1e-9:
            shortened += 1
            nonzero = np.linalg.eigvalsh(A)
            rank = np.count_nonzero(nonzero > 1e-9)
            assert np.count_nonzero(values > 1e-9) == rank - 1  # one direction is gone
        A = after
    assert shortened > 5


def test_rdml_does_not_move_on_similar_pairs_at_zero_and_its_options_differ():
    X, (P, y) = items(), pairs(n=200)
    model = RDML(preprocessor=X).fit(P[y > 0], y[y > 0])
    assert not model.get_mahalanobis_matrix().any()
    assert model.effective_dimension_ == 0
    assert model.transform(X).shape == (40, 1)
    other = RDML(exact=True, preprocessor=X).fit(P, y).get_mahalanobis_matrix()
    assert np.abs(RDML(preprocessor=X).fit(P, y).get_mahalanobis_matrix() - other).max() > 1e-3


# -- reading the metric --------------------------------------------------------------------------------


@every_layout
@every_case
def test_all_ways_of_reading_the_metric_agree(case, layout):
    P, y = pairs()
    model = make(case, layout).fit(P, y)
    X, M = items(), model.get_mahalanobis_matrix()
    V = X[P[:, 0]] - X[P[:, 1]]
    distances = np.einsum("ij,jk,ik->i", V, M, V)
    scale = distances.max()
    np.testing.assert_allclose(model.pair_distance(P), distances, atol=1e-10 * scale)
    np.testing.assert_allclose(model.pair_score(P), -distances, atol=1e-10 * scale)
    E = model.transform(model.preprocessor)
    np.testing.assert_allclose(
        ((E[P[:, 0]] - E[P[:, 1]]) ** 2).sum(axis=1), distances, atol=1e-10 * scale
    )
    L = model.components_
    np.testing.assert_allclose(L.T @ L, M, atol=1e-10 * np.abs(M).max())
    metric = model.get_metric()
    assert metric(X[3], X[5]) == pytest.approx(np.sqrt((X[3] - X[5]) @ M @ (X[3] - X[5])))
    assert model.get_metric(squared=True)(X[3], X[5]) == pytest.approx(metric(X[3], X[5]) ** 2)
    np.testing.assert_array_equal(model.predict(P), np.where(distances <= model.threshold_, 1, -1))
    assert model.score(P, y) == np.mean(model.predict(P) == y)
    np.testing.assert_allclose(
        model.decision_function(P), model.threshold_ - distances, atol=1e-9 * scale
    )
    values = np.linalg.eigvalsh(M)[::-1]
    np.testing.assert_allclose(model.eigenvalues_, values, atol=1e-10 * values[0])
    assert model.effective_dimension_ == np.count_nonzero(values > 1e-10 * values[0])


def test_truncation_keeps_the_largest_directions():
    P, y = pairs()
    model = PAMetric(0.01, preprocessor=items()).fit(P, y)
    values, vectors = np.linalg.eigh(model.get_mahalanobis_matrix())
    short = model.truncated(3)
    np.testing.assert_allclose(
        short.get_mahalanobis_matrix(),
        (vectors[:, -3:] * values[-3:]) @ vectors[:, -3:].T,
        atol=1e-10,
    )
    assert short.effective_dimension_ == 3
    np.testing.assert_allclose(
        np.abs(short.transform(items())), np.abs(model.transform(items())[:, :3]), atol=1e-9
    )


def test_neighbours_through_transform_are_those_of_the_metric():
    P, y = pairs()
    X = items()
    model = PAMetric(0.01, preprocessor=X).fit(P, y)
    labels = np.arange(40) % 3
    fast = KNeighborsClassifier(3).fit(model.transform(X[:30]), labels[:30])
    slow = KNeighborsClassifier(3, metric=model.get_metric()).fit(X[:30], labels[:30])
    np.testing.assert_array_equal(fast.predict(model.transform(X[30:])), slow.predict(X[30:]))


def test_calibration_finds_the_best_threshold():
    P, y = pairs()
    model = PAMetric(0.01, preprocessor=items()).fit(P, y)
    own, distances = model.threshold_, model.pair_distance(P)
    candidates = np.concatenate([[-1.0], distances])
    similar = y > 0

    def quality(threshold, criterion):
        said = distances <= threshold
        hits = np.sum(said & similar)
        if criterion == "accuracy":
            return np.mean(said == similar)
        if criterion == "balanced_accuracy":
            return (hits / similar.sum() + np.mean(~said[~similar])) / 2
        return 2 * hits / (said.sum() + similar.sum())

    for criterion in ("accuracy", "balanced_accuracy", "f1"):
        model.calibrate_threshold(P, y, criterion)
        best = max(quality(t, criterion) for t in candidates)
        assert quality(model.threshold_, criterion) == pytest.approx(best)
    model.partial_fit(P[:1], y[:1])
    assert abs(model.threshold_ - own) < 1  # learning goes on with its own
    for kind in (1, -1):  # one kind only: everything, or nothing
        model.calibrate_threshold(P[y == kind], y[y == kind])
        assert model.score(P[y == kind], y[y == kind]) == 1.0


def test_calibration_is_saved(tmp_path):
    P, y = pairs()
    model = LEGO(preprocessor=items()).fit(P, y).calibrate_threshold(P, y)
    model.save(tmp_path / "m")
    assert simstream.load(tmp_path / "m").threshold_ == model.threshold_
    fixed = model.truncated(4).calibrate_threshold(P, y)
    fixed.save(tmp_path / "f")
    again = simstream.load(tmp_path / "f", preprocessor=items())
    assert again.threshold_ == fixed.threshold_
    np.testing.assert_array_equal(again.pair_distance(P), fixed.pair_distance(P))


def test_targets_are_percentiles_of_the_items_distances():
    X, (P, y) = items(), pairs()
    model = LEGO(preprocessor=X).fit(P, y)
    all_pairs = np.array([(X[i] - X[j]) @ (X[i] - X[j]) for i in range(40) for j in range(i)])
    expected = np.percentile(all_pairs, [5, 95])
    np.testing.assert_allclose(model._engine.targets, expected, rtol=0.1)
    assert model.threshold_ == pytest.approx(expected.mean(), rel=0.1)


# -- bad input -------------------------------------------------------------------------------------------


@every_case
def test_bad_pairs_change_nothing(case):
    P, y = pairs(n=50)
    model = make(case).fit(P, y)
    before = {name: array.copy() for name, array in model._engine.state()[1].items()}
    bad = [
        (lambda: model.partial_fit(P, np.append(y[1:], 0)), "expected \\+1 .* got 0"),
        (lambda: model.partial_fit(P, None), "got None"),
        (lambda: model.partial_fit(P, y[:-1]), "one label for each of 50 pairs"),
        (lambda: model.partial_fit(P, np.array(["yes"] * 50)), "got <U3"),
        (lambda: model.partial_fit([[3, 3]], [1]), "same row"),
        (lambda: model.partial_fit([[3, 40]], [1]), "from 0 to 39, got 40"),
        (lambda: model.partial_fit(triplets(n=5), np.ones(5)), "expected None with triplets"),
        (lambda: model.partial_fit(np.full((1, 2, 16), np.nan), [1]), "nan"),
        (lambda: model.partial_fit(np.ones((1, 2, 15)), [1]), "16 features"),
        (lambda: model.learn_one(np.ones(16), np.zeros(16), 2), "got 2"),
        (lambda: model.score(P), "got None"),
    ]
    for call, message in bad:
        with pytest.raises(ValueError, match=message):
            call()
    after = model._engine.state()[1]
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


def test_a_first_matrix_must_be_a_metric():
    P, y = pairs(n=5)
    indefinite, lopsided = np.diag([-1.0] + [1.0] * 15), np.triu(np.ones((16, 16)))
    for make_model in (
        lambda init: PAMetric(init=init, preprocessor=items()),
        lambda init: PAMetric(init=init, projection="every-step", preprocessor=items()),
        lambda init: POLA(init=init, preprocessor=items()),
        lambda init: LEGO(init=init, preprocessor=items()),
    ):
        with pytest.raises(ValueError, match="semi-definite matrix, got the eigenvalue -1"):
            make_model(indefinite).fit(P, y)
        with pytest.raises(ValueError, match="symmetric"):
            make_model(lopsided).fit(P, y)
        with pytest.raises(ValueError, match=r"shape \(16, 16\)"):
            make_model(np.eye(15)).fit(P, y)
    with pytest.raises(ValueError, match="positive definite"):
        LEGO(init=np.diag([0.0] + [1.0] * 15), preprocessor=items()).fit(P, y)
    with pytest.raises(ValueError, match="semi-definite"):
        Mahalanobis(indefinite).transform(items())


@pytest.mark.parametrize("projection", ["end", "every-step"])
def test_a_given_first_matrix_is_the_start(projection):
    P, y = pairs(n=60)
    G = np.random.default_rng(3).normal(size=(16, 16)) * 0.2
    start = G @ G.T
    for init, first in (("identity", np.eye(16)), (start, start)):
        model = PAMetric(0.01, projection=projection, init=init, preprocessor=items()).fit(P, y)
        path = ref.pa_metric(
            first, stream_of_pairs(items(), P, y), 0.01, "PA-I", projection == "every-step"
        )
        close(model, ref.positive_part(path[-1][0]))


@pytest.mark.parametrize(
    ("make_model", "message"),
    [
        (lambda: PAMetric(C=0), "C: expected"),
        (lambda: PAMetric(variant="PA-III"), "variant"),
        (lambda: PAMetric(projection="sometimes"), "projection"),
        (lambda: PAMetric(tolerance=-1), "tolerance"),
        (lambda: RDML(lam=-1), "lam"),
        (lambda: RDML(margin=2), "margin"),
        (lambda: LEGO(eta=np.inf), "eta"),
        (lambda: LEGO(lower=2, upper=1), "upper: expected more than lower"),
        (lambda: OnlineITML(scale=0), "scale"),
    ],
)
def test_bad_parameters(make_model, message):
    P, y = pairs(n=5)
    model = make_model().set_params(preprocessor=items())
    with pytest.raises(ValueError, match=message):
        model.fit(P, y)
    with pytest.raises(NotFittedError):
        model.threshold_  # noqa: B018


def test_changing_how_a_stream_is_kept_is_refused():
    P, y = pairs(n=5)
    model = PAMetric(preprocessor=items()).fit(P, y).set_params(projection="every-step")
    with pytest.raises(ValueError, match="middle of a stream"):
        model.partial_fit(P, y)
    model = RDML(preprocessor=items()).fit(P, y).set_params(exact=True)
    with pytest.raises(ValueError, match="middle of a stream"):
        model.partial_fit(P, y)


def test_equal_vectors_are_skipped_and_two_spaces_need_one_dimension():
    X = items()
    X[7] = X[3]
    for case in PAIR_CASES:
        model = case.make(preprocessor=X).fit([[3, 7], [7, 3]], [1, -1])
        assert (model.n_skipped_, model.n_updates_) == (2, 0)
    with pytest.raises(ValueError, match="one feature space"):
        PAMetric(preprocessor=(X, X[:, :5])).fit([[0, 1]], [1])
    two = PAMetric(0.01, preprocessor=(X[:20], X[20:])).fit([[0, 0], [1, 5]], [1, -1])
    one = PAMetric(0.01, preprocessor=X).fit([[0, 20], [1, 25]], [1, -1])
    np.testing.assert_array_equal(two.get_mahalanobis_matrix(), one.get_mahalanobis_matrix())


def test_targets():
    P, y = pairs(n=5)
    with pytest.raises(ValueError, match="lower, upper: expected both"):
        LEGO().learn_one(np.ones(3), np.zeros(3), 1)
    with pytest.raises(ValueError, match="lower, upper: expected both"):
        LEGO().learn_one(np.ones(3), np.zeros(3), np.full(3, 2.0))
    with pytest.raises(ValueError, match="expected lower < upper"):
        LEGO(lower=1e9, preprocessor=items()).fit(P, y)
    one = LEGO(preprocessor=items()).fit(
        P[:1], y[:1]
    )  # measured on all items, not only on the pair's
    assert one.threshold_ == LEGO(preprocessor=items()).fit(P, y).threshold_
    with pytest.raises(ValueError, match="lower: cannot change in the middle"):
        one.set_params(lower=0.1).partial_fit(P, y)
    model = OnlineITML(scale=0.1, preprocessor=items()).fit(P, y)
    with pytest.raises(ValueError, match="scale: cannot change"):
        model.set_params(scale=0.2).partial_fit(P, y)


@pytest.mark.parametrize("factor", [1e90, 1e200])
@every_case
def test_numbers_beyond_all_use_are_refused(case, factor):
    P, y = pairs(n=50)
    model = case.make(preprocessor=items() * factor)
    with pytest.raises((simstream.DivergedError, ValueError)):
        model.fit(P, y)


def test_nothing_is_left_behind_by_a_refused_call():
    model = PAMetric()
    with pytest.raises(ValueError, match="one feature space"):
        model.learn_one([1.0, 0.0], [1.0, 0.0, 0.0], 1)
    assert not model.__sklearn_is_fitted__()
    P, y = pairs()
    model = PAMetric(0.01, preprocessor=items()).fit(P, y).calibrate_threshold(P, y, "f1")
    before = model.threshold_
    with pytest.raises(ValueError, match="16 features"):
        model.set_params(preprocessor=items()[:, :5]).partial_fit(P, y)
    with pytest.raises(ValueError, match="middle of a stream"):
        model.set_params(preprocessor=items(), projection="every-step").partial_fit(P, y)
    assert model.threshold_ == before


def damaged(header, arrays, name, change):
    """A state with another value for one of its arrays or scalars."""
    if name in arrays:
        return header, {**arrays, name: change(arrays[name])}
    scalars = header["scalars"]
    return {**header, "scalars": {**scalars, name: change(scalars[name])}}, arrays


@pytest.mark.parametrize(
    ("learner", "changes"),
    [
        (LEGO(), {"a": lambda a: -a}),
        (LEGO(), {"a": lambda a: np.concatenate([a, a])}),
        (LEGO(), {"a": lambda a: a * np.nan}),
        (LEGO(), {"lower": lambda lower: 1e9}),
        (LEGO(), {"scale": lambda scale: 0.0}),
        (OnlineITML(), {"a": lambda a: a[:1]}),
        (POLA(), {"vectors": lambda v: 3 * v}),
        (POLA(), {"values": lambda v: -v}),
        (POLA(), {"values": lambda v: v * np.inf}),
    ],
)
def test_restored_numbers_are_looked_at(learner, changes):
    P, y = pairs()
    learner = learner.set_params(preprocessor=items()).fit(P, y)
    header, arrays = learner._get_state()
    type(learner)()._set_state(header, arrays)  # as they are they are fine
    for name, change in changes.items():
        with pytest.raises(ValueError, match=name):
            type(learner)()._set_state(*damaged(header, arrays, name, change))
    with pytest.raises(ValueError, match="engine"):
        (LEGO if isinstance(learner, POLA) else POLA)()._set_state(header, arrays)
    with pytest.raises(ValueError, match="calibrated"):
        type(learner)()._set_state({**header, "calibrated": "abc"}, arrays)


def test_calibration_tells_neighbouring_numbers_apart():
    eps = np.finfo(float).eps
    model = Mahalanobis(np.eye(1))
    V = np.sqrt([1 + 2 * eps, 1 + 4 * eps])[:, None]
    X = np.stack([V, np.zeros_like(V)], axis=1)
    first, second = model.pair_distance(X)
    assert first < second
    np.testing.assert_array_equal(model.calibrate_threshold(X, [1, -1]).predict_pairs(X), [1, -1])


def test_pair_sampler_is_uniform_and_distinct():
    labels = np.array([0, 0, 0, 1, 1, 2])
    sampler = PairSampler(labels, 0, similar_share=None)
    P, y = sampler.draw(60_000)
    assert (P[:, 0] != P[:, 1]).all()
    np.testing.assert_array_equal(y, np.where(labels[P[:, 0]] == labels[P[:, 1]], 1, -1))
    counts = np.bincount(P[:, 0] * 6 + P[:, 1], minlength=36)
    assert counts[counts > 0].size == 30
    assert np.abs(counts[counts > 0] / 2000 - 1).max() < 0.12
    P, y = sampler.draw_distinct(100)
    assert len({frozenset(map(int, p)) for p in P}) == len(P) == 15
    assert np.sum(y > 0) == 4
    big, _ = PairSampler(np.arange(3000) % 7, 1, similar_share=None).draw_distinct(50_000)
    assert len(np.unique(big, axis=0)) == 50_000
    assert (big[:, 0] < big[:, 1]).all()
    assert big.max() == 2999
    for share in (0.0, 0.3, 1.0):
        P, y = PairSampler(labels, 0, similar_share=share).draw(20_000)
        assert np.mean(y > 0) == pytest.approx(share, abs=0.02)
        np.testing.assert_array_equal(y, np.where(labels[P[:, 0]] == labels[P[:, 1]], 1, -1))
        assert (P[:, 0] != P[:, 1]).all()
    whole = PairSampler(labels, 5).draw(50)[0]
    cut = PairSampler(labels, 5)
    np.testing.assert_array_equal(whole, np.vstack([cut.draw(20)[0], cut.draw(30)[0]]))
    with pytest.raises(ValueError, match="at most 1"):
        PairSampler(labels, similar_share=1.5)


# -- matrices of high rank (kernels.cone) ------------------------------------------------------------------


def high_rank_pairs(d=40, n=700, seed=0):
    """Items and pairs that fill the space: the rank passes d/3 on the way."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, d)) / np.sqrt(d)
    P = np.array([(i, j) for i in range(60) for j in range(i)])
    P = rng.permutation(P, axis=0)[:n]
    return X, P, np.where(rng.random(n) < 0.5, 1, -1)


@pytest.mark.parametrize("C", [0.02, 1.0])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_full_matrix_takes_over_at_high_rank_and_follows_the_reference(variant, C, tmp_path):
    X, P, y = high_rank_pairs()
    model = PAMetric(C, variant=variant, projection="every-step", preprocessor=X)
    for part in np.split(np.arange(len(P)), [1, 30, 31, 300]):
        model.partial_fit(P[part], y[part])
        model.save(tmp_path / "m")
        model = simstream.load(tmp_path / "m", preprocessor=X)
    assert model._engine.full is not None
    M, b = ref.pa_metric(np.zeros((40, 40)), stream_of_pairs(X, P, y), C, variant, True)[-1]
    close(model, M, 1e-9)
    assert model.threshold_ == pytest.approx(b, abs=1e-9)
    assert np.linalg.eigvalsh(model.get_mahalanobis_matrix())[0] >= -1e-10
    whole = PAMetric(C, variant=variant, projection="every-step", preprocessor=X).fit(P, y)
    for name, array in whole._engine.state()[1].items():
        np.testing.assert_array_equal(array, model._engine.state()[1][name], err_msg=name)


def test_projection_of_a_full_matrix_against_eigh():
    """500 random cases: definite, singular, v in the range of M, tiny and huge steps."""
    from simstream._engines.pairs import _Full
    from simstream._kernels import steps

    rng = np.random.default_rng(1)
    negative = left = 0
    original = _Full._step_and_project
    for case in range(500):
        d = int(rng.integers(2, 40))
        rank = int(rng.integers(1, d + 1)) if case % 2 else d
        Q = np.linalg.qr(rng.normal(size=(d, d)))[0][:rank]
        M = (Q.T * 10.0 ** rng.uniform(-4, 0, rank)) @ Q
        v = rng.normal(size=d)
        if case % 3 == 0:
            v = M @ v / np.linalg.norm(M)
        tau = 10.0 ** rng.uniform(-6, 1) / (v @ v)
        full = _Full.from_matrix(M.copy())
        calls = []
        full._step_and_project = lambda c, w, full=full, calls=calls: (
            calls.append(c),
            original(full, c, w),
        )
        step = steps.Step(steps.ON_MISTAKE, eta=tau, margin=1e20)
        full.learn(step, v[None].copy(), np.array([-1.0]), np.zeros(steps.CLOCK_SIZE))
        left += len(calls)
        N = M - tau * np.outer(v, v)
        negative += np.linalg.eigvalsh(N)[0] < -1e-12
        np.testing.assert_allclose(
            full.symmetric(), ref.positive_part(N), rtol=0, atol=2e-10 * np.trace(M)
        )
        P = np.linalg.inv(full.symmetric() + full.numbers[0] * np.eye(d))
        np.testing.assert_allclose(full.p, P, rtol=0, atol=1e-6 * np.abs(P).max())
    assert negative > 200
    assert left < 50  # the full eigendecomposition is the exception


def test_a_damaged_full_matrix_is_refused():
    X, P, y = high_rank_pairs()
    model = PAMetric(0.1, projection="every-step", preprocessor=X).fit(P, y)
    header, arrays = model._get_state()
    for name, change in (
        ("m", lambda a: -a),
        ("m", lambda a: a[:-1]),
        ("p", lambda a: a * np.nan),
        ("cone", lambda numbers: [0.0] * len(numbers)),
    ):
        with pytest.raises(ValueError, match=name):
            PAMetric(projection="every-step")._set_state(*damaged(header, arrays, name, change))
