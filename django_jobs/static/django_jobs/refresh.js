// Keeps each [data-live-region] and the list of a page fresh: fetches the same address and replaces their content, and the buttons above.
// While a person has focus, rows, text or an action selected in them, or has a part open, they stay.
// The element [data-refresh] has the seconds between two answers, and its texts; its button pauses.
// It ends with the first answer that has no such element: what it shows will not change any more.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const bar = document.querySelector("[data-refresh]");
  const AREAS = "[data-live-region], #changelist-form";
  const regions = [...document.querySelectorAll(AREAS)];
  if (!bar || !regions.length) return;
  const button = bar.querySelector("button");
  const status = bar.querySelector("[role=status]");
  const seconds = Math.min(60, Math.max(2, Number(bar.dataset.refresh) || 5));
  let timer = null;
  let turn = 0; // an answer that was asked for before a pause is dropped
  let bound = new AbortController();

  const show = (text) => { status.textContent = text; };
  const inUse = (region) =>
    region.contains(document.activeElement) ||
    (!getSelection().isCollapsed && getSelection().containsNode(region, true)) ||
    region.querySelector("input:checked, details[open]") ||
    region.querySelector("select[name=action]")?.value;
  const busy = () => document.hidden || regions.some(inUse);
  const scrollers = () => regions.flatMap((region) => [...region.querySelectorAll("[tabindex='0'], .results")]);

  // Django's actions.js knows the rows that it finds. Its listeners of the page as a whole would keep every answer in memory.
  function bindActions() {
    const boxes = document.querySelectorAll("tr input.action-select");
    if (!window.Actions || !boxes.length) return;
    bound.abort();
    bound = new AbortController();
    for (const target of [document, window]) {
      target.addEventListener = (type, listener) =>
        EventTarget.prototype.addEventListener.call(target, type, listener, { signal: bound.signal });
    }
    try {
      window.Actions(boxes);
    } finally {
      delete document.addEventListener;
      delete window.addEventListener;
    }
  }

  // The buttons above the page follow its state. They stand in the region or before it.
  function renewTools(page) {
    const tools = document.querySelector(".object-tools");
    if (!tools || regions.some((region) => region.contains(tools)) || tools.contains(document.activeElement)) return;
    const fresh = page.querySelector(".object-tools");
    tools.replaceChildren(...(fresh ? fresh.childNodes : []));
  }

  async function refresh(mine) {
    let wait = seconds * 1000;
    if (!busy()) {
      const asked = performance.now();
      try {
        const signal = AbortSignal.timeout(30_000);
        const answer = await fetch(location.href, { redirect: "manual", signal, headers: { "X-Requested-With": "refresh" } });
        const text = await answer.text();
        if (mine !== turn) return;
        if (answer.status !== 200) return stop();
        const page = new DOMParser().parseFromString(text, "text/html");
        wait = Math.max(wait, 20 * (performance.now() - asked)); // a slow list has a twentieth of a process at most
        const fresh = [...page.querySelectorAll(AREAS)];
        if (fresh.length !== regions.length) return stop();
        if (!busy()) {
          const places = scrollers().map((one) => [one.scrollLeft, one.scrollTop]);
          regions.forEach((region, index) => region.replaceChildren(...fresh[index].childNodes));
          scrollers().forEach((one, index) => one.scrollTo(...(places[index] ?? [0, 0])));
          renewTools(page);
          bindActions();
          if (!page.querySelector("[data-refresh]")) {
            bar.hidden = true;
            return;
          }
        }
      } catch {
        if (mine === turn) stop();
        return;
      }
    }
    timer = setTimeout(refresh, wait, mine);
  }

  function stop() {
    timer = null;
    button.setAttribute("aria-pressed", "true");
    show(bar.dataset.stopped);
  }

  bar.hidden = false;
  button.addEventListener("click", () => {
    const paused = timer !== null;
    clearTimeout(timer);
    turn += 1;
    timer = paused ? null : setTimeout(refresh, 0, turn);
    button.setAttribute("aria-pressed", String(paused));
    show(paused ? bar.dataset.paused : "");
  });
  timer = setTimeout(refresh, seconds * 1000, turn);
});
