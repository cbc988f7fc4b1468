"""From names on the command line to learners, their parameters and their tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from typing import Any

import click

from .. import catalogue
from .output import logger, plural

#: Name on the command line -> public class of `simstream`.
ALGORITHMS = {known.name.lower(): known.name for known in catalogue.ALGORITHMS}
DEFAULT_ALGORITHM = "oasis"

#: Those that ask for some answers only.
ASKING = ("omtrsl", "ostrsl", "ogrsl")

#: Similarities that need no training, to compare with; the cosine where relevance is judged.
BASELINES = ("dot", "euclidean")
JUDGED_BASELINES = ("dot", "cosine")

#: The seed of everything that is drawn.
DEFAULT_SEED = 0

#: Constructor arguments that are not given by --param, and how they are given instead.
ELSEWHERE = {
    "preprocessor": "ITEMS",
    "dtype": "--dtype",
    "block_size": "--block-size",
    "device": "--device",
    "random_state": "--seed",
    "verbose": "--quiet",
    "callback": "the library in Python",
}


def is_distance(learner: Any) -> bool:
    """Whether it is a learnt (Mahalanobis) distance, with a spectrum and perhaps a threshold."""
    return hasattr(type(learner), "effective_dimension_")


def is_adapter(learner: Any) -> bool:
    """Whether it adapts a search: it chooses among learners, and has no matrix of its own."""
    return hasattr(type(learner), "chosen_")


def threshold_of(learner: Any) -> float | None:
    """The threshold of squared distances that separates similar from dissimilar pairs, if it has one."""
    from sklearn.exceptions import NotFittedError

    try:
        return learner.threshold_ if is_distance(learner) else None
    except NotFittedError:
        return None


def names_of(is_wanted: Callable[[catalogue.Algorithm], bool]) -> str:
    """Names on the command line of some algorithms, for a message."""
    return ", ".join(known.name.lower() for known in catalogue.ALGORITHMS if is_wanted(known))


def check_names(algorithm: str, params: dict[str, Any]) -> None:
    """Refuse parameters that the algorithm does not have, and list those it has."""
    signature = inspect.signature(catalogue.find(algorithm).cls()).parameters
    legal = {name: p.default for name, p in signature.items() if name not in ELSEWHERE}
    for name in params:
        if name in legal:
            continue
        text = ", ".join(f"{key}={value!r}" for key, value in legal.items())
        hint = f"; use {ELSEWHERE[name]}" if name in ELSEWHERE else ""
        raise click.BadParameter(
            f"{algorithm} has no parameter {name!r}{hint}. Its parameters and defaults: "
            f"{text or 'none'}.",
            param_hint="--param",
        )


def new_learner(
    algorithm: str,
    params: dict[str, Any],
    *,
    dtype: str | None = None,
    block_size: int | None = None,
    seed: int | None = None,
) -> Any:
    """A learner that has seen nothing yet; illegal parameters are wrong usage.

    The parameters are those of ``--param``; the seed is that of what the algorithm itself draws.
    """
    check_names(algorithm, params)
    cls = catalogue.find(algorithm).cls()
    known = inspect.signature(cls).parameters
    if seed is None and "random_state" in known:
        seed = DEFAULT_SEED
    given = {"dtype": dtype, "block_size": block_size, "random_state": seed}
    own = {name: value for name, value in given.items() if value is not None}
    if dtype == "float64" and "dtype" not in known:
        del own["dtype"]  # it always learns in float64
    for name, complaint in (
        ("dtype", "always learns in float64"),
        ("block_size", "does not learn in blocks"),
        ("random_state", "does not draw random numbers"),
    ):
        if name in own and name not in known:
            raise click.BadParameter(f"{algorithm} {complaint}", param_hint=ELSEWHERE[name])
    learner = cls(**params, **own)
    _check_values(learner)
    return learner


def resume_learner(
    learner: Any, algorithm: str | None, params: dict[str, Any], block_size: int | None
) -> list[str]:
    """Refuse a learner of another algorithm; let its parameters change where that makes sense.

    A step may be made smaller in the middle of a stream. The library refuses what cannot change, some of it
    only when learning goes on: so the changes are returned as texts, to be reported after that.
    """
    name = type(learner).__name__
    if algorithm is not None and ALGORITHMS[algorithm] != name:
        raise click.UsageError(
            f"--resume: expected a model of {ALGORITHMS[algorithm]}, got one of {name}"
        )
    if name == "Adapter":
        raise click.UsageError("--resume: this is an adapter; use simstream adapt --resume")
    if name not in ALGORITHMS.values() or catalogue.find(name).is_batch:
        raise click.UsageError(
            f"--resume: expected an online learner, got a model of {name}, which cannot learn "
            "incrementally; train a new one without --resume"
        )
    check_names(name.lower(), params)
    known = learner.get_params(deep=False)
    given = params if block_size is None else params | {"block_size": block_size}
    changed = {key: value for key, value in given.items() if known.get(key) != value}
    if "init" in changed:
        raise click.UsageError("--resume: init is the first matrix, and learning has already begun")
    learner.set_params(**changed)
    _check_values(learner)
    return [
        f"from here on {key}={value} instead of {known.get(key)}" for key, value in changed.items()
    ]


def find_wanted_device(device: str, precision: str = "float32") -> Any:
    """The device of torch with this name, None for the CPU; a device that is not there is wrong usage."""
    from .._engines import check_device, find_device

    try:
        check_device(device, precision)
        return find_device(device)
    except (RuntimeError, ValueError) as error:
        raise click.BadParameter(str(error), param_hint="--device") from error


def place(learner: Any, device: str | None) -> None:
    """Let a learner learn on this device, or where it learnt before; raises if there is none.

    Learners that know no devices take "auto" for the CPU.
    """
    known = learner.get_params(deep=False)
    wanted = known.get("device", "cpu") if device is None else device
    find_wanted_device(wanted, known.get("precision", "float32"))
    if "device" in known:
        learner.set_params(device=wanted)
    elif wanted not in ("cpu", "auto"):
        raise click.BadParameter(
            f"{type(learner).__name__} learns on the CPU alone", param_hint="--device"
        )


def _check_values(learner: Any) -> None:
    try:
        learner.check_parameters()
    except (TypeError, ValueError) as error:
        option = "--block-size" if str(error).startswith("block_size:") else "--param"
        raise click.BadParameter(str(error), param_hint=option) from error


def untrained(name: str, n_features: int, dtype: Any) -> Any:
    """A baseline, ready to score items of so many features."""
    import numpy as np

    nothing = np.zeros(n_features)
    # A round of zeros teaches nothing; it tells the baseline the dimension.
    params: dict[str, Any] = {"dtype": str(np.dtype(dtype))}
    if name == "cosine":
        name, params = "dot", params | {"normalise": True}
    return catalogue.find(name).cls()(**params).learn_one(nothing, nothing, nothing)


# -- tasks --------------------------------------------------------------------------------------


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


def task_names(learner: Any) -> dict[str, Hashable]:
    """The named tasks a learner has seen, by text: what is called 3 in a file may be the number 3 in a model.

    Raises if two tasks have the same text, since it would be unclear which is meant.

    Examples
    --------
    >>> from simstream import OMTRSL
    >>> task_names(OMTRSL().learn_one([1.0, 0.0], [0.5, 1.0], [0.0, 1.0], task=3))
    {'3': 3}
    """
    known: dict[str, Hashable] = {}
    for task in learner.tasks_ if knows_tasks(type(learner)) else ():
        if task is not None and known.setdefault(str(task), task) != task:
            both = f"{known[str(task)]!r} and {task!r}"
            raise ValueError(f"tasks: expected different texts, got {both} in one model")
    return known


def expects_tasks(learner: Any) -> bool:
    """Whether all its tasks have names: a tuple without a task would begin an extra one."""
    return bool(task_names(learner)) and None not in learner.tasks_


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
    names = task_names(learner)
    if task is None:
        is_mixed = names and None in learner.tasks_
        return learner.for_task(object()) if is_mixed else learner  # a task it cannot have learnt
    if not knows_tasks(type(learner)):
        raise refuse_tasks("--task", type(learner).__name__)
    if not task.strip():
        raise click.BadParameter(
            f"expected the name of a task, got {task!r}; leave it out to use what all tasks share",
            param_hint="--task",
        )
    if names and task not in names:
        logger.warning("the model has not seen task %s: using what all tasks share", task)
    return learner.for_task(names.get(task, task))


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
