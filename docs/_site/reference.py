"""The pages of the reference, made from the catalogue, the docstrings and the command line.

They are written before every build (docs/reference, not under version control): a new learner is there as
soon as it is in the catalogue, a new public name as soon as it is one.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import simstream
from simstream.catalogue import ALGORITHMS, Algorithm
from simstream.cli import main

#: Learners by the modules they are defined in; the first that fits counts.
FAMILIES = {
    "Similarities, from triplets": ("online.triplets", "online.listwise", "batch.sdca"),
    "Distances, from pairs or triplets": ("online.pairs", "online.logdet"),
    "Distances, from all labels at once": ("batch.",),
    "Low rank": ("online.low_rank",),
    "Several users or tasks": ("online.multitask",),
    "Baselines": ("online.baselines",),
    "Other learners": ("",),
}

#: Public names that are not learners, by page.
PAGES = {
    "Adapting a search": ("Adapter", "Trust"),
    "From labels": ("FromLabels",),
    "Drawing comparisons": (
        *("TripletSampler", "PairSampler", "TaskTripletSampler", "RelevanceSampler"),
        "triplets_from_clicks",
    ),
    "Similarities": ("Bilinear", "Mahalanobis", "LowRank", "Tasks", "SearchResult"),
    "Features and sequences": (
        "mrmr",
        "csfs",
        "csfc",
        "csfs_weights",
        "CSFSResult",
        "smooth_labels",
    ),
    "Files and errors": ("load", "read_header", "ModelFileError", "DivergedError"),
}

#: Modules with public names of their own.
MODULES = ("metrics", "datasets", "data", "search", "distributed", "plots", "asking")

_Lines = Iterator[str]


def write(folder: Path) -> None:
    """Write all pages, and remove those of names that are gone."""
    pages = dict(_pages())
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.rst"):
        if path.stem not in pages:
            path.unlink()
    for name, lines in pages.items():
        path, text = folder / f"{name}.rst", "\n".join(lines) + "\n"
        if (
            not path.exists() or path.read_text(encoding="utf-8") != text
        ):  # else nothing is built again
            path.write_text(text, encoding="utf-8")


def as_plain_text(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings as people read them: bars and underscores mean nothing, examples stay as they are."""
    in_example = False
    lines[:] = [part for line in lines for part in _one_name_each(line)]
    for number, line in enumerate(lines):
        in_example = bool(line.strip()) and (in_example or line.lstrip().startswith(">>>"))
        if not in_example and set(line.strip()) != {"-"}:
            parts = re.split(r"(`[^`]*`+)", line)
            parts[::2] = [
                re.sub(r"(\||(?<=\w)_(?!\w)|(?<!\w)\*(?=\w))", r"\\\1", p) for p in parts[::2]
            ]
            lines[number] = "".join(parts)


def _one_name_each(line: str) -> list[str]:
    """Several attributes in one line, "a, b : int", one after the other: the text belongs to the last one."""
    names, colon, kind = line.partition(" : ")
    if not (colon and re.fullmatch(r"\w+(, \w+)+", names)):
        return [line]
    return [f"{name} : {kind}" for name in names.split(", ")]


