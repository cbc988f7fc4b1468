"""What operators do to the folder of a service: check, salvage, back up, restore, erase."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..data.files import flush_to_disk
from ..persistence import ModelFileError, read_file
from .events import ERASED, Event, EventKind, Row, chained, triplets_of
from .log import Log, LogError, is_intact, lock_folder, open_log
from .saved_items import item_files, read_items
from .snapshots import is_of, snapshot_positions
from .sqlite_store import SqliteStore
from .store import LostError

#: Called with the number of events looked at, and of all.
Progress = Callable[[int, int], None]

#: Problems that a report lists in full.
_MOST_TOLD = 20

#: What reading a damaged row may raise.
_UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError, LogError)

#: Events read together; where this fails, one by one.
_CHUNK = 1000


# -- checking ---------------------------------------------------------------------------------


@dataclass
class Report:
    """What a check has found.

    Parameters
    ----------
    events, erased : int
        Events that were looked at, and how many of them were erased by the operator.
    damaged : list of int
        Positions whose event is not what was written, or cannot be read.
    problems : list of str
        Everything that is wrong, one sentence each.
    """

    events: int = 0
    erased: int = 0
    damaged: list[int] = field(default_factory=list)
    snapshots: int = 0
    problems: list[str] = field(default_factory=list)
    #: What is no problem, but good to know.
    notes: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self) | {"whole": self.is_whole}


def check(folder: Path, progress: Progress = lambda done, total: None) -> Report:
    """Verify every event, the chain of their hashes, what was acknowledged, and the snapshots.

    It only reads, and may run beside a service.
    """
    report = Report()
    with contextlib.closing(open_log(folder)) as log:
        for text in log.store.problems():
            report.problems.append(f"{log.name}: {text}")
        try:
            _check_events(log, report, progress)
            _check_head(log, report)
            _check_snapshots(folder / "snapshots", log, report)
            _check_saved_items(folder / "snapshots", log, report)
        except LostError:
            raise
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            report.problems.append(f"{log.name}: cannot be read any further ({error})")
    return report


def _check_head(log: Log, report: Report) -> None:
    """Whether all that was acknowledged is there, now and when services were started before."""
    lost = log.lost_after()
    if lost is not None:
        report.problems.append(
            f"the log ends at position {lost[0]}, but events up to {lost[1]} were acknowledged"
        )
    earlier = log.head(log.lost_path)
    if earlier is not None:
        report.problems.append(
            f"events up to position {earlier[0]} were acknowledged earlier and some of them are missing "
            f"({log.lost_path.name} says so; remove it once that is settled)"
        )


def _last(log: Log) -> int:
    """The last position, as far as it is known."""
    noted = log.head()
    with contextlib.suppress(sqlite3.DatabaseError):
        return log.last
    return 0 if noted is None else noted[0]


def _stored(log: Log) -> Iterator[tuple[int, Row | None, bytes | None, bytes | None]]:
    """Stored events with digest and hash in order; without a row where one cannot be read."""
    noted, after = log.head(), 0
    end = 0 if noted is None else noted[0]
    while True:
        try:
            some: list[Any] = list(log.rows(after))
        except LostError:
            raise
        except _UNREADABLE:
            # One by one, as far as events were acknowledged: what lies behind cannot be found.
            for position in range(after + 1, min(after + _CHUNK, end) + 1):
                try:
                    for row, digest, link in log.rows(position - 1, position):
                        yield position, row, digest, link
                except LostError:
                    raise
                except _UNREADABLE:
                    yield position, None, None, None
            after += _CHUNK
            if after >= end:
                return
            continue
        if not some:
            return
        for row, digest, link in some:
            yield row[0], row, digest, link
        after = some[-1][0][0]


def _is_whole(log: Log, row: Row | None, digest: bytes | None) -> bool:
    """Whether a stored event is what was written, as far as it can be told."""
    if row is not None and not log.has_digests:
        with contextlib.suppress(ValueError, TypeError):
            return isinstance(json.loads(row[5]), dict)
    return row is not None and is_intact(row, digest)


def _check_events(log: Log, report: Report, progress: Progress) -> None:
    last = _last(log)
    before: bytes | None = bytes.fromhex(log.hash_at(0)) if log.has_digests else None
    if not log.has_digests:
        report.notes.append("the log is of an earlier version: damage of its events cannot be seen")
    erased: set[int] = set()
    said: set[int] = set()
    for position, row, digest, link in _stored(log):
        report.events += 1
        is_whole = _is_whole(log, row, digest)
        if not is_whole:
            report.damaged.append(position)
            report.problems.append(f"the event at position {position} is damaged")
        elif row is not None:
            if row[5] == ERASED:
                erased.add(position)
            elif row[2] == EventKind.ERASE:
                said |= set(json.loads(row[5])["positions"])
        follows = before is None or digest is None or chained(before, digest) == link
        if is_whole and not follows:
            report.problems.append(
                f"the hash at position {position} does not follow from the one before: events were "
                "removed, added or moved"
            )
        before = link
        if report.events % _CHUNK == 0:
            progress(report.events, last)
    report.erased = len(erased)
    if erased - said:
        report.problems.append(
            f"the body at position {min(erased - said)} is gone, but no event says that it was erased"
        )
    if len(report.problems) > _MOST_TOLD:
        n_more = len(report.problems) - _MOST_TOLD
        report.problems[_MOST_TOLD:] = [f"and {n_more} problems more"]


def _check_saved_items(folder: Path, log: Log, report: Report) -> None:
    for path in item_files(folder).values():
        try:
            with contextlib.suppress(FileNotFoundError):  # newer ones have taken their place
                read_items(path, log)
        except (OSError, ModelFileError, KeyError, TypeError, ValueError) as error:
            report.problems.append(f"saved items: {error}")


def _check_snapshots(folder: Path, log: Log, report: Report) -> None:
    for position, path in snapshot_positions(folder).items():
        report.snapshots += 1
        try:
            header, _ = read_file(path)  # compares the checksum
            link = header["extra"].get("log")
            if not is_of(log, link, position):
                raise ModelFileError(f"{path}: made from another log, or from events that are gone")
        except FileNotFoundError:  # a service has deleted it meanwhile
            report.snapshots -= 1
        except (OSError, ModelFileError, KeyError) as error:
            report.problems.append(
                f"the snapshot at position {position} cannot be trusted: {error}"
            )


# -- salvaging --------------------------------------------------------------------------------


def salvage(folder: Path, new: Path, progress: Progress = lambda done, total: None) -> Salvaged:
    """Copy the events that are whole into a new folder.

    Positions stay as they are. Events about an item that is damaged are left out too. Snapshots are not
    copied: the new service learns from its log.
    """
    found = Salvaged()
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock_folder(folder))
        old = stack.enter_context(contextlib.closing(open_log(folder)))
        target = stack.enter_context(_made(new))
        log = stack.enter_context(contextlib.closing(Log(target / "log.sqlite", is_owner=True)))
        last, kept = _last(old), set[int]()
        with log.transaction():
            some: list[Event] = []
            for number, (position, row, digest, _) in enumerate(_stored(old), 1):
                if not _is_whole(old, row, digest):
                    kind = "unreadable" if row is None else str(row[2])
                    found.damaged.append((position, kind))
                    continue
                assert row is not None
                event = Event(*row[:5], json.loads(row[5]))
                if not _named_by(event) <= kept:
                    found.about_damaged += 1
                    continue
                kept.add(position)
                some.append(event)
                if number % _CHUNK == 0:
                    log.append(some)
                    some = []
                    progress(number, last)
            log.append(some)
            with contextlib.suppress(sqlite3.DatabaseError):
                for request in old.requests():
                    if kept.issuperset(range(request[2], request[2] + request[3])):
                        log.remember(request)
            with contextlib.suppress(sqlite3.DatabaseError):
                log.adopt(
                    {
                        name: value
                        for name, value in old.settings().items()
                        if name not in ("identity", "upgraded_at")
                    }
                )
        log.note_head(log.last)
        found.kept = len(kept)
        noted = old.head()
        seen = found.kept + len(found.damaged) + found.about_damaged
        found.missing = max(0, (0 if noted is None else noted[0]) - seen)
        _copy_keys(folder, target)
    return found


@dataclass
class Salvaged:
    """What a salvage has done.

    Parameters
    ----------
    kept, about_damaged, missing : int
        Events that were copied; those left out because they are about a damaged one; acknowledged events
        that were not found at all.
    damaged : list of (int, str)
        Position and kind of the damaged ones, as far as it can be read.
    """

    kept: int = 0
    about_damaged: int = 0
    missing: int = 0
    damaged: list[tuple[int, str]] = field(default_factory=list)

    @property
    def undoes(self) -> bool:
        """Whether deletions, undo or rollbacks may be among what was left out."""
        kinds = {EventKind.ITEM, EventKind.FEEDBACK, EventKind.QUESTION, EventKind.ANSWER}
        return bool(self.missing) or any(kind not in kinds for _, kind in self.damaged)


@contextlib.contextmanager
def _made(new: Path) -> Iterator[Path]:
    """A folder that gets its name once the block is done; nothing is left if the block fails."""
    if new.exists() and (not new.is_dir() or any(new.iterdir())):
        got = "one that is not empty" if new.is_dir() else "a file"
        raise FileExistsError(f"{new}: expected a new or empty folder, got {got}")
    new.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{new.name}.", dir=new.parent))
    try:
        yield partial
        for path in (*partial.iterdir(), partial):
            flush_to_disk(path)
        partial.replace(new)
        flush_to_disk(new.parent)
    except sqlite3.Error as error:
        raise OSError(f"{new}: cannot be written ({error})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _named_by(event: Event) -> set[int]:
    """Positions of other events without which an event means nothing."""
    if event.kind in (EventKind.FEEDBACK, EventKind.ANSWER):
        items = {position for triplet in triplets_of(event) for position in triplet}
        items |= {position for triplet in event.body.get("compared", ()) for position in triplet}
        items |= {event.body["question"]} if event.kind == EventKind.ANSWER else set()
        return items - {0}
    if event.kind == EventKind.QUESTION:
        return set(event.body["items"])
    if event.kind == EventKind.RETRACT:
        return {event.body["position"]}
    return set()


# -- backups ----------------------------------------------------------------------------------


def back_up(folder: Path, new: Path, address: str | None = None) -> int:
    """Copy log and keys into a new folder, also while a service runs; return the last position.

    The copy is a folder like any other: it can be checked, served and restored. Its log is a SQLite file, or
    at the `address` of a PostgreSQL database.
    """
    with contextlib.closing(open_log(folder)) as log, _made(new) as target:
        problems = log.store.problems()
        if problems:
            raise LogError(
                f"{log.name}: the log is damaged ({problems[0]}), and the copy would be; copy what is whole "
                f"with: simstream check {folder} --salvage NEW_FOLDER"
            )
        _copy_keys(folder, target)
        if address is None and isinstance(log.store, SqliteStore):
            log.store.copy_file(target / "log.sqlite")
        else:
            with contextlib.closing(open_log(target, address, is_owner=True)) as empty:
                empty.copy_from(log)
        with contextlib.closing(open_log(target, address)) as copied:
            copied.note_head(copied.last)
            last = copied.last
    return last


def restore(backup: Path, folder: Path, address: str | None = None) -> int:
    """Make a folder what a backup has; the folder must be new or empty. Returns the last position.

    A folder that is there is not overwritten: rename it first. With the `address` of a PostgreSQL database,
    which must not have a log yet, the log goes there.
    """
    report = check(backup)
    if not report.is_whole:
        raise LogError(f"{backup}: the backup is damaged: {report.problems[0]}")
    return back_up(backup, folder, address)


def _copy_keys(folder: Path, new: Path) -> None:
    keys = folder / "keys.json"
    if keys.exists():
        shutil.copy2(keys, new / "keys.json")


# -- erasing ----------------------------------------------------------------------------------


def erase(folder: Path, names: list[str]) -> int:
    """Erase text and pictures of deleted items from the log; return how many events were changed.

    Vectors stay, because the model is computed from them. The digests of what was erased stay too, so that
    the chain of hashes can be verified, and an event says which positions were erased. No service may be
    running.

    Raises
    ------
    ValueError
        An item is unknown, or was not deleted.
    """
    open_log(folder).close()  # an error if there is none
    with (
        lock_folder(folder),
        contextlib.closing(open_log(folder, is_owner=True)) as log,
        log.store.scrubbing(),  # of what an earlier call had to leave, too
    ):
        positions: list[int] = []
        for name in dict.fromkeys(names):
            found = log.events_about(name)
            if not found:
                raise ValueError(
                    f"item: expected one that was deleted, got the unknown id {name!r}"
                )
            if found[-1][1] != EventKind.DELETE:
                raise ValueError(
                    f"item: expected one that was deleted, got {name!r}; delete it first"
                )
            positions += [
                position
                for position, kind, body in found
                if kind == EventKind.ITEM and body not in ("{}", ERASED)
            ]
        if positions:
            with log.transaction():
                log.erase(positions)
                body = {"positions": positions}
                event = Event(log.last + 1, time.time(), EventKind.ERASE, None, None, body)
                log.append([event])
            log.note_head(log.last)
    return len(positions)
