"use strict";
const facts = JSON.parse(document.getElementById("facts").textContent);
const element = (id) => document.getElementById(id);
const shown = facts.blocks.map((block, b) => ({ ...block, b })).filter((block) => has(block, "after"));
const modified = shown.some((block) => has(block, "before"));
const headCount = Math.max(...shown.map((block) => block.stages.after[0]));
const MEAN = -1;

const state = {
  image: 0,
  block: shown[0].b,
  head: headCount > 1 ? MEAN : 0,
  query: "patch",
  stage: "after",
  // Places on the picture, from 0 to 1: grids differ between blocks.
  kept: { x: 0.5, y: 0.5 },
  pointed: null,
};

function has(block, stage) {
  return Boolean(block.stages && block.stages[stage]);
}

// ---- Maps

const maps = new Map();

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

async function unpack(text, [heads, queries]) {
  const packed = bytesOf(text);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const content = await new Response(stream).arrayBuffer();
  const rows = heads * queries;
  return {
    low: new Float32Array(content, 0, rows),
    step: new Float32Array(content, 4 * rows, rows),
    levels: new Uint8Array(content, 8 * rows),
  };
}

async function load(image, blocks) {
  await Promise.all(blocks.flatMap((block) => Object.keys(block.stages).map(async (stage) => {
    const name = `${image}/${block.b}/${stage}`;
    if (maps.has(name)) return;
    const text = document.querySelector(`script[data-maps="${name}"]`).textContent;
    maps.set(name, await unpack(text, block.stages[stage]));
  })));
}

/** The number of tokens before the patches. */
function extras(block, stage = "after") {
  return block.stages[stage][2] - block.grid[0] * block.grid[1];
}

function hasClassToken(block) {
  return extras(block) > 0;
}

function hasPatchQueries(block) {
  return block.stages.after[1] >= block.grid[0] * block.grid[1];
}

function patchAt({ x, y }, [rows, columns]) {
  const within = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
  return { row: within(y, rows), column: within(x, columns) };
}

/** The row of a map that the chosen query has, or null without such a query. */
function queryIndex(block, stage) {
  if (state.query === "class") return hasClassToken(block) ? 0 : null;
  if (!hasPatchQueries(block)) return null;
  const [rows, columns] = block.grid;
  const { row, column } = patchAt(state.pointed ?? state.kept, block.grid);
  return block.stages[stage][1] - rows * columns + row * columns + column;
}

function weightsOfHead(block, stage, head, query) {
  const one = maps.get(`${state.image}/${block.b}/${stage}`);
  if (!one) return null;
  const [, queries, keys] = block.stages[stage];
  const row = head * queries + query;
  return Float32Array.from(
    one.levels.subarray(row * keys, (row + 1) * keys),
    (level) => one.low[row] + one.step[row] * level,
  );
}

/** What the query takes from each token, or null: "before", "after" or "change". */
function weights(block, stage, head) {
  if (stage === "change") {
    const [before, after] = ["before", "after"].map((each) => weights(block, each, head));
    return before && after && before.length === after.length
      ? after.map((weight, k) => weight - before[k]) : null;
  }
  if (!has(block, stage)) stage = "after";
  const query = queryIndex(block, stage);
  const heads = block.stages[stage][0];
  if (query === null || head >= heads) return null;
  if (head !== MEAN) return weightsOfHead(block, stage, head, query);
  let sum = null;
  for (let h = 0; h < heads; h++) {
    const one = weightsOfHead(block, stage, h, query);
    if (!one) return null;
    sum = sum ? sum.map((weight, k) => weight + one[k]) : one;
  }
  return sum.map((weight) => weight / heads);
}

// ---- Colours

const SEQUENTIAL = table([
  [0, 34, 78], [26, 56, 111], [67, 78, 108], [97, 101, 111], [125, 124, 120],
  [155, 148, 118], [188, 174, 108], [222, 201, 88], [254, 232, 56],
]);
const DIVERGING = table([
  [24, 79, 149], [94, 148, 200], [187, 212, 232], [244, 244, 244],
  [243, 199, 170], [214, 122, 88], [160, 24, 40],
]);

function table(stops) {
  return Array.from({ length: 256 }, (_, i) => {
    const place = (i / 255) * (stops.length - 1);
    const left = Math.min(Math.floor(place), stops.length - 2);
    return stops[left].map((c, k) => c + (place - left) * (stops[left + 1][k] - c));
  });
}

