"""Which source a record comes from.

A record keeps a digest of the code of the modules that its process had imported, not of the whole package: a
change of the service or of a page does not concern it. Comments, docstrings and the words of errors do not
count. The file ``sources.json`` beside the records says which modules a digest stands for, so that
`SourceLog.is_current` can tell whether any of them has changed since.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path

from simstream.data import atomic_write

#: Modules whose code decides a result: these, and all inside them.
_PACKAGES = ("simstream", "simstream_repro.protocols", "simstream_repro.reference")
#: Loaded by the command that starts the processes, and without influence on what they compute.
_ONLY_STARTS = ("simstream.cli", "simstream.__main__")


def imported_modules() -> list[str]:
    """Names of the modules that this process has imported and whose code may decide a result.

    Examples
    --------
    >>> import simstream.metrics
    >>> "simstream.metrics" in imported_modules()
    True
    >>> "simstream_repro.sources" in imported_modules()
    False
    """
    return sorted(name for name in sys.modules if _decides(name))


def _decides(name: str) -> bool:
    """Whether the code of a module may decide a result."""

    def inside(packages: Iterable[str]) -> bool:
        return any(name == one or name.startswith(f"{one}.") for one in packages)

    return inside(_PACKAGES) and not inside(_ONLY_STARTS)


def code_digest(source: str) -> str:
    """A short digest of Python code without its comments, docstrings, layout and the words of errors.

    Examples
    --------
    >>> code_digest("x = 1  # one") == code_digest("x=1") != code_digest("x = 2")
    True
    >>> code_digest('def f():\\n    "doc"\\n    return 1') == code_digest("def f(): return 1")
    True
    >>> code_digest("raise ValueError('no')") == code_digest("raise ValueError(f'not {x}')")
    True
    >>> code_digest("raise ValueError('no')") == code_digest("raise TypeError('no')")
    False
    >>> code_digest("raise Found(best)") == code_digest("raise Found(worst)")
    False
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            node.exc.args = [_wordless(one) for one in node.exc.args]
        body = getattr(node, "body", None)
        if not isinstance(body, list) or not body or not isinstance(body[0], ast.Expr):
            continue
        first = body[0].value
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            body[0] = ast.Expr(ast.Constant(None))
            if len(body) > 1:
                del body[0]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:12]


def _wordless(argument: ast.expr) -> ast.expr:
    """An argument of an error, where it is a text an empty one."""
    is_text = isinstance(argument, ast.JoinedStr) or (
        isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    )
    return ast.Constant("") if is_text else argument


@cache
def module_digest(name: str) -> str:
    """The digest of a module's code as it is on disk when first asked for; "" if there is none."""
    package, *rest = name.split(".")
    place = Path(str(files(package))).joinpath(*rest)
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.exists():
            return code_digest(path.read_text("utf-8"))
    return ""


class SourceLog:
    """What the digests of records stand for, in a file beside them.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     digest = SourceLog(folder).note(["simstream.validation"])
    ...     SourceLog(folder).is_current(digest), SourceLog(folder).is_current("of nobody")
    (True, False)
    """

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / "sources.json"
        self._known = self._read()  # a damaged file is refused before anything runs

    def _read(self) -> dict[str, dict[str, str]]:
        if not self._path.exists():
            return {}
        try:
            found = json.loads(self._path.read_text("utf-8"))
        except ValueError:
            found = None
        if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
            raise ValueError(
                f"{self._path}: damaged; expected digests of code by name, as a run writes them "
                "(delete it to go on: all records then count as stale)"
            )
        return found

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(self._path) as temporary:
            text = json.dumps(self._known, indent=1, sort_keys=True)
            temporary.write_text(text + "\n", "utf-8")

    def note(self, modules: Iterable[str]) -> str:
        """The digest of these modules, kept in the file."""
        codes = {name: module_digest(name) for name in sorted(modules) if _decides(name)}
        digest = hashlib.sha256(json.dumps(codes).encode()).hexdigest()[:12]
        if digest not in self._known:
            # Read again: another run in this folder may have noted its own, and its records would be stale.
            self._known = self._read() | {digest: codes}
            self._write()
        return digest

    def keep(self, digests: Iterable[str]) -> None:
        """Forget all other digests."""
        wanted = set(digests)
        self._known = {name: codes for name, codes in self._read().items() if name in wanted}
        if self._path.exists():
            self._write()

    def is_current(self, digest: str | None) -> bool:
        """Whether every module that a digest stands for has the same code now; never of no modules."""
        codes = self._known.get(digest or "", {})
        return bool(codes) and all(
            module_digest(name) == code for name, code in codes.items() if _decides(name)
        )
