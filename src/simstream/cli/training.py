"""What ``simstream train`` does: put learner, items and source together, learn, save."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import scipy.sparse as sp

from ..catalogue import BILINEAR, Algorithm, find
from ..constraints import TripletSampler
from ..formats import Batch, FormatError, PairBatch, read_pairs, read_triplets
from . import algorithms
from .checkpoint import TrainingRecord
from .inputs import OpenedModel, column_for, labels_of, open_model, read_rows
from .interruption import Interruption, stopping_at_once
from .learning import Outcome, learn
from .output import as_count, as_rate, logger
from .progress import iterations, progress
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
from .summary import summarise

#: The name of standard input among files.
STANDARD_INPUT = "-"

#: Entries of sparse items up to which their zeros are filled in for learners that need it: 2 GB.
_LARGEST_DENSE = 250_000_000


class TrainOptions(NamedTuple):
    """The options of ``simstream train``; see its help."""

    items: Path
    queries: Path | None
    labels_file: Path | None
    label_column: str | int | None
    triplets: Path | None
    pairs: Path | None
    tuples: str
    algorithm: str | None
    params: dict[str, Any]
    n_tuples: int | None
    seed: int | None
    output: Path
    resume: Path | None
    checkpoint_every: int | None
    on_error: str
    dtype: str | None
    block_size: int | None
    unit_norm: bool | None
    quiet: bool

    @property
    def records(self) -> Path | None:
        """The file of triplets or pairs, None where labels are learnt from."""
        return self.triplets or self.pairs

    @property
    def source(self) -> str:
        """What the input consists of: "labels", "triplets" or "pairs"."""
        if self.records is None:
            return "labels"
        return "triplets" if self.pairs is None else "pairs"


class Trained(NamedTuple):
    """What came of it."""

    #: Facts about the model (see `summarise`) and about this run.
    facts: dict[str, Any]
    record: TrainingRecord
    outcome: Outcome
    #: The signal that ended the run before its input did, or None.
    signal: int | None

    def describe_run(self) -> str:
        """What this run has done, in words."""
        seconds, facts = self.outcome.seconds, self.facts
        bad = (
            f", {as_count(facts['n_bad_records'])} bad records skipped"
            if facts["n_bad_records"]
            else ""
        )
        learnt = f"{as_count(self.outcome.n_learnt)} {facts['tuples']} in {seconds:.1f} s"
        if "n_rounds" not in facts:
            return f"from all {learnt}{bad}"
        return f"{learnt} ({as_rate(self.outcome.rate)}){bad}"


class _Rows(NamedTuple):
    """The items behind row numbers."""

    left: Any
    right: Any
    labels: np.ndarray | None

    @property
    def is_one_space(self) -> bool:
        """Whether equal row numbers mean the same item."""
        return self.left is self.right

    def for_learner(self) -> Any:
        """The learner's `preprocessor`: one array, or a pair where anchors are other items."""
        return self.right if self.is_one_space else (self.left, self.right)


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
    if model is None:
        algorithm = find(options.algorithm or algorithms.DEFAULT_ALGORITHM)
    else:
        algorithm = find(type(model.learner).__name__)
    _check_algorithm(options, algorithm)
    record = TrainingRecord(bool(options.unit_norm)) if model is None else model.record
    rows = _read_items(options, model, record.unit_norm)
    learner = _new_learner(options, algorithm, rows) if model is None else model.learner
    if algorithm.is_batch:
        if not algorithm.takes_a_set:
            rows = _dense(options, algorithm, rows)
        return _train_at_once(options, algorithm, learner, rows)
    return _train_online(options, algorithm, learner, rows, record)


def _train_online(
    options: TrainOptions, algorithm: Algorithm, learner: Any, rows: _Rows, record: TrainingRecord
) -> Trained:
    """Learn one piece after the other, with checkpoints."""
    learner.set_params(preprocessor=rows.for_learner())
    block = _prepare(learner)
    with Interruption() as interruption:
        source = _open_source(options, algorithm, rows, record, block, interruption)
        keeper = _Keeper(learner, source, record.unit_norm, options.output)
        done = source.state().get("n_drawn", 0)
        try:
            with progress(options.quiet, source.total, done, source.tuples) as report:
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
            raise _no_tuples(options)
        keeper.save()
    # A signal that arrived with the last piece has interrupted nothing.
    signal = None if source.finished else interruption.signal
    facts = summarise(options.output, learner, keeper.record()) | {
        "n_learnt": outcome.n_learnt,
        "n_bad_records": source.n_bad,
        "tuples": source.tuples,
        "seconds": outcome.seconds,
        f"{source.tuples}_per_second": outcome.rate,
        "interrupted": signal is not None,
    }
    return Trained(facts, keeper.record(), outcome, signal)


