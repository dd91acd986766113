// Accuracy of every client after the last round: one strip of dots per run.

let strips = [];

function drawStrips() {
  const runs = data.series.flatMap((s, index) => s.runs.filter((r) => r.P).map((run) => ({ run, index, key: s.key })));
  const shown = limitItems("strips", runs, drawStrips);
  const figures = shown.map(({ run, index, key }) => createFigure(`strip ${key} ${run.seed}`, createSwatch(index), run.label));
  byId("strips").replaceChildren(...figures); // insert all before drawing: their widths depend on each other
  strips = shown.map(({ run, index }, i) => drawStrip(figures[i], run, index));
}

function drawStrip(figure, run, index) {
  const [drawing, width] = startDrawing(figure, 82, describeStrip(run));
  const x = createScale(0, 1, 28, width - 20);
  const federation = data.federations[run.federation];
  const rings = svg("g", { class: "cursor" });
  const dots = [];
  for (const [lane, measure] of ["P", "G"].entries()) {
    drawLane(drawing, x, 4 + 32 * lane, measure, run[measure] ? "" : "no generic model");
    if (run[measure]) dots.push(...drawDots(drawing, x, 4 + 32 * lane, run[measure], federation.test, index));
  }
  for (const t of listTicks(0, 1, 5)) {
    drawing.append(svg("text", { x: x(t), y: 80, "text-anchor": "middle" }, `${100 * t} %`));
  }
  drawing.append(rings);
  const strip = { run, drawing, rings, dots, federation };
  exploreStrip(strip);
  return strip;
}

function describeStrip(run) {
  const { test } = data.federations[run.federation];
  const texts = ["P", "G"].filter((measure) => run[measure]).map((measure) => {
    const each = run[measure].map((n, client) => n / test[client]);
    return `${measure} from ${formatPercent(least(each))} to ${formatPercent(greatest(each))}, mean ${formatPercent(average(each))}`;
  });
  return `Accuracy of every client under ${run.label}: ${texts.join("; ")}`;
}

function drawLane(drawing, x, top, measure, note) {
  drawing.append(
    svg("rect", { class: "lane", x: x(0) - 8, y: top, width: x(1) - x(0) + 16, height: 28, rx: 4 }),
    svg("text", { class: "name", x: 0, y: top + 19 }, measure),
    svg("text", { x: x(0.5), y: top + 18, "text-anchor": "middle" }, note),
  );
}

// One path of zero-length strokes for all dots keeps thousands of clients fast to draw.
function drawDots(drawing, x, top, correct, tested, index) {
  const place = (score) => x(Math.max(0, score)); // R² can be below 0: at the edge
  const dots = correct.map((n, client) => ({
    client, px: place(n / tested[client]), py: top + 5 + 18 * (((client + 1) * 0.618034) % 1),
  }));
  const size = correct.length > 500 ? 4 : correct.length > 100 ? 6 : 8;
  const mean = place(average(correct.map((n, client) => n / tested[client])));
  drawing.append(
    svg("path", { class: `dots ${getColourClass(index)}`, "stroke-width": size, d: dots.map((d) => `M${d.px.toFixed(1)} ${d.py.toFixed(1)}h0`).join("") }),
    svg("line", { class: `mean ${getColourClass(index)}`, x1: mean, x2: mean, y1: top, y2: top + 28 }),
  );
  return dots;
}

function exploreStrip(strip) {
  const show = (client, x, y) => {
    keyboardPositions.set("strips", client);
    markClient(strip.federation, client);
    showTip(x, y, createClientTable(strip, client));
  };
  explore(strip.drawing, {
    point(px, py, x, y) {
      const away = (d) => Math.hypot(d.px - px, d.py - py);
      show(strip.dots.reduce((a, b) => (away(a) <= away(b) ? a : b)).client, x, y);
    },
    step(dx) {
      const client = Math.min(keyboardPositions.get("strips") ?? -1, strip.federation.clients.length) + dx;
      if (!dx || !(client in strip.federation.clients)) return false;
      const box = strip.drawing.getBoundingClientRect();
      return show(client, box.left, box.bottom);
    },
    leave: () => strips.forEach((s) => s.rings.replaceChildren()),
  });
}

function markClient(federation, client) {
  for (const strip of strips.filter((s) => s.federation === federation)) {
    const own = strip.dots.filter((d) => d.client === client);
    strip.rings.replaceChildren(...own.map((d) => svg("circle", { class: "ring", cx: d.px, cy: d.py, r: 6 })));
  }
}

function createClientTable({ run, federation }, client) {
  const tested = federation.test[client];
  const accuracy = (correct) => (correct ? formatPercent(correct[client] / tested) + (data.score === "accuracy" ? ` (${correct[client]} of ${tested})` : "") : "–");
  const facts = { P: accuracy(run.P), G: accuracy(run.G), "training examples": federation.train[client],
    "rounds taken part": run.participations[client] };
  const rows = Object.entries(facts).map(([k, v]) => html("tr", {}, html("th", { scope: "row" }, k), html("td", {}, String(v))));
  return createTable([`client ${federation.clients[client]}`, ""], rows);
}
