"""What is to be reproduced: papers as data.

One TOML file per paper in ``papers/`` says

* ``[methods.NAME]``: how a method of the paper is called here (learner, parameters, grid, the values that the
  paper chose);
* ``[datasets.NAME]``: what stands here for a data set of the paper;
* ``[[studies]]``: what is run, as a protocol over data sets, methods and seeds, possibly swept over values;
* ``[[exhibits]]``: the tables and figures, each a view of the records of a study beside published numbers;
* ``[[claims]]``: what the paper says it shows, and how that is checked;
* ``[[explanations]]``: why numbers differ from the printed ones, or cannot be told apart from them.

Every table is typed, and the settings of a study by its protocol: a misspelt key is an error.
"""

from __future__ import annotations

import csv
import itertools
import tomllib
from collections.abc import Container, Iterable, Iterator
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import msgspec

from .protocols import PROTOCOL_NAMES, protocol
from .records import Cell
from .typed import TypedTable, read_table


class PaperMethod(TypedTable, frozen=True, kw_only=True):
    """A method of a paper."""

    name: str
    learner: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    grid: dict[str, list[Any]] = msgspec.field(default_factory=dict)
    #: Data set of the paper -> the parameters the paper says it chose.
    chosen: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    #: In place of the study's.
    preprocessing: str | None = None
    #: Besides the study's or in their place.
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    #: What pages call it, where that is not its name.
    label: str = ""


class PaperData(TypedTable, frozen=True, kw_only=True):
    """A data set of a paper, and what stands here for it."""

    name: str
    #: Name for `simstream.datasets`; empty if there is none.
    data: str = ""
    #: Only exact ones count in verdicts.
    standing: Literal["exact", "partial", "stand-in", "bundled", "absent"] = "exact"
    #: Whether the paper's table gives it another size.
    other_size: bool = False
    #: In place of the study's.
    preprocessing: str | None = None
    note: str = ""

    @property
    def label(self) -> str:
        """What tables and figures call it: a stand-in never goes by the paper's name alone.

        Examples
        --------
        >>> PaperData(name="wine", data="wine").label
        'wine'
        >>> PaperData(name="Gisette", data="dexter", standing="stand-in").label
        'dexter (for Gisette)'
        """
        return f"{self.data} (for {self.name})" if self.standing == "stand-in" else self.name


class QuickStudy(TypedTable, frozen=True, kw_only=True):
    """What a quick run on bundled data has in place of its study's; settings are merged."""

    datasets: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None
    preprocessing: str | None = None
    seeds: int | None = None
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    sweep: dict[str, list[Any]] | None = None


class OwnStudy(TypedTable, frozen=True, kw_only=True):
    """What a data set has of its own in a study: seeds, budget, settings in place of the study's."""

    seeds: int | None = None
    budget_seconds: float | None = None
    budget_gb: float | None = None
    settings: dict[str, Any] = msgspec.field(default_factory=dict)


class Study(TypedTable, frozen=True, kw_only=True):
    """What is run: all cells of data sets x methods x seeds x swept values."""

    id: str
    title: str
    protocol: str
    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    preprocessing: str = "as-is"
    seeds: int = 1
    #: See the settings of the protocol.
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    #: "parameter.NAME", "setting.NAME" or "preprocessing" -> values.
    sweep: dict[str, list[Any]] = msgspec.field(default_factory=dict)
    #: Method -> its grid in this study, in place of its own.
    grids: dict[str, dict[str, list[Any]]] = msgspec.field(default_factory=dict)
    #: What one cell may use.
    budget_seconds: float = 600.0
    budget_gb: float = 4.0
    quick: QuickStudy | None = None
    per_dataset: dict[str, OwnStudy] = msgspec.field(default_factory=dict)
    #: Pairs (data set, method) that the paper did not run.
    skip: tuple[tuple[str, str], ...] = ()
    note: str = ""

    def seeds_of(self, dataset: str) -> int:
        """Number of seeds of a data set in the plan."""
        own = self.per_dataset.get(dataset)
        return self.seeds if own is None or own.seeds is None else own.seeds

    def budget_of(self, dataset: str) -> tuple[float, float]:
        """CPU seconds and gigabytes that a cell of a data set may use.

        Examples
        --------
        >>> study = load_paper("all").studies["all-learners"]
        >>> study.budget_of("wine"), study.budget_of("sector")
        ((60.0, 4.0), (150.0, 8.0))
        """
        own = self.per_dataset.get(dataset, OwnStudy())
        return own.budget_seconds or self.budget_seconds, own.budget_gb or self.budget_gb

    def quick_version(self) -> Study | None:
        """The study as its ``quick`` table says; None if it has none.

        Its id ends in ``-quick``: its records never mix with those of the whole study.

        Examples
        --------
        >>> load_paper("p3").studies["p3-standard"].quick_version().id
        'p3-standard-quick'
        """
        if self.quick is None:
            return None
        given = {
            key: value
            for key, value in msgspec.structs.asdict(self.quick).items()
            if value is not None
        }
        given |= {"id": f"{self.id}-quick", "quick": None}
        given["settings"] = self.settings | self.quick.settings
        return msgspec.structs.replace(self, **given)


