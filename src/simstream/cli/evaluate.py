"""``simstream evaluate``: measure a model and the baselines on the same data, if need be task by task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .learners import (
    ALGORITHMS,
    BASELINES,
    JUDGED_BASELINES,
    knows_tasks,
    report_left_out,
    similarity_of,
    task_names,
    threshold_of,
    untrained,
)
from .options import (
    COUNT,
    FILE,
    CommaSeparated,
    address_option,
    by_option,
    check_picture,
    item_ids_option,
    json_option,
    label_column_option,
    labels_option,
    memory_option,
    on_error_option,
    query_ids_option,
    refuse_options,
    scoring_device_option,
    tasks_option,
    workers_option,
)
from .output import echo_json, echo_table, logger, plural

if TYPE_CHECKING:
    import numpy as np

    from ..metrics import Interval, RankingMeasures
    from .inputs import Collection, OpenedModel

    #: Of each task: items and queries to rank, if they have labels, and triplets to judge, the nearer
    #: candidate first. Without tasks there is one part, called None.
    Parts = dict[str | None, tuple[Collection | None, np.ndarray | None]]

#: Model name -> measure -> value.
Results = dict[str, dict[str, float]]

#: What the learnt model is called beside the baselines.
LEARNT = "learnt"
TRIPLET_ACCURACY = "triplet accuracy"
PAIR_ACCURACY = "pair accuracy"
ROC_AUC = "ROC AUC"
_KNN_ERROR = "k-NN error@"

#: Entries of a ranking report that describe the data, not the model.
_NOT_MEASURES = ("random_P", "n_queries", "n_left_out")

#: Up to this many tasks have a column each.
_MOST_TASKS = 8


@click.command(short_help="Measure a model beside the baselines.")
@click.argument("model", type=FILE)
@click.argument("items", type=FILE)
@labels_option
@label_column_option
@click.option(
    "--queries", type=FILE, help="Rank ITEMS for these queries instead of for each other."
)
@click.option("--query-labels", type=FILE, help="Labels of --queries (default: those in the file).")
@click.option(
    "--relevance",
    type=FILE,
    help="Judgements instead of labels: query, item and maybe a grade, above 0 if relevant (.tsv, .csv, "
    ".txt, .jsonl, .npy, .npz, .parquet).",
)
@item_ids_option
@query_ids_option
@tasks_option
@click.option("--query-tasks", type=FILE, help="Tasks of --queries.")
@click.option(
    "--triplets",
    type=FILE,
    help="Triplets of ids or row numbers to judge, optionally with columns task and y.",
)
@click.option(
    "--pairs", type=FILE, help="Pairs of ids or row numbers with +1 or -1 (or 0) to judge."
)
@by_option
@click.option(
    "-k",
    type=CommaSeparated(COUNT, "k,k,..."),
    default="1,5,10",
    show_default=True,
    help="List lengths for P@k, mAP@k, recall@k, nDCG@k and the k-NN error.",
)
@click.option(
    "--map-divisor",
    type=click.Choice(["relevant", "all", "hits"]),
    default="relevant",
    show_default=True,
    help="What mAP@k is divided by: min(k, R) of R relevant items, R as in trec_eval, or those found.",
)
@click.option(
    "--baseline",
    type=CommaSeparated(
        click.Choice([*dict.fromkeys(BASELINES + JUDGED_BASELINES), "none"]), "name,name"
    ),
    help=f"Untrained similarities to compare with, or none (default: {','.join(BASELINES)}; with --relevance "
    f"{','.join(JUDGED_BASELINES)}).",
)
@click.option(
    "--normalise/--no-normalise",
    default=None,
    help="Score by the cosine in the learnt space, or not (default: as the model says).",
)
@on_error_option
@memory_option
@scoring_device_option
@workers_option
@address_option
@json_option
@click.option("--plot", type=FILE, help="Draw the table as bars into this file (.png, .svg, .pdf).")
def evaluate(
    model: Path,
    items: Path,
    labels_file: Path | None,
    label_column: str | int | None,
    queries: Path | None,
    query_labels: Path | None,
    relevance: Path | None,
    item_ids: Path | None,
    query_ids: Path | None,
    tasks_file: Path | None,
    query_tasks: Path | None,
    triplets: Path | None,
    pairs: Path | None,
    by: str | None,
    k: tuple[int, ...],
    map_divisor: str,
    baseline: tuple[str, ...] | None,
    normalise: bool | None,
    on_error: str,
    memory: int,
    device: str,
    workers: int,
    address: str | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Measure MODEL on ITEMS beside the baselines.

    With labels, every item ranks all others (or --queries rank ITEMS), and the items of its class are the
    relevant ones: mAP, MRR, nDCG, P@k, mAP@k, recall@k, and the k-NN error. With --relevance, the same
    measures of judged queries, and how certain the difference to each baseline is. With --triplets, the share
    judged correctly. With --pairs, the share on the right side of the model's threshold (if it has one)
    and the area under the ROC curve.

    \b
    simstream evaluate model.safetensors test.svm -k 1,10 --plot report.png
    simstream evaluate model.safetensors items.npy --triplets held-out.csv --json
    simstream evaluate model.safetensors items.npy --pairs held-out-pairs.csv
    simstream evaluate model.safetensors test.npz --tasks test-users.txt
    simstream evaluate model.safetensors items.npy --queries queries.npy \\
        --relevance qrels.tsv
    simstream evaluate model.safetensors large.npy --labels labels.npy \\
        --queries some.npy --query-labels some-labels.npy --workers 4

    With --tasks, or triplets with a column task, every task is measured separately, with its own matrix if
    the model has one (otherwise with what all tasks share): items rank items of their own task. The table
    shows averages over tasks.

    Items in an .npy or .parquet file are read in blocks, if they are only ranked: the file may be larger than
    memory, and the ranks are exact all the same.
    """
    from .inputs import open_model, queries_beside, read_collection

    if plot is not None:
        check_picture(plot)
    if tasks_file is not None and pairs is not None:
        raise click.UsageError("--pairs have no tasks: expected --triplets or labels with --tasks")
    if query_tasks is not None and queries is None:
        raise click.UsageError("--query-tasks requires --queries")
    judges_tuples = triplets is not None or pairs is not None
    if not judges_tuples:
        refuse_options("requires --triplets or --pairs", {"--by": by is not None})
    if relevance is None:
        ids = {"--item-ids": item_ids is not None, "--query-ids": query_ids is not None}
        if not judges_tuples:
            refuse_options("requires --relevance, --triplets or --pairs", ids)
    else:
        others: dict[str, Any] = {
            "--labels": labels_file,
            "--label-column": label_column,
            "--query-labels": query_labels,
            "--tasks": tasks_file,
            "--triplets": triplets,
            "--pairs": pairs,
        }
        refuse_options(
            "is not for --relevance", {name: given is not None for name, given in others.items()}
        )
        queries = queries_beside(items, queries)
        if queries is None:
            refuse_options("requires --queries", {"--query-ids": query_ids is not None})
    opened = open_model(model)
    if normalise is not None:
        _set_normalise(opened.learner, normalise)
    data = read_collection(
        items,
        queries,
        model=opened,
        label_column=label_column,
        labels_file=labels_file,
        query_labels=query_labels,
        in_blocks=_in_blocks(items, memory, judges_tuples, tasks_file is not None),
    )
    if relevance is not None or (judges_tuples and by != "rows"):
        data = data.with_ids(item_ids, query_ids)
    named = data.names_in_records(by) if judges_tuples else {}
    models = _contestants(opened, baseline, JUDGED_BASELINES if relevance else BASELINES)
    facts: dict[str, Any] = {"model": str(model), "items": str(items)}
    sweeping = _Sweeping(memory, workers, address, device, map_divisor)
    sweeping.n_expected = len(models)
    if relevance is not None:
        if task_names(opened.learner):
            models[LEARNT] = similarity_of(opened.learner)
        with sweeping:
            results, differences = _measure_judged(models, data, relevance, k, sweeping, facts)
        _show(facts, results, {}, as_json, plot, differences)
        return
    must_rank = not judges_tuples or labels_file is not None or label_column is not None
    is_ranked = _can_rank(data, labels_file, must_rank)
    if pairs is None and (tasks_file is not None or knows_tasks(type(opened.learner))):
        data = _with_tasks(data, tasks_file, query_tasks)
    judged = triplet_tasks = None
    if triplets is not None:
        judged, triplet_tasks = _read_triplets(triplets, data, on_error, named, facts)
        if triplet_tasks is not None and pairs is not None:
            raise click.UsageError("--pairs have no tasks: not with --triplets that have tasks")
    has_tasks = data.items.tasks is not None or triplet_tasks is not None
    if has_tasks:
        parts = _parts_of_tasks(data, is_ranked, judged, triplet_tasks, facts)
    else:
        parts = {None: (data if is_ranked else None, judged)}
        if task_names(opened.learner):
            models[LEARNT] = similarity_of(opened.learner)
            facts["measured"] = "what all tasks share"
            logger.info(
                "no tasks given: measuring what all tasks of the model share; --tasks measures each task"
            )
    sweeping.n_expected *= sum(ranked is not None for ranked, _ in parts.values())
    with sweeping:
        by_task = _measure(models, parts, data.preprocessor, k, sweeping, facts)
    results = _average(by_task.values(), models)
    if pairs is not None:
        _judge_pairs(pairs, models, data, on_error, named, results, facts)
    if not has_tasks:
        by_task = {}
    _show(facts, results, by_task, as_json, plot)


