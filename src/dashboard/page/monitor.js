// SPDX-License-Identifier: Apache-2.0
// What an event says, as figures, curves and tables.

import {Chart, chartColors} from "./chart.js";
import {History} from "./history.js";
import {Table} from "./table.js";
import {ago, bytes, count, el, rate, say, seconds, show} from "./text.js";

const USES = [
  ["weights", "weights"], ["kv", "KV cache"], ["adapters", "adapters"], ["scratch", "scratch"],
  ["requests", "requests"], ["other", "other"],
];
const PERCENTILES = ["p50", "p90", "p99"];
const NAMES = [
  "budget", ...USES.map(([name]) => name), "generated", "prompt", "running", "waiting", "requests_per_s",
  ...PERCENTILES.flatMap((p) => ["ttft_" + p, "gap_" + p]),
];

const byId = (id) => document.getElementById(id);

// The figures of an event that curves are drawn of.
export function figuresOf(event) {
  const figures = {running: event.requests.running, waiting: event.requests.waiting};
  if (event.kind === "router") return {...figures, requests_per_s: event.rates.requests_per_s};
  const memory = event.memory.device || event.memory;
  for (const [name] of [...USES, ["budget"]]) figures[name] = memory[name + "_bytes"];
  figures.waiting += event.requests.waiting_for_adapter;
  figures.generated = event.rates.generated_tokens_per_s;
  figures.prompt = event.rates.prompt_tokens_per_s;
  for (const p of PERCENTILES) {
    figures["ttft_" + p] = event.ttft[p + "_s"];
    figures["gap_" + p] = event.token_times[p + "_s"];
  }
  return figures;
}

class Tiles {
  constructor(place) {
    this.place = place;
    this.tiles = new Map();
  }

  // [[label, figure, more]]
  fill(rows) {
    for (const [label, figure, more] of rows) {
      if (!this.tiles.has(label)) {
        const tile = {figure: el("dd", {class: "figure"}), more: el("dd", {class: "more"})};
        this.place.append(el("div", {class: "tile"}, el("dt", {}, label), tile.figure, tile.more));
        this.tiles.set(label, tile);
      }
      const tile = this.tiles.get(label);
      say(tile.figure, figure);
      say(tile.more, more || "\u00a0");
    }
  }
}

function pill(cell, text, kind = text) {
  if (!cell.firstChild) cell.append(el("span"));
  const node = cell.firstChild;
  say(node, text);
  if (node.className !== "pill " + kind) node.className = "pill " + kind;
}

function share(cell, part, whole, text) {
  if (!cell.firstChild) cell.append(el("span"), " ", el("span", {class: "meter", "aria-hidden": "true"}, el("i")));
  say(cell.firstChild, text);
  show(cell.lastChild, whole > 0);
  cell.lastChild.firstChild.style.width = whole > 0 ? Math.min(100, part / whole * 100).toFixed(1) + "%" : "0";
}

const holderName = (holder) =>
  (holder.adapters.map((one) => one.name || "(gone) " + one.version.slice(0, 8)).join(" + ") || "base model") +
  (holder.salted ? ", salted" : "");

function sequenceColumns(waits) {
  const shared = [
    {label: "Request", text: (row) => (row.id || "ended") + (row.choice ? " #" + row.choice : ""), kind: "text"},
    {label: "Adapter", text: (row) => row.adapter || "base model", kind: "name"},
    {label: "In", text: (row) => count(row.input_tokens), number: true},
    {label: "Out", text: (row) => count(row.output_tokens), number: true},
  ];
  if (!waits) return [...shared, {label: "For", text: (row) => seconds(row.running_s), number: true}];
  return [...shared, {label: "Waits", text: (row) => seconds(row.waited_s), number: true},
    {label: "For what", text: (row) => row.cause.replaceAll("_", " "), kind: "text"}];
}

