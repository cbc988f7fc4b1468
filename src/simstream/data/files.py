"""Opening, naming and replacing files, and the one error that is raised about them."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import secrets
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

#: What a path may be given as.
PathLike = str | os.PathLike[str]

_COMPRESSIONS = (".gz", ".bz2")
_BINARY = (".npy", ".npz")


class FormatError(ValueError):
    """Something is wrong with a file, or cannot be put into one.

    The message is one line: the file, the line number where there is one, what is wrong, what was
    expected and what was found instead.

    Examples
    --------
    >>> from simstream.data import FormatError, read_items
    >>> try:
    ...     read_items("absent.csv")
    ... except FormatError as error:
    ...     str(error)
    'absent.csv: cannot be read; expected a file, got No such file or directory'
    """


def format_error(
    source: object, problem: str, *, expected: str, got: str, line: int | None = None
) -> FormatError:
    """Build the error; ``got`` may be any text, and only the first line of it is kept."""
    place = f"{source}" if line is None else f"{source}, line {line}"
    return FormatError(f"{place}: {problem}; expected {expected}, got {got}".partition("\n")[0])


def excerpt(value: object, limit: int = 60) -> str:
    """``repr(value)``, short enough for a message."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def format_of(path: Path, known: Mapping[str, str]) -> str:
    """Look up the file name's extension, less one of compression, in a table of formats."""
    stem, extension = os.path.splitext(path.name.lower())
    compressed = extension in _COMPRESSIONS
    if compressed:
        extension = os.path.splitext(stem)[1]
    if extension not in known or (compressed and extension in _BINARY):
        text = ", ".join(name for name in known if name not in _BINARY)
        arrays = ", ".join(name for name in known if name in _BINARY)
        raise format_error(
            path,
            "unknown extension",
            expected=f"{text} (each also {' or '.join(_COMPRESSIONS)}), {arrays}",
            got=excerpt("".join(path.suffixes)),
        )
    return known[extension]


@contextmanager
def open_input(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that may be compressed; what goes wrong in the block becomes a FormatError.

    One chain of handlers for every format, because a cut-off file is only noticed while it is read.
    """
    try:
        if path.stat().st_size == 0 and path.is_file():
            raise format_error(path, "empty file", expected="data", got="0 bytes")
        openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
        opener = openers.get(path.suffix.lower())
        # Buffered, because the decompressors' own reading of lines is slow.
        with (
            open(path, "rb")
            if opener is None
            else io.BufferedReader(opener(path), 1 << 16) as handle
        ):
            yield handle
    except UnicodeDecodeError as error:
        raise format_error(
            path,
            "not text",
            expected="UTF-8",
            got=excerpt(error.object[error.start : error.start + 8]),
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise format_error(
            path, "damaged or cut off", expected="a whole compressed file", got=f"{error}"
        ) from None
    except OSError as error:
        # bz2 reports damage as an OSError with a message and no number.
        raise format_error(
            path, "cannot be read", expected="a file", got=error.strerror or f"{error}"
        ) from None


def text_lines(handle: IO[bytes]) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, from 1, without the blank ones."""
    for number, line in enumerate(handle, 1):
        # Spreadsheets put a byte order mark before the first column's name.
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        if text.strip():
            yield number, text


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz file; that of an .npy file under the key ``""``."""
    with open_input(path) as handle:
        try:
            loaded = np.load(handle, allow_pickle=False)
            return {"": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
        except OSError:
            raise
        except Exception as error:
            # A damaged header or archive surfaces as almost anything: BadZipFile, struct.error,
            # SyntaxError, MemoryError for an absurd shape...
            raise format_error(
                path,
                "damaged or cut off",
                expected=f"a {path.suffix} file of plain arrays",
                got=f"{type(error).__name__}: {error}",
            ) from None


@contextmanager
def atomic_write(path: PathLike) -> Iterator[Path]:
    """Replace a file as a whole, or leave it as it was.

    Gives a temporary path in the same folder and with the same extensions. When the block ends,
    what was written there is forced to the disk and takes the name ``path``; when it raises, it is
    removed. A reader never sees half a file. Symbolic links are followed and an existing file's
    permissions kept.

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
        If the folder does not exist or cannot be written to, or ``path`` is a folder.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from simstream.data import atomic_write
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "note.txt"
    >>> with atomic_write(path) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> path.read_text()
    'whole'
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".tmp-{secrets.token_hex(6)}{''.join(target.suffixes)}")
    try:
        if target.is_dir():
            raise IsADirectoryError(None, "a folder of that name")
        if target.exists() and not target.is_file():
            raise OSError(None, "a device or pipe of that name")  # replacing it would destroy it
        # Made here, and not by tempfile, so that the permissions follow the umask.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        mode = (target if target.exists() else temporary).stat().st_mode
    except OSError as error:
        raise format_error(
            path,
            "cannot be written",
            expected="a name in a writable folder",
            got=f"{error.strerror}",
        ) from None
    try:
        yield temporary
        os.chmod(
            temporary, stat.S_IMODE(mode)
        )  # a writer may have made the file anew, for itself only
        _force_to_disk(temporary)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _force_to_disk(target.parent)


def _force_to_disk(path: Path) -> None:
    """Fsync a file, or a folder so that a rename in it is kept."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def open_output(path: Path) -> Iterator[Any]:
    """Write a file atomically, compressed as its name says."""
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
    """Write a text file atomically, compressed as its name says."""
    with (
        open_output(path) as handle,
        io.TextIOWrapper(handle, encoding="utf-8", newline="\n") as text,
    ):
        yield text


def is_regular(path: Path) -> bool:
    """Whether reading never has to wait: not a pipe, a terminal or a socket."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        raise format_error(
            path, "cannot be read", expected="a file", got=f"{error.strerror}"
        ) from None
