"""Tasks and active learning on the command line."""

import inspect
import io
import json
import signal

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

import simstream
from commands import fail, run, same_state, succeed
from simstream import OASIS, OMTRSL, MultiTaskLMNN, TaskTripletSampler, catalogue
from simstream.cli.learners import ASKING
from simstream.data import (
    FormatError,
    read_triplets,
    write_items,
    write_pairs,
    write_triplets,
)
from simstream.data.samplers import nearer_first
from simstream.metrics import ranking_report

USERS = ("ann", "bob", "eve")


@pytest.fixture(scope="module")
def digits():
    """Some digits of three users."""
    X, y = load_digits(return_X_y=True)
    X, y = X[:300] / 64.0, y[:300]
    return X, y, np.array(USERS)[np.arange(300) * 7 % 3]


@pytest.fixture
def files(tmp_path, digits):
    X, y, users = digits
    write_items(tmp_path / "items.npz", X, y)
    (tmp_path / "users.txt").write_text("\n".join(users) + "\n")
    return tmp_path


def test_candidates_called_first_and_second_need_an_answer(tmp_path):
    text = "second,anchor,y,first,task\n2,0,-1,1,ann\n5,3,+1,4,bob\n"
    (batch,) = read_triplets(io.StringIO(text))
    assert batch.triplets.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (batch.y.tolist(), batch.tasks.tolist()) == ([-1, 1], ["ann", "bob"])
    (batch,) = read_triplets(io.StringIO('{"anchor": 0, "first": 1, "second": 2, "y": -1}\n'))
    assert (batch.triplets.tolist(), batch.y.tolist()) == ([[0, 1, 2]], [-1])
    with pytest.raises(FormatError, match="header without y"):
        list(read_triplets(io.StringIO("anchor,first,second\n0,1,2\n")))
    with pytest.raises(FormatError, match="no key 'y'"):
        list(read_triplets(io.StringIO('{"anchor": 0, "first": 1, "second": 2}\n')))
    (tmp_path / "t.csv").write_text(text)
    facts = json.loads(
        succeed("convert", tmp_path / "t.csv", tmp_path / "t.jsonl", "--json").stdout
    )
    assert (facts["kind"], facts["n_triplets"]) == ("triplets", 2)


def test_errors_of_answers_do_not_speak_of_pairs(digits):
    model = OMTRSL(preprocessor=digits[0])
    for y in ([2], ["x"], [1, 1]):
        with pytest.raises(ValueError, match="y: expected") as caught:
            model.partial_fit([[0, 1, 2]], y)
        assert "pair" not in str(caught.value)
        assert "triplet" in str(caught.value)
    with pytest.raises(ValueError, match="first candidate is nearer"):
        model.partial_fit([[0, 1, 2]], [2])


# -- train --------------------------------------------------------------------------------------


def test_training_from_labels_and_tasks_is_that_of_the_library(files, digits):
    X, labels, users = digits
    path = files / "model.safetensors"
    arguments = ["-a", "omtrsl", "-p", "C=0.1", "-n", 2000, "--seed", 5, "-q", "-o", path]
    succeed("train", files / "items.npz", "--tasks", files / "users.txt", *arguments)
    triplets, y, tasks = TaskTripletSampler(labels, users, 5).draw(2000)
    expected = OMTRSL(C=0.1, preprocessor=X).fit(triplets, y, tasks)
    model = simstream.load(path)
    assert set(model.tasks_) == set(USERS)
    for user in USERS:
        np.testing.assert_allclose(
            model.get_bilinear_matrix(user), expected.get_bilinear_matrix(user), atol=1e-10
        )
    np.savez(files / "inside.npz", items=X, labels=labels, groups=users)
    succeed("train", files / "inside.npz", *arguments[:-1], files / "inside.safetensors")
    assert same_state(path, files / "inside.safetensors")


