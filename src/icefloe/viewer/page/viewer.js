// The page: what is chosen (version, array, axes), and what is asked for because of it.

import { History, element } from "/history.js";
import { drawChunks, drawScale, drawValues, limits, shown } from "/pictures.js";

const LINES_SHOWN = 8;
const at = (id) => document.getElementById(id);
const state = { version: "main", older: "", node: null, rows: null, columns: null, at: [] };
let picture = null;
let waiting = 0;

async function ask(question, options) {
  const text = new URLSearchParams(Object.entries(options ?? {}).filter(([, value]) => value !== null));
  waiting += 1;
  say("Reading…");
  try {
    const response = await fetch(`/api/${question}?${text}`);
    const answer = response.headers.get("content-type")?.includes("json")
      ? await response.json() : { error: await response.text() };
    if (!response.ok) throw new Error(answer.error);
    return answer;
  } finally {
    waiting -= 1;
    if (!waiting && !at("status").classList.contains("error")) say("");
  }
}

function say(text, isError = false) {
  at("status").textContent = text;
  at("status").classList.toggle("error", isError);
}

/** Run what a choice asks for, and say what went wrong. */
function attempt(action) {
  return async (...given) => {
    say("");
    try {
      await action(...given);
    } catch (error) {
      say(error.message, true);
    }
  };
}

function size(bytes) {
  let [number, unit] = [bytes, 0];
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  while (number >= 1024 && unit < units.length - 1) [number, unit] = [number / 1024, unit + 1];
  return unit ? `${number.toFixed(1)} ${units[unit]}` : `${bytes} B`;
}

function json(value) {
  const text = element("pre", "", JSON.stringify(value, null, 1));
  if (text.textContent.split("\n").length <= LINES_SHOWN) return text;
  const folded = element("details"); // or it would push the pictures off the screen
  folded.append(element("summary", "", Object.keys(value).join(", ")), text);
  return folded;
}

function table(rows) {
  const made = element("table");
  for (const [name, value] of rows) {
    if (value === null || value === undefined || value === "") continue;
    const row = made.insertRow();
    const head = element("th", "", name);
    head.scope = "row";
    row.append(head);
    const cell = row.insertCell();
    if (typeof value === "object") cell.append(json(value));
    else cell.textContent = value;
  }
  return made;
}

// --- versions

function fillVersions(summary) {
  at("place").textContent = `${summary.location} (${summary.generation}, version ${summary.spec_version})`;
  document.title = `${summary.location.split("/").pop()} – icefloe`;
  for (const select of [at("version"), at("older")]) {
    for (const [label, names] of [["Branches", summary.branches], ["Tags", summary.tags]]) {
      if (!names.length) continue;
      const group = element("optgroup");
      group.label = label;
      for (const name of names) group.append(new Option(name, name));
      select.append(group);
    }
  }
}

function choice(select, id) {
  if (id && ![...select.options].some((option) => option.value === id)) {
    select.append(new Option(id.slice(0, 8), id));
  }
  select.value = id;
}

const showVersion = attempt(async (version) => {
  state.version = version;
  choice(at("version"), version);
  const [tree, commit] = await Promise.all([ask("tree", { version }), ask("commit", { version })]);
  history.show(commit.id);
  fillTree(tree);
  showCommit(commit);
  const path = state.node?.path;
  if (path && tree.nodes.some((node) => node.path === path)) await showNode(path);
});

function showCommit(commit) {
  const rows = [
    ["commit", commit.id], ["parent", commit.parent_id],
    ["written", commit.written_at.slice(0, 19).replace("T", " ") + " UTC"],
    ["message", commit.message],
    ["properties", Object.keys(commit.properties).length ? commit.properties : null],
  ];
  at("commit").replaceChildren(table(rows), changed(commit.changes, "What it changed"));
}

function changed(changes, title) {
  const box = element("details");
  box.append(element("summary", "", `${title}: ${changes.length} ${changes.length === 1 ? "node" : "nodes"}`));
  const list = element("ul");
  for (const each of changes.slice(0, 200)) {
    const chunks = each.chunks ? `, ${each.chunks} chunks` : "";
    const moved = each.moved_to ? ` to ${each.moved_to}` : "";
    list.append(element("li", "", `${each.change} ${each.path}${moved}${chunks}`));
  }
  box.append(list);
  return box;
}

// --- the tree

