// Bars per client: participation in the report, numbers of examples on the label page.

// stacks: one or more bars side by side for each client. A stack is a list of layers from the bottom up,
// { colour, label, values }, with one value per client.
function drawClientBars(figure, clients, stacks, height, description) {
  const [drawing, width] = startDrawing(figure, height, description);
  const bottom = height - 38;
  const tops = stacks.map((layers) => clients.map((_, i) => layers.reduce((sum, layer) => sum + layer.values[i], 0)));
  const most = greatest([1, ...tops.flat()]);
  const left = 16 + 7.5 * Math.max(3, String(most).length);
  const x = createScale(0, clients.length, left, width);
  const y = createScale(0, most, bottom, 8);
  for (const t of listTicks(0, most, height < 200 ? 3 : 5).filter(Number.isInteger)) {
    drawing.append(svg("line", { class: "grid", x1: left, x2: width, y1: y(t), y2: y(t) }),
      svg("text", { x: left - 8, y: y(t) + 4, "text-anchor": "end" }, String(t)));
  }
  const slot = (0.84 * (x(1) - x(0))) / stacks.length;
  stacks.forEach((layers, k) => drawStack(drawing, layers, (i) => x(i + 0.08) + k * slot, y, Math.max(0.5, slot)));
  labelClients(drawing, clients, left, width, bottom);
  exploreBars(drawing, x, bottom, clients, stacks.flat());
}

// One path for all bars of a layer keeps thousands of clients fast to draw.
function drawStack(drawing, layers, getLeft, y, thickness) {
  const base = layers[0].values.map(() => 0);
  const w = thickness.toFixed(1);
  for (const { colour, values } of layers) {
    const bars = values.map((n, i) => (n
      ? `M${getLeft(i).toFixed(1)} ${y(base[i]).toFixed(1)}h${w}V${y(base[i] + n).toFixed(1)}h-${w}z` : ""));
    values.forEach((n, i) => { base[i] += n; });
    drawing.append(svg("path", { class: `bar ${colour}`, d: bars.join("") }));
  }
}

function exploreBars(drawing, x, bottom, clients, layers) {
  const band = svg("rect", { class: "cell-border cursor", y: 6, height: bottom - 4, width: x(1) - x(0), visibility: "hidden" });
  drawing.append(band);
  const show = (i, left, top) => {
    if (!(i in clients)) return false;
    keyboardPositions.set("client bars", i);
    update(band, { x: x(i), visibility: "visible" });
    const counts = layers.filter((layer, k) => !k || layer.values[i]).map(({ values, label }) => `${values[i]} ${label}`);
    return showTip(left, top, html("p", {}, `client ${clients[i]}: ${counts.join(", ")}`));
  };
  explore(drawing, {
    point: (px, _, left, top) => show(Math.floor((px - x(0)) / (x(1) - x(0))), left, top),
    step(dx) {
      const box = drawing.getBoundingClientRect();
      const at = Math.min(keyboardPositions.get("client bars") ?? -1, clients.length);
      return dx ? show(at + dx, box.left + x(at + dx), box.top + 20) : false;
    },
    leave: () => band.setAttribute("visibility", "hidden"),
  });
}

// Names along the horizontal axis -----------------------------------------------------------------

const shortenName = (name) => (name.length > 16 ? `${name.slice(0, 15)}…` : name);

// Return n such that every n-th name fits, if clients are `size` pixels apart and a name needs `room`.
const chooseNameStep = (size, room) => [1, 2, 5, 10, 20, 50, 100, 200, 500].find((n) => n * size >= room) ?? 1000;

function labelClients(drawing, clients, left, right, bottom) {
  const size = (right - left) / clients.length;
  const step = chooseNameStep(size, 12 + 7 * greatest(clients.map((name) => shortenName(name).length)));
  clients.forEach((name, i) => i % step || drawing.append(
    svg("text", { x: left + (i + 0.5) * size, y: bottom + 16, "text-anchor": "middle" }, shortenName(name))));
  drawing.append(svg("text", { x: right, y: bottom + 34, "text-anchor": "end" }, "client"));
}
