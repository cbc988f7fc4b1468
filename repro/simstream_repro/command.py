"""``simstream repro``: the published tables and figures, run again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simstream.cli.options import (
    FILE,
    CommaSeparated,
    PathType,
    check_folder,
    check_writable,
    debug_option,
    existing_folder,
    json_option,
    quiet_option,
    refuse_options,
)
from simstream.cli.output import (
    configure_logging,
    echo_json,
    echo_table,
    error_console,
    logger,
    plural,
)
from simstream.extras import MissingExtraError

# Commands import what they need when they run, so that `simstream --help` stays instant.
if TYPE_CHECKING:
    from .plan import Exhibit, Paper, Study
    from .records import Cell, Record, RecordStore
    from .runner import Job, Progress

#: Default folder of records and reports.
_FOLDER = Path("repro-results")

#: With many more, the cells could not even be listed in reasonable time.
_SEEDS = click.IntRange(1, 1000)

#: In place of a paper: the studies of "repro adaptation", which have no printed numbers beside them.
_ADAPTATION = "adaptation"

_ADAPTATION_SEEDS = 3

_NAMES = CommaSeparated(click.STRING, "name,name")


def _not_a_file(_: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Refuse a folder that is a file, or would be made in one; it need not exist."""
    if value is not None:
        existing_folder(value, value, param.opts[0])
    return value


def _results_option(command: Any) -> Any:
    return click.option(
        "--results",
        type=FILE,
        callback=_not_a_file,
        default=_FOLDER,
        show_default=True,
        help="Folder of the records, one file per study.",
    )(command)


def _data_option(command: Any) -> Any:
    return click.option(
        "--data-dir",
        type=PathType(exists=True, file_okay=False),
        help="Folder of data sets (default: the variable SIMSTREAM_DATA).",
    )(command)


def _jobs_option(command: Any) -> Any:
    return click.option(
        "--jobs",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Number of cells run at once, one thread each.",
    )(command)


def _stale_option(command: Any) -> Any:
    return click.option(
        "--stale",
        is_flag=True,
        help="Also run again what comes from other code than there is now (see repro status).",
    )(command)


def _no_records(results: Path, command: str) -> click.BadParameter:
    return click.BadParameter(
        f"expected a folder with records of simstream repro {command}, got {str(results)!r}",
        param_hint="--results",
    )


def _check_records(results: Path) -> None:
    """Refuse a folder without any records, be it missing or another one."""
    if not any(results.glob("*.jsonl")):
        raise _no_records(results, "run")


def _warn_of_damage(store: RecordStore) -> None:
    """Name the lines of the files read so far that are no records."""
    for line in store.damaged:
        logger.warning("%s", line)


def _selected(ids: tuple[str, ...]) -> list[tuple[Paper, Study]]:
    """The studies that a command is about."""
    from .plan import select

    try:
        return select(ids)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="IDS") from error


@click.group(short_help="Run published experiments again.")
@debug_option
def repro() -> None:
    """Run the tables and figures of published papers again, and show ours beside theirs.

    \b
    simstream repro list                    tables and figures, and whether their data is available
    simstream repro run p3-table2 --jobs 2  a table; a paper (p3); or everything
    simstream repro status                  what is still to be run, and what comes from other code
    simstream repro report --html           pages with tables, figures, verdicts
    simstream repro adaptation              learning from feedback beside layers of torch
    """
    missing = [name for name in ("jinja2", "matplotlib", "msgspec") if find_spec(name) is None]
    if missing:
        raise MissingExtraError("repro", " and ".join(missing), "repro")


# -- list ---------------------------------------------------------------------------------------------------

#: More data sets than this are counted, not named (--json names them all).
_MOST_NAMED = 6


@repro.command("list")
@_data_option
@_results_option
@json_option
@debug_option
def list_exhibits(data_dir: Path | None, results: Path, as_json: bool) -> None:
    """List every table and figure, the data it needs and whether it is available, and what has been run."""
    from simstream import datasets

    from .plan import load_paper, paper_ids
    from .records import RecordStore

    papers = [load_paper(paper_id) for paper_id in paper_ids()]
    available, store = set(datasets.available(data_dir)), RecordStore(results)
    rows = [
        _overview(paper, exhibit, available, store)
        for paper in papers
        for exhibit in paper.exhibits.values()
    ]
    _warn_of_damage(store)
    if as_json:
        echo_json(rows)
        return
    echo_table(["paper", "title"], [[paper.id, paper.title] for paper in papers], left=(1,))
    echo_table(
        ["id", "title", "data", "cells done"],
        [
            [row["id"], row["title"], _data_text(row), f"{row['n_done']} of {row['n_cells']}"]
            for row in rows
        ],
        left=(1, 2),
    )