function fillTree(tree) {
  const lists = new Map();
  at("tree").replaceChildren();
  for (const node of tree.nodes) {
    const parent = node.path === "/" ? null : node.path.slice(0, node.path.lastIndexOf("/")) || "/";
    const line = element("li");
    const button = element("button", "item");
    button.type = "button";
    button.dataset.path = node.path;
    button.append(element("span", "", node.name || "/"));
    if (node.kind === "array") {
      button.append(element("span", "quiet", ` ${node.data_type} ${node.shape.join(" × ") || "scalar"}`));
    }
    button.addEventListener("click", () => showNode(node.path));
    line.append(button);
    if (node.kind === "group") {
      const members = element("ul");
      members.setAttribute("aria-label", `members of ${node.path}`);
      lists.set(node.path, members);
      line.append(members);
    }
    (lists.get(parent) ?? at("tree")).append(line);
  }
  if (tree.left_out) at("tree").append(element("li", "quiet", `and ${tree.left_out} more`));
}

at("tree").addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const buttons = [...at("tree").querySelectorAll("button")];
  const next = buttons[buttons.indexOf(document.activeElement) + step];
  if (next) {
    event.preventDefault();
    next.focus();
  }
});

const showNode = attempt(async (path) => {
  const node = await ask("node", { version: state.version, path });
  const isOther = state.node?.path !== path || state.node?.shape?.length !== node.shape?.length;
  state.node = node;
  for (const button of at("tree").querySelectorAll("button")) {
    button.setAttribute("aria-current", String(button.dataset.path === path));
  }
  at("details-title").textContent = path;
  const { attributes, ...metadata } = node.metadata;
  const rows = [
    ["kind", node.kind], ["data type", node.data_type],
    ["shape", node.shape?.join(" × ")], ["dimensions", node.dimensions?.join(", ")],
    ["chunks of", node.chunk_shape?.join(" × ")],
    ["chunks", node.shape && `${node.chunks} of ${node.chunks_in_grid ?? "?"}`],
    ["stored", node.bytes && size(node.bytes.native + node.bytes.inlined)],
    ["in other files", node.bytes?.virtual ? size(node.bytes.virtual) : null],
    ["attributes", attributes && Object.keys(attributes).length ? attributes : null],
    ["metadata", metadata],
  ];
  at("facts").replaceChildren(table(rows));
  if (node.kind === "group") at("facts").prepend(sizes(await ask("sizes", { version: state.version, path })));
  const isDrawn = node.kind === "array" && node.shape.length > 0 && !node.shape.includes(0);
  at("array").hidden = !isDrawn;
  if (!isDrawn) return;
  if (isOther) {
    const rank = node.shape.length;
    Object.assign(state, {
      rows: rank > 1 ? rank - 2 : null, columns: rank - 1, at: node.shape.map(() => 0),
    });
  }
  state.at = state.at.map((index, axis) => Math.min(index, node.shape[axis] - 1));
  fillAxes();
  await Promise.all([showPicture(), showChunks()]);
});

/** Arrays by size, with bars beside the numbers. */
function sizes({ total, arrays }) {
  const made = element("table");
  made.append(element("caption", "", `Sizes: ${size(total)} altogether`));
  for (const { path, bytes } of arrays) {
    const row = made.insertRow();
    const head = element("th", "", path);
    head.scope = "row";
    const meter = element("meter");
    Object.assign(meter, { max: Math.max(total, 1), value: bytes, ariaLabel: `share of ${path}` });
    row.append(head);
    row.insertCell().textContent = size(bytes);
    row.insertCell().append(meter);
  }
  return made;
}

// --- pictures

function name(axis) {
  return state.node.dimensions?.[axis] ?? `axis ${axis}`;
}

function fillAxes() {
  const form = at("axes");
  form.replaceChildren();
  const { shape } = state.node;
  if (shape.length > 2) {
    const both = element("div", "wide");
    for (const [key, label] of [["rows", "Down"], ["columns", "Across"]]) {
      const select = element("select");
      shape.forEach((_, axis) => select.append(new Option(name(axis), axis)));
      select.value = state[key];
      select.addEventListener("change", () => {
        const [axis, other] = [Number(select.value), key === "rows" ? "columns" : "rows"];
        if (state[other] === axis) state[other] = state[key];
        state[key] = axis;
        fillAxes();
        showPicture();
        showChunks();
      });
      select.id = `${key}-axis`;
      const named = element("label", "", label);
      named.htmlFor = select.id;
      const pair = element("div");
      pair.append(named, " ", select);
      both.append(pair);
    }
    form.append(both);
  }
  shape.forEach((extent, axis) => {
    if (axis === state.rows || axis === state.columns || extent < 2) return;
    const id = `axis-${axis}`;
    const label = element("label", "", name(axis));
    label.htmlFor = id;
    const slider = element("input");
    Object.assign(slider, { id, type: "range", min: 0, max: extent - 1, value: state.at[axis] });
    const output = element("output", "quiet", `${state.at[axis]} of ${extent - 1}`);
    output.htmlFor = id;
    slider.addEventListener("input", () => {
      state.at[axis] = Number(slider.value);
      output.textContent = `${slider.value} of ${extent - 1}`;
      later();
    });
    form.append(label, slider, output);
  });
}

