"""Tasks on the command line, where they are called by text: which learners know them, and their names."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np

from ..data import FormatError, read_tasks
from ..data.files import load_arrays
from ..data.labels import check_labels, check_task_names
from ..data.samplers import nearer_first
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


def expects_tasks(learner: Any) -> bool:
    """Whether all it has learnt is of tasks with names: without one, a tuple would be of an extra task."""
    return len(names_in(learner)) > 0 and None not in learner.tasks_


def tasks_missing(learner: Any, expected: str) -> click.UsageError:
    """The error for an input without tasks where the learner `expects_tasks`."""
    return click.UsageError(
        f"--resume: the model has learnt tasks ({_some(learner.tasks_)}); expected {expected}, got an "
        "input without tasks"
    )


def what_all_share(learner: Any) -> Any:
    """What to score with where no task is meant: of many tasks what they have in common, else the learner.

    Left to itself, a learner that has also learnt from tuples without a task scores with their matrix.
    """
    if len(names_in(learner)) and None in learner.tasks_:
        return learner.for_task(object())  # a task that nobody can have taught it
    return learner


def of_task(learner: Any, task: str) -> Any:
    """The similarity of the task that ``--task`` names."""
    if not knows_tasks(type(learner)):
        raise refuse_tasks("--task", type(learner).__name__)
    if not task.strip():
        raise click.BadParameter(
            f"expected the name of a task, got {task!r}; without --task it is what all have in common",
            param_hint="--task",
        )
    names = names_in(learner)
    if len(names) and task not in names:
        logger.warning("the model has not seen task %s: using what all tasks have in common", task)
    return learner.for_task(names.find(task))


def feeder(learner: Any) -> Callable[..., Any]:
    """A function that lets a learner learn a piece: tuples, and answers and tasks where there are some.

    Answers to triplets become their order where the learner takes no answers. A learner that asks for some
    answers only (``-p query=active``) finds out by itself which.
    """
    takes_tasks = knows_tasks(type(learner))
    names = names_in(learner)
    needs_tasks = expects_tasks(learner)

    def learn(tuples: np.ndarray, y: Any = None, tasks: Any = None) -> Any:
        if not takes_tasks:
            return learner.partial_fit(*untasked(type(learner).__name__, tuples, y, tasks))
        if tasks is None and needs_tasks:
            raise tasks_missing(learner, "a column task")
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
    if found is None:
        return None
    return check_task_names(path, check_labels(path, found, n_items, what="task"))


def tell_left_out(tasks: list[Any]) -> None:
    """Say which tasks are too small to be used."""
    if tasks:
        logger.info(
            "%s left out, without two classes and a class of two items: %s",
            f"{len(tasks):,} task{'s' if len(tasks) > 1 else ''}",
            _some(tasks),
        )


def _some(tasks: list[Any]) -> str:
    """The first names of a list."""
    return ", ".join(map(str, tasks[:5])) + (", ..." if len(tasks) > 5 else "")
