"""Pictures of the records of a study, as the ``draw`` table of an exhibit (`plan.Drawing`) says.

Lines are means over the seeds with bands of one standard deviation (none on logarithmic axes).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import Any, NamedTuple

import msgspec
import numpy as np

from simstream.metrics import critical_difference
from simstream.plots import new_figure, tidy

from .plan import Drawing, Exhibit, published
from .records import Record, mean_curve, over_seeds
from .styles import LINES, PRINTED_MARK, Style, style_of
from .verdicts import PaperRecords, RecordTable

#: Width of a line, what it gains for each one that covers it, and the longest line with all points marked.
_WIDTH = 1.6
_WIDER = 1.8
_FEW_MARKS = 12
#: Most characters of upright labels below the bars of a panel; longer ones are slanted.
_FITS_UPRIGHT = 54
#: Inches: the widest figure that a page shows without scaling, the width of a panel alone, and the height
#: of a row of the legend.
_WIDEST = 11.0
_ALONE = 5.2
_LEGEND_ROW = 0.17
#: Opacity of a wide line, as the end of a colour.
_FAINT = "66"
#: Share of a logarithmic axis that one tick label needs.
_NAMED_APART = 0.08
#: Most characters of powers of ten as tick labels below a panel.
_LONGEST_ROW = 20
#: Most points on a logarithmic axis that all get a tick label.
_FEW_PLACES = 8
#: Lines that differ by less than this share of the height of a panel cover each other.
_COVERED = 0.01
#: Words in the names of measures between 0 and 1, whose bands end there.
_SHARES = (
    *("mAP", "P@", "sparsity", "error", "accuracy", "rate", "ratio", "predictive loss", "weights"),
)
#: Logarithmic axes have plain numbers within this range, and powers of ten beyond.
_PLAIN = (1e-4, 1e6)
#: Share of the height of a panel that a mark of a printed number takes.
_MARK_HEIGHT = 0.06
#: Words for the steps of a preprocessing.
_STEPS = {"as-is": "as is", "unit-norm": "unit norm", "[0,1]": "[0, 1]"}


class Drawn(NamedTuple):
    """The finished records of a study, and the methods and data sets that have some."""

    records: RecordTable
    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    #: Data set -> its label in the figure.
    labels: dict[str, str]
    #: Records of the study that reference lines come from.
    references: RecordTable
    #: Method -> what the legend calls it, and its name in published numbers.
    shown: dict[str, str]
    printed_as: dict[str, str]
    #: Data sets that are exactly the paper's.
    exact: frozenset[str]

    def of(self, dataset: str, method: str) -> list[Record]:
        """Finished records of a method on a data set."""
        return self.records.get((dataset, method), [])


def draw(given: PaperRecords, exhibit: Exhibit) -> Any | None:
    """The figure of an exhibit, or None if there are no records for it."""
    paper, how = given.paper, exhibit.draw
    study = paper.study_of(exhibit.id)
    if study is None or how is None:
        return None
    datasets, methods = exhibit.datasets or study.datasets, exhibit.methods or study.methods
    records = {
        (dataset, method): done
        for (dataset, method), found in given.table(study).items()
        if dataset in datasets
        and method in methods
        and (done := [one for one in found if one["status"] == "done"])
    }
    if not records:
        return None
    lines = how.references
    table = Drawn(
        records,
        tuple(one for one in datasets if any(one == dataset for dataset, _ in records)),
        tuple(one for one in methods if any(one == method for _, method in records)),
        {name: data.label for name, data in paper.datasets.items()},
        {} if lines is None else given.table(paper.studies[lines.study]),
        {name: how.names.get(name, paper.shown(name)) for name in methods},
        exhibit.printed_as,
        frozenset(name for name, data in paper.datasets.items() if data.standing == "exact"),
    )
    return {"lines": _lines, "bars": _bars, "matrix": _matrix}[how.form](table, how)


# -- forms ------------------------------------------------------------------------------------------------


class _Line(NamedTuple):
    """A line of a panel."""

    method: str
    label: str
    style: Style
    x: np.ndarray
    y: np.ndarray
    spread: np.ndarray | None


def _lines(table: Drawn, how: Drawing) -> Any | None:
    alone = how.panels == "method"
    panels = [
        (title, datasets, [line for one in datasets for line in _lines_of(table, one, how)])
        for title, datasets in _panels(table, how)
    ]
    drawn = list(dict.fromkeys(line.method for _, _, lines in panels for line in lines))
    if not drawn:
        return None
    if alone:  # every line in a panel of its own, before the others
        panels = [
            (fill(line.label, 28), datasets, [line])
            for _, datasets, lines in panels
            for line in lines
        ]
    figure, all_axes = _grid(len(panels), *((3.2, 2.4) if alone else ()))
    for axes, (title, datasets, lines) in zip(all_axes, panels, strict=True):
        for _, _, (other, *_) in panels if alone else ():
            axes.plot(other.x, other.y, color="#CCCCCC", linewidth=1, label="the others")
        _draw_lines(axes, lines, how)
        no_line = _draw_references(axes, table, datasets, how)
        axes.set_title(title, fontsize=10)
        _label(axes, how)
        _name_few_places(axes, how)
        _draw_printed(axes, table, datasets, how, [line.method for line in lines])
        missing = [table.shown[one] for one in drawn if one not in {line.method for line in lines}]
        missing += no_line
        if missing and not alone:
            axes.set_xlabel(f"{axes.get_xlabel()}\n(no curve: {', '.join(missing)})")
    if alone:
        lows, highs = zip(*(axes.get_ylim() for axes in all_axes), strict=True)
        for axes in all_axes:
            axes.set_ylim(min(lows), max(highs))
    return finish_figure(figure, all_axes)


def _lines_of(table: Drawn, dataset: str, how: Drawing) -> Iterable[_Line]:
    """The lines of a data set."""
    several = [*how.curves, *how.ys]
    for method in table.methods:
        for name, x, y, spread in _series(table.of(dataset, method), how):
            label = table.shown[method] if name is None else f"{table.shown[method]}, {name}"
            known = how.names.get(method, method)
            if name in several:
                style = style_of(known)._replace(line=LINES[several.index(name)])
            else:
                style = style_of(known if name is None else f"{known}, {name}", table.methods)
            yield _Line(method, label, style, x, y, spread if how.bands else None)


def _draw_lines(axes: Any, lines: Sequence[_Line], how: Drawing) -> None:
    """Lines with marks and bands, all of which can be seen."""
    heights = [np.log(np.maximum(line.y, 1e-12)) if how.log_y else line.y for line in lines]
    covering = _covering([(line.x, height) for line, height in zip(lines, heights, strict=True)])
    for number, (line, others) in enumerate(zip(lines, covering, strict=True)):
        above = [lines[other] for other in others if other > number]
        below = len(others) - len(above)
        # Faint where a dashed line of the same colour could not be seen on it.
        is_faint = any(other.style.colour == line.style.colour for other in above)
        is_flat = len(line.x) > 1 and not np.ptp(line.y)
        few = len(line.x) <= _FEW_MARKS
        axes.plot(
            line.x,
            line.y,
            line.style.line,
            color=line.style.colour + _FAINT if is_faint else line.style.colour,
            markerfacecolor=line.style.colour,
            markeredgecolor=line.style.colour,
            # Nothing to mark on a flat line, unless another one covers it.
            marker=None if is_flat and not others else line.style.marker,
            # At other places than on lines that cover it. Of many points few have a mark.
            markevery=slice(below % len(line.x), None, 1 + len(others))
            if few
            else (number % 5, -(-len(line.x) // 8)),
            markersize=5,
            linewidth=_WIDTH + _WIDER * len(above),
            label=f"_{line.label}" if how.panels == "method" else line.label,
        )
        # On a logarithmic axis the band would have no end where mean - deviation is below zero.
        if line.spread is not None and np.any(line.spread) and not how.log_y:
            low, high = line.y - line.spread, line.y + line.spread
            if _is_share(how):
                low, high = np.maximum(low, 0.0), np.minimum(high, 1.0)
            elif how.highest is not None:
                high = np.minimum(high, how.highest)
            axes.fill_between(line.x, low, high, color=line.style.colour, alpha=0.15, linewidth=0)


def _covering(lines: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[list[int]]:
    """Which other lines of a panel lie on each line.

    Examples
    --------
    >>> x, y = np.arange(3), np.array([0.0, 1.0, 2.0])
    >>> _covering([(x, y), (x, y + 0.001), (x, y[::-1])])
    [[1], [0], []]
    """
    heights = [y for _, y in lines if len(y)]
    height = max((np.max(y) for y in heights), default=1.0) - min(
        (np.min(y) for y in heights), default=0.0
    )
    return [
        [
            other
            for other, (other_x, other_y) in enumerate(lines)
            if other != number
            and len(x) > 1
            and np.array_equal(x, other_x)
            and float(np.max(np.abs(y - other_y))) <= _COVERED * height
        ]
        for number, (x, y) in enumerate(lines)
    ]


def _is_share(how: Drawing) -> bool:
    """Whether what is drawn lies between 0 and 1."""
    names = (how.curve, how.y, how.measures)
    return any(word in name for word in _SHARES for name in names)


def _draw_printed(
    axes: Any, table: Drawn, datasets: tuple[str, ...], how: Drawing, methods: Sequence[str]
) -> None:
    """Printed numbers of the methods that have a line: where they belong, or beside the end of the panel."""
    if how.printed is None:
        return
    printed = how.printed
    numbers = published(printed.file)

    def number(dataset: str, method: str, measure: str) -> float | None:
        try:
            return float(numbers[dataset, method, measure][0]) * printed.scale
        except (KeyError, ValueError):  # nothing printed, or no number
            return None

    found: list[tuple[float, Style]] = []
    n_inside = 0
    for dataset in (one for one in datasets if one in table.exact):
        shown: set[str] = set()
        for method in methods:
            name = table.printed_as.get(method, method)
            value = number(dataset, name, printed.measure)
            if value is None or name in shown:
                continue
            shown.add(name)
            style = style_of(method, table.methods)
            x = number(dataset, name, printed.x) if printed.x else None
            if x is None:
                found.append((value, style))
            else:
                n_inside += 1
                axes.plot(x, value, label="_printed", **_star(style))
    if found or n_inside:
        look = {"color": "white", "markeredgecolor": "black", "linestyle": "none"}
        axes.plot([], [], marker=PRINTED_MARK, markersize=10, label="printed in the paper", **look)
    if not found:
        return
    found.sort()
    values = [value for value, _ in found]
    low, high = axes.get_ylim()
    margin = 0.03 * (high - low)
    axes.set_ylim(min(low, values[0] - margin), max(high, values[-1] + margin))
    low, high = axes.get_ylim()
    for (value, style), column in zip(
        found, _columns_of(values, _MARK_HEIGHT * (high - low)), strict=True
    ):
        axes.plot(
            1.03 + 0.045 * column,  # of the width of the panel
            value,
            transform=axes.get_yaxis_transform(),
            clip_on=False,
            label="_printed",
            **_star(style),
        )


def _star(style: Style) -> dict[str, Any]:
    """The look of a printed number of a method."""
    return {
        "marker": PRINTED_MARK,
        "linestyle": "none",
        "color": style.colour,
        "fillstyle": "full" if style.line == "-" else "left",
        "markerfacecoloralt": "white",
        "markeredgecolor": "black",
        "markeredgewidth": 0.5,
        "markersize": 10,
        "zorder": 4,
    }


def _columns_of(values: Sequence[float], gap: float) -> list[int]:
    """Columns in which marks at sorted heights do not lie on each other.

    Examples
    --------
    >>> _columns_of([0.1, 0.11, 0.12, 0.2, 0.21], 0.05)
    [0, 1, 2, 0, 1]
    """
    tops: list[float] = []
    columns = []
    for value in values:
        free = (number for number, top in enumerate(tops) if value - top >= gap)
        column = next(free, len(tops))
        tops[column : column + 1] = [value]
        columns.append(column)
    return columns


def _name_few_places(axes: Any, how: Drawing) -> None:
    """Label the points themselves on a logarithmic axis if they are few."""
    places = sorted({float(x) for line in axes.lines for x in line.get_xdata() if x > 0})
    gaps = np.diff(np.log10(places)) if len(places) > 1 else np.zeros(0)
    if how.log_x and 1 < len(places) <= _FEW_PLACES and gaps.min() > _NAMED_APART * gaps.sum():
        axes.set_xticks(places, [_number(x) for x in places])
        axes.minorticks_off()
    elif how.log_x:
        name_plainly(axes, "x")
    else:
        axes.locator_params(axis="x", nbins=6)  # more would overlap
        if places and places[-1] >= 1000:
            axes.xaxis.set_major_formatter("{x:,.0f}")
    if how.log_y:
        name_plainly(axes, "y")


def name_plainly(axes: Any, name: str) -> None:
    """Plain numbers on a logarithmic axis, where they are neither very small nor very large."""
    low, high = getattr(axes, f"get_{name}lim")()
    if low < _PLAIN[0] or high > _PLAIN[1]:
        return
    # A short axis has few powers of ten.
    steps = (1, 1.5, 2, 3, 5, 7) if high / low < 10 else (1, 2, 5) if high / low < 200 else (1,)
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks = [t for e in powers for step in steps if low <= (t := step * 10.0**e) <= high]
    if name == "x" and len(steps) == 1 and sum(len(_number(t)) for t in ticks) > _LONGEST_ROW:
        ticks = ticks[::2]  # their labels would touch
    getattr(axes, f"set_{name}ticks")(ticks, [_number(tick) for tick in ticks])
    if len(steps) > 1:
        axes.minorticks_off()


def _number(value: float) -> str:
    """A number without a power of ten, if it is neither very small nor very large.

    Examples
    --------
    >>> _number(100000.0), _number(0.001), _number(1e-6), _number(1e9)
    ('100,000', '0.001', '1e-06', '1e+09')
    """
    return f"{value:,.10g}" if abs(value) < 1e8 else f"{value:g}"


def words(value: Any) -> str:
    """A swept value as pages write it: yes or no, a number, the steps of a preprocessing.

    Examples
    --------
    >>> words(True), words(50000), words("one pass"), words("pca:0.95+unit-norm")
    ('yes', '50,000', 'one pass', 'PCA to 95 %,\\nunit norm')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(value)
    return ",\n".join(map(_step_words, value.split("+")))