/** Draw weights of patches on a canvas with one pixel per patch. */
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
  signed = signed || low < 0;
  const scale = element("scale").value;
  const largest = Math.max(Math.abs(low), Math.abs(high)) || 1;
  values.forEach((value, i) => {
    let share = value / largest;
    if (!signed && scale === "stretch") share = (value - low) / (high - low || 1);
    if (scale === "root") share = Math.sign(share) * Math.sqrt(Math.abs(share));
    const level = Math.round(255 * (signed ? (share + 1) / 2 : share));
    pixels.data.set((signed ? DIVERGING : SEQUENTIAL)[level], 4 * i);
    pixels.data[4 * i + 3] = 255;
  });
  context.putImageData(pixels, 0, 0);
}

// ---- The picture

const pictures = facts.images.map(({ source }) => Object.assign(new Image(), { src: source }));
const small = document.createElement("canvas");

function makePanes(block) {
  const stages = has(block, "before") ? ["before", "after"] : ["after"];
  const panes = element("panes");
  if (panes.dataset.stages === stages.join()) return;
  panes.dataset.stages = stages.join();
  panes.replaceChildren(...stages.map((stage) => {
    const figure = make("figure");
    const canvas = make("canvas", { tabIndex: 0 });
    canvas.dataset.stage = stage;
    canvas.setAttribute("role", "img");
    figure.append(canvas, make("figcaption"));
    return figure;
  }));
}

function drawPane(figure, block) {
  const [canvas, caption] = figure.children;
  const { stage } = canvas.dataset;
  const picture = pictures[state.image];
  const ratio = picture.naturalHeight / picture.naturalWidth || 1;
  canvas.width = Math.round(canvas.clientWidth * (window.devicePixelRatio || 1));
  canvas.height = Math.round(canvas.width * ratio);
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  context.imageSmoothingEnabled = picture.naturalWidth >= 128;
  context.drawImage(picture, 0, 0, width, height);
  const values = weights(block, stage, state.head);
  const offset = values && extras(block, stage);
  const patches = values && values.subarray(offset);
  if (values) {
    paint(small, block.grid, patches);
    context.imageSmoothingEnabled = false;
    context.globalAlpha = 1 - element("mix").value / 100;
    context.drawImage(small, 0, 0, width, height);
    context.globalAlpha = 1;
    if (state.query === "patch") outline(context, block.grid, width, height);
  }
  caption.replaceChildren(
    make("b", { textContent: titleOf(block, stage) + ". " }),
    values ? summary(values, patches, offset, block.grid) : missing(block),
  );
  canvas.setAttribute("aria-label", `Map ${titleOf(block, stage)}. ${caption.textContent}`);
}

function outline(context, grid, width, height) {
  const { row, column } = patchAt(state.pointed ?? state.kept, grid);
  const [h, w] = [height / grid[0], width / grid[1]];
  const line = Math.max(2, width / 200);
  for (const [colour, thick] of [["#000", 2 * line], ["#fff", line]]) {
    context.strokeStyle = colour;
    context.lineWidth = thick;
    context.strokeRect(column * w, row * h, w, h);
  }
}

function titleOf(block, stage) {
  if (!has(block, "before")) return "Not modified";
  if (stage === "after") return "After modification";
  return block.carried ? "Passed on by an earlier block" : "Before modification";
}

function summary(values, patches, offset, [, columns]) {
  let best = 0;
  patches.forEach((weight, i) => { if (weight > patches[best]) best = i; });
  const place = `row ${Math.floor(best / columns) + 1}, column ${(best % columns) + 1}`;
  const tokens = ["class token", "distillation token"].slice(0, offset)
    .map((name, k) => `; ${name} ${percent(values[k])}`).join("");
  const sum = values.reduce((total, weight) => total + weight, 0);
  return `Most: ${percent(patches[best])} at ${place}${tokens}. Sum ${sum.toFixed(2)}.`;
}

function missing(block) {
  if (!maps.has(`${state.image}/${block.b}/after`)) return "Unpacking the maps …";
  return state.query === "class"
    ? "There is no class token in this block."
    : "Only the class token looks in this block: choose “Class token”.";
}

const percent = (share) => `${(100 * share).toPrecision(3)} %`;

// ---- All blocks and heads

const tiles = [];

