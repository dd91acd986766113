// The lines of the curves: accuracies, losses or differences to a reference, pooled or as means over clients, smoothed.

const MEASURES = ["G", "P"];
let referenceKey = ""; // key of the series to which differences are drawn; "" for accuracies
let smoothing = 1; // evaluations in the moving average

function initCurveControls() {
  byId("smoothing").addEventListener("input", drawCurves);
  byId("counting").addEventListener("change", drawCurves);
  byId("value").addEventListener("change", () => {
    drawReferenceChoice();
    drawCurves();
  });
  byId("reference").addEventListener("change", () => {
    referenceKey = byId("reference").value;
    drawCurves();
  });
}

function readCurveControls() {
  const slider = byId("smoothing");
  smoothing = Number(slider.value);
  const text = smoothing > 1 ? `mean over the last ${smoothing} evaluations` : "off";
  byId("smoothing-value").textContent = text;
  slider.setAttribute("aria-valuetext", text);
  byId("value-control").hidden = !data.series.some((s) => MEASURES.some((m) => s.loss_mean[m].length));
  byId("counting-control").hidden = isLoss() || !data.series.some((s) => s.client_mean);
}

// Offer every series as the reference. A series that no longer exists stops being the reference.
function drawReferenceChoice() {
  const select = byId("reference");
  if (!data.series.some((s) => s.key === referenceKey)) referenceKey = "";
  byId("value").options[0].textContent = data.score;
  select.replaceChildren(html("option", { value: "" }, isLoss() ? "test loss" : data.score),
    ...data.series.map((s) => html("option", { value: s.key }, `difference to ${s.name}`)));
  select.value = referenceKey;
  byId("reference-control").hidden = data.series.length < 2;
}

const getReference = () => data.series.find((s) => s.key === referenceKey);
const isMeanOverClients = () => !byId("counting-control").hidden && byId("counting").value === "clients";
const isLoss = () => !byId("value-control").hidden && byId("value").value === "loss";
const getRunCurves = (run) => (isLoss() ? run.loss_curves : (isMeanOverClients() && run.client_curves) || run.curves);
const getMeanCurves = (series) => (isLoss() ? series.loss_mean : (isMeanOverClients() && series.client_mean) || series.mean);

// For every visible series and measure: its line, those of its seeds, and how far the seeds spread.
function buildLines() {
  const reference = getReference();
  return getVisibleSeries().map((series) => {
    const pairs = reference && pairRuns(series, reference).slice(0, series.key === referenceKey ? 1 : undefined); // its own differences are all 0
    const build = (measure) => {
      const seeds = reference
        ? pairs.map(([own, other]) => subtractCurves(getRunCurves(own)[measure], getRunCurves(other)[measure]))
        : series.runs.map((run) => getRunCurves(run)[measure]);
      return buildLine(reference ? averageCurves(seeds) : getMeanCurves(series)[measure], seeds);
    };
    return { ...series, numSeeds: reference ? pairs.length : series.runs.length, G: build("G"), P: build("P") };
  });
}

function buildLine(measured, seeds) {
  const drawn = smooth(measured);
  const interval = Boolean(getReference()) && seeds.length > 1;
  const spread = seeds.length > 1 ? computeSpread(measured, seeds, interval) : new Map();
  const band = interval ? computeSpread(drawn, seeds.map(smooth), true) : new Map();
  return { measured, drawn, seeds, spread, band, at: new Map(measured), drawnAt: new Map(drawn) };
}

// Runs form a pair if they have the same seed and the same data.
const pairRuns = (series, reference) => series.runs.flatMap((own) => {
  const other = reference.runs.find((r) => r.seed === own.seed && r.federation === own.federation);
  return other ? [[own, other]] : [];
});

function subtractCurves(own, other) {
  const at = new Map(other);
  return own.filter(([t]) => at.has(t)).map(([t, v]) => [t, v - at.get(t)]);
}

// The mean at the rounds that all curves have.
function averageCurves(curves) {
  if (!curves.length) return [];
  const [first, ...others] = curves.map((curve) => new Map(curve));
  const rounds = [...first.keys()].filter((t) => others.every((curve) => curve.has(t)));
  return rounds.map((t) => [t, average([first, ...others].map((curve) => curve.get(t)))]);
}

// The population standard deviation over the seeds, as in the tables; or half of the 95 % interval of their mean.
function computeSpread(mean, seeds, interval) {
  const at = seeds.map((curve) => new Map(curve));
  return new Map(mean.map(([t]) => {
    const values = at.map((curve) => curve.get(t)).filter((v) => v !== undefined);
    const middle = average(values);
    const deviation = Math.sqrt(average(values.map((v) => (v - middle) ** 2)));
    return [t, interval ? (deviation * getStudentFactor(values.length)) / Math.sqrt(values.length - 1) : deviation];
  }));
}

// How many standard errors a 95 % interval of a mean of this many values reaches (Student's t).
const getStudentFactor = (count) => data.student95[Math.min(count, data.student95.length) - 1];

// The moving average over the last evaluations, over fewer at the start.
function smooth(points) {
  let sum = 0;
  return points.map(([t, v], i) => {
    sum += v - (i >= smoothing ? points[i - smoothing][1] : 0);
    return [t, sum / Math.min(smoothing, i + 1)];
  });
}
