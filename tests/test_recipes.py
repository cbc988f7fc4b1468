"""The recipes for vector stores run as printed, each after the page's set-up."""

import re
from pathlib import Path

import pytest

import readme_tour

PAGE = Path(__file__).resolve().parent.parent / "docs" / "recipes.md"
SET_UP, *RECIPES = readme_tour.blocks("python", PAGE)


def packages(code):
    return {
        name
        for name in ("usearch", "faiss", "qdrant_client")
        if f"import {name}" in code or f"from {name}" in code
    }


@pytest.fixture(scope="module")
def prepared():
    session = {}
    exec(compile(SET_UP, str(PAGE), "exec"), session)
    return session


@pytest.mark.parametrize("number", range(len(RECIPES)))
def test_recipe(number, prepared, tmp_path, monkeypatch):
    code = RECIPES[number]
    needed = packages(code) | ({"usearch"} if "HnswIndex" in code else set())
    for name in needed:
        pytest.importorskip(name, reason=f"{name} is not installed: its recipe is not tried")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(PAGE), "exec"), dict(prepared))


def test_every_store_has_a_recipe():
    used = set().union(*(packages(code) for code in RECIPES))
    assert used == {"usearch", "faiss", "qdrant_client"}
    assert re.search(r"ORDER BY embedding <#>", "".join(readme_tour.blocks("sql", PAGE)))
