// The legend: selects which series the curves and the scatter plot show.

const hiddenSeries = new Set(); // keys of the series that the reader switched off

const getVisibleSeries = () =>
  data.series.map((series, index) => ({ ...series, index })).filter((s) => !hiddenSeries.has(s.key));

function drawLegend() {
  const entries = data.series.map((series, i) => {
    const seeds = series.runs.length > 1 ? ` (${series.runs.length} seeds)` : "";
    const button = html("button", {
      type: "button", "aria-pressed": String(!hiddenSeries.has(series.key)), "data-key": `legend ${series.key}`,
    }, createSwatch(i), series.name + seeds);
    button.addEventListener("click", () => {
      if (!hiddenSeries.delete(series.key)) hiddenSeries.add(series.key);
      applyVisibility();
    });
    return button;
  });
  byId("legend").replaceChildren(...entries, ...(data.series.length > 6 ? [createAllButton(true), createAllButton(false)] : []));
}

function createAllButton(visible) {
  const word = visible ? "all" : "none";
  const button = html("button", { type: "button", class: "plain", "data-key": `legend: ${word}` }, word);
  button.addEventListener("click", () => {
    hiddenSeries.clear();
    if (!visible) data.series.forEach((s) => hiddenSeries.add(s.key));
    applyVisibility();
  });
  return button;
}

function applyVisibility() {
  byId("legend").querySelectorAll("[aria-pressed]").forEach((button, i) =>
    button.setAttribute("aria-pressed", String(!hiddenSeries.has(data.series[i].key))));
  drawCurves();
  drawScatter();
}
