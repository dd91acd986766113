// Curves: G and P over the rounds, optionally smoothed.

const CAPTIONS = { G: "G, the generic model", P: "P, each client’s own model" };
const charts = {};
let cursorRound = 0;
let smoothing = 1; // evaluations in the moving average

function initSmoothing() {
  byId("smoothing").addEventListener("input", drawCurves);
}

function readSmoothing() {
  const slider = byId("smoothing");
  smoothing = Number(slider.value);
  const text = smoothing > 1 ? `mean over the last ${smoothing} evaluations` : "off";
  byId("smoothing-value").textContent = text;
  slider.setAttribute("aria-valuetext", text);
}

// The moving average over the last evaluations, over fewer at the beginning.
function smooth(points) {
  let sum = 0;
  return points.map(([t, v], i) => {
    sum += v - (i >= smoothing ? points[i - smoothing][1] : 0);
    return [t, sum / Math.min(smoothing, i + 1)];
  });
}

function drawCurves() {
  readSmoothing();
  const shown = getVisibleSeries().map((s) => ({ ...s, lines: { G: smooth(s.mean.G), P: smooth(s.mean.P) } }));
  for (const s of shown) s.drawn = { G: new Map(s.lines.G), P: new Map(s.lines.P) };
  const points = shown.flatMap((s) => [s.mean, ...s.runs.map((r) => r.curves)]).flatMap((c) => [...c.G, ...c.P]);
  const rounds = [...new Set(points.map((p) => p[0]))].sort((a, b) => a - b);
  const levels = listAccuracyTicks(points.map((p) => p[1])); // shared, so that G and P can be compared by eye
  for (const measure of ["G", "P"]) drawCurve(measure, shown, levels, rounds);
  byId("thinned-note").hidden = data.stride < 2;
  byId("thinned-note").textContent = `To keep this page small, it holds one in ${data.stride} evaluations of the longest runs.`;
}

function drawCurve(measure, shown, levels, rounds) {
  const figure = byId(`curve-${measure}`);
  const suffix = smoothing > 1 ? ` (mean over the last ${smoothing} evaluations)` : "";
  figure.querySelector("span").textContent = CAPTIONS[measure] + suffix;
  const [drawing, width] = startDrawing(figure, 320, describeCurves(measure, shown));
  const x = createScale(0, rounds.at(-1) ?? 1, 52, width - 8);
  const y = createScale(levels[0], levels.at(-1), 280, 12);
  drawAxes(drawing, x, y, levels, rounds.at(-1) ?? 1);
  for (const { runs, lines, index } of shown) {
    if (runs.length > 1) {
      drawing.append(...runs.map((r) => createLine(smooth(r.curves[measure]), x, y, `seed ${getColourClass(index)}`)));
    }
    drawing.append(createLine(lines[measure], x, y, getColourClass(index)));
  }
  const cursor = svg("g", { class: "cursor" });
  drawing.append(cursor);
  charts[measure] = { drawing, cursor, x, y, measure };
  exploreRounds(charts[measure], shown, rounds);
}

function describeCurves(measure, shown) {
  const ends = shown.map((s) => [s.name, s.mean[measure].at(-1)?.[1]]).filter(([, v]) => v !== undefined);
  const texts = ends.sort((a, b) => b[1] - a[1]).map(([name, v]) => `${name} ends at ${formatPercent(v)}`);
  return `${measure} over the rounds: ${joinItems(texts) || "nothing measured"}`;
}

function drawAxes(drawing, x, y, levels, last) {
  for (const v of levels) {
    drawing.append(
      svg("line", { class: "grid", x1: x(0), x2: x(last), y1: y(v), y2: y(v) }),
      svg("text", { x: x(0) - 8, y: y(v) + 4, "text-anchor": "end" }, formatTick(v)),
    );
  }
  for (const t of listRoundTicks(last)) {
    drawing.append(svg("text", { x: x(t), y: 300, "text-anchor": "middle" }, String(t)));
  }
  drawing.append(svg("text", { x: x(last), y: 317, "text-anchor": "end" }, "round"));
}

function createLine(points, x, y, kind) {
  const coordinates = points.map(([t, v]) => `${x(t).toFixed(1)} ${y(v).toFixed(1)}`);
  return svg("path", { class: `curve ${kind}`, d: coordinates.length ? `M${coordinates.join("L")}` : "" });
}

function exploreRounds(chart, shown, rounds) {
  const show = (round, x, y) => {
    cursorRound = round;
    Object.values(charts).forEach((c) => markRound(c, shown, round));
    showTip(x, y, createRoundTable(shown, round));
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

function markRound({ cursor, x, y, measure }, shown, round) {
  const dots = shown.map((s) => [s.index, s.drawn[measure].get(round)]).filter(([, v]) => v !== undefined);
  cursor.replaceChildren(
    svg("line", { class: "axis", x1: x(round), x2: x(round), y1: 8, y2: 280 }),
    ...dots.map(([i, v]) => svg("circle", { class: `mark ${getColourClass(i)}`, cx: x(round), cy: y(v), r: 4.5 })),
  );
}

// Measured values, and the smoothed ones beside them. Of many series, those with the highest P.
function createRoundTable(shown, round) {
  const cells = (s, m) => [html("td", {}, formatPercent(s.at[m].get(round))),
    ...(smoothing > 1 ? [html("td", { class: "smooth" }, formatPercent(s.drawn[m].get(round)))] : [])];
  const row = (s) => html("tr", {}, html("th", { scope: "row" }, createSwatch(s.index), s.name), ...cells(s, "G"), ...cells(s, "P"));
  const titles = smoothing > 1 ? ["G", "smoothed", "P", "smoothed"] : ["G", "P"];
  const value = (s) => s.at.P.get(round) ?? -1;
  const ranked = shown.length > MAX_SHOWN ? [...shown].sort((a, b) => value(b) - value(a)).slice(0, MAX_SHOWN) : shown;
  const rest = shown.length - ranked.length;
  const note = rest ? [html("p", {}, `and ${rest} with a lower P`)] : [];
  return html("div", {}, createTable([`round ${round}`, ...titles], ranked.map(row)), ...note);
}
