// The bar at the top of the page: problems, the countdown to the next attempt, and the form for a key.

import { byId } from "./dom.js";

function show(text, { isMessage = false, countdown = "", button = "", form = false } = {}) {
  // Only changes are written, so that screen readers do not repeat themselves.
  if (byId("notice-text").textContent !== text) byId("notice-text").textContent = text;
  byId("notice-countdown").textContent = countdown;
  byId("notice-button").hidden = !button;
  byId("notice-button").textContent = button;
  byId("key-form").hidden = !form;
  byId("notice").dataset.kind = isMessage ? "message" : "trouble";
  byId("notice").hidden = false;
}

function hide(kind) {
  if (byId("notice").dataset.kind !== kind) return;
  byId("notice").hidden = true;
  byId("notice-text").textContent = "";
}

/** Show a message until it is dismissed or something else is done. */
export function tell(text) {
  if (!byId("notice").hidden && byId("notice").dataset.kind === "trouble") return;
  show(text, { isMessage: true, button: "OK" });
  byId("notice-button").addEventListener("click", clearMessage, { once: true });
}

/** Remove the message. */
export const clearMessage = () => hide("message");

/** The service answers again. */
export const troubleIsOver = () => hide("trouble");

/** Show a problem and wait some seconds, or until "Try now" is pressed. */
export function countDown(text, seconds) {
  return new Promise((resolve) => {
    let left = Math.ceil(seconds);
    const write = () => show(text, { countdown: `Trying again in ${left} s.`, button: "Try now" });
    const timer = setInterval(() => {
      left -= 1;
      if (left > 0) write();
      else finish();
    }, 1000);
    const button = byId("notice-button");
    function finish() {
      clearInterval(timer);
      button.removeEventListener("click", finish);
      byId("notice-countdown").textContent = "Trying again …";
      resolve();
    }
    button.addEventListener("click", finish);
    write();
  });
}

/** Explain why a key is needed, and wait for one. */
export function askForKey(reason) {
  show(reason, { form: true });
  const form = byId("key-form");
  const field = byId("key");
  field.focus();
  return new Promise((resolve) => {
    form.addEventListener("submit", function take(event) {
      event.preventDefault();
      const key = field.value.trim();
      if (!/^[\x21-\x7e]+$/.test(key)) {
        show("A key consists of letters, digits, - and _ only.", { form: true });
        return;
      }
      form.removeEventListener("submit", take);
      field.value = "";
      byId("main").focus();
      resolve(key);
    });
  });
}
