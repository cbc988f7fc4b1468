"""``simstream adapt``: what it learns is the library's, what it publishes not worse than the baseline."""

import gzip
import importlib
import json
import shlex
import signal
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from safetensors.numpy import load_file

import readme_tour
import simstream
from commands import fail, run, succeed
from simstream import Adapter, plots
from simstream.adaptation.report import MEASURES
from simstream.cli import training
from simstream.data import write_items

N_ITEMS, N_FEATURES, N_JUDGED, N_QUERIES = 200, 16, 120, 160


class Case:
    """Vectors and judgements in files of a folder."""

    def __init__(self, folder, queries, items, judgements):
        self.folder = folder
        self.queries = queries.astype(np.float32)
        self.items = items.astype(np.float32)
        self.judgements = judgements
        np.save(folder / "queries.npy", self.queries)
        np.save(folder / "items.npy", self.items)
        self.relevance = folder / "relevance.tsv"
        self.write(judgements)
        self.model = folder / "model.safetensors"

    def write(self, judgements, path=None):
        lines = ("\t".join(map(str, one)) + "\n" for one in judgements)
        (path or self.relevance).write_text("".join(lines))

    @property
    def vectors(self):
        return "--items", self.folder / "items.npy", "--queries", self.folder / "queries.npy"

    @property
    def arguments(self):
        return "adapt", *self.vectors, "--relevance", self.relevance, "-o", self.model

    def fitted(self, **params):
        adapter = Adapter(random_state=0, **params)
        return adapter.fit(self.queries, self.items, self.judgements)

    def first_hits(self, similarity):
        """Share of the queries not judged whose own item comes first."""
        rows = np.arange(N_JUDGED, N_QUERIES)
        found = similarity.search(self.queries[rows], self.items, k=1).indices[:, 0]
        return np.mean(found == rows)


@pytest.fixture
def rotated(tmp_path):
    """Queries are turned and mixed with what they look for: inner products do not show it."""
    rng = np.random.default_rng(0)
    items = rng.normal(size=(N_ITEMS, N_FEATURES))
    rotation, _ = np.linalg.qr(rng.normal(size=(N_FEATURES, N_FEATURES)))
    queries = items[:N_QUERIES] @ rotation + 0.7 * items[:N_QUERIES]
    # Two judgements of each query, apart from one another, the second with a lower grade or none.
    judgements = [(row, row, 2) for row in range(N_JUDGED)]
    judgements += [(row, (row + 7) % N_JUDGED, 0) for row in range(0, N_JUDGED, 2)]
    return Case(tmp_path, queries, items, judgements)


@pytest.fixture
def random(tmp_path):
    """Feedback that has nothing to do with the queries."""
    rng = np.random.default_rng(1)
    items = rng.normal(size=(N_ITEMS, N_FEATURES))
    queries = items[:N_QUERIES] + 0.3 * rng.normal(size=(N_QUERIES, N_FEATURES))
    chosen = rng.integers(0, N_ITEMS, N_JUDGED)
    return Case(tmp_path, queries, items, [(row, int(chosen[row])) for row in range(N_JUDGED)])


def same_arrays(first, second):
    """Whether two model files hold the same numbers, to rounding.

    Where short arrays happen to lie in memory decides whether compiled loops take several numbers at a time,
    and so the last bit of a sum.
    """
    a, b = load_file(first), load_file(second)
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype
        and a[name].shape == b[name].shape
        and np.allclose(a[name], b[name], rtol=1e-5, atol=1e-6, equal_nan=True)
        for name in a
    )


# -- what is learnt and published -----------------------------------------------------------------


def test_feedback_that_helps_is_used(rotated, tmp_path):
    report, picture = tmp_path / "report.md", tmp_path / "picture.png"
    pytest.importorskip("matplotlib")
    result = succeed(*rotated.arguments, "--report", report, "--plot", picture)
    table, _, rest = result.stdout.partition("used from now on: ")
    assert all(
        name in table for name in (*MEASURES, "baseline", "adapted", "gain", "95 % interval")
    )
    verdict = rest.splitlines()[-1]
    assert verdict.startswith("adapted: nDCG@10")
    assert report.read_text().startswith("# Adaptation report")
    assert verdict[1:] in report.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")
    adapter = simstream.load(rotated.model)
    assert isinstance(adapter, Adapter)
    assert adapter.report().verdict == verdict
    baseline = Adapter().set_items(rotated.items)
    assert rotated.first_hits(adapter) > rotated.first_hits(baseline) + 0.1


