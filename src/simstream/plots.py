"""Pictures of results: functions that take data and return a matplotlib figure.

Colours are those of Okabe and Ito, which people with any kind of colour blindness can tell apart; every
method keeps its colour in every picture. Needs ``pip install 'simstream[plot]'``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .data import FormatError, atomic_write

#: Colour of each method; baselines are grey.
_COLOURS = {
    "euclidean": "#BBBBBB",
    "dot": "#777777",
    "cosine": "#777777",
    "learnt": "#0072B2",
    "oasis": "#0072B2",
    "ogd": "#56B4E9",
    "sors": "#009E73",
    "adasors": "#E69F00",
    "aroma": "#CC79A7",
    "pametric": "#E69F00",
    "pola": "#56B4E9",
    "lmnn": "#009E73",
    "itml": "#CC79A7",
    "mcml": "#0072B2",
    "omtrsl": "#0072B2",
    "ostrsl": "#E69F00",
    "ogrsl": "#009E73",
    "active": "#0072B2",
    "random": "#E69F00",
    "all": "#009E73",
}
_OTHER_COLOURS = ("#F0E442", "#000000", "#D55E00")
#: Vermilion, for what is wrong; no method has it.
_WRONG = "#D55E00"
_FAINT = "#666666"


class PlottingUnavailableError(ImportError):
    """matplotlib is not installed."""


class Ranking(NamedTuple):
    """The first items one similarity found for a query."""

    name: str
    #: Images, shape (n, height, width).
    images: np.ndarray
    #: Whether each is of the query's class.
    is_right: np.ndarray
    average_precision: float


class Example(NamedTuple):
    """A query and what several similarities found for it."""

    title: str
    image: np.ndarray
    rankings: tuple[Ranking, ...]


def check_available() -> None:
    """Raise if there is nothing to draw with.

    Raises
    ------
    PlottingUnavailableError
    """
    if find_spec("matplotlib") is None:
        raise PlottingUnavailableError(
            "matplotlib is not installed; get it with: pip install 'simstream[plot]'"
        )


def check_extension(path: str | Path) -> None:
    """Raise if no picture can be written to a file of that name.

    Raises
    ------
    PlottingUnavailableError
    FormatError
        If the extension is not that of a format matplotlib writes.
    """
    known = new_figure(1, 1).canvas.get_supported_filetypes()
    extension = Path(path).suffix
    if extension.lower().lstrip(".") not in known:
        raise FormatError(
            f"{path}: unknown extension; expected one of {', '.join(sorted(known))}, "
            f"got {extension!r}"
        )


def save_figure(figure: Any, path: str | Path) -> None:
    """Write a figure to a file whose name says the format, whole or not at all."""
    check_extension(path)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=160)


def colour_of(method: str) -> str:
    """The colour of a method, always the same: ``"SORS-I"`` has that of ``"sors"``.

    Examples
    --------
    >>> colour_of("SORS-I") == colour_of("sors")
    True
    """
    name = method.lower().split("-")[0].split(" ")[0]
    other = _OTHER_COLOURS[sum(map(ord, name)) % len(_OTHER_COLOURS)]
    return _COLOURS.get(name, other)


def measures_figure(
    results: Mapping[str, Mapping[str, float]],
    *,
    title: str = "",
    parts: Sequence[Mapping[str, Mapping[str, float]]] = (),
) -> Any:
    """Bars of every measure, one colour per model.

    Parameters
    ----------
    results : mapping of model name to mapping of measure to value
        Values from 0 to 1. All models have the measures of the first one.
    title : str
    parts : sequence of mappings like `results`
        The tasks that the results are averages of: a dot each on the bars.

    Returns
    -------
    matplotlib.figure.Figure
    """
    names = list(results)
    measures = list(results[names[0]])
    figure = new_figure(max(5.0, 1.5 + 0.22 * len(measures) * (len(names) + 1)), 4.2)
    axes = figure.add_subplot()
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        values = [results[name][measure] for measure in measures]
        offsets = np.arange(len(measures)) + (place - (len(names) - 1) / 2) * width
        axes.bar(offsets, values, width * 0.92, color=colour_of(name), label=name)
        for number, part in enumerate(parts):
            dots = [part[name].get(measure, np.nan) for measure in measures]
            label = "one task" if (place, number) == (len(names) - 1, 0) else None
            axes.plot(offsets, dots, "o", ms=2.5, mfc="white", mec="black", mew=0.6, label=label)
    axes.set_xticks(range(len(measures)), measures, rotation=40, ha="right")
    axes.set_ylim(0, 1)
    axes.set_ylabel("value (higher is better)")
    axes.set_title(title, loc="left", fontsize=10)
    handles, labels = axes.get_legend_handles_labels()
    order = np.argsort([label == "one task" for label in labels], kind="stable")
    axes.legend(
        [handles[place] for place in order],
        [labels[place] for place in order],
        frameon=False,
        ncols=len(labels),
        loc="lower left",
        bbox_to_anchor=(0, 1.06),
    )
    tidy(axes, grid="y")
    return figure


def spectrum_figure(models: Any, *, title: str = "") -> Any:
    """Eigenvalues of learnt distances, largest first: how many directions they use.

    Parameters
    ----------
    models : mapping of name to fitted distance (anything with `eigenvalues_`), or one such model
    title : str

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import Mahalanobis
    >>> figure = spectrum_figure({"three": Mahalanobis(np.diag([4.0, 2.0, 1.0, 0.0]))})
    """
    figure = new_figure(6.4, 4.2)
    axes = figure.add_subplot()
    for name, model in _by_name(models).items():
        values = model.eigenvalues_
        used = model.effective_dimension_
        share = values[:used] / values[0] if used else np.ones(0)
        label = f"{name} ({used} of {len(values)})"
        axes.semilogy(
            np.arange(1, used + 1), share, "o-", ms=3, lw=1.5, color=colour_of(name), label=label
        )
    axes.set_xlabel("direction, largest first")
    axes.set_ylabel("eigenvalue, as a share of the largest")
    return _finish_lines(figure, axes, title)


def convergence_figure(models: Any, *, title: str = "") -> Any:
    """The objective of batch learners against iterations, as a share of its first value.

    Parameters
    ----------
    models : mapping of name to fitted batch learner (anything with `history_`), or one such model
    title : str

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from simstream import LMNN
    >>> figure = convergence_figure({"LMNN": LMNN(tol=0.1).fit(*load_iris(return_X_y=True))})
    """
    figure = new_figure(6.4, 4.2)
    axes = figure.add_subplot()
    for name, model in _by_name(models).items():
        history = np.asarray(model.history_)
        label = f"{name} ({model.n_iter_} iterations)"
        axes.semilogy(history / history[0], lw=1.8, color=colour_of(name), label=label)
    axes.set_xlabel("iteration")
    axes.set_ylabel("share of the first value")
    return _finish_lines(figure, axes, title)


def gap_figure(models: Any, *, title: str = "") -> Any:
    """Duality gap against epochs: how far from the optimum each solution can be, at most.

    Parameters
    ----------
    models : mapping of name to fitted `SDCA`, or one such model
    title : str

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import SDCA
    >>> model = SDCA(1.0, n_epochs=3).fit(np.eye(3)[None])
    >>> figure = gap_figure(model)
    >>> figure = gap_figure({"lam = 1": model})
    """
    figure = new_figure(6.4, 4.2)
    axes = figure.add_subplot()
    for place, (name, model) in enumerate(_by_name(models).items()):
        gap = model.history_["gap"]
        colour = list(_COLOURS.values())[3 + place % (len(_COLOURS) - 3)]
        axes.semilogy(np.arange(1, len(gap) + 1), gap, "o-", ms=3, lw=1.5, color=colour, label=name)
    axes.set_xlabel("epoch")
    axes.set_ylabel("duality gap")
    return _finish_lines(figure, axes, title)


def active_figure(
    curves: Mapping[str, Mapping[str, Sequence[tuple[float, float, float | None]]]],
    *,
    title: str = "",
) -> Any:
    """What answers are worth: measures against the share of questions asked.

    Parameters
    ----------
    curves : mapping of measure to mapping of strategy to points (share asked, mean, spread)
        A strategy with one point, such as "all", is drawn as a level: what the others are held against.
        The spread is None where there is none, as of a single seed.
    title : str

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> points = {"active": [(0.1, 0.7, 0.02), (0.4, 0.8, 0.01)], "all": [(1.0, 0.82, 0.01)]}
    >>> figure = active_figure({"triplet accuracy": points}, title="digits")
    """
    figure = new_figure(1.2 + 4.8 * len(curves), 4.2)
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    markers = {"active": "o", "random": "s"}
    for axes, (measure, strategies) in zip(panels, curves.items(), strict=True):
        is_spread = any(point[2] is not None for points in strategies.values() for point in points)
        for name, points in strategies.items():
            asked, means, spreads = np.array(points, float).T  # None becomes NaN
            has_spread = bool(np.isfinite(spreads).any())
            colour = colour_of(name)
            if len(points) == 1 and name not in markers:
                label = f"{name} ({asked[0]:.0%} asked)"
                axes.axhline(means[0], color=colour, lw=1.5, ls="--", label=label)
                if has_spread:
                    low, high = means[0] - spreads[0], means[0] + spreads[0]
                    axes.axhspan(low, high, color=colour, alpha=0.12)
                continue
            marker = markers.get(name, "^")
            axes.errorbar(
                asked,
                means,
                spreads if has_spread else None,
                color=colour,
                marker=marker,
                ms=5,
                lw=1.8,
                capsize=3,
                label=name,
            )
        axes.set_xlim(0, 1)
        axes.set_xticks(np.linspace(0, 1, 6), [f"{share:.0%}" for share in np.linspace(0, 1, 6)])
        axes.set_xlabel("share of questions asked")
        axes.set_ylabel(f"{measure} (mean and deviation over seeds)" if is_spread else measure)
        tidy(axes, grid="both")
    panels[0].set_title(title, loc="left", fontsize=10)
    panels[-1].legend(frameon=False)
    return figure


def _by_name(models: Any) -> Mapping[str, Any]:
    """Models by the names to draw them with; a single one has that of its class."""
    return models if isinstance(models, Mapping) else {type(models).__name__: models}


def _finish_lines(figure: Any, axes: Any, title: str) -> Any:
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(frameon=False)
    tidy(axes, grid="both")
    return figure


def retrieval_figure(
    scores: Mapping[str, float],
    examples: Sequence[Example],
    *,
    measure: str,
    title: str = "",
    subtitle: str = "",
) -> Any:
    """Scores of methods as bars, and beside them what some queries find.

    Parameters
    ----------
    scores : mapping of method to value, from 0 to 1
    examples : sequence of Example
        All with the same number of rankings, and of images in each.
    measure : str
        What the scores are, for the axis.
    title, subtitle : str

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure = new_figure(13.5, 0.9 + 1.32 * len(examples))
    left, right = figure.subfigures(1, 2, width_ratios=[1, 1.75])
    _draw_bars(left.add_subplot(), scores, measure)
    _draw_examples(right, examples)
    left.suptitle(title, x=0.02, ha="left", fontsize=13, fontweight="bold")
    right.suptitle(subtitle, x=0.02, ha="left", fontsize=10, color=_FAINT)
    return figure


