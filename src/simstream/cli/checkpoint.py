"""What a model file remembers about its training: how rows were scaled, and how far the input was read."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..persistence import ModelFileError

_KEY = "train"


class TrainingRecord(NamedTuple):
    """The part of a model's ``extra`` that belongs to the command line."""

    #: Whether rows are scaled to length one before they are used.
    unit_norm: bool = False
    #: State of the input (see `sources`), or None for a model that was not trained by a command.
    input: dict[str, Any] | None = None

    @classmethod
    def from_extra(cls, extra: dict[str, Any]) -> TrainingRecord:
        """Read it back; models saved in Python have none."""
        found = extra.get(_KEY, {})
        state = found.get("input") if isinstance(found, dict) else found
        if not (state is None or (isinstance(state, dict) and "kind" in state)):
            raise ModelFileError(f"damaged training record: expected the state of an input, got {found!r}")
        return cls(bool(found.get("unit_norm", False)), state)

    def as_extra(self) -> dict[str, Any]:
        """The dictionary to save with the model."""
        return {_KEY: self._asdict()}

    def position(self) -> dict[str, Any] | None:
        """The state of the input without the random generator's, which says nothing to people."""
        if self.input is None:
            return None
        return {key: value for key, value in self.input.items() if key != "sampler"}

    def describe(self) -> str:
        """The position in the input, in words."""
        state = self.input
        match state and state["kind"]:
            case None:
                return "not trained by the command line"
            case "labels":
                assert state is not None
                return (
                    f"{state['n_drawn']:,} of {state['n_total']:,} triplets drawn from the labels of "
                    f"{state['items']} (seed {state['seed']})"
                )
            case _:
                assert state is not None
                bad = f", {state['n_bad']:,} of them bad" if state["n_bad"] else ""
                return f"{state['position']:,} records of {state['path']} read{bad}"