def _in_blocks(items: Path, memory: int, judges_tuples: bool, has_tasks: bool) -> tuple[str, ...]:
    """Formats of items that stay in the file."""
    if has_tasks:
        return ()
    if not judges_tuples:
        return ("npy", "parquet")
    # Tuples need rows here and there, which only an .npy file gives, and arrays in memory faster.
    is_large = items.is_file() and items.stat().st_size > memory
    return ("npy",) if is_large else ()


def _set_normalise(learner: Any, normalise: bool) -> None:
    if "normalise" not in learner.get_params(deep=False):
        raise click.UsageError(f"--normalise: not for a model of {type(learner).__name__}")
    if normalise and learner.shape_[0] != learner.shape_[1]:
        raise click.UsageError(
            "--normalise: queries and items of the model have different features"
        )
    learner.set_params(normalise=normalise)


# -- what is measured ---------------------------------------------------------------------------


def _can_rank(data: Collection, labels_file: Path | None, must_rank: bool) -> bool:
    """Whether there are labels to rank by; if not, and ranking is a must, say what is missing.

    A LIBSVM file has a first column even if it means nothing.
    """
    import numpy as np

    from ..data import FormatError

    path = data.items.path
    n_classes = 0 if data.items.labels is None else len(np.unique(data.items.labels))
    if n_classes >= 2 and data.asking.labels is not None:
        return True
    if not must_rank:
        return False
    if data.items.labels is None:
        raise click.UsageError(
            f"{path} has no labels: expected --labels, --label-column, --triplets or --pairs, got none"
        )
    if n_classes < 2:
        raise FormatError(f"{labels_file or path}: labels of one class; expected at least two")
    raise click.UsageError(f"{data.asking.path} has no labels: --query-labels is required")


