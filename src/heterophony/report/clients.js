// Clients ---------------------------------------------------------------------------------------

let strips = [];

function drawStrips() {
  const runs = data.series.flatMap((s, index) => s.runs.filter((r) => r.P).map((run) => ({ run, index })));
  const figures = runs.map(({ run, index }) =>
    html("figure", {}, html("figcaption", {}, swatch(index), run.label)));
  byId("strips").replaceChildren(...figures); // all, before the first is measured
  strips = runs.map(({ run, index }, i) => drawStrip(figures[i], run, index));
}

function drawStrip(place, run, index) {
  const [drawing, width] = picture(place, 82, `Accuracy of every client under ${run.label}: P above, G below`);
  const x = scale(0, 1, 28, width - 20);
  const federation = data.federations[run.federation];
  const rings = svg("g");
  const dots = [];
  for (const [lane, measure] of ["P", "G"].entries()) {
    drawLane(drawing, x, 4 + 32 * lane, measure, run[measure] ? "" : "no common model");
    if (run[measure]) dots.push(...drawDots(drawing, x, 4 + 32 * lane, run[measure], federation.test, index));
  }
  for (const t of ticks(0, 1, 5)) {
    drawing.append(svg("text", { x: x(t), y: 80, "text-anchor": "middle" }, `${100 * t} %`));
  }
  drawing.append(rings);
  const strip = { run, drawing, rings, dots, federation, at: -1 };
  exploreStrip(strip);
  return strip;
}

function drawLane(drawing, x, top, measure, note) {
  drawing.append(
    svg("rect", { class: "lane", x: x(0) - 8, y: top, width: x(1) - x(0) + 16, height: 28, rx: 4 }),
    svg("text", { class: "name", x: 0, y: top + 19 }, measure),
    svg("text", { x: x(0.5), y: top + 18, "text-anchor": "middle" }, note),
  );
}

// All dots are one path of zero-length strokes: thousands of clients stay quick to draw.
function drawDots(drawing, x, top, right, tested, index) {
  const dots = right.map((n, client) => ({
    client, px: x(n / tested[client]), py: top + 5 + 18 * (((client + 1) * 0.618034) % 1),
  }));
  const size = right.length > 500 ? 4 : right.length > 100 ? 6 : 8;
  const mean = x(right.reduce((sum, n, client) => sum + n / tested[client], 0) / right.length);
  drawing.append(
    svg("path", { class: `dots ${colour(index)}`, "stroke-width": size, d: dots.map((d) => `M${d.px.toFixed(1)} ${d.py.toFixed(1)}h0`).join("") }),
    svg("line", { class: `mean ${colour(index)}`, x1: mean, x2: mean, y1: top, y2: top + 28 }),
  );
  return dots;
}

