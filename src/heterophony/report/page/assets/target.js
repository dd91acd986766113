// Cost to reach an accuracy: rounds, bytes and time until a run's first evaluation at or above it.

let targetChosen = false; // whether the reader typed an accuracy; otherwise the page proposes one

function initTarget() {
  byId("target").addEventListener("input", () => {
    targetChosen = byId("target").value !== "";
    drawTargetTable();
  });
  byId("target-measure").addEventListener("change", () => {
    targetChosen = false;
    drawTarget();
  });
}

function drawTarget() {
  if (!targetChosen) byId("target").value = proposeTarget(byId("target-measure").value);
  drawTargetTable();
}

// 95 % of the highest final accuracy, in percent.
function proposeTarget(measure) {
  const finals = data.series.map((s) => s.mean[measure].at(-1)?.[1] ?? 0);
  return (Math.floor(950 * greatest([0, ...finals])) / 10).toFixed(1);
}

// For every seed that reaches the target: the round of its first such evaluation, and the cost until then.
function computeCostsToTarget(series, measure, target) {
  return series.runs.flatMap(({ curves, costs }) => {
    const first = curves[measure].find(([, v]) => v >= target - 1e-9);
    if (!first) return [];
    const at = costs.t.indexOf(first[0]);
    return [{ rounds: first[0], MB: costs.MB[at], seconds: costs.seconds[at], simulated: costs.simulated?.[at] }];
  });
}

function drawTargetTable() {
  const measure = byId("target-measure").value;
  const target = Number(byId("target").value) / 100;
  const hasClock = data.series.some((s) => s.runs.some((r) => r.costs.simulated));
  const columns = { rounds: "rounds", MB: "MB up + down", seconds: "seconds", ...(hasClock ? { simulated: "simulated s" } : {}) };
  const results = data.series.map((series, index) => {
    const costs = computeCostsToTarget(series, measure, target); // one entry for each seed that reaches it
    return { series, index, costs, means: Object.keys(columns).map((k) => averageCost(costs, k)) };
  });
  const rows = results.map((r) => createTargetRow(r, measure));
  byId("target-table").replaceChildren(createTable(["algorithm", "seeds that reach it", ...Object.values(columns)], rows));
  byId("target-summary").textContent = describeTarget(results, measure, target);
}

function averageCost(costs, key) {
  const values = costs.map((c) => c[key]).filter((v) => v !== undefined);
  return values.length && values.length === costs.length ? average(values) : null;
}

function createTargetRow({ series, index, costs, means }, measure) {
  const name = html("th", { scope: "row" }, createSwatch(index), series.name);
  if (!costs.length) {
    const why = series.mean[measure].length ? "not reached" : measure === "G" ? "no generic model" : "nothing measured yet";
    const empty = means.slice(1).map(() => html("td", {}, "–"));
    return html("tr", {}, name, html("td", {}, `0 of ${series.runs.length}`), html("td", { class: "not" }, why), ...empty);
  }
  const digits = (k, v) => (k === 0 ? (Number.isInteger(v) ? 0 : 1) : v < 10 ? 2 : 1);
  const cells = means.map((v, k) => html("td", {}, v === null ? "–" : v.toFixed(digits(k, v))));
  return html("tr", {}, name, html("td", {}, `${costs.length} of ${series.runs.length}`), ...cells);
}

function describeTarget(results, measure, target) {
  const reached = results.filter((r) => r.costs.length);
  return `${reached.length} of ${results.length} series reach ${measure} ≥ ${Number((100 * target).toFixed(4))} %.`;
}
