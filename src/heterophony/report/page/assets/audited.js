// What an audit recovered: a table, and images beside their originals.

function drawAudited() {
  byId("audited").hidden = !data.audited;
  if (!data.audited) return;
  const { attack, titles, rows, columns, pictures, shape, round, notes } = data.audited;
  const line = ([name, ...cells]) =>
    html("tr", {}, html("th", { scope: "row" }, name), ...cells.map((cell) => html("td", {}, cell)));
  byId("audited-table").replaceChildren(table(["algorithm, parts that stay", ...titles], rows.map(line)));
  const image = ({ pixels, below }, i) => html("td", {}, pixelated(pixels, shape, `${columns[i]}, ${below}`), html("br"), below);
  const sheet = table(columns, pictures.map((row) => html("tr", {}, ...row.map(image))));
  byId("audited-images").replaceChildren(sheet);
  byId("audited-notes").textContent = [`${attack}. The images are of the state after round ${round}.`, ...notes.map((n) => `${n}.`)].join(" ");
}

// Drawn pixel by pixel: the page may load no image, not even one that it carries.
function pixelated(packed, [channels, height, width], words) {
  const canvas = html("canvas", { class: "pixels", width, height, role: "img", "aria-label": words });
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const context = canvas.getContext("2d");
  const drawn = context.createImageData(width, height);
  const plane = width * height;
  for (let i = 0; i < plane; i++) {
    for (let c = 0; c < 3; c++) drawn.data[4 * i + c] = bytes[i + (channels === 1 ? 0 : c * plane)];
    drawn.data[4 * i + 3] = 255;
  }
  context.putImageData(drawn, 0, 0);
  return canvas;
}
