// Single keys, which may be switched off (WCAG 2.2, 2.1.4). They press what is on the page, so each works without them.
const STORE = "osmosis-keys";
const ROWS = "table.list tbody tr:has(a), [data-step]";
const help = document.getElementById("keys-help");
let off = false;

export function begin() {
  const button = document.getElementById("keys");
  if (!help || !button) return;
  // Where nothing may be stored, the choice holds for this page.
  try { off = localStorage.getItem(STORE) === "off"; } catch { /* as above */ }
  const box = help.querySelector("input");
  box.checked = !off;
  box.addEventListener("change", () => {
    off = !box.checked;
    try { localStorage.setItem(STORE, off ? "off" : "on"); } catch { /* as above */ }
  });
  button.hidden = false;
  button.addEventListener("click", () => help.showModal());
  document.addEventListener("keydown", pressed);
}

function pressed(event) {
  if (off || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (event.target.closest?.('input:not([type="checkbox"]), textarea, select, [contenteditable]')) return;
  const act = ACTS[event.key] ?? press(`[data-shortcut="${CSS.escape(event.key)}"]`);
  if (act?.(event) === true) event.preventDefault();
}

const press = (selector) => () => {
  const found = document.querySelector(`main ${selector}`);
  found?.click();
  return Boolean(found);
};

const ACTS = {
  "?": () => { help.showModal(); return true; },
  "/": () => {
    const field = document.querySelector('main input[type="search"]');
    field?.focus();
    field?.select();
    return Boolean(field);
  },
  j: () => move(1),
  k: () => move(-1),
  n: press('a[rel="next"]'),
  p: press('a[rel="prev"]'),
};

// Focus moves, and Enter then does what it does on any link.
function move(by) {
  const rows = [...document.querySelectorAll(ROWS)].filter((row) => row.offsetParent !== null);
  if (!rows.length) return false;
  const here = rows.findIndex((row) => row.contains(document.activeElement));
  const row = rows[here < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(here + by, 0), rows.length - 1)];
  const target = row.matches("tr") ? row.querySelector("a") : row;
  if (target === row) row.tabIndex = -1;
  target.focus({ preventScroll: true });
  row.scrollIntoView({ block: target === row ? "start" : "nearest" });
  return true;
}
