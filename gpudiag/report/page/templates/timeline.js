"use strict";
// One step over all ranks on a canvas: wheel or pinch to zoom, drag to move, keys for both. The data is JSON in the page.
(() => {
  const canvas = document.getElementById("timeline");
  if (!canvas) return;
  const view = JSON.parse(document.getElementById("step").textContent);
  const buckets = JSON.parse(document.getElementById("step-colours").textContent);
  const tip = document.getElementById("tip"), context = canvas.getContext("2d");
  const palettes = { buckets: buckets, device: ["compute", "communication", "copy"], host: ["operator", "annotation", "runtime"] };
  const narrow = () => canvas.clientWidth < 600;
  const margin = () => (narrow() ? 58 : 116), rowHeight = 15, gap = 3, head = 20, rankGap = 12, axis = 22;
  // Rows from top to bottom, each with its place; a host row has one line per depth.
  const rows = [];
  let height = axis;
  for (const rank of view.ranks) {
    rows.push({ heading: `rank ${rank.rank} · ${rank.device}`, top: height });
    height += head;
    for (const track of rank.tracks) {
      const lines = 1 + track.depth.reduce((most, depth) => Math.max(most, depth), 0);
      rows.push({ track, rank, top: height, lines });
      height += lines * rowHeight + gap;
    }
    height += rankGap;
  }
  const whole = [0, view.length];
  let range = whole.slice(), colours = {};
  function readColours() {
    const style = getComputedStyle(document.documentElement);
    colours = {};
    for (const name of ["ink", "faint", "line", "page", "card", ...buckets, ...palettes.device, ...palettes.host]) colours[name] = style.getPropertyValue("--" + name).trim();
  }
  const scale = () => (canvas.clientWidth - margin()) / (range[1] - range[0]);
  function niceStep(rough) {
    const unit = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((factor) => factor * unit).find((step) => step >= rough);
  }
  function firstFrom(starts, value) { // the first index whose start is not before value
    let low = 0, high = starts.length;
    while (low < high) { const middle = (low + high) >> 1; if (starts[middle] < value) low = middle + 1; else high = middle; }
    return low;
  }
  function longest(track) { return track.longest ?? (track.longest = track.length.reduce((most, one) => Math.max(most, one), 0)); }
  function draw() {
    const width = canvas.clientWidth, ratio = window.devicePixelRatio || 1, left = margin(), per = scale();
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); canvas.style.height = height + "px";
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif"; context.textBaseline = "middle";
    const step = niceStep((range[1] - range[0]) / Math.max(2, (width - left) / 90));
    context.strokeStyle = colours.line; context.fillStyle = colours.faint; context.textAlign = "left";
    for (let mark = Math.ceil(range[0] / step) * step; mark <= range[1]; mark += step) {
      const x = left + (mark - range[0]) * per;
      context.beginPath(); context.moveTo(x, axis - 4); context.lineTo(x, height); context.stroke();
      context.fillText(step >= 1e5 ? (mark / 1e6).toFixed(step >= 1e6 ? 0 : 1) + " ms" : (mark / 1e3).toFixed(step >= 1e3 ? 0 : 1) + " µs", x + 3, axis / 2);
    }
    const windows = new Map();
    for (const row of rows) {
      if (row.heading) { context.fillStyle = colours.ink; context.font = "600 12px system-ui, sans-serif"; context.fillText(row.heading, 4, row.top + head / 2); context.font = "11px system-ui, sans-serif"; continue; }
      const { track, top } = row, palette = palettes[track.kind];
      context.save();
      context.beginPath(); context.rect(left, top, width - left, row.lines * rowHeight); context.clip();
      const from = firstFrom(track.start, range[0] - longest(track));
      let edge = -1, edgeDepth = -1, edgeColour = -1;
      for (let i = from; i < track.start.length && track.start[i] < range[1]; i++) {
        const x = left + (track.start[i] - range[0]) * per, wide = track.length[i] * per, end = x + wide;
        if (end < left) continue;
        // What would fall on the pixel that was drawn last is left out.
        if (wide < 1 && end <= edge && track.depth[i] === edgeDepth && track.colour[i] === edgeColour) continue;
        const y = top + track.depth[i] * rowHeight;
        context.fillStyle = colours[palette[track.colour[i]]];
        context.fillRect(x, y, Math.max(wide - (wide > 3 ? 0.6 : 0), 0.8), rowHeight - 2);
        edge = Math.max(x + 0.8, end); edgeDepth = track.depth[i]; edgeColour = track.colour[i];
        if (wide > 46 && track.kind !== "buckets") {
          context.fillStyle = track.kind === "host" ? colours.page : "#fff";
          const begin = Math.max(x, left), room = Math.floor((Math.min(end, width) - begin - 6) / 6);
          if (room > 4) context.fillText(view.names[track.name[i]].slice(0, room), begin + 3, y + rowHeight / 2 - 1);
        }
      }
      context.restore();
      const seen = windows.get(row.rank) ?? windows.set(row.rank, [top, top]).get(row.rank);
      seen[1] = top + row.lines * rowHeight;
      context.fillStyle = colours.faint; context.fillText(narrow() ? track.label.replace("where time goes", "time").slice(0, 10) : track.label.slice(0, 19), 4, top + rowHeight / 2);
    }
    // Steps before and after a rank's own are dimmed.
    context.fillStyle = colours.card; context.globalAlpha = 0.7;
    for (const [rank, [top, bottom]] of windows) {
      const begin = left + (rank.begin - range[0]) * per, end = left + (rank.end - range[0]) * per;
      if (begin > left) context.fillRect(left, top, Math.min(begin, width) - left, bottom - top);
      if (end < width) context.fillRect(Math.max(end, left), top, width - Math.max(end, left), bottom - top);
    }
    context.globalAlpha = 1;
  }
  let pending = false; // one frame at a time
  function later() { if (!pending) { pending = true; requestAnimationFrame(() => { pending = false; draw(); }); } }
  function show(from, to) {
    const least = 500, length = Math.min(Math.max(to - from, least), whole[1] - whole[0]);
    const begin = Math.min(Math.max(from, whole[0]), whole[1] - length);
    range = [begin, begin + length]; later();
  }
  const zoom = (factor, at) => show(at - (at - range[0]) * factor, at + (range[1] - at) * factor);
  const timeAt = (x) => range[0] + (x - margin()) / scale();
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaX) < Math.abs(event.deltaY) && document.activeElement !== canvas) return; // the page scrolls until the timeline was clicked
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
  canvas.addEventListener("dblclick", () => show(...whole));
  canvas.addEventListener("keydown", (event) => {
    const length = range[1] - range[0], middle = (range[0] + range[1]) / 2;
    const act = { "+": () => zoom(0.6, middle), "=": () => zoom(0.6, middle), "-": () => zoom(1 / 0.6, middle), ArrowLeft: () => show(range[0] - length / 5, range[1] - length / 5), ArrowRight: () => show(range[0] + length / 5, range[1] + length / 5), 0: () => show(...whole), Escape: () => canvas.blur() }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  function hover(event) {
    const at = timeAt(event.offsetX), slack = 1.5 / scale();
    const row = rows.find((one) => one.track && event.offsetY >= one.top && event.offsetY < one.top + one.lines * rowHeight);
    let found = -1;
    if (row && event.offsetX >= margin()) {
      const { track } = row, depth = Math.floor((event.offsetY - row.top) / rowHeight);
      for (let i = firstFrom(track.start, at - longest(track) - slack); i < track.start.length && track.start[i] <= at + slack; i++)
        if (track.depth[i] === depth && track.start[i] + track.length[i] >= at - slack) found = i;
    }
    if (found < 0) { tip.style.display = "none"; return; }
    const { track } = row, length = track.length[found];
    tip.textContent = `${view.names[track.name[found]]} · ${length >= 1e6 ? (length / 1e6).toFixed(2) + " ms" : (length / 1e3).toFixed(1) + " µs"} · from ${(track.start[found] / 1e6).toFixed(3)} ms`;
    tip.style.display = "block";
    tip.style.left = Math.min(event.clientX + 12, window.innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = event.clientY + 16 + "px";
  }
  for (const [id, act] of [["zoom-in", () => zoom(0.5, (range[0] + range[1]) / 2)], ["zoom-out", () => zoom(2, (range[0] + range[1]) / 2)], ["zoom-whole", () => show(...whole)]])
    document.getElementById(id).addEventListener("click", act);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); later(); });
  new ResizeObserver(later).observe(canvas);
  readColours(); draw();
  document.documentElement.dataset.drawn = performance.now().toFixed(0);
})();
