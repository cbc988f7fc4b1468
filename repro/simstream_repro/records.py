"""Cells and their records.

A cell is one run of a study: a data set, a method, a seed, and a value of every swept quantity. The record of
a finished cell is one JSON line, written at once, found by the fingerprint of the cell.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from simstream.data import atomic_write

from .sources import SourceLog

#: In place of a seed: the cell chooses parameters on the data of seed 0 (of seed 1, 2 ..: -2, -3 ..).
TUNING = -1

#: Value of the setting "tuning" with which parameters are chosen anew for every seed, not once for all.
EVERY_RUN = "every run"


def data_seed(seed: int) -> int:
    """The seed whose data a cell with this number works on.

    Examples
    --------
    >>> data_seed(3), data_seed(TUNING), data_seed(TUNING - 3)
    (3, 0, 3)
    """
    return TUNING - seed if seed <= TUNING else seed


def n_seeds_of(records: Iterable[Record]) -> int:
    """For how many seeds these were run, be that fewer or more than planned; one without records.

    Examples
    --------
    >>> n_seeds_of([{"seed": 0}, {"seed": 4}, {"seed": TUNING}]), n_seeds_of([])
    (5, 1)
    """
    return max((data_seed(one["seed"]) for one in records), default=0) + 1


@dataclass(frozen=True)
class Cell:
    """One run, with everything that determines its result."""

    study: str
    protocol: str
    #: Name in the paper, and name for `simstream.datasets`.
    dataset: str
    data: str
    preprocessing: str
    #: Name in the paper, and class of simstream ("" where the protocol knows what to do).
    method: str
    learner: str
    parameters: dict[str, Any]
    #: Parameter -> values to choose from; empty if there is nothing to choose.
    grid: dict[str, list[Any]]
    seed: int
    #: As the paper's file has them: the protocol reads them into its own type.
    settings: dict[str, Any]
    #: Values of what is swept; they are part of the above too.
    variant: dict[str, Any] = field(default_factory=dict)

    @property
    def is_tuning(self) -> bool:
        """Whether the cell chooses parameters instead of measuring results."""
        return self.seed <= TUNING

    @property
    def data_seed(self) -> int:
        """The seed whose split and stream it works on."""
        return data_seed(self.seed)

    @property
    def name(self) -> str:
        """For people."""
        swept = "".join(f" {key}={value}" for key, value in self.variant.items())
        seed = ("tuning " if self.is_tuning else "") + f"seed {self.data_seed}"
        return f"{self.study} {self.dataset} {self.method}{swept} {seed}"

    @property
    def fingerprint(self) -> str:
        """The key of its record: it changes with anything in the plan that determines the result.

        It does not change with the code or the data: records keep versions and the stream's digest for that.

        Examples
        --------
        >>> cell = Cell("s", "retrieval", "d", "d", "as-is", "OASIS", "OASIS", {"C": 0.1}, {}, 0, {})
        >>> cell.fingerprint == replace(cell, seed=1).fingerprint
        False
        """
        text = json.dumps(self.__dict__, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def tuning(self) -> Cell:
        """The cell that chooses the parameters of this one.

        All seeds share it, unless the setting "tuning" is "every run".

        Examples
        --------
        >>> cell = Cell("s", "pair_metric", "d", "d", "as-is", "PAI+", "PAMetric", {}, {"C": [1]}, 3, {})
        >>> cell.tuning().data_seed, replace(cell, settings={"tuning": "every run"}).tuning().data_seed
        (0, 3)
        """
        own = self.settings.get("tuning") == EVERY_RUN
        return replace(self, seed=TUNING - self.data_seed if own else TUNING)

    def steps(self) -> list[Cell]:
        """What has to be run: first the cell that chooses its parameters, if there is anything to choose."""
        return [self.tuning(), self] if self.grid else [self]

    def with_parameters(self, chosen: dict[str, Any]) -> Cell:
        """The same cell with parameters that were chosen."""
        return replace(self, parameters=self.parameters | chosen, grid={})


def with_tuning(cells: Iterable[Cell]) -> dict[str, Cell]:
    """Cells by fingerprint, together with those that choose their parameters: all that are run and counted.

    Examples
    --------
    >>> cell = Cell("s", "retrieval", "d", "d", "as-is", "OASIS", "OASIS", {}, {"C": [1]}, 0, {})
    >>> [one.seed for one in with_tuning([cell, replace(cell, seed=1)]).values()]
    [-1, 0, 1]
    """
    return {one.fingerprint: one for cell in cells for one in cell.steps()}


Record = dict[str, Any]

#: States of a cell that is not tried again.
FINAL = ("done", "over budget")


def is_number(value: Any) -> bool:
    """Whether a value from JSON or TOML is a number; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def flaw_of_measures(measures: Any) -> str | None:
    """Why these cannot be the results of a cell that is done, in words; None if they can.

    Cells that choose parameters have none.

    Examples
    --------
    >>> flaw_of_measures({"mAP": float("nan")})
    'measures: mAP: expected a finite number, got nan'
    >>> flaw_of_measures({}), flaw_of_measures({"mAP": 0.5, "updates": 3})
    (None, None)
    """
    if not isinstance(measures, Mapping):
        return f"measures: expected numbers by name, got {measures!r}"
    for name, value in measures.items():
        if not is_number(value) or not math.isfinite(value):
            return f"measures: {name}: expected a finite number, got {value!r}"
    return None


