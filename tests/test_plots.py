"""Pictures show the numbers they are given."""

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
    assert first.get_label() == "three (3 of 4)"
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
