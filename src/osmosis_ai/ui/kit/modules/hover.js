// The numbers of the place under the pointer, read from the table that every chart has.

export function begin(part = document) {
  for (const svg of part.querySelectorAll(".plot svg[data-x]:not([data-hovers])")) {
    svg.dataset.hovers = "";
    watch(svg, svg.closest("figure"));
  }
}

function watch(svg, figure) {
  const [low, high, first, last] = svg.dataset.x.split(" ").map(Number);
  const rows = [...figure.querySelectorAll("tbody tr")].map((row) => [Number(row.cells[0].textContent.replaceAll(",", "")), row]);
  const names = [...figure.querySelectorAll("thead th")].map((cell) => cell.textContent);
  if (!rows.length) return;
  const line = document.createElementNS(svg.namespaceURI, "path");
  line.setAttribute("class", "pointer");
  const said = document.createElement("p");
  said.className = "hover";
  said.setAttribute("aria-hidden", "true");
  svg.append(line);
  svg.parentElement.after(said);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const wanted = low + ((at - first) / (last - first)) * (high - low);
    const [x, row] = rows.reduce((best, each) => (Math.abs(each[0] - wanted) < Math.abs(best[0] - wanted) ? each : best));
    const place = first + ((x - low) / (high - low)) * (last - first);
    line.setAttribute("d", `M${place.toFixed(1)} 24V230`);
    said.textContent = [...row.cells].map((cell, column) => (cell.textContent ? `${names[column]} ${cell.textContent}` : "")).filter(Boolean).join(" · ");
  });
  svg.addEventListener("pointerleave", () => {
    line.removeAttribute("d");
    said.textContent = "";
  });
}
