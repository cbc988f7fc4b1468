"""What ``simstream train`` does: put learner, items and source together, learn piece by piece, save."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import scipy.sparse as sp

from .. import DivergedError, TripletSampler
from ..catalogue import BILINEAR, Algorithm, find
from ..data import FormatError, read_pairs, read_triplets
from ..data.files import content_identity
from ..data.samplers import nearer_first
from ..similarity.discriminant import MOST_PAIRS
from .dividing import (
    check_workers,
    continue_run,
    divide,
    find_run,
    losing_workers,
    starting_workers,
)
from .exits import BEFORE_LEARNING, LEARNING, Interruption, Stopped, stopping_at_once
from .info import summarise, summary_fields
from .inputs import (
    Collection,
    OpenedModel,
    TrainingRecord,
    no_records,
    open_model,
    read_collection,
    read_records,
    read_tasks_of,
)
from .learners import (
    DEFAULT_ALGORITHM,
    DEFAULT_SEED,
    expects_tasks,
    is_distance,
    knows_tasks,
    missing_tasks,
    names_of,
    new_learner,
    place,
    refuse_tasks,
    resume_learner,
    task_names,
)
from .options import check_writable, refuse_options, unfinished_file
from .output import as_rate, echo_fields, echo_json, logger, plural, progress
from .sources import DEFAULT_N_TUPLES, LabelSource, RecordSource

#: Entries of sparse items up to which their zeros are filled in for learners that need it: 2 GB.
_LARGEST_DENSE = 250_000_000

#: Work between two moments at which a request to stop is noticed.
_SECONDS_PER_PIECE = 0.2
_FIRST_PIECE = 32
_LARGEST_PIECE = 1_000_000

#: Reading the matrix to count its zeros may take this share of the time, at most this often, and not
#: from a matrix that would take gigabytes to read.
_SHARE_OF_READING = 0.05
_SECONDS_BETWEEN_READINGS = 1.0
_LARGEST_READING = 250_000_000


class TrainOptions(SimpleNamespace):
    """The options of the command, under the names that click gives them, and what follows from them."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.params = dict(given["params"])
        if given["normalise"] is not None:
            if "normalise" in self.params:
                raise click.UsageError("expected --normalise or --param normalise, got both")
            self.params["normalise"] = given["normalise"]
        self.output = given["output"] or given["resume"]
        #: Where checkpoints go until all is learnt.
        self.unfinished = self.output and unfinished_file(self.output, given["resume"])
        #: The file of triplets or pairs, None if tuples are drawn from labels.
        self.records = given["triplets"] or given["pairs"]
        #: What the input consists of.
        self.source = next((name for name in ("triplets", "pairs") if given[name]), "labels")
        #: Parameters of the sampler by the names of their options, None for those not given.
        self.sampling = {
            name: given[name.replace("-", "_")]
            for name in ("negatives", "positives", "near-share", "similar-share")
        }

    @property
    def sampling_given(self) -> dict[str, bool]:
        """Which options of the sampler are given."""
        return {f"--{name}": value is not None for name, value in self.sampling.items()}

    def learnt_by(self, algorithm: Algorithm) -> str:
        """What a batch learner sees: the input, or the set of tuples drawn from labels."""
        is_drawn = self.records is None and algorithm.takes_a_set
        return algorithm.takes[0] if is_drawn else self.source


