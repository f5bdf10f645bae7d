// Buttons that copy what they hold; without script they are not there.
import { say } from "./say.js";

export function begin(part = document) {
  for (const button of part.querySelectorAll("button[data-copy]")) button.hidden = false;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button[data-copy]");
  if (!button) return;
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
    say("Copied");
  } catch {
    button.textContent = "Not allowed";
    say("The browser does not allow copying");
  }
  setTimeout(() => { button.textContent = label; }, 2000);
});
