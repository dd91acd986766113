// Elements, words and colours that all parts of the page use.

const FEW = 12; // of what there may be dozens, until the reader wants all
const opened = new Set(); // places whose reader does

const byId = (id) => document.getElementById(id);
const percent = (value) => (value == null ? "–" : `${(100 * value).toFixed(2)} %`);
const colour = (i) => `c${i % 8}${i % 16 > 7 ? " again" : ""}`;
const seriesIndex = (name) => data.series.findIndex((s) => s.name === name);

// Text only ever enters as a text node, so no name can become markup.
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

function table(titles, rows) {
  const head = titles.map((title) => html("th", { scope: "col" }, title));
  return html("table", {}, html("thead", {}, html("tr", {}, ...head)), html("tbody", {}, ...rows));
}

// The first few of many, and a button (#…-more) that brings the others.
function few(id, items, drawAgain) {
  const button = byId(`${id}-more`);
  button.hidden = items.length <= FEW;
  button.textContent = opened.has(id) ? `Show the first ${FEW} alone` : `Show all ${items.length}`;
  button.onclick = () => {
    if (!opened.delete(id)) opened.add(id);
    inPlace(drawAgain);
  };
  return opened.has(id) ? items : items.slice(0, FEW);
}

// For ears: as much of a list as one wants to hear.
function listed(items) {
  const rest = items.length - FEW;
  return rest > 0 ? `${items.slice(0, FEW).join(", ")} and ${rest} more` : items.join(", ");
}

const least = (values) => values.reduce((a, b) => Math.min(a, b));
const greatest = (values) => values.reduce((a, b) => Math.max(a, b));
const average = (values) => values.reduce((a, b) => a + b, 0) / values.length;