def _check_options(options: TrainOptions) -> None:
    """Refuse conflicting options before anything is read."""
    if options.output is None:
        raise click.UsageError("expected --output (or --resume), got neither")
    if options.triplets is not None and options.pairs is not None:
        raise click.UsageError("expected --triplets or --pairs, got both")
    if options.records is not None:
        refuse_options(
            f"applies to tuples drawn from labels: not with --{options.source}",
            {
                "--labels": options.labels_file is not None,
                "--tasks": options.tasks_file is not None,
                "--n-tuples": options.n_tuples is not None,
                "--seed": options.seed is not None,
                "--tuples": options.tuples != "auto",
                **options.sampling_given,
            },
        )
    else:
        refuse_options(
            "requires --triplets or --pairs",
            {
                "--queries": options.queries is not None,
                "--item-ids": options.item_ids is not None,
                "--query-ids": options.query_ids is not None,
                "--by": options.by is not None,
            },
        )
    if options.labels_file is not None and options.label_column is not None:
        raise click.UsageError("expected --labels or --label-column, got both")
    if options.mix is not None:
        refuse_options(
            "is for learning in order: not with --mix",
            {
                "--resume": options.resume is not None,
                "--checkpoint": options.checkpoint is not None,
                "--checkpoint-every": options.checkpoint_every is not None,
                **options.sampling_given,
            },
        )
        if options.address is not None and options.workers is None:
            raise click.UsageError("--address requires --workers")
    else:
        if options.rounds is not None:
            raise click.UsageError("--rounds requires --mix")
        check_workers(options)
    for option, given in (("--mix", options.mix), ("--workers", options.workers)):
        if given is not None and options.device not in (None, "cpu"):
            raise click.UsageError(f"expected {option} or --device {options.device}, got both")
    inputs = ("items", "labels_file", "tasks_file", "queries", "records", "item_ids", "query_ids")
    for path in filter(None, (getattr(options, name) for name in inputs)):
        if options.output.resolve() == path.resolve():
            raise click.BadParameter(
                f"{options.output}: expected a new file, got one of the inputs",
                param_hint="--output",
            )
    if str(options.output) == "-":
        raise click.BadParameter("expected a file name, got -", param_hint="--output")
    check_writable(options.output, "--output")


def _check_algorithm(options: TrainOptions, algorithm: Algorithm) -> None:
    """Refuse an input that the algorithm does not learn from, and options it has no use for."""
    name = algorithm.name
    if options.tasks_file is not None and not knows_tasks(algorithm.cls()):
        raise refuse_tasks("--tasks", name)
    if options.records is not None and options.source not in algorithm.takes:
        others = names_of(lambda known: options.source in known.takes)
        raise click.UsageError(
            f"--{options.source}: {name} learns from {algorithm.input}; "
            f"expected --algorithm {others}"
        )
    if algorithm.is_batch:
        draws = algorithm.takes_a_set
        is_given = {"--workers": options.workers is not None, "--mix": options.mix is not None}
        refuse_options("is for online learners", is_given)
        refuse_options(
            f"is for online learners: {name} learns from all {options.learnt_by(algorithm)} at once",
            {
                "--n-tuples (--n-triplets)": options.n_tuples is not None and not draws,
                "--checkpoint-every": options.checkpoint_every is not None,
                "--block-size": options.block_size is not None and not draws,
                "--tuples": options.tuples not in ("auto", algorithm.takes[0]),
                **options.sampling_given,
            },
        )
    elif options.tuples not in ("auto", *algorithm.takes):
        raise click.UsageError(f"--tuples {options.tuples}: {name} learns from {algorithm.input}")
    if options.mix is not None:
        from ..distributed.mixing import check_mixable

        try:
            check_mixable(algorithm.cls()())
        except TypeError as error:
            raise click.UsageError(f"--mix: {error}") from error


def train_model(options: TrainOptions) -> None:
    """Train as the options say, save the model and show it."""
    _check_options(options)
    try:
        with ExitStack() as stack:
            _train_model(options, stack)
    except ValueError as error:
        # Some values are illegal for these items alone, such as more neighbours than there are.
        if str(error).partition(":")[0] not in options.params:
            raise
        raise click.BadParameter(str(error), param_hint="--param") from error


