"""``simstream repro``: the published tables and figures, run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from simstream.cli.options import FILE, CommaSeparated, debug_option, json_option, quiet_option

#: Where records and reports go unless told otherwise.
_FOLDER = Path("repro-results")

_NAMES = CommaSeparated(click.STRING, "name,name")


def _results_option(command: Any) -> Any:
    return click.option(
        "--results",
        type=FILE,
        default=_FOLDER,
        show_default=True,
        help="Folder of the records, one file per study.",
    )(command)


def _data_option(command: Any) -> Any:
    return click.option(
        "--data-dir",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Folder of data sets (default: the variable SIMSTREAM_DATA).",
    )(command)


@click.group(short_help="Run published experiments again.")
@debug_option
def repro() -> None:
    """Run the tables and figures of published papers again, and show ours beside theirs.

    \b
    simstream repro list                    what there is, and whether its data is here
    simstream repro run p3-table2 --jobs 2  a table; a paper (p3); or everything
    simstream repro report --html           pages with tables, figures, verdicts
    """


@repro.command("list")
@_data_option
@_results_option
@json_option
@debug_option
def list_exhibits(data_dir: Path | None, results: Path, as_json: bool) -> None:
    """List every table and figure, the data it needs, whether that is here, and what has been run."""
    from simstream.cli.output import echo_json, echo_table

    from .overview import overview, paper_titles

    rows = overview(data_dir, results)
    if as_json:
        echo_json(rows)
        return
    echo_table(["paper", "title"], list(paper_titles().items()), left=(1,))
    echo_table(
        ["id", "what", "data", "cells done"],
        [
            [row["id"], row["title"], _data_text(row), f"{row['n_done']} of {row['n_cells']}"]
            for row in rows
        ],
        left=(1, 2),
    )


#: More data sets than this are counted, not named (--json names them all).
_AT_MOST_NAMED = 6


def _data_text(row: dict[str, Any]) -> str:
    parts = []
    for word in ("present", "stand-in", "partial", "missing", "absent"):
        names = [name for name, state in row["data"].items() if state == word]
        if names:
            told = ", ".join(names) if len(names) <= _AT_MOST_NAMED else f"{len(names)} data sets"
            parts.append(told if word == "present" else f"{word}: {told}")
    return "; ".join(parts) or "none needed"


@repro.command()
@click.argument("ids", nargs=-1)
@click.option(
    "--datasets", type=_NAMES, default="", help="Only these data sets, by the paper's names."
)
@click.option("--methods", type=_NAMES, default="", help="Only these methods.")
@click.option("--seeds", type=click.IntRange(min=1), help="Number of seeds (default: the paper's).")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Cells at a time, one thread each.",
)
@click.option(
    "--tuning",
    type=click.Choice(["paper", "cv"]),
    default="paper",
    show_default=True,
    help="Take the parameters a paper names where it does, or choose all of them from grids.",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    help="CPU seconds a cell may take (default: what its study allows).",
)
@click.option(
    "--quick",
    is_flag=True,
    help="A small version on bundled data: it shows that all works, in minutes; pages leave it out.",
)
@_data_option
@_results_option
@quiet_option
@debug_option
def run(ids: tuple[str, ...], quiet: bool, **options: Any) -> None:
    """Run tables, figures or papers (IDS of "repro list"; none means everything).

    Every finished cell (data set, method, seed) is written at once: an interrupted run goes on where
    it stopped when the same command is given again. A cell beyond its budget is recorded as such.
    Without a data set its cells are left out, and said so.

    \b
    simstream repro run p3-table2 --datasets vehicle,vowel --seeds 2 --jobs 2
    simstream repro run p0 p1 --data-dir data --budget 300
    """
    from simstream.cli.output import configure_logging

    from .command_run import run_experiments

    configure_logging(quiet)
    run_experiments(ids, quiet=quiet, **options)


@repro.command()
@click.argument("papers", nargs=-1)
@click.option(
    "--html", "form", flag_value="html", default=True, help="Self-contained pages (default)."
)
@click.option("--md", "form", flag_value="md", help="Markdown, pictures beside it.")
@click.option(
    "--output", "-o", type=FILE, help="Folder to write to (default: that of the records)."
)
@_results_option
@quiet_option
@debug_option
def report(
    papers: tuple[str, ...], form: str, output: Path | None, results: Path, quiet: bool
) -> None:
    """Write one page per paper from the records: tables with verdicts, figures, claims."""
    from simstream.cli.output import configure_logging, logger

    from .records import RecordStore
    from .report import write_reports

    configure_logging(quiet)
    if not any(results.glob("*.jsonl")):
        raise click.BadParameter(
            f"expected a folder with records of simstream repro run, got {str(results)!r}",
            param_hint="--results",
        )
    store = RecordStore(results)
    for path in write_reports(papers, store, output or results, form):
        logger.info("written: %s", path)
    for line in store.damaged:
        logger.warning("%s", line)


@repro.command()
@click.option("--yes", is_flag=True, help="Do it; without this, only say what would go.")
@_results_option
@quiet_option
@debug_option
def tidy(yes: bool, results: Path, quiet: bool) -> None:
    """Keep only records that pages show: finished cells of the plan, one line each.

    Records of a plan that has changed since cannot be had again without running it: look first.
    """
    from simstream.cli.output import configure_logging, logger

    from .plan import load_paper, paper_ids
    from .records import RecordStore
    from .verdicts import tidy as tidy_study

    configure_logging(quiet)
    store = RecordStore(results)
    for paper in map(load_paper, paper_ids()):
        for study in paper.studies.values():
            records = store.of_study(study.id)
            if not records:
                continue
            n_kept = tidy_study(paper, study, store, only_look=not yes)
            word = "kept" if yes else "would be kept"
            logger.info("%s: %d of %d records %s", study.id, n_kept, len(records), word)
    if not yes:
        logger.info("nothing is changed: --yes does it")
