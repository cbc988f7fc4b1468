"""``simstream evaluate --relevance``, and items read in blocks by the commands."""

import json

import numpy as np
import pytest
from scipy import sparse

from commands import fail, run, succeed
from simstream import OASIS, Adapter, Bilinear, FromLabels, Mahalanobis
from simstream.metrics import measure_ranking, paired_interval, sweep

N, D = 120, 5


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    X, Q = rng.normal(size=(N, D)).astype("f4"), rng.normal(size=(30, D)).astype("f4")
    np.save(tmp_path / "items.npy", X)
    np.save(tmp_path / "queries.npy", Q)
    np.savez(tmp_path / "both.npz", items=X, queries=Q)
    judged = [
        (q, i, rng.integers(0, 4)) for q in range(25) for i in rng.choice(N, 4, replace=False)
    ]
    lines = [f"q{q}\tdoc{i}\t{grade}\n" for q, i, grade in judged]
    (tmp_path / "named.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    (tmp_path / "rows.csv").write_text("".join(f"{q},{i},{grade}\n" for q, i, grade in judged))
    (tmp_path / "items.txt").write_text("".join(f"doc{i}\n" for i in range(N)))
    (tmp_path / "queries.txt").write_text("".join(f"q{q}\n" for q in range(30)))
    Bilinear(rng.normal(size=(D, D)).astype("f4")).save(tmp_path / "model.safetensors")
    return tmp_path


def rows_of(folder):
    return np.load(folder / "items.npy"), np.load(folder / "queries.npy")


def judgements_of(folder):
    return np.loadtxt(folder / "rows.csv", delimiter=",")


def evaluate(folder, *more, model="model.safetensors", items="items.npy"):
    return "evaluate", folder / model, folder / items, *more


def report(folder, *more, **named):
    return json.loads(succeed(*evaluate(folder, *more, "--json", **named)).stdout)


def test_it_reports_what_the_library_measures(folder):
    X, Q = rows_of(folder)
    relevance = judgements_of(folder)
    ask = ("--queries", folder / "queries.npy", "--relevance", folder / "rows.csv", "-k", "1,10")
    got = report(folder, *ask)
    assert list(got["results"]) == ["learnt", "dot", "cosine"]
    import simstream

    learnt = measure_ranking(
        simstream.load(folder / "model.safetensors"), Q, X, relevance=relevance, k=(1, 10)
    )
    others = {
        "dot": measure_ranking(lambda q, x: q @ x.T, Q, X, relevance=relevance, k=(1, 10)),
        "cosine": measure_ranking(
            Bilinear(np.eye(D, dtype="f4"), normalise=True), Q, X, relevance=relevance, k=(1, 10)
        ),
    }
    for measure in ("nDCG@10", "mAP", "P@1", "P@10", "recall@10", "MRR"):
        assert got["results"]["learnt"][measure] == learnt.means()[measure]
        for name, other in others.items():
            assert got["results"][name][measure] == pytest.approx(other.means()[measure])
            expected = paired_interval(learnt.per_query[measure] - other.per_query[measure])
            assert got["differences"][name][measure] == pytest.approx(expected._asdict())
    n_used = len(np.unique(relevance[relevance[:, 2] > 0, 0]))
    assert (got["n_queries"], got["n_left_out"], got["n_judgements"]) == (n_used, 30 - n_used, 100)
    table = succeed(*evaluate(folder, *ask)).stdout
    assert "learnt - dot (95 %)" in table
    assert f"{n_used} queries ({30 - n_used} without a relevant item)" in table


def test_names_files_and_formats_make_no_difference(folder):
    ask = ("--queries", folder / "queries.npy", "--relevance", folder / "rows.csv")
    expected = report(folder, *ask)["results"]
    named = ("--item-ids", folder / "items.txt", "--query-ids", folder / "queries.txt")
    by_name = ("--queries", folder / "queries.npy", "--relevance", folder / "named.tsv", *named)
    assert report(folder, *by_name)["results"] == expected
    both = report(folder, "--relevance", folder / "rows.csv", items="both.npz")
    assert both["results"] == expected
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    X, _ = rows_of(folder)
    columns = {"features": list(X), "id": [f"doc{i}" for i in range(N)]}
    pq.write_table(pa.table(columns), folder / "items.parquet", row_group_size=50)
    ask = ("--queries", folder / "queries.npy", "--query-ids", folder / "queries.txt")
    ask += ("--relevance", folder / "named.tsv", "--memory", "2MB")
    assert report(folder, *ask, items="items.parquet")["results"] == expected


def test_items_may_look_for_items(folder):
    (folder / "own.csv").write_text("3,7\n3,9\n8,1\n1,1\n")
    got = report(folder, "--relevance", folder / "own.csv")
    X, _ = rows_of(folder)
    order = [i for i in np.argsort(-(X @ X.T)[8], kind="stable") if i != 8]
    expected = [1 / (1 + order.index(1))]
    order = [i for i in np.argsort(-(X @ X.T)[3], kind="stable") if i != 3]
    expected.append(1 / (1 + min(order.index(7), order.index(9))))
    assert got["results"]["dot"]["MRR"] == pytest.approx(np.mean(expected))
    assert got["n_queries"] == 2


@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix])
def test_every_kind_of_model_is_measured(folder, layout):
    X, Q = rows_of(folder)
    relevance = judgements_of(folder)
    y = (X[:, 0] > 0).astype(int)
    triplets = [[0, 1, 2], [3, 4, 5]]
    adapter = Adapter(random_state=0).set_items(layout(X))
    adapter.partial_fit(layout(Q), [(int(q), int(i), g) for q, i, g in relevance])
    models = {
        "online": OASIS(preprocessor=X).fit(triplets),
        "distance": Mahalanobis(np.diag([1.0, 2, 3, 4, 5])),
        "labels": FromLabels(OASIS(), n_tuples=50, random_state=0).fit(X, y),
        "adapter": adapter,
    }
    items, queries = folder / "items.npy", folder / "queries.npy"
    if layout is sparse.csr_matrix:
        items, queries = folder / "items.npz", folder / "queries.npz"
        sparse.save_npz(items, layout(X))
        sparse.save_npz(queries, layout(Q))
    for name, model in models.items():
        model.save(folder / f"{name}.safetensors")
        ask = ("--queries", queries, "--relevance", folder / "rows.csv", "--baseline", "none")
        got = report(folder, *ask, model=f"{name}.safetensors", items=items.name)
        expected = measure_ranking(
            getattr(model, "learner_", model), layout(Q), layout(X), relevance=relevance
        )
        assert got["results"]["learnt"]["mAP"] == pytest.approx(expected.means()["mAP"], rel=1e-6)
        assert "differences" not in got


