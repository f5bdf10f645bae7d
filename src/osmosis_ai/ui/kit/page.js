// Every page loads this module, and works without it.
const all = (selector, part = document) => [...part.querySelectorAll(selector)];
const byId = (id) => document.getElementById(id);
const root = document.documentElement;

// Announcements for screen readers, at most one every five seconds.
let said = -Infinity;
let waiting = 0;
function say(words) {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    said = performance.now();
    byId("said").textContent = words;
  }, Math.max(0, said + 5000 - performance.now()));
}

// What a part of the page gets when it is new.
function begin(part) {
  for (const button of all("button.copy", part)) button.hidden = false;
  for (const svg of all(".plot svg[data-x]:not([data-hovers])", part)) hover(svg, svg.closest("figure"));
  // On a phone a row of a list is a card, whose cells name their columns.
  for (const table of all("table.list", part)) {
    const heads = all("thead th", table).map((head) => head.innerText.trim());
    for (const row of all("tbody tr", table)) {
      if (row.cells.length === heads.length) heads.forEach((head, place) => { if (head) row.cells[place].dataset.label = head; });
    }
    table.classList.add("cards");
  }
}
begin(document);

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button.copy");
  if (!button) return;
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(button.dataset.copy ?? button.parentElement.querySelector("code").textContent);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  say(button.textContent);
  setTimeout(() => { button.textContent = label; }, 2000);
});

// The server ends the connection of a body that is too large, and a browser shows no reply then.
for (const field of all("input[data-most]")) {
  field.addEventListener("change", () => {
    const isLarge = [...field.files].some((file) => file.size > Number(field.dataset.most));
    field.setCustomValidity(isLarge ? field.dataset.refusal : "");
    if (isLarge) field.reportValidity();
  });
}

// With a script a file of any size is sent in parts; each is tried three times.
for (const form of all("form[data-parts]")) form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const [file] = form.elements.file.files;
  const button = form.querySelector("button");
  const bar = Object.assign(document.createElement("progress"), { max: file.size, ariaLabel: "Uploaded" });
  const problem = Object.assign(document.createElement("p"), { className: "problem" });
  const ask = async (path, words) => {
    const body = new URLSearchParams([["csrf", form.elements.csrf.value], ...words]);
    const reply = await fetch(path, { method: "POST", body });
    if (!reply.ok) throw new Error(await reply.text());
    return reply;
  };
  const send = (url, part, before, tries = 3) => new Promise((done, fail) => {
    const request = new XMLHttpRequest();
    request.open("PUT", new URL(url).pathname);
    request.upload.onprogress = ({ loaded }) => { bar.value = before + loaded; };
    request.onloadend = () => {
      if (request.status === 200) done(["etag", request.getResponseHeader("ETag")]);
      else if (tries > 1) setTimeout(() => done(send(url, part, before, tries - 1)), 2000);
      else fail(new Error("The connection was lost. Upload the file again."));
    };
    request.send(part);
  });
  form.nextElementSibling?.remove();
  form.append(bar);
  button.disabled = true;
  let finish = null;
  try {
    const started = await (await ask(form.dataset.parts, [["filename", file.name], ["size", file.size]])).json();
    finish = started.finish;
    const etags = [];
    let before = 0;
    for (const [url, size] of started.parts) {
      etags.push(await send(url, file.slice(before, before + size), before));
      before += size;
    }
    await ask(finish, etags);
    location.reload();
  } catch (error) {
    if (finish) ask(finish, []).catch(() => {});
    form.after(problem);
    problem.textContent = error.message;
    say(error.message);
    bar.remove();
    button.disabled = false;
  }
});

// The theme is a cookie, which the server reads.
const system = matchMedia("(prefers-color-scheme: dark)");
const themed = byId("theme");
if (themed) {
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const name = () => { themed.textContent = isDark() ? "Light" : "Dark"; };
  themed.hidden = false;
  themed.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    document.cookie = `osmosis_theme=${root.dataset.theme}; Path=/; Max-Age=31536000; SameSite=Strict${location.protocol === "https:" ? "; Secure" : ""}`;
    name();
  });
  system.addEventListener("change", name);
  name();
}

const menu = byId("menu");
if (menu) {
  menu.hidden = false;
  menu.addEventListener("click", () => menu.setAttribute("aria-expanded", String(menu.getAttribute("aria-expanded") !== "true")));
}

// The address of a filtered list has no empty words.
document.addEventListener("formdata", ({ target, formData }) => {
  if (target.method !== "get") return;
  for (const name of new Set(formData.keys())) if (formData.getAll(name).every((value) => value === "")) formData.delete(name);
});
// A button that needs some boxes of its form ticked.
for (const button of all("button[data-needs]")) {
  const check = () => { button.disabled = all(`input[form="${button.form.id}"]:checked`).length < Number(button.dataset.needs); };
  document.addEventListener("change", check);
  check();
}