def test_where_nothing_is_gained_the_baseline_is_published(random, tmp_path):
    result = succeed(*random.arguments, "--caution", 3, "--report", tmp_path / "report.json")
    assert "used from now on: the baseline, unchanged" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("baseline kept: ")
    report = json.loads((tmp_path / "report.json").read_text())
    assert not report["is_adapted"]
    assert report["choice"] is None
    adapter = simstream.load(random.model)
    np.testing.assert_array_equal(adapter.transform_query(random.queries), random.queries)
    assert adapter.n_queries_ == N_JUDGED


@pytest.mark.parametrize("piece", [1, 7, 10**6])
def test_what_is_learnt_is_the_librarys_however_it_is_cut(rotated, tmp_path, monkeypatch, piece):
    monkeypatch.setattr(training.LearningPace, "note", lambda self, n, seconds: None)
    monkeypatch.setattr(training, "_FIRST_PIECE", piece)
    succeed(*rotated.arguments)
    expected = tmp_path / "expected.safetensors"
    rotated.fitted().save(expected)
    assert same_arrays(rotated.model, expected)
    assert simstream.load(rotated.model).report().to_dict() == rotated.fitted().report().to_dict()


def test_options_reach_the_adapter(rotated):
    options = ["--measure", "p@1", "--caution", 0.5, "--clearance", 2, "--half-life", "none"]
    succeed(*rotated.arguments, *options, "--seed", 3)
    adapter = simstream.load(rotated.model)
    assert (adapter.measure, adapter.half_life) == ("P@1", None)
    assert (adapter.caution, adapter.clearance) == (0.5, 2.0)
    assert adapter.random_state == 3
    offered = importlib.import_module(
        "simstream.cli.adapt"
    ).MEASURES  # simstream.cli.adapt is the command
    assert offered == MEASURES


def test_rows_of_length_one_are_remembered(rotated, tmp_path):
    succeed(*rotated.arguments, "--unit-norm")
    scaled = Case(
        tmp_path,
        rotated.queries / np.linalg.norm(rotated.queries, axis=1, keepdims=True),
        rotated.items / np.linalg.norm(rotated.items, axis=1, keepdims=True),
        rotated.judgements,
    )
    adapter = simstream.load(rotated.model)
    np.testing.assert_allclose(
        adapter.transform_query(scaled.queries),
        scaled.fitted().transform_query(scaled.queries),
        atol=1e-3,
    )
    np.save(tmp_path / "longer.npy", 10 * scaled.items)
    rows = [rotated.model, tmp_path / "longer.npy", "--queries", tmp_path / "queries.npy", "--json"]
    (found, *_) = json.loads(succeed("query", *rows).stdout)
    best = adapter.search(scaled.queries[:1], scaled.items, k=1)
    assert found["neighbours"][0]["row"] == best.indices[0, 0]
    assert found["neighbours"][0]["score"] == pytest.approx(float(best.scores[0, 0]), rel=1e-4)


def test_sparse_items(rotated, tmp_path):
    """Tags of queries and of items are others, except some: those of items follow from those of queries."""
    rng = np.random.default_rng(2)
    tags = sp.random(N_ITEMS, 20, 0.2, "csr", np.float32, random_state=rng)
    items = sp.hstack([tags, sp.csr_matrix((N_ITEMS, 20), dtype=np.float32)], "csr")
    queries = sp.hstack([0.3 * tags, tags], "csr")[:N_QUERIES]
    write_items(tmp_path / "items.svm", items)  # does not tell of the last 20 features
    write_items(tmp_path / "queries.svm", queries)
    files = ["--items", tmp_path / "items.svm", "--queries", tmp_path / "queries.svm"]
    options = ["--relevance", rotated.relevance, "-o", rotated.model, "--json"]
    facts = json.loads(succeed("adapt", *files, *options).stdout)
    adapter = simstream.load(rotated.model)
    assert adapter.shape_ == (queries.shape[1], queries.shape[1])
    expected = Adapter(random_state=0).fit(queries, items, rotated.judgements)
    assert facts["measures"] == expected.report().to_dict()["measures"]