def skip(app: Any, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out what scikit-learn adds to every estimator, and fields of tuples once more."""
    if (getattr(obj, "__doc__", None) or "").startswith("Alias for field number"):
        return True
    function = getattr(obj, "fget", None) or obj
    module = getattr(function, "__module__", None) or ""
    is_theirs = module.startswith(("sklearn", "builtins")) or name.endswith("_request")
    return True if is_theirs and inspect.isroutine(function) else None


def unlink_words(app: Any, doctree: Any) -> None:
    """Types are prose ("int, optional"): only names of classes are links."""
    for node in list(doctree.findall(lambda node: node.tagname == "pending_xref")):
        if node.get("reftype") == "class" and node["reftarget"] not in simstream.__all__:
            node.replace_self(node.children)


# -- the pages --------------------------------------------------------------------------------


def _pages() -> Iterator[tuple[str, _Lines]]:
    """Name and lines of every page."""
    yield "index", _overview()
    yield "command-line", _command_line()
    for algorithm in ALGORITHMS:
        yield algorithm.name, _learner(algorithm)
    for title, names in _grouped_names().items():
        yield _slug(title), _names(title, "", [f"simstream.{name}" for name in names])
    for name in MODULES:
        module = import_module(f"simstream.{name}")
        names = [f"{module.__name__}.{found}" for found in _public(module)]
        yield name, _names(module.__name__, _summary(module), names)


def _overview() -> _Lines:
    """Every learner with what it learns from, and the other pages."""
    yield from _title("Reference")
    yield "Every class has an example that runs. From the shell: :doc:`the command line <command-line>`."
    for family, algorithms in _families().items():
        yield from _title(family, "-")
        rows = [(f":doc:`{a.name}`", f"from {a.input}", _text(a.summary())) for a in algorithms]
        yield from _table(rows, widths="20 25 55")
    yield from _title("Everything else", "-")
    grouped = _grouped_names()
    rows = [
        (f":doc:`{t} <{_slug(t)}>`", ", ".join(f"``{n}``" for n in grouped[t])) for t in grouped
    ]
    for name in MODULES:
        summary = _text(_summary(import_module(f"simstream.{name}")))
        rows.append((f":doc:`simstream.{name} <{name}>`", summary))
    yield from _table(rows, widths="35 65")
    yield from ("", ".. toctree::", "   :hidden:", "", "   command-line")
    for family, algorithms in _families().items():
        yield from ("", ".. toctree::", "   :hidden:", f"   :caption: {family}", "")
        yield from (f"   {algorithm.name}" for algorithm in algorithms)
    yield from ("", ".. toctree::", "   :hidden:", "   :caption: Everything else", "")
    yield from (f"   {_slug(title)}" for title in grouped)
    yield from (f"   {name}" for name in MODULES)


def _learner(algorithm: Algorithm) -> _Lines:
    """One learner: its step, its docstring, its methods."""
    yield from _title(algorithm.name)
    yield f"Learns from {algorithm.input}. {'What it does' if algorithm.is_batch else 'One step'}::"
    yield ""
    yield from (f"   {part}" for part in re.split(r"(?<=[,;])  ", algorithm.update))
    yield from ("", f".. autoclass:: simstream.{algorithm.name}", "")


def _names(title: str, text: str, names: list[str]) -> _Lines:
    """A page of classes and functions."""
    yield from _title(title)
    yield _text(text)
    for name in names:
        module, _, last = name.rpartition(".")
        value = getattr(import_module(module), last)
        if isinstance(value, type):
            kind = "autoexception" if issubclass(value, Exception) else "autoclass"
        else:
            kind = "autofunction" if callable(value) else "autodata"
        yield from ("", f".. {kind}:: {name}")


def _command_line() -> _Lines:
    """What `--help` prints, of every command."""
    yield from _title("Command line")
    yield "What ``simstream COMMAND --help`` prints."
    outer = click.Context(main, info_name="simstream")
    for name in main.list_commands(outer):
        command = main.get_command(outer, name)
        if command is not None and not command.hidden:
            context = click.Context(command, outer, name, terminal_width=92, max_content_width=92)
            yield from _title(f"simstream {name}", "-")
            yield from ("::", "")
            yield from (f"   {line}" for line in command.get_help(context).splitlines())


# -- what there is ----------------------------------------------------------------------------


def _families() -> dict[str, list[Algorithm]]:
    """Learners by family, in the order of the catalogue; families without any are left out."""
    found: dict[str, list[Algorithm]] = {family: [] for family in FAMILIES}
    for algorithm in ALGORITHMS:
        family = next(f for f, homes in FAMILIES.items() if algorithm.home.startswith(homes))
        found[family].append(algorithm)
    return {family: algorithms for family, algorithms in found.items() if algorithms}


def _grouped_names() -> dict[str, list[str]]:
    """Public names that are neither learners nor modules, by page."""
    public = set(simstream.__all__)
    groups = {title: [name for name in names if name in public] for title, names in PAGES.items()}
    learners = {algorithm.name for algorithm in ALGORITHMS}
    listed = {name for names in PAGES.values() for name in names} | learners | set(MODULES)
    others = sorted(public - listed)
    return groups | ({"Other names": others} if others else {})


def _public(module: Any) -> list[str]:
    """Names that a module offers."""
    return getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]


def _summary(module: Any) -> str:
    return (inspect.getdoc(module) or "").partition("\n")[0]


# -- reStructuredText -------------------------------------------------------------------------


def _title(text: str, line: str = "=") -> _Lines:
    yield from ("", text, line * len(text), "")


def _table(rows: list[tuple[str, ...]], widths: str) -> _Lines:
    yield from ("", ".. list-table::", f"   :widths: {widths}", "")
    for row in rows:
        for number, cell in enumerate(row):
            yield f"   {'* -' if number == 0 else '  -'} {cell}"


def _text(text: str) -> str:
    """Plain text with names in backticks."""
    lines = [text]
    as_plain_text(None, "", "", None, None, lines)
    return lines[0]


def _slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower())