export class Monitor {
  // act(action, name): of a button in the table of adapters.
  constructor(act) {
    this.history = new History(NAMES);
    this.tiles = new Tiles(byId("tiles"));
    this.act = act;
    this.makeCharts();
    this.makeRanges();
    this.makeAdapters();
    this.makeQueues();
    this.makeKv();
    this.makeMemory();
    this.makeReplicas();
    this.event = null;
  }

  makeCharts() {
    const percentiles = (prefix) => PERCENTILES.map((p) => ({key: prefix + p, label: p.toUpperCase()}));
    this.memoryChart = new Chart(this.history, {title: "Memory", format: bytes, stacked: true, inBytes: true, double: true,
      series: USES.map(([key, label]) => ({key, label})), limit: {key: "budget", label: "budget"}});
    this.requestsChart = new Chart(this.history, {title: "Requests", format: rate,
      series: [{key: "running", label: "running"}, {key: "waiting", label: "waiting"}]});
    this.serverCharts = [this.memoryChart, this.requestsChart,
      new Chart(this.history, {title: "Time to first token", format: seconds, series: percentiles("ttft_")}),
      new Chart(this.history, {title: "Time between tokens", format: seconds, series: percentiles("gap_")}),
      new Chart(this.history, {title: "Tokens a second", format: rate,
        series: [{key: "generated", label: "generated"}, {key: "prompt", label: "prompt"}]})];
    this.routerCharts = [this.requestsChart, new Chart(this.history, {title: "Requests a second", format: rate, double: true,
      series: [{key: "requests_per_s", label: "sent to replicas"}]})];
    this.charts = [];
  }

  makeRanges() {
    this.history.rows.forEach((row, i) => {
      const button = el("button", {type: "button", "aria-pressed": String(i === 0)}, row.label);
      button.addEventListener("click", () => {
        this.history.shown = i;
        [...byId("ranges").children].forEach((one, k) => one.setAttribute("aria-pressed", String(k === i)));
        this.drawCharts();
      });
      byId("ranges").append(button);
    });
  }

  makeAdapters() {
    const number = (label, key, text = count) =>
      ({label, number: true, value: (row) => row[key], text: (row) => text(row[key])});
    const name = {label: "Name", kind: "name", value: (row) => row.name, text: (row) => row.name};
    const actions = {label: "", fill: (cell, row) => this.fillActions(cell, row)};
    this.serverColumns = [name,
      {label: "Place", value: (row) => row.place, fill: (cell, row) => {
        pill(cell, row.place);
        const title = row.error || (row.load_s > 0 ? "loaded in " + seconds(row.load_s) : "");
        if (cell.title !== title) cell.title = title;
      }},
      number("Rank", "rank", (value) => value > 0 ? count(value) : "-"), number("Size", "bytes", (value) => value > 0 ? bytes(value) : "-"),
      number("Running", "running"), number("Waiting", "waiting"), number("Uses", "uses"),
      number("Score", "score", (value) => typeof value === "number" ? value.toPrecision(3) : "-"),
      number("Last used", "used_ago_s", (value) => value === 0 ? "now" : ago(value)), actions];
    this.routerColumns = [name, actions];
    byId("adapters-filter").addEventListener("input", () => this.fillAdapters());
    byId("adapters-place").addEventListener("change", () => this.fillAdapters());
  }

  fillActions(cell, row) {
    if (!cell.firstChild) {
      for (const action of ["Pin", "Unpin", "Unload"]) {
        const button = el("button", {type: "button", class: "quiet"}, action);
        button.addEventListener("click", () => this.press(button, action, button.closest("tr").item.name));
        cell.append(button);
      }
    }
    const [pin, unpin, unload] = cell.children;
    if (cell.of !== row.name) this.disarm(unload);
    cell.of = row.name;
    show(pin, row.pinned !== true);
    show(unpin, row.pinned !== false);
    for (const [button, action] of [[pin, "Pin"], [unpin, "Unpin"], [unload, "Unload"]]) {
      const label = action + " " + row.name;
      if (button.getAttribute("aria-label") !== label) button.setAttribute("aria-label", label);
    }
  }