def _train_at_once(
    options: TrainOptions, algorithm: Algorithm, learner: Any, rows: _Rows
) -> Trained:
    """Let a batch learner learn from everything there is; nothing is saved before it is done."""
    path = options.records or options.labels_file or options.items
    with (
        stopping_at_once(f"interrupted; nothing was written to {options.output}"),
        iterations(options.quiet, algorithm.name, algorithm.reports) as report,
    ):
        piece, n_bad = _read_whole(options, algorithm, rows)
        started = time.perf_counter()
        can_report = "callback" in learner.get_params(deep=False)
        if can_report:
            learner.set_params(callback=report)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            if algorithm.takes_a_set:
                learner.set_params(preprocessor=rows.for_learner()).fit(*piece)
            elif options.records is None:
                learner.fit(rows.right, *piece)
            else:
                learner.set_params(preprocessor=rows.for_learner())
                learner.fit_pairs(*piece)
        if can_report:
            learner.set_params(callback=None)
        outcome = Outcome(len(piece[0]), time.perf_counter() - started, 0.0)
    for warning in warned:
        logger.warning("%s", " ".join(str(warning.message).split()))
    state = {
        "kind": "whole",
        "path": str(path),
        "tuples": options.source,
        "n_read": len(piece[0]),
        "n_bad": n_bad,
    }
    record = TrainingRecord(bool(options.unit_norm), state)
    learner.save(options.output, extra=record.as_extra())
    facts = summarise(options.output, learner, record) | {
        "n_learnt": outcome.n_learnt,
        "n_bad_records": n_bad,
        "tuples": options.source,
        "seconds": outcome.seconds,
        "interrupted": False,
    }
    return Trained(facts, record, outcome, None)


def _dense(options: TrainOptions, algorithm: Algorithm, rows: _Rows) -> _Rows:
    """The same items with their zeros: batch learners take no sparse ones."""
    if not (sp.issparse(rows.left) or sp.issparse(rows.right)):
        return rows
    n_entries = sum(items.shape[0] * items.shape[1] for items in (rows.left, rows.right))
    if n_entries > _LARGEST_DENSE:
        raise FormatError(
            f"{options.items}: sparse items; expected at most {as_count(_LARGEST_DENSE)} entries with "
            f"their zeros, for {algorithm.name} learns from dense items, got {as_count(n_entries)}"
        )
    logger.info("%s learns from dense items: zeros are filled in", algorithm.name)
    left, right = (
        items.toarray() if sp.issparse(items) else items for items in (rows.left, rows.right)
    )
    return rows._replace(left=right if rows.is_one_space else left, right=right)


def _read_whole(
    options: TrainOptions, algorithm: Algorithm, rows: _Rows
) -> tuple[tuple[np.ndarray, ...], int]:
    """All labels, triplets or pairs, and the number of bad records among them."""
    if options.records is None:
        labels = _labels(options, rows)
        if not algorithm.takes_a_set:
            return (labels,), 0
        seed = algorithms.DEFAULT_SEED if options.seed is None else options.seed
        return (TripletSampler(labels, seed).draw(options.n_tuples or DEFAULT_N_TUPLES),), 0
    read = _reader(options, algorithm, rows)
    is_standard_input = str(options.records) == STANDARD_INPUT
    source = sys.stdin.buffer if is_standard_input else options.records
    batches = list(read(source))
    held = [batch.tuples for batch in batches]
    if not sum(len(tuples[0]) for tuples in held):
        raise _no_tuples(options)
    n_bad = sum(batch.n_skipped for batch in batches)
    return tuple(np.concatenate(parts) for parts in zip(*held, strict=True)), n_bad


def _no_tuples(options: TrainOptions) -> FormatError:
    return FormatError(f"{options.records}: no {options.source}; expected at least one, got none")


