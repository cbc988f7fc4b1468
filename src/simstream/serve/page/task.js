// Whose similarity: the field shown if the service learns one for each user or task.

import { byId, element } from "./dom.js";

/** The name in the field; null for everyone. */
export const currentTask = () => (byId("who").hidden ? null : byId("task").value.trim() || null);

/** Call back when the name changes. */
export function onTaskChange(callback) {
  let last = currentTask();
  byId("task").addEventListener("change", () => {
    if (currentTask() === last) return;
    last = currentTask();
    callback();
  });
}

/** Show the field if there are tasks, with the known names. */
export function showTasks(status) {
  byId("who").hidden = !status.has_tasks;
  const options = status.tasks.map((name) => element("option", { value: name }));
  byId("tasks").replaceChildren(...options);
}