class TableMeasure(TypedTable, frozen=True, kw_only=True):
    """A number of a table: what the paper calls it, and what the records call it."""

    name: str
    ours: str
    label: str
    scale: float = 1.0
    better: Literal["higher", "lower", "neither"] = "higher"
    digits: int = 3
    #: Only quality counts in verdicts.
    kind: Literal["quality", "time", "information"] = "quality"


class ReferenceLines(TypedTable, frozen=True, kw_only=True):
    """Methods of another study that a figure draws as thin lines."""

    study: str
    methods: tuple[str, ...]


class PrintedPoints(TypedTable, frozen=True, kw_only=True):
    """Printed numbers that a figure of lines or bars shows beside its end, for exact data."""

    #: File of published numbers, and the measure in it.
    file: str
    measure: str
    scale: float = 1.0
    #: A measure of the same file and scale at which they stand in the figure, instead of beside it.
    x: str = ""


class Drawing(TypedTable, frozen=True, kw_only=True):
    """What a figure shows of the records of its study.

    lines
        ``curve`` (``curves``: several): a recorded curve against its x, named by ``x``; or ``measures`` =
        "P@{x}" with ``values``: one measure for each x; or ``y`` (``ys``: several): a measure against a swept
        value, or against another measure ``x`` with the points joined in the order of the swept value
        ``along``; ``values``: only these of the swept ones. ``references`` draws the value of ``y`` of other
        methods as thin lines, ``printed`` the paper's numbers as stars.
    bars
        ``y``: a measure, grouped by ``x``: "dataset", or a swept value; ``printed`` as of lines.
    matrix
        ``value``: a measure, over two swept values ``x`` and ``y``; one scale of colours for all panels.
    """

    form: Literal["lines", "bars", "matrix"]
    x: str
    y: str = ""
    #: What is said of it in the legend -> measure.
    ys: dict[str, str] = msgspec.field(default_factory=dict)
    curve: str = ""
    #: What is said of it in the legend -> curve.
    curves: dict[str, str] = msgspec.field(default_factory=dict)
    measures: str = ""
    values: tuple[int | float, ...] = ()
    along: str = ""
    references: ReferenceLines | None = None
    printed: PrintedPoints | None = None
    value: str = ""
    #: "dataset", or (of lines) "method": one panel for each; otherwise one for all.
    panels: Literal["dataset", "method", ""] = ""
    #: Bands of one standard deviation.
    bands: bool = True
    #: No value is above it, so bands end there.
    highest: float | None = None
    #: Method -> what the legend calls it here.
    names: dict[str, str] = msgspec.field(default_factory=dict)
    log_x: bool = False
    log_y: bool = False
    unit_y: str = ""
    label_x: str | None = None
    label_y: str | None = None
    label_value: str | None = None


class Exhibit(TypedTable, frozen=True, kw_only=True):
    """A table or a figure of a paper."""

    id: str
    title: str
    #: "ranks": average ranks of the methods by the one measure; "pairs": all pairs of methods by these ranks,
    #: with adjusted p-values; "means": means over data sets of methods in several studies.
    kind: Literal["table", "figure", "absent", "ranks", "pairs", "means"]
    study: str = ""
    #: Its numbers, where there are some, count in place of those of this exhibit.
    instead_of: str = ""
    #: For "means": heading -> study, that of the baseline first; the method that the others are compared
    #: with; family -> methods, in the order of the rows. `methods` are shown for each data set too.
    beside: dict[str, str] = msgspec.field(default_factory=dict)
    baseline: str = ""
    families: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    measures: tuple[TableMeasure, ...] = ()
    #: File of published numbers.
    published: str = ""
    draw: Drawing | None = None
    datasets: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    #: Method -> its name in the published numbers, where that is another one.
    printed_as: dict[str, str] = msgspec.field(default_factory=dict)
    #: Column -> the method whose records it shows, where the paper prints a method more than once.
    records_of: dict[str, str] = msgspec.field(default_factory=dict)
    note: str = ""


