// SPDX-License-Identifier: Apache-2.0
// The page: its views, its keys, and the feed that fills them.

import {Feed} from "./feed.js";
import {Monitor} from "./monitor.js";
import {Playground} from "./playground.js";
import {say, sentenceOf, show} from "./text.js";

const byId = (id) => document.getElementById(id);

// In this page's memory only.
const keys = {admin: "", api: ""};
const headersOf = (key) => key ? {Authorization: "Bearer " + key} : {};
const adminHeaders = () => headersOf(keys.admin || keys.api);
const apiHeaders = () => headersOf(keys.api || keys.admin);

const monitor = new Monitor(act);
const playground = new Playground(apiHeaders);
let view = "monitor";
let frame = 0;

// --- events

// One event of the feed.
export function takeEvent(event) {
  monitor.take(event);
  if (!frame) {
    frame = requestAnimationFrame(() => {
      frame = 0;
      render();
    });
  }
}

export function render() {
  const event = monitor.event;
  if (event === null || document.hidden) return;
  say(byId("model"), event.server.model || "");
  say(byId("version"), "Loralei " + event.server.version + (event.kind === "router" ? ", router" : ""));
  const cannot = event.server.cannot.map((one) => one.why);
  say(byId("cannot"), cannot.join(" "));
  show(byId("cannot"), cannot.length > 0);
  if (view === "monitor") monitor.render();
  const names = event.adapters.first.map((one) => one.name).sort((a, b) => a.localeCompare(b, undefined, {numeric: true}));
  playground.setModels([event.server.model, ...names].filter(Boolean), event.adapters.total + 1);
}

function setState(kind, sentence) {
  byId("dot").dataset.state = kind;
  say(byId("state"), sentence);
  if (kind === "live") tellError("");
}

function tellError(sentence) {
  say(byId("error"), sentence);
  show(byId("error"), sentence !== "");
}

export const feed = new Feed("v1/admin/events?interval_ms=1000", adminHeaders, {
  event: takeEvent,
  state: setState,
  refused(sentence) {
    setState("refused", "a key is needed");
    askForKeys(sentence);
    listModels();
  },
});

// Without the admin key the playground still answers, to whoever has an API key.
async function listModels() {
  try {
    const response = await fetch("v1/models", {headers: apiHeaders(), credentials: "omit", cache: "no-store"});
    if (!response.ok) return;
    const names = (await response.json()).data.map((one) => one.id);
    playground.setModels(names.slice(0, 200), names.length);
  } catch {
    // The state says that the server does not answer.
  }
}

// --- keys

function showKeys(shown) {
  show(byId("keys-panel"), shown);
  byId("keys-button").setAttribute("aria-expanded", String(shown));
}

function askForKeys(sentence) {
  showKeys(true);
  say(byId("keys-error"), sentence);
  byId("admin-key").focus();
}

byId("keys-button").addEventListener("click", () => {
  showKeys(byId("keys-panel").hidden);
  if (!byId("keys-panel").hidden) byId("admin-key").focus();
});

byId("keys-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keys.admin = byId("admin-key").value.trim();
  keys.api = byId("api-key").value.trim();
  byId("admin-key").value = byId("api-key").value = "";
  say(byId("keys-error"), "");
  showKeys(false);
  byId("keys-button").focus();
  setState("waits", "connecting");
  feed.start();
});

// --- adapters

function tellAdmin(sentence, bad) {
  byId("admin-said").classList.toggle("bad", bad);
  say(byId("admin-said"), sentence);
}

async function send(method, path, body) {
  try {
    const response = await fetch(path, {
      method, credentials: "omit",
      headers: {...adminHeaders(), ...(body ? {"Content-Type": "application/json"} : {})},
      body: body ? JSON.stringify(body) : undefined,
    });
    if (!response.ok) return {ok: false, sentence: await sentenceOf(response)};
    return {ok: true, sentence: (await response.text()).slice(0, 1000)};
  } catch {
    return {ok: false, sentence: "The server does not answer."};
  }
}

async function act(action, name) {
  tellAdmin(action + " " + name + " ...", false);
  const done = action === "unload" ? await send("POST", "v1/unload_lora_adapter", {lora_name: name})
    : await send("POST", "v1/adapters/" + encodeURIComponent(name) + "/" + action);
  const well = {pin: "Pinned ", unpin: "Unpinned ", unload: "Unloaded "}[action] + name + ".";
  tellAdmin(done.ok ? (action === "unload" ? done.sentence : well) : done.sentence, !done.ok);
}

byId("load-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = byId("load-name").value.trim(), path = byId("load-path").value.trim();
  tellAdmin("Loading " + name + " ...", false);
  const done = await send("POST", "v1/load_lora_adapter",
    {lora_name: name, lora_path: path, ...(byId("load-pin").checked ? {pinned: true} : {})});
  tellAdmin(done.sentence, !done.ok);
  if (done.ok) byId("load-name").value = byId("load-path").value = "";
});

// --- views and theme

function setView() {
  if (location.hash === "#main") return;  // the link that skips the head
  view = location.hash === "#playground" ? "playground" : "monitor";
  for (const one of ["monitor", "playground"]) {
    show(byId("view-" + one), one === view);
    if (one === view) byId("to-" + one).setAttribute("aria-current", "page");
    else byId("to-" + one).removeAttribute("aria-current");
  }
  document.title = (view === "playground" ? "Playground" : "Monitor") + " - Loralei";
  render();
}
addEventListener("hashchange", setView);

const THEMES = ["system", "light", "dark"];

function storedTheme() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null;  // a browser that keeps nothing
  }
}

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  say(byId("theme-button"), "Theme: " + theme);
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // It holds until the page is closed.
  }
  if (view === "monitor") monitor.drawCharts();
}

byId("theme-button").addEventListener("click", () => {
  const now = byId("theme-button").textContent.replace("Theme: ", "");
  setTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});

for (const change of ["resize", "visibilitychange"]) addEventListener(change, () => render(), {capture: true});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => monitor.drawCharts());
setTheme(THEMES.includes(storedTheme()) ? storedTheme() : "system");
setView();
feed.start();
