// Explore: the neighbours of an item before and after learning, and which of them moved.

import { servedSimilarity } from "./accuracy.js";
import { ApiError, insist } from "./api.js";
import { drawItem, find, items, load, total } from "./catalogue.js";
import { clicksTeach } from "./demo.js";
import { byId, contentOf, element, number, showItem } from "./dom.js";
import { clearMessage, tell } from "./notice.js";
import { poller } from "./polling.js";
import { currentTask, onTaskChange } from "./task.js";

/** Neighbours shown, and neighbours searched to find earlier ranks. */
const SHOWN = 12;
const KNOWN = 100;
/** Items listed at first, and added by each "More". */
const LISTED = 24;

let chosen = null;
let listed = LISTED;
let isShown = false;
/** Number of searches so far: only the answer to the last one is current. */
let searches = 0;

const follow = poller(async () => {
  if (chosen) await search(chosen);
}, 2);

export function startExplore() {
  byId("finder").addEventListener("submit", (event) => {
    event.preventDefault();
    chooseTyped();
  });
  byId("find").addEventListener("input", () => {
    listed = LISTED;
    drawList();
  });
  byId("more").addEventListener("click", () => {
    listed += LISTED;
    drawList();
  });
  byId("random").addEventListener("click", chooseRandom);
  byId("follow").addEventListener("change", keepUp);
  onTaskChange(() => isShown && chosen && search(chosen));
}

/** Called when the view appears, with the id in the address if there is one, or disappears. */
export function showExplore(isVisible, id) {
  isShown = isVisible;
  keepUp();
  if (!isVisible) return;
  load(drawList);
  if (id) search(id);
  else if (chosen) search(chosen);
  else chooseRandom();
}

const keepUp = () => follow(isShown && byId("follow").checked);

function choose(id) {
  clearMessage();
  const address = `#/explore/${encodeURIComponent(id)}`;
  if (location.hash === address) search(id);
  else location.hash = address;
}

async function chooseRandom() {
  const item = await drawItem();
  if (item) choose(item.id);
  else byId("found-live").textContent = "There are no items yet.";
}

/** Enter chooses the item with exactly this id, else the first match, else asks the service for the id. */
function chooseTyped() {
  const typed = byId("find").value.trim();
  if (!typed) return;
  const found = find(typed);
  const exact = found.find((item) => item.id === typed);
  choose((exact ?? found[0])?.id ?? typed);
}

async function search(id) {
  searches += 1;
  const mine = searches;
  const body = { item: id, task: currentTask(), baseline: true };
  let ranks, contents, status;
  try {
    [ranks, contents, status] = await Promise.all([
      insist("POST", "/v1/search", { ...body, k: KNOWN }),
      insist("POST", "/v1/search", { ...body, k: SHOWN, payload: true }),
      insist("GET", "/v1/status"),
    ]);
    if (mine !== searches) return;
    if (chosen !== id) await showChosen(id);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    tell(`${error.message}.`);
    return;
  }
  if (mine !== searches) return;
  byId("learnt-what").textContent = servedSimilarity(status.published);
  drawNeighbours(ranks, new Map([...contents.baseline, ...contents.results].map((hit) => [hit.id, hit])));
}

async function showChosen(id) {
  const item = items.find((known) => known.id === id && (known.image || known.text));
  showItem(byId("chosen"), item ?? (await insist("GET", `/v1/items/${encodeURIComponent(id)}`)));
  chosen = id;
}

