// Coinciding curves: where lines lie on top of each other, their colours alternate along the line, so that none is hidden.

const COINCIDING_PIXELS = 1.5; // lines that are closer cover each other
const MIN_STRETCH_PIXELS = 16; // shorter ones are crossings
const STRIPE_PIXELS = 9;
const MAX_STRIPED = 24; // with more lines, the colours cannot be told apart

// Stretches [{ members, first, last }] in which the same lines coincide; members are positions in `lines`.
// A line is a list of [x, y] in pixels. Only lines that were measured in the same rounds are compared.
function findCoinciding(lines) {
  const segments = new Map(); // by the x of both ends: [line, y of both ends]
  lines.forEach((points, line) => points.slice(1).forEach(([x, y], i) => {
    const key = `${points[i][0]} ${x}`;
    if (!segments.has(key)) segments.set(key, []);
    segments.get(key).push({ line, from: points[i][0], to: x, left: points[i][1], right: y });
  }));
  const open = new Map(); // by members, the stretch that may go on
  const found = [];
  for (const together of [...segments.values()].sort((a, b) => a[0].from - b[0].from)) {
    for (const group of groupCoinciding(together)) {
      const members = group.map((s) => s.line);
      const before = open.get(String(members));
      if (before?.last === group[0].from) before.last = group[0].to;
      else {
        const stretch = { members, first: group[0].from, last: group[0].to };
        open.set(String(members), stretch);
        found.push(stretch);
      }
    }
  }
  return found.filter(({ first, last }) => last - first >= MIN_STRETCH_PIXELS);
}

function groupCoinciding(segments) {
  const groups = [];
  for (const own of segments) {
    const isNear = ([first]) => Math.abs(first.left - own.left) < COINCIDING_PIXELS
      && Math.abs(first.right - own.right) < COINCIDING_PIXELS;
    const group = groups.find(isNear);
    if (group) group.push(own);
    else groups.push([own]);
  }
  return groups.filter((group) => group.length > 1);
}

// The last line of a stretch is on top already; the others get stripes over it.
function drawStripes(drawing, lines, stretches, colours) {
  for (const { members, first, last } of stretches) {
    const size = Math.min(STRIPE_PIXELS, (last - first) / (2 * members.length));
    members.slice(0, -1).forEach((line, i) => {
      const points = lines[line].filter(([x]) => x >= first && x <= last);
      drawing.append(svg("path", {
        class: `stripe ${colours[line]}`, d: formatPath(points),
        "stroke-dasharray": `${size} ${size * (members.length - 1)}`, "stroke-dashoffset": -size * i,
      }));
    });
  }
}

const formatPath = (points) => (points.length ? `M${points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}` : "");
