// SVG drawings: creating one in its figure, scales, and exploring it with mouse, touch or keyboard.

const keyboardPositions = new Map(); // what the arrow keys last selected, by the kind of drawing
let lastPointer = null; // screen coordinates at which the tip was last shown

// Replace the figure's drawing by an empty one; the caption and the save button stay.
function startDrawing(figure, height, label) {
  const width = Math.max(300, figure.clientWidth);
  const key = figure.dataset.name ?? figure.id;
  const drawing = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0", "aria-label": label, "data-key": key,
  });
  figure.querySelector("svg")?.remove();
  figure.append(drawing);
  if (!figure.querySelector(".save")) figure.querySelector("figcaption").append(createSaveButton(figure, key));
  figure.querySelector(".save").setAttribute("aria-label", `Save as SVG: ${getCaption(figure)}`);
  return [drawing, width];
}

const getCaption = (figure) => figure.querySelector("figcaption span").textContent;

const createFigure = (name, ...caption) =>
  html("figure", { "data-name": name }, html("figcaption", {}, html("span", {}, ...caption)));

// Scales ----------------------------------------------------------------------------------------

const createScale = (low, high, from, to) => (value) =>
  from + ((value - low) / (high - low || 1)) * (to - from);

function chooseTickStep(low, high, about) {
  const rough = (high - low || 1) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((n) => n * power >= rough);
}

function listTicks(low, high, about) {
  const step = chooseTickStep(low, high, about);
  return listMultiples(Math.ceil(low / step - 1e-9), Math.floor(high / step + 1e-9), step);
}

// Rounds are whole numbers: a short run has fewer ticks, not halves of rounds.
function listRoundTicks(last) {
  const step = Math.max(1, chooseTickStep(0, last, 6));
  return listMultiples(0, Math.floor(last / step + 1e-9), step);
}

const listMultiples = (first, last, step) =>
  Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));

// Round numbers that enclose these accuracies.
function listAccuracyTicks(values) {
  if (!values.length) return listTicks(0, 1, 5);
  const [low, high] = [least(values), greatest(values)];
  const step = chooseTickStep(low, high, 5); // enclosing the values may add one or two ticks
  const first = Math.floor(low / step + 1e-9), last = Math.ceil(high / step - 1e-9);
  return listMultiples(first, Math.max(first, last), step);
}

const formatTick = (v) => `${Number((100 * v).toFixed(2))} %`;

// The tip: one box with the numbers under the pointer ---------------------------------------------

function showTip(x, y, ...children) {
  const tip = byId("tip");
  tip.replaceChildren(...children);
  tip.hidden = false;
  const left = x + 16 + tip.offsetWidth > innerWidth ? x - 16 - tip.offsetWidth : x + 16;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 12, innerHeight - tip.offsetHeight - 8))}px`;
}

// Show the tip below or above a drawing, so that it covers no curve: above for fingers, whose hand is below.
function showTipOutside(box, x, ...children) {
  showTip(x, box.top, ...children);
  const tip = byId("tip");
  const [wide, tall] = [tip.offsetWidth, tip.offsetHeight];
  const below = { top: box.bottom + 4, fits: box.bottom + 4 + tall <= innerHeight };
  const above = { top: box.top - 4 - tall, fits: box.top - 4 - tall >= 0 };
  const places = matchMedia("(pointer: coarse)").matches ? [above, below] : [below, above];
  const place = places.find((p) => p.fits);
  if (!place) return; // a low window: beside the pointer, as other tips
  tip.style.top = `${place.top}px`;
  tip.style.left = `${Math.max(4, Math.min(x - wide / 2, innerWidth - wide - 4))}px`;
}

const hideTip = () => { byId("tip").hidden = true; };

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// Call point(x, y, …) for the pointer, step(dx, dy) for the arrow keys, leave() when either ends.
function explore(drawing, { point, step, leave }) {
  const stop = () => { lastPointer = null; hideTip(); leave(); };
  const at = (event) => {
    const box = drawing.getBoundingClientRect();
    const zoom = drawing.viewBox.baseVal.width / box.width;
    lastPointer = { x: event.clientX, y: event.clientY };
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

// After a redraw, show the tip of what is now under the pointer.
function refreshTip() {
  hideTip();
  if (!lastPointer) return;
  const { x: clientX, y: clientY } = lastPointer;
  const under = document.elementFromPoint(clientX, clientY)?.closest("figure svg");
  under?.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY }));
}