  // What cannot be taken back is asked for twice.
  press(button, action, name) {
    if (action === "Unload" && !button.classList.contains("armed")) {
      button.classList.add("armed");
      say(button, "Really unload?");
      button.timer = setTimeout(() => this.disarm(button), 5000);
      return;
    }
    this.disarm(button);
    this.act(action.toLowerCase(), name);
  }

  disarm(button) {
    if (!button.classList.contains("armed")) return;
    clearTimeout(button.timer);
    button.classList.remove("armed");
    say(button, "Unload");
  }

  makeQueues() {
    this.queuesTable = new Table(byId("queues-table"), {label: "Queues of the scheduler", sortable: false,
      empty: "The engine has not answered yet.", key: (row) => row.queue, columns: [
        {label: "Class", text: (row) => String(row.queue)},
        {label: "Sizes", text: (row) => row.size_from || row.size_to !== null
          ? count(row.size_from) + (row.size_to === null ? " and more" : " - " + count(row.size_to)) : "all"},
        {label: "Waiting", text: (row) => count(row.waiting), number: true},
        {label: "Running", text: (row) => count(row.running), number: true},
        {label: "Longest wait", text: (row) => row.waiting ? seconds(row.longest_wait_s) : "-", number: true},
        {label: "Quota (tokens)", number: true, fill: (cell, row) => share(cell, row.taken_tokens, row.quota_tokens,
          row.quota_tokens === null ? count(row.taken_tokens) + " of all" : count(row.taken_tokens) + " of " + count(row.quota_tokens))},
      ]});
    const key = (row) => row.id + "/" + row.choice + "/" + row.adapter;
    this.waitingTable = new Table(byId("waiting-table"), {label: "Requests that wait", sortable: false,
      empty: "Nobody waits.", key, columns: sequenceColumns(true)});
    this.runningTable = new Table(byId("running-table"), {label: "Requests that run", sortable: false,
      empty: "Nothing runs.", key, columns: sequenceColumns(false)});
  }

  makeKv() {
    const number = (label, key, text = count) =>
      ({label, number: true, value: (row) => row[key], text: (row) => text(row[key])});
    this.kvParts = [["running", "k1"], ["cached", "k2"], ["free", "room"]].map(([label, kind]) => ({label, bar: el("i", {class: kind}),
      key: el("span", {class: "key " + kind, "aria-hidden": "true"}), figure: el("b")}));
    byId("kv-bar").append(el("div", {class: "split", "aria-hidden": "true"}, ...this.kvParts.map((part) => part.bar)),
      el("ul", {class: "legend split-legend"}, ...this.kvParts.map((part) => el("li", {}, part.key, part.label + " ", part.figure))));
    this.kvTable = new Table(byId("kv-table"), {label: "KV cache by holder", key: holderName, empty: "Nothing is held.",
      sort: {column: 1, down: true}, columns: [
        {label: "Holder", kind: "name", value: holderName, text: holderName},
        number("Tokens", "tokens"), number("Memory", "stored_bytes", bytes), number("Running", "running_tokens"),
        number("In blocks", "raw_tokens"), number("Encoded", "alone_coded_tokens"), number("As deltas", "delta_tokens"),
        number("Gone", "gone_tokens"), number("Found again", "hit_tokens")]});
    this.appsTable = new Table(byId("apps-table"), {label: "KV cache by application", key: (row) => row.id,
      empty: "No request named an application.", sort: {column: 2, down: true}, columns: [
        {label: "Application", kind: "name", value: (row) => row.id, text: (row) => row.id},
        {label: "State", value: (row) => row.state, fill: (cell, row) => pill(cell, row.state)},
        number("Tokens", "tokens"), number("Of these alone", "alone_tokens")]});
  }

  makeMemory() {
    const columns = [{label: "Use", text: (row) => row.use}, {label: "Host", text: (row) => row.host, number: true},
      {label: "Device", text: (row) => row.device, number: true}];
    this.memoryTable = new Table(byId("memory-table"), {label: "Memory by use", sortable: false, empty: "", key: (row) => row.use, columns});
    this.residencyTable = new Table(byId("residency-table"), {label: "Where the weights are", sortable: false, empty: "",
      key: (row) => row.what, columns: [{label: "Weights", text: (row) => row.what}, {label: "", text: (row) => row.figure, number: true}]});
  }

