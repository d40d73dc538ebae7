"use strict";

/* The maps: unpacked, and the weights of a query. */

const metadata = JSON.parse(document.getElementById("metadata").textContent);
const element = (id) => document.getElementById(id);
const shown = metadata.blocks.map((block, b) => ({ ...block, b })).filter((block) => has(block, "after"));
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

function make(name, properties = {}) {
  return Object.assign(document.createElement(name), properties);
}

function svgElement(name, attributes) {
  const node = document.createElementNS(SVG, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  return node;
}

function svgText(words, x, y, anchor) {
  const node = svgElement("text", { x, y, "text-anchor": anchor });
  node.textContent = words;
  return node;
}

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
  const low = new Float32Array(content, 0, rows);
  return {
    low,
    signed: low.some((weight) => weight < 0),
    step: new Float32Array(content, 4 * rows, rows),
    sums: new Float32Array(content, 8 * rows, rows),
    levels: new Uint8Array(content, 12 * rows),
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

/** "Block 3", or "Class attention 1". */
const labelOf = ({ label }) => label[0].toUpperCase() + label.slice(1);

/** "3", "c1" for class attention, "2.1" for block 1 of stage 2. */
const shortOf = ({ label }) =>
  label.replace("class attention ", "c").replace(/^stage (\d+), /, "$1.").replace("block ", "");

const isClassBlock = ({ label }) => label.startsWith("class attention");

/** Whether a query, "patch" or "class", is one of a block. */
function fits(query, block) {
  return query === "class" ? hasClassToken(block) : hasPatchQueries(block);
}

function patchAt({ x, y }, [rows, columns]) {
  const within = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
  return { row: within(y, rows), column: within(x, columns) };
}

/** The row of a map that the chosen query has, or null without such a query. */
function queryIndex(block, stage) {
  if (!fits(state.query, block)) return null;
  if (state.query === "class") return 0;
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

/** The sum of the weights of a query, of the maps before they were rounded to levels. */
function sumOf(block, stage, head) {
  const [heads, queries] = block.stages[stage];
  const { sums } = maps.get(`${state.image}/${block.b}/${stage}`);
  const chosen = head === MEAN ? [...Array(heads).keys()] : [head];
  const query = queryIndex(block, stage);
  return chosen.reduce((total, h) => total + sums[h * queries + query], 0) / chosen.length;
}

/** Whether a block has negative weights at a stage: all its maps then have the same colors. */
function isSigned(block, stage) {
  if (stage === "change") return true;
  const one = maps.get(`${state.image}/${block.b}/${has(block, stage) ? stage : "after"}`);
  return Boolean(one && one.signed);
}

/** What the query takes from each token, or null: "before", "after" or "change". */
function weights(block, stage, head) {
  if (stage === "change") {
    if (!has(block, "before")) return null;
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
