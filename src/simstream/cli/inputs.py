"""The one reader of what commands are given: models, items with labels and tasks, triplets and pairs."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import scipy.sparse as sp
from sklearn.preprocessing import normalize

from .. import ModelFileError, load, read_header
from ..data import (
    FormatError,
    open_rows,
    read_ids,
    read_items,
    read_labels,
    read_pairs,
    read_relevance,
    read_tasks,
    read_triplets,
)
from ..data.blocks import RowBlocks, can_open_rows, open_parquet
from ..data.files import format_error, load_arrays
from ..data.item_formats import check_labels, check_task_names
from ..ids import repeated_ids
from ..validation import Items, check_feature_names
from .output import plural

#: The name of standard input among files.
STANDARD_INPUT = "-"

#: Arrays of an .npz file of items that hold their tasks.
_TASK_ARRAYS = ("tasks", "groups")

#: Key of the training record in a model's ``extra``.
_RECORD = "train"

#: What the state of each kind of input must hold.
_STATE_FIELDS: dict[str, dict[str, type]] = {
    "labels": {"items": str, "seed": int, "n_total": int, "n_drawn": int, "sampler": dict},
    "file": {"path": str, "position": int, "n_bad": int},
    "stream": {"path": str, "position": int, "n_bad": int},
    "whole": {"path": str, "n_read": int, "n_bad": int},
    "feedback": {"path": str, "position": int, "ends": list},
}


# -- models -------------------------------------------------------------------------------------


class TrainingRecord(NamedTuple):
    """What a model file records about its training by a command: scaling, and how far the input was read."""

    #: Whether rows are scaled to length one before they are used.
    unit_norm: bool = False
    #: State of the input (see `sources`), or None for a model that was not trained by a command.
    input: dict[str, Any] | None = None

    @classmethod
    def from_extra(cls, extra: dict[str, Any], path: object) -> TrainingRecord:
        """Read it back; models saved in Python have none. The path is for the error."""
        found = extra.get(_RECORD)
        if found is None:
            return cls()
        try:
            # The first models were all trained from triplets and did not say so.
            state = {"tuples": "triplets", **found["input"]}
            fields = _STATE_FIELDS[state["kind"]]
            if all(isinstance(state[key], kind) for key, kind in fields.items()):
                return cls(bool(found["unit_norm"]), state)
        except (KeyError, TypeError):
            pass
        raise ModelFileError(
            f"{path}: damaged training record; expected unit_norm and the state of an input, got {found!r}"
        )

    def as_extra(self) -> dict[str, Any]:
        """The dictionary to save with the model."""
        return {_RECORD: self._asdict()}

    def describe(self) -> str:
        """The position in the input, in words."""
        state = self.input
        if state is None:
            return "not trained by the command line"
        tuples = state["tuples"]
        if state["kind"] == "labels":
            drawn = (
                f"{state['n_drawn']:,} of {state['n_total']:,} {tuples} drawn from the labels of"
            )
            return f"{drawn} {state['labels'] or state['items']} (seed {state['seed']})"
        if "seed" in state:
            drawn = f"{state['n_read']:,} {tuples} drawn from the labels of"
            return f"{drawn} {state['path']} (seed {state['seed']})"
        if state["kind"] == "feedback":
            return f"{state['position']:,} {tuples} of {state['path']} learnt"
        bad = f", {state['n_bad']:,} of them bad" if state["n_bad"] else ""
        if state["kind"] == "whole":
            return f"all {state['n_read']:,} {tuples} of {state['path']}{bad}"
        return f"{plural(state['position'], 'record')} of {state['path']} read{bad}"


class OpenedModel(NamedTuple):
    """A model file's contents."""

    #: The estimator as it was saved: a learner, or `FromLabels` around one.
    saved: Any
    #: The learner itself.
    learner: Any
    header: dict[str, Any]
    #: How a command trained it, if one did.
    record: TrainingRecord


