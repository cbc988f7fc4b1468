"""What ``simstream train`` learns from: items, labels, tasks, and the source of tuples."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from ..catalogue import Algorithm
from ..data import Batch, FormatError, PairBatch, read_pairs, read_triplets
from ..data.samplers import TripletSampler
from . import algorithms
from .checkpoint import TrainingRecord
from .inputs import OpenedModel, column_for, labels_of, read_rows
from .interruption import Interruption
from .output import as_count, logger
from .sources import (
    DEFAULT_N_TUPLES,
    LabelSource,
    RecordSource,
    Source,
    content_identity,
    earlier_state,
    file_identity,
)
from .streams import StoppableInput
from .tasks import knows_tasks, tasks_of_items, tell_left_out, untasked
from .train_options import STANDARD_INPUT, TrainOptions


class Rows(NamedTuple):
    """The items behind row numbers."""

    left: Any
    right: Any
    labels: np.ndarray | None
    #: Names of tasks, for learners that know tasks.
    tasks: np.ndarray | None

    @property
    def is_one_space(self) -> bool:
        """Whether equal row numbers mean the same item."""
        return self.left is self.right

    def for_learner(self) -> Any:
        """The learner's `preprocessor`: one array, or a pair where anchors are other items."""
        return self.right if self.is_one_space else (self.left, self.right)


def read_items_for(
    options: TrainOptions, algorithm: Algorithm, model: OpenedModel | None, unit_norm: bool
) -> Rows:
    """Read items, and the labels and tasks that tuples are drawn from."""
    dtype = options.dtype if model is None else model.dtype
    width = (None, None) if model is None else model.shape
    found = read_rows(
        options.items,
        unit_norm=unit_norm,
        dtype=dtype,
        n_features=width[1],
        label_column=options.label_column,
    )
    if options.queries is None:
        if width[0] != width[1]:
            raise click.UsageError(f"--resume: expected --queries of {width[0]} features, got none")
        labels = labels_of(options.items, found, options.labels_file)
        tasks = None
        if options.records is None and knows_tasks(algorithm.cls()):
            tasks = tasks_of_items(options.items, found.items.shape[0], options.tasks_file)
        return Rows(found.items, found.items, labels, tasks)
    queries = read_rows(
        options.queries,
        unit_norm=unit_norm,
        dtype=dtype,
        n_features=width[0],
        label_column=column_for(options.queries, options.label_column),
    )
    return Rows(queries.items, found.items, None, None)


def read_whole(
    options: TrainOptions, algorithm: Algorithm, rows: Rows
) -> tuple[tuple[np.ndarray, ...], int]:
    """All labels, triplets or pairs, and the number of bad records among them."""
    if options.records is None:
        labels = _labels(options, rows)
        if not algorithm.takes_a_set:
            return ((labels,) if rows.tasks is None else (labels, rows.tasks)), 0
        return (
            TripletSampler(labels, seed_of(options)).draw(options.n_tuples or DEFAULT_N_TUPLES),
        ), 0
    read = _reader(options, algorithm, rows)
    is_standard_input = str(options.records) == STANDARD_INPUT
    source = sys.stdin.buffer if is_standard_input else options.records
    batches = list(read(source))
    held = [batch.tuples for batch in batches]
    if not sum(len(tuples[0]) for tuples in held):
        raise no_tuples(options)
    n_bad = sum(batch.n_skipped for batch in batches)
    whole = tuple(np.concatenate(parts) for parts in zip(*held, strict=True))
    return untasked(algorithm.name, *whole), n_bad


def seed_of(options: TrainOptions) -> int:
    """The seed of what is drawn from labels in one go."""
    return algorithms.DEFAULT_SEED if options.seed is None else options.seed


def no_tuples(options: TrainOptions) -> FormatError:
    """The error for an input without a single tuple."""
    return FormatError(f"{options.records}: no {options.source}; expected at least one, got none")


def _reader(options: TrainOptions, algorithm: Algorithm, rows: Rows) -> Callable[..., Any]:
    """The reader of the records that the options name, told about the items."""
    n_items = (rows.left.shape[0], rows.right.shape[0])
    if options.pairs is not None:
        one_or_two = n_items[1] if rows.is_one_space else n_items
        return partial(read_pairs, on_error=options.on_error, n_items=one_or_two)
    # A learner from pairs makes two pairs of a triplet: none may be an item with itself.
    distinct = "pairs" in algorithm.takes and rows.is_one_space
    return partial(read_triplets, on_error=options.on_error, n_items=n_items, distinct=distinct)


