"""What ``simstream adapt`` does: read vectors and feedback, learn query by query, save and report."""

from __future__ import annotations

import json
import math
import time
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import scipy.sparse as sp

from .. import Adapter
from ..adaptation.report import MEASURES, AdaptationReport, Comparison
from ..data import FormatError, read_clicks, read_labels, read_texts
from ..data.files import format_error, open_text_output
from ..metrics import measure_ranking, paired_interval
from .exits import BEFORE_LEARNING, LEARNING, Interruption, Stopped
from .inputs import (
    Collection,
    OpenedModel,
    Rows,
    TrainingRecord,
    names_in_feedback,
    open_model,
    queries_beside,
    read_collection,
    read_judgements,
    with_ids,
)
from .learners import DEFAULT_SEED, untrained
from .options import check_picture, check_writable, refuse_options, unfinished_file
from .output import as_rate, echo_json, echo_table, logger, progress
from .sources import earlier_state
from .training import LearningPace

_REPORT_FORMATS = (".md", ".json")

_COLUMNS = ("measure", "baseline", "adapted", "gain", "95 % interval")


class AdaptOptions(SimpleNamespace):
    """The options of the command, under the names that click gives them, and what follows from them."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.output = given["output"] or given["resume"]
        #: The file of judgements or clicks.
        self.feedback = given["relevance"] or given["clicks"]
        #: What is learnt from.
        self.unit = "searches" if given["relevance"] is None else "queries"
        #: Parameters of the adapter that were given; ``...`` stands for a half-life that was not.
        params = {name: given[name] for name in ("measure", "caution", "clearance", "half_life")}
        params["random_state"] = given["seed"]
        self.params = {
            name: value
            for name, value in params.items()
            if value is not ... and (value is not None or name == "half_life")
        }


def _check_options(options: AdaptOptions) -> None:
    """Refuse conflicting options before anything is read."""
    if (options.relevance is None) == (options.clicks is None):
        got = "neither" if options.relevance is None else "both"
        raise click.UsageError(f"expected --relevance or --clicks, got {got}")
    if options.output is None:
        raise click.UsageError("expected --output (or --resume), got neither")
    if options.clicks is None:
        refuse_options("is for --clicks", {"--propensity": options.propensity != "none"})
    else:
        refuse_options("is for --relevance", {"--holdout": options.holdout is not None})
    if options.queries is None:
        refuse_options("requires --queries", {"--query-ids": options.query_ids is not None})
        has_names = options.relevance is not None
        refuse_options("requires --queries", {"--texts": options.texts and not has_names})
    written = {"--output": options.output, "--report": options.report, "--plot": options.plot}
    names = ("items", "queries", "feedback", "item_ids", "query_ids", "texts")
    read = [path.resolve() for name in names if (path := getattr(options, name)) is not None]
    for option, path in written.items():
        if path is None:
            continue
        if path.resolve() in read:
            text = f"{path}: expected a new file, got one of the inputs"
            raise click.BadParameter(text, param_hint=option)
        read.append(path.resolve())
        check_writable(path, option)
    if options.report is not None and options.report.suffix.lower() not in _REPORT_FORMATS:
        expected = " or ".join(_REPORT_FORMATS)
        text = f"{options.report}: expected {expected}, got {options.report.suffix!r}"
        raise click.BadParameter(text, param_hint="--report")
    if options.plot is not None:
        check_picture(options.plot)


def adapt_search(options: AdaptOptions) -> None:
    """Adapt as the options say, save the model, report and show what was gained."""
    _check_options(options)
    model = None if options.resume is None else _open_earlier(options)
    record = TrainingRecord(bool(options.unit_norm)) if model is None else model.record
    adapter = _new_adapter(options) if model is None else model.learner
    data = _read_vectors(options, model, record.unit_norm)
    holdout = _holdout(options, record.input)
    feedback, held = _read_feedback(options, data, record.input, holdout)
    texts = _read_texts(options, data)
    # Before the first query, so that an interruption has something to save from the first moment on.
    adapter.set_items(data.items.items, data.items.ids)
    before, skipped_before = adapter.n_queries_, adapter.n_skipped_
    unfinished = unfinished_file(options.output, options.resume)
    with Interruption() as interruption:
        pace = _learn(adapter, feedback, options, interruption.requested)
        # A signal that arrives with the last piece, or later, interrupts nothing.
        signal = interruption.signal if feedback.position < len(feedback) else None
        if signal is not None and not pace.n_learnt:
            raise Stopped(signal, f"interrupted{BEFORE_LEARNING}")
        if signal is None and not adapter.n_queries_:
            raise FormatError(
                f"{options.feedback}: nothing to learn from; expected a query that is not zero with "
                "a relevant item, got none"
            )
        record = TrainingRecord(record.unit_norm, feedback.state())
        saved = options.output if signal is None else unfinished
        adapter.save(saved, extra=record.as_extra())
    report = adapter.report(texts)
    _write(options, report)
    facts = {
        "model": str(saved),
        "n_learnt": adapter.n_queries_ - before,
        "n_skipped": adapter.n_skipped_ - skipped_before,
        "seconds": pace.seconds,
        "interrupted": signal is not None,
    }
    outcome = None if held is None or signal is not None else _measure_held(adapter, data, held)
    if outcome is not None:
        facts["holdout"] = {"n_queries": outcome[0]} | {
            name: one._asdict() for name, one in outcome[1].items()
        }
    _show(options, report, facts, outcome)
    if signal is not None:
        logger.warning(
            "interrupted; what was learnt is saved to %s. To continue, repeat the command with --resume %s",
            saved,
            saved,
        )
        click.get_current_context().exit(128 + signal)


# -- what there is ------------------------------------------------------------------------------


def _open_earlier(options: AdaptOptions) -> OpenedModel:
    """Load the model to go on with, unless other options conflict with it."""
    model = open_model(options.resume)
    if not isinstance(model.saved, Adapter):
        raise click.UsageError(
            f"--resume: expected a model of simstream adapt, got one of {type(model.saved).__name__}"
        )
    for name, asked in {**options.params, "unit_norm": options.unit_norm}.items():
        is_own = name == "unit_norm"
        known = model.record.unit_norm if is_own else getattr(model.learner, name)
        is_given = asked is not None or name == "half_life"
        if is_given and asked != known:
            option = {"random_state": "--seed"}.get(name, f"--{name.replace('_', '-')}")
            raise click.UsageError(f"--resume: expected {option} {known} as before, got {asked}")
    return model


def _new_adapter(options: AdaptOptions) -> Adapter:
    adapter = Adapter(**{"random_state": DEFAULT_SEED, **options.params})
    try:
        adapter.check_parameters()
    except (TypeError, ValueError) as error:
        option = f"--{str(error).partition(':')[0].replace('_', '-')}"
        raise click.BadParameter(str(error), param_hint=option) from error
    return adapter


def _read_vectors(options: AdaptOptions, model: OpenedModel | None, unit_norm: bool) -> Collection:
    """Items and queries of one width, with their ids."""
    asking = queries_beside(options.items, options.queries)
    data = read_collection(
        options.items,
        asking,
        model=model,
        unit_norm=unit_norm,
        dtype="float32",
        n_features=options.n_features,
    )
    items = with_ids(data.items, options.item_ids)
    if data.queries is None:
        return Collection(items)
    queries = with_ids(data.queries, options.query_ids)
    widths = [rows.items.shape[1] for rows in (items, queries)]
    if widths[0] != widths[1]:
        # A sparse file does not tell of features after the last one in use.
        items, queries = (
            rows._replace(items=_widened(rows, max(widths))) for rows in (items, queries)
        )
    return Collection(items, queries)


def _widened(rows: Rows, width: int) -> Any:
    own = rows.items.shape[1]
    if own == width:
        return rows.items
    if not sp.issparse(rows.items):
        raise format_error(rows.path, "queries and items differ in features", f"{width}", own)
    parts = rows.items.data, rows.items.indices, rows.items.indptr
    return sp.csr_matrix(parts, shape=(rows.n, width))


def _read_texts(options: AdaptOptions, data: Collection) -> dict[Any, str] | None:
    """Texts by the names of the queries."""
    if options.texts is None:
        return None
    texts = read_texts(options.texts, names_in_feedback(data.asking))
    names = range(len(texts)) if data.asking.ids is None else data.asking.ids
    pairs = zip(names, texts, strict=True)
    return {name: text for name, text in pairs if text is not None}


# -- feedback -----------------------------------------------------------------------------------


class _Feedback:
    """Queries to learn from, one after the other, from where an earlier run stopped.

    The judgements of a query are taken together, where its first one is; those that a file has gained since
    an earlier run come after those it had then.

    Parameters
    ----------
    path : file of feedback
    unit : what is learnt from, in the plural
    records : judgements or searches, in the order of the file
    grouped : function from records to what is learnt one after the other
    learn : function of an adapter and some of these
    before : state that an earlier run ended with, perhaps of another file
    holdout : share of the queries that was left out of the records
    """

    def __init__(
        self,
        path: Path,
        unit: str,
        records: Any,
        grouped: Callable[[Any], list[Any]],
        learn: Callable[[Adapter, Sequence[Any]], None],
        before: dict[str, Any] | None,
        holdout: float = 0.0,
    ) -> None:
        self._identity: dict[str, Any] = {"kind": "feedback", "path": str(path), "tuples": unit}
        if holdout:
            self._identity["holdout"] = holdout
        earlier = earlier_state(before, self._identity) or {"position": 0, "ends": []}
        self.unit = unit
        self.position: int = earlier["position"]
        self._ends: list[int] = [*earlier["ends"]]
        if self._ends and self._ends[-1] > len(records):
            expected = f"at least {self._ends[-1]} records, as before"
            raise format_error(path, "shorter than before", expected, len(records))
        if not self._ends or self._ends[-1] < len(records):
            self._ends.append(len(records))
        self._queries = [
            query
            for begin, end in pairwise([0, *self._ends])
            for query in grouped(records[begin:end])
        ]
        self._learn = learn
        if self.position:
            logger.info("continuing after %s %s of %s", f"{self.position:,}", unit, path)
        if self.position == len(self):
            logger.info("nothing new to learn from in %s", path)

    def __len__(self) -> int:
        return len(self._queries)

    def learn(self, adapter: Adapter, n: int) -> int:
        """Let an adapter learn from the next n queries; returns how many there were."""
        part = self._queries[self.position : self.position + n]
        self._learn(adapter, part)
        self.position += len(part)
        return len(part)

    def state(self) -> dict[str, Any]:
        """How far it was learnt, as JSON values."""
        return {**self._identity, "position": self.position, "ends": self._ends}


def _read_feedback(
    options: AdaptOptions, data: Collection, before: dict[str, Any] | None, holdout: float
) -> tuple[_Feedback, np.ndarray | None]:
    """What is learnt from, and the judgements that are held out, if some are."""
    queries, items = data.queries, data.items
    held = None
    if options.relevance is not None:
        asking = data.asking  # the items themselves, if there are no other queries
        records = read_judgements(options.relevance, asking, items)
        if holdout:
            records, held = _divided(records, asking, holdout, options.relevance)
        learn = _learner_of_judgements(asking, items)
        feedback = _Feedback(
            options.relevance, options.unit, records, _by_query, learn, before, holdout
        )
    else:
        searches = read_clicks(
            options.clicks,
            queries=names_in_feedback(queries),
            items=names_in_feedback(items),
            n_features=items.items.shape[1],
        )
        if not any(search.clicked for search in searches):
            raise FormatError(f"{options.clicks}: no click; expected at least one, got none")
        longest = max(len(search.shown) for search in searches)
        propensities = _propensities(options.propensity, longest)
        learn = _learner_of_clicks(queries, items, propensities)
        feedback = _Feedback(options.clicks, options.unit, searches, list, learn, before)
    return feedback, held


def _holdout(options: AdaptOptions, before: dict[str, Any] | None) -> float:
    """The share of queries to hold out: those that an earlier run did not learn from stay apart."""
    known = None if before is None else before.get("holdout", 0.0)
    asked = options.holdout
    if known is not None and asked is not None and asked != known:
        raise click.UsageError(f"--resume: expected --holdout {known:g} as before, got {asked:g}")
    return float((asked if known is None else known) or 0.0)


def _divided(
    records: np.ndarray, queries: Rows, share: float, path: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Judgements to learn from, and those of queries that are held out.

    A checksum of its name decides: so a query stays where it is when the file grows.
    """
    rows = np.unique(records[:, 0]).astype(int).tolist()
    names = rows if queries.ids is None else [queries.ids[row] for row in rows]
    chosen = [
        row
        for row, name in zip(rows, names, strict=True)
        if zlib.crc32(str(name).encode()) < share * 2**32
    ]
    is_held = np.isin(records[:, 0], chosen)
    if not (records[is_held, 2] > 0).any() or not (records[~is_held, 2] > 0).any():
        expected = "queries with a relevant item to learn from, and to hold out"
        found = f"{len(chosen)} of {len(rows)} queries held out"
        raise format_error(path, "too few queries for --holdout", expected, found)
    return records[~is_held], records[is_held]


