// Devices: who is here, what each is doing, what it cost. Text only ever enters as a text node.

// A screen reader is told when somebody comes, goes or is refused; not what changes all the time.
function drawDevices(devices) {
  const put = (tag, attributes, ...children) => {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };

  const row = ({ name, state, cells }) => put("tr", { "data-state": state },
    put("th", { scope: "row" }, name), ...cells.map((text) => put("td", {}, text)));

  const tableOf = ({ caption, titles, rows }) => put("table", {}, put("caption", {}, caption),
    put("thead", {}, put("tr", {}, ...titles.map((title) => put("th", { scope: "col" }, title)))),
    put("tbody", {}, ...rows.map(row)));

  const place = document.getElementById("devices-tables");
  const told = document.getElementById("devices-told");
  const words = devices.map(({ of, summary }) => (devices.length > 1 ? `${of}: ${summary}` : summary)).join(" ");
  if (told.textContent !== words) told.textContent = words;
  document.getElementById("devices").hidden = !devices.length;

  // regions stay, so that focus and scroll position do
  const tables = devices.filter(({ rows }) => rows.length);
  while (place.children.length > tables.length) place.lastChild.remove();
  while (place.children.length < tables.length) place.append(put("div", { class: "scroll", role: "region", tabindex: 0 }));
  tables.forEach((one, i) => {
    place.children[i].setAttribute("aria-label", one.caption);
    place.children[i].replaceChildren(tableOf(one));
  });
}
