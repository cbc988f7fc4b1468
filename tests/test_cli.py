"""The command line as its users meet it: what it prints, writes and returns."""

import csv
import importlib
import inspect
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from safetensors.numpy import load_file
from sklearn.datasets import load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import minmax_scale, normalize

import simstream
from commands import fail, run, same_state, succeed
from simstream import (
    LEGO,
    OASIS,
    OMTRSL,
    SORS,
    FromLabels,
    Mahalanobis,
    PairSampler,
    PAMetric,
    TaskTripletSampler,
    TripletSampler,
    catalogue,
)
from simstream.cli import main
from simstream.cli.learners import ALGORITHMS, BASELINES
from simstream.cli.output import echo_table
from simstream.cli.sources import RecordSource, StoppableInput
from simstream.data import (
    read_items,
    read_pairs,
    read_triplets,
    write_items,
    write_pairs,
    write_triplets,
)
from simstream.metrics import knn_predict, ranking_report

N_ITEMS, N_FEATURES = 60, 6
FROM_PAIRS = [known.name.lower() for known in catalogue.ALGORITHMS if known.takes[0] == "pairs"]
BATCH = [known.name.lower() for known in catalogue.ALGORITHMS if known.is_batch]
FROM_SETS = [known.name.lower() for known in catalogue.ALGORITHMS if known.takes_a_set]


def start(*arguments, stdin=subprocess.DEVNULL):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "simstream", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe, bufsize=0)


def wait_until(condition, process, seconds=30):
    """Poll; give up if the process ends or time runs out."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)


def position_of(path):
    return simstream.read_header(path)["extra"]["train"]["input"]


@pytest.fixture
def data():
    rng = np.random.default_rng(7)
    labels = np.arange(N_ITEMS) % 3
    items = rng.normal(size=(N_ITEMS, N_FEATURES)) + 2 * rng.normal(size=(3, N_FEATURES))[labels]
    return items, labels


@pytest.fixture
def items_file(tmp_path, data):
    path = tmp_path / "items.npz"
    write_items(path, *data)
    return path


@pytest.fixture
def triplets(data):
    return TripletSampler(data[1], 11).draw(300)


@pytest.fixture
def triplets_file(tmp_path, triplets):
    path = tmp_path / "triplets.csv"
    write_triplets(path, triplets)
    return path


@pytest.fixture
def pairs(data):
    return PairSampler(data[1], 12).draw(400)


@pytest.fixture
def pairs_file(tmp_path, pairs):
    path = tmp_path / "pairs.csv"
    write_pairs(path, *pairs)
    return path


@pytest.fixture
def metric_file(tmp_path, items_file):
    path = tmp_path / "metric.safetensors"
    succeed("train", items_file, "-a", "pametric", "-n", 500, "-o", path, "-q")
    return path


@pytest.fixture
def model_file(tmp_path, items_file):
    path = tmp_path / "model.safetensors"
    succeed("train", items_file, "-n", 500, "-o", path, "-q")
    return path


# -- the whole ----------------------------------------------------------------------------------


def test_help_of_every_command_is_quick():
    code = """
