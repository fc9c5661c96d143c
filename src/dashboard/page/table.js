// SPDX-License-Identifier: Apache-2.0
// A table that is filled anew with every event: at most ROWS_MOST rows, which are used
// again. While somebody points at it or has the focus in it, rows stay where they are, so
// that a button is not another row's when it is pressed.

import {el, say} from "./text.js";

export const ROWS_MOST = 200;

export class Table {
  // columns: [{label, value(row) to sort by, text(row), number, kind, fill(cell, row)}]
  constructor(place, {label, columns, key, empty, sort = null, sortable = true}) {
    Object.assign(this, {columns, key, empty, sortable});
    this.sorted = sort;  // {column, down}
    this.rows = new Map();  // by key
    this.free = [];
    this.last = [];
    this.heads = columns.map((column, i) => {
      const canSort = sortable && column.value;
      const inner = canSort ? el("button", {type: "button"}, column.label) : column.label;
      if (canSort) inner.addEventListener("click", () => this.sortBy(i));
      return el("th", {scope: "col", class: column.number ? "n" : false}, inner);
    });
    this.body = el("tbody");
    this.more = el("p", {class: "more-rows"});
    this.node = el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": label},
      el("table", {}, el("thead", {}, el("tr", {}, ...this.heads)), this.body));
    this.nothing = el("tr", {}, el("td", {class: "empty", colspan: String(columns.length)}, empty));
    place.append(this.node, this.more);
    this.markSort();
  }

  sortBy(column) {
    const down = this.sorted && this.sorted.column === column ? !this.sorted.down : Boolean(this.columns[column].number);
    this.sorted = {column, down};
    this.markSort();
    this.fill(this.last, this.total, true);
  }

  markSort() {
    this.heads.forEach((head, i) => {
      if (this.sorted && this.sorted.column === i)
        head.setAttribute("aria-sort", this.sorted.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  inUse() {
    return this.body.matches(":hover") || this.body.contains(document.activeElement);
  }

  order(items) {
    if (!this.sorted) return items;
    const value = this.columns[this.sorted.column].value, sign = this.sorted.down ? -1 : 1;
    const compare = (a, b) => {
      if (typeof a === "string" || typeof b === "string") return String(a).localeCompare(String(b), undefined, {numeric: true});
      return (a ?? -Infinity) - (b ?? -Infinity) || 0;
    };
    return [...items].sort((a, b) => sign * compare(value(a), value(b)) || compare(this.key(a), this.key(b)));
  }

  // total: of which `items` are the first.
  fill(items, total = items.length, anew = false) {
    this.last = items;
    this.total = total;
    const ordered = this.order(items).slice(0, ROWS_MOST);
    const keys = new Map(ordered.map((item) => [this.key(item), item]));
    for (const [key, row] of this.rows) {
      if (keys.has(key)) continue;
      row.remove();
      this.rows.delete(key);
      if (this.free.length < ROWS_MOST) this.free.push(row);
    }
    const stay = !anew && this.inUse();
    let at = this.body.firstChild;
    for (const [key, item] of keys) {
      let row = this.rows.get(key);
      const isNew = row === undefined;
      if (isNew) this.rows.set(key, row = this.free.pop() || this.makeRow());
      row.item = item;
      this.columns.forEach((column, i) => this.fillCell(row.cells[i], column, item));
      if (isNew && stay) this.body.append(row);
      else if (!stay) {
        if (row === at) at = at.nextSibling;
        else this.body.insertBefore(row, at);
      }
    }
    if (keys.size === 0) this.body.append(this.nothing);
    else this.nothing.remove();
    const hidden = Math.max(0, total - keys.size);
    say(this.more, hidden > 0 ? "and " + hidden.toLocaleString("en-US") + " more" : "");
  }

  makeRow() {
    return el("tr", {}, ...this.columns.map((column) =>
      el("td", {class: [column.number ? "n" : "", column.kind || ""].join(" ").trim() || false})));
  }

  fillCell(cell, column, item) {
    if (column.fill) return column.fill(cell, item);
    const text = column.text(item);
    say(cell, text);
    if (column.kind && cell.title !== text) cell.title = text;  // it may be cut
  }
}
