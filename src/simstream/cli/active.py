"""``simstream active``: learn from the answers a strategy asks for, and see what they are worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from .exits import Interruption, stopping_at_once
from .learners import ASKING, new_learner, report_left_out, untrained
from .options import (
    COUNT,
    FILE,
    NATURAL,
    CommaSeparated,
    check_picture,
    json_option,
    label_column_option,
    labels_option,
    n_features_option,
    on_error_option,
    params_option,
    quiet_option,
    refuse_options,
    tasks_option,
)
from .output import as_percent, configure_logging, echo_json, echo_table, logger, plural, progress

if TYPE_CHECKING:
    import numpy as np

    from .inputs import Rows

ACCURACY, MAP = "triplet accuracy", "mAP"
ACTIVE, RANDOM, ALL, NONE = "active", "random", "all", "dot"

#: Parameters that the command itself varies.
_VARIED = ("query", "ask_delta", "ask_rate")

#: Questions between two moments at which a request to stop is noticed.
_PIECE = 512


class _Stop(Exception):
    """A signal has arrived."""


@click.command(short_help="Compare asking actively, at random, and for every answer.")
@click.argument("items", type=FILE)
@labels_option
@label_column_option
@n_features_option
@tasks_option
@click.option(
    "--triplets",
    type=FILE,
    help="Recorded triplets with their answers (columns y and task) instead of labels.",
)
@click.option(
    "--algorithm",
    "-a",
    type=click.Choice(ASKING, case_sensitive=False),
    default=ASKING[0],
    show_default=True,
    help="The learner.",
)
@params_option
@click.option(
    "--deltas",
    type=CommaSeparated(click.FLOAT, "d,d,..."),
    default="0.001,0.01,0.03,0.1,0.3,1",
    show_default=True,
    help="Values of ask_delta: a question with margin p is asked with probability d / (d + |p|).",
)
@click.option(
    "--n-tuples",
    "--n-triplets",
    "-n",
    "n_tuples",
    type=COUNT,
    help="Candidate questions, drawn from labels (default: 20,000).",
)
@click.option(
    "--seeds",
    "n_seeds",
    type=COUNT,
    default=5,
    show_default=True,
    help="Repetitions, each with its own split and stream.",
)
@click.option("--seed", type=NATURAL, default=0, show_default=True, help="First seed.")
@click.option(
    "--test-share",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.2,
    show_default=True,
    help="Share of items (of triplets, with --triplets) held out for measuring.",
)
@click.option("--n-test", type=COUNT, help="Held-out triplets drawn from labels (default: 10,000).")
@on_error_option
@click.option("--unit-norm", is_flag=True, help="Scale rows to length one.")
@json_option
@click.option("--plot", type=FILE, help="Draw the table into this file (.png, .svg, .pdf).")
@quiet_option
def active(
    items: Path,
    labels_file: Path | None,
    label_column: str | int | None,
    n_features: int | None,
    tasks_file: Path | None,
    triplets: Path | None,
    algorithm: str,
    params: tuple[tuple[str, Any], ...],
    deltas: tuple[float, ...],
    n_tuples: int | None,
    n_seeds: int,
    seed: int,
    test_share: float,
    n_test: int | None,
    on_error: str,
    unit_norm: bool,
    as_json: bool,
    plot: Path | None,
    quiet: bool,
) -> None:
    """Simulate active learning: how good does the similarity get with how many answers?

    A stream of questions (is the anchor more like the first or the second candidate?) is shown to learners
    that ask for answers where they are unsure (active, for each of --deltas), for as many at random, or for
    all. All strategies see the same stream. The results are measured on held-out items, or held-out recorded
    triplets, separately for each task, and averaged over tasks. dot is the untrained inner product.

    \b
    simstream active items.npz --plot active.png
    simstream active items.npz --tasks users.txt -p C=0.1 -n 20000 --seeds 5
    simstream active items.npy --triplets answers.csv --deltas 0.01,0.1,1 --json

    Ctrl-C shows the results of the finished seeds.
    """
    from .inputs import read_rows, read_tasks_of

    configure_logging(quiet)
    if plot is not None:
        check_picture(plot)
    if triplets is not None:
        refuse_options(
            "applies to triplets drawn from labels: not with --triplets",
            {
                "--labels": labels_file is not None,
                "--tasks": tasks_file is not None,
                "--n-tuples": n_tuples is not None,
                "--n-test": n_test is not None,
            },
        )
    learning = dict(params)
    _check_parameters(learning, deltas)
    with stopping_at_once("interrupted before the first question: there is nothing to show"):
        rows = read_rows(
            items,
            unit_norm=unit_norm,
            n_features=n_features,
            label_column=label_column,
            labels_file=labels_file,
        )
        recorded = None
        if triplets is not None:
            recorded = _read_questions(triplets, rows.n, on_error)
            n_test = min(len(recorded.y) - 1, max(1, round(test_share * len(recorded.y))))
            n_rounds = len(recorded.y) - n_test
        elif rows.labels is None:
            raise click.UsageError(
                f"{items} has no labels: expected --labels, --label-column or --triplets, got none"
            )
        else:
            rows = read_tasks_of(rows, tasks_file)
            n_rounds, n_test = n_tuples or 20_000, n_test or 10_000
        new_learner(algorithm, learning)  # complains about parameters now
    results: list[dict[str, Any]] = []
    n_done = n_seen = 0
    n_runs = 2 * len(deltas) + 1
    with (
        Interruption() as interruption,
        progress(quiet, "questions", total=n_seeds * n_runs * n_rounds) as report,
    ):

        def advance(n: int) -> None:
            nonlocal n_seen
            n_seen += n
            report(n_seen)
            if interruption.requested():
                raise _Stop

        for number in range(seed, seed + n_seeds):
            try:
                if recorded is not None:
                    trial = _split_trial(recorded, n_test, number)
                else:
                    trial = _drawn_trial(
                        rows, n_rounds, n_test, test_share, number, is_first=number == seed
                    )
                results += list(_run(trial, rows, algorithm, learning, deltas, number, advance))
            except _Stop:
                break
            n_done += 1
    is_cut = n_done < n_seeds
    if not results:
        if not as_json:
            logger.warning(
                "interrupted before the first of %d seeds was done: there is nothing to show",
                n_seeds,
            )
        click.get_current_context().exit(128 + (interruption.signal or 0))
    facts = {
        "items": str(items),
        "algorithm": algorithm,
        "parameters": learning,
        "n_questions": n_rounds,
        "n_seeds": n_done,
        "interrupted": is_cut,
    }
    _show(results, facts, as_json, plot)
    if is_cut:
        logger.warning("interrupted; %d of %d seeds were done", n_done, n_seeds)
        click.get_current_context().exit(128 + (interruption.signal or 0))


def _check_parameters(params: dict[str, Any], deltas: tuple[float, ...]) -> None:
    for name in _VARIED:
        if name in params:
            raise click.BadParameter(
                f"{name} is varied by the command itself; expected --deltas", param_hint="--param"
            )
    for delta in deltas or ("none",):
        if not (isinstance(delta, float) and math.isfinite(delta) and delta > 0):
            raise click.BadParameter(f"expected numbers > 0, got {delta}", param_hint="--deltas")


# -- streams of questions -------------------------------------------------------------------------


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
    #: Rows of held-out items, for mAP; None if there are no labels.
    test_rows: np.ndarray | None


def _drawn_trial(
    rows: Rows, n_rounds: int, n_test: int, share: float, seed: int, *, is_first: bool
) -> Trial:
    """A stream about some items, drawn from labels, and held-out questions about the others.

    The first trial reports which tasks are too small.
    """
    import numpy as np

    from .. import TaskTripletSampler
    from ..data import FormatError

    labels = rows.labels
    assert labels is not None
    tasks = np.zeros(len(labels), int) if rows.tasks is None else rows.tasks
    rng = np.random.default_rng(seed)
    is_test = _held_out_items(labels, tasks, share, rng)
    parts = []
    for is_chosen, n in ((~is_test, n_rounds), (is_test, n_test)):
        chosen = np.flatnonzero(is_chosen)
        try:
            sampler = TaskTripletSampler(labels[chosen], tasks[chosen], rng)
        except ValueError as error:
            raise FormatError(
                f"{rows.path}: too few items to hold out a share of {share:g} of every class ({error})"
            ) from error
        if is_first:
            report_left_out(sampler.left_out)
        triplets, y, names = sampler.draw(n)
        parts.append(Questions(chosen[triplets], y, None if rows.tasks is None else names))
    return Trial(parts[0], parts[1], np.flatnonzero(is_test))


def _read_questions(path: Path, n_items: int, on_error: str) -> Questions:
    """Recorded questions with their answers."""
    import numpy as np

    from ..data import FormatError
    from .inputs import read_records

    (triplets, y, tasks), n_bad = read_records(path, "triplets", on_error=on_error, n_items=n_items)
    if n_bad:
        logger.info("%s skipped", plural(n_bad, "bad record"))
    if len(triplets) < 2:
        raise FormatError(
            f"{path}: expected at least two triplets, one of them to hold out, got one"
        )
    return Questions(triplets, np.ones(len(triplets), np.int64) if y is None else y, tasks)


def _split_trial(questions: Questions, n_test: int, seed: int) -> Trial:
    """Recorded questions in an order of the seed's own, the first of them held out."""
    import numpy as np

    order = np.random.default_rng(seed).permutation(len(questions.y))
    return Trial(questions.at(order[n_test:]), questions.at(order[:n_test]), None)