import sys
from click.testing import CliRunner
from simstream.cli import main
for name in main.commands:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0 and "--debug" in result.stdout, name
heavy = {"numpy", "scipy", "sklearn", "numba", "rich", "matplotlib", "fastapi"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_tells_the_exit_codes_and_fits_a_terminal():
    text = succeed("--help").stdout
    listed = {int(number) for number in re.findall(r"^ +(\d+)  \w", text, re.MULTILINE)}
    assert listed == {0, 1, 2, 3, 4, 70, 130, 143}
    assert re.search("^  repro +[A-Z]", text, re.MULTILINE)  # brought by another package
    assert ".parquet (pip install" in text
    train = " ".join(succeed("train", "--help").stdout.split())
    assert "(default: 100,000, or that of --resume)" in train
    for name in ("--help", *main.commands):
        lines = run(name, "--help", env={"COLUMNS": "80"}).stdout.splitlines()
        assert max(map(len, lines)) <= 80, name


def test_every_algorithm_of_the_catalogue_is_offered():
    assert list(ALGORITHMS.values()) == [known.name for known in catalogue.ALGORITHMS]


# -- train: what is learnt ----------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_training_is_the_librarys(algorithm, tmp_path, data, items_file):
    items, labels = data
    path = tmp_path / "model.safetensors"
    known = catalogue.find(algorithm)
    draws = algorithm not in BATCH or algorithm in FROM_SETS
    seed = ["--seed", 5] if draws or algorithm == "itml" else []
    amount = ["-n", 700] if draws else []
    succeed("train", items_file, "-a", algorithm, *amount, *seed, "-o", path)
    expected = known.cls()(preprocessor=items)
    if algorithm in FROM_SETS:
        expected.set_params(random_state=5).fit(TripletSampler(labels, 5).draw(700))
    elif algorithm in BATCH:
        expected.set_params(**({"random_state": 5} if algorithm == "itml" else {}))
        expected.fit(items, labels)
    elif algorithm in FROM_PAIRS:
        expected.prepare()
        expected.partial_fit(*PairSampler(labels, 5).draw(700))
    else:
        expected.fit(TripletSampler(labels, 5).draw(700))
    if algorithm in BASELINES:  # count losses by NumPy's sums, whose rounding depends on the cut
        found = simstream.load(path)
        assert found.average_loss_ == pytest.approx(expected.average_loss_)
        assert (found.n_rounds_, found.mistake_rate_) == (700, expected.mistake_rate_)
        return
    expected.save(tmp_path / "expected.safetensors")
    assert same_state(path, tmp_path / "expected.safetensors")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_is_evaluated_queried_and_described(algorithm, tmp_path):
    """On half of scikit-learn's wine, measured on the other half."""
    items, labels = load_wine(return_X_y=True)
    items = minmax_scale(items)
    write_items(tmp_path / "train.npz", items[::2], labels[::2])
    write_items(tmp_path / "test.npz", items[1::2], labels[1::2])
    path = tmp_path / "model.safetensors"
    amount = [] if algorithm in BATCH and algorithm not in FROM_SETS else ["-n", 3000]
    succeed("train", tmp_path / "train.npz", "-a", algorithm, *amount, "-o", path)
    arguments = ["evaluate", path, tmp_path / "test.npz", "--json"]
    results = json.loads(succeed(*arguments).stdout)["results"]
    model = simstream.load(path)
    report = ranking_report(model, items[1::2], labels[1::2])
    assert results["learnt"]["mAP"] == pytest.approx(report["mAP"], abs=1e-12)
    assert results["learnt"]["mAP"] > 0.55  # by chance it would be a third
    guesses = knn_predict(
        model, items[1::2], items[1::2], labels[1::2], n_neighbors=5, exclude_self=True
    )
    error = np.mean(guesses != labels[1::2])
    assert results["learnt"]["k-NN error@5"] == pytest.approx(error, abs=1e-12)
    answers = json.loads(succeed("query", path, tmp_path / "test.npz", "--row", 2, "--json").stdout)
    scores = model.score_items(items[1::2][[2]], items[1::2])[0]
    found = [neighbour["score"] for neighbour in answers[0]["neighbours"]]
    np.testing.assert_allclose(found, np.sort(np.delete(scores, 2))[::-1][:10])
    facts = json.loads(succeed("info", path, "--json").stdout)
    assert facts["class"] == ALGORITHMS[algorithm]
    text = succeed("info", path).stdout
    if catalogue.find(algorithm).learns == catalogue.DISTANCE:
        matrix = model.get_mahalanobis_matrix()
        assert facts["rank"] == np.linalg.matrix_rank(matrix, hermitian=True)
        assert facts["effective_dimension"] == model.effective_dimension_
        assert "effective dimension" in text
        if facts["threshold"] is not None:
            assert facts["threshold"] == model.threshold_
            assert f"{model.threshold_:.6g}" in text
    if algorithm in BATCH and algorithm not in (
        "rca",
        "lda",
        *FROM_SETS,
    ):  # these have a closed form
        assert facts["n_iter"] == model.n_iter_
        assert f"{model.n_iter_:,}, converged" in text


@pytest.mark.parametrize("given", ["labels", "triplets"])
def test_the_first_matrix_is_that_of_the_first_triplets(given, tmp_path):
    items, labels = load_wine(return_X_y=True)
    items = minmax_scale(items)
    write_items(tmp_path / "items.npz", items, labels)
    triplets = TripletSampler(labels, 0).draw(500)
    write_triplets(tmp_path / "triplets.csv", triplets)
    expected = OASIS(init="lda", preprocessor=items).fit(triplets)
    path = tmp_path / "model.safetensors"
    source = ["-n", 500] if given == "labels" else ["--triplets", tmp_path / "triplets.csv"]
    options = ["-a", "oasis", "-p", "init=lda", "--checkpoint-every", 100, "-o", path]
    succeed("train", tmp_path / "items.npz", *source, *options)
    model = simstream.load(path)
    np.testing.assert_array_equal(model.get_bilinear_matrix(), expected.get_bilinear_matrix())
    if given == "labels":
        succeed("train", tmp_path / "items.npz", "-n", 900, "--resume", path, "-o", path)
        assert simstream.load(path).n_rounds_ == 900


def test_a_first_matrix_without_triplets(tmp_path):
    write_items(tmp_path / "items.npz", np.random.default_rng(0).normal(size=(20, 4)))
    (tmp_path / "triplets.csv").write_text("anchor,positive,negative\n0,1,x\n")
    options = ["--triplets", tmp_path / "triplets.csv", "-p", "init=lda", "-o", tmp_path / "m"]
    text = fail(1, "train", tmp_path / "items.npz", *options, "--on-error", "skip")
    assert "no triplets; expected at least one, got none" in text
    (tmp_path / "triplets.csv").write_text("0,1,2\n")
    text = fail(1, "train", tmp_path / "items.npz", *options)
    assert "at least 10 tuples in the first call" in text


def test_blocks_are_cut_as_the_library_cuts_them(tmp_path):
    rng = np.random.default_rng(0)
    items, labels = rng.normal(size=(50, 120)) / 10, np.arange(50) % 5
    write_items(tmp_path / "items.npz", items, labels)
    succeed("train", tmp_path / "items.npz", "-n", 1000, "-o", tmp_path / "model.safetensors")
    OASIS(preprocessor=items).fit(TripletSampler(labels, 0).draw(1000)).save(tmp_path / "expected")
    assert same_state(tmp_path / "model.safetensors", tmp_path / "expected")


def test_labels_from_their_own_file_or_from_a_column(tmp_path, data):
    items, labels = data
    names = np.array(["cat", "dog", "eel"])[labels]
    write_items(tmp_path / "inside.jsonl", items, names)
    write_items(tmp_path / "bare.npy", items)
    (tmp_path / "labels.txt").write_text("\n".join(names))
    rows = [
        ",".join([name, *map(repr, row)]) for name, row in zip(names, items.tolist(), strict=True)
    ]
    header = ",".join(["kind", *(f"f{column}" for column in range(N_FEATURES))])
    (tmp_path / "column.csv").write_text("\n".join([header, *rows]))
    (tmp_path / "last.csv").write_text(
        "\n".join(",".join([*row.split(",")[1:], row.split(",")[0]]) for row in rows)
    )
    sources = {
        "inside": ["inside.jsonl"],
        "own": ["bare.npy", "--labels", tmp_path / "labels.txt"],
        "column": ["column.csv", "--label-column", "kind"],
        "last": ["last.csv", "--label-column", "-1"],
    }
    for name, (items_name, *options) in sources.items():
        succeed("train", tmp_path / items_name, *options, "-n", 300, "-o", tmp_path / name)
    assert all(same_state(tmp_path / "inside", tmp_path / name) for name in sources)
    # The other commands are told of the column in the same way.
    table = tmp_path / "column.csv"
    succeed("query", tmp_path / "own", table, "--label-column", "kind", "--row", 0)
    succeed("convert", table, tmp_path / "back.npz", "--label-column", "kind")
    assert read_items(tmp_path / "back.npz").labels.tolist() == names.tolist()


def test_parameters_reach_the_learner(tmp_path, items_file):
    path = tmp_path / "model.safetensors"
    options = ["-p", "C=2", "-p", "variant=PA-II", "-p", "symmetric=true", "-p", "average_from=10"]
    succeed("train", items_file, "-n", 50, "-o", path, *options, "--dtype", "float32")
    params = simstream.load(path).get_params()
    assert (params["C"], params["variant"], params["symmetric"]) == (2, "PA-II", True)
    assert params["average_from"] == 10
    assert simstream.load(path).get_bilinear_matrix().dtype == np.float32


def test_unit_norm_is_remembered(tmp_path, data, items_file):
    items, labels = data
    path = tmp_path / "model.safetensors"
    succeed("train", items_file, "-n", 400, "-o", path, "--unit-norm")
    scaled = normalize(items)
    expected = OASIS(normalise=True, preprocessor=scaled).fit(TripletSampler(labels, 0).draw(400))
    np.testing.assert_array_equal(
        simstream.load(path).get_bilinear_matrix(), expected.get_bilinear_matrix()
    )
    printed = json.loads(succeed("evaluate", path, items_file, "--json").stdout)
    report = ranking_report(expected, scaled, labels)
    assert printed["results"]["learnt"]["mAP"] == pytest.approx(report["mAP"], abs=1e-12)
    answers = json.loads(succeed("query", path, items_file, "--row", 3, "--json").stdout)
    first = answers[0]["neighbours"][0]
    row = first["row"]
    by_hand = expected.score_items(scaled[3:4], scaled[row : row + 1])[0, 0]
    assert first["score"] == pytest.approx(by_hand)


def test_two_item_spaces(tmp_path, data):
    items, _ = data
    rng = np.random.default_rng(2)
    queries = rng.normal(size=(20, 4))
    triplets = np.column_stack(
        [rng.integers(0, 20, 200), rng.integers(0, 30, 200), rng.integers(30, 60, 200)]
    )
    write_items(tmp_path / "items.npy", items)
    write_items(tmp_path / "queries.npy", queries)
    write_triplets(tmp_path / "triplets.npy", triplets)
    path = tmp_path / "model.safetensors"
    files = [tmp_path / "items.npy", "--queries", tmp_path / "queries.npy"]
    files += ["--triplets", tmp_path / "triplets.npy"]
    succeed("train", *files, "-o", path)
    expected = OASIS(init="zeros", preprocessor=(queries, items)).fit(triplets)
    np.testing.assert_array_equal(
        simstream.load(path).get_bilinear_matrix(), expected.get_bilinear_matrix()
    )
    printed = json.loads(succeed("evaluate", path, *files, "--json").stdout)
    assert printed["results"] == {"learnt": {"triplet accuracy": expected.score(triplets)}}
    succeed("query", path, *files[:3], "-k", 3)
    assert "--queries" in fail(2, "query", path, tmp_path / "items.npy", "--row", 0)
    assert "--queries" in fail(2, "evaluate", path, tmp_path / "items.npy", *files[3:])


def test_sparse_items(tmp_path):
    items = sp.random(40, 300, density=0.05, format="csr", random_state=0)
    labels = np.arange(40) % 4
    write_items(tmp_path / "items.svm.gz", items, labels)
    path = tmp_path / "model.safetensors"
    options = ["-a", "sors", "-p", "lam=1e-4", "-n", 500, "-o", path]
    succeed("train", tmp_path / "items.svm.gz", *options)
    read_back = read_items(tmp_path / "items.svm.gz").items
    expected = SORS(lam=1e-4, preprocessor=read_back).fit(TripletSampler(labels, 0).draw(500))
    difference = simstream.load(path).get_bilinear_matrix() - expected.get_bilinear_matrix()
    assert difference.nnz == 0 or abs(difference).max() == 0
    # A file in which the last features do not occur is widened to the model's dimension.
    write_items(tmp_path / "narrow.svm", items[:, :50], labels)
    succeed("evaluate", path, tmp_path / "narrow.svm")


# -- train: files and streams of triplets ---------------------------------------------------------


def test_triplets_of_a_file(tmp_path, data, items_file, triplets, triplets_file):
    path = tmp_path / "model.safetensors"
    succeed("train", items_file, "--triplets", triplets_file, "-o", path)
    expected = OASIS(preprocessor=data[0]).fit(triplets)
    np.testing.assert_array_equal(
        simstream.load(path).get_bilinear_matrix(), expected.get_bilinear_matrix()
    )
    assert position_of(path)["position"] == len(triplets)
    (tmp_path / "one.csv").write_text("0,2,1\n")
    one = succeed("train", items_file, "--triplets", tmp_path / "one.csv", "-o", path).stdout
    assert "1 triplet in" in one
    assert "1 record of" in one


def test_bad_records_are_skipped_and_counted(tmp_path, data, items_file, triplets):
    lines = [",".join(map(str, triplet)) for triplet in triplets.tolist()]
    lines[3:3] = ["0,1,1", "0,1", f"0,1,{N_ITEMS}"]
    lines.append("gibberish")
    (tmp_path / "triplets.csv").write_text("\n".join(lines))
    path = tmp_path / "model.safetensors"
    arguments = ["train", items_file, "--triplets", tmp_path / "triplets.csv", "-o", path]
    facts = json.loads(succeed(*arguments, "--on-error", "skip", "--json").stdout)
    assert (facts["n_bad_records"], facts["n_learnt"]) == (4, len(triplets))
    expected = OASIS(preprocessor=data[0]).fit(triplets)
    np.testing.assert_array_equal(
        simstream.load(path).get_bilinear_matrix(), expected.get_bilinear_matrix()
    )


def test_a_bad_record_ends_the_run_but_what_was_learnt_is_kept(tmp_path, items_file, triplets):
    lines = [",".join(map(str, triplet)) for triplet in triplets.tolist()]
    source, path = tmp_path / "triplets.csv", tmp_path / "model.safetensors"
    source.write_text("\n".join([*lines[:100], "oops", *lines[100:]]))
    message = fail(1, "train", items_file, "--triplets", source, "-o", path)
    assert "line 101" in message
    assert str(path) in message
    assert position_of(path)["position"] == 100
    source.write_text("\n".join(lines))  # repaired
    succeed("train", items_file, "--triplets", source, "--resume", path)
    assert simstream.load(path).n_rounds_ == len(lines)


def test_a_run_that_fails_leaves_a_good_model_alone(tmp_path, items_file, triplets, model_file):
    lines = [",".join(map(str, triplet)) for triplet in triplets.tolist()]
    source, beside = tmp_path / "triplets.csv", tmp_path / "model.unfinished.safetensors"
    source.write_text("\n".join([*lines[:100], "oops", *lines[100:]]))
    good = model_file.read_bytes()
    arguments = ["train", items_file, "--triplets", source, "-o", model_file]
    message = fail(1, *arguments, "--checkpoint-every", 10)
    assert f"progress up to there is saved in {beside}" in message
    assert model_file.read_bytes() == good
    assert position_of(beside)["position"] == 100
    source.write_text("\n".join(lines))
    other = tmp_path / "other.safetensors"
    succeed("train", items_file, "--triplets", source, "-o", other)
    succeed(*arguments, "--resume", beside, "--checkpoint-every", 10)
    assert same_state(model_file, other)
    # What a finished run has saved on its way is not left behind.
    beside.unlink()
    succeed(*arguments, "--checkpoint-every", 10)
    assert not beside.exists()


def test_an_interrupted_run_leaves_a_good_model_alone(
    tmp_path, items_file, model_file, monkeypatch
):
    good, beside = model_file.read_bytes(), tmp_path / "model.unfinished.safetensors"
    _signal_at_checkpoint(monkeypatch, OASIS, signal.SIGINT)
    result = run("train", items_file, "-o", model_file, "--checkpoint-every", 500)
    assert result.exit_code == 130
    assert f"checkpoint saved to {beside}" in result.stderr
    assert f"--resume {beside}" in result.stderr
    assert str(beside) in result.stdout
    assert model_file.read_bytes() == good
    assert 500 <= simstream.load(beside).n_rounds_ < 100_000


def test_a_run_that_diverges_leaves_a_good_model_alone(
    tmp_path, items_file, model_file, monkeypatch
):
    good, beside = model_file.read_bytes(), tmp_path / "model.unfinished.safetensors"
    original, calls = OASIS.partial_fit, []

    def diverge(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 4:
            raise simstream.DivergedError("use a smaller step")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(OASIS, "partial_fit", diverge)
    message = fail(4, "train", items_file, "-o", model_file, "--checkpoint-every", 10)
    assert message.endswith(f"use a smaller step (the last checkpoint is {beside})")
    assert model_file.read_bytes() == good
    assert simstream.load(beside).n_rounds_ == 30


def test_resume_reads_on_in_the_same_file_and_begins_another(tmp_path, data, items_file, triplets):
    lines = [",".join(map(str, triplet)) + "\n" for triplet in triplets.tolist()]
    log, path = tmp_path / "log.csv", tmp_path / "model.safetensors"
    log.write_text("".join(lines[:120]))
    succeed("train", items_file, "--triplets", log, "-o", path)
    with log.open("a") as handle:
        handle.write("".join(lines[120:200]))
    facts = json.loads(
        succeed("train", items_file, "--triplets", log, "--resume", path, "--json").stdout
    )
    assert facts["n_learnt"] == 80
    # Nothing new in it: nothing learnt, no error.
    result = succeed("train", items_file, "--triplets", log, "--resume", path, "--json")
    assert json.loads(result.stdout)["n_learnt"] == 0
    other = tmp_path / "other.csv"
    other.write_text("".join(lines[200:]))
    result = succeed("train", items_file, "--triplets", other, "--resume", path, "--json")
    assert json.loads(result.stdout)["n_learnt"] == 100
    assert "new input" in result.stderr
    expected = OASIS(preprocessor=data[0]).fit(triplets)
    np.testing.assert_array_equal(
        simstream.load(path).get_bilinear_matrix(), expected.get_bilinear_matrix()
    )


def test_a_file_shorter_than_before_is_refused(tmp_path, items_file, triplets, triplets_file):
    path = tmp_path / "model.safetensors"
    succeed("train", items_file, "--triplets", triplets_file, "-o", path)
    write_triplets(triplets_file, triplets[:10])
    assert "too short" in fail(
        1, "train", items_file, "--triplets", triplets_file, "--resume", path
    )


def test_a_stream_is_learnt_as_it_arrives(tmp_path, data, items_file, triplets):
    path = tmp_path / "model.safetensors"
    arguments = [
        "train",
        items_file,
        "--triplets",
        "-",
        "-o",
        path,
        "--checkpoint-every",
        1,
        "--json",
    ]
    process = start(*arguments, stdin=subprocess.PIPE)

    def n_learnt():
        return position_of(path)["position"] if path.exists() else 0

    roles = ("anchor", "positive", "negative")
    lines = [
        json.dumps(dict(zip(roles, triplet, strict=True))).encode() + b"\n"
        for triplet in triplets.tolist()
    ]
    process.stdin.write(lines[0])
    wait_until(lambda: n_learnt() == 1, process)
    process.stdin.write(b"".join(lines[1:50]))
    wait_until(lambda: n_learnt() == 50, process)
    stdout, stderr = process.communicate(b"".join(lines[50:]))
    assert process.returncode == 0, stderr
    assert json.loads(stdout)["n_learnt"] == len(lines)
    expected = OASIS(preprocessor=data[0]).fit(triplets)
    np.testing.assert_array_equal(
        simstream.load(path).get_bilinear_matrix(), expected.get_bilinear_matrix()
    )


def test_a_waiting_stream_hears_sigterm_and_learns_no_half_line(tmp_path, items_file):
    path = tmp_path / "model.safetensors"
    arguments = ["train", items_file, "--triplets", "-", "-o", path, "--checkpoint-every", 1]
    process = start(*arguments, stdin=subprocess.PIPE)
    process.stdin.write(b"0,3,1\n3,0,2\n6,9,1")  # the last might go on: 6,9,10
    wait_until(lambda: path.exists() and position_of(path)["position"] == 2, process)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate()
    assert process.returncode == 143, stderr
    assert f"--resume {path}".encode() in stderr
    assert simstream.load(path).n_rounds_ == 2
    # What comes next is learnt from its beginning, since a stream is never read twice.
    succeed("train", items_file, "--triplets", "-", "--resume", path, stdin="6,9,10\n")
    assert simstream.load(path).n_rounds_ == 3
    assert position_of(path)["position"] == 3


def test_stoppable_input_passes_on_whole_lines_only():
    reader, writer = os.pipe()
    stop = []
    stream = StoppableInput(reader, "pipe", lambda: bool(stop))
    os.write(writer, b"0,1,2\n3,4")
    assert stream.read1() == b"0,1,2\n"
    os.write(writer, b",5\n6")
    assert stream.read1() == b"3,4,5\n"
    os.write(writer, b",7,8")
    os.close(writer)
    assert stream.read1() == b"6,7,8"
    assert stream.read1() == b""
    os.close(reader)


def test_stoppable_input_drops_a_line_cut_short_by_the_request_to_stop():
    reader, writer = os.pipe()
    answers = iter([False, True, True])  # asked to stop between the wait and the end of the pipe
    stream = StoppableInput(reader, "pipe", lambda: next(answers))
    stream._pieces.append(b"6,9,1")
    os.close(writer)
    assert stream.read1() == b""
    os.close(reader)


# -- train: pairs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pairs.csv", "pairs.jsonl.gz", "pairs.npy", "pairs.txt"])
def test_pairs_of_a_file(name, tmp_path, data, items_file, pairs):
    path = tmp_path / "model.safetensors"
    write_pairs(tmp_path / name, *pairs)
    options = ["-a", "pametric", "-p", "C=0.5", "-o", path, "--json"]
    facts = json.loads(succeed("train", items_file, "--pairs", tmp_path / name, *options).stdout)
    assert (facts["n_learnt"], facts["tuples"]) == (len(pairs[0]), "pairs")
    PAMetric(C=0.5, preprocessor=data[0]).fit(*pairs).save(tmp_path / "expected")
    assert same_state(path, tmp_path / "expected")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("algorithm", [*FROM_PAIRS, "itml", "rca"])
def test_distances_from_triplets(algorithm, tmp_path, data, items_file, triplets, triplets_file):
    path = tmp_path / "model.safetensors"
    succeed("train", items_file, "-a", algorithm, "--triplets", triplets_file, "-o", path)
    expected = catalogue.find(algorithm).cls()(preprocessor=data[0])
    if algorithm in FROM_PAIRS:
        expected.prepare()
        expected.partial_fit(triplets)
    else:
        expected.fit_pairs(triplets)
    expected.save(tmp_path / "expected")
    assert same_state(path, tmp_path / "expected")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("algorithm", ["itml", "rca"])
def test_batch_learners_from_pairs(algorithm, tmp_path, data, items_file, pairs, pairs_file):
    path = tmp_path / "model.safetensors"
    cases = [(pairs_file, None), ("-", pairs_file.read_text())]
    for source, stdin in cases:
        arguments = ["train", items_file, "-a", algorithm, "--pairs", source, "-o", path]
        text = succeed(*arguments, stdin=stdin).stdout
        assert "from all 400 pairs" in text
        catalogue.find(algorithm).cls()(preprocessor=data[0]).fit_pairs(*pairs).save(
            tmp_path / "expected"
        )
        assert same_state(path, tmp_path / "expected")


def test_tuples_says_what_is_drawn(tmp_path, data, items_file):
    items, labels = data
    path = tmp_path / "model.safetensors"
    arguments = ["train", items_file, "-a", "pametric", "--tuples", "triplets", "-o", path]
    succeed(*arguments, "--n-tuples", 300)
    expected = PAMetric(preprocessor=items)
    expected.partial_fit(TripletSampler(labels, 0).draw(300)).save(tmp_path / "expected")
    assert same_state(path, tmp_path / "expected")
    assert simstream.load(path).n_rounds_ == 600  # two pairs of each triplet
    assert "300 of 300 triplets" in succeed("info", path).stdout
    # Going on needs no reminder, and drawing something else begins a new stream.
    facts = json.loads(succeed("train", items_file, "--resume", path, "-n", 500, "--json").stdout)
    assert (facts["n_learnt"], facts["tuples"]) == (200, "triplets")
    expected.partial_fit(TripletSampler(labels, 0).draw(500)[300:]).save(tmp_path / "expected")
    assert same_state(path, tmp_path / "expected")
    result = succeed("train", items_file, "--resume", path, "--tuples", "pairs", "-n", 100)
    assert "a new input" in result.stderr


@pytest.mark.parametrize("algorithm", ["oasis", "adasors", "osllrgs"])
def test_near_triplets_do_not_depend_on_pieces_and_interruptions(
    algorithm, tmp_path, data, items_file
):
    """Whatever the pieces, the learner has learnt all triplets before the sampler looks at it again."""
    items, labels = data
    path, cut, total = tmp_path / "whole", tmp_path / "cut", 2700
    near = ["--negatives", "near", "--positives", "near", "--near-share", 0.8]
    arguments = ["train", items_file, "-a", algorithm, "-q"]
    succeed(*arguments, *near, "-n", total, "--seed", 3, "-o", path)
    # Near is near by the similarity as it is read: from labels, the cosine in the learnt space.
    learner = catalogue.find(algorithm).cls()(preprocessor=items, normalise=True)
    block = learner.prepare()
    refresh = block * -(-1000 // block)
    options = {"negatives": "near", "positives": "near", "share": 0.8, "refresh": refresh}
    sampler = TripletSampler(labels, 3, items=items, model=learner, **options)
    for begin in range(0, total, refresh):
        learner.partial_fit(sampler.draw(min(refresh, total - begin)))
    learner.save(tmp_path / "expected")
    assert same_state(path, tmp_path / "expected")

    # The same in small pieces, in three runs.
    for n in (block * (320 // block + 1), block * (1700 // block), total):
        resume = ["--resume", cut] if cut.exists() else [*near, "--seed", 3, "-o", cut]
        succeed(*arguments, *resume, "-n", n, "--checkpoint-every", 100)
    assert same_state(path, cut)


def test_options_of_sampling_are_kept_and_refused(tmp_path, items_file, triplets_file):
    path = tmp_path / "model.safetensors"
    train = ["train", items_file, "-q"]
    succeed(*train, "--negatives", "semi-hard", "-n", 300, "-o", path)
    assert position_of(path)["sampling"] == {
        "negatives": "semi-hard",
        "positives": "random",
        "near-share": 0.5,
    }
    succeed(*train, "--resume", path, "--negatives", "semi-hard", "-n", 400)  # as before
    message = fail(2, *train, "--resume", path, "--negatives", "near", "-n", 500)
    assert "continues with its own --negatives, expected semi-hard, got near" in message
    message = fail(2, *train, "--similar-share", 0.3, "-o", tmp_path / "new")
    assert "--similar-share does not apply to triplets" in message
    message = fail(2, *train, "-a", "lego", "--negatives", "near", "-o", tmp_path / "new")
    assert "--negatives does not apply to pairs" in message
    message = fail(2, *train, "--triplets", triplets_file, "--positives", "near", "-o", path)
    assert "--positives applies to tuples drawn from labels" in message
    for algorithm in ("sdca", "itml"):
        message = fail(2, *train, "-a", algorithm, "--near-share", 0.2, "-o", tmp_path / "new")
        assert "--near-share is for online learners" in message
    assert "0<=x<=1" in fail(2, *train, "--near-share", 1.5, "-o", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("share", "given"), [(0.5, []), (0.2, [0.2]), (None, ["uniform"])])
def test_the_share_of_similar_pairs(share, given, tmp_path, data, items_file):
    items, labels = data
    path = tmp_path / "model.safetensors"
    options = [word for value in given for word in ("--similar-share", value)]
    arguments = ["train", items_file, "-a", "pametric", "-q"]
    succeed(*arguments, *options, "-n", 300, "-o", path)
    succeed(*arguments, "--resume", path, "-n", 500)
    expected = PAMetric(preprocessor=items)
    expected.prepare()
    expected.partial_fit(*PairSampler(labels, 0, similar_share=share).draw(500))
    expected.save(tmp_path / "expected")
    assert same_state(path, tmp_path / "expected")
    other = 0.4 if share != 0.4 else 0.6
    message = fail(2, *arguments, "--resume", path, "--similar-share", other, "-n", 600)
    assert "continues with its own --similar-share" in message


def test_a_file_is_not_gone_on_with_as_another_kind_of_tuples(tmp_path, items_file):
    source, path = tmp_path / "records.csv", tmp_path / "model.safetensors"
    source.write_text("0,3,1\n2,5,1\n")  # both triplets and pairs
    succeed("train", items_file, "-a", "pametric", "--triplets", source, "-o", path)
    result = succeed("train", items_file, "--pairs", source, "--resume", path, "--json")
    assert json.loads(result.stdout)["n_learnt"] == 2
    assert "a new input" in result.stderr


def test_a_bad_pair_names_its_line(tmp_path, data, items_file, pairs):
    lines = [f"{a},{b},{y:+d}" for (a, b), y in zip(pairs[0].tolist(), pairs[1], strict=True)]
    source, path = tmp_path / "pairs.csv", tmp_path / "model.safetensors"
    arguments = ["train", items_file, "-a", "lego", "--pairs", source]
    for bad, problem in (
        ("0,1,3", "+1 (similar), -1 or 0"),
        ("0,1,2", "+1 (similar), -1 or 0"),
        ("0,1", "not a pair"),
        ("4,4,1", "paired with itself"),
        (f"0,{N_ITEMS},1", "too large"),
    ):
        source.write_text("\n".join([*lines[:100], bad, *lines[100:]]))
        message = fail(1, *arguments, "-o", path)
        assert "pairs.csv, line 101" in message
        assert problem in message
        assert position_of(path)["position"] == 100
    source.write_text("\n".join([*lines[:100], "0,1,3", *lines[100:], "oops"]))
    facts = json.loads(succeed(*arguments, "--on-error", "skip", "-o", path, "--json").stdout)
    assert (facts["n_bad_records"], facts["n_learnt"]) == (2, len(lines))
    expected = LEGO(preprocessor=data[0])
    expected.prepare()
    expected.partial_fit(*pairs).save(tmp_path / "expected")
    assert same_state(path, tmp_path / "expected")


def test_a_triplet_that_is_no_two_pairs_is_a_bad_record_for_learners_from_pairs(
    tmp_path, items_file
):
    source, path = tmp_path / "triplets.csv", tmp_path / "model.safetensors"
    source.write_text("0,3,1\n4,4,2\n")
    arguments = ["train", items_file, "--triplets", source, "-o", path]
    succeed(*arguments)  # fine for OASIS
    for algorithm in ("pola", "rca"):
        assert "line 2: anchor compared with itself" in fail(1, *arguments, "-a", algorithm)


def test_pairs_of_two_item_spaces_of_one_dimension(tmp_path, data):
    items, _ = data
    rng = np.random.default_rng(4)
    queries = rng.normal(size=(20, N_FEATURES))
    pairs = rng.integers(0, 20, (100, 2))
    pairs[:5, 1] = pairs[:5, 0]  # equal numbers, different items
    y = rng.choice([1, -1], 100)
    write_items(tmp_path / "items.npy", items)
    write_items(tmp_path / "queries.npy", queries)
    write_pairs(tmp_path / "pairs.jsonl", pairs, y)
    path = tmp_path / "model.safetensors"
    files = [tmp_path / "items.npy", "--queries", tmp_path / "queries.npy"]
    files += ["--pairs", tmp_path / "pairs.jsonl"]
    succeed("train", *files, "-a", "pametric", "-o", path)
    expected = PAMetric(preprocessor=(queries, items)).fit(pairs, y)
    expected.save(tmp_path / "expected")
    assert same_state(path, tmp_path / "expected")
    printed = json.loads(succeed("evaluate", path, *files, "--json").stdout)
    assert printed["results"]["learnt"]["pair accuracy"] == expected.score(pairs, y)
    write_items(tmp_path / "narrow.npy", queries[:, :2])
    files[2] = tmp_path / "narrow.npy"
    assert "features" in fail(1, "train", *files, "-a", "pametric", "-o", tmp_path / "new")


def test_a_stream_of_pairs(tmp_path, data, items_file, pairs):
    path = tmp_path / "model.safetensors"
    arguments = ["train", items_file, "-a", "pametric", "--pairs", "-"]
    text = "".join(
        json.dumps({"i": a, "j": b, "y": int(y)}) + "\n"
        for (a, b), y in zip(pairs[0].tolist(), pairs[1], strict=True)
    )
    lines = text.splitlines(keepends=True)
    succeed(*arguments, "-o", path, stdin="".join(lines[:150]))
    succeed(*arguments, "--resume", path, stdin="".join(lines[150:]))
    PAMetric(preprocessor=data[0]).fit(*pairs).save(tmp_path / "expected")
    assert same_state(path, tmp_path / "expected")
    assert position_of(path)["position"] == len(lines)
    assert "no pairs" in fail(1, *arguments, "-o", tmp_path / "new", stdin="")
    assert not (tmp_path / "new").exists()


# -- train: batch learners --------------------------------------------------------------------------


def test_batch_learners_refuse_what_is_for_online_ones(tmp_path, items_file, triplets_file):
    path = tmp_path / "model.safetensors"
    for algorithm in set(BATCH) - set(FROM_SETS):
        for options in (
            ["-n", 5],
            ["--n-triplets", 5],
            ["--checkpoint-every", 5],
            ["--block-size", 5],
            ["--tuples", "pairs"],
        ):
            message = fail(2, "train", items_file, "-a", algorithm, *options, "-o", path)
            assert (options[0] if options[0] != "-n" else "--n-tuples") in message
            assert ALGORITHMS[algorithm] in message
        succeed("train", items_file, "-a", algorithm, "-o", path)
        message = fail(2, "train", items_file, "--resume", path)
        assert f"got a model of {ALGORITHMS[algorithm]}" in message
        assert "without --resume" in message
        path.unlink()
    for algorithm in ("lmnn", "mcml"):
        arguments = ["train", items_file, "-a", algorithm, "--triplets", triplets_file, "-o", path]
        assert "learns from labels" in fail(2, *arguments)
    assert "does not draw" in fail(2, "train", items_file, "-a", "lda", "--seed", 1, "-o", path)
    assert "float64" in fail(2, "train", items_file, "-a", "rca", "--dtype", "float32", "-o", path)
    succeed("train", items_file, "-a", "rca", "--dtype", "float64", "-o", path)


def test_batch_learners_fill_in_the_zeros_of_sparse_items(tmp_path, data, monkeypatch):
    items, labels = data
    items = np.where(np.abs(items) > 1, items, 0)
    write_items(tmp_path / "items.svm", items, labels)
    pairs = PairSampler(labels, 0).draw(200)
    write_pairs(tmp_path / "pairs.csv", *pairs)
    path = tmp_path / "model.safetensors"
    for options, fit in (
        (["-a", "mcml"], lambda: simstream.MCML().fit(items, labels)),
        (
            ["-a", "rca", "--pairs", tmp_path / "pairs.csv"],
            lambda: simstream.RCA(preprocessor=items).fit_pairs(*pairs),
        ),
    ):
        arguments = ["train", tmp_path / "items.svm", *options, "-o", path]
        assert "zeros are filled in" in succeed(*arguments).stderr
        fit().save(tmp_path / "expected")
        assert same_state(path, tmp_path / "expected")
        succeed("evaluate", path, tmp_path / "items.svm")
        path.unlink()
    training = importlib.import_module("simstream.cli.training")
    monkeypatch.setattr(training, "_LARGEST_DENSE", 100)
    assert "at most 100 entries" in fail(1, *arguments)


def test_batch_learners_say_what_is_wrong_with_the_labels(tmp_path, data):
    items, labels = data
    path = tmp_path / "model.safetensors"
    cases = {
        "lmnn": (np.arange(N_ITEMS), "classes of one item each"),
        "itml": (np.zeros(N_ITEMS), "two classes"),
        "mcml": (np.arange(N_ITEMS), "classes of one item each"),
        "rca": (np.arange(N_ITEMS), "classes of one item each"),
    }
    for algorithm, (wrong, text) in cases.items():
        write_items(tmp_path / "items.npz", items, wrong)
        assert text in fail(1, "train", tmp_path / "items.npz", "-a", algorithm, "-o", path)
    write_items(tmp_path / "items.npz", items, labels)
    arguments = ["train", tmp_path / "items.npz", "-a", "lmnn", "-o", path]
    assert "mu" in fail(2, *arguments, "-p", "mu=3")
    assert "--quiet" in fail(2, *arguments, "-p", "verbose=true")
    assert not path.exists()


def test_batch_progress(monkeypatch, tmp_path, items_file):
    progress = importlib.import_module("simstream.cli.output")
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    path = tmp_path / "model.safetensors"
    lines = succeed("train", items_file, "-a", "mcml", "-o", path).stderr.splitlines()
    model = simstream.load(path)
    assert f"{model.n_iter_} iterations, objective {model.objective_:.6g}" in lines[-1]
    assert model.callback is None
    lines = succeed("train", items_file, "-a", "itml", "-o", path).stderr.splitlines()
    assert "change of the dual variables" in lines[-1]
    result = succeed("train", items_file, "-a", "mcml", "-o", path, "-q")
    assert result.output == ""


def test_an_iteration_limit_is_told(tmp_path, items_file):
    path = tmp_path / "model.safetensors"
    text = succeed("train", items_file, "-a", "lmnn", "-p", "max_iter=2", "-o", path).stdout
    assert "2, stopped before convergence" in text


def test_sdca_shows_its_certificate_and_what_it_learnt_from(tmp_path, items_file):
    path = tmp_path / "model.safetensors"
    options = ["-a", "sdca", "-p", "lam=0.1", "-p", "n_epochs=40", "-p", "tol=0.01", "-n", 300]
    command = ["train", items_file, *options, "-p", "output=last", "-o", path]
    text = succeed(*command).stdout
    assert "from all 300 triplets" in text
    assert "300 triplets drawn from the labels of" in " ".join(text.split())
    model = simstream.load(path)
    assert model.converged_
    for shown in (text, succeed("info", path).stdout):
        assert f"{model.n_iter_}, tol reached" in shown
        assert f"{model.gap_:.3g} (primal {model.primal_:.6g}, dual {model.dual_:.6g})" in shown
    found = json.loads(succeed(*command, "--json").stdout)
    for facts in (found, json.loads(succeed("info", path, "--json").stdout)):
        assert [facts[name] for name in ("gap", "primal", "dual", "n_iter", "converged")] == [
            model.gap_, model.primal_, model.dual_, model.n_iter_, True,
        ]  # fmt: skip
    assert (found["tuples"], found["n_learnt"]) == ("triplets", 300)
    message = fail(2, *command, "--checkpoint-every", 5)
    assert "learns from all triplets at once" in message


def test_what_a_learner_warns_of_is_one_line(tmp_path, items_file, monkeypatch):
    fit = simstream.SDCA.fit

    def warning_fit(self, *data):
        warnings.warn("tol was not reached\nin 1 epoch", ConvergenceWarning, stacklevel=2)
        return fit(self, *data)

    monkeypatch.setattr(simstream.SDCA, "fit", warning_fit)
    options = ["-a", "sdca", "-p", "tol=1e-9", "-n", 50, "-o", tmp_path / "model.safetensors"]
    result = succeed("train", items_file, *options)
    assert "simstream: warning: tol was not reached in 1 epoch\n" in result.stderr
    assert "Traceback" not in result.stderr
    assert "1, tol not reached" in result.stdout


@pytest.mark.parametrize("algorithm", ["osllrgs", "omllr", "loreta"])
def test_low_rank_models_show_their_rank(tmp_path, items_file, algorithm):
    path = tmp_path / "model.safetensors"
    command = ["train", items_file, "-a", algorithm, "-n", 100, "-o", path]
    rank = json.loads(succeed(*command, "--json").stdout)["rank"]
    assert rank == simstream.load(path).rank_
    lines = [line.split() for line in succeed("info", path).stdout.splitlines()]
    assert ["rank", str(rank)] in lines


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_batch_learner_is_ended_by_a_signal_and_nothing_is_written(tmp_path, number):
    rng = np.random.default_rng(0)
    write_items(tmp_path / "items.npz", rng.normal(size=(1500, 40)), np.arange(1500) % 7)
    path = tmp_path / "model.safetensors"
    options = ["-a", "lmnn", "-p", "max_iter=1000000", "-p", "tol=0", "-o", path]
    code = "from simstream.cli import main, output; output._SECONDS_BETWEEN_LINES = 0.1; main()"
    command = [sys.executable, "-c", code, "train", tmp_path / "items.npz", *options]
    pipe = subprocess.PIPE
    process = subprocess.Popen([*map(str, command)], stdout=pipe, stderr=pipe, bufsize=0)
    assert b"iterations, objective" in process.stderr.readline()  # it never ends by itself
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number, stderr
    assert stdout == b""
    assert b"Traceback" not in stderr
    assert f"nothing was written to {path}".encode() in stderr
    assert sorted(os.listdir(tmp_path)) == ["items.npz"]


# -- train: interruption and checkpoints ----------------------------------------------------------


def _long_run(kind, folder):
    """Arguments of a training of several checkpoints of 500 tuples; 5,000 tuples where it is blocked."""
    rng = np.random.default_rng(3)
    n_items, labels = 80, np.arange(80) % 4
    items = rng.normal(size=(n_items, 130)) / 10

    def spoil(path):
        lines = path.read_text().splitlines()
        lines[500:4000:700] = ["bad"] * len(lines[500:4000:700])
        path.write_text("\n".join(lines))
        return [path, "--on-error", "skip"]

    match kind:
        case "labels, sparse":
            items = sp.random(n_items, 400, density=0.05, format="csr", random_state=1)
            options = ["-a", "adasors", "-p", "lam=1e-5", "-n", 5000]
        case "pairs of labels, blocked":
            options = ["-a", "pametric", "-n", 5000]
        case "pairs of labels, spectral":
            items = items[:, :30].copy()
            options = ["-a", "pola", "-n", 2000]
        case "triplets of labels, LogDet":
            options = ["-a", "lego", "--tuples", "triplets", "-n", 2000]
        case "file of pairs, blocked":
            path = folder / "pairs.jsonl"
            write_pairs(path, *PairSampler(labels, 1).draw(5000))
            options = ["-a", "pametric", "-p", "variant=PALS", "--pairs", *spoil(path)]
        case "labels, blocked":
            options = ["-a", "oasis", "-n", 5000]
        case "file, blocked":
            path = folder / "triplets.csv"
            write_triplets(path, TripletSampler(labels, 1).draw(5000))
            options = ["-a", "ogd", "--triplets", *spoil(path)]
    write_items(folder / "items.npz", items, labels)
    return ["train", folder / "items.npz", *options]


def _signal_at_checkpoint(monkeypatch, learner, number, at=1):
    """Let a signal arrive while a learner of this class saves its checkpoint with this number."""
    original, saved = learner.save, []

    def save(self, path, *, extra=None):
        original(self, path, extra=extra)
        saved.append(path)
        if len(saved) == at:
            signal.raise_signal(number)

    monkeypatch.setattr(learner, "save", save)


@pytest.mark.parametrize(
    "kind",
    [
        "labels, blocked",
        "labels, sparse",
        "file, blocked",
        "pairs of labels, blocked",
        "pairs of labels, spectral",
        "triplets of labels, LogDet",
        "file of pairs, blocked",
    ],
)
def test_interrupted_and_resumed_is_never_interrupted(kind, tmp_path, monkeypatch):
    arguments = _long_run(kind, tmp_path)
    whole, path = tmp_path / "whole.safetensors", tmp_path / "model.safetensors"
    facts = json.loads(succeed(*arguments, "-o", whole, "--json").stdout)
    before = 0
    for number, at in ((signal.SIGINT, 1), (signal.SIGTERM, 2)):
        with monkeypatch.context() as patched:
            _signal_at_checkpoint(patched, getattr(simstream, facts["class"]), number, at)
            resume = ["--resume", path] if before else []
            result = run(*arguments, "-o", path, *resume, "--checkpoint-every", 500, "--json")
        assert result.exit_code == 128 + number, result.stderr
        assert f"--resume {path}" in result.stderr
        interrupted = json.loads(result.stdout)
        assert interrupted["interrupted"]
        assert before < interrupted["n_rounds"] < facts["n_rounds"]
        assert interrupted["n_rounds"] == simstream.load(path).n_rounds_
        before = interrupted["n_rounds"]
    resumed = json.loads(succeed(*arguments, "-o", path, "--resume", path, "--json").stdout)
    assert resumed["n_rounds"] == facts["n_rounds"]
    assert resumed["position"] == facts["position"]
    assert same_state(whole, path)


def test_ctrl_c_before_learning_says_that_nothing_was_written(tmp_path, items_file, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    path = tmp_path / "model.safetensors"
    monkeypatch.setattr("simstream.cli.inputs.read_items", interrupted)
    message = fail(130, "train", items_file, "-o", path)
    assert message == "simstream: interrupted before learning began; nothing was written"
    monkeypatch.undo()
    with monkeypatch.context() as patched:  # a second Ctrl-C while the first piece is compiled
        patched.setattr(OASIS, "partial_fit", interrupted)
        message = fail(130, "train", items_file, "-o", path)
    assert message == "simstream: interrupted before learning began; nothing was written"
    with monkeypatch.context() as patched:  # the first one, before there is anything to learn from
        patched.setattr(RecordSource, "pieces", lambda *_: signal.raise_signal(signal.SIGINT) or ())
        message = fail(130, "train", items_file, "--triplets", "-", "-o", path, stdin="")
    assert message == "simstream: interrupted before learning began; nothing was written"
    original, calls = OASIS.partial_fit, []

    def interrupted_later(*args):
        calls.append(1)
        return original(*args) if len(calls) < 3 else interrupted()

    monkeypatch.setattr(OASIS, "partial_fit", interrupted_later)
    message = fail(130, "train", items_file, "-o", path)
    assert message == "simstream: interrupted; progress since the last checkpoint is lost"
    assert not path.exists()


def test_ctrl_c_of_a_process_saves_a_checkpoint(tmp_path):
    arguments = _long_run("labels, blocked", tmp_path)[:-2]
    whole, path = tmp_path / "whole.safetensors", tmp_path / "model.safetensors"
    process = start(*arguments, "-n", 10**9, "-o", path, "--checkpoint-every", 2000, "--json")
    wait_until(path.exists, process)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert b"Traceback" not in stderr
    assert f"--resume {path}".encode() in stderr
    n = json.loads(stdout)["n_learnt"] + 777
    succeed(*arguments, "-n", n, "-o", path, "--resume", path)
    succeed(*arguments, "-n", n, "-o", whole)
    assert same_state(whole, path)


TODAY = Path(__file__).parent / "models" / "training"


@pytest.mark.parametrize("name", ["labels", "pairs", "tasks", "stream", "file"])
def test_checkpoints_of_the_first_release_are_resumed(name, tmp_path):
    """Made by version 0.1 from the first 200 tuples of labels, or the first 40 of 60 triplets."""
    path = tmp_path / f"{name}.safetensors"
    path.write_bytes((TODAY / path.name).read_bytes())
    items, labels, _ = read_items(TODAY / "items.npz")
    (batch,) = read_triplets(TODAY / "triplets.csv")
    resume = ["train", TODAY / "items.npz", "--resume", path, "-q"]
    match name:
        case "labels":
            expected = OASIS(preprocessor=items).fit(TripletSampler(labels, 4).draw(500))
            succeed(*resume, "-n", 500)
        case "pairs":
            expected = PAMetric(preprocessor=normalize(items))
            expected.prepare()
            uniform = PairSampler(labels, 4, similar_share=None)  # as that version drew them
            expected.partial_fit(*uniform.draw(500))
            succeed(*resume, "-n", 500)
        case "tasks":
            users = (TODAY / "users.txt").read_text().split()
            sampler = TaskTripletSampler(labels, users, 4)
            expected = OMTRSL(preprocessor=items).fit(*sampler.draw(200))
            expected.partial_fit(*sampler.draw(300))
            succeed(*resume, "-n", 500, "--tasks", TODAY / "users.txt")
        case "stream":
            expected = OASIS(preprocessor=items).fit(batch.triplets)
            lines = (TODAY / "triplets.csv").read_text().splitlines()
            succeed(*resume, "--triplets", "-", stdin="\n".join([lines[0], *lines[41:]]))
        case "file":
            expected = OASIS(preprocessor=items).fit(batch.triplets)
            # A file is recognised by its place, which is another on every machine.
            extra = simstream.read_header(path)["extra"]
            extra["train"]["input"]["path"] = str(TODAY / "triplets.csv")
            simstream.load(path).save(path, extra=extra)
            result = succeed(*resume[:-1], "--triplets", TODAY / "triplets.csv", "--json")
            assert json.loads(result.stdout)["n_learnt"] == 20
    expected.save(tmp_path / "expected")
    resumed, whole = load_file(path), load_file(tmp_path / "expected")
    assert resumed.keys() == whole.keys()
    for array in resumed.keys() - {"state.clock"}:
        # Other versions of NumPy and numba round in another way, and may count a loss of 1e-17 or not.
        np.testing.assert_allclose(resumed[array], whole[array], 1e-9, 1e-12)
    assert simstream.load(path).n_rounds_ == expected.n_rounds_


def test_a_batch_model_of_the_first_release_is_described():
    text = " ".join(succeed("info", TODAY / "whole.safetensors").stdout.split())
    assert "all 24 labels of items.npz" in text


def test_resume_draws_what_is_left(tmp_path, items_file):
    whole, path = tmp_path / "whole.safetensors", tmp_path / "model.safetensors"
    succeed("train", items_file, "-n", 900, "-o", whole)
    succeed("train", items_file, "-n", 400, "-o", path)
    result = succeed("train", items_file, "--resume", path, "--json")
    assert json.loads(result.stdout)["n_learnt"] == 0
    assert "nothing left" in result.stderr
    facts = json.loads(succeed("train", items_file, "-n", 900, "--resume", path, "--json").stdout)
    assert facts["n_learnt"] == 500
    assert same_state(whole, path)


def test_checkpoint_every(tmp_path, items_file, monkeypatch):
    saved = []
    original = OASIS.save

    def save(self, path, *, extra=None):
        original(self, path, extra=extra)
        saved.append((self.n_rounds_, extra["train"]["input"]["n_drawn"]))

    monkeypatch.setattr(OASIS, "save", save)
    options = ["-n", 1000, "--checkpoint-every", 300, "-o", tmp_path / "model.safetensors"]
    succeed("train", items_file, *options)
    assert saved == [(n, n) for n in (300, 600, 900, 1000)]


def test_resume_refuses_what_does_not_fit(tmp_path, data, items_file, model_file):
    def resume(*options):
        return ["train", items_file, "--resume", model_file, "-n", 600, *options]

    before = model_file.read_bytes()
    assert "AROMA" in fail(2, *resume("-a", "aroma"))
    assert "float64" in fail(2, *resume("--dtype", "float32"))
    assert "seed" in fail(2, *resume("--seed", 3))
    assert "unit-norm" in fail(2, *resume("--unit-norm"))
    assert "init" in fail(2, *resume("-p", "init=zeros"))
    assert "lam" in fail(2, *resume("-p", "lam=1"))
    write_items(tmp_path / "wide.npz", np.ones((4, N_FEATURES + 1)), [0, 0, 1, 1])
    message = fail(1, "train", tmp_path / "wide.npz", "--resume", model_file)
    assert str(N_FEATURES) in message
    assert str(N_FEATURES + 1) in message
    assert model_file.read_bytes() == before
    # A smaller step is a good reason to resume.
    succeed(*resume("-p", "C=0.01"))
    assert simstream.load(model_file).C == 0.01
    assert simstream.load(model_file).n_rounds_ == 600


def test_resume_refuses_a_classifier_and_a_damaged_record(tmp_path, data, items_file):
    classifier = FromLabels(OASIS(), n_tuples=50, random_state=0).fit(*data)
    classifier.save(tmp_path / "classifier")
    assert "FromLabels" in fail(2, "train", items_file, "--resume", tmp_path / "classifier")
    learner = OASIS().fit(data[0][None, :3])
    for record in ("?", {"input": {"kind": "file"}}, {"unit_norm": False, "input": {"kind": "?"}}):
        learner.save(tmp_path / "damaged", extra={"train": record})
        assert "damaged" in fail(3, "train", items_file, "--resume", tmp_path / "damaged")


# -- errors -------------------------------------------------------------------------------------


def test_wrong_usage_is_2(tmp_path, items_file, triplets_file, model_file):
    path = tmp_path / "new.safetensors"
    train = ["train", items_file, "-o", path]
    write_items(tmp_path / "bare.npy", np.eye(3))
    table = tmp_path / "table.csv"
    table.write_text("width,height,kind\n1,2,0\n3,4,1\n")
    cases = {
        "No such option": [*train, "--frobnicate"],
        "No such command": ["frobnicate"],
        "C=0.1": [*train, "-p", "lambda=1"],  # the legal names and their defaults
        "name=value": [*train, "-p", "C"],
        "expected a number": [*train, "-p", "C=-1"],
        "--dtype": [*train, "-p", "dtype=float32"],
        "blocks": [*train, "-a", "dot", "--block-size", 4],
        "--output": ["train", items_file],
        "not with --triplets": [*train, "--triplets", "x.csv", "-n", 5],
        "got both": [*train, "--labels", "x.txt", "--label-column", "y"],
        "--queries requires --triplets": [*train, "--queries", items_file],
        "--pairs, got both": [*train, "--triplets", "x.csv", "--pairs", "y.csv"],
        "not with --pairs": [*train, "-a", "pola", "--pairs", "x.csv", "--seed", 5],
        "--tuples applies to": [*train, "-a", "pola", "--pairs", "x.csv", "--tuples", "pairs"],
        "OASIS learns from triplets; expected --algorithm pametric": [*train, "--pairs", "x.csv"],
        "LMNN learns from labels": [*train, "-a", "lmnn", "--pairs", "x.csv"],
        "--tuples pairs: SORS": [*train, "-a", "sors", "--tuples", "pairs"],
        "'labels' is not one of": [*train, "--tuples", "labels"],
        "'oasys' is not one of": [*train, "-a", "oasys"],
        "lower=None": [*train, "-a", "lego", "-p", "C=1"],
        "--block-size": [*train, "-a", "pola", "--block-size", 4],
        "--seed": [*train, "-a", "itml", "-p", "random_state=1"],
        "'lmn' is not one of": ["algorithms", "lmn"],
        "has no labels": ["train", tmp_path / "bare.npy", "-o", path],
        f"model: no such folder: {tmp_path / 'absent'}": [
            *("train", items_file, "-o", tmp_path / "absent" / "model")
        ],
        f"{tmp_path}: is a folder": ["train", items_file, "-o", tmp_path],
        " .: is a folder; expected the name of a file": ["train", items_file, "-o", "."],
        "/dev/null/m: /dev/null is not a folder": ["train", items_file, "-o", "/dev/null/m"],
        "'abc' is not an integer": [*train, "-n", "abc"],
        "'x' is not an integer": ["evaluate", model_file, items_file, "-k", "1,x"],
        "--row or --id, got none": ["query", model_file, items_file],
        f"--row: expected a row number from 0 to {N_ITEMS - 1}": [
            *("query", model_file, items_file, "--row", N_ITEMS)
        ],
        "no label column 'nolabel'": ["train", table, "--label-column", "nolabel", "-o", path],
        "no label column 9": ["train", table, "--label-column", 9, "-o", path],
        "for CSV and parquet": ["train", items_file, "--label-column", "kind", "-o", path],
        "m.xyz: unknown extension": ["convert", model_file, tmp_path / "m.xyz"],
        "t.svm: unknown extension": ["convert", triplets_file, tmp_path / "t.svm"],
        "x.npz: no such folder": ["convert", items_file, tmp_path / "absent" / "x.npz"],
        "p.foo: unknown extension": ["evaluate", model_file, items_file, "--plot", "p.foo"],
        "'0' is less than 1048576 bytes": ["evaluate", model_file, items_file, "--memory", 0],
        "at most the 6 features": [*train, "-a", "rca", "-p", "n_components=7"],
        "--csv, got both": ["query", model_file, items_file, "--row", 0, "--csv", "--json"],
    }
    for text, arguments in cases.items():
        assert text in fail(2, *arguments)
    assert not path.exists()


def test_a_folder_that_is_not_writable_is_refused_before_any_work(tmp_path, monkeypatch):
    closed = tmp_path / "closed"
    closed.mkdir()
    may = os.access  # the system lets root write anywhere
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed and may(path, mode))
    for option, *arguments in (
        ("--output-dir", "demo", "--output-dir", closed / "new"),
        ("--output-dir", "demo", "digits", "--output-dir", closed),
        ("NEW", "backup", tmp_path, closed / "new"),
        ("FOLDER", "restore", tmp_path, closed / "new" / "newer"),
        ("--salvage", "check", tmp_path, "--salvage", closed / "new"),
    ):
        message = f"Error: Invalid value for {option}: {arguments[-1]}: {closed} is not writable"
        assert fail(2, *arguments) == message
    assert list(closed.iterdir()) == []


def test_wrong_data_is_1(tmp_path, data, items_file, model_file):
    items, _ = data
    path = tmp_path / "new.safetensors"
    with_nan = items.copy()
    with_nan[4, 2] = np.nan
    np.savez(tmp_path / "nan.npz", items=with_nan, labels=np.arange(N_ITEMS) % 2)
    (tmp_path / "empty.csv").write_text("")
    np.savez(tmp_path / "one.npz", items=items, labels=np.zeros(N_ITEMS))
    (tmp_path / "few.txt").write_text("a\nb\n")
    np.savez(tmp_path / "narrow.npz", items=items[:, :2], labels=np.arange(N_ITEMS) % 2)
    (tmp_path / "far.csv").write_text(f"0,{N_ITEMS},1\n")
    (tmp_path / "header.csv").write_text("first,second,y\n")
    pola = ["train", items_file, "-a", "pola", "-o", path, "--pairs"]
    cases = {
        "row 4, column 2": ["train", tmp_path / "nan.npz", "-o", path],
        "empty.csv: empty file": ["train", tmp_path / "empty.csv", "-o", path],
        "absent.npz": ["train", tmp_path / "absent.npz", "-o", path],
        "unknown extension": ["train", tmp_path / "items.pickle", "-o", path],
        "two classes": ["train", tmp_path / "one.npz", "-o", path],
        "few.txt": ["train", items_file, "--labels", tmp_path / "few.txt", "-o", path],
        f"expected {N_FEATURES}": ["evaluate", model_file, tmp_path / "narrow.npz"],
        "wrong number of features": ["query", model_file, tmp_path / "narrow.npz", "--row", 0],
        "too large": ["train", items_file, "--triplets", tmp_path / "far.csv", "-o", path],
        "second < 60": [*pola, tmp_path / "far.csv"],
        "empty file": [*pola, tmp_path / "empty.csv"],
        "at least one": [*pola, tmp_path / "header.csv"],
        "row 4, column": ["train", tmp_path / "nan.npz", "-a", "lmnn", "-o", path],
        "empty.csv: empty": ["train", items_file, "--triplets", tmp_path / "empty.csv", "-o", path],
        "one class": ["evaluate", model_file, tmp_path / "one.npz"],
    }
    for text, arguments in cases.items():
        assert text in fail(1, *arguments)
    assert "no triplets" in fail(1, "train", items_file, "--triplets", "-", "-o", path, stdin="")
    assert not path.exists()


def test_an_empty_text_is_no_path(tmp_path, items_file, monkeypatch):
    """As of a variable of the shell that is not set; it is not the current folder either."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for arguments in (
        ["train", "", "-o", "model.safetensors"],
        ["train", items_file, "-o", ""],
        ["demo", "--output-dir", ""],
        ["backup", "", "copy"],
        ["datasets", "--data-dir", ""],
        ["info", ""],
    ):
        assert "expected a path, got an empty text" in fail(2, *arguments)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("width", [40, 80])
def test_a_table_shows_its_numbers_in_a_narrow_window(monkeypatch, capsys, width):
    """And short names whole, if it is not narrower than usual."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    row = ["p4-selection-preprocessing", "12", "345", "6.7", "words " * 20]
    echo_table(["study", "cells", "done", "hours", "title"], [row], left=(4,))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    text = "".join("".join(lines).split())
    assert max(map(len, lines)) <= width
    assert all(number in text for number in row[1:4])
    assert any(line.startswith(row[0] + " ") for line in lines) == (width == 80)


def test_a_missing_file_is_told_without_an_error_number(items_file, tmp_path, monkeypatch):
    def absent(*_, **__):
        raise FileNotFoundError(2, "No such file or directory", "gone.npz")

    monkeypatch.setattr("simstream.cli.inputs.read_items", absent)
    message = fail(1, "train", items_file, "-o", tmp_path / "model")
    assert message == "simstream: error: gone.npz: no such file"


def test_a_wrong_model_file_is_3(tmp_path, data, items_file, model_file):
    (tmp_path / "foreign").write_bytes(b"not a model at all")
    (tmp_path / "truncated").write_bytes(model_file.read_bytes()[:-50])
    text = model_file.read_bytes()
    newer = re.sub(rb'(format_version\\": )\d', rb"\g<1>9", text)
    assert newer != text
    (tmp_path / "newer").write_bytes(newer)
    (tmp_path / "folder").mkdir()
    for name in ("foreign", "truncated", "newer", "folder"):
        path = tmp_path / name
        assert name in fail(3, "info", path)
        assert name in fail(3, "evaluate", path, items_file)
        assert name in fail(3, "query", path, items_file, "--row", 0)
        assert name in fail(3, "train", items_file, "--resume", path, "-o", tmp_path / "new")
    assert "upgrade" in fail(3, "info", tmp_path / "newer")
    assert fail(3, "info", tmp_path / "folder").endswith("folder: expected a file, got a folder")


def test_a_missing_model_file_is_1(tmp_path, items_file):
    path = tmp_path / "absent.safetensors"
    for command in (
        ["info", path],
        ["evaluate", path, items_file],
        ["query", path, items_file, "--row", 0],
        ["recall", path, items_file],
        ["convert", path, tmp_path / "matrix.npy"],
    ):
        assert fail(1, *command) == f"simstream: error: {path}: no such model file"
    message = fail(1, "train", items_file, "--resume", path)
    assert "no such model file; leave --resume out on the first run" in message
    assert not path.exists()


def test_a_folder_is_not_taken_for_a_file(tmp_path, items_file):
    folder, path = tmp_path / "folder", tmp_path / "new.safetensors"
    folder.mkdir()
    for command in (
        ["train", folder, "-o", path],
        ["train", items_file, "--labels", folder, "-o", path],
        ["train", items_file, "--triplets", folder, "-o", path],
        ["convert", folder, tmp_path / "new.npz"],
    ):
        assert fail(1, *command).endswith(f"{folder}: expected a file, got a folder")
    assert not path.exists()


def test_divergence_is_4_and_keeps_the_last_checkpoint(tmp_path, data):
    items, labels = data
    write_items(tmp_path / "huge.npz", items * 1e160, labels)
    path = tmp_path / "model.safetensors"
    message = fail(4, "train", tmp_path / "huge.npz", "-a", "ogd", "-o", path)
    assert "smaller step" in message
    assert not path.exists()


def test_debug_shows_the_traceback():
    for arguments in (["--debug", "info", "absent"], ["info", "absent", "--debug"]):
        result = run(*arguments)
        assert result.exit_code == 1
        assert "Traceback" in result.stderr


def test_a_bug_is_reported_as_one(monkeypatch, model_file):
    module = importlib.import_module("simstream.cli.info")

    def broken(*_):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(module, "summarise", broken)
    assert "bug: ZeroDivisionError" in fail(70, "info", model_file)


def test_a_closed_pipe_is_no_error(items_file, model_file):
    process = start("query", model_file, items_file, "--queries", items_file, "-k", 50, "--csv")
    process.stdout.close()
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait()


# -- what is printed ------------------------------------------------------------------------------


def test_json_is_one_document(tmp_path, items_file, triplets_file, pairs_file, model_file):
    commands = [
        ["train", items_file, "-n", 100, "-o", tmp_path / "m"],
        ["train", items_file, "-n", 600, "--resume", model_file],  # has a note on stderr
        ["evaluate", model_file, items_file, "--triplets", triplets_file],
        ["query", model_file, items_file, "--row", 1],
        ["info", model_file],
        ["train", items_file, "-a", "lego", "--pairs", pairs_file, "-o", tmp_path / "m"],
        ["evaluate", tmp_path / "m", items_file, "--pairs", pairs_file],
        ["train", items_file, "-a", "lmnn", "-o", tmp_path / "m"],
        ["info", tmp_path / "m"],
        ["evaluate", tmp_path / "m", items_file, "--pairs", pairs_file],  # has a note on stderr
        ["algorithms"],
        ["convert", triplets_file, tmp_path / "t.jsonl"],
    ]
    for command in commands:
        json.loads(succeed(*command, "--json").stdout)


def test_quiet_is_quiet(tmp_path, items_file):
    result = succeed("train", items_file, "-n", 100, "-o", tmp_path / "model.safetensors", "-q")
    assert result.output == ""


def test_progress_lines(monkeypatch, tmp_path, items_file):
    progress = importlib.import_module("simstream.cli.output")
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    options = ["-n", 2000, "-o", tmp_path / "model.safetensors"]
    lines = succeed("train", items_file, *options).stderr.splitlines()
    assert "2,000 of 2,000 triplets" in lines[-1]
    assert all(word in lines[-1] for word in ("/s", "loss", "mistakes", "sparsity"))


def test_the_progress_of_an_evaluation_is_that_of_all_models(monkeypatch, items_file, model_file):
    monkeypatch.setattr("simstream.cli.output._SECONDS_BETWEEN_LINES", 0.0)
    result = succeed("evaluate", model_file, items_file)
    shares = [int(n) for n in re.findall(r"(\d+) of 100 percent", result.stderr)]
    assert shares == sorted(shares)
    assert len(set(shares)) > 3
    assert shares[-1] == 100


def test_rates_fit_to_times_and_sparsity_says_when(monkeypatch, tmp_path, items_file):
    monkeypatch.setattr("simstream.cli.output._SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr("simstream.cli.training._SECONDS_BETWEEN_READINGS", 0.0)
    original, calls = SORS.sparsity_.fget, []

    def read(self):
        calls.append(self.n_rounds_)
        if len(calls) == 1:
            time.sleep(0.5)  # so costly that it is not read again for ten seconds
        return original(self)

    monkeypatch.setattr(SORS, "sparsity_", property(read))
    options = ["-a", "sors", "-n", 2000, "-o", tmp_path / "model"]
    result = succeed("train", items_file, *options, "--json")
    facts = json.loads(result.stdout)
    assert facts["triplets_per_second"] == pytest.approx(facts["n_learnt"] / facts["seconds"])
    lines = [line for line in result.stderr.splitlines() if "sparsity" in line]
    assert re.search(r"sparsity [\d.]+ %$", lines[0].partition(", about")[0])
    assert all(f"% at {calls[0]:,}" in line for line in lines[1:-1])
    assert lines[1:-1]
    assert re.search(r"sparsity [\d.]+ %$", lines[-1])  # at the end it is read at once


@pytest.mark.filterwarnings("default:set")
def test_a_warning_is_one_line(items_file, tmp_path, monkeypatch):
    def warn(self, *_):
        warnings.warn("set\n  NUMBA_CACHE_DIR", RuntimeWarning, stacklevel=2)

    monkeypatch.setattr(OASIS, "check_parameters", warn)
    arguments = ["train", items_file, "-n", 10, "-o", tmp_path / "model"]
    assert "simstream: warning: set NUMBA_CACHE_DIR\n" in succeed(*arguments).stderr
    assert succeed(*arguments, "-q").stderr == ""


def test_the_number_of_sparse_features_is_an_option(tmp_path):
    path, model = tmp_path / "items.svm", tmp_path / "model"
    path.write_text("0 1:1 5:1\n1 2:1\n0 100000000:1\n1 1:2\n")
    for arguments in (["train", path, "-o", model], ["convert", path, tmp_path / "items.npz"]):
        message = fail(1, *arguments)
        assert "items.svm, line 3: improbably large feature number" in message
        assert "--n-features" in message
        assert "got 99999999" in message
    path.write_text("0 1:1 5:1\n1 2:1\n0 3:1\n1 1:2\n")
    succeed("train", path, "-n", 10, "-o", model, "--n-features", 9)
    assert simstream.load(model).shape_ == (9, 9)
    assert "as the model has" in fail(2, "train", path, "--resume", model, "--n-features", 8)
    assert "below n_features=4" in fail(1, "active", path, "--n-features", 4)
    target = tmp_path / "items.npz"
    succeed("convert", path, target, "--n-features", 9)
    assert read_items(target).items.shape == (4, 9)


def test_progress_bar_on_a_terminal(tmp_path, items_file):
    pty = pytest.importorskip("pty")
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "simstream", "train", str(items_file)]
    command += ["-n", "20000", "-o", str(tmp_path / "model.safetensors")]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=terminal, env=environment)
    os.close(terminal)
    shown = b""
    try:
        while piece := os.read(controller, 4096):
            shown += piece
    except OSError:  # how Linux says that the other end was closed
        pass
    os.close(controller)
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    last = [line for line in re.split(r"[\r\n]+", text) if "loss" in line][-1]
    assert all(word in last for word in ("100%", "/s", "loss", "mistakes", "sparsity"))
    assert "…" not in last
    assert len(last.rstrip()) <= 80


def test_info_says_what_the_model_says(model_file, items_file):
    model = simstream.load(model_file)
    facts = json.loads(succeed("info", model_file, "--json").stdout)
    for name in ("n_rounds", "n_updates", "n_skipped", "average_loss", "mistake_rate", "sparsity"):
        assert facts[name] == getattr(model, f"{name}_")
    assert facts["class"] == "OASIS"
    assert facts["parameters"]["C"] == model.C
    assert facts["shape"] == [N_FEATURES, N_FEATURES]
    assert facts["file_bytes"] == model_file.stat().st_size
    assert facts["simstream_version"] == simstream.__version__
    assert facts["position"]["n_drawn"] == facts["position"]["n_total"] == 500
    text = succeed("info", model_file).stdout
    assert "500 of 500" in text
    assert "OASIS" in text


def test_info_of_models_saved_in_python(tmp_path, data):
    OASIS().fit(data[0][None, :3]).save(tmp_path / "learner")
    assert "not trained by the command line" in succeed("info", tmp_path / "learner").stdout
    FromLabels(SORS(), n_tuples=50, random_state=0).fit(*data).save(tmp_path / "classifier")
    facts = json.loads(succeed("info", tmp_path / "classifier", "--json").stdout)
    assert (facts["class"], facts["saved_as"]) == ("SORS", "FromLabels")
    assert "FromLabels" in succeed("info", tmp_path / "classifier").stdout


def test_an_infinite_parameter_is_valid_json(tmp_path, items_file):
    def refuse(constant):
        raise AssertionError(constant)

    path = tmp_path / "model.safetensors"
    options = ["-p", "C=inf", "-n", 50, "-o", path, "--json"]
    text = succeed("train", items_file, "-a", "pametric", *options).stdout
    assert json.loads(text, parse_constant=refuse)["parameters"]["C"] == "inf"


def test_info_of_a_given_distance(tmp_path, data):
    Mahalanobis(np.diag([4.0, 1.0, 1e-12, 0.0])).save(tmp_path / "given")
    facts = json.loads(succeed("info", tmp_path / "given", "--json").stdout)
    assert (facts["rank"], facts["effective_dimension"]) == (3, 2)
    assert (facts["largest_eigenvalue"], facts["threshold"]) == (4.0, None)
    assert "n_rounds" not in facts
    text = succeed("info", tmp_path / "given").stdout
    assert re.search(r"threshold +none", text)
    assert "got a model of Mahalanobis" in fail(
        2, "train", tmp_path / "x.npz", "--resume", tmp_path / "given"
    )


def test_info_of_a_large_distance_leaves_the_spectrum(tmp_path, monkeypatch, metric_file):
    module = importlib.import_module("simstream.cli.info")
    monkeypatch.setattr(module, "_LARGEST_SPECTRUM", N_FEATURES - 1)
    facts = json.loads(succeed("info", metric_file, "--json").stdout)
    assert facts["rank"] is None
    assert facts["threshold"] == simstream.load(metric_file).threshold_
    assert "too many features" in succeed("info", metric_file).stdout


# -- algorithms -----------------------------------------------------------------------------------


def test_algorithms_as_json_is_complete():
    listed = json.loads(succeed("algorithms", "--json").stdout)
    assert [one["class"] for one in listed] == [known.name for known in catalogue.ALGORITHMS]
    for one in listed:
        cls = getattr(simstream, one["class"])
        assert one["name"] == one["class"].lower()
        assert one["input"][0] == cls.natural_tuples
        signature = inspect.signature(cls).parameters
        assert {p["name"]: p["default"] for p in one["parameters"]} == {
            name: parameter.default for name, parameter in signature.items()
        }
        assert one["update"]
        assert one["paper"] or one["name"] in BASELINES
        assert json.loads(succeed("algorithms", one["class"], "--json").stdout) == one


def test_algorithms_for_people():
    text = succeed("algorithms").stdout
    for known in catalogue.ALGORITHMS:
        assert f"{known.name.lower()} ({known.name})" in text
        assert known.input in text
    assert "eta=0.1, lower=None, upper=None" in text
    one = " ".join(succeed("algorithms", "PAMetric").stdout.split())
    assert "PA-I (Eq. 12)" in one
    assert "Steps with |tau| below it are not taken." in one
    assert "[--block-size]" in one
    assert "OASIS" not in one


# -- evaluate -----------------------------------------------------------------------------------


def test_evaluate_is_the_metrics_module(data, items_file, triplets_file, triplets, model_file):
    items, labels = data
    arguments = ["evaluate", model_file, items_file, "-k", "2,7", "--triplets", triplets_file]
    printed = json.loads(succeed(*arguments, "--json").stdout)
    model = simstream.load(model_file, preprocessor=items)
    distances = {
        "learnt": model,
        "dot": lambda q, x: q @ x.T,
        "euclidean": lambda q, x: -((q[:, None] - x) ** 2).sum(axis=2),
    }
    assert set(printed["results"]) == set(distances)
    for name, similarity in distances.items():
        report = ranking_report(similarity, items, labels, k=(2, 7))
        for measure in ("mAP", "MRR", "nDCG", "P@2", "mAP@7", "recall@7", "nDCG@2"):
            assert printed["results"][name][measure] == pytest.approx(report[measure], abs=1e-12)
    assert printed["n_queries"] == N_ITEMS
    anchor, positive, negative = (items[column] for column in triplets.T)
    right = ((anchor - positive) ** 2).sum(axis=1) < ((anchor - negative) ** 2).sum(axis=1)
    accuracy = printed["results"]["euclidean"]["triplet accuracy"]
    assert accuracy == pytest.approx(right.mean())
    table = succeed(*arguments).stdout
    assert f"{printed['results']['learnt']['mAP']:.4f}" in table


@pytest.mark.parametrize("divisor", ["relevant", "all", "hits"])
def test_evaluate_divides_map_at_k(divisor, data, items_file, model_file):
    X, y = data
    arguments = ["evaluate", model_file, items_file, "-k", "3", "--map-divisor", divisor, "--json"]
    printed = json.loads(succeed(*arguments).stdout)
    report = ranking_report(simstream.load(model_file), X, y, k=3, normalizer=divisor)
    assert printed["results"]["learnt"]["mAP@3"] == pytest.approx(report["mAP@3"])


def test_evaluate_queries_against_items(tmp_path, data, items_file, model_file):
    items, labels = data
    write_items(tmp_path / "queries.npy", items[:10] + 0.1)
    np.save(tmp_path / "labels.npy", labels[:10])
    options = ["--queries", tmp_path / "queries.npy", "--query-labels", tmp_path / "labels.npy"]
    options += ["--baseline", "none"]
    printed = json.loads(succeed("evaluate", model_file, items_file, *options, "--json").stdout)
    report = ranking_report(
        simstream.load(model_file), items[:10] + 0.1, labels[:10], items, labels
    )
    assert list(printed["results"]) == ["learnt"]
    assert printed["results"]["learnt"]["mAP"] == pytest.approx(report["mAP"], abs=1e-12)
    assert "--query-labels" in fail(2, "evaluate", model_file, items_file, *options[:2])


def test_evaluate_pairs(tmp_path, data, items_file, pairs, pairs_file, metric_file, model_file):
    items, _ = data
    model = simstream.load(metric_file, preprocessor=items)
    arguments = ["evaluate", metric_file, items_file, "--pairs", pairs_file]
    printed = json.loads(succeed(*arguments, "--json").stdout)
    learnt = printed["results"]["learnt"]
    first, second = (items[column] for column in pairs[0].T)
    difference = first - second
    distances = np.einsum("ij,jk,ik->i", difference, model.get_mahalanobis_matrix(), difference)
    right = (distances <= model.threshold_) == (pairs[1] > 0)
    assert learnt["pair accuracy"] == pytest.approx(right.mean(), abs=1e-12)
    assert printed["threshold"] == model.threshold_
    similar, others = distances[pairs[1] > 0], distances[pairs[1] < 0]
    assert learnt["ROC AUC"] == pytest.approx((similar[:, None] < others).mean(), abs=1e-9)
    euclidean = printed["results"]["euclidean"]
    assert "ROC AUC" in euclidean
    assert "pair accuracy" not in euclidean  # it has no threshold
    assert (printed["n_pairs"], printed["n_similar"]) == (400, int((pairs[1] > 0).sum()))
    table = succeed(*arguments).stdout
    assert re.search(rf"pair accuracy +{learnt['pair accuracy']:.4f} *$", table, re.MULTILINE)
    # A bilinear similarity has no threshold either; one kind of pairs has no ROC curve.
    arguments = ["evaluate", model_file, items_file, "--pairs", pairs_file, "--json"]
    result = succeed(*arguments)
    assert "no threshold" in result.stderr
    assert "ROC AUC" in json.loads(result.stdout)["results"]["learnt"]
    write_pairs(tmp_path / "similar.csv", pairs[0][pairs[1] > 0], pairs[1][pairs[1] > 0])
    write_items(tmp_path / "bare.npy", items)
    arguments = [tmp_path / "bare.npy", "--pairs", tmp_path / "similar.csv"]
    printed = json.loads(succeed("evaluate", metric_file, *arguments, "--json").stdout)
    assert list(printed["results"]["learnt"]) == ["pair accuracy"]
    # A model that answers True and False is right as often.
    again = PAMetric(preprocessor=items).fit(pairs[0], pairs[1] > 0)
    again.save(tmp_path / "booleans.safetensors")
    printed = json.loads(
        succeed("evaluate", tmp_path / "booleans.safetensors", *arguments, "--json").stdout
    )
    expected = again.score(pairs[0][pairs[1] > 0], pairs[1][pairs[1] > 0])
    assert printed["results"]["learnt"]["pair accuracy"] == expected
    assert "dissimilar" in fail(1, "evaluate", model_file, *arguments)
    (tmp_path / "bad.csv").write_text("0,1,1\n0,2,3\n")
    arguments = ["evaluate", metric_file, tmp_path / "bare.npy", "--pairs", tmp_path / "bad.csv"]
    assert "bad.csv, line 2" in fail(1, *arguments)
    assert json.loads(succeed(*arguments, "--on-error", "skip", "--json").stdout)["n_pairs"] == 1


def test_evaluate_draws(tmp_path, items_file, model_file, metric_file, pairs_file):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "report.png"
    succeed("evaluate", model_file, items_file, "--plot", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    picture.unlink()
    options = ["--pairs", pairs_file, "--plot", picture]  # only one has a pair accuracy
    succeed("evaluate", metric_file, items_file, *options)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "extension" in fail(2, "evaluate", model_file, items_file, "--plot", "x.exe")


# -- query --------------------------------------------------------------------------------------


def test_query_is_search(tmp_path, data, model_file):
    items, labels = data
    names = [f"item {row}" for row in range(N_ITEMS)]
    write_items(tmp_path / "named.jsonl", items, labels, names)
    scores = simstream.load(model_file).score_items(items, items)
    arguments = ["query", model_file, tmp_path / "named.jsonl", "-k", 4]
    answers = json.loads(succeed(*arguments, "--row", 5, "--row", 9, "--json").stdout)
    assert [answer["query"] for answer in answers] == ["item 5", "item 9"]
    for row, answer in zip((5, 9), answers, strict=True):
        others = [other for other in np.argsort(-scores[row]).tolist() if other != row][:4]
        assert [found["row"] for found in answer["neighbours"]] == others
        assert [found["id"] for found in answer["neighbours"]] == [names[other] for other in others]
        np.testing.assert_allclose(
            [found["score"] for found in answer["neighbours"]], scores[row, others]
        )
    rows = list(csv.DictReader(io.StringIO(succeed(*arguments, "--row", 5, "--csv").stdout)))
    assert [row["item"] for row in rows] == [found["id"] for found in answers[0]["neighbours"]]
    assert [int(row["rank"]) for row in rows] == [1, 2, 3, 4]
    assert "item 5" in succeed(*arguments, "--row", 5).stdout


def test_query_with_queries_of_their_own(tmp_path, data, items_file, model_file):
    items, _ = data
    write_items(tmp_path / "queries.npy", items[:3])
    arguments = ["query", model_file, items_file, "--queries", tmp_path / "queries.npy"]
    answers = json.loads(succeed(*arguments, "-k", 1000, "--json").stdout)
    assert [answer["query"] for answer in answers] == [0, 1, 2]
    assert all(len(answer["neighbours"]) == N_ITEMS for answer in answers)
    one = json.loads(succeed(*arguments, "--row", 1, "--json").stdout)
    for found, expected in zip(one[0]["neighbours"], answers[1]["neighbours"][:10], strict=True):
        assert found["row"] == expected["row"]
        assert found["score"] == pytest.approx(expected["score"])


# -- convert ------------------------------------------------------------------------------------


def test_convert_items(tmp_path, data, items_file):
    items, labels = data
    chain = ["a.csv", "b.jsonl.gz", "c.svm", "d.npz"]
    previous = items_file
    for name in chain:
        assert f"{N_ITEMS} " in succeed("convert", previous, tmp_path / name).stdout
        previous = tmp_path / name
    found = read_items(previous)
    np.testing.assert_array_equal(found.items.toarray(), items)  # LIBSVM made them sparse
    np.testing.assert_array_equal(found.labels, labels)
    dense_formats = [".csv", *([".parquet"] if find_spec("pyarrow") else [])]
    for extension in dense_formats:
        result = succeed("convert", tmp_path / "c.svm", tmp_path / f"dense{extension}")
        assert "zeros are written too" in result.stderr
        np.testing.assert_array_equal(read_items(tmp_path / f"dense{extension}").items, items)


def test_convert_triplets(tmp_path, triplets, triplets_file):
    previous = triplets_file
    for name in ("a.jsonl", "b.npy", "c.npz", "d.csv.gz"):
        facts = json.loads(succeed("convert", previous, tmp_path / name, "--json").stdout)
        assert facts["kind"] == "triplets"
        assert facts["n_triplets"] == len(triplets)
        previous = tmp_path / name
    found = np.concatenate([batch.triplets for batch in read_triplets(previous)])
    np.testing.assert_array_equal(found, triplets)
    (tmp_path / "salmon.csv").write_text("head,winner,loser,when\n0,1,2,5\n0,1,1,6\n")
    fail(1, "convert", tmp_path / "salmon.csv", tmp_path / "out.csv")
    text = succeed(
        "convert", tmp_path / "salmon.csv", tmp_path / "out.csv", "--on-error", "skip"
    ).stdout
    assert "1 bad record" in text
    # Three integers look like a triplet, but may be meant as an item.
    np.save(tmp_path / "ambiguous.npy", np.arange(12).reshape(4, 3))
    command = ["convert", tmp_path / "ambiguous.npy", tmp_path / "out.npz", "--json"]
    assert json.loads(succeed(*command).stdout)["kind"] == "triplets"
    assert json.loads(succeed(*command, "--kind", "items").stdout)["n_features"] == 3


def test_convert_pairs(tmp_path, pairs, pairs_file):
    previous = pairs_file
    for name in ("a.jsonl", "b.npy", "c.npz", "d.tsv", "e.txt", "f.csv.gz"):
        facts = json.loads(succeed("convert", previous, tmp_path / name, "--json").stdout)
        assert (facts["kind"], facts["n_pairs"]) == ("pairs", 400)
        previous = tmp_path / name
    (found,) = read_pairs(previous)
    np.testing.assert_array_equal(found.pairs, pairs[0])
    np.testing.assert_array_equal(found.y, pairs[1])
    for name, text in (("s.csv", "1,2,-1\n"), ("s.jsonl", "[1, 2, -1]\n"), ("s.txt", "1 2 +1\n")):
        (tmp_path / name).write_text(text)
        command = ["convert", tmp_path / name, tmp_path / "out.csv", "--json"]
        assert json.loads(succeed(*command).stdout)["kind"] == "pairs"
    (tmp_path / "s.csv").write_text("1,2,1\n1,3,1\n")
    command = ["convert", tmp_path / "s.csv", tmp_path / "out.csv", "--json"]
    assert json.loads(succeed(*command).stdout)["kind"] == "triplets"
    assert json.loads(succeed(*command, "--kind", "pairs").stdout)["n_pairs"] == 2


def test_convert_a_distance_to_its_matrix(tmp_path, metric_file):
    matrix = simstream.load(metric_file).get_mahalanobis_matrix()
    succeed("convert", metric_file, tmp_path / "m.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "m.npy"), matrix)


def test_convert_a_model_to_its_matrix(tmp_path, model_file):
    matrix = simstream.load(model_file).get_bilinear_matrix()
    assert "6 x 6" in succeed("convert", model_file, tmp_path / "m.npy").stdout
    succeed("convert", model_file, tmp_path / "m.npz")
    np.testing.assert_array_equal(np.load(tmp_path / "m.npy"), matrix)
    loaded = sp.load_npz(tmp_path / "m.npz")
    assert loaded.format == "csr"
    np.testing.assert_array_equal(loaded.toarray(), matrix)


def test_logging_is_left_alone_elsewhere(items_file, tmp_path):
    succeed("train", items_file, "-n", 10, "-o", tmp_path / "model.safetensors")
    assert logging.getLogger().handlers == [] or all(
        "simstream" not in type(handler).__module__ for handler in logging.getLogger().handlers
    )


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_the_geometry_is_a_matter_of_parameters(kind, tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.random((60, 6)) * (rng.random((60, 6)) < 0.7), np.arange(60) % 3
    X[:, :3] += 0.3 * (y[:, None] == np.arange(3))
    names = ("items.npz", "whole.safetensors", "model.safetensors")
    items, whole, model = (tmp_path / name for name in names)
    write_items(items, X if kind == "dense" else sp.csr_matrix(X), y)
    geometry = ("-p", "centre=auto", "-p", "item_term=true", "-p", "init_scale=auto")
    succeed("train", items, "-n", 900, "-o", whole, *geometry)
    succeed("train", items, "-n", 400, "-o", model, *geometry)
    succeed("train", items, "-n", 900, "--resume", model)
    assert same_state(whole, model)
    learnt = simstream.load(model)
    np.testing.assert_allclose(learnt.centre_, X.mean(axis=0))
    assert learnt.init_scale_ not in (1.0, "auto")
    printed = json.loads(succeed("evaluate", model, items, "--json").stdout)
    report = ranking_report(learnt, X, y)
    assert printed["results"]["learnt"]["mAP"] == pytest.approx(report["mAP"], abs=1e-12)
    written = succeed("convert", model, tmp_path / "matrix.npy")
    assert "its centre and item term are only in the model" in written.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "matrix.npy"), learnt.get_bilinear_matrix())
    message = fail(2, "train", items, "-n", 999, "--resume", model, "-p", "init_scale=3")
    assert "init_scale: cannot change in the middle of a stream" in message
    message = fail(2, "train", items, "-o", tmp_path / "n", "-p", "centre=mean")
    assert "centre: expected None, 'auto' or a vector, got 'mean'" in message
