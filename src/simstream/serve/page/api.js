// Requests to the service, and what to do if it is busy or asks for a key.

import { askForKey, countDown, troubleIsOver } from "./notice.js";

// The address of the page: "", or "/c/shoes" of one of several collections.
const BASE = location.pathname.replace(/\/$/, "");
const KEY = `simstream-key${BASE}`;

/** A refused request; status 0 if the service could not be reached. */
export class ApiError extends Error {
  constructor(message, status, retryAfter) {
    super(message);
    this.status = status;
    /** Seconds to wait before the next attempt. */
    this.retryAfter = retryAfter;
  }

  /** Whether the same request may succeed later. */
  get isTemporary() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

/** Send a request once, to a path below the page's own; return the JSON values of the answer. */
export async function request(method, path, body) {
  const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(BASE + path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "omit",
      signal: AbortSignal.timeout(60_000),
    });
  } catch {
    throw new ApiError("The service cannot be reached.", 0, 3);
  }
  const content = await response.json().catch(() => null);
  if (!response.ok) {
    const message = content?.error ?? `The service answered ${response.status}.`;
    const retryAfter = Number(response.headers.get("Retry-After")) || 3;
    throw Object.assign(new ApiError(message, response.status, retryAfter), { key });
  }
  return content;
}

// One wait at a time: other requests that fail in the meantime share it.
let trouble = null;

/**
 * Repeat a request until there is an answer: wait if the service is busy, ask for a key if it needs one.
 * Only for requests that may be repeated; other errors are thrown.
 */
export async function insist(method, path, body) {
  for (;;) {
    try {
      const answer = await request(method, path, body);
      if (!trouble) troubleIsOver();
      return answer;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const needsKey = error.status === 401 || error.status === 403;
      if (!needsKey && !error.isTemporary) throw error;
      if (needsKey && error.key !== sessionStorage.getItem(KEY)) continue; // there is another key by now
      trouble ??= (needsKey ? newKey(error) : countDown(explain(error), error.retryAfter)).finally(
        () => (trouble = null),
      );
      await trouble;
    }
  }
}

async function newKey(error) {
  const hadKey = sessionStorage.getItem(KEY) !== null;
  const reason =
    error.status === 403
      ? `Refused: ${error.message}.`
      : hadKey
        ? "The service does not recognise this key."
        : "This service needs a key.";
  sessionStorage.setItem(KEY, await askForKey(reason));
}

function explain(error) {
  if (error.status === 0) return error.message;
  if (error.status === 429) return "Too many requests.";
  if (error.status === 503) return `The service is busy (${error.message}).`;
  if (error.status === 507) return "The service cannot write to its disk; nothing was saved.";
  return `Server error (${error.message}).`;
}