def _held_out_items(
    labels: np.ndarray, tasks: np.ndarray, share: float, rng: np.random.Generator
) -> np.ndarray:
    """A random share of every class of every task: whether each item is held out."""
    import numpy as np

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


# -- strategies -----------------------------------------------------------------------------------


def _run(
    trial: Trial,
    rows: Rows,
    algorithm: str,
    params: dict[str, Any],
    deltas: tuple[float, ...],
    seed: int,
    advance: Callable[[int], None],
) -> Iterator[dict[str, Any]]:
    """Every strategy on the stream of one seed: the share of questions it asked, and measures.

    `advance` is called with the number of questions considered since the last call; it raises to end the run.
    """

    def learn(strategy: str, **asking: Any) -> Any:
        learner = new_learner(algorithm, params, seed=seed)
        learner.set_params(preprocessor=rows.items, query=strategy, **asking)
        block = learner.prepare()
        step = block * math.ceil(_PIECE / block)  # whole blocks
        for first in range(0, len(trial.stream.y), step):
            piece = trial.stream.at(slice(first, first + step))
            learner.partial_fit(piece.triplets, tasks=piece.tasks, oracle=piece.y)
            advance(len(piece.y))
        return learner

    def result(strategy: str, delta: float | None, asked: float, model: Any) -> dict[str, Any]:
        measures = _measure(model, trial, rows)
        about = {"strategy": strategy, "delta": delta, "seed": seed, "asked": asked}
        return about | {"measures": measures}

    yield result(NONE, None, 0.0, untrained(NONE, rows.items.shape[1], rows.items.dtype))
    for delta in deltas:
        learner = learn(ACTIVE, ask_delta=delta)
        asked = float(learner.query_ratio_)
        yield result(ACTIVE, delta, asked, learner)
        learner = learn(RANDOM, ask_rate=asked)
        yield result(RANDOM, delta, float(learner.query_ratio_), learner)
    yield result(ALL, None, 1.0, learn(ALL))


