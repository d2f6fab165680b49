"use strict";
document.addEventListener("DOMContentLoaded", () => {
  nameFolds();
  searchFacts();
});

// The theme's arrows beside entries with pages below them have no name for a screen reader.
function nameFolds() {
  for (const arrow of document.querySelectorAll(".bd-sidebar summary")) {
    const entry = arrow.closest("li")?.querySelector("a");
    if (entry && !arrow.textContent.trim()) arrow.setAttribute("aria-label", `Pages below ${entry.textContent.trim()}`);
  }
}

// Shows the rows of the table of facts that hold all the words of the search.
function searchFacts() {
  const search = document.getElementById("search");
  const rows = [...document.querySelectorAll("#facts tbody tr")];
  if (!search || !rows.length) return;
  const texts = rows.map(row => `${row.id} ${row.textContent}`.toLowerCase());
  const show = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach((row, at) => { row.hidden = !wanted.every(word => texts[at].includes(word)); });
    document.getElementById("found").textContent = `${rows.filter(row => !row.hidden).length} of ${rows.length}`;
  };
  search.addEventListener("input", show);
  show();
}
