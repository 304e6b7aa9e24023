"use strict";

// Shows the next due times while a rule is edited. Without it the page shows those of the saved rule.
document.addEventListener("DOMContentLoaded", () => {
  const shown = document.getElementById("jobs-preview");
  const source = document.getElementById("jobs-preview-of");
  const form = source && source.closest("form");
  const names = ["name", "cron", "every", "timezone", "dst", "starts_at_0", "starts_at_1", "ends_at_0", "ends_at_1",
    "excluded_dates", "max_jobs", "csrfmiddlewaretoken"];
  const fields = form ? names.map((name) => form.elements[name]).filter(Boolean) : [];
  if (!shown || !form.elements.cron) {
    return;
  }
  const part = (name) => shown.querySelector(`[data-part="${name}"]`);
  const write = (name, text) => {
    part(name).textContent = text || "";
    part(name).hidden = !text;
  };

  const draw = (answer) => {
    const times = answer.times || [];
    const rows = times.map((time) => {
      const row = document.createElement("tr");
      for (const text of [time.local, time.utc].filter(Boolean)) {
        row.insertCell().textContent = text;
      }
      const last = row.insertCell();
      if (time.change) {
        const mark = document.createElement("span");
        mark.className = "jobs-change";
        mark.textContent = time.change;
        last.append(mark);
      }
      return row;
    });
    part("times").tBodies[0].replaceChildren(...rows);
    part("times").hidden = !rows.length;
    part("zone").textContent = answer.zone || "";
    part("utc").hidden = answer.zone === "UTC";
    write("words", answer.words);
    write("left_out", answer.left_out);
    write("note", answer.note);
    write("error", answer.error);
  };

  let timer = 0;
  let latest = null;
  let asked = "";
  const ask = async () => {
    const rule = new URLSearchParams(fields.map((field) => [field.name, field.value]));
    if (rule.toString() === asked) {
      return;
    }
    asked = rule.toString();
    if (latest) {
      latest.abort();
    }
    const mine = new AbortController();
    latest = mine;
    try {
      const response = await fetch(source.dataset.url, { method: "POST", body: rule, signal: mine.signal, credentials: "same-origin" });
      const answer = response.ok && !response.redirected ? await response.json() : { error: shown.dataset.broken };
      draw(answer);
    } catch (error) {
      if (!mine.signal.aborted) {
        draw({ error: shown.dataset.broken });
      }
    }
  };
  const soon = () => {
    window.clearTimeout(timer);
    timer = window.setTimeout(ask, 250);
  };
  form.addEventListener("input", soon);
  form.addEventListener("change", soon);
  // The calendar and the clock of the admin write without an event.
  form.addEventListener("focusin", soon);
});
