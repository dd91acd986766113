// What it takes to reach an accuracy: rounds, traffic and time until the first evaluation there.

let chosen = false; // whether the reader set the accuracy; else the page proposes one

function startTarget() {
  byId("target").addEventListener("input", () => {
    chosen = byId("target").value !== "";
    drawReached();
  });
  byId("target-of").addEventListener("change", () => {
    chosen = false;
    drawTarget();
  });
}

function drawTarget() {
  if (!chosen) byId("target").value = proposed(byId("target-of").value);
  drawReached();
}

// 95 % of the highest final value, in percent.
function proposed(measure) {
  const finals = data.series.map((s) => s.mean[measure].at(-1)?.[1] ?? 0);
  return (Math.floor(950 * greatest([0, ...finals])) / 10).toFixed(1);
}

// Of every seed that gets there: the round of its first evaluation at or above, and the cost until then.
function reached(series, measure, target) {
  return series.runs.flatMap(({ curves, costs }) => {
    const first = curves[measure].find(([, v]) => v >= target - 1e-9);
    if (!first) return [];
    const at = costs.t.indexOf(first[0]);
    return [{ rounds: first[0], MB: costs.MB[at], seconds: costs.seconds[at], simulated: costs.simulated?.[at] }];
  });
}

function drawReached() {
  const measure = byId("target-of").value;
  const target = Number(byId("target").value) / 100;
  const clocked = data.series.some((s) => s.runs.some((r) => r.costs.simulated));
  const columns = { rounds: "rounds", MB: "MB up + down", seconds: "seconds", ...(clocked ? { simulated: "simulated s" } : {}) };
  const found = data.series.map((series, index) => {
    const there = reached(series, measure, target);
    return { series, index, there, means: Object.keys(columns).map((k) => meanCost(there, k)) };
  });
  const lowest = Object.keys(columns).map((_, k) => least([Infinity, ...found.map((f) => f.means[k] ?? Infinity)]));
  const rows = found.map((f) => reachedRow(f, measure, lowest));
  byId("target-table").replaceChildren(table(["algorithm", "seeds there", ...Object.values(columns)], rows));
  tellReached(found, measure, target);
}

function meanCost(there, key) {
  const each = there.map((r) => r[key]).filter((v) => v !== undefined);
  return each.length && each.length === there.length ? average(each) : null;
}

function reachedRow({ series, index, there, means }, measure, lowest) {
  const name = html("th", { scope: "row" }, swatch(index), series.name);
  if (!there.length) {
    const why = series.mean[measure].length ? "not reached" : measure === "G" ? "no common model" : "nothing measured yet";
    const none = means.slice(1).map(() => html("td", {}, "–"));
    return html("tr", {}, name, html("td", {}, `0 of ${series.runs.length}`), html("td", { class: "not" }, why), ...none);
  }
  const digits = (k, v) => (k === 0 ? (Number.isInteger(v) ? 0 : 1) : v < 10 ? 2 : 1);
  const cells = means.map((v, k) => html("td", v === lowest[k] ? { class: "best" } : {}, v === null ? "–" : v.toFixed(digits(k, v))));
  return html("tr", {}, name, html("td", {}, `${there.length} of ${series.runs.length}`), ...cells);
}

function tellReached(found, measure, target) {
  const there = found.filter((f) => f.there.length);
  const first = there.reduce((a, b) => (a && a.means[0] <= b.means[0] ? a : b), null);
  const quickest = first ? `; the fewest rounds takes ${first.series.name}` : "";
  byId("target-told").textContent =
    `${there.length} of ${found.length} series reach ${measure} ≥ ${Number((100 * target).toFixed(4))} %${quickest}.`;
}