def _train_model(options: TrainOptions, stack: ExitStack) -> None:
    """The same; what must be closed at the end is on the stack."""
    model, run, changes = None, None, list[str]()
    record = TrainingRecord(bool(options.unit_norm))
    name = options.algorithm or DEFAULT_ALGORITHM
    if options.resume is not None and options.resume.is_dir():
        run = find_run(options)
        record, name, options.dtype = run.record, run.name, run.dtype
    elif options.resume is not None:
        model, changes = _open_checkpoint(options)
        record, name = model.record, type(model.learner).__name__
    algorithm = find(name)
    _check_algorithm(options, algorithm)
    data = read_collection(
        options.items,
        options.queries,
        model=model,
        unit_norm=record.unit_norm,
        dtype=options.dtype,
        n_features=options.n_features,
        label_column=options.label_column,
        labels_file=options.labels_file,
        in_blocks=_in_blocks(options, algorithm),
    )
    if options.by != "rows":
        data = data.with_ids(options.item_ids, options.query_ids)
    if options.records is None:
        if knows_tasks(algorithm.cls()):
            data = data._replace(items=read_tasks_of(data.items, options.tasks_file))
        if data.items.labels is None:
            raise click.UsageError(
                f"{options.items} has no labels: expected --labels, --label-column, --triplets or "
                "--pairs, got none"
            )
    if run is not None:
        stack.enter_context(losing_workers(options))
        learner = stack.enter_context(continue_run(options, run, data))
    else:
        learner = _new_learner(options, algorithm, data) if model is None else model.learner
        place(learner, options.device)
        if options.workers is not None and options.mix is None:
            stack.enter_context(losing_workers(options))
            learner = stack.enter_context(divide(options, learner, data))
    if algorithm.is_batch:
        _train_at_once(options, algorithm, learner, data)
    elif options.mix is not None:
        _train_mixed(options, algorithm, learner, data)
    else:
        _train_online(options, algorithm, learner, data, record, changes)


def _in_blocks(options: TrainOptions, algorithm: Algorithm) -> tuple[str, ...]:
    """Formats of items that stay in the file: where they are large, and a tuple needs a few rows of them."""
    needs_all = (
        algorithm.is_batch
        or options.workers is not None
        or options.mix is not None
        or options.device not in (None, "cpu")
        or options.negatives not in (None, "random")
        or options.positives not in (None, "random")
    )
    is_large = options.items.is_file() and options.items.stat().st_size > options.memory
    return ("npy",) if is_large and not needs_all else ()


def _open_checkpoint(options: TrainOptions) -> tuple[OpenedModel, list[str]]:
    """Load the model to continue with, unless other options conflict with it.

    Also returns what to say about changed parameters.
    """
    try:
        model = open_model(options.resume)
    except FileNotFoundError as error:
        hint = "leave --resume out on the first run, and give --output"
        raise FileNotFoundError(f"{error}; {hint}") from error
    if model.saved is not model.learner:
        raise click.UsageError(
            f"--resume: expected a learner, got a {type(model.saved).__name__}; continue in Python"
        )
    changes = resume_learner(model.learner, options.algorithm, options.params, options.block_size)
    for option, asked, known in (
        ("--dtype", options.dtype, str(model.learner.dtype_)),
        ("--unit-norm", options.unit_norm, model.record.unit_norm),
    ):
        if asked is not None and asked != known:
            raise click.UsageError(f"--resume: expected {option} {known} as before, got {asked}")
    return model, changes


def _new_learner(options: TrainOptions, algorithm: Algorithm, data: Collection) -> Any:
    params = dict(options.params)
    differ = data.asking.items.shape[1] != data.items.items.shape[1]
    if differ and algorithm.learns == BILINEAR and "init" not in params:
        params["init"] = "zeros"  # there is no identity between two spaces
        logger.info("queries and items differ in dimension: starting from init=zeros")
    if (
        options.records is None
        and algorithm.learns == BILINEAR
        and not knows_tasks(algorithm.cls())
    ):
        params.setdefault("normalise", True)
    return new_learner(
        algorithm.name.lower(),
        params,
        dtype=options.dtype,
        block_size=options.block_size,
        seed=options.seed if algorithm.is_batch else None,
    )