@pytest.mark.parametrize("extension", [".csv", ".jsonl", ".npz"])
def test_training_from_triplets_of_tasks(files, digits, extension):
    X, labels, users = digits
    drawn = TaskTripletSampler(labels, users, 0).draw(500)
    write_triplets(files / f"t{extension}", *drawn)
    path = files / "model.safetensors"
    arguments = ["train", files / "items.npz", "-a", "ostrsl", "-q", "-o", path, "--triplets"]
    succeed(*arguments, files / f"t{extension}")
    expected = simstream.OSTRSL(preprocessor=X).fit(*drawn)
    for user in USERS:
        np.testing.assert_allclose(
            simstream.load(path).get_bilinear_matrix(user),
            expected.get_bilinear_matrix(user),
            atol=1e-10,
        )
    if extension != ".npz":
        write_triplets(files / "copy.jsonl", *drawn)
        succeed(*arguments, "-", stdin=(files / "copy.jsonl").read_text())
        assert simstream.load(path).n_rounds_ == 500


def test_answers_without_tasks_become_the_order_for_any_learner(files, digits):
    X, labels, _ = digits
    triplets, y, _ = TaskTripletSampler(labels, np.zeros(len(labels)), 0).draw(300)
    write_triplets(files / "t.csv", triplets, y)
    path = files / "model.safetensors"
    succeed("train", files / "items.npz", "--triplets", files / "t.csv", "-q", "-o", path)
    expected = OASIS(preprocessor=X).fit(nearer_first(triplets, y))
    np.testing.assert_allclose(
        simstream.load(path).get_bilinear_matrix(), expected.get_bilinear_matrix(), atol=1e-10
    )


def test_multitask_lmnn_from_labels_and_tasks(files, digits):
    X, labels, users = digits
    keep = np.isin(labels, (1, 7))
    write_items(files / "two.npz", X[keep], labels[keep])
    (files / "two.txt").write_text("\n".join(users[keep]))
    path = files / "model.safetensors"
    options = ["-a", "multitasklmnn", "-p", "tol=0.1", "-q", "-o", path]
    succeed("train", files / "two.npz", "--tasks", files / "two.txt", *options)
    expected = MultiTaskLMNN(tol=0.1).fit(X[keep], labels[keep], users[keep])
    np.testing.assert_array_equal(simstream.load(path).task_matrices_, expected.task_matrices_)
    facts = json.loads(succeed("info", path, "--json").stdout)
    assert facts["n_tasks"] == 3
    result = succeed("evaluate", path, files / "two.npz", "--tasks", files / "two.txt", "-k", 1)
    assert all(user in result.stdout for user in USERS)


def test_resumed_training_goes_on_with_the_same_stream(files):
    common = [files / "items.npz", "--tasks", files / "users.txt", "-q"]
    new = [*common, "-a", "omtrsl", "-p", "C=0.1", "-p", "query=active", "--block-size", 50]
    whole, parts = files / "whole.safetensors", files / "parts.safetensors"
    succeed("train", *new, "-n", 2000, "-o", whole)
    succeed("train", *new, "-n", 700, "-o", parts)
    succeed("train", *common, "-n", 2000, "--resume", parts)
    assert same_state(whole, parts)
    assert 0 < json.loads(succeed("info", parts, "--json").stdout)["query_ratio"] < 1
    other = files / "other.txt"
    other.write_text("x\n" * 300)
    result = succeed("train", files / "items.npz", "--tasks", other, "-n", 10, "--resume", parts)
    assert "a new input" in result.stderr


def test_asking_learns_from_what_was_asked_only(files):
    path = files / "model.safetensors"
    options = ["-p", "query=random", "-p", "ask_rate=0.25", "-n", 4000, "-o", path]
    succeed("train", files / "items.npz", "-a", "omtrsl", "-q", *options)
    model = simstream.load(path)
    assert abs(model.query_ratio_ - 0.25) < 0.03
    assert 0 < model.n_updates_ <= round(4000 * model.query_ratio_)
    assert "query ratio" in succeed("info", path).stdout


