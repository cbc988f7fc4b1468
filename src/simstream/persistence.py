"""Saving and loading: one safetensors file, arrays plus a versioned JSON header, never pickle."""

from __future__ import annotations

import json
import re
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

import simstream

from .data import FormatError, atomic_write

#: Version of the file layout; files with a higher number are refused.
FORMAT_VERSION = 2

_HEADER_KEY = "simstream"
_CHECKSUM_KEY = "simstream_crc32"
_CSR_PARTS = ("data", "indices", "indptr")

#: What a parameter is in files that do not name it, where that is not its default: they go on as they began.
_UNNAMED_PARAMS: dict[str, dict[str, Any]] = {
    "FromLabels": {"similar_share": None},
    "ITML": {"similar_share": None},
}


class ModelFileError(ValueError):
    """The file is not a simstream model, is damaged, or is from a newer version."""


def save_model(model: Any, path: str | Path, extra: dict[str, Any] | None) -> None:
    """Write a model to a safetensors file, atomically; `extra` are JSON values for the caller's own use.

    Saved are what was learnt, as `_get_state` gives it and `_set_state` takes it, and the parameters of the
    constructor, arrays and nested estimators among them, but not items (`preprocessor`) or random generators.
    """
    body, arrays = to_state(model)
    write_file(path, {"model": body, "extra": extra or {}}, arrays)


def load(path: str | Path, *, preprocessor: Any = None) -> Any:
    """Read a model written by ``save``; it goes on learning as if it had never been saved.

    Parameters
    ----------
    path : file name
    preprocessor : items, optional
        Items that row numbers refer to; they are not part of the file.

    Examples
    --------
    >>> import os, tempfile, numpy as np, simstream
    >>> model = simstream.OASIS(C=0.1).fit(np.eye(3)[None])
    >>> file = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> model.save(file)
    >>> simstream.load(file).n_rounds_
    1
    """
    header, arrays = read_file(path)
    try:
        body = header["model"]
        if header["format_version"] == 1:
            body, arrays = _upgraded(body, arrays)
        model = from_state(body, arrays)
    except ModelFileError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        TypeError,
        ValueError,
    ) as error:
        raise ModelFileError(
            f"{path}: damaged model file ({type(error).__name__}: {error})"
        ) from error
    if preprocessor is not None:
        model.set_params(preprocessor=preprocessor)
    return model


def read_header(path: str | Path) -> dict[str, Any]:
    """The JSON header of a model file: versions, class, parameters and ``extra``."""
    return read_file(path, with_arrays=False)[0]


