/* The controls: mouse, touch, keys. */
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
  element("view").classList.toggle("single", !has(block, "before"));
  for (const figure of element("panes").children) drawPane(figure, block);
  drawAttributions();
  drawSheet();
  element("block").value = state.block;
  element("head").value = state.head;
  press("query", state.query);
  press("stage", state.stage);
  [...element("images").children].forEach((button, i) => button.setAttribute("aria-pressed", i === state.image));
  const { row, column } = patchAt(state.pointed ?? state.kept, block.grid);
  const query = state.query === "class" ? "the class token" : `the patch in row ${row + 1}, column ${column + 1}`;
  element("readout").textContent =
    `${labelOf(block)}, ${headName(state.head)}; the query is ${query}.`;
  element("stage-text").textContent = {
    before: "Maps from the softmax, or from an earlier block.",
    after: modified ? "Maps that multiplied the values." : "This model does not modify its maps.",
    change: "After minus before: red is more, blue is less, empty is not modified.",
  }[state.stage];
}

function press(group, chosen) {
  for (const button of element(group).children) {
    button.setAttribute("aria-pressed", button.dataset[group] === chosen);
  }
}

function choose(change) {
  Object.assign(state, change);
  const block = shown.find(({ b }) => b === state.block);
  if (!fits(state.query, block)) state.query = state.query === "class" ? "patch" : "class";
  markCharts();
  draw();
}

/** Choose a query; leave a block that does not have it. */
function chooseQuery(query, place = {}) {
  const chosen = shown.find(({ b }) => b === state.block);
  const fitting = shown.filter((block) => fits(query, block));
  const there = fits(query, chosen) ? chosen : fitting.at(query === "class" ? 0 : -1);
  if (there) choose({ query, block: there.b, ...place });
}

async function chooseImage(image) {
  state.image = image;
  makeCharts();
  choose({});
  await pictures[image].decode();
  if (state.image !== image) return;
  showClasses();
  // The chosen block is shown before the others are unpacked.
  await load(image, shown.filter(({ b }) => b === state.block));
  if (state.image === image) drawNow();
  await load(image, shown);
  if (state.image === image) drawNow();
}

function showClasses() {
  const { classes, name, source } = metadata.images[state.image];
  const rows = classes.map(([label, probability]) => {
    const row = make("div", { className: "class" });
    const bar = make("i");
    bar.style.width = `${100 * probability}%`;
    row.append(make("span", { textContent: label }), make("span", { textContent: percent(probability) }), bar);
    return row;
  });
  const picture = make("img", { src: source, alt: `The image ${name}, as the model sees it` });
  picture.classList.toggle("small", pictures[state.image].naturalWidth < 128);
  const title = make("b", { textContent: classes.length ? `Prediction for ${name}` : name });
  element("classes").replaceChildren(picture, title, ...rows);
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
  i: () => chooseImage(next([...metadata.images.keys()], state.image, 1)),
  I: () => chooseImage(next([...metadata.images.keys()], state.image, -1)),
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

async function begin() {
  shown.forEach((block) => element("block").append(make("option", { value: block.b, textContent: labelOf(block), title: block.name })));
  heads.forEach((head) => element("head").append(make("option", { value: head, textContent: headName(head) })));
  metadata.images.forEach(({ name, source }, i) => {
    const button = make("button", { type: "button", title: name });
    button.append(make("img", { src: source, alt: "" }), make("span", { textContent: name }));
    button.addEventListener("click", () => chooseImage(i));
    element("images").append(button);
  });
  element("images").hidden = metadata.images.length === 1;
  element("stage").hidden = !modified;
  element("query").children[0].disabled = !shown.some(hasPatchQueries);
  element("query").children[1].disabled = !shown.some(hasClassToken);
  element("legend").textContent =
    "Each map has its own colors: yellow is its largest weight, violet is 0 (or its smallest). " +
    "In a block with negative weights, red is above 0, white 0 and blue below. " +
    "An empty field has no map of this query." +
    (shown.some(isClassBlock) ? " Columns c0, c1: class attention." : "");
  element("precision").textContent =
    `Weights are stored in ${metadata.levels} levels between the smallest and the largest of each row of a map; sums are exact.`;
  const weights = make("b", { textContent: metadata.weights, className: metadata.weights === "random weights" ? "random" : "" });
  element("about").append(`${metadata.size}, `, weights, `, ${metadata.about}`);
  makePanes();
  makeSheet();
  listen();
  const first = chooseFirst();
  await load(0, [first]);
  if (has(first, "before")) state.head = mostChanged(first);
  return chooseImage(0);
}

/** Begin with the class token in the last block that has it, and the head that is changed most. */
function chooseFirst() {
  const block = shown.findLast(hasClassToken) ?? shown.at(-1);
  state.block = block.b;
  state.query = hasClassToken(block) ? "class" : "patch";
  return block;
}

function mostChanged(block) {
  const changes = heads.filter((head) => head !== MEAN).map((head) => {
    const values = weights(block, "change", head);
    return [values ? values.reduce((sum, value) => sum + Math.abs(value), 0) : 0, head];
  });
  return changes.reduce((best, each) => (each[0] > best[0] ? each : best))[1];
}

begin().then(
  () => { document.documentElement.dataset.ready = "true"; },
  (error) => {
    element("error").textContent = `The maps can't be shown: ${error.message}`;
    element("error").hidden = false;
  },
);
