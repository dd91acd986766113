// The list of runs on the dashboard: sorting, filtering, and choosing runs to compare.
"use strict";

const MAX_CHOSEN = 100; // as the server allows
const STORAGE_KEY = "heterophony run list"; // in this browser tab, for the way back from a run

let rows = [];
const choice = { sort: "changed", descending: true, filter: "", chosen: [] }; // chosen: addresses of single runs

// The columns that can be sorted. `value` is of one row; numbers begin with the highest.
const ACTIVITIES = ["running", "stopped", "not started", "damaged", "unreadable", "finished"];
const COLUMNS = [
  { key: "name", title: "run", value: (row) => row.name },
  { key: "algorithm", title: "algorithm", value: (row) => row.algorithm },
  { key: "state", title: "state", value: (row) => ACTIVITIES.indexOf(row.activity) - (row.rounds ? row.done / row.rounds : 0) },
  { key: "G", title: "G last 10", value: (row) => row.G, descending: true },
  { key: "P", title: "P last 10", value: (row) => row.P, descending: true },
  { key: "changed", title: "last change", value: (row) => row.changed, descending: true },
];

// live_updates.js calls show and showBoards on both pages, this one and the report.
function show(newRows) {
  rows = newRows;
  const known = new Set(listRuns().map((row) => row.address));
  choice.chosen = choice.chosen.filter((address) => known.has(address));
  drawRunList();
}

const showBoards = (boards) => drawBoards(boards);

// A folder of runs is followed by its runs; only these can be counted and chosen.
const listRuns = (from = rows) => from.filter((row) => row.runs === 1);

// [{ row, children }] in the chosen order; the runs of a folder stay below it.
function arrangeRows() {
  const groups = [];
  for (const row of rows) {
    if (row.nested) groups.at(-1).children.push(row);
    else groups.push({ row, children: [] });
  }
  const { value } = COLUMNS.find((column) => column.key === choice.sort);
  const compare = (a, b) => compareValues(value(a), value(b));
  for (const group of groups) group.children.sort(compare);
  const represent = ({ row, children }) => (value(row) === null && children.length ? children[0] : row);
  return groups.sort((a, b) => compare(represent(a), represent(b)));
}

// In the chosen direction; what was not measured is always last.
function compareValues(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
  return choice.descending ? -order : order;
}

// Rows that contain all words of the filter. The runs of a folder that does are shown with it.
function filterRows() {
  const words = choice.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = ({ name, algorithm, state, activity }) => {
    const text = `${name} ${algorithm} ${state} ${activity}`.toLowerCase();
    return words.every((word) => text.includes(word));
  };
  return arrangeRows().flatMap(({ row, children }) => {
    if (!children.length) return matches(row) ? [row] : [];
    const found = children.filter(matches);
    return found.length ? [row, ...found] : matches(row) ? [row, ...children] : [];
  });
}

function drawRunList() {
  const shown = filterRows();
  const key = document.activeElement?.dataset.key;
  byId("run-list").replaceChildren(...(rows.length ? [createRunTable(shown)] : []));
  if (key) [...document.querySelectorAll("[data-key]")].find((e) => e.dataset.key === key)?.focus({ preventScroll: true });
  byId("run-tools").hidden = byId("run-list-note").hidden = !rows.length;
  const [few, all] = [listRuns(shown).length, listRuns().length];
  setText("filter-count", few < all ? `${few} of ${all} runs` : `${all} run${all === 1 ? "" : "s"}`);
  drawChosen();
  saveChoice();
}

const setText = (id, text) => { // screen readers announce every assignment, so skip equal texts
  if (byId(id).textContent !== text) byId(id).textContent = text;
};

// Choosing --------------------------------------------------------------------------------------

// The runs that a row stands for: itself, or all runs of the folder.
function listMembers(row) {
  if (row.runs === 1) return [row.address];
  const at = rows.indexOf(row);
  return rows.slice(at + 1, at + 1 + row.runs).map((member) => member.address);
}

function choose(row, isChosen) {
  const members = listMembers(row);
  const others = choice.chosen.filter((address) => !members.includes(address));
  choice.chosen = isChosen ? [...others, ...members] : others;
  drawRunList();
}

function drawChosen() {
  const num = choice.chosen.length;
  const tooMany = num > MAX_CHOSEN;
  setText("chosen", tooMany ? `${num} chosen; at most ${MAX_CHOSEN} can be compared` : num ? `${num} chosen` : "Choose runs to compare them on one page.");
  byId("compare").hidden = !num || tooMany;
  byId("compare").textContent = num === 1 ? "Open 1 run" : `Compare ${num} runs`;
  const inOrder = listRuns().map((row) => row.address).filter((address) => choice.chosen.includes(address));
  byId("compare").href = `?${inOrder.map((address) => address.slice(1)).join("&")}`;
  byId("clear").hidden = !num;
}

// Keeping choices -------------------------------------------------------------------------------

function saveChoice() {
  try {
    sessionStorage.setItem(STORAGE_KEY, JSON.stringify(choice));
  } catch { /* the browser stores nothing: choices last as long as the page */ }
}

function loadChoice() {
  try {
    const { sort, descending, filter, chosen } = JSON.parse(sessionStorage.getItem(STORAGE_KEY));
    if (COLUMNS.some((column) => column.key === sort)) Object.assign(choice, { sort, descending: Boolean(descending) });
    if (Array.isArray(chosen)) Object.assign(choice, { filter: String(filter), chosen });
  } catch { /* nothing was stored */ }
  byId("filter").value = choice.filter;
}

document.addEventListener("DOMContentLoaded", () => {
  loadChoice();
  byId("filter").addEventListener("input", () => {
    choice.filter = byId("filter").value;
    drawRunList();
  });
  byId("clear").addEventListener("click", () => {
    choice.chosen = [];
    drawRunList();
    byId("filter").focus();
  });
  show(JSON.parse(byId("data").textContent));
});