  makeReplicas() {
    const number = (label, key) => ({label, number: true, value: (row) => row[key], text: (row) => count(row[key])});
    this.replicasTable = new Table(byId("replicas-table"), {label: "Replicas behind this router", key: (row) => row.replica,
      empty: "No replica is known.", sort: {column: 0, down: false}, columns: [
        {label: "Replica", kind: "name", value: (row) => row.replica, text: (row) => row.replica},
        {label: "State", value: (row) => row.state, fill: (cell, row) => pill(cell, row.state)},
        number("Requests", "requests"), number("Waiting", "waiting"),
        number("Runs", "reported_running"), number("Queued", "reported_waiting"), number("Most", "sequences_max"),
        number("Adapters", "adapters"), number("In memory", "adapters_in_memory"), number("On device", "adapters_on_device"),
        number("Picks", "picks"), number("Failures", "failures"),
        {label: "Why", kind: "text", text: (row) => row.why || ""}]});
  }

  take(event) {
    this.history.add(event.unix_ms, figuresOf(event));
    this.event = event;
  }

  setKind(kind) {
    if (this.kind === kind) return;
    this.kind = kind;
    this.charts = kind === "router" ? this.routerCharts : this.serverCharts;
    byId("charts").replaceChildren(...this.charts.map((chart) => chart.node));
    byId("adapters-table").replaceChildren();
    this.adaptersTable = new Table(byId("adapters-table"), {label: "Adapters", key: (row) => row.name,
      empty: "No adapter fits.", columns: kind === "router" ? this.routerColumns : this.serverColumns});
    for (const node of document.querySelectorAll(".server-only")) show(node, kind === "server");
    show(byId("replicas-panel"), kind === "router");
  }

  render() {
    const event = this.event;
    if (event === null) return;
    this.setKind(event.kind);
    this.fillAdapters();
    if (event.kind === "router") this.renderRouter(event);
    else this.renderServer(event);
    this.drawCharts();
  }

  drawCharts() {
    const colors = chartColors();
    for (const chart of this.charts) chart.draw(colors);
  }

  fillAdapters() {
    if (this.event === null || !this.adaptersTable) return;
    const adapters = this.event.adapters;
    const wanted = byId("adapters-filter").value.trim().toLowerCase(), place = byId("adapters-place").value;
    const fit = adapters.first.filter((row) => (!wanted || row.name.toLowerCase().includes(wanted)) && (!place || row.place === place));
    this.adaptersTable.fill(fit, wanted || place ? fit.length : adapters.total);
    const told = adapters.first.length < adapters.total ? ", the busiest " + adapters.first.length + " shown" : "";
    say(byId("adapters-count"), count(adapters.total) + " registered" + told);
  }

  renderRouter(event) {
    const up = event.replicas.filter((row) => row.state === "up" || row.state === "returning").length;
    this.tiles.fill([
      ["Replicas up", up + " of " + event.replicas.length],
      ["Requests", count(event.requests.running), count(event.requests.waiting) + " without a token yet"],
      ["Requests a second", rate(event.rates.requests_per_s)],
      ["Adapters", count(event.adapters.total), "in the fleet"],
    ]);
    this.replicasTable.fill(event.replicas);
  }

