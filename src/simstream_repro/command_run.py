"""The work behind ``simstream repro run``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from simstream.cli.output import as_count, logger

from .plan import Cell, select
from .quick import quick_version
from .records import RecordStore
from .runner import Job, Progress, jobs_of, run_jobs

Report = Callable[[Progress], None]


def run_experiments(
    ids: tuple[str, ...],
    *,
    datasets: tuple[str, ...],
    methods: tuple[str, ...],
    seeds: int | None,
    jobs: int,
    tuning: str,
    budget: float | None,
    quick: bool,
    data_dir: Path | None,
    results: Path,
    quiet: bool,
) -> None:
    """Run what the options name, and tell what came out."""
    if budget is not None and not budget > 0:  # NaN passes every range
        raise click.BadParameter(f"expected a number above 0, got {budget}", param_hint="--budget")
    chosen = select(ids)
    if quick:
        chosen = [
            (paper, small)
            for paper, study in chosen
            if (small := quick_version(paper, study)) is not None
        ]
        if not chosen:
            raise click.UsageError("--quick: expected a study with a quick version, got none")
    known_datasets = {name for _, study in chosen for name in study.datasets}
    known_methods = {name for _, study in chosen for name in study.methods}
    datasets = _known_names("--datasets", datasets, known_datasets)
    methods = _known_names("--methods", methods, known_methods)
    work: list[Job] = []
    for paper, study in chosen:
        cells = list(
            paper.cells(study, seeds=seeds, datasets=datasets, methods=methods, tuning=tuning)
        )
        work += jobs_of(_present(cells, data_dir), study, budget)
    if not work:
        raise click.UsageError(
            "expected a data set that is here, in the folder of --data-dir or of the variable "
            "SIMSTREAM_DATA; simstream datasets says how to get them"
        )
    if results.exists() and not results.is_dir():
        raise click.BadParameter(
            f"expected a folder, got the file {str(results)!r}", param_hint="--results"
        )
    store = RecordStore(results)
    with _told(quiet, store) as report, _going_on_is_easy():
        run_jobs(
            work,
            store,
            n_processes=jobs,
            data_dir=None if data_dir is None else str(data_dir.resolve()),
            report=report,
        )
    _say_how_it_went(work, store)


@contextmanager
def _going_on_is_easy() -> Iterator[None]:
    """Say so when somebody interrupts."""
    try:
        yield
    except KeyboardInterrupt:
        logger.info("finished cells are kept: the same command goes on from here")
        raise


def _known_names(option: str, given: tuple[str, ...], known: set[str]) -> tuple[str, ...]:
    """Names that some chosen study has; one that none has is a mistake, not an empty run.

    A name may itself hold a comma: parts that make a name together are taken as that name.
    """
    names: list[str] = []
    rest = list(given)
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


def _present(cells: list[Cell], data_dir: Path | None) -> list[Cell]:
    """Cells whose data is here; what is missing is said once."""
    from simstream import datasets

    here = set(datasets.available(data_dir))
    missing = sorted({cell.data for cell in cells} - here)
    if missing:
        logger.warning(
            "not here, and left out: %s (simstream datasets says how to get them)",
            ", ".join(missing),
        )
    return [cell for cell in cells if cell.data in here]


@contextmanager
def _told(quiet: bool, store: RecordStore) -> Iterator[Report | None]:
    """A bar with the remaining time on a terminal, lines elsewhere."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        from rich import progress as rich_progress

        from simstream.cli.progress import error_console

        columns = (
            rich_progress.BarColumn(bar_width=20),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TimeRemainingColumn(compact=True),
            rich_progress.TextColumn("{task.description}", markup=False),
        )
        with rich_progress.Progress(*columns, console=error_console()) as bar:
            task = bar.add_task("", total=None)

            def show(progress: Progress) -> None:
                bar.update(
                    task,
                    total=progress.n_cells,
                    completed=progress.n_done,
                    description=progress.job.cell.name,
                )

            yield show
    else:
        begin = time.monotonic()
        first: list[int] = []

        def line(progress: Progress) -> None:
            if not first:
                first.append(progress.n_done)
            made = progress.n_done - first[0] + 1
            left = (progress.n_cells - progress.n_done) * (time.monotonic() - begin) / made
            logger.info(
                "%s of %s, about %s left: %s %s",
                as_count(progress.n_done),
                as_count(progress.n_cells),
                _minutes(left),
                progress.job.cell.name,
                _outcome(progress.record),
            )

        yield line


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _outcome(record: dict[str, Any]) -> str:
    if record["status"] != "done":
        return f"{record['status']}: {record.get('error', '')}"
    shown = [f"{name} {value:.4g}" for name, value in list(record["measures"].items())[:3]]
    return ", ".join(shown) or f"chosen {record.get('parameters')}"


def _say_how_it_went(work: list[Job], store: RecordStore) -> None:
    found = [store.find(job.cell) for job in work]
    words = [record["status"] for record in found if record is not None]
    known = ("done", "over budget", "out of memory", "failed")
    counts = {word: words.count(word) for word in known if word in words}
    for line in store.damaged:
        logger.warning("%s", line)
    logger.info("%s", ", ".join(f"{word}: {as_count(n)}" for word, n in counts.items()))
    failures = {r["error"] for r in found if r is not None and r["status"] == "failed"}
    for error in sorted(failures):
        logger.error("failed: %s", error)
    if failures:
        click.get_current_context().exit(1)
