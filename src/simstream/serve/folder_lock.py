"""One service per folder."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import LogError

try:
    import fcntl
except ImportError:  # not on Windows, where SQLite's own locks have to be enough
    fcntl = None  # type: ignore[assignment]


class FolderLock:
    """Held while a service uses a folder; the operating system lets go of it when the process ends.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> lock = FolderLock(folder)
    >>> lock.release()
    >>> with FolderLock(folder):
    ...     FolderLock(folder)
    Traceback (most recent call last):
    ...
    simstream.serve.errors.LogError: ...: another service uses this folder; stop it first
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        if fcntl is None:
            return
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise LogError(f"{folder}: another service uses this folder; stop it first") from None

    def release(self) -> None:
        """Let others use the folder."""
        os.close(self._descriptor)

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