def _measure(model: Any, trial: Trial, rows: Rows) -> dict[str, float]:
    """Measure on what was held out, each task separately, and average over tasks."""
    from statistics import fmean

    from ..data.samplers import nearer_first
    from ..metrics import ranking_report, triplet_accuracy

    held_out, test_rows = trial.held_out, trial.test_rows
    values: dict[str, list[float]] = {}
    for task in [None] if held_out.tasks is None else dict.fromkeys(held_out.tasks.tolist()):
        own = model.for_task(task) if hasattr(model, "for_task") else model
        own.set_params(preprocessor=rows.items)
        questions = held_out if task is None else held_out.at(held_out.tasks == task)
        accuracy = triplet_accuracy(own, nearer_first(questions.triplets, questions.y))
        values.setdefault(ACCURACY, []).append(accuracy)
        if test_rows is not None:
            inside = test_rows
            if task is not None and rows.tasks is not None:
                inside = test_rows[rows.tasks[test_rows] == task]
            report = ranking_report(own, rows.items[inside], rows.labels[inside], k=())  # type: ignore[index]
            values.setdefault(MAP, []).append(report[MAP])
    return {measure: fmean(found) for measure, found in values.items()}


# -- showing it -----------------------------------------------------------------------------------


def _show(
    results: list[dict[str, Any]], facts: dict[str, Any], as_json: bool, plot: Path | None
) -> None:
    strategies = _strategies(results)
    measures = list(results[0]["measures"])
    title = (
        f"{Path(facts['items']).name}, {facts['algorithm']}, {facts['n_questions']:,} questions, "
        f"{plural(facts['n_seeds'], 'seed')}"
    )
    if as_json:
        echo_json(facts | {"strategies": strategies, "runs": results})
    else:
        what = ", mean \u00b1 standard deviation" if facts["n_seeds"] > 1 else ""
        cells = [_cells(strategy, measures) for strategy in strategies]
        header = ["strategy", "delta", "asked", *measures]
        echo_table(header, cells, title=f"{title}{what}")
    if plot is not None:
        from ..plots import active_figure, save_figure

        # Measure -> strategy -> points (share asked, mean, spread), as the picture wants them.
        curves: dict[str, dict[str, list[Any]]] = {measure: {} for measure in measures}
        for strategy in sorted(strategies, key=lambda one: one["asked"]["mean"]):
            for measure, lines in curves.items():
                point = (strategy["asked"]["mean"], *strategy[measure].values())
                lines.setdefault(strategy["strategy"], []).append(point)
        save_figure(active_figure(curves, title=title), plot)
        logger.info("picture written to %s", plot)


def _strategies(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and spread over seeds of every strategy, in the order in which they ran, as JSON values."""
    values: dict[tuple[str, float | None], dict[str, list[float]]] = {}
    for result in results:
        found = values.setdefault((result["strategy"], result["delta"]), {})
        for name, value in {"asked": result["asked"], **result["measures"]}.items():
            found.setdefault(name, []).append(value)
    return [
        {"strategy": strategy, "delta": delta}
        | {name: _mean_and_spread(of_seeds) for name, of_seeds in found.items()}
        for (strategy, delta), found in values.items()
    ]


def _mean_and_spread(values: list[float]) -> dict[str, float | None]:
    from statistics import fmean, stdev

    return {"mean": fmean(values), "spread": stdev(values) if len(values) > 1 else None}


def _cells(strategy: dict[str, Any], measures: list[str]) -> list[str]:
    cells = [
        strategy["strategy"],
        "" if strategy["delta"] is None else f"{strategy['delta']:g}",
        as_percent(strategy["asked"]["mean"]),
    ]
    for measure in measures:
        mean, spread = strategy[measure].values()
        cells.append(f"{mean:.4f}" if spread is None else f"{mean:.4f} \u00b1 {spread:.4f}")
    return cells
