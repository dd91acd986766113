// The list of runs on the dashboard. Text is only ever inserted as text nodes.
"use strict";

function createElement(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const formatPercent = (value) => (value === null ? "–" : (100 * value).toFixed(2));

function createRow({ name, address, nested, algorithm, state, G, P }) {
  return createElement("tr", nested ? { class: "nested" } : {},
    createElement("th", { scope: "row" }, createElement("a", { href: address }, name)),
    ...[algorithm, state, formatPercent(G), formatPercent(P)].map((text) => createElement("td", {}, text)));
}

// live_updates.js calls show and showDevices on both pages, this one and the report.
function show(rows) {
  const list = document.getElementById("run-list");
  const focused = list.contains(document.activeElement) && document.activeElement.getAttribute("href");
  const titles = ["run", "algorithm", "state", "G last 10", "P last 10"].map((title) => createElement("th", { scope: "col" }, title));
  const table = createElement("table", {},
    createElement("thead", {}, createElement("tr", {}, ...titles)), createElement("tbody", {}, ...rows.map(createRow)));
  list.replaceChildren(...(rows.length ? [table] : []));
  document.getElementById("run-list-note").hidden = !rows.length;
  if (focused) [...list.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
}

const showDevices = (devices) => drawDevices(devices);

document.addEventListener("DOMContentLoaded", () => show(JSON.parse(document.getElementById("data").textContent)));
