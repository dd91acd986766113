// Helpers for elements, texts and colours that all sections use.

const MAX_SHOWN = 12; // of long lists, until the reader asks for all
const expandedLists = new Set(); // ids of the lists that are shown in full

const byId = (id) => document.getElementById(id);
const formatPercent = (value) => (value == null ? "–" : `${(100 * value).toFixed(2)} %`);
const getColourClass = (i) => `c${i % 8}${i % 16 > 7 ? " again" : ""}`;
const findSeriesIndex = (name) => data.series.findIndex((s) => s.name === name);

// Set attributes and append children. Text is only ever inserted as text nodes, so no name can become markup.
function update(element, attributes, children = []) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const html = (tag, attributes = {}, ...children) =>
  update(document.createElement(tag), attributes, children);

const svg = (tag, attributes = {}, ...children) =>
  update(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const createSwatch = (i) => html("span", { class: `swatch ${getColourClass(i)}`, "aria-hidden": "true" });

function createTable(titles, rows) {
  const head = titles.map((title) => html("th", { scope: "col" }, title));
  return html("table", {}, html("thead", {}, html("tr", {}, ...head)), html("tbody", {}, ...rows));
}

// A table as results/table.py writes it: texts, and which of them are bold. Series have their colour.
function createResultTable({ titles, rows }) {
  const createRow = ({ cells: [name, ...cells], bold }) => html("tr", {},
    html("th", { scope: "row" }, ...createSeriesSwatch(name), name),
    ...cells.map((text, i) => html("td", bold.includes(i + 1) ? { class: "best" } : {}, ...splitDeviation(text))));
  return createTable(titles, rows.map(createRow));
}

function createSeriesSwatch(name) {
  const i = data.series ? findSeriesIndex(name) : -1;
  return i < 0 ? [] : [createSwatch(i)];
}

function splitDeviation(text) {
  const [mean, std] = text.split(" ± ");
  return std ? [mean, html("small", {}, ` ± ${std}`)] : [mean];
}

// The first items of a long list; the button #…-more shows the others.
function limitItems(id, items, redraw) {
  const button = byId(`${id}-more`);
  button.hidden = items.length <= MAX_SHOWN;
  button.textContent = expandedLists.has(id) ? `Show only the first ${MAX_SHOWN}` : `Show all ${items.length}`;
  button.onclick = () => {
    if (!expandedLists.delete(id)) expandedLists.add(id);
    preserveView(redraw);
  };
  return expandedLists.has(id) ? items : items.slice(0, MAX_SHOWN);
}

// A list for screen readers, shortened when it is long.
function joinItems(items) {
  const rest = items.length - MAX_SHOWN;
  return rest > 0 ? `${items.slice(0, MAX_SHOWN).join(", ")} and ${rest} more` : items.join(", ");
}

const least = (values) => values.reduce((a, b) => Math.min(a, b));
const greatest = (values) => values.reduce((a, b) => Math.max(a, b));
const average = (values) => values.reduce((a, b) => a + b, 0) / values.length;
