// Repeating something while the page is visible.

/**
 * Returns a function that starts (true) or stops (false) calling `work` every `seconds`.
 * It is not called while the page is hidden, and at once when the page is visible again. Calls never overlap.
 */
export function poller(work, seconds) {
  let wanted = false;
  let working = false;
  let timer = 0;

  async function turn() {
    clearTimeout(timer);
    if (!wanted || working || document.hidden) return;
    working = true;
    try {
      await work();
    } finally {
      working = false;
      if (wanted) timer = setTimeout(turn, 1000 * seconds);
    }
  }

  document.addEventListener("visibilitychange", turn);
  return (isWanted) => {
    wanted = isWanted;
    turn();
  };
}
