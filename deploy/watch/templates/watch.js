"use strict";
const POLL = 1000;
const ENDED = ["finished", "failed", "interrupted"];
const byId = id => document.getElementById(id);
const percent = value => value === null ? "not known" : (100 * value).toFixed(1) + " %";
const writer = scored => scored && scored.in_percent ? percent
  : value => value === null ? "not known" : value.toFixed(3);
const joules = value => {
  if (value === null) return "not known";
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < 3) { value /= 1000; unit += 1; }
  return Number(value.toPrecision(3)) + " " + ["J", "kJ", "MJ", "GJ"][unit];
};
const duration = seconds => seconds < 90 ? Math.round(seconds) + " s"
  : seconds < 5400 ? Math.round(seconds / 60) + " min"
  : (seconds / 3600).toFixed(1) + " h";

function made(name, text, attributes = {}) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function drawn(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function steps(low, high) {
  const rough = (high - low) / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find(factor => factor * power >= rough) * power;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(at);
  return found;
}

class Chart {
  constructor(id, write, axis) {
    this.svg = byId(id);
    this.readout = byId(id + "-values");
    this.write = write;
    this.axis = axis;
    this.rounds = [];
    this.lines = [];
    this.at = null;
    this.svg.addEventListener("pointermove", event => this.point(event));
    this.svg.addEventListener("pointerdown", event => this.point(event));
    this.svg.addEventListener("pointerleave", () => { this.at = null; this.draw(); });
    this.svg.addEventListener("keydown", event => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }
  show(rounds, lines) { this.rounds = rounds; this.lines = lines; this.draw(); }
  point(event) {
    if (!this.place || !this.rounds.length) return;
    const box = this.svg.getBoundingClientRect();
    const across = event.clientX - box.left;
    let best = 0;
    this.rounds.forEach((round, index) => {
      const nearer = Math.abs(this.place.x(round) - across)
        < Math.abs(this.place.x(this.rounds[best]) - across);
      if (nearer) best = index;
    });
    this.at = this.rounds[best];
    this.draw();
  }
  key(event) {
    const last = this.rounds.length - 1;
    if (last < 0) return;
    const now = this.at === null ? last : this.rounds.indexOf(this.at);
    const moved = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.at = null;
    else if (moved === undefined) return;
    else this.at = this.rounds[Math.min(last, Math.max(0, moved))];
    event.preventDefault();
    this.readout.setAttribute("aria-live", "polite");
    this.draw();
  }
  draw() {
    const width = this.svg.clientWidth, height = this.svg.clientHeight;
    this.svg.replaceChildren();
    if (!width || !this.rounds.length) { this.say(); return; }
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const values = this.lines.flatMap(line => line.values).filter(value => value !== null);
    const low = values.reduce((a, b) => Math.min(a, b), this.axis[0]), first = this.rounds[0];
    let high = values.reduce((a, b) => Math.max(a, b), this.axis[0]);
    if (high <= low) high = low + 1;
    const last = Math.max(this.rounds[this.rounds.length - 1], first + 1);
    const left = 58, right = width - 12, top = 10, bottom = height - 36;
    const x = round => left + (right - left) * (round - first) / (last - first);
    const y = value => bottom - (bottom - top) * (value - low) / (high - low);
    this.place = { x, y };
    for (const value of steps(low, high)) {
      const height = y(value);
      this.put("line", { class: "grid", x1: left, x2: right, y1: height, y2: height });
      this.put("text", { x: left - 6, y: height + 4, "text-anchor": "end" }, this.write(value));
    }
    for (const round of steps(first, last).filter(Number.isInteger)) {
      this.put("text", { x: x(round), y: bottom + 16, "text-anchor": "middle" }, round);
    }
    this.put("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom });
    this.put("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, "round");
    for (const line of [...this.lines].reverse()) this.curve(line, x, y);
    if (this.at !== null && this.rounds.includes(this.at)) {
      const across = x(this.at);
      this.put("line", { class: "cursor", x1: across, x2: across, y1: top, y2: bottom });
    }
    this.say();
  }
  put(name, attributes, text) { this.svg.append(drawn(name, attributes, text)); }
  curve(line, x, y) {
    const look = { class: line.site === null ? "whole" : "site" };
    let run = [];
    const end = () => {
      if (run.length === 1) run.push([run[0][0] + 0.01, run[0][1]]);
      if (run.length) {
        const curve = drawn("polyline", { ...look, points: run.map(p => p.join(",")).join(" ") });
        if (line.color !== null) curve.style.stroke = line.color;
        curve.style.strokeLinecap = "round";
        curve.append(drawn("title", {}, line.name));
        this.svg.append(curve);
      }
      run = [];
    };
    line.values.forEach((value, index) => {
      if (value === null) end(); else run.push([x(this.rounds[index]), y(value)]);
    });
    end();
  }
  say() {
    if (!this.rounds.length) { this.readout.textContent = "No round has ended."; return; }
    const index = this.at === null ? this.rounds.length - 1 : this.rounds.indexOf(this.at);
    if (index < 0) return;
    const told = this.lines.slice(0, 24);
    this.readout.replaceChildren(`Round ${this.rounds[index]}: `);
    told.forEach((line, place) => {
      if (line.color !== null) {
        const swatch = made("span", "", { class: "swatch" });
        swatch.style.background = line.color;
        this.readout.append(swatch);
      }
      this.readout.append(line.name + " ", made("b", this.write(line.values[index])));
      this.readout.append(place < told.length - 1 ? ", " : "");
    });
    const more = this.lines.length - told.length;
    if (more > 0) this.readout.append(`, and ${more} more`);
  }
}

function badge(state) {
  byId("state").textContent = state;
  byId("state").className = "badge " + state;
  document.title = byId("name").textContent + ": " + state;
}

function cells(row, texts, numbers) {
  texts.forEach((text, index) => {
    row.append(made("td", text, numbers.includes(index) ? { class: "number" } : {}));
  });
}

class Run {
  constructor() {
    this.score = new Chart("score", percent, [0]);
    this.joules = new Chart("joules", joules, [0]);
    this.off = new Set();
    this.known = "";
    for (const id of ["filter", "each"]) byId(id).addEventListener("input", () => this.filtered());
  }
  source() { return "snapshot.json"; }
  show(found) {
    this.found = found;
    byId("name").textContent = found.name;
    badge(found.state);
    if (found.state === "waiting") {
      byId("step").textContent = "The run has not begun: " + found.folder + " is not there yet.";
      return;
    }
    if (found.state === "unreadable") {
      byId("step").textContent = found.error;
      return;
    }
    const label = found.score.label;
    byId("score-title").textContent = label[0].toUpperCase() + label.slice(1);
    byId("scored").textContent = label;
    this.score.write = writer(found.score);
    byId("lead").replaceChildren(...found.lead.map(words => made("p", words, { class: "lead" })));
    const left = found.seconds_left === null ? "" : `, about ${duration(found.seconds_left)} left`;
    byId("step").textContent = `Round ${found.round} of ${found.rounds}${left}`;
    byId("progress").max = Math.max(found.rounds, 1);
    byId("progress").value = found.round;
    const asking = found.asking;
    byId("asking").hidden = asking === null;
    if (asking !== null) {
      const first = asking.sites.slice(0, 12).join(", "), more = asking.sites.length - 12;
      byId("asking").textContent = `Round ${asking.round}, ${asking.doing}: ${first}`
        + (more > 0 ? ` and ${more} more` : "");
    }
    byId("missing").hidden = !found.missing.length;
    byId("missing").textContent = `No reply in round ${found.last}: ${found.missing.join(", ")}`;
    byId("error").hidden = !found.error;
    byId("error").textContent = found.error;
    byId("facts").replaceChildren(...found.facts.map(fact => {
      const card = made("div");
      card.append(made("dt", fact.label), made("dd", fact.value));
      card.append(made("dd", fact.note, { class: "note" }));
      return card;
    }));
    for (const id of ["report", "save"]) byId(id).hidden = false;
    this.clusters(found.sites);
    this.filtered();
  }
  clusters(sites) {
    const colors = new Map();
    for (const site of sites) if (site.cluster !== null) colors.set(site.cluster, site.color);
    const known = [...colors.keys()].sort((a, b) => a - b);
    if (known.join() === this.known) return;
    this.known = known.join();
    byId("clusters").hidden = known.length < 2;
    byId("clusters").replaceChildren(made("legend", "Clusters"), ...known.map(cluster => {
      const label = made("label"), box = made("input", undefined, { type: "checkbox" });
      box.checked = !this.off.has(cluster);
      box.addEventListener("input", () => {
        if (box.checked) this.off.delete(cluster); else this.off.add(cluster);
        this.filtered();
      });
      const swatch = made("span", "", { class: "swatch" });
      swatch.style.background = colors.get(cluster);
      label.append(box, swatch, "cluster " + cluster);
      return label;
    }));
  }
  filtered() {
    const found = this.found;
    if (!found || !found.sites) return;
    const words = byId("filter").value.trim().toLowerCase();
    const fits = site => site.site.toLowerCase().includes(words) && !this.off.has(site.cluster);
    const shown = found.sites.filter(fits), names = new Set(shown.map(site => site.site));
    const busy = new Set(found.asking === null ? [] : found.asking.sites);
    const doing = found.asking === null ? "" : found.asking.doing;
    const lines = found.curves.lines.filter(line => line.site === null
      ? !this.off.has(line.cluster)
      : names.has(line.site) && (words || byId("each").checked));
    this.score.show(found.curves.rounds, lines);
    this.joules.show(found.joules.rounds, found.joules.lines);
    byId("count").textContent = `${shown.length} of ${found.sites.length} sites`
      + (found.curves.whole ? "" : "; so many that only clusters have a line");
    byId("doing").textContent = "in round " + (found.last === null ? "1" : found.last);
    byId("sites").tBodies[0].replaceChildren(...shown.map(site => {
      const row = made("tr"), cluster = site.cluster === null ? "none" : String(site.cluster);
      cells(row, [site.site, cluster, this.score.write(site.score), busy.has(site.site) ? doing : "",
        site.doing, String(site.trained), joules(site.joules)], [2, 5, 6]);
      const swatch = made("span", "", { class: "swatch" });
      swatch.style.background = site.color;
      row.firstChild.prepend(swatch);
      return row;
    }));
  }
  async end(found) {
    const words = { finished: "The run has finished.", failed: "The run failed.",
      interrupted: "The run was interrupted; coterie resume goes on." }[found.state];
    byId("ended").hidden = false;
    byId("ended").textContent = words + " Nothing on this page changes any more. Its folder: "
      + found.folder;
    // The watcher ends now: what the links lead to must be in this window.
    const report = await (await fetch("report.html")).blob();
    const place = URL.createObjectURL(report);
    for (const id of ["report", "save"]) byId(id).href = place;
    byId("report").textContent = "The report";
  }
}

class Comparison {
  source() { return "runs.json"; }
  show(found) {
    byId("name").textContent = found.name;
    badge(found.state);
    const done = found.runs.filter(run => run.state === "finished").length;
    byId("step").textContent = `${done} of ${found.runs.length} runs that have begun are finished`;
    byId("progress").max = Math.max(found.runs.length, 1);
    byId("progress").value = done;
    byId("runs").tBodies[0].replaceChildren(...found.runs.map(run => {
      const row = made("tr");
      cells(row, ["", run.state, `${run.round} of ${run.rounds}`, run.score === null
          ? "not known" : `${run.scored.label} ${writer(run.scored)(run.score)}`,
        joules(run.joules)], [2, 3, 4]);
      const place = `run/${encodeURIComponent(run.folder)}/`;
      row.firstChild.append(made("a", run.label, { href: place }));
      return row;
    }));
  }
  async end(found) {
    byId("ended").hidden = false;
    byId("ended").textContent = "No run of this comparison is played any more. Its page: "
      + found.page;
  }
}

const view = document.body.dataset.page === "run" ? new Run() : new Comparison();
let lost = 0;
async function poll() {
  try {
    const answer = await fetch(view.source(), { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    const found = await answer.json();
    lost = 0;
    view.show(found);
    if (ENDED.includes(found.state)) { await view.end(found); return; }
  } catch (error) {
    lost += 1;
    if (lost >= 3) byId("step").textContent = "The watcher does not answer: it was ended.";
  }
  setTimeout(poll, lost >= 3 ? 5 * POLL : POLL);
}
poll();
