"""The examples of the page for users of other libraries run as printed."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "coming-from.md"


def test_examples():
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, optionflags=flags)
    assert tried > 40
    assert failed == 0


def test_names_in_the_tables_exist():
    """Everything in the second column that looks like a public class is one."""
    simstream = importlib.import_module("simstream")
    columns = [
        row.split(" | ", 1)[1] for row in PAGE.read_text().splitlines() if row.startswith("| `")
    ]
    found = set(re.findall(r"`([A-Z][A-Za-z]+)", " ".join(columns)))
    known = {*simstream.__all__, "DictVectorizer", "FeatureHasher"}
    assert len(found) > 10
    assert found <= known


def test_names_of_metric_learn_exist():
    """Where it is installed: everything in its first column that looks like a class or a method is one."""
    metric_learn = pytest.importorskip("metric_learn")
    section = PAGE.read_text().split("## From metric-learn")[1].split("\n## ")[0]
    rows = [row.split(" | ")[0] for row in section.splitlines() if row.startswith("| `")]
    classes = {name for row in rows for name in re.findall(r"`([A-Z][A-Za-z_]+)\(", row)}
    assert {"ITML", "ITML_Supervised", "LMNN", "RCA"} <= classes
    assert all(hasattr(metric_learn, name) for name in classes)
    methods = {name for row in rows for name in re.findall(r"`([a-z_]+)\(", row)}
    assert all(hasattr(metric_learn.ITML, name) for name in methods - {"score"})
