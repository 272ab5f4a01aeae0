// Draws the grid of ranks: each node is a strip of cells, and strips fill the width of the page.
// The bytes of all ranks come from the address of the part; the table beside it has the same.
"use strict";

(() => {
  const TILES = 64; // so many ranks are tiles with their numbers
  const TILE = 34; // pixels of a tile
  const SIZES = [16, 14, 12, 10, 8, 7, 6, 5, 4, 3, 2]; // pixels of a cell
  const HEIGHT = 420; // pixels that the grid should not exceed
  const AGAIN_MS = 10000; // after an error
  const LABELS = 64; // nodes that are named beside their strip
  const RAMP = [0, 1, 3, 15]; // last lag of each colour but the last
  const RAMP_WORDS = ["the highest step", "1 behind", "2 to 3", "4 to 15", "16 or more"];
  const WORDS = {
    unseen: "not seen",
    waiting: "waiting",
    device: "waiting for the device",
    presumed: "seem to wait",
    elsewhere: "not waiting",
    suspect: "suspect",
    cannot_run: "cannot run",
    ended: "ended",
    missing: "never seen",
    stepping: "stepping",
    late: "late",
    no_steps: "no steps",
  };
  const PHASES = ["is-stepping", "ramp-3", "is-elsewhere", "is-cannot_run", "is-device", "ramp-1"];

  let shown = null; // { cells, description, bytes, about, ranks }
  let laid = null; // where each strip is
  let cursor = -1; // index of the cell that is described
  let loading = false;

  const find = (id) => document.getElementById(id);

  // ---- Loading ----

  async function load() {
    const grid = find("grid");
    if (!grid || loading) return;
    const { path, cells, description } = grid.dataset;
    if (shown && shown.cells === cells && shown.description === description) {
      draw();
      return;
    }
    loading = true;
    try {
      const isSame = shown && shown.path === path && shown.description === description;
      const about = isSame ? shown.about : await (await ask(path)).json();
      const bytes = new Uint8Array(await (await ask(`${path}.bin`)).arrayBuffer());
      if (bytes.length === 3 * about.count) {
        const ranks = isSame ? shown.ranks : listRanks(about.node_ranks);
        shown = { path, cells, description, about, bytes, ranks };
        draw();
      }
    } catch (error) {
      say(`The grid cannot be loaded: ${error.message}`);
      setTimeout(load, AGAIN_MS);
    } finally {
      loading = false;
    }
    const { cells: newest } = grid.dataset;
    if (newest !== cells) load();
  }

  async function ask(path) {
    const answer = await fetch(path);
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    return answer;
  }

  // Returns the ranks of all nodes, in the order of the bytes.
  function listRanks(nodes) {
    const ranks = [];
    for (const node of nodes) {
      for (const piece of node.ranks.split(",")) {
        const [first, last] = piece.split("-").map(Number);
        for (let rank = first; rank <= (last ?? first); rank += 1) ranks.push(rank);
      }
    }
    return ranks;
  }

  // ---- Layout: all strips have the same width, so that the place of a cell is a division. ----

  function layOut(width) {
    const nodes = shown.about.node_ranks;
    const hasLabels = nodes.length > 1 && nodes.length <= LABELS;
    const label = hasLabels ? Math.min(150, 12 + 6.5 * Math.max(...nodes.map((n) => n.node.length))) : 0;
    const sizes = shown.ranks.length <= TILES ? [TILE, ...SIZES] : SIZES;
    for (const size of sizes) {
      const widest = Math.max(1, Math.floor((width - label) / size));
      const longest = Math.min(widest, Math.max(...nodes.map((n) => n.count)));
      const strips = [];
      let first = 0;
      for (const [number, node] of nodes.entries()) {
        for (let at = 0; at < node.count; at += longest) {
          strips.push({ node: number, first: first + at, count: Math.min(longest, node.count - at), isFirst: !at });
        }
        first += node.count;
      }
      const gap = Math.max(2, Math.round(size / 2));
      const stripWidth = label + longest * size + gap;
      const columns = Math.max(1, Math.floor((width + gap) / stripWidth));
      const rowHeight = size + Math.max(2, Math.round(size / 3));
      const height = Math.ceil(strips.length / columns) * rowHeight;
      if (height <= HEIGHT || size === SIZES[SIZES.length - 1]) {
        return { size, label, strips, stripWidth, columns, rowHeight, height, longest, width };
      }
    }
    return null;
  }

  function placeOf(index) {
    const number = laid.strips.findIndex((s) => index < s.first + s.count);
    const strip = laid.strips[number];
    const x = (number % laid.columns) * laid.stripWidth + laid.label + (index - strip.first) * laid.size;
    return { x, y: Math.floor(number / laid.columns) * laid.rowHeight, strip };
  }

  function cellAt(x, y) {
    const column = Math.floor(x / laid.stripWidth);
    const strip = laid.strips[Math.floor(y / laid.rowHeight) * laid.columns + column];
    if (!strip || column >= laid.columns) return -1;
    const cell = Math.floor((x - column * laid.stripWidth - laid.label) / laid.size);
    return cell >= 0 && cell < strip.count ? strip.first + cell : -1;
  }

  // ---- Drawing ----

  function colours() {
    const style = getComputedStyle(document.documentElement);
    return (name) => style.getPropertyValue(`--${name}`).trim();
  }

  function nameOf(index, by) {
    const byte = shown.bytes[3 * index + { state: 0, lag: 1, phase: 2 }[by]];
    if (by === "state") return `is-${shown.about.states[byte]}`;
    if (by === "phase") return PHASES[Math.min(byte, PHASES.length - 1)];
    if (byte === 255) return "is-unseen";
    const step = RAMP.findIndex((last) => byte <= last);
    return `ramp-${step < 0 ? RAMP.length : step}`;
  }

  function draw() {
    const place = find("grid-cells");
    if (!place || !shown) return;
    const canvas = place.querySelector("canvas") || build(place);
    laid = layOut(place.clientWidth);
    if (!laid || !place.clientWidth) return;
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(laid.width * scale);
    canvas.height = Math.round((laid.height + 4) * scale);
    canvas.style.height = `${laid.height + 4}px`;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const colour = colours();
    const by = find("grid-by").value;
    const inner = laid.size - (laid.size > 4 ? 1 : laid.size > 2 ? 0.5 : 0);
    const known = new Map();
    const used = new Map();
    const suspects = [];
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (const [number, strip] of laid.strips.entries()) {
      const left = (number % laid.columns) * laid.stripWidth;
      const y = Math.floor(number / laid.columns) * laid.rowHeight + 2;
      if (laid.label && strip.isFirst) {
        pen.fillStyle = colour("soft");
        const node = shown.about.node_ranks[strip.node].node || "never seen";
        pen.fillText(node, left, y + laid.size / 2, laid.label - 8);
      }
      for (let at = 0; at < strip.count; at += 1) {
        const index = strip.first + at;
        const name = nameOf(index, by);
        if (!known.has(name)) known.set(name, colour(name));
        used.set(name, (used.get(name) || 0) + 1);
        pen.fillStyle = known.get(name);
        const x = left + laid.label + at * laid.size;
        pen.fillRect(x, y, inner, inner);
        if (laid.size === TILE) writeNumber(pen, shown.ranks[index], x + inner / 2, y + inner / 2);
        const state = shown.about.states[shown.bytes[3 * index]];
        if (state === "missing") {
          pen.strokeStyle = colour("soft");
          pen.strokeRect(x + 0.5, y + 0.5, inner - 1, inner - 1);
        }
        if (state === "suspect") suspects.push([x, y]);
      }
    }
    ring(pen, suspects.slice(0, 64), colour("suspect"), inner);
    if (cursor >= 0 && cursor < shown.ranks.length) {
      const { x, y } = placeOf(cursor);
      ring(pen, [[x, y + 2]], colour("link"), inner);
    }
    showLegend(by, used);
  }

  // Dark on a light tile, light on a dark one. `fillStyle` reads as #rrggbb.
  function writeNumber(pen, rank, x, y) {
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(pen.fillStyle.slice(at, at + 2), 16));
    pen.fillStyle = 0.299 * red + 0.587 * green + 0.114 * blue > 120 ? "#15181c" : "#ffffff";
    pen.textAlign = "center";
    pen.fillText(rank, x, y + 1);
    pen.textAlign = "start";
  }

  // One cell of 16,384 is found by its ring, not by its colour.
  function ring(pen, cells, colour, inner) {
    pen.strokeStyle = colour;
    pen.lineWidth = 2;
    const room = inner < 8 ? 3 : 1;
    for (const [x, y] of cells) {
      pen.strokeRect(x - room, Math.max(1, y - room), inner + 2 * room, inner + 2 * room);
    }
    pen.lineWidth = 1;
  }

  function build(place) {
    const canvas = document.createElement("canvas");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", "Grid of ranks. Arrow keys move from rank to rank. The table below has the same.");
    const at = document.createElement("p");
    at.className = "at";
    at.id = "grid-at";
    at.setAttribute("role", "status");
    const legend = document.createElement("ul");
    legend.className = "legend";
    legend.id = "grid-legend";
    place.replaceChildren(canvas, at, legend);
    canvas.addEventListener("pointermove", (event) => point(event));
    canvas.addEventListener("pointerdown", (event) => point(event));
    canvas.addEventListener("pointerleave", () => move(-1));
    canvas.addEventListener("keydown", (event) => step(event));
    return canvas;
  }

  function showLegend(by, used) {
    const entries = [];
    if (by === "state") {
      for (const state of shown.about.states) entries.push([`is-${state}`, state, WORDS[state] || state]);
    } else if (by === "lag") {
      RAMP_WORDS.forEach((words, n) => entries.push([`ramp-${n}`, `ramp-${n}`, words]));
      entries.push(["is-unseen", "unseen", "not known"]);
    } else {
      shown.about.phases.slice(0, PHASES.length).forEach((phase, n) => {
        const swatch = PHASES[n].replace("is-", "");
        const isLast = n === PHASES.length - 1 && shown.about.phases.length > PHASES.length;
        entries.push([PHASES[n], swatch, isLast ? "other phases" : phase || "training"]);
      });
    }
    const items = entries.filter(([name]) => used.has(name)).map(([name, swatch, words]) => {
      const item = document.createElement("li");
      const box = document.createElement("span");
      box.className = `swatch ${swatch}`;
      item.append(box, `${words} (${used.get(name)})`);
      return item;
    });
    find("grid-legend").replaceChildren(...items);
  }

  // ---- Pointer and keyboard ----

  function point(event) {
    if (!laid || !shown) return;
    const frame = event.currentTarget.getBoundingClientRect();
    move(cellAt(event.clientX - frame.left, event.clientY - frame.top));
  }

  function step(event) {
    if (!laid || !shown) return;
    const last = shown.ranks.length - 1;
    const strip = cursor < 0 ? laid.longest : laid.longest * laid.columns;
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: strip, ArrowUp: -strip }[event.key];
    if (by) move(Math.min(last, Math.max(0, cursor + by)));
    else if (event.key === "Home") move(firstSuspect());
    else if (event.key === "End") move(last);
    else return;
    event.preventDefault();
  }

  function firstSuspect() {
    const suspect = shown.about.states.indexOf("suspect");
    for (let index = 0; index < shown.ranks.length; index += 1) {
      if (shown.bytes[3 * index] === suspect) return index;
    }
    return 0;
  }

  function move(index) {
    if (index === cursor) return;
    cursor = index;
    say(index < 0 ? "" : describe(index));
    draw();
  }

  function describe(index) {
    const [state, lag, phase] = shown.bytes.subarray(3 * index, 3 * index + 3);
    const { strip } = placeOf(index);
    const name = shown.about.states[state];
    const words = [`Rank ${shown.ranks[index]}`, shown.about.node_ranks[strip.node].node, WORDS[name] || name];
    if (lag === 255) words.push("step not known");
    else words.push(lag ? `${lag}${lag === 254 ? " or more" : ""} steps behind` : "at the highest step");
    if (phase) words.push(`in ${shown.about.phases[phase]}`);
    return words.filter(Boolean).join(", ");
  }

  function say(text) {
    const at = find("grid-at");
    if (at) at.textContent = text;
  }

  // ---- When to draw again ----

  let attached = null;

  // The part may come and go while the page is open.
  function attach() {
    const grid = find("grid");
    if (!grid || grid === attached) return;
    attached = grid;
    new MutationObserver(load).observe(grid, { attributes: true });
    new ResizeObserver(() => draw()).observe(find("grid-cells"));
    find("grid-by").addEventListener("change", () => draw());
    load();
  }

  new MutationObserver(attach).observe(find("main"), { childList: true, subtree: true });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
  attach();
})();
