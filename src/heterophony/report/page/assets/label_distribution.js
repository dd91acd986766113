// Label distributions: the training examples of each client and class, as a heat map or as bubbles.
// A distribution is { clients, classes, counts } with counts[client][class].

function drawLabelDistribution() {
  const { run, left_out } = data.label_distribution;
  const notes = ["A column is a client, a row a class. The stronger the colour, the more training examples.",
    run && `The data of ${run}.`, left_out && `${left_out} more clients are not drawn.`];
  byId("label-distribution-note").textContent = notes.filter(Boolean).join(" ");
  drawHeatmap(byId("label-distribution"), data.label_distribution);
}

function drawHeatmap(figure, distribution) {
  const grid = startGrid(figure, distribution, 64);
  const { drawing, left, cellWidth, cellHeight, bottom, most } = grid;
  const gap = cellWidth > 5 && cellHeight > 8 ? 1 : 0;
  const [w, h] = [(cellWidth - gap).toFixed(2), cellHeight - gap];
  const shades = Array.from({ length: 9 }, () => []); // the cells of each shade; shade 0 is empty
  distribution.counts.forEach((row, i) => row.forEach((n, j) => {
    const cell = `M${(left + i * cellWidth).toFixed(2)} ${j * cellHeight}h${w}v${h}h-${w}z`;
    shades[Math.ceil(8 * Math.sqrt(n / most))].push(cell);
  }));
  shades.forEach((cells, shade) => shade && drawing.append(svg("path", { class: `h${shade}`, d: cells.join("") })));
  for (let shade = 1; shade <= 8; shade++) {
    drawing.append(svg("rect", { class: `h${shade}`, x: left - 10 + 22 * shade, y: bottom + 42, width: 22, height: 14 }));
  }
  drawing.append(svg("text", { x: left + 6, y: bottom + 54, "text-anchor": "end" }, "1"),
    svg("text", { x: left + 194, y: bottom + 54 }, `${most} examples`));
  exploreCells(grid, distribution);
}

// The area of a disc is proportional to the number of examples.
function drawBubbles(figure, distribution) {
  const grid = startGrid(figure, distribution, 76);
  const { drawing, left, cellWidth, cellHeight, bottom, most } = grid;
  const largest = Math.min(22, Math.max(10, 0.9 * Math.min(cellWidth, cellHeight))) / 2;
  const createDisc = (x, y, n) => {
    const r = (largest * Math.sqrt(n / most)).toFixed(2);
    return `M${(x - r).toFixed(1)} ${y.toFixed(1)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;
  };
  const discs = distribution.counts.flatMap((row, i) => row.map((n, j) => (n
    ? createDisc(left + (i + 0.5) * cellWidth, (j + 0.5) * cellHeight, n) : "")));
  drawing.append(svg("path", { class: "disc", d: discs.join("") }));
  const sizes = [...new Set([Math.ceil(most / 16), Math.ceil(most / 4), most])];
  sizes.forEach((n, k) => {
    const [x, y] = [left + 12 + 70 * k, bottom + 56];
    drawing.append(svg("path", { class: "disc", d: createDisc(x, y, n) }),
      svg("text", { x: x + 16, y: y + 4 }, k === sizes.length - 1 ? `${n} examples` : String(n)));
  });
  exploreCells(grid, distribution);
}

// An empty grid of clients and classes with their names, and room for a legend below.
function startGrid(figure, distribution, legendHeight) {
  const { clients, classes, counts } = distribution;
  const cellHeight = Math.max(6, Math.min(24, 640 / classes.length));
  const bottom = cellHeight * classes.length;
  const [drawing, width] = startDrawing(figure, bottom + legendHeight, describeLabelDistribution(distribution));
  const left = 16 + 7 * Math.max(5, greatest(classes.map((name) => shortenName(name).length)));
  drawing.append(svg("rect", { class: "lane", x: left, y: 0, width: width - left, height: bottom }));
  const step = chooseNameStep(cellHeight, 13);
  classes.forEach((name, j) => j % step || drawing.append(
    svg("text", { x: left - 8, y: (j + 0.5) * cellHeight + 4, "text-anchor": "end" }, shortenName(name))));
  labelClients(drawing, clients, left, width, bottom);
  const most = greatest([1, ...counts.map((row) => greatest(row))]);
  return { drawing, left, bottom, most, cellHeight, cellWidth: (width - left) / clients.length };
}

function describeLabelDistribution({ clients, classes, counts }) {
  const sizes = counts.map((row) => row.reduce((a, b) => a + b, 0));
  const held = counts.map((row) => row.filter(Boolean).length);
  return `Training examples of ${classes.length} classes at ${clients.length} clients: ${least(sizes)} to ${greatest(sizes)}`
    + ` examples and ${least(held)} to ${greatest(held)} classes per client`;
}

function exploreCells({ drawing, left, cellWidth, cellHeight }, { clients, classes, counts }) {
  const border = svg("rect", { class: "cell-border cursor", width: cellWidth, height: cellHeight, visibility: "hidden" });
  drawing.append(border);
  const show = (i, j, x, y) => {
    if (!(i in clients) || !(j in classes)) return false;
    keyboardPositions.set("cells", [i, j]);
    update(border, { x: left + i * cellWidth, y: j * cellHeight, visibility: "visible" });
    return showTip(x, y, html("p", {}, `client ${clients[i]}: ${counts[i][j]} of class ${classes[j]}`));
  };
  explore(drawing, {
    point: (px, py, x, y) => show(Math.floor((px - left) / cellWidth), Math.floor(py / cellHeight), x, y),
    step(dx, dy) {
      const box = drawing.getBoundingClientRect();
      const at = keyboardPositions.get("cells") ?? [-1, 0];
      const [i, j] = [at[0] + dx, at[1] + dy];
      return show(i, j, box.left + left + i * cellWidth, box.top + (j + 1) * cellHeight);
    },
    leave: () => border.setAttribute("visibility", "hidden"),
  });
}
