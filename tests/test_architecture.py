"""Imports point one way, names are unique, class hierarchies are shallow, and importing is light."""

import ast
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import simstream

SOURCE = Path(simstream.__file__).parent
REPRO = Path(__file__).parents[1] / "repro" / "simstream_repro"

#: From the bottom up: a module imports only from layers below its own, inside functions too.
LAYERS = [
    {"_kernels", "extras", "frames", "ids", "processors"},
    {"data", "validation"},
    {"asking", "datasets", "metrics", "persistence", "selection", "sequences"},
    {"_engines"},
    {"similarity"},
    {"batch", "online"},
    {"adaptation"},
    {"catalogue", "plots", "search"},
    {"connectors", "distributed"},
    {"formats", "index", "serve"},
    {"cli"},
    {"__main__"},
]
LEVEL = {module: level for level, layer in enumerate(LAYERS) for module in layer}

#: Neighbours in a layer that may import one another, in this direction only.
BESIDE = {("data", "validation"), ("batch", "online")}

#: Class names that are still defined in more than one place.
REPEATED_CLASS_NAMES = {"Items"}


def sources(folder):
    return {path.relative_to(folder): ast.parse(path.read_text()) for path in folder.rglob("*.py")}


def imported_modules(path, tree):
    """Absolute names of the modules that a file of simstream imports, anywhere in the file."""
    package = ("simstream", *path.parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module != "simstream":
                yield module
            else:  # names of the package itself: its modules, and public names by where they live
                yield from (
                    f"simstream.{simstream._HOME.get(alias.name, alias.name)}"
                    for alias in node.names
                )


def room(module):
    """The part of simstream that a module belongs to, None for everything else."""
    parts = module.split(".")
    return parts[1] if parts[0] == "simstream" and len(parts) > 1 else None


def test_imports_point_downwards():
    wrong, unknown = [], set()
    for path, tree in sources(SOURCE).items():
        own = path.parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        if own not in LEVEL:
            unknown.add(own)
            continue
        for module in imported_modules(path, tree):
            other = room(module)
            if other in (None, own, "__version__") or (own, other) in BESIDE:
                continue
            if other not in LEVEL:
                unknown.add(other)
            elif LEVEL[other] >= LEVEL[own]:
                wrong.append(f"{path} imports {module}")
    assert not unknown, "say in LAYERS where they belong"
    assert not wrong


def test_the_library_never_imports_the_published_experiments():
    found = [
        f"{path} imports {module}"
        for path, tree in sources(SOURCE).items()
        for module in imported_modules(path, tree)
        if module.split(".")[0] == REPRO.name
    ]
    assert REPRO.is_dir()
    assert not found


def test_no_class_name_is_defined_twice():
    places = defaultdict(list)
    for path, tree in sources(SOURCE).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path))
    repeated = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert {n: p for n, p in repeated.items() if n not in REPEATED_CLASS_NAMES} == {}


def test_at_most_three_own_classes_above_an_estimator():
    deep = {}
    for name in simstream.__all__:
        value = getattr(simstream, name)
        if isinstance(value, type) and hasattr(value, "get_params"):
            own = [c.__name__ for c in value.__mro__[1:] if c.__module__.startswith("simstream")]
            if len(own) > 3:
                deep[name] = own
    assert deep == {}


def test_every_public_name_exists_and_is_documented():
    assert sorted(simstream.__all__) == sorted(simstream._HOME)
    for name in simstream.__all__:
        assert getattr(simstream, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'Unheard'"):
        simstream.Unheard  # noqa: B018
    assert set(simstream.__all__) <= set(dir(simstream))


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import simstream", "numpy scipy sklearn numba click rich matplotlib safetensors"),
        ("from simstream import OASIS, FromLabels, metrics, load", "matplotlib click fastapi ray"),
        ("from simstream.distributed import Cluster", "ray torch matplotlib click"),
    ],
)
def test_importing_is_light(statement, heavy):
    code = f"import sys; {statement}; print([m for m in {heavy.split()} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_change_of_any_kernel_source_is_compiled_again(tmp_path):
    """Numba's own cache looks at the file of a driver alone, not at those of the functions it calls."""
    code = (
        "import numpy as np; from simstream._kernels.blocked import row_dots;"
        "row_dots(np.ones((2, 2)), np.ones((2, 2)));"
        "print(sum(row_dots.stats.cache_hits.values()))"
    )
    package = tmp_path / "simstream"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        "NUMBA_DISABLE_JIT": "0",
    }

    def loaded_from_the_cache():
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return int(done.stdout)

    assert [loaded_from_the_cache(), loaded_from_the_cache()] == [0, 1]
    with (package / "_kernels" / "steps.py").open("a") as file:
        file.write("# another function\n")
    assert loaded_from_the_cache() == 0
