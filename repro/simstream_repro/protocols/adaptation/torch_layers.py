"""What people train instead: linear layers in batches, with torch on one core.

Every layer is square, starts at the identity and is trained with AdamW at four rates. A fifth of what there
is to learn from is held out: it says when to stop, and which rate to take. The untrained layer is one of
the candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from simstream.extras import MissingExtraError

from .tasks import LabelTask, SearchTask, TripletTask

#: For query maps, and for layers that see labels or triplets.
SEARCH_RATES = (1e-4, 3e-4, 1e-3, 3e-3)
LAYER_RATES = (3e-4, 1e-3, 3e-3, 1e-2)
WEIGHT_DECAY = 0.01
MAX_EPOCHS = 100
#: Epochs without a better value on what is held out, after which training ends.
PATIENCE = 8
HELD_OUT_SHARE = 0.2

SEARCH_TEMPERATURE = 0.05
SEARCH_BATCH = 64
#: Hard negatives of each pair in a batch, drawn from the nearest items that are not relevant.
N_HARD, HARD_POOL = 8, 50

LABEL_BATCH = 256
SUPCON_TEMPERATURE = 0.1
LABEL_MARGIN = 0.2

TRIPLET_BATCH = 2048
TRIPLET_MARGIN = 0.2

#: Beyond any difference of cosines.
_FAR = 9.0


def load_torch() -> Any:
    """The module torch, working on one core."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("a layer of torch", "torch", "torch") from None
    torch.set_num_threads(1)
    return torch


def train_layer(
    d: int,
    seed: int,
    rates: Sequence[float],
    batches: Callable[[], Iterator[Any]],
    loss_of: Callable[[Any, Any], Any],
    quality_of: Callable[[Any], float],
) -> tuple[np.ndarray, dict[str, Any]]:
    """Train x -> x + xD at every rate, and take what is best on what is held out.

    Weight decay pulls D to 0, so the layer to the identity.

    Parameters
    ----------
    d : int
    seed : int
        Every rate sees the same batches.
    rates : sequence of float
    batches : function
        The batches of an epoch.
    loss_of : function of D and a batch
    quality_of : function of D
        Higher is better, on what is held out.

    Returns
    -------
    matrix : (d, d) float32 array
        I + D.
    details : dict
        What was chosen: the rate (None: the identity), its epochs, the qualities before and after.
    """
    torch = load_torch()
    with torch.no_grad():
        before = quality_of(torch.zeros(d, d))
    chosen: dict[str, Any] = {"rate": None, "epochs": 0}
    best, n_epochs = (before, torch.zeros(d, d)), 0
    for rate in rates:
        torch.manual_seed(seed)
        change = torch.zeros(d, d, requires_grad=True)
        optimizer = torch.optim.AdamW([change], lr=rate, weight_decay=WEIGHT_DECAY)
        top, since = before, 0
        for epoch in range(1, MAX_EPOCHS + 1):
            for batch in batches():
                optimizer.zero_grad()
                loss_of(change, batch).backward()
                optimizer.step()
            n_epochs += 1
            with torch.no_grad():
                quality = quality_of(change)
            since = 0 if quality > top else since + 1
            top = max(top, quality)
            if quality > best[0]:
                best = quality, change.detach().clone()
                chosen = {"rate": rate, "epochs": epoch}
            if since == PATIENCE:
                break
    matrix = np.eye(d, dtype=np.float32) + best[1].numpy()
    return matrix, {**chosen, "all epochs": n_epochs, "held out": [before, best[0]]}


# -- search -------------------------------------------------------------------------------------------------