let timer = null;
function later() {
  clearTimeout(timer);
  timer = setTimeout(() => showPicture(), 120);
}

const showPicture = attempt(async () => {
  const { node, older, version, rows, columns } = state;
  const plane = { path: node.path, rows, columns, at: state.at.join(",") };
  picture = null;
  const question = older
    ? ask("difference", { from: older, to: version, ...plane })
    : ask("picture", { version, ...plane });
  const answer = await question.catch((error) => {
    at("picture").hidden = true;
    at("legend").textContent = error.message;
    throw error;
  });
  at("picture").hidden = false;
  picture = { ...answer, numbers: drawValues(at("picture"), answer, Boolean(older)) };
  const title = older ? `What changed from ${at("older").selectedOptions[0].text} to ${at("version").selectedOptions[0].text}` : "Values";
  at("picture-title").textContent = title;
  const { kind } = answer;
  const range = answer.lowest === null ? (answer.infinite ? "no finite values" : "all missing") : `${kind === "magnitude" ? "magnitudes " : ""}${shown(answer.lowest, kind)} to ${shown(answer.highest, kind)}`;
  const units = node.metadata.attributes?.units ? ` ${node.metadata.attributes.units}` : "";
  const ends = limits(answer, Boolean(older)).map((value) => `${shown(value, kind)}${units}`);
  drawScale(at("scale"), Boolean(older));
  at("scale-ends").replaceChildren(...ends.map((text) => element("span", "", text)));
  at("scale-box").hidden = answer.lowest === null || ends[0] === ends[1];
  const same = older && answer.changed === 0 ? "nothing differs here; " : "";
  const sampled = answer.is_complete ? "" : "; a sample: some chunks stand for their neighbours";
  at("legend").textContent = `${same}${range}${units}, ${answer.height} × ${answer.width} pixels from ${answer.chunks_read} ${answer.chunks_read === 1 ? "chunk" : "chunks"}${sampled}`;
  at("picture").setAttribute("aria-label", `${title} of ${node.path}: ${at("legend").textContent}`);
});

const showChunks = attempt(async () => {
  const { node, version, rows, columns } = state;
  const map = await ask("chunks", { version, path: node.path, rows, columns });
  drawChunks(at("chunks"), map);
  at("chunks-legend").textContent = `${map.chunks} of ${map.chunks_in_grid} chunks in a grid of ${map.grid_shape.join(" × ")}`;
  at("chunks").setAttribute("aria-label", `Chunks of ${node.path} that exist: ${at("chunks-legend").textContent}`);
});

/** The value below the pointer, or at the place that arrow keys choose. */
let cursor = [0, 0];
function point(row, column) {
  if (!picture) return;
  cursor = [Math.max(0, Math.min(picture.height - 1, row)), Math.max(0, Math.min(picture.width - 1, column))];
  const value = picture.numbers[cursor[0] * picture.width + cursor[1]];
  const place = state.rows === null ? "" : `${name(state.rows)} ${picture.rows[cursor[0]]}, `;
  at("pointed").textContent = `${place}${name(state.columns)} ${picture.columns[cursor[1]]}: ${shown(value, picture.kind)}`;
}
at("picture").addEventListener("pointermove", (event) => {
  if (!picture) return;
  const box = at("picture").getBoundingClientRect();
  point(Math.floor(((event.clientY - box.top) / box.height) * picture.height),
    Math.floor(((event.clientX - box.left) / box.width) * picture.width));
});
at("picture").addEventListener("keydown", (event) => {
  const step = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
  if (!step) return;
  event.preventDefault();
  at("pointed").setAttribute("aria-live", "polite");
  point(cursor[0] + step[0], cursor[1] + step[1]);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => state.node?.kind === "array" && showChunks());

// --- start

const history = new History(at("history"), at("more"), ask, showVersion);
at("version").addEventListener("change", () => showVersion(at("version").value));
at("older").addEventListener("change", attempt(async () => {
  state.older = at("older").value;
  if (state.older) {
    const { changes } = await ask("changes", { from: state.older, to: state.version });
    at("commit").replaceChildren(changed(changes, "What differs"));
  }
  if (state.node?.kind === "array" && !at("array").hidden) await showPicture();
}));
attempt(async () => {
  fillVersions(await ask("summary"));
  await history.load();
  await showVersion("main");
})();
