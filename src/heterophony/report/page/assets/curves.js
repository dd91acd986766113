// Curves: G and P over the rounds, as accuracies, losses or differences to a reference.

const CAPTIONS = { G: "G, the generic model", P: "P, each client’s own model" };
const LOSS_CAPTIONS = { G: "Test loss of the generic model (G)", P: "Test loss of each client’s own model (P)" };
const BOTTOM = 280; // of the plot, above the rounds
const charts = {};
let cursorRound = 0;

function drawCurves() {
  readCurveControls();
  const shown = buildLines();
  const points = shown.flatMap((s) => MEASURES.flatMap((m) => [s[m].measured, ...s[m].seeds])).flat();
  const rounds = [...new Set(points.map((p) => p[0]))].sort((a, b) => a - b);
  const values = points.map((p) => p[1]);
  const levels = listAccuracyTicks(getReference() ? [0, ...values] : values); // shared, so that G and P can be compared by eye
  for (const measure of MEASURES) drawCurve(measure, shown, levels, rounds);
  byId("unpaired-note").textContent = describeUnpaired(shown);
  byId("thinned-note").hidden = data.stride < 2;
  byId("thinned-note").textContent = `To keep this page small, it holds one in ${data.stride} evaluations of the longest runs.`;
}

function describeUnpaired(shown) {
  const names = shown.filter((s) => !s.numSeeds).map((s) => s.name);
  return names.length ? `Not drawn, because no run has the same seed and data as one of ${getReference().name}: ${joinItems(names)}.` : "";
}

function drawCurve(measure, shown, levels, rounds) {
  const figure = byId(`curve-${measure}`);
  figure.querySelector("span").textContent = describeChart(measure);
  const [drawing, width] = startDrawing(figure, 320, "");
  const x = createScale(0, rounds.at(-1) ?? 1, 52, width - 8);
  const y = createScale(levels[0], levels.at(-1), BOTTOM, 12);
  drawAxes(drawing, x, y, levels, rounds.at(-1) ?? 1);
  const locate = (points) => points.map(([t, v]) => [x(t), y(v)]);
  const lines = shown.map((s) => locate(s[measure].drawn));
  shown.forEach(({ [measure]: { seeds }, index }, i) => {
    const colour = getColourClass(index);
    if (shown[i][measure].band.size) {
      drawing.append(createBand(shown[i][measure], x, (v) => y(Math.min(levels.at(-1), Math.max(levels[0], v))), colour));
    } else if (seeds.length > 1) {
      drawing.append(...seeds.map((points) => createLine(locate(smooth(points)), `seed ${colour}`)));
    }
    drawing.append(createLine(lines[i], colour));
  });
  const stretches = lines.length > MAX_STRIPED ? [] : findCoinciding(lines);
  drawStripes(drawing, lines, stretches, shown.map((s) => getColourClass(s.index)));
  drawing.setAttribute("aria-label", describeCurves(measure, shown, stretches, (px) => rounds.find((t) => x(t) === px)));
  const cursor = svg("g", { class: "cursor" });
  drawing.append(cursor);
  charts[measure] = { drawing, cursor, x, y, measure };
  exploreRounds(charts[measure], shown, rounds);
}

// The 95 % interval of a mean difference over the seeds, cut off at the edges of the plot.
function createBand({ drawn, band }, x, y, colour) {
  const edge = (side) => drawn.map(([t, v]) => [x(t), y(v + side * band.get(t))]);
  return svg("path", { class: `band ${colour}`, d: `${formatPath([...edge(1), ...edge(-1).reverse()])}Z` });
}

const createLine = (points, kind) => svg("path", { class: `curve ${kind}`, d: formatPath(points) });

function describeChart(measure) {
  const reference = getReference();
  const captions = isLoss() ? LOSS_CAPTIONS : CAPTIONS;
  const title = reference ? `${isLoss() ? "Test loss of " : ""}${measure}, ${describeDifference()}` : captions[measure];
  const notes = [...(isMeanOverClients() ? ["mean over clients"] : []),
    ...(smoothing > 1 ? [`mean over the last ${smoothing} evaluations`] : [])];
  return notes.length ? `${title} (${notes.join("; ")})` : title;
}

const describeDifference = () => `difference to ${getReference().name}${isLoss() ? "" : " in percentage points"}`;

// In words: where each curve ends, and which curves coincide.
function describeCurves(measure, shown, stretches, findRound) {
  const ends = shown.map((s) => [s.name, s[measure].measured.at(-1)?.[1]]).filter(([, v]) => v !== undefined);
  const texts = ends.sort((a, b) => b[1] - a[1]).map(([name, v]) => `${name} ends at ${formatValue(v)}`);
  const same = stretches.map(({ members, first, last }) =>
    `${members.map((i) => shown[i].name).join(" and ")} coincide from round ${findRound(first)} to ${findRound(last)}`);
  const reference = getReference();
  const value = isLoss() ? `the test loss of ${measure}` : measure;
  const what = reference ? `Difference of ${value} to ${reference.name}` : value.replace(/^t/, "T");
  return `${what} over the rounds: ${joinItems([...texts, ...same]) || "nothing measured"}`;
}

