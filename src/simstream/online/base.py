"""What every online learner does the same way: learning from tuples, counting, saving."""

from __future__ import annotations

from abc import abstractmethod
from functools import cache
from operator import is_
from typing import Any

import numpy as np

from .._engines import (
    DenseEngine,
    Engine,
    Geometry,
    Single,
    check_device,
    check_geometry,
    device_block_size,
    find_device,
)
from .._kernels import steps
from ..data.comparisons import Comparisons
from ..similarity.base import Similarity, are_quadruplets, one_row
from ..similarity.learner import Learner, delegated
from ..validation import (
    Items,
    check_features,
    check_items,
    check_unchanged,
    check_weights,
    stacked,
)

DEVICE = """device : "cpu", "cuda", "cuda:N", "auto" or "torch"
        Where dense items are learnt from: the same steps, to rounding. A GPU needs ``simstream[gpu]``; "auto"
        takes one if there is one, and the CPU for sparse items and for quadruplets. Items may be tensors of
        torch, which stay where they are. "torch" is the code for GPUs on the CPU, for tests.
    precision : "float32" or "tf32"
        How a GPU multiplies float32: "tf32" is faster and rounds to 11 bits."""


class OnlineLearner(Learner):
    """Base of the learners that see one tuple after the other, triplets unless they say otherwise.

    Subclasses store their parameters and provide `_check_parameters`, `_new_engine`, `_step` and
    `_similarity_of`. What they learn is kept in an engine.
    """

    natural_tuples = "triplets"
    #: Engines that its files may hold.
    _engine_types: tuple[type[Engine], ...] = ()
    #: Whether it also learns from quadruplets: a step adds a plain matrix, of whatever rank, to M.
    _takes_quadruplets = False
    _engine: Any = None
    #: Parameters of the geometry (`_engines.geometry`); learners without them keep these.
    init_scale: Any = 1.0
    centre: Any = None
    item_term: Any = False
    block_size: Any = None
    #: Where it learns, and how products are rounded there; learners without these parameters keep them.
    device: Any = "cpu"
    precision: Any = "float32"
    #: What learns from single tuples, for this engine and these parameters.
    _single_cache: tuple[Engine, list[Any], Single] | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_single_cache", None)
        return state

    # -- what a subclass says -----------------------------------------------------------------

    @abstractmethod
    def _new_engine(self, tuples: Comparisons) -> Engine:
        """An engine for these items, nothing learnt yet. Raises before anything is changed."""

    @abstractmethod
    def _step(self) -> Any:
        """The step record of the kernels, from the current parameters."""

    @abstractmethod
    def _similarity_of(self, engine: Any) -> Similarity:
        """The similarity of an engine as it is now; it may share the engine's arrays."""

    def _block_size(self, engine: Any) -> int:
        """How many tuples the engine learns together."""
        return 1

    def _unchangeable(self, engine: Any) -> dict[str, tuple[Any, Any]]:
        """Parameters that the engine depends on: what it was made with, and what they are now."""
        return {}

    def _reading(self) -> tuple[Any, ...]:
        """Parameters that change what is read without changing what is learnt."""
        return (self.normalise,)

    def _new_shard(self, tuples: Comparisons, geometry: Geometry, columns: slice) -> Engine:
        """An engine of some columns of the matrix, nothing learnt yet; `tuples` have all columns.

        Only blocks can be learnt with the columns divided: see `_kernels.columns`.
        """
        raise TypeError(
            f"learner: expected one that learns in blocks, got {type(self).__name__}, whose columns cannot "
            "be divided; simstream.distributed.MixedLearner mixes shards of the stream instead"
        )

    # -- the geometry -------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if "init_scale" in vars(self):
            check_geometry(self.init, self.init_scale, self.centre, self.item_term)
        if "device" in vars(self):
            check_device(self.device, self.precision)

    def _geometry(self, tuples: Comparisons, *, folded: bool) -> Geometry:
        """The geometry of a first call. The engine that is made for it must be given it.

        With `folded`, sparse queries stay sparse where they are centred: only plain steps allow it.
        """
        return Geometry.of(tuples, self.init_scale, self.centre, self.item_term, folded=folded)

    @property
    def looks_at_items(self) -> bool:
        """Whether a scale, a mean or a length is worked out from the items of the first call."""
        is_auto = (isinstance(v, str) and v == "auto" for v in (self.init_scale, self.centre))
        return any(is_auto) or self.item_term is True

    def _scaled(self, step: float) -> float:
        """A step in proportion to the first matrix."""
        return float(step) * (1.0 if self._engine is None else self._engine.geometry.scale)

    @property
    def shape_(self) -> tuple[int, int]:
        """Features of queries and of items."""
        rows, columns = self._fitted().shape
        return int(rows) - self._engine.geometry.n_extra, int(columns)

    # -- learning -----------------------------------------------------------------------------

    def fit(self, tuples: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Forget what was learnt and learn from these tuples, in order.

        Parameters
        ----------
        tuples : (n, 3) rows of `preprocessor`, or ids if it has ids, or (n, 3, d) numbers
            Anchor, positive, negative: the anchor is more like the positive than the negative. Learners
            from pairs also take (n, 2) integers or (n, 2, d) numbers. OASIS, OGD and PAMetric take (n, 4)
            integers or (n, 4, d) numbers on dense items: the first item is more like the second than the
            third is like the fourth.
        y : array of +1 (similar) and -1 (dissimilar), or 1 and 0, or booleans
            One for each pair; ignored for triplets. `predict` answers in the labels that came first.
            `partial_fit` takes -1 and +1 after any others, and no others after -1 and +1.
        sample_weight : array of n numbers, optional
            Importance of each tuple: its loss counts that many times. A step along a gradient is so many
            times as long, and a passive-aggressive one has so many times its C. Tuples of weight 0 are left
            out. Learners whose steps have no such number refuse weights. The stream is cut where the weight
            changes. Long runs of equal weights are as fast as none. Every run costs as much as several calls
            of `learn_one` on dense items, and on sparse ones it costs more the more items there are: a weight
            that changes with every tuple can make it slower than `learn_one`.

        Returns
        -------
        self
        """
        self._check_parameters()
        read = self._read_weighted(tuples, y, sample_weight, self.dtype)
        return self._learn(read, anew=True)

    def partial_fit(self, tuples: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Go on learning from these tuples, in order. Same input as `fit`."""
        self._check_parameters()
        return self._learn(self._read_weighted(tuples, y, sample_weight, self._target_dtype()))

    def learn_one(self, x: Any, positive: Any, negative: Any, fourth: Any = None) -> Any:
        """Learn from one triplet of vectors: 1-d arrays, or CSR matrices of one row.

        With a fourth vector it is a quadruplet: x is more like `positive` than `negative` is like `fourth`.
        """
        if fourth is not None:
            return self._learn_one_quadruplet(x, positive, negative, fourth)
        if self._learn_single((x, positive, negative), 1.0):
            return self
        self._check_parameters()
        left, right = self._read_vectors(("x", "positive", "negative"), x, positive, negative)
        read = Comparisons(left, right, np.array([[0, 0, 1]]), of_vectors=True)
        self._begin(read)
        return self._learn_alone(read, 3)

    def _learn_single(self, vectors: tuple[Any, ...], sign: float, *more: Any) -> bool:
        """Learn from a tuple that needs no conversion, all else being as it was; False if it does."""
        kept = self._single_cache
        if kept is None or kept[0] is not self._engine or kept[0].device is not None:
            return False
        if not all(map(is_, kept[1], self._parameters())):
            return False
        self._changing()
        return kept[2].learn(vectors, sign, *more)

    def _learn_alone(self, tuples: Comparisons, size: int) -> Any:
        """Learn from one checked tuple of vectors, and be ready for more like it."""
        engine = self._engine
        if engine.device is not None or len(tuples) > 1:
            self._advance(engine, tuples)
            return self
        self._changing()
        engine.see(tuples)
        tuples = engine.geometry.comparisons(tuples)
        engine.learn_alone(self._step_for(tuples), tuples)
        single = engine.single(self._step_for(tuples), size) if engine.geometry.is_plain else None
        self._single_cache = single and (engine, self._parameters(), single)
        return self

    def _parameters(self) -> list[Any]:
        """The parameters as they are now."""
        return [*map(vars(self).get, _parameter_names(type(self)))]

    def score_one(self, x: Any, other: Any) -> float:
        """Similarity of two vectors, the number that `pair_score` gives; its cost is that of `predict_one`.

        Parameters
        ----------
        x, other : 1-d arrays, or CSR matrices of one row
        """
        return self._score_vectors(self._similarity(), x, other)[0]

    def predict_one(self, x: Any, positive: Any, negative: Any) -> int:
        """+1 if x is more similar to the first of two vectors than to the second, else -1.

        ``predict_one`` before ``learn_one`` measures a learner on a stream as it goes. Reading costs more
        than learning where what is read has to be worked out from what is learnt: the first reading after a
        step does that, and for most learners of a distance it is an eigendecomposition.
        """
        first, second = self._score_vectors(self._similarity(), x, positive, negative)
        return 1 if first > second else -1

    def _score_vectors(self, similarity: Similarity, x: Any, *others: Any) -> list[float]:
        """Similarity of one vector with others."""
        names = ("x", "other") if len(others) == 1 else ("x", "positive", "negative")
        left, right = self._read_vectors(names, x, *others)
        check_features(similarity.shape_, left, right)
        return [
            float(similarity._rows_scored(left.values, right.values[row : row + 1])[0])
            for row in range(len(others))
        ]

    def _learn_one_quadruplet(self, x: Any, second: Any, third: Any, fourth: Any) -> Any:
        self._check_parameters()
        if not self._takes_quadruplets:
            raise TypeError(f"fourth: {type(self).__name__} does not learn from quadruplets")
        _, left = self._read_vectors(("x", "x", "third vector"), x, x, third)
        _, right = self._read_vectors(("x", "second vector", "fourth"), x, second, fourth)
        index = np.array([[0, 0, 1, 1]])
        read = Comparisons(left, right, index, of_vectors=True, is_quadruplets=True)
        return self._learn(self._quadruplets(read))

    def _quadruplets(self, read: Comparisons) -> Comparisons:
        """Quadruplets as the engine takes them; raises where they cannot be learnt from."""
        if read.is_sparse:
            raise ValueError("quadruplets: expected dense items, got sparse ones")
        if self.device not in ("cpu", "auto"):
            raise ValueError(
                f"device: expected 'cpu' or 'auto' for quadruplets, got {self.device!r}"
            )
        return read

    def prepare(self) -> int:
        """Get ready for a stream over the items of `preprocessor`; return the block size.

        Cutting a stream of pairs or triplets without weights into calls at multiples of that number gives the
        same model, bit for bit; if it is 1, cutting it anywhere does. Otherwise the model is the same to
        rounding: blocks begin anew where a weight changes, and quadruplets are always learnt in blocks.
        """
        self._check_parameters()
        left, right = self._item_cache().items(self.preprocessor, self._target_dtype())
        self._begin(Comparisons(left, right, np.empty((0, 3), np.int64)))
        return self._block_size_here() if self._engine.learns_blocks else 1

    def _block_size_here(self) -> int:
        """How many tuples are learnt together on the device that the engine is on."""
        engine = self._engine
        if engine.device is None:
            return self._block_size(engine)
        return device_block_size(engine.device, self.block_size)

    def _read(self, tuples: Any, y: Any, dtype: Any) -> Comparisons:
        """Checked tuples of the kind the learner learns from."""
        if self._takes_quadruplets and are_quadruplets(tuples):
            return self._quadruplets(self._read_tuples(tuples, 4, dtype))
        return self._read_tuples(tuples, 3, dtype)

    def _read_weighted(self, tuples: Any, y: Any, sample_weight: Any, dtype: Any) -> Comparisons:
        """Checked tuples with their weights, if there are any."""
        read = self._read(tuples, y, dtype)
        if sample_weight is None:
            return read
        if not self._has_weights():
            raise TypeError(
                f"sample_weight: expected None for {self!r}, whose steps cannot be weighted, got weights; "
                "repeat tuples or leave them out instead"
            )
        weights = check_weights("sample_weight", sample_weight, len(tuples))
        if len(weights) < len(read):  # triplets that were read as pairs
            weights = np.repeat(weights, 2)
        return read.weighted(weights)

    def _has_weights(self) -> bool:
        """Whether the steps have a number that a tuple's weight multiplies: see `_weighted`."""
        return False

    def _weighted(self, step: Any, weight: float) -> Any:
        """The step record for tuples of this weight: it multiplies the step, or the price of the loss."""
        if isinstance(step, float):
            return step * weight
        if isinstance(step, steps.Step) and step.rule not in (steps.CONSTANT, steps.ON_MISTAKE):
            return step._replace(C=step.C * weight)
        if getattr(step, "lam", 0.0):  # the threshold of a round is eta lam: it has no weight
            step = step._replace(lam=step.lam / weight)
        return step._replace(eta=step.eta * weight)

    def _read_vectors(self, names: tuple[str, ...], x: Any, *others: Any) -> tuple[Items, Items]:
        """One vector as an item, and the others as items of a second space; names are for errors."""
        dtype = self._target_dtype()
        left = check_items(one_row(x), names[0], dtype=dtype)
        rows = [one_row(other) for other in others]
        for name, row in zip(names[2:], rows[1:], strict=True):
            if row.shape[1] != rows[0].shape[1]:
                raise ValueError(
                    f"{name}: expected as many features as the {names[1]} ({rows[0].shape[1]}), "
                    f"got {row.shape[1]}"
                )
        right = check_items(stacked(rows), " and ".join(names[1:]), dtype=dtype or left.dtype)
        return left, right

    def _target_dtype(self) -> Any:
        """Precision that items must have: that of the model, or what the parameter says."""
        return self.dtype if self._engine is None else self._engine.dtype

    def _learn(self, tuples: Comparisons, *, anew: bool = False) -> Any:
        """Learn from checked tuples, forgetting what was learnt before if `anew`."""
        self._begin(tuples, anew=anew)
        self._advance(self._engine, tuples.in_memory())
        return self

    def _begin(self, tuples: Comparisons, *, anew: bool = False) -> None:
        """Make an engine for these items if there is none, else check that it can go on with them.

        With `anew` a new one takes the place of the old one, which stays if anything raises.
        """
        if self.normalise:
            tuples.check_one_space("normalise=True")
        is_new = anew or self._engine is None
        engine = self._new_engine(tuples) if is_new else self._engine
        is_bound = tuples.is_quadruplets or not engine.has_devices
        device = find_device(self.device, is_sparse=is_bound)
        if is_new:
            engine.place(device, self.precision)
            self._forget(engine)
            self._name_features(tuples)
            return
        if tuples.is_quadruplets and not isinstance(engine, DenseEngine):
            raise ValueError(
                "quadruplets: expected a model of dense items, got one that began with sparse ones"
            )
        check_features(self.shape_, tuples.left, tuples.right, self._feature_names)
        self._engine.geometry.check_unchanged(self.init_scale, self.centre, self.item_term)
        for name, (kept, given) in self._unchangeable(self._engine).items():
            check_unchanged(name, kept, given)
        self._engine.place(device, self.precision)

    def _changing(self) -> None:
        """Drop what belongs to the matrix as it is, which is about to change."""
        self._reads().clear()

    def _advance(self, engine: Any, tuples: Comparisons) -> None:
        self._changing()
        engine.see(tuples)
        tuples = engine.geometry.comparisons(tuples)
        step, block_size = self._step_for(tuples), self._block_size_here()
        if tuples.weights is None:
            engine.learn(step, tuples, block_size)
            return
        for weight, part in tuples.of_equal_weight():
            engine.learn(self._weighted(step, weight), part, block_size)

    def _step_for(self, tuples: Comparisons) -> Any:
        """The step record for these tuples."""
        return self._step()

    def _forget(self, engine: Engine) -> None:
        self._engine = engine
        self._single_cache = None
        self._item_cache()  # made here: reading adds no attribute
        self._reads().clear()
        self.n_features_in_ = self.shape_[0]  # type: ignore[attr-defined]

    # -- using what was learnt ----------------------------------------------------------------

    def _learnt(self) -> Any:
        return self._engine

    def _similarity(self) -> Any:
        """The similarity as it is now, kept until learning goes on.

        The round is part of the key: another thread may read while this one learns.
        """
        engine, kept = self._fitted(), self._reads()
        key = engine.version, *self._reading()
        similarity = kept.get(key)
        if similarity is None:
            similarity = self._similarity_of(engine)
            similarity.normalise = self.normalise
            kept.put(key, similarity)
        return similarity._with_items(self)

    @property
    def tensor_(self) -> Any:
        """The learnt M itself, a tensor of torch on the device it is learnt on; it changes with learning.

        With a geometry it has the rows of the additional features, and nothing that only changes what is read
        (`symmetric`, `projection`, `normalise`) is applied. All other results are arrays on the host.
        """
        engine = self._fitted()
        if engine.device is None or engine.average_from is not None:
            raise ValueError(
                "tensor_: the matrix is not on a device; expected one that was learnt on a device other than "
                "'cpu', with average_from=None"
            )
        return engine.there.u

    decision_function = delegated(Similarity.decision_function)
    predict = delegated(Similarity.predict)
    score = delegated(Similarity.score)

    # -- what was counted ---------------------------------------------------------------------

    def _count(self, place: int) -> float:
        return float(self._fitted().clock[place])

    @property
    def n_rounds_(self) -> int:
        """Tuples seen: triplets, or pairs."""
        return int(self._count(steps.ROUNDS))

    @property
    def n_updates_(self) -> int:
        """Tuples that changed the matrix."""
        return int(self._count(steps.UPDATES))

    @property
    def n_skipped_(self) -> int:
        """Tuples skipped because they have no direction (identical vectors, or a zero anchor)."""
        return int(self._count(steps.SKIPPED))

    @property
    def average_loss_(self) -> float:
        """Mean hinge loss of all rounds, each before its own update."""
        return self._count(steps.LOSS) / max(1.0, self._count(steps.ROUNDS))

    @property
    def mistake_rate_(self) -> float:
        """Share of rounds whose margin was not positive before the update."""
        return self._count(steps.MISTAKES) / max(1.0, self._count(steps.ROUNDS))

    @property
    def violation_rate_(self) -> float:
        """Share of rounds with a positive hinge loss before the update."""
        return self._count(steps.VIOLATIONS) / max(1.0, self._count(steps.ROUNDS))

    # -- saving -------------------------------------------------------------------------------

    def _get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        engine = self._fitted()
        scalars, arrays = engine.state()
        geometry, means = engine.geometry.state()
        return {"engine": engine.kind, "scalars": scalars, **geometry}, {**arrays, **means}

    def _set_state(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self._check_parameters()
        engines = {engine.kind: engine for engine in self._engine_types}
        if header["engine"] not in engines:
            raise ValueError(
                f"engine: expected one of {', '.join(engines)}, got {header['engine']!r}"
            )
        engine = engines[header["engine"]].from_state(header["scalars"], arrays)
        engine.geometry = Geometry.from_state(header, arrays, engine)
        self._forget(engine)


@cache
def _parameter_names(kind: type[OnlineLearner]) -> tuple[str, ...]:
    """Names of a learner's parameters."""
    return tuple(kind._get_param_names())
