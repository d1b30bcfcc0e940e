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
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  const href = focused && focused.getAttribute("href");
  const scrolled = [...element.querySelectorAll(".table")].map((one) => one.scrollLeft);
  const open = [...element.querySelectorAll("details")].map((one) => one.open);
  element.innerHTML = html;
  element.querySelectorAll(".table").forEach((one, i) => { one.scrollLeft = scrolled[i] || 0; });
  element.querySelectorAll("details").forEach((one, i) => { one.open = open[i] || false; });
  if (href) [...element.querySelectorAll("a")].find((one) => one.getAttribute("href") === href)?.focus();
}

async function reload(id) {
  const page = await fetch(location.href);
  if (!page.ok) return;
  const found = new DOMParser().parseFromString(await page.text(), "text/html").getElementById(id);
  if (found) document.getElementById(id).replaceWith(found);
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
    if (wanted.text && !one.text.toLowerCase().includes(wanted.text.toLowerCase())) continue;
    const line = document.createElement("li");
    line.className = "new";
    const parts = { seq: `${one.seq} `, ts: `${new Date(one.ts * 1000).toISOString().slice(11, 19)} `, where: one.cycle === null ? "" : `[cycle ${one.cycle}] `, kind: `${one.stage}/${one.kind} `, text: one.text };
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

for (const log of document.querySelectorAll(".log")) log.scrollTop = log.scrollHeight;

if (document.body.dataset.live) {
  const link = document.getElementById("link");
  const say = (text, lost) => { link.hidden = false; link.textContent = text; link.classList.toggle("lost", lost); };
  const source = new EventSource(document.body.dataset.live);
  source.onopen = () => say("live", false);
  source.onerror = () => say("not connected", true);
  addEventListener("pagehide", () => source.close());
  source.addEventListener("events", (message) => {
    const log = document.getElementById("events");
    if (log) stick(log, () => addEvents(log, JSON.parse(message.data)));
  });
  source.addEventListener("log", (message) => {
    const log = document.getElementById("log");
    if (log) stick(log, () => {
      log.textContent = (log.textContent + JSON.parse(message.data)).slice(-200000);
    });
  });
  source.addEventListener("state", (message) => {
    const state = JSON.parse(message.data);
    if (state.rows) showRows(state.rows);
    const live = document.getElementById("live");
    if (live && state.live) replace(live, state.live);
    const actions = document.getElementById("actions");
    if (actions && state.actions !== undefined && actions.dataset.key !== state.actions && !actions.contains(document.activeElement)) {
      actions.dataset.key = state.actions;
      reload("actions");
    }
  });
}
