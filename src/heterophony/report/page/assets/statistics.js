// What can be concluded from so many seeds: means, intervals, paired differences.

function drawStatistics() {
  byId("statistics").hidden = !data.statistics;
  if (!data.statistics) return;
  const { says, titles, measures } = data.statistics;
  byId("statistics-says").replaceChildren(...says.map((sentence) => html("p", {}, sentence)));
  byId("statistics-about").hidden = !measures.length;
  byId("statistics-tables").replaceChildren(...measures.map(({ title, rows }) => {
    const compared = table(["algorithm", "seed", ...titles], rows.map(comparisonRow));
    compared.prepend(html("caption", {}, `${title}, in percent`));
    return html("div", { class: "scroll", role: "region", "aria-label": `Statistics of ${title}`, tabindex: "0" }, compared);
  }));
}
