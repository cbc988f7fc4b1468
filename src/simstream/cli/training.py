"""What ``simstream train`` does: put learner, items and source together, learn, save."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from ..formats import Batch, FormatError, read_triplets
from . import algorithms
from .checkpoint import TrainingRecord
from .inputs import OpenedModel, column_for, labels_of, open_model, read_rows
from .interruption import Interruption
from .learning import Outcome, learn
from .output import as_count, logger
from .progress import progress
from .sources import (
    LabelSource,
    RecordSource,
    Source,
    content_identity,
    earlier_state,
    file_identity,
)
from .streams import StoppableInput
from .summary import summarise

#: The name of standard input among files.
STANDARD_INPUT = "-"


class TrainOptions(NamedTuple):
    """The options of ``simstream train``; see its help."""

    items: Path
    queries: Path | None
    labels_file: Path | None
    label_column: str | int | None
    triplets: Path | None
    algorithm: str | None
    params: dict[str, Any]
    n_triplets: int | None
    seed: int | None
    output: Path
    resume: Path | None
    checkpoint_every: int | None
    on_error: str
    dtype: str | None
    block_size: int | None
    unit_norm: bool | None
    quiet: bool


class Trained(NamedTuple):
    """What came of it."""

    #: Facts about the model (see `summarise`) and about this run.
    facts: dict[str, Any]
    record: TrainingRecord
    outcome: Outcome
    #: The signal that ended the run before its input did, or None.
    signal: int | None


class _Rows(NamedTuple):
    """The items behind row numbers."""

    left: Any
    right: Any
    labels: np.ndarray | None

    def for_learner(self) -> Any:
        """The learner's `preprocessor`: one array, or a pair where anchors are other items."""
        return self.right if self.left is self.right else (self.left, self.right)


class _Keeper:
    """Saves the learner together with the position in its input."""

    def __init__(self, learner: Any, source: Source, unit_norm: bool, output: Path) -> None:
        self._learner, self._source = learner, source
        self._unit_norm, self._output = unit_norm, output
        self.has_saved = False

    def record(self) -> TrainingRecord:
        return TrainingRecord(self._unit_norm, self._source.state())

    def save(self) -> None:
        self._learner.save(self._output, extra=self.record().as_extra())
        self.has_saved = True


def train_model(options: TrainOptions) -> Trained:
    """Train as the options say and save the model."""
    _check_options(options)
    model = None if options.resume is None else _open_checkpoint(options)
    record = TrainingRecord(bool(options.unit_norm)) if model is None else model.record
    rows = _read_items(options, model, record.unit_norm)
    learner = _new_learner(options, rows) if model is None else model.learner
    learner.set_params(preprocessor=rows.for_learner())
    block = _prepare(learner)
    with Interruption() as interruption:
        source = _open_source(options, rows, record, block, interruption)
        keeper = _Keeper(learner, source, record.unit_norm, options.output)
        done = source.state().get("n_drawn", 0)
        try:
            with progress(options.quiet, source.total, done) as report:
                outcome = learn(
                    learner,
                    source,
                    report=report,
                    save=keeper.save,
                    checkpoint_every=options.checkpoint_every,
                )
        except FormatError as error:
            kept = (
                f" (what was learnt before it is in {options.output})" if keeper.has_saved else ""
            )
            raise FormatError(f"{error}{kept}") from error
        if learner.n_rounds_ == 0 and not interruption.requested():
            raise FormatError(f"{options.triplets}: no triplets; expected at least one, got none")
        keeper.save()
    # A signal that arrived with the last piece has interrupted nothing.
    signal = None if source.finished else interruption.signal
    facts = summarise(options.output, learner, keeper.record()) | {
        "n_learnt": outcome.n_learnt,
        "n_bad_records": source.n_bad,
        "seconds": outcome.seconds,
        "triplets_per_second": outcome.rate,
        "interrupted": signal is not None,
    }
    return Trained(facts, keeper.record(), outcome, signal)


def _check_options(options: TrainOptions) -> None:
    """Refuse options that contradict each other before anything is read."""
    from_labels = options.triplets is None
    if not from_labels:
        for name in ("labels_file", "n_triplets", "seed"):
            if getattr(options, name) is not None:
                option = "--labels" if name == "labels_file" else f"--{name.replace('_', '-')}"
                raise click.UsageError(f"{option} draws triplets from labels: not with --triplets")
    if options.labels_file is not None and options.label_column is not None:
        raise click.UsageError("expected --labels or --label-column, got both")
    if from_labels and options.queries is not None:
        raise click.UsageError("--queries: anchors of another item space need --triplets")
    for path in (options.items, options.labels_file, options.queries, options.triplets):
        if path is not None and options.output.resolve() == path.resolve():
            raise click.BadParameter(
                f"{options.output}: expected a file of its own, got one of the inputs",
                param_hint="--output",
            )
    if str(options.output) == STANDARD_INPUT:
        raise click.BadParameter("expected a file name, got -", param_hint="--output")
    folder = options.output.resolve().parent
    # Found out now rather than after an hour of learning.
    if options.output.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise click.BadParameter(
            f"{options.output}: expected a file name in a writable folder", param_hint="--output"
        )


