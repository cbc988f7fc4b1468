"""What there is to run: every table and figure, its data, how much has been run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simstream import datasets

from .plan import Exhibit, Paper, load_paper, paper_ids
from .records import RecordStore


def overview(data_dir: str | Path | None, results: str | Path) -> list[dict[str, Any]]:
    """One row per table and figure: id, title, state of every data set, cells done and in all."""
    here = set(datasets.available(data_dir))
    store = RecordStore(results)
    return [
        _row(paper, exhibit, here, store)
        for paper in map(load_paper, paper_ids())
        for exhibit in paper.exhibits.values()
    ]


def paper_titles() -> dict[str, str]:
    """What the papers are called, by their ids."""
    return {one: load_paper(one).title for one in paper_ids()}


def _row(paper: Paper, exhibit: Exhibit, here: set[str], store: RecordStore) -> dict[str, Any]:
    study = paper.study_of(exhibit.id)
    states: dict[str, str] = {}
    cells = []
    if study is not None:
        cells = list(paper.cells(study))
        for name in study.datasets:
            given = paper.datasets[name]
            if not given.data:
                states[name] = "absent"
            elif given.data not in here:
                states[name] = "missing"
            else:
                states[name] = "present" if given.standing == "exact" else given.standing
    return {
        "id": exhibit.id,
        "title": exhibit.title,
        "kind": exhibit.kind,
        "data": states or ({"not public": "absent"} if exhibit.kind == "absent" else {}),
        "n_cells": len(cells),
        "n_done": len(store.finished(cells)),
    }
