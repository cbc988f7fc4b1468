"""One loader for every data set: from a folder, else bundled or generated, else by download."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from . import fetching
from .dataset import Dataset
from .facts import Facts, table, unknown_name
from .folder import VARIABLE, files_by_name, find_folder, load_from_folder, read_index
from .synthetic import make_low_rank

PathLike = str | os.PathLike[str]


class DatasetMissingError(FileNotFoundError):
    """A data set is known but not here; the message says how to get it.

    Examples
    --------
    >>> from simstream import datasets
    >>> datasets.load("sector", data_dir=".")
    Traceback (most recent call last):
        ...
    simstream.datasets.loading.DatasetMissingError: sector is not here: put sector.svm.gz into...
    """


def load(
    name: str, *, data_dir: PathLike | None = None, download: bool = False, dtype: Any = None
) -> Dataset:
    """Load a data set by name.

    It is looked for in the data folder, then among those bundled with scikit-learn or generated, and
    then, if ``download``, on the network with scikit-learn's fetchers, which keep a copy.

    Parameters
    ----------
    name : str
        One of `names`, or of the folder's index.json.
    data_dir : str or os.PathLike, default=None
        Folder of data sets; by default the one that the environment variable SIMSTREAM_DATA names.
    download : bool, default=False
        Whether the network may be used.
    dtype : dtype, default=None
        Type of the items, float32 or float64 (the default).

    Returns
    -------
    Dataset
        Its ``verdict`` and ``note`` say what it is to the published one.

    Raises
    ------
    DatasetMissingError
        If it is not here; the message says how to get it.
    ValueError
        If there is no such name, or the file is not what the index says.

    Examples
    --------
    >>> from simstream import datasets
    >>> digits = datasets.load("digits")
    >>> digits.items.shape, digits.labels[:4].tolist(), digits.source
    ((1797, 64), [0, 1, 2, 3], 'sklearn')
    """
    dtype = np.dtype(np.float64 if dtype is None else dtype)
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"dtype: expected float32 or float64, got {dtype}")
    folder = find_folder(data_dir)
    known = table().get(name)
    file = _file_in(folder, name, known)
    if folder is not None and file is not None:
        return load_from_folder(folder, name, file, known, dtype)
    if known is None:
        raise unknown_name(name, [*table(), *_listed(folder)])
    if known.generated is not None:
        return make_low_rank(known.generated, dtype=dtype)
    if known.bundled is not None:
        return fetching.load_bundled(known, dtype)
    if download and known.fetch is not None:
        try:
            return fetching.fetch(known, dtype)
        except OSError as error:
            raise DatasetMissingError(
                f"{name} could not be downloaded with {known.fetch_call}: {error}"
            ) from error
    raise _missing(known, folder, download)


def available(data_dir: PathLike | None = None) -> dict[str, str]:
    """Data sets that `load` has without the network, with their sources.

    Parameters
    ----------
    data_dir : str or os.PathLike, default=None
        As in `load`.

    Returns
    -------
    dict of str to str
        Name -> "folder", "sklearn" or "generated". Files of the folder's index.json that are not
        in `names` are there too.

    Examples
    --------
    >>> from simstream import datasets
    >>> present = datasets.available()
    >>> present["iris"], present["synthetic-projected"]
    ('sklearn', 'generated')
    """
    folder = find_folder(data_dir)
    found = {}
    for name, known in table().items():
        if _file_in(folder, name, known) is not None:
            found[name] = "folder"
        elif known.generated is not None:
            found[name] = "generated"
        elif known.bundled is not None:
            found[name] = "sklearn"
    files = {known.file for known in table().values()}
    for name, file in _listed(folder).items():
        if file not in files and folder is not None and (folder / file).is_file():
            found[name] = "folder"
    return found


def _listed(folder: Path | None) -> dict[str, str]:
    return {} if folder is None else files_by_name(read_index(folder))


def _file_in(folder: Path | None, name: str, known: Facts | None) -> str | None:
    """The name of the file in the folder, if it is there."""
    if folder is None:
        return None
    file = _listed(folder).get(name) if known is None else known.file
    return file if file is not None and (folder / file).is_file() else None


def _missing(known: Facts, folder: Path | None, download: bool) -> DatasetMissingError:
    where = f"data folder: {folder}" if folder is not None else f"no data folder: set {VARIABLE}"
    message = f"{known.name} is not here: {known.how_to_get} ({where}"
    if known.fetch is not None and not download:
        message += "; downloads need download=True"
    return DatasetMissingError(message + ")")