function exploreStrip(strip) {
  const show = (client, x, y) => {
    strip.at = client;
    markClient(strip.federation, client);
    showTip(x, y, clientTable(strip, client));
  };
  explore(strip.drawing, {
    point(px, py, x, y) {
      const away = (d) => Math.hypot(d.px - px, d.py - py);
      show(strip.dots.reduce((a, b) => (away(a) <= away(b) ? a : b)).client, x, y);
    },
    step(dx) {
      const client = strip.at + dx;
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

function clientTable({ run, federation }, client) {
  const tested = federation.test[client];
  const accuracy = (right) => (right ? `${percent(right[client] / tested)} (${right[client]} of ${tested})` : "–");
  const facts = { P: accuracy(run.P), G: accuracy(run.G), "training examples": federation.train[client],
    "rounds taken part": run.participations[client] };
  const rows = Object.entries(facts).map(([k, v]) => html("tr", {}, html("th", { scope: "row" }, k), html("td", {}, String(v))));
  return table([`client ${federation.clients[client]}`, ""], rows);
}

// Who holds what --------------------------------------------------------------------------------

function drawHeld() {
  const { clients, classes, counts, of, left_out } = data.held;
  const notes = ["A column is a client, a row a class; the colour is the number of training examples.",
    of && `The data of ${of}.`, left_out && `${left_out} more clients are not drawn.`];
  byId("held-of").textContent = notes.filter(Boolean).join(" ");
  const place = byId("held");
  place.replaceChildren();
  const tall = Math.max(6, Math.min(24, 640 / classes.length));
  const bottom = tall * classes.length;
  const [drawing, width] = picture(place, bottom + 56, `Training examples of ${classes.length} classes at ${clients.length} clients`);
  const left = 16 + 7 * Math.min(16, Math.max(...classes.map((c) => c.length), 5));
  const map = { drawing, left, tall, wide: (width - left) / clients.length, bottom };
  const most = Math.max(1, ...counts.map((row) => Math.max(...row)));
  const levels = Array.from({ length: 9 }, () => []);
  const gap = map.wide > 5 && tall > 8 ? 1 : 0;
  counts.forEach((row, i) => row.forEach((n, j) => {
    const path = `M${(left + i * map.wide).toFixed(2)} ${j * tall}h${(map.wide - gap).toFixed(2)}v${tall - gap}h-${(map.wide - gap).toFixed(2)}z`;
    levels[Math.ceil(8 * Math.sqrt(n / most))].push(path);
  }));
  drawing.append(svg("rect", { class: "lane", x: left, y: 0, width: width - left, height: bottom }));
  levels.forEach((paths, level) => level && drawing.append(svg("path", { class: `h${level}`, d: paths.join("") })));
  nameHeld(map, clients, classes, most);
  exploreHeld(map, clients, classes, counts);
}

function nameHeld({ drawing, left, tall, wide, bottom }, clients, classes, most) {
  const short = (name) => (name.length > 16 ? `${name.slice(0, 15)}…` : name);
  const every = (size, room) => [1, 2, 5, 10, 20, 50, 100, 200, 500].find((n) => n * size >= room) ?? 1000;
  const rows = every(tall, 13);
  const columns = every(wide, 12 + 7 * Math.max(...clients.map((c) => short(c).length)));
  classes.forEach((name, j) => j % rows || drawing.append(
    svg("text", { x: left - 8, y: (j + 0.5) * tall + 4, "text-anchor": "end" }, short(name))));
  clients.forEach((name, i) => i % columns || drawing.append(
    svg("text", { x: left + (i + 0.5) * wide, y: bottom + 16, "text-anchor": "middle" }, short(name))));
  for (let level = 1; level <= 8; level++) {
    drawing.append(svg("rect", { class: `h${level}`, x: left - 10 + 22 * level, y: bottom + 34, width: 22, height: 14 }));
  }
  drawing.append(svg("text", { x: left + 6, y: bottom + 46, "text-anchor": "end" }, "1"),
    svg("text", { x: left + 194, y: bottom + 46 }, `${most} examples`));
}

function exploreHeld({ drawing, left, tall, wide }, clients, classes, counts) {
  const border = svg("rect", { class: "cell-border", width: wide, height: tall, visibility: "hidden" });
  drawing.append(border);
  let at = [-1, 0];
  const show = (i, j, x, y) => {
    if (!(i in clients) || !(j in classes)) return false;
    at = [i, j];
    fill(border, { x: left + i * wide, y: j * tall, visibility: "visible" }, []);
    const text = `client ${clients[i]}: ${counts[i][j]} of class ${classes[j]}`;
    return showTip(x, y, html("p", {}, text));
  };
  explore(drawing, {
    point: (px, py, x, y) => show(Math.floor((px - left) / wide), Math.floor(py / tall), x, y),
    step(dx, dy) {
      const box = drawing.getBoundingClientRect();
      const [i, j] = [at[0] + dx, at[1] + dy];
      return show(i, j, box.left + left + i * wide, box.top + (j + 1) * tall);
    },
    leave: () => border.setAttribute("visibility", "hidden"),
  });
}
