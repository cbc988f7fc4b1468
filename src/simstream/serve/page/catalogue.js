// Items to choose from: the service lists them in order, ids and texts are searched here.

import { insist } from "./api.js";

/** Limits: bytes of texts and pictures kept here, bytes of one request, number of ids, ids of one request. */
const MOST_BYTES = 8_000_000;
const BYTES_AT_ONCE = 500_000;
const MOST_ITEMS = 20_000;
const MOST_AT_ONCE = 1000;

/** Items, with text and picture as long as there is room. */
export const items = [];
export let total = 0;

let loading = null;

/** Load items and call back after each part; a second call joins the first. */
export function load(onProgress) {
  loading ??= loadAll(onProgress).finally(() => (loading = null));
  return loading;
}

async function loadAll(onProgress) {
  const loaded = [];
  let bytes = 0;
  do {
    // Pictures may be large: the first few show how many fit into one request.
    const size = bytes / loaded.length;
    const payload = bytes < MOST_BYTES;
    const fitting = loaded.length ? Math.floor(BYTES_AT_ONCE / Math.max(size, 1)) : 24;
    const limit = payload ? Math.min(MOST_AT_ONCE, Math.max(1, fitting)) : MOST_AT_ONCE;
    const path = `/v1/items?offset=${loaded.length}&limit=${limit}&payload=${payload}`;
    const part = await insist("GET", path);
    total = part.total;
    if (!part.items.length) break;
    for (const item of part.items) {
      loaded.push(item);
      if (payload) bytes += 50 + (item.text?.length ?? 0) + (item.image?.length ?? 0);
    }
    if (loaded.length >= items.length) replaceItems(loaded);
    onProgress();
  } while (loaded.length < Math.min(total, MOST_ITEMS));
  replaceItems(loaded);
  onProgress();
}

function replaceItems(loaded) {
  items.length = 0;
  for (const item of loaded) items.push(item);
}

/** Items whose id or text contains all of the words, ignoring case. */
export function find(words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return items.filter((item) => {
    const text = `${item.id} ${item.text ?? ""}`.toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}

/** A random item of all there are. */
export async function drawItem() {
  const { total: count } = await insist("GET", "/v1/items?limit=1");
  if (!count) return null;
  const offset = Math.floor(Math.random() * count);
  const { items: drawn } = await insist("GET", `/v1/items?offset=${offset}&limit=1&payload=true`);
  return drawn[0] ?? null;
}
