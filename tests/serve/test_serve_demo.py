"""The demo: what its digits are, who answers, whether the ranking improves; and how questions are chosen."""

import re
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from live import Client, ServerProcess, add_items, judge, running, vectors, wait_until

from simstream import Bilinear
from simstream.asking import Asking
from simstream.serve.demo import load_demo
from simstream.serve.demo_digits import (
    ASKING,
    LEARNING,
    Annotator,
    Measure,
    add_digits,
    answer_one,
    digits,
    progress,
)
from simstream.serve.engine import model_of, similarities
from simstream.serve.events import EventKind
from simstream.serve.log import LogError
from simstream.serve.schemas import decode_picture
from simstream.serve.writer import Ledger, Write


def test_the_first_neighbours_get_better_within_a_few_questions(tmp_path):
    """What a newcomer sees: measured on digits that are not even in the service."""
    measure = Measure()
    asking = Asking(delta=ASKING.delta, near=ASKING.near, seed=0)
    with running(tmp_path, learning=LEARNING, asking=asking) as service:
        assert add_digits(service) == 600
        assert add_digits(service) == 0
        before = measure(service.version.model)
        assert before["learnt"] == before["baseline"] < 0.6
        annotator = Annotator()
        for _ in range(200):
            answer_one(service, annotator)
        tally = service.version.tally
        assert tally.answers + tally.skips == tally.questions == 200
        assert tally.skips < 0.45 * tally.questions
        assert 0 < tally.random < 0.3 * tally.answers
        after = measure(service.version.model)
        assert after["baseline"] == before["baseline"]
        assert after["learnt"] > after["baseline"] + 0.15
        assert f"{tally.answers} questions answered" in progress(service, measure)
        served, kept_back = digits()
        asked = {
            name
            for event in service.log.read(0, kinds=(EventKind.QUESTION,))
            for name in event.body["names"]
        }
        assert asked <= set(served.names.tolist())
        assert not asked & set(kept_back.names.tolist())


@pytest.mark.parametrize("name", ["digits", "docstrings"])
def test_the_first_question_has_a_clear_answer(tmp_path, name):
    demo = load_demo(name)
    asking = replace(demo.asking, random_share=1.0)
    with running(tmp_path, learning=demo.learning, asking=asking, opening=demo.opening) as service:
        demo.add_to(service)
        question = service.choose_question(None)
        assert (question.anchor, *question.candidates) == demo.opening
        assert not question.is_random
        if name == "digits":
            assert Annotator().winner(question.anchor, question.candidates) == 1
        else:
            assert (
                question.candidates[1] == "numpy.argmin"
            )  # and argmax, of which it is the opposite
        service.submit([Write(Ledger.ask, (question,))]).result()
        wait_until(lambda: service.version.tally.questions == 1)
        assert service.choose_question(None).is_random
    with running(tmp_path / "other", opening=("not", "there", "at all")) as service:
        add_items(service, vectors(5))
        assert service.choose_question(None)


def test_digits_are_kept_with_pictures_and_words(tmp_path):
    served, kept_back = digits()
    assert np.allclose(np.linalg.norm(np.vstack([served.rows, kept_back.rows]), axis=1), 1)
    alike = (served.numbers == served.numbers[0]) & (served.inks == served.inks[0]).all(axis=1)
    assert (
        alike.sum() < Measure()(model_of(0, None, False))["neighbours"]
    )  # there is something to learn
    with running(tmp_path) as service:
        add_digits(service)
        _, vector, payload = service.item("digit-0003")
        assert np.array_equal(vector, served.rows[3])
        assert payload["text"] == served.texts[3] == "green 3"
        media_type, content = decode_picture(payload["image"])
        assert media_type == "image/png"
        assert content.startswith(b"\x89PNG")