def _open_checkpoint(options: TrainOptions) -> OpenedModel:
    """Load the model to go on with; refuse one that the other options contradict."""
    assert options.resume is not None
    model = open_model(options.resume)
    if model.saved is not model.learner:
        raise click.UsageError(
            f"--resume: expected a learner, got a {type(model.saved).__name__}; go on in Python"
        )
    algorithms.resume_learner(model.learner, options.algorithm, options.params, options.block_size)
    for option, asked, known in (
        ("--dtype", options.dtype, model.dtype),
        ("--unit-norm", options.unit_norm, model.record.unit_norm),
    ):
        if asked is not None and asked != known:
            raise click.UsageError(f"--resume: expected {option} {known} as before, got {asked}")
    return model


def _read_items(options: TrainOptions, model: OpenedModel | None, unit_norm: bool) -> _Rows:
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
        return _Rows(found.items, found.items, labels)
    queries = read_rows(
        options.queries,
        unit_norm=unit_norm,
        dtype=dtype,
        n_features=width[0],
        label_column=column_for(options.queries, options.label_column),
    )
    return _Rows(queries.items, found.items, None)


def _new_learner(options: TrainOptions, rows: _Rows) -> Any:
    algorithm = options.algorithm or algorithms.DEFAULT_ALGORITHM
    params = dict(options.params)
    if (
        rows.left.shape[1] != rows.right.shape[1]
        and "init" not in params
        and "init" in algorithms.parameters_of(algorithm)
    ):
        params["init"] = "zeros"  # there is no identity between two spaces
        logger.info("queries and items differ in dimension: starting from init=zeros")
    return algorithms.new_learner(
        algorithm, params, dtype=options.dtype, block_size=options.block_size
    )


def _prepare(learner: Any) -> int:
    """Make room for the matrix, and return how many triplets are learnt together.

    Done before the first triplet, so that a wrong dimension is found at once, an interruption has
    something to save from the first moment, and pieces can be cut at whole blocks.
    """
    return int(learner.prepare())


def _open_source(
    options: TrainOptions,
    rows: _Rows,
    record: TrainingRecord,
    block: int,
    interruption: Interruption,
) -> Source:
    if options.triplets is None:
        return _label_source(options, rows, record, block, interruption)
    n_items = (rows.left.shape[0], rows.right.shape[0])
    read = partial(read_triplets, on_error=options.on_error, n_items=n_items)
    path = options.triplets
    is_standard_input = str(path) == STANDARD_INPUT
    if not is_standard_input and (path.is_file() or not path.exists()):
        identity = {"kind": "file", "path": file_identity(path)}
        earlier = earlier_state(record.input, identity) or {"position": 0, "n_bad": 0}
        _tell_where(record, f"record {earlier['position']:,} of {path}", earlier["position"] > 0)
        return RecordSource(
            lambda size: read(path, start=earlier["position"], batch_size=size),
            identity["path"],
            position=earlier["position"],
            n_bad=earlier["n_bad"],
            block=block,
            stop=interruption.requested,
        )
    name = "standard input" if is_standard_input else str(path)
    before = earlier_state(record.input, {"kind": "stream", "path": name})
    return RecordSource(
        lambda size: _after(
            before, read(_open_stream(path, name, is_standard_input, interruption), batch_size=size)
        ),
        name,
        position=0 if before is None else before["position"],
        n_bad=0 if before is None else before["n_bad"],
        block=block,
        stop=None,
    )


def _after(before: dict[str, Any] | None, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Count the records of a stream on from those of earlier runs: it is never read again."""
    offset = 0 if before is None else before["position"]
    return (batch._replace(position=batch.position + offset) for batch in batches)


def _open_stream(path: Path, name: str, is_standard_input: bool, interruption: Interruption) -> Any:
    if not is_standard_input:
        descriptor = os.open(path, os.O_RDONLY)
    else:
        if sys.stdin.isatty():
            logger.info("reading triplets from the terminal; end with Ctrl-D")
        try:
            descriptor = sys.stdin.fileno()
        except OSError:  # not a file at all, as in tests
            return sys.stdin
    return StoppableInput(descriptor, name, interruption.requested)


def _label_source(
    options: TrainOptions,
    rows: _Rows,
    record: TrainingRecord,
    block: int,
    interruption: Interruption,
) -> LabelSource:
    if rows.labels is None:
        raise click.UsageError(
            f"{options.items} has no labels: expected --labels, --label-column or --triplets, got none"
        )
    labels = None if options.labels_file is None else content_identity(options.labels_file)
    identity = {
        "items": content_identity(options.items),
        "labels": labels,
        "label_column": options.label_column,
    }
    earlier = earlier_state(record.input, {"kind": "labels", **identity})
    source = LabelSource(
        rows.labels,
        identity,
        n_triplets=options.n_triplets,
        seed=options.seed,
        earlier=earlier,
        block=block,
        stop=interruption.requested,
    )
    n_drawn = source.state()["n_drawn"]
    if source.finished:
        logger.info(
            "nothing left to learn: %s triplets were asked for and learnt; --n-triplets asks for more",
            as_count(n_drawn),
        )
    else:
        where = f"triplet {as_count(n_drawn)} of {as_count(source.total)}"
        _tell_where(record, where, earlier is not None)
    return source


def _tell_where(record: TrainingRecord, where: str, is_continued: bool) -> None:
    """Say where a resumed run goes on: of another input than before, at the beginning."""
    if is_continued:
        logger.info("going on after %s", where)
    elif record.input is not None:
        logger.info("a new input, read from its beginning; before: %s", record.describe())
