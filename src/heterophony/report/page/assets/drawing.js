// Drawings: a picture in its figure, scales, and pointing at it with the mouse, a finger or keys.

const positions = new Map(); // where the arrow keys are in a drawing, by its key
let pointer = null; // what the tip was last shown for, on the screen

// A figure keeps its caption and its button; the drawing in it is a new one.
function picture(figure, height, label) {
  const width = Math.max(300, figure.clientWidth);
  const key = figure.dataset.name ?? figure.id;
  const drawing = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0", "aria-label": label, "data-key": key,
  });
  figure.querySelector("svg")?.remove();
  figure.append(drawing);
  if (!figure.querySelector(".save")) figure.querySelector("figcaption").append(saveButton(figure, key));
  figure.querySelector(".save").setAttribute("aria-label", `Save as SVG: ${captionOf(figure)}`);
  return [drawing, width];
}

const captionOf = (figure) => figure.querySelector("figcaption span").textContent;

const figureOf = (name, ...caption) =>
  html("figure", { "data-name": name }, html("figcaption", {}, html("span", {}, ...caption)));

// Scales ----------------------------------------------------------------------------------------

const scale = (low, high, from, to) => (value) =>
  from + ((value - low) / (high - low || 1)) * (to - from);

function tickStep(low, high, about) {
  const rough = (high - low || 1) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((n) => n * power >= rough);
}

function ticks(low, high, about) {
  const step = tickStep(low, high, about);
  return steps(Math.ceil(low / step - 1e-9), Math.floor(high / step + 1e-9), step);
}

const steps = (first, last, step) =>
  Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));

// Round numbers around these accuracies.
function accuracyTicks(values) {
  if (!values.length) return ticks(0, 1, 5);
  const [low, high] = [least(values), greatest(values)];
  const step = tickStep(low, high, 5);  // of the values: around them there may be one or two more
  const first = Math.floor(low / step + 1e-9), last = Math.ceil(high / step - 1e-9);
  return steps(first, Math.max(first, last), step);
}

const tickPercent = (v) => `${Number((100 * v).toFixed(2))} %`;

// The tip: one box for everything that is pointed at ----------------------------------------------

function showTip(x, y, ...children) {
  const tip = byId("tip");
  tip.replaceChildren(...children);
  tip.hidden = false;
  const left = x + 16 + tip.offsetWidth > innerWidth ? x - 16 - tip.offsetWidth : x + 16;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 12, innerHeight - tip.offsetHeight - 8))}px`;
}

const hideTip = () => { byId("tip").hidden = true; };

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// Pointing at a drawing and walking through it with the arrow keys do the same thing.
function explore(drawing, { point, step, leave }) {
  const stop = () => { pointer = null; hideTip(); leave(); };
  const at = (event) => {
    const box = drawing.getBoundingClientRect();
    const zoom = drawing.viewBox.baseVal.width / box.width;
    pointer = { x: event.clientX, y: event.clientY };
    point((event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom, event.clientX, event.clientY);
  };
  for (const name of ["pointermove", "pointerdown"]) drawing.addEventListener(name, at);
  drawing.addEventListener("keydown", (event) => {
    if (event.key === "Escape") stop();
    const move = ARROWS[event.key];
    if (!move || step(...move) === false) return;
    event.preventDefault();
  });
  for (const name of ["pointerleave", "blur"]) drawing.addEventListener(name, stop);
}

// After a redrawing, the tip tells of what is now under the mouse.
function pointAgain() {
  hideTip();
  if (!pointer) return;
  const { x: clientX, y: clientY } = pointer;
  const under = document.elementFromPoint(clientX, clientY)?.closest("figure svg");
  under?.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY }));
}
