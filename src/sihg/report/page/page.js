// What a page offers beyond reading: sorting tables, hiding entries, values under the pointer, copying code.
// Without it, the page shows the same content.
"use strict";

(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // ---- tables: a click on a heading sorts the rows; rows of published results stay below their entry

  function sortableTable(table) {
    const body = table.tBodies[0];
    const groups = [];
    for (const row of body.rows) {
      if (row.className === "aside" && groups.length) groups[groups.length - 1].push(row);
      else groups.push([row]);
    }
    if (groups.length < 2) return;
    for (const [column, heading] of [...table.tHead.rows[0].cells].entries()) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const down = heading.getAttribute("aria-sort") !== "descending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        body.append(...sorted(groups, column, down).flat());
      });
    }
  }

  function sorted(groups, column, down) {
    const keyed = groups.map((rows) => [sortKey(rows[0].cells[column]), rows]);
    const known = keyed.filter(([key]) => key !== null);
    const unknown = keyed.filter(([key]) => key === null);
    known.sort(([a], [b]) => (down ? -1 : 1) * compare(a, b));
    return [...known, ...unknown].map(([, rows]) => rows); // missing values stay at the end
  }

  function sortKey(cell) {
    const data = cell.querySelector("data");
    if (data) return Number.isFinite(Number(data.value)) ? Number(data.value) : null;
    const text = cell.textContent.trim();
    return text === "—" || text === "" ? null : text;
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", { numeric: true });
  }

  // ---- entries: a button shows or hides what belongs to one, in figures and tables

  function setUpToggles() {
    for (const box of all(".toggles")) {
      box.hidden = false;
      box.addEventListener("click", (event) => {
        const button = event.target.closest("button");
        if (!button) return;
        const show = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(show));
        for (const part of all(`[data-entry="${button.dataset.toggle}"]`)) part.classList.toggle("off", !show);
      });
    }
  }

  // ---- values: the title of the nearest point, in a box beside the pointer

  const REACH = 26; // pixels

  function setUpValues() {
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    document.body.append(tip);
    for (const svg of all("figure svg")) {
      const points = all(".values circle", svg);
      for (const point of points) {
        const title = point.querySelector("title");
        point.dataset.text = title.textContent;
        title.remove(); // or the browser would show it, too
      }
      if (!points.length) continue;
      svg.addEventListener("pointermove", (event) => showNearest(tip, points, event));
      svg.addEventListener("pointerleave", () => hide(tip));
    }
  }

  function showNearest(tip, points, event) {
    hide(tip);
    let nearest = null;
    let least = REACH;
    for (const point of points) {
      if (point.closest(".off")) continue;
      const box = point.getBoundingClientRect();
      const x = box.left + box.width / 2;
      const y = box.top + box.height / 2;
      const distance = Math.hypot(x - event.clientX, y - event.clientY);
      if (distance < least) [nearest, least] = [point, distance];
    }
    if (!nearest) return;
    nearest.classList.add("near");
    tip.textContent = nearest.dataset.text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - box.width - 8);
    const above = event.clientY - box.height - 12;
    tip.style.left = `${Math.max(8, left) + window.scrollX}px`;
    tip.style.top = `${(above > 8 ? above : event.clientY + 18) + window.scrollY}px`;
  }

  function hide(tip) {
    tip.hidden = true;
    for (const point of all(".near")) point.classList.remove("near");
  }

  // ---- code: a button copies it

  function copyable(block) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(block.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(block); // no clipboard: the reader copies the selection
        button.textContent = "Selected";
      }
    });
    block.before(button);
  }

  all("table").forEach(sortableTable);
  setUpToggles();
  setUpValues();
  all("pre").forEach(copyable);
})();
