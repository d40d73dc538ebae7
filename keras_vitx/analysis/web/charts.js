/* Plots of the measures by depth. */
const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP] = [300, 150, 36, 18, 8];
const count = metadata.blocks.length;
const across = (b) => LEFT + ((b + 0.5) / count) * (WIDTH - LEFT - 4);

function makeCharts() {
  // The similarity of heads is no number for one head.
  const charts = metadata.charts.filter(({ measure }) =>
    metadata.images.some(({ measures }) => measures[measure]?.flat().some(Number.isFinite)));
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
  const own = seriesOf(metadata.images[state.image], measure);
  const reference = beside ? seriesOf(metadata.images[state.image], beside) : [];
  const others = metadata.images.filter((_, i) => i !== state.image).map((image) => seriesOf(image, measure));
  const all = [own, reference, ...others].flat(2);
  const ticks = ticksOf(Math.min(...all), Math.max(...all));
  const [low, high] = [ticks[0], ticks.at(-1)];
  const up = (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - BOTTOM - TOP);
  const parts = [];
  for (const tick of ticks) {
    parts.push(svgElement("line", { class: "grid", x1: LEFT, x2: WIDTH - 4, y1: up(tick), y2: up(tick) }));
    parts.push(svgText(short(tick), LEFT - 4, up(tick) + 3, "end"));
  }
  const every = Math.ceil(count / 12);
  for (let b = 0; b < count; b += every) parts.push(svgText(shortOf(metadata.blocks[b]), across(b), HEIGHT - 4, "middle"));
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
    const values = metadata.images[state.image].measures[figure.chart.measure][state.block];
    const mean = meanOf((values ?? []).filter((value) => value !== null));
    figure.querySelector("output").textContent =
      `${labelOf(metadata.blocks[state.block])}: ${mean === null ? "none" : +mean.toPrecision(4)}`;
  }
}

function short(number) {
  const size = Math.abs(number);
  return size > 0 && (size < 1e-3 || size >= 1e5) ? number.toExponential(0) : String(+number.toPrecision(5));
}

const meanOf = (values) => (values.length ? values.reduce((a, b) => a + b) / values.length : null);

function pathOf(means, up) {
  let path = "", pen = "M";
  means.forEach((mean, b) => {
    if (mean === null) { pen = "M"; return; }
    // Class attention is not joined to the blocks before it.
    if (b && isClassBlock(metadata.blocks[b]) !== isClassBlock(metadata.blocks[b - 1])) pen = "M";
    path += `${pen}${across(b).toFixed(1)} ${up(mean).toFixed(1)}`;
    pen = "L";
  });
  return path;
}

/** Three to six round numbers that enclose low and high. */
function ticksOf(low, high) {
  if (high - low < 1e-9 * Math.max(1, Math.abs(high))) [low, high] = [Math.min(low, 0), Math.max(high, 0) || 1];
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough);
  const ticks = [];
  for (let k = Math.floor(low / step + 1e-9); ; k++) {
    ticks.push(k * step);
    if (k * step >= high - 1e-9 * step) return ticks;
  }
}
