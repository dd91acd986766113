"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set(); // indices of the series that are switched off
const byId = (id) => document.getElementById(id);
const percent = (value) => (value == null ? "–" : (100 * value).toFixed(2) + " %");
const colour = (i) => `c${i % 8}${i % 16 > 7 ? " again" : ""}`;

// Elements. Text only ever enters as a text node, so no name can become markup. -----------------

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const html = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);

const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const swatch = (i) => html("span", { class: `swatch ${colour(i)}`, "aria-hidden": "true" });

const seriesIndex = (name) => data.series.findIndex((s) => s.name === name);

function picture(place, height, label) {
  const width = Math.max(300, place.clientWidth);
  const drawing = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0", "aria-label": label,
  });
  place.append(drawing);
  return [drawing, width];
}

// Scales ----------------------------------------------------------------------------------------

const scale = (low, high, from, to) => (value) =>
  from + ((value - low) / (high - low || 1)) * (to - from);

function tickStep(low, high, about) {
  const rough = (high - low || 1) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((n) => n * power >= rough);
}

function ticks(low, high, about) {
  const step = tickStep(low, high, about);
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: count }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

// The tip: one box for everything that is pointed at -----------------------------------------

function showTip(x, y, ...children) {
  const tip = byId("tip");
  tip.replaceChildren(...children);
  tip.hidden = false;
  const left = x + 16 + tip.offsetWidth > innerWidth ? x - 16 - tip.offsetWidth : x + 16;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 12, innerHeight - tip.offsetHeight - 8))}px`;
}

const hideTip = () => { byId("tip").hidden = true; };

// Pointing at a drawing and walking through it with the arrow keys do the same thing.
function explore(drawing, { point, step, leave }) {
  const local = (event) => {
    const box = drawing.getBoundingClientRect();
    const zoom = drawing.viewBox.baseVal.width / box.width;
    return [(event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom];
  };
  drawing.addEventListener("pointermove", (e) => point(...local(e), e.clientX, e.clientY));
  drawing.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!move || step(...move) === false) return;
    event.preventDefault();
  });
  for (const name of ["pointerleave", "blur"]) {
    drawing.addEventListener(name, () => { hideTip(); leave(); });
  }
}

// Tables ----------------------------------------------------------------------------------------

function table(titles, rows) {
  const head = titles.map((title) => html("th", { scope: "col" }, title));
  return html("table", {}, html("thead", {}, html("tr", {}, ...head)), html("tbody", {}, ...rows));
}

function comparisonRow({ name, seeds, cells, best = [] }) {
  return html("tr", {},
    html("th", { scope: "row" }, swatch(seriesIndex(name)), name),
    html("td", {}, seeds.join(", ")),
    ...cells.map((text, i) => html("td", best[i] ? { class: "best" } : {}, ...quietSpread(text))));
}

function quietSpread(text) {
  const [mean, std] = text.split(" ± ");
  return std ? [mean, html("small", {}, ` ± ${std}`)] : [mean];
}

function drawTables() {
  const { titles, rows } = data.table;
  byId("table").append(table(["algorithm", "seed", ...titles], rows.map(comparisonRow)));
  if (!data.differences) return;
  byId("differences").hidden = false;
  byId("h-differences").textContent = `Paired differences to ${data.differences.to}`;
  byId("difference-table").append(
    table(["algorithm", "seed", ...data.differences.titles], data.differences.rows.map(comparisonRow)));
}

function drawNewcomers() {
  if (!data.newcomers) return;
  byId("newcomers").hidden = false;
  byId("newcomer-table").append(
    table(["algorithm", "seed", ...data.newcomers.titles], data.newcomers.rows.map(comparisonRow)));
}

function drawSettings() {
  const names = data.series.map((s) => s.name);
  const row = ({ key, values }) => {
    const same = values.every((v) => v === values[0]);
    const cells = same ? [html("td", { colspan: values.length }, values[0])] : values.map((v) => html("td", {}, v));
    return html("tr", {}, html("th", { scope: "row" }, key), ...cells);
  };
  byId("settings").append(table(["setting", ...names], data.settings.map(row)));
}

// Fairness and cost -----------------------------------------------------------------------------

function drawBars() {
  const panels = { worst10: "P of the worst 10\u00a0% (%)", std: "P, std over clients",
    MB_up: "Sent by clients (MB)", MB_down: "Sent to clients (MB)", seconds: "Time (seconds)" };
  for (const [key, title] of Object.entries(panels)) {
    const column = data.table.columns.indexOf(key);
    const most = Math.max(...data.table.rows.map((r) => r.values[column])) || 1;
    const entries = data.table.rows.flatMap(({ name, cells, values }) => {
      const bar = html("span", { class: colour(seriesIndex(name)), "aria-hidden": "true" });
      bar.style.width = `${(45 * values[column]) / most}%`;
      return [html("dt", {}, name), html("dd", {}, bar, cells[column])];
    });
    byId("bars").append(html("div", {}, html("h3", {}, title), html("dl", {}, ...entries)));
  }
}

// The page --------------------------------------------------------------------------------------

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

function drawToWidth() {
  drawCurves();
  drawStrips();
  drawAttendance();
  drawHeld();
}

function redraw() {
  if (innerWidth === drawnWidth) return; // a phone's address bar changes the height alone
  drawnWidth = innerWidth;
  drawToWidth();
}

let drawnWidth = innerWidth;

function start() {
  byId("title").textContent = data.title;
  byId("summary").textContent = data.summary;
  byId("theme").addEventListener("click", switchTheme);
  drawLegend();
  drawTables();
  drawStatistics();
  drawNewcomers();
  drawBars();
  drawSettings();
  drawToWidth();
  addEventListener("resize", redraw);
}

document.addEventListener("DOMContentLoaded", start); // when the other scripts are there