# -- the files of feedback ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["named.csv", "trec.txt", "spaces.txt", "objects.jsonl.gz", "lists.jsonl", "a.npy", "a.npz"],
)
def test_formats_of_judgements(rotated, tmp_path, name):
    path = tmp_path / name
    rows = rotated.judgements
    match name:
        case "named.csv":
            path.write_text("grade,query-id,corpus-id\n")
            with path.open("a") as file:
                file.writelines(f"{grade},{query},{item}\n" for query, item, grade in rows)
        case "trec.txt":
            path.write_text("".join(f"{q} 0 {item} {grade}\n" for q, item, grade in rows))
        case "spaces.txt":
            path.write_text("".join(f"{q} {item} {grade}\n" for q, item, grade in rows))
        case "objects.jsonl.gz":
            lines = [
                json.dumps({"query": q, "item": i, "grade": g, "by": "me"}) for q, i, g in rows
            ]
            path.write_bytes(gzip.compress("\n".join(lines).encode()))
        case "lists.jsonl":
            path.write_text("\n".join(map(json.dumps, rows)))
        case "a.npy":
            np.save(path, np.array(rows))
        case "a.npz":
            np.savez(path, relevance=np.array(rows, float))
    succeed("adapt", *rotated.vectors, "--relevance", path, "-o", tmp_path / "other")
    succeed(*rotated.arguments)
    assert same_arrays(rotated.model, tmp_path / "other")


def test_judgements_in_parquet(rotated, tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    query, item, grade = map(list, zip(*rotated.judgements, strict=True))
    pq.write_table(pa.table({"item": item, "query": query, "grade": grade}), tmp_path / "a.parquet")
    files = ["--relevance", tmp_path / "a.parquet", "-o", tmp_path / "other"]
    succeed("adapt", *rotated.vectors, *files)
    succeed(*rotated.arguments)
    assert same_arrays(rotated.model, tmp_path / "other")


def test_items_and_queries_by_id(rotated, tmp_path):
    item_ids = [f"{row:03d}" for row in range(N_ITEMS)]  # 007 is not 7
    query_ids = [f"q{row}" for row in range(N_QUERIES)]
    judged = [(query_ids[q], item_ids[item], grade) for q, item, grade in rotated.judgements]
    rotated.write(judged)
    (tmp_path / "items.txt").write_text("\n".join(["id", *item_ids]))
    (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, query_ids)))
    ids = ["--item-ids", tmp_path / "items.txt", "--query-ids", tmp_path / "queries.jsonl"]
    texts = [{"id": name, "text": f"text of {name}"} for name in reversed(query_ids)]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, texts)))
    options = ["--texts", tmp_path / "texts.jsonl", "--json"]
    facts = json.loads(succeed(*rotated.arguments, *ids, *options).stdout)
    assert facts["won"]
    assert all(one["text"] == f"text of {one['name']}" for one in facts["won"])
    adapter = Adapter(random_state=0)
    adapter.fit(rotated.queries, rotated.items, judged, query_ids=query_ids, item_ids=item_ids)
    adapter.save(tmp_path / "expected")
    assert same_arrays(rotated.model, tmp_path / "expected")
    # The same with ids that the files of vectors carry.
    write_items(tmp_path / "items.jsonl", rotated.items, ids=item_ids)
    write_items(tmp_path / "queries.npz", rotated.queries, ids=query_ids)
    files = ["--items", tmp_path / "items.jsonl", "--queries", tmp_path / "queries.npz"]
    succeed("adapt", *files, "--relevance", rotated.relevance, "-o", tmp_path / "other")
    assert same_arrays(rotated.model, tmp_path / "other")


def test_texts_by_row(rotated, tmp_path):
    (tmp_path / "texts.txt").write_text("".join(f"text {row}\n" for row in range(N_QUERIES)))
    report = tmp_path / "report.md"
    succeed(*rotated.arguments, "--texts", tmp_path / "texts.txt", "--report", report)
    won = simstream.load(rotated.model).report().won
    assert won
    assert all(f"| {one.name}: text {one.name} |" in report.read_text() for one in won)


def test_one_file_of_items_and_queries(rotated, tmp_path):
    path = tmp_path / "both.npz"
    np.savez(path, items=rotated.items, queries=rotated.queries)
    files = ["--items", path, "--queries", path, "--relevance", rotated.relevance]
    succeed("adapt", *files, "-o", tmp_path / "other")
    succeed(*rotated.arguments)
    assert same_arrays(rotated.model, tmp_path / "other")


