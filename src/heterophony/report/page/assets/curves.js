// Curves: G and P over the rounds, smoothed if the reader likes.

const CAPTIONS = { G: "G, the common model", P: "P, each client’s own model" };
const charts = {};
let cursorRound = 0;
let smoothing = 1; // evaluations in a mean

function startSmoothing() {
  byId("smoothing").addEventListener("input", drawCurves);
}

function readSmoothing() {
  const slider = byId("smoothing");
  smoothing = Number(slider.value);
  const told = smoothing > 1 ? `mean over the last ${smoothing} evaluations` : "off";
  byId("smoothing-told").textContent = told;
  slider.setAttribute("aria-valuetext", told);
}

// The mean over the last few evaluations, over fewer at the beginning.
function smoothed(points) {
  let sum = 0;
  return points.map(([t, v], i) => {
    sum += v - (i >= smoothing ? points[i - smoothing][1] : 0);
    return [t, sum / Math.min(smoothing, i + 1)];
  });
}

function drawCurves() {
  readSmoothing();
  const shown = shownSeries().map((s) => ({ ...s, lines: { G: smoothed(s.mean.G), P: smoothed(s.mean.P) } }));
  for (const s of shown) s.drawn = { G: new Map(s.lines.G), P: new Map(s.lines.P) };
  const points = shown.flatMap((s) => [s.mean, ...s.runs.map((r) => r.curves)]).flatMap((c) => [...c.G, ...c.P]);
  const rounds = [...new Set(points.map((p) => p[0]))].sort((a, b) => a - b);
  const levels = accuracyTicks(points.map((p) => p[1])); // shared: G and P can be compared by eye
  for (const measure of ["G", "P"]) drawCurve(measure, shown, levels, rounds);
  byId("thinned").hidden = data.every < 2;
  byId("thinned").textContent = `Of the longest runs, one evaluation in ${data.every} is on this page; “evaluations” are these.`;
}

function drawCurve(measure, shown, levels, rounds) {
  const figure = byId(`curve-${measure}`);
  const of = smoothing > 1 ? ` (mean over the last ${smoothing} evaluations)` : "";
  figure.querySelector("span").textContent = CAPTIONS[measure] + of;
  const [drawing, width] = picture(figure, 320, curveInWords(measure, shown));
  const x = scale(0, rounds.at(-1) ?? 1, 52, width - 8);
  const y = scale(levels[0], levels.at(-1), 280, 12);
  drawAxes(drawing, x, y, levels, rounds.at(-1) ?? 1);
  for (const { runs, lines, index } of shown) {
    if (runs.length > 1) {
      drawing.append(...runs.map((r) => line(smoothed(r.curves[measure]), x, y, `seed ${colour(index)}`)));
    }
    drawing.append(line(lines[measure], x, y, colour(index)));
  }
  const cursor = svg("g", { class: "cursor" });
  drawing.append(cursor);
  charts[measure] = { drawing, cursor, x, y, measure };
  exploreRounds(charts[measure], shown, rounds);
}

function curveInWords(measure, shown) {
  const ends = shown.map((s) => [s.name, s.mean[measure].at(-1)?.[1]]).filter(([, v]) => v !== undefined);
  const told = ends.sort((a, b) => b[1] - a[1]).map(([name, v]) => `${name} ends at ${percent(v)}`);
  return `${measure} over the rounds: ${listed(told) || "nothing measured"}`;
}

function drawAxes(drawing, x, y, levels, last) {
  for (const v of levels) {
    drawing.append(
      svg("line", { class: "grid", x1: x(0), x2: x(last), y1: y(v), y2: y(v) }),
      svg("text", { x: x(0) - 8, y: y(v) + 4, "text-anchor": "end" }, tickPercent(v)),
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

function markRound({ cursor, x, y, measure }, shown, round) {
  const dots = shown.map((s) => [s.index, s.drawn[measure].get(round)]).filter(([, v]) => v !== undefined);
  cursor.replaceChildren(
    svg("line", { class: "axis", x1: x(round), x2: x(round), y1: 8, y2: 280 }),
    ...dots.map(([i, v]) => svg("circle", { class: `mark ${colour(i)}`, cx: x(round), cy: y(v), r: 4.5 })),
  );
}

// The measured value always; the smoothed one beside it. The highest come first, as many as fit.
function roundTable(shown, round) {
  const cells = (s, m) => [html("td", {}, percent(s.at[m].get(round))),
    ...(smoothing > 1 ? [html("td", { class: "smooth" }, percent(s.drawn[m].get(round)))] : [])];
  const row = (s) => html("tr", {}, html("th", { scope: "row" }, swatch(s.index), s.name), ...cells(s, "G"), ...cells(s, "P"));
  const titles = smoothing > 1 ? ["G", "smoothed", "P", "smoothed"] : ["G", "P"];
  const value = (s) => s.at.P.get(round) ?? -1;
  const ranked = shown.length > FEW ? [...shown].sort((a, b) => value(b) - value(a)).slice(0, FEW) : shown;
  const rest = shown.length - ranked.length;
  const note = rest ? [html("p", {}, `and ${rest} with a lower P`)] : [];
  return html("div", {}, table([`round ${round}`, ...titles], ranked.map(row)), ...note);
}