// Differences have a sign; those of accuracies are in percentage points.
function formatValue(value) {
  if (value === undefined) return "–";
  const plain = isLoss() ? Math.abs(value).toFixed(4) : Math.abs(100 * value).toFixed(2);
  if (getReference()) return `${getSign(value)}${plain}`;
  return isLoss() ? `${value < 0 ? "−" : ""}${plain}` : formatPercent(value);
}

const getSign = (value) => (value > 0 ? "+" : value < 0 ? "−" : "");

function formatLevel(value) {
  if (!getReference() && !isLoss()) return formatTick(value);
  const plain = Number(isLoss() ? Math.abs(value).toPrecision(6) : Math.abs(100 * value).toFixed(2));
  return `${getReference() || value < 0 ? getSign(value) : ""}${plain}`;
}

function drawAxes(drawing, x, y, levels, last) {
  for (const v of levels) {
    const kind = getReference() && v === 0 ? "axis" : "grid";
    drawing.append(
      svg("line", { class: kind, x1: x(0), x2: x(last), y1: y(v), y2: y(v) }),
      svg("text", { x: x(0) - 8, y: y(v) + 4, "text-anchor": "end" }, formatLevel(v)),
    );
  }
  for (const t of listRoundTicks(last)) {
    drawing.append(svg("text", { x: x(t), y: 300, "text-anchor": "middle" }, String(t)));
  }
  drawing.append(svg("text", { x: x(last), y: 317, "text-anchor": "end" }, "round"));
}

function exploreRounds(chart, shown, rounds) {
  const show = (round) => {
    cursorRound = round;
    Object.values(charts).forEach((c) => markRound(c, shown, round));
    const box = chart.drawing.getBoundingClientRect();
    showTipOutside(box, box.left + chart.x(round), createRoundTable(shown, round));
  };
  explore(chart.drawing, {
    point(px) {
      const near = (a, b) => (Math.abs(chart.x(a) - px) <= Math.abs(chart.x(b) - px) ? a : b);
      if (rounds.length) show(rounds.reduce(near));
    },
    step(dx) {
      const round = rounds[rounds.indexOf(cursorRound) + dx];
      return dx && round !== undefined ? show(round) : false;
    },
    leave: () => Object.values(charts).forEach((c) => c.cursor.replaceChildren()),
  });
}

function markRound({ cursor, x, y, measure }, shown, round) {
  const dots = shown.map((s) => [s.index, s[measure].drawnAt.get(round)]).filter(([, v]) => v !== undefined);
  const countAbove = (i) => dots.slice(i + 1).filter(([, v]) => Math.abs(y(v) - y(dots[i][1])) < COINCIDING_PIXELS).length;
  cursor.replaceChildren(
    svg("line", { class: "axis", x1: x(round), x2: x(round), y1: 8, y2: BOTTOM }),
    // of coinciding marks, the lower ones are larger: rings around the topmost
    ...dots.map(([index, v], i) => svg("circle", {
      class: `mark ${getColourClass(index)}`, cx: x(round), cy: y(v), r: 4.5 + 3 * Math.min(3, countAbove(i)),
    })),
  );
}

// Measured values with their spread over the seeds, and the smoothed ones beside them. Of many series, those with the best P.
function createRoundTable(shown, round) {
  const cells = (line) => [html("td", {}, ...formatMeasured(line, round)),
    ...(smoothing > 1 ? [html("td", { class: "smooth" }, formatValue(line.drawnAt.get(round)))] : [])];
  const row = (s) => html("tr", {}, html("th", { scope: "row" }, createSwatch(s.index), s.name), ...MEASURES.flatMap((m) => cells(s[m])));
  const titles = MEASURES.flatMap((m) => (smoothing > 1 ? [m, "smoothed"] : [m]));
  const value = (s) => (s.P.at.has(round) ? (isLoss() ? -1 : 1) * s.P.at.get(round) : -Infinity);
  const ranked = shown.length > MAX_SHOWN ? [...shown].sort((a, b) => value(b) - value(a)).slice(0, MAX_SHOWN) : shown;
  const rest = shown.length - ranked.length;
  const notes = [...(rest ? [`and ${rest} with a ${isLoss() ? "higher" : "lower"} P`] : []), ...(getReference() ? [describeDifference()] : []),
    ...(ranked.some((s) => s.numSeeds > 1) ? [getReference() ? "±: 95 % interval over the seeds" : "±: standard deviation over the seeds"] : [])];
  return html("div", {}, createTable([`round ${round}`, ...titles], ranked.map(row)), ...notes.map((text) => html("p", { class: "hint" }, text)));
}

function formatMeasured({ at, spread }, round) {
  const deviation = spread.get(round);
  return [formatValue(at.get(round)), ...(deviation === undefined ? [] : [html("small", {}, ` ± ${isLoss() ? deviation.toFixed(4) : (100 * deviation).toFixed(2)}`)])];
}