def test_wrong_use_of_tasks_is_told(files, digits):
    items, users, path = files / "items.npz", files / "users.txt", files / "model.safetensors"
    train = ["train", items, "-o", path]
    assert "OASIS does not learn tasks; expected one of" in fail(2, *train, "--tasks", users)
    write_triplets(files / "t.csv", [[0, 1, 2]], tasks=["ann"])
    message = fail(2, *train, "--triplets", files / "t.csv")
    assert "OASIS does not learn tasks; expected one of omtrsl, ostrsl, ogrsl" in message
    assert "not with --triplets" in fail(2, *train, "--tasks", users, "--triplets", files / "t.csv")
    (files / "short.txt").write_text("ann\n")
    learn = [*train, "-a", "omtrsl", "--tasks"]
    assert "expected 300" in fail(1, *learn, files / "short.txt")
    (files / "empty.txt").write_text("")
    assert "empty" in fail(1, *learn, files / "empty.txt")
    assert "no such file" in fail(1, *learn, files / "nothing.txt")
    (files / "alone.txt").write_text("\n".join(map(str, range(300))))
    assert "got none in 300 tasks" in fail(1, *learn, files / "alone.txt")
    assert not path.exists()


def test_a_model_of_tasks_goes_on_with_tasks_only(files, digits, model):
    before = model.read_bytes()
    resume = ["train", files / "items.npz", "--resume", model]
    message = fail(2, *resume, "-n", 3000)
    assert "has learnt tasks (" in message
    assert "expected --tasks" in message
    write_triplets(files / "t.csv", [[0, 1, 2], [3, 4, 5]])
    assert "expected a column task" in fail(2, *resume, "--triplets", files / "t.csv")
    message = fail(2, *resume, "--triplets", "-", stdin="0,1,2\n")
    assert "expected a column task" in message
    assert model.read_bytes() == before
    succeed(*resume, "--tasks", files / "users.txt", "-n", 1600, "-q")
    facts = json.loads(succeed("info", model, "--json").stdout)
    assert (facts["n_tasks"], facts["has_nameless_task"]) == (3, False)
    # A learner that has always learnt one task without a name goes on with it.
    path = files / "nameless.safetensors"
    succeed("train", files / "items.npz", "-a", "omtrsl", "-n", 10, "-q", "-o", path)
    succeed("train", files / "items.npz", "--resume", path, "-n", 20, "-q")


def test_a_refused_parameter_is_not_announced(files, model):
    tasks = ["--tasks", files / "users.txt", "-n", 1600]
    resume = ["train", files / "items.npz", "--resume", model, *tasks]
    result = run(*resume, "-p", "coupling=2")
    assert result.exit_code != 0
    assert "coupling: cannot change" in result.stderr
    assert "from here on" not in result.stderr
    assert "from here on C=0.5 instead of 1.0" in succeed(*resume, "-p", "C=0.5").stderr


@pytest.fixture
def mixed(files, digits):
    """A model of two tasks with names and one without."""
    X, labels, users = digits
    triplets, y, tasks = TaskTripletSampler(labels, users, 0).draw(900)
    learner = OMTRSL(C=0.1, coupling=0.5, preprocessor=X)
    learner.fit(triplets, y, [None if task == "eve" else task for task in tasks])
    learner.save(files / "mixed.safetensors")
    return files / "mixed.safetensors"