def _overview(
    paper: Paper, exhibit: Exhibit, available: set[str], store: RecordStore
) -> dict[str, Any]:
    """A table or figure with the state of every data set, and how many of its cells are done."""
    from .records import with_tuning

    study = paper.study_of(exhibit.id)
    states: dict[str, str] = {}
    cells = with_tuning([] if study is None else paper.cells(study))
    for name in () if study is None else study.datasets:
        given = paper.datasets[name]
        if not given.data:
            states[name] = "absent"
        elif given.data not in available:
            states[name] = "missing"
        else:
            states[name] = "present" if given.standing == "exact" else given.standing
    if study is None and exhibit.published:
        states["not public"] = "absent"
    return {
        "id": exhibit.id,
        "title": exhibit.title,
        "kind": exhibit.kind,
        "data": states,
        "n_cells": len(cells),
        "n_done": len(store.finished(cells.values())),
    }


def _data_text(row: dict[str, Any]) -> str:
    parts = []
    for word in ("present", "stand-in", "partial", "missing", "absent"):
        names = [name for name, state in row["data"].items() if state == word]
        if names:
            listed = ", ".join(names) if len(names) <= _MOST_NAMED else f"{len(names)} data sets"
            parts.append(listed if word == "present" else f"{word}: {listed}")
    return "; ".join(parts) or ("not drawn" if row["kind"] == "absent" else "none needed")


# -- run ----------------------------------------------------------------------------------------------------


@repro.command()
@click.argument("ids", nargs=-1)
@click.option("--datasets", type=_NAMES, help="Only these data sets, by the paper's names.")
@click.option("--methods", type=_NAMES, help="Only these methods.")
@click.option("--seeds", type=_SEEDS, help="Number of seeds (default: the paper's).")
@_jobs_option
@click.option(
    "--tuning",
    type=click.Choice(["paper", "cv"]),
    default="paper",
    show_default=True,
    help="Use the parameters a paper names where it does, or choose all of them from grids.",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    help="CPU seconds a cell may take (default: the budget of its study).",
)
@_stale_option
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    help="Run only N cells, drawn from what --stale would run again: do they come out as before? "
    "(see repro status)",
    metavar="N",
)
@click.option(
    "--quick",
    is_flag=True,
    help="A small version on bundled data, in minutes: a smoke run that pages do not show.",
)
@_data_option
@_results_option
@quiet_option
@debug_option
def run(
    ids: tuple[str, ...],
    datasets: tuple[str, ...] | None,
    methods: tuple[str, ...] | None,
    seeds: int | None,
    jobs: int,
    tuning: str,
    budget: float | None,
    stale: bool,
    sample: int | None,
    quick: bool,
    data_dir: Path | None,
    results: Path,
    quiet: bool,
) -> None:
    """Run tables, figures or papers (IDS as in "repro list"; none means everything).

    Every finished cell (data set, method, seed) is saved at once: after an interruption, the same command
    resumes where it stopped. A cell beyond its budget is recorded as such. Cells whose data set is not
    available are skipped with a warning. Two runs at once in one folder lose nothing, but may do the same
    cells twice.

    \b
    simstream repro run p3-table2 --datasets vehicle,vowel --seeds 2 --jobs 2
    simstream repro run p0 p1 --data-dir data --budget 300
    simstream repro run --stale --results docs/repro/records
    simstream repro run --sample 100 --results docs/repro/records
    """
    from .records import RecordStore
    from .runner import Budget, Job

    configure_logging(quiet)
    if budget is not None and not budget > 0:  # NaN passes every range
        raise click.BadParameter(f"expected a number above 0, got {budget}", param_hint="--budget")
    check_folder(results, results, "--results")
    chosen = _selected(ids)
    if quick:
        refuse_options(
            "has no meaning with --quick, whose records are no results: --stale runs all of them again",
            {"--sample": sample is not None},
        )
        chosen = [(paper, one) for paper, study in chosen if (one := study.quick_version())]
        if not chosen:
            raise click.UsageError("--quick: none of these studies has a quick version")
    data = _known_names("--datasets", datasets, {d for _, one in chosen for d in one.datasets})
    names = _known_names("--methods", methods, {m for _, one in chosen for m in one.methods})
    planned: list[Job] = []
    for paper, study in chosen:
        for cell in paper.cells(study, seeds=seeds, datasets=data, methods=names, tuning=tuning):
            seconds, gigabytes = study.budget_of(cell.dataset)
            planned.append(Job(cell, Budget(budget or seconds, gigabytes)))
    work = _available(planned, data_dir)
    if not work:
        raise click.UsageError(
            "none of the data sets is available: expected them in the folder of --data-dir or of the "
            "variable SIMSTREAM_DATA; simstream datasets says how to get them"
        )
    store = RecordStore(results)
    _check_files(work, store, data_dir)
    recorded = _run(work, store, jobs, data_dir, quiet, stale=stale, sample=sample)
    _warn_of_damage(store)
    if (stale or sample is not None) and not recorded:
        logger.info("nothing to run again: %s", _why_nothing_again(work, store))
    _summarise(work, store, recorded)


