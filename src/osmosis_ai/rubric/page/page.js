"use strict";
// Data is written as text, never as HTML: what a record says can not become part of the page.
(() => {
  const byId = (id) => document.getElementById(id);
  const read = (id) => JSON.parse(byId(id).textContent);
  const make = (tag, text, name) => {
    const element = document.createElement(tag);
    if (text !== undefined && text !== null) element.textContent = text;
    if (name) element.className = name;
    return element;
  };

  // --- theme -----------------------------------------------------------------------------------
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const themeButton = byId("theme");
  const nameTheme = () => { themeButton.textContent = isDark() ? "Light" : "Dark"; };
  themeButton.hidden = false;
  themeButton.setAttribute("aria-label", "Switch between light and dark");
  themeButton.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
  });
  system.addEventListener("change", nameTheme);

  // --- records ---------------------------------------------------------------------------------
  const PAGE = 50;
  const listing = read("listing");
  const total = listing.label.length;
  const several = listing.models.length > 1;
  // Beyond a few judges their columns no longer fit; each is then shown when a record is opened.
  const shownModels = listing.models.length <= 4 ? listing.models : [];
  const state = { query: "", filter: "", order: "file", page: 0, rows: [], open: new Set() };
  const chunks = new Map();
  const body = document.querySelector("#list tbody");

  // What is written out on the page is shown in the list, too.
  const written = new Map();
  for (const record of document.querySelectorAll("#written .record")) {
    written.set(Number(record.id.slice("record-".length)) - 1, record.lastElementChild);
  }
  byId("written").remove();

  function detailOf(row) {
    const place = listing.place[row];
    if (place < 0) return null;
    const number = Math.floor(place / listing.chunk);
    if (!chunks.has(number)) chunks.set(number, read("chunk-" + number));
    return chunks.get(number)[place % listing.chunk];
  }
  // Three digits of the scale, as everywhere else on the page.
  const digits = Math.min(6, Math.max(0, 3 - Math.max(0, Math.ceil(Math.log10(listing.high - listing.low)))));
  const show = (score) => (score === null ? "–" : score.toFixed(digits));
  const gap = (row) => (listing.people[row] === null || listing.all[row] === null ? -1 : Math.abs(listing.people[row] - listing.all[row]));

  function says(row, words) {
    if (listing.label[row].toLowerCase().includes(words)) return true;
    if (written.has(row)) {
      return [...written.get(row).querySelectorAll("pre, p")].some((part) => part.textContent.toLowerCase().includes(words));
    }
    const detail = detailOf(row);
    if (!detail) return false;
    const [text, truth, input, calls] = detail;
    return [text, truth, input].some((part) => part && part.toLowerCase().includes(words))
      || calls.some((call) => (call[3] || call[4] || "").toLowerCase().includes(words));
  }
  function found() {
    const words = state.query.trim().toLowerCase();
    const number = /^#?\d+$/.test(words) ? Number(words.replace("#", "")) - 1 : null;
    const rows = [];
    for (let row = 0; row < total; row++) {
      if (state.filter === "unscored" && !listing.unscored[row]) continue;
      if (state.filter === "people" && listing.people[row] === null) continue;
      if (words && row !== number && !says(row, words)) continue;
      rows.push(row);
    }
    const descending = (value) => rows.sort((a, b) => value(b) - value(a) || a - b);
    if (state.order === "spread") descending((row) => listing.spread[row] ?? -1);
    if (state.order === "gap") descending(gap);
    if (state.order === "high") descending((row) => listing.all[row] ?? -Infinity);
    if (state.order === "low") descending((row) => -(listing.all[row] ?? Infinity));
    if (number !== null && rows.includes(number)) rows.unshift(...rows.splice(rows.indexOf(number), 1));
    return rows;
  }

  function columns() {
    const all = [["#", (row) => String(row + 1), "number"], ["Record", null]];
    shownModels.forEach((model, place) => all.push([model, (row) => listing.mean[place][row], "score"]));
    if (several) all.push(["Mean of the judges", (row) => listing.all[row], "score"]);
    if (!several && !shownModels.length) all.push(["Score", (row) => listing.all[row], "score"]);
    if (listing.people.some((score) => score !== null)) all.push(["People", (row) => listing.people[row], "score"]);
    if (listing.spread.some((range) => range > 0)) all.push(["Scores differ by", (row) => show(listing.spread[row])]);
    if (listing.unscored.some((count) => count > 0)) all.push(["Without a score", (row) => String(listing.unscored[row])]);
    return all;
  }
  const shown = columns();

  function cell(name, value, kind) {
    const td = make("td", null, kind === "number" ? "number" : "");
    td.dataset.name = name;
    if (kind !== "score") { td.textContent = value; return td; }
    const meter = make("span", show(value), "meter");
    const share = value === null ? 0 : (value - listing.low) / (listing.high - listing.low);
    meter.style.setProperty("--share", String(Math.max(0, Math.min(1, share))));
    td.append(meter);
    return td;
  }
  function line(row) {
    const tr = make("tr", null, "row");
    tr.id = "record-" + (row + 1);
    for (const [name, value, kind] of shown) {
      if (value) { tr.append(cell(name, value(row), kind)); continue; }
      const td = make("td", null, "label");
      const open = make("button", listing.label[row], "open");
      open.type = "button";
      open.setAttribute("aria-expanded", String(state.open.has(row)));
      td.append(open);
      tr.append(td);
    }
    // A click anywhere on the line opens it, but one that ends a selection of text does not.
    tr.addEventListener("click", (event) => {
      if (event.target.closest("button") || !String(window.getSelection())) toggle(row, tr);
    });
    return tr;
  }
  function toggle(row, tr) {
    const button = tr.querySelector(".open");
    if (state.open.delete(row)) tr.nextElementSibling.remove();
    else { state.open.add(row); tr.after(detail(row)); }
    button.setAttribute("aria-expanded", String(state.open.has(row)));
  }
  function detail(row) {
    const tr = make("tr", null, "detail");
    const td = make("td");
    td.colSpan = shown.length;
    tr.append(td);
    if (written.has(row)) { td.append(written.get(row)); return tr; }
    const known = detailOf(row);
    if (!known) { td.append(make("p", "The texts of this record are not in this page; the results file holds them.", "quiet")); return tr; }
    const [text, truth, input, calls] = known;
    for (const [title, part] of [["Input", input], ["Judged text", text], ["Reference answer", truth]]) {
      if (part) td.append(make("h3", title), make("pre", part));
    }
    td.append(make("h3", "Judgements"));
    const all = make("div", null, "calls");
    for (const [model, run, score, explanation, error] of calls) {
      const one = make("div");
      one.append(make("b", show(score)), ` ${listing.models[model]}, run ${run}`);
      if (explanation) one.append(make("p", explanation));
      if (error) one.append(make("p", error, "failed"));
      all.append(one);
    }
    td.append(all);
    return tr;
  }

  function render() {
    const pages = Math.max(1, Math.ceil(state.rows.length / PAGE));
    state.page = Math.min(Math.max(0, state.page), pages - 1);
    const rows = state.rows.slice(state.page * PAGE, (state.page + 1) * PAGE);
    body.replaceChildren(...rows.flatMap((row) => (state.open.has(row) ? [line(row), detail(row)] : [line(row)])));
    byId("page").textContent = `Page ${state.page + 1} of ${pages.toLocaleString("en")}`;
    byId("previous").disabled = state.page === 0;
    byId("next").disabled = state.page === pages - 1;
    byId("found").textContent = state.rows.length === total
      ? `${total.toLocaleString("en")} records.`
      : `${state.rows.length.toLocaleString("en")} of ${total.toLocaleString("en")} records.`;
  }
  function search() {
    state.rows = found();
    state.page = 0;
    render();
  }
  function turn(by) {
    state.page += by;
    render();
    byId("records").scrollIntoView();
  }
  function goToRecord() {
    const match = /^#record-(\d+)$/.exec(location.hash);
    if (!match) return;
    const row = Number(match[1]) - 1;
    if (!(row < total)) return;
    if (!state.rows.includes(row)) {
      byId("query").value = byId("filter").value = state.query = state.filter = "";
      state.rows = found();
    }
    state.page = Math.floor(state.rows.indexOf(row) / PAGE);
    state.open.add(row);
    render();
    const target = byId("record-" + (row + 1));
    target.scrollIntoView({ block: "start" });
    target.querySelector(".open").focus({ preventScroll: true });
  }

  const head = make("tr");
  for (const [name] of shown) {
    const th = make("th");
    name.split("/").forEach((part, place) => {
      if (place) th.append("/", make("wbr"));
      th.append(part);
    });
    th.scope = "col";
    head.append(th);
  }
  document.querySelector("#list thead").append(head);
  for (const id of ["find", "list", "pager"]) byId(id).hidden = false;
  let pause;
  byId("find").addEventListener("submit", (event) => event.preventDefault());
  byId("query").addEventListener("input", (event) => {
    state.query = event.target.value;
    clearTimeout(pause);
    pause = setTimeout(search, 150);
  });
  byId("filter").addEventListener("change", (event) => { state.filter = event.target.value; search(); });
  byId("order").addEventListener("change", (event) => { state.order = event.target.value; search(); });
  byId("previous").addEventListener("click", () => turn(-1));
  byId("next").addEventListener("click", () => turn(1));
  window.addEventListener("hashchange", goToRecord);

  nameTheme();
  search();
  goToRecord();
})();
