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

document.addEventListener("DOMContentLoaded", () => {
  data = JSON.parse(byId("data").textContent);
  drawFigures();
  byId("clients").replaceChildren(createResultTable(data.table));
  addEventListener("resize", () => { if (innerWidth !== drawnWidth) drawFigures(); });
});
