// G against P: one mark per series shows how good its common and its personal models are.

function initScatter() {
  byId("scatter-value").addEventListener("change", drawScatter);
}

function drawScatter() {
  const marks = computeMarks(byId("scatter-value").value);
  const both = marks.filter((m) => m.G !== undefined);
  byId("scatter-without-g").textContent = listSeriesWithoutG(marks.filter((m) => m.G === undefined));
  byId("scatter").querySelector("span").textContent = `G against P, ${byId("scatter-value").selectedOptions[0].text}`;
  const [drawing, width] = startDrawing(byId("scatter"), 440, describeScatter(both));
  const points = both.flatMap((m) => [m, ...m.seeds]);
  const levels = { G: listAccuracyTicks(points.map((p) => p.G)), P: listAccuracyTicks(points.map((p) => p.P)) };
  const x = createScale(levels.G[0], levels.G.at(-1), 56, width - 16);
  const y = createScale(levels.P[0], levels.P.at(-1), 388, 12);
  drawScatterAxes(drawing, x, y, levels);
  for (const p of points) Object.assign(p, { px: x(p.G), py: y(p.P) });
  const small = both.flatMap((m) => (m.seeds.length > 1 ? m.seeds.map((s) => ({ ...s, index: m.index })) : []));
  const circle = (kind, r) => ({ px, py, index }, i) =>
    svg("circle", { class: `${kind} ${getColourClass(index)}`, cx: px.toFixed(1), cy: py.toFixed(1), r: r(i) });
  // of coinciding marks, the lower ones are larger: rings around the topmost
  const countAbove = (i) => both.slice(i + 1).filter((m) => Math.hypot(m.px - both[i].px, m.py - both[i].py) < 2).length;
  drawing.append(...small.map(circle("seed-mark", () => 2.5)), ...both.map(circle("mark", (i) => 5.5 + 3.5 * Math.min(3, countAbove(i)))));
  labelMarks(drawing, both, small, width);
  exploreScatter(drawing, both);
}

// The mean over the seeds from the comparison table, and every seed's value from its result.
// value is "last10" or "best".
function computeMarks(value) {
  const rows = new Map(data.table.rows.map((row) => [row.cells[0], row]));
  const [g, p] = ["G", "P"].map((m) => data.table.columns.indexOf(`${m}.${value}`));
  const select = (accuracy) => (value === "best" ? accuracy.best : accuracy.last10.mean);
  return getVisibleSeries().filter((s) => rows.has(s.name)).map((s) => {
    const { values } = rows.get(s.name);
    const results = s.runs.map((r) => r.result).filter((r) => r?.G);
    const seeds = results.map((r) => ({ seed: r.seed, G: select(r.G), P: select(r.P) }));
    return { name: s.name, index: s.index, G: values[g] ?? undefined, P: values[p], seeds };
  });
}

function listSeriesWithoutG(marks) {
  const names = marks.map((m) => `${m.name} (P ${formatPercent(m.P)})`);
  return names.length ? `Not drawn, because there is no generic model: ${names.join(", ")}.` : "";
}

function describeScatter(marks) {
  const texts = [...marks].sort((a, b) => b.P - a.P).map((m) => `${m.name} G ${formatPercent(m.G)}, P ${formatPercent(m.P)}`);
  return `G against P: ${joinItems(texts) || "nothing measured"}`;
}

