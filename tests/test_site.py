"""What the documentation site is made of fits together; `make docs` builds it."""

import inspect
import re
import tomllib
from pathlib import Path

import pytest

import simstream
from simstream.catalogue import ALGORITHMS, _sections

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def is_made(path):
    """Whether a build makes this file, so that a clone does not have it."""
    return bool({"_build", "reference", "_site"} & set(path.relative_to(DOCS).parts))


def source_pages():
    """Pages under version control, without those that a build makes."""
    return [path for path in DOCS.rglob("*.md") if not is_made(path)]


def listed_pages():
    """Pages that are in a table of contents."""
    found = {DOCS / "index.md"}
    for page in source_pages():
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.M | re.S):
            for line in block.splitlines():
                entry = re.sub(r".*<(.*)>", r"\1", line.strip())
                if entry and not entry.startswith(":"):
                    found |= set(page.parent.glob(f"{entry}.md"))
    return found


def test_every_page_can_be_reached():
    assert set(source_pages()) <= listed_pages()


def test_pictures_and_pages_that_are_linked_are_in_a_clone():
    n_links = 0
    for page in [*source_pages(), *ROOT.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", page.read_text()):
            path = (page.parent / target).resolve()
            assert path.exists(), (page, target)
            assert DOCS not in path.parents or not is_made(path), (page, target)
            n_links += 1
    assert n_links > 100


def reference():
    namespace = {"__name__": "reference"}
    path = DOCS / "_site" / "reference.py"
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    return namespace


def test_reference_has_every_public_name():
    pages = {name: "\n".join(lines) for name, lines in reference()["_pages"]()}
    described = re.findall(r"^\.\. auto\w+:: ([\w.]+)$", "\n".join(pages.values()), re.M)
    assert len(described) == len(set(described))
    modules = {"simstream.datasets", "simstream.metrics"}
    assert {f"simstream.{name}" for name in simstream.__all__} - modules <= set(described)
    listed = re.findall(r"^   ([\w-]+)$", pages["index"], re.M)
    assert sorted(listed) == sorted(set(pages) - {"index"})


def test_docstrings_are_escaped_outside_of_examples():
    lines = ["With ||x|| and classes_ or `n_rounds_`.", "", ">>> x_ | y_", "x_ | y_", "", "x_"]
    reference()["as_plain_text"](None, "", "", None, None, lines)
    assert lines[0] == r"With \|\|x\|\| and classes\_ or `n_rounds_`."
    assert lines[2:] == [">>> x_ | y_", "x_ | y_", "", r"x\_"]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)
def test_parameters_are_described_below_their_names(algorithm):
    """Also those whose text is pasted into several docstrings."""
    doc = inspect.getdoc(algorithm.cls())
    names = set(inspect.signature(algorithm.cls()).parameters)
    lines = _sections(doc)["Parameters"].splitlines() if names else []
    heads = [line for line in lines if line.strip() and not line.startswith(" ")]
    named = {name for line in heads for name in re.split(r", ", line.partition(" :")[0])}
    assert named == names


def test_version_is_the_same_everywhere():
    version = simstream.__version__
    released = re.search(
        rf"^## \[{re.escape(version)}\] - (\d{{4}}-\d\d-\d\d)$",
        (ROOT / "CHANGELOG.md").read_text(),
        re.M,
    )
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {version}\ndate-released: {released[1]}\n" in citation
    assert f'version: "{version}"' in (ROOT / "conda" / "recipe.yaml").read_text()
    assert f"# What is new in {version}\n" in (DOCS / "release-notes.md").read_text()


def test_conda_recipe_is_that_of_the_package():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = pyproject["project"]
    recipe = (ROOT / "conda" / "recipe.yaml").read_text()

    def listed(key):
        block = re.search(rf"^( +){key}:\n((?:\1 +- .*\n)+)", recipe, re.M)[2]
        return {line.strip(" -").replace(" ", "") for line in block.splitlines()}

    assert listed("run") == {f"python{project['requires-python']}", *project["dependencies"]}
    assert set(pyproject["build-system"]["requires"]) <= listed("host")
    scripts = {f"{name}={target}" for name, target in project["scripts"].items()}
    assert listed("entry_points") == scripts
    assert f'  summary: "{project["description"]}"\n' in recipe
    assert f"  license: {project['license']}\n" in recipe