def test_wrong_use_and_bad_files(folder):
    relevance = ("--queries", folder / "queries.npy", "--relevance", folder / "rows.csv")
    for option in ("--labels", "--query-labels", "--triplets", "--pairs", "--tasks"):
        line = fail(2, *evaluate(folder, *relevance, option, folder / "items.txt"))
        assert f"{option} is not for --relevance" in line
    line = fail(2, *evaluate(folder, "--item-ids", folder / "items.txt"))
    assert "--item-ids requires --relevance" in line
    line = fail(2, *evaluate(folder, *relevance, "--memory", "much"))
    assert "'much' is not a size" in line
    line = fail(2, *evaluate(folder, *relevance, "--memory", "1kB"))
    assert "'1kB' is less than 1048576 bytes" in line
    line = fail(1, *evaluate(folder, "--relevance", folder / "absent.csv"))
    assert "absent.csv: no such file" in line
    (folder / "nothing.csv").write_text("0,1,0\n")
    line = fail(1, *evaluate(folder, "--relevance", folder / "nothing.csv"))
    assert "no relevant item; expected a grade above 0" in line
    (folder / "itself.csv").write_text("4,4\n")
    line = fail(1, *evaluate(folder, "--relevance", folder / "itself.csv"))
    assert "no query with a relevant candidate" in line
    (folder / "unknown.csv").write_text("0,5000\n")
    line = fail(1, *evaluate(folder, "--relevance", folder / "unknown.csv"))
    assert "unknown item" in line
    np.save(folder / "wide.npy", np.ones((4, D + 1)))
    line = fail(1, *evaluate(folder, *relevance, items="wide.npy"))
    assert f"wide.npy: wrong number of features; expected {D}, got {D + 1}" in line
    np.save(folder / "items.npy", np.full((9, D), np.nan))
    line = fail(1, *evaluate(folder, "--relevance", folder / "own.csv"))
    assert "own.csv: no such file" in line
    (folder / "own.csv").write_text("3,7\n")
    line = fail(1, *evaluate(folder, "--relevance", folder / "own.csv"))
    assert "items.npy: not finite at row 3, column 0" in line
    (folder / "items.npy").write_bytes(b"")
    assert "empty file" in fail(1, *evaluate(folder, "--relevance", folder / "own.csv"))


def test_ctrl_c_ends_with_its_code(folder, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep.Sweep, "_tiles", interrupted)
    relevance = ("--queries", folder / "queries.npy", "--relevance", folder / "rows.csv")
    result = run(*evaluate(folder, *relevance))
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("text", "number"),
    [("512MB", 512 * 10**6), ("1.5 GiB", 3 * 2**29), ("2048", 2048), ("3k", 3000)],
)
def test_sizes(text, number):
    from simstream.cli.options import Size

    assert Size().convert(text, None, None) == number


def test_labels_of_a_file_read_in_blocks(folder):
    """The same report from .npy and .parquet, which are read in blocks, and .npz, which is not."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    X, _ = rows_of(folder)
    labels = np.arange(N) % 3
    names = np.array(["ant", "bee", "cat"])[labels]
    np.savez(folder / "labelled.npz", items=X, labels=names)
    pq.write_table(
        pa.table({"features": list(X), "label": names.tolist()}), folder / "labelled.parquet"
    )
    (folder / "labels.txt").write_text("".join(f"{name}\n" for name in names))
    expected = report(folder, items="labelled.npz")["results"]
    assert report(folder, items="labelled.parquet")["results"] == expected
    assert report(folder, "--labels", folder / "labels.txt")["results"] == expected
    query = ("query", folder / "model.safetensors")
    rows = ("--row", 5, "--row", 0, "-k", 4, "--csv")
    one, *others = (
        succeed(*query, folder / name, *rows, *more).stdout
        for name, *more in (
            ("labelled.npz",),
            ("labelled.parquet",),
            ("items.npy", "--labels", folder / "labels.txt"),
        )
    )
    assert one.count("\n") == 9
    assert others == [one, one]