// The numbers under the pointer, from the table that every chart has.
function hover(svg, figure) {
  svg.dataset.hovers = "";
  const [low, high, first, last] = svg.dataset.x.split(" ").map(Number);
  const rows = all("tbody tr", figure).map((row) => [Number(row.cells[0].textContent.replaceAll(",", "")), row]);
  const names = all("thead th", figure).map((cell) => cell.textContent);
  if (!rows.length) return;
  const line = document.createElementNS(svg.namespaceURI, "path");
  line.setAttribute("class", "pointer");
  const text = Object.assign(document.createElement("p"), { className: "hover", ariaHidden: "true" });
  svg.append(line);
  svg.parentElement.after(text);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const wanted = low + ((at - first) / (last - first)) * (high - low);
    const [x, row] = rows.reduce((best, each) => (Math.abs(each[0] - wanted) < Math.abs(best[0] - wanted) ? each : best));
    line.setAttribute("d", `M${(first + ((x - low) / (high - low)) * (last - first)).toFixed(1)} 24V230`);
    text.textContent = [...row.cells].map((cell, column) => (cell.textContent ? `${names[column]} ${cell.textContent}` : "")).filter(Boolean).join(" · ");
  });
  svg.addEventListener("pointerleave", () => {
    line.removeAttribute("d");
    text.textContent = "";
  });
}

// Without script the form asks the server, which does the same.
const switches = document.querySelector("form[data-switches]");
switches?.addEventListener("change", ({ target }) => {
  if (target.name !== "hide") return switches.requestSubmit();
  byId("messages").classList.toggle(`without-${target.value}`, target.checked);
  const words = new URLSearchParams(new FormData(switches));
  history.replaceState(null, "", `?${words}${location.hash}`);
  // The next conversation is read in the same way.
  for (const link of all(".ways a")) {
    const address = new URL(link.href);
    address.searchParams.delete("hide");
    for (const hidden of words.getAll("hide")) address.searchParams.append("hide", hidden);
    link.href = address;
  }
});

// Single keys, which may be switched off (WCAG 2.2, 2.1.4), press what is on the page.
const help = byId("keys-help");
let off = false;
// Where nothing may be stored, the choice holds for this page.
const stored = (use) => { try { return use(localStorage); } catch { return null; } };
if (help) {
  off = stored((store) => store.getItem("osmosis-keys")) === "off";
  const box = help.querySelector("input");
  box.checked = !off;
  box.addEventListener("change", () => {
    off = !box.checked;
    stored((store) => store.setItem("osmosis-keys", off ? "off" : "on"));
  });
  byId("keys").hidden = false;
  byId("keys").addEventListener("click", () => help.showModal());
  document.addEventListener("keydown", (event) => {
    if (off || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (event.target.closest?.('input:not([type="checkbox"]), textarea, select, [contenteditable]')) return;
    const act = KEYS[event.key] ?? press(`[data-shortcut="${CSS.escape(event.key)}"]`);
    if (act()) event.preventDefault();
  });
}
const press = (selector, does = "click") => () => {
  const found = document.querySelector(`main ${selector}`);
  found?.[does]();
  return Boolean(found);
};
const KEYS = {
  "?": () => { help.showModal(); return true; },
  "/": press('input[type="search"]', "select"),
  j: () => move(1),
  k: () => move(-1),
  n: press('a[rel="next"]'),
  p: press('a[rel="prev"]'),
};
// Focus moves, and Enter then does what it does on any link.
function move(by) {
  const rows = all("table.list tbody tr:has(a), [data-step]").filter((row) => row.offsetParent !== null);
  if (!rows.length) return false;
  const here = rows.findIndex((row) => row.contains(document.activeElement));
  const row = rows[here < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(here + by, 0), rows.length - 1)];
  const target = row.matches("tr") ? row.querySelector("a") : row;
  target.focus({ preventScroll: true });
  row.scrollIntoView({ block: target === row ? "start" : "nearest" });
  return true;
}

// A visible page asks for the state of its run every two seconds, and fetches only what changes with it.
// The page of an ended run asks whenever its tab becomes visible whether the run still exists or was resumed.
const ENDS = { ended: "The run has ended.", gone: "This run no longer exists.", refused: "This page is no longer updated. Sign in again, or open the address that `osmosis view` prints." };
const { liveSource, liveEnded, liveCursor } = document.body.dataset;
const source = liveSource ?? liveEnded;
let ended = liveEnded !== undefined;
let over = !source;
let cursor = liveCursor ?? "";
let polling = 0;
let fetching = null;

for (const box of all("[data-live] [data-follow]")) if (!ended) box.scrollTop = box.scrollHeight;
document.addEventListener("visibilitychange", poll);
if (!over && !ended) wait();

function wait() {
  clearTimeout(polling);
  polling = setTimeout(poll, 2000);
}