def _step_words(step: str) -> str:
    name, _, number = step.partition(":")
    if name == "pca":
        return (
            f"PCA to {float(number):.0%}".replace("%", " %")
            if "." in number
            else f"PCA to {number}"
        )
    if name == "top-terms":
        return f"{int(number):,} terms"
    return _STEPS.get(step, step)


def _draw_references(axes: Any, table: Drawn, datasets: tuple[str, ...], how: Drawing) -> list[str]:
    """Thin horizontal lines at the values of other methods, whose dashes do not cover each other.

    Those without a value on any of the data sets are returned.
    """
    absent: list[str] = []
    methods = how.references.methods if how.references is not None else ()
    for number, method in enumerate(methods):
        values = [over_seeds(table.references.get((one, method), []), how.y) for one in datasets]
        if not any(values):
            absent.append(method)
        for value in values:
            if value is not None:
                axes.axhline(
                    value[0],
                    color=style_of(method).colour,
                    linewidth=1.4,
                    linestyle=(4 * number, (4, 4 * max(len(methods) - 1, 1))),
                    label=f"{method} (all answers)",
                )
    return absent


def _series(
    records: list[Record], how: Drawing
) -> Iterable[tuple[str | None, np.ndarray, np.ndarray, np.ndarray | None]]:
    """(name, x, y, spread) of the lines of one method: one, or one for each swept value of a curve."""
    if not records:
        return
    if how.curves:
        for shown, curve in how.curves.items():
            found = mean_curve(records, curve)
            if found is not None:
                yield shown, found[0], found[1], found[2]
    elif how.curve:
        groups = _by_variant(records)
        for variant, group in groups.items():
            found = mean_curve(group, how.curve)
            if found is not None:
                name = None if len(groups) == 1 else variant
                yield name, found[0], found[1], found[2]
    elif how.measures:
        values = [over_seeds(records, how.measures.format(x=x)) for x in how.values]
        kept = [(x, v) for x, v in zip(how.values, values, strict=True) if v is not None]
        if kept:
            yield None, *_columns((x, v[0], v[1]) for x, v in kept)
    else:
        if not how.ys:
            yield from _against(records, how, None, how.y)
        for shown, measure in how.ys.items():
            yield from _against(records, how, shown, measure)