def _measure_held(
    adapter: Adapter, data: Collection, held: np.ndarray
) -> tuple[int, dict[str, Comparison]] | None:
    """The finished model and the baseline on queries that were held out: their number, and measures."""
    pool = None if data.queries is None else data.items.items
    if pool is None and (held[held[:, 2] > 0, 0] == held[held[:, 2] > 0, 1]).all():
        return None  # items are no candidates for themselves
    adapted, baseline = (
        measure_ranking(model, data.asking.items, pool, relevance=held, k=(1, 10))
        for model in (adapter, untrained("dot", data.items.items.shape[1], adapter.dtype_))
    )
    compared = {}
    for name in MEASURES:
        before, after = baseline.per_query[name], adapted.per_query[name]
        gain = paired_interval(after - before)
        compared[name] = Comparison(
            float(np.nanmean(before)), float(np.nanmean(after)), gain.low, gain.high
        )
    return adapted.means()["n_queries"], compared


def _by_query(judgements: np.ndarray) -> list[np.ndarray]:
    """The judgements of each query, queries in the order of their first one."""
    if not len(judgements):
        return []
    order = np.argsort(judgements[:, 0], kind="stable")
    ends = np.flatnonzero(np.diff(judgements[order, 0])) + 1
    places = sorted(np.split(order, ends), key=lambda part: part[0])
    return [judgements[part] for part in places]