def train_query_map(task: SearchTask) -> tuple[np.ndarray, dict[str, Any]]:
    """Train a query map with a softmax over in-batch and hard negatives, stopped by nDCG@10.

    Queries q become qM, and inner products of qM with the unchanged items rank. In training qM has length
    one, and cosines are divided by the temperature. An item of the batch that is relevant to a query is no
    negative for it.

    Parameters
    ----------
    task : SearchTask

    Returns
    -------
    matrix : (d, d) array
    details : dict
    """
    torch = load_torch()
    n, d = task.queries.shape
    queries, items = torch.from_numpy(task.queries), torch.from_numpy(task.items)
    relevant = torch.zeros(n, len(items), dtype=torch.bool)
    relevant[tuple(torch.from_numpy(task.relevance.T.copy()))] = True
    held_out, kept = _hold_out(n, task.seed)
    held_queries, held_relevant = queries[held_out], relevant[held_out]
    queries, relevant = queries[kept], relevant[kept]
    pairs = torch.nonzero(relevant)
    pool = min(HARD_POOL, len(items))
    near = torch.topk((queries @ items.T).masked_fill(relevant, -_FAR), pool, dim=1).indices

    def batches() -> Iterator[Any]:
        for rows in torch.randperm(len(pairs)).split(SEARCH_BATCH):
            query, positive = pairs[rows].T
            hard = near[query[:, None], torch.randint(pool, (len(rows), N_HARD))]
            yield query, torch.cat([positive, hard.flatten()])

    def loss_of(change: Any, batch: Any) -> Any:
        query, candidates = batch
        own = torch.arange(len(query))
        mapped = _unit(queries[query] + queries[query] @ change)
        known = relevant[query[:, None], candidates]
        known[own, own] = False
        scores = (mapped @ items[candidates].T / SEARCH_TEMPERATURE).masked_fill(known, -torch.inf)
        return torch.nn.functional.cross_entropy(scores, own)

    def quality_of(change: Any) -> float:
        return ndcg_at_10((held_queries + held_queries @ change) @ items.T, held_relevant)

    return train_layer(d, task.seed, SEARCH_RATES, batches, loss_of, quality_of)


def ndcg_at_10(scores: Any, relevant: Any) -> float:
    """Mean nDCG@10 of tensors of scores and of relevance, every query with a relevant item."""
    torch = load_torch()
    k = min(10, scores.shape[1])
    discounts = 1 / torch.log2(torch.arange(2.0, k + 2))
    top = torch.topk(scores, k, dim=1).indices
    gains = (torch.gather(relevant, 1, top) * discounts).sum(dim=1)
    most = torch.cumsum(discounts, dim=0)[relevant.sum(dim=1).clamp(1, k) - 1]
    return float((gains / most).mean())


# -- labels -------------------------------------------------------------------------------------------------


def train_supcon(task: LabelTask) -> tuple[np.ndarray, dict[str, Any]]:
    """Train a layer with the supervised contrastive loss, stopped by mAP."""
    return _train_from_labels(task, supcon_loss)


def train_triplet_loss(task: LabelTask) -> tuple[np.ndarray, dict[str, Any]]:
    """Train a layer with the triplet loss and semi-hard negatives, stopped by mAP."""
    return _train_from_labels(task, semi_hard_loss)


def supcon_loss(embedded: Any, same: Any) -> Any:
    """The loss of Khosla et al. 2020: every other item of the class against all other items of the batch.

    Parameters
    ----------
    embedded : (n, d) tensor
        Rows of length one.
    same : (n, n) tensor of bool
        Whether two items are of one class; False for an item and itself.
    """
    torch = load_torch()
    itself = torch.eye(len(embedded), dtype=torch.bool)
    scores = (embedded @ embedded.T / SUPCON_TEMPERATURE).masked_fill(itself, -torch.inf)
    logs = torch.log_softmax(scores, dim=1).masked_fill(~same, 0.0)
    n_same = same.sum(dim=1)
    return -(logs.sum(dim=1)[n_same > 0] / n_same[n_same > 0]).mean()