def test_a_task_without_a_name_is_shown_and_speaks_for_itself_only(files, digits, mixed):
    X, labels, _ = digits
    learnt = simstream.load(mixed)
    shared = learnt.for_task("nobody")
    assert not np.allclose(shared.get_bilinear_matrix(), learnt.get_bilinear_matrix(None))
    assert "and one without a name" in succeed("info", mixed).stdout
    facts = json.loads(succeed("info", mixed, "--json").stdout)
    assert (facts["n_tasks"], facts["has_nameless_task"]) == (2, True)
    arguments = [mixed, files / "items.npz", "--json"]
    (answer,) = json.loads(succeed("query", *arguments, "--row", 0, "-k", 3).stdout)
    pairs = [[X[0], X[neighbour["row"]]] for neighbour in answer["neighbours"]]
    scores = [neighbour["score"] for neighbour in answer["neighbours"]]
    np.testing.assert_allclose(scores, shared.pair_score(pairs))
    result = succeed("evaluate", *arguments, "-k", 1)
    found = json.loads(result.stdout)
    expected = ranking_report(shared, X, labels, k=1)["mAP"]
    assert found["results"]["learnt"]["mAP"] == pytest.approx(expected)
    succeed("convert", mixed, files / "matrix.npy")
    np.testing.assert_allclose(np.load(files / "matrix.npy"), shared.get_bilinear_matrix())


# -- evaluate and query -------------------------------------------------------------------------


@pytest.fixture
def model(files):
    path = files / "model.safetensors"
    tasks = ["--tasks", files / "users.txt"]
    succeed("train", files / "items.npz", *tasks, "-a", "omtrsl", "-n", 1500, "-q", "-o", path)
    return path


def test_every_task_is_ranked_with_its_own_matrix(files, digits, model):
    X, labels, users = digits
    arguments = ["evaluate", model, files / "items.npz", "--tasks", files / "users.txt", "-k", 3]
    found = json.loads(succeed(*arguments, "--json").stdout)
    learnt = simstream.load(model)
    expected = {
        user: ranking_report(learnt.for_task(user), X[users == user], labels[users == user], k=3)[
            "mAP"
        ]
        for user in USERS
    }
    assert {user: found["tasks"][user]["learnt"]["mAP"] for user in USERS} == pytest.approx(
        expected
    )
    assert found["results"]["learnt"]["mAP"] == pytest.approx(np.mean(list(expected.values())))
    assert found["n_tasks"] == 3
    dots = [found["tasks"][user]["dot"]["mAP"] for user in USERS]
    assert found["results"]["dot"]["mAP"] == pytest.approx(np.mean(dots))
    pytest.importorskip("matplotlib")
    result = succeed(*arguments, "--plot", files / "report.png")
    assert all(user in result.stdout for user in USERS)
    assert (files / "report.png").stat().st_size > 1000


def test_triplets_of_tasks_and_strangers(files, digits, model):
    X, labels, users = digits
    triplets, y, tasks = TaskTripletSampler(labels, users, 9).draw(600)
    tasks = np.where(tasks == "eve", "zoe", tasks)
    write_triplets(files / "t.csv", triplets, y, tasks)
    arguments = ["evaluate", model, files / "items.npz", "--triplets", files / "t.csv", "--json"]
    result = succeed(*arguments)
    assert "1 of 3 tasks are unknown" in result.stderr
    found = json.loads(result.stdout)["tasks"]
    learnt = simstream.load(model, preprocessor=X)
    for task in ("ann", "zoe"):
        chosen = tasks == task
        expected = learnt.score(triplets[chosen], y[chosen], tasks[chosen])
        assert found[task]["learnt"]["triplet accuracy"] == pytest.approx(expected)


def test_many_tasks_are_told_by_their_extremes(files):
    many = np.arange(300) % 10
    (files / "many.txt").write_text("\n".join(map(str, many)))
    path = files / "oasis.safetensors"
    succeed("train", files / "items.npz", "-n", 200, "-q", "-o", path)
    arguments = ["evaluate", path, files / "items.npz", "--tasks", files / "many.txt", "-k", 1]
    assert "lowest task" in succeed(*arguments).stdout
    assert len(json.loads(succeed(*arguments, "--json").stdout)["tasks"]) == 10


