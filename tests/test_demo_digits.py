"""The demo on digits: what it claims is what the library and the commands say."""

import json
import shlex

import numpy as np
import pytest
from click.testing import CliRunner

import simstream
from simstream import plots
from simstream.cli import demo_digits as demo
from simstream.cli import main
from simstream.metrics import mean_average_precision

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def outcome():
    return demo.run(seed=1, n_triplets=20_000)


def test_halves_share_no_item_and_all_classes():
    split = demo.load_split(seed=3)
    train, test = split.train_items, split.test_items
    assert not {row.tobytes() for row in train} & {row.tobytes() for row in test}
    np.testing.assert_allclose(np.linalg.norm(train, axis=1), 1)
    sizes = np.bincount(split.test_labels) - np.bincount(split.train_labels)
    assert set(sizes) <= {0, 1}
    assert not np.array_equal(demo.load_split(seed=4).test_items, test)


def test_learning_beats_the_baselines_on_held_out_digits(outcome):
    baseline = outcome.baseline.measures
    for result in outcome.results:
        if not result.is_baseline:
            assert result.measures["mAP"] > baseline["mAP"]
            assert result.measures["triplet accuracy"] > baseline["triplet accuracy"]
            assert result.rate > 0
    assert outcome.best.measures["mAP"] == max(r.measures["mAP"] for r in outcome.results)


def test_findings_tell_what_got_worse_too(outcome):
    lines = demo.findings(outcome)
    for measure in demo._MEASURES:
        line = next(line for line in lines if line.strip().startswith(f"{measure} "))
        change = outcome.best.measures[measure] - outcome.baseline.measures[measure]
        assert ("better" in line) == (change > 0)
        assert ("worse" in line) == (change < 0)


def test_printed_commands_give_the_same_model_and_numbers(outcome, tmp_path):
    arguments = [
        "demo",
        "digits",
        "--output-dir",
        str(tmp_path),
        "-n",
        "20000",
        "--seed",
        "1",
        "--json",
    ]
    result = CliRunner().invoke(main, arguments)
    train, evaluate, query = json.loads(result.stdout)["commands"]
    assert [train, evaluate, query] == demo.commands_for(outcome, tmp_path)
    results = [
        CliRunner().invoke(main, [*shlex.split(command)[1:], "--json"])
        for command in (train, evaluate, query)
    ]
    assert [result.exit_code for result in results] == [0, 0, 0]
    trained = json.loads(results[0].stdout)["model"]
    saved = simstream.load(tmp_path / "best.safetensors").get_bilinear_matrix()
    np.testing.assert_array_equal(simstream.load(trained).get_bilinear_matrix(), saved)
    measured = json.loads(results[1].stdout)["results"]
    for name, measures in (("learnt", outcome.best.measures), ("dot", outcome.baseline.measures)):
        for measure, value in measures.items():
            assert measured[name][measure] == pytest.approx(value, abs=1e-12)


def test_examples_agree_with_the_metrics(outcome):
    split = outcome.split
    for example in demo.examples(outcome):
        query = next(
            row
            for row, item in enumerate(split.test_items)
            if np.array_equal(item, example.image.ravel())
        )
        others = np.arange(len(split.test_labels)) != query
        for ranking, result in zip(example.rankings, (outcome.baseline, outcome.best), strict=True):
            expected = mean_average_precision(
                result.model,
                split.test_items[[query]],
                split.test_labels[[query]],
                split.test_items[others],
                split.test_labels[others],
            )
            assert ranking.average_precision == pytest.approx(expected, abs=1e-9)
            assert len(ranking.images) == len(ranking.is_right)
            assert not any(np.array_equal(image, example.image) for image in ranking.images)


def test_figure_has_a_bar_for_every_method_and_frames_what_is_wrong(outcome):
    figure = demo.figure(outcome)
    bars, *images = [axes for part in figure.subfigs for axes in part.axes]
    widths = [bar.get_width() for bar in bars.patches]
    assert widths == [result.measures["mAP"] for result in outcome.results]
    assert [text.get_text() for text in bars.get_yticklabels()] == [r.name for r in outcome.results]
    assert bars.get_xlabel()
    framed = sum(axes.spines["left"].get_linewidth() > 1 for axes in images if axes.images)
    wrong = sum((~ranking.is_right).sum() for e in demo.examples(outcome) for ranking in e.rankings)
    assert framed == wrong


def test_every_method_has_a_colour_of_its_own(outcome):
    colours = [plots.colour_of(result.name) for result in outcome.results]
    assert len(set(colours)) == len(colours)
    assert plots._WRONG not in colours


def test_measures_figure_labels_everything():
    results = {"learnt": {"mAP": 0.8, "P@1": 0.9}, "dot": {"mAP": 0.6, "P@1": 0.95}}
    axes = plots.measures_figure(results, title="a model").axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["mAP", "P@1"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["learnt", "dot"]
    assert axes.get_ylabel()
    heights = sorted(bar.get_height() for bar in axes.patches)
    assert heights == sorted([0.8, 0.9, 0.6, 0.95])


def test_command(tmp_path):
    arguments = [
        "demo",
        "digits",
        "--output-dir",
        str(tmp_path / "out"),
        "-n",
        "3000",
        "--seed",
        "2",
    ]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.stderr
    for name in demo.methods():
        assert name in result.stdout
    assert "simstream train" in result.stdout
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")
    simstream.load(tmp_path / "out" / "best.safetensors")


def test_without_matplotlib_everything_but_the_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    arguments = ["demo", "digits", "--output-dir", str(tmp_path), "-n", "1000", "--json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.stderr
    assert "simstream[plot]" in result.stderr
    assert not (tmp_path / "demo.png").exists()
    assert set(json.loads(result.stdout)["results"]) == set(demo.methods())
    model, test = tmp_path / "best.safetensors", tmp_path / "digits-test.npz"
    arguments = ["evaluate", str(model), str(test), "--plot", str(tmp_path / "report.png")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "simstream[plot]" in result.stderr
