"""Files of judgements, clicks, ids and texts: what `simstream adapt` does not show of their readers."""

import json

import numpy as np
import pytest

from simstream.data import FormatError, read_clicks, read_ids, read_relevance, read_texts


def test_relevance_by_ids_of_an_array_of_strings(tmp_path):
    np.save(tmp_path / "a.npy", [["q2", "007", "3"], ["q1", "8", "-1"]])
    found = read_relevance(tmp_path / "a.npy", queries=["q1", "q2"], items=["8", "007", "7"])
    assert found.tolist() == [[1, 1, 3], [0, 0, -1]]


def test_ids_that_are_numbers_in_the_file_of_judgements(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"qid": 10, "doc_id": 4}\n[11, 5, 0.5]\n')
    found = read_relevance(tmp_path / "a.jsonl", queries=["11", "10"], items=["4", "5"])
    assert found.tolist() == [[1, 0, 1], [0, 1, 0.5]]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros((2, 4)), "shape"),
        (np.zeros(3), "shape"),
        (np.array([[0.5, 1.0]]), r"unknown query in row 0 \(counted from 0\)"),
        (np.array([[0, 0], [0, 9]]), r"unknown item in row 1 \(counted from 0\)"),
        (np.array([[0, 0, np.inf]]), "not a grade in row 0"),
        (np.zeros((0, 2)), "no judgements"),
    ],
)
def test_wrong_arrays_of_judgements(tmp_path, array, expected):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(FormatError, match=expected):
        read_relevance(tmp_path / "a.npy", queries=1, items=3)


def test_judgements_need_different_ids(tmp_path):
    (tmp_path / "a.tsv").write_text("0\ta\n")
    with pytest.raises(
        ValueError, match="ids of item rows: expected different ones, got 'a' twice"
    ):
        read_relevance(tmp_path / "a.tsv", queries=1, items=["a", "a"])


def test_an_unknown_format_names_those_known(tmp_path):
    (tmp_path / "a.doc").write_text("0 1")
    with pytest.raises(FormatError, match="unknown extension"):
        read_relevance(tmp_path / "a.doc", queries=1, items=2)
    with pytest.raises(FormatError, match="unknown extension"):
        read_clicks(tmp_path / "a.doc", queries=1, items=2)


def test_an_item_that_looks_for_items_is_among_the_queries_too(tmp_path):
    path = tmp_path / "clicks.jsonl"
    path.write_text('{"query": "b", "shown": ["a", "c"], "clicked": "c"}\n')
    with pytest.raises(FormatError, match=r"unknown query; .*they are given as --queries too.*'b'"):
        read_clicks(path, items=["a", "b", "c"])
    names = ["a", "b", "c"]
    assert read_clicks(path, items=names, queries=names)[0] == (1, [0, 2], [2])


def test_formats_of_ids(tmp_path):
    (tmp_path / "a.csv").write_text('id\n"a, b"\nc\n')
    assert read_ids(tmp_path / "a.csv") == ["a, b", "c"]
    (tmp_path / "a.jsonl").write_text('{"_id": "x", "text": ""}\n{"_id": 3}\n')
    assert read_ids(tmp_path / "a.jsonl") == ["x", "3"]
    np.save(tmp_path / "a.npy", [5, 7])
    assert read_ids(tmp_path / "a.npy") == ["5", "7"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", "a\n\nb\n", "line 2: blank line"),
        ("a.txt", "id\n", "no ids"),
        ("a.csv", "a,b\n", "line 1: not an id"),
        ("a.jsonl", "[1]\n", "line 1: not an id"),
        ("a.jsonl", "true\n", "line 1: not an id"),
    ],
)
def test_wrong_ids(tmp_path, name, text, expected):
    (tmp_path / name).write_text(text)
    with pytest.raises(FormatError, match=expected):
        read_ids(tmp_path / name)


def test_texts_by_id_or_by_place(tmp_path):
    path = tmp_path / "a.jsonl"
    records = [{"_id": name, "text": name.upper()} for name in "cab"]
    path.write_text("\n".join(map(json.dumps, records)))
    assert read_texts(path, ["a", "x", "c"]) == ["A", None, "C"]
    assert read_texts(path, 3) == ["C", "A", "B"]
    path.write_text('"one"\n{"text": 2}\n')
    with pytest.raises(FormatError, match="line 2: not a text"):
        read_texts(path, 2)
