"""Which cells are run: every contender on every task it can learn from, for every seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import click

from simstream import datasets
from simstream.extras import MissingExtraError

from ..protocols.adaptation.contenders import CONTENDERS, Kind
from ..protocols.adaptation.tasks import CollectionMissingError, collection_folder
from ..records import Cell

Part = Literal["retrieval", "curve", "items", "labels", "triplets"]

#: Numbers of judged queries of the curve; its last point is the whole training part, from "retrieval".
CURVE = (10, 20, 50, 100, 200, 400)

COLLECTIONS = ("scifact", "cranfield", "cacm")


@dataclass(frozen=True)
class Study:
    """One part of the page."""

    id: str
    kind: Kind
    protocol: str
    #: Name of the data -> its preprocessing.
    data: dict[str, str]
    #: One run for each of these settings.
    settings: tuple[dict[str, Any], ...] = ({},)
    #: CPU seconds and gigabytes that a cell may use.
    budget: tuple[float, float] = (1800.0, 4.0)

    def methods(self) -> list[str]:
        """Contenders that can learn from such tasks."""
        return [name for name, one in CONTENDERS.items() if getattr(one, self.kind) is not None]

    def _chosen(self, methods: Sequence[str]) -> list[str]:
        return [name for name in self.methods() if not methods or name in methods]

    def cells(self, seeds: Iterable[int], methods: Sequence[str] = ()) -> Iterator[Cell]:
        """All cells, or those of some contenders."""
        for data, preprocessing in self.data.items():
            for settings in self.settings:
                for method in self._chosen(methods):
                    for seed in seeds:
                        given = dict(CONTENDERS[method].parameters.get(self.kind, {}))
                        yield Cell(
                            study=self.id,
                            protocol=self.protocol,
                            dataset=data,
                            data=data,
                            preprocessing=preprocessing,
                            method=method,
                            learner="",
                            parameters=given,
                            grid={},
                            seed=seed,
                            settings=settings,
                            variant=settings,
                        )


def _search(name: str, *settings: dict[str, Any]) -> Study:
    data = dict.fromkeys(COLLECTIONS, "as-is")
    return Study(f"adaptation-{name}", "search", "adapt_search", data, settings or ({},))


STUDIES: dict[Part, Study] = {
    "retrieval": _search("retrieval"),
    "curve": _search("curve", *({"n_queries": n} for n in CURVE)),
    "items": _search("items", {"new_items": True}),
    "labels": Study(
        "adaptation-labels",
        "labels",
        "adapt_labels",
        {
            "digits": "unit-norm+centred",
            "mfeat": "standardised",
            "isolet": "standardised",
            "mnist-t10k": "unit-norm+centred",
        },
    ),
    "triplets": Study(
        "adaptation-triplets",
        "triplets",
        "adapt_triplets",
        {"zappos": "centred+unit-norm+span"},
    ),
}


def check_needs(cells: Iterable[Cell], data_dir: Path | None) -> None:
    """Refuse cells whose data or modules are missing, before anything is run."""
    cells, missing = list(cells), []
    for method in dict.fromkeys(cell.method for cell in cells):
        for name in CONTENDERS[method].needs:
            if find_spec(name) is None:
                raise MissingExtraError(f'"{method}"', name, name)
    available = datasets.available(data_dir)
    for data, protocol in dict.fromkeys((cell.data, cell.protocol) for cell in cells):
        if protocol == "adapt_search":
            try:
                collection_folder(data, data_dir)
            except CollectionMissingError as error:
                missing.append(str(error))
        elif data not in available:
            missing.append(f"the data set {data} (simstream datasets says how to get it)")
    if missing:
        raise click.ClickException("missing: " + "; ".join(dict.fromkeys(missing)))