def test_items_that_look_for_items(rotated, tmp_path):
    """The item itself is the nearest of all, and no answer."""
    judgements = [(row, (row + 100) % N_ITEMS) for row in range(N_JUDGED)]
    rotated.write(judgements)
    items = ["--items", tmp_path / "items.npy", "--relevance", rotated.relevance]
    succeed("adapt", *items, "-o", rotated.model)
    own = list(range(N_ITEMS))
    adapter = Adapter(random_state=0).fit(rotated.items, rotated.items, judgements, own_items=own)
    adapter.save(tmp_path / "expected")
    assert same_arrays(rotated.model, tmp_path / "expected")


def searches_of(case):
    """A log: five random items and the right one are shown; the right one is clicked, mostly."""
    rng = np.random.default_rng(5)
    for row in range(N_JUDGED):
        shown = rng.permutation(np.unique([row, *rng.integers(0, N_ITEMS, 5)])).tolist()
        yield row, shown, [row] if row % 10 else []


@pytest.mark.parametrize("given", ["none", "1.0", "file"])
def test_clicks(rotated, tmp_path, given):
    searches = list(searches_of(rotated))
    log = tmp_path / "clicks.jsonl"
    lines = [
        {"query": q if q % 3 else rotated.queries[q].tolist(), "shown": s, "clicked": c, "at": 0}
        for q, s, c in searches
    ]
    log.write_text("\n".join(map(json.dumps, lines)))
    file = tmp_path / "propensity.txt"
    file.write_text("1.0\n0.7\n0.5\n0.4\n0.3\n0.05\n")
    by_rank = {
        "none": None,
        "1.0": np.array([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6]),
        "file": np.array([1.0, 0.7, 0.5, 0.4, 0.3, 0.05]),
    }[given]
    propensity = file if given == "file" else given
    options = ["--clicks", log, "--propensity", propensity, "-o", rotated.model, "--json"]
    facts = json.loads(succeed("adapt", *rotated.vectors, *options).stdout)
    expected = Adapter(random_state=0).set_items(rotated.items)
    for query, shown, clicked in searches:
        own = None if by_rank is None else by_rank[: len(shown)]
        name = query if query % 3 else None
        expected.learn_one(rotated.queries[query], shown, clicked, propensities=own, name=name)
    expected.save(tmp_path / "expected")
    assert same_arrays(rotated.model, tmp_path / "expected")
    assert facts["n_learnt"] == expected.n_queries_ == N_JUDGED - N_JUDGED // 10
    assert facts["n_skipped"] == N_JUDGED // 10


def test_clicks_with_vectors_need_no_queries(rotated, tmp_path):
    log = tmp_path / "clicks.jsonl"
    lines = [
        {"query": rotated.queries[q].tolist(), "shown": s, "clicked": c}
        for q, s, c in searches_of(rotated)
    ]
    log.write_text("\n".join(map(json.dumps, lines)))
    items = ["--items", tmp_path / "items.npy", "--clicks", log]
    succeed("adapt", *items, "-o", rotated.model)
    assert simstream.load(rotated.model).n_queries_ == N_JUDGED - N_JUDGED // 10
    log.write_text(json.dumps({"query": 3, "shown": [1, 2], "clicked": [1]}))
    message = fail(1, "adapt", *items, "-o", rotated.model)
    assert "line 1: unknown query; expected a list of numbers" in message


# -- going on -------------------------------------------------------------------------------------


