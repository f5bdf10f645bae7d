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
document.addEventListener("updated", (event) => {
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
