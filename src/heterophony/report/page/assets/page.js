// The page: all of it is drawn from one set of data, and drawn again whenever new data come.
"use strict";

let data;
let drawnWidth = 0;

// The one way in. What the reader chose, where they are and what they point at stay as they were.
function show(newData) {
  data = newData;
  for (const series of data.series) series.at = { G: new Map(series.mean.G), P: new Map(series.mean.P) };
  inPlace(() => {
    document.title = data.title;
    byId("title").textContent = data.title;
    byId("summary").textContent = data.summary;
    drawLegend();
    drawTables();
    drawStatistics();
    drawTarget();
    drawNewcomers();
    drawAudited();
    drawBars();
    drawDevices(data.devices);
    drawSettings();
    drawSections();
    drawToWidth();
  });
}

// Devices change every second, and all else once a round.
function showDevices(devices) {
  data.devices = devices;
  inPlace(() => {
    drawDevices(devices);
    drawSections();
  });
}

function drawToWidth() {
  drawnWidth = innerWidth;
  drawCurves();
  drawScatter();
  drawStrips();
  drawAttendance();
  drawHeld();
}

function redraw() {
  if (innerWidth !== drawnWidth) inPlace(drawToWidth); // a phone's address bar changes the height alone
}

function onPaper(printing) {
  document.documentElement.classList.toggle("paper", printing);
  inPlace(drawToWidth);
}

// Redrawn elements are new ones; those with a data-key are the same to the reader.
function inPlace(draw) {
  const main = byId("main");
  const left = { x: scrollX, y: scrollY, key: document.activeElement?.dataset.key };
  main.style.minHeight = `${main.offsetHeight}px`; // a section that is empty for a moment moves nothing
  draw();
  main.style.minHeight = "";
  scrollTo({ left: left.x, top: left.y, behavior: "instant" });
  if (left.key !== undefined && document.activeElement?.dataset.key !== left.key) {
    const again = [...document.querySelectorAll("[data-key]")].find((e) => e.dataset.key === left.key);
    again?.focus({ preventScroll: true });
  }
  pointAgain();
}

function drawSections() {
  const titles = [...document.querySelectorAll("main > section:not([hidden]) h2")];
  byId("sections").replaceChildren(...titles.map((h2) =>
    html("a", { href: `#${h2.id}`, "data-key": `section ${h2.id}` }, h2.textContent)));
}

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

function start() {
  byId("theme").addEventListener("click", switchTheme);
  byId("save-table").addEventListener("click", () => save("comparison.csv", "text/csv", data.csv));
  startSmoothing();
  startScatter();
  startTarget();
  show(JSON.parse(byId("data").textContent));
  addEventListener("resize", redraw);
  addEventListener("beforeprint", () => onPaper(true));
  addEventListener("afterprint", () => onPaper(false));
}

document.addEventListener("DOMContentLoaded", start); // when the other scripts are there
