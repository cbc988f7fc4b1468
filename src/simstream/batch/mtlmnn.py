"""MultiTaskLMNN: LMNN for several tasks whose distances share a common part, and its solver.

Task t has its own labelled items and the distance d_t(i,j) = (x_i - x_j)'(M_0 + M_t)(x_i - x_j), where
M_0 is common to all tasks. With T(i) the nearest items of i's own class and task in the input space,
and l running over the items of the same task and other classes, the objective is convex:

    f(M_0, ..., M_K) = gamma0 ||M_0 - I||^2 + sum_t [ gamma ||M_t||^2 + f_t(M_0 + M_t) ]
    f_t(M)           = sum_{i, j in T(i)} d_t(i,j) + sum_{i, j in T(i)} sum_l [1 + d_t(i,j) - d_t(i,l)]+

All matrices are positive semi-definite. f_t is twice the objective of LMNN with mu = 1/2.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, blas, cholesky
from sklearn.utils.validation import check_is_fitted

from .._engines.base import check_array
from ..persistence import check_saved_task
from ..similarity.base import SearchResult, row_products
from ..similarity.learner import validated
from ..similarity.mahalanobis import Mahalanobis, first_metric
from ..validation import check_finite, check_integer, check_number, check_tasks
from .base import BatchMetric, Report, Solution, batch_documented, nearest_psd
from .lmnn import LMNNObjective, check_class_sizes, descend, target_neighbors


@batch_documented("Objective at the start and after every iteration")
class MultiTaskLMNN(BatchMetric):
    """Multi-task LMNN: one distance per task, the sum of a common part and a part of its own.

    Task t has M_0 + M_t. Minimises gamma0 ||M_0 - I||^2 + gamma sum_t ||M_t||^2 plus, for every task, the sum
    of d(i, j) + sum_l [1 + d(i, j) - d(i, l)]+ over its items i and their k nearest j of the same class
    (Euclidean, fixed), where l runs over the task's items of other classes. All matrices are positive
    semi-definite. The problem is convex; it is solved by projected gradient steps, halved when the objective
    rises and 1 % longer when it falls.

    Parameters
    ----------
    gamma0 : float
        Keeps the common part close to the identity; a very large value fixes it there.
    gamma : float
        Keeps the tasks' own parts close to zero; with a very large value, all tasks share one distance.
    k : int
        Number of target neighbours of each item. In a class of a task with k members or fewer these are all
        others, with a warning.
    init : "identity" or matrix of shape (d, d)
        The initial M_0, symmetric and positive semi-definite. The tasks' own parts start at zero.
    max_iter : int
        Largest number of iterations.
    tol : float
        Stop when an iteration lowers the objective by at most this share of its value.
    {callback}

    Attributes
    ----------
    tasks_ : list
        Tasks in the order they first appeared; [None] if `fit` was given no tasks.
    common_matrix_ : array of shape (d, d)
        M_0.
    task_matrices_ : array of shape (n_tasks, d, d)
        The tasks' own parts M_t, in the order of `tasks_`.
    {attributes}
    objective_ : float
    {convergence}

    Notes
    -----
    Without a task, or with an unknown one, methods use the common part alone: M is M_0. If `fit` was given no
    tasks, methods without a task use the distance of the only task.

    Each matrix is positive semi-definite, not just the sums. The regularisers are evaluated at the end of a
    step (an implicit step), which gives each matrix its own step length: with a common one, a large gamma0 or
    gamma would make all steps tiny.

    References
    ----------
    Parameswaran, Weinberger. Large margin multi-task metric learning. NIPS 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from simstream import MultiTaskLMNN
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(120, 3))
    >>> users = np.repeat(["ann", "bob"], 60)
    >>> y = np.where(users == "ann", X[:, 0], X[:, 1]) > 0  # each judges by a different feature
    >>> model = MultiTaskLMNN(gamma0=10, gamma=0.1).fit(X, y, users)
    >>> np.argmax(np.diag(model.for_task("ann").get_mahalanobis_matrix()))
    np.int64(0)
    >>> np.argmax(np.diag(model.for_task("bob").get_mahalanobis_matrix()))
    np.int64(1)
    >>> model.transform(X[:2], task="eve").shape  # an unknown task: the common part
    (2, 3)
    """

    _matrices: np.ndarray | None = None
    _numbers: dict[Hashable, int]
    _models: dict[int, Mahalanobis]

    def __init__(
        self,
        gamma0: float = 1.0,
        gamma: float = 1.0,
        k: int = 3,
        *,
        init: Any = "identity",
        max_iter: int = 1000,
        tol: float = 1e-5,
        callback: Any = None,
        verbose: bool = False,
        normalise: bool = False,
        preprocessor: Any = None,
    ) -> None:
        self.gamma0 = gamma0
        self.gamma = gamma
        self.k = k
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.callback = callback
        self.verbose = verbose
        self.normalise = normalise
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("gamma0", self.gamma0)
        check_number("gamma", self.gamma)
        check_integer("k", self.k)

    # -- learning -----------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, tasks: Any = None) -> MultiTaskLMNN:  # type: ignore[override]
        """Learn the distances from the labelled items of all tasks.

        Parameters
        ----------
        X : array of shape (n_items, n_features)
        y : array of shape (n_items,)
            Class of each item. Items of different tasks are never compared, whatever their classes.
        tasks : array of n_items hashable values, optional
            Task of each item; one task for all if None.
        """
        return self._fit(X, y, partial(self._solve, tasks=tasks))

    def _solve(
        self, X: np.ndarray, codes: np.ndarray, classes: np.ndarray, tasks: Any = None
    ) -> None:
        names, numbers = _task_numbers(tasks, len(X))
        d = X.shape[1]
        start = np.zeros((len(names) + 1, d, d))
        start[0] = first_metric(self.init, d)
        members = [np.flatnonzero(numbers == number) for number in range(len(names))]
        for name, rows in zip(names, members, strict=True):
            where = "" if names == [None] else f"task {name!r}, "
            check_class_sizes(codes[rows], classes, self.k, where)
        solution = solve_mtlmnn(
            [TaskItems.with_neighbors(X[rows], codes[rows], self.k) for rows in members],
            start=start,
            gamma0=float(self.gamma0),
            gamma=float(self.gamma),
            max_iter=self.max_iter,
            tol=self.tol,
            report=self._report,
        )
        self.objective_ = solution.objective
        self._keep_matrices(solution.minimiser, names, solution)

    def _keep_matrices(
        self, matrices: np.ndarray, names: list[Hashable], solution: Solution | None = None
    ) -> None:
        self._matrices, self._models = matrices, {}
        self._numbers = {name: number for number, name in enumerate(names, start=1)}
        self._keep(self._model(None)._spectrum(), solution)

    # -- reading ------------------------------------------------------------------------------

    @property
    def tasks_(self) -> list[Hashable]:
        """Tasks in the order they first appeared."""
        self._fitted()
        return list(self._numbers)

    @property
    def common_matrix_(self) -> np.ndarray:
        """M_0, a positive semi-definite array of shape (d, d)."""
        return self._learnt_matrices()[0].copy()

    @property
    def task_matrices_(self) -> np.ndarray:
        """The tasks' own parts M_t in the order of `tasks_`, an array of shape (n_tasks, d, d)."""
        return self._learnt_matrices()[1:].copy()

    def _learnt_matrices(self) -> np.ndarray:
        self._fitted()
        assert self._matrices is not None
        return self._matrices

    def _model(self, task: Hashable) -> Mahalanobis:
        """The distance of a task, cached together with its eigenvectors."""
        assert self._matrices is not None
        number = self._numbers.get(task, 0)
        if number not in self._models:
            own = self._matrices[number] if number else 0.0
            self._models[number] = Mahalanobis(self._matrices[0] + own)
        return self._models[number]

    def for_task(self, task: Hashable = None) -> Mahalanobis:
        """The distance of a task as a separate model with M = M_0 + M_t, or M_0 if the task is unknown.

        Each such model has its own threshold: ``for_task(t).calibrate_threshold(pairs, y)``.
        """
        self._fitted()
        model = self._model(task)
        model._spectrum()  # kept for the next call
        one = Mahalanobis(model.matrix)._with_items(self)
        one._kept = model._kept
        one.normalise, one.centre = self.normalise, self._mean
        return one

    def get_mahalanobis_matrix(self, task: Hashable = None) -> np.ndarray:
        """M of a task, a positive semi-definite array of shape (d, d)."""
        return self.for_task(task).get_mahalanobis_matrix()

    def transform(self, X: Any, task: Hashable = None) -> np.ndarray:
        """Map items x to Lx, where Euclidean distances are those of a task; L'L is its matrix."""
        check_is_fitted(self)
        X = validated(self, X, dtype=np.float64, reset=False)
        return self.for_task(task)._embed(X)

    def pair_score(self, pairs: Any, task: Hashable = None) -> np.ndarray:
        """Similarity of each pair for a task: minus its squared distance; higher is more similar."""
        return self.for_task(task).pair_score(pairs)

    def pair_distance(self, pairs: Any, task: Hashable = None) -> np.ndarray:
        """Squared distance of each pair for a task; lower is more similar. Same input as `pair_score`."""
        return self.for_task(task).pair_distance(pairs)

    def triplet_margin(self, triplets: Any, task: Hashable = None) -> np.ndarray:
        """How much closer the anchor is to the positive than to the negative, for a task."""
        return self.for_task(task).triplet_margin(triplets)

    def score_items(self, queries: Any, items: Any, task: Hashable = None) -> np.ndarray:
        """Similarity of every query and every item for a task: minus their squared distance."""
        return self.for_task(task).score_items(queries, items)

    def sides(self, near: Any, task: Hashable = None) -> Any:
        """The similarity of a task in three steps; see `Similarity.sides`."""
        return self.for_task(task).sides(near)

    def search(self, queries: Any, items: Any, k: int = 10, task: Hashable = None) -> SearchResult:
        """Nearest items of each query for a task, nearest first."""
        return self.for_task(task).search(queries, items, k)

    # -- saving -------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if "_models" in state:
            state["_models"] = {}
        return state

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        header, arrays = super()._get_state()
        del arrays["values"], arrays["vectors"]
        header["tasks"] = [check_saved_task(name) for name in self._numbers]
        return header, {**arrays, "matrices": self._learnt_matrices()}

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        names, matrices = header["tasks"], arrays["matrices"]
        if not isinstance(names, list) or len(set(names)) < len(names):
            raise ValueError(f"tasks: expected a list of different names, got {names!r}")
        check_array("matrices", matrices, np.float64, (len(names) + 1, None, None))
        check_finite(matrices, "matrices")
        self._keep_matrices(matrices, names)
        metric = self._fitted()
        super()._set_state(header, {**arrays, "values": metric.values, "vectors": metric.vectors})


