// Tables of the comparison, differences, new clients and settings; bars of fairness and cost.

// Show a table in the element of this id, and its section, if there is one.
function showTable(section, id, table) {
  byId(section).hidden = !table;
  if (table) byId(id).replaceChildren(createResultTable(table));
}

const COSTS = ["MB_up", "MB_down", "seconds", "examples", "work", "simulated"];
const MOST_COLUMNS = 17; // of the comparison; with more, the costs have a table of their own

// The first column and the columns whose keys are shown.
function selectColumns({ columns, titles, rows }, isShown) {
  const kept = columns.map((_, i) => i).filter((i) => i === 0 || isShown(columns[i]));
  return { titles: kept.map((i) => titles[i]), rows: rows.map(({ cells, bold }) => (
    { cells: kept.map((i) => cells[i]), bold: bold.map((i) => kept.indexOf(i)) })) };
}

function drawTables() {
  const isCost = (key) => COSTS.includes(key), wide = data.table.columns.length > MOST_COLUMNS;
  const main = wide ? selectColumns(data.table, (key) => !isCost(key)) : data.table;
  byId("table").replaceChildren(createResultTable(main));
  showTable("cost-table", "cost-table", wide && selectColumns(data.table, isCost));
  byId("table-note").textContent = data.table.notes.join(" ");
  showTable("client-means", "client-means-table", data.client_means);
  showTable("nets", "nets-table", data.nets);
  showTable("metrics", "metrics-table", data.metrics);
  showTable("differences", "difference-table", data.differences);
  if (data.differences) byId("h-differences").textContent = `Paired differences to ${data.differences.title}`;
}

const drawNewClients = () => showTable("new-clients", "new-client-table", data.new_clients);

// Fairness and cost -----------------------------------------------------------------------------

function drawBars() {
  const panels = { worst10: "P of the worst 10\u00a0% (%)", std: "P, std over clients (%)",
    MB_up: "Sent by clients (MB)", MB_down: "Sent to clients (MB)", seconds: "Time (seconds)" };
  const rows = limitItems("bars", data.table.rows, drawBars);
  byId("bars").replaceChildren(...Object.entries(panels).map(([key, title]) => {
    const column = data.table.columns.indexOf(key);
    const most = greatest([0, ...data.table.rows.map((r) => r.values[column])]) || 1;
    const items = rows.flatMap(({ cells, values }) => {
      const name = cells[0];
      const bar = html("span", { class: getColourClass(findSeriesIndex(name)), "aria-hidden": "true" });
      bar.style.width = `${(45 * values[column]) / most}%`;
      return [html("dt", {}, name), html("dd", {}, bar, cells[column])];
    });
    return html("div", {}, html("h3", {}, title), html("dl", {}, ...items));
  }));
}

// Settings --------------------------------------------------------------------------------------

const isSameForAll = ({ values }) => values.every((v) => v === values[0]);

function createSettingsTable(settings) {
  const row = (setting) => {
    const { key, values } = setting;
    const cells = isSameForAll(setting) ? [html("td", { colspan: values.length }, values[0])] : values.map((v) => html("td", {}, v));
    return html("tr", {}, html("th", { scope: "row" }, key), ...cells);
  };
  return createTable(["setting", ...data.series.map((s) => s.name)], settings.map(row));
}

// One row per series. Settings that most series have are columns; the others are listed in the last cell.
function createDifferingTable(differing) {
  const common = differing.filter(({ values }) => 2 * values.filter((v) => v !== "–").length > values.length);
  const rare = differing.filter((s) => !common.includes(s));
  const describeRare = (i) => rare.filter(({ values }) => values[i] !== "–")
    .map(({ key, values }) => `${key.replace(/^algorithm\./, "")} = ${values[i]}`).join(", ");
  const row = (series, i) => html("tr", {}, html("th", { scope: "row" }, createSwatch(i), series.name),
    ...common.map(({ values }) => html("td", {}, values[i])), ...(rare.length ? [html("td", {}, describeRare(i))] : []));
  const titles = ["algorithm", ...common.map((s) => s.key), ...(rare.length ? ["other settings"] : [])];
  return createTable(titles, data.series.map(row));
}

function drawSettings() {
  const differing = data.settings.filter((s) => s.key !== "seed" && !isSameForAll(s));
  byId("settings-none").hidden = differing.length > 0;
  byId("settings-differing").hidden = !differing.length;
  byId("settings-differing").replaceChildren(createDifferingTable(differing));
  byId("settings").replaceChildren(createSettingsTable(data.settings));
}