class Where(TypedTable, frozen=True, kw_only=True):
    """Only records with a measure in this range."""

    measure: str
    above: float = -float("inf")
    below: float = float("inf")


class Check(TypedTable, frozen=True, kw_only=True, tag_field="kind"):
    """How a claim is checked; `claims` does it."""

    study: str
    #: Studies whose records it looks at too; where two have the same run, the later one counts.
    also: tuple[str, ...] = ()
    #: All of these studies if empty.
    datasets: tuple[str, ...] = ()


class Beats(Check, frozen=True, kw_only=True, tag="beats"):
    """Each winner is ahead of the best loser (of all others if none is named), or of its own in `pairs`."""

    measure: str
    better: Literal["higher", "lower"] = "higher"
    winner: str = ""
    winners: tuple[str, ...] = ()
    losers: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    #: (data set, loser): not compared, because the paper's own table contradicts the claim there.
    skip: tuple[tuple[str, str], ...] = ()
    where: Where | None = None
    #: The smallest gain, as a share of the loser's value (negative: may be that much behind).
    by: float | None = None
    #: The study that has the losers' records.
    against: str = ""
    #: A swept quantity: one comparison for each of its values, not one for their mean.
    each: str = ""
    #: The paper says so of all cases: one that speaks against it refutes it.
    always: bool = False


class BestRank(Check, frozen=True, kw_only=True, tag="rank"):
    """A method has the best average rank over data sets."""

    measure: str
    better: Literal["higher", "lower"] = "higher"
    winner: str
    methods: tuple[str, ...]


class NoDifference(Check, frozen=True, kw_only=True, tag="no difference"):
    """Friedman's test over data sets finds no difference between methods at the level 0.05."""

    measure: str
    better: Literal["higher", "lower"] = "higher"
    methods: tuple[str, ...]


class Trend(Check, frozen=True, kw_only=True, tag="trend"):
    """A measure falls (or rises) from the least to the greatest value of a swept quantity."""

    measure: str
    method: str
    along: str
    direction: Literal["falls", "rises"]


class MeasureRatio(Check, frozen=True, kw_only=True, tag="ratio"):
    """The ratio of a measure of two methods is near the published one, at most or at least that."""

    measure: str
    numerator: str
    denominator: str
    published: float
    wanted: Literal["near", "at most", "at least"] = "near"
    #: How far from the published one, or beyond it, the ratio may be.
    factor: float = 2.0


class Reaches(Check, frozen=True, kw_only=True, tag="reaches"):
    """The mean curve of one method, of which more is better, reaches the final value of another's earlier.

    What counts is its highest point before the end, and whether that differs from the final value by more
    than its uncertainty.
    """

    curve: str
    winner: str
    loser: str


class Claim(TypedTable, frozen=True, kw_only=True):
    """A statement of a paper."""

    text: str
    check: Beats | BestRank | NoDifference | Trend | MeasureRatio | Reaches


class Explanation(TypedTable, frozen=True, kw_only=True):
    """What has to be known about some numbers beside the printed ones. Empty fields match everything."""

    text: str
    #: "below": why they are worse than printed, and what was tried; "another experiment": why those that are
    #: better do not come from the paper's experiment; "fitted": the way they are run was chosen by these very
    #: numbers, or the print cannot be what it says, so that agreement is no independent evidence.
    of: Literal["below", "another experiment", "fitted"] = "below"
    exhibit: str = ""
    dataset: tuple[str, ...] = ()
    method: tuple[str, ...] = ()
    measure: tuple[str, ...] = ()
    #: Studies that put it to the test; without their records it is a guess.
    tested_by: tuple[str, ...] = ()


