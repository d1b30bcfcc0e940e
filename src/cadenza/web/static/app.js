// Live updates and the light switch. Every page works without this file; nothing here builds HTML from
// data: the server sends escaped parts of pages, and lines of logs are written as text.
"use strict";

const root = document.documentElement;
const theme = document.getElementById("theme");
theme.hidden = false;
theme.addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  document.cookie = `theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
});

function replace(element, html) {
  const reachable = () => [...element.querySelectorAll("a, summary, [tabindex]")];
  const place = reachable().indexOf(document.activeElement);
  const href = place < 0 ? null : document.activeElement.getAttribute("href");
  const scrolled = [...element.querySelectorAll(".table, .wide")].map((one) => one.scrollLeft);
  const open = [...element.querySelectorAll("details")].map((one) => one.open);
  element.innerHTML = html;
  element.querySelectorAll(".table, .wide").forEach((one, i) => { one.scrollLeft = scrolled[i] || 0; });
  element.querySelectorAll("details").forEach((one, i) => { one.open = open[i] || false; });
  const again = href ? reachable().find((one) => one.getAttribute("href") === href) : reachable()[place];
  again?.focus({ preventScroll: true });
}

// Text that somebody selects, to copy it, stays until it is no longer selected.
let fresh = null;
function refresh(html) {
  const live = document.getElementById("live");
  const selection = getSelection();
  fresh = !selection.isCollapsed && live.contains(selection.anchorNode) ? html : null;
  if (fresh === null) replace(live, html);
}
document.addEventListener("selectionchange", () => { if (fresh !== null) refresh(fresh); });

// What somebody types stays if its form does: a question that was answered elsewhere goes, typed in or not.
async function reload(id) {
  const page = await fetch(location.href);
  if (!page.ok) return;
  const found = new DOMParser().parseFromString(await page.text(), "text/html").getElementById(id);
  if (!found) return;
  const old = document.getElementById(id);
  const focused = document.activeElement;
  old.replaceWith(found);
  for (const form of found.querySelectorAll("form")) {
    const before = [...old.querySelectorAll("form")].find((one) => one.ariaLabel === form.ariaLabel);
    if (!before) continue;
    for (const field of form.querySelectorAll("input:not([type=hidden])")) field.value = before.elements[field.name].value;
    if (before.closest("details")?.open) form.closest("details").open = true;
    if (before.contains(focused)) form.elements[focused.name]?.focus();
  }
}

function stick(log, add) {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  add();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

const MAX_LINES = 1000;
function addEvents(log, events) {
  const wanted = log.dataset;
  const list = log.querySelector("ol");
  for (const one of events) {
    if (one.seq <= Number(wanted.seq || 0)) continue;
    wanted.seq = one.seq;
    if (["stage", "kind", "cycle"].some((name) => wanted[name] && wanted[name] !== String(one[name]))) continue;
    if (wanted.text && !`${one.payload} ${one.text}`.toLowerCase().includes(wanted.text.toLowerCase())) continue;
    const line = document.createElement("li");
    line.className = "new";
    const link = document.createElement("a");
    link.href = `/runs/${wanted.run}/events/${one.seq}`;
    link.textContent = one.seq;
    line.append(link, " ");
    const parts = { ts: `${new Date(one.ts * 1000).toISOString().slice(11, 19)} `, where: one.cycle === null ? "" : `[cycle ${one.cycle}] `, kind: `${one.stage}/${one.kind} `, text: one.text };
    for (const [name, text] of Object.entries(parts)) {
      const part = document.createElement("span");
      part.className = name;
      part.textContent = text;
      line.append(part);
    }
    list.append(line);
    while (list.children.length > MAX_LINES) list.firstChild.remove();
  }
}

function showRows(rows) {
  const table = document.getElementById("runs");
  for (const [id, html] of Object.entries(rows).reverse()) {
    const template = document.createElement("template");
    template.innerHTML = html;
    const row = template.content.querySelector("tr");
    const old = document.getElementById(`run-${id}`);
    if (old) {
      const focused = old.contains(document.activeElement);
      old.replaceWith(row);
      if (focused) row.querySelector("a").focus();
    } else if ("first" in document.body.dataset) {
      row.className = "new";
      table.prepend(row);
    }
  }
}

if (location.search.includes("done=")) history.replaceState(null, "", location.pathname); // it is said once
for (const log of document.querySelectorAll(".log")) log.scrollTop = log.scrollHeight;
for (const chart of document.querySelectorAll("#live .wide")) chart.scrollLeft = chart.scrollWidth;

const hear = {
  events(events) {
    const log = document.getElementById("events");
    if (log) stick(log, () => addEvents(log, events));
  },
  log(text) {
    const log = document.getElementById("log");
    if (log) stick(log, () => { log.textContent = (log.textContent + text).slice(-200000); });
  },
  state(state) {
    if (state.rows) showRows(state.rows);
    if (document.getElementById("live") && state.live) refresh(state.live);
    const actions = document.getElementById("actions");
    if (actions && state.actions !== undefined && actions.dataset.key !== state.actions) {
      actions.dataset.key = state.actions;
      reload("actions");
    }
  },
};

if (document.body.dataset.live) {
  const link = document.getElementById("link");
  const say = (text, lost) => { link.hidden = false; link.textContent = text; link.classList.toggle("lost", lost); };
  let source, last, retry;
  const connect = () => {
    const address = new URL(document.body.dataset.live, location.href);
    if (last) address.searchParams.set("after", last);
    source = new EventSource(address);
    source.onopen = () => say("live", false);
    source.onerror = () => {
      say("not connected", true);
      if (source.readyState === EventSource.CLOSED) retry = setTimeout(connect, 30000);
    };
    for (const [kind, act] of Object.entries(hear)) {
      source.addEventListener(kind, (message) => {
        last = message.lastEventId || last;
        act(JSON.parse(message.data));
      });
    }
  };
  // A browser has six connections to a server for all of its tabs: one that nobody sees gives its own back.
  const follow = () => {
    clearTimeout(retry);
    source?.close();
    if (document.visibilityState === "visible") connect();
  };
  document.addEventListener("visibilitychange", follow);
  follow();
}