def test_a_file_that_has_grown_is_read_on(rotated, tmp_path):
    first, second = rotated.judgements[:70], rotated.judgements[70:]
    rotated.write(first)
    succeed(*rotated.arguments)
    rotated.write(rotated.judgements)
    result = succeed(*rotated.arguments, "--resume", rotated.model)
    assert "continuing after 70 queries" in result.stderr
    expected = Adapter(random_state=0).fit(rotated.queries, rotated.items, first)
    expected.partial_fit(rotated.queries, second).save(tmp_path / "expected")
    assert same_arrays(rotated.model, tmp_path / "expected")
    result = succeed(*rotated.arguments[:-2], "--resume", rotated.model)  # written to the same file
    assert "nothing new to learn from" in result.stderr
    assert same_arrays(rotated.model, tmp_path / "expected")
    rotated.write(first)
    assert "shorter than before" in fail(1, *rotated.arguments, "--resume", rotated.model)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_resumed_is_never_interrupted(rotated, tmp_path, monkeypatch, number):
    monkeypatch.setattr(training, "_FIRST_PIECE", 5)
    monkeypatch.setattr(training, "_SECONDS_PER_PIECE", 1e-9)
    whole = tmp_path / "whole"
    succeed(*rotated.arguments[:-1], whole)
    original, calls = Adapter.partial_fit, []

    def interrupted(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 4:
            signal.raise_signal(number)
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(Adapter, "partial_fit", interrupted)
        result = run(*rotated.arguments, "--json")
    assert result.exit_code == 128 + number, result.stderr
    assert f"--resume {rotated.model}" in result.stderr
    facts = json.loads(result.stdout)
    assert facts["interrupted"]
    assert 0 < facts["n_learnt"] < N_JUDGED
    assert simstream.load(rotated.model).n_queries_ == facts["n_learnt"]
    succeed(*rotated.arguments, "--resume", rotated.model)
    assert same_arrays(rotated.model, whole)


def test_an_interrupted_run_leaves_a_good_model_alone(rotated, monkeypatch):
    monkeypatch.setattr(training, "_FIRST_PIECE", 5)
    monkeypatch.setattr(training, "_SECONDS_PER_PIECE", 1e-9)
    succeed(*rotated.arguments)
    good = rotated.model.read_bytes()
    beside = rotated.model.with_name(f"{rotated.model.stem}.unfinished{rotated.model.suffix}")
    original = Adapter.partial_fit

    def interrupted(self, *args, **kwargs):
        signal.raise_signal(signal.SIGINT)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Adapter, "partial_fit", interrupted)
    result = run(*rotated.arguments)
    assert result.exit_code == 130
    assert f"saved to {beside}" in result.stderr
    assert rotated.model.read_bytes() == good
    assert 0 < simstream.load(beside).n_queries_ < simstream.load(rotated.model).n_queries_


def test_a_second_ctrl_c_leaves_nothing_behind(rotated, tmp_path, monkeypatch):
    original, calls = Adapter.partial_fit, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) != 2:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(training, "_FIRST_PIECE", 5)
    monkeypatch.setattr(training, "_SECONDS_PER_PIECE", 1e-9)
    monkeypatch.setattr(Adapter, "partial_fit", interrupted)
    message = fail(130, *rotated.arguments)
    assert message == "simstream: interrupted before learning began; nothing was written"
    message = fail(130, *rotated.arguments)
    assert message == "simstream: interrupted; what was learnt is lost, and nothing was written"
    assert sorted(tmp_path.iterdir()) == before


def test_queries_held_out_are_measured_and_never_learnt_from(rotated, tmp_path):
    result = succeed(*rotated.arguments, "--holdout", 0.3, "--json")
    told = json.loads(result.stdout)
    names = [row for row in range(N_JUDGED) if zlib.crc32(str(row).encode()) < 0.3 * 2**32]
    assert told["holdout"]["n_queries"] == len(names)
    assert told["n_learnt"] == N_JUDGED - len(names)
    adapter = simstream.load(rotated.model)
    # As if the file had never had them.
    rotated.write([one for one in rotated.judgements if one[0] not in names])
    alone = tmp_path / "alone.safetensors"
    succeed(*rotated.arguments[:-1], alone)
    assert same_arrays(rotated.model, alone)
    scores = adapter.score_items(rotated.queries[names], rotated.items)
    first = np.mean(scores.argmax(axis=1) == names)
    before = np.mean((rotated.queries[names] @ rotated.items.T).argmax(axis=1) == names)
    assert told["holdout"]["P@1"]["adapted"] == pytest.approx(first)
    assert told["holdout"]["P@1"]["baseline"] == pytest.approx(before)
    # They stay apart when learning goes on, asked for or not.
    rotated.write(rotated.judgements)
    again = succeed(*rotated.arguments, "--resume", rotated.model)
    assert f"{len(names)} queries held out" in again.stdout
    assert simstream.load(rotated.model).n_queries_ == N_JUDGED - len(names)
    message = fail(2, *rotated.arguments, "--resume", rotated.model, "--holdout", 0.5)
    assert "expected --holdout 0.3 as before, got 0.5" in message