def _record_options(
    options: TrainOptions, algorithm: Algorithm, data: Collection
) -> dict[str, Any]:
    """What the reader of triplets or pairs is to check."""
    found = {"on_error": options.on_error, **data.names_in_records(options.by)}
    if options.pairs is None:
        # A learner from pairs makes two pairs of a triplet: neither may be an item with itself.
        found["distinct"] = "pairs" in algorithm.takes and data.queries is None
    return found


def _show(
    options: TrainOptions,
    learner: Any,
    record: TrainingRecord,
    run: dict[str, Any],
    text: str,
    saved: Path | None = None,
) -> None:
    """Print the saved model, which is the output unless told otherwise, and what this run did."""
    facts = summarise(saved or options.output, learner, record) | run
    if options.as_json:
        echo_json(facts)
    elif not options.quiet:
        skipped = plural(run["n_bad_records"], "bad record")
        learnt = f"{text}, {skipped} skipped" if run["n_bad_records"] else text
        echo_fields({"learnt": learnt} | summary_fields(facts, record))


# -- batch learners -----------------------------------------------------------------------------


def _train_at_once(
    options: TrainOptions, algorithm: Algorithm, learner: Any, data: Collection
) -> None:
    """Let a batch learner learn from everything there is; nothing is saved before it is done."""
    if not algorithm.takes_a_set:
        data = _dense(algorithm, data)
    tuples, n_bad = options.learnt_by(algorithm), 0
    whole: tuple[Any, ...]
    click.get_current_context().meta[LEARNING] = True
    with (
        stopping_at_once(f"interrupted; nothing was written to {options.output}"),
        progress(options.quiet, "iterations") as report,
    ):
        if options.records is not None:
            checks = _record_options(options, algorithm, data)
            tuples_read, n_bad = read_records(options.records, options.source, **checks)
            whole = _without_tasks(algorithm.name, *tuples_read)
        elif algorithm.takes_a_set:
            n = options.n_tuples or DEFAULT_N_TUPLES
            whole = (TripletSampler(data.items.labels, _seed(options)).draw(n),)
        else:
            has_tasks = data.items.tasks is not None
            whole = (data.items.labels, *([data.items.tasks] if has_tasks else []))
        started = time.perf_counter()
        can_report = "callback" in learner.get_params(deep=False)
        if can_report:
            learner.set_params(
                callback=lambda n, value: report(
                    int(n), lambda: [f"{algorithm.reports} {float(value):.6g}"]
                )
            )
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            if options.records is None and not algorithm.takes_a_set:
                learner.fit(data.items.items, *whole)
                if data.items.feature_names is not None:
                    learner.feature_names_in_ = np.array(data.items.feature_names, object)
            else:
                learner.set_params(preprocessor=data.named)
                (learner.fit if algorithm.takes_a_set else learner.fit_pairs)(*whole)
        if can_report:
            learner.set_params(callback=None)
        seconds = time.perf_counter() - started
    for warning in warned:
        logger.warning("%s", " ".join(str(warning.message).split()))
    n_learnt = len(whole[0])
    text = f"from all {n_learnt:,} {tuples} in {seconds:.1f} s"
    _save_whole(options, learner, tuples, n_learnt, n_bad, seconds, text)


def _save_whole(
    options: TrainOptions,
    learner: Any,
    tuples: str,
    n_learnt: int,
    n_bad: int,
    seconds: float,
    text: str,
) -> None:
    """Save and show a model that was learnt from everything there is."""
    state = {
        "kind": "whole",
        "path": str(options.records or options.labels_file or options.items),
        "tuples": tuples,
        "n_read": n_learnt,
        "n_bad": n_bad,
    }
    if tuples != options.source:
        state["seed"] = _seed(options)  # of those drawn from labels
    record = TrainingRecord(bool(options.unit_norm), state)
    learner.save(options.output, extra=record.as_extra())
    run = {
        "n_learnt": n_learnt,
        "n_bad_records": n_bad,
        "tuples": tuples,
        "seconds": seconds,
        "interrupted": False,
    }
    _show(options, learner, record, run, text)


def _seed(options: TrainOptions) -> int:
    return DEFAULT_SEED if options.seed is None else options.seed


def _train_mixed(
    options: TrainOptions, algorithm: Algorithm, learner: Any, data: Collection
) -> None:
    """Let shards of all tuples be learnt side by side; nothing is saved before they are mixed."""
    from ..distributed import MixedLearner

    given = {} if options.rounds is None else {"n_rounds": options.rounds}
    mixed = MixedLearner(
        learner.set_params(preprocessor=data.preprocessor),
        n_shards=options.mix,
        n_workers=options.workers or 0,
        address=options.address,
        **given,
    )
    click.get_current_context().meta[LEARNING] = True
    with stopping_at_once(f"interrupted; nothing was written to {options.output}"):
        n_bad = 0
        if options.records is None:
            n = options.n_tuples or DEFAULT_N_TUPLES
            n_least = options.mix * (options.rounds or 1)
            if n < n_least:
                raise click.UsageError(
                    f"--n-tuples: expected at least --mix times --rounds ({n_least}), got {n}"
                )
            triplets = TripletSampler(data.items.labels, _seed(options)).draw(n)
        else:
            checks = _record_options(options, algorithm, data)
            found, n_bad = read_records(options.records, options.source, **checks)
            (triplets,) = _without_tasks(algorithm.name, *found)
        started = time.perf_counter()
        with ExitStack() as stack:
            if options.workers is not None:
                n_workers = min(options.workers, options.mix)
                stack.enter_context(losing_workers(options))
                stack.enter_context(starting_workers(n_workers, options.address))
            mixed.fit(triplets)
        seconds = time.perf_counter() - started
    text = (
        f"{len(triplets):,} triplets in {plural(mixed.n_rounds, 'round')} of "
        f"{plural(mixed.n_shards, 'shard')} in {seconds:.1f} s"
    )
    _save_whole(options, mixed.learner_, "triplets", len(triplets), n_bad, seconds, text)


def _dense(algorithm: Algorithm, data: Collection) -> Collection:
    """The same items with their zeros: most batch learners take no sparse ones."""
    all_rows = [rows for rows in data if rows is not None]
    if not any(sp.issparse(rows.items) for rows in all_rows):
        return data
    n_entries = sum(rows.items.shape[0] * rows.items.shape[1] for rows in all_rows)
    if n_entries > _LARGEST_DENSE:
        raise FormatError(
            f"{data.items.path}: too many sparse items; {algorithm.name} learns from dense items, expected "
            f"at most {_LARGEST_DENSE:,} entries with the zeros, got {n_entries:,}"
        )
    logger.info("%s learns from dense items: zeros are filled in", algorithm.name)
    return Collection(
        *(
            rows._replace(items=rows.items.toarray()) if sp.issparse(rows.items) else rows
            for rows in all_rows
        )
    )


# -- online learners ----------------------------------------------------------------------------


def _train_online(
    options: TrainOptions,
    algorithm: Algorithm,
    learner: Any,
    data: Collection,
    record: TrainingRecord,
    changes: list[str],
) -> None:
    """Learn one piece after the other, with checkpoints."""
    #: The learner itself, or of one whose columns are elsewhere all but these.
    front = getattr(learner, "front_", learner)
    if front is learner:
        learner.set_params(preprocessor=data.named)
    # Before the first tuple, so that a wrong dimension is found at once, an interruption has something to
    # save from the first moment on, and pieces can be cut at whole blocks.
    block = int(learner.prepare())
    if options.records is None and data.items.tasks is None and expects_tasks(front):
        wanted = "--tasks, a name per item (one new name for all items begins a new task)"
        raise missing_tasks(front, wanted)
    with Interruption() as interruption:
        source = _open_source(
            options, algorithm, learner, data, record, block, interruption.requested
        )

        saved_to = set[Path]()

        def save(path: Path = options.unfinished) -> None:
            so_far = TrainingRecord(record.unit_norm, source.state())
            learner.save(path, extra=so_far.as_extra())
            saved_to.add(path)

        def keep() -> None:
            if front is not learner:  # a run that is continued knows what it was given last
                learner.extra_ = TrainingRecord(record.unit_norm, source.state()).as_extra()

        pace = _learn(learner, front, source, changes, (keep, save), options)
        # A signal that arrives with the last piece, or later, interrupts nothing.
        signal = None if source.finished else interruption.signal
        if signal is not None and not pace.n_learnt and options.checkpoint is None:
            raise Stopped(signal, f"interrupted{BEFORE_LEARNING}")
        has_learnt = pace.n_learnt or (_has_begun(front) and learner.n_rounds_)
        if signal is None and not has_learnt:
            raise no_records(options.records or options.items, source.tuples)
        saved = options.output if signal is None else options.unfinished
        save(saved)
        if signal is None:
            for path in saved_to - {options.output, options.resume}:
                path.unlink(missing_ok=True)
    run = {
        "n_learnt": pace.n_learnt,
        "n_bad_records": source.n_bad,
        "tuples": source.tuples,
        "seconds": pace.seconds,
        f"{source.tuples}_per_second": pace.n_learnt / pace.seconds if pace.seconds else 0.0,
        "interrupted": signal is not None,
    }
    text = f"{plural(pace.n_learnt, source.tuples.removesuffix('s'))} in {pace.describe()}"
    shown = learner if front is learner else learner.learner_
    _show(options, shown, TrainingRecord(record.unit_norm, source.state()), run, text, saved)
    if signal is not None:
        # A run of several workers continues from its folder, with the columns where they are.
        is_run = options.resume is not None and options.resume.is_dir()
        saved = options.checkpoint or (options.resume if is_run else saved)
        hint = " in place of --checkpoint" if options.checkpoint else ""
        logger.warning(
            "interrupted; checkpoint saved to %s. To continue, repeat the command with --resume %s%s",
            saved,
            saved,
            hint,
        )
        click.get_current_context().exit(128 + signal)


def _open_source(
    options: TrainOptions,
    algorithm: Algorithm,
    learner: Any,
    data: Collection,
    record: TrainingRecord,
    block: int,
    stop: Callable[[], bool],
) -> LabelSource | RecordSource:
    """The source that the options name, at its beginning or where an earlier run left it."""
    before = record.input
    source: LabelSource | RecordSource
    if options.records is not None:
        read: Any = read_triplets if options.pairs is None else read_pairs
        read = partial(read, **_record_options(options, algorithm, data))
        source = RecordSource(
            options.records, options.source, read, before=before, block=block, stop=stop
        )
        where = f"record {source.position:,} of {source.name}"
    else:
        tuples = options.tuples
        if tuples == "auto":
            is_drawn_before = before and before["kind"] == "labels"
            tuples = before["tuples"] if before and is_drawn_before else algorithm.takes[0]
        assert data.items.labels is not None
        source = LabelSource(
            data.items.labels,
            data.items.tasks,
            {
                "items": content_identity(options.items),
                "labels": options.labels_file and content_identity(options.labels_file),
                "label_column": options.label_column,
                "tasks": options.tasks_file and content_identity(options.tasks_file),
            },
            tuples=tuples,
            n_tuples=options.n_tuples,
            seed=options.seed,
            sampling=options.sampling,
            items=data.items.items,
            learner=learner,
            before=before,
            block=block,
            stop=stop,
        )
        if source.finished:
            logger.info(
                "nothing left to learn: all %s %s have been learnt; --n-tuples asks for more",
                f"{source.n_drawn:,}",
                tuples,
            )
            return source
        where = f"{source.n_drawn:,} of {source.total:,} {tuples}"
    if source.is_continued:
        logger.info("continuing after %s", where)
    elif before is not None:
        logger.info("a new input, read from its beginning; before: %s", record.describe())
    return source


def _feeder(learner: Any, front: Any) -> Callable[..., Any]:
    """A function that lets a learner learn a piece: tuples, and answers and tasks if there are some."""
    if not knows_tasks(type(front)):
        name = type(front).__name__
        return lambda *piece: learner.partial_fit(*_without_tasks(name, *piece))
    names = task_names(front)
    needs_tasks = expects_tasks(front)
    asks = getattr(front, "query", "all") != "all"

    def learn(triplets: np.ndarray, y: Any = None, tasks: Any = None) -> Any:
        if tasks is None and needs_tasks:
            raise missing_tasks(front, "a column task")
        own = None if tasks is None else [names.get(name, name) for name in map(str, tasks)]
        if asks:  # it finds out by itself which answers it wants
            y = np.ones(len(triplets), np.int64) if y is None else y
            return learner.partial_fit(triplets, tasks=own, oracle=y)
        return learner.partial_fit(triplets, y, own)

    return learn


def _without_tasks(
    name: str, tuples: np.ndarray, y: np.ndarray | None = None, tasks: Any = None
) -> tuple[np.ndarray, ...]:
    """What a learner without tasks takes: triplets, the nearer candidate first, or pairs and their labels."""
    if tasks is not None:
        raise refuse_tasks("--triplets with a column of tasks", name, "triplets")
    if y is None:
        return (tuples,)
    return (nearer_first(tuples, y),) if tuples.shape[1] == 3 else (tuples, y)


# -- the loop -----------------------------------------------------------------------------------


def _has_begun(front: Any) -> bool:
    """Whether there is a first matrix: not before the first triplets where it is worked out from them."""
    return bool(front.__sklearn_is_fitted__())


def _learn(
    learner: Any,
    front: Any,
    source: LabelSource | RecordSource,
    changes: list[str],
    keepers: tuple[Callable[[], None], Callable[[], None]],
    options: TrainOptions,
) -> LearningPace:
    """Learn all pieces of a source, show the progress, and save checkpoints.

    The first of the keepers is called before a piece is learnt, the second saves a checkpoint.

    The first piece may be refused because of changed parameters; only after it the changes are reported.
    Before an error of the input is passed on, what was learnt until then is saved, beside the output if that
    is another model.
    """
    keep, save = keepers
    feed = _feeder(learner, front)
    pace = LearningPace()
    gauge = _SparsityGauge(learner, is_distance(front))
    every = options.checkpoint_every
    n_unsaved = 0
    done = source.state().get("n_drawn", 0)

    def wish() -> int:
        if not _has_begun(front):  # so many, whatever the pace is: the first matrix depends on them
            return MOST_PAIRS
        left = every - n_unsaved if every else _LARGEST_PIECE
        return max(1, min(pace.wish, left))

    def measurements(is_last: bool = False) -> list[str]:
        sparsity = gauge.read(done + pace.n_learnt, at_once=is_last)
        return [
            as_rate(pace.rate),
            f"loss {learner.average_loss_:.4f}",
            f"mistakes {100 * learner.mistake_rate_:.1f} %",
            *([] if sparsity is None else [sparsity]),
            *([plural(source.n_bad, "bad record")] if source.n_bad else []),
        ]

    with progress(options.quiet, source.tuples, total=source.total, done=done) as report:
        try:
            for piece in source.pieces(wish):
                started = time.perf_counter()
                keep()
                feed(*piece)
                pace.note(len(piece[0]), time.perf_counter() - started)
                click.get_current_context().meta[LEARNING] = True
                while changes:
                    logger.info("%s", changes.pop(0))
                n_unsaved += len(piece[0])
                if every and n_unsaved >= every:
                    save()
                    n_unsaved = 0
                report(done + pace.n_learnt, measurements)
        except FormatError as error:
            if n_unsaved:
                save()
            if not pace.n_learnt:
                raise
            kept = f"progress up to there is saved in {options.unfinished}"
            raise FormatError(f"{error} ({kept})") from error
        except DivergedError as error:
            if pace.n_learnt == n_unsaved:
                raise
            kept = f"the last checkpoint is {options.unfinished}"
            raise DivergedError(f"{error} ({kept})") from error
        if pace.n_learnt:
            report(done + pace.n_learnt, partial(measurements, is_last=True))
    return pace


class LearningPace:
    """How many tuples make a piece of about `_SECONDS_PER_PIECE`, and how fast learning is."""

    def __init__(self) -> None:
        #: Length of the next piece.
        self.wish = _FIRST_PIECE
        self.n_learnt = 0
        #: Time spent learning, not waiting for input.
        self.seconds = 0.0
        self._first = (0, 0.0)

    def note(self, n: int, seconds: float) -> None:
        """Take notice of a piece that was learnt."""
        if not self.n_learnt:
            self._first = (n, seconds)
        self.n_learnt += n
        self.seconds += seconds
        fitting = int(_SECONDS_PER_PIECE * n / max(seconds, 1e-9))
        # Slowly up, since a short piece says little; down at once.
        self.wish = max(1, min(fitting, 4 * self.wish, _LARGEST_PIECE))

    def describe(self) -> str:
        """Time and rate of all tuples, and what compiling has to do with it.

        Examples
        --------
        >>> pace = LearningPace()
        >>> pace.note(100, 2.0)
        >>> pace.describe()
        '2.0 s (50/s)'
        >>> pace.note(3900, 0.5)
        >>> pace.describe()
        '2.5 s (1,600/s; 7,800/s after the first 100, which wait for the compiler)'
        """
        text = f"{self.seconds:.1f} s"
        if not self.seconds:
            return text
        overall = self.n_learnt / self.seconds
        n_first = self._first[0]
        if self.rate < 2 * overall:
            return f"{text} ({as_rate(overall)})"
        later = f"{as_rate(self.rate)} after the first {n_first:,}, which wait for the compiler"
        return f"{text} ({as_rate(overall)}; {later})"

    @property
    def rate(self) -> float:
        """Tuples per second, without the first piece if there are more: it may have been compiling."""
        n, seconds = self.n_learnt, self.seconds
        if n > self._first[0]:
            n, seconds = n - self._first[0], seconds - self._first[1]
        return n / seconds if seconds > 0 else 0.0


class _SparsityGauge:
    """Reads the sparsity now and then: often enough to watch, rarely enough to cost little.

    That of a distance is not read: it takes all eigenvectors, and there are hardly ever zeros to see.
    """

    def __init__(self, learner: Any, is_distance: bool) -> None:
        self._learner = learner
        #: The sparsity that was read last, and after how many tuples that was.
        self._last: tuple[float, int] | None = None
        self._is_distance = is_distance
        self._next = time.perf_counter() + _SECONDS_BETWEEN_READINGS

    @property
    def _is_affordable(self) -> bool:
        rows, columns = self._learner.shape_
        return rows * columns <= _LARGEST_READING and not self._is_distance

    def read(self, n: int, at_once: bool = False) -> str | None:
        """The sparsity after n tuples, or what it was a while ago, in words."""
        now = time.perf_counter()
        if (at_once or now >= self._next) and self._is_affordable:
            self._last = self._learner.sparsity_, n
            cost = time.perf_counter() - now
            self._next = now + max(_SECONDS_BETWEEN_READINGS, cost / _SHARE_OF_READING)
        if self._last is None:
            return None
        value, then = self._last
        return f"sparsity {100 * value:.1f} %{'' if then == n else f' at {then:,}'}"
