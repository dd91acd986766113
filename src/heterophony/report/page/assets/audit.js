// The privacy audit: its table, and recovered images beside the originals.

function drawAudit() {
  byId("audit").hidden = !data.audit;
  if (!data.audit) return;
  const { attack, table, columns, images, shape, when } = data.audit;
  byId("audit-table").replaceChildren(createResultTable(table));
  const createCell = ({ pixels, caption }, i) =>
    html("td", {}, createPixelImage(pixels, shape, `${columns[i]}, ${caption}`), html("br"), caption);
  const imageTable = createTable(columns, images.map((row) => html("tr", {}, ...row.map(createCell))));
  byId("audit-images").replaceChildren(imageTable);
  byId("audit-notes").textContent = [`${attack}. The images were recovered ${when}.`, ...table.notes.map((n) => `${n}.`)].join(" ");
}

// Draw on a canvas: the page's security policy forbids images, even inline ones.
function createPixelImage(base64, [channels, height, width], description) {
  const canvas = html("canvas", { class: "pixels", width, height, role: "img", "aria-label": description });
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const plane = width * height;
  for (let i = 0; i < plane; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = bytes[i + (channels === 1 ? 0 : c * plane)];
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