def _check_options(options: TrainOptions) -> None:
    """Refuse options that contradict each other before anything is read."""
    if options.triplets is not None and options.pairs is not None:
        raise click.UsageError("expected --triplets or --pairs, got both")
    from_labels = options.records is None
    if not from_labels:
        for option, given in (
            ("--labels", options.labels_file is not None),
            ("--n-tuples", options.n_tuples is not None),
            ("--seed", options.seed is not None),
            ("--tuples", options.tuples != "auto"),
        ):
            if given:
                raise click.UsageError(
                    f"{option} is about tuples drawn from labels: not with --{options.source}"
                )
    if options.labels_file is not None and options.label_column is not None:
        raise click.UsageError("expected --labels or --label-column, got both")
    if from_labels and options.queries is not None:
        raise click.UsageError(
            "--queries: anchors of another item space need --triplets or --pairs"
        )
    for path in (options.items, options.labels_file, options.queries, options.records):
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


def _check_algorithm(options: TrainOptions, algorithm: Algorithm) -> None:
    """Refuse an input that the algorithm does not learn from, and options it has no use for."""
    name = algorithm.name
    if options.records is not None and options.source not in algorithm.takes:
        others = algorithms.names_of(lambda known: options.source in known.takes)
        raise click.UsageError(
            f"--{options.source}: {name} learns from {algorithm.input}; "
            f"expected --algorithm {others}"
        )
    if algorithm.is_batch:
        for option, given in (
            (
                "--n-tuples (--n-triplets)",
                options.n_tuples is not None and not algorithm.takes_a_set,
            ),
            ("--checkpoint-every", options.checkpoint_every is not None),
            ("--block-size", options.block_size is not None and not algorithm.takes_a_set),
            ("--tuples", options.tuples not in ("auto", algorithm.takes[0])),
        ):
            if given:
                raise click.UsageError(
                    f"{option}: {name} learns from all {options.source} at once; "
                    "this is for online learners"
                )
    elif options.tuples not in ("auto", *algorithm.takes):
        raise click.UsageError(f"--tuples {options.tuples}: {name} learns from {algorithm.input}")


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


def _new_learner(options: TrainOptions, algorithm: Algorithm, rows: _Rows) -> Any:
    name = algorithm.name.lower()
    params = dict(options.params)
    if (
        rows.left.shape[1] != rows.right.shape[1]
        and algorithm.learns == BILINEAR
        and "init" not in params
    ):
        params["init"] = "zeros"  # there is no identity between two spaces
        logger.info("queries and items differ in dimension: starting from init=zeros")
    return algorithms.new_learner(
        name,
        params,
        dtype=options.dtype,
        block_size=options.block_size,
        seed=options.seed if algorithm.is_batch else None,
    )


def _prepare(learner: Any) -> int:
    """Make room for the matrix, and return how many tuples are learnt together.

    Done before the first tuple, so that a wrong dimension is found at once, an interruption has
    something to save from the first moment, and pieces can be cut at whole blocks.
    """
    return int(learner.prepare())


def _reader(options: TrainOptions, algorithm: Algorithm, rows: _Rows) -> Callable[..., Any]:
    """The reader of the records that the options name, told about the items."""
    n_items = (rows.left.shape[0], rows.right.shape[0])
    if options.pairs is not None:
        one_or_two = n_items[1] if rows.is_one_space else n_items
        return partial(read_pairs, on_error=options.on_error, n_items=one_or_two)
    # A learner from pairs makes two pairs of a triplet: none may be an item with itself.
    distinct = "pairs" in algorithm.takes and rows.is_one_space
    return partial(read_triplets, on_error=options.on_error, n_items=n_items, distinct=distinct)


def _open_source(
    options: TrainOptions,
    algorithm: Algorithm,
    rows: _Rows,
    record: TrainingRecord,
    block: int,
    interruption: Interruption,
) -> Source:
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


def _labels(options: TrainOptions, rows: _Rows) -> np.ndarray:
    if rows.labels is None:
        raise click.UsageError(
            f"{options.items} has no labels: expected --labels, --label-column, --triplets or --pairs, "
            "got none"
        )
    return rows.labels


def _label_source(
    options: TrainOptions,
    algorithm: Algorithm,
    rows: _Rows,
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
    }
    if options.tuples == "auto" and record.input is not None:
        # Go on with what was drawn before.
        tuples = record.input["tuples"] if record.input["kind"] == "labels" else tuples
    earlier = earlier_state(record.input, {"kind": "labels", "tuples": tuples, **identity})
    source = LabelSource(
        _labels(options, rows),
        identity,
        tuples=tuples,
        n_tuples=options.n_tuples,
        seed=options.seed,
        earlier=earlier,
        block=block,
        stop=interruption.requested,
    )
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
