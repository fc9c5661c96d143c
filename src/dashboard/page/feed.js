// SPDX-License-Identifier: Apache-2.0
// Server-sent events, read with fetch(): an EventSource sends no Authorization header,
// and a key in a URL would stand in logs.

import {sentenceOf} from "./text.js";

const EVENT_CHARACTERS_MOST = 16 << 20;

// Text in pieces of any size to events: {name, data}.
export class EventParser {
  constructor(onEvent) {
    this.onEvent = onEvent;
    this.rest = "";
    this.name = "";
    this.data = [];
  }

  feed(text) {
    this.rest += text;
    let begin = 0;
    for (;;) {
      const end = this.rest.indexOf("\n", begin);
      if (end < 0) break;
      let line = this.rest.slice(begin, end);
      begin = end + 1;
      if (line.endsWith("\r")) line = line.slice(0, -1);
      this.line(line);
    }
    this.rest = this.rest.slice(begin);
    if (this.rest.length > EVENT_CHARACTERS_MOST) throw new Error("An event is too long.");
  }

  line(line) {
    if (line === "") {
      const event = {name: this.name || "message", data: this.data.join("\n")};
      const empty = this.data.length === 0;
      this.name = "";
      this.data = [];
      if (!empty) this.onEvent(event);
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return;  // a comment
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "data") this.data.push(value);
    if (field === "event") this.name = value;
  }
}

// Until the answer ends.
export async function readEvents(response, onEvent) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser(onEvent);
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    parser.feed(decoder.decode(value, {stream: true}));
  }
}

const PAUSES_S = [1, 2, 5, 10];

// Follows a server's events, through ends and failures, until a key is refused.
export class Feed {
  // told: {event(object), state(kind, sentence), refused(sentence)}
  constructor(url, headers, told) {
    this.url = url;
    this.headers = headers;
    this.told = told;
    this.stopped = null;  // of the connection that is open
    this.timer = 0;
    this.failures = 0;
  }

  start() {
    this.stop();
    this.run(this.stopped = new AbortController());
  }

  stop() {
    clearTimeout(this.timer);
    if (this.stopped) this.stopped.abort();
    this.stopped = null;
  }

  async run(mine) {
    let why = "The server ended the stream";
    try {
      const response = await fetch(this.url, {
        headers: {Accept: "text/event-stream", ...this.headers()},
        signal: mine.signal,
        cache: "no-store",
        credentials: "omit",
      });
      if (mine.signal.aborted) return;
      if (response.status === 401 || response.status === 403) return this.told.refused(await sentenceOf(response));
      if (!response.ok) throw new Error(await sentenceOf(response));
      await readEvents(response, (event) => {
        if (mine.signal.aborted) return;
        if (event.name === "end") {
          why = JSON.parse(event.data).why;
          return;
        }
        this.failures = 0;
        this.told.state("live", "live");
        this.told.event(JSON.parse(event.data));
      });
    } catch (error) {
      if (mine.signal.aborted) return;
      why = error instanceof TypeError ? "The server does not answer" : error.message;
    }
    if (mine.signal.aborted) return;
    const pause = PAUSES_S[Math.min(this.failures++, PAUSES_S.length - 1)];
    this.told.state("waits", why.replace(/\.$/, "") + "; again in " + pause + " s");
    this.timer = setTimeout(() => this.start(), pause * 1000);
  }
}
