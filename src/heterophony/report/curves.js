// Curves ----------------------------------------------------------------------------------------

const charts = {};
let cursorRound = 0;

function drawLegend() {
  byId("legend").replaceChildren(...data.series.map((series, i) => {
    const seeds = series.runs.length > 1 ? ` (${series.runs.length} seeds)` : "";
    const button = html("button", { type: "button", "aria-pressed": "true" }, swatch(i), series.name + seeds);
    button.addEventListener("click", () => {
      if (!hidden.delete(i)) hidden.add(i);
      button.setAttribute("aria-pressed", String(!hidden.has(i)));
      drawCurves();
    });
    return button;
  }));
}

function shownSeries() {
  return data.series.map((series, index) => ({ ...series, index })).filter((s) => !hidden.has(s.index));
}

function drawCurves() {
  const shown = shownSeries();
  const lines = shown.flatMap((s) => [s.mean, ...s.runs.map((r) => r.curves)]);
  const points = lines.flatMap((line) => [...line.G, ...line.P]);
  const rounds = [...new Set(points.map((p) => p[0]))].sort((a, b) => a - b);
  const levels = accuracyTicks(points.map((p) => p[1]));
  for (const measure of ["G", "P"]) drawCurve(measure, shown, levels, rounds);
}

// Both panels share their scale, so that G and P can be compared by eye.
function accuracyTicks(values) {
  if (!values.length) return ticks(0, 1, 5);
  const low = values.reduce((a, b) => Math.min(a, b));
  const high = values.reduce((a, b) => Math.max(a, b));
  const step = tickStep(low, high, 5);
  return ticks(Math.floor(low / step) * step, Math.min(1, Math.ceil(high / step) * step), 5);
}

function drawCurve(measure, shown, levels, rounds) {
  const place = byId(`curve-${measure}`);
  place.replaceChildren();
  const [drawing, width] = picture(place, 320, `${measure} over the rounds, a line per series`);
  const x = scale(0, rounds.at(-1) ?? 1, 52, width - 8);
  const y = scale(levels[0], levels.at(-1), 280, 12);
  drawAxes(drawing, x, y, levels, rounds.at(-1) ?? 1);
  for (const { runs, mean, index } of shown) {
    if (runs.length > 1) {
      drawing.append(...runs.map((r) => line(r.curves[measure], x, y, `seed ${colour(index)}`)));
    }
    drawing.append(line(mean[measure], x, y, colour(index)));
  }
  const cursor = svg("g");
  drawing.append(cursor);
  charts[measure] = { drawing, cursor, x, y, measure };
  exploreRounds(charts[measure], shown, rounds);
}

function drawAxes(drawing, x, y, levels, last) {
  for (const v of levels) {
    drawing.append(
      svg("line", { class: "grid", x1: x(0), x2: x(last), y1: y(v), y2: y(v) }),
      svg("text", { x: x(0) - 8, y: y(v) + 4, "text-anchor": "end" }, `${Number((100 * v).toFixed(2))} %`),
    );
  }
  for (const t of ticks(0, last, 6)) {
    drawing.append(svg("text", { x: x(t), y: 300, "text-anchor": "middle" }, String(t)));
  }
  drawing.append(svg("text", { x: x(last), y: 317, "text-anchor": "end" }, "round"));
}

function line(points, x, y, kind) {
  const places = points.map(([t, v]) => `${x(t).toFixed(1)} ${y(v).toFixed(1)}`);
  return svg("path", { class: `curve ${kind}`, d: places.length ? `M${places.join("L")}` : "" });
}

function exploreRounds(chart, shown, rounds) {
  const show = (round, x, y) => {
    cursorRound = round;
    Object.values(charts).forEach((c) => markRound(c, shown, round));
    showTip(x, y, roundTable(shown, round));
  };
  explore(chart.drawing, {
    point(px, _, x, y) {
      const near = (a, b) => (Math.abs(chart.x(a) - px) <= Math.abs(chart.x(b) - px) ? a : b);
      if (rounds.length) show(rounds.reduce(near), x, y);
    },
    step(dx) {
      const round = rounds[rounds.indexOf(cursorRound) + dx];
      if (!dx || round === undefined) return false;
      const box = chart.drawing.getBoundingClientRect();
      return show(round, box.left + chart.x(round), box.top + 20);
    },
    leave: () => Object.values(charts).forEach((c) => c.cursor.replaceChildren()),
  });
}

const valueAt = (series, measure, round) => series.mean[measure].find((p) => p[0] === round)?.[1];

function markRound({ cursor, x, y, measure }, shown, round) {
  const dots = shown.map((s) => [s.index, valueAt(s, measure, round)]).filter(([, v]) => v !== undefined);
  cursor.replaceChildren(
    svg("line", { class: "axis", x1: x(round), x2: x(round), y1: 8, y2: 280 }),
    ...dots.map(([i, v]) => svg("circle", { class: `mark ${colour(i)}`, cx: x(round), cy: y(v), r: 4.5 })),
  );
}

function roundTable(shown, round) {
  const row = (s) => html("tr", {}, html("th", { scope: "row" }, swatch(s.index), s.name),
    ...["G", "P"].map((m) => html("td", {}, percent(valueAt(s, m, round)))));
  return table([`round ${round}`, "G", "P"], shown.map(row));
}