function drawNeighbours(ranks, contentById) {
  const [before, after] = [ranks.baseline, ranks.results].map((hits) => hits.map((hit) => hit.id));
  const cameFrom = moves(after, before, SHOWN);
  const wentTo = moves(before, after, SHOWN);
  const draw = (move, note, onClick) =>
    neighbour(contentById.get(move.id) ?? { id: move.id }, move, note, onClick);
  const shown = cameFrom.map((move) => move.id);
  const query = chosen;
  const teach = (id) => clicksTeach && tellClick(query, shown, id);
  replaceEntries(byId("learnt"), cameFrom.map((move) => draw(move, learntNote(move), teach)));
  replaceEntries(byId("baseline"), wentTo.map((move) => draw(move, baselineNote(move), () => {})));
  byId("neighbours").hidden = false;
  const fresh = cameFrom.filter((move) => move.kind === "new").length;
  const moved = cameFrom.filter((move) => move.kind !== "same").length;
  const summary = moved
    ? `${moved} of the ${cameFrom.length} nearest neighbours moved, ${fresh} of them are new.`
    : "The nearest neighbours are unchanged.";
  const live = byId("explore-live");
  if (live.textContent !== summary) live.textContent = summary;
}

/** What was clicked beats what was shown above it. */
async function tellClick(query, shown, id) {
  try {
    await insist("POST", "/v1/feedback", { query, shown, clicked: [id], task: currentTask() });
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    tell(`${error.message}.`);
  }
}

/**
 * Each of the first `shown` ids of a ranking with its rank in another ranking.
 *
 * `from` is null if the known part of the other ranking does not contain the id; `kind` is "same", "up",
 * "down", or "new" for an id that is not among the first `shown` of the other ranking.
 */
function moves(ranking, other, shown) {
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

/** Replace the entries; the focus stays on its item if that is still there. */
function replaceEntries(list, entries) {
  const focused = list.contains(document.activeElement) ? document.activeElement.closest("li").dataset.id : null;
  list.replaceChildren(...entries);
  if (focused === null) return;
  entries.find((entry) => entry.dataset.id === focused)?.querySelector("button").focus({ preventScroll: true });
}

const place = (rank) => (rank === null ? `beyond ${KNOWN}` : String(rank));

function learntNote({ kind, from, rank }) {
  if (kind === "new") return ["new", "new", `was ${place(from)}`];
  if (kind === "up") return ["up", `▲\u202f${from - rank}`, `up from ${from}`];
  if (kind === "down") return ["down", `▼\u202f${rank - from}`, `down from ${from}`];
  return ["same", "=", "same rank"];
}

function baselineNote({ kind, from }) {
  return kind === "new" ? ["gone", "out", `now ${place(from)}`] : ["stays", `→\u202f${from}`, `now ${from}`];
}

function neighbour(item, move, [kind, mark, meaning], onClick) {
  const visible = kind === "new" || kind === "gone" ? `${mark}, ${meaning}` : mark;
  const button = element(
    "button",
    { type: "button", title: `${item.id}: ${meaning}` },
    element("span", { className: "rank" }, String(move.rank)),
    ...contentOf(item),
    element("span", { className: "mark", "aria-hidden": "true" }, visible),
    element("span", { className: "for-readers" }, meaning),
  );
  button.addEventListener("click", () => {
    onClick(item.id);
    choose(item.id);
  });
  return element("li", { className: `neighbour ${kind}`, "data-id": item.id }, button);
}

function drawFound(found) {
  const shown = [...byId("found").children].map((entry) => entry.dataset.id);
  // Unchanged entries stay: one may have the focus.
  if (found.length === shown.length && found.every((item, i) => item.id === shown[i])) return;
  byId("found").replaceChildren(
    ...found.map((item) => {
      const button = element("button", { type: "button", className: "card" }, ...contentOf(item));
      button.addEventListener("click", () => choose(item.id));
      return element("li", { "data-id": item.id }, button);
    }),
  );
}

function drawList() {
  const words = byId("find").value.trim();
  const found = find(words);
  drawFound(found.slice(0, listed));
  byId("more").hidden = found.length <= listed;
  const searched =
    items.length < total
      ? ` of the first ${number(items.length)} of ${number(total)} items; any exact id can be entered too`
      : ` of ${number(total)} items`;
  byId("found-live").textContent = words
    ? `${number(found.length)}${searched}`
    : `${number(total)} items`;
}
