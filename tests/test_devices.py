"""Learning on devices of torch: the same steps as on the CPU with NumPy.

The whole contract of the learners runs on a device with ``pytest --device torch`` (or cuda); here is what is
particular to devices.
"""

import copy
import pickle
import sys

import numpy as np
import pytest
import scipy.sparse as sp

import simstream
from commands import fail, succeed
from simstream import OASIS, OGD, SDCA, Bilinear, LowRank, Mahalanobis, PAMetric
from simstream._engines.base import DivergedError
from simstream.metrics import measure_ranking
from simstream.search import DeviceRunner, search_rows

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.names_devices

HAS_CUDA = torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="there is no CUDA device")
DEVICES = ["torch", pytest.param("cuda", marks=needs_cuda)]

LEARNERS = {
    "PA-I": lambda **more: OASIS(0.2, **more),
    "PA": lambda **more: OASIS(variant="PA", **more),
    "PA-II, average": lambda **more: OASIS(0.5, variant="PA-II", average_from=100, **more),
    "OGD": lambda **more: OGD(0.05, **more),
    "OGD, shorter steps, average": lambda **more: OGD(
        0.5, schedule="inv-sqrt", average_from=5, **more
    ),
}
PAIR_LEARNERS = {
    variant: lambda variant=variant, **more: PAMetric(0.3, variant=variant, **more)
    for variant in ("PA", "PA-I", "PA-II", "PALS")
}
PAIR_LEARNERS["tolerant"] = lambda **more: PAMetric(0.3, tolerance=0.01, **more)

#: Of M, relative to its largest entry.
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}

COUNTS = ("n_rounds_", "n_updates_", "n_skipped_", "mistake_rate_", "violation_rate_")


def problem(d=24, n=1500, n_items=120, seed=0):
    rng = np.random.default_rng(seed)
    items = rng.normal(size=(n_items, d)) / np.sqrt(d)
    items[7] = 0.0
    items[9] = items[8]
    triplets = np.array([rng.permutation(n_items)[:3] for _ in range(n)])
    triplets[3] = 7, 1, 2  # a zero anchor
    triplets[40] = 5, 8, 9  # no difference
    return items, triplets


def pairs(triplets):
    y = np.where(np.arange(len(triplets)) % 3 == 0, 1, -1)
    return triplets[:, :2], y


def matrix(model):
    return model._engine.matrix()


def assert_same(model, expected, dtype):
    a, b = matrix(expected), matrix(model)
    assert b.dtype == dtype
    assert np.abs(a - b).max() <= TOLERANCE[dtype] * np.abs(a).max()
    for name in COUNTS:
        assert getattr(model, name) == getattr(expected, name), name
    assert model.average_loss_ == pytest.approx(expected.average_loss_, rel=1e-5)


@pytest.mark.parametrize("block_size", [None, 1, 33, 128])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("device", DEVICES)
def test_triplets(device, name, dtype, block_size):
    items, triplets = problem()
    common = {"preprocessor": items, "dtype": dtype}
    expected = LEARNERS[name](block_size=1, **common).fit(triplets)
    model = LEARNERS[name](device=device, block_size=block_size, **common).fit(triplets)
    assert model._engine.device.type == {"torch": "cpu", "cuda": "cuda"}[device]
    assert_same(model, expected, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PAIR_LEARNERS)
@pytest.mark.parametrize("device", DEVICES)
def test_pairs(device, name, dtype):
    items, triplets = problem()
    common = {"preprocessor": items, "dtype": dtype}
    expected = PAIR_LEARNERS[name](block_size=1, **common).fit(*pairs(triplets))
    model = PAIR_LEARNERS[name](device=device, **common).fit(*pairs(triplets))
    assert_same(model, expected, dtype)
    assert model._count(6) == pytest.approx(expected._count(6), rel=TOLERANCE[dtype])