def _draw_bars(axes: Any, scores: Mapping[str, float], measure: str) -> None:
    names, values = list(scores), list(scores.values())
    places = np.arange(len(names))[::-1]
    axes.barh(places, values, 0.72, color=[colour_of(name) for name in names])
    for place, value in zip(places, values, strict=True):
        axes.text(value + 0.012, place, f"{value:.3f}", ha="left", va="center")
    axes.set_yticks(places, names, fontsize=11)
    axes.set_xlim(0, 1)
    axes.set_xlabel(measure)
    tidy(axes, grid="x")
    axes.tick_params(axis="y", length=0)


def _draw_examples(figure: Any, examples: Sequence[Example]) -> None:
    """One block per example: the query large on the left, one row of images per similarity."""
    n_rows = len(examples[0].rankings)
    n_images = len(examples[0].rankings[0].images)
    gap = 0.34  # between examples, for the title
    heights = [height for _ in examples for height in [*[1.0] * n_rows, gap]]
    widths = [1.9, 1.3, *[1.0] * n_images]  # query, names, what was found
    grid = figure.add_gridspec(
        len(heights), len(widths), height_ratios=heights, width_ratios=widths
    )
    for number, example in enumerate(examples):
        top = number * (n_rows + 1)
        axes = figure.add_subplot(grid[top : top + n_rows, 0])
        _draw_image(axes, example.image)
        axes.set_title(example.title, fontsize=8.5, loc="left", pad=3)
        for row, ranking in enumerate(example.rankings):
            name = figure.add_subplot(grid[top + row, 1])
            name.axis("off")
            text = f"{ranking.name}\nAP {ranking.average_precision:.2f}"
            name.text(0.96, 0.5, text, ha="right", va="center", fontsize=9)
            for place in range(n_images):
                axes = figure.add_subplot(grid[top + row, 2 + place])
                _draw_image(axes, ranking.images[place], is_wrong=not ranking.is_right[place])


def _draw_image(axes: Any, image: np.ndarray, *, is_wrong: bool = False) -> None:
    axes.imshow(image, cmap="gray_r", interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(_WRONG if is_wrong else "#DDDDDD")
        spine.set_linewidth(3.0 if is_wrong else 0.6)


def new_figure(width: float, height: float) -> Any:
    """An empty figure of so many inches."""
    check_available()
    # Not pyplot: it keeps figures in a global list and may want a display.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def tidy(axes: Any, *, grid: str) -> None:
    """Faint lines across one axis ("x" or "y"), no frame."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color="#E5E5E5", linewidth=0.8)
    axes.set_axisbelow(True)