def test_query_of_a_task(files, digits, model):
    X = digits[0]
    learnt = simstream.load(model)
    arguments = ["query", model, files / "items.npz", "--row", 0, "-k", 3, "--json", "--task"]
    for task in ("ann", "a stranger"):
        result = succeed(*arguments, task)
        assert ("has not seen" in result.stderr) == (task != "ann")
        (answer,) = json.loads(result.stdout)
        scores = [neighbour["score"] for neighbour in answer["neighbours"]]
        rows = [neighbour["row"] for neighbour in answer["neighbours"]]
        pairs = [[X[0], X[row]] for row in rows]
        np.testing.assert_allclose(scores, learnt.pair_score(pairs, task=task))
    succeed("train", files / "items.npz", "-n", 10, "-q", "-o", files / "oasis.safetensors")
    arguments[1] = files / "oasis.safetensors"
    assert "OASIS does not learn tasks" in fail(2, *arguments, "ann")


def test_tasks_of_models_made_in_python_are_found_by_their_text(files, digits):
    X, labels, users = digits
    numbers = np.searchsorted(USERS, users)
    drawn = TaskTripletSampler(labels, numbers, 0).draw(500)
    path = files / "python.safetensors"
    OMTRSL(preprocessor=X).fit(*drawn).save(path)
    (files / "numbers.txt").write_text("\n".join(map(str, numbers)))
    arguments = ["evaluate", path, files / "items.npz", "--tasks", files / "numbers.txt", "--json"]
    result = succeed(*arguments)
    assert "unknown" not in result.stderr
    expected = ranking_report(
        simstream.load(path).for_task(1), X[numbers == 1], labels[numbers == 1], k=1
    )["mAP"]
    found = json.loads(result.stdout)["tasks"]["1"]["learnt"]["mAP"]
    assert found == pytest.approx(expected)


def test_two_tasks_of_the_same_text_are_refused(files, digits):
    X, labels, users = digits
    triplets, y, tasks = TaskTripletSampler(labels, users, 0).draw(100)
    mixed = [3 if t % 2 else "3" for t in range(100)]
    path = files / "python.safetensors"
    OMTRSL(preprocessor=X).fit(triplets, y, mixed).save(path)
    message = fail(1, "query", path, files / "items.npz", "--row", 0, "--task", "3")
    assert "'3' and 3" in message
    write_triplets(files / "t.csv", triplets, y, tasks)
    arguments = [files / "items.npz", "--triplets", files / "t.csv"]
    assert "different texts" in fail(1, "evaluate", path, *arguments)


def test_measuring_what_tasks_share_is_said(files, model):
    result = succeed("evaluate", model, files / "items.npz", "-k", 1)
    assert "what all tasks of the model share" in result.stderr
    assert "what all tasks share" in " ".join(result.stdout.split())
    result = succeed(
        "evaluate", model, files / "items.npz", "-k", 1, "--tasks", files / "users.txt"
    )
    assert "tasks share" not in result.stdout + result.stderr


def test_the_matrix_of_a_task_can_be_written(files, model):
    learnt = simstream.load(model)
    convert = ["convert", model, files / "matrix.npy"]
    succeed(*convert, "--task", "bob")
    expected = learnt.get_bilinear_matrix("bob")
    np.testing.assert_array_equal(np.load(files / "matrix.npy"), expected)
    assert "--task NAME" in succeed(*convert).stderr
    expected = learnt.get_bilinear_matrix("nobody")
    np.testing.assert_array_equal(np.load(files / "matrix.npy"), expected)
    assert "has not seen task zoe" in succeed(*convert, "--task", "zoe").stderr
    items = ["convert", files / "items.npz", files / "items.csv"]
    assert "expected a model" in fail(2, *items, "--task", "ann")
    for command in (convert, ["query", model, files / "items.npz", "--row", 0]):
        assert "expected the name of a task, got ''" in fail(2, *command, "--task", "")


# -- active -------------------------------------------------------------------------------------


def test_the_choices_are_the_learners_that_ask():
    able = [
        known.name.lower()
        for known in catalogue.ALGORITHMS
        if "query" in inspect.signature(known.cls()).parameters
    ]
    assert sorted(able) == sorted(ASKING)