def _learner_of_judgements(
    queries: Rows, items: Rows
) -> Callable[[Adapter, Sequence[np.ndarray]], None]:
    def learn(adapter: Adapter, judged: Sequence[np.ndarray]) -> None:
        rows = [int(part[0, 0]) for part in judged]
        names: Any = rows if queries.ids is None else [queries.ids[row] for row in rows]
        relevance = [
            (name, int(item) if items.ids is None else items.ids[int(item)], grade)
            for name, part in zip(names, judged, strict=True)
            for _, item, grade in part.tolist()
        ]
        own = names if queries is items else None
        adapter.partial_fit(queries.items[rows], relevance, query_ids=names, own_items=own)

    return learn


def _learner_of_clicks(
    queries: Rows | None, items: Rows, propensities: np.ndarray | None
) -> Callable[[Adapter, Sequence[Any]], None]:
    def named(rows: list[int]) -> list[Any]:
        return rows if items.ids is None else [items.ids[row] for row in rows]

    def learn(adapter: Adapter, searches: Sequence[Any]) -> None:
        for query, shown, clicked in searches:
            name = None
            vector = query
            if isinstance(query, int):
                assert queries is not None
                vector = queries.items[query]
                name = query if queries.ids is None else queries.ids[query]
            given = None if propensities is None else propensities[: len(shown)]
            adapter.learn_one(vector, named(shown), named(clicked), propensities=given, name=name)

    return learn


