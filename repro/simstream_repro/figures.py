"""Pictures of the records of a study, as the ``draw`` table of an exhibit (`plan.Drawing`) says.

Lines are means over the seeds with bands of one standard deviation (none on logarithmic axes).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from simstream.metrics import critical_difference
from simstream.plots import new_figure, tidy

from .plan import Drawing, Exhibit, published
from .records import Record, mean_curve, over_seeds
from .verdicts import PaperRecords, RecordTable

#: Colours of Okabe and Ito; a family of methods shares one, its members differ in line and marker.
_FAMILIES = {
    "Euclidean": "#999999",
    "Dot": "#555555",
    "Cosine": "#555555",
    "OASIS": "#0072B2",
    "OSTRSL": "#CC79A7",
    "OGD": "#56B4E9",
    "OGRSL": "#56B4E9",
    "SORS": "#009E73",
    "AdaSORS": "#E69F00",
    "AROMA": "#CC79A7",
    "SDCA": "#D55E00",
    "OMTRSL": "#D55E00",
    "Active": "#009E73",
    "Random": "#E69F00",
    "OSLLR-GS": "#D55E00",
    "OMLLR": "#009E73",
    "Loreta": "#E69F00",
    "mRMR": "#56B4E9",
    "random": "#999999",
    "all features": "#000000",
    "CSFS": "#B59B00",
    "PAII": "#009E73",
    "PALS": "#E69F00",
    "PAI": "#0072B2",
    "PA-II": "#009E73",
    "PA-I": "#0072B2",
    "PA": "#000000",
    "POLA": "#000000",
    "RDML": "#56B4E9",
    "LEGO": "#66A61E",
    "OnlineITML": "#8C6D1F",
    "ITML": "#B59B00",
    "LMNN": "#000000",
    "mtLMNN": "#000000",
    "MCML": "#8C564B",
    "RCA": "#7B3F9E",
    "IROS": "#7B3F9E",
    "1-NN": "#999999",
    "5-NN": "#555555",
}
#: Colours of methods without a family, in the order in which they are listed.
_OTHERS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", ":", "-.")
#: Lines of the members of a family by the end of their names, in every figure: PAI+ and PAI-, SORS-I and -II.
_LINE_OF = {
    "": "-",
    "+": "-",
    "-I": "-",
    "-": "--",
    "-II": "--",
    ", average X": "-",
    ", last X": ":",
    ", gradient as printed": "--",
    ", average W": "-",
    ", last W": "--",
    ", W-bar": "-",
    " (iter)": "--",
    ", neither bound nor penalty, last X": "-.",
    ", m 617": "-",
    ", m 126": "--",
}
#: Lines of methods that lie on those of another family for a part of a figure.
_OWN_LINE = {"PALS": "--", "PA-I": "--"}
_MARKERS = "osD^vPX*<>"
#: Width of a line, and the longest line whose points all have a mark.
_WIDTH = 1.6
_FEW_MARKS = 12
#: Most characters of upright labels below the bars of a panel; longer ones are slanted.
_FITS_UPRIGHT = 36
#: Inches: the widest figure that a page shows without scaling, and the height of a row of the legend.
_WIDEST = 11.0
_LEGEND_ROW = 0.17
#: Share of a logarithmic axis that one tick label needs.
_NAMED_APART = 0.08
#: Most points on a logarithmic axis that all get a tick label.
_FEW_PLACES = 8
#: Lines that differ by less than this share of the height of a panel cover each other.
_COVERED = 0.01
#: Words in the names of measures between 0 and 1, whose bands end there.
_SHARES = ("mAP", "P@", "sparsity", "error", "accuracy", "rate", "ratio", "predictive loss")


class Style(NamedTuple):
    """How a method looks in every figure."""

    colour: str
    line: str
    marker: str


def style_of(method: str, present: Sequence[str] = ()) -> Style:
    """Colour and marker by family; line by the end of the name, or by the place among those present.

    A method without a family has a colour and marker by its place among those.

    Examples
    --------
    >>> style_of("SORS-I").colour == style_of("SORS-II").colour != style_of("AdaSORS-I").colour
    True
    >>> both = ("SORS-I", "SORS-II")
    >>> style_of("SORS-I", both).line == style_of("SORS-II", both).line
    False
    >>> others = ("this", "that")
    >>> style_of("this", others).colour == style_of("that", others).colour
    False
    """
    family = _family(method)
    members = sorted({name for name in (*present, method) if _family(name) == family})
    fixed = {
        name: line
        for name in members
        if (line := _OWN_LINE.get(name) or _LINE_OF.get(name.removeprefix(family)))
    }
    free = [line for line in _LINES if line not in fixed.values()] or list(_LINES)
    others = [name for name in members if name not in fixed]
    line = fixed[method] if method in fixed else free[others.index(method) % len(free)]
    if family in _FAMILIES:
        number = list(_FAMILIES).index(family)
        return Style(_FAMILIES[family], line, _MARKERS[number % len(_MARKERS)])
    strangers = [name for name in (*present, method) if _family(name) not in _FAMILIES]
    number = strangers.index(method)
    return Style(_OTHERS[number % len(_OTHERS)], line, _MARKERS[number % len(_MARKERS)])


def _family(method: str) -> str:
    """The longest family name that the method's name begins with."""
    fitting = [name for name in _FAMILIES if method.startswith(name)]
    return max(fitting, key=len, default=method)


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
        {name: paper.shown(name) for name in methods},
        exhibit.printed_as,
        frozenset(name for name, data in paper.datasets.items() if data.standing == "exact"),
    )
    return {"lines": _lines, "bars": _bars, "matrix": _matrix}[how.form](table, how)


