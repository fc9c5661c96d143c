// SPDX-License-Identifier: Apache-2.0
// The last 24 hours of some figures, in rows of fixed length: as they came for ten
// minutes, then as means of 10 s and of a minute. Nothing here grows.

const RANGES = [
  {label: "10 min", stepMs: 1000, size: 600},
  {label: "2 h", stepMs: 10000, size: 720},
  {label: "24 h", stepMs: 60000, size: 1440},
];

class Row {
  constructor(names, {label, stepMs, size}) {
    this.label = label;
    this.stepMs = stepMs;
    this.size = size;
    this.spanMs = stepMs * size;
    this.next = 0;
    this.count = 0;
    this.bucket = -1;
    this.times = new Float64Array(size);
    this.columns = new Map(names.map((name) => [name, new Float32Array(size)]));
    this.seen = new Map(names.map((name) => [name, 0]));  // in the newest bucket
  }

  add(unixMs, values) {
    const bucket = Math.floor(unixMs / this.stepMs);
    if (bucket > this.bucket || this.bucket - bucket > 60) {  // or the clock was set back
      this.bucket = bucket;
      this.next = (this.next + 1) % this.size;
      this.count = Math.min(this.count + 1, this.size);
      this.times[this.at(0)] = bucket * this.stepMs;
      for (const [name, column] of this.columns) {
        column[this.at(0)] = NaN;
        this.seen.set(name, 0);
      }
    }
    const at = this.at(0);
    for (const [name, column] of this.columns) {
      const value = values[name];
      if (typeof value !== "number" || !Number.isFinite(value)) continue;
      const seen = this.seen.get(name);
      column[at] = seen === 0 ? value : column[at] + (value - column[at]) / (seen + 1);
      this.seen.set(name, seen + 1);
    }
  }

  // Where the value lies that came so many before the newest.
  at(back) {
    return (this.next - 1 - back + 2 * this.size) % this.size;
  }
}

export class History {
  constructor(names) {
    this.rows = RANGES.map((range) => new Row(names, range));
    this.shown = 0;  // the row that charts draw
  }

  add(unixMs, values) {
    for (const row of this.rows) row.add(unixMs, values);
  }

  get row() {
    return this.rows[this.shown];
  }

  // Numbers that it keeps room for: always the same.
  get capacity() {
    return this.rows.reduce((sum, row) => sum + row.size * (1 + row.columns.size), 0);
  }
}
