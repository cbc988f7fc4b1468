// Status: figures and the loss curve, refreshed while the page is visible.

import { showAccuracy, showPublished } from "./accuracy.js";
import { insist } from "./api.js";
import { drawCurve } from "./curve.js";
import { showPrecision } from "./demo.js";
import { byId, element, number } from "./dom.js";
import { poller } from "./polling.js";
import { showTasks } from "./task.js";

let status = null;

const refresh = poller(async () => {
  status = await insist("GET", "/v1/status");
  showTasks(status);
  draw();
}, 2);

export function startStatus() {
  window.addEventListener("resize", () => status && !byId("status").hidden && draw());
}

/** Called when the view appears or disappears. */
export function showStatus(isVisible) {
  refresh(isVisible);
}

function draw() {
  const { algorithm, params } = status.algorithm;
  const settings = Object.entries(params).map(([name, value]) => `${name} = ${value}`);
  const figures = [
    ["Throughput", `${number(status.throughput)} /s`, "new events"],
    ["Comparisons", number(status.triplets), "learnt from"],
    ["Questions", number(status.questions), `${number(status.answers)} answered, ${number(status.skips)} skipped`],
    ["Query ratio", share(status.query_ratio), "share of candidate questions asked"],
    ["Sparsity", share(status.sparsity), "zeros in the matrix"],
    ["Items", number(status.items), status.n_features ? `${number(status.n_features)} features` : ""],
    ["Version", number(status.served), version(status)],
    ["Lag", number(status.lag), "events not yet learnt"],
    ["Learner", algorithm, settings.join(", ")],
  ];
  byId("figures").replaceChildren(
    ...figures.map(([name, value, about]) =>
      element(
        "div",
        {},
        element("dt", {}, name),
        element("dd", {}, value),
        element("dd", { className: "hint" }, about),
      ),
    ),
  );
  const warning = byId("status-warning");
  warning.hidden = !status.diverged;
  const told = `${number(status.diverged)} comparisons were left out because learning would have diverged.`;
  if (status.diverged && warning.textContent !== told) warning.textContent = told;
  drawCurve(byId("curve"), status.losses);
  showAccuracy(byId("status-accuracy"), status.accuracy);
  showPublished(byId("status-published"), status.published);
  byId("status-rule").textContent = status.published.rule ?? status.published.why;
  showPrecision(byId("status-precision"), status.demo);
  byId("refreshed").textContent = `As of ${new Date().toLocaleTimeString()}; refreshes every 2 s while this page is visible.`;
}

const share = (value) => (value === null ? "–" : `${number(100 * value)}\u202f%`);

function version({ pinned, position }) {
  return pinned === null ? `log position served, of ${number(position)}` : `pinned log position, of ${number(position)}`;
}
