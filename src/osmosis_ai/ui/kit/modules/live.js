// A page that follows its run: one stream while the tab is seen, and only the parts that changed are fetched.
// That of a run that has ended asks once, whenever its tab is seen again, whether the run still exists or was resumed.
import { say } from "./say.js";

const POLL_MS = 5000;
const NEAR_END_PX = 24;
const ENDS = { ended: "The run has ended.", gone: "This run is not there any more.", refused: "This page is not updated any more. Sign in again or, on your own machine, open the address that `osmosis view` prints, if you may still see this run." };
const source = document.body.dataset.liveSource ?? document.body.dataset.liveEnded;
let ended = "liveEnded" in document.body.dataset;
let over = false;
let stream = null;
let polling = 0;
let failures = 0;
let cursor = document.body.dataset.liveCursor ?? "";
let tag = "";
let fetching = false;
let again = false;

export function begin() {
  if (!source) return;
  document.addEventListener("visibilitychange", follow);
  if (ended) return;
  for (const box of document.querySelectorAll("[data-live] [data-follow]")) box.scrollTop = box.scrollHeight;
  follow();
}

function follow() {
  stream?.close();
  clearTimeout(polling);
  stream = null;
  if (document.hidden || over) return;
  if (ended || failures >= 2) poll();
  else listen();
}

const address = () => source + (cursor ? `${source.includes("?") ? "&" : "?"}since=${encodeURIComponent(cursor)}` : "");

function listen() {
  stream = new EventSource(address());
  stream.addEventListener("change", (event) => {
    failures = 0;
    news(event.lastEventId, JSON.parse(event.data));
  });
  stream.addEventListener("end", (event) => end(JSON.parse(event.data).reason));
  stream.addEventListener("error", () => {
    failures += 1;
    // What was refused is closed by the browser; what was cut off it tries once more by itself.
    if (stream.readyState === EventSource.CLOSED) failures = Math.max(failures, 2);
    if (failures >= 2) follow();
  });
}

async function poll() {
  try {
    const reply = await fetch(address(), { cache: "no-store", headers: { Accept: "application/json", ...(tag && { "If-None-Match": tag }) } });
    const why = await refusal(reply);
    if (why) return end(why);
    if (ended) {
      if (!reply.ok || (await reply.json()).ended) return;
      ended = false;
      failures = 0;
      return follow();
    }
    if (reply.ok) {
      tag = reply.headers.get("ETag") ?? "";
      const changes = await reply.json();
      news(changes.cursor, changes);
      if (changes.ended) return end("ended");
    }
  } catch { /* The server is unavailable; retry. */ }
  clearTimeout(polling);
  if (!document.hidden && !ended) polling = setTimeout(poll, POLL_MS);
}

// Why a page hears no more of its run. To who has no session a platform says that there is nothing at the address.
async function refusal(reply) {
  if (reply.status === 401 || reply.status === 403 || reply.redirected) return "refused";
  if (reply.status !== 404) return "";
  return (await reply.text()).includes('"ROUTE_NOT_FOUND"') ? "refused" : "gone";
}

function news(now, changes) {
  if (now === cursor) return;
  cursor = now;
  // A page on which nothing changes hears of its run's end alone.
  if (document.querySelector("[data-live]")) refresh().then(() => over || say(words(changes)));
}

function words(changes) {
  const line = changes.headline;
  return line ? `${line.scored} of ${line.planned} samples scored, run ${changes.status}` : `Run ${changes.status}`;
}

function end(reason) {
  // Two that were asked at once may both be told.
  if (over || (ended && reason === "ended")) return;
  stream?.close();
  clearTimeout(polling);
  ended = reason === "ended" || !ENDS[reason];
  over = !ended;
  if (ended) {
    // If the run is resumed, its page reloads.
    cursor = "";
    return refresh().then(() => say(ENDS.ended));
  }
  // The page stays as it was, which must not look as if it were so still.
  const problem = document.createElement("p");
  problem.className = "problem";
  problem.setAttribute("role", "alert");
  problem.textContent = ENDS[reason];
  const list = reason === "gone" && document.querySelector(".crumbs a");
  if (list) {
    const back = document.createElement("a");
    back.href = list.href;
    back.textContent = "Back to the list";
    problem.append(" ", back);
  }
  document.querySelector("main h1").after(problem);
}

