// A small curve without axes: from 0 to 100 %, over all rounds of the run, so that rows can be compared.

function createSparkline(measure, points, rounds) {
  const [width, height, margin] = [80, 30, 2.5];
  const drawing = svg("svg", { class: `spark ${measure === "G" ? "c0" : "c1"}`, viewBox: `0 0 ${width} ${height}` });
  if (!points.length) return update(drawing, { "aria-hidden": "true" });
  const x = (t) => (margin + (t / Math.max(rounds, 1)) * (width - 2 * margin)).toFixed(1);
  const y = (v) => (height - margin - v * (height - 2 * margin)).toFixed(1);
  const [first, last] = [points[0], points.at(-1)];
  return update(drawing, {
    role: "img", "aria-label": `${measure} over the rounds, from ${formatPercent(first[1])} to ${formatPercent(last[1])}`,
  }, [
    svg("line", { class: "grid", x1: margin, x2: width - margin, y1: y(0), y2: y(0) }),
    svg("path", { class: "curve", d: `M${points.map(([t, v]) => `${x(t)} ${y(v)}`).join("L")}` }),
    svg("circle", { class: "end", cx: x(last[0]), cy: y(last[1]), r: 2.2 }),
  ]);
}