def read_file(
    path: str | Path, *, what: str = "model", with_arrays: bool = True
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read back what `write_file` wrote: the header, and the arrays once their checksum fits.

    ``what`` is the key of the header that such a file must have, and what errors call it.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path}: expected a file, got a folder")
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such {what} file")
    if not path.is_file():
        raise ModelFileError(f"{path}: expected a file, got a device or a pipe")
    try:
        with safe_open(path, framework="np") as file:
            text = (file.metadata() or {}).get(_HEADER_KEY)
            if text is None:
                raise ModelFileError(
                    f"{path}: a safetensors file, but not a simstream {what} (no {_HEADER_KEY!r} header)"
                )
            header = json.loads(text)
            version = header.get("format_version") if isinstance(header, dict) else None
            if not isinstance(version, int) or version > FORMAT_VERSION:
                raise ModelFileError(
                    f"{path}: expected file format version {FORMAT_VERSION} or older, got {version} "
                    "(written by a newer simstream, or damaged); upgrade simstream"
                )
            if what not in header:
                found = ", ".join(key for key in ("model", "index") if key in header)
                raise ModelFileError(
                    f"{path}: expected a simstream {what}, got {found or 'something else'}"
                )
            if not with_arrays:
                return header, {}
            arrays = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
            if _checksum(text, arrays) != file.metadata().get(_CHECKSUM_KEY):
                raise ModelFileError(f"{path}: damaged {what} file (its checksum does not fit)")
            return header, arrays
    except (SafetensorError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelFileError(
            f"{path}: expected a simstream {what} (safetensors), got a truncated or foreign file"
        ) from error


def write_file(path: str | Path, content: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write JSON values and arrays to one safetensors file with a checksum, atomically."""
    versions = {"format_version": FORMAT_VERSION, "simstream_version": simstream.__version__}
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps(versions | content)
    metadata = {_HEADER_KEY: text, _CHECKSUM_KEY: _checksum(text, contiguous)}
    with atomic_write(path) as temporary:
        try:
            save_file(contiguous, temporary, metadata)
        except SafetensorError as error:
            # It tells the number of the system's error in its text alone.
            number = re.search(r"(?:os error |Os \{ code: )(\d+)", str(error))
            if number is None:
                raise FormatError(f"{path}: cannot be written: {error}") from error
            raise OSError(int(number[1]), str(error)) from error
        _sort_metadata(temporary)


def _sort_metadata(path: Path) -> None:
    """Equal content makes equal files: safetensors writes the entries of the metadata in any order."""
    with open(path, "r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:  # the header may end with spaces
            file.seek(8)
            file.write(text.ljust(size))


def _checksum(header: str, arrays: dict[str, np.ndarray]) -> str:
    value = zlib.crc32(header.encode())
    for name in sorted(arrays):
        value = zlib.crc32(
            arrays[name].reshape(-1).view(np.uint8), zlib.crc32(name.encode(), value)
        )
    return f"{value:08x}"


def to_state(estimator: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """JSON values and arrays of an estimator: class, parameters, learnt state."""
    if _class_named(type(estimator).__name__) is not type(estimator):
        raise TypeError(
            f"expected one of simstream's own classes to save, got {type(estimator)}: it could not be loaded"
        )
    body, arrays = to_params(estimator)
    state, learnt = estimator._get_state()
    arrays.update({f"state.{name}": array for name, array in learnt.items()})
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None:
        body["feature_names"] = [str(name) for name in names]
    return {**body, "state": state}, arrays


def to_params(estimator: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """JSON values and arrays of an estimator that need not have learnt anything: class and parameters."""
    arrays: dict[str, np.ndarray] = {}
    given = estimator.get_params(deep=False)
    params = {name: _encode_param(name, value, arrays) for name, value in given.items()}
    return {"class": type(estimator).__name__, "params": params}, arrays


def _encode_param(name: str, value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if name in ("preprocessor", "callback") or isinstance(
        value, (np.random.Generator, np.random.RandomState)
    ):
        return None
    if hasattr(value, "_get_state"):
        params = value.get_params(deep=False)
        inner = {key: _encode_param(f"{name}.{key}", v, arrays) for key, v in params.items()}
        return {"class": type(value).__name__, "params": inner}
    if sp.issparse(value):
        arrays.update(csr_arrays(f"param.{name}.", value))
        return {"csr": f"param.{name}", "shape": list(value.shape)}
    if isinstance(value, Mapping):
        keys = [check_saved_task(key) for key in value]
        values = [_encode_param(f"{name}.{n}", value[key], arrays) for n, key in enumerate(keys)]
        return {"keys": keys, "values": values}
    is_tuple_of_vectors = isinstance(value, tuple) and any(np.ndim(part) for part in value)
    are_estimators = isinstance(value, (list, tuple)) and any(
        hasattr(part, "_get_state") for part in value
    )
    if is_tuple_of_vectors or are_estimators:
        # Vectors may differ in length; a tuple stays one.
        return {"parts": [_encode_param(f"{name}.{n}", v, arrays) for n, v in enumerate(value)]}
    if isinstance(value, (list, tuple)):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        arrays[f"param.{name}"] = value
        return {"array": f"param.{name}"}
    if isinstance(value, (type, np.dtype)):
        return str(np.dtype(value))
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{name}: expected a number, a string or an array to save, got {value!r}")


def _decode_param(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, dict) and "class" in value:
        inner = {key: _decode_param(v, arrays) for key, v in value["params"].items()}
        return _class_named(value["class"])(**inner)
    if isinstance(value, dict) and "csr" in value:
        return csr_from_arrays(f"{value['csr']}.", arrays, value["shape"])
    if isinstance(value, dict) and "keys" in value:
        values = (_decode_param(v, arrays) for v in value["values"])
        return dict(zip(value["keys"], values, strict=True))
    if isinstance(value, dict) and "parts" in value:
        return tuple(_decode_param(part, arrays) for part in value["parts"])
    if isinstance(value, dict):
        return arrays[value["array"]]
    return value


def csr_arrays(prefix: str, matrix: Any) -> dict[str, np.ndarray]:
    """The arrays of a sparse matrix in CSR format, by names that begin with `prefix`."""
    csr = sp.csr_matrix(matrix)
    return {f"{prefix}{part}": getattr(csr, part) for part in _CSR_PARTS}


def csr_from_arrays(prefix: str, arrays: dict[str, np.ndarray], shape: Sequence[int]) -> Any:
    """The matrix that `csr_arrays` was given; raises if its arrays do not fit together."""
    parts = tuple(arrays[f"{prefix}{part}"] for part in _CSR_PARTS)
    matrix = sp.csr_matrix(parts, shape=tuple(shape))
    matrix.check_format()
    return matrix


def check_saved_task(task: Any) -> Any:
    """Raise unless the name of a task can be written to a file; return it."""
    if task is not None and not isinstance(task, (str, int, float, bool)):
        raise TypeError(f"tasks: expected strings or numbers to save, got {task!r}")
    return task


def from_state(body: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    """The estimator that `to_state` was given; raises if the parts do not fit together."""
    estimator = from_params(body, arrays)
    estimator._set_state(body["state"], with_prefix("state.", arrays))
    if "feature_names" in body:
        estimator.feature_names_in_ = np.array(body["feature_names"], dtype=object)
    return estimator


def from_params(body: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    """The estimator that `to_params` was given; it has learnt nothing."""
    params = {name: _decode_param(value, arrays) for name, value in body["params"].items()}
    return _class_named(body["class"])(**(_UNNAMED_PARAMS.get(body["class"], {}) | params))


def with_prefix(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays whose names begin with `prefix`, by the rest of their names."""
    return {name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)}


def _class_named(name: str) -> Any:
    """The public class of that name; a file cannot name anything else."""
    found = getattr(simstream, name, None) if name in simstream.__all__ else None
    if not (isinstance(found, type) and hasattr(found, "_set_state")):
        raise ModelFileError(
            f"unknown model class {name!r}; was the file written by a newer simstream?"
        )
    return found


# -- files of earlier versions --------------------------------------------------------------------


def _upgraded(
    body: dict[str, Any], arrays: dict[str, np.ndarray], prefix: str = ""
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A model of format version 1 as version 2 has it: scalars of engines are in the header, not in arrays.

    `prefix` is that of the names of the model's arrays, where it is part of another model.
    """
    params, state = dict(body["params"]), dict(body["state"])
    if "learner" in state:  # FromLabels
        inner = f"{prefix}state.learner."
        state["learner"], arrays = _upgraded(state["learner"], arrays, inner)
        given = params["learner"]
        unfitted, is_exact = upgraded_params(given["class"], given["params"])
        params["learner"] = {**given, "params": unfitted}
        if not is_exact:
            warnings.warn(
                f"{given['class']} was fitted with gradient='printed', a parameter that was removed: "
                "partial_fit goes on with that gradient, fit uses the exact gradient",
                UserWarning,
                stacklevel=3,
            )
    if "engine" in state:
        start = f"{prefix}state."
        rest = {name: array for name, array in arrays.items() if not name.startswith(start)}
        own = with_prefix(start, arrays)
        state["scalars"] = _engine_scalars(state, own, params)
        arrays = rest | {start + name: array for name, array in own.items()}
    params, is_exact = upgraded_params(body["class"], params)
    if body["class"] == "OSLLRGS":
        state["exact_gradient"] = is_exact
    return {**body, "params": params, "state": state}, arrays


def upgraded_params(class_name: str, params: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Parameters of a learner of an earlier version as this one has them, and whether its gradient is exact.

    Rules that learn one tuple at a time ignored a `block_size` above 1, which is an error in this version.
    OSLLRGS had a parameter `gradient`: "exact", or "printed" as in the paper, which lacks one of two terms.
    """
    params = dict(params)
    size = params.get("block_size")
    one_at_a_time = (
        class_name == "AdaSORS"
        or (class_name == "SORS" and params.get("lam") != 0)
        or (class_name == "AROMA" and params.get("covariance") != "factored")
    )
    if one_at_a_time and isinstance(size, int) and size > 1:
        params["block_size"] = 1
    is_exact = True
    if class_name == "OSLLRGS" and params.get("gradient") in ("exact", "printed"):
        is_exact = params.pop("gradient") == "exact"
    return params, is_exact


def _engine_scalars(
    state: dict[str, Any], arrays: dict[str, np.ndarray], params: dict[str, Any]
) -> dict[str, Any]:
    """Scalars of an engine of format version 1; the arrays that held them are taken out."""
    kind, scalars = state["engine"], dict[str, Any]()
    if "one" in arrays:
        scalars["dtype"] = str(arrays.pop("one").dtype)
    if kind in ("dense", "sparse", "factored"):
        scalars |= {"rule": state["rule"], "average_from": state["average_from"]}
    if kind in ("sparse", "sparse-tasks"):
        scalars["head_bytes"] = params["head_bytes"] or 2 * 2**30
    if kind == "identity":
        rows, columns, is_sparse = arrays.pop("shape").tolist()
        scalars |= {"shape": [rows, columns], "is_sparse": bool(is_sparse)}
    if kind == "logdet":
        scalars |= dict(
            zip(("lower", "upper", "scale"), arrays.pop("numbers").tolist(), strict=True)
        )
    if kind == "spectral":
        scalars["shortens"] = bool(arrays.pop("options")[0])
        if "numbers" in arrays:
            scalars["cone"] = arrays.pop("numbers").tolist()
    if kind == "nuclear":
        scalars["symmetric"] = bool(arrays.pop("options")[0])
        scalars["weight"] = float(arrays.pop("weight")[0])
    if kind in ("group-rows", "group-gram"):
        scalars["beta"] = float(arrays.pop("beta")[0])
    if kind == "group-gram":
        scalars["n_columns"] = int(arrays.pop("n_columns")[0])
    if kind in ("dense-tasks", "sparse-tasks"):
        *shape, coupling, n_tasks, has_identity, n_seen = arrays.pop("options").tolist()
        scalars |= {
            "shape": [int(n) for n in shape],
            "coupling": coupling,
            "n_tasks": int(n_tasks) or None,
            "has_identity": bool(has_identity),
            "n_seen": int(n_seen),
        }
    if "shape" in arrays:
        shape = arrays.pop("shape").tolist()
        scalars.setdefault("shape", shape)
    return scalars
