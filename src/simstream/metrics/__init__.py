"""How good is a similarity: ranking measures, k-NN classification, triplet accuracy, sparsity.

A ranking measure sorts a pool of items by decreasing score for a query (ties: lower index first)
and looks at the ranks of the relevant items, those of the query's class. With rel_j = 1 if the
j-th ranked item is relevant and R the number of relevant items in the pool,

    P@k      = (1/k) sum_{j<=k} rel_j              always divided by k, even if the pool is smaller
    recall@k = (1/R) sum_{j<=k} rel_j
    AP       = (1/R) sum_j rel_j P@j
    AP@k     = (1/min(k, R)) sum_{j<=k} rel_j P@j   normalizer="all": 1/R, "hits": 1/number of hits among k
    RR       = 1 / rank of the first relevant item
    nDCG@k   = sum_{j<=k} rel_j / log2(1 + j), divided by its largest possible value

averaged over the queries with R > 0. A model is anything with a method ``score_items(queries, items)``
that returns an (n_queries, n_items) array, higher = more similar, or a function that does the same.

`ranking_per_query` and `paired_interval` compare two rankings of the same queries; `friedman`,
`holm_pairwise` and `critical_difference` compare several methods over several data sets.
"""

from .measures import (
    RankingMeasures,
    knn_error_best_k,
    knn_error_curve,
    knn_predict,
    knn_predict_proba,
    mean_average_precision,
    mean_average_precision_at_k,
    mean_reciprocal_rank,
    measure_ranking,
    ndcg,
    precision_at_k,
    ranking_per_query,
    ranking_report,
    ranking_report_from_scores,
    recall_at_k,
    sparsity,
    triplet_accuracy,
)
from .statistics import (
    FriedmanResult,
    Interval,
    PairComparison,
    critical_difference,
    friedman,
    holm_pairwise,
    paired_interval,
)

__all__ = [
    "FriedmanResult",
    "Interval",
    "PairComparison",
    "RankingMeasures",
    "critical_difference",
    "friedman",
    "holm_pairwise",
    "knn_error_best_k",
    "knn_error_curve",
    "knn_predict",
    "knn_predict_proba",
    "mean_average_precision",
    "mean_average_precision_at_k",
    "mean_reciprocal_rank",
    "measure_ranking",
    "ndcg",
    "paired_interval",
    "precision_at_k",
    "ranking_per_query",
    "ranking_report",
    "ranking_report_from_scores",
    "recall_at_k",
    "sparsity",
    "triplet_accuracy",
]
