"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const background = data.classes.length - 1;
const FIRST = 12; // images that are drawn before "more"

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "image", "rect", "text", "title", "circle"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// ---------------------------------------------------------------- threshold, table and curves

const picked = new Set();
let own = true; // each class has its own threshold

function countsOf(one, percent) {
  const at = own ? one.correct.length - 1 : percent; // the last numbers are those of the own threshold
  const correct = one.correct[at], found = one.found[at];
  const precision = found ? correct / found : 0, recall = one.boxes ? correct / one.boxes : 0;
  const f1 = (2 * precision * recall) / Math.max(precision + recall, 1e-12);
  return { correct, false: found - correct, missed: one.boxes - correct, precision, recall, f1, found };
}

function showThreshold() {
  const percent = Number(byId("slider").value);
  const total = { boxes: 0, correct: 0, found: 0 };
  const dots = [];
  byId("chosen").textContent = own ? "per class" : (percent / 100).toFixed(2);
  byId("own").setAttribute("aria-pressed", own);
  all(".jump").forEach((button) => button.setAttribute("aria-pressed", !own && Number(button.dataset.percent) === percent));
  const rows = new Map(all("#classes tbody tr").map((row) => [Number(row.dataset.class), row]));
  data.counts.forEach((one, label) => {
    const counts = countsOf(one, percent);
    total.boxes += one.boxes;
    total.correct += counts.correct;
    total.found += counts.found;
    const row = rows.get(label);
    if (!row) return; // the sum of the classes that are not in the table
    const hopeless = one.boxes > 0 && !one.correct[0]; // no threshold of its own
    for (const name of ["precision", "recall", "f1", "correct", "false", "missed", "threshold"]) {
      const cell = row.querySelector(`[data-column="${name}"]`);
      if (name === "threshold") cell.textContent = own ? cell.dataset.own : (percent / 100).toFixed(2);
      else if (["correct", "false", "missed"].includes(name)) cell.textContent = counts[name].toLocaleString("en");
      else cell.textContent = one.boxes ? counts[name].toFixed(4) : "-";
    }
    const curve = document.querySelector(`path[data-class="${label}"]`);
    if (curve && !hopeless && (picked.has(label) || !curve.closest(".many"))) dots.push([label, counts.recall, counts.precision, curve]);
  });
  const precision = total.found ? total.correct / total.found : 0, recall = total.boxes ? total.correct / total.boxes : 0;
  byId("all-precision").textContent = precision.toFixed(4);
  byId("all-recall").textContent = recall.toFixed(4);
  byId("all-f1").textContent = ((2 * precision * recall) / Math.max(precision + recall, 1e-12)).toFixed(4);
  byId("all-correct").textContent = total.correct.toLocaleString("en");
  byId("all-false").textContent = (total.found - total.correct).toLocaleString("en");
  byId("all-missed").textContent = (total.boxes - total.correct).toLocaleString("en");
  const { left, top, across, down } = data.chart;
  byId("dots").replaceChildren(...dots.map(([label, x, y, curve]) => make("circle", {
    cx: left + x * across, cy: top + (1 - y) * down, r: picked.has(label) ? 6 : 4.5, fill: curve.style.getPropertyValue("--color"),
  })));
}

all('#classes [data-column="threshold"]').forEach((cell) => (cell.dataset.own = cell.textContent));
byId("slider").addEventListener("input", () => { own = false; showThreshold(); });
byId("own").addEventListener("click", () => { own = !own; showThreshold(); });
all(".jump").forEach((button) => button.addEventListener("click", () => {
  byId("slider").value = button.dataset.percent;
  own = false;
  showThreshold();
}));

function labelOf(button) {
  return Number((button.closest("[data-class]")).dataset.class);
}

all(".pick").forEach((button) => button.addEventListener("click", () => {
  const label = labelOf(button);
  if (!picked.delete(label)) picked.add(label);
  all(".pick").forEach((one) => one.setAttribute("aria-pressed", picked.has(labelOf(one))));
  all(".curve").forEach((curve) => {
    const yes = picked.has(Number(curve.dataset.class));
    curve.classList.toggle("picked", yes);
    if (yes) curve.parentNode.insertBefore(curve, byId("dots")); // on top of the others
  });
  showThreshold();
}));

all("[data-sort]").forEach((button) => button.addEventListener("click", () => {
  const column = Number(button.dataset.sort), head = button.closest("th"), body = document.querySelector("#classes tbody");
  const down = head.getAttribute("aria-sort") !== "descending" && (column > 0 || head.hasAttribute("aria-sort"));
  all("#classes [aria-sort]").forEach((one) => one.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const value = (row) => {
    const text = row.cells[column].firstChild.textContent;
    return column ? Number(text === "-" ? -1 : text.replace(/,/g, "")) : text.toLowerCase();
  };
  const rows = [...body.rows].map((row) => [value(row), row]);
  rows.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1));
  body.append(...rows.map(([, row]) => row));
}));