def _against(
    records: list[Record], how: Drawing, name: str | None, measure: str
) -> Iterable[tuple[str | None, np.ndarray, np.ndarray, np.ndarray | None]]:
    """A measure against a swept value or another measure, as `_series` yields lines."""
    along = how.along or how.x
    points = []
    for group in _by_variant(records, along).values():
        y = over_seeds(group, measure)
        value = group[0]["variant"][along]
        x = (value,) if along == how.x else over_seeds(group, how.x)
        if x is not None and y is not None and (not how.values or value in how.values):
            points.append((value, x[0], y[0], y[1]))
    if points:
        points.sort(key=lambda one: one[0])
        yield name, *_columns(one[1:] for one in points)


def _columns(
    rows: Iterable[tuple[float, float, float]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y, spread = np.array(list(rows), dtype=float).T
    return x, y, spread


def _by_variant(records: list[Record], name: str | None = None) -> dict[str, list[Record]]:
    """Records that differ in seed only, or those with the same value of one swept quantity."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        variant = record["variant"]
        shown = [variant[name]] if name in variant else [f"{k} {v}" for k, v in variant.items()]
        groups.setdefault(", ".join(map(str, shown)), []).append(record)
    return groups


def _bars(table: Drawn, how: Drawing) -> Any | None:
    methods = table.methods
    panels = [
        (title, datasets, _groups(table, datasets, how.x))
        for title, datasets in _panels(table, how)
    ]
    most = max(len(groups) for *_, groups in panels)
    figure_width = min(_WIDEST, max(4.2, 0.28 * most * len(methods)))
    figure, all_axes = _grid(len(panels), width=figure_width)
    width = 0.85 / len(methods)
    for axes, (title, datasets, groups) in zip(all_axes, panels, strict=True):
        for place, method in enumerate(methods):
            x, y, spread = [], [], []
            for at, group in enumerate(groups.values()):
                value = over_seeds(group.get(method, []), how.y)
                if value is not None:
                    x.append(at + (place - (len(methods) - 1) / 2) * width)
                    y.append(value[0])
                    spread.append(value[1])
            style = style_of(method, methods)
            hatch = dict(zip(LINES, ("", "///", "...", "xxx"), strict=True))[style.line]
            axes.bar(
                x,
                y,
                width,
                yerr=spread if any(spread) and not how.log_y else None,
                color=style.colour,
                hatch=hatch,
                edgecolor="white",
                linewidth=0.3,
                error_kw={"elinewidth": 0.8},
                label=table.shown[method],
            )
        names = [table.labels[one] if how.x == "dataset" else words(one) for one in groups]
        longest = (max(map(len, name.split("\n"))) for name in names)
        is_tight = sum(longest) > _FITS_UPRIGHT * figure_width / 4.2
        axes.set_xticks(
            range(len(groups)),
            names,
            fontsize=8,
            rotation=30 if is_tight else 0,
            ha="right" if is_tight else "center",
        )
        axes.set_title(title, fontsize=10)
        _label(axes, msgspec.structs.replace(how, label_x="") if how.x == "dataset" else how)
        if how.log_y:
            name_plainly(axes, "y")
        _draw_printed(axes, table, datasets, how, methods)
    return finish_figure(figure, all_axes)


def _groups(table: Drawn, datasets: tuple[str, ...], by: str) -> dict[str, dict[str, list[Record]]]:
    """Records of each method by data set (`by` "dataset"), or by a swept value."""
    groups: dict[str, dict[str, list[Record]]] = {}
    for dataset in datasets:
        for method in table.methods:
            for record in table.of(dataset, method):
                name = dataset if by == "dataset" else str(record["variant"][by])
                groups.setdefault(name, {}).setdefault(method, []).append(record)
    return groups


def _matrix(table: Drawn, how: Drawing) -> Any | None:
    panels = [
        (f"{table.shown[method]}, {table.labels[dataset]}", *_matrix_of(records, how))
        for dataset in table.datasets
        for method in table.methods
        if (records := table.of(dataset, method))
    ]
    known = np.concatenate([values[np.isfinite(values)] for *_, values in panels])
    if not len(known):
        return None
    low, high = float(known.min()), float(known.max())  # one scale of colours for all panels
    digits = 3 if max(abs(low), abs(high)) <= 1 else 1
    figure, all_axes = _grid(len(panels))
    for axes, (title, xs, ys, values) in zip(all_axes, panels, strict=True):
        picture = axes.imshow(
            values, origin="lower", cmap="cividis", aspect="auto", vmin=low, vmax=high
        )
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                axes.text(
                    column,
                    row,
                    f"{value:.{digits}f}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if value - low < 0.5 * (high - low) else "black",
                )
        axes.set_xticks(range(len(xs)), map(words, xs))
        axes.set_yticks(range(len(ys)), map(words, ys))
        axes.set_xlabel(how.x if how.label_x is None else how.label_x)
        axes.set_ylabel(how.y if how.label_y is None else how.label_y)
        axes.set_title(title, fontsize=10)
    label = how.value if how.label_value is None else how.label_value
    figure.colorbar(picture, ax=all_axes, label=label, shrink=0.85)
    return figure


def _matrix_of(records: list[Record], how: Drawing) -> tuple[list[Any], list[Any], np.ndarray]:
    """The swept values, and the means of the measure: rows by ``y``, columns by ``x``."""
    xs, ys = (sorted({one["variant"][name] for one in records}) for name in (how.x, how.y))
    values = np.full((len(ys), len(xs)), np.nan)
    for (row, y), (column, x) in itertools.product(enumerate(ys), enumerate(xs)):
        group = [one for one in records if (one["variant"][how.x], one["variant"][how.y]) == (x, y)]
        found = over_seeds(group, how.value)
        if found is not None:
            values[row, column] = found[0]
    return xs, ys, values


# -- what they share --------------------------------------------------------------------------------------


def _panels(table: Drawn, how: Drawing) -> list[tuple[str, tuple[str, ...]]]:
    """Titles and data sets."""
    if how.panels == "dataset" or len(table.datasets) == 1:
        return [(table.labels[one], (one,)) for one in table.datasets]
    return [("", table.datasets)]


def _grid(n: int, width: float = 4.2, height: float = 3.2) -> tuple[Any, list[Any]]:
    """A figure with n axes, two to four in a row."""
    columns = min(n, 1 if width > 7 else 4 if width < 4 else 2 if n in (2, 4) else 3)
    rows = -(-n // columns)
    if n == 1:  # room for a legend beside few others
        width = max(width, _ALONE)
    figure = new_figure(columns * width + 0.4, rows * height + 0.9)
    # The labels of a panel keep clear of its neighbours.
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in axes[n:]:
        unused.set_visible(False)
    return figure, list(axes[:n])


def _label(axes: Any, how: Drawing) -> None:
    y = how.label_y if how.label_y is not None else how.y or how.curve or _common(how)
    y = y.removeprefix("min:")
    axes.set_xlabel(how.x if how.label_x is None else how.label_x)
    axes.set_ylabel(f"{y} ({how.unit_y})" if how.unit_y else y)
    if how.log_x:
        axes.set_xscale("log")
    if how.log_y:
        axes.set_yscale("log")
    tidy(axes, grid="y")


def _common(how: Drawing) -> str:
    """What the names of several curves have in common."""
    return next(iter((how.curves | how.ys).values()), "").partition(",")[0]


def finish_figure(figure: Any, all_axes: list[Any]) -> Any:
    """One legend for all panels, below them."""
    handles: dict[str, Any] = {}
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    longest = max(map(len, handles), default=0)
    columns = min(len(handles), max(1, int(15 * figure.get_figwidth() / (longest + 10))))
    n_rows = -(-len(handles) // columns)
    # The legend must not take its height from the panels.
    figure.set_figheight(figure.get_figheight() + _LEGEND_ROW * (n_rows - 1))
    legend = figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=8,
        handlelength=3,  # long enough to tell dashes from dots
    )
    for handle in legend.get_lines():
        handle.set_linewidth(_WIDTH)
        handle.set_color(handle.get_markerfacecolor())  # not faint
    return figure


def rank_figure(result: Any, methods: Sequence[str]) -> Any:
    """Average ranks on a line, with the critical difference of Nemenyi's test at 0.05.

    Methods whose ranks differ by less than the bar are not told apart by these data sets.
    """
    ranks = np.asarray(result.average_ranks)
    order = np.argsort(ranks, kind="stable")
    n = len(methods)
    gap = critical_difference(n, result.n_datasets)
    figure = new_figure(7.5, 0.9 + 0.24 * n)
    axes = figure.subplots()
    for height, place in enumerate(order[::-1]):
        style = style_of(methods[place], methods)
        axes.plot([1, ranks[place]], [height, height], color="#DDDDDD", linewidth=0.8, zorder=1)
        axes.plot(ranks[place], height, style.marker, color=style.colour, markersize=7, zorder=3)
        axes.annotate(
            f"{ranks[place]:.2f}",
            (ranks[place], height),
            (8, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    best = ranks[order[0]]
    axes.axvspan(best, best + gap, color="#56B4E9", alpha=0.18, linewidth=0)
    axes.annotate(
        f"critical difference {gap:.2f}: not clearly behind the first",
        (best, n - 0.4),
        fontsize=8,
        color="#33668A",
    )
    axes.set_yticks(range(n), [methods[place] for place in order[::-1]], fontsize=8)
    axes.set_xlabel(f"average rank over {result.n_datasets} data sets (1 is best)")
    axes.set_ylim(-0.6, n + 0.3)
    axes.locator_params(axis="x", integer=True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure
