"""From names on the command line to learners, and from ``--param`` to their parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import click

from .. import catalogue

#: Name on the command line -> public class of `simstream`.
ALGORITHMS = {known.name.lower(): known.name for known in catalogue.ALGORITHMS}
DEFAULT_ALGORITHM = "oasis"

#: Those that ask for some answers only.
ASKING = ("omtrsl", "ostrsl", "ogrsl")

#: Similarities that need no training, to compare with.
BASELINES = ("dot", "euclidean")

#: The seed of everything that is drawn.
DEFAULT_SEED = 0

#: Constructor arguments that are not given by --param, and how they are given instead.
ELSEWHERE = {
    "preprocessor": "ITEMS",
    "dtype": "--dtype",
    "block_size": "--block-size",
    "random_state": "--seed",
    "verbose": "--quiet",
    "callback": "the library in Python",
}


def learner_class(algorithm: str) -> Any:
    """The public class behind a name."""
    return catalogue.find(algorithm).cls()


def is_distance(learner: Any) -> bool:
    """Whether it is a learnt (Mahalanobis) distance, with a spectrum and perhaps a threshold."""
    return hasattr(type(learner), "effective_dimension_")


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
    signature = inspect.signature(learner_class(algorithm)).parameters
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

    Parameters
    ----------
    algorithm : key of `ALGORITHMS`
    params : dict
        Constructor arguments given by ``--param``.
    dtype, block_size : values of the options of that name
    seed : seed of what the algorithm itself draws, for those that do
    """
    check_names(algorithm, params)
    cls = learner_class(algorithm)
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


def _check_values(learner: Any) -> None:
    try:
        learner.check_parameters()
    except (TypeError, ValueError) as error:
        raise click.BadParameter(str(error), param_hint="--param") from error


def untrained(name: str, n_features: int, dtype: Any) -> Any:
    """A baseline, ready to score items of so many features."""
    import numpy as np

    nothing = np.zeros(n_features)
    # A round of zeros teaches nothing; it tells the baseline the dimension.
    return learner_class(name)(dtype=str(np.dtype(dtype))).learn_one(nothing, nothing, nothing)
