// Keeps [data-live-region] of a page fresh: fetches the same address and replaces the content of the region and of the buttons above.
// The element [data-refresh] has the seconds between two answers, and its texts; its button pauses.
// It ends with the first answer that has no such element: what it shows will not change any more.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const bar = document.querySelector("[data-refresh]");
  const region = document.querySelector("[data-live-region]");
  if (!bar || !region) return;
  const button = bar.querySelector("button");
  const status = bar.querySelector("[role=status]");
  const seconds = Math.min(60, Math.max(2, Number(bar.dataset.refresh) || 5));
  let timer = null;
  let turn = 0; // an answer that was asked for before a pause is dropped

  const show = (text) => { status.textContent = text; };
  const busy = () =>
    document.hidden || region.contains(document.activeElement) || region.querySelector("input:checked, details[open]");
  const scrollers = () => [...region.querySelectorAll("[tabindex='0']")];

  // The buttons above the page follow its state. They stand in the region or before it.
  function renewTools(page) {
    const tools = document.querySelector(".object-tools");
    if (!tools || region.contains(tools) || tools.contains(document.activeElement)) return;
    const fresh = page.querySelector(".object-tools");
    tools.replaceChildren(...(fresh ? fresh.childNodes : []));
  }

  async function refresh(mine) {
    if (!busy()) {
      try {
        const signal = AbortSignal.timeout(30_000);
        const answer = await fetch(location.href, { redirect: "manual", signal, headers: { "X-Requested-With": "refresh" } });
        const text = await answer.text();
        if (mine !== turn) return;
        if (answer.status !== 200) return stop();
        const page = new DOMParser().parseFromString(text, "text/html");
        const fresh = page.querySelector("[data-live-region]");
        if (!fresh) return stop();
        if (!busy()) {
          const places = scrollers().map((one) => [one.scrollLeft, one.scrollTop]);
          region.replaceChildren(...fresh.childNodes);
          scrollers().forEach((one, index) => one.scrollTo(...(places[index] ?? [0, 0])));
          renewTools(page);
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
    timer = setTimeout(refresh, seconds * 1000, mine);
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
