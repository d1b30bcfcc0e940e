"use strict";
(() => {
  const data = JSON.parse(document.getElementById("rollouts").textContent);
  const root = document.getElementById("player");
  const views = [...root.querySelectorAll(".view")];
  const chips = [...root.querySelectorAll("[data-partner]")];
  const picks = [...root.querySelectorAll("[data-pick]")];
  const playButton = root.querySelector(".play");
  const scrub = root.querySelector(".scrub");
  const clock = root.querySelector(".clock");
  const speed = root.querySelector("select");
  const steps = [...root.querySelectorAll("[data-step]")];
  const live = root.querySelector("[data-live]");
  let xLow, yLow, xHigh, yHigh; // what the chosen recordings show
  const TIMELINE = 92; // pixels under the floor for the distance curve
  const LEFT = 44, RIGHT = 8, TIGHT = 260; // its margins, and the width below which it drops its labels
  const state = { partner: null, pick: null, runs: new Map(), time: 0, end: 1, playing: false, last: 0, said: "" };
  let colours = {};

  const byId = (list, id) => list.find((item) => item.id === id);
  const lengthOf = (run) => (run.d.length - 1) * run.dt;
  const frameAt = (run, time) => Math.min(run.d.length - 1, Math.max(0, time / run.dt));

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["ink", "soft", "line", "grid", "on", "off", "ego", "partner", "other", "bad", "good", "card", "floor", "danger-zone"]) {
      colours[name] = style.getPropertyValue(`--${name}`).trim();
    }
  }

  function choose(partner, pick, time = 0) {
    const recorded = data.runs.filter((run) => run.p === partner);
    state.partner = partner;
    state.pick = recorded.some((run) => run.pick === pick) ? pick : recorded[0].pick;
    state.runs = new Map(recorded.filter((run) => run.pick === state.pick).map((run) => [run.c, run]));
    const runs = [...state.runs.values()];
    [xLow, yLow, xHigh, yHigh] = runs[0].extent;
    state.end = Math.max(...runs.map(lengthOf), 1e-9);
    state.step = Math.min(...runs.map((run) => run.dt));
    scrub.max = String(Math.round(state.end / state.step));
    for (const chip of chips) chip.setAttribute("aria-pressed", String(chip.dataset.partner === partner));
    for (const chip of picks) chip.setAttribute("aria-pressed", String(chip.dataset.pick === state.pick));
    root.querySelector(".alike").textContent = `like ${runs[0].alike} with this partner`;
    seek(time);
  }

  function seek(time) {
    state.time = Math.min(state.end, Math.max(0, time));
    scrub.value = String(Math.round(state.time / state.step));
    const now = `${state.time.toFixed(2)} s`;
    clock.textContent = `${now} of ${state.end.toFixed(2)} s`;
    scrub.setAttribute("aria-valuetext", now);
    draw();
  }

  function play(on) {
    state.playing = on;
    playButton.textContent = on ? "Pause" : state.time >= state.end ? "Replay" : "Play";
    playButton.setAttribute("aria-pressed", String(on));
    if (on) {
      if (state.time >= state.end) seek(0);
      state.last = performance.now();
      requestAnimationFrame(tick);
    }
  }

  function tick(now) {
    if (!state.playing) return;
    const passed = Math.min(0.1, (now - state.last) / 1000) * Number(speed.value);
    state.last = now;
    seek(state.time + passed);
    if (state.time >= state.end) play(false);
    else requestAnimationFrame(tick);
  }

  function draw() {
    const said = [];
    for (const view of views) {
      const run = state.runs.get(view.dataset.condition);
      const canvas = view.querySelector("canvas");
      const end = view.querySelector(".end");
      if (!run) { view.hidden = true; continue; }
      view.hidden = false;
      const over = state.time >= lengthOf(run) - 1e-9;
      const text = over ? run.end : "";
      end.textContent = text;
      end.className = `end${over && run.contact !== null ? " hitting" : over && run.success ? " solved" : ""}`;
      if (text) said.push(`${byId(data.conditions, run.c).label}: ${text}`);
      drawRun(canvas, run);
    }
    const sentence = said.join("; ");
    if (sentence !== state.said) { state.said = sentence; live.textContent = sentence; }
  }

  function drawRun(canvas, run) {
    const width = canvas.clientWidth;
    if (!width) return;
    const ratio = window.devicePixelRatio || 1;
    const height = width + TIMELINE;
    canvas.style.height = `${height}px`;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const unit = width / (xHigh - xLow);
    const toX = (x) => (x - xLow) * unit;
    const toY = (y) => (yHigh - y) * unit;
    drawFloor(pen, width, toX, toY);
    for (const wall of run.walls) drawWall(pen, wall, toX, toY);
    const at = frameAt(run, state.time);
    const robots = [...run.robots].reverse(); // the ego is drawn last, on top
    for (const robot of robots) drawGoal(pen, robot, toX, toY);
    for (const robot of robots) drawTrail(pen, robot, at, toX, toY);
    for (const robot of robots) drawRobot(pen, run, robot, at, toX, toY, unit);
    drawTimeline(pen, run, at, width, width, TIMELINE);
  }

  function drawFloor(pen, width, toX, toY) {
    pen.strokeStyle = colours.grid;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let x = Math.ceil(xLow); x <= xHigh; x += 1) { pen.moveTo(toX(x), 0); pen.lineTo(toX(x), width); }
    for (let y = Math.ceil(yLow); y <= yHigh; y += 1) { pen.moveTo(0, toY(y)); pen.lineTo(width, toY(y)); }
    pen.stroke();
    const metre = toX(xLow + 1);
    pen.strokeStyle = colours.soft;
    pen.beginPath();
    pen.moveTo(12, width - 12); pen.lineTo(12 + metre, width - 12);
    pen.moveTo(12, width - 16); pen.lineTo(12, width - 8);
    pen.moveTo(12 + metre, width - 16); pen.lineTo(12 + metre, width - 8);
    pen.stroke();
    write(pen, "1 m", 12 + metre / 2, width - 18, colours.soft, "center");
  }

  function drawWall(pen, corners, toX, toY) {
    pen.beginPath();
    for (let i = 0; i < corners.length; i += 2) pen.lineTo(toX(corners[i] / 1000), toY(corners[i + 1] / 1000));
    pen.closePath();
    pen.fillStyle = colours.line;
    pen.fill();
    pen.strokeStyle = colours.soft;
    pen.lineWidth = 1;
    pen.stroke();
  }

  function drawGoal(pen, robot, toX, toY) {
    if (!robot.goal) return;
    const [x, y] = [toX(robot.goal[0]), toY(robot.goal[1])];
    pen.strokeStyle = colours[robot.role];
    pen.lineWidth = 2.5;
    pen.lineCap = "round";
    pen.beginPath();
    pen.moveTo(x - 6, y - 6); pen.lineTo(x + 6, y + 6);
    pen.moveTo(x - 6, y + 6); pen.lineTo(x + 6, y - 6);
    pen.stroke();
  }

  function place(robot, at) {
    const low = Math.floor(at);
    const high = Math.min(robot.path.length / 2 - 1, low + 1);
    const share = at - low;
    return [0, 1].map((axis) => ((1 - share) * robot.path[2 * low + axis] + share * robot.path[2 * high + axis]) / 1000);
  }

  function drawTrail(pen, robot, at, toX, toY) {
    const last = Math.floor(at);
    pen.strokeStyle = colours[robot.role];
    pen.lineWidth = 2.5;
    pen.lineCap = "butt"; // round caps would overlap and show as dots
    for (let i = 0; i <= last; i += 1) {
      const from = place(robot, i);
      const to = place(robot, Math.min(i + 1, at));
      pen.globalAlpha = 0.15 + 0.65 * Math.exp(-(last - i) / 25);
      pen.beginPath();
      pen.moveTo(toX(from[0]), toY(from[1])); pen.lineTo(toX(to[0]), toY(to[1]));
      pen.stroke();
    }
    pen.globalAlpha = 1;
  }

  function disc(pen, x, y, radius) {
    pen.beginPath();
    pen.arc(x, y, radius, 0, 2 * Math.PI);
  }

  function drawRobot(pen, run, robot, at, toX, toY, unit) {
    const [x, y] = place(robot, at);
    const radius = robot.r * unit;
    const colour = colours[robot.role];
    disc(pen, toX(x), toY(y), radius);
    pen.fillStyle = colour;
    pen.globalAlpha = robot.role === "ego" ? 1 : 0.85;
    pen.fill();
    pen.globalAlpha = 1;
    const strength = robot.role === "ego" && run.act.length ? run.act[Math.min(run.act.length - 1, Math.ceil(at))] : 0;
    if (strength > 0) {
      disc(pen, toX(x), toY(y), radius + 4 + Math.min(8, 3 * strength));
      pen.strokeStyle = colours.on;
      pen.lineWidth = 2.5;
      pen.stroke();
    }
    if (robot.role === "ego" && run.contact !== null && at >= run.contact) {
      disc(pen, toX(x), toY(y), radius + 6);
      pen.strokeStyle = colours.bad;
      pen.lineWidth = 4;
      pen.stroke();
    }
    if (radius > 9) write(pen, robot.role === "ego" ? "E" : robot.role === "partner" ? "P" : "", toX(x), toY(y) + 4, colours.floor, "center", true);
  }

  function drawTimeline(pen, run, at, top, width, height) {
    const tight = width < TIGHT;
    const left = tight ? RIGHT : LEFT, right = width - RIGHT, base = top + height - 20, roof = top + 22;
    const most = Math.max(...[...state.runs.values()].flatMap((r) => r.d)) / 1000 || 1;
    const x = (time) => left + ((right - left) * time) / state.end;
    const y = (distance) => base - ((base - roof) * distance) / most;
    pen.fillStyle = colours.card;
    pen.fillRect(0, top, width, height);
    pen.strokeStyle = colours.line;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(0, top); pen.lineTo(width, top);
    pen.moveTo(left, base); pen.lineTo(right, base);
    pen.stroke();
    if (!tight) {
      write(pen, `${most.toFixed(1)} m`, left - 4, roof + 4, colours.soft, "right");
      write(pen, "0", left - 4, base + 4, colours.soft, "right");
    }
    if (data.contact !== null) {
      pen.fillStyle = colours["danger-zone"];
      pen.fillRect(left, y(data.contact), right - left, base - y(data.contact));
      pen.strokeStyle = colours.bad;
      pen.setLineDash([5, 4]);
      pen.beginPath(); pen.moveTo(left, y(data.contact)); pen.lineTo(right, y(data.contact)); pen.stroke();
      pen.setLineDash([]);
    }
    const acting = run.act.map((value, i) => (value > 0 ? i : -1)).filter((i) => i >= 0);
    if (run.act.length) {
      pen.fillStyle = colours.on;
      for (const i of acting) pen.fillRect(x((i - 1) * run.dt), base + 3, Math.max(1, x(run.dt) - left), 4);
      write(pen, acting.length ? "filter acting" : "filter never acts", left, base + 17, colours.on, "left");
    }
    const css = byId(data.conditions, run.c).css;
    pen.setLineDash([2, 3]);
    curve(pen, run, run.w.map((gap) => Math.min(gap, 1000 * most)), run.w.length - 1, x, y, colours.soft, 1);
    pen.setLineDash([]);
    curve(pen, run, run.d, run.d.length - 1, x, y, colours[css], 0.28);
    curve(pen, run, run.d, at, x, y, colours[css], 1);
    pen.strokeStyle = colours.ink;
    pen.beginPath(); pen.moveTo(x(state.time), roof - 4); pen.lineTo(x(state.time), base); pen.stroke();
    const low = Math.floor(at), high = Math.min(run.d.length - 1, low + 1);
    const distance = ((1 - (at - low)) * run.d[low] + (at - low) * run.d[high]) / 1000;
    write(pen, `${tight ? "" : "distance "}${distance.toFixed(2)} m`, right, roof - 8, colours.soft, "right");
  }

  function curve(pen, run, values, upTo, x, y, colour, alpha) {
    pen.globalAlpha = alpha;
    pen.strokeStyle = colour;
    pen.lineWidth = 2;
    pen.beginPath();
    for (let i = 0; i <= Math.floor(upTo); i += 1) pen.lineTo(x(i * run.dt), y(values[i] / 1000));
    pen.stroke();
    pen.globalAlpha = 1;
  }

  function write(pen, text, x, y, colour, align, bold = false) {
    pen.font = `${bold ? "700 " : ""}11px system-ui, sans-serif`;
    pen.textAlign = align;
    pen.fillStyle = colour;
    pen.fillText(text, x, y);
  }

  for (const chip of chips) chip.addEventListener("click", () => { play(false); choose(chip.dataset.partner, state.pick); });
  for (const chip of picks) chip.addEventListener("click", () => { play(false); choose(state.partner, chip.dataset.pick); });
  playButton.addEventListener("click", () => play(!state.playing));
  const step = (count) => { play(false); seek(state.time + count * state.step); };
  for (const button of steps) button.addEventListener("click", () => step(Number(button.dataset.step)));
  root.addEventListener("keydown", (event) => {
    if (event.target.matches("input, select") || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") step(event.key === "ArrowLeft" ? -1 : 1);
    else if (event.key === " " && !event.target.matches("button")) play(!state.playing);
    else return;
    event.preventDefault();
  });
  scrub.addEventListener("input", () => { play(false); seek(Number(scrub.value) * state.step); playButton.textContent = "Play"; });
  for (const view of views) {
    view.querySelector("canvas").addEventListener("click", (event) => {
      const box = event.currentTarget.getBoundingClientRect();
      if (event.clientY - box.top < box.width) { play(!state.playing); return; }
      const left = box.width < TIGHT ? RIGHT : LEFT;
      play(false);
      seek(((event.clientX - box.left - left) / (box.width - left - RIGHT)) * state.end);
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); draw(); });
  new MutationObserver(() => { readColours(); draw(); }).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  new ResizeObserver(draw).observe(root);

  // A link such as report.html#watch=chaser:telling@2.1 opens one recording at one time.
  const wanted = /^#watch=([^:@]+)(?::([^@]+))?(?:@([0-9.]+))?$/.exec(location.hash);
  const known = wanted && data.partners.find((partner) => encodeURIComponent(partner.id) === wanted[1]);
  root.hidden = false;
  readColours();
  choose(known ? known.id : data.partners[0].id, known && wanted[2] ? decodeURIComponent(wanted[2]) : data.runs[0].pick, known ? Number(wanted[3] || 0) : 0);
  if (known) document.getElementById("watch").scrollIntoView();
})();