function makeSheet() {
  const sheet = element("sheet");
  const heads = [...(headCount > 1 ? [MEAN] : []), ...Array(headCount).keys()];
  sheet.style.setProperty("--blocks", shown.length);
  sheet.style.setProperty("--heads", heads.length);
  const put = (item, b, h) => {
    item.style.setProperty("--b", b);
    item.style.setProperty("--h", h);
    sheet.append(item);
    return item;
  };
  heads.forEach((head, h) => put(make("span", { textContent: headName(head) }), -1, h));
  shown.forEach((block, b) => {
    put(make("span", { textContent: block.b, title: block.name }), b, -1);
    heads.forEach((head, h) => {
      const canvas = put(make("canvas"), b, h);
      canvas.setAttribute("aria-hidden", "true");
      tiles.push({ canvas, block, head });
    });
  });
  sheet.addEventListener("click", (event) => {
    const tile = tiles.find(({ canvas }) => canvas === event.target);
    if (tile) choose({ block: tile.block.b, head: tile.head });
  });
}

function drawSheet() {
  for (const { canvas, block, head } of tiles) {
    const values = weights(block, state.stage, head);
    canvas.classList.toggle("none", !values);
    canvas.classList.toggle("chosen", block.b === state.block && head === state.head);
    canvas.title = `Block ${block.b} (${block.name}), ${headName(head)}`;
    const isWhole = state.stage === "change" && !has(block, "before");
    if (values) {
      paint(canvas, block.grid, values.subarray(extras(block)), state.stage === "change");
      if (isWhole) canvas.title += ": not modified";
    } else {
      [canvas.height, canvas.width] = block.grid;
    }
  }
}

function headName(head) {
  if (head === MEAN || facts.heads === "mean") return "mean";
  return `head ${facts.heads ? facts.heads[head] : head}`;
}

// ---- Measures by depth

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP] = [300, 150, 36, 18, 8];
const count = facts.blocks.length;
const across = (b) => LEFT + ((b + 0.5) / count) * (WIDTH - LEFT - 4);

function makeCharts() {
  const charts = facts.charts.filter(({ measure }) => facts.images[0].measures[measure]);
  element("charts").replaceChildren(...charts.map((chart) => {
    const figure = make("figure");
    const svg = svgElement("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": chart.title });
    svg.addEventListener("click", (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * WIDTH;
      const near = shown.reduce((a, b) => (Math.abs(across(b.b) - x) < Math.abs(across(a.b) - x) ? b : a));
      choose({ block: near.b });
    });
    figure.append(
      make("h3", { textContent: chart.title }),
      make("figcaption", { className: "faint", textContent: chart.text }),
      svg,
      make("output"),
    );
    drawChart(svg, chart);
    return Object.assign(figure, { chart });
  }));
}

function drawChart(svg, { measure, beside }) {
  const seriesOf = ({ measures }, name) => (measures[name] ?? []).map((values) => (values ?? []).filter((v) => v !== null));
  const own = seriesOf(facts.images[state.image], measure);
  const reference = beside ? seriesOf(facts.images[state.image], beside) : [];
  const others = facts.images.filter((_, i) => i !== state.image).map((image) => seriesOf(image, measure));
  const all = [own, reference, ...others].flat(2);
  const ticks = ticksOf(Math.min(...all), Math.max(...all));
  const [low, high] = [ticks[0], ticks.at(-1)];
  const up = (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - BOTTOM - TOP);
  const parts = [];
  for (const tick of ticks) {
    parts.push(svgElement("line", { class: "grid", x1: LEFT, x2: WIDTH - 4, y1: up(tick), y2: up(tick) }));
    parts.push(svgText(+tick.toPrecision(6), LEFT - 4, up(tick) + 3, "end"));
  }
  const every = Math.ceil(count / 12);
  for (let b = 0; b < count; b += every) parts.push(svgText(b, across(b), HEIGHT - 4, "middle"));
  const here = svgElement("line", { class: "here", y1: TOP, y2: HEIGHT - BOTTOM });
  parts.push(here);
  const line = (series, kind) => parts.push(svgElement("path", { class: kind, d: pathOf(series.map(meanOf), up) }));
  others.forEach((series) => line(series, "other"));
  line(reference, "beside");
  own.forEach((values, b) => {
    if (values.length > 1) {
      values.forEach((value) => parts.push(svgElement("circle", { class: "head", cx: across(b), cy: up(value), r: 1.8 })));
    }
  });
  line(own, "mean");
  own.forEach((values, b) => {
    if (values.length === 1) parts.push(svgElement("circle", { class: "head", cx: across(b), cy: up(values[0]), r: 1.8 }));
  });
  svg.replaceChildren(...parts);
}

