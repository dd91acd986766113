// Protections: what each series uses, and the privacy that it has spent over the rounds.

function drawProtection() {
  byId("protection").hidden = !data.protection;
  if (!data.protection) return;
  const { table, curves } = data.protection;
  byId("protection-table").replaceChildren(createResultTable(table));
  byId("protection-notes").textContent = table.notes.join(" ");
  byId("epsilon").hidden = !curves.length;
  if (curves.length) drawEpsilon(curves);
}

function drawEpsilon(curves) {
  const label = curves.map(({ name, points }) => `${name}: ${points.at(-1)[1].toFixed(2)} after round ${points.at(-1)[0]}`);
  const [drawing, width] = startDrawing(byId("epsilon"), 220, `Epsilon over the rounds. ${joinItems(label)}`);
  const [left, right, top, bottom] = [44, width - 8, 10, 190];
  const rounds = greatest(curves.map((c) => c.points.at(-1)[0]));
  const ticks = listTicks(0, greatest(curves.flatMap((c) => c.points.map((p) => p[1]))), 4);
  const x = createScale(0, rounds, left, right);
  const y = createScale(0, Math.max(ticks.at(-1), greatest(curves.map((c) => c.points.at(-1)[1]))), bottom, top);
  for (const t of ticks) {
    drawing.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(t), y2: y(t) }),
      svg("text", { x: left - 8, y: y(t) + 4, "text-anchor": "end" }, String(t)));
  }
  for (const t of listRoundTicks(rounds)) {
    drawing.append(svg("text", { x: x(t), y: bottom + 18, "text-anchor": "middle" }, String(t)));
  }
  for (const { name, points } of curves) {
    const path = [[0, 0], ...points].map(([t, v]) => `${x(t).toFixed(1)} ${y(v).toFixed(1)}`).join("L");
    drawing.append(svg("path", { class: `curve ${getColourClass(findSeriesIndex(name))}`, d: `M${path}` }));
  }
}
