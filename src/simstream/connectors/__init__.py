"""Classes that frameworks ask for; what a vector store needs is a recipe in docs/recipes.md, not code.

`langchain.SimilarityEmbeddings` (extra ``langchain``) and `llama_index.SimilarityEmbedding` (extra
``llama-index``) wrap an embedding object of their framework and map what it gives: queries by the learnt
similarity, documents only where that needs it. Each is imported from its own module, which imports the
framework.
"""
