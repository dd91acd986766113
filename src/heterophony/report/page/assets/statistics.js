// The statistics section: conclusions in words, then means, intervals and paired differences.

function drawStatistics() {
  byId("statistics").hidden = !data.statistics;
  if (!data.statistics) return;
  const { conclusions, tables } = data.statistics;
  byId("statistics-conclusions").replaceChildren(...conclusions.map((sentence) => html("p", {}, sentence)));
  byId("statistics-note").hidden = !tables.length;
  byId("statistics-tables").replaceChildren(...tables.map(({ title, ...content }) => {
    const table = createResultTable(content);
    table.prepend(html("caption", {}, `${title}, in percent`));
    return html("div", { class: "scroll", role: "region", "aria-label": `Statistics of ${title}`, tabindex: "0" }, table);
  }));
}
