"""Figures show the numbers they are given."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from simstream import LMNN, SDCA, Mahalanobis, plots

pytest.importorskip("matplotlib")


def test_spectrum_shows_the_eigenvalues_that_count(tmp_path):
    model = Mahalanobis(np.diag([4.0, 2.0, 1.0, 0.0]))
    figure = plots.spectrum_figure({"three": model, "none": Mahalanobis(np.zeros((2, 2)))})
    first, second = figure.axes[0].lines
    np.testing.assert_allclose(first.get_ydata(), [1.0, 0.5, 0.25])
    assert len(second.get_ydata()) == 0
    assert first.get_label() == "three (3 of 4 dimensions)"
    plots.save_figure(figure, tmp_path / "spectrum.png")
    assert (tmp_path / "spectrum.png").stat().st_size > 1000


def test_convergence_shows_the_history():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 3)), np.arange(30) % 2
    with pytest.warns(ConvergenceWarning):
        model = LMNN(max_iter=10).fit(X, y)
    (line,) = plots.convergence_figure({"LMNN": model}).axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), model.history_ / model.history_[0])


def test_gap_shows_the_certificate_of_every_epoch():
    X = np.random.default_rng(0).normal(size=(20, 3))
    triplets = [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    model = SDCA(0.1, n_epochs=5, random_state=0, preprocessor=X).fit(triplets)
    (line,) = plots.gap_figure({"lam = 0.1": model}).axes[0].lines
    np.testing.assert_array_equal(line.get_ydata(), model.history_["gap"])
    np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3, 4, 5])


def test_a_single_model_is_called_by_its_class():
    model = SDCA(0.1, n_epochs=2, random_state=0).fit(np.eye(3)[None])
    (line,) = plots.gap_figure(model).axes[0].lines
    assert line.get_label() == "SDCA"
    (line,) = plots.spectrum_figure(Mahalanobis(np.eye(2))).axes[0].lines
    assert line.get_label() == "Mahalanobis (2 of 2 dimensions)"


def test_one_seed_has_no_deviation_to_draw():
    points = {"active": [(0.1, 0.7, None), (0.4, 0.8, None)], "all": [(1.0, 0.82, None)]}
    (axes,) = plots.active_figure({"mAP": points}).axes
    assert axes.get_ylabel() == "mAP"
    (bars,) = axes.containers
    assert not bars[2]
    assert not axes.patches


def test_active_shows_means_and_spreads_over_the_share_asked():
    points = {"active": [(0.1, 0.7, 0.02), (0.4, 0.8, 0.01)], "all": [(1.0, 0.82, 0.03)]}
    figure = plots.active_figure({"triplet accuracy": points, "mAP": points})
    left, right = figure.axes
    assert "mAP" in right.get_ylabel()
    (bars,) = left.containers
    np.testing.assert_allclose(bars[0].get_xdata(), [0.1, 0.4])
    np.testing.assert_allclose(bars[0].get_ydata(), [0.7, 0.8])
    ends = [segment[:, 1].tolist() for segment in bars[2][0].get_segments()]
    np.testing.assert_allclose(ends, [[0.68, 0.72], [0.79, 0.81]])
    names = [text.get_text() for text in right.get_legend().get_texts()]
    assert sorted(names) == ["active", "all (100% asked)"]


def test_measures_show_a_dot_for_every_task():
    results = {"learnt": {"mAP": 0.5}, "dot": {"mAP": 0.4}}
    parts = [{"learnt": {"mAP": 0.6}, "dot": {"mAP": 0.3}}, {"learnt": {"mAP": 0.4}, "dot": {}}]
    axes = plots.measures_figure(results, parts=parts).axes[0]
    heights = [float(line.get_ydata()[0]) for line in axes.lines]
    np.testing.assert_allclose(heights, [0.6, 0.4, 0.3, np.nan])
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["learnt", "dot", "one task"]


@pytest.mark.parametrize("method", ["OASIS", "RCA", "KISSME", "a b c", "x", "y", "z"])
def test_no_method_has_the_colour_of_errors(method):
    assert plots.colour_of(method) != plots._WRONG
