"""An embedding model for LlamaIndex (extra ``llama-index``)."""

from __future__ import annotations

from typing import Any

from ..extras import MissingExtraError
from .vectors import MappedVectors

try:
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import PrivateAttr
except ImportError as error:
    raise MissingExtraError(
        "simstream.connectors.llama_index", "llama-index-core", "llama-index"
    ) from error


class SimilarityEmbedding(BaseEmbedding):
    """An embedding model whose queries are mapped by a learnt similarity, for any index of LlamaIndex.

    The vector store searches by inner product, or by cosine if documents have length one, as LlamaIndex's own
    does. Documents stay as they are for a bilinear similarity (and for `Adapter`): an index that is built
    already is used as it is, and stays valid when the model learns on. For distances, factors of low rank and
    ``normalise=True`` documents are mapped too, for one state of the model: see
    `simstream.search.item_vectors`.

    Parameters
    ----------
    embed_model : BaseEmbedding
        Embeds the texts. A cache of embeddings belongs here: one of mapped queries would be out of date when
        the model has learnt.
    model : fitted similarity or learner
    **options
        Those of `BaseEmbedding`; name and batch size are those of `embed_model` by default.

    Examples
    --------
    >>> import numpy as np
    >>> from llama_index.core.embeddings import MockEmbedding
    >>> from simstream import Bilinear
    >>> from simstream.connectors.llama_index import SimilarityEmbedding
    >>> learnt = SimilarityEmbedding(MockEmbedding(embed_dim=2), Bilinear(np.diag([2.0, 1.0])))
    >>> learnt.get_query_embedding("egg"), learnt.get_text_embedding("egg")
    ([1.0, 0.5], [0.5, 0.5])
    """

    _inner: Any = PrivateAttr()
    _mapped: MappedVectors = PrivateAttr()

    def __init__(self, embed_model: Any, model: Any, **options: Any) -> None:
        if not isinstance(embed_model, BaseEmbedding):
            raise TypeError(
                f"embed_model: expected a BaseEmbedding of LlamaIndex, got {embed_model!r}"
            )
        mapped = MappedVectors(model)
        options.setdefault("model_name", embed_model.model_name)
        options.setdefault("embed_batch_size", embed_model.embed_batch_size)
        super().__init__(**options)
        self._inner, self._mapped = embed_model, mapped

    @classmethod
    def class_name(cls) -> str:
        """Name of the class, as LlamaIndex wants it."""
        return "SimilarityEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._mapped.query(self._inner.get_query_embedding(query))

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._mapped.query(await self._inner.aget_query_embedding(query))

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._mapped.documents(self._inner.get_text_embedding_batch(texts))

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._mapped.documents(await self._inner.aget_text_embedding_batch(texts))
