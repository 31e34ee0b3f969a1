"use strict";
(() => {
  const own = Number(document.currentScript.dataset.page);
  const KEY = "embodied-place";
  const EVERY_MS = 3000;
  const DRAWN_MS = 20000; // by then a slow machine has drawn the charts

  // -- the reader's place: what was open, chosen and in view before the page was loaded anew --------------------------

  const boxes = () => [...document.querySelectorAll("details")];
  const headings = () => [...document.querySelectorAll("h2, h3")];
  const alike = (text) => headings().filter((one) => one.textContent === text); // "Success" is a chart and a chapter
  const topOf = (element) => element.getBoundingClientRect().top;
  const fields = () => [...document.querySelectorAll("select[id], input[id]")];

  function keep() {
    const above = headings().filter((heading) => topOf(heading) < innerHeight / 2).at(-1);
    const place = {
      top: scrollY,
      heading: above && scrollY > 0 ? { text: above.textContent, nth: alike(above.textContent).indexOf(above), top: topOf(above) } : null,
      open: boxes().map((box) => box.open),
      values: fields().map((field) => [field.id, field.value]),
      theme: document.documentElement.dataset.theme ?? "",
    };
    try {
      sessionStorage.setItem(KEY, JSON.stringify(place));
    } catch {}
  }

  function restore() {
    let place = null;
    try {
      place = JSON.parse(sessionStorage.getItem(KEY));
      sessionStorage.removeItem(KEY);
    } catch {}
    if (!place) return;
    const button = document.getElementById("theme");
    for (let turns = 0; turns < 3 && (document.documentElement.dataset.theme ?? "") !== place.theme; turns += 1) button?.click();
    const now = boxes();
    if (now.length === place.open.length) now.forEach((box, number) => { box.open = place.open[number]; });
    for (const [id, value] of place.values) {
      const field = document.getElementById(id);
      if (!field || field.value === value) continue;
      const before = field.value;
      field.value = value;
      if (field.value !== value) field.value = before; // it can no longer be chosen
      for (const kind of ["input", "change"]) field.dispatchEvent(new Event(kind, { bubbles: true }));
    }
    // Charts above grow while they are drawn; a reader who scrolls meanwhile goes where they want.
    let moved = false;
    for (const kind of ["wheel", "touchmove", "keydown", "pointerdown"]) addEventListener(kind, () => { moved = true; }, { once: true });
    const heading = place.heading && alike(place.heading.text)[place.heading.nth];
    const back = () => {
      const top = heading ? scrollY + topOf(heading) - place.heading.top : place.top;
      if (!moved) scrollTo({ top, behavior: "instant" });
    };
    back();
    const grown = new ResizeObserver(back);
    grown.observe(document.body);
    setTimeout(() => grown.disconnect(), DRAWN_MS);
  }
  if (own > 0) restore();

  // -- newer pages -----------------------------------------------------------------------------------------------------

  const said = document.createElement("p");
  said.className = "note";
  said.setAttribute("role", "status");
  said.hidden = true;
  (document.querySelector("main") ?? document.body).prepend(said);
  const say = (text) => {
    if (said.textContent !== text) said.textContent = text;
    said.hidden = !text;
  };
  const watching = () =>
    [...document.querySelectorAll("video")].some((video) => !video.paused) ||
    document.activeElement?.id === "search" ||
    !(getSelection()?.isCollapsed ?? true);

  async function ask() {
    try {
      const answer = await fetch("newest", { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      const { page, problem } = await answer.json();
      say(problem ? `The newest report was not written: ${problem}` : "");
      if (page !== own && page > 0 && !watching()) {
        if (own > 0) keep();
        location.reload();
        return;
      }
    } catch {
      say("The page is no longer renewed: its server has ended.");
    }
    setTimeout(ask, own > 0 ? EVERY_MS : 500);
  }
  ask();
})();
