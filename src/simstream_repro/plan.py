"""What is to be reproduced: papers as data.

One TOML file per paper in ``papers/`` says

* ``[methods.NAME]``: how a method of the paper is called here (learner, parameters, grid, the values that the
  paper chose);
* ``[[studies]]``: what is run, as a protocol over data sets, methods and seeds, possibly swept over values;
* ``[[exhibits]]``: the tables and figures, each a view of the records of a study, beside published numbers;
* ``[[claims]]``: what the paper says it shows, and how that is checked.

A *cell* is one run: a data set, a method, a seed, and a value of every swept quantity.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

#: Number in a cell's place of the seed: its parameters are being chosen on the data of seed 0; on that of
#: seed 1, 2 .. it is -2, -3 ..
TUNING = -1

#: Value of the setting "tuning" that has parameters chosen anew for every seed, instead of once for all.
EVERY_RUN = "every run"


def data_seed(seed: int) -> int:
    """The seed whose data a cell with this number works on.

    Examples
    --------
    >>> data_seed(3), data_seed(TUNING), data_seed(TUNING - 3)
    (3, 0, 3)
    """
    return TUNING - seed if seed <= TUNING else seed


@dataclass(frozen=True)
class Cell:
    """One run, with everything that determines its result."""

    study: str
    protocol: str
    #: Name in the paper, and name for `simstream.datasets`.
    dataset: str
    data: str
    preprocessing: str
    #: Name in the paper, and class of simstream ("" if the protocol knows what to do).
    method: str
    learner: str
    parameters: dict[str, Any]
    #: Parameter -> values to choose from; empty if there is nothing to choose.
    grid: dict[str, list[Any]]
    seed: int
    settings: dict[str, Any]
    #: Values of what is swept, which are part of the above too.
    variant: dict[str, Any] = field(default_factory=dict)

    @property
    def is_tuning(self) -> bool:
        """Whether parameters are chosen, instead of results measured."""
        return self.seed <= TUNING

    @property
    def data_seed(self) -> int:
        """The seed whose split and stream it works on."""
        return data_seed(self.seed)

    @property
    def name(self) -> str:
        """For people."""
        swept = "".join(f" {key}={value}" for key, value in self.variant.items())
        seed = ("tuning " if self.is_tuning else "") + f"seed {self.data_seed}"
        return f"{self.study} {self.dataset} {self.method}{swept} {seed}"

    @property
    def fingerprint(self) -> str:
        """What its record is found by: changes if anything in the plan does that determines the result.

        Not if the code or the data do: records keep versions and the stream's digest for that.

        Examples
        --------
        >>> cell = Cell("s", "retrieval", "d", "d", "as-is", "OASIS", "OASIS", {"C": 0.1}, {}, 0, {})
        >>> cell.fingerprint == replace(cell, seed=1).fingerprint
        False
        """
        text = json.dumps(self.__dict__, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def tuning(self) -> Cell:
        """The cell that chooses the parameters of this one.

        Those with other seeds share it, unless the setting "tuning" is "every run".

        Examples
        --------
        >>> cell = Cell("s", "pair_metric", "d", "d", "as-is", "PAI+", "PAMetric", {}, {"C": [1]}, 3, {})
        >>> cell.tuning().data_seed, replace(cell, settings={"tuning": "every run"}).tuning().data_seed
        (0, 3)
        """
        own = self.settings.get("tuning") == EVERY_RUN
        return replace(self, seed=TUNING - self.data_seed if own else TUNING)

    def with_parameters(self, chosen: dict[str, Any]) -> Cell:
        """The same with parameters that were chosen."""
        return replace(self, parameters=self.parameters | chosen, grid={})


@dataclass(frozen=True)
class Method:
    """A method of a paper."""

    name: str
    learner: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)
    #: Data set of the paper -> the parameters the paper says it chose.
    chosen: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Other preprocessing than the study's.
    preprocessing: str | None = None
    #: Settings besides the study's or in their place.
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperData:
    """A data set of a paper, and what stands here for it."""

    name: str
    #: Name for `simstream.datasets`; empty if there is none.
    data: str = ""
    #: "exact", "partial", "stand-in" or "absent": only exact ones count in verdicts.
    standing: str = "exact"
    #: Other preprocessing than the study's.
    preprocessing: str | None = None
    note: str = ""

    @property
    def label(self) -> str:
        """What tables and figures call it: other data never go by the paper's name.

        Examples
        --------
        >>> PaperData("wine", "wine").label, PaperData("Gisette", "dexter", "stand-in").label
        ('wine', 'dexter (for Gisette)')
        """
        return f"{self.data} (for {self.name})" if self.standing == "stand-in" else self.name


@dataclass(frozen=True)
class Study:
    """What is run: all cells of data sets x methods x seeds x swept values."""

    id: str
    title: str
    protocol: str
    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    preprocessing: str = "as-is"
    seeds: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    #: "parameter.NAME", "setting.NAME" or "preprocessing" -> values.
    sweep: dict[str, list[Any]] = field(default_factory=dict)
    #: Seconds and gigabytes one cell may take.
    budget_seconds: float = 600.0
    budget_gb: float = 4.0
    #: Settings, seeds, datasets, methods, sweep of a quick run on bundled data.
    quick: dict[str, Any] = field(default_factory=dict)
    #: Data set -> its own number of seeds, and settings besides the study's or in their place.
    per_dataset: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Pairs (data set, method) that the paper did not run.
    skip: tuple[tuple[str, str], ...] = ()
    note: str = ""

    def seeds_of(self, dataset: str) -> int:
        """Number of seeds of a data set in the plan."""
        return int(self.per_dataset.get(dataset, {}).get("seeds", self.seeds))


@dataclass(frozen=True)
class Measure:
    """A number of a table: what the paper calls it, and what the records call it."""

    name: str
    ours: str
    label: str
    scale: float = 1.0
    #: "higher" or "lower"; "neither" where no number is better than another.
    better: str = "higher"
    digits: int = 3
    #: "quality" counts in verdicts; "time" and "information" do not.
    kind: str = "quality"


@dataclass(frozen=True)
class Exhibit:
    """A table or a figure of a paper."""

    id: str
    title: str
    #: "table", "figure" or "absent"; "ranks" (average ranks of the methods by the one measure) or "pairs"
    #: (all pairs of methods by these ranks, adjusted p-values), see `ranks`.
    kind: str
    study: str = ""
    measures: tuple[Measure, ...] = ()
    #: File of published numbers.
    published: str = ""
    #: What is drawn, for figures.
    draw: dict[str, Any] = field(default_factory=dict)
    datasets: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    #: Method -> what the published numbers call it, where that is another name.
    printed_as: dict[str, str] = field(default_factory=dict)
    #: (data set, method, measure), "" for any: shown and not counted, because the way it is run was chosen
    #: by these very numbers, or the print cannot be what it says.
    not_counted: tuple[tuple[str, str, str], ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Claim:
    """Something a paper says; `check` names how it is looked at, see `claims`."""

    text: str
    check: dict[str, Any]


@dataclass(frozen=True)
class Explanation:
    """Why cells differ from the print, with what was tried. Empty fields match everything."""

    text: str
    exhibit: str = ""
    dataset: tuple[str, ...] = ()
    method: tuple[str, ...] = ()
    measure: tuple[str, ...] = ()
    verdict: tuple[str, ...] = ("worse",)
    #: Studies that put it to the test; without their records it is a guess.
    tested_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Paper:
    """One paper."""

    id: str
    title: str
    citation: str
    methods: dict[str, Method]
    datasets: dict[str, PaperData]
    studies: dict[str, Study]
    exhibits: dict[str, Exhibit]
    claims: tuple[Claim, ...] = ()
    explanations: tuple[Explanation, ...] = ()
    note: str = ""

    def study_of(self, exhibit: str) -> Study | None:
        """The study a table or figure shows."""
        name = self.exhibits[exhibit].study
        return self.studies[name] if name else None

    def cells(
        self,
        study: Study,
        *,
        seeds: int | None = None,
        datasets: tuple[str, ...] = (),
        methods: tuple[str, ...] = (),
        tuning: str = "paper",
    ) -> Iterator[Cell]:
        """All cells of a study, the first seed of everything first.

        Parameters
        ----------
        study : Study
        seeds : int, optional
            Other number of seeds than the study's, for all data sets.
        datasets, methods : tuples of names
            Only these; empty means all.
        tuning : "paper" or "cv"
            Take the parameters the paper names where it does, or choose all from grids.
        """
        keys = list(study.sweep)
        variants = list(itertools.product(*(study.sweep[key] for key in keys)))
        numbers = {name: seeds or study.seeds_of(name) for name in study.datasets}
        names = itertools.product(
            range(max(numbers.values(), default=0)), study.datasets, study.methods, variants
        )
        for seed, dataset, method_name, values in names:
            if seed >= numbers[dataset]:
                continue
            if (datasets and dataset not in datasets) or (methods and method_name not in methods):
                continue
            if (dataset, method_name) in study.skip or not self.datasets[dataset].data:
                continue
            method = self.methods[method_name]
            chosen = method.chosen.get(dataset)
            parameters, grid = dict(method.parameters), dict(method.grid)
            if chosen is not None and tuning == "paper":
                parameters, grid = parameters | chosen, {}
            of_dataset = study.per_dataset.get(dataset, {}).get("settings", {})
            settings = study.settings | of_dataset | method.settings
            preprocessing = (
                method.preprocessing or self.datasets[dataset].preprocessing or study.preprocessing
            )
            for key, value in zip(keys, values, strict=True):
                kind, _, name = key.partition(".")
                if kind == "parameter":
                    parameters[name] = value
                    grid.pop(name, None)
                elif kind == "setting":
                    settings[name] = value
                else:
                    preprocessing = value
            yield Cell(
                study=study.id,
                protocol=study.protocol,
                dataset=dataset,
                data=self.datasets[dataset].data,
                preprocessing=preprocessing,
                method=method_name,
                learner=method.learner,
                parameters=parameters,
                grid=grid,
                seed=seed,
                settings=settings,
                variant=dict(zip((key.rpartition(".")[2] for key in keys), values, strict=True)),
            )


# -- reading ----------------------------------------------------------------------------------------------


def paper_ids() -> list[str]:
    """Names of the papers.

    Examples
    --------
    >>> "p3" in paper_ids()
    True
    """
    folder = files(__package__) / "papers"
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )


@cache
def load_paper(paper_id: str) -> Paper:
    """One paper by its name.

    Examples
    --------
    >>> load_paper("p3").exhibits["p3-table2"].kind
    'table'
    """
    if paper_id not in paper_ids():
        raise ValueError(f"paper: expected one of {', '.join(paper_ids())}, got {paper_id!r}")
    text = (files(__package__) / "papers" / f"{paper_id}.toml").read_text("utf-8")
    return parse_paper(text)


def parse_paper(text: str) -> Paper:
    """A paper from the text of its file; what does not fit together is refused."""
    raw = tomllib.loads(text)
    paper = Paper(
        id=raw["id"],
        title=raw["title"],
        citation=raw["citation"],
        note=raw.get("note", ""),
        methods={name: Method(name, **given) for name, given in raw.get("methods", {}).items()},
        datasets={
            name: PaperData(name, **given) for name, given in raw.get("datasets", {}).items()
        },
        studies={one["id"]: Study(**_tuples(one)) for one in raw.get("studies", [])},
        exhibits={one["id"]: _exhibit(one) for one in raw.get("exhibits", [])},
        claims=tuple(Claim(**one) for one in raw.get("claims", [])),
        explanations=tuple(Explanation(**_tuples(one)) for one in raw.get("explanations", [])),
    )
    _check(paper)
    return paper


def _tuples(one: dict[str, Any]) -> dict[str, Any]:
    names = ("datasets", "methods", "dataset", "method", "measure", "verdict")
    found = {key: tuple(value) if key in names else value for key, value in one.items()}
    if "skip" in found:
        found["skip"] = tuple((first, second) for first, second in found["skip"])
    return found


def _exhibit(one: dict[str, Any]) -> Exhibit:
    given = _tuples(one)
    given["measures"] = tuple(Measure(**measure) for measure in one.get("measures", []))
    return Exhibit(**given)


def _check(paper: Paper) -> None:
    for study in paper.studies.values():
        for kind, names, known in (
            ("data set", study.datasets, paper.datasets),
            ("method", study.methods, paper.methods),
        ):
            for name in names:
                if name not in known:
                    raise ValueError(f"{study.id}: expected a {kind} of the paper, got {name!r}")
        for name, own in study.per_dataset.items():
            if name not in paper.datasets or not own.keys() <= {"seeds", "settings"}:
                raise ValueError(
                    f"{study.id}: per_dataset: expected a data set of the paper with seeds and settings, "
                    f"got {name!r} with {', '.join(own)}"
                )
    for explanation in paper.explanations:
        for name in explanation.tested_by:
            if name not in paper.studies:
                raise ValueError(f"explanation: tested_by: expected studies, got {name!r}")
    for exhibit in paper.exhibits.values():
        if exhibit.study and exhibit.study not in paper.studies:
            raise ValueError(f"{exhibit.id}: expected a study, got {exhibit.study!r}")


@cache
def published(name: str) -> dict[tuple[str, str, str], tuple[str, float | None]]:
    """Published numbers by (data set, method, measure): the value as printed, and its standard deviation.

    Examples
    --------
    >>> published("p3_table2_map.csv")["vehicle", "SDCA", "map"]
    ('0.5955', None)
    """
    text = (files(__package__) / "published" / name).read_text("utf-8")
    found = {}
    for row in csv.DictReader(text.splitlines()):
        std = float(row["std"]) if row["std"] else None
        found[row["dataset"], row["algorithm"], row["measure"]] = (row["value"], std)
    return found


def select(ids: tuple[str, ...]) -> list[tuple[Paper, Study]]:
    """The studies behind names of papers, studies, tables and figures; all of them for no names.

    Examples
    --------
    >>> [study.id for paper, study in select(("p3-table2",))]
    ['p3-standard']
    """
    found: dict[str, tuple[Paper, Study]] = {}
    for wanted in ids or tuple(paper_ids()):
        paper = next(
            (
                p
                for p in map(load_paper, paper_ids())
                if wanted == p.id or wanted.startswith(p.id + "-")
            ),
            None,
        )
        studies: list[Study] = []
        if paper is not None and wanted == paper.id:
            studies = list(paper.studies.values())
        elif paper is not None and wanted in paper.studies:
            studies = [paper.studies[wanted]]
        elif paper is not None and wanted in paper.exhibits:
            shown = paper.study_of(wanted)
            if shown is None:
                raise ValueError(
                    f"{wanted}: {paper.exhibits[wanted].note or 'its data is not public'}"
                )
            studies = [shown]
        if paper is None or not studies:
            raise ValueError(
                f"expected a paper ({', '.join(paper_ids())}), a table or a figure, got {wanted!r}; "
                "simstream repro list names them"
            )
        for study in studies:
            found[study.id] = (paper, study)
    return list(found.values())