def semi_hard_loss(embedded: Any, same: Any) -> Any:
    """The triplet loss of Schroff et al. 2015: every pair of a class with its semi-hard negative.

    That is the nearest item of another class that is farther than the positive; if there is none, the
    farthest. Parameters are those of `supcon_loss`.
    """
    torch = load_torch()
    distances = 1 - embedded @ embedded.T
    is_other = ~(same | torch.eye(len(embedded), dtype=torch.bool))
    n_others = is_other.sum(dim=1, keepdim=True)
    others = distances.masked_fill(~is_other, _FAR).sort(dim=1).values
    farther = torch.searchsorted(others.detach(), distances.detach(), right=True)
    far = others.gather(1, torch.minimum(farther, n_others - 1).clamp_min(0))
    losses = torch.relu(distances - far + LABEL_MARGIN)
    return losses[same & (n_others > 0)].sum() / (same & (n_others > 0)).sum().clamp_min(1)


def _train_from_labels(
    task: LabelTask, loss_of_batch: Callable[[Any, Any], Any]
) -> tuple[np.ndarray, dict[str, Any]]:
    torch = load_torch()
    items = torch.from_numpy(task.items)
    labels = torch.from_numpy(np.unique(task.labels, return_inverse=True)[1])
    held_out, kept = _hold_out(len(items), task.seed)

    def batches() -> Iterator[Any]:
        for rows in torch.randperm(len(kept)).split(LABEL_BATCH):
            if len(rows) > 1:
                yield kept[rows]

    def same_class(rows: Any) -> Any:
        return (labels[rows, None] == labels[rows]).fill_diagonal_(False)

    def embed(change: Any, rows: Any) -> Any:
        return _unit(items[rows] + items[rows] @ change)

    def loss_of(change: Any, rows: Any) -> Any:
        return loss_of_batch(embed(change, rows), same_class(rows))

    held_same = same_class(held_out)

    def quality_of(change: Any) -> float:
        embedded = embed(change, held_out)
        scores = (embedded @ embedded.T).fill_diagonal_(-_FAR)
        hits = torch.gather(held_same, 1, torch.argsort(scores, dim=1, descending=True)).double()
        precisions = hits.cumsum(dim=1) / torch.arange(1, len(hits) + 1)
        n_same = hits.sum(dim=1)
        found = (precisions * hits).sum(dim=1)[n_same > 0] / n_same[n_same > 0]
        return float(found.mean())

    return train_layer(items.shape[1], task.seed, LAYER_RATES, batches, loss_of, quality_of)


# -- triplets -----------------------------------------------------------------------------------------------


def train_on_triplets(task: TripletTask) -> tuple[np.ndarray, dict[str, Any]]:
    """Train a layer with the triplet loss on triplets people answered, stopped by accuracy."""
    torch = load_torch()
    items = torch.from_numpy(task.items)
    triplets = torch.from_numpy(task.triplets)
    held_out, kept = _hold_out(len(triplets), task.seed)
    held_out, kept = triplets[held_out], triplets[kept]

    def margins(change: Any, rows: Any) -> Any:
        # there are far fewer items than triplets: embed each once
        embedded = _unit(items + items @ change)
        scores = embedded @ embedded.T
        anchor, near, far = rows.T
        return scores[anchor, near] - scores[anchor, far]

    def batches() -> Iterator[Any]:
        for rows in torch.randperm(len(kept)).split(TRIPLET_BATCH):
            yield kept[rows]

    def loss_of(change: Any, rows: Any) -> Any:
        return torch.relu(TRIPLET_MARGIN - margins(change, rows)).mean()

    def quality_of(change: Any) -> float:
        return float((margins(change, held_out) > 0).double().mean())

    return train_layer(items.shape[1], task.seed, LAYER_RATES, batches, loss_of, quality_of)


def _hold_out(n: int, seed: int) -> tuple[Any, Any]:
    """Rows that are held out, at least one, and the others."""
    torch = load_torch()
    shuffled = torch.from_numpy(np.random.default_rng([seed, 2]).permutation(n))
    n_held_out = max(1, int(HELD_OUT_SHARE * n))
    return shuffled[:n_held_out], shuffled[n_held_out:]


def _unit(rows: Any) -> Any:
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12)