class Paper(TypedTable, frozen=True, kw_only=True):
    """One paper."""

    id: str
    title: str
    citation: str
    #: What came out, in a few plain sentences.
    summary: str = ""
    #: Without https://doi.org/.
    doi: str = ""
    #: Number of runs behind a printed standard deviation; assumed where the paper does not say.
    printed_runs: int = 5
    methods: dict[str, PaperMethod]
    datasets: dict[str, PaperData]
    studies: dict[str, Study]
    exhibits: dict[str, Exhibit]
    claims: tuple[Claim, ...] = ()
    explanations: tuple[Explanation, ...] = ()
    note: str = ""

    @property
    def is_compared(self) -> bool:
        """Whether there are printed numbers: it is not a study of our own."""
        return any(exhibit.published for exhibit in self.exhibits.values())

    def shown(self, method: str) -> str:
        """What pages call a method."""
        known = self.methods.get(method)
        return (known.label if known is not None else "") or method

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
            Number of seeds of all data sets, in place of the study's.
        datasets, methods : tuples of names
            Only these; empty means all.
        tuning : "paper" or "cv"
            Take the parameters the paper names where it does, or choose all from grids.
        """
        keys = list(study.sweep)
        variants = list(itertools.product(*study.sweep.values()))
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
            parameters = dict(method.parameters)
            grid = dict(study.grids.get(method_name, method.grid))
            if chosen is not None and tuning == "paper":
                parameters, grid = parameters | chosen, {}
            of_dataset = study.per_dataset.get(dataset, OwnStudy()).settings
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
    """Names of the papers, which are numbered, and then of the studies of our own.

    Examples
    --------
    >>> paper_ids()
    ['p0', 'p1', 'p2', 'p3', 'p4', 'all', 'questions']
    """
    folder = files(__package__) / "papers"
    names = (
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )
    return sorted(names, key=lambda name: (not name[-1].isdigit(), name))


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
    return parse_paper(text, f"{paper_id}.toml")


def parse_paper(text: str, file: str = "paper") -> Paper:
    """A paper from the text of its file; an error names the file, the table and the key.

    Examples
    --------
    >>> parse_paper('[[studies]]\\nid = "x-main"\\nprotocl = "retrieval"', "x.toml")
    Traceback (most recent call last):
    ValueError: x.toml: study x-main: unknown key 'protocl'; did you mean 'protocol'?
    """
    raw = tomllib.loads(text)

    def named(key: str, kind: Any, word: str) -> dict[str, Any]:
        """Tables by the name in their header."""
        return {
            name: read_table({"name": name, **given}, kind, f"{file}: {word} {name}")
            for name, given in raw.get(key, {}).items()
        }

    def listed(key: str, kind: Any, word: str) -> list[Any]:
        """Tables in a list, told apart in messages by their id or their number."""
        return [
            read_table(given, kind, f"{file}: {word} {given.get('id', number)}")
            for number, given in enumerate(raw.get(key, []), 1)
        ]

    tables = {
        "methods": named("methods", PaperMethod, "method"),
        "datasets": named("datasets", PaperData, "data set"),
        "studies": {one.id: one for one in listed("studies", Study, "study")},
        "exhibits": {one.id: one for one in listed("exhibits", Exhibit, "exhibit")},
        "claims": tuple(listed("claims", Claim, "claim")),
        "explanations": tuple(listed("explanations", Explanation, "explanation")),
    }
    paper = read_table(raw | tables, Paper, file)
    for study in paper.studies.values():
        for one in (study, study.quick_version()):
            if one is not None:
                _check_study(paper, one, f"{file}: study {one.id}")
    for number, explanation in enumerate(paper.explanations, 1):
        _check_explanation(paper, explanation, f"{file}: explanation {number}")
    for number, claim in enumerate(paper.claims, 1):
        _check_claim(paper, claim.check, f"{file}: claim {number}")
    for exhibit in paper.exhibits.values():
        _check_exhibit(paper, exhibit, f"{file}: exhibit {exhibit.id}")
    return paper


def _check_names(where: str, kind: str, names: Iterable[str], known: Container[str]) -> None:
    """Refuse a name that stands for nothing; "" is no name."""
    for name in names:
        if name and name not in known:
            raise ValueError(f"{where}: no such {kind}: {name!r}")


def _check_study(paper: Paper, study: Study, where: str) -> None:
    """Its names are the paper's, and its protocol understands the settings of every cell."""
    datasets = (*study.datasets, *study.per_dataset, *(dataset for dataset, _ in study.skip))
    methods = (*study.methods, *study.grids, *(method for _, method in study.skip))
    _check_names(where, "data set", datasets, paper.datasets)
    _check_names(where, "method", methods, paper.methods)
    _check_names(where, "protocol", (study.protocol,), PROTOCOL_NAMES)
    seen: list[dict[str, Any]] = []
    for cell in paper.cells(study, seeds=1):
        if cell.settings not in seen:
            seen.append(cell.settings)
            read_table(cell.settings, protocol(study.protocol).settings, f"{where}: settings")


def _check_exhibit(paper: Paper, exhibit: Exhibit, where: str) -> None:
    """It shows what its studies run."""
    _check_names(where, "exhibit", (exhibit.instead_of,), paper.exhibits)
    lines = exhibit.draw.references if exhibit.draw is not None else None
    names = (exhibit.study, *exhibit.beside.values(), lines.study if lines is not None else "")
    _check_names(where, "study", names, paper.studies)
    shown = [paper.studies[name] for name in (exhibit.study, *exhibit.beside.values()) if name]
    methods = {name for study in shown for name in study.methods}
    used = (*exhibit.methods, *exhibit.records_of.values(), exhibit.baseline)
    _check_names(where, "method", used, methods | exhibit.records_of.keys())
    _check_names(where, "method", itertools.chain(*exhibit.families.values()), paper.methods)
    _check_names(where, "data set", exhibit.datasets, {d for one in shown for d in one.datasets})
    if lines is not None:
        _check_names(where, "method", lines.methods, paper.studies[lines.study].methods)
    if exhibit.draw is not None:
        swept = {key.rpartition(".")[2] for study in shown for key in study.sweep}
        _check_names(where, "swept quantity", _swept_in(exhibit.draw), swept)


