// The page of a leaderboard: a table for each setting, filtered and sorted by the reader.
"use strict";

let data;

const COLUMNS = {
  "P.last10": { title: "P %", percent: true, higher: true },
  "G.last10": { title: "G %", percent: true, higher: true },
  worst10: { title: "worst tenth %", percent: true, higher: true },
  MB_up: { title: "MB up", higher: false },
  MB_down: { title: "MB down", higher: false },
  work: { title: "work ×", higher: false },
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

// The measures that some entry of this setting has.
const listShown = ({ entries }) => Object.keys(COLUMNS).filter((key) => entries.some(({ means }) => key in means));

// A rank in bold cannot be told from the best one.
function createRankCell(setting, key, rank) {
  if (rank == null) return html("td", {}, "–");
  const best = Math.min(...setting.entries.map(({ ranks }) => ranks[key] ?? Infinity));
  const near = setting.ranks[key] && rank - best < setting.ranks[key].critical_difference;
  return html("td", {}, near ? html("strong", {}, rank.toFixed(1)) : rank.toFixed(1));
}

function sortEntries(entries, key) {
  const worst = COLUMNS[key].higher ? -Infinity : Infinity;
  const sign = COLUMNS[key].higher ? -1 : 1;
  return [...entries].sort((a, b) => sign * ((a.means[key] ?? worst) - (b.means[key] ?? worst)));
}

function createRow(setting, entry) {
  const hashes = Object.entries(entry.seeds).map(([seed, hash]) => `seed ${seed}: ${hash}`).join("\n");
  return html("tr", {},
    html("th", { scope: "row" }, entry.algorithm, entry.remark ? " *" : ""),
    ...listShown(setting).flatMap((key) => [
      html("td", {}, ...formatMeasure(entry, key)),
      ...(RANKED.includes(key) ? [createRankCell(setting, key, entry.ranks[key])] : []),
    ]),
    html("td", { title: hashes }, String(Object.keys(entry.seeds).length)));
}

function describeRanks(setting) {
  const notes = ["± is half of the 95 % interval over seeds."];
  const compared = RANKED.filter((key) => setting.ranks[key]);
  const distances = compared.map((key) => `${key[0]} if they are ${setting.ranks[key].critical_difference.toFixed(1)} apart`);
  notes.push(compared.length ? `Ranks are averages over ${setting.common_seeds.length} common seeds. They differ for ${distances.join(", for ")} (Nemenyi, 5 %); those in bold cannot be told from the best.`
    : "Ranks need two entries with two seeds in common.");
  const shown = listShown(setting);
  if (shown.includes("work")) notes.push("Work is how many examples clients went through to train, relative to FedAvg.");
  if (shown.includes("seconds")) notes.push("Seconds depend on the machine.");
  return [...notes, "Point at the number of seeds for the hashes."].join(" ");
}

function drawBoard() {
  const setting = data.settings[Number(byId("setting").value)];
  const titles = listShown(setting).flatMap((key) => (RANKED.includes(key) ? [COLUMNS[key].title, "rank"] : [COLUMNS[key].title]));
  const rows = sortEntries(setting.entries, byId("order").value).map((entry) => createRow(setting, entry));
  byId("board").replaceChildren(createTable(["algorithm", ...titles, "seeds"], rows));
  byId("note").textContent = describeRanks(setting);
  const remarked = setting.entries.filter(({ remark }) => remark);
  byId("remarks").replaceChildren(...remarked.map(({ algorithm, remark }) => html("p", { class: "hint" }, `* ${algorithm}: ${remark}`)));
}

document.addEventListener("DOMContentLoaded", () => {
  data = JSON.parse(byId("data").textContent);
  byId("setting").append(...data.settings.map(({ setting }, i) => html("option", { value: i }, setting)));
  byId("order").append(...Object.entries(COLUMNS).map(([key, { title }]) => html("option", { value: key }, title)));
  for (const id of ["setting", "order"]) byId(id).addEventListener("change", drawBoard);
  drawBoard();
});