def _run(
    work: list[Job],
    store: RecordStore,
    jobs: int,
    data_dir: Path | None,
    quiet: bool,
    *,
    stale: bool = False,
    sample: int | None = None,
) -> list[Cell]:
    """Run what is not finished yet, and show how it goes; the cells that have got a record."""
    from .runner import run_jobs

    try:
        with _progress(quiet) as report:
            return run_jobs(
                work,
                store,
                n_processes=jobs,
                data_dir=None if data_dir is None else str(data_dir.resolve()),
                report=report,
                stale=stale,
                sample=sample,
            )
    except KeyboardInterrupt:
        logger.info("finished cells are saved: the same command resumes here")
        raise


def _known_names(option: str, given: tuple[str, ...] | None, known: set[str]) -> tuple[str, ...]:
    """Check names against those of the chosen studies; none at all if the option is not given.

    A name may itself contain a comma: parts that make up a name together are taken as that name.
    """
    if given is None:
        return ()
    names: list[str] = []
    rest = list(given) or [""]  # such as a variable of the shell that is not set
    while rest:
        sizes = (n for n in range(len(rest), 0, -1) if ", ".join(rest[:n]) in known)
        size = next(sizes, 0)
        if not size:
            raise click.BadParameter(
                f"expected some of {'; '.join(sorted(known))}, got {rest[0]!r}", param_hint=option
            )
        names.append(", ".join(rest[:size]))
        rest = rest[size:]
    return tuple(names)


def _available(jobs: list[Job], data_dir: Path | None) -> list[Job]:
    """Those whose data set is available; a warning names the data sets of the others."""
    from simstream import datasets

    available = set(datasets.available(data_dir))
    missing = sorted({job.cell.data for job in jobs} - available)
    if missing:
        logger.warning(
            "skipped, data sets not available: %s (simstream datasets says how to get them)",
            ", ".join(missing),
        )
    return [job for job in jobs if job.cell.data in available]


