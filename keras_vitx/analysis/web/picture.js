/* Colors, and the picture with the map of a block and head on it. */
// Those of the figures: viridis and RdBu_r of matplotlib.
const SEQUENTIAL = table([
  [68, 1, 84], [71, 45, 123], [59, 82, 139], [44, 114, 142], [33, 145, 140],
  [40, 174, 128], [94, 201, 98], [173, 220, 48], [253, 231, 37],
]);
const DIVERGING = table([
  [5, 48, 97], [32, 101, 171], [67, 147, 195], [144, 196, 221], [209, 229, 240], [247, 246, 246],
  [253, 219, 199], [243, 164, 129], [214, 96, 77], [177, 24, 43], [103, 0, 31],
]);

function table(stops) {
  return Array.from({ length: 256 }, (_, i) => {
    const place = (i / 255) * (stops.length - 1);
    const left = Math.min(Math.floor(place), stops.length - 2);
    return stops[left].map((c, k) => c + (place - left) * (stops[left + 1][k] - c));
  });
}

/** Draw weights of patches on a canvas with one pixel per patch; return the ends of the colors. */
function paint(canvas, [rows, columns], values, signed) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(columns, rows);
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  const scale = barScale();
  signed = signed && scale !== "stretch";
  const largest = Math.max(Math.abs(low), Math.abs(high)) || 1;
  values.forEach((value, i) => {
    let share = value / largest;
    if (scale === "stretch") share = (value - low) / (high - low || 1);
    if (scale === "root") share = Math.sign(share) * Math.sqrt(Math.abs(share));
    const level = Math.round(255 * (signed ? (share + 1) / 2 : share));
    pixels.data.set((signed ? DIVERGING : SEQUENTIAL)[level], 4 * i);
    pixels.data[4 * i + 3] = 255;
  });
  context.putImageData(pixels, 0, 0);
  return { signed, low: scale === "stretch" ? low : signed ? -largest : 0, high: scale === "stretch" ? high : largest };
}

const barScale = () => element("scale").value;

/** Fill a bar of colors, with the weights at its ends and in its middle. */
function showBar(bar, ends) {
  bar.hidden = !ends;
  if (!ends) return;
  const colors = ends.signed ? DIVERGING : SEQUENTIAL;
  const stops = Array.from({ length: 9 }, (_, i) => `rgb(${colors[Math.round(i * 255 / 8)].map(Math.round)})`);
  const strip = make("i");
  strip.style.background = `linear-gradient(90deg, ${stops})`;
  const middle = barScale() === "root" && !ends.signed ? ends.high / 4 : (ends.low + ends.high) / 2;
  const ticks = make("div");
  ticks.append(...[ends.low, middle, ends.high].map((value) => make("span", { textContent: percent(value) })));
  bar.replaceChildren(strip, ticks);
}

const pictures = metadata.images.map(({ source }) => Object.assign(new Image(), { src: source }));
const small = document.createElement("canvas");

function makePanes() {
  element("panes").replaceChildren(...["before", "after"].map((stage) => {
    const figure = make("figure");
    const canvas = make("canvas", { tabIndex: 0 });
    canvas.dataset.stage = stage;
    canvas.setAttribute("role", "img");
    figure.append(canvas, make("div", { className: "bar" }), make("figcaption"));
    return figure;
  }));
  element("attributions").replaceChildren(...Object.keys(metadata.images[0].attributions).map((method) => {
    const figure = make("figure", { id: method });
    const canvas = make("canvas");
    canvas.setAttribute("role", "img");
    figure.append(canvas, make("div", { className: "bar" }), make("figcaption"));
    return figure;
  }));
}

function drawPane(figure, block) {
  const [canvas, bar, caption] = figure.children;
  const { stage } = canvas.dataset;
  const hidden = !has(block, stage);
  // Maps that are not modified are shown once; the focus stays on a picture.
  if (hidden && document.activeElement === canvas) figure.nextSibling.firstChild.focus();
  figure.hidden = hidden;
  if (hidden) return;
  const values = weights(block, stage, state.head);
  const patches = values && values.subarray(extras(block, stage));
  showBar(bar, drawOver(canvas, block.grid, patches, isSigned(block, stage)));
  if (values && state.query === "patch") outline(canvas, block.grid);
  caption.replaceChildren(
    make("b", { textContent: titleOf(block, stage) + ". " }),
    values ? summary(values, patches, block, stage) : "Unpacking the maps …",
  );
  canvas.setAttribute("aria-label", `Map ${titleOf(block, stage)}. ${caption.textContent}`);
}

/** Draw the picture, and on it weights of its patches, if any; return the ends of the colors. */
function drawOver(canvas, grid, values, signed) {
  const picture = pictures[state.image];
  const ratio = picture.naturalHeight / picture.naturalWidth || 1;
  canvas.width = Math.round(canvas.clientWidth * (window.devicePixelRatio || 1));
  canvas.height = Math.round(canvas.width * ratio);
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = picture.naturalWidth >= 128;
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  if (!values) return null;
  const ends = paint(small, grid, values, signed);
  context.imageSmoothingEnabled = false;
  context.globalAlpha = 1 - element("mix").value / 100;
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
  context.globalAlpha = 1;
  return ends;
}

function drawAttributions() {
  const { attributions, classes } = metadata.images[state.image];
  const names = { rollout: "Rollout", gradient_attention: `Gradient attention, for ${classes[0]?.[0]}` };
  for (const [method, values] of Object.entries(attributions)) {
    const [canvas, bar, caption] = element(method).children;
    showBar(bar, drawOver(canvas, metadata.grid, values, false));
    caption.textContent = names[method];
    canvas.setAttribute("aria-label", `What the prediction owes to each patch: ${names[method]}`);
  }
}

function outline(canvas, grid) {
  const { width, height } = canvas;
  const context = canvas.getContext("2d");
  const { row, column } = patchAt(state.pointed ?? state.kept, grid);
  const [h, w] = [height / grid[0], width / grid[1]];
  const line = Math.max(2, width / 200);
  for (const [color, thick] of [["#000", 2 * line], ["#fff", line]]) {
    context.strokeStyle = color;
    context.lineWidth = thick;
    context.strokeRect(column * w, row * h, w, h);
  }
}

function titleOf(block, stage) {
  if (!has(block, "before")) return "Not modified";
  if (stage === "after") return "After modification";
  return block.shared ? "Passed on by an earlier block" : "Before modification";
}

function summary(values, patches, block, stage) {
  const columns = block.grid[1];
  let best = 0;
  patches.forEach((weight, i) => { if (weight > patches[best]) best = i; });
  const place = `row ${Math.floor(best / columns) + 1}, column ${(best % columns) + 1}`;
  const tokens = block.prefix.slice(0, values.length - patches.length)
    .map((name, k) => `; ${name} ${percent(values[k])}`).join("");
  const sum = sumOf(block, stage, state.head).toFixed(2);
  return `Largest: ${percent(patches[best])} at ${place}${tokens}. Sum ${sum}.`;
}

const percent = (share) => `${+(100 * share).toPrecision(3)} %`;