#: Texts without which no page could tell what a record is of.
_TEXTS = ("fingerprint", "status", "study", "protocol", "dataset", "method")


def _read_record(line: str) -> Record:
    """A record from its line; a ValueError says why it is none."""
    try:
        record: Record = json.loads(line)
        is_record = (
            all(isinstance(record[name], str) for name in _TEXTS)
            and isinstance(record["seed"], int)
            and isinstance(record["variant"], dict)
            and all(isinstance(record.get(name, {}), dict) for name in ("curves", "versions"))
        )
    except (ValueError, TypeError, KeyError):
        is_record = False
    if not is_record:
        raise ValueError("not a record")
    if record["status"] == "done" and (flaw := flaw_of_measures(record.get("measures"))):
        raise ValueError(flaw)
    return record


class RecordStore:
    """A folder with one file of JSON lines per study.

    A line cut off by a crash is skipped when reading, and so is one whose results are no numbers. A later
    line for the same cell replaces an earlier one.

    Examples
    --------
    >>> import tempfile
    >>> cell = Cell("study", "retrieval", "d", "d", "as-is", "OASIS", "OASIS", {}, {}, 0, {})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = RecordStore(folder)
    ...     store.append(cell, {"status": "done", "measures": {"mAP": 0.5}})
    ...     store.find(cell)["measures"]
    {'mAP': 0.5}
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.sources = SourceLog(folder)
        #: Lines that are no records, in words.
        self.damaged: list[str] = []
        self._cache: dict[str, dict[str, Record]] = {}

    def _path(self, study: str) -> Path:
        return self.folder / f"{study}.jsonl"

    def _lines(self, study: str) -> list[str]:
        path = self._path(study)
        return path.read_text("utf-8", errors="replace").splitlines() if path.exists() else []

    def _load(self, study: str) -> dict[str, Record]:
        if study not in self._cache:
            found: dict[str, Record] = {}
            for number, line in enumerate(self._lines(study), 1):
                try:
                    one = _read_record(line)
                except ValueError as error:
                    self.damaged.append(f"{self._path(study)}, line {number}: {error}, skipped")
                else:
                    found[one["fingerprint"]] = one
            self._cache[study] = found
        return self._cache[study]

    def find(self, cell: Cell) -> Record | None:
        """The record of a cell, or None."""
        return self._load(cell.study).get(cell.fingerprint)

    def of_study(self, study: str) -> list[Record]:
        """All records of a study."""
        return list(self._load(study).values())

    def n_lines(self, study: str) -> int:
        """Lines of a study's file: its records, earlier ones of the same cells, and what is damaged."""
        return len(self._lines(study))

    def finished(self, cells: Iterable[Cell]) -> list[Record]:
        """Records of those cells that need not be tried again."""
        return [one for cell in cells if (one := self.find(cell)) and one["status"] in FINAL]

    def is_stale(self, record: Record) -> bool:
        """Whether a record comes from other code than there is now, or does not say from which."""
        return not self.sources.is_current(_source(record))

    def append(self, cell: Cell, result: Record) -> None:
        """Write the record of a cell, durably; one that replaces another says how much has changed."""
        record = {"fingerprint": cell.fingerprint, **cell.__dict__, **result}
        if found := comparison(self.find(cell), record):
            record["repeats"] = found
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


