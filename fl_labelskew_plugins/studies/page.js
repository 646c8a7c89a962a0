"use strict";
// The page is complete without this: it sorts the table, takes lines out of the charts and reads values off them.

for (const table of document.querySelectorAll("table.summary")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const each of heads) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const numbers = !head.classList.contains("text");
    const key = (row) => row.cells[column].dataset.value;
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "" || y === "") return (x === "") - (y === ""); // what is missing comes last either way
      return (numbers ? x - y : x.localeCompare(y)) * (down ? -1 : 1);
    });
    table.tBodies[0].append(...rows);
  }));
}

const MOST = 8; // lines that a chart reads off at a time
const charts = document.querySelector(".charts");
const turns = [];
for (const button of document.querySelectorAll(".legend button[data-series]")) {
  const lines = document.querySelectorAll(`.series[data-series="${button.dataset.series}"]`);
  const light = (on) => {
    charts.classList.toggle("some", on && button.getAttribute("aria-pressed") === "true");
    for (const line of lines) line.classList.toggle("on", on);
  };
  const turn = (on) => {
    button.setAttribute("aria-pressed", on);
    for (const line of lines) line.classList.toggle("off", !on);
  };
  turns.push(turn);
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    turn(on);
    light(on);
  });
  for (const name of ["pointerenter", "focus"]) button.addEventListener(name, () => light(true));
  for (const name of ["pointerleave", "blur"]) button.addEventListener(name, () => light(false));
}

for (const button of document.querySelectorAll(".legend button[data-all]")) {
  button.addEventListener("click", () => turns.forEach((turn) => turn(button.dataset.all === "true")));
}

for (const chart of document.querySelectorAll(".chart")) {
  const svg = chart.querySelector("svg");
  const cursor = chart.querySelector(".cursor");
  const series = [...chart.querySelectorAll(".series")].map((line) => ({
    line, name: line.dataset.name, points: JSON.parse(line.dataset.points),
  }));
  const rounds = [...new Set(series.flatMap(({ points }) => points.map(([round]) => round)))].sort((a, b) => a - b);
  const { first, last, left, right, low, high, top, bottom } = svg.dataset;
  const place = (round) => +left + (right - left) * (last > first ? (round - first) / (last - first) : 0.5);
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("aria-live", "polite");
  chart.append(tip);
  let shown = -1;
  const hide = () => { tip.hidden = true; cursor.style.visibility = "hidden"; shown = -1; };
  const show = (index, near = 1000) => { // of many lines those nearest to this accuracy, which is above all
    shown = Math.max(0, Math.min(rounds.length - 1, index));
    const round = rounds[shown];
    const x = place(round);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.style.visibility = "visible";
    const head = document.createElement("b");
    head.textContent = `round ${round}`;
    const values = series
      .filter(({ line }) => !line.classList.contains("off"))
      .map(({ name, points }) => [name, points.find(([r]) => r === round)])
      .filter(([, point]) => point)
      .sort(([, a], [, b]) => Math.abs(a[1] - near) - Math.abs(b[1] - near));
    const texts = values.slice(0, MOST)
      .sort(([, a], [, b]) => b[1] - a[1])
      .map(([name, [, mean, std]]) => {
        const text = document.createElement("div");
        text.textContent = mean.toFixed(2) + (std ? ` ± ${std.toFixed(2)}` : "") + `  ${name}`;
        return text;
      });
    if (values.length > MOST) texts.push(`... and ${values.length - MOST} more`);
    tip.replaceChildren(head, ...texts);
    tip.hidden = false;
    const at = (x / svg.viewBox.baseVal.width) * chart.clientWidth;
    const beside = at + 12 + tip.offsetWidth > chart.clientWidth ? at - 12 - tip.offsetWidth : at + 12;
    tip.style.left = `${Math.max(0, beside)}px`;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const distances = rounds.map((round) => Math.abs(place(round) - x));
    const y = ((event.clientY - box.top) / box.height) * svg.viewBox.baseVal.height;
    show(distances.indexOf(Math.min(...distances)), +low + ((high - low) * (bottom - y)) / (bottom - top));
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  window.addEventListener("resize", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) { event.preventDefault(); show(shown < 0 ? (step > 0 ? 0 : rounds.length - 1) : shown + step); }
    if (event.key === "Escape") hide();
  });
}
