"""``simstream info``, and what there is to say about a model, for people and for machines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..catalogue import find
from .learners import is_adapter, is_distance, knows_tasks, threshold_of
from .options import FILE, json_option
from .output import as_percent, echo_fields, echo_json

if TYPE_CHECKING:
    from .inputs import TrainingRecord

#: Features up to which all eigenvalues of a distance are computed to describe it.
_LARGEST_SPECTRUM = 2000

#: Tasks that are listed by name.
_MOST_NAMES = 20

#: Numbers of a parameter that are listed.
_MOST_NUMBERS = 10


@click.command(short_help="Show a model file's contents.")
@click.argument("model", type=FILE)
@json_option
def info(model: Path, as_json: bool) -> None:
    """Show the contents of the file MODEL: class, parameters, counts, shape, position in its input."""
    from .inputs import open_model

    opened = open_model(model)
    facts = summarise(model, opened.learner, opened.record) | {
        "saved_as": type(opened.saved).__name__,
        "simstream_version": opened.header["simstream_version"],
        "format_version": opened.header["format_version"],
    }
    if as_json:
        echo_json(facts)
        return
    fields = summary_fields(facts, opened.record)
    if facts["saved_as"] != facts["class"]:
        fields["saved as"] = f"{facts['saved_as']} around it"
    fields["written by"] = (
        f"simstream {facts['simstream_version']} (file format {facts['format_version']})"
    )
    echo_fields(fields)


def summarise(path: Path, learner: Any, record: TrainingRecord) -> dict[str, Any]:
    """Facts about a learner, the file it is in, and how the command line trained it, as JSON values."""
    params = learner.get_params(deep=False)
    params.pop("preprocessor", None)
    position = record.input
    if position is not None:  # the state of the random generator means nothing to people
        position = {key: value for key, value in position.items() if key != "sampler"}
    return {
        "model": str(path),
        "class": type(learner).__name__,
        "parameters": {name: _plain(value) for name, value in params.items()},
        **(_adaptation(learner) if is_adapter(learner) else _counts(learner)),
        **(_tasks(learner) if knows_tasks(type(learner)) else {}),
        **(_spectrum(learner) if is_distance(learner) else _bilinear(learner)),
        "shape": list(learner.shape_),
        "dtype": str(learner.dtype_),
        "unit_norm": record.unit_norm,
        "file_bytes": path.stat().st_size,
        "position": position,
    }


def _plain(value: Any) -> Any:
    """A parameter as a JSON value: infinity, which JSON does not have, as text; of a matrix only the type."""
    if isinstance(value, tuple) or getattr(value, "ndim", 0) == 1:
        numbers = list(value)
        if len(numbers) <= _MOST_NUMBERS:
            return [_plain(getattr(number, "item", lambda n=number: n)()) for number in numbers]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    is_plain = isinstance(value, bool | int | float | str | None)
    return value if is_plain else f"<{type(value).__name__}>"


def _counts(learner: Any) -> dict[str, Any]:
    """What was counted while learning; a batch learner counts iterations, a given distance nothing."""
    if hasattr(learner, "partial_fit"):
        names = ("n_rounds", "n_updates", "n_skipped", "average_loss", "mistake_rate")
        return {name: getattr(learner, f"{name}_") for name in names}
    kinds: dict[str, Any] = {"n_iter": int, "converged": bool, "objective": float}
    if hasattr(learner, "gap_"):  # others have dual variables of that name
        kinds |= {"primal": float, "dual": float, "gap": float}
    return {
        name: kind(getattr(learner, f"{name}_"))
        for name, kind in kinds.items()
        if hasattr(learner, f"{name}_")
    }


def _tasks(learner: Any) -> dict[str, Any]:
    """How many tasks have names, the first of them, whether one has none; the share of answers asked for."""
    names = [str(task) for task in learner.tasks_ if task is not None]
    ratio = {"query_ratio": learner.query_ratio_} if hasattr(learner, "query_ratio_") else {}
    return {
        "n_tasks": len(names),
        "tasks": names[:_MOST_NAMES],
        "has_nameless_task": len(names) < len(learner.tasks_),
        **ratio,
    }


def _adaptation(adapter: Any) -> dict[str, Any]:
    """What an adapter has learnt from, and whether it is used."""
    chosen = adapter.chosen_
    return {
        "n_queries": adapter.n_queries_,
        "n_judgements": adapter.n_judgements_,
        "n_skipped": adapter.n_skipped_,
        "chosen": None if chosen is None else {"candidate": chosen[0], "trust": chosen[1]},
        "verdict": adapter.report().verdict,
    }


def _bilinear(learner: Any) -> dict[str, Any]:
    """Rank, of a model that is kept in factors, and sparsity, of one that has a matrix."""
    rank = {"rank": learner.rank_} if hasattr(type(learner), "rank_") else {}
    return {**rank, "sparsity": None if is_adapter(learner) else learner.sparsity_}


def _spectrum(learner: Any) -> dict[str, Any]:
    """Threshold and spectrum of a distance; None for what it lacks, or what is too large to compute."""
    import numpy as np

    threshold = threshold_of(learner)
    d, _ = learner.shape_
    if d > _LARGEST_SPECTRUM:
        unknown = ("rank", "effective_dimension", "largest_eigenvalue", "sparsity")
        return {"threshold": threshold, **dict.fromkeys(unknown)}
    values = learner.eigenvalues_
    # As numpy.linalg.matrix_rank counts: what exceeds rounding errors.
    rounding = values[0] * d * np.finfo(learner.dtype_).eps
    return {
        "threshold": threshold,
        "rank": int(np.count_nonzero(values > rounding)),
        "effective_dimension": learner.effective_dimension_,
        "largest_eigenvalue": float(values[0]),
        "sparsity": learner.sparsity_,
    }


def summary_fields(facts: dict[str, Any], record: TrainingRecord) -> dict[str, str]:
    """The same facts as names and texts."""
    from rich.filesize import decimal

    parameters = ", ".join(
        f"{name}={value}" for name, value in facts["parameters"].items() if value
    )
    rows, columns = facts["shape"]
    zeros = "" if facts["sparsity"] is None else f", {as_percent(facts['sparsity'])} zeros"
    return {
        "model": f"{facts['model']} ({decimal(facts['file_bytes'])})",
        "class": f"{facts['class']}({parameters})",
        "matrix": f"{rows:,} x {columns:,}, {facts['dtype']}{zeros}",
        **(_spectrum_fields(facts) if "threshold" in facts else {}),
        **({"rank": f"{facts['rank']:,}"} if facts.get("rank") is not None else {}),
        **_count_fields(facts),
        **(_task_fields(facts) if "n_tasks" in facts else {}),
        "rows": "scaled to length one" if facts["unit_norm"] else "not scaled",
        "position": record.describe(),
    }


def _spectrum_fields(facts: dict[str, Any]) -> dict[str, str]:
    threshold = facts["threshold"]
    fields = {"threshold": "none" if threshold is None else f"{threshold:.6g} (squared distance)"}
    if facts["rank"] is None:
        return fields | {"spectrum": "not computed: too many features"}
    return fields | {
        "effective dimension": f"{facts['effective_dimension']:,}",
        "largest eigenvalue": f"{facts['largest_eigenvalue']:.6g}",
    }


def _count_fields(facts: dict[str, Any]) -> dict[str, str]:
    if "verdict" in facts:
        chosen = facts["chosen"]
        return {
            "queries": f"{facts['n_queries']:,} learnt from, with {facts['n_judgements']:,} judged items; "
            f"{facts['n_skipped']:,} skipped",
            "used": "the baseline, unchanged"
            if chosen is None
            else f"{100 * chosen['trust']:g} % of what candidate {chosen['candidate']} would change",
            "verdict": facts["verdict"],
        }
    if "n_rounds" in facts:
        tuples = find(facts["class"]).takes[0]
        return {
            tuples: f"{facts['n_rounds']:,} seen, {facts['n_updates']:,} updates, "
            f"{facts['n_skipped']:,} skipped (identical vectors)",
            "average loss": f"{facts['average_loss']:.4f}",
            "mistake rate": as_percent(facts["mistake_rate"]),
        }
    if "gap" in facts:  # a duality gap proves how good the solution is
        tol = facts["parameters"]["tol"]
        end = "" if tol is None else f", tol {'reached' if facts['converged'] else 'not reached'}"
        values = f"primal {facts['primal']:.6g}, dual {facts['dual']:.6g}"
        return {
            "epochs": f"{facts['n_iter']:,}{end}",
            "duality gap": f"{facts['gap']:.3g} ({values})",
        }
    fields = {}
    if "n_iter" in facts:
        end = "converged" if facts["converged"] else "stopped before convergence"
        fields["iterations"] = f"{facts['n_iter']:,}, {end}"
    if "objective" in facts:
        fields["objective"] = f"{facts['objective']:.6g}"
    return fields


def _task_fields(facts: dict[str, Any]) -> dict[str, str]:
    names, n = facts["tasks"], facts["n_tasks"]
    more = ", ..." if n > len(names) else ""
    more += " and one without a name" if facts["has_nameless_task"] else ""
    fields = {"tasks": f"{n:,}: {', '.join(names)}{more}" if n else "one, without a name"}
    if "query_ratio" in facts:
        fields["query ratio"] = as_percent(facts["query_ratio"])
    return fields
