// SPDX-License-Identifier: Apache-2.0
// Elements, and numbers as text. Whatever a server says becomes a text node.

// el("td", {class: "n"}, "text", node)
export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Touches the page where something has changed.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function show(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

const known = (value) => typeof value === "number" && Number.isFinite(value);

export function bytes(value) {
  if (!known(value)) return "-";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    ++unit;
  }
  return value.toFixed(unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2) + " " + units[unit];
}

export function count(value) {
  return known(value) ? Math.round(value).toLocaleString("en-US") : "-";
}

export function rate(value) {
  if (!known(value)) return "-";
  return value >= 100 || value === 0 ? count(value) : value.toFixed(1);
}

export function seconds(value) {
  if (!known(value)) return "-";
  if (value === 0) return "0 s";
  if (value < 0.01) return (value * 1000).toFixed(2) + " ms";
  if (value < 1) return (value * 1000).toFixed(value < 0.1 ? 1 : 0) + " ms";
  if (value < 100) return value.toFixed(2) + " s";
  return ago(value);
}

export function ago(value) {
  if (!known(value)) return "-";
  if (value < 60) return Math.round(value) + " s";
  if (value < 3600) return Math.round(value / 60) + " min";
  if (value < 172800) return (value / 3600).toFixed(1) + " h";
  return Math.round(value / 86400) + " d";
}

export function clock(unixMs, withSeconds) {
  const at = new Date(unixMs);
  const two = (n) => String(n).padStart(2, "0");
  const text = two(at.getHours()) + ":" + two(at.getMinutes());
  return withSeconds ? text + ":" + two(at.getSeconds()) : text;
}

// What an answer that is an error says.
export async function sentenceOf(response) {
  let text = "";
  try {
    text = (await response.text()).slice(0, 4000);
    const body = JSON.parse(text);
    const said = body.error && body.error.message ? body.error.message : body.message;
    if (typeof said === "string") return said;
  } catch {
    // Not JSON: it is a sentence itself.
  }
  return text || "The server answered " + response.status + ".";
}
