// In how many rounds each client took part.

function drawParticipation() {
  const shown = limitItems("participation", data.participation, drawParticipation);
  const figures = shown.map(({ labels }, i) => {
    const names = labels.length > 4 ? [...labels.slice(0, 3), `${labels.length - 3} more runs`] : labels;
    return createFigure(`participation ${i}`, names.join(", "));
  });
  byId("participation").replaceChildren(...figures); // insert all before drawing: their widths depend on each other
  shown.forEach((counts, i) => drawCounts(figures[i], counts));
}

// One path for all bars keeps thousands of clients fast to draw.
function drawCounts(figure, { federation, rounds_selected: selected, rounds_trained: trained, labels }) {
  const { clients } = data.federations[federation];
  const [drawing, width] = startDrawing(figure, 150,
    `Rounds that every client took part in, under ${labels[0]}: from ${least(trained)} to ${greatest(trained)}`);
  const most = greatest([1, ...selected]);
  const x = createScale(0, clients.length, 40, width);
  const y = createScale(0, most, 120, 8);
  for (const t of listTicks(0, most, 3).filter(Number.isInteger)) {
    drawing.append(svg("line", { class: "grid", x1: x(0), x2: width, y1: y(t), y2: y(t) }),
      svg("text", { x: 32, y: y(t) + 4, "text-anchor": "end" }, String(t)));
  }
  const thick = Math.max(0.5, 0.8 * (x(1) - x(0)));
  const bars = (from, to) => clients.map((_, i) => (to[i] > from[i]
    ? `M${x(i + 0.1).toFixed(1)} ${y(from[i]).toFixed(1)}h${thick.toFixed(1)}V${y(to[i]).toFixed(1)}h-${thick.toFixed(1)}z` : "")).join("");
  drawing.append(svg("path", { class: "bar c0", d: bars(clients.map(() => 0), trained) }),
    svg("path", { class: "bar c1", d: bars(trained, selected) }),
    svg("text", { x: width, y: 142, "text-anchor": "end" }, `${clients.length} clients, in their order`));
  exploreCounts(drawing, x, clients, selected, trained);
}

function exploreCounts(drawing, x, clients, selected, trained) {
  const band = svg("rect", { class: "cell-border cursor", y: 6, height: 116, width: x(1) - x(0), visibility: "hidden" });
  drawing.append(band);
  const show = (i, left, top) => {
    if (!(i in clients)) return false;
    keyboardPositions.set("participation", i);
    update(band, { x: x(i), visibility: "visible" });
    const missed = selected[i] > trained[i] ? `, no reply in ${selected[i] - trained[i]} more` : "";
    return showTip(left, top, html("p", {}, `client ${clients[i]}: ${trained[i]} rounds${missed}`));
  };
  explore(drawing, {
    point: (px, _, left, top) => show(Math.floor(((px - x(0)) / (x(1) - x(0)))), left, top),
    step(dx) {
      const box = drawing.getBoundingClientRect();
      const at = Math.min(keyboardPositions.get("participation") ?? -1, clients.length);
      return dx ? show(at + dx, box.left + x(at + dx), box.top + 20) : false;
    },
    leave: () => band.setAttribute("visibility", "hidden"),
  });
}
