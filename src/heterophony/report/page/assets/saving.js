// Saving a drawing as an SVG file, a table as CSV. Nothing is sent anywhere.

const STYLE_PROPERTIES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-dashoffset", "stroke-linecap", "stroke-linejoin",
  "opacity", "font-size", "font-weight", "font-family"];

function saveFile(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
  html("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000); // long after the file is written
}

function createSaveButton(figure, key) {
  const button = html("button", { type: "button", class: "save", "data-key": `save ${key}` }, "SVG");
  button.addEventListener("click", () => {
    const caption = getCaption(figure);
    saveFile(`${makeFileName(caption)}.svg`, "image/svg+xml", buildStandaloneSvg(figure, caption));
  });
  return button;
}

const makeFileName = (text) =>
  text.normalize("NFKD").replace(/[^A-Za-z0-9]+/g, "-").replace(/^-|-$/g, "").toLowerCase().slice(0, 60) || "drawing";

// The drawing with its caption above and, if its colours need one, the legend below.
function buildStandaloneSvg(figure, caption) {
  const drawing = figure.querySelector("svg");
  const { width, height } = drawing.viewBox.baseVal;
  const copy = inlineStyles(drawing);
  update(copy, { x: 0, y: 30, width, height, overflow: "visible" });
  const rows = figure.dataset.legend === "" ? layOutLegend(width) : [];
  const tall = height + 40 + 20 * rows.length;
  const page = getComputedStyle(document.body);
  const words = { "font-family": page.fontFamily, "font-size": "13px", fill: page.color };
  const whole = svg("svg", { viewBox: `-12 0 ${width + 24} ${tall}`, width: width + 24, height: tall },
    svg("title", {}, caption),
    svg("rect", { x: -12, width: width + 24, height: tall, fill: page.backgroundColor }),
    svg("text", { ...words, y: 18, "font-weight": 600 }, caption), copy);
  rows.forEach((row, i) => row.forEach(({ x, name, ...look }) => whole.append(
    svg("path", { d: `M${x} ${height + 44 + 20 * i}h20`, "stroke-width": 3, ...look }),
    svg("text", { ...words, x: x + 26, y: height + 48 + 20 * i }, name))));
  const text = new XMLSerializer().serializeToString(whole);
  return text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd"); // characters that XML does not allow
}

// A copy that needs no style sheet, without the cursor.
function inlineStyles(drawing) {
  const copy = drawing.cloneNode(true);
  const copies = copy.querySelectorAll("*");
  drawing.querySelectorAll("*").forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const property of STYLE_PROPERTIES) copies[i].setAttribute(property, style.getPropertyValue(property));
  });
  copy.querySelectorAll(".cursor").forEach((element) => element.remove());
  for (const element of [copy, ...copy.querySelectorAll("*")]) {
    for (const name of ["class", "tabindex", "data-key"]) element.removeAttribute(name);
  }
  return copy;
}

function layOutLegend(width) {
  const rows = [[]];
  let x = 0;
  for (const { name, index } of getVisibleSeries()) {
    const swatch = byId("legend").querySelectorAll(".swatch")[index];
    const wide = 40 + 7.2 * name.length;
    if (x && x + wide > width) {
      rows.push([]);
      x = 0;
    }
    const dashes = swatch.classList.contains("again") ? "6 3" : "none";
    rows.at(-1).push({ x, name, stroke: getComputedStyle(swatch).borderTopColor, "stroke-dasharray": dashes });
    x += wide;
  }
  return rows;
}
