// Label: one question at a time, answered by a click or a key.

import { showAccuracy, showPublished } from "./accuracy.js";
import { ApiError, insist } from "./api.js";
import { showPrecision } from "./demo.js";
import { byId, number, percent, showItem } from "./dom.js";
import { clearMessage, tell } from "./notice.js";
import { poller } from "./polling.js";
import { currentTask, onTaskChange } from "./task.js";

const KEYS = {
  ArrowLeft: () => answer(0),
  ArrowRight: () => answer(1),
  ArrowDown: () => answer(null),
  s: () => answer(null),
  u: undo,
  Backspace: undo,
};

let question = null;
/** Open questions that were replaced by an undone one; they come next. */
const setAside = [];
/** Positions of the answers given here, for undo. */
const given = [];
let counts = { answers: 0, skips: 0, accuracy: null };
/** Grows with every answer given or undone here: counts requested before are out of date. */
let changes = 0;
let isBusy = false;
let isShown = false;

export function startLabel() {
  byId("left").addEventListener("click", () => answer(0));
  byId("right").addEventListener("click", () => answer(1));
  byId("skip").addEventListener("click", () => answer(null));
  byId("undo").addEventListener("click", undo);
  byId("ask-again").addEventListener("click", () => alone(next));
  document.addEventListener("keydown", onKey);
  onTaskChange(() => {
    setAside.length = 0;
    if (isShown) alone(next);
    else question = null;
  });
}

// Other people may be answering too.
const keepCounting = poller(refreshCounts, 3);

/** Called when the view appears or disappears. */
export function showLabel(isVisible) {
  isShown = isVisible;
  keepCounting(isVisible);
  if (isVisible && !question) alone(next);
}

function onKey(event) {
  const action = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  const isTyping = event.target.closest?.("input, textarea, select");
  if (!action || !isShown || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  // Holding a key down gives one answer only.
  if (!event.repeat) action();
}

/** Do one thing at a time: anything pressed in the meantime is ignored. */
async function alone(work) {
  if (isBusy) return;
  setBusy(true);
  clearMessage();
  try {
    await work();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    tell(`${error.message}.`);
  } finally {
    setBusy(false);
  }
}

function setBusy(busy) {
  isBusy = busy;
  byId("question").setAttribute("aria-busy", busy);
  // Not `disabled`, which would lose the focus.
  for (const id of ["left", "right", "skip"]) {
    byId(id).setAttribute("aria-disabled", busy || !question);
  }
  byId("undo").setAttribute("aria-disabled", busy || !given.length);
}

// Nothing is fetched ahead: asking is an event of its own, and the best question depends on the last answer.
async function next() {
  question = null;
  try {
    question = setAside.pop() ?? (await ask());
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    byId("question-missing").textContent = `${error.message}.`;
  }
  draw();
}

async function ask() {
  for (;;) {
    const task = currentTask();
    const query = task === null ? "" : `?task=${encodeURIComponent(task)}`;
    const asked = await insist("GET", `/v1/query${query}`);
    if (task === currentTask()) return asked; // else the user changed in the meantime
  }
}

function draw() {
  byId("question").hidden = !question;
  byId("question-missing").hidden = Boolean(question);
  byId("ask-again").hidden = Boolean(question);
  if (!question) return;
  byId("question").dataset.question = question.question;
  showItem(byId("anchor"), question.anchor);
  ["left", "right"].forEach((side, place) => {
    showItem(byId(side), question.candidates[place]);
  });
}

function answer(winner) {
  return alone(async () => {
    if (!question) return;
    try {
      const body = { question: question.question, winner };
      const told = await insist("POST", "/v1/answer", body);
      given.push(told.position);
      changes += 1;
      if (winner === null) counts.skips += 1;
      else counts.answers += 1;
      counts.accuracy = told.accuracy;
      drawCounts();
      announce(winner === null ? "Skipped." : "Answered.");
    } catch (error) {
      // Answered elsewhere, or undone: there is nothing to answer any more.
      if (!(error instanceof ApiError) || ![404, 409].includes(error.status)) throw error;
      tell(`${error.message}. Here is another question.`);
    }
    await next();
  });
}

function undo() {
  return alone(async () => {
    if (!given.length) return;
    const position = given.pop();
    let told;
    try {
      told = await insist("POST", "/v1/retract", { position });
    } catch (error) {
      if (!(error instanceof ApiError) || ![404, 409].includes(error.status)) throw error;
      tell(`${error.message}.`);
      return;
    }
    changes += 1;
    if (told.question) {
      if (question) setAside.push(question);
      question = told.question;
      draw();
    }
    await refreshCounts();
    announce("Undone. Here is the question again.");
  });
}

async function refreshCounts() {
  const before = changes;
  const status = await insist("GET", "/v1/status");
  if (changes !== before) return;
  counts = status;
  drawCounts();
  showPrecision(byId("label-precision"), status.demo);
  showPublished(byId("label-published"), status.published);
}

function drawCounts() {
  byId("answered").textContent = number(counts.answers);
  byId("answered-what").textContent = counts.answers === 1 ? "question answered" : "questions answered";
  const here = given.length ? `, ${given.length} can be undone` : "";
  byId("answered-all").textContent = `${number(counts.skips)} skipped${here}`;
  if (counts.accuracy) showAccuracy(byId("label-accuracy"), counts.accuracy);
}

function announce(what) {
  const { learnt, random_answers: count } = counts.accuracy;
  const accuracy = count ? ` Accuracy ${percent(learnt.accuracy)} on ${count} random questions.` : "";
  byId("label-live").textContent = `${what} ${counts.answers} answered.${accuracy}`;
}
