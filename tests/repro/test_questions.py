"""The protocol of questions: who answers, what is held out, and that the rule is that of the service."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from simstream import OASIS
from simstream.asking import Asking
from simstream.data.samplers import nearer_first
from simstream.datasets import Dataset, prepare
from simstream_repro import protocols
from simstream_repro.plan import load_paper
from simstream_repro.protocols import questions
from simstream_repro.protocols.common import make
from simstream_repro.protocols.questions import (
    Candidates,
    PeopleJudge,
    QuestionSettings,
    question_keys,
)
from simstream_repro.records import Cell

SETTINGS = {"split": "triplet", "n_held_out": 500, "questions": [5, 40]}
CELL = Cell(
    "study",
    "questions",
    "digits",
    "digits",
    "centred+unit-norm",
    "Random",
    "OASIS",
    {"dtype": "float32", "block_size": 1},
    {},
    0,
    SETTINGS,
)


def with_settings(**settings):
    return replace(CELL, settings=SETTINGS | settings)


def world_of(cell):
    return questions.world_of(cell, QuestionSettings(**cell.settings))


def a_judged_set(n=12, seed=0, left_out=0.0):
    """Items on a line, and for each question who is nearer on it; some questions have no answer."""
    rng = np.random.default_rng(seed)
    line = rng.permutation(n).astype(float)
    line += rng.uniform(0, 0.4, n)  # no ties
    triplets = []
    for anchor in range(n):
        for first in range(n):
            for second in range(first):
                if anchor not in (first, second) and rng.random() >= left_out:
                    near, far = sorted((first, second), key=lambda i: abs(line[i] - line[anchor]))
                    triplets.append([anchor, near, far])
    items = np.column_stack([line, rng.normal(size=(n, 30))])
    return Dataset("line", items, triplets=rng.permutation(np.array(triplets)))


@pytest.fixture
def line(monkeypatch):
    data = a_judged_set(left_out=0.2)
    monkeypatch.setattr(questions, "dataset", lambda name: data)
    return data


def test_people_are_quoted_whichever_candidate_comes_first():
    data = a_judged_set(left_out=0.3)
    judge = PeopleJudge(data.triplets, 12)
    given = data.triplets
    assert (judge.answers(given) == 1).all()
    assert (judge.answers(given[:, [0, 2, 1]]) == -1).all()
    everything = np.stack(np.meshgrid(*[np.arange(12)] * 3), axis=-1).reshape(-1, 3)
    different = everything[[len(set(one)) == 3 for one in everything.tolist()]]
    assert np.count_nonzero(judge.answers(different)) == 2 * len(given)


def test_labels_name_the_candidate_of_the_anchors_class():
    world = world_of(CELL)
    labels = questions.dataset("digits").labels
    drawn = Candidates(world, np.random.default_rng(0)).draw(2000)
    answers = world.judge.answers(drawn)
    anchor, near, far = labels[nearer_first(drawn, answers)].T
    assert (anchor == near).all()
    assert (anchor != far).all()
    assert abs(answers.mean()) < 0.1  # the nearer one is on either side


@pytest.mark.parametrize("choosing", [False, True])
def test_no_held_out_triplet_is_asked_about(line, choosing):
    """Also not the wrong way round; and all the others that have an answer are."""
    cell = with_settings(n_held_out=100, choosing=choosing)
    world = world_of(cell)
    assert len(world.held_out) == 100
    assert (world.judge.answers(world.held_out) == 1).all()
    drawn = Candidates(world, np.random.default_rng(0)).draw(40_000)
    asked, kept_back, known = (
        set(question_keys(one, 12).tolist()) for one in (drawn, world.held_out, line.triplets)
    )
    assert not asked & kept_back
    if not choosing:
        assert asked | kept_back == known
    else:  # the part that is held out otherwise is neither asked about nor judged
        outside = set(question_keys(world_of(with_settings(n_held_out=100)).held_out, 12).tolist())
        assert asked | kept_back == known - outside
        assert not kept_back & outside


def test_no_question_and_no_statistic_is_about_a_held_out_item(line):
    for choosing in (False, True):
        cell = with_settings(split="item", held_out_share=0.34, choosing=choosing)
        world = world_of(cell)
        judged = set(world.held_out.ravel().tolist())
        drawn = Candidates(world, np.random.default_rng(0)).draw(5000)
        assert set(drawn.ravel().tolist()) == set(world.rows.tolist())
        assert not judged & set(world.rows.tolist())
        assert len(judged) == (3 if choosing else 4)
        np.testing.assert_allclose(
            world.items, prepare(line.items, "centred+unit-norm", fit_rows=world.rows).items
        )
    outside = set(world_of(replace(cell, settings=cell.settings | {"choosing": False})).rows)
    assert judged <= outside  # chosen by what is trained on otherwise


def test_random_questions_teach_what_the_learner_would_learn_from_them(line):
    cell = with_settings(n_held_out=50, random_share=1.0, questions=[5, 60])
    record = protocols.run(cell)
    world = world_of(cell)
    rng = np.random.default_rng([0, 1])
    candidates = Candidates(world, rng)
    asked = []
    for _ in range(60):
        rng.random()  # the coin: random or not
        asked.append(candidates.draw(1))
    triplets = np.concatenate(asked)
    triplets = nearer_first(triplets, world.judge.answers(triplets))
    learner = OASIS(dtype="float32", block_size=1, preprocessor=world.items)
    expected = [learner.fit(triplets[:n]).score(world.held_out) for n in (5, 60)]
    assert record["curves"]["accuracy"] == {"x": [5, 60], "y": expected}
    assert record["measures"]["accuracy@60"] == record["measures"]["accuracy"] == expected[1]
    assert record["measures"]["mean accuracy"] == np.mean(expected)
    assert record["measures"]["answered"] == 1
    assert "considered" not in record["measures"]


def test_the_smaller_delta_the_more_is_looked_at():
    considered = []
    for delta in (1e9, 0.05, 1e-9):
        record = protocols.run(with_settings(delta=delta, pool=32, random_share=0.0))
        considered.append(record["measures"]["considered"])
    assert considered[0] == 1
    assert 1 < considered[1] < 32
    assert considered[2] == 32


def test_questions_without_an_answer_count_and_teach_nothing(line):
    record = protocols.run(
        with_settings(candidates="any", n_held_out=20, random_share=1.0, questions=[300])
    )
    answered = record["measures"]["answered"]
    assert 0.65 < answered < 0.9  # a fifth was left out
    assert record["curves"]["answers"]["y"] == [round(300 * answered)]


def test_without_learning_the_curve_is_flat_and_judged_on_the_same_answers():
    flat = protocols.run(replace(CELL, learner="Dot", parameters={}))
    learnt = protocols.run(CELL)
    assert len(set(flat["curves"]["accuracy"]["y"])) == 1
    assert flat["held_out"] == learnt["held_out"]
    assert flat["measures"]["accuracy"] != learnt["measures"]["accuracy"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "class"}, "split: expected one of triplet, item, got 'class'"),
        ({"candidates": "all"}, "candidates: expected one of answered, any, got 'all'"),
    ],
)
def test_what_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        protocols.run(with_settings(**settings))


def test_items_nobody_was_asked_about_cannot_be_held_out(monkeypatch):
    data = Dataset("few", np.eye(12), triplets=np.array([[0, 1, 2]]))
    monkeypatch.setattr(questions, "dataset", lambda name: data)
    with pytest.raises(ValueError, match="no question about the held-out items has an answer"):
        world_of(with_settings(split="item"))


def test_active_is_what_the_service_does_unless_told_otherwise():
    """The same learner, the same rule; the others differ in what their names say."""
    from simstream.serve.state import Learning

    paper = load_paper("questions")
    cells = {cell.method: cell for cell in paper.cells(paper.studies["questions-main"], seeds=1)}
    served = Learning().new_learner()
    for name in ("Active, delta 1", "Active, delta 0.1", "Active, delta 0.01", "Random"):
        made = make(cells[name])
        assert type(made) is type(served)
        assert made.get_params() == served.get_params()
    rule = {
        name: asdict(Asking()) | {k: v for k, v in cell.settings.items() if k in asdict(Asking())}
        for name, cell in cells.items()
    }
    assert rule["Active, delta 0.1"] == asdict(Asking())
    assert rule["Active, delta 0.01"] == asdict(Asking(delta=0.01))
    assert rule["Random"] == asdict(Asking(random_share=1.0))


def test_the_quick_version_runs_on_bundled_digits_and_learns():
    paper = load_paper("questions")
    small = paper.studies["questions-main"].quick_version()
    found = {}
    for cell in paper.cells(small):
        assert cell.data == "digits"
        found[cell.dataset, cell.method] = protocols.run(cell)["measures"]["accuracy"]
    for dataset in small.datasets:
        for method in ("Random", "Active, delta 0.01"):
            assert found[dataset, method] > found[dataset, "Cosine"] + 0.005
