"""Tasks on the command line, where they are named by text: which learners have them, and which is meant."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import click

from .learners import names_of
from .output import logger, plural


def knows_tasks(kind: type) -> bool:
    """Whether a class learns several tasks.

    Examples
    --------
    >>> from simstream import LMNN, OASIS, OMTRSL, MultiTaskLMNN
    >>> [knows_tasks(kind) for kind in (OMTRSL, MultiTaskLMNN, OASIS, LMNN)]
    [True, True, False, False]
    """
    return hasattr(kind, "tasks_")


def refuse_tasks(option: str, name: str, source: str | None = None) -> click.UsageError:
    """The error for tasks given to a learner without them; lists the learners that could be used instead."""
    able = names_of(
        lambda known: knows_tasks(known.cls()) and (source is None or source in known.takes)
    )
    return click.UsageError(f"{option}: {name} does not learn tasks; expected one of {able}")


class TaskNames:
    """The tasks of a learner by their texts: what is called 3 in a file may be the number 3 in a model.

    Raises if two tasks have the same text, since it would be unclear which is meant.

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

    @classmethod
    def of(cls, learner: Any) -> TaskNames:
        """The tasks a learner has seen so far, none if it does not learn tasks."""
        return cls(learner.tasks_ if knows_tasks(type(learner)) else ())

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def __len__(self) -> int:
        return len(self._known)

    def find(self, name: str) -> Hashable:
        """The learner's own task of that name; an unknown name stays as it is."""
        return self._known.get(name, name)


def expects_tasks(learner: Any) -> bool:
    """Whether all its tasks have names: a tuple without a task would begin an extra one."""
    return len(TaskNames.of(learner)) > 0 and None not in learner.tasks_


def missing_tasks(learner: Any, expected: str) -> click.UsageError:
    """The error for an input without tasks where the learner `expects_tasks`."""
    return click.UsageError(
        f"--resume: the model has learnt tasks ({some_names(learner.tasks_)}); expected {expected}, got an "
        "input without tasks"
    )


def similarity_of(learner: Any, task: str | None = None) -> Any:
    """What scores: the similarity of the task that ``--task`` names, or what all tasks share.

    Left to itself, a learner that has also learnt from tuples without a task would score with their matrix.
    """
    names = TaskNames.of(learner)
    if task is None:
        is_mixed = len(names) and None in learner.tasks_
        return learner.for_task(object()) if is_mixed else learner  # a task it cannot have learnt
    if not knows_tasks(type(learner)):
        raise refuse_tasks("--task", type(learner).__name__)
    if not task.strip():
        raise click.BadParameter(
            f"expected the name of a task, got {task!r}; leave it out to use what all tasks share",
            param_hint="--task",
        )
    if len(names) and task not in names:
        logger.warning("the model has not seen task %s: using what all tasks share", task)
    return learner.for_task(names.find(task))


def report_left_out(tasks: list[Any]) -> None:
    """Say which tasks are too small to be used."""
    if tasks:
        logger.info(
            "%s left out, without two classes and a class of two items: %s",
            plural(len(tasks), "task"),
            some_names(tasks),
        )


def some_names(tasks: list[Any]) -> str:
    """The first names of a list."""
    return ", ".join(map(str, tasks[:5])) + (", ..." if len(tasks) > 5 else "")
