"""Draw triplets and pairs from class labels, as row numbers, with a seeded generator."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from ..validation import check_integer, check_number, check_tasks, check_weights
from .mining import NearSampler, scaled


class _LabelSampler:
    """Items grouped by class, and a generator whose state can be saved.

    A subclass draws a fixed number of uniforms per tuple, in stream order, so that drawing n tuples at once
    or in several calls gives the same stream.
    """

    def __init__(self, labels: Any, random_state: Any) -> None:
        labels = np.asarray(labels)
        _check_one_per_item(labels)
        codes = np.unique(labels, return_inverse=True)[1]
        self._codes = codes
        self._size = np.bincount(codes)
        self._first = np.cumsum(self._size) - self._size  # of each class in the order below
        self._by_class = np.argsort(codes, kind="stable")
        self._place = np.empty(len(codes), np.int64)
        self._place[self._by_class] = np.arange(len(codes))
        self._rng = np.random.default_rng(random_state)

    def _others_of_class(self, item: np.ndarray, u: np.ndarray) -> np.ndarray:
        """Uniform over the other items of the item's class: its own place is skipped."""
        first, size = self._span(item)
        within = scaled(u, size - 1)
        within += within >= self._place[item] - first
        return self._by_class[first + within]

    def _of_other_classes(self, item: np.ndarray, place: np.ndarray) -> np.ndarray:
        """The items of other classes at these places among all of them."""
        first, size = self._span(item)
        return self._by_class[place + np.where(place >= first, size, 0)]

    def _n_of_other_classes(self, item: np.ndarray) -> np.ndarray:
        return len(self._codes) - self._span(item)[1]

    def _span(self, item: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the item's class begins in `_by_class`, and its size."""
        code = self._codes[item]
        return self._first[code], self._size[code]

    @property
    def state(self) -> dict[str, Any]:
        """The generator's state, to resume from: numbers and strings only."""
        return dict(self._rng.bit_generator.state)

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state


class TripletSampler(NearSampler, _LabelSampler):
    """Draw triplets (anchor, positive, negative) from class labels, at random or near by a model.

    The anchor is uniform over the items whose class has another item, the positive uniform over the
    other items of its class, the negative uniform over all items of other classes. Drawing n triplets
    at once or in several calls gives the same stream.

    With near negatives or positives, a share of the triplets is chosen by the model that is being learnt:
    of some random candidates the one is taken that the model finds most similar to the anchor. Near
    negatives are those the model still confuses; near positives let each item keep the neighbours it has.
    The stream then depends on the model, which is looked at every `refresh` triplets.

    Parameters
    ----------
    labels : array-like of shape (n_items,)
    random_state : None, int or numpy Generator
    allow_self : bool
        Whether an item may be its own positive, as in the public OASIS code. Without it, the only
        member of a class cannot be an anchor.
    negatives : "random", "near", "semi-hard" or a function
        Which candidate becomes the negative in near draws: the most similar one, or the most similar of those
        less similar than the positive (a random one where there is none). A function of the scores of the
        candidates, shape (n, candidates), and of the positives, shape (n,), returns how much each candidate
        is wanted, -inf for not at all.
    positives : "random", "near" or a function
        Which candidate becomes the positive in near draws; a function takes the scores of the candidates.
    share : float between 0 and 1
        Share of near draws; the others are random.
    items : array or CSR matrix of shape (n_items, n_features), optional
        What the model scores; only for near draws.
    model : a similarity or learner, optional
        Anything with ``score_items(queries, items)``; higher scores are more similar. None, or a learner that
        has not learnt yet, scores by inner products.
    candidates : int
        Random candidates (the same one may come twice) from which a near one is chosen.
    refresh : int
        Triplets drawn with the same state of the model.
    weights : array of n_items numbers, optional
        How often each item becomes an anchor, in proportion; None draws anchors uniformly.

    References
    ----------
    Schroff, Kalenichenko, Philbin. FaceNet: a unified embedding for face recognition and clustering. CVPR
    2015 (semi-hard negatives).
    Xuan, Stylianou, Pless. Improved embeddings with easy positive triplet mining. WACV 2020 (near positives).

    Examples
    --------
    >>> sampler = TripletSampler(["cat", "dog", "cat", "dog", "bird"], random_state=0)
    >>> triplets = sampler.draw(100)
    >>> triplets.shape
    (100, 3)
    >>> sorted({int(a) for a in triplets[:, 0]})  # the only bird is never an anchor
    [0, 1, 2, 3]

    A learner that chooses its own negatives:

    >>> from sklearn.datasets import load_digits
    >>> from simstream import OASIS
    >>> X, y = load_digits(return_X_y=True)
    >>> X = X / 64
    >>> learner = OASIS(preprocessor=X)
    >>> sampler = TripletSampler(y, 0, items=X, model=learner, negatives="near", positives="near")
    >>> for _ in range(5):
    ...     learner = learner.partial_fit(sampler.draw(1000))
    >>> sampler.draw_lists(10, 4).shape  # an anchor, a positive and four different negatives
    (10, 6)
    """

    def __init__(
        self,
        labels: Any,
        random_state: Any = None,
        *,
        allow_self: bool = False,
        negatives: Any = "random",
        positives: Any = "random",
        share: float = 0.5,
        items: Any = None,
        model: Any = None,
        candidates: int = 8,
        refresh: int = 1000,
        weights: Any = None,
    ) -> None:
        _LabelSampler.__init__(self, labels, random_state)
        if len(self._size) < 2:
            raise ValueError(
                f"labels: expected at least two classes to draw negatives from, got 1 class "
                f"({np.asarray(labels)[0]})"
            )
        self.allow_self = allow_self
        self._anchors = np.flatnonzero(self._size[self._codes] > (0 if allow_self else 1))
        if len(self._anchors) == 0:
            raise ValueError(
                "labels: expected a class with at least two items to draw positives from, "
                f"got {len(self._size)} classes of one item each"
            )
        self._weight_sums = None
        if weights is not None:
            checked = check_weights("weights", weights, len(self._codes))[self._anchors]
            if not checked.any():
                raise ValueError(
                    "weights: expected a positive one for some item whose class has another, got only zeros"
                )
            self._weight_sums = np.cumsum(checked)
        n_rows = len(self._codes), len(self._codes)
        self._set_mining(
            negatives, positives, share, items, items, n_rows, model, candidates, refresh
        )

    def _draw_anchors(self, u: np.ndarray) -> np.ndarray:
        if self._weight_sums is None:
            return self._anchors[scaled(u, len(self._anchors))]
        return self._anchors[_in_proportion(u, self._weight_sums)]

    def _draw_positives(self, anchors: np.ndarray, u: np.ndarray) -> np.ndarray:
        if self.allow_self:
            first, size = self._span(anchors)
            return self._by_class[first + scaled(u, size)]
        return self._others_of_class(anchors, u)

    def _n_negatives(self, anchors: np.ndarray) -> np.ndarray:
        return self._n_of_other_classes(anchors)

    def _negatives_at(self, anchors: np.ndarray, places: np.ndarray) -> np.ndarray:
        return self._of_other_classes(anchors, places)

    def _fewest_negatives(self) -> tuple[int, str]:
        possible = self._n_negatives(self._anchors)
        fewest = int(np.argmin(possible))
        return int(possible[fewest]), f"item {self._anchors[fewest]}"


class TaskTripletSampler(_LabelSampler):
    """Draw triplets within tasks (users, speakers, departments, ...) as questions with answers.

    A task is drawn with probability proportional to its number of items; the anchor is uniform over its items
    whose class has another item there, the positive over the other items of that class in the task, the
    negative over the task's items of other classes. A fair coin decides which of the two candidates comes
    first; the answer says which is nearer. Drawing n at once or in several calls gives the same stream.

    Parameters
    ----------
    labels : array-like of shape (n_items,)
    tasks : sequence of n_items hashable values
        Task of each item, as multi-task learners take them: strings, numbers, tuples, None (the unnamed
        task), in any mixture; NaN is refused, because it does not equal itself.
    random_state : None, int or numpy Generator

    Attributes
    ----------
    left_out : list
        Tasks from which nothing can be drawn: they lack two classes, or a class with two items.

    Examples
    --------
    >>> labels = ["cat", "cat", "dog", "dog", "cat", "cat", "dog", "bird"]
    >>> users = ["ann", "ann", "ann", "ann", "bob", "bob", "bob", "eve"]
    >>> sampler = TaskTripletSampler(labels, users, random_state=0)
    >>> triplets, y, tasks = sampler.draw(100)
    >>> triplets.shape, sorted(set(y.tolist())), sorted(set(tasks.tolist()))
    ((100, 3), [-1, 1], ['ann', 'bob'])
    >>> sampler.left_out
    ['eve']
    >>> anchor, positive, negative = nearer_first(triplets, y).T
    >>> all(labels[a] == labels[p] != labels[n] for a, p, n in zip(anchor, positive, negative))
    True
    """

    def __init__(self, labels: Any, tasks: Any, random_state: Any = None) -> None:
        labels = np.asarray(labels)
        _check_one_per_item(labels)
        classes = np.unique(labels, return_inverse=True)[1]
        names, task_of = _numbered(check_tasks(tasks, len(labels), "item"))
        # A class of one task and the same class of another are two classes; tasks lie one after the other.
        super().__init__(task_of * (classes.max() + 1) + classes, random_state)
        self._names, self._task_of = names, task_of
        self._task_size = np.bincount(task_of)
        self._task_first = np.cumsum(self._task_size) - self._task_size
        size = self._size[self._codes]
        can_be_anchor = (size > 1) & (size < self._task_size[task_of])
        anchors = np.flatnonzero(can_be_anchor)
        self._anchors = anchors[np.argsort(task_of[anchors], kind="stable")]
        self._n_anchors = np.bincount(task_of[anchors], minlength=len(names))
        self._first_anchor = np.cumsum(self._n_anchors) - self._n_anchors
        self.left_out = names[self._n_anchors == 0].tolist()
        if not len(anchors):
            raise ValueError(
                "labels: expected a task with two classes, one of them with at least two items, "
                f"got none in {len(names)} tasks"
            )
        self._drawn_from = np.flatnonzero(self._n_anchors[task_of] > 0)

    def draw(self, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the next n triplets, shape (n, 3), their answers (+1: the first is nearer) and tasks."""
        n = check_integer("n", n, minimum=0)
        u = self._rng.random((n, 5))
        task = self._task_of[self._drawn_from[scaled(u[:, 0], np.full(n, len(self._drawn_from)))]]
        anchor = self._anchors[self._first_anchor[task] + scaled(u[:, 1], self._n_anchors[task])]
        positive = self._others_of_class(anchor, u[:, 2])
        first, size = self._span(anchor)
        negative = self._task_first[task] + scaled(u[:, 3], self._task_size[task] - size)
        negative = self._by_class[negative + np.where(negative >= first, size, 0)]
        y = np.where(u[:, 4] < 0.5, 1, -1)
        triplets = np.column_stack([anchor, positive, negative])
        return nearer_first(triplets, y), y, self._names[task]


def nearer_first(triplets: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Put the nearer candidate of each triplet first; the function is its own inverse.

    Parameters
    ----------
    triplets : array of shape (n, 3)
    y : array of +1 (the first is nearer) and -1 (the second is)

    Examples
    --------
    >>> nearer_first(np.array([[0, 1, 2], [0, 1, 2]]), np.array([1, -1])).tolist()
    [[0, 1, 2], [0, 2, 1]]
    """
    return np.where(y[:, None] == 1, triplets, triplets[:, [0, 2, 1]])


class PairSampler(_LabelSampler):
    """Draw pairs of different items from class labels: +1 if their classes are equal, else -1.

    Parameters
    ----------
    labels : array-like of shape (n_items,)
    random_state : None, int or numpy Generator
    similar_share : float between 0 and 1, optional
        Share of similar pairs; half of them if nothing is said. None draws uniformly from all pairs, so
        that the share follows from the sizes of the classes: with a hundred equal classes, one pair in a
        hundred is similar.
    weights : array of n_items numbers, optional
        How often each item begins a pair, in proportion to how often it would without them; not for
        `draw_distinct`.

    Examples
    --------
    >>> sampler = PairSampler(["cat", "dog", "cat", "dog", "bird"], random_state=0)
    >>> pairs, y = sampler.draw(1000)
    >>> pairs.shape, abs(float(y.mean())) < 0.1
    ((1000, 2), True)
    >>> sorted(sampler.draw_distinct(6)[1].tolist())  # two pairs are similar: there is no third one
    [-1, -1, -1, 1, 1]
    """

    def __init__(
        self,
        labels: Any,
        random_state: Any = None,
        *,
        similar_share: float | None = 0.5,
        weights: Any = None,
    ) -> None:
        super().__init__(labels, random_state)
        if len(self._codes) < 2:
            raise ValueError("labels: expected at least two items to pair, got n_samples = 1")
        if similar_share is not None:
            self._check_share(similar_share)
        self.similar_share = similar_share
        size = self._size[self._codes]
        # An item is first in as many similar pairs as its class has other items.
        begins = [size - 1, len(size) - size]
        self._weights = None
        if weights is not None:
            self._weights = check_weights("weights", weights, len(size))
            begins = [count * self._weights for count in begins]
            shares = (0, 0) if similar_share is None else (similar_share, 1 - similar_share)
            if any(share > 0 and not n.any() for share, n in zip(shares, begins, strict=True)):
                raise ValueError(
                    "weights: expected a positive one for an item of each kind of pair, got only zeros"
                )
        self._begins = [np.cumsum(count) for count in begins]

    def _check_share(self, share: float) -> None:
        check_number("similar_share", share, exclusive=False)
        if share > 1:
            raise ValueError(f"similar_share: expected at most 1, got {share}")
        if share < 1 and len(self._size) < 2:
            raise ValueError(
                "labels: expected at least two classes to draw dissimilar pairs from (or similar_share "
                "None or 1), got 1 class"
            )
        if share > 0 and self._size.max() < 2:
            raise ValueError(
                "labels: expected a class with at least two items to draw similar pairs from (or "
                f"similar_share None or 0), got {len(self._size)} classes of one item each"
            )

    def draw(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the next n pairs, shape (n, 2), and their labels; pairs may repeat."""
        n = check_integer("n", n, minimum=0)
        n_items = len(self._codes)
        u = self._rng.random((n, 3))
        if self.similar_share is None:
            if self._weights is None:
                first = scaled(u[:, 0], np.full(n, n_items))
            else:
                first = _in_proportion(u[:, 0], np.cumsum(self._weights))
            second = scaled(u[:, 1], np.full(n, n_items - 1))
            second += second >= first
        else:
            similar = u[:, 2] < self.similar_share
            first = np.where(similar, *(_in_proportion(u[:, 0], sums) for sums in self._begins))
            second = np.empty(n, np.int64)
            second[similar] = self._others_of_class(first[similar], u[similar, 1])
            anchor = first[~similar]
            place = scaled(u[~similar, 1], self._n_of_other_classes(anchor))
            second[~similar] = self._of_other_classes(anchor, place)
        return self._labelled(first, second)

    def draw_distinct(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return n different unordered pairs, the given share of them similar, in random order.

        Where there are fewer similar or dissimilar pairs than wanted, all of them are returned, and no
        others in their place.
        """
        n = check_integer("n", n, minimum=0)
        n_items = len(self._codes)
        total = n_items * (n_items - 1) // 2
        if self.similar_share is None:
            number = self._rng.choice(total, min(n, total), replace=False)
            return self._labelled(*_in_triangle(number))
        n_similar = round(n * self.similar_share)
        # Similar pairs are numbered class by class.
        per_class = self._size * (self._size - 1) // 2
        ends = np.cumsum(per_class)
        number = self._rng.choice(int(ends[-1]), min(n_similar, int(ends[-1])), replace=False)
        code = np.searchsorted(ends, number, side="right")
        similar = _in_triangle(number - (ends - per_class)[code]) + self._first[code]
        # Sorted by class, an item has a dissimilar pair with each item of the classes before its own.
        earlier = np.repeat(self._first, self._size)
        ends = np.cumsum(earlier)
        wanted = min(n - n_similar, int(ends[-1]))
        number = self._rng.choice(int(ends[-1]), wanted, replace=False)
        later = np.searchsorted(ends, number, side="right")
        dissimilar = np.stack([number - (ends - earlier)[later], later])
        pairs = self._by_class[np.concatenate([similar, dissimilar], axis=1)]
        pairs = np.sort(pairs, axis=0)[:, self._rng.permutation(pairs.shape[1])]
        return self._labelled(*pairs)

    def _labelled(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y = np.where(self._codes[first] == self._codes[second], 1, -1)
        return np.column_stack([first, second]), y


def _in_proportion(u: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Numbers of items in proportion to weights, from uniforms and the sums of the weights so far."""
    found = np.searchsorted(sums, u * sums[-1], side="right")
    return np.minimum(found, len(sums) - 1)  # guards the rounding of u close to 1


def _in_triangle(number: np.ndarray) -> np.ndarray:
    """Pairs i < j by their numbers: column by column, column j holds the pairs (i, j). Shape (2, n)."""
    second = ((1 + np.sqrt(1 + 8.0 * number)) / 2).astype(np.int64)
    second -= second * (second - 1) // 2 > number
    second += second * (second + 1) // 2 <= number
    return np.stack([number - second * (second - 1) // 2, second])


def _numbered(tasks: list[Hashable]) -> tuple[np.ndarray, np.ndarray]:
    """The distinct tasks in the order in which they appear, and the number of each item's task."""
    numbers: dict[Hashable, int] = {}
    for task in tasks:
        if task != task:
            raise ValueError(f"tasks: expected a task for every item, got {task!r}")
        numbers.setdefault(task, len(numbers))
    if {type(task) for task in numbers} in ({str}, {int}):
        names = np.array(list(numbers))
    else:  # as objects: numpy would turn a mixture into strings, and tuples into rows
        names = np.empty(len(numbers), object)
        for task, number in numbers.items():
            names[number] = task
    return names, np.array([numbers[task] for task in tasks], np.int64)


def _check_one_per_item(labels: np.ndarray) -> None:
    if labels.ndim != 1 or len(labels) == 0:
        raise ValueError(f"labels: expected one label per item, got shape {labels.shape}")
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise ValueError("labels: expected a label for every item, got NaN")
