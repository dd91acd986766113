// The report page: draws every section from one data object, and again whenever new data arrive.
"use strict";

let data;
let drawnWidth = 0;

// The entry point. Keeps the reader's choices, scroll position, keyboard focus and tip.
function show(newData) {
  data = newData;
  preserveView(() => {
    document.title = data.title;
    byId("title").textContent = data.title;
    byId("summary").textContent = data.summary;
    nameScore();
    drawLegend();
    drawReferenceChoice();
    drawTables();
    drawStatistics();
    drawTarget();
    drawNewClients();
    drawAudit();
    drawBars();
    drawBoards(data.boards);
    drawSettings();
    drawFigures();
    drawSectionLinks(); // of the sections that are not hidden now
  });
}

// The score that G and P measure: accuracy, unless the task is not classification.
function nameScore() {
  if (data.score === "accuracy") return;
  for (const span of document.querySelectorAll(".score")) span.textContent = data.score;
}

// Boards change every second, all other data once a round: update them alone.
function showBoards(boards) {
  data.boards = boards;
  preserveView(() => {
    drawBoards(boards);
    drawSectionLinks();
  });
}

// Draw the figures whose size depends on the width of the window.
function drawFigures() {
  drawnWidth = innerWidth;
  drawCurves();
  drawScatter();
  drawStrips();
  drawParticipation();
  drawBoardRounds();
  drawLabelDistribution();
  drawProtection();
  drawConfusion();
}

function redrawIfResized() {
  if (innerWidth !== drawnWidth) preserveView(drawFigures); // hiding a phone's address bar changes only the height
}

function setPrintLayout(printing) {
  document.documentElement.classList.toggle("paper", printing);
  preserveView(drawFigures);
}

// Drawing replaces elements. Restore the scroll position, the focus (by data-key) and the tip afterwards.
function preserveView(draw) {
  const main = byId("main");
  const before = { x: scrollX, y: scrollY, key: document.activeElement?.dataset.key };
  main.style.minHeight = `${main.offsetHeight}px`; // so that a section that is briefly empty does not scroll the page
  draw();
  main.style.minHeight = "";
  scrollTo({ left: before.x, top: before.y, behavior: "instant" });
  if (before.key !== undefined && document.activeElement?.dataset.key !== before.key) {
    const replacement = [...document.querySelectorAll("[data-key]")].find((e) => e.dataset.key === before.key);
    replacement?.focus({ preventScroll: true });
  }
  refreshTip();
}

function drawSectionLinks() {
  const titles = [...document.querySelectorAll("main > section:not([hidden]) h2")];
  byId("sections").replaceChildren(...titles.map((h2) =>
    html("a", { href: `#${h2.id}`, "data-key": `section ${h2.id}` }, h2.textContent)));
}

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

function initPage() {
  byId("theme").addEventListener("click", switchTheme);
  byId("save-table").addEventListener("click", () => saveFile("comparison.csv", "text/csv", data.csv));
  initCurveControls();
  initScatter();
  initTarget();
  initConfusion();
  show(JSON.parse(byId("data").textContent));
  addEventListener("resize", redrawIfResized);
  addEventListener("beforeprint", () => setPrintLayout(true));
  addEventListener("afterprint", () => setPrintLayout(false));
}

document.addEventListener("DOMContentLoaded", initPage); // after the other scripts are loaded
