// What moved between two rankings.

/**
 * Each of the first `shown` ids of a ranking with its rank in another ranking.
 *
 * `from` is null if the known part of the other ranking does not contain the id; `kind` is "same", "up",
 * "down", or "new" for an id that is not among the first `shown` of the other ranking.
 */
export function moves(ranking, other, shown) {
  const rankIn = new Map(other.map((id, place) => [id, place + 1]));
  return ranking.slice(0, shown).map((id, place) => {
    const rank = place + 1;
    const from = rankIn.get(id) ?? null;
    let kind = "same";
    if (from === null || from > shown) kind = "new";
    else if (from > rank) kind = "up";
    else if (from < rank) kind = "down";
    return { id, rank, from, kind };
  });
}