  renderServer(event) {
    const memory = event.memory.device || event.memory, requests = event.requests;
    const used = USES.reduce((sum, [name]) => sum + memory[name + "_bytes"], 0);
    const versions = event.adapters.versions;
    const tail = (times) => times.count ? "P90 " + seconds(times.p90_s) + ", P99 " + seconds(times.p99_s) : "nothing in the last 10 s";
    this.tiles.fill([
      ["Running", count(requests.running), count(requests.waiting) + " waiting, " + count(requests.waiting_for_adapter) + " for an adapter"],
      ["Tokens a second", rate(event.rates.generated_tokens_per_s), "prompt " + rate(event.rates.prompt_tokens_per_s)],
      ["Time to first token", seconds(event.ttft.p50_s), tail(event.ttft)],
      ["Time between tokens", seconds(event.token_times.p50_s), tail(event.token_times)],
      ["Memory", bytes(used), "of " + bytes(memory.budget_bytes) + (event.memory.device ? " on " + event.memory.device.name : "")],
      ["Adapters in memory", count(versions.host + versions.device), "of " + count(event.adapters.total) +
        (versions.loading ? ", " + versions.loading + " loading" : "") + (versions.failed ? ", " + versions.failed + " failed" : "")],
    ]);
    this.renderQueues(event);
    this.renderKv(event.kv);
    this.renderMemory(event);
  }

  renderQueues(event) {
    const queues = event.queues;
    say(byId("queues-note"), queues === null ? "" : queues.policy +
      (event.queues_ago_s > 2 ? ", as of " + ago(event.queues_ago_s) + " ago: the engine is in a long step" : ""));
    if (queues === null) return this.queuesTable.fill([]);
    this.queuesTable.fill(queues.queues);
    const sum = (key) => queues.queues.reduce((all, queue) => all + queue[key], 0);
    const waiting = [...queues.queues.flatMap((queue) => queue.first_waiting), ...queues.unplaced.first_waiting];
    this.waitingTable.fill(waiting, sum("waiting") + queues.unplaced.waiting);
    this.runningTable.fill(queues.queues.flatMap((queue) => queue.first_running), sum("running"));
  }

  renderKv(kv) {
    const free = Math.max(0, kv.total_tokens - kv.running_tokens - kv.cached_tokens);
    [kv.running_tokens, kv.cached_tokens, free].forEach((tokens, i) => {
      const part = this.kvParts[i];
      part.bar.style.width = (kv.total_tokens > 0 ? tokens / kv.total_tokens * 100 : 0).toFixed(2) + "%";
      say(part.figure, count(tokens));
    });
    const hits = kv.prefix_queries > 0 ? Math.round(kv.prefix_hits / kv.prefix_queries * 100) + " % of prompts found" : "";
    say(byId("kv-note"), [count(kv.total_tokens) + " tokens", kv.held ? kv.held.encoded.sharing : "", hits].filter(Boolean).join(", "));
    if (kv.held === null) return;
    this.kvTable.fill(kv.held.first, kv.held.holders);
    this.appsTable.fill(kv.apps.first, kv.apps.total);
  }

  renderMemory(event) {
    const host = event.memory, device = event.memory.device;
    this.memoryTable.fill([...USES, ["budget", "budget"]].map(([name, label]) => ({use: label, host: bytes(host[name + "_bytes"]),
      device: device ? bytes(device[name + "_bytes"]) : "-"})));
    const plan = event.residency, streamed = plan.streamed_bytes_per_pass > 0;
    say(byId("residency-note"), streamed ? "streamed: a part of the weights is read from disk in every pass"
      : "resident: nothing of the weights is read while requests run");
    const rows = [["in memory", bytes(plan.resident_bytes)], ["read in every pass", bytes(plan.streamed_bytes_per_pass)],
      ["read since the start", bytes(plan.read_bytes)], ["read a second", bytes(plan.read_bytes_per_s)],
      ["time of steps that waited for the disk", plan.step_s > 0 ? (plan.read_s / plan.step_s * 100).toFixed(1) + " %" : "-"]];
    if (plan.expert_hits + plan.expert_misses > 0)
      rows.push(["experts found in memory", (plan.expert_hits / (plan.expert_hits + plan.expert_misses) * 100).toFixed(1) + " %"]);
    const states = event.kv.held && event.kv.held.states;
    if (states) rows.push(["states of linear layers", states.running + " running, " + states.kept + " kept of " + states.total]);
    this.residencyTable.fill(rows.map(([what, figure]) => ({what, figure})));
  }
}