def _check_files(work: list[Job], store: RecordStore, data_dir: Path | None) -> None:
    """Refuse to mix records of two files of a data set; warn of files that no published page is about."""
    from .data_files import digests, of_other_files, published_digests

    now = digests({job.cell.data for job in work}, data_dir)
    studies = {job.cell.study for job in work}
    records = [one for study in sorted(studies) for one in store.of_study(study)]
    for name, digest in sorted(of_other_files(records, now).items()):
        raise click.BadParameter(
            f"its records of {name} come from another file (SHA-256 {digest[:12]}) than the data folder has "
            f"(SHA-256 {now[name][:12]}); expected a folder for results of this file",
            param_hint="--results",
        )
    known = published_digests()
    others = sorted(name for name, digest in now.items() if known.get(name, digest) != digest)
    if others:
        logger.warning(
            "other files than those of the published pages (or compressed anew): %s",
            ", ".join(
                f"{one} (SHA-256 {now[one][:12]}, there {known[one][:12]})" for one in others
            ),
        )


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """A bar with the remaining time on a terminal, log lines elsewhere."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield _progress_lines()
        return
    from rich import progress as rich_progress

    columns = (
        rich_progress.BarColumn(bar_width=20),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeRemainingColumn(compact=True),
        rich_progress.TextColumn("{task.description}", markup=False),
    )
    with rich_progress.Progress(*columns, console=error_console()) as bar:
        task = bar.add_task("", total=None)

        def show(at: Progress) -> None:
            bar.update(task, total=at.n_cells, completed=at.n_done, description=at.job.cell.name)

        yield show


def _progress_lines() -> Callable[[Progress], None]:
    begin, n_before = time.monotonic(), None

    def line(at: Progress) -> None:
        nonlocal n_before
        n_before = at.n_done - 1 if n_before is None else n_before
        seconds = (time.monotonic() - begin) / (at.n_done - n_before)
        logger.info(
            "%s of %s, about %s left: %s %s",
            f"{at.n_done:,}",
            f"{at.n_cells:,}",
            _minutes((at.n_cells - at.n_done) * seconds),
            at.job.cell.name,
            _outcome(at.record),
        )

    return line


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _outcome(record: dict[str, Any]) -> str:
    if record["status"] != "done":
        return f"{record['status']}: {record.get('error', '')}"
    shown = [f"{name} {value:.4g}" for name, value in list(record["measures"].items())[:3]]
    return ", ".join(shown) or f"chosen {record.get('parameters')}"


def _records_of(work: list[Job], store: RecordStore) -> list[Record]:
    """Records of all cells, those that choose parameters included."""
    from .records import with_tuning

    cells = with_tuning(job.cell for job in work).values()
    return [found for cell in cells if (found := store.find(cell)) is not None]


def _why_nothing_again(work: list[Job], store: RecordStore) -> str:
    found = _records_of(work, store)
    if not found:
        return "there are no records of these cells"
    if not any(map(store.is_stale, found)):
        return "no record comes from other code"
    return "no record from other code is of a finished cell whose parameters are known"


def _summarise(work: list[Job], store: RecordStore, recorded: list[Cell]) -> None:
    """Say how all cells ended, and how many of them just now; one that failed just now is an error."""
    found = _records_of(work, store)
    new = {cell.fingerprint for cell in recorded}
    parts = []
    for end in ("done", "over budget", "out of memory", "failed"):
        ended = [record["fingerprint"] for record in found if record["status"] == end]
        if ended:
            n_new = len(new.intersection(ended))
            parts.append(f"{end}: {plural(len(ended), 'cell')} ({n_new:,} new)")
    if parts:
        logger.info("%s", ", ".join(parts))
    failures = {
        record.get("error", "")
        for record in found
        if record["status"] == "failed" and record["fingerprint"] in new
    }
    for error in sorted(failures):
        logger.error("failed: %s", error)
    if failures:
        click.get_current_context().exit(1)


# -- status -------------------------------------------------------------------------------------------------


@repro.command()
@click.argument("ids", nargs=-1)
@_results_option
@json_option
@debug_option
def status(ids: tuple[str, ...], results: Path, as_json: bool) -> None:
    """Say how many cells of each study are still to be run, and how many records come from other code.

    Hours (h) are those that the same cells took, and for cells without a record those of the most similar
    ones with one: their method on their data set, their study, their protocol; "?" where there is none. Of
    the cells that were run again by the present code, some came out the same to six digits: the others say
    whether a change mattered. The studies of "repro adaptation" are listed where there are records of them.

    \b
    simstream repro status p0 --results docs/repro/records
    simstream repro status adaptation --results docs/repro/records
    """
    from .adaptation.plan import STUDIES
    from .records import RecordStore
    from .verdicts import outstanding, outstanding_cells

    papers = tuple(name for name in ids if name != _ADAPTATION)
    chosen = _selected(papers) if papers or not ids else []
    _check_records(results)
    store = RecordStore(results)
    rows = [outstanding(paper, study, store) for paper, study in chosen]
    adaptation_ids = {study.id for study in STUDIES.values()}
    if not ids or _ADAPTATION in ids:
        others = [
            outstanding_cells(
                study.id, study.cells(range(_ADAPTATION_SEEDS)), adaptation_ids, store
            )
            for study in STUDIES.values()
        ]
        rows += [row for row in others if row.n_done or ids]
    _warn_of_damage(store)
    if as_json:
        echo_json([row._asdict() for row in rows])
        return
    names = ["study", "cells", "done", "to run", "h", "stale", "h", "again", "same"]
    numbers: dict[str, tuple[float | None, ...]] = {row.study: row[1:] for row in rows}
    numbers["all"] = tuple(
        None if None in column else sum(column) for column in zip(*numbers.values(), strict=True)
    )
    echo_table(names, [[name, *map(_number_text, found)] for name, found in numbers.items()])
    commands = {
        f"simstream repro {'adaptation' if row.study in adaptation_ids else 'run'} --stale": None
        for row in rows
        if row.n_stale
    }
    if commands:
        logger.info("stale: from other code, or without a digest of it; %s", " and ".join(commands))


def _number_text(value: float | None) -> str:
    """A count, or hours, which may not be known."""
    if value is None:
        return "?"
    return f"{value:.1f}" if isinstance(value, float) else f"{value:,}"


# -- adaptation ---------------------------------------------------------------------------------------------


@repro.command()
@click.option(
    "--only",
    type=click.Choice(["retrieval", "curve", "items", "labels", "triplets"]),
    multiple=True,
    help="Only this part; may be given more than once.",
)
@click.option("--methods", type=_NAMES, help="Only these contenders.")
@click.option(
    "--seeds",
    type=_SEEDS,
    default=_ADAPTATION_SEEDS,
    show_default=True,
    help="Number of seeds.",
)
@_jobs_option
@_stale_option
@click.option(
    "--output",
    "-o",
    type=FILE,
    default=Path("docs/adaptation.md"),
    show_default=True,
    help="The page; its picture is put beside it.",
)
@click.option("--page-only", is_flag=True, help="Run nothing: write the page from the records.")
@_data_option
@_results_option
@quiet_option
@debug_option
def adaptation(
    only: tuple[str, ...],
    methods: tuple[str, ...] | None,
    seeds: int,
    jobs: int,
    stale: bool,
    output: Path,
    page_only: bool,
    data_dir: Path | None,
    results: Path,
    quiet: bool,
) -> None:
    """Measure what learning from feedback gains, beside layers trained in batches with torch.

    Needs torch (pip install 'simstream[torch]') and, in the data folder, test collections in retrieval/.
    Every finished cell is saved at once, so the same command resumes. The page shows all records there are.

    \b
    simstream repro adaptation --only retrieval --only curve
    simstream repro adaptation --page-only --results docs/repro/records
    """
    from .adaptation.page import write_page
    from .adaptation.plan import STUDIES, check_needs
    from .records import RecordStore
    from .runner import Budget, Job

    configure_logging(quiet)
    if page_only:
        refuse_options(
            "has no meaning with --page-only: the page shows all records",
            {"--only": bool(only), "--methods": methods is not None, "--stale": stale},
        )
    if output.parent.exists():
        check_writable(output, "--output")
    else:  # it will be made
        check_folder(output.parent, output, "--output")
    chosen = [study for part, study in STUDIES.items() if not only or part in only]
    names = _known_names("--methods", methods, {m for one in chosen for m in one.methods()})
    store = RecordStore(results)
    work = [
        Job(cell, Budget(*study.budget))
        for study in chosen
        for cell in study.cells(range(seeds), names)
    ]
    if not page_only:
        check_folder(results, results, "--results")
        done = store.finished(job.cell for job in work)
        finished = {one["fingerprint"] for one in done if not (stale and store.is_stale(one))}
        check_needs([job.cell for job in work if job.cell.fingerprint not in finished], data_dir)
        recorded = _run(work, store, jobs, data_dir, quiet, stale=stale)
    elif not any(store.of_study(study.id) for study in STUDIES.values()):
        raise _no_records(results, "adaptation")
    for path in write_page(store, output):
        logger.info("written: %s", path)
    _warn_of_damage(store)
    if not page_only:
        _summarise(work, store, recorded)


# -- report, tidy -------------------------------------------------------------------------------------------


@repro.command()
@click.argument("papers", nargs=-1)
@click.option("--html", is_flag=True, help="Self-contained pages (default).")
@click.option("--md", is_flag=True, help="Markdown, pictures beside it.")
@click.option(
    "--output",
    "-o",
    type=FILE,
    callback=_not_a_file,
    help="Folder to write to (default: that of the records).",
)
@_results_option
@quiet_option
@debug_option
def report(
    papers: tuple[str, ...],
    html: bool,
    md: bool,
    output: Path | None,
    results: Path,
    quiet: bool,
) -> None:
    """Write one page per paper from the records: tables with verdicts, figures, claims.

    The index, summary.json and comparisons.csv are about all papers: where there is an index, a command that
    names PAPERS leaves the three as they are.
    """
    from .plan import paper_ids
    from .records import RecordStore
    from .report import write_reports

    configure_logging(quiet)
    if html:
        refuse_options("cannot be written together with --html: give one of them", {"--md": md})
    for name in papers:
        if name not in paper_ids():
            known = ", ".join(paper_ids())
            raise click.BadParameter(
                f"expected whole papers, some of {known}; got {name!r}", param_hint="PAPERS"
            )
    _check_records(results)
    folder = output or results
    check_folder(folder, folder, "--output")
    store = RecordStore(results)
    for path in write_reports(papers, store, folder, "md" if md else "html"):
        logger.info("written: %s", path)
    _warn_of_damage(store)


@repro.command()
@click.option(
    "--yes", is_flag=True, help="Delete them; without this, only show what would be deleted."
)
@_results_option
@quiet_option
@debug_option
def tidy(yes: bool, results: Path, quiet: bool) -> None:
    """Delete records that pages do not show: unfinished cells, and cells that the plan no longer has.

    That goes for the papers and for the studies of "repro adaptation". Lines that are no records go too, and
    what cells had before they were run again. Records of an earlier plan cannot be had again without running
    it: look first. Do not tidy a folder that a run is writing to: a record that it adds in that moment may be
    lost.
    """
    from .records import RecordStore

    configure_logging(quiet)
    _check_records(results)
    if yes:
        check_folder(results, results, "--results")
    store = RecordStore(results)
    n_lines = n_records = n_kept = 0
    for study, cells in _planned(store):
        n_of_study, kept = len(store.of_study(study)), store.finished(cells)
        n_lines += store.n_lines(study)
        n_records += n_of_study
        n_kept += len(kept)
        if yes:
            store.compact(study, cells)
        word = "kept" if yes else "would be kept"
        logger.info("%s: %d of %d records %s", study, len(kept), n_of_study, word)
    _warn_of_damage(store)
    n_damaged = len(store.damaged)
    told = _counted(
        {
            "record": n_records - n_kept,
            "superseded record": n_lines - n_records - n_damaged,
            "damaged line": n_damaged,
        }
    )
    if not told:
        logger.info("nothing to delete")
    elif yes:
        logger.info("deleted: %s", told)
    else:
        logger.info("nothing was deleted: --yes deletes %s", told)
    if yes:
        _forget_unused_sources(results)


def _planned(store: RecordStore) -> Iterator[tuple[str, list[Cell]]]:
    """Every study with a file, and the cells of its plan: for as many seeds as were run."""
    from .adaptation.plan import STUDIES
    from .plan import load_paper, paper_ids
    from .records import n_seeds_of
    from .verdicts import PaperRecords

    for paper in map(load_paper, paper_ids()):
        given = PaperRecords(paper, store)
        for study in paper.studies.values():
            if store.n_lines(study.id):
                yield study.id, given.of(study).cells
    for other in STUDIES.values():
        if store.n_lines(other.id):
            n_seeds = n_seeds_of(store.of_study(other.id))
            yield other.id, list(other.cells(range(n_seeds)))


def _counted(numbers: dict[str, int]) -> str:
    """How many there are of each thing, without those of which there are none."""
    return ", ".join(plural(n, thing) for thing, n in numbers.items() if n)


def _forget_unused_sources(folder: Path) -> None:
    """Keep digests of code that a record comes from, and no others.

    The records are read again: those that a run has added in the meantime must not lose their digests.
    """
    from .records import RecordStore

    store = RecordStore(folder)
    kept = (one for path in folder.glob("*.jsonl") for one in store.of_study(path.stem))
    store.sources.keep(one.get("versions", {}).get("source", "") for one in kept)
