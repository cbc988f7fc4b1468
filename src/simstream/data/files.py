"""Opening files and reading their lines, writing them atomically, and the one error raised about them."""

from __future__ import annotations

import bz2
import csv
import errno
import gzip
import io
import json
import os
import secrets
import shutil
import stat
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

#: What a path may be given as.
PathLike = str | os.PathLike[str]

_COMPRESSIONS = (".gz", ".bz2")
#: Formats that are not text, and are never compressed once more.
_BINARY = ("npy", "npz", "parquet")

#: Errors of writing that say that there is no room: on the disk, for this user, in one file.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FormatError(ValueError):
    """A file cannot be read or understood, or data cannot be written to it.

    The message is one line: the file, the line number where there is one, what is wrong, what was
    expected and what was found instead.

    Examples
    --------
    >>> from simstream.data import FormatError, read_items
    >>> try:
    ...     read_items("absent.csv")
    ... except FormatError as error:
    ...     str(error)
    'absent.csv: no such file'
    """


def format_error(
    source: object, problem: str, expected: str, got: object, line: int | None = None
) -> FormatError:
    """Build the error; of a text of several lines, only the first is kept."""
    place = f"{source}" if line is None else f"{source}, line {line}"
    return FormatError(f"{place}: {problem}; expected {expected}, got {got}".partition("\n")[0])


def excerpt(value: object, limit: int = 60) -> str:
    """``repr(value)``, short enough for a message."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def format_of(path: Path, known: Collection[str]) -> str:
    """The file's extension, without the dot and ignoring that of a compression; one of those known."""
    stem, extension = os.path.splitext(path.name.lower())
    compressed = extension in _COMPRESSIONS
    name = (os.path.splitext(stem)[1] if compressed else extension).removeprefix(".")
    if name not in known or (compressed and name in _BINARY):
        if path.is_dir():
            raise _is_folder(path)
        text = ", ".join(f".{name}" for name in known if name not in _BINARY)
        binary = ", ".join(f".{name}" for name in known if name in _BINARY)
        expected = f"{text} (each also with {' or '.join(_COMPRESSIONS)}), {binary}"
        raise format_error(path, "unknown extension", expected, excerpt("".join(path.suffixes)))
    return name


# -- reading -------------------------------------------------------------------------------------