function markCharts() {
  for (const figure of element("charts").children) {
    const here = figure.querySelector(".here");
    here.setAttribute("x1", across(state.block));
    here.setAttribute("x2", across(state.block));
    const values = facts.images[state.image].measures[figure.chart.measure][state.block];
    const mean = meanOf((values ?? []).filter((value) => value !== null));
    figure.querySelector("output").textContent =
      `Block ${state.block}: ${mean === null ? "none" : +mean.toPrecision(4)}`;
  }
}

const meanOf = (values) => (values.length ? values.reduce((a, b) => a + b) / values.length : null);

function pathOf(means, up) {
  let path = "", pen = "M";
  means.forEach((mean, b) => {
    if (mean === null) { pen = "M"; return; }
    path += `${pen}${across(b).toFixed(1)} ${up(mean).toFixed(1)}`;
    pen = "L";
  });
  return path;
}

/** Three to six round numbers that enclose low and high. */
function ticksOf(low, high) {
  if (high - low < 1e-9 * Math.max(1, Math.abs(high))) [low, high] = [Math.min(low, 0), high || 1];
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough);
  const ticks = [];
  for (let k = Math.floor(low / step + 1e-9); ; k++) {
    ticks.push(k * step);
    if (k * step >= high - 1e-9 * step) return ticks;
  }
}

// ---- Elements

function make(name, properties = {}) {
  return Object.assign(document.createElement(name), properties);
}

function svgElement(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  return made;
}

function svgText(words, x, y, anchor) {
  const made = svgElement("text", { x, y, "text-anchor": anchor });
  made.textContent = words;
  return made;
}

// ---- The page

let waiting = false;
function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    drawNow();
  });
}

function drawNow() {
  const block = shown.find(({ b }) => b === state.block);
  makePanes(block);
  for (const figure of element("panes").children) drawPane(figure, block);
  drawSheet();
  element("block").value = state.block;
  element("head").value = state.head;
  press("query", state.query);
  press("stage", state.stage);
  [...element("images").children].forEach((button, i) => button.setAttribute("aria-pressed", i === state.image));
  const { row, column } = patchAt(state.pointed ?? state.kept, block.grid);
  const query = state.query === "class" ? "the class token" : `the patch in row ${row + 1}, column ${column + 1}`;
  element("readout").textContent =
    `Block ${state.block} (${block.name}), ${headName(state.head)}; the query is ${query}.`;
  element("stage-text").textContent = {
    before: "Maps as the softmax gives them, or as an earlier block passed them on.",
    after: modified ? "Maps that multiplied the values." : "This model does not modify its maps.",
    change: "After minus before: red is more, blue is less.",
  }[state.stage];
}

function press(group, chosen) {
  for (const button of element(group).children) {
    button.setAttribute("aria-pressed", button.dataset[group] === chosen);
  }
}

function choose(change) {
  Object.assign(state, change);
  markCharts();
  draw();
}

/** Choose a query; leave a block that does not have it. */
function chooseQuery(query, place = {}) {
  const fits = query === "class" ? hasClassToken : hasPatchQueries;
  const block = shown.find(({ b }) => b === state.block);
  const there = fits(block) ? block : shown.filter(fits).at(query === "class" ? 0 : -1);
  if (there) choose({ query, block: there.b, ...place });
}

async function chooseImage(image) {
  state.image = image;
  showClasses();
  makeCharts();
  choose({});
  await pictures[image].decode();
  // The chosen block is shown before the others are unpacked.
  await load(image, shown.filter(({ b }) => b === state.block));
  if (state.image === image) drawNow();
  await load(image, shown);
  if (state.image === image) drawNow();
}

function showClasses() {
  const { classes, name } = facts.images[state.image];
  const rows = classes.map(([label, probability]) => {
    const row = make("div", { className: "class" });
    const bar = make("i");
    bar.style.width = `${100 * probability}%`;
    row.append(make("span", { textContent: label }), make("span", { textContent: percent(probability) }), bar);
    return row;
  });
  const title = make("b", { textContent: classes.length ? `Prediction for ${name}` : name });
  element("classes").replaceChildren(title, ...rows);
}

function next(values, value, step) {
  return values.at((values.indexOf(value) + step) % values.length);
}

