// What changed, for who does not see it: at most every five seconds, the latest words only.
const QUIET_MS = 5000;
const place = document.getElementById("said");
let last = -Infinity;
let waiting = 0;

export function say(words) {
  if (!place) return;
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    last = performance.now();
    place.textContent = words;
  }, Math.max(0, last + QUIET_MS - performance.now()));
}