@contextmanager
def open_input(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressing it if needed; whatever goes wrong in the block is a FormatError.

    One chain of handlers serves every format, because a truncated file is only noticed while it is
    read.
    """
    try:
        if path.stat().st_size == 0 and path.is_file():
            raise FormatError(f"{path}: empty file")
        openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
        opener = openers.get(path.suffix.lower())
        # Buffered, because the decompressors themselves read lines slowly.
        with (
            open(path, "rb")
            if opener is None
            else io.BufferedReader(opener(path), 1 << 16) as handle
        ):
            yield handle
    except UnicodeDecodeError as error:
        found = excerpt(error.object[error.start : error.start + 8])
        raise format_error(path, "not text", "UTF-8", found) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(path, "a complete compressed file", error) from None
    except OSError as error:
        raise cannot_read(path, error) from None


def cannot_read(path: Path, error: OSError) -> FormatError:
    """Say why a file cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return FormatError(f"{path}: no such file")
    if isinstance(error, IsADirectoryError):
        return _is_folder(path)
    if error.errno is None:  # bz2 reports damage as an OSError with a message and no number
        return _damaged(path, "a complete compressed file", error)
    return FormatError(f"{path}: cannot be read: {error.strerror}")


def _is_folder(path: Path) -> FormatError:
    return FormatError(f"{path}: expected a file, got a folder")


def _damaged(path: Path, expected: str, error: object) -> FormatError:
    return format_error(path, "damaged or truncated", expected, error)


def is_regular(path: Path) -> bool:
    """Whether this is an ordinary file, so that reading never waits for a writer."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        raise cannot_read(path, error) from None


def text_lines(handle: IO[bytes]) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers from 1."""
    for number, line in enumerate(handle, 1):
        # Spreadsheets put a byte order mark before the first column's name.
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        if text.strip():
            yield number, text


def split_cells(path: Path, line: int, text: str) -> list[str]:
    """Split one line of CSV."""
    try:
        return next(csv.reader([text]), [])
    except csv.Error as error:
        raise format_error(path, "not CSV", "short cells", error, line) from None


def hint_at_semicolons(line: str) -> str:
    """What to add to a problem with a line, if its cells seem to be separated by semicolons."""
    return ": semicolons between cells, not commas or tabs" if ";" in line else ""


def is_number(cell: str) -> bool:
    """Whether a cell is a number, finite or not."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # which Python accepts and numpy does not


def parse_json(path: Path, line: int, text: str) -> Any:
    """Parse one line of JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise format_error(path, "not JSON", "one value", excerpt(text), line) from None


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Load all arrays of an .npz file, or the one of an .npy file under the key ``""``."""
    with open_input(path) as handle:
        try:
            loaded = np.load(handle, allow_pickle=False)
            return {"": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
        except OSError:
            raise
        except Exception as error:
            if str(error).startswith("Object arrays"):  # numpy has no error of its own for these
                expected = "numbers (or strings, for labels)"
                raise format_error(
                    path, "holds Python objects", expected, "an array of objects"
                ) from None
            # A damaged header or archive surfaces as almost anything: BadZipFile, struct.error,
            # SyntaxError, MemoryError for an absurd shape...
            found = f"{type(error).__name__}: {error}"
            raise _damaged(path, f"a {path.suffix} file of plain arrays", found) from None


# -- writing -------------------------------------------------------------------------------------


@contextmanager
def atomic_write(path: PathLike) -> Iterator[Path]:
    """Replace a file completely, or leave it unchanged.

    Yields a temporary path in the same folder and with the same extensions. When the block ends,
    what was written there is flushed to disk and renamed to ``path``; if the block raises, it is
    deleted. A reader never sees half a file. Symbolic links are followed, and the permissions of an
    existing file are kept.

    Parameters
    ----------
    path : str or os.PathLike
        The file to write.

    Yields
    ------
    pathlib.Path
        Where to write.

    Raises
    ------
    FormatError
        If the folder does not exist, cannot be written to or is full, or ``path`` is a folder.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from simstream.data import atomic_write
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "note.txt"
    >>> with atomic_write(path) as temporary:
    ...     _ = temporary.write_text("complete")
    >>> path.read_text()
    'complete'
    """
    target = Path(os.path.realpath(path))
    temporary = target.parent / f".tmp-{secrets.token_hex(6)}{''.join(target.suffixes)}"
    try:
        if target.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        if target.exists() and not target.is_file():
            raise OSError(None, "it is a device or a pipe")  # replacing it would destroy it
        # Created here, not by tempfile, so that the permissions follow the umask.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        mode = (target if target.exists() else temporary).stat().st_mode
    except OSError as error:
        # In /proc, which is there, no file can be made: the system's error is the same.
        missing = isinstance(error, FileNotFoundError) and not target.parent.exists()
        reason = f"no such folder: {target.parent}" if missing else f"{error.strerror}"
        raise FormatError(f"{path}: cannot be written: {reason}") from None
    try:
        yield temporary
        # The block may have created the file anew, with other permissions.
        os.chmod(temporary, stat.S_IMODE(mode))
        flush_to_disk(temporary)
        os.replace(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and _is_full(error):
            raise _no_room(path, error) from None
        raise
    flush_to_disk(target.parent)


def _is_full(error: OSError) -> bool:
    # numpy writes arrays without telling the number of the error.
    return error.errno in _FULL or str(error).endswith(" written")


def _no_room(path: PathLike, error: OSError) -> FormatError:
    """Say what is full, and how much room there is."""
    folder = Path(os.path.realpath(path)).parent
    reason = os.strerror(error.errno or errno.ENOSPC).lower()
    free = f"{shutil.disk_usage(folder).free / 1e6:,.1f} MB free in {folder}"
    return FormatError(f"{path}: cannot be written: {reason} ({free})")


def flush_to_disk(path: Path) -> None:
    """Fsync a file, or a folder so that a rename in it survives a crash; Windows has no fsync of folders."""
    is_windows = os.name == "nt"
    if is_windows and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if is_windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def open_output(path: Path) -> Iterator[Any]:
    """Write a binary file atomically, compressed if its name says so."""
    with atomic_write(path) as temporary, open(temporary, "wb") as raw:
        match path.suffix.lower():
            case ".gz":
                # No name and no time in the header: equal content makes equal files.
                with gzip.GzipFile("", "wb", 6, raw, mtime=0) as handle:
                    yield handle
            case ".bz2":
                with bz2.open(raw, "wb") as handle:
                    yield handle
            case _:
                yield raw


@contextmanager
def open_text_output(path: Path) -> Iterator[IO[str]]:
    """Write a text file atomically, compressed if its name says so."""
    with (
        open_output(path) as handle,
        io.TextIOWrapper(handle, encoding="utf-8", newline="\n") as text,
    ):
        yield text


def content_identity(path: Path) -> str:
    """The name under which a finished file is recognised, wherever it is: a summary of its contents.

    Size and both ends are enough to notice another file, and quick to compute for large ones.
    """
    end = 2**20
    with path.open("rb") as file:
        checksum = zlib.crc32(file.read(end))
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - end))
        checksum = zlib.crc32(file.read(end), checksum)
    return f"{path.name} of {size} bytes, crc32 {checksum:08x}"