function drawScatterAxes(drawing, x, y, levels) {
  const [left, right, bottom, top] = [levels.G[0], levels.G.at(-1), levels.P[0], levels.P.at(-1)];
  for (const v of levels.G) {
    drawing.append(svg("line", { class: "grid", x1: x(v), x2: x(v), y1: y(bottom), y2: y(top) }),
      svg("text", { x: x(v), y: 407, "text-anchor": "middle" }, formatTick(v)));
  }
  for (const v of levels.P) {
    drawing.append(svg("line", { class: "grid", x1: x(left), x2: x(right), y1: y(v), y2: y(v) }),
      svg("text", { x: x(left) - 8, y: y(v) + 4, "text-anchor": "end" }, formatTick(v)));
  }
  const [from, to] = [Math.max(left, bottom), Math.min(right, top)];
  if (from < to) {
    drawing.append(svg("line", { class: "diagonal", x1: x(from), x2: x(to), y1: y(from), y2: y(to) }));
  }
  const [G, P] = x(right) > 480 ? ["G, the generic model →", "↑ P, each client’s own model"] : ["G →", "↑ P"];
  drawing.append(svg("text", { x: x(right), y: 430, "text-anchor": "end" }, G), svg("text", { x: 0, y: 430 }, P));
}

// Place each name where it covers no mark and no other name, if possible no seed's small mark either.
// A name without room is left out; the tip has it.
function labelMarks(drawing, marks, small, width) {
  const names = marks.map((m) => svg("text", { class: "label" }, m.name.length > 28 ? `${m.name.slice(0, 27)}…` : m.name));
  drawing.append(...names);
  const lengths = names.map((n) => n.getComputedTextLength());
  const around = (size) => ({ px, py }) => [px - size, py - size, px + size, py + size];
  const [taken, avoided] = [marks.map(around(7)), small.map(around(2))];
  const clear = (box, others) => box[0] >= 56 && box[2] <= width && box[1] >= 0 && box[3] <= 392
    && !others.some((o) => box[0] < o[2] && o[0] < box[2] && box[1] < o[3] && o[1] < box[3]);
  marks.forEach(({ px, py }, i) => {
    const wide = lengths[i];
    const corners = [[10, 4], [-10 - wide, 4], [-wide / 2, -10], [-wide / 2, 19], [8, -8], [8, 16], [-8 - wide, -8], [-8 - wide, 16]];
    const boxes = corners.map(([dx, dy]) => [px + dx, py + dy - 11, px + dx + wide, py + dy + 3]);
    const best = boxes.findIndex((box) => clear(box, [...taken, ...avoided]));
    const free = best < 0 ? boxes.findIndex((box) => clear(box, taken)) : best;
    if (free < 0) return names[i].remove();
    taken.push(boxes[free]);
    return update(names[i], { x: (px + corners[free][0]).toFixed(1), y: (py + corners[free][1]).toFixed(1) });
  });
}

function exploreScatter(drawing, marks) {
  const ring = svg("circle", { class: "ring cursor", r: 9, visibility: "hidden" });
  drawing.append(ring);
  const show = (mark, x, y) => {
    keyboardPositions.set("scatter", mark.name);
    update(ring, { cx: mark.px, cy: mark.py, visibility: "visible" });
    showTip(x, y, createMarkTable(mark));
  };
  explore(drawing, {
    point(px, py, x, y) {
      const away = (m) => Math.hypot(m.px - px, m.py - py);
      if (marks.length) show(marks.reduce((a, b) => (away(a) <= away(b) ? a : b)), x, y);
    },
    step(dx, dy) { // ← → in the order of G, ↑ ↓ in that of P
      const order = [...marks].sort((a, b) => (dx ? a.G - b.G : a.P - b.P));
      const at = order.findIndex((m) => m.name === keyboardPositions.get("scatter"));
      const mark = at < 0 ? order[0] : order[at + dx - dy];
      if (!mark) return false;
      const box = drawing.getBoundingClientRect();
      return show(mark, box.left + mark.px, box.top + mark.py);
    },
    leave: () => ring.setAttribute("visibility", "hidden"),
  });
}

function createMarkTable({ name, index, G, P, seeds }) {
  const row = (title, ...values) => html("tr", {}, html("th", { scope: "row" }, ...title),
    ...values.map((v) => html("td", {}, formatPercent(v))));
  const each = seeds.length > 1 ? seeds.map((s) => row([`seed ${s.seed}`], s.G, s.P)) : [];
  return createTable(["", "G", "P"], [row([createSwatch(index), name], G, P), ...each]);
}
