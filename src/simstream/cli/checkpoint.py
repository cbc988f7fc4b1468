"""What a model file remembers about its training: how rows were scaled, and how far the input was read."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import ModelFileError

_KEY = "train"

#: What the state of each kind of input must hold.
_FIELDS: dict[str, dict[str, type]] = {
    "labels": {"items": str, "seed": int, "n_total": int, "n_drawn": int, "sampler": dict},
    "file": {"path": str, "position": int, "n_bad": int},
    "stream": {"path": str, "position": int, "n_bad": int},
    "whole": {"path": str, "n_read": int, "n_bad": int},
}


class TrainingRecord(NamedTuple):
    """The part of a model's ``extra`` that belongs to the command line."""

    #: Whether rows are scaled to length one before they are used.
    unit_norm: bool = False
    #: State of the input (see `sources`), or None for a model that was not trained by a command.
    input: dict[str, Any] | None = None

    @classmethod
    def from_extra(cls, extra: dict[str, Any], path: object) -> TrainingRecord:
        """Read it back; models saved in Python have none. The path is for the error."""
        found = extra.get(_KEY)
        if found is None:
            return cls()
        try:
            state = found["input"]
            fields = _FIELDS[state["kind"]]
            # Models of version 0.1 were all trained from triplets and did not say so.
            state = {"tuples": "triplets", **state}
            if all(isinstance(state[key], kind) for key, kind in fields.items()):
                return cls(bool(found["unit_norm"]), state)
        except (KeyError, TypeError):
            pass
        raise ModelFileError(
            f"{path}: damaged record of the training; expected unit_norm and the state of an input, "
            f"got {found!r}"
        )

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
        if state is None:
            return "not trained by the command line"
        if state["kind"] == "labels":
            return (
                f"{state['n_drawn']:,} of {state['n_total']:,} {state['tuples']} drawn from the labels of "
                f"{state['labels'] or state['items']} (seed {state['seed']})"
            )
        bad = f", {state['n_bad']:,} of them bad" if state["n_bad"] else ""
        if state["kind"] == "whole" and "seed" in state:
            return (
                f"{state['n_read']:,} {state['tuples']} drawn from the labels of {state['path']} "
                f"(seed {state['seed']})"
            )
        if state["kind"] == "whole":
            return f"all {state['n_read']:,} {state['tuples']} of {state['path']}{bad}"
        return f"{state['position']:,} records of {state['path']} read{bad}"
