// What moved between two rankings.

/**
 * Each of the first `shown` ids of a ranking with its rank in another one.
 *
 * `from` is null where the other ranking, as far as it is known, does not have it; `kind` is "same",
 * "up", "down", or "new" for an id that is not among the first `shown` of the other one.
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