async function refresh() {
  if (fetching) { again = true; return; }
  fetching = true;
  do {
    again = false;
    await update([...document.querySelectorAll("[data-live]")]);
  } while (again);
  fetching = false;
}

async function update(parts) {
  const names = parts.map((part) => part.dataset.live).join(",");
  if (!names) return;
  try {
    // Not kept: by going back, a browser would show the parts in place of the page.
    const reply = await fetch(location.href, { cache: "no-store", headers: { "X-Live-Part": names } });
    if ((await refusal(reply)) === "refused") return end("refused");
    if (!reply.ok) return;
    const made = new DOMParser().parseFromString(await reply.text(), "text/html");
    for (const part of parts) {
      const fresh = made.querySelector(`[data-live="${CSS.escape(part.dataset.live)}"]`);
      if (fresh) replace(part, fresh);
    }
  } catch { /* The next change fetches them. */ }
}

function replace(part, fresh) {
  const boxes = [...part.querySelectorAll("[data-follow]")].map((box) => [box, isAtEnd(box) ? null : readIn(box)]);
  const held = part.contains(document.activeElement) ? document.activeElement : null;
  const was = held && called(held);
  morph(part, fresh);
  // What was put before it may have made another of the node that had the focus.
  if (held && !(held.isConnected && called(held) === was)) {
    [...part.querySelectorAll(held.nodeName)].find((each) => called(each) === was)?.focus({ preventScroll: true });
  }
  for (const [box, read] of boxes) keep(box, read);
  document.dispatchEvent(new CustomEvent("updated", { detail: part }));
}

const called = (node) => node.getAttribute("href") ?? (node.id || node.textContent);
const isAtEnd = (box) => box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END_PX;

// The line that is read in a box: the first that is seen.
function readIn(box) {
  const lines = [...box.children];
  const index = lines.findIndex((line) => line.offsetTop + line.offsetHeight > box.scrollTop);
  return { index, text: lines[index]?.textContent, below: lines[index]?.offsetTop - box.scrollTop };
}

// A box is at its end, or its line stays where it was read: lines before it go away as others come.
function keep(box, read) {
  const line = read && [...box.children].slice(0, read.index + 1).reverse().find((each) => each.textContent === read.text);
  if (!read) box.scrollTop = box.scrollHeight;
  else if (line) box.scrollTop = line.offsetTop - read.below;
}

// Nodes that are alike stay the nodes they are: with focus, selection, scroll position, and open parts.
function morph(old, fresh) {
  const keyed = new Map();
  for (const child of old.children) if (key(child)) keyed.set(key(child), child);
  let place = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const known = wanted.nodeType === 1 && keyed.get(key(wanted));
    const kept = known || (place && alike(place, wanted) && !key(place) ? place : null);
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

const key = (node) => (node.nodeType === 1 && (node.id || node.dataset.id)) || "";
const alike = (one, other) => one.nodeType === other.nodeType && one.nodeName === other.nodeName && key(one) === key(other);

function change(kept, wanted) {
  if (kept.nodeType !== 1) {
    if (kept.nodeValue !== wanted.nodeValue) kept.nodeValue = wanted.nodeValue;
    return;
  }
  const mine = (name) => (kept.nodeName === "DETAILS" && name === "open") || name === "hidden";
  for (const { name } of [...kept.attributes]) if (!wanted.hasAttribute(name) && !mine(name)) kept.removeAttribute(name);
  for (const { name, value } of wanted.attributes) {
    if (kept.getAttribute(name) !== value && !mine(name)) kept.setAttribute(name, value);
  }
  if (kept.nodeName !== "INPUT" && kept.nodeName !== "SELECT" && kept.nodeName !== "TEXTAREA") morph(kept, wanted);
}