@pytest.mark.parametrize("block_size", [None, 1, 50])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("device", DEVICES)
def test_sdca(device, dtype, block_size):
    items, triplets = problem(n=600)
    common = {"lam": 0.01, "n_epochs": 4, "random_state": 0, "preprocessor": items, "dtype": dtype}
    expected = SDCA(block_size=1, **common).fit(triplets)
    model = SDCA(device=device, block_size=block_size, **common).fit(triplets)
    tolerance = 10 * TOLERANCE[dtype]
    assert np.allclose(model.alpha_, expected.alpha_, rtol=0, atol=tolerance)
    a, b = expected.get_bilinear_matrix(), model.get_bilinear_matrix()
    assert np.abs(a - b).max() <= tolerance * np.abs(a).max()
    for name in ("primal", "dual", "mistake_rate"):
        assert np.allclose(model.history_[name], expected.history_[name], rtol=1e-4)
    assert model.gap_ == pytest.approx(expected.gap_, rel=1e-3)
    with pytest.raises(ValueError, match="'cpu' or 'auto' for sparse items"):
        SDCA(device=device, preprocessor=sp.csr_matrix(items)).fit(triplets)


@pytest.mark.parametrize("device", DEVICES)
def test_two_spaces(device):
    rng = np.random.default_rng(1)
    spaces = rng.normal(size=(50, 9)), rng.normal(size=(60, 17))
    triplets = np.column_stack([rng.integers(0, 50, 400), np.arange(400) % 60])
    triplets = np.column_stack([triplets, (triplets[:, 1] + 1 + np.arange(400) % 50) % 60])
    common = {"preprocessor": spaces, "init": "zeros"}
    expected = OASIS(0.1, block_size=1, **common).fit(triplets)
    assert_same(OASIS(0.1, device=device, **common).fit(triplets), expected, "float64")


@pytest.mark.parametrize("device", DEVICES)
def test_geometry(device):
    items, triplets = problem()
    common = {"preprocessor": items, "centre": "auto", "item_term": True, "init_scale": "auto"}
    expected = OASIS(0.2, block_size=1, **common).fit(triplets)
    model = OASIS(0.2, device=device, **common).fit(triplets)
    assert_same(model, expected, "float64")
    assert np.allclose(model.transform_query(items), expected.transform_query(items))


@pytest.mark.parametrize("device", DEVICES)
def test_streams_go_on_wherever_they_were(device, tmp_path):
    items, triplets = problem()
    expected = OASIS(0.2, block_size=1, preprocessor=items).fit(triplets)
    model = OASIS(0.2, device=device, preprocessor=items)
    for part in np.array_split(triplets[:600], 7):
        model.partial_fit(part)
        scores = model.pair_score(triplets[:5, :2])  # what is read is up to date
    there = OASIS(0.2, block_size=1, preprocessor=items).fit(triplets[:600])
    assert np.allclose(scores, there.pair_score(triplets[:5, :2]))
    for a, p, n in items[triplets[600:610]]:
        model.learn_one(a, p, n)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    model.save(tmp_path / "model")
    copies.append(simstream.load(tmp_path / "model", preprocessor=items))
    assert copies[-1].device == device
    copies.append(simstream.load(tmp_path / "model", preprocessor=items).set_params(device="cpu"))
    for each in [*copies, model]:
        assert_same(each.partial_fit(triplets[610:]), expected, "float64")
    model.set_params(device="cpu").partial_fit(triplets)
    expected.partial_fit(triplets)
    assert_same(model, expected, "float64")


