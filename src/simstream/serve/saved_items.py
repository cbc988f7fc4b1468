"""The items of a service in files: a start need not read them from the log, and processes share their memory.

The vectors are the rows of one file. Every process that serves the folder maps it, so that the system keeps
them in memory once. Items that are added later follow in memory that is private to a process, in one piece
with the others: the file is longer than its rows, without taking space on the disk for that. A second file
has the ids, the hash of the log where it was made, and the checksums. Files are never changed; newer ones
take their place. They hold nothing that is not in the log.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..persistence import ModelFileError, read_file, write_file
from .log import Log
from .snapshots import is_of

logger = logging.getLogger("simstream.serve")

_NAME = re.compile(r"items-(\d{12})\.safetensors")

#: Files that are being written; see `_private` and `simstream.data.atomic_write`.
_UNFINISHED = re.compile(r"\.tmp-[0-9a-f]{12}(\.|$)")

#: Bytes of vectors that are written and verified at a time.
_PIECE = 2**22

#: Space for new items in the file, as a multiple of the rows that it has.
_SPACE = 1.0


class SavedItems(NamedTuple):
    """Items up to a position of the log."""

    position: int
    #: Positions of all events that ever added an item, ascending, and the ids of these items.
    positions: np.ndarray
    names: list[str]
    #: Which of them are items still; their vectors are the first of the rows, the others are space.
    is_current: np.ndarray
    rows: np.ndarray
    #: Positions of replacements and of what they replaced.
    replaced: np.ndarray


class ItemFiles:
    """The files of the items of a service.

    Parameters
    ----------
    folder : where they are
    is_mine : whether files may be written and deleted: not those of a service that is followed
    """

    def __init__(self, folder: Path, *, is_mine: bool = True) -> None:
        self._folder, self.is_mine = folder, is_mine
        if is_mine:
            self._remove_remains()

    def _remove_remains(self) -> None:
        """Delete what a process left that ended while it wrote: temporary files, and rows without ids."""
        whole = {path.stem for path in item_files(self._folder).values()}
        remove_unfinished(self._folder)
        for path in self._folder.glob("items-*.rows"):
            if path.stem not in whole:
                with contextlib.suppress(OSError):  # they only take space
                    path.unlink()

    def positions(self) -> list[int]:
        """Positions that have files, ascending."""
        return list(item_files(self._folder))

    def _paths(self, position: int) -> tuple[Path, Path]:
        name = f"items-{position:012d}"
        return self._folder / f"{name}.safetensors", self._folder / f"{name}.rows"

    def save(self, items: Any, log: Log, position: int) -> None:
        """Write files of the items at a position; see `ItemStore.content`."""
        view, arrays, names = items
        path, rows_path = self._paths(position)
        n, n_features = len(view), view.n_features
        n_space = 64 * (1 + int(n * (1 + _SPACE)) // 64)
        checksum = 0
        with _private(rows_path) as temporary, open(temporary, "wb") as file:
            for piece in view.pieces(_PIECE):
                data = piece.astype("<f4", copy=False).tobytes()
                checksum = zlib.crc32(data, checksum)
                file.write(data)
            file.truncate(4 * n_features * n_space)
        try:
            header = {
                "position": position,
                "log": log.hash_at(position),
                "shape": [n_space, n_features],
                "rows": checksum,
            }
            text = np.frombuffer(json.dumps(names).encode(), np.uint8)
            with _private(path) as temporary:
                write_file(temporary, {"items": header}, arrays | {"names": text})
        except BaseException:  # rows without a header would stay for ever
            rows_path.unlink(missing_ok=True)
            raise
        for earlier in self.positions():
            if earlier != position:
                for one in self._paths(earlier):
                    one.unlink(missing_ok=True)

    def newest(self, log: Log, until: int) -> SavedItems | None:
        """The newest items of a log that are usable and not after a position; None if there are none."""
        for position in reversed(self.positions()):
            with contextlib.suppress(FileNotFoundError):  # newer ones have taken their place
                if position <= until:
                    try:
                        return read_items(self._paths(position)[0], log)
                    except (ModelFileError, OSError, KeyError, ValueError) as error:
                        logger.warning("saved items refused, the log is read: %s", error)
        return None


def remove_unfinished(folder: Path) -> None:
    """Delete the temporary files of processes that were killed; nobody may be writing to the folder."""
    for path in folder.glob(".tmp-*"):
        if _UNFINISHED.match(path.name):
            with contextlib.suppress(OSError):  # they only take space
                path.unlink()


@contextlib.contextmanager
def _private(path: Path) -> Iterator[Path]:
    """A file that only its owner may read, written under another name and then renamed.

    It need not be on the disk then: after a power cut its checksum says whether it is.
    """
    temporary = path.with_name(f".tmp-{secrets.token_hex(6)}{path.suffix}")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def item_files(folder: Path) -> dict[int, Path]:
    """The files of saved items in a folder by position, ascending."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    found = ((_NAME.fullmatch(path.name), path) for path in paths)
    return {int(match[1]): path for match, path in found if match}


def read_items(path: Path, log: Log) -> SavedItems:
    """Saved items, once their checksums and the hash of the log fit; an error otherwise."""
    header, arrays = read_file(path, what="items")
    told = header["items"]
    if not is_of(log, told["log"], told["position"]):
        raise ModelFileError(f"{path}: made from another log, or from events that are gone")
    # Pages that are written to become private, the others are those of the file.
    rows = np.memmap(path.with_suffix(".rows"), "<f4", "c", shape=tuple(told["shape"]))
    n = int(arrays["is_current"].sum())
    checksum = 0
    for piece in _pieces(rows[:n]):
        checksum = zlib.crc32(piece, checksum)
    if checksum != told["rows"]:
        raise ModelFileError(f"{path.with_suffix('.rows')}: damaged (its checksum does not fit)")
    return SavedItems(
        told["position"],
        arrays["positions"],
        json.loads(arrays["names"].tobytes()),
        arrays["is_current"],
        np.asarray(rows).view(np.float32),
        arrays["replaced"],
    )


def _pieces(rows: np.ndarray) -> Iterator[np.ndarray]:
    flat = rows.reshape(-1).view(np.uint8)
    for begin in range(0, len(flat), _PIECE):
        yield flat[begin : begin + _PIECE]
