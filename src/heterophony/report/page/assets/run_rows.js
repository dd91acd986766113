// The rows of the list of runs. Roles are given because narrow windows show rows as cards, not as a table.

function createRunTable(shown) {
  const head = html("tr", { role: "row" }, html("th", { role: "columnheader", scope: "col" }, html("span", { class: "unseen" }, "choose")),
    ...COLUMNS.map(createHeading));
  return html("table", { role: "table", "aria-label": "Runs" }, html("thead", { role: "rowgroup" }, head),
    html("tbody", { role: "rowgroup" }, ...(shown.length ? shown.map(createRunRow) : [createEmptyRow()])));
}

// A second click reverses the order.
function createHeading({ key, title, descending = false }) {
  const isSorted = choice.sort === key;
  const button = html("button", { type: "button", "data-key": `sort ${key}` }, title);
  button.addEventListener("click", () => {
    Object.assign(choice, { sort: key, descending: isSorted ? !choice.descending : descending });
    drawRunList();
  });
  const order = isSorted ? (choice.descending ? "descending" : "ascending") : "none";
  return html("th", { role: "columnheader", scope: "col", "aria-sort": order, class: `col-${key}` }, button);
}

const createEmptyRow = () => html("tr", { role: "row" }, html("td", { role: "cell", class: "empty", colspan: COLUMNS.length + 1 }, "No run matches the filter."));

function createRunRow(row) {
  const cell = (name, ...children) => html("td", { role: "cell", class: `col-${name}` }, ...children);
  const name = row.nested ? row.name.split("/").at(-1) : row.name; // the folder is in the row above
  const link = html("a", { href: row.address, title: row.name, "data-key": `open ${row.address}` }, name);
  return html("tr", { role: "row", "data-activity": row.activity, ...(row.nested ? { class: "nested" } : {}) },
    cell("choose", createCheckbox(row)),
    html("th", { role: "rowheader", scope: "row", class: "col-name" }, link),
    cell("algorithm", row.algorithm), cell("state", ...describeProgress(row)),
    cell("G", ...createMeasure(row, "G")), cell("P", ...createMeasure(row, "P")),
    cell("changed", html("time", { datetime: new Date(row.changed).toISOString() }, formatTime(new Date(row.changed)))));
}

function createCheckbox(row) {
  const members = listMembers(row);
  const num = members.filter((address) => choice.chosen.includes(address)).length;
  const what = row.runs > 1 ? `the ${row.runs} runs of ${row.name}` : row.name;
  const box = html("input", { type: "checkbox", "aria-label": `Compare ${what}`, "data-key": `choose ${row.address}` });
  box.checked = num === members.length;
  box.indeterminate = num > 0 && num < members.length;
  box.addEventListener("change", () => choose(row, box.checked));
  return box;
}

function describeProgress({ state, activity, done, rounds, left, runs, name }) {
  const words = activity === "stopped" && runs === 1 ? `stopped at ${state}` : activity === "running" && state === "not started" ? "starting" : state;
  const text = html("span", { class: "state" }, words);
  if (activity === "finished" || !rounds) return [text];
  const bar = html("progress", { max: rounds, value: done, "aria-label": `Rounds of ${name}` });
  return [text, bar, ...(left ? [html("span", { class: "left" }, `about ${left} left`)] : [])];
}

function createMeasure(row, measure) {
  const { [measure]: value, curves, rounds, runs } = row;
  if (runs > 1) return [];
  const number = html("span", { class: "value", "data-title": `${measure} last 10` }, value === null ? "–" : (100 * value).toFixed(2));
  return [number, createSparkline(measure, curves[measure] ?? [], rounds)];
}

const formatTime = (time) => {
  const two = (number) => String(number).padStart(2, "0");
  const day = `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  return `${day} ${two(time.getHours())}:${two(time.getMinutes())}`;
};
