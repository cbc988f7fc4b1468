"""Tasks on the command line, where they are called by text: which learners know them, and their names."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np

from ..constraints import nearer_first
from ..formats import FormatError, read_tasks
from ..formats.files import load_arrays
from ..formats.labels import as_names, check_labels
from .algorithms import names_of
from .output import logger

#: Arrays of an .npz file of items that hold their tasks.
_TASK_ARRAYS = ("tasks", "groups")


def knows_tasks(kind: type) -> bool:
    """Whether a class learns from several tasks.

    Examples
    --------
    >>> from simstream import LMNN, OASIS, OMTRSL, MultiTaskLMNN
    >>> [knows_tasks(kind) for kind in (OMTRSL, MultiTaskLMNN, OASIS, LMNN)]
    [True, True, False, False]
    """
    return hasattr(kind, "tasks_")


def asks(learner: Any) -> bool:
    """Whether it wants only some of the answers."""
    return getattr(learner, "query", "all") != "all"


def refuse_tasks(option: str, name: str, source: str | None = None) -> click.UsageError:
    """The error for tasks given to a learner that knows none; names those that do and take such input."""
    able = names_of(
        lambda known: knows_tasks(known.cls()) and (source is None or source in known.takes)
    )
    return click.UsageError(f"{option}: {name} knows no tasks; expected one of {able}")


class TaskNames:
    """The tasks of a learner by their texts: what is called 3 in a file may be the number 3 in a model.

    Raises where two tasks have the same text: nobody could tell which is meant.

    Examples
    --------
    >>> names = TaskNames([3, "ann", None])
    >>> names.find("3"), names.find("ann"), names.find("a stranger"), "a stranger" in names
    (3, 'ann', 'a stranger', False)
    """

    def __init__(self, tasks: Iterable[Hashable]) -> None:
        self._known: dict[str, Hashable] = {}
        for task in tasks:
            if task is not None and self._known.setdefault(str(task), task) != task:
                both = f"{self._known[str(task)]!r} and {task!r}"
                raise ValueError(f"tasks: expected different texts, got {both} in one model")

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def __len__(self) -> int:
        return len(self._known)

    def find(self, name: str) -> Hashable:
        """The learner's own task of that name; a name it does not know stays as it is."""
        return self._known.get(name, name)


def names_in(learner: Any) -> TaskNames:
    """The tasks a learner has seen so far, none if it has not begun."""
    return TaskNames(learner.tasks_ if knows_tasks(type(learner)) else ())


def feeder(learner: Any) -> Callable[..., Any]:
    """A function that lets a learner learn a piece: tuples, and answers and tasks where there are some.

    Answers to triplets become their order where the learner takes no answers. A learner that asks for some
    answers only (``-p query=active``) finds out by itself which.
    """
    takes_tasks = knows_tasks(type(learner))
    names = names_in(learner)

    def learn(tuples: np.ndarray, y: Any = None, tasks: Any = None) -> Any:
        if not takes_tasks:
            return learner.partial_fit(*untasked(type(learner).__name__, tuples, y, tasks))
        own = None if tasks is None else [names.find(str(name)) for name in tasks]
        if asks(learner):
            y = np.ones(len(tuples), np.int64) if y is None else y
            return learner.partial_fit(tuples, tasks=own, oracle=y)
        return learner.partial_fit(tuples, y, own)

    return learn


def untasked(
    name: str, tuples: np.ndarray, y: np.ndarray | None = None, tasks: Any = None
) -> tuple[np.ndarray, ...]:
    """What a learner without tasks takes: triplets in order, or pairs and their labels."""
    if tasks is not None:
        raise refuse_tasks("--triplets with a column of tasks", name, "triplets")
    if y is None:
        return (tuples,)
    return (nearer_first(tuples, y),) if tuples.shape[1] == 3 else (tuples, y)


def tasks_of_items(path: Path, n_items: int, tasks_file: Path | None) -> np.ndarray | None:
    """The tasks of items, as texts: from a file of their own, else from an .npz file of items, else None."""
    if tasks_file is not None:
        tasks = read_tasks(tasks_file)
        if len(tasks) != n_items:
            raise FormatError(
                f"{tasks_file}: tasks and items differ in number; expected {n_items}, as many as items "
                f"in {path}, got {len(tasks)}"
            )
        return tasks
    if path.suffix.lower() != ".npz":
        return None
    arrays = load_arrays(path)
    found = next((arrays[name] for name in _TASK_ARRAYS if name in arrays), None)
    return None if found is None else as_names(check_labels(path, found, n_items))


def tell_left_out(tasks: list[Any]) -> None:
    """Say which tasks are too small to be used."""
    if tasks:
        some = ", ".join(map(str, tasks[:5])) + (", ..." if len(tasks) > 5 else "")
        logger.info(
            "%s left out, without two classes and a class of two items: %s",
            f"{len(tasks):,} task{'s' if len(tasks) > 1 else ''}",
            some,
        )
