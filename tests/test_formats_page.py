"""The page on file formats: its files are read, its code and its commands run, in the order of the page."""

import json
import re
import shlex
from pathlib import Path

import pytest

from commands import succeed

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "formats.md"
FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def blocks():
    found = FENCE.findall(PAGE.read_text())
    assert len(found) > 20
    return found


def test_the_page_runs(blocks, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    session = {}
    for kind, name, text in blocks:
        if name:
            Path(name).write_text(text)
        elif kind == "python":
            exec(compile(text, str(PAGE), "exec"), session)
        else:
            assert kind == "sh"
            for line in text.splitlines():
                program, *arguments = shlex.split(line)
                assert program == "simstream"
                succeed(*arguments)
    assert sum(kind == "sh" for kind, *_ in blocks) == 1
    command = (
        "evaluate",
        "model.safetensors",
        "items.jsonl",
        "--triplets",
        "triplets.csv",
        "--json",
    )
    results = json.loads(succeed(*command).stdout)["results"]
    found = {name: one["triplet accuracy"] for name, one in results.items()}
    assert found == {"learnt": 1.0, "dot": 0.0, "euclidean": 0.0}
    shown = succeed("query", "model.safetensors", "items.jsonl", "--id", "doc-1", "-k", 1, "--csv")
    assert "doc-2" in shown.stdout


def test_every_file_is_read_by_its_reader(blocks, tmp_path, monkeypatch):
    """Also those that no command of the page reads."""
    from simstream.data import (
        read_clicks,
        read_ids,
        read_items,
        read_labels,
        read_pairs,
        read_relevance,
        read_texts,
        read_triplets,
    )

    monkeypatch.chdir(tmp_path)
    ids = [f"doc-{n}" for n in range(1, 5)]
    asked = ["how to keep bees", "a good pet"]
    readers = {
        "items": lambda path: read_items(path, label_column="kind" if "csv" in path else None),
        "sparse": read_items,
        "queries": read_items,
        "labels": read_labels,
        "ids": read_ids,
        "query-ids": read_ids,
        "texts": lambda path: read_texts(path, ids),
        "triplets": lambda path: list(read_triplets(path, ids=ids)),
        "pairs": lambda path: list(read_pairs(path, ids=ids)),
        "relevance": lambda path: read_relevance(path, queries=asked, items=ids),
        "feedback": lambda path: read_relevance(path, queries=asked, items=ids),
        "clicks": lambda path: read_clicks(path, queries=asked, items=ids, n_features=2),
    }
    read = {}
    for _, name, text in blocks:
        if name:
            Path(name).write_text(text)
            read[name] = readers[name.partition(".")[0]](name)
    assert set(readers) == {name.partition(".")[0] for name in read}
    assert read["pairs.csv"][0].y.tolist() == [1, -1, 1, -1]
    assert read["pairs.jsonl"][0].y.tolist() == [1, -1]
    assert read["triplets.jsonl"][0].tasks.tolist() == ["ann", "bob"]
    assert read["feedback.jsonl"].tolist() == [[0, 1, 1], [1, 2, 1], [1, 3, 1]]
    assert read["texts.jsonl"] == ["an ant", "a bee", "a cat", "a dog"]
    assert read["clicks.jsonl"][1].clicked == [1]


def test_the_page_is_linked():
    assert "docs/formats.md" in (ROOT / "README.md").read_text()
    assert "docs/formats.md" in succeed("--help").stdout
