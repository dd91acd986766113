// The list of runs to choose from. Text only ever enters as a text node.
"use strict";

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const percent = (value) => (value === null ? "–" : (100 * value).toFixed(2));

function line({ name, address, inside, algorithm, state, G, P }) {
  return element("tr", inside ? { class: "inside" } : {},
    element("th", { scope: "row" }, element("a", { href: address }, name)),
    ...[algorithm, state, percent(G), percent(P)].map((text) => element("td", {}, text)));
}

function show(rows) {
  const place = document.getElementById("board");
  const focused = place.contains(document.activeElement) && document.activeElement.getAttribute("href");
  const titles = ["run", "algorithm", "state", "G", "P"].map((title) => element("th", { scope: "col" }, title));
  const table = element("table", {},
    element("thead", {}, element("tr", {}, ...titles)), element("tbody", {}, ...rows.map(line)));
  place.replaceChildren(...(rows.length ? [table] : []));
  document.getElementById("meaning").hidden = !rows.length;
  if (focused) [...place.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
}

const showDevices = (devices) => drawDevices(devices);

document.addEventListener("DOMContentLoaded", () => show(JSON.parse(document.getElementById("data").textContent)));
