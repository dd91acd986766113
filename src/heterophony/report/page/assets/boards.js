// The table of boards, on the report and on the run list. Text is only ever inserted as text nodes.

// Only the summary is a live region: screen readers announce arrivals, departures and refusals,
// not the numbers that change every second.
function drawBoards(boards) {
  const createBoardTable = ({ caption, states, table }) => {
    const rows = table.rows.map(({ cells: [name, ...cells] }, i) => html("tr", { "data-state": states[i] },
      html("th", { scope: "row" }, name), ...cells.map((text) => html("td", {}, text))));
    const created = createTable(table.titles, rows);
    created.prepend(html("caption", {}, caption));
    return created;
  };

  const summary = byId("boards-summary");
  const text = boards.map((d) => (boards.length > 1 ? `${d.run}: ${d.summary}` : d.summary)).join(" ");
  if (summary.textContent !== text) summary.textContent = text;
  byId("boards").hidden = !boards.length;

  // Reuse the scrolling regions, so that focus and scroll position survive an update.
  const container = byId("boards-tables");
  const tables = boards.filter(({ table }) => table.rows.length);
  while (container.children.length > tables.length) container.lastChild.remove();
  while (container.children.length < tables.length) {
    container.append(html("div", { class: "scroll", role: "region", tabindex: 0 }));
  }
  tables.forEach((section, i) => {
    container.children[i].setAttribute("aria-label", section.caption);
    container.children[i].replaceChildren(createBoardTable(section));
  });
}
