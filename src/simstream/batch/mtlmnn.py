"""MultiTaskLMNN: large margins in several tasks, whose distances have a part in common."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from .._engines.base import check_array
from ..similarity.mahalanobis import Mahalanobis, first_metric
from ..similarity.scoring import SearchResult
from ..validation import check_finite, check_integer, check_number, check_tasks
from .base import BatchMetric, documented


@documented("Objective at the start and after every iteration")
class MultiTaskLMNN(BatchMetric):
    """Multi-task LMNN: one distance for each task, the sum of a common part and one of its own.

    Task t has M_0 + M_t. Minimises gamma0 ||M_0 - I||^2 + gamma sum_t ||M_t||^2 plus, for every task, the sum
    of d(i, j) + sum_l [1 + d(i, j) - d(i, l)]+ over its items i and their k nearest j of the same class
    (Euclidean, fixed), where l runs over the task's items of other classes. All matrices are positive
    semi-definite. The problem is convex; it is solved by projected gradient steps, halved when the objective
    rises, 1 % longer when it falls.

    Parameters
    ----------
    gamma0 : float
        Holds the common part near the identity; a very large one fixes it there.
    gamma : float
        Holds the tasks' own parts near zero; a very large one learns the same distance for all.
    k : int
        Target neighbours of each item; every class of a task needs more members than that.
    init : "identity" or matrix of shape (d, d)
        The first M_0, symmetric and positive semi-definite. The tasks' own parts start from zero.
    max_iter : int
    tol : float
        Stops when an iteration decreases the objective by less than this share of it.
    {callback}

    Attributes
    ----------
    tasks_ : list
        Tasks, in the order in which they appeared; None for the only one if none was named.
    common_matrix_ : array of shape (d, d)
        M_0.
    task_matrices_ : array of shape (n_tasks, d, d)
        The tasks' own parts M_t, in the order of `tasks_`.
    {attributes}
    objective_ : float
    {convergence}

    Notes
    -----
    Methods that take no task, and those that take one but are given none or a stranger, use the common part
    alone: M is M_0. Only if `fit` was given no tasks, they use the distance of the one task there is.

    Each matrix is positive semi-definite, not only the sums. The regularisers are taken where a step ends, so
    that each matrix has a step of its own: with a common one, a large gamma0 or gamma stops all of them.

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
    >>> y = np.where(users == "ann", X[:, 0], X[:, 1]) > 0  # each looks at a feature of their own
    >>> model = MultiTaskLMNN(gamma0=10, gamma=0.1).fit(X, y, users)
    >>> np.argmax(np.diag(model.for_task("ann").get_mahalanobis_matrix()))
    np.int64(0)
    >>> np.argmax(np.diag(model.for_task("bob").get_mahalanobis_matrix()))
    np.int64(1)
    >>> model.transform(X[:2], task="a stranger").shape  # what both have in common
    (2, 3)
    """

    _saved_numbers = ("n_iter_", "converged_", "objective_")
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
        self.preprocessor = preprocessor

    def _check_parameters(self) -> None:
        check_number("gamma0", self.gamma0)
        check_number("gamma", self.gamma)
        check_integer("k", self.k)
        check_integer("max_iter", self.max_iter)
        check_number("tol", self.tol, exclusive=False)
        self._check_init()

    # -- learning -----------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, tasks: Any = None) -> MultiTaskLMNN:
        """Learn the distances from the labelled items of all tasks.

        Parameters
        ----------
        X : array of shape (n_items, n_features)
        y : array of shape (n_items,)
            Class of each item; items of different tasks are never compared, whatever their classes.
        tasks : array of n_items hashable values, optional
            Task of each item; one task for all if None.
        """
        self._check_parameters()
        self._check_these_are_items(X, y)
        with self._unchanged_on_error():
            X, y = validate_data(self, X, y, dtype=np.float64, order="C", ensure_min_samples=2)
            check_classification_targets(y)
            classes, codes = np.unique(y, return_inverse=True)
            names, numbers = _task_numbers(tasks, len(X))
            self._solve_tasks(X, codes, classes, names, numbers)
        return self

    def _solve_tasks(
        self,
        X: np.ndarray,
        codes: np.ndarray,
        classes: np.ndarray,
        names: list[Hashable],
        numbers: np.ndarray,
    ) -> None:
        from .solve_mtlmnn import TaskItems, solve_mtlmnn

        d = X.shape[1]
        start = np.zeros((len(names) + 1, d, d))
        start[0] = first_metric(self.init, d)
        members = [np.flatnonzero(numbers == number) for number in range(len(names))]
        for name, rows in zip(names, members, strict=True):
            self._check_classes(codes[rows], classes, "" if names == [None] else f"task {name!r}, ")
        solution = solve_mtlmnn(
            [TaskItems.with_neighbors(X[rows], codes[rows], self.k) for rows in members],
            start=start,
            gamma0=float(self.gamma0),
            gamma=float(self.gamma),
            max_iter=self.max_iter,
            tol=self.tol,
            report=self._report(),
        )
        self._keep_matrices(solution.matrices, names)
        self.objective_ = float(solution.objective)
        self._keep_history(solution)

    def _check_classes(self, codes: np.ndarray, classes: np.ndarray, where: str) -> None:
        """Raise if a task has one class only, or too few members of one."""
        sizes = np.bincount(codes, minlength=len(classes))
        present = np.flatnonzero(sizes)
        if len(present) < 2:
            raise ValueError(
                f"{where}y: expected at least two classes to tell apart, got 1 class ({classes[present[0]]})"
            )
        small = present[np.argmin(sizes[present])]
        if sizes[small] <= self.k:
            raise ValueError(
                f"{where}k: expected fewer neighbours than each class has members, got k = {self.k} and "
                f"class {classes[small]} with {sizes[small]} (n_samples = {len(codes)})"
            )

    def _keep_matrices(self, matrices: np.ndarray, names: list[Hashable]) -> None:
        self._matrices, self._models = matrices, {}
        self._numbers = {name: number for number, name in enumerate(names, start=1)}
        self._keep(self._model(None)._spectrum())

    # -- reading ------------------------------------------------------------------------------

    @property
    def tasks_(self) -> list[Hashable]:
        """Tasks, in the order in which they appeared."""
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
        """The distance of a task; kept, because its eigenvectors are."""
        assert self._matrices is not None
        number = self._numbers.get(task, 0)
        if number not in self._models:
            own = self._matrices[number] if number else 0.0
            self._models[number] = Mahalanobis(self._matrices[0] + own)
        model = self._models[number]
        model.preprocessor = self.preprocessor
        return model

    def for_task(self, task: Hashable = None) -> Mahalanobis:
        """The distance of a task as a model of its own, of M_0 + M_t; of M_0 if the task is not known.

        Thresholds are a model's own: ``for_task(t).calibrate_threshold(pairs, y)``.
        """
        self._fitted()
        return copy.copy(self._model(task))

    def get_mahalanobis_matrix(self, task: Hashable = None) -> np.ndarray:
        """M of a task, a positive semi-definite array of shape (d, d)."""
        return self.for_task(task).get_mahalanobis_matrix()

    def transform(self, X: Any, task: Hashable = None) -> np.ndarray:
        """Map items x to Lx, where Euclidean distances are those of a task; L'L is its matrix."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return self._model(task)._embed(X)

    def pair_score(self, pairs: Any, task: Hashable = None) -> np.ndarray:
        """Similarity of each pair by a task, less its squared distance; higher is more similar."""
        return self.for_task(task).pair_score(pairs)

    def pair_distance(self, pairs: Any, task: Hashable = None) -> np.ndarray:
        """Squared distance of each pair by a task; lower is more similar. Same input as `pair_score`."""
        return self.for_task(task).pair_distance(pairs)

    def triplet_margin(self, triplets: Any, task: Hashable = None) -> np.ndarray:
        """How much nearer the anchor is to the positive than to the negative, by a task."""
        return self.for_task(task).triplet_margin(triplets)

    def score_items(self, queries: Any, items: Any, task: Hashable = None) -> np.ndarray:
        """Similarity of every query with every item by a task, less their squared distance."""
        return self.for_task(task).score_items(queries, items)

    def search(self, queries: Any, items: Any, k: int = 10, task: Hashable = None) -> SearchResult:
        """Nearest items of each query by a task, nearest first."""
        return self.for_task(task).search(queries, items, k)

    # -- saving -------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if "_models" in state:
            state["_models"] = {}
        return state

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        header, arrays = super()._get_state()
        for name in self._numbers:
            if not isinstance(name, (str, int, float, bool)) and name is not None:
                raise TypeError(f"tasks: expected strings or numbers to save, got {name!r}")
        del arrays["values"], arrays["vectors"]
        header = {**header, "tasks": list(self._numbers)}
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
    """Names of the tasks in the order in which they appear, and the place of each item's task there."""
    if tasks is None:
        return [None], np.zeros(n, np.int64)
    values = check_tasks(tasks, n, "item")
    numbers: dict[Hashable, int] = {}
    for value in values:
        if value is None:
            raise TypeError(f"tasks: expected hashable values, got {value!r}")
        numbers.setdefault(value, len(numbers))
    return list(numbers), np.array([numbers[value] for value in values])