@pytest.mark.parametrize("device", DEVICES)
def test_calls_at_multiples_of_the_block_size_change_nothing(device):
    items, triplets = problem()
    whole = OASIS(0.2, device=device, dtype="float32", preprocessor=items)
    size = whole.prepare()
    whole.partial_fit(triplets)
    cut = OASIS(0.2, device=device, dtype="float32", preprocessor=items)
    cut.partial_fit(triplets[: 2 * size]).partial_fit(triplets[2 * size :])
    assert np.array_equal(matrix(whole), matrix(cut))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_divergence(device, dtype):
    items, triplets = problem()
    triplets = triplets[(triplets != 11).all(axis=1)]
    triplets[700, 0] = 11
    items[11] *= 1e30 if dtype == "float32" else 1e200
    stopped = []
    for where in ({"block_size": 1}, {"device": device}):
        model = OASIS(0.2, dtype=dtype, preprocessor=items, **where)
        with pytest.raises(DivergedError, match="overflowed"):
            model.fit(triplets)
        stopped.append(model)
    assert stopped[0].n_rounds_ == 700
    assert_same(stopped[1], stopped[0], dtype)
    rest = triplets[(triplets != 11).all(axis=1)][:200]  # what is left is usable
    assert_same(stopped[1].partial_fit(rest), stopped[0].partial_fit(rest), dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_an_infinite_difference_leaves_the_matrix_alone(device):
    items, triplets = problem()
    triplets = triplets[~np.isin(triplets, [11, 12]).any(axis=1)]
    triplets[300] = 1, 11, 12
    items[11], items[12] = 3e38, -3e38  # finite in float32, but not their difference
    stopped = []
    for where in ({"block_size": 1}, {"device": device}):
        model = OASIS(0.2, dtype="float32", preprocessor=items, **where)
        with pytest.raises(DivergedError, match="overflowed"):
            model.fit(triplets)
        stopped.append(model)
    assert stopped[0].n_rounds_ == 300
    assert_same(stopped[1], stopped[0], "float32")


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_as_items(device):
    items, triplets = problem()
    where = "cuda" if device == "cuda" else "cpu"
    tensor = torch.tensor(items, dtype=torch.float32, device=where, requires_grad=True)
    model = OASIS(0.2, device=device, preprocessor=tensor).fit(triplets)
    expected = OASIS(0.2, block_size=1, dtype="float32", preprocessor=items).fit(triplets)
    assert_same(model, expected, "float32")
    assert isinstance(matrix(model), np.ndarray)
    assert np.array_equal(model.tensor_.cpu().numpy(), matrix(model))
    assert model.tensor_.device.type == where
    (kept,) = {t.data_ptr() for _, t in model._engine._on_device._items}
    assert kept == tensor.data_ptr()  # no copy was made
    assert np.allclose(model.pair_score(triplets[:3, :2]), expected.pair_score(triplets[:3, :2]))
    on_cpu = OASIS(0.2, preprocessor=tensor).fit(triplets)
    assert_same(on_cpu, expected, "float32")
    bad = tensor.detach().clone()
    bad[3, 4] = float("nan")
    with pytest.raises(ValueError, match=r"finite numbers, got nan at row 3, column 4 \(1 NaN"):
        OASIS(device=device, preprocessor=bad).fit(triplets)
    with pytest.raises(ValueError, match="expected 2 dimensions"):
        OASIS(device=device, preprocessor=tensor[0]).fit(triplets)


def test_tensor_needs_a_device():
    items, triplets = problem()
    with pytest.raises(ValueError, match="not on a device"):
        OASIS(preprocessor=items).fit(triplets).tensor_  # noqa: B018
    with pytest.raises(ValueError, match="average_from=None"):
        OASIS(preprocessor=items, device="torch", average_from=1).fit(triplets).tensor_  # noqa: B018


@needs_cuda
def test_tf32():
    items, triplets = problem(d=256)
    exact = OASIS(0.2, preprocessor=items).fit(triplets)
    model = OASIS(0.2, dtype="float32", preprocessor=items, device="cuda", precision="tf32")
    difference = np.abs(matrix(model.fit(triplets)) - matrix(exact)).max()
    assert 1e-6 < difference / np.abs(matrix(exact)).max() < 1e-2
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.skipif(HAS_CUDA, reason="there is a CUDA device")
def test_falling_back_is_explicit(tmp_path):
    items, triplets = problem()
    model = OASIS(device="cuda", preprocessor=items)
    with pytest.raises(RuntimeError, match=r"expected a CUDA device that torch can use.*'auto'"):
        model.fit(triplets)
    assert not hasattr(model, "n_features_in_")  # nothing was changed
    model.set_params(device="auto").fit(triplets)
    model.set_params(device="cuda:1")
    before = matrix(model).copy()
    with pytest.raises(RuntimeError, match="'cuda:1', and torch sees 0"):
        model.partial_fit(triplets)
    assert np.array_equal(matrix(model), before)
    model.save(tmp_path / "model")  # what was learnt on a GPU is read anywhere
    assert np.array_equal(matrix(simstream.load(tmp_path / "model")), before)


def test_torch_is_missing(monkeypatch):
    items, triplets = problem()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"pip install 'simstream\[gpu\]'"):
        OASIS(device="cuda", preprocessor=items).fit(triplets)
    OASIS(device="auto", preprocessor=items).fit(triplets)


