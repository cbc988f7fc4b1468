// How often each similarity predicted what people said, with its interval; and which of them is served.

import { element, number, percent, svg } from "./dom.js";

/** Show an accuracy in an element; `recent` shows that of the most recent answers. */
export function showAccuracy(place, accuracy, { recent = false } = {}) {
  const [count, learnt, baseline] = recent
    ? [accuracy.recent_answers, accuracy.recent_learnt, accuracy.recent_baseline]
    : [accuracy.random_answers, accuracy.learnt, accuracy.baseline];
  const what = count === 1 ? "random question" : "random questions";
  const about = count
    ? `Measured on ${count} ${what}, each predicted before learning from its answer. Bars: 95\u202f% intervals.`
    : "No random question has been answered yet. Some questions are drawn at random to measure the accuracy.";
  place.replaceChildren(
    element(
      "div",
      { className: "accuracies" },
      ...shareRow("learnt", "Learnt", learnt),
      ...shareRow("baseline", "Baseline", baseline),
    ),
    element("p", { className: "hint" }, about),
  );
}

/**
 * Show which similarity is served and why: inner product, learnt and trusted similarity beside each other. Nothing is
 * shown where what was learnt is always served.
 */
export function showPublished(place, published) {
  place.hidden = published.promote !== "safe";
  if (place.hidden) return;
  const { baseline, learnt, trusted, events, new_queries: fresh, why } = published;
  const about = events
    ? `Comparisons of ${number(fresh)} new queries, each predicted before learning from it; newer ones count more. ` +
      "Bars: 95\u202f% intervals."
    : "Nothing has been measured yet.";
  place.replaceChildren(
    element("p", {}, "Served: ", element("strong", {}, servedSimilarity(published))),
    element(
      "div",
      { className: "accuracies" },
      ...shareRow("baseline", "Baseline", baseline),
      ...shareRow("learnt", "Learnt", learnt),
      ...shareRow("trusted", "Trusted", trusted),
    ),
    element("p", { className: "hint" }, `${why} ${about}`),
  );
}

/** What searches use, in words. */
export function servedSimilarity({ serves, trust }) {
  if (serves === "baseline") return "inner product";
  return serves === "learnt" ? "learnt similarity" : `learnt similarity, trust ${trust}`;
}

/**
 * Name, bar, value and interval of a share. Without `low` and `high` there is no interval and no mark for guessing
 * at 50 %.
 */
export function shareRow(kind, name, share) {
  const known = share.accuracy !== null;
  const value = known ? percent(share.accuracy) : "–";
  const isEstimate = share.low !== undefined;
  const range = known && isEstimate ? `${Math.round(100 * share.low)}–${percent(share.high)}` : "";
  return [
    element("span", { className: "name" }, name),
    bar(kind, { low: 0, high: share.accuracy, ...share }, isEstimate),
    element("span", { className: `value ${kind}` }, value),
    element("span", { className: "range hint" }, range),
  ];
}

function bar(kind, share, isEstimate) {
  const parts = [svg("rect", { class: "track", x: 0, y: 5, width: 100, height: 6 })];
  if (isEstimate) parts.push(svg("line", { class: "guess", x1: 50, x2: 50, y1: 1, y2: 15 }));
  if (share.accuracy !== null) {
    const width = 100 * (share.high - share.low);
    parts.push(
      svg("rect", { class: `interval ${kind}`, x: 100 * share.low, y: 4, width, height: 8 }),
      svg("line", {
        class: `point ${kind}`,
        x1: 100 * share.accuracy,
        x2: 100 * share.accuracy,
        y1: 1,
        y2: 15,
      }),
    );
  }
  return svg(
    "svg",
    { class: "bar", viewBox: "-1 0 102 16", preserveAspectRatio: "none", "aria-hidden": "true" },
    ...parts,
  );
}