# -- forms ------------------------------------------------------------------------------------------------


def _lines(table: Drawn, how: Drawing) -> Any | None:
    panels = _panels(table, how)
    figure, all_axes = _grid(len(panels))
    drawn: set[str] = set()
    for axes, (title, datasets) in zip(all_axes, panels, strict=True):
        lines = [
            (method, *one)
            for dataset in datasets
            for method in table.methods
            for one in _series(table.of(dataset, method), how)
        ]
        heights = (np.log(np.maximum(y, 1e-12)) if how.log_y else y for _, _, _, y, _ in lines)
        widths = _widths([(line[2], y) for line, y in zip(lines, heights, strict=True)])
        for number, (method, name, x, y, spread) in enumerate(lines):
            shown = table.shown[method]
            label = shown if name is None else f"{shown}, {name}"
            several = [*how.curves, *how.ys]
            if name in several:
                style = style_of(method)._replace(line=_LINES[several.index(name)])
            else:
                style = style_of(method if name is None else f"{method}, {name}", table.methods)
            is_flat = len(x) > 1 and not np.ptp(y)  # nothing to mark
            axes.plot(
                x,
                y,
                style.line,
                color=style.colour,
                marker=None if is_flat else style.marker,
                # Few marks, at other places for every line, so that none hides those of another.
                markevery=None if len(x) <= _FEW_MARKS else (number % 5, -(-len(x) // 8)),
                markersize=4,
                linewidth=widths[number],
                alpha=1.0 if widths[number] <= _WIDTH else 0.45,
                label=label,
            )
            if (
                widths[number] > _WIDTH and len(x) <= _FEW_MARKS and not is_flat
            ):  # rings around the marks above it
                size = 3 * widths[number]
                ring = {"markerfacecolor": "none", "markeredgecolor": style.colour}
                axes.plot(x, y, style.marker, markersize=size, label="_ring", **ring)
            # On a logarithmic axis the band would have no end where mean - deviation is below zero.
            if spread is not None and np.any(spread) and not how.log_y:
                low, high = y - spread, y + spread
                if _is_share(how):
                    low, high = np.maximum(low, 0.0), np.minimum(high, 1.0)
                axes.fill_between(x, low, high, color=style.colour, alpha=0.15, linewidth=0)
            drawn.add(label)
        _draw_printed(axes, table, datasets, how, {line[0] for line in lines})
        _draw_references(axes, table, datasets, how)
        axes.set_title(title, fontsize=10)
        _label(axes, how)
        _name_few_places(axes, how)
    return finish_figure(figure, all_axes) if drawn else None


def _widths(lines: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[float]:
    """Widths with which every line can be seen: one that others cover is drawn wide below them.

    Examples
    --------
    >>> x, y = np.arange(3), np.array([0.0, 1.0, 2.0])
    >>> _widths([(x, y), (x, y + 0.001), (x, y[::-1])])
    [3.6, 1.6, 1.6]
    """
    heights = [y for _, y in lines if len(y)]
    height = max((np.max(y) for y in heights), default=1.0) - min(
        (np.min(y) for y in heights), default=0.0
    )
    widths = []
    for number, (x, y) in enumerate(lines):
        n_above = sum(
            len(x) > 1
            and np.array_equal(x, other_x)
            and float(np.max(np.abs(y - other_y))) <= _COVERED * height
            for other_x, other_y in lines[number + 1 :]
        )
        widths.append(_WIDTH + 2 * min(int(n_above), 3))
    return widths


def _is_share(how: Drawing) -> bool:
    """Whether what is drawn lies between 0 and 1."""
    names = (how.curve, how.y, how.measures)
    return any(word in name for word in _SHARES for name in names)


def _draw_printed(
    axes: Any, table: Drawn, datasets: tuple[str, ...], how: Drawing, drawn: set[str]
) -> None:
    """Stars at the printed numbers of methods that have a line."""
    if how.printed is None:
        return
    numbers = published(how.printed.file)
    datasets = tuple(one for one in datasets if one in table.exact or how.printed.everywhere)
    if not datasets:
        return
    for dataset in datasets:
        for method in (one for one in table.methods if one in drawn):
            key = (dataset, table.printed_as.get(method, method), how.printed.measure)
            try:
                value = float(numbers[key][0]) * how.printed.scale
            except (KeyError, ValueError):
                continue
            style = style_of(method, table.methods)
            axes.plot(
                how.printed.x,
                value,
                "*",
                color=style.colour,
                markeredgecolor="black",
                markeredgewidth=0.5,
                markersize=9,
                zorder=5,
                clip_on=False,
                label="_printed",
            )
    axes.plot([], [], "*", color="white", markeredgecolor="black", label="printed in the paper")


def _name_few_places(axes: Any, how: Drawing) -> None:
    """On a logarithmic axis, label the points themselves if they are few; otherwise use plain numbers."""
    places = sorted({float(x) for line in axes.lines for x in line.get_xdata() if x > 0})
    gaps = np.diff(np.log10(places)) if len(places) > 1 else np.zeros(0)
    if how.log_x and 1 < len(places) <= _FEW_PLACES and gaps.min() > _NAMED_APART * gaps.sum():
        axes.set_xticks(places, [f"{x:g}" for x in places])
        axes.minorticks_off()
    elif how.log_x and places and places[0] >= 1:  # only powers of ten, written out
        axes.xaxis.set_major_formatter("{x:,.0f}")
    elif not how.log_x:
        axes.locator_params(axis="x", nbins=6)  # more would overlap


def _draw_references(axes: Any, table: Drawn, datasets: tuple[str, ...], how: Drawing) -> None:
    """Thin horizontal lines at the values of other methods."""
    for dataset in datasets:
        for method in how.references.methods if how.references is not None else ():
            value = over_seeds(table.references.get((dataset, method), []), how.y)
            if value is not None:
                style = style_of(method)
                label = f"{method} (all answers)"
                axes.axhline(value[0], color=style.colour, linewidth=1, linestyle=":", label=label)


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
        x = (group[0]["variant"][along],) if along == how.x else over_seeds(group, how.x)
        if x is not None and y is not None:
            points.append((group[0]["variant"][along], x[0], y[0], y[1]))
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
    panels = [(title, _groups(table, datasets, how.x)) for title, datasets in _panels(table, how)]
    most = max(len(groups) for _, groups in panels)
    figure_width = min(_WIDEST, max(4.2, 0.28 * most * len(methods)))
    figure, all_axes = _grid(len(panels), width=figure_width)
    width = 0.85 / len(methods)
    for axes, (title, groups) in zip(all_axes, panels, strict=True):
        for place, method in enumerate(methods):
            x, y, spread = [], [], []
            for at, group in enumerate(groups.values()):
                value = over_seeds(group.get(method, []), how.y)
                if value is not None:
                    x.append(at + (place - (len(methods) - 1) / 2) * width)
                    y.append(value[0])
                    spread.append(value[1])
            style = style_of(method, methods)
            hatch = {"-": "", "--": "///", ":": "...", "-.": "xxx"}[style.line]
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
        names = [str(table.labels.get(group, group)) for group in groups]
        is_tight = most > 3 or sum(map(len, names)) > _FITS_UPRIGHT
        axes.set_xticks(
            range(len(groups)),
            names,
            rotation=30 if is_tight else 0,
            ha="right" if is_tight else "center",
        )
        axes.set_title(title, fontsize=10)
        _label(axes, msgspec.structs.replace(how, label_x="") if how.x == "dataset" else how)
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
        (f"{table.shown[method]}, {table.labels[dataset]}", dataset, method)
        for dataset in table.datasets
        for method in table.methods
    ]
    figure, all_axes = _grid(len(panels))
    for axes, (title, dataset, method) in zip(all_axes, panels, strict=True):
        records = table.of(dataset, method)
        xs, ys = (
            sorted({record["variant"][name] for record in records}) for name in (how.x, how.y)
        )
        values = np.full((len(ys), len(xs)), np.nan)
        for (row, y), (column, x) in ((r, c) for r in enumerate(ys) for c in enumerate(xs)):
            group = [
                record
                for record in records
                if record["variant"][how.x] == x and record["variant"][how.y] == y
            ]
            found = over_seeds(group, how.value)
            if found is not None:
                values[row, column] = found[0]
        picture = axes.imshow(values, origin="lower", cmap="cividis", aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                low, high = np.nanmin(values), np.nanmax(values)
                light = high > low and (value - low) / (high - low) < 0.5
                axes.text(
                    column,
                    row,
                    f"{value:.3g}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if light else "black",
                )
        axes.set_xticks(range(len(xs)), [f"{x:g}" if isinstance(x, float) else str(x) for x in xs])
        axes.set_yticks(range(len(ys)), [f"{y:g}" if isinstance(y, float) else str(y) for y in ys])
        axes.set_xlabel(how.x if how.label_x is None else how.label_x)
        axes.set_ylabel(how.y if how.label_y is None else how.label_y)
        axes.set_title(title, fontsize=10)
        figure.colorbar(picture, ax=axes, label=how.value, shrink=0.85)
    return figure


# -- what they share --------------------------------------------------------------------------------------


def _panels(table: Drawn, how: Drawing) -> list[tuple[str, tuple[str, ...]]]:
    """Titles and data sets."""
    if how.panels == "dataset" or len(table.datasets) == 1:
        return [(table.labels[one], (one,)) for one in table.datasets]
    return [("", table.datasets)]


def _grid(n: int, width: float = 4.2) -> tuple[Any, list[Any]]:
    """A figure with n axes, two or three in a row."""
    columns = min(n, 1 if width > 7 else 2 if n in (2, 4) else 3)
    rows = -(-n // columns)
    figure = new_figure(columns * width + 0.4, rows * 3.2 + 0.9)
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
    columns = min(len(handles), max(1, int(13 * figure.get_figwidth() / (longest + 7))))
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
        handle.set_alpha(1.0)
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
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure
