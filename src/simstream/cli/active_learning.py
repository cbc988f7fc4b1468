"""What ``simstream active`` does: learn from the answers a strategy asks for, and see what they are worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from ..data import FormatError, read_triplets
from ..data.samplers import TaskTripletSampler, nearer_first
from ..metrics import ranking_report
from . import algorithms
from .inputs import labels_of, read_rows
from .output import as_count, logger
from .sources import multiple_of
from .tasks import tasks_of_items, tell_left_out

ACCURACY, MAP = "triplet accuracy", "mAP"
ACTIVE, RANDOM, ALL, NONE = "active", "random", "all", "dot"

#: Parameters that the command itself sets.
_SWEPT = ("query", "ask_delta", "ask_rate")

#: Triplets between two moments at which a request to stop is heard.
_PIECE = 512


class ActiveOptions(NamedTuple):
    """The options of ``simstream active``; see its help."""

    items: Path
    labels_file: Path | None
    label_column: str | int | None
    tasks_file: Path | None
    triplets: Path | None
    algorithm: str
    params: dict[str, Any]
    deltas: tuple[float, ...]
    n_tuples: int
    n_seeds: int
    seed: int
    test_share: float
    n_test: int
    on_error: str
    unit_norm: bool


class Questions(NamedTuple):
    """Triplets, their true answers and their tasks (None: one task)."""

    triplets: np.ndarray
    y: np.ndarray
    tasks: np.ndarray | None

    def at(self, rows: Any) -> Questions:
        """Some of them."""
        tasks = None if self.tasks is None else self.tasks[rows]
        return Questions(self.triplets[rows], self.y[rows], tasks)


class Trial(NamedTuple):
    """What one seed learns from and is measured on."""

    stream: Questions
    held_out: Questions
    #: Rows of held-out items, for mAP; None where there are no labels.
    test_rows: np.ndarray | None


class Result(NamedTuple):
    """One strategy with one seed."""

    strategy: str
    delta: float | None
    seed: int
    #: Share of the questions that were asked.
    asked: float
    measures: dict[str, float]


class Study:
    """Items, and a trial of every strategy for each seed."""

    def __init__(self, options: ActiveOptions) -> None:
        _check(options)
        self._options = options
        found = read_rows(
            options.items, unit_norm=options.unit_norm, label_column=options.label_column
        )
        self._items = found.items
        n_items = found.items.shape[0]
        self._labels = labels_of(options.items, found, options.labels_file)
        self._tasks: np.ndarray | None = None  # recorded triplets have their own
        if options.triplets is None:
            self._tasks = tasks_of_items(options.items, n_items, options.tasks_file)
        self._recorded: Questions | None = None
        if options.triplets is not None:
            self._recorded = self._read_answers(options.triplets, n_items)
        elif self._labels is None:
            raise click.UsageError(
                f"{options.items} has no labels: expected --labels, --label-column or --triplets, got none"
            )
        algorithms.new_learner(options.algorithm, options.params)  # complains about parameters now

    @property
    def measures(self) -> tuple[str, ...]:
        """What is measured: mAP needs labels that triplets are drawn from."""
        return (ACCURACY,) if self._recorded is not None else (ACCURACY, MAP)

    @property
    def n_rounds(self) -> int:
        """Questions of a stream."""
        if self._recorded is None:
            return self._options.n_tuples
        n = len(self._recorded.y)
        return n - _n_held_out(n, self._options.test_share)

    @property
    def n_runs(self) -> int:
        """Strategies of a seed."""
        return 2 * len(self._options.deltas) + 1

    def seeds(self) -> range:
        """The seeds, one after the other."""
        return range(self._options.seed, self._options.seed + self._options.n_seeds)

    def run(self, seed: int, advance: Callable[[int], None]) -> Iterator[Result]:
        """Every strategy on the stream of this seed.

        Parameters
        ----------
        seed : int
        advance : function
            Called with the number of questions considered since the last call; raises to end the run.
        """
        trial = self._drawn(seed) if self._recorded is None else self._cut(seed)
        yield self._result(NONE, None, seed, 0.0, _untrained(self._items), trial)
        for delta in self._options.deltas:
            learner = self._learn(trial, seed, advance, query=ACTIVE, ask_delta=delta)
            asked = learner.query_ratio_
            yield self._result(ACTIVE, delta, seed, asked, learner, trial)
            learner = self._learn(trial, seed, advance, query=RANDOM, ask_rate=asked)
            yield self._result(RANDOM, delta, seed, learner.query_ratio_, learner, trial)
        learner = self._learn(trial, seed, advance, query=ALL)
        yield self._result(ALL, None, seed, 1.0, learner, trial)

    def _learn(
        self, trial: Trial, seed: int, advance: Callable[[int], None], **strategy: Any
    ) -> Any:
        options = self._options
        learner = algorithms.new_learner(options.algorithm, options.params, seed=seed)
        learner.set_params(preprocessor=self._items, **strategy)
        step = multiple_of(learner.prepare(), _PIECE)
        for first in range(0, len(trial.stream.y), step):
            piece = trial.stream.at(slice(first, first + step))
            learner.partial_fit(piece.triplets, tasks=piece.tasks, oracle=piece.y)
            advance(len(piece.y))
        return learner

    def _result(
        self, strategy: str, delta: float | None, seed: int, asked: float, model: Any, trial: Trial
    ) -> Result:
        """Measure on what was held out, in every task by itself, and average over tasks."""
        held_out, rows = trial.held_out, trial.test_rows
        accuracies, precisions = [], []
        names = [None] if held_out.tasks is None else dict.fromkeys(held_out.tasks.tolist())
        for task in names:
            own = model if strategy == NONE else model.for_task(task)
            own.set_params(preprocessor=self._items)
            questions = held_out if task is None else held_out.at(held_out.tasks == task)
            margins = own.triplet_margin(nearer_first(questions.triplets, questions.y))
            accuracies.append(float(np.mean(margins > 0)))
            if rows is not None:
                assert self._labels is not None
                inside = rows if task is None else rows[self._tasks[rows] == task]  # type: ignore[index]
                report = ranking_report(own, self._items[inside], self._labels[inside], k=())
                precisions.append(report[MAP])
        measures = {ACCURACY: float(np.mean(accuracies))}
        if precisions:
            measures[MAP] = float(np.mean(precisions))
        return Result(strategy, delta, seed, float(asked), measures)

    def _drawn(self, seed: int) -> Trial:
        """A stream drawn from some items, questions about the others."""
        assert self._labels is not None
        tasks = np.zeros(len(self._labels), int) if self._tasks is None else self._tasks
        rng = np.random.default_rng(seed)
        is_test = _held_out_items(self._labels, tasks, self._options.test_share, rng)
        parts = []
        for rows, n in (
            (np.flatnonzero(~is_test), self._options.n_tuples),
            (np.flatnonzero(is_test), self._options.n_test),
        ):
            try:
                sampler = TaskTripletSampler(self._labels[rows], tasks[rows], rng)
            except ValueError as error:
                raise FormatError(
                    f"{self._options.items}: too few items to hold out a share of "
                    f"{self._options.test_share:g} of every class ({error})"
                ) from error
            if seed == self._options.seed:
                tell_left_out(sampler.left_out)
            triplets, y, names = sampler.draw(n)
            parts.append(Questions(rows[triplets], y, None if self._tasks is None else names))
        return Trial(parts[0], parts[1], np.flatnonzero(is_test))

    def _cut(self, seed: int) -> Trial:
        """The recorded answers without some, and these."""
        assert self._recorded is not None
        n = len(self._recorded.y)
        rng = np.random.default_rng(seed)
        order = rng.permutation(n)
        n_test = _n_held_out(n, self._options.test_share)
        # In an order of each seed's own: seeds differ in their streams, strategies of a seed do not.
        return Trial(self._recorded.at(order[n_test:]), self._recorded.at(order[:n_test]), None)

    def _read_answers(self, path: Path, n_items: int) -> Questions:
        batches = list(read_triplets(path, on_error=self._options.on_error, n_items=n_items))
        n_bad = sum(batch.n_skipped for batch in batches)
        if n_bad:
            logger.info("%s bad records skipped", as_count(n_bad))
        triplets, *besides = (
            np.concatenate(parts) for parts in zip(*(b.tuples for b in batches), strict=True)
        )
        if len(triplets) < 2:
            raise FormatError(
                f"{path}: expected at least two triplets, one of them to hold out, got {len(triplets)}"
            )
        y = besides[0] if besides else np.ones(len(triplets), np.int64)
        tasks = besides[1] if len(besides) > 1 else None
        return Questions(triplets, y, tasks)


def _check(options: ActiveOptions) -> None:
    for name in _SWEPT:
        if name in options.params:
            raise click.BadParameter(
                f"{name} is what the command varies; expected --deltas", param_hint="--param"
            )
    if not options.deltas:
        raise click.BadParameter(
            "expected at least one number > 0, got none", param_hint="--deltas"
        )
    for delta in options.deltas:
        if not (np.isfinite(delta) and delta > 0):
            raise click.BadParameter(f"expected numbers > 0, got {delta}", param_hint="--deltas")


def _untrained(items: Any) -> Any:
    return algorithms.untrained(NONE, items.shape[1], items.dtype)


def _n_held_out(n: int, share: float) -> int:
    return min(n - 1, max(1, round(share * n)))


def _held_out_items(
    labels: np.ndarray, tasks: np.ndarray, share: float, rng: np.random.Generator
) -> np.ndarray:
    """A random share of every class of every task: whether each item is held out."""
    groups = np.unique(labels, return_inverse=True)[1]
    groups = groups + (groups.max() + 1) * np.unique(tasks, return_inverse=True)[1]
    order = rng.permutation(len(labels))
    order = order[np.argsort(groups[order], kind="stable")]
    sorted_groups = groups[order]
    _, first, sizes = np.unique(sorted_groups, return_index=True, return_counts=True)
    place = np.arange(len(labels)) - np.repeat(first, sizes)
    is_test = np.empty(len(labels), bool)
    is_test[order] = place < np.rint(share * np.repeat(sizes, sizes))
    return is_test


class Summary(NamedTuple):
    """One strategy over all seeds: means and standard deviations, None for one seed."""

    strategy: str
    delta: float | None
    asked: float
    asked_spread: float | None
    #: Measure -> mean, spread.
    measures: dict[str, tuple[float, float | None]]


def summarise_results(results: list[Result]) -> list[Summary]:
    """Mean and spread over seeds of every strategy, in the order in which they ran."""
    groups: dict[tuple[str, float | None], list[Result]] = {}
    for result in results:
        groups.setdefault((result.strategy, result.delta), []).append(result)
    return [
        Summary(
            *key,
            *_mean_and_spread([one.asked for one in group]),
            {
                measure: _mean_and_spread([one.measures[measure] for one in group])
                for measure in group[0].measures
            },
        )
        for key, group in groups.items()
    ]


def _mean_and_spread(values: list[float]) -> tuple[float, float | None]:
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None