def open_model(path: Path) -> OpenedModel:
    """Load a model; whatever is wrong with the file is a `ModelFileError`, unless there is none."""
    try:
        header = read_header(path)
        saved = load(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        text = f"{path}: {error.strerror}" if error.strerror else str(error)
        raise ModelFileError(text) from error
    record = TrainingRecord.from_extra(header.get("extra", {}), path)
    return OpenedModel(saved, getattr(saved, "learner_", saved), header, record)


# -- items --------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """The rows of a file of items, and what is known about each."""

    path: Path
    items: Any
    labels: np.ndarray | None
    ids: list[Any] | None
    tasks: np.ndarray | None = None
    #: Names of the features, where the file has them.
    feature_names: list[str] | None = None

    @property
    def named(self) -> Any:
        """The items with the names of their features."""
        if self.feature_names is None:
            return self.items
        return Items.with_feature_names(self.items, self.feature_names)

    @property
    def n(self) -> int:
        """How many there are."""
        return self.items.shape[0]

    def take(self, rows: list[int], dtype: Any) -> Any:
        """Some of the items."""
        if not isinstance(self.items, RowBlocks):
            return self.items[rows]
        return self.items.take(np.array(rows), dtype)

    def label_list(self) -> list[Any]:
        """The labels, none if there are none."""
        return [] if self.labels is None else self.labels.tolist()

    def of_task(self, task: str) -> Rows:
        """The rows of one task."""
        assert self.tasks is not None
        chosen = np.flatnonzero(self.tasks == task)
        labels = None if self.labels is None else self.labels[chosen]
        ids = None if self.ids is None else [self.ids[row] for row in chosen]
        return Rows(self.path, self.items[chosen], labels, ids, self.tasks[chosen])


class Collection(NamedTuple):
    """Items, and the queries that look for them where these are other rows (None: items look for items)."""

    items: Rows
    queries: Rows | None = None

    @property
    def asking(self) -> Rows:
        """The rows that look for items."""
        return self.items if self.queries is None else self.queries

    @property
    def preprocessor(self) -> Any:
        """What a learner takes to resolve row numbers: one array, or a pair of them."""
        return self.items.items if self.queries is None else (self.queries.items, self.items.items)

    @property
    def named(self) -> Any:
        """The same with the names of the features."""
        return self.items.named if self.queries is None else (self.queries.named, self.items.named)

    def of_task(self, task: str) -> Collection:
        """Items and queries of one task."""
        queries = None if self.queries is None else self.queries.of_task(task)
        return Collection(self.items.of_task(task), queries)

    def with_ids(self, item_ids: Path | None, query_ids: Path | None) -> Collection:
        """The same with the ids of files, or those they have, which must be different."""
        queries = self.queries and with_ids(self.queries, query_ids)
        return Collection(with_ids(self.items, item_ids), queries)

    def names_in_records(self, by: str | None) -> dict[str, Any]:
        """How triplets and pairs name items, for their readers: by "ids" or "rows"; None is ids if any."""
        found: dict[str, Any] = {"n_items": self.sizes}
        sides = [self.items.ids] if self.queries is None else [self.queries.ids, self.items.ids]
        if by == "ids" and all(ids is None for ids in sides):
            raise click.UsageError(f"--by ids: {self.items.path} has no ids; expected --item-ids")
        if by != "rows" and any(ids is not None for ids in sides):
            found["ids"] = sides[0] if len(sides) == 1 else tuple(sides)
        return found

    @property
    def sizes(self) -> int | tuple[int, int]:
        """Bounds of row numbers, as readers of records take them."""
        return self.items.n if self.queries is None else (self.queries.n, self.items.n)


def read_rows(
    path: Path,
    *,
    unit_norm: bool = False,
    dtype: str | None = None,
    n_features: int | None = None,
    label_column: str | int | None = None,
    labels_file: Path | None = None,
    array: str | None = None,
    in_blocks: tuple[str, ...] = (),
) -> Rows:
    """Read items, scaled to rows of length one if asked for (rows of zeros stay), and their labels.

    Of an .npz file the array named is read, if it has one. `in_blocks` are the formats whose items stay in
    the file: they are a `RowBlocks`.
    """
    kind = path.suffix.lower().removeprefix(".")
    is_npy = kind == "npy"
    if kind in in_blocks and can_open_rows(path) and not (is_npy and label_column is not None):
        return _open_rows(path, unit_norm, n_features, label_column, labels_file)
    found = read_items(
        path, dtype=dtype, n_features=n_features, label_column=label_column, array=array
    )
    items = found.items
    if unit_norm:
        values = items.data if sp.issparse(items) else items
        items = normalize(items, copy=not values.flags.writeable)  # nobody else has them
    labels = found.labels
    if labels_file is not None:
        labels = check_labels(labels_file, read_labels(labels_file), items.shape[0])
    return Rows(path, items, labels, found.ids, feature_names=found.feature_names)


def _open_rows(
    path: Path,
    unit_norm: bool,
    n_features: int | None,
    label_column: str | int | None,
    labels_file: Path | None,
) -> Rows:
    labels, ids, items, names = None, None, None, None
    if path.suffix.lower() == ".parquet":
        items = opened = open_parquet(path, unit_norm=unit_norm, label_column=label_column)
        labels, ids = opened.labels_and_ids()
        names = opened.feature_names
    rows: RowBlocks = open_rows(path, unit_norm=unit_norm) if items is None else items
    if n_features is not None and rows.shape[1] != n_features:
        raise format_error(path, "wrong number of features", f"{n_features}", rows.shape[1])
    if labels_file is not None:
        labels = check_labels(labels_file, read_labels(labels_file), len(rows))
    return Rows(path, rows, labels, ids, feature_names=names)


def read_collection(
    items: Path,
    queries: Path | None = None,
    *,
    model: OpenedModel | None = None,
    unit_norm: bool = False,
    dtype: str | None = None,
    n_features: int | None = None,
    label_column: str | int | None = None,
    labels_file: Path | None = None,
    query_labels: Path | None = None,
    in_blocks: tuple[str, ...] = (),
) -> Collection:
    """Read items and queries, as the model wants them if there is one: dimension, precision, row length.

    Items of the formats `in_blocks` stay in the file; see `read_rows`.
    """
    widths: tuple[int | None, int | None] = (n_features, n_features)
    if model is not None:
        widths, dtype = model.learner.shape_, str(model.learner.dtype_)
        if n_features not in (None, widths[1]):
            raise click.UsageError(
                f"--n-features: expected {widths[1]}, as the model has, got {n_features}"
            )
        unit_norm = model.record.unit_norm
        if queries is None and widths[0] != widths[1]:
            raise click.UsageError(
                f"the model compares queries of {widths[0]} features with items of {widths[1]}: "
                "--queries is required"
            )
    read = partial(read_rows, unit_norm=unit_norm, dtype=dtype)
    rows = read(
        items,
        n_features=widths[1],
        label_column=label_column,
        labels_file=labels_file,
        in_blocks=in_blocks,
    )
    if queries is None:
        return _as_learnt(Collection(rows), model)
    if ".csv" not in [suffix.lower() for suffix in queries.suffixes]:
        label_column = None  # only a CSV file has columns
    asking = read(
        queries,
        n_features=widths[0],
        label_column=label_column,
        labels_file=query_labels,
        array="queries",
    )
    return _as_learnt(Collection(rows, asking), model)


def _as_learnt(data: Collection, model: OpenedModel | None) -> Collection:
    """The same rows, whose features must have the names that the model learnt from, if it knows them."""
    names = getattr(model and model.saved, "feature_names_in_", None)
    for rows in filter(None, data):
        try:
            check_feature_names(names, rows, str(rows.path))
        except ValueError as error:
            raise FormatError(str(error)) from error
    return data


def read_tasks_of(rows: Rows, tasks_file: Path | None) -> Rows:
    """The rows with their tasks, as texts: from a file of their own, else from an .npz file of items."""
    if tasks_file is not None:
        tasks = check_labels(tasks_file, read_tasks(tasks_file), rows.n, what="task")
        return rows._replace(tasks=tasks)
    if rows.path.suffix.lower() != ".npz":
        return rows
    arrays = load_arrays(rows.path)
    found = next((arrays[name] for name in _TASK_ARRAYS if name in arrays), None)
    if found is None:
        return rows
    checked = check_labels(rows.path, found, rows.n, what="task")
    return rows._replace(tasks=check_task_names(rows.path, checked))


# -- judgements ---------------------------------------------------------------------------------


def with_ids(rows: Rows, path: Path | None) -> Rows:
    """The rows with the ids of a file, if there is one; they must be different."""
    if path is None:
        ids, path = rows.ids, rows.path
    else:
        ids = read_ids(path)
        if len(ids) != rows.n:
            raise format_error(path, "ids and rows differ in number", f"{rows.n} ids", len(ids))
    if ids is not None and (repeated := repeated_ids(ids)):
        raise format_error(path, "an id twice", "different ids", repeated)
    return rows._replace(ids=ids)


def names_in_feedback(rows: Rows | None) -> int | list[str]:
    """What feedback calls rows: by ids, or by numbers below this one."""
    if rows is None:
        return 0
    return rows.n if rows.ids is None else rows.ids


def queries_beside(items: Path, queries: Path | None) -> Path | None:
    """The file of queries: that of the items, where it is an .npz file that holds both."""
    if queries is None and items.suffix.lower() == ".npz":
        return items if "queries" in load_arrays(items) else None
    return queries


def read_judgements(path: Path, queries: Rows, items: Rows) -> np.ndarray:
    """Query, item and grade of all judgements, at least one of which says relevant."""
    names = names_in_feedback(queries), names_in_feedback(items)
    found = read_relevance(path, queries=names[0], items=names[1])
    if not (found[:, 2] > 0).any():
        raise FormatError(f"{path}: no relevant item; expected a grade above 0, got none")
    return found


# -- triplets and pairs -------------------------------------------------------------------------


def read_records(path: Path, kind: str, **options: Any) -> tuple[tuple[Any, Any, Any], int]:
    """Read all "triplets" or "pairs" of a file, or of standard input if the path is ``-``.

    The options are those of `simstream.data.read_triplets` and `simstream.data.read_pairs`. Returns the
    tuples, their answers or labels and their tasks, None where there are none; and the number of bad records
    that were skipped.
    """
    read: Any = read_pairs if kind == "pairs" else read_triplets
    source = sys.stdin.buffer if str(path) == STANDARD_INPUT else path
    batches = list(read(source, **options))
    if not any(len(batch.tuples[0]) for batch in batches):
        raise no_records(path, kind)
    parts = zip(*(batch.tuples for batch in batches), strict=True)
    n_bad = sum(batch.n_skipped for batch in batches)
    tuples, y, tasks, *_ = (*(np.concatenate(arrays) for arrays in parts), None, None)
    return (tuples, y, tasks), n_bad


def no_records(path: Path, kind: str) -> FormatError:
    """The error for an input without a single good record."""
    return FormatError(f"{path}: no {kind}; expected at least one, got none")
