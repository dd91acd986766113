// The page of a leaderboard: a table for each setting, filtered and sorted by the reader.
"use strict";

let data;

const COLUMNS = {
  "P.last10": { title: "P %", percent: true, higher: true },
  "G.last10": { title: "G %", percent: true, higher: true },
  worst10: { title: "P of the worst tenth %", percent: true, higher: true },
  MB_up: { title: "MB up", higher: false },
  MB_down: { title: "MB down", higher: false },
  seconds: { title: "seconds", higher: false },
};
const RANKED = ["P.last10", "G.last10"];

function formatMeasure(entry, key) {
  if (!(key in entry.means)) return ["–"];
  const scale = COLUMNS[key].percent ? 100 : 1;
  const digits = COLUMNS[key].percent ? 2 : 1;
  const interval = COLUMNS[key].percent && entry.intervals[key];
  const mean = (scale * entry.means[key]).toFixed(digits);
  return interval ? [mean, html("small", {}, ` ± ${((scale * (interval[1] - interval[0])) / 2).toFixed(digits)}`)] : [mean];
}

const formatRank = (rank) => (rank == null ? "–" : rank.toFixed(1));

function sortEntries(entries, key) {
  const worst = COLUMNS[key].higher ? -Infinity : Infinity;
  const sign = COLUMNS[key].higher ? -1 : 1;
  return [...entries].sort((a, b) => sign * ((a.means[key] ?? worst) - (b.means[key] ?? worst)));
}

function createRow(entry) {
  const hashes = Object.entries(entry.seeds).map(([seed, hash]) => `seed ${seed}: ${hash}`).join("\n");
  return html("tr", {},
    html("th", { scope: "row" }, entry.algorithm, ...(entry.remark ? [html("small", {}, ` ${entry.remark}`)] : [])),
    ...Object.keys(COLUMNS).flatMap((key) => [
      html("td", {}, ...formatMeasure(entry, key)),
      ...(RANKED.includes(key) ? [html("td", {}, formatRank(entry.ranks[key]))] : []),
    ]),
    html("td", { title: hashes }, String(Object.keys(entry.seeds).length)));
}

function describeRanks({ ranks, common_seeds: seeds }) {
  const compared = ranks["P.last10"];
  if (!compared) return "± is half of the 95 % interval over seeds. Ranks need two entries with two seeds in common.";
  return `± is half of the 95 % interval over seeds. Ranks are averages over ${seeds.length} common seeds: ` +
    `those of P differ if they are ${compared.critical_difference.toFixed(1)} apart (Nemenyi, 5 %; Friedman p = ${compared.p.toPrecision(2)}). ` +
    "Seconds depend on the machine. Point at the number of seeds for the hashes.";
}

function drawBoard() {
  const setting = data.settings[Number(byId("setting").value)];
  const titles = ["algorithm", ...Object.entries(COLUMNS).flatMap(([key, { title }]) => (RANKED.includes(key) ? [title, "rank"] : [title])), "seeds"];
  byId("board").replaceChildren(createTable(titles, sortEntries(setting.entries, byId("order").value).map(createRow)));
  byId("note").textContent = describeRanks(setting);
}

document.addEventListener("DOMContentLoaded", () => {
  data = JSON.parse(byId("data").textContent);
  byId("setting").append(...data.settings.map(({ setting }, i) => html("option", { value: i }, setting)));
  byId("order").append(...Object.entries(COLUMNS).map(([key, { title }]) => html("option", { value: key }, title)));
  for (const id of ["setting", "order"]) byId(id).addEventListener("change", drawBoard);
  drawBoard();
});
