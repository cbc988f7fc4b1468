// What only the demo knows: how much better the ranking of digits has become.

import { shareRow } from "./accuracy.js";
import { byId, element, number } from "./dom.js";

/** Say what the demo is about, in every view; nothing where there is no demo. */
export function introduceDemo(demo) {
  byId("about-demo").hidden = !demo;
  byId("about-demo").textContent = demo?.about ?? "";
  // Who looks at the demo wants to see things move.
  byId("follow").checked = Boolean(demo);
}

/** Show how many of the first neighbours are right, learnt and baseline. */
export function showPrecision(place, demo) {
  place.hidden = !demo;
  if (!demo) return;
  const { neighbours, items, learnt, baseline } = demo;
  const share = (accuracy) => ({ accuracy });
  place.replaceChildren(
    element("p", {}, `First ${neighbours} neighbours of the same number`),
    element(
      "div",
      { className: "accuracies" },
      ...shareRow("learnt", "Learnt", share(learnt)),
      ...shareRow("baseline", "Baseline", share(baseline)),
    ),
    element("p", { className: "hint" }, `Among ${number(items)} other digits, which nobody is asked about.`),
  );
}
