// The page of a leaderboard: a table for each setting, filtered and sorted by the reader.
"use strict";

let data;

const isLowerBetter = (key) => ["MB_up", "MB_down", "work", "seconds"].includes(key);
const getSetting = () => data.settings[Number(byId("setting").value)];

function sortRows({ columns, rows }, key) {
  const i = columns.indexOf(key);
  const sign = isLowerBetter(key) ? 1 : -1;
  return [...rows].sort((a, b) => sign * ((a.values[i] ?? -sign * Infinity) - (b.values[i] ?? -sign * Infinity)));
}

function drawBoard() {
  const { table, hashes, remarks } = getSetting();
  const board = createResultTable({ ...table, rows: sortRows(table, byId("order").value) });
  for (const row of board.tBodies[0].rows) row.lastChild.title = hashes[row.firstChild.textContent] ?? "";
  byId("board").replaceChildren(board);
  byId("note").textContent = [...table.notes, "Point at the number of seeds for the hashes."].join(" ");
  byId("remarks").replaceChildren(...remarks.map((remark) => html("p", { class: "hint" }, `* ${remark}`)));
}

function drawOrders() {
  const { columns, titles } = getSetting().table;
  const measures = columns.map((key, i) => [key, titles[i]]).filter(([key]) => data.measures.includes(key));
  byId("order").replaceChildren(...measures.map(([key, title]) => html("option", { value: key }, title)));
  drawBoard();
}

document.addEventListener("DOMContentLoaded", () => {
  data = JSON.parse(byId("data").textContent);
  byId("setting").append(...data.settings.map(({ table }, i) => html("option", { value: i }, table.title)));
  byId("setting").addEventListener("change", drawOrders);
  byId("order").addEventListener("change", drawBoard);
  drawOrders();
});
