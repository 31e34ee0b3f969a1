"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);

  // -- charts: drawn when they come near the screen, and again when the theme changes ---------------------------------

  const LIGHT = ["#1f6fd1", "#c2410c", "#0f7a4d", "#9333ac", "#8a6a00", "#c11d5b", "#0e7490", "#5f6672"];
  const DARK = ["#6cb2ff", "#ff9d5c", "#4fd193", "#d49bf0", "#e5c04b", "#ff85ae", "#58cfe6", "#b4bcc8"];
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

  function theme() {
    const style = getComputedStyle(root);
    const [ink, dim, line] = ["--ink", "--dim", "--line"].map((name) => style.getPropertyValue(name).trim());
    const words = { labelColor: dim, titleColor: dim, labelFont: FONT, titleFont: FONT, labelFontSize: 12 };
    return {
      background: "transparent",
      font: FONT,
      view: { stroke: "transparent" },
      axis: { ...words, titleFontWeight: 400, gridColor: line, domainColor: line, tickColor: line, gridOpacity: 0.6 },
      axisX: { grid: false },
      legend: { ...words, labelColor: ink, columns: innerWidth < 600 ? 1 : 0, symbolStrokeWidth: 2 },
      range: { category: isDark() ? DARK : LIGHT },
      text: { color: ink },
    };
  }

  // A line without a value at an iteration has a dash in the tooltip.
  const ESCAPED = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
  const sanitize = (value) => (/^NaN%?$/.test(value) ? "–" : String(value).replace(/[&<>]/g, (one) => ESCAPED[one]));

  const specs = new WeakMap();
  async function draw(element) {
    let spec = specs.get(element);
    if (!spec) return;
    if (element.clientWidth < 480) {
      spec = structuredClone(spec);
      const y = spec.encoding?.y;
      if (y?.axis?.labelLimit) {
        y.axis.labelLimit = 130;
        y.axis.labelExpr = "length(datum.label) > 20 ? slice(datum.label, 0, 8) + '…' + slice(datum.label, -10) : datum.label";
      }
    }
    const view = await vegaEmbed(element, spec, { config: theme(), actions: false, tooltip: { sanitize }, ...spec.usermeta?.embedOptions });
    element.querySelector("canvas, svg")?.setAttribute("role", "img");
    element.querySelector("canvas, svg")?.setAttribute("aria-label", spec.description);
    element.removeAttribute("aria-label");
    element.removeAttribute("role");
    return view;
  }
  const drawn = new Set();
  const AHEAD = 600;
  function begin(element) {
    if (drawn.has(element)) return;
    near.unobserve(element);
    drawn.add(element);
    draw(element);
  }
  const near = new IntersectionObserver((entries) => {
    entries.filter((one) => one.isIntersecting).forEach((one) => begin(one.target));
  }, { rootMargin: `${AHEAD}px` });
  // What is in the window at once waits for no observer: a window that is never painted has no intersections.
  const drawBelow = (bottom) => [...document.querySelectorAll(".chart")].filter((one) => one.getBoundingClientRect().top < bottom).forEach(begin);
  addEventListener("load", () => drawBelow(innerHeight + AHEAD));
  addEventListener("beforeprint", () => drawBelow(Infinity));
  for (const element of document.querySelectorAll(".chart")) {
    const inside = element.querySelector("script");
    if (!inside) continue;
    specs.set(element, JSON.parse(inside.textContent));
    near.observe(element);
  }
  const redraw = () => drawn.forEach(draw);
  dark.addEventListener("change", redraw);

  const button = document.getElementById("theme");
  const THEMES = { "": "as the system", light: "light", dark: "dark" };
  button.hidden = false;
  button.addEventListener("click", () => {
    const names = Object.keys(THEMES);
    const next = names[(names.indexOf(root.dataset.theme ?? "") + 1) % names.length];
    if (next) root.dataset.theme = next;
    else delete root.dataset.theme;
    button.textContent = `Theme: ${THEMES[next]}`;
    redraw();
  });

  // -- any metric ------------------------------------------------------------------------------------------------------

  const TABLE_ROWS = 25;
  const row = (cells, head) => {
    const made = document.createElement("tr");
    for (const [place, text] of cells.entries()) {
      const cell = document.createElement(head || place === 0 ? "th" : "td");
      if (cell.tagName === "TH") cell.scope = head ? "col" : "row";
      else cell.className = "number";
      cell.textContent = text;
      made.append(cell);
    }
    return made;
  };
  function tabulate(name, lines) {
    const labels = Object.keys(lines);
    const found = new Map();
    labels.forEach((label, place) => {
      for (const [x, y] of lines[label]) {
        if (!found.has(x)) found.set(x, labels.map(() => ""));
        found.get(x)[place] = String(Number(y.toPrecision(4)));
      }
    });
    const steps = [...found.keys()].sort((a, b) => a - b);
    const every = Math.ceil(steps.length / TABLE_ROWS);
    const kept = steps.filter((_, place) => place % every === 0 || place === steps.length - 1);
    const table = document.getElementById("any-numbers");
    table.caption.textContent = name;
    table.tHead.replaceChildren(row(["iteration", ...labels], true));
    table.tBodies[0].replaceChildren(...kept.map((x) => row([String(x), ...found.get(x)], false)));
    const left = steps.length - kept.length;
    document.getElementById("any-left").textContent = left ? `${left} more rows are in metrics.jsonl.` : "";
  }

  const metric = document.getElementById("metric");
  if (metric) {
    const { lines, meanings } = JSON.parse(document.getElementById("others").textContent);
    const place = document.getElementById("any");
    const show = () => {
      const name = metric.value;
      document.getElementById("meaning").textContent = meanings[name] ?? "";
      tabulate(name, lines[name]);
      const labels = Object.keys(lines[name]);
      const values = labels.flatMap((s) => lines[name][s].map(([x, y]) => ({ x, y, s })));
      const field = { field: "s", type: "nominal", scale: { domain: labels } };
      const legend = labels.length > 1 ? { title: null, orient: "top", labelLimit: 320 } : null;
      specs.set(place, {
        description: `${name} over the iterations`, width: "container", height: 220, data: { values },
        autosize: { type: "fit-x", contains: "padding" },
        mark: values.length < 3 ? { type: "point", filled: true } : { type: "line", strokeWidth: 2, tooltip: true },
        encoding: {
          x: { field: "x", type: "quantitative", title: "iteration", axis: { tickMinStep: 1 } },
          y: { field: "y", type: "quantitative", title: null, scale: { zero: false }, axis: { format: "~g" } },
          color: { ...field, legend }, strokeDash: { ...field, legend },
        },
      });
      if (drawn.has(place)) draw(place);
    };
    metric.addEventListener("change", show);
    show();
    near.observe(place);
  }

  // -- videos ----------------------------------------------------------------------------------------------------------

  const AT_ONCE = 24;
  const load = (video) => {
    const text = document.getElementById(video.dataset.video).textContent;
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    video.addEventListener("error", () => {
      const said = document.createElement("p");
      said.className = "note";
      said.textContent = "This browser cannot play the video (H.264 in mp4).";
      video.after(said);
    }, { once: true });
    video.preload = "metadata";
    video.src = URL.createObjectURL(new Blob([bytes], { type: "video/mp4" }));
  };
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      seen.unobserve(entry.target);
      load(entry.target);
    }
  }, { rootMargin: "300px" });
  document.querySelectorAll("video[data-video]").forEach((video) => seen.observe(video));
  const cards = [...document.querySelectorAll("#cards > li")];
  const filters = document.getElementById("filters");
  if (filters) {
    const more = document.getElementById("more");
    let most = AT_ONCE;
    const apply = () => {
      const wanted = [...filters.querySelectorAll("select")].filter((select) => select.value);
      const fits = cards.filter((card) => wanted.every((select) => card.dataset[select.dataset.key] === select.value));
      const shown = new Set(fits.slice(0, most));
      for (const card of cards) {
        card.hidden = !shown.has(card);
        if (card.hidden) card.querySelector("video").pause();
      }
      document.getElementById("count").textContent =
        `${shown.size} of ${fits.length} videos shown` + (fits.length < cards.length ? `, ${cards.length} in all` : "");
      more.hidden = shown.size === fits.length;
    };
    filters.addEventListener("submit", (event) => event.preventDefault());
    filters.addEventListener("change", () => {
      most = AT_ONCE;
      apply();
    });
    more.addEventListener("click", () => {
      const first = Math.min(most, cards.length);
      most += AT_ONCE;
      apply();
      cards.filter((card) => !card.hidden)[first]?.querySelector("video").focus();
    });
    apply();
  }

  // -- configuration, commands -----------------------------------------------------------------------------------------

  const keys = document.getElementById("keys");
  if (keys) {
    const rows = [...document.querySelectorAll("#settings tbody tr")];
    const texts = rows.map((row) => row.textContent.toLowerCase());
    const [search, which] = [document.getElementById("search"), document.getElementById("which")];
    const apply = () => {
      const wanted = search.value.trim().toLowerCase();
      rows.forEach((row, place) => {
        row.hidden = !((!which.value || which.value in row.dataset) && texts[place].includes(wanted));
      });
      const shown = rows.filter((row) => !row.hidden).length;
      document.getElementById("keys-count").textContent = `${shown} of ${rows.length} keys shown`;
    };
    keys.addEventListener("submit", (event) => event.preventDefault());
    keys.addEventListener("input", apply);
    apply();
  }
  for (const copy of document.querySelectorAll(".copy")) {
    if (!navigator.clipboard) continue;
    copy.hidden = false;
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(copy.previousElementSibling.textContent);
        copy.textContent = "Copied";
      } catch {
        copy.textContent = "Select it by hand";
      }
    });
  }
})();
