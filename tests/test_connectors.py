"""Embedding objects of frameworks: queries are mapped by the model, documents only where needed."""

import asyncio
import importlib
import sys

import numpy as np
import pytest

from simstream import OASIS, Adapter, Bilinear, Mahalanobis
from simstream.connectors.vectors import MappedVectors

RNG = np.random.default_rng(0)
M = RNG.normal(size=(5, 5))
ITEMS = RNG.normal(size=(7, 5))
QUERY = RNG.normal(size=5)


def vector_of(text):
    """An embedding: made of the text alone."""
    return np.random.default_rng(list(text.encode())).normal(size=5).tolist()


def langchain(model):
    base = pytest.importorskip("langchain_core.embeddings").Embeddings
    from simstream.connectors.langchain import SimilarityEmbeddings

    class Plain(base):
        def embed_query(self, text):
            return vector_of(text)

        def embed_documents(self, texts):
            return [vector_of(text) for text in texts]

    return SimilarityEmbeddings(Plain(), model)


def llama_index(model):
    pytest.importorskip("llama_index.core")
    from llama_index.core.base.embeddings.base import BaseEmbedding

    from simstream.connectors.llama_index import SimilarityEmbedding

    class Plain(BaseEmbedding):
        def _get_text_embedding(self, text):
            return vector_of(text)

        _get_query_embedding = _get_text_embedding

        async def _aget_query_embedding(self, query):
            return vector_of(query)

    return SimilarityEmbedding(Plain(model_name="plain", embed_batch_size=3), model)


#: How each framework asks for one query, some documents, and the same asynchronously.
CALLS = {
    langchain: ("embed_query", "embed_documents", "aembed_query", "aembed_documents"),
    llama_index: (
        "get_query_embedding",
        "get_text_embedding_batch",
        "aget_query_embedding",
        "aget_text_embedding_batch",
    ),
}


def test_documents_of_a_bilinear_similarity_are_the_same_list():
    documents = ITEMS.tolist()
    mapped = MappedVectors(Bilinear(M, item_term=np.arange(5.0)))
    assert mapped.documents(documents) is documents
    assert np.allclose(mapped.query(QUERY.tolist()), QUERY @ M + np.arange(5.0))


def test_inner_products_rank_as_a_distance_does():
    metric = Mahalanobis(M @ M.T)
    mapped = MappedVectors(metric)
    products = np.array(mapped.documents(ITEMS.tolist())) @ mapped.query(QUERY.tolist())
    order = metric.search(QUERY[None], ITEMS, k=len(ITEMS)).indices[0]
    assert np.argsort(-products).tolist() == order.tolist()
    assert mapped.documents([]) == []


def test_the_next_query_shows_what_a_learner_has_learnt_since():
    learner = OASIS().learn_one(QUERY, ITEMS[0], ITEMS[1])
    mapped = MappedVectors(learner)
    before = mapped.query(QUERY.tolist())
    learner.learn_one(QUERY, ITEMS[2], ITEMS[0])
    after = mapped.query(QUERY.tolist())
    assert before != after
    assert after == learner.transform_query(QUERY[None])[0].tolist()


@pytest.mark.parametrize("model", [OASIS(), Adapter(), M, "model.safetensors"])
def test_what_has_learnt_nothing_is_refused(model):
    with pytest.raises(TypeError, match="model: expected a fitted similarity or learner, got"):
        MappedVectors(model)


@pytest.mark.parametrize("module", ["langchain", "llama_index"])
def test_a_missing_framework_is_named_with_its_extra(module, monkeypatch):
    for name in ("langchain_core", "llama_index"):
        monkeypatch.setitem(sys.modules, name, None)
        for loaded in [one for one in sys.modules if one.startswith(f"{name}.")]:
            monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.delitem(sys.modules, f"simstream.connectors.{module}", raising=False)
    extra = module.replace("_", "-")
    with pytest.raises(ImportError, match=rf"pip install 'simstream\[{extra}\]'"):
        importlib.import_module(f"simstream.connectors.{module}")


@pytest.mark.filterwarnings("default")  # those of the packages are not ours
@pytest.mark.parametrize("framework", CALLS)
def test_embeddings_of_a_framework(framework):
    embeddings = framework(Bilinear(M))
    of_query, of_documents, later_query, later_documents = (
        getattr(embeddings, name) for name in CALLS[framework]
    )
    texts = ["an egg", "a bicycle", "a piano", "a dog"]
    plain = [vector_of(text) for text in texts]
    assert of_documents(texts) == plain
    assert np.allclose(of_query("an egg"), np.array(plain[0]) @ M)
    assert of_query("an egg") == asyncio.run(later_query("an egg"))
    assert asyncio.run(later_documents(texts)) == plain


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("framework", CALLS)
def test_what_is_wrapped_is_checked(framework):
    kind = type(framework(Bilinear(M)))
    with pytest.raises(TypeError, match=r"expected .*Embedding.*, got 'all-MiniLM'"):
        kind("all-MiniLM", Bilinear(M))


def test_weights_of_a_layer_for_queries_of_length_one():
    """What docs/connectors.md puts into a module of sentence-transformers."""
    items = RNG.normal(size=(300, 16))
    items /= np.linalg.norm(items, axis=1, keepdims=True)
    queries = np.roll(items, 8, axis=1) + 0.5 * items
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    adapter = Adapter(random_state=0).fit(queries, items, [(row, row) for row in range(200)])
    assert adapter.chosen_ is not None
    shifted = Bilinear(RNG.normal(size=(16, 16)), centre=items.mean(axis=0), item_term=items[0])
    for model in (adapter, shifted):
        ahead, back = (model.transform_query(sign * np.eye(16)) for sign in (1, -1))
        weight, bias = (ahead - back).T / 2, (ahead + back)[0] / 2
        assert abs(bias).max() > 1e-4
        assert np.allclose(queries @ weight.T + bias, model.transform_query(queries), atol=1e-5)
