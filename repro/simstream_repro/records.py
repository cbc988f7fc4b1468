"""Records of finished cells: one JSON line each, written at once, found by fingerprint."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from simstream.data import atomic_write

from .cell import Cell

Record = dict[str, Any]

#: States of a cell that is not tried again.
FINAL = ("done", "over budget")


class RecordStore:
    """A folder with one file of JSON lines per study.

    A line cut off by a crash is skipped when reading; a later line for the same cell replaces an earlier one.

    Examples
    --------
    >>> import tempfile
    >>> from simstream_repro.cell import Cell
    >>> cell = Cell("study", "retrieval", "d", "d", "as-is", "OASIS", "OASIS", {}, {}, 0, {})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = RecordStore(folder)
    ...     store.append(cell, {"status": "done", "measures": {"mAP": 0.5}})
    ...     store.find(cell)["measures"]
    {'mAP': 0.5}
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        #: Lines that could not be read, in words.
        self.damaged: list[str] = []
        self._cache: dict[str, dict[str, Record]] = {}

    def _path(self, study: str) -> Path:
        return self.folder / f"{study}.jsonl"

    def _load(self, study: str) -> dict[str, Record]:
        if study not in self._cache:
            found: dict[str, Record] = {}
            path = self._path(study)
            text = path.read_text("utf-8", errors="replace") if path.exists() else ""
            for number, line in enumerate(text.splitlines(), 1):
                try:
                    one = json.loads(line)
                    found[one["fingerprint"]] = one
                except (ValueError, TypeError, KeyError):
                    self.damaged.append(f"{path}, line {number}: not a record, skipped")
            self._cache[study] = found
        return self._cache[study]

    def find(self, cell: Cell) -> Record | None:
        """The record of a cell, or None."""
        return self._load(cell.study).get(cell.fingerprint)

    def of_study(self, study: str) -> list[Record]:
        """All records of a study."""
        return list(self._load(study).values())

    def finished(self, cells: Iterable[Cell]) -> list[Record]:
        """Records of those cells that need not be tried again."""
        return [one for cell in cells if (one := self.find(cell)) and one["status"] in FINAL]

    def append(self, cell: Cell, result: Record) -> None:
        """Write the record of a cell, durably."""
        record = {"fingerprint": cell.fingerprint, **cell.__dict__, **result}
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(cell.study)
        needs_end = False
        if path.exists() and path.stat().st_size:
            with path.open("rb") as existing:
                existing.seek(-1, os.SEEK_END)
                needs_end = existing.read(1) != b"\n"  # a crash cut off the last line
        with path.open("a", encoding="utf-8") as file:
            file.write(("\n" if needs_end else "") + json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._load(cell.study)[cell.fingerprint] = record

    def compact(self, study: str, keep: Iterable[Cell]) -> None:
        """Rewrite a study's file with the finished records of these cells only, in their order."""
        records = self.finished(keep)
        with atomic_write(self._path(study)) as temporary:
            temporary.write_text("".join(json.dumps(one) + "\n" for one in records), "utf-8")
        self._cache[study] = {record["fingerprint"]: record for record in records}


def mean_curve(
    records: Iterable[Record], name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int] | None:
    """x, mean and standard deviation over the seeds of a curve, and their number; None without records.

    Only the values of x that all seeds have.

    Examples
    --------
    >>> runs = [{"curves": {"error": {"x": [1, 2], "y": [0.5, 0.25]}}},
    ...         {"curves": {"error": {"x": [1, 2], "y": [0.5, 0.75]}}}]
    >>> x, mean, std, n = mean_curve(runs, "error")
    >>> x.tolist(), mean.tolist(), std.tolist(), n
    ([1, 2], [0.5, 0.5], [0.0, 0.25], 2)
    """
    curves = [
        dict(zip(found["x"], found["y"], strict=True))
        for one in records
        if (found := one.get("curves", {}).get(name)) is not None
    ]
    if not curves:
        return None
    x = [value for value in curves[0] if all(value in other for other in curves)]
    y = np.array([[curve[value] for value in x] for curve in curves], dtype=float)
    return np.array(x), y.mean(axis=0), y.std(axis=0), len(curves)


def over_seeds(records: Iterable[Record], measure: str) -> tuple[float, float, int] | None:
    """Mean and standard deviation of a measure over the seeds, and their number; None without records.

    "min:NAME" is the smallest value of the mean over the seeds of the curve NAME, with the standard
    deviation there; "argmin:NAME" is where it is (the first of equals), with no deviation. Choosing the best
    x of the mean curve is not the same as choosing it for every seed.

    Examples
    --------
    >>> over_seeds([{"measures": {"mAP": 0.5}}, {"measures": {"mAP": 0.7}}], "mAP")
    (0.6, 0.0999..., 2)
    >>> runs = [{"curves": {"error": {"x": [1, 3], "y": [0.5, 0.25]}}},
    ...         {"curves": {"error": {"x": [1, 3], "y": [0.25, 0.25]}}}]
    >>> over_seeds(runs, "min:error"), over_seeds(runs, "argmin:error")
    ((0.25, 0.0, 2), (3.0, 0.0, 2))
    """
    kind, _, curve = measure.partition(":")
    if kind in ("min", "argmin"):
        found = mean_curve(records, curve)
        if found is None:
            return None
        x, mean, std, n = found
        best = int(np.argmin(mean))
        return (
            (float(mean[best]), float(std[best]), n) if kind == "min" else (float(x[best]), 0.0, n)
        )
    values = [
        one["measures"][measure]
        for one in records
        if one.get("measures", {}).get(measure) is not None
    ]
    if not values:
        return None
    return float(np.mean(values)), float(np.std(values)), len(values)