def test_strategies_see_the_same_stream_and_ask_alike(files):
    arguments = ["active", files / "items.npz", "--tasks", files / "users.txt", "-p", "C=0.1"]
    options = ["-n", 600, "--n-test", 300, "--seeds", 2, "--deltas", "0.01,0.1", "--json", "-q"]
    found = json.loads(succeed(*arguments, *options).stdout)
    assert [one["strategy"] for one in found["strategies"]] == [
        "dot", "active", "random", "active", "random", "all",
    ]  # fmt: skip
    by_key = {(one["strategy"], one["delta"], one["seed"]): one for one in found["runs"]}
    for seed in (0, 1):
        assert by_key["all", None, seed]["asked"] == 1
        for delta in (0.01, 0.1):
            active, random = (by_key[name, delta, seed] for name in ("active", "random"))
            assert abs(active["asked"] - random["asked"]) < 0.08
        assert by_key["active", 0.01, seed]["asked"] < by_key["active", 0.1, seed]["asked"]
    values = [by_key["all", None, seed]["measures"]["mAP"] for seed in (0, 1)]
    last = found["strategies"][-1]["mAP"]
    assert last["mean"] == pytest.approx(np.mean(values))
    assert last["spread"] == pytest.approx(np.std(values, ddof=1))
    # Asking for everything is the same however it is decided: the streams are the same.
    all_asked = [*options[:6], "--deltas", "1e300", "--json", "-q"]
    runs = json.loads(succeed(*arguments, *all_asked).stdout)["runs"]
    per_seed = [one["measures"] for one in runs if one["seed"] == 0 and one["strategy"] != "dot"]
    assert per_seed[0] == pytest.approx(per_seed[1])
    assert per_seed[0] == pytest.approx(per_seed[2])


def test_recorded_answers_and_a_picture(files, digits):
    _, labels, users = digits
    write_triplets(files / "t.csv", *TaskTripletSampler(labels, users, 0).draw(400))
    arguments = ["active", files / "items.npz", "--triplets", files / "t.csv", "--seeds", 1]
    pytest.importorskip("matplotlib")
    picture = files / "active.png"
    result = succeed(*arguments, "--deltas", "0.1", "--plot", picture)
    assert "320 questions, 1 seed" in result.stdout
    assert "mAP" not in result.stdout
    assert picture.stat().st_size > 1000
    assert "not with --triplets" in fail(2, *arguments, "-n", 10)
    assert "not with --triplets" in fail(2, *arguments, "--tasks", files / "users.txt")


def test_one_seed_has_no_deviation(files):
    arguments = ["active", files / "items.npz", "-n", 200, "--n-test", 100, "--deltas", 0.1, "-q"]
    one, two = ([*arguments, "--seeds", n] for n in (1, 2))
    assert "\u00b1" not in succeed(*one).stdout
    assert "\u00b1 standard deviation" in succeed(*two).stdout
    strategies = json.loads(succeed(*one, "--json").stdout)["strategies"]
    assert all(strategy["mAP"]["spread"] is None for strategy in strategies)


@pytest.mark.parametrize(
    ("name", "reason"), [("nowhere/x.png", "no such folder"), ("folder.png", "is a folder")]
)
def test_a_picture_that_cannot_be_written_is_told_before_the_work(files, name, reason):
    pytest.importorskip("matplotlib")
    (files / "folder.png").mkdir()
    # Neither the items nor the model are there: the picture is the first thing that is looked at.
    for command in (["active", files / "no.npz"], ["evaluate", files / "no", files / "no.npz"]):
        assert reason in fail(2, *command, "--plot", files / name)