def test_holdout_needs_judgements_of_several_queries(rotated, tmp_path):
    message = fail(1, *rotated.arguments, "--holdout", 1.0)
    assert "too few queries for --holdout" in message
    clicks = ["--clicks", tmp_path / "absent.jsonl", "-o", rotated.model, "--holdout", 0.1]
    assert "--holdout is for --relevance" in fail(2, "adapt", *rotated.vectors, *clicks)


def test_resume_refuses_what_does_not_fit(rotated, tmp_path):
    succeed(*rotated.arguments)
    for options, expected in (
        (["--holdout", 0.5], "--holdout 0"),
        (["--measure", "mAP"], "--measure nDCG@10"),
        (["--half-life", "none"], "--half-life 500"),
        (["--seed", 7], "--seed 0"),
        (["--unit-norm"], "--unit-norm False"),
    ):
        message = fail(2, *rotated.arguments, "--resume", rotated.model, *options)
        assert f"expected {expected} as before" in message
    np.save(tmp_path / "wide.npy", np.ones((3, N_FEATURES + 1)))
    wide = ["--items", tmp_path / "wide.npy", "--queries", tmp_path / "wide.npy"]
    files = ["--relevance", rotated.relevance, "--resume", rotated.model]
    assert "wrong number of features" in fail(1, "adapt", *wide, *files)
    simstream.Bilinear(np.eye(N_FEATURES)).save(tmp_path / "bilinear")
    message = fail(2, *rotated.arguments, "--resume", tmp_path / "bilinear")
    assert "expected a model of simstream adapt, got one of Bilinear" in message
    (tmp_path / "no-model").write_text("text")
    fail(3, *rotated.arguments, "--resume", tmp_path / "no-model")


# -- what is wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "empty file"),
        ("\n\n", "no judgements; expected at least one, got none"),
        ("query\titem\n", "no judgements; expected at least one, got none"),
        ("0\t1\n0\t999\n", "line 2: unknown item; expected a row number below 200, got '999'"),
        ("0\t1\n160\t1\n", "line 2: unknown query; expected a row number below 160, got '160'"),
        ("0\t-1\n", "line 1: unknown item; expected a row number below 200, got '-1'"),
        ("0\tx\n", "line 1: unknown item"),
        ("0\t1\tnan\n", "line 1: not a grade; expected a finite number, got 'nan'"),
        ("0\t1\tgood\n", "line 1: not a grade"),
        ("0\t1\t1\n0\t2\n", "line 2: ragged line; expected 3 cells, as in the first line, got 2"),
        ("0\n", "line 1: not judgements; expected columns query, item and maybe grade"),
        ("0\t1\t0\n1\t1\t-1\n", "no relevant item; expected a grade above 0, got none"),
    ],
)
def test_wrong_judgements(rotated, tmp_path, text, expected):
    rotated.relevance.write_text(text)
    before = sorted(tmp_path.iterdir())
    message = fail(1, *rotated.arguments)
    assert message.startswith(f"simstream: error: {rotated.relevance}")
    assert expected in message
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ([1], "not a search; expected an object with query, shown and clicked"),
        ({"query": 0, "shown": [1]}, "not a search"),
        ({"query": 0, "shown": [1, 1], "clicked": [1]}, "an item shown twice"),
        ({"query": 0, "shown": [1, 2], "clicked": [3]}, "a click on an item not shown"),
        ({"query": 0, "shown": [1, 999], "clicked": [1]}, "unknown item in shown"),
        ({"query": 0, "shown": 1, "clicked": [1]}, "bad shown; expected a list of items"),
        ({"query": [1.0], "shown": [1], "clicked": [1]}, "expected 16, got 1"),
        ({"query": [None] * N_FEATURES, "shown": [1], "clicked": [1]}, "finite numbers"),
        ({"query": True, "shown": [1], "clicked": [1]}, "unknown query"),
        ({"query": 0, "shown": [1, 2], "clicked": []}, "no click; expected at least one"),
    ],
)
def test_wrong_clicks(rotated, tmp_path, record, expected):
    log = tmp_path / "clicks.jsonl"
    log.write_text(json.dumps(record))
    message = fail(1, "adapt", *rotated.vectors, "--clicks", log, "-o", rotated.model)
    assert message.startswith(f"simstream: error: {log}")
    assert expected in message
    assert not rotated.model.exists()