// ---------------------------------------------------------------- images

function regionOf(image, marks) {
  const [width, height] = image.size, left = Math.min(...marks.map((box) => box[0])), top = Math.min(...marks.map((box) => box[1]));
  const right = Math.max(...marks.map((box) => box[2])), bottom = Math.max(...marks.map((box) => box[3]));
  const most = Math.max(width, (height * 4) / 3); // holds the whole image
  const w = Math.min(Math.max((right - left) * 1.9, (bottom - top) * 2.5, width / 4, height / 3), most), h = (w * 3) / 4;
  const place = (low, high, size, limit) => (size >= limit ? (limit - size) / 2 : Math.min(Math.max((low + high - size) / 2, 0), limit - size));
  return [place(left, right, w, width), place(top, bottom, h, height), w, h];
}

function draw(example, truth, whole) {
  const [index, box, detection] = example, image = data.images[index], [width, height] = image.size;
  const marks = [image.boxes[box], image.found[detection]].filter(Boolean);
  const region = whole ? [0, 0, width, height] : regionOf(image, marks);
  const svg = make("svg", { viewBox: region.map((one) => one.toFixed(1)).join(" "), role: "img" });
  svg.setAttribute("aria-label", truth ? "ground truth" : "prediction");
  if (image.uri) svg.append(make("image", { href: image.uri, width, height, preserveAspectRatio: "none" }));
  const marked = truth ? box : detection, size = Math.max(region[2], region[3]) / (whole ? 50 : 20);
  const rows = Object.entries(truth ? image.boxes : image.found).sort(([a], [b]) => (Number(a) === marked) - (Number(b) === marked));
  for (const [number, [x1, y1, x2, y2, label, other, score]] of rows) {
    const mark = Number(number) === marked;
    const kind = label === other ? "right" : truth ? "missed" : "false";
    const words = score === undefined ? data.classes[label] : `${data.classes[label]} ${score.toFixed(2)}`;
    const place = { x: x1, y: y1, width: Math.max(x2 - x1, 0), height: Math.max(y2 - y1, 0) };
    svg.append(make("rect", { class: mark ? `mark ${kind}` : kind, ...place }, make("title", {}, words)));
    if (!mark && (!whole || rows.length > 8)) continue;
    const short = words.length > 28 ? `${words.slice(0, 27)}…` : words;
    const x = Math.max(Math.min(x1, region[0] + region[2] - short.length * size * 0.62), region[0] + size * 0.2);
    const y = y1 - size * 0.35 > region[1] + size ? y1 - size * 0.35 : Math.max(y1, region[1]) + size * 1.1;
    svg.append(make("text", { x, y, "font-size": size }, short));
  }
  return svg;
}

function wordsOf([index, box, detection]) {
  const image = data.images[index], truth = image.boxes[box], found = image.found[detection];
  const parts = [];
  if (truth) parts.push(`truth: ${data.classes[truth[4]]}`);
  if (found) parts.push(`prediction: ${data.classes[found[4]]} ${found[6].toFixed(2)}`);
  else parts.push("no detection");
  if (!truth) parts.unshift("no labeled object");
  if (truth && found) parts.push(`IoU ${iou(truth, found).toFixed(2)}`);
  return parts.join(" · ");
}

function iou(a, b) {
  const w = Math.max(Math.min(a[2], b[2]) - Math.max(a[0], b[0]), 0), h = Math.max(Math.min(a[3], b[3]) - Math.max(a[1], b[1]), 0);
  const area = (box) => (box[2] - box[0]) * (box[3] - box[1]);
  return (w * h) / Math.max(area(a) + area(b) - w * h, 1e-9);
}

function sides(example, whole) {
  return [true, false].map((truth) => {
    const name = make("span", {}, truth ? "ground truth" : "prediction");
    const side = make("span", { class: "side" }, name, draw(example, truth, whole));
    return side;
  });
}

function figure(examples, place) {
  const example = examples[place], image = data.images[example[0]], name = image.name;
  const file = make("span", { class: "file", title: name }, name);
  const words = wordsOf(example);
  const button = make("button", { type: "button", class: "pair", "aria-label": `${words}, ${name}: show the whole image` });
  button.append(...sides(example, false));
  button.addEventListener("click", () => view(examples, place));
  const caption = make("figcaption", {}, make("b", {}, words), file);
  if (image.problem) caption.append(make("span", {}, image.problem));
  return make("figure", {}, button, caption);
}