def _swept_in(how: Drawing) -> tuple[str, ...]:
    """The swept quantities that a figure needs."""
    if how.form == "matrix":
        return how.x, how.y
    if how.form == "bars":
        return () if how.x == "dataset" else (how.x,)
    return () if how.curve or how.curves or how.measures else (how.along or how.x,)


def _check_claim(paper: Paper, check: Check, where: str) -> None:
    """What it compares is run: a misspelt name would leave the claim open for ever."""

    def given(*keys: str) -> list[str]:
        return [name for key in keys if (name := getattr(check, key, ""))]

    studies = [check.study, *check.also, *given("against")]
    _check_names(where, "study", studies, paper.studies)
    run = [paper.studies[name] for name in studies]
    pairs: tuple[tuple[str, str], ...] = getattr(check, "pairs", ())
    skipped: tuple[tuple[str, str], ...] = getattr(check, "skip", ())
    methods = given("winner", "loser", "method", "numerator", "denominator")
    for key in ("winners", "losers", "methods"):
        methods += getattr(check, key, ())
    methods += [*itertools.chain(*pairs), *(method for _, method in skipped)]
    _check_names(where, "method", methods, {name for study in run for name in study.methods})
    datasets = (*check.datasets, *(dataset for dataset, _ in skipped))
    _check_names(where, "data set", datasets, {name for study in run for name in study.datasets})
    swept = {key.rpartition(".")[2] for study in run for key in study.sweep}
    _check_names(where, "swept quantity", given("each", "along"), swept)


def _check_explanation(paper: Paper, explanation: Explanation, where: str) -> None:
    """It is about numbers that an exhibit may have: a misspelt name would explain nothing."""
    exhibits = paper.exhibits.values()
    measures = {measure.name for exhibit in exhibits for measure in exhibit.measures}
    columns = {name for exhibit in exhibits for name in exhibit.records_of}
    _check_names(where, "exhibit", (explanation.exhibit,), paper.exhibits)
    _check_names(where, "data set", explanation.dataset, paper.datasets)
    _check_names(where, "method", explanation.method, paper.methods.keys() | columns)
    _check_names(where, "measure", explanation.measure, measures)
    _check_names(where, "study", explanation.tested_by, paper.studies)


@cache
def published(name: str) -> dict[tuple[str, str, str], tuple[str, str]]:
    """Published numbers by (data set, method, measure): value and standard deviation, as printed.

    Examples
    --------
    >>> published("p3_table2_map.csv")["vehicle", "SDCA", "map"]
    ('0.5955', '')
    """
    text = (files(__package__) / "published" / name).read_text("utf-8")
    return {
        (row["dataset"], row["algorithm"], row["measure"]): (row["value"], row["std"])
        for row in csv.DictReader(text.splitlines())
    }


def select(ids: tuple[str, ...]) -> list[tuple[Paper, Study]]:
    """The studies behind names of papers, studies, tables and figures; all of them for no names.

    Examples
    --------
    >>> [study.id for paper, study in select(("p3-table2",))]
    ['p3-standard']
    """
    found: dict[str, tuple[Paper, Study]] = {}
    papers = [load_paper(paper_id) for paper_id in paper_ids()]
    for wanted in ids or tuple(paper_ids()):
        for paper in papers:
            if wanted == paper.id:
                studies = list(paper.studies.values())
            elif wanted in paper.studies:
                studies = [paper.studies[wanted]]
            elif wanted in paper.exhibits:
                shown = paper.study_of(wanted)
                if shown is None:
                    note = paper.exhibits[wanted].note or "its data is not available"
                    raise ValueError(f"{wanted}: {note}")
                others = paper.exhibits[wanted].beside.values()
                studies = [shown, *(paper.studies[name] for name in others)]
            else:
                continue
            found |= {study.id: (paper, study) for study in studies}
            break
        else:
            raise ValueError(
                f"expected a paper ({', '.join(paper_ids())}), a study, a table or a figure, got "
                f"{wanted!r}; simstream repro list and status name them"
            )
    return list(found.values())
