// Only in a demo: how much better the ranking has become.

import { shareRow } from "./accuracy.js";
import { byId, element } from "./dom.js";

/** Explain the demo in every view; show nothing without a demo. */
export function introduceDemo(demo) {
  byId("about-demo").hidden = !demo;
  byId("about-demo").textContent = demo?.about ?? "";
  // In the demo people want to see things move.
  byId("follow").checked = Boolean(demo);
  clicksTeach = Boolean(demo?.clicks);
}

/** Whether a click on a result is a judgement. */
export let clicksTeach = false;

/** Show the share of what was found: baseline, learnt and, where it is another one, served. */
export function showPrecision(place, demo) {
  place.hidden = !demo;
  if (!demo) return;
  const { what, how, learnt, trusted, baseline } = demo;
  const share = (accuracy) => ({ accuracy });
  place.replaceChildren(
    element("p", {}, what),
    element(
      "div",
      { className: "accuracies" },
      ...shareRow("learnt", "Learnt", share(learnt)),
      ...shareRow("baseline", "Baseline", share(baseline)),
      ...(trusted === learnt ? [] : shareRow("trusted", "Trusted", share(trusted))),
    ),
    element("p", { className: "hint" }, how),
  );
}
