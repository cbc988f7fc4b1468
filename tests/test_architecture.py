"""Imports point one way, the public names exist, and importing is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import simstream

SOURCE = Path(simstream.__file__).parent

#: From the bottom up: a module may import, at any time, only from layers below its own.
LAYERS = [
    {"_kernels"},
    {"validation", "data", "_documentation", "_interrupts"},
    {"asking", "datasets", "metrics", "persistence", "selection", "sequences"},
    {"_engines"},
    {"similarity", "online", "batch"},
    {"plots", "catalogue", "search"},
    {"serve", "formats", "index"},
    {"cli"},
]
BESIDE = ("data", "validation", "similarity", "online", "batch")
LEVEL = {module: level for level, layer in enumerate(LAYERS) for module in layer}


def imported_modules(path):
    """Top-level modules of simstream that a file imports, wherever in the file."""
    package = path.relative_to(SOURCE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            target = [*base, *(node.module.split(".") if node.module else [])]
            names = [target[0]] if target else [alias.name for alias in node.names]
            yield from names


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE))
)
def test_imports_point_downwards(path):
    module = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if module == "__init__":
        return
    assert module in LEVEL, f"{module}: say in LAYERS where it belongs"
    for name in imported_modules(path):
        if name in LEVEL and name != module:
            same = LEVEL[name] == LEVEL[module]
            assert LEVEL[name] < LEVEL[module] or (
                same and name in ("data", "validation", "similarity", "online", "batch")
            ), name


def test_every_public_name_exists_and_is_documented():
    assert sorted(simstream.__all__) == sorted(simstream._HOME)
    for name in simstream.__all__:
        assert getattr(simstream, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'Unheard'"):
        simstream.Unheard  # noqa: B018
    assert set(simstream.__all__) <= set(dir(simstream))


def test_importing_is_light():
    code = (
        "import sys; import simstream; heavy = [m for m in ('numpy', 'numba') if m in sys.modules];"
        "from simstream import OASIS, FromLabels, metrics, load;"
        "print(heavy + [m for m in ('matplotlib', 'click') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
