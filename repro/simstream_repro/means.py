"""Means over data sets of methods that several studies ran, beside a baseline: exhibits of kind "means".

A row has the data sets on which the baseline and the method in all studies that ran it have a number, so
that the columns of a row compare; rows of slow methods have fewer data sets.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .plan import Exhibit, TableMeasure
from .records import over_seeds
from .verdicts import PaperRecords

#: Differences below this are rounding.
_ROUNDING = 1e-9


class MethodMeans(NamedTuple):
    """One row: a method and its means."""

    method: str
    family: str
    n_datasets: int
    baseline: float
    #: For each study that ran it: the mean, and on how many data sets it is at least as good as the baseline.
    columns: tuple[tuple[float, int] | None, ...]


def means_beside(given: PaperRecords, exhibit: Exhibit, measure: TableMeasure) -> list[MethodMeans]:
    """The rows for one measure, family by family; methods without a data set in common are left out."""
    sign = -1.0 if measure.better == "lower" else 1.0
    tables = [_numbers(given, study, measure) for study in exhibit.beside.values()]
    of_baseline = tables[0].get(exhibit.baseline, {})
    rows = []
    for family, methods in exhibit.families.items():
        for method in methods:
            columns = [table.get(method, {}) for table in tables]
            used = set(of_baseline).intersection(*(one for one in columns if one))
            names = [name for name in of_baseline if name in used]
            if not names or not any(columns):
                continue
            baseline = np.array([of_baseline[name] for name in names])
            found: list[tuple[float, int] | None] = []
            for one in columns:
                values = np.array([one[name] for name in names]) if one else None
                found.append(
                    None
                    if values is None
                    else (
                        float(values.mean()),
                        int((sign * (values - baseline) >= -_ROUNDING).sum()),
                    )
                )
            rows.append(
                MethodMeans(method, family, len(names), float(baseline.mean()), tuple(found))
            )
    return rows


def _numbers(given: PaperRecords, study: str, measure: TableMeasure) -> dict[str, dict[str, float]]:
    """Method -> data set -> number; within the budget for some seeds only is over it, as in tables."""
    found: dict[str, dict[str, float]] = {}
    for (dataset, method), records in given.table(given.paper.studies[study]).items():
        if any(one["status"] == "over budget" for one in records):
            continue
        value = over_seeds(records, measure.ours)
        if value is not None and np.isfinite(value[0]):
            found.setdefault(method, {})[dataset] = value[0] * measure.scale
    return found


def means_tables(given: PaperRecords, exhibit: Exhibit) -> list[dict[str, Any]]:
    """For each measure, the methods, and of each family how many are at least as good as the baseline."""
    tables = []
    for measure in exhibit.measures:
        rows = means_beside(given, exhibit, measure)
        if not rows:
            continue
        heads = list(exhibit.beside)
        tables.append(
            {
                "label": f"Mean {measure.label}; in brackets, on how many of the data sets it is at "
                f"least as good as that of {exhibit.baseline}",
                "methods": ["family", "data sets", exhibit.baseline, *heads],
                "rows": [_row(one, measure) for one in rows],
            }
        )
        tables.append(
            {
                "label": f"Learners whose mean {measure.label} is at least as good as that of "
                f"{exhibit.baseline}",
                "methods": heads,
                "rows": _family_rows(rows, measure),
            }
        )
        if exhibit.methods:
            tables.append(_by_dataset(given, exhibit, measure))
    return [{"compared": False, "is_time": False} | one for one in tables]


def _row(one: MethodMeans, measure: TableMeasure) -> dict[str, Any]:
    best = (min if measure.better == "lower" else max)(
        [one.baseline, *(found[0] for found in one.columns if found is not None)]
    )
    cells = [_text(one.family), _text(str(one.n_datasets))]
    cells.append(_text(f"{one.baseline:.{measure.digits}f}", best=one.baseline == best))
    for found in one.columns:
        shown = "" if found is None else f"{found[0]:.{measure.digits}f} ({found[1]})"
        cells.append(_text(shown, best=found is not None and found[0] == best))
    return {"name": one.method, "cells": cells}


def _family_rows(rows: list[MethodMeans], measure: TableMeasure) -> list[dict[str, Any]]:
    sign = -1.0 if measure.better == "lower" else 1.0
    found = []
    for family in dict.fromkeys(one.family for one in rows):
        mine = [one for one in rows if one.family == family]
        cells = []
        for place in range(len(mine[0].columns)):
            known = [
                (column[0], one.baseline)
                for one in mine
                if (column := one.columns[place]) is not None
            ]
            n_good = sum(sign * (value - baseline) >= -_ROUNDING for value, baseline in known)
            cells.append(_text(f"{n_good} of {len(known)}" if known else ""))
        found.append({"name": family, "cells": cells})
    return found


def _by_dataset(given: PaperRecords, exhibit: Exhibit, measure: TableMeasure) -> dict[str, Any]:
    """The numbers behind the means of some methods: data sets as rows."""
    numbers = {head: _numbers(given, study, measure) for head, study in exhibit.beside.items()}
    first = next(iter(numbers.values()))
    datasets = given.paper.studies[next(iter(exhibit.beside.values()))].datasets
    columns = {exhibit.baseline: first.get(exhibit.baseline, {})}
    for method in exhibit.methods:
        for head, table in numbers.items():
            if method in table:
                columns[f"{method}, {head}"] = table[method]
    rows = []
    for name in datasets:
        values = [column.get(name) for column in columns.values()]
        known = [one for one in values[1:] if one is not None]
        if known and values[0] is not None:
            best = (min if measure.better == "lower" else max)([values[0], *known])
            cells = [
                _text("" if one is None else f"{one:.{measure.digits}f}", best=one == best)
                for one in values
            ]
            rows.append({"name": given.paper.datasets[name].label, "cells": cells})
    return {"label": f"{measure.label} by data set", "methods": list(columns), "rows": rows}


def _text(shown: str, *, best: bool = False) -> dict[str, Any]:
    """A cell of a table without published numbers."""
    return {
        "ours": shown,
        "theirs": "",
        "verdict": "",
        "mark": "",
        "best": best,
        "speed_up": "",
    }