def test_wrong_vectors(rotated, tmp_path):
    bad = rotated.queries.copy()
    bad[3, 2] = np.nan
    np.save(tmp_path / "bad.npy", bad)
    np.save(tmp_path / "narrow.npy", rotated.queries[:, 1:])
    np.save(tmp_path / "zero.npy", np.zeros_like(rotated.queries))
    for name, expected in (
        ("bad.npy", "not finite at row 3, column 2"),
        ("narrow.npy", "queries and items differ in features; expected 16, got 15"),
        ("absent.npy", "no such file"),
        ("zero.npy", "nothing to learn from"),
    ):
        files = ["--items", tmp_path / "items.npy", "--queries", tmp_path / name]
        message = fail(1, "adapt", *files, "--relevance", rotated.relevance, "-o", rotated.model)
        assert expected in message
    message = fail(1, "adapt", *rotated.vectors, "--relevance", "absent.tsv", "-o", rotated.model)
    assert message == "simstream: error: absent.tsv: no such file"
    assert not rotated.model.exists()


def test_wrong_ids_and_texts(rotated, tmp_path):
    path = tmp_path / "ids.txt"
    path.write_text("a\nb\n")
    message = fail(1, *rotated.arguments, "--item-ids", path)
    assert "ids and rows differ in number; expected 200 ids, got 2" in message
    path.write_text("a\nb\na\n")
    message = fail(1, *rotated.arguments, "--item-ids", path)
    assert "line 3: an id twice; expected different ids, got 'a'" in message
    message = fail(1, *rotated.arguments, "--texts", path)
    assert "texts and rows differ in number; expected 160 texts, got 3" in message


def test_wrong_usage(rotated, tmp_path):
    log = tmp_path / "clicks.jsonl"
    log.write_text(json.dumps({"query": 0, "shown": [1, 2], "clicked": [2]}))
    vectors, relevance = rotated.vectors, ["--relevance", rotated.relevance]
    items, output = vectors[:2], ["-o", rotated.model]
    short = tmp_path / "short.txt"
    short.write_text("0.5\n")
    for code, expected, arguments in (
        (2, "expected --relevance or --clicks, got neither", [*vectors, *output]),
        (2, "got both", [*vectors, *relevance, "--clicks", log, *output]),
        (2, "--query-ids requires --queries", [*items, *relevance, *output, "--query-ids", log]),
        (2, "expected --output (or --resume)", [*vectors, *relevance]),
        (2, "--propensity is for --clicks", [*vectors, *relevance, *output, "--propensity", 1]),
        (2, "--texts requires --queries", [*items, "--clicks", log, "--texts", log, *output]),
        (2, "expected .md or .json", [*vectors, *relevance, *output, "--report", "report.doc"]),
        (2, "got one of the inputs", [*vectors, *relevance, "-o", rotated.relevance]),
        (2, "no such folder", [*vectors, *relevance, "-o", tmp_path / "no" / "model"]),
        (2, "'F@1' is not one of", [*vectors, *relevance, *output, "--measure", "F@1"]),
        (2, "got 'soon'", [*vectors, *relevance, *output, "--half-life", "soon"]),
        (2, "half_life", [*vectors, *relevance, *output, "--half-life", 0]),
        (2, "--propensity", [*vectors, "--clicks", log, *output, "--propensity", -1]),
        (1, "too few ranks", [*vectors, "--clicks", log, *output, "--propensity", short]),
        (1, "no such file", [*vectors, "--clicks", log, *output, "--propensity", "absent.txt"]),
    ):
        assert expected in fail(code, "adapt", *arguments)
    assert not rotated.model.exists()


# -- what is shown --------------------------------------------------------------------------------


def test_json_and_quiet(rotated):
    facts = json.loads(succeed(*rotated.arguments, "--json").stdout)
    adapter = simstream.load(rotated.model)
    assert facts.items() >= adapter.report().to_dict().items()
    assert facts["model"] == str(rotated.model)
    assert (facts["n_learnt"], facts["n_skipped"], facts["interrupted"]) == (N_JUDGED, 0, False)
    assert succeed(*rotated.arguments, "--quiet").output == ""


def test_progress_lines(rotated, monkeypatch):
    from simstream.cli import output

    monkeypatch.setattr(output, "_SECONDS_BETWEEN_LINES", 0.0)
    lines = succeed(*rotated.arguments).stderr.splitlines()
    assert any("120 of 120 queries" in line and "/s" in line for line in lines)


def test_other_commands_take_the_model(rotated, tmp_path):
    succeed(*rotated.arguments)
    adapter = simstream.load(rotated.model)
    facts = json.loads(succeed("info", rotated.model, "--json").stdout)
    assert facts["class"] == "Adapter"
    assert facts["n_queries"] == N_JUDGED
    assert facts["n_judgements"] == len(rotated.judgements)
    assert (facts["chosen"]["candidate"], facts["chosen"]["trust"]) == adapter.chosen_
    text = succeed("info", rotated.model).stdout
    assert adapter.report().verdict in text
    assert f"120 queries of {rotated.relevance} learnt" in text
    rows = ["--queries", tmp_path / "queries.npy", "-k", 3, "--json"]
    found = json.loads(succeed("query", rotated.model, tmp_path / "items.npy", *rows).stdout)
    expected = adapter.search(rotated.queries, rotated.items, k=3).indices
    shown = [[one["row"] for one in each["neighbours"]] for each in found]
    np.testing.assert_array_equal(shown, expected)
    # Every item is of its own class, and so is every query: mAP is the mean reciprocal rank.
    write_items(tmp_path / "items.npz", rotated.items, np.arange(N_ITEMS))
    write_items(tmp_path / "queries.npz", rotated.queries, np.arange(N_QUERIES))
    files = [tmp_path / "items.npz", "--queries", tmp_path / "queries.npz", "-k", 1, "--json"]
    results = json.loads(succeed("evaluate", rotated.model, *files).stdout)["results"]
    hits = np.mean(expected[:, 0] == np.arange(N_QUERIES))
    assert results["learnt"]["P@1"] == pytest.approx(hits)
    assert results["learnt"]["mAP"] > results["dot"]["mAP"]


def test_the_model_of_train_is_not_gone_on_with_an_adapter(rotated, tmp_path):
    succeed(*rotated.arguments)
    write_items(tmp_path / "items.npz", rotated.items, np.arange(N_ITEMS) % 5)
    message = fail(2, "train", tmp_path / "items.npz", "--resume", rotated.model)
    assert "use simstream adapt --resume" in message


def test_the_picture_shows_the_report(rotated):
    pytest.importorskip("matplotlib")
    report = rotated.fitted().report()
    left, right = plots.adaptation_figure(report).axes
    baseline, adapted = left.lines[0], left.containers[0].lines[0]
    np.testing.assert_allclose(baseline.get_ydata(), [part.baseline for _, part in report.curve])
    np.testing.assert_allclose(adapted.get_ydata(), [part.adapted for _, part in report.curve])
    (bars,) = left.containers[0].lines[2]
    ends = np.array([segment[:, 1] for segment in bars.get_segments()])
    gains = ends - np.array([part.baseline for _, part in report.curve])[:, None]
    np.testing.assert_allclose(gains, [(part.low, part.high) for _, part in report.curve])
    labels = [text.get_text() for text in right.get_legend().get_texts()]
    assert labels[:2] == [f"better: {report.n_won}", f"worse: {report.n_lost}"]
    assert len(report.gains) == N_JUDGED
    assert report.measures["nDCG@10"].gain == pytest.approx(report.gains.mean())


def test_a_picture_of_nothing(rotated):
    pytest.importorskip("matplotlib")
    for adapter in (
        Adapter().set_items(rotated.items),
        Adapter(random_state=0).fit(rotated.queries, rotated.items, [(0, 1)]),
    ):
        assert len(plots.adaptation_figure(adapter.report()).axes) == 2


def test_a_million_judgements_of_one_item_are_read_in_seconds(rotated, tmp_path):
    path = tmp_path / "many.npy"
    np.save(path, np.tile([[0, 1]], (10**6, 1)))
    started = time.perf_counter()
    files = ["--relevance", path, "-o", rotated.model, "--json"]
    facts = json.loads(succeed("adapt", *rotated.vectors, *files).stdout)
    assert facts["n_learnt"] == 1
    assert not facts["is_adapted"]
    assert time.perf_counter() - started < 60


def test_the_page_of_the_documentation_runs(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    page = Path(__file__).resolve().parent.parent / "docs" / "adapt.md"
    monkeypatch.chdir(tmp_path)
    readme_tour.run_python(page)
    lines = readme_tour.commands(page)
    assert len(lines) >= 4
    for line in lines:
        succeed(*shlex.split(line, comments=True)[1:])
    for name in ("model", "clicked"):
        assert simstream.load(f"{name}.safetensors").chosen_ is not None, name