def _propensities(given: str, n: int) -> np.ndarray | None:
    """Probabilities that an item at each of the first n ranks is looked at."""
    if given == "none":
        return None
    try:
        power = float(given)
    except ValueError:
        path = Path(given)
        found = read_labels(path)
        if found.dtype.kind not in "iuf" or not ((found > 0) & (found <= 1)).all():
            expected = "numbers above 0 and at most 1"
            raise format_error(path, "not probabilities", expected, found.tolist()[:5]) from None
        if len(found) < n:
            expected = f"{n}, for as many items as are shown"
            raise format_error(path, "too few ranks", expected, len(found)) from None
        return found[:n].astype(np.float64)
    if not 0 <= power < math.inf:
        text = f"expected none, a power of at least 0 or a file, got {given}"
        raise click.BadParameter(text, param_hint="--propensity")
    return np.maximum(np.arange(1.0, n + 1) ** -power, np.finfo(float).tiny)


# -- learning -----------------------------------------------------------------------------------


def _learn(
    adapter: Adapter, feedback: _Feedback, options: AdaptOptions, stop: Callable[[], bool]
) -> LearningPace:
    """Learn query by query until there are no more, or a signal asks to stop."""

    def measurements() -> list[str]:
        chosen = adapter.chosen_
        return [as_rate(pace.rate), "baseline" if chosen is None else f"trust {chosen[1]:g}"]

    pace = LearningPace()
    done = feedback.position
    with progress(options.quiet, feedback.unit, total=len(feedback), done=done) as report:
        while feedback.position < len(feedback) and not stop():
            started = time.perf_counter()
            n = feedback.learn(adapter, pace.wish)
            pace.note(n, time.perf_counter() - started)
            click.get_current_context().meta[LEARNING] = True
            report(feedback.position, measurements)
    return pace