@pytest.mark.parametrize("bad", ["gpu", "cuda:", "cuda:x", "torch:0", None, 3])
def test_names_of_devices(bad):
    items, triplets = problem()
    with pytest.raises(ValueError, match="device: expected one of 'cpu', 'torch', 'cuda'"):
        OASIS(device=bad, preprocessor=items).fit(triplets)


def test_what_devices_do_not_do():
    items, triplets = problem()
    with pytest.raises(ValueError, match="precision: expected one of 'float32', 'tf32'"):
        OASIS(device="torch", precision="bf16", preprocessor=items).fit(triplets)
    sparse = sp.csr_matrix(items)
    with pytest.raises(ValueError, match="device: expected 'cpu' or 'auto' for sparse items"):
        OASIS(device="torch", preprocessor=sparse).fit(triplets)
    OASIS(device="auto", preprocessor=sparse).fit(triplets)
    with pytest.raises(ValueError, match="with projection='every-step', got 'torch'"):
        PAMetric(device="torch", projection="every-step", preprocessor=items).fit(*pairs(triplets))
    PAMetric(device="auto", projection="every-step", preprocessor=items).fit(*pairs(triplets[:50]))


def test_a_dense_model_goes_on_with_sparse_items():
    items, triplets = problem()
    expected = OASIS(0.2, block_size=1, preprocessor=items).fit(triplets)
    model = OASIS(0.2, device="torch", preprocessor=items).fit(triplets[:500])
    model.set_params(preprocessor=sp.csr_matrix(items)).partial_fit(triplets[500:])
    assert_same(model, expected, "float64")


def test_command_line(tmp_path):
    items, triplets = problem()
    np.save(tmp_path / "items.npy", items)
    np.save(tmp_path / "triplets.npy", triplets)
    model = tmp_path / "model"
    stream = ["--triplets", tmp_path / "triplets.npy"]
    given = ["train", tmp_path / "items.npy", *stream, "-o", model]
    succeed(*given, "--device", "torch", "-p", "C=0.2")
    expected = OASIS(0.2, block_size=1, preprocessor=items).fit(triplets)
    assert_same(simstream.load(model), expected, "float64")
    assert simstream.load(model).device == "torch"
    succeed(*given[:2], *stream, "--resume", model, "--device", "auto")
    assert simstream.load(model).device == "auto"
    succeed(*given, "--algorithm", "aroma", "--device", "auto")
    message = fail(2, *given, "--algorithm", "aroma", "--device", "torch")
    assert "AROMA learns on the CPU alone" in message
    assert "device: expected one of 'cpu'" in fail(2, *given, "--device", "gpu")
    assert "use --device" in fail(2, *given, "-p", "device=cuda")
    if not HAS_CUDA:
        assert "expected a CUDA device" in fail(2, *given, "--device", "cuda")


# -- search and evaluation ------------------------------------------------------------------------


def tied(seed=3, n_items=700, n_queries=90):
    """Items and queries of small integers: scores are exact, and many tie."""
    rng = np.random.default_rng(seed)
    items = rng.integers(-2, 3, (n_items, 6)).astype(np.float32)
    queries = rng.integers(-2, 3, (n_queries, 6)).astype(np.float32)
    return items, queries, rng.integers(0, 5, n_items), rng.integers(0, 5, n_queries)


@pytest.fixture
def small_blocks(monkeypatch):
    from simstream.search import device

    monkeypatch.setattr(device, "_QUERIES", 16)
    monkeypatch.setattr(device, "_ITEMS", 100)


def runner(device):
    return DeviceRunner("cuda" if device == "cuda" else "cpu")


