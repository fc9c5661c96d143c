// SPDX-License-Identifier: Apache-2.0
// One prompt, answered by several models side by side.

import {readEvents} from "./feed.js";
import {count, el, rate, say, sentenceOf, seconds} from "./text.js";

const MODELS_LISTED = 200;
const CHOSEN_MOST = 12;

const byId = (id) => document.getElementById(id);

// An answer on its way.
class Answer {
  constructor(model) {
    this.model = model;
    this.thought = el("span", {class: "thought"});
    this.text = el("span");
    this.figures = el("p", {class: "figures"}, "waiting");
    this.error = el("p", {class: "error", role: "alert"});
    this.node = el("article", {class: "answer", "aria-label": "Answer of " + model}, el("h2", {}, model),
      el("pre", {tabindex: "0"}, this.thought, this.text), this.error, this.figures);
  }

  async ask(body, headers, signal) {
    const begin = performance.now();
    let first = 0, last = 0, pieces = 0, tokens = 0, finish = "";
    const since = () => (performance.now() - begin) / 1000;
    const tell = () => {
      const made = tokens || pieces;
      const parts = first ? ["first token " + seconds(first), made > 1 && last > first ? rate((made - 1) / (last - first)) + " tokens/s" : ""] : [];
      parts.push(made ? count(made) + " tokens" : "", finish);
      say(this.figures, parts.filter(Boolean).join(" \u00b7 ") || "waiting");
    };
    try {
      const response = await fetch("v1/chat/completions", {
        method: "POST", signal, credentials: "omit",
        headers: {"Content-Type": "application/json", ...headers},
        body: JSON.stringify({...body, model: this.model, stream: true, stream_options: {include_usage: true}}),
      });
      if (!response.ok) throw new Error(await sentenceOf(response));
      await readEvents(response, ({data}) => {
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new Error(event.error.message);
        if (event.usage) tokens = event.usage.completion_tokens;
        for (const choice of event.choices) {
          const delta = choice.delta || {};
          const said = delta.content || "", thought = delta.reasoning_content || delta.reasoning || "";
          if (said || thought) {
            last = since();
            first = first || last;
            ++pieces;
            this.text.append(said);
            this.thought.append(thought);
          }
          if (choice.finish_reason) finish = choice.finish_reason === "length" ? "cut at the most tokens" : choice.finish_reason;
        }
        tell();
      });
    } catch (error) {
      if (signal.aborted) finish = "stopped";
      else say(this.error, error instanceof TypeError ? "The server does not answer." : error.message);
      if (!signal.aborted) finish = "failed";
    }
    this.text.normalize();
    this.thought.normalize();
    tell();
  }
}

export class Playground {
  constructor(headers) {
    this.headers = headers;
    this.chosen = new Set();
    this.named = [];  // by the user
    this.listed = [];
    this.total = 0;
    this.rows = new Map();  // of the list, by name
    this.running = null;
    byId("models-filter").addEventListener("input", () => this.fillModels());
    byId("models-add").addEventListener("click", () => this.addNamed());
    byId("models-other").addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.addNamed();
    });
    byId("ask-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    byId("stop").addEventListener("click", () => this.running && this.running.abort());
  }

  addNamed() {
    const name = byId("models-other").value.trim();
    if (!name) return;
    if (!this.listed.includes(name) && !this.named.includes(name)) this.named = [name, ...this.named].slice(0, 50);
    byId("models-other").value = "";
    this.choose(name, true);
    this.fillModels();
  }

  choose(name, on) {
    if (on) this.chosen.add(name);
    else this.chosen.delete(name);
    if (this.chosen.size > CHOSEN_MOST) {
      this.chosen.delete(name);
      say(byId("models-note"), "At most " + CHOSEN_MOST + " answer at a time.");
    }
    say(byId("chosen"), this.chosen.size ? "(" + this.chosen.size + " chosen)" : "");
  }

  // names: the base first.
  setModels(names, total) {
    this.total = total;
    if (names.length === this.listed.length && names.every((name, i) => name === this.listed[i])) return;
    if (this.chosen.size === 0 && this.listed.length === 0) names.slice(0, 2).forEach((name) => this.choose(name, true));
    // Names keep their places: nothing moves under a pointer.
    const known = new Set(names);
    const stay = this.listed.filter((name) => known.has(name)), had = new Set(stay);
    this.listed = [...stay, ...names.filter((name) => !had.has(name))];
    this.fillModels();
  }

  fillModels() {
    const wanted = byId("models-filter").value.trim().toLowerCase();
    const names = [...new Set([...this.named, ...this.listed])];
    const fit = names.filter((name) => !wanted || name.toLowerCase().includes(wanted)).slice(0, MODELS_LISTED);
    const shown = new Set(fit);
    for (const [name, row] of this.rows) {
      if (shown.has(name)) continue;
      row.remove();
      this.rows.delete(name);
    }
    let at = byId("models").firstChild;
    for (const name of fit) {
      let row = this.rows.get(name);
      if (row === undefined) {
        const box = el("input", {type: "checkbox"});
        box.addEventListener("change", () => {
          this.choose(name, box.checked);
          box.checked = this.chosen.has(name);
        });
        row = el("label", {}, box, el("span", {title: name}, name));
        this.rows.set(name, row);
      }
      row.firstChild.checked = this.chosen.has(name);
      if (row === at) at = at.nextSibling;
      else byId("models").insertBefore(row, at);
    }
    const hidden = this.total - this.listed.length;
    say(byId("models-note"), hidden > 0 ? count(hidden) + " more adapters are registered: add them by name." : "");
  }

  body() {
    const body = {messages: [{role: "user", content: byId("prompt").value}]};
    const temperature = byId("temperature").value, most = byId("max-tokens").value, schema = byId("schema").value.trim();
    if (temperature !== "") body.temperature = Number(temperature);
    if (most !== "") body.max_tokens = Number(most);
    if (schema) {
      let parsed;
      try {
        parsed = JSON.parse(schema);
      } catch (error) {
        throw new Error("The JSON schema cannot be read: " + error.message);
      }
      body.response_format = {type: "json_schema", json_schema: {name: "answer", schema: parsed}};
    }
    return body;
  }

  async ask() {
    if (this.running) return;
    let body;
    say(byId("ask-error"), "");
    try {
      body = this.body();
      if (this.chosen.size === 0) throw new Error("Choose who is to answer.");
    } catch (error) {
      return say(byId("ask-error"), error.message);
    }
    this.running = new AbortController();
    byId("ask").disabled = true;
    byId("stop").disabled = false;
    const answers = [...this.chosen].map((model) => new Answer(model));
    byId("answers").replaceChildren(...answers.map((answer) => answer.node));
    await Promise.all(answers.map((answer) => answer.ask(body, this.headers(), this.running.signal)));
    this.running = null;
    byId("ask").disabled = false;
    byId("stop").disabled = true;
  }
}
