/* Small maps of all blocks and heads. */
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
    const label = put(make("span", { textContent: shortOf(block), title: `${labelOf(block)} (${block.name})` }), b, -1);
    heads.forEach((head, h) => {
      const canvas = put(make("canvas"), b, h);
      canvas.setAttribute("aria-hidden", "true");
      tiles.push({ canvas, block, head, label });
    });
  });
  sheet.addEventListener("click", (event) => {
    const tile = tiles.find(({ canvas }) => canvas === event.target);
    if (tile) choose({ block: tile.block.b, head: tile.head });
  });
}

function drawSheet() {
  // Blocks without a map of this query have no column.
  const columns = shown.filter((block) => fits(state.query, block) && (state.stage !== "change" || has(block, "before")));
  element("sheet").style.setProperty("--blocks", columns.length);
  for (const { canvas, block, head, label } of tiles) {
    for (const item of [canvas, label]) {
      item.hidden = !columns.includes(block);
      item.style.setProperty("--b", columns.indexOf(block));
    }
    if (canvas.hidden) continue;
    const values = weights(block, state.stage, head);
    canvas.classList.toggle("none", !values);
    canvas.classList.toggle("chosen", block.b === state.block && head === state.head);
    canvas.title = `${labelOf(block)} (${block.name}), ${headName(head)}`;
    if (values) {
      paint(canvas, block.grid, values.subarray(extras(block)), isSigned(block, state.stage));
    } else {
      [canvas.height, canvas.width] = block.grid;
    }
  }
}

function headName(head) {
  if (head === MEAN || metadata.heads === "mean") return "mean";
  return `head ${metadata.heads ? metadata.heads[head] : head}`;
}
