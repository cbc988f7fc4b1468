"""What is to be said about a model, for people and for machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..catalogue import find
from .algorithms import is_distance
from .checkpoint import TrainingRecord
from .output import as_count, as_percent
from .tasks import knows_tasks

#: Features up to which all eigenvalues of a distance are computed to say something about it.
_LARGEST_SPECTRUM = 2000

#: Tasks that are named one by one.
_MOST_NAMES = 20


def summarise(path: Path, learner: Any, record: TrainingRecord) -> dict[str, Any]:
    """Facts about a learner and the file it is in, as JSON values.

    Parameters
    ----------
    path : the model file
    learner : the fitted learner
    record : how the command line trained it
    """
    return {
        "model": str(path),
        "class": type(learner).__name__,
        "parameters": _plain_parameters(learner),
        **_counts(learner),
        **(_spectrum(learner) if is_distance(learner) else _bilinear(learner)),
        "shape": list(learner.shape_),
        "dtype": str(learner.dtype_),
        "unit_norm": record.unit_norm,
        "file_bytes": path.stat().st_size,
        "position": record.position(),
    }


def _bilinear(learner: Any) -> dict[str, Any]:
    """Rank, of a model that is kept in factors, and zeros of its matrix."""
    rank = {"rank": learner.rank_} if hasattr(type(learner), "rank_") else {}
    return {**rank, "sparsity": learner.sparsity_}


def _counts(learner: Any) -> dict[str, Any]:
    """What was counted in learning; a batch learner counts iterations, a given distance nothing."""
    if hasattr(learner, "partial_fit"):
        return {
            "n_rounds": learner.n_rounds_,
            "n_updates": learner.n_updates_,
            "n_skipped": learner.n_skipped_,
            "average_loss": learner.average_loss_,
            "mistake_rate": learner.mistake_rate_,
            **_tasks(learner),
        }
    names = {"n_iter": int, "converged": bool, "objective": float}
    if hasattr(learner, "gap_"):  # others have dual variables of that name
        names |= {"primal": float, "dual": float, "gap": float}
    return _tasks(learner) | {
        name: kind(getattr(learner, f"{name}_"))
        for name, kind in names.items()
        if hasattr(learner, f"{name}_")
    }


def _tasks(learner: Any) -> dict[str, Any]:
    """Of a learner of many tasks: how many have names, the first, whether one has none, the share asked."""
    if not knows_tasks(type(learner)):
        return {}
    names = [str(task) for task in learner.tasks_ if task is not None]
    is_nameless = len(names) < len(learner.tasks_)
    ratio = {"query_ratio": learner.query_ratio_} if hasattr(learner, "query_ratio_") else {}
    known = {"n_tasks": len(names), "tasks": names[:_MOST_NAMES], "has_nameless_task": is_nameless}
    return known | ratio


def _spectrum(learner: Any) -> dict[str, Any]:
    """Threshold and spectrum of a distance; None for what it has not, or what is too large to compute."""
    from sklearn.exceptions import NotFittedError

    try:
        threshold: float | None = learner.threshold_
    except NotFittedError:
        threshold = None
    d, _ = learner.shape_
    if d > _LARGEST_SPECTRUM:
        unknown = ("rank", "effective_dimension", "largest_eigenvalue", "sparsity")
        return {"threshold": threshold, **dict.fromkeys(unknown)}
    values = learner.eigenvalues_
    # As numpy.linalg.matrix_rank counts: what is not rounding.
    rounding = values[0] * d * np.finfo(learner.dtype_).eps
    return {
        "threshold": threshold,
        "rank": int(np.count_nonzero(values > rounding)),
        "effective_dimension": learner.effective_dimension_,
        "largest_eigenvalue": float(values[0]),
        "sparsity": learner.sparsity_,
    }


def _plain_parameters(learner: Any) -> dict[str, Any]:
    """Constructor arguments without the items; a matrix is only named, infinity (not in JSON) a text."""
    params = learner.get_params(deep=False)
    params.pop("preprocessor", None)
    return {name: _plain(value) for name, value in params.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    is_plain = isinstance(value, bool | int | float | str | None)
    return value if is_plain else f"<{type(value).__name__}>"


def summary_fields(facts: dict[str, Any], record: TrainingRecord) -> dict[str, str]:
    """The same facts as names and texts."""
    parameters = ", ".join(
        f"{name}={value}" for name, value in facts["parameters"].items() if value
    )
    rows, columns = facts["shape"]
    zeros = "" if facts["sparsity"] is None else f", {as_percent(facts['sparsity'])} zeros"
    return {
        "model": f"{facts['model']} ({_as_bytes(facts['file_bytes'])})",
        "class": f"{facts['class']}({parameters})",
        "matrix": f"{rows:,} x {columns:,}, {facts['dtype']}{zeros}",
        **(_spectrum_fields(facts) if "threshold" in facts else {}),
        **({"rank": as_count(facts["rank"])} if facts.get("rank") is not None else {}),
        **_count_fields(facts),
        **(_task_fields(facts) if "n_tasks" in facts else {}),
        "rows": "scaled to length one" if facts["unit_norm"] else "used as they are",
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
    if "n_rounds" in facts:
        tuples = find(facts["class"]).takes[0]
        return {
            tuples: f"{as_count(facts['n_rounds'])} seen, {as_count(facts['n_updates'])} updates, "
            f"{as_count(facts['n_skipped'])} without a direction",
            "average loss": f"{facts['average_loss']:.4f}",
            "mistake rate": as_percent(facts["mistake_rate"]),
        }
    if "gap" in facts:
        return _certificate_fields(facts)
    fields = {}
    if "n_iter" in facts:
        end = "converged" if facts["converged"] else "stopped before it converged"
        fields["iterations"] = f"{facts['n_iter']:,}, {end}"
    if "objective" in facts:
        fields["objective"] = f"{facts['objective']:.6g}"
    return fields


def _certificate_fields(facts: dict[str, Any]) -> dict[str, str]:
    """How good the solution of an optimisation problem is, proved by its dual."""
    tol = facts["parameters"]["tol"]
    end = "" if tol is None else f", tol {'reached' if facts['converged'] else 'not reached'}"
    values = f"primal {facts['primal']:.6g}, dual {facts['dual']:.6g}"
    return {
        "epochs": f"{as_count(facts['n_iter'])}{end}",
        "duality gap": f"{facts['gap']:.3g} ({values})",
    }


def _task_fields(facts: dict[str, Any]) -> dict[str, str]:
    names, n = facts["tasks"], facts["n_tasks"]
    more = ", ..." if n > len(names) else ""
    more += " and one without a name" if facts["has_nameless_task"] else ""
    fields = {"tasks": f"{as_count(n)}: {', '.join(names)}{more}" if n else "one, without a name"}
    if "query_ratio" in facts:
        fields["query ratio"] = as_percent(facts["query_ratio"])
    return fields


def _as_bytes(n: int) -> str:
    """Size of a file.

    Examples
    --------
    >>> _as_bytes(34_500)
    '34.5 kB'
    """
    size = float(n)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("the last unit is for everything")
