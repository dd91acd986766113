// The legend: which series the curves and the scatter show.

const hidden = new Set(); // keys of the series that are switched off

const shownSeries = () =>
  data.series.map((series, index) => ({ ...series, index })).filter((s) => !hidden.has(s.key));

function drawLegend() {
  const entries = data.series.map((series, i) => {
    const seeds = series.runs.length > 1 ? ` (${series.runs.length} seeds)` : "";
    const button = html("button", {
      type: "button", "aria-pressed": String(!hidden.has(series.key)), "data-key": `legend ${series.key}`,
    }, swatch(i), series.name + seeds);
    button.addEventListener("click", () => {
      if (!hidden.delete(series.key)) hidden.add(series.key);
      choose();
    });
    return button;
  });
  byId("legend").replaceChildren(...entries, ...(data.series.length > 6 ? [all(true), all(false)] : []));
}

function all(visible) {
  const word = visible ? "all" : "none";
  const button = html("button", { type: "button", class: "plain", "data-key": `legend: ${word}` }, word);
  button.addEventListener("click", () => {
    hidden.clear();
    if (!visible) data.series.forEach((s) => hidden.add(s.key));
    choose();
  });
  return button;
}

function choose() {
  byId("legend").querySelectorAll("[aria-pressed]").forEach((button, i) =>
    button.setAttribute("aria-pressed", String(!hidden.has(data.series[i].key))));
  drawCurves();
  drawScatter();
}
