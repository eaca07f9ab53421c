// The history as a list of commits beside the graph of their descent.

const LANE = 14;
const COLOURS = ["#3b7dd8", "#d9822b", "#2e9e5b", "#c9405a", "#8e5bc0", "#8a6d3b"];

/** Gives each commit its lane, among the lanes that run beside it. */
export class Lanes {
  constructor() {
    this.lanes = [];
    this.seen = new Set();
  }

  /** `listed` has the ids of this page: a merge leads to its source only where that is drawn, too. */
  place(commit, listed) {
    this.seen.add(commit.id);
    const before = [...this.lanes];
    let own = this.lanes.indexOf(commit.id);
    if (own < 0) {
      own = this.lanes.length;
      this.lanes.push(commit.id);
    }
    const lines = before.map((id, lane) => ({ from: lane, to: id === commit.id ? own : lane, top: true }));
    let next = this.lanes.map((id) => (id === commit.id ? commit.parent_id : id));
    const kept = [];
    next.forEach((id, lane) => {
      if (id === null || this.seen.has(id)) return;
      let target = kept.indexOf(id);
      if (target < 0) target = kept.push(id) - 1;
      lines.push({ from: lane, to: target, top: false });
    });
    for (const id of commit.merged_ids) {
      if (!listed.has(id) || this.seen.has(id)) continue;
      let target = kept.indexOf(id);
      if (target < 0) target = kept.push(id) - 1;
      lines.push({ from: own, to: target, top: false });
    }
    this.lanes = kept;
    return { own, lines, width: Math.max(before.length, own + 1, kept.length) };
  }
}

function drawn(step, width) {
  const name = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(name, "svg");
  svg.setAttribute("width", width * LANE);
  svg.setAttribute("viewBox", `0 0 ${width * LANE} 44`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  for (const { from, to, top } of step.lines) {
    const path = document.createElementNS(name, "path");
    const [x1, x2] = [from, to].map((lane) => (lane + 0.5) * LANE);
    path.setAttribute("d", top ? `M${x1} 0 C${x1} 12 ${x2} 12 ${x2} 22` : `M${x1} 22 C${x1} 34 ${x2} 34 ${x2} 44`);
    path.setAttribute("fill", "none");
    path.setAttribute("stroke", COLOURS[Math.max(from, to) % COLOURS.length]);
    path.setAttribute("stroke-width", "2");
    path.setAttribute("vector-effect", "non-scaling-stroke");
    svg.append(path);
  }
  return svg;
}

export function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

/** The list, which grows by pages. */
export class History {
  constructor(list, more, ask, choose) {
    Object.assign(this, { list, more, ask, choose });
    this.lanes = new Lanes();
    this.cursor = "";
    this.more.addEventListener("click", () => this.load(true));
    this.list.addEventListener("keydown", (event) => this.move(event));
  }

  async load(follow = false) {
    const page = await this.ask("history", { cursor: this.cursor, count: 100 });
    let first = null;
    const listed = new Set(page.commits.map((commit) => commit.id));
    for (const commit of page.commits) {
      if (this.lanes.seen.has(commit.id)) continue;
      const line = this.line(commit, listed);
      first ??= line.querySelector("button");
      this.list.append(line);
    }
    this.cursor = page.next;
    this.more.hidden = !page.next;
    if (follow) first?.focus();
  }

  line(commit, listed) {
    const step = this.lanes.place(commit, listed);
    const line = element("li");
    const button = element("button", "item");
    button.type = "button";
    button.dataset.id = commit.id;
    for (const branch of commit.branches) button.append(element("span", "branch", branch));
    for (const tag of commit.tags) button.append(element("span", "tag", `tag ${tag}`));
    button.append(element("span", "", commit.message.split("\n")[0]));
    const time = commit.written_at.slice(0, 16).replace("T", " ");
    const merges = commit.merged_ids.length ? `, merges ${commit.merged_ids.map((id) => id.slice(0, 8)).join(", ")}` : "";
    const under = element("div", "quiet");
    under.append(element("span", "id", commit.id.slice(0, 8)), ` ${time} UTC${merges}`);
    button.append(under);
    button.addEventListener("click", () => this.choose(commit.id));
    const dot = element("span", "dot");
    dot.style.left = `${(step.own + 0.5) * LANE}px`;
    dot.style.background = COLOURS[step.own % COLOURS.length];
    line.append(drawn(step, Math.max(step.width, 2)), dot, button);
    return line;
  }

  show(id) {
    for (const button of this.list.querySelectorAll("button")) {
      button.setAttribute("aria-current", String(button.dataset.id === id));
    }
  }

  move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const buttons = [...this.list.querySelectorAll("button")];
    const next = buttons[buttons.indexOf(document.activeElement) + step];
    if (next) {
      event.preventDefault();
      next.focus();
    }
  }
}
