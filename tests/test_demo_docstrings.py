"""The demo on docstrings: what it claims is what the metrics say, and learning helps."""

import json
import shlex

import numpy as np
import pytest
from click.testing import CliRunner

import simstream
from simstream import plots
from simstream.cli import demo_docstrings as demo
from simstream.cli import main
from simstream.metrics import ranking_report_from_scores


@pytest.fixture(scope="module")
def outcome():
    return demo.run(seed=1)


@pytest.fixture
def invoke(outcome, monkeypatch):
    """The command, with the outcome that is there already."""
    asked = []

    def run(*arguments):
        monkeypatch.setattr(demo, "run", lambda *given: asked.append(given) or outcome)
        result = CliRunner().invoke(main, ["demo", *map(str, arguments)])
        assert result.exit_code == 0, result.stderr
        return result, asked

    return run


def test_learning_beats_the_cosine_and_the_interval_says_so(outcome):
    for measure in demo.MEASURES:
        gain = outcome.gain(measure)
        expected = outcome.after[measure].mean() - outcome.before[measure].mean()
        assert gain.mean == pytest.approx(expected, abs=1e-12)
        assert 0 < gain.low < gain.mean < gain.high
    gains = [outcome.gain("nDCG@10", stage).mean for stage in outcome.stages]
    assert gains[-1] > gains[0]
    numbers = [stage.n_judgements for stage in outcome.stages]
    links = outcome.corpus.split(1)[0]
    assert numbers[-1] == len(links) == len(outcome.train_links)
    assert all(0 <= n - end < 30 for n, end in zip(numbers, (100, 300, 1000), strict=False))
    assert sorted(map(tuple, outcome.train_links)) == sorted(map(tuple, links))


def test_numbers_are_those_of_a_ranking_without_the_query_itself(outcome):
    train, test = outcome.corpus.split(1)
    assert np.array_equal(test, outcome.test_links)
    items, queries = outcome.corpus.vectors.toarray(), np.unique(test[:, 0])
    relevant = np.zeros((len(queries), len(items)), bool)
    for query, item in test:
        relevant[list(queries).index(query), item] = True
    excluded = queries[:, None] == np.arange(len(items))
    scores = items[queries] @ items.T
    report = ranking_report_from_scores(scores, relevant, exclude=excluded, k=(1, 10))
    assert report["n_queries"] == len(queries) == len(outcome.queries)
    for measure in demo.MEASURES:
        assert outcome.before[measure].mean() == pytest.approx(report[measure], abs=0.002)
    assert not set(train[:, 0]) & set(queries)


def test_no_query_is_in_two_parts(outcome):
    links, _ = outcome.corpus.split(1)
    parts = demo.by_queries(links, (100, 300, 1000))
    queries = [set(part[:, 0]) for part in parts]
    assert len(parts) == 4
    assert sum(map(len, queries)) == len(set(links[:, 0]))
    first_seen = list(dict.fromkeys(links[:, 0].tolist()))
    assert list(dict.fromkeys(np.concatenate(parts)[:, 0].tolist())) == first_seen


def test_examples_gain_stay_and_lose(outcome):
    gains = outcome.after["nDCG@10"] - outcome.before["nDCG@10"]
    expected = [gains.max(), np.median(gains), gains.min()]
    names = list(outcome.corpus.names)
    for found, gain in zip(demo.examples(outcome), expected, strict=True):
        assert found.values[1] - found.values[0] == pytest.approx(gain, abs=1e-9)
        query = names.index(found.query)
        links = {names[item] for q, item in outcome.test_links.tolist() if q == query}
        assert set(found.links) == links
        scores = (outcome.corpus.vectors @ outcome.corpus.vectors[query].T).toarray().ravel()
        scores[query] = -1
        assert found.cosine[0] == names[scores.argmax()]
        learnt = np.array(
            outcome.adapter.score_items(outcome.corpus.vectors[[query]], outcome.corpus.vectors)
        )[0]
        learnt[query] = -np.inf
        assert found.adapted[0] == names[learnt.argmax()]
        text = demo.told_example(found)
        assert found.query in text.splitlines()[0]
        assert text.count("*") == sum(name in links for name in found.cosine + found.adapted)


def test_command(outcome, invoke, tmp_path):
    pytest.importorskip("matplotlib")
    result, asked = invoke("--output-dir", tmp_path, "--seed", 1)
    assert asked == [(1,)]
    for measure in demo.MEASURES:
        line = next(line for line in result.stdout.splitlines() if line.strip().startswith(measure))
        assert f"{outcome.before[measure].mean():.3f}" in line
        assert f"{outcome.after[measure].mean():.3f}" in line
        assert f"[{outcome.gain(measure).low:+.3f}, {outcome.gain(measure).high:+.3f}]" in line
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    query = next(line for line in result.stdout.splitlines() if "simstream query" in line)
    answer = CliRunner().invoke(main, [*shlex.split(query)[1:], "--json"])
    assert answer.exit_code == 0, answer.stderr
    assert demo.examples(outcome)[0].adapted[0] in answer.stdout
    simstream.load(tmp_path / "adapter.safetensors")


def test_json(outcome, invoke, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    result, _ = invoke("docstrings", "--output-dir", tmp_path, "--json")
    told = json.loads(result.stdout)
    assert "simstream[plot]" in result.stderr
    assert not (tmp_path / "demo.png").exists()
    assert set(told["results"]) == set(demo.MEASURES)
    assert told["results"]["P@1"]["gain"]["mean"] == outcome.gain("P@1").mean
    assert [point["n_judgements"] for point in told["curve"]] == [
        stage.n_judgements for stage in outcome.stages
    ]
    assert len(told["examples"]) == 3
    assert told["n_queries"] == len(outcome.queries)


def test_figure_shows_the_curve_and_every_query(outcome):
    pytest.importorskip("matplotlib")
    curve, queries = demo.figure(outcome).axes
    assert curve.get_xlabel()
    assert curve.get_ylabel()
    points = curve.get_lines()[1].get_xydata()
    assert points[:, 0].tolist() == [stage.n_judgements for stage in outcome.stages]
    assert points[-1, 1] == pytest.approx(outcome.gain("nDCG@10").mean)
    gains = outcome.after["nDCG@10"] - outcome.before["nDCG@10"]
    assert f"{(gains > 0).sum()} better" in queries.get_xlabel()
    assert f"{(gains < 0).sum()} worse" in queries.get_xlabel()
