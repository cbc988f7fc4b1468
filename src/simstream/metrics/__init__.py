"""How good is a similarity: ranking measures, k-NN classification, triplet accuracy, sparsity.

A ranking measure sorts a pool of items by decreasing score for a query (ties: lower index first)
and looks at where the relevant items, those of the query's class, ended up. With rel_j = 1 if the
j-th ranked item is relevant and R the number of relevant items in the pool,

    P@k      = (1/k) sum_{j<=k} rel_j              in a pool smaller than k the missing ones count 0
    recall@k = (1/R) sum_{j<=k} rel_j
    AP       = (1/R) sum_j rel_j P@j
    AP@k     = (1/min(k, R)) sum_{j<=k} rel_j P@j   normalizer="hits": (1/number of hits among k)
    RR       = 1 / rank of the first relevant item
    nDCG@k   = sum_{j<=k} rel_j / log2(1 + j), divided by the largest value it can take

averaged over the queries with R > 0. A model is anything with ``score_items(queries, items)`` that
returns an (n_queries, n_items) array, higher = more similar, or a function that does the same.

`friedman` and `holm_pairwise` compare the results of several methods on several data sets.
"""

from .models import sparsity, triplet_accuracy
from .neighbours import knn_error_best_k, knn_error_curve, knn_predict
from .ranking import (
    mean_average_precision,
    mean_average_precision_at_k,
    mean_reciprocal_rank,
    ndcg,
    precision_at_k,
    ranking_report,
    ranking_report_from_scores,
    recall_at_k,
)
from .statistics import FriedmanResult, PairComparison, critical_difference, friedman, holm_pairwise

__all__ = [
    "FriedmanResult",
    "PairComparison",
    "critical_difference",
    "friedman",
    "holm_pairwise",
    "knn_error_best_k",
    "knn_error_curve",
    "knn_predict",
    "mean_average_precision",
    "mean_average_precision_at_k",
    "mean_reciprocal_rank",
    "ndcg",
    "precision_at_k",
    "ranking_report",
    "ranking_report_from_scores",
    "recall_at_k",
    "sparsity",
    "triplet_accuracy",
]
