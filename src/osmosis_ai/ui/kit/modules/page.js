// Every page loads this, and works without it.
import * as copy from "./copy.js";
import * as hover from "./hover.js";
import * as keys from "./keys.js";
import * as live from "./live.js";
import * as switches from "./switches.js";
import * as theme from "./theme.js";

theme.begin();
copy.begin();
hover.begin();
keys.begin();
label(document);
document.addEventListener("updated", (event) => {
  label(event.detail);
  copy.begin(event.detail);
  hover.begin(event.detail);
});
live.begin();
switches.begin();
// The address of a filtered list holds what was chosen, and no empty words.
document.addEventListener("formdata", ({ target, formData }) => {
  if (target.method !== "get") return;
  for (const name of new Set(formData.keys())) if (formData.getAll(name).every((value) => value === "")) formData.delete(name);
});
// A button that needs some boxes of its form ticked.
for (const button of document.querySelectorAll("button[data-needs]")) {
  const check = () => { button.disabled = document.querySelectorAll(`input[form="${button.form.id}"]:checked`).length < Number(button.dataset.needs); };
  document.addEventListener("change", check);
  check();
}

// On a phone a row of a list is a card: each cell says which column it is of.
function label(part) {
  for (const table of part.querySelectorAll("table.list")) {
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.innerText.trim());
    for (const row of table.tBodies ? [...table.tBodies].flatMap((body) => [...body.rows]) : []) {
      if (row.cells.length === heads.length) heads.forEach((head, place) => { if (head) row.cells[place].dataset.label = head; });
    }
    table.classList.add("cards");
  }
}

const menu = document.getElementById("menu");
if (menu) {
  menu.hidden = false;
  menu.addEventListener("click", () => menu.setAttribute("aria-expanded", String(menu.getAttribute("aria-expanded") !== "true")));
}