@pytest.mark.parametrize("device", DEVICES)
def test_search(device, small_blocks):
    items, queries, _, _ = tied()
    model = Bilinear(np.diag([1, 2, 1, 3, 1, 1]).astype(np.float32))
    for k in (1, 7, 150, 1000):
        expected = search_rows(model, queries, items, k)
        found = search_rows(model, queries, items, k, runner=runner(device))
        assert np.array_equal(found.indices, expected.indices)
        assert np.array_equal(found.scores, expected.scores)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_evaluation(device, own, small_blocks):
    items, queries, labels, query_labels = tied()
    model = Bilinear(np.diag([1, 2, 1, 3, 1, 1]).astype(np.float32))
    given = {"query_labels": query_labels, "item_labels": labels, "items": items}
    if own:
        queries, given = items, {"query_labels": labels}
    given |= {"k": [1, 5, 100], "neighbors": [1, 3]}
    expected = measure_ranking(model, queries, **given)
    found = measure_ranking(model, queries, runner=runner(device), **given)
    assert found.means() == expected.means()
    assert found.knn_errors == expected.knn_errors


@pytest.mark.parametrize("device", DEVICES)
def test_evaluation_of_cosines_and_factors(device):
    rng = np.random.default_rng(5)
    items, labels = rng.normal(size=(300, 8)), rng.integers(0, 4, 300)
    positive = rng.normal(size=(8, 8))
    for model in (
        Bilinear(positive @ positive.T, normalise=True),
        LowRank(rng.normal(size=(8, 3)), rng.normal(size=(8, 3))),
    ):
        expected = measure_ranking(model, items, query_labels=labels).means()
        found = measure_ranking(model, items, query_labels=labels, runner=runner(device)).means()
        assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_scores_that_are_infinite_equal_or_no_numbers(device, small_blocks):
    rng = np.random.default_rng(7)
    items = rng.choice([-1e25, 0.0, 1e25], (250, 3)).astype(np.float32)
    queries = np.array([[1e25, 0, 0], [0, -1e25, 0], [0, 0, 1]], np.float32)
    labels = rng.integers(0, 2, 250)
    model = Bilinear(np.eye(3, dtype=np.float32))
    with np.errstate(over="ignore"):
        for k in (3, 250):
            expected = search_rows(model, queries, items, k)
            found = search_rows(model, queries, items, k, runner=runner(device))
            assert np.isinf(expected.scores).any()
            assert np.array_equal(found.indices, expected.indices)
        given = {"query_labels": [0, 1, 1], "item_labels": labels, "items": items}
        expected = measure_ranking(model, queries, **given).means()
        assert measure_ranking(model, queries, runner=runner(device), **given).means() == expected
    same = np.ones((600, 3), np.float32)
    given = {"query_labels": np.arange(600) % 3}
    expected = measure_ranking(model, same, **given).means()
    assert measure_ranking(model, same, runner=runner(device), **given).means() == expected
    # An infinite entry of x M times zero is no number in any order of summation.
    large = Bilinear(np.eye(3, dtype=np.float32) * np.float32(1e25))
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(ValueError, match=r"expected numbers, got .* NaN"),
    ):
        search_rows(large, queries, np.eye(3, dtype=np.float32), runner=runner(device))


def test_what_devices_do_not_score():
    items, queries, _, _ = tied()
    with pytest.raises(
        ValueError, match="expected a similarity that is an inner product, got Maha"
    ):
        search_rows(Mahalanobis(np.eye(6)), queries, items, runner=runner("torch"))
    with pytest.raises(ValueError, match="expected dense queries and items"):
        search_rows(
            Bilinear(np.eye(6)),
            sp.csr_matrix(queries),
            sp.csr_matrix(items),
            runner=runner("torch"),
        )
    with pytest.raises(ValueError, match="expected 6 features"):
        search_rows(Bilinear(np.eye(6)), queries[:, :5], items[:, :5], runner=runner("torch"))


def test_commands_that_score(tmp_path):
    items, _, labels, _ = tied()
    np.savez(tmp_path / "items.npz", X=items, y=labels)
    Bilinear(np.eye(6, dtype=np.float32)).save(tmp_path / "model")
    given = [tmp_path / "model", tmp_path / "items.npz"]
    for command, *more in (["evaluate", "--json"], ["query", "--row", 3, "--json"]):
        expected = succeed(command, *given, *more).stdout
        assert succeed(command, *given, *more, "--device", "torch").stdout == expected
    message = fail(2, "evaluate", *given, "--device", "torch", "--workers", 2)
    assert "expected --workers or --device torch, got both" in message
