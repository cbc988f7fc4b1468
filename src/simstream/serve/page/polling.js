// Doing something again and again while somebody looks.

/**
 * Returns a function that starts (true) or stops (false) calling `work` every `seconds`.
 * Nothing is called while the page is hidden, and at once when it is seen again. The next
 * call waits for the one before.
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
