// Buttons that copy what they hold, or the code beside them; without script they are not there.
import { say } from "./say.js";

export function begin(part = document) {
  for (const button of part.querySelectorAll("button.copy")) button.hidden = false;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button.copy");
  if (!button) return;
  const label = button.textContent;
  const text = button.dataset.copy ?? button.parentElement.querySelector("code").textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    say("Copied");
  } catch {
    button.textContent = "Not allowed";
    say("The browser does not allow copying");
  }
  setTimeout(() => { button.textContent = label; }, 2000);
});
