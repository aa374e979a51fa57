// Keeps the overview current by server-sent events. Without it the page is as true as when it was loaded.
"use strict";

(() => {
  const table = document.getElementById("destinations");
  if (!table || !window.EventSource) return;
  const POINTS = 60;
  const words = { closed: ["good", "delivering"], half_open: ["warn", "probing"], open: ["bad", "unavailable"], stalled: ["bad", "stalled"] };
  const history = new Map();

  const age = (ms) => {
    if (ms === null || ms === undefined) return "-";
    if (ms < 1000) return `${Math.max(ms, 0)} ms`;
    if (ms < 120000) return `${Math.floor(ms / 1000)} s`;
    if (ms < 7200000) return `${Math.floor(ms / 60000)} min`;
    if (ms < 172800000) return `${Math.floor(ms / 3600000)} h`;
    return `${Math.floor(ms / 86400000)} d`;
  };

  const put = (row, field, text) => {
    const cell = row.querySelector(`[data-field="${field}"]`);
    const target = cell && (cell.querySelector("a") || cell);
    if (target && target.textContent !== String(text)) target.textContent = text;
  };

  const pausedOf = (file, destination) => {
    const pauses = (file.pauses || []).filter((pause) => pause.destination === destination);
    if (pauses.length === 0) return null;
    return ["warn", pauses.some((pause) => pause.kind === "destination") ? "paused" : "partly paused"];
  };

  const showState = (row, found, paused) => {
    const [kind, word] = paused || words[found.state] || words.stalled;
    const cell = row.querySelector('[data-field="state"]');
    const text = word + (found.error || "");
    if (cell.dataset.shown === text) return;
    cell.dataset.shown = text;
    const state = document.createElement("span");
    state.className = `state ${kind}`;
    state.textContent = word;
    cell.replaceChildren(state);
    if (found.error) {
      const why = document.createElement("small");
      why.textContent = found.error;
      cell.append(" ", why);
    }
  };

  const sparkline = (rates) => {
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    svg.setAttribute("class", "rate");
    svg.setAttribute("width", "90");
    svg.setAttribute("height", "20");
    svg.setAttribute("aria-hidden", "true");
    const most = Math.max(1, ...rates);
    const line = document.createElementNS(space, "polyline");
    line.setAttribute("points", rates.map((rate, at) => `${(at * 90) / (POINTS - 1)},${19 - (rate * 18) / most}`).join(" "));
    svg.append(line);
    return svg;
  };

  const showRate = (row, found, now) => {
    const known = history.get(found.destination) || { rates: [] };
    if (known.at !== undefined && now > known.at) {
      known.rates.push(Math.max(0, ((found.delivered - known.delivered) * 1000) / (now - known.at)));
      known.rates = known.rates.slice(-POINTS);
      const cell = row.querySelector('[data-field="rate"]');
      cell.replaceChildren(sparkline(known.rates), `${Math.round(known.rates[known.rates.length - 1])}/s`);
    }
    known.at = now;
    known.delivered = found.delivered;
    history.set(found.destination, known);
  };

  const health = document.getElementById("health");
  const source = new EventSource("/api/stream");
  source.addEventListener("status", (message) => {
    const status = JSON.parse(message.data);
    const away = status.files.flatMap((file) => file.destinations || []).filter((found) => ["open", "half_open"].includes(found.state));
    const calm = away.length === 0 ? "Everything moves." : `${away.map((found) => found.destination).join(", ")} cannot be reached; the events wait.`;
    const text = status.ready ? calm : status.trouble.join("; ");
    if (health.textContent.trim() !== text) {
      health.textContent = text;
      health.className = !status.ready ? "bad" : away.length === 0 ? "good" : "warn";
    }
    const now = performance.now();
    for (const file of status.files) {
      for (const found of file.destinations || []) {
        const row = table.querySelector(`tr[data-destination="${CSS.escape(found.destination)}"]`);
        if (!row) continue;
        showState(row, found, pausedOf(file, found.destination));
        put(row, "pending", found.pending);
        put(row, "oldest", age(found.oldest_age_ms));
        put(row, "blocked", found.blocked_keys);
        put(row, "dead", found.dead);
        put(row, "delivered", found.delivered);
        showRate(row, found, now);
      }
    }
  });
  source.onerror = () => {
    health.textContent = "The relay does not answer; trying again.";
    health.className = "bad";
  };
})();