function showGrid(place, { count, examples }) {
  const grid = make("div", { class: "pairs" }), more = make("button", { type: "button", class: "more" });
  const rest = make("p", { class: "faint" });
  let shown = 0;
  const add = () => {
    const next = Math.min(shown + FIRST, examples.length), first = shown;
    for (; shown < next; shown++) grid.append(figure(examples, shown));
    more.hidden = shown >= examples.length;
    more.textContent = `Show ${Math.min(FIRST, examples.length - shown)} more`;
    rest.textContent = count === 0 ? "None." : shown < count ? `${shown} of ${count.toLocaleString("en")} are shown.` : "";
    return grid.children[first];
  };
  more.addEventListener("click", () => { const figure = add(); const button = figure && figure.querySelector("button"); if (button) button.focus(); });
  add();
  place.append(grid, rest, more);
}

// ---------------------------------------------------------------- one large image

let viewed = [[], 0];

function view(examples, place) {
  viewed = [examples, place];
  const example = examples[place], pair = make("div", { class: "pair" });
  pair.append(...sides(example, true));
  byId("viewed").textContent = wordsOf(example);
  byId("large").replaceChildren(pair, make("figcaption", {}, make("span", { class: "file" }, `${place + 1} of ${examples.length}: ${data.images[example[0]].name}`)));
  if (!byId("viewer").open) byId("viewer").showModal();
}

function step(by) {
  const [examples, place] = viewed;
  if (examples[place + by]) view(examples, place + by);
}

byId("previous").addEventListener("click", () => step(-1));
byId("next").addEventListener("click", () => step(1));
byId("viewer").addEventListener("keydown", (event) => {
  if (event.key === "ArrowLeft") step(-1);
  if (event.key === "ArrowRight") step(1);
});
byId("viewer").addEventListener("click", (event) => { if (event.target === byId("viewer")) byId("viewer").close(); });

// ---------------------------------------------------------------- confusion matrix and kinds of mistakes

function examplesOf(row, column) { // on the images of this page
  return data.images.flatMap((image, index) => {
    if (column === background) return [...image.boxes.keys()].filter((box) => image.boxes[box][4] === row && image.boxes[box][5] === column).map((box) => [index, box, -1]);
    const ofCell = [...image.found.keys()].filter((place) => image.found[place][5] === row && image.found[place][4] === column);
    return ofCell.map((place) => [index, image.matched[place], place]);
  });
}

function openCell(button) {
  const [row, column] = button.dataset.cell.split(",").map(Number), behind = byId("behind");
  const count = Number(button.textContent), examples = examplesOf(row, column);
  all("[data-cell][aria-current]").forEach((one) => one.removeAttribute("aria-current"));
  all(`[data-cell="${button.dataset.cell}"]`).forEach((one) => one.setAttribute("aria-current", "true"));
  const names = [`true ${data.classes[row]}`, `predicted ${data.classes[column]}`];
  if (row === background) names[0] = "no labeled object";
  if (column === background) names[1] = "no detection";
  behind.replaceChildren(make("h3", {}, `${names.join(", ")}: ${count.toLocaleString("en")}`));
  behind.hidden = false;
  showGrid(behind, { count, examples });
  behind.focus({ preventScroll: true });
  behind.scrollIntoView({ block: "start" });
}

all("[data-cell]").forEach((button) => button.addEventListener("click", () => openCell(button)));

const cells = all("#matrix button");
if (cells.length) cells[0].tabIndex = 0;
const positionOf = (button) => [button.closest("tr").rowIndex, button.closest("td").cellIndex];
byId("matrix").addEventListener("keydown", (event) => {
  const way = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
  if (!way || !event.target.dataset.cell) return;
  event.preventDefault();
  const [row, column] = positionOf(event.target), table = byId("matrix");
  for (let r = row + way[0], c = column + way[1]; r > 0 && r < table.rows.length && c > 0 && c < table.rows[r].cells.length; r += way[0], c += way[1]) {
    const next = table.rows[r].cells[c].querySelector("button");
    if (next) { event.target.tabIndex = -1; next.tabIndex = 0; next.focus(); return; }
  }
});

function showKind() {
  const kind = document.querySelector('input[name="kind"]:checked').value;
  all("p[data-kind]").forEach((one) => (one.hidden = one.dataset.kind !== kind));
  byId("mistakes").replaceChildren();
  showGrid(byId("mistakes"), data.kinds[kind]);
}

all('input[name="kind"]').forEach((input) => input.addEventListener("change", showKind));
showKind();
showThreshold();