def _with_tasks(data: Collection, tasks_file: Path | None, query_tasks: Path | None) -> Collection:
    """The same items and queries with their tasks, if both have some."""
    from .inputs import Collection, read_tasks_of

    items = read_tasks_of(data.items, tasks_file)
    if items.tasks is None:
        return data
    if data.queries is None:
        return Collection(items)
    queries = read_tasks_of(data.queries, query_tasks)
    if queries.tasks is not None:
        return Collection(items, queries)
    if tasks_file is None:
        return data
    raise click.UsageError(f"{queries.path} has no tasks: --query-tasks is required")


def _contestants(
    model: OpenedModel, given: tuple[str, ...] | None, usual: tuple[str, ...]
) -> dict[str, Any]:
    """The learnt model and the baselines that make sense beside it: those given, or the usual ones."""
    found = {LEARNT: model.learner}
    n_features, n_of_items = model.learner.shape_
    if n_features != n_of_items:
        logger.info("no baselines: queries and items have different features")
        return found
    own = type(model.learner).__name__
    if own == ALGORITHMS["dot"] and model.learner.normalise:
        own = "cosine"
    for name in usual if given is None else given:
        if name != "none" and ALGORITHMS.get(name, name) != own:
            found[name] = untrained(name, n_features, model.learner.dtype_)
    return found


