// SPDX-License-Identifier: Apache-2.0
// A chart of some rows of a History: curves, or areas one on the other. Beside the drawing
// stand the present figures, as a legend, as its label, and the latest ones as a table.

import {clock, el, say} from "./text.js";

const TABLE_ROWS = 10;
const LEFT = 58, RIGHT = 6, TOP = 8, BOTTOM = 20;

function niceCeiling(value) {
  if (!(value > 0)) return 1;
  const power = Math.pow(10, Math.floor(Math.log10(value)));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value * (1 - 1e-9));
}

function niceBytes(value) {
  if (!(value > 0)) return 1;
  const power = Math.pow(2, Math.floor(Math.log2(value)));
  return [1, 1.25, 1.5, 1.75, 2].map((step) => step * power).find((step) => step >= value * (1 - 1e-9));
}

export class Chart {
  // series: [{key, label}], the first at the bottom of a stack; limit: {key, label}.
  constructor(history, {title, format, series, stacked = false, limit = null, inBytes = false, double = false}) {
    Object.assign(this, {history, title, format, series, stacked, limit, ceiling: inBytes ? niceBytes : niceCeiling});
    this.canvas = el("canvas", {role: "img", "aria-label": title});
    this.values = [];
    const legend = el("ul", {class: "legend"});
    for (const [i, one] of [...series, ...(limit ? [limit] : [])].entries()) {
      const value = el("b");
      const kind = one === limit ? "line" : "k" + (1 + this.color(i));
      const key = el("span", {class: "key " + kind, "aria-hidden": "true"});
      legend.append(el("li", {}, key, one.label + " ", value));
      this.values.push({...one, node: value});
    }
    this.body = el("tbody");
    const heads = ["time", ...this.values.map((one) => one.label)];
    const head = el("tr", {}, ...heads.map((text, i) => el("th", {scope: "col", class: i ? "n" : false}, text)));
    const table = el("table", {}, el("thead", {}, head), this.body);
    this.details = el("details", {}, el("summary", {}, "Latest values"),
      el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": title + ", latest values"}, table));
    this.details.addEventListener("toggle", () => this.fillTable());
    this.node = el("figure", {class: double ? "chart double" : "chart"},
      el("figcaption", {}, el("h3", {}, title), legend), this.canvas, this.details);
  }

  // Areas go from dark to light; of curves the third is grey, to be told from the second.
  color(series) {
    return !this.stacked && series === 2 ? 3 : series;
  }

  newest(key) {
    const row = this.history.row;
    return row.count ? row.columns.get(key)[row.at(0)] : NaN;
  }

  draw(colors) {
    const texts = this.values.map((one) => {
      const text = this.format(this.newest(one.key));
      say(one.node, text);
      return one.label + " " + text;
    });
    const label = this.title + ": " + texts.join(", ");
    if (this.canvas.getAttribute("aria-label") !== label) this.canvas.setAttribute("aria-label", label);
    this.fillTable();
    const width = this.canvas.clientWidth, height = this.canvas.clientHeight;
    if (width === 0) return;  // not shown
    const scale = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.paint(pen, {left: LEFT, right: width - RIGHT, top: TOP, bottom: height - BOTTOM}, colors);
  }

  highest() {
    const row = this.history.row;
    let most = 0;
    for (let back = 0; back < row.count; ++back) {
      const at = row.at(back);
      let sum = 0;
      for (const one of this.series) {
        const value = row.columns.get(one.key)[at];
        if (Number.isNaN(value)) continue;
        sum = this.stacked ? sum + value : Math.max(sum, value);
      }
      if (this.limit && row.columns.get(this.limit.key)[at] > sum) sum = row.columns.get(this.limit.key)[at];
      if (sum > most) most = sum;
    }
    return most;
  }

  paint(pen, box, colors) {
    const row = this.history.row;
    const top = this.ceiling(this.highest());
    const end = row.count ? row.times[row.at(0)] : Date.now();
    const x = (time) => box.right - (end - time) / row.spanMs * (box.right - box.left);
    const y = (value) => box.bottom - value / top * (box.bottom - box.top);
    pen.font = "11px system-ui, sans-serif";
    pen.lineWidth = 1;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (let i = 0; i <= 4; ++i) {
      const level = Math.round(y(top * i / 4)) + 0.5;
      pen.strokeStyle = colors.line;
      pen.beginPath();
      pen.moveTo(box.left, level);
      pen.lineTo(box.right, level);
      pen.stroke();
      pen.fillStyle = colors.muted;
      if (i % 2 === 0) pen.fillText(this.format(top * i / 4), box.left - 7, level);
    }
    pen.textBaseline = "alphabetic";
    const marks = box.right - box.left > 330 ? 5 : 3;
    for (let i = 0; i < marks; ++i) {
      const part = i / (marks - 1);
      pen.textAlign = i === 0 ? "left" : i === marks - 1 ? "right" : "center";
      pen.fillText(clock(end - row.spanMs * (1 - part), row.stepMs === 1000), box.left + part * (box.right - box.left), box.bottom + 15);
    }
    pen.save();
    pen.beginPath();
    pen.rect(box.left, box.top - 2, box.right - box.left, box.bottom - box.top + 3);
    pen.clip();
    if (this.stacked) this.paintAreas(pen, x, y, colors);
    else for (const [i, one] of [...this.series.entries()].reverse()) this.paintLine(pen, one.key, x, y, colors.series[this.color(i)]);
    if (this.limit) {
      pen.setLineDash([5, 4]);
      this.paintLine(pen, this.limit.key, x, y, colors.text);
      pen.setLineDash([]);
    }
    pen.restore();
  }

  // Runs of points without a gap between them, the newest first.
  runs(key) {
    const row = this.history.row, column = row.columns.get(key), runs = [];
    let run = null, before = 0;
    for (let back = 0; back < row.count; ++back) {
      const at = row.at(back), time = row.times[at];
      if (Number.isNaN(column[at]) || time > row.times[row.at(0)]) {
        run = null;
        continue;
      }
      if (run === null || before - time > 5 * row.stepMs || before < time) runs.push(run = []);
      run.push(at);
      before = time;
    }
    return runs;
  }

  paintLine(pen, key, x, y, color) {
    const row = this.history.row, column = row.columns.get(key);
    pen.strokeStyle = color;
    pen.lineWidth = 1.6;
    pen.lineJoin = "round";
    for (const run of this.runs(key)) {
      pen.beginPath();
      run.forEach((at, i) => (i ? pen.lineTo : pen.moveTo).call(pen, x(row.times[at]), y(column[at])));
      if (run.length === 1) pen.lineTo(x(row.times[run[0]]) + 2, y(column[run[0]]));
      pen.stroke();
    }
  }

  paintAreas(pen, x, y, colors) {
    const row = this.history.row;
    for (const run of this.runs(this.series[0].key)) {
      const below = new Float64Array(run.length);
      const left = run.length === 1 ? 2 : 0;
      for (const [i, one] of this.series.entries()) {
        const column = row.columns.get(one.key);
        pen.fillStyle = colors.series[i];
        pen.beginPath();
        run.forEach((at, k) => pen.lineTo(x(row.times[at]), y(below[k])));
        for (let k = run.length - 1; k >= 0; --k) {
          const value = column[run[k]];
          if (!Number.isNaN(value)) below[k] += value;
          pen.lineTo(x(row.times[run[k]]) - left, y(below[k]));
        }
        pen.fill();
      }
    }
  }

  fillTable() {
    if (!this.details.open) return;
    const row = this.history.row;
    const rows = Math.min(TABLE_ROWS, row.count);
    while (this.body.rows.length > rows) this.body.lastChild.remove();
    while (this.body.rows.length < rows)
      this.body.append(el("tr", {}, el("td"), ...this.values.map(() => el("td", {class: "n"}))));
    for (let back = 0; back < rows; ++back) {
      const at = row.at(back), cells = this.body.rows[back].cells;
      say(cells[0], clock(row.times[at], true));
      this.values.forEach((one, i) => say(cells[i + 1], this.format(row.columns.get(one.key)[at])));
    }
  }
}

export function chartColors() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return {line: of("--line"), muted: of("--muted"), text: of("--text"),
    series: ["--s1", "--s2", "--s3", "--s4", "--s5", "--s6"].map(of)};
}
