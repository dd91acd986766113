// The page of `heterophony data partition -o page.html`: one label distribution in three drawings and a table.
"use strict";

let data;
let drawnWidth = 0;

function drawFigures() {
  drawnWidth = innerWidth;
  drawHeatmap(byId("heatmap"), data);
  drawBubbles(byId("bubbles"), data);
  drawClientBars(byId("sizes"), data.clients, data.stacks, 260, "Training examples of each client");
}

function drawClientTable({ titles, rows }) {
  const createRow = ([name, ...cells]) =>
    html("tr", {}, html("th", { scope: "row" }, name), ...cells.map((cell) => html("td", {}, String(cell))));
  byId("clients").replaceChildren(createTable(titles, rows.map(createRow)));
}

document.addEventListener("DOMContentLoaded", () => {
  data = JSON.parse(byId("data").textContent);
  drawFigures();
  drawClientTable(data.table);
  addEventListener("resize", () => { if (innerWidth !== drawnWidth) drawFigures(); });
});
