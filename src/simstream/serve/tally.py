"""What is counted while events are folded: part of the state, the same however often it is folded again."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from math import sqrt
from typing import Any

#: Answers to random questions of which the newest accuracy is told.
_RECENT = 200

#: Points of the curve of losses; then every second one is dropped.
_MOST_POINTS = 256


@dataclass
class Tally:
    """Counts of a stream of events.

    Examples
    --------
    >>> tally = Tally()
    >>> tally.add_random_answer(learnt_is_right=True, baseline_is_right=False)
    >>> tally.accuracy()["learnt"]["accuracy"], tally.accuracy()["baseline"]["accuracy"]
    (1.0, 0.0)
    """

    #: Triplets learnt from, and those left out because learning would have diverged.
    triplets: int = 0
    diverged: int = 0
    #: Feedback events, questions shown, answered and skipped.
    feedback: int = 0
    questions: int = 0
    answers: int = 0
    skips: int = 0
    #: Triplets looked at in order to choose the active questions, and these questions.
    considered: int = 0
    asked: int = 0
    #: Answers to random questions, and how many of them each similarity knew beforehand.
    random: int = 0
    learnt_right: int = 0
    baseline_right: int = 0
    #: The newest of them: 2 * learnt is right + baseline is right.
    recent: list[int] = field(default_factory=list)
    #: Mean loss of each stretch of `stride` triplets, each before it was learnt from.
    stride: int = 8
    losses: list[float] = field(default_factory=list)
    loss_before: float = 0.0

    def add_random_answer(self, *, learnt_is_right: bool, baseline_is_right: bool) -> None:
        """Count an answer to a random question, judged before it is learnt from."""
        self.random += 1
        self.learnt_right += learnt_is_right
        self.baseline_right += baseline_is_right
        self.recent = [*self.recent[-_RECENT + 1 :], 2 * learnt_is_right + baseline_is_right]

    def triplets_to_next_point(self) -> int:
        """Triplets to be learnt until the curve gets its next point."""
        return self.stride - self.triplets % self.stride

    def add_triplets(self, count: int, total_loss: float) -> None:
        """Count triplets; the losses of all so far add up to `total_loss`."""
        self.triplets += count
        if not count or self.triplets % self.stride:  # a point only where something was learnt
            return
        self.losses.append((total_loss - self.loss_before) / self.stride)
        self.loss_before = total_loss
        if len(self.losses) == _MOST_POINTS:
            pairs = zip(self.losses[::2], self.losses[1::2], strict=True)
            self.losses = [(first + second) / 2 for first, second in pairs]
            self.stride *= 2

    def accuracy(self) -> dict[str, Any]:
        """Share of random questions answered as each similarity would have, with 95 % intervals."""
        recent = len(self.recent)
        return {
            "random_answers": self.random,
            "learnt": _share(self.learnt_right, self.random),
            "baseline": _share(self.baseline_right, self.random),
            "recent_answers": recent,
            "recent_learnt": _share(sum(both >= 2 for both in self.recent), recent),
            "recent_baseline": _share(sum(both % 2 for both in self.recent), recent),
        }

    def query_ratio(self) -> float | None:
        """Share of the triplets looked at that were asked about."""
        return self.asked / self.considered if self.considered else None

    def copy(self) -> Tally:
        """A tally that goes on by itself."""
        return replace(self, recent=self.recent.copy(), losses=self.losses.copy())

    def as_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def wilson_interval(right: int, total: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    Examples
    --------
    >>> [round(end, 4) for end in wilson_interval(8, 10)]
    [0.4902, 0.9433]
    """
    share, n = right / total, total
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def _share(right: int, total: int) -> dict[str, float | None]:
    if not total:
        return {"accuracy": None, "low": None, "high": None}
    low, high = wilson_interval(right, total)
    return {"accuracy": right / total, "low": low, "high": high}
