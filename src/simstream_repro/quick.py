"""Small versions of studies, on data that is bundled with scikit-learn."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from .plan import Paper, Study


def quick_version(paper: Paper, study: Study) -> Study | None:
    """The study with what its ``quick`` table says in place of its own; None if it has none.

    Its id ends in ``-quick``: its records never mix with those of the whole study.

    Examples
    --------
    >>> from simstream_repro.plan import load_paper
    >>> paper = load_paper("p3")
    >>> quick_version(paper, paper.studies["p3-standard"]).id
    'p3-standard-quick'
    """
    if not study.quick:
        return None
    known = {field.name for field in fields(Study)}
    for key in study.quick:
        if key not in known:
            raise ValueError(f"{study.id}: expected a field of a study in quick, got {key!r}")
    changes: dict[str, Any] = {
        key: tuple(value) if key in ("datasets", "methods") else value
        for key, value in study.quick.items()
    }
    if "settings" in changes:
        changes["settings"] = study.settings | changes["settings"]
    small = replace(study, id=f"{study.id}-quick", quick={}, **changes)
    for name in small.datasets:
        if name not in paper.datasets:
            raise ValueError(f"{small.id}: expected a data set of the paper, got {name!r}")
    return small
