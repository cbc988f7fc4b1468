// Only in the demo: how much better the ranking of digits has become.

import { shareRow } from "./accuracy.js";
import { byId, element, number } from "./dom.js";

/** Explain the demo in every view; show nothing without a demo. */
export function introduceDemo(demo) {
  byId("about-demo").hidden = !demo;
  byId("about-demo").textContent = demo?.about ?? "";
  // In the demo people want to see things move.
  byId("follow").checked = Boolean(demo);
}

/** Show the share of correct neighbours: baseline, learnt and, where it is another one, served. */
export function showPrecision(place, demo) {
  place.hidden = !demo;
  if (!demo) return;
  const { neighbours, items, learnt, trusted, baseline } = demo;
  const share = (accuracy) => ({ accuracy });
  place.replaceChildren(
    element("p", {}, `Top-${neighbours} neighbours showing the same digit`),
    element(
      "div",
      { className: "accuracies" },
      ...shareRow("learnt", "Learnt", share(learnt)),
      ...shareRow("baseline", "Baseline", share(baseline)),
      ...(trusted === learnt ? [] : shareRow("trusted", "Trusted", share(trusted))),
    ),
    element("p", { className: "hint" }, `Measured on ${number(items)} held-out digits, which are never asked about.`),
  );
}