def test_wrong_use_of_active_is_told(files, digits):
    active = ["active", files / "items.npz"]
    assert "expected --deltas" in fail(2, *active, "-p", "query=all")
    assert "numbers > 0" in fail(2, *active, "--deltas", "0,1")
    assert "omtrsl" in fail(2, *active, "-a", "oasis")
    assert "C: expected" in fail(2, *active, "-p", "C=-1")
    write_items(files / "bare.npz", digits[0])
    assert "has no labels" in fail(2, "active", files / "bare.npz")
    assert "too few items" in fail(1, *active, "--test-share", "0.001")
    broken = digits[0].copy()
    broken[3, 4] = np.nan
    np.savez(files / "nan.npz", items=broken, labels=digits[1])
    assert "nan" in fail(1, "active", files / "nan.npz").lower()
    (files / "t.csv").write_text("anchor,positive,negative,y\n0,1,2,1\n0,1,900,1\n")
    assert "too large" in fail(1, *active, "--triplets", files / "t.csv")


def _signal_at_call(monkeypatch, number):
    """Let Ctrl-C arrive while OMTRSL learns for the n-th time."""
    original, calls = OMTRSL.partial_fit, []

    def partial_fit(self, *arguments, **named):
        calls.append(None)
        if len(calls) == number:
            signal.raise_signal(signal.SIGINT)
        return original(self, *arguments, **named)

    monkeypatch.setattr(OMTRSL, "partial_fit", partial_fit)


def test_ctrl_c_shows_the_seeds_that_are_done(files, monkeypatch):
    _signal_at_call(
        monkeypatch, 3 * 2 + 2
    )  # three runs a seed: in the second run of the third seed
    options = ["-n", 300, "--n-test", 50, "--deltas", 0.1, "--seeds", 5, "--json"]
    result = run("active", files / "items.npz", *options)
    assert result.exit_code == 130
    assert "Traceback" not in result.stderr
    assert "2 of 5 seeds were done" in result.stderr
    found = json.loads(result.stdout)
    assert found["interrupted"]
    assert found["n_seeds"] == 2
    assert len(found["runs"]) == 4 * 2


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_before_a_seed_is_done_has_nothing_to_show(files, monkeypatch, as_json):
    _signal_at_call(monkeypatch, 2)
    options = ["-n", 2000, "--n-test", 50, "--deltas", 0.1, "--seeds", 2]
    result = run("active", files / "items.npz", *options, *(["--json"] if as_json else []))
    assert result.exit_code == 130
    assert result.stdout == ""
    assert "checkpoint" not in result.stderr
    assert ("interrupted" in result.stderr) != as_json
    assert ("nothing to show" in result.stderr) != as_json


def test_pairs_are_measured_with_what_tasks_share(files, digits, model):
    """Pairs have no tasks, so those of an .npz file are not looked for."""
    X, labels, users = digits
    np.savez(files / "grouped.npz", items=X, labels=labels, groups=users)
    rows = np.arange(40).reshape(20, 2)
    y = np.where(labels[rows[:, 0]] == labels[rows[:, 1]], 1, -1)
    write_pairs(files / "pairs.csv", rows, y)
    arguments = ["evaluate", model, files / "grouped.npz", "--pairs", files / "pairs.csv"]
    found = json.loads(succeed(*arguments, "--json").stdout)
    assert found["n_pairs"] == 20
    assert "tasks" not in found
    shared = simstream.load(model).for_task("nobody").set_params(preprocessor=X)
    expected = roc_auc_score(y, shared.pair_score(rows))
    assert found["results"]["learnt"]["ROC AUC"] == pytest.approx(expected)
    write_triplets(files / "t.csv", [[0, 1, 2]], tasks=["ann"])
    message = fail(2, *arguments, "--triplets", files / "t.csv")
    assert "--pairs have no tasks" in message


def test_an_end_before_anything_began_says_so(files, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("simstream.cli.inputs.read_rows", interrupted)
    monkeypatch.setattr("simstream.cli.training.train_model", interrupted)
    assert fail(130, "active", files / "items.npz") == "simstream: interrupted"
    message = fail(130, "train", files / "items.npz", "-o", files / "model.safetensors")
    assert "before learning began; nothing was written" in message
