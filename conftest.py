"""What needs an optional package is not collected where it is missing; no other import may fail."""

from importlib.util import find_spec

_REPRO = ("jinja2", "msgspec")
_SERVE = ("fastapi", "filelock", "prometheus_client", "uvicorn")

#: What files and folders import as soon as they are imported themselves.
_NEEDS = {
    "repro/simstream_repro": _REPRO,
    "src/simstream/_kernels/tensors.py": ("torch",),
    "src/simstream/connectors/langchain.py": ("langchain_core",),
    "src/simstream/connectors/llama_index.py": ("llama_index",),
    "src/simstream/serve": _SERVE,
    "tests/repro": _REPRO,
    "tests/serve": _SERVE,
}

collect_ignore = [
    "src/simstream/_kernels/cuda.py",  # needs a GPU
    *(path for path, packages in _NEEDS.items() if not all(map(find_spec, packages))),
]
