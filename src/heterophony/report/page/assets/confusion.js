// Confusion of classes: how often each class is predicted as each other class, for one client or for all.

const CONFUSION_CHOICES = ["confusion-series", "confusion-measure", "confusion-client"];
const MAX_BESIDE = 20; // classes with which the table fits beside the matrix
const AXIS_TITLE_WIDTH = 100; // of "predicted class", in pixels
const SIDE_OF_NUMBERS = 26; // of a cell, in pixels, from which its number fits
const ALL_CLIENTS = "all clients";

function initConfusion() {
  for (const id of CONFUSION_CHOICES) byId(id).addEventListener("change", drawConfusion);
}

function drawConfusion() {
  byId("confusion").hidden = !data.confusion;
  if (!data.confusion) return;
  const { series } = data.confusion;
  const chosen = series[Math.max(0, series.findIndex((s) => s.name === chooseOption("confusion-series", series.map((s) => s.name))))];
  const measure = chooseOption("confusion-measure", Object.keys(chosen.cells));
  const client = chooseOption("confusion-client", [ALL_CLIENTS, ...chosen.clients]);
  const counts = sumConfusions(chosen, measure, client);
  byId("confusion-run").textContent = series.length > 1 || data.series[0].runs.length > 1 ? `The run ${chosen.run}.` : "";
  byId("confusion-parts").className = chosen.classes.length > MAX_BESIDE ? "" : "pair";
  drawConfusionMatrix(byId("confusion-matrix"), chosen.classes, counts, `${measure} of ${chosen.name}, ${client}`);
  byId("confusion-table").replaceChildren(createClassTable(chosen.classes, counts));
}

// Fill a list of choices; keep the reader's choice if it is still there.
function chooseOption(id, names) {
  const select = byId(id);
  const before = select.value;
  if (names.join("\n") !== [...select.options].map((o) => o.value).join("\n")) {
    select.replaceChildren(...names.map((name) => html("option", { value: name }, name)));
    if (names.includes(before)) select.value = before;
  }
  return select.value;
}

function sumConfusions({ classes, clients, cells }, measure, client) {
  const counts = classes.map(() => classes.map(() => 0));
  const chosen = client === ALL_CLIENTS ? cells[measure] : [cells[measure][clients.indexOf(client)]];
  for (const own of chosen) for (const [t, p, n] of own ?? []) counts[t][p] += n;
  return counts;
}

function drawConfusionMatrix(figure, classes, counts, title) {
  const longest = Math.max(2, greatest(classes.map((name) => shortenName(name).length)));
  const left = 36 + 7 * longest;
  const room = Math.min(560, figure.clientWidth - left - AXIS_TITLE_WIDTH);
  const side = Math.max(6, Math.min(36, room / classes.length));
  const bottom = side * classes.length;
  const right = classes.map((_, i) => counts[i][i]).reduce((a, b) => a + b, 0);
  const all = counts.flat().reduce((a, b) => a + b, 0);
  const [drawing] = startDrawing(figure, bottom + 30 + 5 * longest, `${title}: ${right} of ${all} test examples are right`);
  drawing.append(svg("rect", { class: "lane", x: left, y: 0, width: bottom, height: bottom }));
  const step = chooseNameStep(side, 13);
  classes.forEach((name, i) => {
    if (i % step) return;
    const [x, y] = [left + (i + 0.5) * side, (i + 0.5) * side];
    drawing.append(svg("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, shortenName(name)),
      svg("text", { x, y: bottom + 14, "text-anchor": "end", transform: `rotate(-45 ${x} ${bottom + 14})` }, shortenName(name)));
  });
  const most = counts.map((row) => greatest([1, row.reduce((a, b) => a + b, 0)]));
  counts.forEach((row, i) => row.forEach((n, j) => n && drawing.append(svg("rect", {
    class: `h${getShade(n, most[i])}`, x: left + j * side, y: i * side, width: side - 1, height: side - 1,
  }))));
  if (side >= SIDE_OF_NUMBERS) drawing.append(...createNumbers(counts, most, left, side));
  drawing.append(
    svg("text", { x: 12, y: bottom / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${bottom / 2})` }, "true class"),
    svg("text", { x: left + bottom + 8, y: bottom + 14 }, "predicted class"));
  exploreConfusion(drawing, left, side, classes, counts);
}

// The number of examples in each cell that has any.
function createNumbers(counts, most, left, side) {
  return counts.flatMap((row, i) => row.flatMap((n, j) => (n ? [svg("text", {
    class: `cell-number${getShade(n, most[i]) > 4 ? " on-dark" : ""}`, x: left + (j + 0.5) * side, y: (i + 0.5) * side + 4,
  }, String(n))] : [])));
}

const getShade = (n, most) => Math.ceil(8 * Math.sqrt(n / most));

function exploreConfusion(drawing, left, side, classes, counts) {
  const border = svg("rect", { class: "cell-border cursor", width: side, height: side, visibility: "hidden" });
  drawing.append(border);
  const show = (i, j, x, y) => {
    if (!(i in classes) || !(j in classes)) return false;
    keyboardPositions.set("confusion", [i, j]);
    update(border, { x: left + j * side, y: i * side, visibility: "visible" });
    return showTip(x, y, html("p", {}, `${counts[i][j]} of class ${classes[i]}, predicted as ${classes[j]}`));
  };
  explore(drawing, {
    point: (px, py, x, y) => show(Math.floor(py / side), Math.floor((px - left) / side), x, y),
    step(dx, dy) {
      const box = drawing.getBoundingClientRect();
      const at = keyboardPositions.get("confusion") ?? [0, -1];
      const [i, j] = [at[0] + dy, at[1] + dx];
      return show(i, j, box.left + left + j * side, box.top + (i + 1) * side);
    },
    leave: () => border.setAttribute("visibility", "hidden"),
  });
}

function createClassTable(classes, counts) {
  const rows = classes.map((name, i) => {
    const examples = counts[i].reduce((a, b) => a + b, 0);
    const cells = [formatPercent(examples ? counts[i][i] / examples : null), String(examples)];
    return html("tr", {}, html("th", { scope: "row" }, name), ...cells.map((text) => html("td", {}, text)));
  });
  return createTable(["class", "accuracy", "test examples"], rows);
}