def _task_numbers(tasks: Any, n: int) -> tuple[list[Hashable], np.ndarray]:
    """Names of the tasks in the order they appear, and the number of each item's task in that order."""
    if tasks is None:
        return [None], np.zeros(n, np.int64)
    values = check_tasks(tasks, n, "item")
    numbers: dict[Hashable, int] = {}
    for value in values:
        if value is None:
            raise TypeError(f"tasks: expected hashable values, got {value!r}")
        numbers.setdefault(value, len(numbers))
    return list(numbers), np.array([numbers[value] for value in values])


# -- solver ---------------------------------------------------------------------------------------


class TaskItems(NamedTuple):
    """Items of one task, the codes of their classes, and the rows of their target neighbours."""

    X: np.ndarray
    codes: np.ndarray
    targets: np.ndarray

    @classmethod
    def with_neighbors(cls, X: np.ndarray, codes: np.ndarray, k: int) -> TaskItems:
        """Take the k nearest items of each item's class as its targets, or all others of a small class."""
        return cls(X, codes, target_neighbors(X, codes, k))


def mtlmnn_objective_and_gradient(
    matrices: np.ndarray, tasks: Sequence[TaskItems], gamma0: float, gamma: float
) -> tuple[float, np.ndarray]:
    """Objective at M_0, M_1, ..., M_K, an array (K + 1, d, d), and its gradient (a subgradient at kinks).

    The sums M_0 + M_t must be positive semi-definite. See the module for the objective.
    """
    return _evaluate(matrices, [_TaskObjective(*task) for task in tasks], gamma0, gamma)