# -- showing it ---------------------------------------------------------------------------------


def _write(options: AdaptOptions, report: AdaptationReport) -> None:
    """Write the report and the picture that were asked for."""
    if options.report is not None:
        with open_text_output(options.report) as file:
            if options.report.suffix.lower() == ".json":
                json.dump(report.to_dict(), file, indent=2, ensure_ascii=False)
                file.write("\n")
            else:
                file.write(report.to_markdown())
        logger.info("report written to %s", options.report)
    if options.plot is not None:
        from ..plots import adaptation_figure, save_figure

        save_figure(adaptation_figure(report), options.plot)
        logger.info("picture written to %s", options.plot)


def _show(
    options: AdaptOptions,
    report: AdaptationReport,
    facts: dict[str, Any],
    outcome: tuple[int, dict[str, Comparison]] | None,
) -> None:
    if options.as_json:
        echo_json(report.to_dict() | facts)
        return
    if options.quiet:
        return
    skipped = ""
    if facts["n_skipped"]:
        skipped = f", {facts['n_skipped']:,} skipped (zero, or without a relevant item)"
    learnt = f"{facts['n_learnt']:,} {options.unit} learnt in {facts['seconds']:.1f} s{skipped}"
    echo_table(
        _COLUMNS,
        [_cells(name, one) for name, one in report.measures.items()],
        title=f"{learnt}; measured on {report.n_queries:,} before they were learnt from",
    )
    if outcome is not None:
        click.echo()
        echo_table(
            _COLUMNS,
            [_cells(name, one) for name, one in outcome[1].items()],
            title=f"the outcome on {outcome[0]:,} queries held out, which were never learnt from",
        )
    click.echo()
    click.echo(f"used from now on: {_used(report)} ({facts['model']})")
    click.echo(report.verdict)


def _cells(name: str, one: Comparison) -> list[str]:
    interval = f"{one.low:+.4f} to {one.high:+.4f}" if math.isfinite(one.low) else ""
    return [name, f"{one.baseline:.4f}", f"{one.adapted:.4f}", f"{one.gain:+.4f}", interval]


def _used(report: AdaptationReport) -> str:
    if report.choice is None:
        return "the baseline, unchanged"
    return (
        f"{100 * report.choice.trust:g} % of what candidate {report.choice.candidate} would change"
    )
