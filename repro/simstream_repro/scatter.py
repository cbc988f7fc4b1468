"""Our numbers against the printed ones, one picture for a paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from simstream.plots import new_figure, tidy

from .figures import finish_figure, name_plainly
from .plan import Paper
from .styles import style_of
from .verdicts import JudgedNumber


def scatter(paper: Paper, numbers: Sequence[JudgedNumber]) -> Any | None:
    """A panel for each of two measures: ours (up) against printed (right), with bars of two standard errors.

    Filled marks are numbers on exactly the paper's data, hollow ones on parts of it and stand-ins. The
    measures are those with the most numbers; training times are shown only where a paper prints nothing
    else. None without numbers.
    """
    known = [one for one in numbers if one.is_measured and one.published is not None]
    kind = "quality" if any(one.measure.kind == "quality" for one in known) else "time"
    first: dict[tuple[str, str, str], JudgedNumber] = {}
    for one in known:
        if one.measure.kind == kind:
            first.setdefault((one.dataset, one.method, one.measure.name), one)
    known = list(first.values())
    # Of measures with as many numbers, the first.
    names = [name for name, _ in Counter(one.measure.name for one in known).most_common(2)]
    if not names:
        return None
    figure = new_figure(4.6 * len(names) + 0.4, 4.6)
    all_axes = figure.subplots(1, len(names), squeeze=False)[0]
    methods = list(dict.fromkeys(one.method for one in known))
    for axes, name in zip(all_axes, names, strict=True):
        mine = [one for one in known if one.measure.name == name]
        for one in mine:
            _draw(axes, paper, one, methods)
        _frame(axes, mine, is_log=kind == "time" or _is_crowded_at_zero(mine))
        _name_better_side(axes, mine)
    return finish_figure(figure, list(all_axes))


def _draw(axes: Any, paper: Paper, one: JudgedNumber, methods: Sequence[str]) -> None:
    if one.ours is None:
        return
    style = style_of(one.method, methods)
    exact = one.standing == "exact"
    axes.errorbar(
        one.published,
        one.ours[0],
        xerr=_bar(one.their_error),
        yerr=_bar(one.our_error),
        fmt=style.marker,
        color=style.colour,
        fillstyle="full" if exact else "none",
        markersize=6 if exact else 5,
        elinewidth=0.8,
        alpha=0.9,
        label=paper.shown(one.method),
    )


def _is_crowded_at_zero(mine: Sequence[JudgedNumber]) -> bool:
    """Whether most marks would lie in one corner: errors that differ by a factor of 20 or more."""
    values = [value for one in mine if one.ours for value in (one.published or 0.0, one.ours[0])]
    return mine[0].measure.better == "lower" and min(values) > 0 and max(values) > 20 * min(values)


def _bar(error: float | None) -> float | None:
    """Two standard errors."""
    return None if error is None else 2 * error


def _frame(axes: Any, mine: Sequence[JudgedNumber], *, is_log: bool) -> None:
    """The diagonal, and the same limits for both axes."""
    places = [
        place
        for one in mine
        for place in (
            (one.ours[0] if one.ours else 0.0, one.our_error),
            (one.published or 0.0, one.their_error),
        )
    ]
    values = [mean + side * (_bar(error) or 0.0) for mean, error in places for side in (-1, 1)]
    if is_log:
        axes.set_xscale("log")
        axes.set_yscale("log")
        positive = [value for value in values if value > 0]
        low, high = min(positive) / 2, max(positive) * 2
    else:
        margin = 0.05 * (max(values) - min(values) or 1.0)
        low, high = min(values) - margin, max(values) + margin
    axes.plot([low, high], [low, high], color="#888888", linewidth=0.8, zorder=0)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    for name in ("x", "y") if is_log else ():
        name_plainly(axes, name)
    axes.set_aspect("equal")
    axes.set_xlabel("printed")
    axes.set_ylabel("ours")
    axes.set_title(mine[0].measure.label, fontsize=10)
    tidy(axes, grid="both")


def _name_better_side(axes: Any, mine: Sequence[JudgedNumber]) -> None:
    """Say beside the line on which side ours is better, where the marks leave most room."""
    side = {"higher": 1, "lower": -1}.get(mine[0].measure.better, 0)
    if not side:
        return
    points = np.array([(one.published, one.ours[0]) for one in mine if one.ours is not None])
    marks = axes.transAxes.inverted().transform(axes.transData.transform(points))
    along = np.linspace(0.1, 0.9, 17)
    places = np.column_stack([along - 0.03 * side, along + 0.03 * side])
    room = np.min(np.linalg.norm(places[:, None] - marks[None], axis=2), axis=1)
    axes.text(
        *places[int(np.argmax(room))],
        "better",
        transform=axes.transAxes,
        rotation=45,
        ha="center",
        va="center",
        fontsize=8,
        color="#555555",
    )