async function poll() {
  clearTimeout(polling);
  if (document.hidden || over) return;
  try {
    const reply = await fetch(source, { cache: "no-store" });
    const why = await refusal(reply);
    if (why) return end(why);
    if (reply.ok) {
      const state = await reply.json();
      if (ended && state.ended) return;
      ended = false;
      news(state);
      if (state.ended) return end("ended");
    }
  } catch { /* The server is unavailable; retry. */ }
  if (!ended) wait();
}

// Why a page is no longer updated. Without a session, a platform replies that there is nothing at the address.
async function refusal(reply) {
  if (reply.status === 401 || reply.status === 403 || reply.redirected) return "refused";
  if (reply.status !== 404) return "";
  return (await reply.text()).includes('"ROUTE_NOT_FOUND"') ? "refused" : "gone";
}

function news(state) {
  if (state.cursor === cursor) return;
  cursor = state.cursor;
  const line = state.headline;
  const words = line ? `${line.scored} of ${line.planned} attempts scored, run ${state.status}` : `Run ${state.status}`;
  if (document.querySelector("[data-live]")) refresh().then(() => over || say(words));
}

function end(reason) {
  if (over || (ended && reason === "ended")) return;
  clearTimeout(polling);
  ended = reason === "ended" || !ENDS[reason];
  over = !ended;
  if (ended) {
    // If the run is resumed, its page reloads.
    cursor = "";
    return refresh().then(() => say(ENDS.ended));
  }
  // The page stays as it was, and must not look as if it were current.
  const problem = Object.assign(document.createElement("p"), { className: "problem", role: "alert", textContent: ENDS[reason] });
  const list = reason === "gone" && document.querySelector(".crumbs a");
  if (list) problem.append(" ", Object.assign(list.cloneNode(), { textContent: "Back to the list" }));
  document.querySelector("main h1").after(problem);
}

// One request at a time; a change that comes meanwhile starts another one.
async function refresh() {
  if (fetching) { fetching.again = true; return; }
  do {
    fetching = { again: false };
    await update(all("[data-live]"));
  } while (fetching.again);
  fetching = null;
}

async function update(parts) {
  if (!parts.length) return;
  try {
    // Not kept: by going back, a browser would show the parts in place of the page.
    const headers = { "X-Live-Part": parts.map((part) => part.dataset.live).join(",") };
    const reply = await fetch(location.href, { cache: "no-store", headers });
    if ((await refusal(reply)) === "refused") return end("refused");
    if (!reply.ok) return;
    const made = new DOMParser().parseFromString(await reply.text(), "text/html");
    for (const part of parts) {
      const fresh = made.querySelector(`[data-live="${part.dataset.live}"]`);
      if (fresh) replace(part, fresh);
    }
  } catch { /* The next change fetches them. */ }
}

function replace(part, fresh) {
  const atEnd = all("[data-follow]", part).filter((box) => box.scrollHeight - box.scrollTop - box.clientHeight < 24);
  const held = part.contains(document.activeElement) ? document.activeElement : null;
  const was = held && called(held);
  morph(part, fresh);
  if (held && !(held.isConnected && called(held) === was)) {
    all(held.nodeName, part).find((each) => called(each) === was)?.focus({ preventScroll: true });
  }
  for (const box of atEnd) box.scrollTop = box.scrollHeight;
  begin(part);
}
const called = (node) => node.getAttribute("href") ?? (node.id || node.textContent);

// Equal nodes stay, with focus, selection, scroll position and open parts.
const key = (node) => (node.nodeType === 1 && (node.id || node.dataset.id)) || "";
function morph(old, fresh) {
  const keyed = new Map([...old.children].filter(key).map((child) => [key(child), child]));
  let place = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const isAlike = place && place.nodeName === wanted.nodeName && !key(place) && !key(wanted);
    const kept = keyed.get(key(wanted)) ?? (isAlike ? place : null);
    if (!kept) {
      old.insertBefore(document.importNode(wanted, true), place);
      continue;
    }
    if (kept === place) place = place.nextSibling;
    else old.insertBefore(kept, place);
    change(kept, wanted);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}
function change(kept, wanted) {
  if (kept.nodeType !== 1) {
    if (kept.nodeValue !== wanted.nodeValue) kept.nodeValue = wanted.nodeValue;
    return;
  }
  const mine = (name) => (kept.nodeName === "DETAILS" && name === "open") || name === "hidden";
  for (const name of new Set([...kept.getAttributeNames(), ...wanted.getAttributeNames()])) {
    const value = wanted.getAttribute(name);
    if (mine(name) || kept.getAttribute(name) === value) continue;
    if (value === null) kept.removeAttribute(name);
    else kept.setAttribute(name, value);
  }
  if (!["INPUT", "SELECT", "TEXTAREA"].includes(kept.nodeName)) morph(kept, wanted);
}