def open_source(
    options: TrainOptions,
    algorithm: Algorithm,
    rows: Rows,
    record: TrainingRecord,
    block: int,
    interruption: Interruption,
) -> Source:
    """The source that the options name, at its beginning or where an earlier run left it."""
    path, tuples = options.records, options.source
    if path is None:
        return _label_source(options, algorithm, rows, record, block, interruption)
    read = _reader(options, algorithm, rows)
    is_standard_input = str(path) == STANDARD_INPUT
    if not is_standard_input and (path.is_file() or not path.exists()):
        identity = {"kind": "file", "path": file_identity(path), "tuples": tuples}
        earlier = earlier_state(record.input, identity) or {"position": 0, "n_bad": 0}
        _tell_where(record, f"record {earlier['position']:,} of {path}", earlier["position"] > 0)
        return RecordSource(
            lambda size: read(path, start=earlier["position"], batch_size=size),
            identity["path"],
            tuples=tuples,
            position=earlier["position"],
            n_bad=earlier["n_bad"],
            block=block,
            stop=interruption.requested,
        )
    name = "standard input" if is_standard_input else str(path)
    before = earlier_state(record.input, {"kind": "stream", "path": name, "tuples": tuples})

    def read_stream(size: int) -> Iterator[Batch | PairBatch]:
        stream = _open_stream(path, name, is_standard_input, tuples, interruption)
        return _after(before, read(stream, batch_size=size))

    return RecordSource(
        read_stream,
        name,
        tuples=tuples,
        position=0 if before is None else before["position"],
        n_bad=0 if before is None else before["n_bad"],
        block=block,
        stop=None,
    )


def _after(
    before: dict[str, Any] | None, batches: Iterator[Batch | PairBatch]
) -> Iterator[Batch | PairBatch]:
    """Count the records of a stream on from those of earlier runs: it is never read again."""
    offset = 0 if before is None else before["position"]
    return (batch._replace(position=batch.position + offset) for batch in batches)


def _open_stream(
    path: Path, name: str, is_standard_input: bool, tuples: str, interruption: Interruption
) -> Any:
    if not is_standard_input:
        descriptor = os.open(path, os.O_RDONLY)
    else:
        if sys.stdin.isatty():
            logger.info("reading %s from the terminal; end with Ctrl-D", tuples)
        try:
            descriptor = sys.stdin.fileno()
        except OSError:  # not a file at all, as in tests
            return sys.stdin
    return StoppableInput(descriptor, name, interruption.requested)


def _labels(options: TrainOptions, rows: Rows) -> np.ndarray:
    if rows.labels is None:
        raise click.UsageError(
            f"{options.items} has no labels: expected --labels, --label-column, --triplets or --pairs, "
            "got none"
        )
    return rows.labels


def _label_source(
    options: TrainOptions,
    algorithm: Algorithm,
    rows: Rows,
    record: TrainingRecord,
    block: int,
    interruption: Interruption,
) -> LabelSource:
    tuples = algorithm.takes[0] if options.tuples == "auto" else options.tuples
    labels = None if options.labels_file is None else content_identity(options.labels_file)
    identity = {
        "items": content_identity(options.items),
        "labels": labels,
        "label_column": options.label_column,
        "tasks": None if options.tasks_file is None else content_identity(options.tasks_file),
    }
    if options.tuples == "auto" and record.input is not None:
        # Go on with what was drawn before.
        tuples = record.input["tuples"] if record.input["kind"] == "labels" else tuples
    earlier = earlier_state(record.input, {"kind": "labels", "tuples": tuples, **identity})
    source = LabelSource(
        _labels(options, rows),
        identity,
        tasks=rows.tasks,
        tuples=tuples,
        n_tuples=options.n_tuples,
        seed=options.seed,
        earlier=earlier,
        block=block,
        stop=interruption.requested,
    )
    tell_left_out(source.tasks_left_out)
    n_drawn = source.state()["n_drawn"]
    if source.finished:
        logger.info(
            "nothing left to learn: %s %s were asked for and learnt; --n-tuples asks for more",
            as_count(n_drawn),
            tuples,
        )
    else:
        where = f"{as_count(n_drawn)} of {as_count(source.total)} {tuples}"
        _tell_where(record, where, earlier is not None)
    return source


def _tell_where(record: TrainingRecord, where: str, is_continued: bool) -> None:
    """Say where a resumed run goes on: of another input than before, at the beginning."""
    if is_continued:
        logger.info("going on after %s", where)
    elif record.input is not None:
        logger.info("a new input, read from its beginning; before: %s", record.describe())
