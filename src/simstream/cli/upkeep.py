"""Upkeep of a service's folder: ``check``, ``backup``, ``restore`` and ``erase``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from .exits import ExitCode
from .options import PathType, check_folder, json_option, log_option, quiet_option
from .output import configure_logging, echo_json, logger, plural, progress

FOLDER = PathType(file_okay=False, exists=True)
NEW_FOLDER = PathType(file_okay=False)


@click.command(short_help="Verify a service's folder, or salvage what is whole.")
@click.argument("folder", type=FOLDER)
@click.option(
    "--salvage",
    "new",
    type=NEW_FOLDER,
    help="Copy the events that are whole to this new folder (no service may be running).",
)
@json_option
@quiet_option
def check(folder: Path, new: Path | None, as_json: bool, quiet: bool) -> None:
    """Verify every event of a service's log, the chain of their hashes, and the snapshots.

    Exit code 1 means that something is wrong. It may run beside the service.

    \b
    simstream check simstream-data
    simstream check simstream-data --salvage salvaged
    """
    configure_logging(quiet)
    from ..serve import upkeep

    if new is not None:
        check_folder(new.parent, new, "--salvage")
        with _counted(quiet) as report:
            done = upkeep.salvage(folder, new, report)
        if as_json:
            echo_json(asdict(done))
        else:
            click.echo(f"kept: {plural(done.kept, 'event')}")
            click.echo(f"damaged: {plural(len(done.damaged), 'event')}")
            click.echo(f"about damaged items: {plural(done.about_damaged, 'event')}")
            click.echo(f"acknowledged, but not found: {plural(done.missing, 'event')}")
            if done.undoes:
                click.echo(
                    "warning: deletions, undo or rollbacks may be among those left out: what they undid "
                    "counts again"
                )
            click.echo(f"serve what was salvaged with: simstream serve --data {new}")
        if done.missing or not done.kept:
            raise SystemExit(ExitCode.DATA)
        return
    with _counted(quiet) as report:
        found = upkeep.check(folder, report)
    if as_json:
        echo_json(found.as_json())
    else:
        events, snapshots = plural(found.events, "event"), plural(found.snapshots, "snapshot")
        click.echo(f"{events} and {snapshots} verified")
        if found.erased:
            click.echo(f"erased by the operator: {plural(found.erased, 'event')}")
        for note in found.notes:
            click.echo(f"note: {note}")
        for problem in found.problems:
            click.echo(f"problem: {problem}")
        click.echo("everything is whole" if found.is_whole else f"problems: {len(found.problems)}")
    if not found.is_whole:
        raise SystemExit(ExitCode.DATA)


@contextmanager
def _counted(quiet: bool) -> Iterator[Any]:
    """Progress of work on a number of events that is known once it has begun."""
    with progress(quiet, "events") as report:
        yield lambda done, _total: report(done)


@click.command(short_help="Copy a service's folder, also while it runs.")
@click.argument("folder", type=FOLDER)
@click.argument("new", type=NEW_FOLDER)
@quiet_option
def backup(folder: Path, new: Path, quiet: bool) -> None:
    """Copy log and keys of FOLDER to the folder NEW, beside a running service too.

    The copy is as of one moment, and is a folder like any other: it can be checked and served. Its log is a
    file, wherever that of FOLDER is.

    \b
    simstream backup simstream-data backup-monday
    """
    configure_logging(quiet)
    from ..serve import upkeep

    check_folder(new.parent, new, "NEW")
    last = upkeep.back_up(folder, new)
    logger.info("%s: a copy up to log position %d", new, last)


@click.command(short_help="Make a service's folder from a backup.")
@click.argument("copy", type=FOLDER, metavar="BACKUP")
@click.argument("folder", type=NEW_FOLDER)
@log_option
@quiet_option
def restore(copy: Path, folder: Path, address: str | None, quiet: bool) -> None:
    """Verify BACKUP and copy it to FOLDER, which must be new or empty: rename the old one first.

    With --log the log is copied to a database, where there must be none yet. BACKUP may be the folder of any
    service, so this moves one to PostgreSQL; `simstream backup` is the way back.

    \b
    mv simstream-data damaged
    simstream restore backup-monday simstream-data
    simstream restore simstream-data new-data --log postgresql://db/simstream
    """
    configure_logging(quiet)
    from ..serve import upkeep

    check_folder(folder.parent, folder, "FOLDER")
    last = upkeep.restore(copy, folder, address)
    logger.info("%s: restored up to log position %d", folder, last)


@click.command(short_help="Erase texts and pictures of deleted items.")
@click.argument("folder", type=FOLDER)
@click.argument("ids", nargs=-1, required=True)
@quiet_option
def erase(folder: Path, ids: tuple[str, ...], quiet: bool) -> None:
    """Erase text and pictures of the deleted items IDS from the log of a service that is not running.

    Deleting an item leaves its text in the log; this removes it for good. Ids and vectors stay, because the
    model is computed from them, and so does a digest of what was erased: who guesses the text can confirm it.
    Backups made before keep the text.
    """
    configure_logging(quiet)
    from ..serve import upkeep

    count = upkeep.erase(folder, list(ids))
    logger.info("erased: %s", plural(count, "event"))
