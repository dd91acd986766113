// Who took part: in how many rounds, client by client.

function drawAttendance() {
  const shown = few("attendance", data.attendance, drawAttendance);
  const figures = shown.map(({ labels }, i) => {
    const told = labels.length > 4 ? [...labels.slice(0, 3), `${labels.length - 3} more runs`] : labels;
    return figureOf(`attendance ${i}`, told.join(", "));
  });
  byId("attendance").replaceChildren(...figures); // all, before the first is measured
  shown.forEach((seen, i) => drawCounts(figures[i], seen));
}

// One path for all bars: thousands of clients stay quick to draw.
function drawCounts(place, { federation, asked, took_part, labels }) {
  const { clients } = data.federations[federation];
  const [drawing, width] = picture(place, 150,
    `Rounds that every client took part in, under ${labels[0]}: from ${least(took_part)} to ${greatest(took_part)}`);
  const most = greatest([1, ...asked]);
  const x = scale(0, clients.length, 40, width);
  const y = scale(0, most, 120, 8);
  for (const t of ticks(0, most, 3).filter(Number.isInteger)) {
    drawing.append(svg("line", { class: "grid", x1: x(0), x2: width, y1: y(t), y2: y(t) }),
      svg("text", { x: 32, y: y(t) + 4, "text-anchor": "end" }, String(t)));
  }
  const thick = Math.max(0.5, 0.8 * (x(1) - x(0)));
  const bars = (from, to) => clients.map((_, i) => (to[i] > from[i]
    ? `M${x(i + 0.1).toFixed(1)} ${y(from[i]).toFixed(1)}h${thick.toFixed(1)}V${y(to[i]).toFixed(1)}h-${thick.toFixed(1)}z` : "")).join("");
  drawing.append(svg("path", { class: "bar c0", d: bars(clients.map(() => 0), took_part) }),
    svg("path", { class: "bar c1", d: bars(took_part, asked) }),
    svg("text", { x: width, y: 142, "text-anchor": "end" }, `${clients.length} clients, in their order`));
  exploreCounts(drawing, x, clients, asked, took_part);
}

function exploreCounts(drawing, x, clients, asked, tookPart) {
  const band = svg("rect", { class: "cell-border cursor", y: 6, height: 116, width: x(1) - x(0), visibility: "hidden" });
  drawing.append(band);
  const show = (i, left, top) => {
    if (!(i in clients)) return false;
    positions.set("attendance", i);
    fill(band, { x: x(i), visibility: "visible" }, []);
    const lost = asked[i] > tookPart[i] ? `, lost in ${asked[i] - tookPart[i]} more` : "";
    return showTip(left, top, html("p", {}, `client ${clients[i]}: ${tookPart[i]} rounds${lost}`));
  };
  explore(drawing, {
    point: (px, _, left, top) => show(Math.floor(((px - x(0)) / (x(1) - x(0)))), left, top),
    step(dx) {
      const box = drawing.getBoundingClientRect();
      const at = Math.min(positions.get("attendance") ?? -1, clients.length);
      return dx ? show(at + dx, box.left + x(at + dx), box.top + 20) : false;
    },
    leave: () => band.setAttribute("visibility", "hidden"),
  });
}
