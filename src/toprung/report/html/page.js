"use strict";
(() => {
  const { palette, charts } = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = new Map(charts.map((c) => [c.id, c.view]));
  const drawn = new Map();
  const touch = matchMedia("(hover: none)");
  let tapped;
  const scheme = () => root.dataset.theme || (system.matches ? "dark" : "light");

  const tint = (value, colours) => {
    if (typeof value === "string" && value[0] === "@") return colours[value.slice(1)] ?? value;
    if (Array.isArray(value)) return value.map((v) => tint(v, colours));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, tint(v, colours)]));
    return value;
  };

  const look = (c, narrow) => ({
    background: null,
    font: "system-ui, 'Liberation Sans', Arial, sans-serif",
    view: { stroke: null },
    axis: { labelColor: c.muted, titleColor: c.muted, gridColor: c.grid, domainColor: c.line, tickColor: c.line, labelFontSize: 11, titleFontSize: 12, titleFontWeight: "normal" },
    legend: { labelColor: c.fg, titleColor: c.muted, labelFontSize: 11, columns: narrow ? 2 : 5, labelLimit: narrow ? 120 : 220, symbolStrokeWidth: 2 },
    title: { color: c.fg },
  });

  // legends name only what the chosen view holds; the colours stay those of the whole
  const present = (value, rows) => {
    if (Array.isArray(value)) return value.map((v) => present(v, rows));
    if (!value || typeof value !== "object") return value;
    const copy = Object.fromEntries(Object.entries(value).map(([k, v]) => [k, present(v, rows)]));
    if (copy.legend && copy.scale?.domain && copy.field) copy.legend.values = copy.scale.domain.filter((d) => rows.some((r) => r[copy.field] === d));
    return copy;
  };

  const open = (id) => {
    const part = document.getElementById(id);
    if (!part) return;
    part.open = true;
    if (location.hash !== "#" + id) history.replaceState(null, "", "#" + id);
    document.querySelectorAll(".rung.at").forEach((e) => e.classList.remove("at"));
    part.classList.add("at");
    part.scrollIntoView({ block: "start" });
    part.querySelector("summary").focus({ preventScroll: true });
  };

  const draw = async (chart) => {
    const place = document.getElementById("plot-" + chart.id);
    const colours = palette[scheme()];
    const narrow = place.clientWidth < 520;
    const rows = chart.rows.filter((r) => r.view === chosen.get(chart.id));
    const spec = {
      ...present(tint(chart.spec, colours), rows),
      $schema: "https://vega.github.io/schema/vega-lite/v6.json",
      description: chart.title,
      width: "container",
      autosize: { type: "fit-x", contains: "padding" },
      data: { name: "rows", values: rows },
    };
    drawn.get(chart.id)?.finalize();
    const result = await vegaEmbed(place, spec, {
      actions: false, renderer: "svg", ast: true, logLevel: 1, config: look(colours, narrow), tooltip: { theme: "custom" },
    });
    drawn.set(chart.id, result);
    result.view.addEventListener("click", (event, item) => {
      const to = item?.datum?.open;
      const again = to && to === tapped;
      tapped = to;
      const finger = event.pointerType ? event.pointerType !== "mouse" : touch.matches;
      if (to && (again || !finger)) open(to);
      // a finger that taps does not move, and values are shown where a pointer moves
      else if (finger) event.target.dispatchEvent(new PointerEvent("pointermove", { clientX: event.clientX, clientY: event.clientY, bubbles: true }));
    });
    const lines = chart.sources[chosen.get(chart.id)] ?? [];
    const source = document.getElementById("source-" + chart.id);
    source.parentElement.open = lines.length < 3;
    source.replaceChildren(...lines.map((text) => {
      const line = document.createElement("p");
      line.className = "source";
      line.textContent = text;
      return line;
    }));
    place.dataset.drawn = scheme();
  };

  // a spreadsheet takes a text that begins like a formula for one
  const cell = (value) => {
    if (typeof value !== "string") return value ?? "";
    const text = /^[=+\-@\t\r]/.test(value) ? "'" + value : value;
    return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  };
  const csv = (chart) => [
    chart.columns.map(([, title]) => cell(title)),
    ...chart.rows.filter((r) => !r.guide).map((r) => chart.columns.map(([key]) => cell(r[key]))),
  ].map((line) => line.join(",")).join("\n") + "\n";

  let turn = Promise.resolve();
  const drawAll = () => { turn = turn.then(async () => { for (const chart of charts) await draw(chart); root.dataset.ready = scheme(); }); return turn; };

  for (const chart of charts) {
    const select = document.getElementById("view-" + chart.id);
    select?.addEventListener("change", () => { chosen.set(chart.id, select.value); turn = turn.then(() => draw(chart)); });
    const link = document.getElementById("csv-" + chart.id);
    link.href = URL.createObjectURL(new Blob([csv(chart)], { type: "text/csv" }));
    const json = document.getElementById("json-" + chart.id);
    json.href = URL.createObjectURL(new Blob([JSON.stringify(chart.rows, null, 1)], { type: "application/json" }));
  }

  const button = document.getElementById("theme");
  const say = () => { button.textContent = scheme() === "dark" ? "light" : "dark"; };
  try { const kept = localStorage.getItem("toprung-theme"); if (kept) root.dataset.theme = kept; } catch { /* a file may have no storage */ }
  button.hidden = false;
  say();
  button.addEventListener("click", () => {
    root.dataset.theme = scheme() === "dark" ? "light" : "dark";
    try { localStorage.setItem("toprung-theme", root.dataset.theme); } catch { /* then it is not kept */ }
    say();
    drawAll();
  });
  system.addEventListener("change", () => { say(); drawAll(); });
  let width = innerWidth;
  let waiting = 0;
  addEventListener("resize", () => {
    if ((width < 620) !== (innerWidth < 620)) { clearTimeout(waiting); waiting = setTimeout(drawAll, 200); }
    width = innerWidth;
  });

  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#rung-"]');
    if (link) { event.preventDefault(); open(link.getAttribute("href").slice(1)); }
  });
  drawAll().then(() => { if (location.hash.startsWith("#rung-")) open(location.hash.slice(1)); });
})();
