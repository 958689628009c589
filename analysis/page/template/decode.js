// Decodes stored curves: for each task the index of its iterations, and its values.

const grids = data.curves.grids.map((steps) => {
  let last = 0;
  return steps.map((step) => (last += step));
});

/**
 * Return iterations over all tasks and values. A null stands at each task switch: the values on both
 * sides belong to different tasks. The loss of training steps goes on, so that its spikes are seen.
 */
function decoded(run, name) {
  const [xs, ys] = [[], []];
  data.curves.of[name][run].forEach(([grid, values], task) => {
    const start = task ? data.curves.ends[run][task - 1] : 0;
    values.forEach((value, place) => {
      let x = start + grids[grid][place];
      if (name !== "loss" && task && place === 0) {
        // The end of a task and the start of the next share one iteration, but curves need an order.
        const gap = Math.max(xs.length ? xs[xs.length - 1] : -1, x - 1e-3) + 1e-4;
        xs.push(gap);
        ys.push(null);
        x = Math.max(x, gap + 1e-4);
      }
      xs.push(x);
      ys.push(value);
    });
  });
  return [xs, ys];
}

/** Return the task that an iteration over all tasks is in, and the iteration within it. */
function placeOf(run, x) {
  const ends = data.curves.ends[run];
  const task = Math.max(0, ends.findIndex((end, place) => x < end || (place === ends.length - 1 && x >= end)));
  const isEnd = ends.findIndex((end) => Math.abs(end - x) < 1e-9);
  const found = isEnd >= 0 ? isEnd : task;
  return { task: found + 1, iteration: Math.round(x - (found ? ends[found - 1] : 0)) };
}
