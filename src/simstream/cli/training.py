"""What ``simstream train`` does: put learner, items and source together, learn, save."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import scipy.sparse as sp

from ..catalogue import BILINEAR, Algorithm, find
from ..data import FormatError
from . import algorithms
from .checkpoint import TrainingRecord
from .inputs import OpenedModel, open_model
from .interruption import Interruption, stopping_at_once
from .learning import Outcome, learn
from .output import as_count, as_rate, logger
from .progress import iterations, progress
from .sources import Source
from .summary import summarise
from .tasks import expects_tasks, feeder, tasks_missing
from .train_inputs import Rows, no_tuples, open_source, read_items_for, read_whole, seed_of
from .train_options import TrainOptions, check_algorithm, check_options

#: Entries of sparse items up to which their zeros are filled in for learners that need it: 2 GB.
_LARGEST_DENSE = 250_000_000


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
    check_options(options)
    model, changes = (None, []) if options.resume is None else _open_checkpoint(options)
    if model is None:
        algorithm = find(options.algorithm or algorithms.DEFAULT_ALGORITHM)
    else:
        algorithm = find(type(model.learner).__name__)
    check_algorithm(options, algorithm)
    record = TrainingRecord(bool(options.unit_norm)) if model is None else model.record
    rows = read_items_for(options, algorithm, model, record.unit_norm)
    learner = _new_learner(options, algorithm, rows) if model is None else model.learner
    if algorithm.is_batch:
        if not algorithm.takes_a_set:
            rows = _dense(options, algorithm, rows)
        return _train_at_once(options, algorithm, learner, rows)
    return _train_online(options, algorithm, learner, rows, record, changes)


def _train_online(
    options: TrainOptions,
    algorithm: Algorithm,
    learner: Any,
    rows: Rows,
    record: TrainingRecord,
    changes: list[str],
) -> Trained:
    """Learn one piece after the other, with checkpoints.

    `changes` are what is to be said about parameters that are others than before.
    """
    learner.set_params(preprocessor=rows.for_learner())
    block = _prepare(learner)
    if options.records is None and rows.tasks is None and expects_tasks(learner):
        wanted = "--tasks, a name per item (a task that is new may have one name for all)"
        raise tasks_missing(learner, wanted)
    with Interruption() as interruption:
        source = open_source(options, algorithm, rows, record, block, interruption)
        keeper = _Keeper(learner, source, record.unit_norm, options.output)
        done = source.state().get("n_drawn", 0)
        try:
            with progress(options.quiet, source.total, done, source.tuples) as report:
                outcome = learn(
                    learner,
                    source,
                    feed=_telling(changes, feeder(learner)),
                    report=report,
                    save=keeper.save,
                    checkpoint_every=options.checkpoint_every,
                )
        except FormatError as error:
            kept = (
                f" (what was learnt before it is in {options.output})" if keeper.has_saved else ""
            )
            raise FormatError(f"{error}{kept}") from error
        if learner.n_rounds_ == 0 and not outcome.n_learnt and not interruption.requested():
            raise no_tuples(options)
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
    options: TrainOptions, algorithm: Algorithm, learner: Any, rows: Rows
) -> Trained:
    """Let a batch learner learn from everything there is; nothing is saved before it is done."""
    path = options.records or options.labels_file or options.items
    with (
        stopping_at_once(f"interrupted; nothing was written to {options.output}"),
        iterations(options.quiet, algorithm.name, algorithm.reports) as report,
    ):
        piece, n_bad = read_whole(options, algorithm, rows)
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
    tuples = options.learnt_by(algorithm)
    state = {
        "kind": "whole",
        "path": str(path),
        "tuples": tuples,
        "n_read": len(piece[0]),
        "n_bad": n_bad,
    }
    if tuples != options.source:
        state["seed"] = seed_of(options)  # of those drawn from labels
    record = TrainingRecord(bool(options.unit_norm), state)
    learner.save(options.output, extra=record.as_extra())
    facts = summarise(options.output, learner, record) | {
        "n_learnt": outcome.n_learnt,
        "n_bad_records": n_bad,
        "tuples": tuples,
        "seconds": outcome.seconds,
        "interrupted": False,
    }
    return Trained(facts, record, outcome, None)


def _dense(options: TrainOptions, algorithm: Algorithm, rows: Rows) -> Rows:
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


def _telling(changes: list[str], feed: Callable[..., Any]) -> Callable[..., Any]:
    """Learn pieces; after the first, which may refuse parameters that have changed, say which have."""

    def learn_and_tell(*piece: Any) -> None:
        feed(*piece)
        for change in changes:
            logger.info("%s", change)
        changes.clear()

    return learn_and_tell


def _open_checkpoint(options: TrainOptions) -> tuple[OpenedModel, list[str]]:
    """Load the model to go on with; refuse one that the other options contradict.

    Also returns what to say about parameters that are others than before.
    """
    assert options.resume is not None
    model = open_model(options.resume)
    if model.saved is not model.learner:
        raise click.UsageError(
            f"--resume: expected a learner, got a {type(model.saved).__name__}; go on in Python"
        )
    changes = algorithms.resume_learner(
        model.learner, options.algorithm, options.params, options.block_size
    )
    for option, asked, known in (
        ("--dtype", options.dtype, model.dtype),
        ("--unit-norm", options.unit_norm, model.record.unit_norm),
    ):
        if asked is not None and asked != known:
            raise click.UsageError(f"--resume: expected {option} {known} as before, got {asked}")
    return model, changes


def _new_learner(options: TrainOptions, algorithm: Algorithm, rows: Rows) -> Any:
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
