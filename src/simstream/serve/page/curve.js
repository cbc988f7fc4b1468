// The loss curve, drawn at the width of the page.

import { element, number, svg } from "./dom.js";

const HEIGHT = 200;
const MARGIN = { left: 44, right: 12, top: 8, bottom: 36 };

/** Draw points {triplets, loss} in an element, with a running mean. */
export function drawCurve(place, points) {
  if (points.length < 2) {
    const text = "The curve appears after a few comparisons.";
    place.replaceChildren(element("p", { className: "hint" }, text));
    return;
  }
  const width = Math.max(240, place.clientWidth);
  const most = points.at(-1).triplets;
  const highest = Math.max(...points.map((point) => point.loss), 1e-9);
  const ticks = niceTicks(highest);
  if (ticks.at(-1) < highest) ticks.push(ticks.length * ticks[1]);
  const top = ticks.at(-1);
  const x = (triplets) => MARGIN.left + (triplets / most) * (width - MARGIN.left - MARGIN.right);
  const y = (loss) => HEIGHT - MARGIN.bottom - (loss / top) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  const path = (values) =>
    values
      .map((value, i) => `${i ? "L" : "M"}${x(points[i].triplets).toFixed(1)} ${y(value).toFixed(1)}`)
      .join("");
  const losses = points.map((point) => point.loss);
  const smooth = runningMean(losses, Math.max(1, Math.round(points.length / 20)));
  const about =
    `Loss over ${number(most)} comparisons: ${number(smooth[0], 2)} at first, ` +
    `${number(smooth.at(-1), 2)} now.`;
  place.replaceChildren(
    svg(
      "svg",
      { class: "curve", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": about },
      ...ticks.flatMap((tick) => [
        svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(tick), y2: y(tick) }),
        svg("text", { x: MARGIN.left - 6, y: y(tick) + 4, "text-anchor": "end" }, number(tick)),
      ]),
      ...niceTicks(most, 4).map((tick) => svg(
        "text",
        { x: x(tick), y: HEIGHT - MARGIN.bottom + 16, "text-anchor": x(tick) > width - 40 ? "end" : "middle" },
        number(tick),
      )),
      svg("text", { x: (MARGIN.left + width) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, "comparisons"),
      svg("path", { class: "raw", d: path(losses) }),
      svg("path", { class: "smooth", d: path(smooth) }),
    ),
    element("p", { className: "hint" }, about),
  );
}

/** Round numbers from 0 to at most `most`, in about `count` steps. */
function niceTicks(most, count = 4) {
  const rough = most / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough) * power;
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => i * step);
}

/** The mean of each value and up to `reach` neighbours on either side. */
function runningMean(values, reach) {
  return values.map((_, i) => {
    const part = values.slice(Math.max(0, i - reach), i + reach + 1);
    return part.reduce((sum, value) => sum + value, 0) / part.length;
  });
}
