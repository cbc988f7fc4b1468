"""The folder of a run with divided columns: items, learner, tuples that wait, and checkpoints of all shards.

learner.safetensors     parameters of the learner, its geometry, where the items are; never changes
run.json                the last checkpoint that all shards belong to, and what was left to learn then
shard-0007-2.safetensors   checkpoint 7 of the third of all ranges of columns
tuples-0003.safetensors    tuples of a call that is not finished at the last checkpoint
items.npy, queries.npy  items that were not given as files that can be memory-mapped
items-ids.json, queries-ids.json   ids of the items and queries, where they have ids
run.lock                locked by the process that the run is open in, while it is
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import weakref
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from .._engines.columns import cut_state, joined_state
from ..data import atomic_write, read_items
from ..data.files import cannot_read, content_identity, format_error
from ..frames import column_names
from ..ids import Id, check_ids
from ..persistence import ModelFileError, read_file, write_file
from ..validation import Items, check_feature_names, check_items

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_RUN = "run.json"
_LEARNER = "learner.safetensors"
_LOCK = "run.lock"
_ITEMS = ("items.npy", "queries.npy", "items-ids.json", "queries-ids.json")

#: Names of files that are deleted when nothing needs them any more; all others are left alone.
_SHARD_NAME = re.compile(r"shard-(\d{4,})-\d+\.safetensors")
_TUPLES_NAME = re.compile(r"tuples-\d{4,}\.safetensors")

#: Layout of the folder; others are refused.
_FORMAT = 1

#: Bytes of items that are converted at a time.
_CHUNK_BYTES = 2**26

#: Bytes at either end of the items by which they are recognised.
_END_BYTES = 2**20


class Checkpoint(NamedTuple):
    """A number that all shard files of a checkpoint have in their names, and the columns of each."""

    number: int
    columns: list[slice]


class RunFolder:
    """Where the files of a run are, and how they are written: completely or not at all."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._unlock: Any = None

    # -- what never changes -------------------------------------------------------------------

    def write_learner(self, content: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Write what workers need besides checkpoints."""
        write_file(self.path / _LEARNER, {"learner": content}, arrays)

    def read_learner(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What `write_learner` was given."""
        header, arrays = read_file(self.path / _LEARNER, what="learner")
        return header["learner"], arrays

    # -- the run ------------------------------------------------------------------------------

    def lock(self) -> None:
        """Take the folder until `unlock`, or until this process ends; raise if another run has it open.

        The lock is that of the operating system, which gives it back whatever ends the process. Where there
        is none (Windows), nothing is locked.
        """
        if fcntl is None or self._unlock is not None:
            return
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                return  # a file system without locks
            raise BlockingIOError(
                f"folder: expected a run that is not open, got {self.path}, which is open in this or "
                "another process: close it there first",
            ) from error
        self._unlock = weakref.finalize(self, os.close, descriptor)

    def unlock(self) -> None:
        """Let others have the folder; the file of the lock stays, since others may be waiting at it."""
        if self._unlock is not None:
            self._unlock()
            self._unlock = None

    def make(self) -> None:
        """Make the folder of a new run; raise if there is anything in it."""
        self._check_folder()
        self.path.mkdir(parents=True, exist_ok=True)
        if self.has_run:
            raise FileExistsError(
                f"folder: expected a new one, got {self.path}, which has a run already; continue it with "
                "ShardedLearner.resume, or delete it"
            )
        found = sorted(path.name for path in self.path.iterdir() if path.name != _LOCK)
        if found:
            more = "" if len(found) == 1 else f" and {len(found) - 1} more"
            raise FileExistsError(
                f"folder: expected a new or empty one, got {self.path}, which has {found[0]}{more}"
            )

    def _check_folder(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"folder: expected a folder, got the file {self.path}")

    def clear(self) -> None:
        """Delete what a run that could not begin has written."""
        self.delete_all_but(None, set())
        for name in (_LEARNER, _RUN, *_ITEMS):
            (self.path / name).unlink(missing_ok=True)

    @property
    def has_run(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / _RUN).exists()

    def write_run(self, content: dict[str, Any]) -> None:
        """Replace the record of the run."""
        with atomic_write(self.path / _RUN) as temporary:
            temporary.write_text(json.dumps({"format": _FORMAT} | content, indent=1))

    def read_run(self) -> dict[str, Any]:
        """The record of the run; raises if there is none, or if it is of another version."""
        self._check_folder()
        path = self.path / _RUN
        if not path.exists():
            raise ModelFileError(
                f"{self.path}: expected the folder of a run, got one without {_RUN}"
            )
        try:
            run = json.loads(path.read_text())
        except ValueError as error:
            raise ModelFileError(f"{path}: damaged ({error})") from error
        if not isinstance(run, dict) or run.get("format") != _FORMAT:
            found = run.get("format") if isinstance(run, dict) else run
            raise ModelFileError(f"{path}: expected format {_FORMAT}, got {found!r}")
        return run

    # -- checkpoints --------------------------------------------------------------------------

    def shard_path(self, number: int, shard: int) -> Path:
        """The file of one range of columns."""
        return self.path / f"shard-{number:04d}-{shard}.safetensors"

    def write_shard(self, number: int, shard: int, kind: str, state: Any, columns: slice) -> None:
        """Write the state of an engine of some columns."""
        scalars, arrays = state
        content = {"kind": kind, "scalars": scalars, "columns": [columns.start, columns.stop]}
        write_file(self.shard_path(number, shard), {"shard": content}, arrays)

    def read_columns(self, checkpoint: Checkpoint, columns: slice) -> tuple[str, Any]:
        """Kind and state of an engine of some columns, from the files that have some of them."""
        kind, states = "", []
        for shard, kept in enumerate(checkpoint.columns):
            begin, end = max(kept.start, columns.start), min(kept.stop, columns.stop)
            if begin < end:
                path = self.shard_path(checkpoint.number, shard)
                header, arrays = read_file(path, what="shard")
                content = header["shard"]
                if content["columns"] != [kept.start, kept.stop]:
                    raise ModelFileError(
                        f"{path}: expected columns {kept}, got {content['columns']}"
                    )
                kind, state = content["kind"], (content["scalars"], arrays)
                if (begin, end) != (kept.start, kept.stop):
                    state = cut_state(kind, state, slice(begin - kept.start, end - kept.start))
                states.append(state)
        return kind, states[0] if len(states) == 1 else joined_state(kind, states)

    def delete_all_but(self, number: int | None, tuples: set[str]) -> None:
        """Delete the shards of other checkpoints, and tuples that are not among these files."""
        for path in self.path.iterdir():
            shard = _SHARD_NAME.fullmatch(path.name)
            is_old = shard is not None and int(shard[1]) != number
            if is_old or (_TUPLES_NAME.fullmatch(path.name) and path.name not in tuples):
                path.unlink(missing_ok=True)

    # -- tuples that wait -----------------------------------------------------------------------

    def write_tuples(self, number: int, arrays: dict[str, np.ndarray]) -> str:
        """Write the tuples of a call; return the name of the file."""
        name = f"tuples-{number:04d}.safetensors"
        write_file(self.path / name, {"tuples": {}}, arrays)
        return name

    def read_tuples(self, name: str) -> dict[str, np.ndarray]:
        """What `write_tuples` was given."""
        return read_file(self.path / name, what="tuples")[1]

    # -- items ----------------------------------------------------------------------------------

    def items(self, source: Any, dtype: Any) -> list[dict[str, Any]]:
        """Files of the items that `source` names; what cannot be memory-mapped is written here.

        One file, or two if source is a pair of queries and items. Each has the names of the features, and the
        file of the ids, where there are such.
        """
        files = []
        for name, side in _read_sides(source, dtype).items():
            path = side.file
            if path is None:
                path = _unused(self.path / f"{name}.npy")
                _write_rows(path, side.rows, side.dtype)
            is_own = path.parent == self.path
            file: dict[str, Any] = {
                "path": path.name if is_own else str(path),
                "identity": content_identity(path),
                "dtype": str(side.dtype),
                "rows": _rows_identity(side),
            }
            if side.ids is not None:
                file["ids"] = f"{name}-ids.json"
                with atomic_write(self.path / file["ids"]) as temporary:
                    temporary.write_text(json.dumps(side.ids))
            if side.feature_names is not None:
                file["feature_names"] = list(side.feature_names)
            files.append(file)
        return files

    def read_ids(self, file: dict[str, Any]) -> list[Id] | None:
        """The ids of the items of one file, None if they have none."""
        if "ids" not in file:
            return None
        path = self.path / file["ids"]
        try:
            return check_ids(json.loads(path.read_text()))
        except OSError as error:
            raise cannot_read(path, error) from None
        except (TypeError, ValueError) as error:
            raise ModelFileError(f"{path}: damaged ({error})") from error

    def check_same(self, files: list[dict[str, Any]], source: Any) -> None:
        """Raise if `source` names other items than those of these files, which need not exist."""
        sides = _read_sides(source, np.dtype(files[0]["dtype"]))
        if len(sides) != len(files):
            kinds = ("items alone", "a pair of queries and items")
            raise ValueError(
                f"preprocessor: expected {kinds[len(files) - 1]}, as in the run, got "
                f"{kinds[len(sides) - 1]}"
            )
        for (name, side), file in zip(sides.items(), files, strict=True):
            if (found := _rows_identity(side)) != file["rows"]:
                raise ValueError(
                    f"preprocessor: expected the {name} that the run began with ({file['rows']}), got {found}"
                )
            self._check_same_ids(self.read_ids(file), side.ids)
            if "feature_names" in file:
                check_feature_names(np.array(file["feature_names"], object), side, "preprocessor")

    @staticmethod
    def _check_same_ids(expected: list[Id] | None, found: list[Id] | None) -> None:
        if expected is None or found is None:
            return
        for row, (one, other) in enumerate(zip(expected, found, strict=True)):
            if one != other:
                raise ValueError(
                    f"preprocessor: expected the ids that the run began with, {one!r} at row {row}, got "
                    f"{other!r}"
                )

    def open_items(self, files: list[dict[str, Any]]) -> list[np.ndarray]:
        """The items in these files, memory-mapped."""
        found = []
        for file in files:
            path = self.path / file["path"]  # an absolute path stays as it is
            if not path.exists():
                raise FileNotFoundError(
                    f"{path}: no such file of items; every worker must find it under this name"
                )
            found.append(np.asarray(map_array(path)))
        return found

    def check_items(self, files: list[dict[str, Any]]) -> None:
        """Raise if files of items are not what they were when the run began."""
        for file in files:
            path = self.path / file["path"]
            if not path.exists() or content_identity(path) != file["identity"]:
                found = content_identity(path) if path.exists() else "no file"
                raise ValueError(
                    f"{path}: expected the items that the run began with ({file['identity']}), got {found}"
                )


def map_array(path: str | Path) -> np.ndarray:
    """The array of an .npy file, memory-mapped; whatever is wrong with the file, the error names it."""
    expected = "an .npy file of numbers"
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise cannot_read(Path(path), error) from None
    except (EOFError, ValueError) as error:  # an empty file, or one of another kind
        raise format_error(path, "not an array", expected, error) from None
    if not isinstance(found, np.ndarray):
        raise format_error(path, "not an array", expected, "an .npz file")
    return found


class _Side(NamedTuple):
    """Rows, the precision that they are learnt in, and the .npy file that has them so, if there is one."""

    rows: np.ndarray
    dtype: np.dtype[Any]
    file: Path | None
    ids: list[Id] | None = None
    feature_names: Any = None


def _read_sides(source: Any, dtype: Any) -> dict[str, _Side]:
    """Items, or queries and items, in this precision or (None) that of the first; nothing is written."""
    given = source if isinstance(source, tuple) else (source,)
    if len(given) not in (1, 2):
        raise ValueError(f"preprocessor: expected items or a pair, got {len(given)} parts")
    found: dict[str, _Side] = {}
    for name, one in zip(("queries", "items")[-len(given) :], given, strict=True):
        found[name] = _read_side(one, dtype)
        dtype = found[name].dtype
    return found


def _read_side(source: Any, dtype: Any) -> _Side:
    array, feature_names, ids = source, None, None
    if isinstance(source, (str, Path)):
        path = Path(source).resolve()
        if path.suffix != ".npy":
            found = read_items(path, dtype=dtype)
            array, feature_names = found.items, found.feature_names
        elif not path.exists():
            raise FileNotFoundError(f"{path}: no such file")
        else:
            array = map_array(path)
            wanted = array.dtype if dtype is None else np.dtype(dtype)
            is_right = array.dtype == wanted and wanted in (np.float32, np.float64)
            if is_right and array.ndim == 2 and array.flags.c_contiguous:
                return _Side(array, wanted, path)
    elif type(source).__name__ in ("ObjectRef", "ClientObjectRef"):
        import ray

        array = ray.get(source)
    if hasattr(array, "as_items") or column_names(array) is not None:  # rows of a file, or a table
        array = check_items(array, "preprocessor")
    if isinstance(array, Items):
        array, ids, feature_names = array.values, array.ids, array.feature_names
    if sp.issparse(array):
        raise TypeError(
            "preprocessor: expected dense items, got sparse ones, which are not learnt in blocks; learn in "
            "one process, or mix shards of the stream (simstream.distributed.MixedLearner)"
        )
    array = np.asarray(array)
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "biuf":
        raise ValueError(
            f"preprocessor: expected rows of numbers, got {array.dtype} of shape {array.shape}"
        )
    if dtype is None:
        dtype = np.float32 if array.dtype == np.float32 else np.float64
    return _Side(array, np.dtype(dtype), None, ids, feature_names)


def _rows_identity(side: _Side) -> str:
    """What rows are recognised by, in whatever file they are: their number and size, and both ends."""
    n, width = side.rows.shape
    some = max(1, _END_BYTES // (width * side.dtype.itemsize))
    checksum = 0
    for part in (side.rows[:some], side.rows[-some:]):
        checksum = zlib.crc32(np.ascontiguousarray(part, side.dtype), checksum)
    return f"{n} rows of {width} features in {side.dtype}, crc32 {checksum:08x}"


def _unused(path: Path) -> Path:
    """This path, or one with a number: whatever is there stays."""
    candidates = (path.with_stem(f"{path.stem}-{n}") for n in itertools.count(2))
    return next(found for found in itertools.chain([path], candidates) if not found.exists())


def _write_rows(path: Path, rows: np.ndarray, dtype: np.dtype[Any]) -> None:
    at_a_time = max(1, _CHUNK_BYTES // (rows.shape[1] * 8))
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": rows.shape,
    }
    # Not through a memory map: there a full disk ends the process.
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for begin in range(0, len(rows), at_a_time):
            file.write(np.ascontiguousarray(rows[begin : begin + at_a_time], dtype))