def solve_mtlmnn(
    tasks: Sequence[TaskItems],
    *,
    start: np.ndarray,
    gamma0: float = 1.0,
    gamma: float = 1.0,
    max_iter: int = 1000,
    tol: float = 1e-5,
    report: Report | None = None,
) -> Solution:
    """Minimise the objective by projected gradient steps from `start`, M_0, M_1, ..., M_K; see `descend`.

    Stops when a step lowers the objective by at most `tol` of its value, or after `max_iter` iterations.

    A matrix whose regulariser has weight w moves 1 / (1 + 2 step w) of the step: the regulariser is
    evaluated where the step ends, not where it begins. Otherwise the heaviest one would shorten all steps.
    """
    objectives = [_TaskObjective(*task) for task in tasks]
    weights = np.array([gamma0] + [gamma] * len(objectives))[:, None, None]
    return descend(
        lambda matrices: _evaluate(matrices, objectives, gamma0, gamma),
        _project(np.array(start, np.float64)),
        move=lambda at, gradient, step: _project(at - step / (1 + 2 * step * weights) * gradient),
        is_settled=lambda objective, fall: 0 <= fall <= tol * objective,
        max_iter=max_iter,
        report=report,
    )


def _project(matrices: np.ndarray) -> np.ndarray:
    return np.array([nearest_psd(matrix) for matrix in matrices])


