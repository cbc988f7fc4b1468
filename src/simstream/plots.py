"""Figures of results: functions that take data and return a matplotlib figure.

The colours are those of Okabe and Ito, which can be told apart with any kind of colour blindness; a method
has the same colour in every figure. Needs ``pip install 'simstream[plot]'``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np

from .data import FormatError, atomic_write
from .extras import MissingExtraError

_BLUE, _ORANGE, _GREEN, _PINK, _SKY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9"
#: Colour of each method; baselines are grey.
_COLOURS = {
    "euclidean": "#BBBBBB",
    "dot": "#777777",
    "cosine": "#777777",
    "learnt": _BLUE,
    "oasis": _BLUE,
    "ogd": _SKY,
    "sors": _GREEN,
    "adasors": _ORANGE,
    "aroma": _PINK,
    "pametric": _ORANGE,
    "pola": _SKY,
    "lmnn": _GREEN,
    "itml": _PINK,
    "mcml": _BLUE,
    "omtrsl": _BLUE,
    "ostrsl": _ORANGE,
    "ogrsl": _GREEN,
    "baseline": "#777777",
    "adapted": _BLUE,
    "active": _BLUE,
    "random": _ORANGE,
    "all": _GREEN,
}
_OTHER_COLOURS = ("#000000", "#F0E442")
#: Vermilion, for what is wrong; no method has it.
_WRONG = "#D55E00"
_FAINT = "#666666"


class PlottingUnavailableError(MissingExtraError):
    """matplotlib is not installed."""


class Ranking(NamedTuple):
    """The nearest items that one similarity found for a query."""

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
    """Raise if matplotlib is not installed.

    Raises
    ------
    PlottingUnavailableError
    """
    if find_spec("matplotlib") is None:
        raise PlottingUnavailableError("a figure", "matplotlib", "plot")


def check_extension(path: str | Path) -> None:
    """Raise if matplotlib cannot write a figure to a file of that name.

    Raises
    ------
    PlottingUnavailableError
    FormatError
        If matplotlib has no format with that extension.
    """
    known = new_figure(1, 1).canvas.get_supported_filetypes()
    extension = Path(path).suffix
    if extension.lower().lstrip(".") not in known:
        raise FormatError(
            f"{path}: unknown extension; expected one of {', '.join(sorted(known))}, "
            f"got {extension!r}"
        )


def save_figure(figure: Any, path: str | Path) -> None:
    """Write a figure to a file, atomically; the extension selects the format."""
    check_extension(path)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=160)


def colour_of(method: str) -> str:
    """The colour of a method, the same in every figure; variants such as ``"SORS-I"`` share it.

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
    """Bars for every measure, one colour per model.

    Parameters
    ----------
    results : mapping of model name to mapping of measure to value
        Values from 0 to 1. All models have the measures of the first one.
    title : str
    parts : sequence of mappings like `results`
        Results of single tasks, if `results` are averages over tasks: a dot each on the bars.

    Returns
    -------
    matplotlib.figure.Figure
    """
    names = list(results)
    measures = list(results[names[0]])
    figure = new_figure(max(5.0, 1.5 + 0.22 * len(measures) * (len(names) + 1)), 4.2)
    axes = figure.add_subplot()
    width = 0.8 / len(names)
    bars, dots = [], []
    for place, name in enumerate(names):
        values = [results[name][measure] for measure in measures]
        centres = np.arange(len(measures)) + (place - (len(names) - 1) / 2) * width
        bars.append(axes.bar(centres, values, width * 0.92, color=colour_of(name), label=name))
        for part in parts:
            values = [part[name].get(measure, np.nan) for measure in measures]
            dots += axes.plot(
                centres, values, "o", ms=2.5, mfc="white", mec="black", mew=0.6, label="one task"
            )
    axes.set_xticks(range(len(measures)), measures, rotation=40, ha="right")
    axes.set_ylim(0, 1)
    axes.set_ylabel("value (higher is better)")
    axes.set_title(title, loc="left", fontsize=10)
    handles = [*bars, *dots[:1]]
    axes.legend(
        handles=handles,
        frameon=False,
        ncols=len(handles),
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
    lines = {}
    for name, model in _by_name(models).items():
        values, used = model.eigenvalues_, model.effective_dimension_
        shares = values[:used] / values[0] if used else np.ones(0)
        label = f"{name} ({used} of {len(values)} dimensions)"
        lines[label] = (np.arange(1, used + 1), shares, colour_of(name))
    return _lines_figure(lines, "eigenvalue number", "eigenvalue / largest eigenvalue", title)


def convergence_figure(models: Any, *, title: str = "") -> Any:
    """Objective of batch learners against iterations, relative to its initial value.

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
    lines = {}
    for name, model in _by_name(models).items():
        history = np.asarray(model.history_)
        label = f"{name} ({model.n_iter_} iterations)"
        lines[label] = (np.arange(len(history)), history / history[0], colour_of(name))
    return _lines_figure(lines, "iteration", "objective / initial objective", title, marker="")


def gap_figure(models: Any, *, title: str = "") -> Any:
    """Duality gap against epochs: an upper bound on the distance of the objective from its optimum.

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
    colours = (_BLUE, _ORANGE, _GREEN, _PINK, _SKY)  # all are SDCA: coloured in turn
    lines = {}
    for place, (name, model) in enumerate(_by_name(models).items()):
        gap = model.history_["gap"]
        lines[name] = (np.arange(1, len(gap) + 1), gap, colours[place % len(colours)])
    return _lines_figure(lines, "epoch", "duality gap", title)


def _by_name(models: Any) -> Mapping[str, Any]:
    """Models by name; a single one is named after its class."""
    return models if isinstance(models, Mapping) else {type(models).__name__: models}


def _lines_figure(
    lines: Mapping[str, tuple[np.ndarray, np.ndarray, str]],
    xlabel: str,
    ylabel: str,
    title: str,
    marker: str = "o",
) -> Any:
    """Lines (x, y, colour) by label, with a logarithmic y axis."""
    figure = new_figure(6.4, 4.2)
    axes = figure.add_subplot()
    for label, (x, y, colour) in lines.items():
        axes.semilogy(x, y, marker=marker, ms=3, lw=1.5, color=colour, label=label)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(frameon=False)
    tidy(axes, grid="both")
    return figure


def active_figure(
    curves: Mapping[str, Mapping[str, Sequence[tuple[float, float, float | None]]]],
    *,
    title: str = "",
) -> Any:
    """The value of answers: measures against the share of questions asked.

    Parameters
    ----------
    curves : mapping of measure to mapping of strategy to points (share asked, mean, standard deviation)
        A strategy with one point, such as "all", is drawn as a horizontal reference line. The standard
        deviation is None if there is none, as for a single seed.
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
    for axes, (measure, strategies) in zip(panels, curves.items(), strict=True):
        deviates = [_draw_strategy(axes, name, points) for name, points in strategies.items()]
        axes.set_xlim(0, 1)
        axes.set_xticks(np.linspace(0, 1, 6), [f"{share:.0%}" for share in np.linspace(0, 1, 6)])
        axes.set_xlabel("share of questions asked")
        axes.set_ylabel(f"{measure} (mean ± SD over seeds)" if any(deviates) else measure)
        tidy(axes, grid="both")
    panels[0].set_title(title, loc="left", fontsize=10)
    panels[-1].legend(frameon=False)
    return figure


def _draw_strategy(
    axes: Any, name: str, points: Sequence[tuple[float, float, float | None]]
) -> bool:
    """Draw one strategy, and tell whether it has standard deviations."""
    markers = {"active": "o", "random": "s"}
    asked, means, deviations = np.array(points, float).T  # None becomes NaN
    has_deviation = bool(np.isfinite(deviations).any())
    colour = colour_of(name)
    if len(points) == 1 and name not in markers:
        label = f"{name} ({asked[0]:.0%} asked)"
        axes.axhline(means[0], color=colour, lw=1.5, ls="--", label=label)
        if has_deviation:
            low, high = means[0] - deviations[0], means[0] + deviations[0]
            axes.axhspan(low, high, color=colour, alpha=0.12)
    else:
        axes.errorbar(
            asked,
            means,
            deviations if has_deviation else None,
            color=colour,
            marker=markers.get(name, "^"),
            ms=5,
            lw=1.8,
            capsize=3,
            label=name,
        )
    return has_deviation


def adaptation_figure(report: Any, *, title: str | None = None) -> Any:
    """What adapting has gained: the measure over the stream of queries, and the gain of every query.

    Parameters
    ----------
    report : AdaptationReport
        What `Adapter.report` returns.
    title : str, optional
        By default the report's verdict.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import Adapter
    >>> items = np.random.default_rng(0).normal(size=(100, 8))
    >>> adapter = Adapter(random_state=0).fit(items[:50], items, [(n, n) for n in range(50)])
    >>> figure = adaptation_figure(adapter.report())
    """
    figure = new_figure(11.5, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    _draw_stream(left, report)
    _draw_gains(right, report)
    text = f"{report.verdict[0].upper()}{report.verdict[1:]}" if title is None else title
    figure.suptitle(fill(text, 140), x=0.01, ha="left", fontsize=11)
    return figure


def _draw_stream(axes: Any, report: Any) -> None:
    """Both means in each part of the stream; the bars are the intervals of their differences."""
    ends = [end for end, _ in report.curve]
    middles = [(begin + 1 + end) / 2 for begin, end in zip([0, *ends], ends, strict=False)]
    baseline = np.array([part.baseline for _, part in report.curve])
    adapted = np.array([part.adapted for _, part in report.curve])
    # An interval of a gain, seen from the baseline, says where the adapted mean may be.
    reach = np.array([part.high - part.gain for _, part in report.curve])
    axes.plot(middles, baseline, "s--", ms=5, lw=1.6, color=colour_of("baseline"), label="baseline")
    axes.errorbar(
        middles,
        adapted,
        np.nan_to_num(reach),
        fmt="o-",
        ms=5.5,
        lw=1.8,
        capsize=3,
        color=colour_of("adapted"),
        label="adapted, 95 % interval of the gain",
    )
    axes.set_xlim(0, max(ends, default=1) + 0.5)
    axes.margins(y=0.12)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("queries, in order of arrival")
    axes.set_ylabel(f"{report.measure}, mean over a part of the stream")
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2)
    tidy(axes, grid="y")


def _draw_gains(axes: Any, report: Any) -> None:
    """The gain of every query, and how many there are of each kind."""
    _fill_gains(axes, report.gains, report.measure)
    axes.set_xlabel("queries, sorted by their gain")
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3)


def _fill_gains(axes: Any, gains: Any, measure: str) -> dict[str, int]:
    """Fill the gain of every query, largest first, down to zero; return how many are of each kind."""
    gains = np.sort(np.asarray(gains, float))[::-1]
    counts = {
        "better": int((gains > 0).sum()),
        "the same": int((gains == 0).sum()),
        "worse": int((gains < 0).sum()),
    }
    edges = np.arange(len(gains) + 1) + 0.5
    values = np.append(gains, gains[-1:])
    for word, colour, filled in (
        ("better", _BLUE, np.maximum(values, 0.0)),
        ("worse", _WRONG, np.minimum(values, 0.0)),
    ):
        label = f"{word}: {counts[word]:,}"
        axes.fill_between(
            edges[: len(filled)], filled, color=colour, label=label, step="post", linewidth=0
        )
    axes.axhline(0, color="black", lw=0.8, label=f"the same: {counts['the same']:,}")
    # Zero is always inside, even if all queries stay the same.
    axes.set_ylim(1.08 * gains.min(initial=-0.05), 1.08 * gains.max(initial=0.05))
    axes.set_xlim(0.5, max(len(gains), 1) + 0.5)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel(f"gain in {measure}")
    tidy(axes, grid="y")
    return counts


def gain_figure(
    curve: Sequence[tuple[float, float, float, float]],
    gains: Any,
    *,
    measure: str,
    title: str = "",
) -> Any:
    """What learning changes: the mean gain by the number of judgements, and the gain of every query.

    Parameters
    ----------
    curve : sequence of (number of judgements, mean gain, low, high)
        Ends of the interval of the mean.
    gains : (n_queries,) array
        Gain of each query after all judgements.
    measure : str
        Name of what is gained.
    title : str

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> figure = gain_figure([(100, 0.02, 0.0, 0.04)], [0.1, 0.0, -0.06], measure="nDCG@10")
    """
    figure = new_figure(10.0, 4.0)
    left, right = figure.subplots(1, 2)
    numbers, means, lows, highs = np.array(curve, float).T
    left.axhline(0, color=colour_of("cosine"), lw=1.5)
    left.errorbar(
        numbers,
        means,
        [means - lows, highs - means],
        color=colour_of("learnt"),
        marker="o",
        ms=5,
        lw=1.8,
        capsize=3,
    )
    left.set_xscale("log")
    left.set_xticks(numbers, [f"{int(number):,}" for number in numbers])
    left.minorticks_off()
    left.set_xlabel("judgements learnt from")
    left.set_ylabel(f"gain in {measure}, with its 95 % interval")
    counts = _fill_gains(right, gains, measure)
    right.set_xlabel(f"held-out queries: {', '.join(f'{n} {word}' for word, n in counts.items())}")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    left.set_title("mean of all held-out queries", loc="left", fontsize=10)
    right.set_title("each of them", loc="left", fontsize=10)
    tidy(left, grid="y")
    return figure


def retrieval_figure(
    scores: Mapping[str, float],
    examples: Sequence[Example],
    *,
    measure: str,
    title: str = "",
    subtitle: str = "",
) -> Any:
    """Scores of methods as bars, and beside them the nearest items of some queries.

    Parameters
    ----------
    scores : mapping of method to value, from 0 to 1
    examples : sequence of Example
        All with the same number of rankings, and rankings with the same number of images.
    measure : str
        Name of the scores, for the axis.
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
    """One block per example: the query on the left, one row of images per similarity."""
    n_rows = len(examples[0].rankings)
    n_images = len(examples[0].rankings[0].images)
    gap = 0.34  # between examples, for the title
    heights = [height for _ in examples for height in [*[1.0] * n_rows, gap]]
    widths = [1.9, 1.3, *[1.0] * n_images]  # query, names, nearest items
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
    """An empty figure, with its size in inches."""
    check_available()
    # Not pyplot: it keeps figures in a global list and may need a display.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def tidy(axes: Any, *, grid: str) -> None:
    """Remove the frame and add a faint grid for one axis or both ("x", "y" or "both")."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color="#E5E5E5", linewidth=0.8)
    axes.set_axisbelow(True)