const heads = [...(headCount > 1 ? [MEAN] : []), ...Array(headCount).keys()];
const stages = modified ? ["before", "after", "change"] : ["after"];
const KEYS = {
  b: () => choose({ block: next(shown.map(({ b }) => b), state.block, 1) }),
  B: () => choose({ block: next(shown.map(({ b }) => b), state.block, -1) }),
  h: () => choose({ head: next(heads, state.head, 1) }),
  H: () => choose({ head: next(heads, state.head, -1) }),
  c: () => chooseQuery(state.query === "class" ? "patch" : "class"),
  s: () => choose({ stage: next(stages, state.stage, 1) }),
  i: () => chooseImage(next([...facts.images.keys()], state.image, 1)),
  I: () => chooseImage(next([...facts.images.keys()], state.image, -1)),
};
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function moveByArrow(event) {
  const [dx, dy] = ARROWS[event.key];
  const { grid } = shown.find(({ b }) => b === state.block);
  const { row, column } = patchAt(state.kept, grid);
  const clamp = (index, size) => Math.min(size - 1, Math.max(0, index));
  const kept = { x: (clamp(column + dx, grid[1]) + 0.5) / grid[1], y: (clamp(row + dy, grid[0]) + 0.5) / grid[0] };
  chooseQuery("patch", { kept, pointed: null });
  event.preventDefault();
}

function listen() {
  const place = (event) => {
    const box = event.target.getBoundingClientRect();
    return { x: (event.clientX - box.left) / box.width, y: (event.clientY - box.top) / box.height };
  };
  const panes = element("panes");
  const onPicture = (act) => (event) => { if (event.target.tagName === "CANVAS") act(event); };
  panes.addEventListener("pointermove", onPicture((event) => {
    if (state.query !== "patch") return;
    // A finger keeps what it touches; a mouse keeps what it clicks.
    if (event.pointerType === "touch") state.kept = place(event);
    else state.pointed = place(event);
    draw();
  }));
  panes.addEventListener("pointerleave", () => { state.pointed = null; draw(); });
  panes.addEventListener("click", onPicture((event) => chooseQuery("patch", { kept: place(event), pointed: null })));
  panes.addEventListener("keydown", (event) => { if (event.key in ARROWS) moveByArrow(event); });
  element("block").addEventListener("change", (event) => choose({ block: +event.target.value }));
  element("head").addEventListener("change", (event) => choose({ head: +event.target.value }));
  element("scale").addEventListener("change", draw);
  element("mix").addEventListener("input", draw);
  element("query").addEventListener("click", ({ target }) => { if (target.dataset.query) chooseQuery(target.dataset.query); });
  element("stage").addEventListener("click", ({ target }) => { if (target.dataset.stage) choose({ stage: target.dataset.stage }); });
  window.addEventListener("resize", draw);
  document.addEventListener("keydown", (event) => {
    const typing = ["INPUT", "SELECT"].includes(event.target.tagName);
    if (typing || event.ctrlKey || event.altKey || event.metaKey) return;
    if (Object.hasOwn(KEYS, event.key)) KEYS[event.key]();
  });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const label = () => { element("theme").textContent = isDark() ? "Light" : "Dark"; };
  element("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    label();
  });
  dark.addEventListener("change", label);
  label();
}

function begin() {
  shown.forEach((block) => element("block").append(make("option", { value: block.b, textContent: `${block.b} ${block.name}` })));
  heads.forEach((head) => element("head").append(make("option", { value: head, textContent: headName(head) })));
  facts.images.forEach(({ name, source }, i) => {
    const button = make("button", { type: "button", title: name });
    button.append(make("img", { src: source, alt: "" }), make("span", { textContent: name }));
    button.addEventListener("click", () => chooseImage(i));
    element("images").append(button);
  });
  element("images").hidden = facts.images.length === 1;
  element("stage").hidden = !modified;
  element("query").children[0].disabled = !shown.some(hasPatchQueries);
  element("query").children[1].disabled = !shown.some(hasClassToken);
  if (!hasPatchQueries(shown[0])) state.query = "class";
  element("legend").textContent =
    "Each map has its own colours: yellow is its largest weight, dark blue 0. " +
    "Where weights are negative, red is above 0, white 0 and blue below.";
  element("precision").textContent =
    `Weights are stored in ${facts.levels} levels between the smallest and the largest of each row of a map.`;
  makeSheet();
  listen();
  return chooseImage(0);
}

begin().then(
  () => { document.documentElement.dataset.ready = "true"; },
  (error) => {
    element("error").textContent = `The maps can't be shown: ${error.message}`;
    element("error").hidden = false;
  },
);