@np.errstate(over="ignore", invalid="ignore")  # the caller checks the objective
def _evaluate(
    matrices: np.ndarray, tasks: Sequence[_TaskObjective], gamma0: float, gamma: float
) -> tuple[float, np.ndarray]:
    common, own = matrices[0], matrices[1:]
    away = common - np.eye(len(common))
    gradient = 2 * gamma * matrices
    gradient[0] = 2 * gamma0 * away
    objective = gamma0 * float(np.vdot(away, away)) + gamma * float(np.vdot(own, own))
    for number, (task, matrix) in enumerate(zip(tasks, own, strict=True), start=1):
        value, slope = task.at_matrix(common + matrix)
        objective += value
        gradient[0] += slope
        gradient[number] += slope
    return objective, gradient


class _TaskObjective(LMNNObjective):
    """f_t and its gradient as functions of M."""

    def __init__(self, X: np.ndarray, codes: np.ndarray, targets: np.ndarray) -> None:
        super().__init__(X, targets, codes, mu=0.5)
        self._largest = max(1.0, float(row_products(self._X, self._X).max()))

    def at_matrix(self, M: np.ndarray) -> tuple[float, np.ndarray]:
        """f_t(M), and its gradient sum_{targets} C_ij + sum_{active} (C_ij - C_il), C_ij of differences."""
        if not np.isfinite(M).all():
            return np.inf, np.zeros_like(M)
        points = blas.dtrmm(1.0, self._root(M), self._X.T).T
        objective, pulls = self.at_points(points, self._X)
        gradient = 2 * (pulls.T @ self._X)
        return 2 * objective, (gradient + gradient.T) / 2

    def _root(self, M: np.ndarray) -> np.ndarray:
        """Upper triangular R with R'R = M, to rounding.

        It changes little when M does, unlike eigenvectors, which may change sign and order at any time: lists
        of pairs stay valid while the points move little.
        """
        # Where M is singular, add something to divide by: as little as rounding may have taken away, or what
        # changes any distance by less than the rounding of 1.
        rounding = len(M) * np.finfo(np.float64).eps * float(M.diagonal().max())
        spare = max(rounding, 2.0**-55 / self._largest)
        while True:
            try:
                return cholesky(M + spare * np.eye(len(M)), overwrite_a=True, check_finite=False)
            except LinAlgError:
                spare *= 4
