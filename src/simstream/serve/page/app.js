// The page: the address holds the current view, so that "back" works and views can be linked to.

import { insist } from "./api.js";
import { introduceDemo } from "./demo.js";
import { byId } from "./dom.js";
import { showExplore, startExplore } from "./explore.js";
import { showLabel, startLabel } from "./label.js";
import { showStatus, startStatus } from "./status.js";
import { showTasks } from "./task.js";

const VIEWS = { label: showLabel, explore: showExplore, status: showStatus };

let shown = null;

function route() {
  if (location.hash === "#main") return; // the link "Skip to content"
  const [, name, id] = location.hash.split("/");
  const view = Object.hasOwn(VIEWS, name) ? name : "label";
  if (shown && shown !== view) VIEWS[shown](false);
  shown = view;
  for (const other of Object.keys(VIEWS)) byId(other).hidden = other !== view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${view} – simstream`;
  VIEWS[view](true, id === undefined ? undefined : readId(id));
}

/** The id in an address, which may have been typed by hand. */
function readId(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// Tasks first: the first question already depends on the task.
const status = await insist("GET", "/v1/status");
showTasks(status);
introduceDemo(status.demo);
startLabel();
startExplore();
startStatus();
window.addEventListener("hashchange", route);
route();
