// The table of devices, on the report and on the run list. Text is only ever inserted as text nodes.

// Only the summary is a live region: screen readers announce arrivals, departures and refusals,
// not the numbers that change every second.
function drawDevices(devices) {
  const createElement = (tag, attributes, ...children) => {
    const element = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };

  const createRow = ({ name, state, cells }) => createElement("tr", { "data-state": state },
    createElement("th", { scope: "row" }, name), ...cells.map((text) => createElement("td", {}, text)));

  const createDeviceTable = ({ caption, titles, rows }) => createElement("table", {}, createElement("caption", {}, caption),
    createElement("thead", {}, createElement("tr", {}, ...titles.map((title) => createElement("th", { scope: "col" }, title)))),
    createElement("tbody", {}, ...rows.map(createRow)));

  const summary = document.getElementById("devices-summary");
  const text = devices.map((d) => (devices.length > 1 ? `${d.run}: ${d.summary}` : d.summary)).join(" ");
  if (summary.textContent !== text) summary.textContent = text;
  document.getElementById("devices").hidden = !devices.length;

  // Reuse the scrolling regions, so that focus and scroll position survive an update.
  const container = document.getElementById("devices-tables");
  const tables = devices.filter(({ rows }) => rows.length);
  while (container.children.length > tables.length) container.lastChild.remove();
  while (container.children.length < tables.length) {
    container.append(createElement("div", { class: "scroll", role: "region", tabindex: 0 }));
  }
  tables.forEach((section, i) => {
    container.children[i].setAttribute("aria-label", section.caption);
    container.children[i].replaceChildren(createDeviceTable(section));
  });
}