def _read_triplets(
    path: Path, data: Collection, on_error: str, named: dict[str, Any], facts: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Triplets, the nearer candidate first, and their tasks: by default those of their anchors."""
    from ..data.samplers import nearer_first
    from .inputs import read_records

    (triplets, y, tasks), n_bad = read_records(path, "triplets", on_error=on_error, **named)
    _report_bad(n_bad)
    if tasks is None and data.asking.tasks is not None:
        tasks = data.asking.tasks[triplets[:, 0]]
    facts |= {"n_triplets": len(triplets), "n_bad_records": n_bad}
    return (triplets if y is None else nearer_first(triplets, y)), tasks


def _report_bad(n_bad: int) -> None:
    if n_bad:
        logger.info("%s skipped", plural(n_bad, "bad record"))


# -- measuring ------------------------------------------------------------------------------------


def _measure(
    models: dict[str, Any],
    parts: Parts,
    preprocessor: Any,
    k: tuple[int, ...],
    sweeping: _Sweeping,
    facts: dict[str, Any],
) -> dict[str, Results]:
    """Measures of every part, by the task's own similarity of models that learn tasks."""
    from ..metrics import triplet_accuracy

    names = task_names(models[LEARNT])
    sizes = [
        data.items.n - (data.queries is None) for data, _ in parts.values() if data is not None
    ]
    # Numbers of neighbours that every part has: an average over some of them would be another measure.
    knn = tuple(length for length in k if length <= min(sizes, default=0))
    measured: dict[Any, Results] = {}
    counts = []
    for task, (ranked, triplets) in parts.items():
        measured[task] = {}
        for name, model in models.items():
            own = model
            if task is not None and knows_tasks(type(model)):
                own = model.for_task(names.get(task, task))
            report = {} if ranked is None else _rank(own, ranked, k, knn, sweeping)
            if triplets is not None:
                own.set_params(preprocessor=preprocessor)
                report[TRIPLET_ACCURACY] = triplet_accuracy(own, triplets)
            measured[task][name] = {
                measure: value for measure, value in report.items() if measure not in _NOT_MEASURES
            }
        if ranked is not None:
            counts.append(report)  # what it says about the data is the same for all models
    if counts:
        facts["random_P"] = fsum(one["random_P"] for one in counts) / len(counts)
        facts |= {key: sum(one[key] for one in counts) for key in ("n_queries", "n_left_out")}
    if None not in parts:
        # A model without named tasks has one similarity for all.
        unknown = [task for task in measured if task not in names] if names else []
        if unknown:
            logger.info(
                "%d of %d tasks are unknown to the model (such as %s): measured with what all tasks share",
                len(unknown),
                len(measured),
                unknown[0],
            )
        facts |= {"n_tasks": len(measured), "n_unknown_tasks": len(unknown)}
    return measured


def _rank(
    model: Any, data: Collection, k: tuple[int, ...], knn: tuple[int, ...], sweeping: _Sweeping
) -> dict[str, Any]:
    """Ranking measures for list lengths k, and the k-NN errors for numbers of neighbours."""
    asking, items = data.asking, data.items
    pool = None if data.queries is None else items.items
    found = sweeping.measure(
        model,
        asking.items,
        pool,
        query_labels=asking.labels,
        item_labels=None if pool is None else items.labels,
        k=k,
        neighbors=knn,
    )
    return found.means() | {f"{_KNN_ERROR}{n}": error for n, error in found.knn_errors.items()}


class _Sweeping(ExitStack):
    """How items are ranked: in how much memory, and by how many processes, which end with the context."""

    def __init__(
        self, memory: int, workers: int, address: str | None, device: str, normalizer: str
    ) -> None:
        super().__init__()
        self._memory, self._where = memory, (workers, address, device)
        self._normalizer = normalizer
        self._runner: Any = None
        self._progress: Callable[[int, int], object] | None = None
        #: How often `measure` will be called, and how often it was.
        self.n_expected, self._n_done = 1, 0

    def measure(self, model: Any, queries: Any, items: Any, **given: Any) -> RankingMeasures:
        """Rank items, in processes that are started when they are first needed."""
        from ..metrics import measure_ranking
        from ..search import DeviceRunner
        from .sweeping import percents, runner_of

        if self._progress is None:
            self._runner = self.enter_context(runner_of(*self._where))
            self._progress = self.enter_context(percents())
        tell, before = self._progress, self._n_done
        runner = self._runner
        if isinstance(runner, DeviceRunner) and not runner.can_score(model):
            logger.info("%s: scored on the CPU", type(model).__name__)
            runner = None
        found = measure_ranking(
            model,
            queries,
            items,
            normalizer=self._normalizer,
            memory=self._memory,
            runner=runner,
            progress=lambda n, total: tell(before * total + n, self.n_expected * total),
            **given,
        )
        self._n_done += 1
        return found


def _measure_judged(
    models: dict[str, Any],
    data: Collection,
    path: Path,
    k: tuple[int, ...],
    sweeping: _Sweeping,
    facts: dict[str, Any],
) -> tuple[Results, dict[str, dict[str, Interval]]]:
    """Measures of judged queries, and what the learnt model gains on each baseline, query by query."""
    from ..data import FormatError
    from ..metrics import paired_interval
    from .inputs import read_judgements

    judgements = read_judgements(path, data.asking, data.items)
    pool = None if data.queries is None else data.items.items
    found = {}
    for name, model in models.items():
        try:
            found[name] = sweeping.measure(
                model, data.asking.items, pool, relevance=judgements, k=k
            )
        except ValueError as error:
            if not str(error).startswith("queries: expected at least one"):
                raise
            raise FormatError(f"{path}: no query with a relevant candidate; {error}") from error
    learnt = found[LEARNT].means()
    facts |= {key: learnt[key] for key in _NOT_MEASURES} | {"n_judgements": len(judgements)}
    results = {
        name: {measure: v for measure, v in one.means().items() if measure not in _NOT_MEASURES}
        for name, one in found.items()
    }
    differences = {
        name: {
            measure: paired_interval(found[LEARNT].per_query[measure] - one.per_query[measure])
            for measure in results[LEARNT]
        }
        for name, one in found.items()
        if name != LEARNT
    }
    return results, differences


def _average(parts: Iterable[Results], names: Iterable[str]) -> Results:
    """The average of each measure over the parts that have it."""
    averages: Results = {name: {} for name in names}
    for name, found in averages.items():
        values: dict[str, list[float]] = {}
        for results in parts:
            for measure, value in results[name].items():
                values.setdefault(measure, []).append(value)
        found |= {measure: fsum(all_of) / len(all_of) for measure, all_of in values.items()}
    return averages


def _judge_pairs(
    path: Path,
    models: dict[str, Any],
    data: Collection,
    on_error: str,
    named: dict[str, Any],
    results: Results,
    facts: dict[str, Any],
) -> None:
    """Accuracy of models with a threshold, and, given both kinds of pairs, the area under the ROC curve."""
    from sklearn.metrics import roc_auc_score

    from ..data import FormatError
    from .inputs import read_records

    (pairs, y, _), n_bad = read_records(path, "pairs", on_error=on_error, **named)
    _report_bad(n_bad)
    n_similar = int((y > 0).sum())
    facts |= {"n_pairs": len(pairs), "n_similar": n_similar}
    facts["n_bad_records"] = facts.get("n_bad_records", 0) + n_bad
    facts["threshold"] = threshold_of(models[LEARNT])
    if facts["threshold"] is None:
        logger.info("no pair accuracy: the model has no threshold")
    for name, model in models.items():
        model.set_params(preprocessor=data.preprocessor)
        if threshold_of(model) is not None:
            results[name][PAIR_ACCURACY] = float(
                ((model.pair_distance(pairs) <= model.threshold_) == (y > 0)).mean()
            )
        if 0 < n_similar < len(pairs):
            results[name][ROC_AUC] = float(roc_auc_score(y, model.pair_score(pairs)))
    if not results[LEARNT]:
        raise FormatError(
            f"{path}: nothing to measure without a threshold; expected similar and dissimilar pairs, got "
            "one kind"
        )


# -- task by task ---------------------------------------------------------------------------------


def _parts_of_tasks(
    data: Collection,
    is_ranked: bool,
    triplets: np.ndarray | None,
    triplet_tasks: np.ndarray | None,
    facts: dict[str, Any],
) -> Parts:
    """Items, queries and triplets of each task."""
    from ..data import FormatError

    ranked: dict[str, Collection] = {}
    if is_ranked and data.asking.tasks is not None:
        tasks = dict.fromkeys(data.asking.tasks.tolist())
        found = {task: data.of_task(task) for task in tasks}
        ranked = {task: part for task, part in found.items() if _has_relevant(part)}
        left_out = [task for task in found if task not in ranked]
        report_left_out(left_out)
        facts["n_tasks_left_out"] = len(left_out)
        if not ranked:
            raise FormatError(
                "tasks: expected one with two classes and a query with a relevant candidate, got none in "
                f"{len(found)}"
            )
    elif is_ranked:
        logger.info("labels are not used: only the triplets have tasks; ranking needs --tasks")
    judged: dict[str, np.ndarray] = {}
    if triplets is not None and triplet_tasks is not None:
        for task in dict.fromkeys(triplet_tasks.tolist()):
            judged[task] = triplets[triplet_tasks == task]
    return {task: (ranked.get(task), judged.get(task)) for task in {**ranked, **judged}}


def _has_relevant(part: Collection) -> bool:
    """Whether there are two classes and a query with a relevant candidate."""
    sizes = Counter(part.items.label_list())
    if part.queries is None:
        return len(sizes) >= 2 and max(sizes.values()) >= 2
    return len(sizes) >= 2 and any(label in sizes for label in part.queries.label_list())


# -- showing it -----------------------------------------------------------------------------------


def _show(
    facts: dict[str, Any],
    results: Results,
    by_task: dict[str, Results],
    as_json: bool,
    plot: Path | None,
    differences: dict[str, dict[str, Interval]] | None = None,
) -> None:
    """Print results as a table or as JSON, and draw them if asked for."""
    if as_json:
        told: dict[str, Any] = {"results": results}
        if differences:
            told["differences"] = {
                name: {measure: one._asdict() for measure, one in values.items()}
                for name, values in differences.items()
            }
        echo_json(facts | told | ({"tasks": by_task} if by_task else {}))
    else:
        columns, rows = _table(results, by_task)
        for name, values in (differences or {}).items():
            columns.append(f"{LEARNT} - {name} (95 %)")
            for row in rows:
                mean, low, high = values[row[0]]
                row.append(f"{mean:+.4f} ({low:+.4f} to {high:+.4f})")
        echo_table(columns, rows, title=_title(facts))
    if plot is not None:
        from ..plots import measures_figure, save_figure

        of_tasks = [_drawn(measures) for measures in by_task.values()]
        save_figure(measures_figure(_drawn(results), title=_title(facts), parts=of_tasks), plot)
        logger.info("picture written to %s", plot)


def _table(results: Results, by_task: dict[str, Results]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one measure per row; tasks, if there are some, after the learnt model's average."""
    learnt, *others = results
    tasks = [part[LEARNT] for part in by_task.values()]
    in_full = len(tasks) <= _MOST_TASKS
    between = list(by_task) if in_full else ["lowest task", "highest task"]
    rows = []
    for measure in results[learnt]:
        values = [part.get(measure) for part in tasks]
        if not in_full:
            known = [value for value in values if value is not None]
            values = [min(known), max(known)]
        own = [results[learnt][measure], *values]
        row = [*own, *(results[name].get(measure) for name in others)]
        rows.append([measure, *("" if value is None else f"{value:.4f}" for value in row)])
    return ["measure", learnt, *between, *others], rows


def _drawn(results: Results) -> Results:
    """The measures that can be drawn side by side: those all models have, of which more is better."""
    names = [
        measure
        for measure in next(iter(results.values()))
        if not measure.startswith(_KNN_ERROR)
        and all(measure in measures for measures in results.values())
    ]
    return {name: {measure: found[measure] for measure in names} for name, found in results.items()}


def _title(facts: dict[str, Any]) -> str:
    parts = [Path(facts["model"]).name]
    if "n_queries" in facts:
        left_out = (
            f" ({facts['n_left_out']:,} without a relevant item)" if facts["n_left_out"] else ""
        )
        parts.append(f"{facts['n_queries']:,} queries{left_out}")
    if "n_judgements" in facts:
        parts.append(f"{facts['n_judgements']:,} judgements")
    if "n_triplets" in facts:
        parts.append(f"{facts['n_triplets']:,} triplets")
    if "n_pairs" in facts:
        parts.append(f"{facts['n_pairs']:,} pairs ({facts['n_similar']:,} similar)")
    if "measured" in facts:
        parts.append(facts["measured"])
    if "n_tasks" in facts:
        parts.append(f"average over {facts['n_tasks']:,} tasks")
    return ", ".join(parts)
