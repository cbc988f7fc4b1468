// Whose similarity: the field that is there when the service learns one for each user or task.

import { byId, element } from "./dom.js";

/** The name in the field; null for everybody. */
export const currentTask = () => (byId("who").hidden ? null : byId("task").value.trim() || null);

/** Call back when the name changed. */
export function onTaskChange(callback) {
  let last = currentTask();
  byId("task").addEventListener("change", () => {
    if (currentTask() === last) return;
    last = currentTask();
    callback();
  });
}

/** Show the field if there are tasks, with the names that are known. */
export function showTasks(status) {
  byId("who").hidden = !status.has_tasks;
  const options = status.tasks.map((name) => element("option", { value: name }));
  byId("tasks").replaceChildren(...options);
}
