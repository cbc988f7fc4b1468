"""What is to be said about a model, for people and for machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .checkpoint import TrainingRecord
from .output import as_count, as_percent


def summarise(path: Path, learner: Any, record: TrainingRecord) -> dict[str, Any]:
    """Facts about a learner and the file it is in, as JSON values.

    Parameters
    ----------
    path : the model file
    learner : the fitted learner
    record : how the command line trained it
    """
    engine = learner._fitted()
    return {
        "model": str(path),
        "class": type(learner).__name__,
        "parameters": _plain_parameters(learner),
        "n_rounds": learner.n_rounds_,
        "n_updates": learner.n_updates_,
        "n_skipped": learner.n_skipped_,
        "average_loss": learner.average_loss_,
        "mistake_rate": learner.mistake_rate_,
        "sparsity": learner.sparsity_,
        "shape": list(engine.shape),
        "dtype": str(engine.dtype),
        "unit_norm": record.unit_norm,
        "file_bytes": path.stat().st_size,
        "position": record.position(),
    }


def _plain_parameters(learner: Any) -> dict[str, Any]:
    """Constructor arguments without the items; a matrix is only named."""
    params = learner.get_params(deep=False)
    params.pop("preprocessor", None)
    plain = (bool, int, float, str, type(None))
    return {
        name: value if isinstance(value, plain) else f"<{type(value).__name__}>"
        for name, value in params.items()
    }


def summary_fields(facts: dict[str, Any], record: TrainingRecord) -> dict[str, str]:
    """The same facts as names and texts."""
    parameters = ", ".join(
        f"{name}={value}" for name, value in facts["parameters"].items() if value
    )
    rows, columns = facts["shape"]
    return {
        "model": f"{facts['model']} ({_as_bytes(facts['file_bytes'])})",
        "class": f"{facts['class']}({parameters})",
        "matrix": f"{rows:,} x {columns:,}, {facts['dtype']}, {as_percent(facts['sparsity'])} zeros",
        "triplets": f"{as_count(facts['n_rounds'])} seen, {as_count(facts['n_updates'])} updates, "
        f"{as_count(facts['n_skipped'])} without a direction",
        "average loss": f"{facts['average_loss']:.4f}",
        "mistake rate": as_percent(facts["mistake_rate"]),
        "rows": "scaled to length one" if facts["unit_norm"] else "used as they are",
        "position": record.describe(),
    }


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
