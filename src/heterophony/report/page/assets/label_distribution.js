// Who holds what: a map of clients and classes.

function drawLabelDistribution() {
  const { clients, classes, counts, run, left_out } = data.label_distribution;
  const notes = ["A column is a client, a row a class; the colour is the number of training examples.",
    run && `The data of ${run}.`, left_out && `${left_out} more clients are not drawn.`];
  byId("label-distribution-note").textContent = notes.filter(Boolean).join(" ");
  const tall = Math.max(6, Math.min(24, 640 / classes.length));
  const bottom = tall * classes.length;
  const [drawing, width] = startDrawing(byId("label-distribution"), bottom + 56, describeLabelDistribution());
  const left = 16 + 7 * Math.min(16, Math.max(...classes.map((c) => c.length), 5));
  const map = { drawing, left, tall, wide: (width - left) / clients.length, bottom };
  const most = greatest([1, ...counts.map((row) => greatest(row))]);
  const levels = Array.from({ length: 9 }, () => []);
  const gap = map.wide > 5 && tall > 8 ? 1 : 0;
  counts.forEach((row, i) => row.forEach((n, j) => {
    const path = `M${(left + i * map.wide).toFixed(2)} ${j * tall}h${(map.wide - gap).toFixed(2)}v${tall - gap}h-${(map.wide - gap).toFixed(2)}z`;
    levels[Math.ceil(8 * Math.sqrt(n / most))].push(path);
  }));
  drawing.append(svg("rect", { class: "lane", x: left, y: 0, width: width - left, height: bottom }));
  levels.forEach((paths, level) => level && drawing.append(svg("path", { class: `h${level}`, d: paths.join("") })));
  labelAxes(map, clients, classes, most);
  exploreCells(map, clients, classes, counts);
}

function describeLabelDistribution() {
  const { clients, classes, counts } = data.label_distribution;
  const sizes = counts.map((row) => row.reduce((a, b) => a + b, 0));
  const kinds = counts.map((row) => row.filter(Boolean).length);
  return `Training examples of ${classes.length} classes at ${clients.length} clients: ${least(sizes)} to ${greatest(sizes)}`
    + ` examples and ${least(kinds)} to ${greatest(kinds)} classes per client`;
}

function labelAxes({ drawing, left, tall, wide, bottom }, clients, classes, most) {
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

function exploreCells({ drawing, left, tall, wide }, clients, classes, counts) {
  const border = svg("rect", { class: "cell-border cursor", width: wide, height: tall, visibility: "hidden" });
  drawing.append(border);
  const show = (i, j, x, y) => {
    if (!(i in clients) || !(j in classes)) return false;
    keyboardPositions.set("label-distribution", [i, j]);
    update(border, { x: left + i * wide, y: j * tall, visibility: "visible" });
    const text = `client ${clients[i]}: ${counts[i][j]} of class ${classes[j]}`;
    return showTip(x, y, html("p", {}, text));
  };
  explore(drawing, {
    point: (px, py, x, y) => show(Math.floor((px - left) / wide), Math.floor(py / tall), x, y),
    step(dx, dy) {
      const box = drawing.getBoundingClientRect();
      const at = keyboardPositions.get("label-distribution") ?? [-1, 0];
      const [i, j] = [at[0] + dx, at[1] + dy];
      return show(i, j, box.left + left + i * wide, box.top + (j + 1) * tall);
    },
    leave: () => border.setAttribute("visibility", "hidden"),
  });
}
