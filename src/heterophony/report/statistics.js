// Statistics ------------------------------------------------------------------------------------

function drawStatistics() {
  if (!data.statistics) return;
  const { says, titles, measures } = data.statistics;
  byId("statistics").hidden = false;
  byId("statistics-says").append(...says.map((sentence) => html("p", {}, sentence)));
  for (const { title, rows } of measures) {
    const compared = table(["algorithm", "seed", ...titles], rows.map(comparisonRow));
    compared.prepend(html("caption", {}, `${title}, in percent`));
    byId("statistics-tables").append(
      html("div", { class: "scroll", role: "region", "aria-label": `Statistics of ${title}`, tabindex: "0" }, compared));
  }
}