#: Results with one of these words in their names depend on the machine and on what else it does.
_OF_THE_MACHINE = ("seconds", "MB", "speed-up")

#: Results that differ relatively by less came out as before: sums are taken in other orders on other CPUs.
_ROUNDING = 1e-6


def comparison(before: Record | None, after: Record) -> Record | None:
    """Whether a cell that is run again by other code comes out as before; None if that cannot be told.

    "same" is whether the same parameters were chosen and all results agree to six digits, "change" the
    largest relative difference between two results, None where they are not of the same things, and
    "differing" the names of the results that do not agree.

    Examples
    --------
    >>> first = {"status": "done", "parameters": {"C": 1}, "measures": {"mAP": 0.5, "seconds": 1.0}}
    >>> second = first | {"versions": {"source": "new"}, "measures": {"mAP": 0.25, "seconds": 9.0}}
    >>> comparison(first, second)
    {'source': None, 'same': False, 'change': 0.5, 'differing': ['mAP']}
    >>> comparison(first, first) is None  # the same code
    True
    """
    if before is None or before["status"] != "done" or _source(before) == _source(after):
        return None
    old, new = _results(before), _results(after)
    found: Record = {"source": _source(before), "same": False, "change": None}
    if after["status"] != "done" or before.get("parameters") != after.get("parameters"):
        return found
    if not old and not new and not before.get("grid"):
        return None  # nothing but times
    if [len(old[name]) for name in old] == [len(new.get(name, ())) for name in old]:
        changes = {name: _change(old[name], new[name]) for name in old}
        largest = float(np.max(list(changes.values()), initial=0.0))  # NaN stays
        found |= {"same": largest < _ROUNDING, "change": largest if np.isfinite(largest) else None}
        if differing := [name for name, change in changes.items() if not change < _ROUNDING]:
            found["differing"] = differing
    return found


def _change(before: list[float | None], after: list[float | None]) -> float:
    """The largest relative difference between two lists of numbers."""
    first, second = np.array(before, dtype=float), np.array(after, dtype=float)
    size = np.maximum(np.abs(first), np.abs(second))
    differs = (first != second) & ~(np.isnan(first) & np.isnan(second))
    change = np.where(differs, np.abs(first - second) / np.where(size > 0, size, 1.0), 0.0)
    return float(np.max(change, initial=0.0))


def _source(record: Record) -> str | None:
    return record.get("versions", {}).get("source")


def _results(record: Record) -> dict[str, list[float | None]]:
    """The numbers of a record that depend on nothing but code and data, by name."""
    curves = {f"curve {name}": one["y"] for name, one in record.get("curves", {}).items()}
    results = {name: [value] for name, value in record.get("measures", {}).items()} | curves
    return {
        name: values
        for name, values in results.items()
        if not any(word in name for word in _OF_THE_MACHINE)
    }


def repeated(records: Iterable[Record]) -> tuple[int, int]:
    """How many records have replaced those of other code, and how many of these came out as before.

    Examples
    --------
    >>> repeated([{}, {"repeats": {"same": True}}, {"repeats": {"same": False}}])
    (2, 1)
    """
    same = [one["repeats"]["same"] for one in records if "repeats" in one]
    return len(same), sum(same)


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
