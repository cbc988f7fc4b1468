"""Embeddings for LangChain (extra ``langchain``)."""

from __future__ import annotations

from typing import Any

from ..extras import MissingExtraError
from .vectors import MappedVectors

try:
    from langchain_core.embeddings import Embeddings
except ImportError as error:
    raise MissingExtraError(
        "simstream.connectors.langchain", "langchain-core", "langchain"
    ) from error


class SimilarityEmbeddings(Embeddings):
    """Embeddings whose queries are mapped by a learnt similarity, for any vector store of LangChain.

    The store searches by inner product, or by cosine if documents have length one. Documents stay as they are
    for a bilinear similarity (and for `Adapter`): a store that is filled already is used as it is, and stays
    valid when the model learns on. For distances, factors of low rank and ``normalise=True`` documents are
    mapped too, for one state of the model: see `simstream.search.item_vectors`.

    Parameters
    ----------
    embeddings : Embeddings
        Embeds the texts.
    model : fitted similarity or learner

    Examples
    --------
    >>> import numpy as np
    >>> from langchain_core.embeddings import DeterministicFakeEmbedding
    >>> from simstream import Bilinear
    >>> from simstream.connectors.langchain import SimilarityEmbeddings
    >>> plain = DeterministicFakeEmbedding(size=3)
    >>> learnt = SimilarityEmbeddings(plain, Bilinear(np.diag([2.0, 1.0, 1.0])))
    >>> bool(learnt.embed_query("egg")[0] == 2 * plain.embed_query("egg")[0])
    True
    >>> learnt.embed_documents(["egg"]) == plain.embed_documents(["egg"])
    True
    """

    def __init__(self, embeddings: Any, model: Any) -> None:
        if not isinstance(embeddings, Embeddings):
            raise TypeError(f"embeddings: expected Embeddings of LangChain, got {embeddings!r}")
        self.embeddings = embeddings
        self._mapped = MappedVectors(model)

    def embed_query(self, text: str) -> list[float]:
        """Embed a query and map it."""
        return self._mapped.query(self.embeddings.embed_query(text))

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed documents."""
        return self._mapped.documents(self.embeddings.embed_documents(texts))

    async def aembed_query(self, text: str) -> list[float]:
        """Embed a query and map it, with the asynchronous method of the embeddings."""
        return self._mapped.query(await self.embeddings.aembed_query(text))

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed documents, with the asynchronous method of the embeddings."""
        return self._mapped.documents(await self.embeddings.aembed_documents(texts))
