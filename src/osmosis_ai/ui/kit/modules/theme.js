// Light, dark or the system's. The choice is a cookie, so that the server paints the next page in it at once.
const root = document.documentElement;
const system = window.matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

export function begin() {
  const button = document.getElementById("theme");
  if (!button) return;
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.hidden = false;
  button.setAttribute("aria-label", "Switch between light and dark");
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    const secure = location.protocol === "https:" ? "; Secure" : "";
    document.cookie = `osmosis_theme=${root.dataset.theme}; Path=/; Max-Age=31536000; SameSite=Strict${secure}`;
    name();
  });
  system.addEventListener("change", name);
  name();
}