def test_the_annotator_sees_shapes_only():
    served, _ = digits()
    annotator = Annotator()
    rng = np.random.default_rng(0)
    skips = 0
    for anchor, first, second in rng.integers(600, size=(500, 3)):
        names = served.names[[anchor, first, second]].tolist()
        winner = annotator.winner(names[0], (names[1], names[2]))
        same = served.numbers[[first, second]] == served.numbers[anchor]
        alike = served.shapes[[first, second]] @ served.shapes[anchor]
        if same[0] != same[1]:
            assert winner == int(same[1])
        elif winner is None:
            assert abs(alike[0] - alike[1]) < 0.25
            skips += 1
        else:
            assert alike[winner] - alike[1 - winner] >= 0.25
    assert 50 < skips < 300


def test_a_folder_of_something_else_is_refused(tmp_path):
    with running(tmp_path) as service:
        add_items(service, vectors(3))
        with pytest.raises(
            LogError, match=r"expected dense 6-dimensional .* got dense 72-dimensional"
        ):
            add_digits(service)
        assert len(service.engine.items) == 3


def tells_of_answers(line):
    """Whether a log line counts answers: the first line is written before there are any."""
    return re.search(r"\b[1-9]\d* questions answered", line) is not None


def test_only_the_demo_has_a_measure(tmp_path):
    for options in ((), ("--demo", "digits", "--simulate")):
        server = ServerProcess(tmp_path / "data", *options)
        client = Client(server.port)
        told = client("GET", "/v1/status")[1]["demo"]
        if options:
            wait_until(lambda: any(map(tells_of_answers, server.log)))  # noqa: B023
        client.close()
        server.terminate()
        assert server.process.returncode == 0
        assert (told is None) == (options == ())
    assert told["neighbours"] == 10


def questions_of(service, count, **asking):
    service.settings = replace(service.settings, asking=Asking(**asking))
    service._rng = np.random.default_rng(0)
    return [service.choose_question(None) for _ in range(count)]


def nearness(rows, questions):
    """Of all items, how many are nearer to the anchor than the nearer candidate, on average."""
    ranks, lefts = [], 0
    for question in questions:
        anchor, first, second = (int(name[1:]) for name in (question.anchor, *question.candidates))
        assert len({anchor, first, second}) == 3
        scores = rows @ rows[anchor]
        ranks.append(np.sum(scores > max(scores[first], scores[second])))
        lefts += scores[first] > scores[second]
    return np.mean(ranks), lefts / len(questions)


def test_one_candidate_is_near_and_stands_on_either_side(tmp_path):
    rows = vectors(200)
    with running(tmp_path) as service:
        add_items(service, rows)
        never, always = {"random_share": 0.0, "delta": 100.0}, {"random_share": 1.0}
        any_rank, _ = nearness(rows, questions_of(service, 300, **never))
        near_rank, left = nearness(rows, questions_of(service, 300, near=24, **never))
        random_rank, _ = nearness(rows, questions_of(service, 300, near=24, **always))
        assert near_rank < 15 < 50 < any_rank  # of 200: the nearest of 24, and of two
        assert random_rank > 50  # what measures is not chosen
        assert 0.4 < left < 0.6


def test_near_is_by_what_was_learnt_and_works_with_few_items(tmp_path):
    rows = np.array([[1, 0, 0], [0.9, 0.1, 0], [0.8, 0, 0.6]], np.float32)
    with running(tmp_path) as service:
        add_items(service, rows)
        judge(service, "i0", "i2", "i1")
        for question in questions_of(service, 5, near=24):
            assert {question.anchor, *question.candidates} == {"i0", "i1", "i2"}


@pytest.mark.parametrize("is_learnt", [False, True])
def test_similarities_are_the_same_dense_and_sparse(is_learnt):
    anchors, others = vectors(3), vectors(12, seed=1)
    matrix = vectors(6, seed=2) if is_learnt else np.eye(6, dtype=np.float32)
    expected = [anchor @ matrix @ others[4 * i : 4 * i + 4].T for i, anchor in enumerate(anchors)]
    learners = [None] if not is_learnt else [Bilinear(matrix), Bilinear(sp.csr_matrix(matrix))]
    for learner in learners:
        model = model_of(0, learner, has_tasks=False)
        for kind in (np.asarray, sp.csr_matrix):
            got = similarities(model, kind(anchors), kind(others))
            assert np.allclose(got, expected, atol=1e-6)
