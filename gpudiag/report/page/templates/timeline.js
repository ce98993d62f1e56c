"use strict";
// Timeline of a step over all ranks on a canvas: wheel or pinch to zoom, drag to move, keys for both. The data is JSON in the page.
(() => {
  const canvas = document.getElementById("timeline");
  if (!canvas) return;
  const typical = JSON.parse(document.getElementById("step").textContent), names = typical.names;
  const buckets = JSON.parse(document.getElementById("step-colours").textContent);
  const tip = document.getElementById("tip"), context = canvas.getContext("2d");
  const palettes = { buckets: buckets, device: ["compute", "communication", "copy"], host: ["operator", "annotation", "runtime"], lines: ["source-line"] };
  const unmarked = names.indexOf("unmarked-input"), words = { "unmarked-input": "no events: assumed data loading", idle: "idle, no host events", communication_transfer: "transfer", communication_wait: "wait" };
  const tick = 100; // ns
  const narrow = () => canvas.clientWidth < 600;
  // On a phone labels are above their rows, so that rows have the full width.
  const margin = () => (narrow() ? 0 : 156), above = () => (narrow() ? 13 : 0), rowHeight = 15, gap = 3, head = 20, rankGap = 12, axis = 22;
  let view, rows = [], height = 0, wasNarrow, whole = [0, 1], range = whole, colours = {}, marked = null;
  function unpacked(step) { // convert times to ns and starts to absolute times; compute when each rank is late
    if (step.ready) return step;
    for (const rank of step.ranks) {
      rank.begin *= tick; rank.end *= tick;
      for (const track of rank.tracks) {
        let at = 0;
        track.start = track.start.map((by) => (at += by) * tick);
        track.length = track.length.map((length) => length * tick);
        track.depthOf = (index) => track.depth[index] ?? 0;
        track.longest = track.length.reduce((most, one) => Math.max(most, one), 0);
      }
      rank.buckets = rank.tracks.find((track) => track.kind === "buckets");
      rank.lines = rank.tracks.find((track) => track.kind === "lines");
    }
    step.waits = step.waits.map(([rank, on, start, length]) => ({ rank, on, start: start * tick, end: (start + length) * tick })).sort((a, b) => a.start - b.start);
    for (const rank of step.ranks) rank.late = lateness(rank, step.waits.filter((wait) => wait.on === rank.rank));
    step.length *= tick; step.ready = true;
    return step;
  }
  function lateness(rank, waits) { // the intervals in which others wait for this rank, who waits, and the rank's activity
    const late = [];
    for (const wait of waits) {
      const last = late[late.length - 1];
      if (last && wait.start <= last.end) { last.end = Math.max(last.end, wait.end); last.ranks.add(wait.rank); }
      else late.push({ start: wait.start, end: wait.end, ranks: new Set([wait.rank]) });
    }
    for (const one of late) {
      const who = [...one.ranks].sort((a, b) => a - b), track = rank.buckets, spent = { "not recorded": one.end - one.start };
      for (let i = 0; i < track.start.length; i++) {
        const length = Math.min(one.end, track.start[i] + track.length[i]) - Math.max(one.start, track.start[i]);
        if (length <= 0) continue;
        spent[names[track.name[i]]] = (spent[names[track.name[i]]] ?? 0) + length;
        spent["not recorded"] -= length;
      }
      const most = Object.keys(spent).sort((a, b) => spent[b] - spent[a])[0];
      one.text = `rank${who.length > 1 ? "s" : ""} ${who.slice(0, 8).join(", ")}${who.length > 8 ? " …" : ""} wait${who.length > 1 ? "" : "s"} for this one: ${words[most] ?? most}`;
      one.cause = words[most] ?? most;
    }
    return late;
  }
  function layout() { // assign each row its position; a host row has one line per depth
    wasNarrow = narrow(); rows = []; height = axis;
    const add = (row) => { row.top = height + above(); rows.push(row); height = row.top + row.lines * rowHeight + gap; };
    for (const rank of view.ranks) {
      rows.push({ heading: `rank ${rank.rank} · ${rank.device}`, top: height });
      height += head;
      if (rank.late.length) add({ late: rank.late, rank, label: "others wait", lines: 1 });
      for (const track of rank.tracks) add({ track, rank, label: track.label, lines: 1 + track.depth.reduce((most, depth) => Math.max(most, depth), 0) });
      height += rankGap;
    }
  }
  function readColours() {
    const style = getComputedStyle(document.documentElement);
    colours = {};
    for (const name of ["ink", "faint", "line", "page", "card", "bad", ...buckets, ...palettes.device, ...palettes.host, ...palettes.lines]) colours[name] = style.getPropertyValue("--" + name).trim();
    const cell = document.createElement("canvas"), pen = cell.getContext("2d");
    cell.width = cell.height = 8;
    pen.fillStyle = colours.input; pen.fillRect(0, 0, 8, 8);
    pen.strokeStyle = colours.card; pen.lineWidth = 2;
    for (const x of [-8, 0, 8]) { pen.beginPath(); pen.moveTo(x, 8); pen.lineTo(x + 8, 0); pen.stroke(); }
    colours.unmarked = context.createPattern(cell, "repeat");
  }
  const scale = () => (canvas.clientWidth - margin()) / (range[1] - range[0]);
  const place = (time) => margin() + (time - range[0]) * scale();
  function niceStep(rough) {
    const unit = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((factor) => factor * unit).find((step) => step >= rough);
  }
  function firstFrom(starts, value) { // the first index whose start is not before value
    let low = 0, high = starts.length;
    while (low < high) { const middle = (low + high) >> 1; if (starts[middle] < value) low = middle + 1; else high = middle; }
    return low;
  }
  function write(text, from, to, y) { // write within a span, cut to its width at 6 pixels a letter
    const begin = Math.max(from, margin()), room = Math.floor((Math.min(to, canvas.clientWidth) - begin - 6) / 6);
    if (room > 4) context.fillText(text.slice(0, room), begin + 3, y);
  }
  function drawTrack({ track, top }, left) {
    const palette = palettes[track.kind], per = scale();
    let edge = -1, edgeDepth = -1, edgeColour = -1;
    // An event that began up to `longest` before the range may reach into it.
    for (let i = firstFrom(track.start, range[0] - track.longest); i < track.start.length && track.start[i] < range[1]; i++) {
      const x = place(track.start[i]), wide = track.length[i] * per, end = x + wide, depth = track.depthOf(i);
      if (end < left) continue;
      // Skip events on the pixel that was drawn last.
      if (wide < 1 && end <= edge && depth === edgeDepth && track.colour[i] === edgeColour) continue;
      const y = top + depth * rowHeight, assumed = track.name[i] === unmarked && track.kind === "buckets";
      context.fillStyle = assumed ? colours.unmarked : colours[palette[track.colour[i]]];
      context.fillRect(x, y, Math.max(wide - (wide > 3 ? 0.6 : 0), 0.8), rowHeight - 2);
      edge = Math.max(x + 0.8, end); edgeDepth = depth; edgeColour = track.colour[i];
      if (wide > 46 && track.kind !== "buckets") {
        context.fillStyle = track.kind === "host" || track.kind === "lines" ? colours.page : "#fff";
        write(names[track.name[i]], x, end, y + rowHeight / 2 - 1);
      }
    }
  }
  function drawLate() { // draw waits: a bar on the late rank, a line to it from the end of each wait
    const tops = new Map(rows.filter((row) => row.track?.kind === "buckets").map((row) => [row.rank.rank, row.top]));
    context.strokeStyle = context.fillStyle = colours.communication_wait;
    for (const row of rows.filter((one) => one.late)) {
      const y = row.top + rowHeight / 2 - 1;
      for (const one of row.late) {
        const x = place(one.start), end = place(one.end);
        if (end < margin()) continue;
        context.fillStyle = colours.communication_wait; context.globalAlpha = 0.25;
        context.fillRect(x, row.top, end - x, rowHeight - 2);
        context.globalAlpha = 1; context.strokeRect(x + 0.5, row.top + 0.5, Math.max(end - x - 1, 1), rowHeight - 3);
        context.fillStyle = colours.ink;
        if (end - x > 46) write(6 * one.text.length > end - x ? one.cause : one.text, x, end, y);
      }
      for (const wait of view.waits) {
        if (wait.on !== row.rank.rank || !tops.has(wait.rank) || (wait.end - wait.start) * scale() < 8 || wait.end >= view.length - tick) continue;
        const x = Math.round(place(wait.end)) - 0.5, from = tops.get(wait.rank) + rowHeight / 2 - 1, up = from > y ? 1 : -1;
        context.fillStyle = colours.communication_wait; context.globalAlpha = 0.8;
        context.beginPath(); context.moveTo(x, from); context.lineTo(x, y); context.stroke();
        context.beginPath(); context.arc(x, from, 2.5, 0, 7); context.fill();
        context.beginPath(); context.moveTo(x, y + up * 4); context.lineTo(x - 3.5, y + up * 11); context.lineTo(x + 3.5, y + up * 11); context.fill();
        context.globalAlpha = 1;
      }
    }
  }
  function draw() {
    if (narrow() !== wasNarrow) layout();
    const width = canvas.clientWidth, ratio = window.devicePixelRatio || 1, left = margin();
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); canvas.style.height = height + "px";
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif"; context.textBaseline = "middle"; context.textAlign = "left"; context.lineWidth = 1;
    const step = niceStep((range[1] - range[0]) / Math.max(2, (width - left) / 90));
    context.strokeStyle = colours.line;
    for (let mark = Math.ceil(range[0] / step) * step; mark <= range[1]; mark += step) {
      const x = place(mark);
      context.beginPath(); context.moveTo(x, axis - 4); context.lineTo(x, height); context.stroke();
      context.fillStyle = colours.faint;
      context.fillText(step >= 1e5 ? (mark / 1e6).toFixed(step >= 1e6 ? 0 : 1) + " ms" : (mark / 1e3).toFixed(step >= 1e3 ? 0 : 1) + " µs", x + 3, axis / 2);
    }
    context.save();
    context.beginPath(); context.rect(left, 0, width - left, height); context.clip();
    for (const row of rows) if (row.track) drawTrack(row, left);
    // Dim the steps before and after; dim a late rank's less, because the cause of its lateness may be there.
    context.fillStyle = colours.card;
    for (const { track, rank, top, lines } of rows) {
      if (!track) continue;
      context.globalAlpha = rank.late.length ? 0.4 : 0.7;
      const begin = place(rank.begin), end = place(rank.end), deep = lines * rowHeight;
      if (begin > left) context.fillRect(left, top, Math.min(begin, width) - left, deep);
      if (end < width) context.fillRect(Math.max(end, left), top, width - Math.max(end, left), deep);
    }
    context.globalAlpha = 1;
    drawLate();
    if (marked) { // location of a finding
      const of = rows.filter((row) => row.rank?.rank === marked.rank), last = of[of.length - 1];
      context.strokeStyle = colours.bad; context.lineWidth = 2;
      context.strokeRect(place(marked.from), of[0].top - 2, place(marked.to) - place(marked.from), last.top + last.lines * rowHeight - of[0].top + 2);
    }
    context.restore();
    for (const row of rows) {
      context.fillStyle = row.heading ? colours.ink : colours.faint;
      context.font = row.heading ? "600 12px system-ui, sans-serif" : "11px system-ui, sans-serif";
      if (row.heading) context.fillText(row.heading, 4, row.top + head / 2);
      else context.fillText(row.label.slice(0, 26), 4, narrow() ? row.top - above() / 2 : row.top + rowHeight / 2);
    }
  }
  let pending = false; // draw one frame at a time
  function later() { if (!pending) { pending = true; requestAnimationFrame(() => { pending = false; draw(); }); } }
  function show(from, to) {
    const least = 500 /* ns */, length = Math.min(Math.max(to - from, least), whole[1] - whole[0]);
    const begin = Math.min(Math.max(from, whole[0]), whole[1] - length);
    range = [begin, begin + length]; later();
  }
  function take(step) { // show another step in full
    view = unpacked(step); whole = [0, view.length]; range = whole.slice(); marked = null;
    canvas.dataset.step = view.step;
    layout(); later(); markPlaces();
  }
  // Location of each finding: the longest wait for a late rank, or the largest cluster of the finding's buckets; of a source line, of its spans.
  const looks = { "input-bound": ["input", "unmarked-input"], "communication-bound": ["communication_transfer"], "launch-bound": ["launch"], "host-sync": ["sync"], "memory-allocation": ["sync", "launch"], "host-stall": ["launch", "idle", "unmarked-input"], "slow-copy": ["copy"], "compute-bound": ["compute"] };
  function placeOf(button) {
    const ranks = button.dataset.ranks ? button.dataset.ranks.split(" ").map(Number) : view.ranks.map((one) => one.rank);
    let best = null;
    const propose = (rank, from, to, weight) => { if (weight > 0 && (!best || weight > best.weight)) best = { rank, from, to, weight }; };
    for (const rank of view.ranks.filter((one) => ranks.includes(one.rank))) {
      if (button.dataset.code === "straggler") for (const one of rank.late) propose(rank.rank, one.start, one.end, one.end - one.start);
      const line = button.dataset.line, track = line ? rank.lines : rank.buckets;
      const wanted = (line ? [line] : looks[button.dataset.code] ?? []).map((name) => names.indexOf(name));
      if (!track) continue;
      let from = 0, to = -1, weight = 0;
      for (let i = 0; i < track.start.length; i++) {
        if (!wanted.includes(track.name[i]) || track.start[i] + track.length[i] < rank.begin || track.start[i] > rank.end) continue;
        // A gap of more than 0.5 % of the step begins another cluster.
        if (to < 0 || track.start[i] > to + view.length / 200) { from = track.start[i]; weight = 0; }
        to = track.start[i] + track.length[i]; weight += track.length[i];
        propose(rank.rank, from, to, weight);
      }
    }
    return best;
  }
  const placeButtons = [...document.querySelectorAll("button.place")];
  function markPlaces() { for (const button of placeButtons) button.hidden = !placeOf(button); }
  function showPlace(button) {
    marked = button && placeOf(button);
    if (!marked) return;
    const around = (marked.to - marked.from) * 0.25;
    canvas.dataset.shown = [marked.rank, Math.round(marked.from / 1e3), Math.round(marked.to / 1e3)].join(" ");
    show(marked.from - around, marked.to + around);
    canvas.scrollIntoView({ block: "center" });
  }
  for (const button of placeButtons) button.addEventListener("click", () => showPlace(button));
  const chooser = document.getElementById("which-step"), packed = document.getElementById("other-steps");
  let others = null; // decompressed when one is first selected
  async function choose() {
    const index = Number(chooser.value);
    if (index >= 0 && !others) {
      const bytes = Uint8Array.from(atob(packed.textContent), (one) => one.charCodeAt(0));
      others = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
    }
    document.getElementById("step-words").textContent = chooser.selectedOptions[0].dataset.words;
    take(index < 0 ? typical : others[index]);
  }
  chooser?.addEventListener("change", choose);
  async function follow() { // #step-5 and #place-straggler select a step and a finding's location
    const option = [...(chooser?.options ?? [])].find((one) => location.hash === "#step-" + one.textContent.match(/\d+/)[0]);
    if (option) { chooser.value = option.value; await choose(); }
    showPlace(placeButtons.find((one) => location.hash === "#place-" + one.dataset.code) ?? placeButtons.find((one) => one.dataset.line && location.hash.startsWith("#line-") && one.dataset.line.startsWith(decodeURIComponent(location.hash.slice(6)) + " ")));
  }
  const zoom = (factor, at) => show(at - (at - range[0]) * factor, at + (range[1] - at) * factor);
  const timeAt = (x) => range[0] + (x - margin()) / scale();
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaX) < Math.abs(event.deltaY) && document.activeElement !== canvas) return; // the page scrolls unless the timeline was clicked
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) { const by = (event.deltaX || event.deltaY) / scale(); show(range[0] + by, range[1] + by); }
    else zoom(Math.exp(event.deltaY / 400), timeAt(event.offsetX));
  }, { passive: false });
  const pointers = new Map();
  canvas.addEventListener("pointerdown", (event) => { pointers.set(event.pointerId, event.offsetX); canvas.setPointerCapture(event.pointerId); canvas.focus(); });
  for (const over of ["pointerup", "pointercancel"]) canvas.addEventListener(over, (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (before === undefined) { hover(event); return; }
    tip.style.display = "none";
    if (pointers.size === 1) { const by = (before - event.offsetX) / scale(); show(range[0] + by, range[1] + by); }
    else {
      const other = [...pointers].find(([id]) => id !== event.pointerId)[1], was = Math.abs(before - other), is = Math.abs(event.offsetX - other);
      if (was > 4 && is > 4) zoom(was / is, timeAt((event.offsetX + other) / 2));
    }
    pointers.set(event.pointerId, event.offsetX);
  });
  canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
  canvas.addEventListener("dblclick", () => { marked = null; show(...whole); });
  canvas.addEventListener("keydown", (event) => {
    const length = range[1] - range[0], middle = (range[0] + range[1]) / 2;
    const act = { "+": () => zoom(0.6, middle), "=": () => zoom(0.6, middle), "-": () => zoom(1 / 0.6, middle), ArrowLeft: () => show(range[0] - length / 5, range[1] - length / 5), ArrowRight: () => show(range[0] + length / 5, range[1] + length / 5), 0: () => show(...whole), Escape: () => canvas.blur() }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  const lasting = (length) => (length >= 1e6 ? (length / 1e6).toFixed(2) + " ms" : (length / 1e3).toFixed(1) + " µs");
  function under(event) { // describe the event below the pointer
    const at = timeAt(event.offsetX), slack = 1.5 / scale();
    const row = rows.find((one) => one.lines && event.offsetY >= one.top && event.offsetY < one.top + one.lines * rowHeight);
    if (!row || event.offsetX < margin()) return "";
    const here = ({ start, end }) => start <= at + slack && end >= at - slack;
    if (row.late) { const one = row.late.find(here); return one ? `${one.text} · ${lasting(one.end - one.start)}` : ""; }
    const { track, rank } = row, depth = Math.floor((event.offsetY - row.top) / rowHeight);
    let found = -1;
    for (let i = firstFrom(track.start, at - track.longest - slack); i < track.start.length && track.start[i] <= at + slack; i++)
      if (track.depthOf(i) === depth && track.start[i] + track.length[i] >= at - slack) found = i;
    if (found < 0) return "";
    const name = names[track.name[found]], wait = name === "communication_wait" && view.waits.find((one) => one.rank === rank.rank && here(one));
    return `${words[name] ?? name}${wait ? ` for rank ${wait.on}` : ""} · ${lasting(track.length[found])} · from ${(track.start[found] / 1e6).toFixed(3)} ms`;
  }
  function hover(event) {
    const text = under(event);
    if (!text) { tip.style.display = "none"; return; }
    tip.textContent = text;
    tip.style.display = "block";
    tip.style.left = Math.min(event.clientX + 12, window.innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = event.clientY + 16 + "px";
  }
  for (const [id, act] of [["zoom-in", () => zoom(0.5, (range[0] + range[1]) / 2)], ["zoom-out", () => zoom(2, (range[0] + range[1]) / 2)], ["zoom-whole", () => { marked = null; show(...whole); }]])
    document.getElementById(id).addEventListener("click", act);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); later(); });
  readColours(); take(typical); draw();
  new ResizeObserver(later).observe(canvas);
  window.addEventListener("hashchange", follow); follow();
  document.documentElement.dataset.drawn = performance.now().toFixed(0);
})();
