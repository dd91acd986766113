// Tables: the comparison, differences, new clients, fairness and cost as bars, and the settings.

function comparisonRow({ name, seeds, cells, best = [] }) {
  return html("tr", {},
    html("th", { scope: "row" }, swatch(seriesIndex(name)), name),
    html("td", {}, seeds.join(", ")),
    ...cells.map((text, i) => html("td", best[i] ? { class: "best" } : {}, ...quietSpread(text))));
}

function quietSpread(text) {
  const [mean, std] = text.split(" ± ");
  return std ? [mean, html("small", {}, ` ± ${std}`)] : [mean];
}

const compared = ({ titles, rows }) => table(["algorithm", "seed", ...titles], rows.map(comparisonRow));

function drawTables() {
  byId("table").replaceChildren(compared(data.table));
  byId("differences").hidden = !data.differences;
  if (!data.differences) return;
  byId("h-differences").textContent = `Paired differences to ${data.differences.to}`;
  byId("difference-table").replaceChildren(compared(data.differences));
}

function drawNewcomers() {
  byId("newcomers").hidden = !data.newcomers;
  if (data.newcomers) byId("newcomer-table").replaceChildren(compared(data.newcomers));
}

// Fairness and cost -----------------------------------------------------------------------------

function drawBars() {
  const panels = { worst10: "P of the worst 10\u00a0% (%)", std: "P, std over clients (%)",
    MB_up: "Sent by clients (MB)", MB_down: "Sent to clients (MB)", seconds: "Time (seconds)" };
  const rows = few("bars", data.table.rows, drawBars);
  byId("bars").replaceChildren(...Object.entries(panels).map(([key, title]) => {
    const column = data.table.columns.indexOf(key);
    const most = greatest([0, ...data.table.rows.map((r) => r.values[column])]) || 1;
    const entries = rows.flatMap(({ name, cells, values }) => {
      const bar = html("span", { class: colour(seriesIndex(name)), "aria-hidden": "true" });
      bar.style.width = `${(45 * values[column]) / most}%`;
      return [html("dt", {}, name), html("dd", {}, bar, cells[column])];
    });
    return html("div", {}, html("h3", {}, title), html("dl", {}, ...entries));
  }));
}

// Settings --------------------------------------------------------------------------------------

const isSame = ({ values }) => values.every((v) => v === values[0]);

function settingsTable(settings) {
  const row = (setting) => {
    const { key, values } = setting;
    const cells = isSame(setting) ? [html("td", { colspan: values.length }, values[0])] : values.map((v) => html("td", {}, v));
    return html("tr", {}, html("th", { scope: "row" }, key), ...cells);
  };
  return table(["setting", ...data.series.map((s) => s.name)], settings.map(row));
}

// A row per series: what most of them have and not all alike in columns, the rest in words.
function differingTable(differing) {
  const common = differing.filter(({ values }) => 2 * values.filter((v) => v !== "–").length > values.length);
  const own = differing.filter((s) => !common.includes(s));
  const inWords = (i) => own.filter(({ values }) => values[i] !== "–")
    .map(({ key, values }) => `${key.replace(/^algorithm\./, "")} = ${values[i]}`).join(", ");
  const row = (series, i) => html("tr", {}, html("th", { scope: "row" }, swatch(i), series.name),
    ...common.map(({ values }) => html("td", {}, values[i])), ...(own.length ? [html("td", {}, inWords(i))] : []));
  const titles = ["algorithm", ...common.map((s) => s.key), ...(own.length ? ["settings of its own"] : [])];
  return table(titles, data.series.map(row));
}

function drawSettings() {
  const differing = data.settings.filter((s) => s.key !== "seed" && !isSame(s));
  byId("settings-none").hidden = differing.length > 0;
  byId("settings-differing").hidden = !differing.length;
  byId("settings-differing").replaceChildren(differingTable(differing));
  byId("settings").replaceChildren(settingsTable(data.settings));
}
